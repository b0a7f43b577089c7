"""A trained network as a method of the estimator. This is where torch comes in, and only when a checkpoint is used."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc import decoding
from qkgcc.card import Card
from qkgcc.confidence import TOLERANCE
from qkgcc.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Network:
    """See `estimate.Method` for what the members mean. Its evidence is the log-posterior of each frame."""

    model: "nn.Module"
    card: Card
    keep: npt.NDArray[np.bool_]
    """(L,) which of the card's delays are possible."""
    bins: npt.NDArray[np.bool_] | None = None
    """(F,) which frequencies the input has; None: all."""

    kind = "posterior"
    calibrated = False

    @classmethod
    def load(cls, path: Path) -> "Network":
        try:
            from qkgcc.models import checkpoint
        except ImportError:
            raise MissingExtraError(
                f"the checkpoint {path} needs torch and safetensors: pip install 'qkgcc[train]'"
            ) from None
        model, card = checkpoint.load(path)
        return cls(model, card, np.ones(len(card.delays), dtype=bool))

    @property
    def scaling(self) -> str:
        return self.card.scaling

    @property
    def sample_rate(self) -> int:
        return self.card.sample_rate

    @property
    def frame(self) -> int:
        return self.card.frame

    @property
    def lags(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.card.delays, dtype=np.float64)[self.keep]

    def limited(self, sample_rate: int, max_delay: float | None, frame: float | None) -> "Network":
        """The network for an input's rate, with the delays that its spacing allows.

        Args:
            max_delay: seconds; None keeps every delay that the network was trained on.
        """
        name, rate = self.card.name, self.card.sample_rate
        if frame is not None and round(frame * rate) != self.card.frame:
            raise InputError(f"{name} takes frames of {self.card.frame / rate:g} s, not {frame:g}: leave the frame out")
        delays = np.abs(np.asarray(self.card.delays, dtype=np.float64))
        keep = self.keep
        if max_delay is not None:
            furthest = round(max_delay * rate)
            if furthest > delays.max():
                raise InputError(
                    f"{name} knows delays up to {1000 * delays.max() / rate:.2f} ms, not {1000 * max_delay:.2f} ms: "
                    "give the spacing it was trained for, or use phat"
                )
            keep = delays <= max(1, furthest)
        bins = None
        if sample_rate < rate:
            # Resampling up leaves nothing above the input's Nyquist frequency but rounding noise, with phases.
            bins = np.linspace(0, rate / 2, self.card.dft // 2 + 1) <= sample_rate / 2
        return replace(self, keep=keep, bins=bins)

    def evidence(self, frames: npt.NDArray[np.floating[Any]]) -> tuple[npt.NDArray[Any], ...]:
        import torch

        batch = torch.from_numpy(np.ascontiguousarray(frames, dtype=np.float32))
        bins = None if self.bins is None else torch.from_numpy(self.bins)
        with torch.inference_mode():
            logits = self.model(batch, bins)[:, torch.from_numpy(self.keep)]
            return (torch.log_softmax(logits, dim=-1).numpy(),)

    def decode(
        self, evidence: tuple[npt.NDArray[Any], ...]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        # The mean log-posterior of several frames is a log-posterior up to a constant.
        (logits,) = evidence
        posterior = decoding.posterior(logits)
        delay = decoding.argmax(posterior, self.lags)
        near = np.abs(self.lags - delay[:, None]) <= TOLERANCE * self.sample_rate * (1 + 1e-6)
        return posterior, delay, np.where(near, posterior, 0).sum(axis=-1)
