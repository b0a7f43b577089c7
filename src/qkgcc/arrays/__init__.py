"""Arrays of microphones.

Where they are: `geometry`, from files that say so (`files`) or by name (`presets`). What their pairs hear: `evidence`,
over lags, and `delays`, of places. Where sources are: `grids` of directions, `maps` over them, `directions` found, of
recordings, and by `direction_stream` of sound that is still coming.

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
