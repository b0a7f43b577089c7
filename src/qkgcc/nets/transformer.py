"""The generic Transformer that QK-GCC is compared with: the same tokens and delays, but attention of all bins to all.

    z = [z1, z2]                                             both channels' tokens of a bin, `qkgcc.nets.qkgcc.tokens`
    h = LN(z W_in + b_in + e_k)                              e_k is learned for each bin
    logits = MLP(mean over k of encoder(h))                  one encoder layer of torch's, normalized after each half

Nothing in it knows that two channels are compared, nor that nearby bins belong together. The delay is positive when
channel 1 hears the source later; class i stands for a delay of ``i - max_delay`` samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc.nets.options import NetworkOptions
from qkgcc.nets.qkgcc import tokens


@dataclass(frozen=True)
class TransformerOptions(NetworkOptions):
    """Everything that shapes the network; the defaults give the 418 K parameters of the paper (418,479)."""

    width: int = 128
    heads: int = 4
    feedforward: int = 256
    hidden: int = 128  # of the MLP

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(self.width % self.heads == 0, "width", f", which {self.heads} heads do not divide")


class Encoder(nn.Module):
    """`nn.TransformerEncoderLayer` without dropout, computed the same way in training, evaluation and export.

    Torch's own forward takes another path in eval mode, which holds all pairs of bins in memory and runs none of the
    layers that hooks count. This one computes the same from the same weights, by `F.scaled_dot_product_attention`.

    Shape: (batch, bins, width) -> the same
    """

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, heads, feedforward, dropout=0.0, batch_first=True)
        self.heads = heads

    def forward(self, rows: Tensor, bins: Tensor | None = None) -> Tensor:
        """`bins`, shape (bins,), is False where no bin shall look; what masked bins themselves become is not used."""
        layer, attention = self.layer, self.layer.self_attn
        projected = F.linear(rows, attention.in_proj_weight, attention.in_proj_bias)
        parts = torch.unflatten(projected, -1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mask = None if bins is None else bins.expand(1, 1, rows.shape[1], -1)
        queries, keys, values = parts  # (batch, heads, bins, width / heads)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).transpose(1, 2).flatten(-2)
        rows = layer.norm1(rows + F.linear(mixed, attention.out_proj.weight, attention.out_proj.bias))
        result: Tensor = layer.norm2(rows + layer.linear2(F.relu(layer.linear1(rows))))
        return result

    def macs(self, output: Tensor) -> int:
        """Multiply-accumulates of the attention, which are no calls of layers: see `qkgcc.nets.cost`."""
        bins, width = output.shape[-2:]
        return output.numel() * (3 * width + bins + bins + width)  # in, queries by keys, weights by values, out


class Transformer(nn.Module):
    """The network. `frames` are both channels divided by one number, as the card's `scaling` says.

    Shape: (batch, 2, frame) -> (batch, 2 * max_delay + 1)

    >>> sum(p.numel() for p in Transformer().parameters())
    418479
    """

    def __init__(self, options: TransformerOptions | None = None) -> None:
        super().__init__()
        self.options = o = TransformerOptions() if options is None else options
        self.embed = nn.Linear(2 * 3, o.width)
        self.position = nn.Parameter(torch.empty(o.bins, o.width))
        nn.init.normal_(self.position, std=0.02)
        self.norm = nn.LayerNorm(o.width)
        self.encoder = Encoder(o.width, o.heads, o.feedforward)
        self.mlp = nn.Sequential(nn.Linear(o.width, o.hidden), nn.GELU(), nn.Linear(o.hidden, len(o.delays)))

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the JSON object of a card; options left out keep their defaults."""
        return cls(TransformerOptions.read(options))

    def forward(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """Logits over the delays.

        `bins`, shape (bins,), is False for frequencies that are to be left out: no bin looks at them and the mean
        does not hold them, as if the band ended there.
        """
        o = self.options
        o.check_input(frames, bins)
        both = tokens(frames, o.dft).transpose(1, 2).flatten(2)  # (batch, bins, 6)
        rows = self.encoder(self.norm(self.embed(both) + self.position), bins)
        if bins is None:
            pooled = rows.mean(1)
        else:
            pooled = torch.where(bins[:, None], rows, 0.0).sum(1) / bins.sum().clamp_min(1)
        logits: Tensor = self.mlp(pooled)
        return logits
