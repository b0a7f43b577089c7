"""Sound files as soundfile reads them, with every way in which they can be broken said in one sentence."""

import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from qkgcc.errors import InputError
from qkgcc.files import shown
from qkgcc.interrupts import interrupts_wait
from qkgcc.truncation import missing_bytes, with_true_lengths

BLOCK_SECONDS = 10

_PIECE = 64  # samples; the usual blocks of FLAC (1152, 4096, 4608) are whole numbers of them
_END = 1 << 17  # bytes at either end that tell whether a file is whole: an Ogg page has up to 65,307


class SoundFile:
    """An audio file, or one read from a stream (`-`: standard input), that can be read again and again.

    A stream's content lies in memory, where libsndfile reads it through Python: Ctrl-C waits meanwhile.
    """

    def __init__(self, source: str | Path | BinaryIO) -> None:
        import soundfile

        self.name, self._path, self._data = _named(source)
        size, head, tail = self._ends()
        if size == 0:
            raise InputError(f"{self.name} is empty (0 bytes)")
        missing = missing_bytes(head, tail, size)
        if missing:
            raise InputError(
                f"{self.name} is truncated: it lacks {missing} bytes or more of what its header promises; copy it again"
            )
        try:
            with interrupts_wait():
                info = soundfile.info(self._open())
        except (soundfile.SoundFileError, RuntimeError, TypeError) as error:  # TypeError: headerless .raw
            raise InputError(
                f"{self.name} cannot be read as audio ({_reason(error)}): it is damaged or no audio file"
            ) from None
        if info.frames == 0:
            raise InputError(f"{self.name} holds no samples")
        self.sample_rate = int(info.samplerate)
        self.channels = int(info.channels)
        self.samples = int(info.frames)

    def blocks(self, first: int, last: int) -> Iterator[npt.NDArray[np.float32]]:
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
                    count = min(BLOCK_SECONDS * self.sample_rate, last - position)
                    with interrupts_wait():
                        block = file.read(count, dtype="float32", always_2d=True)
                    if not len(block):
                        break
                    position += len(block)
                    yield block.T
        except (soundfile.SoundFileError, RuntimeError) as error:
            readable = self._readable(first, position)
            after = "" if readable is None else f" after {readable} samples"
            raise InputError(f"{self.name} is damaged{after} ({_reason(error)}); copy or convert it again") from None
        if position < last:
            raise InputError(
                f"{self.name} is truncated: its header promises {self.samples} samples, {position} can be read; "
                "copy it again"
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
                for _ in range(BLOCK_SECONDS * self.sample_rate // _PIECE + 1):
                    count = len(file.read(_PIECE))
                    found = position = position + count
        except (soundfile.SoundFileError, RuntimeError):
            pass  # here it is
        return found

    def _open(self) -> Any:
        """What soundfile opens, from its beginning."""
        if self._data is not None:
            return io.BytesIO(self._data)
        # Of a name, soundfile would encode the letters; it may have bytes that are none.
        return str(self._path) if os.name == "nt" else os.fsencode(self._path)

    def _ends(self) -> tuple[int, bytes, bytes]:
        """Size, first and last bytes."""
        if self._data is not None:
            return len(self._data), self._data[:_END], self._data[-_END:]
        try:
            with self._path.open("rb") as file:
                head = file.read(_END)
                size = file.seek(0, io.SEEK_END)
                file.seek(max(0, size - _END))
                return size, head, file.read()
        except OSError as error:
            raise InputError(f"{self.name} cannot be read: {error.strerror or error}") from None


def _named(source: str | Path | BinaryIO) -> tuple[str, Path, bytes | None]:
    """A name for messages, a path, and the content unless it can be read from there again and again."""
    if not isinstance(source, (str, Path)):
        name = getattr(source, "name", "the stream")
        return shown(name) if isinstance(name, str) else str(name), Path("-"), with_true_lengths(source.read())
    if str(source) == "-":
        return "standard input", Path("-"), with_true_lengths(_standard_input())
    path = Path(source)
    name = shown(path)
    try:
        if path.is_dir():
            raise InputError(f"{name} is a folder, not a recording")
        if not path.exists():
            if path.is_symlink():
                raise InputError(f"{name} is a link to {shown(path.readlink())}, which does not exist")
            raise InputError(f"{name} does not exist")
        if not path.is_file():  # a pipe: what has been read is gone
            return name, path, with_true_lengths(path.read_bytes())
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from None
    return name, path, None


def standard_input() -> BinaryIO:
    """Python has none where the shell closed it (`<&-`)."""
    if sys.stdin is None:
        raise InputError("standard input is closed: pipe a recording into it, or name a file instead of -")
    return sys.stdin.buffer


def _standard_input() -> bytes:
    try:
        return standard_input().read()
    except OSError as error:
        raise InputError(f"standard input cannot be read: {error.strerror or error}") from None


def _reason(error: Exception) -> str:
    return str(error).rsplit(": ", 1)[-1].strip().rstrip(".") or "unknown format"
