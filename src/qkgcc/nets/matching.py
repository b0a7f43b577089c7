"""Local frequency correlation, the matching step of QK-GCC, and the view of it that people read.

    C_h[k, delta] = exp(alpha_h) / sqrt(d_h) * <q_h[k], k_h[k + delta]>,   delta = -b..b

Queries come from channel 1, keys from channel 2, k is the frequency bin; keys outside the band are zero. There is no
softmax and no value projection: as in the generalized cross-correlation, the product itself is the evidence. It
factors as ``<q, k> = |q| |k| cos(theta)``: the norms are a learned reliability weight, the angle is the match.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TILE = 32
"""Bins per matrix product: small ones repeat the neighbours, large ones compute more that is thrown away."""


def local_correlation(queries: Tensor, keys: Tensor, radius: int) -> Tensor:
    """Inner products of every query with the keys at most `radius` bins away, zero padded at both ends.

    Shape: (..., bins, d), (..., bins, d) -> (..., 2 * radius + 1, bins); row i holds offset i - radius.

    >>> ones = torch.ones(4, 1)
    >>> local_correlation(ones, torch.tensor([[1.0], [2.0], [3.0], [4.0]]), radius=1)
    tensor([[0., 1., 2., 3.],
            [1., 2., 3., 4.],
            [2., 3., 4., 0.]])
    """
    # The bins are cut into tiles; one batched product of (tile, d) by (d, tile + 2 radius) covers a tile and its
    # neighbours, and the wanted diagonals are a strided view of it. Much of the product is thrown away, yet it wins,
    # because it is one matrix product: in trials on two CPU cores, forward and backward, it was several times faster
    # than a product and sum or an einsum for each offset, and than shifted copies of the keys.
    # Tensor.unfold would be shorter to write, but under torch.compile on a CPU with two threads (2.13) the gradient of
    # the keys came out wrong, silently; the slices below were right compiled and not.
    tile = max(TILE, radius)  # so that the neighbours lie in the tile before and the tile after
    bins = queries.shape[-2]
    tiles = -(-bins // tile)
    spare, window = tiles * tile - bins, tile + 2 * radius
    q = torch.unflatten(F.pad(queries, (0, 0, 0, spare)), -2, (tiles, tile))
    k = torch.unflatten(F.pad(keys, (0, 0, tile, tile + spare)), -2, (tiles + 2, tile))
    before, inside, after = k[..., :-2, tile - radius :, :], k[..., 1:-1, :, :], k[..., 2:, :radius, :]
    k = torch.cat([before, inside, after], dim=-2)
    products = (q @ k.transpose(-2, -1)).contiguous()  # (..., tiles, tile, window): query t, offset o in column t + o
    strides = (*products.stride()[:-2], 1, window + 1)
    band = products.as_strided((*products.shape[:-2], 2 * radius + 1, tile), strides)
    return band.transpose(-3, -2).flatten(-2)[..., :bins]


class LocalCorrelation(nn.Module):
    """`local_correlation` in several heads, each times its own positive scale ``exp(alpha_h) / sqrt(d_h)``.

    Shape: (batch, bins, width), (batch, bins, width) -> (batch, heads, 2 * radius + 1, bins)
    """

    def __init__(self, width: int, heads: int, radius: int) -> None:
        super().__init__()
        self.heads, self.head_width, self.radius = heads, width // heads, radius
        self.log_scale = nn.Parameter(torch.zeros(heads))  # alpha_h

    @property
    def scale(self) -> Tensor:
        """``exp(alpha_h) / sqrt(d_h)``, shape (heads,)."""
        return self.log_scale.exp() / math.sqrt(self.head_width)

    def split_heads(self, rows: Tensor) -> Tensor:
        """Shape: (batch, bins, width) -> (batch, heads, bins, head width)"""
        return torch.unflatten(rows, -1, (self.heads, self.head_width)).transpose(-3, -2)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        products = local_correlation(self.split_heads(queries), self.split_heads(keys), self.radius)
        return products * self.scale[:, None, None]

    def macs(self, output: Tensor) -> int:
        """Multiply-accumulates behind `output`: what `qkgcc.nets.cost` asks of modules that torch does not know."""
        return output.numel() * self.head_width


def center_symmetric_antisymmetric(correlation: Tensor) -> Tensor:
    """``C[0]``, ``(C[d] + C[-d]) / 2`` and ``(C[d] - C[-d]) / 2`` for d = 1..b, in this order along the offsets.

    Shape: (..., 2 * radius + 1, bins) -> the same
    """
    radius = correlation.shape[-2] // 2
    center, above = correlation[..., radius : radius + 1, :], correlation[..., radius + 1 :, :]
    below = correlation[..., :radius, :].flip(-2)  # offsets -1..-b, in step with 1..b
    return torch.cat([center, (above + below) / 2, (above - below) / 2], dim=-2)


@dataclass(frozen=True)
class Matching:
    """What the matching step found in each frequency bin; offset 0 unless said otherwise.

    ``norm_product * cosine`` is ``<q, k>`` over the full vectors, ``scale[h] * head_norm_product * head_cosine`` is the
    centre row of `correlation`. Masked bins are 0 throughout.
    """

    norm_product: Tensor
    """``|q| |k|``, the learned reliability weight. Shape: (batch, bins)"""
    cosine: Tensor
    """``cos(theta)``, the phase match. Shape: (batch, bins)"""
    head_norm_product: Tensor
    """The same in each head. Shape: (batch, heads, bins)"""
    head_cosine: Tensor
    """The same in each head. Shape: (batch, heads, bins)"""
    correlation: Tensor
    """C, scaled, at every offset from -radius to radius. Shape: (batch, heads, 2 * radius + 1, bins)"""
    scale: Tensor
    """``exp(alpha_h) / sqrt(d_h)``. Shape: (heads,)"""


def norm_product_and_cosine(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """``|q| |k|`` and ``cos(theta)`` of matching rows; the cosine of a zero row is 0.

    Shape: (..., d), (..., d) -> (...), (...)
    """
    norms = torch.linalg.vector_norm(queries, dim=-1) * torch.linalg.vector_norm(keys, dim=-1)
    return norms, (queries * keys).sum(-1) / norms.clamp_min(torch.finfo(norms.dtype).tiny)
