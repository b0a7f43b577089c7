"""Raw PCM: samples without a header, as recorders write them into a pipe. The user has to say their format."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from qkgcc.core.errors import InputError, quantity
from qkgcc.core.types import Floats32

FORMATS = ("u8", "s16le", "s24le", "s32le", "f32le", "f64le")
"""Unsigned, signed or float samples of so many bits, the lowest byte first; the names are those of ffmpeg."""

_READ_BYTES = 1 << 16


def sample_bytes(format: str) -> int:
    """Bytes of a sample; an `InputError` for an unknown format.

    >>> sample_bytes("s24le")
    3
    """
    if format not in FORMATS:
        raise InputError(f"unknown raw format {format!r}; known are {', '.join(FORMATS)}")
    return int(format[1:].removesuffix("le")) // 8


def decode(data: bytes, format: str, channels: int) -> Floats32:
    """Interleaved samples at full scale 1, bit-identical to the same samples in a WAV file. Shape: (channels, n)

    >>> decode(b"\\x00\\x40\\x00\\x80", "s16le", 2).tolist()
    [[0.5], [-1.0]]
    """
    width, kind = sample_bytes(format), format[0]
    if kind == "f":
        samples = np.frombuffer(data, f"<f{width}")
    elif kind == "u":
        samples = (np.frombuffer(data, np.uint8).astype(np.float64) - 128) / 128
    else:
        # Below the lowest byte there are zeros: every width is a 32-bit number.
        wide = np.zeros((len(data) // width, 4), np.uint8)
        wide[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
        samples = wide.view("<i4")[:, 0].astype(np.float64) / 2**31
    # What does not fit becomes an infinity, and a signalling NaN a quiet one: both are refused.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(samples.astype(np.float32).reshape(-1, channels).T)


def blocks(source: BinaryIO, format: str, channels: int, size: int) -> Iterator[Floats32]:
    """Blocks of `size` samples as soon as they have arrived; the last may be shorter.

    Shape: (channels, size) each
    """
    whole = sample_bytes(format) * channels
    rest = b""
    while data := _read(source):
        rest += data
        count = len(rest) // (size * whole)
        for i in range(count):
            yield decode(rest[i * size * whole : (i + 1) * size * whole], format, channels)
        rest = rest[count * size * whole :]
    spare = len(rest) % whole
    if len(rest) > spare:
        yield decode(rest[: len(rest) - spare], format, channels)
    if spare:
        raise InputError(
            f"the raw sound ends within a sample: {quantity(spare, 'byte')} left, and {quantity(channels, 'channel')} "
            f"in {format} take {whole}; it has another format or number of channels, or was cut off"
        )


def _read(source: BinaryIO) -> bytes:
    """The bytes that have arrived, without waiting for more; empty at the end."""
    try:
        return bytes(source.read1(_READ_BYTES))  # type: ignore[attr-defined]
    except OSError as error:
        raise InputError(f"the raw sound cannot be read: {error.strerror or error}") from None
