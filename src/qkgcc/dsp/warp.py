"""Samples read between the samples, at times that run faster or slower.

A windowed sinc reads them. Drifts are parts in a million, so nothing has to be filtered against aliasing.
"""

from functools import lru_cache

import numpy as np

from qkgcc.core.types import Floats, Samples

TAPS = 64
"""Samples that the sinc looks at; what is left out is below -90 dB up to 0.9 of half the rate."""
_KAISER = 9.0
_PHASES = 1024  # between two samples, at which the sinc is known; a straight line between them leaves -110 dB
_CHUNK = 4096  # samples made at once: 2 MB of what they are made of


def warp(samples: Samples, step: float, first: float, count: int) -> Samples:
    """Samples at the places first, first + step, ...; zeros where there are none. Shape: (..., n) -> (..., count)

    >>> warp(np.arange(200.0), 1.0, 99.5, 2).round(3).tolist()
    [99.5, 100.5]
    """
    made = np.zeros((*samples.shape[:-1], count), dtype=samples.dtype)
    length, before = samples.shape[-1], TAPS // 2 - 1
    table = _sinc().astype(samples.dtype)
    for start in range(0, count, _CHUNK):
        place = first + step * np.arange(start, min(start + _CHUNK, count))
        whole = np.floor(place).astype(np.int64)
        begin, end = int(whole.min()) - before, int(whole.max()) - before + TAPS
        if end <= 0 or begin >= length:
            continue
        part = samples[..., max(0, begin) : end]
        beyond = [(0, 0)] * (samples.ndim - 1) + [(max(0, -begin), max(0, end - length))]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(part, beyond), TAPS, axis=-1)
        phase = (place - whole) * _PHASES
        low = np.minimum(phase.astype(np.int64), _PHASES - 1)
        kernel = table[low]
        kernel += (phase - low)[:, None].astype(samples.dtype) * (table[low + 1] - kernel)
        taken = windows[..., whole - before - begin, :]
        made[..., start : start + _CHUNK] = np.einsum("...nt,nt->...n", taken, kernel)
    return made


@lru_cache(maxsize=1)
def _sinc() -> Floats:
    """Weights of the samples around a place, for each phase. Shape: (phases + 1, taps)"""
    phase = np.arange(_PHASES + 1)[:, None] / _PHASES
    away = np.arange(TAPS) - (TAPS // 2 - 1) - phase
    inside = np.clip(1 - (away / (TAPS / 2)) ** 2, 0, None)
    weights = np.sinc(away) * np.i0(_KAISER * np.sqrt(inside)) / np.i0(_KAISER)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
