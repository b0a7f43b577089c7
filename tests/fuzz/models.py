"""Cards and checkpoints: their text, their tensors, their bytes.

The two tiny networks are those of the tests (`tests/networks.py`, and as published), with random weights.
"""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz.edits import byte_edits, edited, edited_json, json_edits
from fuzz.workplace import workplace
from qkgcc import DelayEstimator
from qkgcc.network import files
from qkgcc.network.card import DIGEST_KEY, KEY, Card

_FOLDER = Path(__file__).parent / "networks"
NAMES = ("steered", "qkgcc")
SOUND = np.random.default_rng(0).standard_normal((2, 400)).astype(np.float32)
"""Two frames or three of either network."""


@cache
def _checkpoint(name: str) -> tuple[dict[str, Any], bytes]:
    """The header and the tensors of a checkpoint; of its card, the JSON."""
    content = (_FOLDER / f"{name}.safetensors").read_bytes()
    length = struct.unpack_from("<Q", content)[0]
    header = json.loads(content[8 : 8 + length])
    return header, content[8 + length :]


def _card(name: str) -> dict[str, Any]:
    card: dict[str, Any] = json.loads(_checkpoint(name)[0]["__metadata__"][KEY])
    return card


# Cards

cards = st.tuples(
    st.sampled_from(NAMES), st.one_of(st.tuples(st.just("json"), json_edits), st.tuples(st.just("text"), byte_edits))
)


def read_card(given: tuple[str, tuple[str, Any]]) -> None:
    name, (kind, edits) = given
    if kind == "json":
        text = json.dumps(edited_json(_card(name), edits))
    else:
        text = edited(json.dumps(_card(name)).encode(), edits).decode(errors="surrogateescape")
    card = Card.from_json(text)
    assert Card.from_json(card.to_json()) == card


# Checkpoints

_TYPES = ("F16", "BF16", "F64", "I64", "U8", "BOOL", "F8_E4M3", "C64", "F4", "I8")
checkpoints = st.tuples(
    st.sampled_from(NAMES),
    st.fixed_dictionaries(
        {},
        optional={
            "bytes": byte_edits,
            "header": json_edits,
            "card": json_edits,
            "options": json_edits,
            "type": st.tuples(st.integers(0, 40), st.sampled_from(_TYPES)),
            "weights": st.sampled_from(["zero", "large", "infinite", "no number"]),
            "spaces": st.sampled_from([1, 100_000]),
            "digest": st.sampled_from(["as it was", "none", "text"]),
            "spacing": st.sampled_from([0.01, 0.05, 1.0]),
        },
    ),
)


def _with_header(header: dict[str, Any], tensors: bytes, spaces: int = 0) -> bytes:
    text = json.dumps(header).encode() + b" " * spaces
    return struct.pack("<Q", len(text)) + text + tensors


def _retyped(header: dict[str, Any], tensors: bytes, number: int, kind: str) -> bytes:
    """A tensor of another type, with the bytes that it takes; the places of those behind move."""
    sizes = {"F16": 2, "BF16": 2, "F64": 8, "I64": 8, "C64": 8}
    entries = sorted(
        (entry for name, entry in header.items() if name != "__metadata__"), key=lambda e: e["data_offsets"]
    )
    chosen = entries[number % len(entries)]
    begin, end = chosen["data_offsets"]
    length = (end - begin) // 4 * sizes.get(kind, 1)
    moved = length - (end - begin)
    for entry in entries:
        if entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [place + moved for place in entry["data_offsets"]]
    chosen["dtype"], chosen["data_offsets"] = kind, [begin, begin + length]
    return tensors[:begin] + bytes(range(16)) * (length // 16) + bytes(length % 16) + tensors[end:]


def _array(entry: dict[str, Any], tensors: bytes) -> Any:
    """A tensor of 32-bit floats or 64-bit integers."""
    begin, end = entry["data_offsets"]
    kind = {"F32": "<f4", "I64": "<i8"}[entry["dtype"]]
    return np.frombuffer(tensors[begin:end], kind).reshape(entry["shape"])


def read_checkpoint(given: tuple[str, dict[str, Any]]) -> None:
    name, changes = given
    header, tensors = _checkpoint(name)
    header = json.loads(json.dumps(header))
    card = edited_json(_card(name), changes.get("card", ()))
    if isinstance(card, dict) and "options" in card:
        card["options"] = edited_json(card["options"], changes.get("options", ()))
    header["__metadata__"][KEY] = json.dumps(card)
    if "type" in changes:
        tensors = _retyped(header, tensors, *changes["type"])
    if "weights" in changes:
        value = {"zero": 0.0, "large": 3e38, "infinite": np.inf, "no number": np.nan}[changes["weights"]]
        tensors = np.full(len(tensors) // 4, value, "<f4").tobytes() + tensors[len(tensors) // 4 * 4 :]
    digest = changes.get("digest", "right")
    if digest == "text":
        header["__metadata__"][DIGEST_KEY] = "a"
    elif digest == "none" or (digest == "right" and set(changes) & {"header", "type"}):
        del header["__metadata__"][DIGEST_KEY]
    elif digest == "right":
        arrays = {name: _array(entry, tensors) for name, entry in header.items() if name != "__metadata__"}
        header["__metadata__"][DIGEST_KEY] = files.digest(arrays, header["__metadata__"][KEY])
    header = edited_json(header, changes.get("header", ()))
    path = workplace() / "given.safetensors"
    path.write_bytes(edited(_with_header(header, tensors, changes.get("spaces", 0)), changes.get("bytes", ())))
    DelayEstimator(path, spacing=changes.get("spacing"), threads=1)(SOUND, 16000)
