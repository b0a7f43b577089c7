"""Where sources are, as directions.

`grids` of directions, `maps` of evidence over them and their peaks, the `context` that blocks are heard in, the
`estimator` for recordings and the `stream` for sound that is still coming, and what they answer (`found`).
"""

from qkgcc.arrays.directions.estimator import DirectionEstimator
from qkgcc.arrays.directions.found import Direction, DirectionBlock, DirectionEstimate
from qkgcc.arrays.directions.stream import DirectionFrames, DirectionStream

__all__ = [
    "Direction",
    "DirectionBlock",
    "DirectionEstimate",
    "DirectionEstimator",
    "DirectionFrames",
    "DirectionStream",
]
