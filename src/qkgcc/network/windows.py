"""Short windows of a frame: half-overlapping, tapered. NumPy only: an exported network asks for them.

A frame of any length has as many as cover it; zeros follow its end where they do not fit.

>>> count(2048, 512), count(2000, 512), count(100, 512)
(7, 7, 1)
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt


def count(frame: int, window: int) -> int:
    """How many windows of an even number of samples cover a frame."""
    return max(1, -(-frame // (window // 2)) - 1)


@lru_cache(maxsize=8)
def taper(window: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Hann's, periodic: half-overlapping ones sum to 1."""
    shape: npt.NDArray[Any] = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(dtype)
    shape.flags.writeable = False  # it is shared by all that ask for it
    return shape


def cut(frames: npt.NDArray[Any], window: int) -> npt.NDArray[Any]:
    """Shape: (..., frame) -> (..., windows, window)"""
    hop, windows = window // 2, count(frames.shape[-1], window)
    if spare := (windows + 1) * hop - frames.shape[-1]:
        frames = np.concatenate([frames, np.zeros((*frames.shape[:-1], spare), frames.dtype)], axis=-1)
    halves, shape = np.reshape(frames, (*frames.shape[:-1], windows + 1, hop)), taper(window, frames.dtype)
    cut = np.empty((*frames.shape[:-1], windows, window), frames.dtype)
    np.multiply(halves[..., :-1, :], shape[:hop], out=cut[..., :hop])
    np.multiply(halves[..., 1:, :], shape[hop:], out=cut[..., hop:])
    return cut
