"""Recordings: anything soundfile reads, in blocks, so that an hour needs no more memory than a minute.

A `Recording` knows its rate, channels and length, and gives its samples as blocks of shape (channels, n). What is done
to them is a chain of generators over blocks:

    recording.blocks() -> resampled(...) -> framed(...) -> batches of frames (batch, channels, frame)
"""

import io
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from qkgcc.errors import InputError

Samples: TypeAlias = npt.NDArray[np.floating[Any]]

_BLOCK_SECONDS = 10


@dataclass(frozen=True)
class Recording:
    """Synchronised channels that can be read again and again, block by block."""

    name: str
    sample_rate: int
    channels: int
    samples: int
    _read: Callable[[], Iterator[Samples]]

    def blocks(self) -> Iterator[Samples]:
        """Consecutive blocks of shape (channels, n). A NaN, an infinity or a broken file is an `InputError`."""
        seen = 0
        for block in self._read():
            bad = ~np.isfinite(block)
            if bad.any():
                channel, sample = (int(i) for i in np.argwhere(bad)[0])
                raise InputError(
                    f"{self.name}: channel {channel} holds {block[channel, sample]} at "
                    f"{(seen + sample) / self.sample_rate:.3f} s; a delay needs finite samples (repair or cut that part)"
                )
            seen += block.shape[1]
            yield block

    def read(self) -> Samples:
        """All samples at once. Shape: (channels, samples)."""
        return np.concatenate(list(self.blocks()), axis=1)

    @property
    def duration(self) -> float:
        return self.samples / self.sample_rate


def open_audio(
    source: Any,
    sample_rate: int | None = None,
    *,
    channels: Sequence[int] | None = (0, 1),
    start: float | None = None,
    end: float | None = None,
    other: Any = None,
) -> Recording:
    """A recording from a path, a binary file object, or an array of shape (channels, samples).

    Args:
        sample_rate: needed for arrays; files know theirs, and a different one given here is an error.
        channels: which channels to keep, in that order; None keeps all.
        start, end: seconds of the part to keep.
        other: path of a second, mono recording that becomes the second channel (two recorders); `source` is mono too.
    """
    if other is not None:
        return _from_two_files(source, other, start, end)
    if isinstance(source, (str, Path)) or hasattr(source, "read"):
        recording = _from_file(source, channels, start, end)
        if sample_rate is not None and sample_rate != recording.sample_rate:
            raise InputError(
                f"{recording.name} is recorded at {recording.sample_rate} Hz, not {sample_rate}: leave the rate out"
            )
        return recording
    if sample_rate is None:
        raise InputError("an array needs its sample rate: estimator(x, sample_rate=16000)")
    return _from_array(source, sample_rate, channels, start, end)


def resampled(blocks: Iterator[Samples], rate: int, new_rate: int) -> Iterator[Samples]:
    """Blocks at another sample rate (soxr, very high quality), whatever the size of the blocks."""
    if rate == new_rate:
        yield from blocks
        return
    import soxr

    stream: Any = None
    for block in blocks:
        if stream is None:
            stream = soxr.ResampleStream(rate, new_rate, block.shape[0], dtype=block.dtype.name, quality="VHQ")
        yield stream.resample_chunk(np.ascontiguousarray(block.T)).T
        empty = block.T[:0]
    if stream is not None:
        yield stream.resample_chunk(np.ascontiguousarray(empty), last=True).T


def framed(blocks: Iterator[Samples], frame: int, hop: int, batch: int = 256) -> Iterator[Samples]:
    """Frames of `frame` samples every `hop`, the incomplete last one left out.

    Shape: blocks of (channels, n) -> batches of (at most `batch`, channels, frame)
    """
    rest: Samples | None = None
    skip = 0  # samples between frames, when the hop is longer than the frame
    for block in blocks:
        rest = block if rest is None else np.concatenate([rest, block], axis=1)
        dropped = min(skip, rest.shape[1])
        rest, skip = rest[:, dropped:], skip - dropped
        count = (rest.shape[1] - frame) // hop + 1
        if count <= 0:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(rest, frame, axis=1)[:, ::hop][:, :count]
        for first in range(0, count, batch):
            yield np.ascontiguousarray(windows[:, first : first + batch].transpose(1, 0, 2))
        used = count * hop
        skip = max(0, used - rest.shape[1])
        rest = rest[:, used:].copy()


