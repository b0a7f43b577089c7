"""No command overwrites a file that qkgcc did not make, unless it is told to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from qkgcc.core.errors import InputError
from qkgcc.core.files import MARK, display_name, is_file
from qkgcc.network.card import DIGEST_KEY

Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace files that are there, also those that qkgcc did not make.")
]

_MARKS = (MARK.encode(), DIGEST_KEY.encode())  # the latter in networks
_SEARCHED = 1 << 16  # bytes at either end of a file that are searched for one


def check_replaceable(path: Path, overwrite: bool, begins: Callable[[bytes], object] = lambda head: False) -> None:
    """Before a command writes: an `InputError` where a file is there that qkgcc did not make.

    Args:
        overwrite: whether all files may be replaced.
        begins: tells by its first bytes whether a file without a mark is one of qkgcc's.
    """
    if overwrite or not is_file(path):
        return
    try:
        with path.open("rb") as file:
            head = file.read(_SEARCHED)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _SEARCHED))
            ends = (head, file.read())
    except OSError as error:
        raise InputError(f"cannot write {display_name(path)}: {error.strerror or error}") from None
    if head and not begins(head) and not any(mark in end for mark in _MARKS for end in ends):
        raise InputError(
            f"{display_name(path)} is there already, and qkgcc did not make it: give another name, or --overwrite to "
            "replace what it holds"
        )
