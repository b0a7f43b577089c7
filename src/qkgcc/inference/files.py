"""Safetensors files with a card, read without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from qkgcc.card import DIGEST_KEY, KEY, Card
from qkgcc.errors import InputError

Arrays = Mapping[str, npt.NDArray[Any]]


def read(path: Path) -> tuple[Card, dict[str, npt.NDArray[Any]]]:
    """The card and the tensors of a file, as they were saved."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the handle is no mapping
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged or cut short ({error})") from None
    if KEY not in metadata:
        raise InputError(
            f"{path} holds weights but no card (metadata {KEY!r}); only files saved by qkgcc describe themselves"
        )
    # A file without a checksum was written by an older version, or by another tool.
    if metadata.get(DIGEST_KEY, "") not in ("", digest(arrays, metadata[KEY])):
        raise InputError(f"{path} is damaged: its checksum is another, get the file again")
    try:
        return Card.from_json(metadata[KEY]), arrays
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def digest(arrays: Arrays, card: str) -> str:
    """SHA-256 of everything in a file; safetensors has none of its own."""
    content = hashlib.sha256(card.encode())
    for name in sorted(arrays):
        array = arrays[name]
        content.update(f"{name} torch.{array.dtype} {array.shape}".encode())  # torch's names: it wrote the first files
        content.update(array.tobytes())
    return content.hexdigest()
