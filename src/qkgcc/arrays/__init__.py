"""Arrays of microphones.

Where they are: `geometry`, from files that say so (`files`) or by name (`presets`). What their pairs hear: `evidence`,
over lags, and `delays`, of places. On these two stand `directions` and `positions` of sources, `tracks` of those that
move, and the `calibration` of recorders and microphone places.
"""

from qkgcc.arrays.directions import DirectionEstimate, DirectionEstimator, DirectionStream
from qkgcc.arrays.files import read_geometry
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.positions import PositionEstimate, PositionEstimator
from qkgcc.arrays.presets import array
from qkgcc.arrays.tracks import Motion, Track, Tracker, smooth

__all__ = [
    "DirectionEstimate",
    "DirectionEstimator",
    "DirectionStream",
    "Geometry",
    "Motion",
    "PositionEstimate",
    "PositionEstimator",
    "Track",
    "Tracker",
    "array",
    "read_geometry",
    "smooth",
]
