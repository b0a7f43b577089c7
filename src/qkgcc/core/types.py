"""Types of arrays, and the one constant of physics, that the whole package shares."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Floats32: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.intp]
Samples: TypeAlias = npt.NDArray[np.floating[Any]]
"""Sound of either precision, full scale 1. Shape: (channels, n), or frames (batch, channels, n)"""

SPEED_OF_SOUND = 343.0
"""Metres per second, in air of 20 degrees Celsius."""
