"""What steers evidence to candidate delays, as a matrix for one product. NumPy only: an exported network asks for it.

r[tau] = sum_k Re(E[k] exp(j 2 pi f_k tau)) / sqrt(terms)
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats


@lru_cache(maxsize=16)
def steering_matrix(
    dft: int, center: float, step: float, count: int, terms: int, dtype: Any = np.float32
) -> npt.NDArray[Any]:
    """Its product with ``[Re E, Im E]`` is the steered sum, for `count` delays `step` samples apart around `center`.

    A sum of noise grows with the root of the number of
    its `terms`, usable bins of all windows: divided by it, noise has one size whatever the band.

    Shape: (2 * bins, count)
    """
    bins = dft // 2 + 1
    frequencies = np.arange(bins) / dft
    delays = (np.arange(count) - (count - 1) / 2) * step + center  # outwards from the middle: mirrors to the bit
    angle = 2 * np.pi * frequencies[:, None] * delays
    exact = np.concatenate([np.cos(angle), -np.sin(angle)]) / np.sqrt(max(1, terms))
    matrix: npt.NDArray[Any] = exact.astype(dtype)
    matrix.flags.writeable = False  # it is shared by all that ask for it
    return matrix


def check_delays(delays: Floats, step: float) -> None:
    """The convolutions along the delays know one step: an `InputError` for any others. Shape: (L,)"""
    if not _even(np.ascontiguousarray(delays, np.float64).tobytes(), step):
        raise InputError(f"delays are {delays.tolist()}; expected at least one, {step:g} samples apart, rising")


@lru_cache(maxsize=64)
def _even(delays: bytes, step: float) -> bool:
    """The same few grids are asked for frame after frame."""
    given = np.frombuffer(delays)
    # As near as delays come that were written down with six digits.
    return bool(len(given) and np.isfinite(given).all() and (np.abs(np.diff(given) - step) <= 1e-5 * step).all())
