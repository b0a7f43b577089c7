"""A classical weighting as a method of the estimator: frames -> spectra that add up -> curve, delay, confidence."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc import gcc
from qkgcc.confidence import coherence_confidence, coherence_spectrum
from qkgcc.decoding import Decoded
from qkgcc.peaks import find_peak

TAPER = 0.03
"""Share of a frame that fades in and out, half of it at each end. Where a frame is cut, both channels have an edge at
the same place: an event at delay 0 with all frequencies, which PHAT lets count as much as all else. What it is worth is
in docs/general.md: `phat` against `gcc-phat`."""

_TOGETHER = (
    4  # frames, whose segments stay in a core's cache; many more, and every batch is memory from the system anew
)


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

    kind = "correlation"
    calibrated = False
    remark = None
    scaling = "none"  # every weighting is indifferent to a common gain

    @property
    def lags(self) -> npt.NDArray[np.float64]:
        return np.arange(-self.max_lag, self.max_lag + 1, dtype=np.float64)

    def evidence(self, frames: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[Any], ...]:
        if len(frames) <= _TOGETHER:
            return self._evidence(frames)
        parts = [self._evidence(frames[i : i + _TOGETHER]) for i in range(0, len(frames), _TOGETHER)]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))

    def _evidence(self, frames: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[Any], ...]:
        # A constant offset would be a source of its own, at delay 0.
        centred = frames - frames.mean(axis=-1, keepdims=True)
        if self.taper:
            centred = centred * taper(frames.shape[-1], self.taper)
        weighted = gcc.weighted_spectrum(
            centred,
            self.weighting,
            max_lag=self.max_lag,
            beta=self.beta,
            band=self.band,
            sample_rate=self.sample_rate,
        )
        coherence = coherence_spectrum(centred, max_lag=self.max_lag, sample_rate=self.sample_rate, band=self.band)
        return weighted, coherence

    def decode(self, evidence: tuple[npt.NDArray[Any], ...]) -> Decoded:
        weighted, coherence = evidence
        circular = gcc.correlation(weighted)
        delay = find_peak(circular, self.max_lag, self.interpolation, self.limit)
        confidence = coherence_confidence(
            coherence, delay, max_lag=self.max_lag, sample_rate=self.sample_rate, frame=self.frame, band=self.band
        )
        nowhere = np.full(len(delay), np.nan)  # no other delays are looked at
        return Decoded(gcc.curve(circular, self.max_lag), delay, confidence, nowhere)

    context = 0.0

    def in_context(
        self,
        posterior: npt.NDArray[Any],
        delay: npt.NDArray[Any],
        confidence: npt.NDArray[Any],
        beyond: npt.NDArray[Any],
        times: npt.NDArray[Any],
        wanted: slice | None = None,
        ahead: float = 0.0,
    ) -> npt.NDArray[Any]:
        return confidence[wanted or slice(None)]


@lru_cache(maxsize=8)
def taper(length: int, share: float = TAPER) -> npt.NDArray[np.float32]:
    """Tukey's: half a cosine up, ones, half a cosine down. Shape: (length,)"""
    place = np.arange(length)
    edge = np.minimum(place, place[::-1]) + 0.5
    return (0.5 - 0.5 * np.cos(np.pi * np.minimum(1, 2 * edge / (share * length)))).astype(np.float32)
