"""Which device a network runs on, and how much it takes at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkgcc.core.errors import InputError


def checked_device(name: str | None) -> str:
    """The device of that name; None: a GPU where there is one.

    >>> checked_device("tpu")
    Traceback (most recent call last):
    ...
    qkgcc.core.errors.InputError: there is no device 'tpu' here: give cpu or cuda, or leave it out
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError):  # the latter where torch was built without CUDA
        raise InputError(f"there is no device {name!r} here: give cpu or cuda, or leave it out") from None
    return name


def in_batches(network: Callable[[Tensor], Tensor], frames: Tensor, batch: int) -> Tensor:
    """Outputs for many frames, `batch` at a time, or fewer where the memory does not hold as many."""
    parts: list[Tensor] = []
    first = 0
    while first < len(frames):
        try:
            parts.append(network(frames[first : first + batch]))
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        else:
            first += batch
    return torch.cat(parts)
