"""A steered network as the estimator asks it, without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.network import kernel
from qkgcc.network import reference as plain
from qkgcc.network.base import LightModel, Weights
from qkgcc.network.folding import fold
from qkgcc.network.steering import check_delays, cut_windows, steering_matrix

_BOTH = np.array([[0, 1]], np.int32)


class SteeredModel(LightModel):
    """Logits of any evenly spaced delays, and the weight that the network gives to each frequency."""

    architecture = "steered"
    any_delay = any_frame = True

    def _fold(self, weights: Weights) -> bool:
        self._folded = fold(self._shape, weights, self._dtype)
        return kernel.fits(self._shape)

    def _compiled(self) -> kernel.Kernel:
        return kernel.Kernel(self._shape, self._folded)

    def logits(self, frames: Floats32, bins: Bools | None, delays: Floats) -> Floats32:
        """Shape: (batch, 2, n), (bins,), (L,) -> (batch, L); n up to the DFT's length, any where it is cut"""
        check_delays(delays, self.step)
        return self._of_pairs("logits", frames, _BOTH, bins, (delays[0] + delays[-1]) / 2, len(delays))[:, 0]

    def logits_of_pairs(
        self,
        frames: Floats32,
        pairs: Sequence[tuple[int, int]],
        bins: Bools | None,
        delays: Floats,
    ) -> Floats32:
        """Of pairs of an array's channels; what a channel needs alone is done once, whatever pairs it is in.

        All channels of a frame are divided by one number. Where that is the level of a pair, its logits are those of
        `logits`, to the bit.

        Shape: (batch, channels, n), (bins,), (L,) -> (batch, pairs, L)
        """
        check_delays(delays, self.step)
        channels = range(frames.shape[1] if frames.ndim == 3 else 0)
        right = len(pairs) > 0 and all(len(pair) == 2 and pair[0] != pair[1] for pair in pairs)
        if not right or any(one not in channels for pair in pairs for one in pair):
            raise InputError(f"the pairs {list(pairs)} are none of frames of the shape {frames.shape}")
        chosen = np.array(pairs, np.int32)
        return self._of_pairs("logits", frames, chosen, bins, (delays[0] + delays[-1]) / 2, len(delays))

    def reliability(self, frames: Floats32, bins: Bools | None) -> Floats32:
        """Size of each frequency's weighted evidence, each map as strongly as it is read.

        Shape: (batch, 2, n), (bins,) -> (batch, bins)
        """
        return self._of_pairs("reliability", frames, _BOTH, bins, 0.0, 1)[:, 0]

    def _of_pairs(
        self,
        what: str,
        frames: Floats32,
        pairs: npt.NDArray[np.int32],
        bins: Bools | None,
        center: float,
        count: int,
    ) -> Floats32:
        shape = self._shape
        if frames.ndim != 3 or (pairs is _BOTH and frames.shape[1] != 2):
            raise InputError(f"frames have the shape {frames.shape}; expected (batch, 2, samples)")
        if not shape.window and frames.shape[-1] > shape.dft:
            raise InputError(f"frames of {frames.shape[-1]} samples are longer than the transform of {shape.dft}")
        usable = self._usable(bins)
        if not len(frames):
            return np.empty((0, len(pairs), count if what == "logits" else shape.bins), self._dtype)
        terms = int(usable.sum()) * shape.windows(frames.shape[-1])
        columns = count + 2 * shape.spare
        steering = steering_matrix(shape.dft, center, shape.step, columns, terms, self._dtype)

        def run(part: Floats32) -> Floats32:
            return self._run(what, self._spectra(part), usable, steering, pairs)

        return self._batches(run, frames)

    def _spectra(self, frames: Floats32) -> npt.NDArray[np.complex64]:
        """Shape: (batch, channels, n) -> (batch, windows, channels, bins)"""
        given = frames.astype(self._dtype, copy=False)
        cut = cut_windows(given, self._shape.window) if self._shape.window else given[:, :, None]
        return self._transformed(cut.swapaxes(1, 2))

    def _run(
        self,
        what: str,
        spectra: npt.NDArray[np.complex64],
        usable: Floats32,
        steering: Floats32,
        pairs: npt.NDArray[np.int32],
    ) -> Floats32:
        if self._kernel is not None:
            compiled: Floats32 = self._kernel(spectra, usable, steering, pairs, what)
            return compiled
        # One by one: matrix products of several would round each by what stands beside it.
        of_pairs = [frame[None, :, pair] for frame in spectra for pair in pairs]
        found = [plain.evidence(self._shape, self._folded, one, usable) for one in of_pairs]
        if what == "logits":
            rows = [plain.logits(self._folded, one, steering) for one in found]
        else:
            rows = [np.linalg.norm(one * self._folded.read[:, None, None], axis=(1, 2)) for one in found]
        return np.concatenate(rows).astype(self._dtype).reshape(len(spectra), len(pairs), -1)
