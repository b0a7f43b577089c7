"""Sources followed through the directions of frames.

The `tracker`, with the `motion` of directions; `smoothing` looks back at a whole recording, `rttm` writes who spoke
when, `scores` says how well.
"""

from qkgcc.arrays.tracks.motion import Motion
from qkgcc.arrays.tracks.smoothing import smooth
from qkgcc.arrays.tracks.tracker import Track, Tracker

__all__ = ["Motion", "Track", "Tracker", "smooth"]
