"""QK-GCC's front end and matching, folded: the same function of the same parameters, without any row of width d.

A token z has n = 3 numbers (2 without the magnitude), a row of the front end d = 128. Layer normalization takes

    x = W z + c_k          W and c_k: the embedding and the bin's offset (bias and position), less their mean over d
    h = gamma x / sigma + beta,   sigma^2 = |x|^2 / d + eps

The rows of a bin lie on a plane of n dimensions. Take an orthonormal basis Q of the span of W, and split c_k into its
part in that span and the rest o_k, which is orthogonal to it. The row is known by n numbers y, its coordinates:

    x = sqrt(d) Q y + o_k,   y = R z + r_k,   sigma^2 = |y|^2 + |o_k|^2 / d + eps
    h = [sqrt(d) gamma Q, beta] [y / sigma, 1] + gamma o_k / sigma

Query and key are linear in h. For one head, with a = [y / sigma, 1], s = 1 / sigma of channel 1 at bin k, and b, t the
same of channel 2 at bin k + delta,

    q = a A + s E[k],   k = b B + t G[k + delta]
    <q, k> = (a M + s L[k]) . b  +  a . (t N[k + delta])  +  s t T[k, delta]
    M = A B',  L[k] = E[k] B',  N[k] = A G[k]',  T[k, delta] = E[k] G[k + delta]'

M, L, N and T do not depend on the frames. What is left for a frame is a product of 2 (n + 1) = 8 terms and one table
term for each head, bin and offset, where the rows had d / heads = 32, and no row of d numbers is ever in memory.

The basis is what keeps float32 honest. Written in z itself, sigma^2 = z S z' + 2 z v_k + w_k + eps, whose large terms
cancel where a token comes close to undoing its offset, the more so if TF32 has rounded S and v_k; and a = z / sigma is
then large too, so that the products cancel in their turn. Here sigma^2 is a sum of squares, and |y / sigma| <= 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.matching import LocalCorrelation, center_symmetric_antisymmetric, local_correlation


@dataclass(frozen=True)
class Folded:
    """What a front end folds to; n numbers in a token, the letters are the module's."""

    turn: Tensor
    """R. Shape: (n, n)"""
    shift: Tensor
    """r. Shape: (n, bins)"""
    floor: Tensor
    """``|o|^2 / d + eps``, the least that sigma^2 can be. Shape: (bins,)"""
    plain: Tensor
    """M. Shape: (heads, n + 1, n + 1)"""
    by_query: Tensor
    """L. Shape: (heads, n + 1, bins)"""
    by_key: Tensor
    """N. Shape: (heads, n + 1, bins)"""
    by_both: Tensor
    """T, zero where bin + offset is outside the band. Shape: (heads, 2 * radius + 1, bins)"""


def fold(
    embed: nn.Linear,
    position: Tensor,
    norm: nn.LayerNorm,
    query: nn.Linear,
    key: nn.Linear,
    correlation: LocalCorrelation,
) -> Folded:
    """The tables of a front end, differentiable in all its parameters; `query` and `key` have no bias.

    `embed` is wider than a token has numbers, and its columns are linearly independent.
    """
    width = embed.out_features
    if width <= embed.in_features:
        raise InputError(f"a front end of width {width} cannot be folded; it takes more than {embed.in_features}")
    columns = embed.weight.T - embed.weight.T.mean(-1, keepdim=True)  # W, (n, width)
    offsets = embed.bias + position
    offsets = offsets - offsets.mean(-1, keepdim=True)  # c, (bins, width)
    basis = _orthonormal(columns)
    # Sums of products instead of matrix products: few numbers, and no TF32 in what sigma is made of.
    turn = (basis[:, None] * columns).sum(-1)
    shift = (basis[:, None] * offsets).sum(-1)
    rest = offsets - (shift[..., None] * basis[:, None]).sum(0)
    root = math.sqrt(width)
    rows = torch.cat([root * basis * norm.weight, norm.bias[None], rest * norm.weight])
    queries = correlation.split_heads(F.linear(rows, query.weight)) * correlation.scale[:, None, None]
    keys = correlation.split_heads(F.linear(rows, key.weight))
    (a, e), (b, g) = (torch.split(x, [len(basis) + 1, len(position)], dim=-2) for x in (queries, keys))
    plain, by_query = torch.split(b @ queries.mT, [a.shape[-2], e.shape[-2]], dim=-1)  # one product: fewer launches
    return Folded(
        turn=turn / root,
        shift=shift / root,
        floor=rest.square().mean(-1) + norm.eps,
        plain=plain.mT,
        by_query=by_query,
        by_key=a @ g.mT,
        by_both=local_correlation(e, g, correlation.radius).contiguous(),
    )


