"""Types of arrays, the speed of sound, and the levels of silence, that the whole package shares."""

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

SILENCE = 1e-5
"""Joint RMS of a frame (full scale = 1) below which there is no estimate."""
DEAD = 1e-7
"""RMS of one channel below which it holds nothing, whatever the other does: less than the last of 24 bits."""
