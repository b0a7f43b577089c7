"""Arrays of microphones: directions, positions and tracks of sources."""

from qkgcc.core.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qkgcc.arrays.directions import DirectionEstimator
    from qkgcc.arrays.geometry import Geometry, read_geometry
    from qkgcc.arrays.positions import PositionEstimator
    from qkgcc.arrays.presets import array
    from qkgcc.arrays.result import (
        Direction,
        DirectionBlock,
        DirectionEstimate,
        Position,
        PositionBlock,
        PositionEstimate,
    )
    from qkgcc.arrays.stream import DirectionFrames, DirectionStream
    from qkgcc.tracks.motion import Motion
    from qkgcc.tracks.tracker import Track, Tracker, smooth

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

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "Direction": "qkgcc.arrays.result",
        "DirectionBlock": "qkgcc.arrays.result",
        "DirectionEstimate": "qkgcc.arrays.result",
        "DirectionEstimator": "qkgcc.arrays.directions",
        "DirectionFrames": "qkgcc.arrays.stream",
        "DirectionStream": "qkgcc.arrays.stream",
        "Geometry": "qkgcc.arrays.geometry",
        "Motion": "qkgcc.tracks.motion",
        "Position": "qkgcc.arrays.result",
        "PositionBlock": "qkgcc.arrays.result",
        "PositionEstimate": "qkgcc.arrays.result",
        "PositionEstimator": "qkgcc.arrays.positions",
        "Track": "qkgcc.tracks.tracker",
        "Tracker": "qkgcc.tracks.tracker",
        "array": "qkgcc.arrays.presets",
        "read_geometry": "qkgcc.arrays.geometry",
        "smooth": "qkgcc.tracks.tracker",
    },
)
