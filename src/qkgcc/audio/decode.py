"""Sound files as soundfile reads them, with every way in which they can be broken said in one sentence.

Streams (pipes, devices, binary files of a program) are first copied to a temporary file, which has no name and is gone
with the process: so an hour of sound needs little memory, and an endless stream ends at `MAX_STREAM_BYTES`. What is no
sound is refused when its first block has been read.

Is a file cut short? libsndfile reads what is left of most formats without a word. Each container says somewhere how
long it is: RIFF, RF64, W64 and AIFF in the headers of their chunks, which may lie anywhere in the file, AU in its own,
Ogg by a flag on its last page. (A cut CAF, FLAC or MP3 is noticed by libsndfile.)
"""

import io
import os
import struct
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from qkgcc.core.errors import InputError, quantity
from qkgcc.core.files import broken_link, display_name
from qkgcc.core.interrupts import interrupts_wait
from qkgcc.core.types import Floats32

BLOCK_SECONDS = 10
MAX_STREAM_BYTES = 4_000_000_000
"""Bytes of a stream that are read: 5 hours of 16-bit stereo at 48 kHz as WAV, or 3 days of it as Opus."""

_MAX_BLOCK_SAMPLES = 1 << 24  # of all channels together
_REREAD_SAMPLES = 64  # the usual blocks of FLAC (1152, 4096, 4608) are whole numbers of them
_STREAM_BLOCK_BYTES = 1 << 16
_MAX_MEMORY_BYTES = 1 << 24  # up to which a stream needs no file
_UNRECOGNISED = 1  # libsndfile's number of that error


