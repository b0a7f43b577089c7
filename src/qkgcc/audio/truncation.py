"""Is a sound file cut short? libsndfile reads what is left of most formats without a word.

Each container says somewhere how long it is: RIFF, RF64, W64 and AIFF in the headers of their chunks, which may lie
anywhere in the file, AU in its own, Ogg by a flag on its last page. (A cut CAF, FLAC or MP3 is noticed by libsndfile.)
"""

import io
import struct
from dataclasses import dataclass
from typing import BinaryIO

UNKNOWN = (0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
"""Lengths that programs write which stream to a pipe and cannot know the true one."""

_MOST_CHUNKS = 10_000  # before the samples; a file with more is made to be slow
_OGG_TAIL = 1 << 17  # bytes that hold the last page: it has up to 65,307


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
    head = _read(file, 0, 40)
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
        return _missing_samples(file, size, _AIFF) if length in UNKNOWN else max(0, 8 + length - size)
    if head[:4] in (b".snd", b"dns."):
        if len(head) < 24:
            return 24 - len(head)
        start, length = struct.unpack_from(">II" if head[:4] == b".snd" else "<II", head, 4)
        return 0 if length in UNKNOWN else max(0, start + length - size)
    if head[:4] == b"OggS":
        return _missing_of_ogg(_read(file, max(0, size - _OGG_TAIL), _OGG_TAIL))
    return 0


def repair_streamed_wav_header(file: BinaryIO) -> None:
    """Write into the header of a streamed WAV, which does not know its length, the length that it has."""
    if _read(file, 0, 4) != b"RIFF":
        return
    size = file.seek(0, io.SEEK_END)
    at, length = _find_samples(file, size, _RIFF)
    if length in UNKNOWN and at <= size:
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
    return 0 if length in UNKNOWN else max(0, at + length - size)


def _find_samples(file: BinaryIO, size: int, chunks: _Chunks) -> tuple[int, int | None]:
    """Where the samples begin, and how many bytes of them are promised.

    Where there is no such chunk: how large the file has to be for the next header, and None.
    """
    at = chunks.first
    for _ in range(_MOST_CHUNKS):
        begin = at + chunks.header.size
        if begin > size:
            return size if at == size else begin, None
        name, length = chunks.header.unpack(_read(file, at, chunks.header.size))
        length = max(0, length - chunks.counted)
        if name == chunks.data:
            return begin, length
        at = begin + length
        at += -at % chunks.aligned
    return size, None


def _read(file: BinaryIO, at: int, count: int) -> bytes:
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
