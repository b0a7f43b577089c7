"""Arrays of microphones: directions, positions and tracks of sources."""

from qkgcc.arrays.direction_result import Direction, DirectionBlock, DirectionEstimate
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.files import read_geometry
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.position_result import Position, PositionBlock, PositionEstimate
from qkgcc.arrays.positions import PositionEstimator
from qkgcc.arrays.presets import array
from qkgcc.arrays.stream import DirectionFrames, DirectionStream
from qkgcc.tracks import Motion, Track, Tracker, smooth

__all__ = [
    "Direction",
    "DirectionBlock",
    "DirectionEstimate",
    "DirectionEstimator",
    "DirectionFrames",
    "DirectionStream",
    "Geometry",
    "Motion",
    "Position",
    "PositionBlock",
    "PositionEstimate",
    "PositionEstimator",
    "Track",
    "Tracker",
    "array",
    "read_geometry",
    "smooth",
]
