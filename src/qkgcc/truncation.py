"""Is a sound file cut short? libsndfile reads what is left of most formats without a word.

Each container says somewhere how long it is: RIFF, RF64, W64 and AIFF in their chunk headers, AU in its own, Ogg by a
flag on its last page. (A cut FLAC or MP3 is noticed when it is decoded.)
"""

import struct

UNKNOWN = (0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""Lengths that programs write which stream to a pipe and cannot know the true one."""

_W64_RIFF = b"riff\x2e\x91\xcf\x11"
_W64_DATA = b"data\xf3\xac\xd3\x11"


def missing_bytes(head: bytes, tail: bytes, size: int) -> int:
    """How many bytes a file of `size` bytes lacks, as far as its first and last few kilobytes tell; 0: none known."""
    if head[:4] == b"RIFF":
        at, length = find_data(head)
        return 0 if length in UNKNOWN else max(0, at + length - size)
    if head[:4] == b"RF64" and head[12:16] == b"ds64":
        at, _ = find_data(head)
        return max(0, at + int(struct.unpack_from("<Q", head, 28)[0]) - size)
    if head[:4] == b"FORM":
        length = struct.unpack_from(">I", head, 4)[0]
        return 0 if length in UNKNOWN else max(0, 8 + length - size)
    if head[:4] == b".snd":
        start, length = struct.unpack_from(">II", head, 4)
        return 0 if length in UNKNOWN else max(0, start + length - size)
    if head[:8] == _W64_RIFF:
        at = head.find(_W64_DATA)
        return 0 if at < 0 else max(0, at + int(struct.unpack_from("<Q", head, at + 16)[0]) - size)
    if head[:4] == b"OggS":
        return _missing_of_ogg(tail)
    return 0


def find_data(head: bytes) -> tuple[int, int]:
    """Where the samples of a RIFF file begin, and how many bytes its header promises (0: no data chunk found)."""
    at = 12
    while at + 8 <= len(head):
        kind, length = struct.unpack_from("<4sI", head, at)
        if kind == b"data":
            return at + 8, int(length)
        at += 8 + length + length % 2
    return at, 0


def with_true_lengths(data: bytes) -> bytes:
    """A streamed WAV whose header does not know its length, with the length that it has."""
    at, length = find_data(data[:65536])
    if data[:4] != b"RIFF" or length not in UNKNOWN or at > len(data):
        return data
    rest = len(data) - at
    return b"RIFF" + struct.pack("<I", len(data) - 8) + data[8 : at - 4] + struct.pack("<I", rest) + data[at:]


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
