"""Frames of a batch shared between threads, a few at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from qkgcc.core.types import Floats32

_AT_ONCE = 16  # their spectra stay in a core's cache


class Batches:
    """Runs parts of a batch. What a frame gets does not depend on the frames beside it, nor on the threads."""

    def __init__(self, threads: int | None = None) -> None:
        """Args:
        threads: None: as many as there are cores. A single frame has one.
        """
        self._threads = threads or os.cpu_count() or 1
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __call__(self, run: Callable[[Floats32], Floats32], frames: Floats32) -> Floats32:
        """Shape: (batch, ...) -> (batch, ...)"""
        each = min(_AT_ONCE, -(-len(frames) // self._threads))
        if len(frames) <= each:
            return run(frames)
        parts = [frames[first : first + each] for first in range(0, len(frames), each)]
        found = self._workers().map(run, parts) if self._threads > 1 else map(run, parts)
        return np.concatenate(list(found))

    def _workers(self) -> ThreadPoolExecutor:
        """Kept, for the memory that each thread has; not by a process that was forked off, which has no threads."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self._threads)
        return self._pool[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None}
