"""What every network that runs without torch has: its file, its shape, and what runs it."""

from __future__ import annotations

import abc
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats32
from qkgcc.network import files, kernel
from qkgcc.network.card import Card
from qkgcc.network.shape import Shape

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


Weights = Mapping[str, npt.NDArray[Any]]


class LightModel(abc.ABC):
    """Built from a card and weights; its kinds, `SteeredModel` and `PublishedModel`, fold and run them."""

    architecture: ClassVar[str]

    def __init__(
        self,
        card: Card,
        weights: Weights,
        path: Path,
        *,
        threads: int | None = None,
        compiled: bool | None = None,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        """Args:
        path: where they are from, for messages.
        threads: that share the frames of a batch; None: as many as there are cores. A single frame has one.
        compiled: whether to run the compiled kernel; None: if it is there.
        dtype: of every step and of the answers. In float64, which NumPy computes, the answers have no rounding to
            speak of: the reference that the tests compare others with.
        """
        if card.architecture != self.architecture:
            raise InputError(f"{path} holds a {card.architecture} network; expected {self.architecture}")
        self.card = card
        self._batches = Batches(threads)
        self._dtype: Any = dtype
        try:
            self._shape = Shape.of_card(card)
            fits = self._fold(weights)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        self._without = kernel.reason_against(fits, compiled if dtype is np.float32 else False, path)
        self._kernel = self._compiled() if self._without is None else None

    @abc.abstractmethod
    def _fold(self, weights: Weights) -> bool:
        """Keep what is left of the weights to compute with, and say whether the compiled code has room for it."""

    @abc.abstractmethod
    def _compiled(self) -> Any:
        """The network in the compiled code's layout."""

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        threads: int | None = None,
        compiled: bool | None = None,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> Self:
        card, weights = files.read(path)
        return cls(card, weights, path, threads=threads, compiled=compiled, dtype=dtype)

    @property
    def runner(self) -> str:
        """What runs it here, and why where that is not the compiled kernel."""
        return kernel.runner(self._kernel, self._without)

    @property
    def step(self) -> float:
        """Samples between candidate delays."""
        return float(self._shape.step)

    def _usable(self, bins: Bools | None) -> Floats32:
        """1 for each frequency that counts. Shape: (bins,) or None -> (bins,)"""
        count = self._shape.bins
        if bins is None:
            return np.ones(count, self._dtype)
        if bins.shape != (count,):
            raise InputError(f"bins have the shape {bins.shape}; expected ({count},)")
        return bins.astype(self._dtype)

    def _transformed(self, frames: Floats32) -> npt.NDArray[np.complex64]:
        """Shape: (..., n) -> (..., bins)

        In float64: a transform in float32 gives bins far below the loudest ones another phase, and that counts as much
        as any other.
        """
        spectra = scipy.fft.rfft(frames.astype(np.float64), n=self._shape.dft)
        return np.asarray(spectra.astype(np.result_type(self._dtype, np.complex64)))
