"""Edits of valid content: of bytes, and of JSON."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

Edit = tuple[str, int, int]
T = TypeVar("T")

NUMBERS = (
    *(0, 1, 2, 3, 7, 16, 127, 128, 255, 256, 1023, 1024, 32767, 32768, 65535, 65536),
    *(0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF),
    *(1 << 32, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
"""At the limits of what counters and lengths hold."""

_INTEGERS = {"<H": 2, ">H": 2, "<I": 4, ">I": 4, "<Q": 8, ">Q": 8}
_OPERATIONS = ("byte", "bit", "cut", "drop", "insert", "repeat", *_INTEGERS)


def in_bytes(width: int, most: int, read: Callable[[bytes], T]) -> st.SearchStrategy[list[T]]:
    """Lists of 1 to `most` things, each read from so many random bytes: the quickest that hypothesis draws.

    Fewer of them are smaller, and so are zeros.
    """

    def parts(drawn: bytes) -> list[T]:
        return [read(drawn[i : i + width]) for i in range(0, len(drawn) - width + 1, width)]

    return st.binary(min_size=width, max_size=width * most).map(parts)


def _byte_edit(drawn: bytes) -> Edit:
    what, high, low, number = drawn
    place = low if what % 2 else high % 64 << 8 | low  # every second one lies in a header
    return _OPERATIONS[what // 2 % len(_OPERATIONS)], place, number


byte_edits = in_bytes(4, 5, _byte_edit)
"""(what, where, number)"""


def edited(content: bytes, edits: Sequence[Edit]) -> bytes:
    """Content after some edits, whatever their places and numbers are.

    >>> edited(b"abcd", [("byte", 1, 120), ("cut", 3, 0)])
    b'axc'
    """
    data = bytearray(content)
    for what, place, number in edits:
        at = place % (len(data) + 1)
        if what == "byte":
            data[at : at + 1] = bytes([number % 256])
        elif what == "bit" and at < len(data):
            data[at] ^= 1 << number % 8
        elif what == "cut":
            del data[at:]
        elif what == "drop":
            del data[at : at + number]
        elif what == "insert":
            data[at:at] = bytes([number % 256]) * (number % 32 + 1)
        elif what == "repeat":
            data[at:at] = data[at : at + number]
        elif what in _INTEGERS:
            size = _INTEGERS[what]
            value = NUMBERS[number % len(NUMBERS)] % (1 << 8 * size)
            data[at : at + size] = struct.pack(what, value)
    return bytes(data)


VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "one": 1,
    "minus one": -1,
    "many": 10**9,
    "beyond 64 bits": 10**30,
    "half": 0.5,
    "tiny": 1e-300,
    "large": 1e300,
    "no number": float("nan"),
    "infinite": float("inf"),
    "empty text": "",
    "text": "a",
    "long text": "x" * 10_000,
    "half a letter": "\ud800",
    "nul": "\0",
    "empty list": [],
    "empty object": {},
    "list": [0, 1, 2],
    "falling": [2, 1, 0],
    "many numbers": list(range(5000)),
    "texts": ["a", "b"],
    "lists": [[0, 0], [1, 1]],
    "object": {"a": 1},
    "deep": json.loads("[" * 200 + "]" * 200),
    "steered": "steered",
    "qkgcc": "qkgcc",
    "torch's": "transformer",
    "utterance": "utterance",
}
"""What a value of JSON is replaced by. By their names: an input stays short."""

_NAMES = tuple(VALUES)
json_edits = in_bytes(
    3, 4, lambda drawn: (drawn[0], ("put", "put", "drop", "add")[drawn[1] % 4], _NAMES[drawn[2] % len(_NAMES)])
)
"""(which value, what, what it becomes)."""


def edited_json(content: Any, edits: Sequence[tuple[int, str, str]]) -> Any:
    """JSON with some of its values, counted in the order of the text, replaced, dropped or beside new ones.

    >>> edited_json({"a": 1, "b": [2]}, [(1, "put", "null")])
    {'a': 1, 'b': None}
    """
    made = copy.deepcopy(content)
    if not isinstance(made, (dict, list)):
        return made
    for number, what, value in edits:
        slots = list(_slots(made))
        if not slots:
            return made
        holder, key = slots[number % len(slots)]
        new = copy.deepcopy(VALUES[value])
        if what == "drop":
            del holder[key]
        elif what == "add" and isinstance(holder, dict):
            holder[f"{key}?"] = new
        elif what == "add":
            holder.insert(key, new)
        else:
            holder[key] = new
    return made


def _slots(value: Any, limit: int = 400) -> list[tuple[Any, Any]]:
    """(holder, key) of every value in it, the first few of long lists."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(found) < limit:
        holder = waiting.pop(0)
        keys = list(holder) if isinstance(holder, dict) else range(min(len(holder), 8))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], (dict, list)):
                waiting.append(holder[key])
    return found
