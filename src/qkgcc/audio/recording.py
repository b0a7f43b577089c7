"""Recordings in blocks, so that an hour needs no more memory than a minute.

A `Recording` knows its rate, channels and length, and gives its samples as blocks of shape (channels, n). What is done
to them is a chain of generators over blocks:

    recording.blocks() -> resample(...) -> cut_frames(...) -> batches of frames (batch, channels, frame)
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.audio.decode import BLOCK_SECONDS, SoundFile
from qkgcc.core.checks import as_numpy, check_indices, check_number, short_repr, unwrap_scalar
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.types import Samples

_MAX_SECONDS = 1e9  # seconds into a recording
MAX_SAMPLE = 1e12
"""Largest sample that is accepted. Full scale is 1, and unscaled 32-bit integers reach 2e9: larger numbers are not
sound, and their squares and sums may overflow."""


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
    picked_from: int | None = None
    """How many channels the file has, where these are picked out of them."""

    @property
    def duration(self) -> float:
        return self.samples / self.sample_rate

    def blocks(self) -> Iterator[Samples]:
        """Consecutive blocks of shape (channels, n).

        Raises `InputError` for NaN, infinities, values beyond `MAX_SAMPLE`, and truncated or damaged files.
        """
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
        index = check_channels(self.name, len(self.channels), channels, TWO_FILES if mono is None else mono)
        return replace(
            self,
            channels=tuple(self.channels[i] for i in index),
            picked_from=self.picked_from or len(self.channels),
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
    if isinstance(source, Recording):
        raise InputError(f"{source.name} is open already: pick channels of it, or give it to an estimator")
    if other is not None:
        if not (_is_file(source) and _is_file(other)):
            raise InputError("`other` joins two mono files; stack two arrays instead: np.stack([first, second])")
        return _two_recorders(source, other, start, end)
    if _is_file(source):
        file = SoundFile(Path(source) if isinstance(source, os.PathLike) else source)
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
    samples = _checked_array(source)
    if sample_rate is None:
        raise InputError("an array needs its sample rate, such as sample_rate=16000")
    sample_rate = check_rate(sample_rate)
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


def as_recording(source: Any) -> Recording:
    """A `Recording` as it is, or the one that a path names."""
    return source if isinstance(source, Recording) else open_audio(source)


TWO_FILES = "two recorders: give both mono recordings together"
"""What to do with a mono recording, where two can be given."""


def check_channels(name: str, count: int, channels: Sequence[int], mono: str = TWO_FILES) -> list[int]:
    """The chosen channels, checked against how many there are.

    Args:
        mono: what to do if there is one channel only.
    """
    chosen = check_indices("channels", channels, "(0, 1)")
    if not chosen:
        raise InputError(f"no channel of {name} is chosen; expected their numbers, such as (0, 1)")
    if count == 1 and len(chosen) > 1:
        needed = "a delay needs 2" if len(chosen) == 2 else f"{len(chosen)} are needed"
        raise InputError(f"{name} has 1 channel; {needed} ({mono})")
    for channel in chosen:
        if not 0 <= channel < count:
            raise InputError(f"{name} has channels 0 to {count - 1}, not {short_repr(channel)}")
    if len(set(chosen)) != len(chosen):
        raise InputError(f"channels {' '.join(map(str, chosen))}: every channel once")
    return list(chosen)


def check_long_enough(recording: Recording, frame: int, rate: int) -> None:
    """An `InputError` for a recording that is shorter than a frame of so many samples at a method's rate."""
    needed = -(-frame * recording.sample_rate // rate)
    if recording.samples < needed:
        raise InputError(
            f"{recording.name} has {quantity(recording.samples, 'sample')}, less than a frame ({needed} samples, "
            f"{frame / rate:g} s): give a longer recording or a shorter frame"
        )


def check_samples(block: Samples, name: str, channels: Sequence[int], sample_rate: int, start: float) -> None:
    """A NaN, an infinity or a number beyond `MAX_SAMPLE` is an `InputError` that says where.

    Args:
        start: seconds of the block's first sample.
    """
    bad = ~(np.abs(block) <= MAX_SAMPLE)
    if bad.any():
        channel, sample = (int(i) for i in np.argwhere(bad)[0])
        value = block[channel, sample]
        lacking = (
            f"samples up to {MAX_SAMPLE:g} (full scale is 1: scale them)"
            if np.isfinite(value)
            else "finite samples (repair or cut that part)"
        )
        raise InputError(
            f"{name}: channel {channels[channel]} holds {value:g} at {start + sample / sample_rate:.3f} s; a delay "
            f"needs {lacking}"
        )


def _is_file(source: Any) -> bool:
    return isinstance(source, (str, os.PathLike)) or hasattr(source, "read")


def read_array(array: Any) -> npt.NDArray[Any]:
    """An array, a list or a tensor as a NumPy array."""
    values = as_numpy(array)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError of tensors of other libraries
        lengths = (
            [len(channel) for channel in array if hasattr(channel, "__len__")] if hasattr(array, "__iter__") else []
        )
        if len(set(lengths)) > 1:
            raise InputError(
                f"channels of unequal lengths ({', '.join(map(str, lengths))} samples): cut them to the same length"
            ) from None
        raise InputError(
            f"{short_repr(array)} holds no samples; expected an array of shape (channels, samples)"
        ) from None


def _checked_array(array: Any) -> Samples:
    """An array of shape (channels, samples) as floats."""
    samples = read_array(array)
    if samples.ndim != 2 or samples.dtype.kind not in "iuf":
        what = short_repr(array) if samples.ndim == 0 else f"{samples.shape} of {samples.dtype}"
        raise InputError(f"expected an array of shape (channels, samples) or the path of a recording, got {what}")
    if samples.shape[0] > samples.shape[1] > 0:
        raise InputError(f"expected (channels, samples), got {samples.shape}: transpose the array")
    return as_floats(samples)


def read_block(block: Any, channels: int) -> npt.NDArray[Any]:
    """A block of a stream in the byte order of this machine; an empty list is one without samples.

    Shape: (channels, n)
    """
    given = read_array(block)
    if given.shape == (0,):
        given = given.reshape(channels, 0).astype(np.float32)
    if given.ndim != 2 or given.shape[0] != channels:
        hint = ": transpose it" if given.ndim == 2 and given.shape[1] == channels else ""
        raise InputError(
            f"a block of shape {given.shape}; a stream takes {channels} channels, shape ({channels}, samples){hint}"
        )
    if given.size and given.dtype.kind not in "iuf":
        raise InputError(f"a block of {given.dtype}; a stream takes samples that are whole numbers or floats")
    return given.astype(given.dtype.newbyteorder("="), copy=False)


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
    # What does not fit becomes an infinity, and a signalling NaN a quiet one: both are refused.
    with np.errstate(over="ignore", invalid="ignore"):
        return samples.astype(np.float32 if samples.dtype.itemsize <= 4 else np.float64)


def _two_recorders(one: Any, two: Any, start: float | None, end: float | None) -> Recording:
    first, second = (open_audio(path, start=start, end=end) for path in (one, two))
    for recording in (first, second):
        if len(recording.channels) != 1:
            raise InputError(
                f"{recording.name} has {quantity(len(recording.channels), 'channel')}; two recorders are two mono files"
            )
    if first.sample_rate != second.sample_rate:
        raise InputError(
            f"{first.name} is at {first.sample_rate} Hz, {second.name} at {second.sample_rate} Hz: resample one of them"
        )
    if first.samples != second.samples:
        shorter = min(first.duration, second.duration)
        raise InputError(
            f"unequal lengths: {first.name} has {quantity(first.samples, 'sample')}, {second.name} {second.samples}; "
            f"cut them to the part they share (if they began together, an end at {int(shorter * 1000) / 1000:g} s does)"
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
    begin = 0.0 if start is None else check_number("start", start, 0, _MAX_SECONDS, "s")
    stop = samples / rate if end is None else check_number("end", end, 0, _MAX_SECONDS, "s")
    first, last = round(begin * rate), samples if end is None else round(stop * rate)
    for what, second, sample in (("start", begin, first), ("end", stop, last)):
        if sample > samples:
            raise InputError(f"{what} {second:g} s is past the end of {name} ({samples / rate:.3f} s)")
    if not first < last:
        raise InputError(f"{name}: there is no sample from {begin:g} s to {stop:g} s")
    return first, last


def check_rate(sample_rate: Any, name: str | None = None) -> int:
    """The rate as a whole number; of the file of that name."""
    rate = unwrap_scalar(sample_rate)
    number = isinstance(rate, (int, float)) and not isinstance(rate, bool)
    if not number or not 1000 <= rate <= 768_000 or rate != int(rate):
        where, unit = "" if name is None else f"{name}: ", " Hz" if number else ""
        raise InputError(
            f"{where}a sample rate of {short_repr(rate)}{unit} is not usable; expected a whole number from 1000 to "
            "768000"
        )
    return int(rate)
