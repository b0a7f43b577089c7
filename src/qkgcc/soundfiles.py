"""Sound files as soundfile reads them, with every way in which they can be broken said in one sentence."""

import io
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from qkgcc.errors import InputError

BLOCK_SECONDS = 10


class SoundFile:
    """An audio file, or one read from a stream (`-`: standard input), that can be read again and again."""

    def __init__(self, source: str | Path | BinaryIO) -> None:
        import soundfile

        self.name, self._data = _named(source)
        size = Path(self.name).stat().st_size if self._data is None else len(self._data)
        if size == 0:
            raise InputError(f"{self.name} is empty (0 bytes)")
        try:
            info = soundfile.info(self._open())
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise InputError(
                f"{self.name} cannot be read as audio ({_reason(error)}): it is damaged or no audio file"
            ) from None
        if info.frames == 0:
            raise InputError(f"{self.name} holds no samples")
        missing = _missing_wav_bytes(self._open(), size)
        if missing:
            raise InputError(
                f"{self.name} is truncated: its header promises {missing} bytes more than there are; copy it again"
            )
        self.sample_rate = int(info.samplerate)
        self.channels = int(info.channels)
        self.samples = int(info.frames)

    def blocks(self, first: int, last: int) -> Iterator[npt.NDArray[np.float32]]:
        """The samples from `first` up to `last`, as blocks of shape (channels, n)."""
        import soundfile

        position = first
        try:
            with soundfile.SoundFile(self._open()) as file:
                if first:
                    file.seek(first)
                while position < last:
                    count = min(BLOCK_SECONDS * self.sample_rate, last - position)
                    block = file.read(count, dtype="float32", always_2d=True)
                    if not len(block):
                        break
                    position += len(block)
                    yield block.T
        except (soundfile.SoundFileError, RuntimeError) as error:
            raise InputError(
                f"{self.name} is damaged after {position} samples ({_reason(error)}); copy or convert it again"
            ) from None
        if position < last:
            raise InputError(
                f"{self.name} is truncated: its header promises {self.samples} samples, {position} can be read; "
                "copy it again"
            )

    def _open(self) -> Any:
        """What soundfile opens, from its beginning."""
        return self.name if self._data is None else io.BytesIO(self._data)


def _named(source: str | Path | BinaryIO) -> tuple[str, bytes | None]:
    """A name for messages, and the content unless it lies in the file of that name."""
    if isinstance(source, (str, Path)):
        if str(source) == "-":
            return "standard input", sys.stdin.buffer.read()
        path = Path(source)
        if path.is_dir():
            raise InputError(f"{path} is a folder, not a recording")
        if not path.exists():
            raise InputError(f"{path} does not exist")
        return str(path), None
    return str(getattr(source, "name", "the stream")), source.read()


def _missing_wav_bytes(source: Any, size: int) -> int:
    """How far a WAV's data chunk reaches past the end of the file. libsndfile shortens such a file silently.

    0 and 0xFFFFFFFF are what programs write that stream a WAV and do not know its length: nothing is missing then.
    """
    with source if isinstance(source, io.BytesIO) else Path(source).open("rb") as file:
        if file.read(4) != b"RIFF":
            return 0
        file.seek(12)
        while len(header := file.read(8)) == 8:
            kind, length = struct.unpack("<4sI", header)
            if kind == b"data":
                return 0 if length in (0, 0xFFFFFFFF) else max(0, int(file.tell() + length - size))
            file.seek(length + length % 2, io.SEEK_CUR)
    return 0


def _reason(error: Exception) -> str:
    return str(error).rsplit(": ", 1)[-1].strip().rstrip(".") or "unknown format"
