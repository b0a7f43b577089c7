"""Arrays of microphones: where they are (`geometry`), from files that say so (`files`) or by name (`presets`).

`tracking` follows sources through the directions of frames, with the `motion` of directions, `track_smoothing` looks
back at a whole recording, `rttm` writes who spoke when, `track_scores` says how well.
"""

from qkgcc.arrays.files import read_geometry
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.motion import Motion
from qkgcc.arrays.presets import array
from qkgcc.arrays.track_smoothing import smooth
from qkgcc.arrays.tracking import Track, Tracker

__all__ = ["Geometry", "Motion", "Track", "Tracker", "array", "read_geometry", "smooth"]
