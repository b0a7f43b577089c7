"""A steered network as the estimator asks it, without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc import windows
from qkgcc.card import Card
from qkgcc.errors import InputError
from qkgcc.inference import files, kernel, plain
from qkgcc.inference.folding import fold
from qkgcc.inference.shape import Shape
from qkgcc.steering import steering_matrix

_BATCH = 16  # frames at once: their spectra stay in a core's cache

Floats32 = npt.NDArray[np.float32]


class SteeredModel:
    """Logits of any evenly spaced delays, and the weight that the network gives to each frequency."""

    any_delay = any_frame = True

    def __init__(
        self,
        card: Card,
        weights: Mapping[str, npt.NDArray[Any]],
        path: Path,
        *,
        threads: int | None = None,
        compiled: bool | None = None,
    ) -> None:
        """Args:
        path: where they are from, for messages.
        threads: that share the frames of a batch; None: as many as there are cores. A single frame has one.
        compiled: whether to run the compiled kernel; None: if it is there.
        """
        self.card = card
        if self.card.architecture != "steered":
            raise InputError(f"{path} holds a {self.card.architecture}; only steered networks run without torch")
        try:
            self._shape = Shape.of_card(self.card)
            self._folded = fold(self._shape, weights)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        self._threads = threads or os.cpu_count() or 1
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        there, fits = kernel.loaded() is not None, kernel.fits(self._shape)
        if compiled and not there:
            raise InputError("this qkgcc was installed without its compiled kernel: install it where a C compiler is")
        if compiled and not fits:
            raise InputError(f"{path}: the compiled kernel has no room for this network; leave compiled out")
        self._kernel = kernel.Kernel(self._shape, self._folded) if there and fits and compiled is not False else None

    @classmethod
    def load(cls, path: Path, *, threads: int | None = None, compiled: bool | None = None) -> SteeredModel:
        return cls(*files.read(path), path, threads=threads, compiled=compiled)

    @property
    def step(self) -> float:
        """Samples between candidate delays."""
        return float(self._shape.step)

    def logits(self, frames: Floats32, bins: npt.NDArray[np.bool_] | None, delays: npt.NDArray[np.float64]) -> Floats32:
        """Shape: (batch, 2, n), (bins,), (L,) -> (batch, L); n up to the DFT's length, any where it is cut"""
        if not len(delays) or (np.abs(np.diff(delays) - self.step) > 1e-6 * self.step).any():
            raise InputError(
                f"delays are {delays.tolist()}; expected at least one, {self.step:g} samples apart, rising"
            )
        return self._batches("logits", frames, bins, (delays[0] + delays[-1]) / 2, len(delays))

    def reliability(self, frames: Floats32, bins: npt.NDArray[np.bool_] | None) -> Floats32:
        """Size of the weighted evidence of each frequency. Shape: (batch, 2, n), (bins,) -> (batch, rows)"""
        return self._batches("reliability", frames, bins, 0.0, 1)

    def _batches(
        self, what: str, frames: Floats32, bins: npt.NDArray[np.bool_] | None, center: float, count: int
    ) -> Floats32:
        shape = self._shape
        if frames.ndim != 3 or frames.shape[1] != 2:
            raise InputError(f"frames have the shape {frames.shape}; expected (batch, 2, samples)")
        if not shape.window and frames.shape[-1] > shape.dft:
            raise InputError(f"frames of {frames.shape[-1]} samples are longer than the transform of {shape.dft}")
        if bins is not None and bins.shape != (shape.bins,):
            raise InputError(f"bins have the shape {bins.shape}; expected ({shape.bins},)")
        if not len(frames):
            return np.empty((0, count if what == "logits" else shape.rows), np.float32)
        usable = np.ones(shape.bins, np.float32) if bins is None else bins.astype(np.float32)
        terms = int(usable.sum()) * shape.windows(frames.shape[-1])
        steering = steering_matrix(shape.dft, shape.pool, center, shape.step, count + 2 * shape.spare, terms)
        each = min(_BATCH, -(-len(frames) // self._threads))
        parts = [frames[first : first + each] for first in range(0, len(frames), each)]

        def run(part: Floats32) -> Floats32:
            return self._run(what, self._spectra(part), usable, steering)

        if len(parts) > 1 and self._threads > 1:
            return np.concatenate(list(self._workers().map(run, parts)))
        return np.concatenate([run(part) for part in parts])

    def _workers(self) -> ThreadPoolExecutor:
        """Kept, for the memory that each thread has; not by a process that was forked off, which has no threads."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self._threads)
        return self._pool[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pool": None}

    def _spectra(self, frames: Floats32) -> npt.NDArray[np.complex64]:
        """Shape: (batch, 2, n) -> (batch, windows, 2, bins)"""
        given = frames.astype(np.float32, copy=False)
        cut = windows.cut(given, self._shape.window) if self._shape.window else given[:, :, None]
        spectra: npt.NDArray[np.complex64] = scipy.fft.rfft(cut.swapaxes(1, 2), n=self._shape.dft)
        return spectra

    def _run(self, what: str, spectra: npt.NDArray[np.complex64], usable: Floats32, steering: Floats32) -> Floats32:
        if self._kernel is not None:
            return self._kernel(spectra, usable, steering, what)
        # Frame by frame: matrix products of several would round each by what stands beside it.
        found = [plain.evidence(self._shape, self._folded, frame[None], usable) for frame in spectra]
        if what == "logits":
            return np.concatenate([plain.logits(self._folded, one, steering) for one in found]).astype(np.float32)
        return np.concatenate([np.linalg.norm(one, axis=(1, 2)) for one in found]).astype(np.float32)
