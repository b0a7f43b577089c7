"""How far to trust a classical delay: does the coherence of the two channels support it?

A correlation's own height says little for some weightings (CC's is high whenever the sound is low-pitched). So one
yardstick judges them all: the SCOT curve, which is the smoothed coherence spread over the lags. Two of its values
decide, `at`, its largest within 62.5 microseconds of the delay, and `away`, its largest beyond that:

    confidence = min(1 / (1 + exp(-(a + b at - c away))), 1 - 2/3 (away / at)^8)

The second term is near 1 until a rival comes close, and 1/3 for a tie: a tone or a pulse train fits several delays
equally well, however coherent it is. Both values are first scaled by the square root of the number of independent bins
behind the curve, relative to a 128 ms frame and an 8 kHz band: in shorter frames and narrower bands the same height
means less.

The three numbers are a logistic fit on simulated reverberant speech (tools/fit_confidence.py, all six weightings
pooled, which also prints what is reached on held-out rooms). Elsewhere the confidence is not known to do more than
rank, so a `DelayEstimate` of a classical method says `calibrated = False`.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import Floats, Samples
from qkgcc.dsp import gcc

NARROW = 1000.0
"""Hz of a band below which it is said that most delays from so little of the sound are wrong: one frequency has the
same phase at many delays, and only others tell which of these is the true one.

In 30 simulated rooms with voices of dev-clean (benchmarks/results/bands.md), 0.61 of the frames of `general` and 0.46
of those of `phat` are right when they hear everything. Of 1000 Hz around 600, 1500, 3000 and 5500 Hz they get 0.11 to
0.37 and 0.11 to 0.29 right, of 250 Hz 0.05 to 0.21 and 0.08 to 0.20; chance is 0.07. What a network states stays too
high: around 600 Hz 0.36 of 250 Hz, of which 0.21 are right. So it counts by the share of `NARROW` that is there."""
NARROWEST = 125.0
"""Hz of a band below which a network is not asked at all: there, 0.04 to 0.13 of its delays are right."""

TOLERANCE = 62.5e-6
"""A delay counts as right within this many seconds: one sample at 16 kHz."""

EXACT, SHARE, FADE = 3e-6, 0.01, 12.5e-6
"""Seconds by which a measured delay may exceed the largest possible one without a doubt, plus a share of that (spacing
and temperature are known to 1 % at best), and seconds over which the confidence then fades to `CUT_OFF`. Of talkers in
line with the microphones, in simulated rooms, 95 % of the sure frames exceed it by at most 12 us."""
CUT_OFF = 0.2
"""Confidence that is left, at most."""

TOP = 8000.0
"""Hz. Above it speech has little that is coherent, and 48 kHz recordings would look worse than the same at 16 kHz."""

_A, _B, _C = -2.31, 16.05, 9.53


_REFERENCE_BINS = 256.0  # independent bins of a quarter of a 2048-sample frame, up to 8 kHz at 16 kHz


def limit_cap(excess: npt.ArrayLike, limit: float) -> Floats:
    """The most that a delay deserves that exceeds the largest possible one, `limit`, by so much. All in seconds.

    A source in line with the microphones has the largest possible delay, and noise makes it a little longer. One that
    is clearly longer says that the spacing is too small.

    >>> limit_cap([-1e-4, 0.0, 15e-6, 30e-6], 0.2 / 343).round(2)
    array([1.  , 1.  , 0.61, 0.2 ])
    """
    over = (np.asarray(excess, dtype=np.float64) - EXACT - min(SHARE * limit, TOLERANCE / 4)) / FADE
    return np.asarray(1 - (1 - CUT_OFF) * np.clip(over, 0, 1))


def coherence_segments(frames: Samples, *, max_lag: int) -> gcc.Spectra:
    """What a channel needs alone for that. Shape: (batch, channels, n)"""
    return gcc.averaged_spectra(frames, _segment(frames.shape[-1], max_lag))


def coherence_cross(
    first: gcc.Spectra, second: gcc.Spectra, *, sample_rate: float, band: tuple[float, float] | None = None
) -> npt.NDArray[np.complexfloating[Any, Any]]:
    """Spectrum of the SCOT curve that judges, of the segments of two channels; additive over frames."""
    limits = _limits(sample_rate, band)
    return np.asarray(gcc.weighted_cross(first, second, "scot", band=limits, sample_rate=sample_rate))


def support(
    coherence: npt.NDArray[Any],
    delay: npt.NDArray[Any],
    *,
    max_lag: int,
    sample_rate: float,
    frame: int,
    band: tuple[float, float] | None = None,
    reach: int | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """`at` and `away`, scaled, of each delay in samples. Shape: (batch, F), (batch,) -> two of (batch,).

    Args:
        max_lag: that the coherence was computed for.
        reach: largest lag of a rival; by default max_lag.
    """
    circular = gcc.correlation(coherence)
    reach = min(max_lag if reach is None else reach, circular.shape[-1] // 2 - 1)
    values = gcc.curve(circular, reach)
    lags = np.arange(-reach, reach + 1)
    near = np.abs(lags - np.rint(delay)[:, None]) <= max(1, round(TOLERANCE * sample_rate))
    at = np.where(near, values, -1.0).max(axis=-1)
    away = np.where(near, 0.0, values).max(axis=-1)
    low, high = _limits(sample_rate, band)
    bins = _segment(frame, max_lag) / 2 * (high - low) / (sample_rate / 2)
    scale = np.sqrt(bins / _REFERENCE_BINS)
    return at * scale, away * scale


def confidence_of(at: npt.NDArray[Any], away: npt.NDArray[Any]) -> Floats:
    """The formula above."""
    return np.minimum(1 / (1 + np.exp(-(_A + _B * at - _C * away).astype(np.float64))), ambiguity_cap(at, away))


def ambiguity_cap(at: npt.NDArray[Any], away: npt.NDArray[Any]) -> Floats:
    """The most that a delay with a rival deserves."""
    rivalry = np.minimum(np.maximum(away / np.maximum(at, 1e-6), 0), 1)
    return np.asarray(1 - 2 / 3 * rivalry**8)


def coherence_confidence(
    coherence: npt.NDArray[Any],
    delay: npt.NDArray[Any],
    *,
    max_lag: int,
    sample_rate: float,
    frame: int,
    band: tuple[float, float] | None = None,
    reach: int | None = None,
) -> Floats:
    """Confidence of each delay. Shape: (batch, F), (batch,) -> (batch,), from 0 to 1."""
    values = support(coherence, delay, max_lag=max_lag, sample_rate=sample_rate, frame=frame, band=band, reach=reach)
    return confidence_of(*values)


def _limits(sample_rate: float, band: tuple[float, float] | None) -> tuple[float, float]:
    """The band that is looked at: the one given, or all of it, up to `TOP` where it reaches beyond."""
    low, high = band or (0.0, sample_rate / 2)
    high = min(high, sample_rate / 2)
    return (low, TOP) if low < TOP < high else (low, high)


def _segment(frame: int, max_lag: int) -> int:
    """Lags too long for the segments find no coherence and get a low confidence, where SCOT itself would refuse."""
    return min(max(frame // 4, 4 * max_lag), frame // 2)


def narrow_band_warning(low: float, high: float) -> str | None:
    """What to say of the part of a band that is heard, in Hz; None: it is wide enough.

    >>> narrow_band_warning(300, 3400)
    """
    if high - low >= NARROW:
        return None
    return (
        f"only {low:g} to {high:g} Hz are used: most delays from a band under {NARROW:g} Hz are wrong for voices in "
        "rooms, use a wider one"
    )
