"""Arrays of microphones: directions, positions and tracks of sources."""

from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.geometry import Geometry, read_geometry
from qkgcc.arrays.positions import PositionEstimator
from qkgcc.arrays.presets import array
from qkgcc.arrays.result import Direction, DirectionBlock, DirectionEstimate, Position, PositionBlock, PositionEstimate
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
