"""Recordings in blocks, so that an hour needs no more memory than a minute.

A `Recording` knows its rate, channels and length, and gives its samples as blocks of shape (channels, n). What is done
to them is a chain of generators over blocks:

    recording.blocks() -> resampled(...) -> framed(...) -> batches of frames (batch, channels, frame)
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from qkgcc.errors import InputError
from qkgcc.soundfiles import BLOCK_SECONDS, SoundFile

_BATCH_SAMPLES = 1 << 18
_FILTER = 160  # samples of the lower rate that soxr's filter reaches to either side (measured: 1e-15 is left)
_SEGMENT = 0.05  # seconds that are resampled at once, or the period of both rates where that is longer

LARGEST = 1e12
"""Of a sample. Full scale is 1, and 32-bit numbers that nobody has scaled are 2e9: what is larger was never sound, and
its squares and sums may overflow."""

Samples: TypeAlias = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Recording:
    """Synchronised channels that can be read again and again, block by block."""

    name: str
    sample_rate: int
    samples: int
    start: float
    """Seconds of its first sample in the file it comes from."""
    channels: tuple[int, ...]
    """Which channels of the file these are."""
    _read: Callable[[], Iterator[Samples]]

    @property
    def duration(self) -> float:
        return self.samples / self.sample_rate

    def blocks(self) -> Iterator[Samples]:
        """Consecutive blocks of shape (channels, n). What is no number, or no sample's, and a broken file are an
        `InputError`."""
        seen = 0
        for block in self._read():
            check_samples(block, self.name, self.channels, self.sample_rate, self.start + seen / self.sample_rate)
            seen += block.shape[1]
            yield block

    def read(self) -> Samples:
        """All samples at once. Shape: (channels, samples)."""
        return np.concatenate(list(self.blocks()), axis=1)

    def pick(self, channels: Sequence[int], mono: str | None = None) -> "Recording":
        """Some of the channels, in the order given; `mono` is for `check_channels`."""
        check_channels(self.name, len(self.channels), channels, TWO_FILES if mono is None else mono)
        index = list(channels)
        return replace(
            self,
            channels=tuple(self.channels[i] for i in index),
            _read=lambda: (block[index] for block in self._read()),
        )


def open_audio(
    source: Any,
    sample_rate: int | None = None,
    *,
    start: float | None = None,
    end: float | None = None,
    other: Any = None,
) -> Recording:
    """A recording from a path, `-` (standard input), a binary file, or an array of shape (channels, samples).

    Args:
        sample_rate: needed for arrays; files know theirs, and a different one given here is an error.
        start, end: seconds of the part to keep.
        other: a second, mono recording that becomes the second channel (two recorders); `source` is mono too.
    """
    if other is not None:
        if not all(isinstance(one, (str, Path)) or hasattr(one, "read") for one in (source, other)):
            raise InputError("`other` joins two mono files; stack two arrays instead: np.stack([first, second])")
        return _two_recorders(source, other, start, end)
    if isinstance(source, (str, Path)) or hasattr(source, "read"):
        file = SoundFile(source)
        if sample_rate is not None and check_rate(sample_rate) != file.sample_rate:
            raise InputError(f"{file.name} is recorded at {file.sample_rate} Hz, not {sample_rate}: leave the rate out")
        check_rate(file.sample_rate, file.name)
        first, last = _part(file.name, file.samples, file.sample_rate, start, end)
        return Recording(
            file.name,
            file.sample_rate,
            last - first,
            first / file.sample_rate,
            tuple(range(file.channels)),
            lambda: file.blocks(first, last),
        )
    if sample_rate is None:
        raise InputError("an array needs its sample rate: estimator(x, sample_rate=16000)")
    sample_rate = check_rate(sample_rate)
    samples = _checked_array(source)
    first, last = _part("the array", samples.shape[1], sample_rate, start, end)
    size = BLOCK_SECONDS * sample_rate
    return Recording(
        "the array",
        sample_rate,
        last - first,
        first / sample_rate,
        tuple(range(samples.shape[0])),
        lambda: (samples[:, i : min(i + size, last)] for i in range(first, last, size)),
    )


TWO_FILES = "two mono recordings: give the second with --with"
"""What to do with a mono recording, where there is that option."""


def check_channels(name: str, count: int, channels: Sequence[int], mono: str = TWO_FILES) -> None:
    """Whether these can be picked out of so many.

    Args:
        mono: what to do if there is one channel only.
    """
    if count == 1 and len(channels) > 1:
        needed = "a delay needs 2" if len(channels) == 2 else f"{len(channels)} are needed"
        raise InputError(f"{name} has 1 channel; {needed} ({mono})")
    for channel in channels:
        if not 0 <= channel < count:
            raise InputError(f"{name} has channels 0 to {count - 1}; there is no channel {channel}")
    if len(set(channels)) != len(channels):
        raise InputError(f"channels {' '.join(map(str, channels))}: a delay needs two different ones")


def check_samples(block: Samples, name: str, channels: Sequence[int], sample_rate: int, start: float) -> None:
    """A NaN, an infinity or a number beyond `LARGEST` is an `InputError` that says where.

    Args:
        start: seconds of the block's first sample.
    """
    bad = ~(np.abs(block) <= LARGEST)
    if bad.any():
        channel, sample = (int(i) for i in np.argwhere(bad)[0])
        value = block[channel, sample]
        lacking = (
            f"samples up to {LARGEST:g} (full scale is 1: scale them)"
            if np.isfinite(value)
            else "finite samples (repair or cut that part)"
        )
        raise InputError(
            f"{name}: channel {channels[channel]} holds {value:g} at {start + sample / sample_rate:.3f} s; a delay "
            f"needs {lacking}"
        )


class Resampler:
    """Blocks at another sample rate (soxr, very high quality); the size of the blocks changes no bit.

    Segments of a fixed length are resampled each by itself, with so much of what lies around them that their edges do
    not matter: a filter with its state inside could not be copied. Its own state is the samples that are still needed.
    """

    def __init__(self, rate: int, new_rate: int) -> None:
        self.rate, self.new_rate = rate, new_rate
        together = math.gcd(rate, new_rate)  # periods a second, after which both rates have a sample at the same time
        self._period, self._new_period = rate // together, new_rate // together
        self._margin = math.ceil(_FILTER * together / min(rate, new_rate))  # in periods, as is the segment
        self._segment = max(1, round(_SEGMENT * together))
        self.latency = (self._segment + self._margin) / together if rate != new_rate else 0.0
        """Seconds from a sample to the last one that depends on it, at most."""
        self._taken = self._given = 0  # samples
        self._rest: Samples | None = None

    def push(self, block: Samples) -> Samples:
        """What is complete by now. Shape: (channels, n) -> (channels, m)"""
        if self.rate == self.new_rate:
            return block
        if self._rest is None:
            self._rest = np.zeros((len(block), self._margin * self._period), dtype=block.dtype)
        self._taken += block.shape[1]
        return self._resample(np.concatenate([self._rest, block], axis=1))

    def flush(self) -> Samples:
        """The rest, at the end. Shape: (channels, m)"""
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
        """Those that are complete by now. All of them are to be taken before the next block comes.

        Args:
            batch: frames at a time; by default 32, or fewer where frames are long or channels many.
        Shape: (channels, n) -> batches of (at most `batch`, channels, frame)
        """
        batch = batch or max(1, min(32, 2 * _BATCH_SAMPLES // (self.frame * max(2, len(block)))))
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


def resampled(blocks: Iterator[Samples], rate: int, new_rate: int) -> Iterator[Samples]:
    """All blocks through a `Resampler`."""
    resampler = Resampler(rate, new_rate)
    for block in blocks:
        yield resampler.push(block)
    if rate != new_rate:
        yield resampler.flush()


def framed(blocks: Iterator[Samples], frame: int, hop: int, batch: int | None = None) -> Iterator[Samples]:
    """All blocks through a `Framer`, the incomplete last frame left out."""
    framer = Framer(frame, hop)
    for block in blocks:
        yield from framer.push(block, batch)


def _checked_array(array: Any) -> Samples:
    """An array of shape (channels, samples) as floats."""
    try:
        samples = np.asarray(array)
    except ValueError:  # a list of arrays of unequal lengths
        lengths = ", ".join(str(len(channel)) for channel in array)
        raise InputError(f"channels of unequal lengths ({lengths} samples): cut them to the same length") from None
    if samples.ndim != 2 or samples.dtype.kind not in "iuf":
        raise InputError(f"expected an array of shape (channels, samples), got {samples.shape} of {samples.dtype}")
    if samples.shape[0] > samples.shape[1] > 0:
        raise InputError(f"expected (channels, samples), got {samples.shape}: transpose the array")
    return as_floats(samples)


def as_floats(samples: npt.NDArray[Any]) -> Samples:
    """Samples as floats; whole numbers are scaled to full scale 1, in float32 as files are: both have one answer."""
    if samples.dtype.kind in "iu" and samples.dtype.itemsize > 4:
        raise InputError(
            f"samples of {samples.dtype} have no known full scale: convert them to int16 or to floats in -1..1"
        )
    if samples.dtype.kind in "iu":
        info = np.iinfo(samples.dtype)
        middle = (int(info.max) + int(info.min) + 1) // 2  # 0 for signed samples, half scale for unsigned ones
        scaled = (samples.astype(np.float64) - middle) / ((int(info.max) - int(info.min) + 1) / 2)
        return scaled.astype(np.float32)
    if samples.dtype in (np.float32, np.float64):
        return samples
    with np.errstate(over="ignore"):  # what does not fit becomes an infinity, which is refused
        return samples.astype(np.float32 if samples.dtype.itemsize <= 4 else np.float64)


def _two_recorders(one: Any, two: Any, start: float | None, end: float | None) -> Recording:
    first, second = (open_audio(path, start=start, end=end) for path in (one, two))
    for recording in (first, second):
        if len(recording.channels) != 1:
            raise InputError(
                f"{recording.name} has {len(recording.channels)} channels; two recorders are two mono files"
            )
    if first.sample_rate != second.sample_rate:
        raise InputError(
            f"{first.name} is at {first.sample_rate} Hz, {second.name} at {second.sample_rate} Hz: resample one of them"
        )
    if first.samples != second.samples:
        shorter = min(first.duration, second.duration)
        raise InputError(
            f"unequal lengths: {first.name} has {first.samples} samples, {second.name} {second.samples}; "
            f"cut them to the part they share (--end {int(shorter * 1000) / 1000:g} would, if they began together)"
        )
    return Recording(
        f"{first.name} + {second.name}",
        first.sample_rate,
        first.samples,
        first.start,
        (0, 1),
        lambda: (np.concatenate(pair) for pair in zip(first.blocks(), second.blocks(), strict=True)),
    )


def _part(name: str, samples: int, rate: int, start: float | None, end: float | None) -> tuple[int, int]:
    if samples == 0:
        raise InputError(f"{name} holds no samples")
    for second in (start, end):
        if second is not None and not (np.isfinite(second) and second >= 0):
            raise InputError(f"{name}: {second:g} s is no time in a recording; expected 0 or more")
    first = 0 if start is None else round(start * rate)
    last = samples if end is None else round(end * rate)
    if last > samples:
        raise InputError(f"{name} ends at {samples / rate:.3f} s; --end {end:g} lies behind it")
    if not first < last:
        raise InputError(f"{name}: nothing lies between {start or 0:g} s and {last / rate:g} s")
    return first, last


def check_rate(sample_rate: Any, name: str | None = None) -> int:
    """The rate as a whole number; of the file of that name."""
    number = not isinstance(sample_rate, (str, bytes)) and np.ndim(sample_rate) == 0
    try:
        rate = int(sample_rate) if number else 0
    except (TypeError, ValueError, OverflowError):
        rate = 0
    if not 1000 <= rate <= 768_000 or rate != sample_rate:
        where, given = "" if name is None else f"{name}: ", f"{sample_rate} Hz" if number else repr(sample_rate)
        raise InputError(f"{where}a sample rate of {given} is not usable; expected a whole number from 1000 to 768000")
    return rate
