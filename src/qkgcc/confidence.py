"""How far to trust a classical delay: does the coherence of the two channels support it?

A correlation's own height says little for some weightings (CC's is high whenever the sound is low-pitched). So one
yardstick judges them all: the SCOT curve, which is the smoothed coherence spread over the lags. Two of its values
decide, `at`, its largest within 62.5 microseconds of the delay, and `away`, its largest beyond that:

    confidence = 1 / (1 + exp(-(a + b at - c away)))

The three numbers are a logistic fit on simulated reverberant speech (tools/fit_confidence.py, all six weightings
pooled). On held-out rooms of the same kind it is off by 2 to 5 points (expected calibration error) and ranks right
above wrong with an AUC of 0.80 to 0.81, for every weighting. Elsewhere it is not known to do more than rank, so a
`DelayEstimate` of a classical method says `calibrated = False`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc import gcc

TOLERANCE = 62.5e-6
"""A delay counts as right within this many seconds: one sample at 16 kHz."""

TOP = 8000.0
"""Hz. Above it speech has little that is coherent, and 48 kHz recordings would look worse than the same at 16 kHz."""

_A, _B, _C = -2.24, 15.87, 9.98


def coherence_spectrum(
    frames: npt.NDArray[np.floating[Any]],
    *,
    max_lag: int,
    sample_rate: float,
    band: tuple[float, float] | None = None,
) -> npt.NDArray[np.complexfloating[Any, Any]]:
    """Spectrum of the SCOT curve that judges; additive over frames. Shape: (batch, 2, n) -> (batch, F)."""
    low, high = band or (0.0, sample_rate / 2)
    frame = frames.shape[-1]
    # Lags too long for the segments find no coherence and get a low confidence, where SCOT itself would refuse.
    segment = min(max(frame // 4, 4 * max_lag), frame // 2)
    limits = (low, min(high, TOP)) if low < TOP < high else (low, high)
    spectrum: npt.NDArray[np.complexfloating[Any, Any]] = gcc.weighted_spectrum(
        frames, "scot", max_lag=max_lag, band=limits, sample_rate=sample_rate, segment=segment
    )
    return spectrum


def support(
    coherence: npt.NDArray[Any], delay: npt.NDArray[Any], *, max_lag: int, sample_rate: float
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """`at` and `away` of each delay (in samples). Shape: (batch, F), (batch,) -> two of (batch,)."""
    circular = gcc.correlation(coherence)
    reach = min(max_lag, circular.shape[-1] // 2 - 1)
    values = gcc.curve(circular, reach)
    lags = np.arange(-reach, reach + 1)
    near = np.abs(lags - np.round(delay)[:, None]) <= max(1, round(TOLERANCE * sample_rate))
    at = np.where(near, values, -1.0).max(axis=-1)
    away = np.where(near, 0.0, values).max(axis=-1)
    return at, away


def coherence_confidence(
    coherence: npt.NDArray[Any], delay: npt.NDArray[Any], *, max_lag: int, sample_rate: float
) -> npt.NDArray[np.float64]:
    """Confidence of each delay. Shape: (batch, F), (batch,) -> (batch,), from 0 to 1."""
    at, away = support(coherence, delay, max_lag=max_lag, sample_rate=sample_rate)
    return 1 / (1 + np.exp(-(_A + _B * at - _C * away).astype(np.float64)))