def _orthonormal(vectors: Tensor) -> Tensor:
    """Gram and Schmidt, each step twice so that nearly parallel vectors do no harm. Shape: (n, d) -> (n, d)"""
    # torch.linalg.qr would not be fused by torch.compile, and it is not certain to be captured in a CUDA graph.
    basis: list[Tensor] = []
    for vector in vectors.unbind():
        for _ in range(2):
            for unit in basis:
                vector = vector - (vector * unit).sum() * unit
        basis.append(F.normalize(vector, dim=0))
    return torch.stack(basis)


def folded_correlation(
    tokens: Tensor,
    folded: Folded,
    bins: Tensor | None = None,
    *,
    split: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """What `LocalCorrelation` makes of the front end's queries and keys; both are zero where `bins`, (bins,), is False.

    `split` gives `center_symmetric_antisymmetric` of it. `dtype` is that of the result, the tokens' if not said.

    Shape: (batch, 2, bins, n) -> (batch, heads, 2 * radius + 1, bins)
    """
    y = (folded.turn[..., None] * tokens.mT[:, :, None]).sum(-2) + folded.shift  # (batch, 2, n, bins)
    inverse = torch.rsqrt(y.square().sum(-2) + folded.floor)  # 1 / sigma
    rows = F.pad(y * inverse[:, :, None], (0, 0, 0, 1), value=1.0)
    if bins is not None:
        rows, inverse = rows * bins, inverse * bins
    a, s, t = rows[:, 0], inverse[:, 0], inverse[:, 1]
    # On a GPU a sum that torch.compile makes a few multiplications of: as a matrix product it would be one in TF32.
    plain = folded.plain
    turned = (a[:, None, :, None] * plain[..., None]).sum(2) if tokens.is_cuda else plain.mT @ a[:, None]
    u = turned + s[:, None, None] * folded.by_query
    v = t[:, None, None] * folded.by_key
    dtype = tokens.dtype if dtype is None else dtype
    if tokens.is_cuda and tokens.dtype == torch.float32:
        result: Tensor = banded_product(u, v, rows, inverse, folded.by_both, split, dtype)
        return result
    return plain_banded_product(u, v, rows, inverse, folded.by_both, split, dtype)


def plain_banded_product(
    u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool, dtype: torch.dtype
) -> Tensor:
    """``u[k] . b[k + delta] + a[k] . v[k + delta] + s[k] t[k + delta] T[delta, k]``, zero padded, for every head.

    `rows` are a and b, `scales` s and t, `table` is T.

    Shape: (batch, heads, terms, bins) twice, (batch, 2, terms, bins), (batch, 2, bins), (heads, 2 * radius + 1, bins)
    -> (batch, heads, 2 * radius + 1, bins)
    """
    radius = table.shape[-2] // 2
    left = torch.cat([u, rows[:, :1].expand_as(u)], dim=-2)
    right = torch.cat([rows[:, 1:].expand_as(v), v], dim=-2)
    both = local_correlation(scales[:, :1, :, None], scales[:, 1:, :, None], radius)
    result = local_correlation(left.mT, right.mT, radius) + both * table
    return (center_symmetric_antisymmetric(result) if split else result).to(dtype)


# The same as one operator for the GPU, float32 in, with a backward pass of its own. To torch.compile it is opaque; the
# Triton kernels are imported when it runs.


@torch.library.custom_op("qkgcc::banded_product", mutates_args=())
def banded_product(
    u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool, dtype: torch.dtype
) -> Tensor:
    """`plain_banded_product` by a kernel that writes the result once, in its order and type."""
    from qkgcc.nets import folding_gpu

    return folding_gpu.forward(u, v, rows, scales, table, split, dtype)


@torch.library.custom_op("qkgcc::banded_product_backward", mutates_args=())
def _banded_product_backward(
    gradient: Tensor, u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, v, rows, scales and table; of rows and scales still head by head, in the second dimension."""
    from qkgcc.nets import folding_gpu

    return folding_gpu.backward(gradient, u, v, rows, scales, table, split)


@banded_product.register_fake
def _(u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool, dtype: torch.dtype) -> Tensor:
    return u.new_empty((u.shape[0], *table.shape), dtype=dtype)


@_banded_product_backward.register_fake
def _(
    gradient: Tensor, u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool
) -> tuple[Tensor, ...]:
    batch, heads, terms, bins = u.shape
    shapes = u.shape, v.shape, (batch, heads, 2, terms, bins), (batch, heads, 2, bins), table.shape
    return tuple(u.new_empty(shape) for shape in shapes)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.split, _ = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    u, v, rows, scales, table = _banded_product_backward(gradient, *ctx.saved_tensors, ctx.split)
    return u, v, rows.sum(1), scales.sum(1), table, None, None


banded_product.register_autograd(_backward, setup_context=_save)
