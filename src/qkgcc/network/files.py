"""Safetensors files with a card, read without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.files import check_file
from qkgcc.network.card import DIGEST_KEY, KEY, Card

_LARGEST_HEADER = 10_000_000  # bytes, with names, shapes and card

Arrays = Mapping[str, npt.NDArray[Any]]


def read(path: Path) -> tuple[Card, dict[str, npt.NDArray[Any]]]:
    """The card and the tensors of a file, as they were saved."""
    from safetensors import SafetensorError, safe_open

    check_file(path)
    try:
        with path.open("rb") as begin:
            header = int.from_bytes(begin.read(8), "little")
        if header > _LARGEST_HEADER:
            raise SafetensorError(f"a header of {header} bytes; expected at most {_LARGEST_HEADER}")
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the handle is no mapping
        # (Some packages teach NumPy further types.)
        strange = next((str(array.dtype) for array in arrays.values() if array.dtype.kind not in "biuf"), None)
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged or cut short ({error})") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (TypeError, ValueError, AttributeError) as error:
        strange = str(error)
    if strange is not None:
        raise InputError(
            f"{path} holds tensors of a type that NumPy does not have ({strange}): save them as float16 or float32"
        )
    if KEY not in metadata:
        raise InputError(
            f"{path} holds weights but no card (metadata {KEY!r}); only files saved by qkgcc describe themselves"
        )
    # A file without a checksum was written by an older version, or by another tool.
    if metadata.get(DIGEST_KEY, "") not in ("", digest(arrays, metadata[KEY])):
        raise InputError(f"{path} is damaged: checksum mismatch, download it again")
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
