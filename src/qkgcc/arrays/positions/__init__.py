"""Where sources are among microphones metres apart.

What frames say is added up (`heard`), places are searched for (`search`) and fitted to the delays of the pairs
(`trilateration`); the `estimator` does all of it, and `placed` is what it answers.
"""

from qkgcc.arrays.positions.estimator import PositionEstimator
from qkgcc.arrays.positions.placed import Position, PositionBlock, PositionEstimate

__all__ = ["Position", "PositionBlock", "PositionEstimate", "PositionEstimator"]
