"""Where sources are among microphones metres apart.

The `estimator`, `trilateration` from the delays of pairs, and what they answer (`placed`).
"""

from qkgcc.arrays.positions.estimator import PositionEstimator
from qkgcc.arrays.positions.placed import Position, PositionBlock, PositionEstimate

__all__ = ["Position", "PositionBlock", "PositionEstimate", "PositionEstimator"]
