"""Sources followed through the directions of frames.

The `tracker` for sound that is still coming, with the `motion` of directions; of whole recordings, `paths` finds the
best paths on a circle or a line, and `smoothing` looks back on a sphere. `rttm` writes who spoke when, `scores` says
how well.
"""

from qkgcc.arrays.tracks.motion import Motion
from qkgcc.arrays.tracks.paths import find_tracks
from qkgcc.arrays.tracks.smoothing import smooth
from qkgcc.arrays.tracks.tracker import Track, Tracker

__all__ = ["Motion", "Track", "Tracker", "find_tracks", "smooth"]