def _from_array(
    array: Any, sample_rate: int, channels: Sequence[int] | None, start: float | None, end: float | None
) -> Recording:
    try:
        samples = np.asarray(array)
    except ValueError:  # a list of two arrays of unequal lengths
        lengths = ", ".join(str(len(channel)) for channel in array)
        raise InputError(f"channels of unequal lengths ({lengths} samples): cut them to the same length") from None
    if samples.ndim != 2 or samples.dtype == object:
        raise InputError(f"expected an array of shape (channels, samples), got {samples.shape} of {samples.dtype}")
    if samples.shape[0] > samples.shape[1] > 0:
        raise InputError(f"expected (channels, samples), got {samples.shape}: transpose the array")
    _check_rate(sample_rate)
    if samples.dtype.kind in "iu":
        info = np.iinfo(samples.dtype)
        middle = (int(info.max) + int(info.min) + 1) // 2  # 0 for signed samples, half scale for unsigned ones
        samples = (samples.astype(np.float64) - middle) / ((int(info.max) - int(info.min) + 1) / 2)
    elif samples.dtype not in (np.float32, np.float64):
        samples = samples.astype(np.float32)
    picked = _pick("the array", samples.shape[0], channels)
    first, last = _part("the array", samples.shape[1], sample_rate, start, end)
    samples = samples[picked, first:last]
    size = _BLOCK_SECONDS * sample_rate

    def read() -> Iterator[Samples]:
        for i in range(0, samples.shape[1], size):
            yield samples[:, i : i + size]

    return Recording("the array", sample_rate, len(picked), samples.shape[1], read)


def _from_file(
    source: str | Path | BinaryIO, channels: Sequence[int] | None, start: float | None, end: float | None
) -> Recording:
    name, opener = _named(source)
    info = _info(name, opener)
    picked = _pick(name, info.channels, channels)
    first, last = _part(name, info.frames, info.samplerate, start, end)

    def read() -> Iterator[Samples]:
        return (block[picked] for block in _file_blocks(name, opener, first, last))

    return Recording(name, info.samplerate, len(picked), last - first, read)


def _from_two_files(one: Any, two: Any, start: float | None, end: float | None) -> Recording:
    first, second = (_from_file(path, None, start, end) for path in (one, two))
    for recording in (first, second):
        if recording.channels != 1:
            raise InputError(
                f"{recording.name} has {recording.channels} channels; two recorders are combined from two mono files"
            )
    if first.sample_rate != second.sample_rate:
        raise InputError(
            f"{first.name} is at {first.sample_rate} Hz and {second.name} at {second.sample_rate} Hz: resample one of them"
        )
    if first.samples != second.samples:
        shorter = min(first.duration, second.duration)
        raise InputError(
            f"unequal lengths: {first.name} has {first.samples} samples, {second.name} {second.samples}; "
            f"cut them to the part they share (--end {int(shorter * 1000) / 1000:g} would, if they began together)"
        )

    def read() -> Iterator[Samples]:
        return (np.concatenate(pair) for pair in zip(first.blocks(), second.blocks(), strict=True))

    return Recording(f"{first.name} + {second.name}", first.sample_rate, 2, first.samples, read)


def _named(source: str | Path | BinaryIO) -> tuple[str, Callable[[], Any]]:
    """A name for messages, and a function that gives what soundfile opens, from its beginning."""
    if isinstance(source, (str, Path)) and str(source) != "-":
        path = Path(source)
        if path.is_dir():
            raise InputError(f"{path} is a folder, not a recording")
        if not path.exists():
            raise InputError(f"{path} does not exist")
        return str(path), lambda: str(path)
    stream = sys.stdin.buffer if isinstance(source, (str, Path)) else source
    name = "standard input" if isinstance(source, (str, Path)) else str(getattr(source, "name", "the stream"))
    data = stream.read()
    return name, lambda: io.BytesIO(data)


