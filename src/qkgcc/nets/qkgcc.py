"""QK-GCC as published: delay classification by query-key matching of two spectra, frequency by frequency.

    z = [log(1 + |X|), cos(angle X), sin(angle X)]           a token per bin and channel
    h = LN(z W_in + b_in + e_k),  q = h1 W_Q,  k = h2 W_K    a front end that both channels share
    C = local frequency correlation of q and k               `qkgcc.nets.matching`
    logits = MLP(mean over k of conv(conv([C0, sym, asym])))

The delay is positive when channel 1 hears the source later; class i stands for a delay of ``i - max_delay`` samples.
The front end, up to C, plain or folded (`qkgcc.nets.folding`), is that of the steered network (`qkgcc.nets.steered`)
as well; what makes logits of C, the head, is a network's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from qkgcc.nets.folding import fold, folded_correlation
from qkgcc.nets.matching import LocalCorrelation, Matching, center_symmetric_antisymmetric, norm_product_and_cosine
from qkgcc.nets.options import NetworkOptions


@dataclass(frozen=True)
class FrontEndOptions(NetworkOptions):
    """What shapes the front end; the defaults are the paper's."""

    LEAST: ClassVar[Mapping[str, int]] = {"max_delay": 0, "radius": 0, "positions": 0}

    width: int = 128  # d
    heads: int = 4  # H
    radius: int = 8  # b, in bins; 0 compares each bin with itself only
    magnitude: bool = True  # False: tokens are [cos, sin]
    positions: int = 0  # rows of the positional table, evenly from 0 to half the sample rate; 0: one for each bin
    split: bool = True  # False: the head sees the raw 2b + 1 offsets instead of center / symmetric / antisymmetric

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(self.width % self.heads == 0, "width", f", which {self.heads} heads do not divide")

    @property
    def features(self) -> int:
        """Channels of C that the head sees: every offset of every head."""
        return self.heads * (2 * self.radius + 1)


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


def at_bins(table: Tensor, dft: int) -> Tensor:
    """A table over the frequencies from 0 to half the sample rate, interpolated to the bins of a DFT.

    Shape: (positions, width) -> (dft // 2 + 1, width)

    >>> at_bins(torch.tensor([[0.0], [2.0], [6.0]]), 8).T
    tensor([[0., 1., 2., 4., 6.]])
    """
    spans = len(table) - 1
    if 2 * spans == dft:
        return table
    place = 2 * spans * torch.arange(dft // 2 + 1, device=table.device)  # in whole numbers, dft of them a row
    below = place // dft
    weight = (place % dft).to(table.dtype)[:, None] / dft
    return torch.lerp(table[below], table[(below + 1).clamp_max(spans)], weight)


class FrontEnd(nn.Module):
    """Tokens, queries, keys and their correlation; a network is a front end with a head."""

    folded: bool = False
    """Compute the same logits without queries and keys, by `qkgcc.nets.folding`: for training."""

    def __init__(self, options: FrontEndOptions) -> None:
        super().__init__()
        self.options = o = options
        self.embed = nn.Linear(3 if o.magnitude else 2, o.width)
        self.position = nn.Parameter(torch.empty(o.positions or o.bins, o.width))
        nn.init.normal_(self.position, std=0.02)
        self.norm = nn.LayerNorm(o.width)
        self.query = nn.Linear(o.width, o.width, bias=False)
        self.key = nn.Linear(o.width, o.width, bias=False)
        self.correlation = LocalCorrelation(o.width, o.heads, o.radius)

    def positions(self) -> Tensor:
        """e_k of every bin, from the table over frequency. Shape: (bins, width)"""
        return at_bins(self.position, self.options.dft)

    def queries_and_keys(self, frames: Tensor, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries of channel 1 and keys of channel 2, zero in masked bins.

        Shape: (batch, 2, frame) -> (batch, bins, width), (batch, bins, width)
        """
        rows = self.norm(self.embed(self._tokens(frames, bins)) + self.positions())
        queries, keys = self.query(rows[:, 0]), self.key(rows[:, 1])
        if bins is not None:
            queries, keys = queries * bins[:, None], keys * bins[:, None]
        return queries, keys

    def _tokens(self, frames: Tensor, bins: Tensor | None) -> Tensor:
        """Shape: (batch, 2, frame) -> (batch, 2, bins, 3)"""
        o = self.options
        o.check_input(frames, bins)
        return tokens(self._transformed(frames), o.dft, o.magnitude)

    def _transformed(self, frames: Tensor) -> Tensor:
        """What spectra are taken of: the frames, or what a network cuts each of them into."""
        return frames

    def features(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """C as the head sees it: for each head in turn, the center, the b symmetric and the b antisymmetric terms.

        Shape: (batch, 2, frame) -> (batch, heads * (2 * radius + 1), bins)
        """
        if self.folded:
            correlation = self._folded_correlation(frames, bins)
        else:
            correlation = self.correlation(*self.queries_and_keys(frames, bins))
            if self.options.split:
                correlation = center_symmetric_antisymmetric(correlation)
        return correlation.flatten(1, 2)

    def _folded_correlation(self, frames: Tensor, bins: Tensor | None) -> Tensor:
        o, device = self.options, frames.device.type
        # Under autocast all this stays as precise as it is; only what the head's convolutions read is rounded.
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        with torch.autocast(device, enabled=False):
            folded = fold(self.embed, self.positions(), self.norm, self.query, self.key, self.correlation)
            return folded_correlation(self._tokens(frames, bins), folded, bins, split=o.split, dtype=dtype)

    def macs(self, output: Tensor) -> int:
        """Of the folded matching, for `qkgcc.nets.cost`; the plain one is counted layer by layer.

        The tables of `fold` are no cost of a frame: they depend on the weights only.
        """
        if not self.folded:
            return 0
        o, numbers = self.options, self.embed.in_features
        terms = numbers + 1
        rows = 2 * numbers * (numbers + 2)  # y = R z + r, |y|^2, y / sigma, of both channels
        factors = o.heads * terms * (terms + 2)  # a M + s L[k], t N[k]
        products = o.features * (2 * terms + 2)  # 2 (n + 1) terms, s t T
        return len(output) * o.bins * (rows + factors + products)

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
