"""What comes before every method: blocks of samples of any number of microphones become frames with known levels.

    block (M, n) -> (resample) -> frames -> which microphones are dead or silent -> no hum, no rumble, unit level

Pairs and arrays, recordings and streams all go through it. However blocks are cut, frames are the same to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from qkgcc.audio.frames import Framer, Resampler
from qkgcc.core.types import DEAD, SILENCE, Bools, Floats, Indices, Samples
from qkgcc.dsp.rumble import without_rumble

COPIED = 1e-7
"""Share of a frame's power that differs between two channels, their gains aside, below which one is a copy."""
FAINT = 1e-3
"""Level of a microphone against the median of an array's below which it counts as dead: 60 dB less."""


class FrameBatch(NamedTuple):
    """T frames of M microphones, n samples each."""

    times: Floats
    """(T,) centres in seconds."""
    samples: Samples
    """(T, M, n)"""
    power: Floats
    """(T, M) of what changes: a constant offset is silence too."""


class FrontEnd:
    """Cuts blocks of samples into frames at a method's sample rate.

    Its parts keep what they still need of the past and replace it at each step, never changing an array in place.

    Args:
        sample_rate: of the blocks, in Hz.
        rate: of the frames, in Hz.
        frame, hop: samples at that rate.
        start: seconds of the first sample.
    """

    def __init__(self, sample_rate: int, rate: int, frame: int, hop: int, *, start: float = 0.0) -> None:
        self._rate, self._frame, self._hop, self._start = rate, frame, hop, start
        self._resampler, self._framer = Resampler(sample_rate, rate), Framer(frame, hop)
        self.count = 0
        """Frames until now."""
        self.latency = self._resampler.latency
        """Seconds from the last sample of a frame until it is cut, at most."""

    def push(self, block: Samples) -> Iterator[FrameBatch]:
        """The frames that are complete by now; take all of them before the next block. Shape: (M, n)"""
        return self._cut(self._resampler.push(block))

    def flush(self) -> Iterator[FrameBatch]:
        """The rest, at the end; an incomplete frame is left out."""
        return self._cut(self._resampler.flush())

    def frames_of(self, blocks: Iterable[Samples]) -> Iterator[FrameBatch]:
        """All frames of all blocks of a recording."""
        for block in blocks:
            yield from self.push(block)
        yield from self.flush()

    def copy(self) -> FrontEnd:
        """Another one that goes on from the same samples by itself."""
        twin = copy.copy(self)
        twin._resampler, twin._framer = copy.copy(self._resampler), copy.copy(self._framer)
        return twin

    def _cut(self, samples: Samples) -> Iterator[FrameBatch]:
        for frames in self._framer.push(samples) if samples.shape[1] else ():
            numbers = np.arange(self.count, self.count + len(frames))
            self.count += len(frames)
            times = self._start + (numbers * self._hop + self._frame / 2) / self._rate
            yield FrameBatch(times, frames, channel_power(frames))


class Levels(NamedTuple):
    """How loud frames are. Shape: T frames, M microphones."""

    rms: Floats
    """(T,) over the live microphones (full scale = 1)."""
    dead: Bools
    """(T, M)"""
    live: Indices
    """(T,) how many microphones are not dead; 1 where all are."""
    audible: Bools
    """(T,) whether at least two microphones live and hear more than silence."""


def channel_power(frames: Samples) -> Floats:
    """Power of each channel of each frame, without a constant offset. Shape: (T, M, n) -> (T, M)"""
    return np.asarray(np.var(frames, axis=-1, dtype=np.float64))


def dead_microphones(power: Floats, faint: float = FAINT) -> Bools:
    """Which microphones hold silence, a constant, or next to nothing against the others. Shape: (T, M) -> same

    Args:
        faint: level against the median of all below which a microphone is dead; 0: its own level alone decides.
    """
    level = np.sqrt(power)
    if not faint:
        return level < DEAD
    return np.asarray(level < np.maximum(DEAD, faint * np.sqrt(np.median(power, axis=-1, keepdims=True))))


def frame_levels(power: Floats, faint: float = FAINT) -> Levels:
    """The one definition of silence, for pairs and arrays. Shape: (T, M)"""
    dead = dead_microphones(power, faint)
    live = np.maximum(1, (~dead).sum(axis=-1))
    rms = np.sqrt(np.where(dead, 0.0, power).sum(axis=-1) / live)
    return Levels(rms, dead, live, (rms >= SILENCE) & (live > 1))


def normalise_frames(frames: Samples, sample_rate: float, rumble: float) -> Samples:
    """Frames without hum and rumble that drown them, all channels at unit joint RMS. Shape: (T, M, n) -> same

    Args:
        rumble: Hz up to which hum and rumble are removed; 0: they are kept.
    """
    return at_unit_level(without_rumble(frames, sample_rate, highest=rumble))


def at_unit_level(frames: Samples) -> Samples:
    """Frames without large constant offsets, all channels divided by their joint RMS. Shape: (T, M, n) -> same"""
    mean = frames.mean(axis=-1, keepdims=True, dtype=np.float64)
    around = frames - mean
    spread = np.sqrt(np.multiply(around, around, out=around).mean(axis=-1, keepdims=True))
    # Sound has a small mean of its own, which networks know. Of a large one a hundredth is left: with nothing left, the
    # lowest bin would have no phase but that of rounding.
    large = np.abs(mean) > 0.1 * spread
    centred = frames - np.where(large, 0.99 * mean, 0.0).astype(frames.dtype) if large.any() else frames
    joint = np.sqrt(np.mean(np.square(centred, dtype=np.float64), axis=(1, 2), keepdims=True))
    return np.asarray(centred / np.maximum(joint, SILENCE / 2).astype(frames.dtype))


def one_is_a_copy(frames: Samples) -> Bools:
    """Whether two channels are the same but for a gain and an offset. Shape: (T, 2, n) -> (T,)"""
    wide = frames.astype(np.float64)
    first, second = np.moveaxis(wide - wide.mean(axis=-1, keepdims=True), 1, 0)
    product = (first * second).sum(axis=-1) ** 2
    power = (first**2).sum(axis=-1) * (second**2).sum(axis=-1)
    return np.asarray(product >= (1 - COPIED) * power)
