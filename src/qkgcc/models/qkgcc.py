"""QK-GCC as published: delay classification by query-key matching of two spectra, frequency by frequency.

    z = [log(1 + |X|), cos(angle X), sin(angle X)]           a token per bin and channel
    h = LN(z W_in + b_in + e_k),  q = h1 W_Q,  k = h2 W_K    a front end that both channels share
    C = local frequency correlation of q and k               `qkgcc.models.matching`
    logits = MLP(mean over k of conv(conv([C0, sym, asym])))

The delay is positive when channel 1 hears the source later; class i stands for a delay of ``i - max_delay`` samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from qkgcc.models.folding import fold, folded_correlation
from qkgcc.models.matching import (
    LocalCorrelation,
    Matching,
    center_symmetric_antisymmetric,
    norm_product_and_cosine,
)
from qkgcc.models.options import NetworkOptions


@dataclass(frozen=True)
class QKGCCOptions(NetworkOptions):
    """Everything that shapes the network; the defaults are the paper's (322,291 parameters). Plain JSON values."""

    LEAST: ClassVar[Mapping[str, int]] = {"max_delay": 0, "radius": 0}

    width: int = 128  # d
    heads: int = 4  # H
    radius: int = 8  # b, in bins; 0 compares each bin with itself only
    magnitude: bool = True  # False: tokens are [cos, sin]
    split: bool = True  # False: the head sees the raw 2b + 1 offsets instead of center / symmetric / antisymmetric
    channels: int = 32  # of both convolutions. The paper does not print the head's widths; these give its counts
    kernel: int = 5  # bins, odd
    hidden: int = 128  # of the MLP

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(self.width % self.heads == 0, "width", f", which {self.heads} heads do not divide")
        self.expect(self.kernel % 2 == 1, "kernel", "; an odd length keeps the bins in place")


def tokens(frames: Tensor, dft: int, magnitude: bool = True) -> Tensor:
    """``[log(1 + |X|), cos(angle X), sin(angle X)]`` of the spectrum X of each frame, zero padded to `dft` samples.

    Shape: (..., frame) -> (..., dft // 2 + 1, 3), or (..., dft // 2 + 1, 2) without the magnitude

    >>> tokens(torch.tensor([0.0, -1.0, 0.0, 1.0]), dft=4).round(decimals=4)  # of the spectrum 0, 2j, 0
    tensor([[0.0000, 1.0000, 0.0000],
            [1.0986, 0.0000, 1.0000],
            [0.0000, 1.0000, 0.0000]])
    """
    real, imag = torch.view_as_real(torch.fft.rfft(frames, n=dft)).unbind(-1)
    power = real.square() + imag.square()
    # Cosine and sine without trigonometry. An empty bin has no phase: it gets that of +0, as numpy.angle does, and
    # neither it nor its gradient is NaN.
    tiny = torch.finfo(power.dtype).tiny
    empty, size = power < tiny, power.clamp_min(tiny).sqrt()
    phase = [torch.where(empty, 1.0, real / size), torch.where(empty, 0.0, imag / size)]
    return torch.stack([torch.log1p(size), *phase] if magnitude else phase, dim=-1)


class DelayHead(nn.Module):
    """Two convolutions along frequency, the mean over frequency, and an MLP to one logit per delay.

    Shape: (batch, features, bins) -> (batch, classes)
    """

    def __init__(self, features: int, channels: int, kernel: int, hidden: int, classes: int) -> None:
        super().__init__()

        def block(inputs: int) -> nn.Sequential:
            conv = nn.Conv1d(inputs, channels, kernel, padding=kernel // 2)
            return nn.Sequential(conv, nn.BatchNorm1d(channels), nn.GELU())

        self.blocks = nn.ModuleList([block(features), block(channels)])
        self.mlp = nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, classes))

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


class QKGCC(nn.Module):
    """The network. `frames` are both channels divided by one number, as the card's `scaling` says.

    Shape: (batch, 2, frame) -> (batch, 2 * max_delay + 1)

    >>> sum(p.numel() for p in QKGCC().parameters())
    322291
    """

    folded: bool = False
    """Compute the same logits without queries and keys, by `qkgcc.models.folding`: for training on a GPU."""

    def __init__(self, options: QKGCCOptions | None = None) -> None:
        super().__init__()
        self.options = o = QKGCCOptions() if options is None else options
        self.embed = nn.Linear(3 if o.magnitude else 2, o.width)
        self.position = nn.Parameter(torch.empty(o.bins, o.width))
        nn.init.normal_(self.position, std=0.02)
        self.norm = nn.LayerNorm(o.width)
        self.query = nn.Linear(o.width, o.width, bias=False)
        self.key = nn.Linear(o.width, o.width, bias=False)
        self.correlation = LocalCorrelation(o.width, o.heads, o.radius)
        features = o.heads * (2 * o.radius + 1)
        self.head = DelayHead(features, o.channels, o.kernel, o.hidden, classes=2 * o.max_delay + 1)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the JSON object of a card; options left out keep their defaults."""
        return cls(QKGCCOptions.read(options))

    def queries_and_keys(self, frames: Tensor, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries of channel 1 and keys of channel 2, zero in masked bins.

        Shape: (batch, 2, frame) -> (batch, bins, width), (batch, bins, width)
        """
        o = self.options
        o.check_input(frames, bins)
        rows = self.norm(self.embed(tokens(frames, o.dft, o.magnitude)) + self.position)
        queries, keys = self.query(rows[:, 0]), self.key(rows[:, 1])
        if bins is not None:
            queries, keys = queries * bins[:, None], keys * bins[:, None]
        return queries, keys

    def forward(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """Logits over the delays.

        `bins`, shape (bins,), is False for frequencies that the recording cannot hold (above its own Nyquist
        frequency). In eval mode, masking the top of the band is the same as a network whose band ends there: the
        masked bins are zero wherever the zero padding would be, and the mean over frequency leaves them out.
        """
        if self.folded:
            correlation = self._folded_correlation(frames, bins)
        else:
            correlation = self.correlation(*self.queries_and_keys(frames, bins))
            if self.options.split:
                correlation = center_symmetric_antisymmetric(correlation)
        # The head's input channels: for each head in turn, the center, the b symmetric and the b antisymmetric terms.
        logits: Tensor = self.head(correlation.flatten(1, 2), bins)
        return logits

    def _folded_correlation(self, frames: Tensor, bins: Tensor | None) -> Tensor:
        o, device = self.options, frames.device.type
        o.check_input(frames, bins)
        # Under autocast all this stays as precise as it is; only what the head's convolutions read is rounded.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            folded = fold(self.embed, self.position, self.norm, self.query, self.key, self.correlation)
            given = tokens(frames, o.dft, o.magnitude)
            return folded_correlation(given, folded, bins, split=o.split, dtype=dtype)

    def explain(self, frames: Tensor, bins: Tensor | None = None) -> Matching:
        """Weight and match per bin, and C itself, without gradients; the shapes are `Matching`'s."""
        with torch.no_grad():
            queries, keys = self.queries_and_keys(frames, bins)
            heads = [self.correlation.split_heads(rows) for rows in (queries, keys)]
            return Matching(
                *norm_product_and_cosine(queries, keys),
                *norm_product_and_cosine(*heads),
                correlation=self.correlation(queries, keys),
                scale=self.correlation.scale,
            )
