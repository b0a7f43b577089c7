"""A classical weighting as a method of the estimator: frames -> spectra that add up -> curve, delay, confidence."""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import SPEED_OF_SOUND, Floats, Floats32, Samples
from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import find_peak
from qkgcc.pairs.confidence import (
    TOLERANCE,
    coherence_confidence,
    coherence_cross,
    coherence_segments,
    limit_cap,
    narrow_band_warning,
)
from qkgcc.pairs.decoding import Decoded

TAPER = 0.03
"""Share of a frame that fades in and out, half of it at each end. Where a frame is cut, both channels have an edge at
the same place: an event at delay 0 with all frequencies, which PHAT lets count as much as all else. What it is worth is
in docs/reports/general.md: `phat` against `gcc-phat`."""

SURE = 0.45
"""Confidence of an impossible delay from which on it is said to be the true one (benchmarks/spacing.py)."""
_BEYOND = 3  # times the possible lags are looked at, at least
_FURTHEST = 0.5 / SPEED_OF_SOUND  # seconds that are looked at, at least

_TOGETHER = 4  # frames: their segments stay in a core's cache, and many more are memory from the system, each time anew


@dataclass(frozen=True)
class Classical:
    """See `estimate.Method` for what the members mean."""

    weighting: str
    sample_rate: int
    frame: int
    max_lag: int
    limit: float
    """Samples beyond which no delay is possible; `max_lag` is the whole one next to it."""
    band: tuple[float, float] | None
    beta: float
    interpolation: str
    taper: float = TAPER
    range_tolerance: float = 0.0
    """Samples by which an answer may be larger than `limit`."""

    kind = "correlation"
    calibrated = False
    scaling = "none"  # every weighting is indifferent to a common gain
    rumble = 0.0  # it counts every frequency alike

    @property
    def warning(self) -> str | None:
        if self.band is None:
            return None
        low, high = self.band
        return narrow_band_warning(low, min(high, self.sample_rate / 2))

    @property
    def lags(self) -> Floats:
        return np.arange(-self.max_lag, self.max_lag + 1, dtype=np.float64)

    def channel_features(self, frames: Samples) -> tuple[gcc.Spectra, gcc.Spectra]:
        """Spectra for the weighting and for the coherence. Every weighting is indifferent to the gain of a channel."""
        parts = [self._channel_features(frames[few]) for few in _few_at_a_time(len(frames))]
        if len(parts) == 1:
            return parts[0]
        segments = gcc.Spectra.joined([one for _, one in parts])
        averaged = self.weighting in gcc.AVERAGED
        return segments if averaged else gcc.Spectra.joined([one for one, _ in parts]), segments

    def _channel_features(self, frames: Samples) -> tuple[gcc.Spectra, gcc.Spectra]:
        frames = _by_a_power_of_two(frames)
        # A constant offset would be a source of its own, at delay 0.
        centred = frames - frames.mean(axis=-1, keepdims=True)
        if self.taper:
            centred = centred * taper(frames.shape[-1], self.taper)
        if self.weighting in gcc.AVERAGED:
            gcc.segment_length(frames.shape[-1], self.max_lag)  # refuses frames that are too short
        segments = coherence_segments(centred, max_lag=self.max_lag)
        return segments if self.weighting in gcc.AVERAGED else gcc.whole_spectra(centred), segments

    def evidence(self, frames: Samples, channels: tuple[Any, Any] | None = None) -> tuple[npt.NDArray[Any], ...]:
        if channels is None:
            both = self.channel_features(frames)
            channels = tuple(one.channel(0) for one in both), tuple(one.channel(1) for one in both)
        if len(frames) <= _TOGETHER:
            return self._evidence(*channels)
        parts = []
        for few in _few_at_a_time(len(frames)):
            parts.append(self._evidence(*(tuple(one.of_frames(few) for one in of) for of in channels)))
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def _evidence(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[npt.NDArray[Any], ...]:
        rate, band = self.sample_rate, self.band
        weighted = gcc.weighted_cross(first[0], second[0], self.weighting, beta=self.beta, band=band, sample_rate=rate)
        return weighted, coherence_cross(first[1], second[1], sample_rate=rate, band=band)

    def decode(self, evidence: tuple[npt.NDArray[Any], ...]) -> Decoded:
        weighted, coherence = evidence
        circular = gcc.correlation(weighted)
        reach = self._reach(circular.shape[-1])
        peak = find_peak(circular, reach, self.interpolation)
        excess = (np.abs(peak) - self.limit) / self.sample_rate
        far = excess > TOLERANCE / 2
        delay = np.clip(peak, -self.limit - self.range_tolerance, self.limit + self.range_tolerance)
        delay[far] = find_peak(circular[far], self.max_lag, self.interpolation, self.limit + self.range_tolerance)
        judged = partial(
            coherence_confidence,
            max_lag=self.max_lag,
            sample_rate=self.sample_rate,
            frame=self.frame,
            band=self.band,
        )
        confidence = judged(coherence, delay)
        confidence = np.minimum(confidence, limit_cap(np.where(far, 0.0, excess), self.limit / self.sample_rate))
        out_of_range_delay = np.full(len(delay), np.nan)
        if far.any():
            # The highest peak of all lies at an impossible delay: it is a rival, whatever else is known of it.
            rival, own = (judged(coherence[far], place[far], reach=reach) for place in (peak, delay))
            confidence[far] = np.minimum(confidence[far], own) * (1 - rival)
            out_of_range_delay[far] = np.where(rival >= SURE, peak[far], np.nan)
        return Decoded(gcc.curve(circular, self.max_lag), delay, confidence, out_of_range_delay)

    def _reach(self, length: int) -> int:
        """The largest lag that is looked at, in a circular correlation of a length: more than is possible."""
        return min(max(_BEYOND * self.max_lag, round(_FURTHEST * self.sample_rate)), length // 2 - 1)

    @property
    def for_pooled_evidence(self) -> "Classical":
        return self

    context = 0.0

    def in_context(
        self,
        posterior: npt.NDArray[Any],
        delay: npt.NDArray[Any],
        confidence: npt.NDArray[Any],
        out_of_range_delay: npt.NDArray[Any],
        times: npt.NDArray[Any],
        wanted: slice | None = None,
        ahead: float = 0.0,
    ) -> npt.NDArray[Any]:
        return confidence[wanted or slice(None)]


def _few_at_a_time(count: int) -> list[slice]:
    return [slice(first, first + _TOGETHER) for first in range(0, max(1, count), _TOGETHER)]


def _by_a_power_of_two(frames: Samples) -> Samples:
    """Channels whose largest sample is between 1/2 and 1, no digit of them changed. Shape: (batch, channels, n) -> same

    Coherence takes the fourth power of a spectrum: for float32, 32-bit numbers that nobody has scaled are too large.
    """
    _, exponent = np.frexp(np.abs(frames).max(axis=-1, keepdims=True))
    return np.asarray(np.ldexp(frames, -exponent))


@lru_cache(maxsize=8)
def taper(length: int, share: float = TAPER) -> Floats32:
    """Tukey's: half a cosine up, ones, half a cosine down. Shape: (length,)"""
    place = np.arange(length)
    edge = np.minimum(place, place[::-1]) + 0.5
    return (0.5 - 0.5 * np.cos(np.pi * np.minimum(1, 2 * edge / (share * length)))).astype(np.float32)