def _info(name: str, opener: Callable[[], Any]) -> Any:
    import soundfile

    source = opener()
    size = len(source.getbuffer()) if isinstance(source, io.BytesIO) else Path(source).stat().st_size
    if size == 0:
        raise InputError(f"{name} is empty (0 bytes)")
    try:
        info = soundfile.info(source)
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise InputError(f"{name} cannot be read as audio ({_reason(error)}): it is damaged or no audio file") from None
    if info.frames == 0:
        raise InputError(f"{name} holds no samples")
    missing = _missing_wav_bytes(opener(), size)
    if missing:
        raise InputError(f"{name} is truncated: its header promises {missing} bytes more than the file has; copy it again")
    _check_rate(info.samplerate)
    return info


def _missing_wav_bytes(source: Any, size: int) -> int:
    """How far a WAV's data chunk reaches past the end of the file. libsndfile shortens such a file silently.

    0 and 0xFFFFFFFF are what programs write that stream a WAV and do not know its length: nothing is missing then.
    """
    with io.BytesIO(source.getbuffer()) if isinstance(source, io.BytesIO) else open(source, "rb") as file:  # noqa: PTH123
        if file.read(4) != b"RIFF":
            return 0
        file.seek(12)
        while len(header := file.read(8)) == 8:
            kind, length = struct.unpack("<4sI", header)
            if kind == b"data":
                return 0 if length in (0, 0xFFFFFFFF) else max(0, file.tell() + length - size)
            file.seek(length + length % 2, io.SEEK_CUR)
    return 0


def _file_blocks(name: str, opener: Callable[[], Any], first: int, last: int) -> Iterator[Samples]:
    import soundfile

    position = first
    try:
        with soundfile.SoundFile(opener()) as file:
            if first:
                file.seek(first)
            size = _BLOCK_SECONDS * file.samplerate
            while position < last:
                block = file.read(min(size, last - position), dtype="float32", always_2d=True)
                if not len(block):
                    break
                position += len(block)
                yield block.T
    except (soundfile.SoundFileError, RuntimeError) as error:
        raise InputError(f"{name} is damaged after {position} samples ({_reason(error)}); copy or convert it again") from None
    if position < last:
        raise InputError(f"{name} is truncated: its header promises {last} samples, {position} can be read; copy it again")


def _reason(error: Exception) -> str:
    return str(error).rsplit(": ", 1)[-1].strip().rstrip(".") or "unknown format"


def _pick(name: str, available: int, channels: Sequence[int] | None) -> list[int]:
    if channels is None:
        return list(range(available))
    if available == 1:
        raise InputError(f"{name} has 1 channel; a delay needs 2 (two mono recordings: give the second with --with)")
    for channel in channels:
        if not 0 <= channel < available:
            raise InputError(f"{name} has channels 0 to {available - 1}; there is no channel {channel}")
    if len(set(channels)) != len(channels):
        raise InputError(f"channels {' '.join(map(str, channels))}: a delay needs two different ones")
    return list(channels)


def _part(name: str, samples: int, rate: int, start: float | None, end: float | None) -> tuple[int, int]:
    first = 0 if start is None else round(start * rate)
    last = samples if end is None else round(end * rate)
    if not 0 <= first < last:
        raise InputError(f"{name}: nothing lies between {start or 0:g} s and {last / rate:g} s")
    if last > samples:
        raise InputError(f"{name} ends at {samples / rate:.3f} s; --end {end:g} lies behind it")
    return first, last


def _check_rate(sample_rate: float) -> None:
    if not 1000 <= sample_rate <= 768_000 or int(sample_rate) != sample_rate:
        raise InputError(f"a sample rate of {sample_rate:g} Hz is not usable; expected a whole number from 1000 to 768000")