class SoundFile:
    """An audio file, or one read from a stream (`-`: standard input), that can be read again and again."""

    def __init__(self, source: str | Path | BinaryIO) -> None:
        import soundfile

        self.name, self._path, self._stream = _named(source)
        missing = self._missing()
        if missing:
            raise InputError(
                f"{self.name} is truncated: it lacks {missing} bytes or more of what its header promises; copy it again"
            )
        try:
            with interrupts_wait():
                info = soundfile.info(self._open())
        except (soundfile.SoundFileError, RuntimeError, TypeError) as error:  # TypeError: headerless .raw
            raise _unreadable(self.name, error) from None
        if info.frames == 0:
            raise InputError(f"{self.name} holds no samples")
        self.sample_rate = int(info.samplerate)
        self.channels = int(info.channels)
        self.samples = int(info.frames)
        self._block_length = max(1, min(BLOCK_SECONDS * self.sample_rate, _MAX_BLOCK_SAMPLES // self.channels))

    def blocks(self, first: int, last: int) -> Iterator[Floats32]:
        """The samples from `first` up to `last`, as blocks of shape (channels, n)."""
        import soundfile

        position = first
        try:
            with interrupts_wait():
                file = soundfile.SoundFile(self._open())
                if first:
                    file.seek(first)
            with file:
                while position < last:
                    count = min(self._block_length, last - position)
                    with interrupts_wait():
                        block = file.read(count, dtype="float32", always_2d=True)
                    if not len(block):
                        break
                    position += len(block)
                    yield block.T
        except (soundfile.SoundFileError, RuntimeError) as error:
            readable = self._readable(first, position)
            after = "" if readable is None else f" after {quantity(readable, 'sample')}"
            raise InputError(f"{self.name} is damaged{after} ({_reason(error)}); copy or convert it again") from None
        if position < last:
            raise InputError(
                f"{self.name} is truncated: its header promises {quantity(self.samples, 'sample')}, {position} can be "
                "read; copy it again"
            )

    def _readable(self, first: int, position: int) -> int | None:
        """How many samples can be read where the block at a position failed; None: that cannot be told.

        A block fails as a whole, so that its beginning is read again in small pieces.
        """
        import soundfile

        found = position if position > first or not first else None  # what lies before `first` was not read
        try:
            with interrupts_wait(), soundfile.SoundFile(self._open()) as file:
                file.seek(position)
                for _ in range(self._block_length // _REREAD_SAMPLES + 1):
                    count = len(file.read(_REREAD_SAMPLES))
                    found = position = position + count
        except (soundfile.SoundFileError, RuntimeError):
            pass  # here it is
        return found

    def _open(self) -> Any:
        """What soundfile opens, from its beginning."""
        if self._stream is not None:
            return _Reader(self._stream)
        # Of a name, soundfile would encode the letters; it may have bytes that are none.
        return str(self._path) if os.name == "nt" else os.fsencode(self._path)

    def _missing(self) -> int:
        """How many bytes the file lacks, as far as it tells."""
        try:
            with self._path.open("rb") if self._stream is None else _Reader(self._stream) as file:
                if not file.seek(0, io.SEEK_END):
                    raise InputError(f"{self.name} is empty (0 bytes)")
                return missing_bytes(cast(BinaryIO, file))
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or error}") from None


class _Stream:
    """What was read of a stream, in memory or in a temporary file without a name."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        """An `InputError` unless it begins as sound does, and ends before `MAX_STREAM_BYTES`."""
        self.file: Any = tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES)  # noqa: SIM115 - it lives as long as its readers
        weakref.finalize(self, self.file.close)
        self.lock = threading.Lock()
        self.size = 0
        while block := _block(stream, name):
            self.size += len(block)
            if self.size > MAX_STREAM_BYTES:
                raise InputError(
                    f"{name} does not end: {MAX_STREAM_BYTES:.1e} bytes of a stream are read at most; save a part of "
                    "it to a file, and name that"
                )
            try:
                self.file.seek(0, io.SEEK_END)  # behind what the check has read
                self.file.write(block)
            except OSError as error:
                raise InputError(
                    f"{name} cannot be kept in {tempfile.gettempdir()}: {error.strerror or error}; save it to a file, "
                    "and name that"
                ) from None
            if self.size == len(block):
                self._check_recognised(name)
        repair_streamed_wav_header(cast(BinaryIO, self.file))

    def _check_recognised(self, name: str) -> None:
        """By the first block: an endless stream of something else is not read any further."""
        import soundfile

        head = _Reader(self).read(3)
        if head == b"ID3" or head[:1] == b"\xff":
            return  # MP3, which may begin with more than a block of other things
        try:
            with interrupts_wait():
                soundfile.info(_Reader(self))
        except soundfile.LibsndfileError as error:
            if error.code == _UNRECOGNISED:
                raise _unreadable(name, error) from None
        except (RuntimeError, soundfile.SoundFileError):
            pass  # as more of it comes, it may be


class _Reader(io.RawIOBase):
    """A `_Stream` that is read from the beginning, at a place of its own: a recording may be read twice at a time.

    libsndfile calls its methods, which must not raise: Ctrl-C waits meanwhile.
    """

    def __init__(self, stream: _Stream) -> None:
        self._stream, self._at = stream, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with self._stream.lock:
            self._stream.file.seek(self._at)
            count = int(self._stream.file.readinto(buffer))
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._stream.size}[whence]
        self._at = max(0, begin + offset)
        return self._at

    def tell(self) -> int:
        return self._at


def _block(stream: BinaryIO, name: str) -> bytes | None:
    try:
        block: object = stream.read(_STREAM_BLOCK_BYTES)
    except UnicodeDecodeError:
        block = "?"
    except (OSError, ValueError, TypeError) as error:  # a ValueError of one that is closed
        raise InputError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if isinstance(block, str):
        raise InputError(f"{name} is open as text: open it in binary mode, open(path, 'rb')")
    if block is not None and not isinstance(block, (bytes, bytearray, memoryview)):
        raise InputError(f"{name} gives {type(block).__name__} when it is read; expected bytes")
    return cast(bytes | None, block)


def _unreadable(name: str, error: Exception) -> InputError:
    return InputError(f"{name} cannot be read as audio ({_reason(error)}): it is damaged or no audio file")


def _named(source: str | Path | BinaryIO) -> tuple[str, Path, _Stream | None]:
    """A name for messages, a path, and the content unless it can be read from there again and again."""
    if not isinstance(source, (str, Path)):
        given = getattr(source, "name", "the stream")
        name = display_name(given) if isinstance(given, str) else str(given)
        return name, Path("-"), _Stream(source, name)
    if str(source) == "-":
        return "standard input", Path("-"), _Stream(standard_input(), "standard input")
    path = Path(source)
    name = display_name(path)
    try:
        if path.is_dir():
            raise InputError(f"{name} is a folder, not a recording")
        if not path.exists():
            raise InputError(broken_link(path) or f"{name} does not exist")
        if not path.is_file():  # a pipe: what has been read is gone
            with path.open("rb") as file:
                return name, path, _Stream(file, name)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    return name, path, None


def standard_input() -> BinaryIO:
    """Python has none where the shell closed it (`<&-`)."""
    if sys.stdin is None:
        raise InputError("standard input is closed: pipe a recording into it, or name a file instead of -")
    return sys.stdin.buffer


def _reason(error: Exception) -> str:
    return str(error).rsplit(": ", 1)[-1].strip().rstrip(".") or "unknown format"


UNKNOWN_LENGTHS = (0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""Lengths that programs write which stream to a pipe and cannot know the true one."""

_MAX_CHUNKS = 10_000  # before the samples; a file with more is made to be slow
_OGG_TAIL_BYTES = 1 << 17  # that hold the last page: it has up to 65,307


@dataclass(frozen=True)
class _Chunks:
    """How a container is cut into chunks."""

    data: bytes
    """Name of the chunk with the samples."""
    first: int
    """Byte at which the first chunk begins."""
    header: struct.Struct
    """Name and length."""
    counted: int = 0
    """Bytes of its header that a chunk's length includes."""
    aligned: int = 2
    """Chunks begin at multiples of so many bytes."""


_RIFF = _Chunks(b"data", 12, struct.Struct("<4sI"))
_RIFX = _Chunks(b"data", 12, struct.Struct(">4sI"))
_AIFF = _Chunks(b"SSND", 12, struct.Struct(">4sI"))
_W64 = _Chunks(bytes.fromhex("64617461f3acd3118cd100c04f8edb8a"), 40, struct.Struct("<16sQ"), counted=24, aligned=8)
_W64_RIFF = bytes.fromhex("726966662e91cf11a5d628db04c10000")


def missing_bytes(file: BinaryIO) -> int:
    """How many bytes a sound file lacks at least, as far as it tells; 0: none known."""
    size = file.seek(0, io.SEEK_END)
    head = _read_at(file, 0, 40)
    if head[:4] in (b"RIFF", b"RIFX"):
        return _missing_samples(file, size, _RIFF if head[:4] == b"RIFF" else _RIFX)
    if head[:4] == b"RF64":
        if len(head) < 36:
            return 36 - len(head)
        length = int(struct.unpack_from("<Q", head, 28)[0]) if head[12:16] == b"ds64" else None
        return _missing_samples(file, size, _RIFF, length)
    if head[:16] == _W64_RIFF:
        return _missing_samples(file, size, _W64)
    if head[:4] == b"FORM":
        if len(head) < 12:
            return 12 - len(head)
        length = int(struct.unpack_from(">I", head, 4)[0])
        return _missing_samples(file, size, _AIFF) if length in UNKNOWN_LENGTHS else max(0, 8 + length - size)
    if head[:4] in (b".snd", b"dns."):
        if len(head) < 24:
            return 24 - len(head)
        start, length = struct.unpack_from(">II" if head[:4] == b".snd" else "<II", head, 4)
        return 0 if length in UNKNOWN_LENGTHS else max(0, start + length - size)
    if head[:4] == b"OggS":
        return _missing_of_ogg(_read_at(file, max(0, size - _OGG_TAIL_BYTES), _OGG_TAIL_BYTES))
    return 0


def repair_streamed_wav_header(file: BinaryIO) -> None:
    """Write into the header of a streamed WAV, which does not know its length, the length that it has."""
    if _read_at(file, 0, 4) != b"RIFF":
        return
    size = file.seek(0, io.SEEK_END)
    at, length = _find_samples(file, size, _RIFF)
    if length in UNKNOWN_LENGTHS and at <= size:
        for place, value in ((4, size - 8), (at - 4, size - at)):
            file.seek(place)
            file.write(struct.pack("<I", value))


def _missing_samples(file: BinaryIO, size: int, chunks: _Chunks, length: int | None = None) -> int:
    """What the chunk with the samples lacks, or the header before it.

    Args:
        length: of that chunk, where it is said elsewhere.
    """
    at, stated = _find_samples(file, size, chunks)
    if stated is None:
        return max(0, at - size)
    length = stated if length is None else length
    return 0 if length in UNKNOWN_LENGTHS else max(0, at + length - size)


def _find_samples(file: BinaryIO, size: int, chunks: _Chunks) -> tuple[int, int | None]:
    """Where the samples begin, and how many bytes of them are promised.

    Where there is no such chunk: how large the file has to be for the next header, and None.
    """
    at = chunks.first
    for _ in range(_MAX_CHUNKS):
        begin = at + chunks.header.size
        if begin > size:
            return size if at == size else begin, None
        name, length = chunks.header.unpack(_read_at(file, at, chunks.header.size))
        length = max(0, length - chunks.counted)
        if name == chunks.data:
            return begin, length
        at = begin + length
        at += -at % chunks.aligned
    return size, None


def _read_at(file: BinaryIO, at: int, count: int) -> bytes:
    file.seek(at)
    return file.read(count)


def _missing_of_ogg(tail: bytes) -> int:
    """The last page of a whole stream is marked, and complete."""
    at = tail.rfind(b"OggS")
    if at < 0 or len(tail) - at < 27:
        return 1
    segments = tail[at + 27 : at + 27 + tail[at + 26]]
    end = at + 27 + len(segments) + sum(segments)
    if len(segments) < tail[at + 26] or end > len(tail):
        return max(1, end - len(tail))
    return 0 if tail[at + 5] & 4 else 1
