"""A first look at a recording: one pass over all of it for the levels, one to cut out the part that is studied closely.

The first pass keeps a few numbers per channel and the power of every 50 ms frame, so an hour needs a few megabytes. The
close study (hum, gains, delays) gets at most five minutes, at 16 kHz or less: the most active stretch of the recording.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.audio.frames import cut_frames, resample
from qkgcc.audio.recording import Recording
from qkgcc.core.types import Bools, Floats, Samples
from qkgcc.dsp.long_lags import Excerpt

FRAME = 0.05
"""Seconds of a frame whose power is kept."""
LONGEST = 300.0
"""Seconds of the most that is studied closely."""
SILENCE = 1e-5
"""RMS (full scale = 1) below which a frame is digital silence; the estimator gives no answer below it either."""

_RATE = 16000  # speech has little above 8 kHz that is coherent between microphones
_SAMPLES = 40_000_000  # in an excerpt, all channels together: 160 MB, so many channels get a shorter one


@dataclass(frozen=True, eq=False)
class Survey:
    """Levels of a whole recording. Shape: M channels, T frames."""

    frame: float
    """Seconds."""
    offset: Floats
    """(M,) what is constant: the mean, or the median of the means of the frames where that is smaller (clipping moves
    the one, lopsided music the other)."""
    lowest: Floats
    highest: Floats
    power: Floats
    """(T, M) mean square of each frame about its own mean, so that a constant offset is no level."""

    @property
    def rms(self) -> Floats:
        rms: Floats = np.sqrt(self.power.mean(axis=0))
        return rms

    def loud(self, channels: list[int]) -> Bools:
        """(T,) frames within 10 dB of the loud ones (the 95th percentile), every channel counting the same."""
        mean = self.power[:, channels].mean(axis=0)
        joint = (self.power[:, channels] / np.where(mean > 0, mean, 1)).mean(axis=1)
        loud: Bools = joint >= max(0.1 * float(np.quantile(joint, 0.95)), np.finfo(float).tiny)
        return loud


def survey(recording: Recording) -> Survey:
    size = min(max(1, round(FRAME * recording.sample_rate)), recording.samples)
    lowest, highest = np.full(len(recording.channels), np.inf), np.full(len(recording.channels), -np.inf)
    power: list[Floats] = []
    means: list[Floats] = []

    def blocks() -> Iterator[Samples]:
        nonlocal lowest, highest
        for block in recording.blocks():
            lowest, highest = np.minimum(lowest, block.min(axis=1)), np.maximum(highest, block.max(axis=1))
            yield block

    for frames in cut_frames(blocks(), size, size):
        power.append(frames.var(axis=2, dtype=np.float64))
        means.append(frames.mean(axis=2, dtype=np.float64))
    mean, median = np.mean(np.concatenate(means), axis=0), np.median(np.concatenate(means), axis=0)
    offset = np.where(mean * median > 0, np.sign(mean) * np.minimum(np.abs(mean), np.abs(median)), 0.0)
    return Survey(size / recording.sample_rate, offset, lowest, highest, np.concatenate(power))


def excerpt(recording: Recording, seen: Survey, channels: list[int]) -> Excerpt:
    """The stretch in which most frames are loud in the given channels, the earliest of equals."""
    rate = min(recording.sample_rate, _RATE)
    seconds = min(LONGEST, _SAMPLES / (rate * len(recording.channels)))
    frames = max(1, int(seconds / seen.frame))
    first = 0
    if frames < len(seen.power):
        loud = np.concatenate([[0], np.cumsum(seen.loud(channels))])
        first = int(np.argmax(loud[frames:] - loud[:-frames]))
    begin = round(first * seen.frame * recording.sample_rate)
    end = begin + round(seconds * recording.sample_rate)
    blocks = _between(recording.blocks(), begin, end)
    parts = [part.astype(np.float32) for part in resample(blocks, recording.sample_rate, rate)]
    samples = np.concatenate(parts, axis=1)
    samples -= samples.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return Excerpt(begin / recording.sample_rate, rate, samples)


def decibels(power: npt.ArrayLike) -> Floats:
    """Of a power; digital silence is -200, so that it can be written as JSON."""
    return 10 * np.log10(np.maximum(np.asarray(power, dtype=np.float64), 1e-20))


def _between(blocks: Iterator[Samples], begin: int, end: int) -> Iterator[npt.NDArray[Any]]:
    position = 0
    for block in blocks:
        part = block[:, max(0, begin - position) : max(0, end - position)]
        position += block.shape[1]
        if part.shape[1]:
            yield part
        if position >= end:
            return
