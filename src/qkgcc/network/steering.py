"""What NumPy does before and behind a network: short windows of a frame, and what steers evidence to delays.

r[tau] = sum_k Re(E[k] exp(j 2 pi f_k tau)) / sqrt(terms)      a matrix, for one product
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats


def count_windows(frame: int, window: int) -> int:
    """How many windows of an even number of samples cover a frame; zeros follow its end where they do not fit.

    >>> count_windows(2048, 512), count_windows(2000, 512), count_windows(100, 512)
    (7, 7, 1)
    """
    return max(1, -(-frame // (window // 2)) - 1)


@lru_cache(maxsize=8)
def taper(window: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Hann's, periodic: half-overlapping ones sum to 1."""
    shape: npt.NDArray[Any] = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(dtype)
    shape.flags.writeable = False  # it is shared by all that ask for it
    return shape


def cut_windows(frames: npt.NDArray[Any], window: int) -> npt.NDArray[Any]:
    """Short windows of a frame: half-overlapping, tapered. Shape: (..., frame) -> (..., windows, window)"""
    hop, windows = window // 2, count_windows(frames.shape[-1], window)
    if spare := (windows + 1) * hop - frames.shape[-1]:
        frames = np.concatenate([frames, np.zeros((*frames.shape[:-1], spare), frames.dtype)], axis=-1)
    halves, shape = np.reshape(frames, (*frames.shape[:-1], windows + 1, hop)), taper(window, frames.dtype)
    cut = np.empty((*frames.shape[:-1], windows, window), frames.dtype)
    np.multiply(halves[..., :-1, :], shape[:hop], out=cut[..., :hop])
    np.multiply(halves[..., 1:, :], shape[hop:], out=cut[..., hop:])
    return cut


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
        raise InputError(f"delays are {delays.tolist()}; expected at least one, rising in steps of {step:g} (samples)")


@lru_cache(maxsize=64)
def _even(delays: bytes, step: float) -> bool:
    """The same few grids are asked for frame after frame."""
    given = np.frombuffer(delays)
    # As near as delays come that were written down with six digits.
    return bool(len(given) and np.isfinite(given).all() and (np.abs(np.diff(given) - step) <= 1e-5 * step).all())
