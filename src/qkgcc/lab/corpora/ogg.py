"""Ogg streams that come out the same every time.

An Ogg stream carries a serial number that keeps interleaved streams apart; encoders draw it at random, so that encoding
the same samples twice gives different bytes. With one stream per utterance it says nothing: here it is set to 1, in
every page (RFC 3533, section 6), and each page's checksum is made anew.
"""

import zlib

from qkgcc.core.errors import InputError

_HEADER = 27  # bytes of a page before its segment table
_SERIAL = slice(14, 18)
_CHECKSUM = slice(22, 26)
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def with_fixed_serial(stream: bytes, serial: int = 1) -> bytes:
    """The same Ogg stream under another serial number."""
    pages = bytearray(stream)
    start = 0
    while start < len(pages):
        if pages[start : start + 4] != b"OggS":
            raise InputError(f"an Ogg page should begin at byte {start}: this is no Ogg stream")
        segments = pages[start + 26]
        table = start + _HEADER
        end = table + segments + sum(pages[table : table + segments])
        page = pages[start:end]
        page[_SERIAL] = serial.to_bytes(4, "little")
        page[_CHECKSUM] = bytes(4)
        page[_CHECKSUM] = checksum(bytes(page)).to_bytes(4, "little")
        pages[start:end] = page
        start = end
    return bytes(pages)


def checksum(page: bytes) -> int:
    """Ogg's CRC: zlib's polynomial with the bits in the other order, beginning at 0 instead of at all ones.

    >>> hex(checksum(b"123456789"))
    '0x89a1897f'
    """
    value = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{value:032b}"[::-1], 2)
