"""The published network without torch: its trained delays, and frames of the trained length."""

from __future__ import annotations

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.network import kernel
from qkgcc.network import reference as plain
from qkgcc.network.base import LightModel, Weights
from qkgcc.network.folding import fold_published


class PublishedModel(LightModel):
    """Logits of the delays that it was trained on."""

    architecture = "qkgcc"
    any_delay = any_frame = False

    def _fold(self, weights: Weights) -> bool:
        self._folded = fold_published(self._shape, weights, self._dtype)
        if len(self._folded.classes.bias) != len(self.card.delays):
            raise InputError(f"{len(self._folded.classes.bias)} classes do not fit {len(self.card.delays)} delays")
        return kernel.fits_published(self._shape, self._folded)

    def _compiled(self) -> kernel.PublishedKernel:
        return kernel.PublishedKernel(self._shape, self._folded)

    def logits(self, frames: Floats32, bins: Bools | None, delays: Floats) -> Floats32:
        """Of those of the delays that it knows. Shape: (batch, 2, frame), (bins,), (L,) -> (batch, L)"""
        shape = self._shape
        if frames.ndim != 3 or frames.shape[1:] != (2, shape.frame):
            raise InputError(f"frames have the shape {frames.shape}; expected (batch, 2, {shape.frame})")
        usable = self._usable(bins)

        def run(part: Floats32) -> Floats32:
            spectra = self._transformed(part)[:, None]
            if self._kernel is not None:
                means = self._kernel(spectra, usable)
            else:  # frame by frame: matrix products of several would round each by what stands beside it
                means = np.concatenate(
                    [plain.published_means(shape, self._folded, one[None], usable) for one in spectra]
                )
            return np.stack([plain.classes(self._folded, one) for one in means])

        found = self._batches(run, frames) if len(frames) else np.empty((0, len(self.card.delays)), self._dtype)
        return found[:, np.isin(self.card.delays, delays)]

    def reliability(self, frames: Floats32, bins: Bools | None) -> Floats32:
        raise InputError(f"{self.card.name} does not weigh frequencies one by one: explain a steered network")
