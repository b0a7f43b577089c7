"""QK-GCC as published: delay classification by query-key matching of two spectra, frequency by frequency.

    z = [log(1 + |X|), cos(angle X), sin(angle X)]           a token per bin and channel
    h = LN(z W_in + b_in + e_k),  q = h1 W_Q,  k = h2 W_K    a front end that both channels share
    C = local frequency correlation of q and k               `qkgcc.nets.frontend` has all of this
    logits = MLP(mean over k of conv(conv([C0, sym, asym])))

The delay is positive when channel 1 hears the source later; class i stands for a delay of ``i - max_delay`` samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from qkgcc.nets.frontend import FrontEnd, FrontEndOptions


@dataclass(frozen=True)
class QKGCCOptions(FrontEndOptions):
    """Everything that shapes the network; the defaults are the paper's (322,291 parameters). Plain JSON values."""

    LEAST: ClassVar[Mapping[str, int]] = {**FrontEndOptions.LEAST, "first_channels": 0, "first_kernel": 0}

    channels: int = 32  # of both convolutions. The paper does not print the head's widths; these give its counts
    kernel: int = 5  # bins, odd
    hidden: int = 128  # of the MLP
    first_channels: int = 0  # of the first convolution, where it differs from the second
    first_kernel: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kernel", "first_kernel"):
            length = getattr(self, name)
            self.expect(length % 2 == 1 or length == 0, name, "; an odd length keeps the bins in place")


class DelayHead(nn.Module):
    """Two convolutions along frequency, the mean over frequency, and an MLP to one logit per delay.

    Shape: (batch, features, bins) -> (batch, classes)
    """

    def __init__(self, options: QKGCCOptions) -> None:
        super().__init__()
        o = options

        def block(inputs: int, channels: int, kernel: int) -> nn.Sequential:
            conv = nn.Conv1d(inputs, channels, kernel, padding=kernel // 2)
            return nn.Sequential(conv, nn.BatchNorm1d(channels), nn.GELU())

        first = o.first_channels or o.channels
        self.blocks = nn.ModuleList(
            [block(o.features, first, o.first_kernel or o.kernel), block(first, o.channels, o.kernel)]
        )
        self.mlp = nn.Sequential(nn.Linear(o.channels, o.hidden), nn.GELU(), nn.Linear(o.hidden, len(o.delays)))

    def forward(self, features: Tensor, bins: Tensor | None = None) -> Tensor:
        x = features
        for block in self.blocks:
            x = block(x)
            if bins is not None:
                x = x * bins
        # Masked bins are 0 here, and the mean is taken over the usable ones: a narrow band is less evidence, but each
        # bin of it counts as much as before, and the MLP sees values of the size it was trained on.
        pooled = x.mean(-1) if bins is None else x.sum(-1) / bins.sum().clamp_min(1)
        logits: Tensor = self.mlp(pooled)
        return logits


class QKGCC(FrontEnd):
    """The network. `frames` are both channels divided by one number, as the card's `scaling` says.

    Shape: (batch, 2, frame) -> (batch, 2 * max_delay + 1)

    >>> sum(p.numel() for p in QKGCC().parameters())
    322291
    """

    options: QKGCCOptions

    def __init__(self, options: QKGCCOptions | None = None) -> None:
        o = QKGCCOptions() if options is None else options
        super().__init__(o)
        self.head = DelayHead(o)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the JSON object of a card; options left out keep their defaults."""
        return cls(QKGCCOptions.read(options))

    def forward(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """Logits over the delays.

        `bins`, shape (bins,), is False for frequencies that the recording cannot hold (above its own Nyquist
        frequency). In eval mode, masking the top of the band is the same as a network whose band ends there: the
        masked bins are zero wherever the zero padding would be, and the mean over frequency leaves them out.
        """
        logits: Tensor = self.head(self.features(frames, bins), bins)
        return logits
