"""A recording of live sound that is a valid file at every moment: after a fault, a full disk, a power failure.

WAV is not written by libsndfile, which writes the length only when the file is closed: here the header is updated every
second. Beyond 4 GiB the file becomes RF64 (EBU Tech 3306), for whose longer numbers the header has room.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.files import MARK, display_name
from qkgcc.core.types import Floats32

SUFFIXES = (".wav", ".flac")

_HEADER_BYTES = 104  # before the samples of a WAV file
_FLOAT_FORMAT = bytes.fromhex("0300000000001000800000aa00389b71")  # the name of float samples in extensible formats
_MAX_WAV_BYTES = 0xFFFFFFFF
_IN_DS64 = 0xFFFFFFFF  # instead of a length that RF64 says elsewhere


class _File(Protocol):
    def write(self, block: Floats32) -> None: ...
    def close(self) -> None: ...


class Recorder:
    """Writes blocks to a file until that fails: `fault` then says why, and blocks are no longer taken.

    Args:
        path: .wav (32-bit floats, the samples as they came) or .flac (24 bits).
    """

    def __init__(self, path: str | Path, sample_rate: int, channels: int) -> None:
        self.path = Path(path)
        self.sample_rate = sample_rate
        self.samples = 0
        """Written so far."""
        self.fault: str | None = None
        kind = self.path.suffix.lower()
        if kind not in SUFFIXES:
            raise InputError(
                f"cannot record to {display_name(path)}: the ending says the format, one of {' '.join(SUFFIXES)}"
            )
        if kind == ".flac" and not (channels <= 8 and sample_rate <= 655_350):
            raise InputError(
                f"cannot record to {display_name(path)}: FLAC takes up to 8 channels and 655350 Hz: take .wav"
            )
        try:
            self._file: _File | None = (WavFile if kind == ".wav" else _Flac)(self.path, sample_rate, channels)
        except (OSError, RuntimeError) as error:
            raise InputError(f"cannot record to {display_name(path)}: {_reason(error)}") from None

    @property
    def seconds(self) -> float:
        return self.samples / self.sample_rate

    def write(self, block: Floats32) -> None:
        """Shape: (channels, n)"""
        if self._file is None:
            return
        try:
            self._file.write(block)
            self.samples += block.shape[1]
        except (OSError, RuntimeError) as error:
            self._fail(error)

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            try:
                file.close()
            except (OSError, RuntimeError) as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.fault = f"the recording {display_name(self.path)} ends after {self.seconds:.1f} s: {_reason(error)}"
        self.close()


class WavFile:
    """WAV of 32-bit floats. Write errors raise an OSError with its reason, which libsndfile does not tell."""

    def __init__(self, path: Path, sample_rate: int, channels: int) -> None:
        self._rate, self._channels = sample_rate, channels
        self._bytes, self._in_header = 0, 0
        self._file = path.open("wb", buffering=0)
        self._update_header()

    def write(self, block: Floats32) -> None:
        data = np.ascontiguousarray(block.T, "<f4").tobytes()
        done = 0
        while done < len(data):  # a disk that is nearly full takes a part, and then refuses
            done += self._file.write(data[done:])
        self._bytes += len(data)
        if self._bytes - self._in_header >= 4 * self._channels * self._rate:
            self._update_header()

    def close(self) -> None:
        try:
            self._file.truncate(_HEADER_BYTES + self._bytes)  # without the part of a block that a full disk took
            self._update_header()
        finally:
            self._file.close()

    def _update_header(self) -> None:
        """Write the header for the samples written so far."""
        whole, frame = self._bytes + _HEADER_BYTES - 8, 4 * self._channels
        long = whole > _MAX_WAV_BYTES
        sizes = struct.pack("<QQQI", whole, self._bytes, self._bytes // frame, 0)
        form = struct.pack("<HHIIHH", 0xFFFE, self._channels, self._rate, self._rate * frame, frame, 32)
        form += struct.pack("<HHI", 22, 32, 0) + _FLOAT_FORMAT  # 0: no loudspeaker, just channels
        room = MARK.encode().ljust(len(sizes), b"\0")  # for the longer sizes
        head = b"RF64" if long else b"RIFF"
        head += struct.pack("<I", _IN_DS64 if long else whole) + b"WAVE"
        head += (b"ds64" if long else b"JUNK") + struct.pack("<I", len(sizes)) + (sizes if long else room)
        head += b"fmt " + struct.pack("<I", len(form)) + form
        head += b"data" + struct.pack("<I", _IN_DS64 if long else self._bytes)
        assert len(head) == _HEADER_BYTES
        self._file.seek(0)
        self._file.write(head)
        self._file.seek(0, os.SEEK_END)
        self._in_header = self._bytes


class _Flac:
    """FLAC by libsndfile, which writes the length only at the end: until then it is updated here, 4 times a second.

    After a fault, the incomplete last frame is cut off.
    """

    def __init__(self, path: Path, sample_rate: int, channels: int) -> None:
        import soundfile

        path.open("wb").close()  # whose reason says more than libsndfile's
        self._path, self._rate = path, sample_rate
        self._file: Any = soundfile.SoundFile(str(path), "w", sample_rate, channels, subtype="PCM_24", format="FLAC")
        self._samples, self._bytes, self._in_header, self._failed = 0, 0, 0, False

    def write(self, block: Floats32) -> None:
        self._failed = True
        self._file.write(block.T)
        self._file.flush()
        self._failed = False
        self._samples += block.shape[1]
        self._bytes = self._path.stat().st_size
        if self._samples - self._in_header >= self._rate // 4:
            self._update_header()

    def close(self) -> None:
        try:
            self._file.close()
        finally:
            if self._failed:
                self._truncate()

    def _truncate(self) -> None:
        os.truncate(self._path, self._bytes)
        self._update_header()

    def _update_header(self) -> None:
        """Write the header for the complete frames written so far."""
        with self._path.open("r+b") as file:
            head = file.read(42)  # STREAMINFO, behind 8 bytes: the length has 36 bits, and a checksum follows
            size = int.from_bytes(head[8:10])
            whole = max(0, self._samples - 1) // size * size  # a frame is written when the sample behind it has come
            streaminfo = int.from_bytes(head[18:26]) >> 36 << 36 | whole
            file.seek(18)
            file.write(streaminfo.to_bytes(8) + bytes(16))
        self._in_header = self._samples


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    reason = str(error).rsplit(": ", 1)[-1].strip().rstrip(".")
    return "the disk takes no more" if reason in ("", "System error") else reason  # which libsndfile says of all
