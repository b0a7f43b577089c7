"""Blocks of samples at another rate or on another clock, and cut into frames, the same however the blocks come."""

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from qkgcc.core.types import Floats, Samples
from qkgcc.dsp.peaks import kaiser_sinc

_MAX_BATCH_SAMPLES = 1 << 19  # of all channels together
_FILTER_REACH = 160  # samples of the lower rate to either side, of soxr's filter (measured: 1e-15 is left beyond)
_SEGMENT_SECONDS = 0.05  # resampled at once; the period of both rates where that is longer

WARP_TAPS = 64
"""Samples that the sinc looks at; what is left out is below -90 dB up to 0.9 of half the rate."""
_WARP_BETA = 9.0  # of the Kaiser window
_WARP_PHASES = 1024  # between two samples, at which the sinc is known; a straight line between them leaves -110 dB
_WARP_CHUNK = 4096  # samples made at once: 2 MB of what they are made of


class Resampler:
    """Blocks at another sample rate (soxr, very high quality); the size of the blocks changes no bit.

    Segments of a fixed length are resampled each by itself, with so much of what lies around them that their edges do
    not matter: a filter with its state inside could not be copied. Its own state is the samples that are still needed.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        self.rate, self.new_rate = rate, new_rate
        together = math.gcd(rate, new_rate)  # periods a second, after which both rates have a sample at the same time
        self._period, self._new_period = rate // together, new_rate // together
        self._margin = math.ceil(_FILTER_REACH * together / min(rate, new_rate))  # in periods, as is the segment
        self._segment = max(1, round(_SEGMENT_SECONDS * together))
        self.latency = (self._segment + self._margin) / together if rate != new_rate else 0.0
        """Seconds from a sample to the last one that depends on it, at most."""
        self._taken = self._given = 0  # samples
        self._rest: Samples | None = None

    def push(self, block: Samples) -> Samples:
        """The samples that are complete with this block. Shape: (channels, n) -> (channels, m)"""
        if self.rate == self.new_rate:
            return block
        if self._rest is None:
            self._rest = np.zeros((len(block), self._margin * self._period), dtype=block.dtype)
        self._taken += block.shape[1]
        return self._resample(np.concatenate([self._rest, block], axis=1))

    def flush(self) -> Samples:
        """The remaining samples, at the end. Shape: (channels, m)"""
        if self._rest is None:
            return np.empty((0, 0))
        due = (2 * self._taken * self.new_rate + self.rate) // (2 * self.rate) - self._given
        missing = (self._segment + 2 * self._margin) * self._period
        return self._resample(np.pad(self._rest, ((0, 0), (0, missing))))[:, :due]

    def _resample(self, samples: Samples) -> Samples:
        import soxr

        step, size = (n * self._period for n in (self._segment, self._segment + 2 * self._margin))
        kept = slice(self._margin * self._new_period, (self._margin + self._segment) * self._new_period)
        done = range(0, samples.shape[1] - size + 1, step)
        pieces = [np.ascontiguousarray(samples[:, i : i + size].T) for i in done]
        made = [soxr.resample(piece, self.rate, self.new_rate, quality="VHQ")[kept].T for piece in pieces]
        self._rest = samples[:, len(done) * step :].copy()
        self._given += sum(piece.shape[1] for piece in made)
        return np.concatenate([samples[:, :0], *made], axis=1)


class Framer:
    """Frames of `frame` samples every `hop`, out of blocks of any size."""

    def __init__(self, frame: int, hop: int) -> None:
        self.frame, self.hop = frame, hop
        self._rest: Samples | None = None
        self._skip = 0  # samples between frames, when the hop is longer than the frame

    def push(self, block: Samples, batch: int | None = None) -> Iterator[Samples]:
        """The frames that are complete with this block. Take all of them before pushing the next one.

        Args:
            batch: frames at a time; by default 32, or fewer where frames are long or channels many.
        Shape: (channels, n) -> batches of (at most `batch`, channels, frame)
        """
        batch = batch or max(1, min(32, _MAX_BATCH_SAMPLES // (self.frame * max(2, len(block)))))
        rest = block if self._rest is None else np.concatenate([self._rest, block], axis=1)
        dropped = min(self._skip, rest.shape[1])
        rest = rest[:, dropped:]
        count = max(0, (rest.shape[1] - self.frame) // self.hop + 1)
        used = count * self.hop
        self._skip += max(0, used - rest.shape[1]) - dropped
        self._rest = rest[:, used:].copy()
        for first in range(0, count, batch):
            windows = np.lib.stride_tricks.sliding_window_view(rest, self.frame, axis=1)[:, :: self.hop]
            yield np.ascontiguousarray(windows[:, first : min(first + batch, count)].transpose(1, 0, 2))


def resample(blocks: Iterator[Samples], rate: int, new_rate: int) -> Iterator[Samples]:
    """All blocks through a `Resampler`."""
    resampler = Resampler(rate, new_rate)
    for block in blocks:
        yield resampler.push(block)
    if rate != new_rate:
        yield resampler.flush()


def cut_frames(blocks: Iterator[Samples], frame: int, hop: int, batch: int | None = None) -> Iterator[Samples]:
    """All blocks through a `Framer`, the incomplete last frame left out."""
    framer = Framer(frame, hop)
    for block in blocks:
        yield from framer.push(block, batch)


def warp(samples: Samples, step: float, first: float, count: int) -> Samples:
    """Samples at the positions first, first + step, ..., read between the samples by a windowed sinc.

    Zeros where there are none. Steps differ from 1 by parts in a million, so nothing is filtered against aliasing.
    Shape: (..., n) -> (..., count)

    >>> warp(np.arange(200.0), 1.0, 99.5, 2).round(3).tolist()
    [99.5, 100.5]
    """
    made = np.zeros((*samples.shape[:-1], count), dtype=samples.dtype)
    length, before = samples.shape[-1], WARP_TAPS // 2 - 1
    table = _sinc().astype(samples.dtype)
    for start in range(0, count, _WARP_CHUNK):
        place = first + step * np.arange(start, min(start + _WARP_CHUNK, count))
        whole = np.floor(place).astype(np.int64)
        begin, end = int(whole.min()) - before, int(whole.max()) - before + WARP_TAPS
        if end <= 0 or begin >= length:
            continue
        part = samples[..., max(0, begin) : end]
        beyond = [(0, 0)] * (samples.ndim - 1) + [(max(0, -begin), max(0, end - length))]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(part, beyond), WARP_TAPS, axis=-1)
        phase = (place - whole) * _WARP_PHASES
        low = np.minimum(phase.astype(np.int64), _WARP_PHASES - 1)
        kernel = table[low]
        kernel += (phase - low)[:, None].astype(samples.dtype) * (table[low + 1] - kernel)
        taken = windows[..., whole - before - begin, :]
        made[..., start : start + _WARP_CHUNK] = np.einsum("...nt,nt->...n", taken, kernel)
    return made


@lru_cache(maxsize=1)
def _sinc() -> Floats:
    """Weights of the samples around a place, for each phase. Shape: (phases + 1, taps)"""
    phase = np.arange(_WARP_PHASES + 1)[:, None] / _WARP_PHASES
    away = np.arange(WARP_TAPS) - (WARP_TAPS // 2 - 1) - phase
    weights = kaiser_sinc(away, WARP_TAPS / 2, _WARP_BETA)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
