"""Energy decay of a response, and the reverberation time that is measured from it."""

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def energy_decay(response: npt.NDArray[np.floating[Any]]) -> Floats:
    """Schroeder's backward integral in dB, 0 at the start. Shape: (..., n) -> the same."""
    power = np.asarray(response, dtype=np.float64) ** 2
    left = np.flip(np.cumsum(np.flip(power, axis=-1), axis=-1), axis=-1)
    return np.asarray(10 * np.log10(np.maximum(left / left[..., :1], 1e-12)))


def measured_t60(response: npt.NDArray[np.floating[Any]], sample_rate: int) -> float:
    """T60 in seconds from the slope between -5 and -35 dB (T30, ISO 3382); NaN where that part has no two samples."""
    decay = energy_decay(response)
    part = np.flatnonzero((decay <= -5) & (decay >= -35))
    if len(part) < 2:
        return float("nan")
    slope = np.polyfit(part / sample_rate, decay[part], 1)[0]
    return float(-60 / slope)
