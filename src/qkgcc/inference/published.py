"""The published network without torch: its trained delays, and frames of the trained length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.card import Card
from qkgcc.errors import InputError
from qkgcc.inference import files, kernel, plain
from qkgcc.inference.batches import Batches
from qkgcc.inference.folding import fold_published
from qkgcc.inference.shape import Shape

Floats32 = npt.NDArray[np.float32]


class PublishedModel:
    """Logits of the delays that it was trained on."""

    any_delay = any_frame = False

    def __init__(
        self,
        card: Card,
        weights: Mapping[str, npt.NDArray[Any]],
        path: Path,
        *,
        threads: int | None = None,
        compiled: bool | None = None,
    ) -> None:
        """See `SteeredModel`."""
        self.card = card
        if card.architecture != "qkgcc":
            raise InputError(f"{path} holds a {card.architecture}, not the published QK-GCC")
        try:
            self._shape = Shape.of_card(card)
            self._folded = fold_published(self._shape, weights)
            if len(self._folded.classes.bias) != len(card.delays):
                raise InputError(f"{len(self._folded.classes.bias)} classes do not fit {len(card.delays)} delays")
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        self._batches = Batches(threads)
        fits = kernel.fits_published(self._shape, self._folded)
        self._without = kernel.reason_against(fits, compiled, path)
        self._kernel = kernel.PublishedKernel(self._shape, self._folded) if self._without is None else None

    @classmethod
    def load(cls, path: Path, *, threads: int | None = None, compiled: bool | None = None) -> PublishedModel:
        return cls(*files.read(path), path, threads=threads, compiled=compiled)

    @property
    def runner(self) -> str:
        """See `SteeredModel`."""
        return kernel.runner(self._kernel, self._without)

    @property
    def step(self) -> float:
        """Samples between candidate delays."""
        return float(self._shape.step)

    def logits(self, frames: Floats32, bins: npt.NDArray[np.bool_] | None, delays: npt.NDArray[np.float64]) -> Floats32:
        """Of those of the delays that it knows. Shape: (batch, 2, frame), (bins,), (L,) -> (batch, L)"""
        shape = self._shape
        if frames.ndim != 3 or frames.shape[1:] != (2, shape.frame):
            raise InputError(f"frames have the shape {frames.shape}; expected (batch, 2, {shape.frame})")
        if bins is not None and bins.shape != (shape.bins,):
            raise InputError(f"bins have the shape {bins.shape}; expected ({shape.bins},)")
        usable = np.ones(shape.bins, np.float32) if bins is None else bins.astype(np.float32)

        def run(part: Floats32) -> Floats32:
            spectra = scipy.fft.rfft(part.astype(np.float32, copy=False), n=shape.dft)[:, None]
            if self._kernel is not None:
                means = self._kernel(spectra, usable)
            else:  # frame by frame: matrix products of several would round each by what stands beside it
                means = np.concatenate(
                    [plain.published_means(shape, self._folded, one[None], usable) for one in spectra]
                )
            return np.stack([plain.classes(self._folded, one) for one in means])

        found = self._batches(run, frames) if len(frames) else np.empty((0, len(self.card.delays)), np.float32)
        return found[:, np.isin(self.card.delays, delays)]

    def reliability(self, frames: Floats32, bins: npt.NDArray[np.bool_] | None) -> Floats32:
        raise InputError(f"{self.card.name} does not weigh frequencies one by one: explain a steered network")
