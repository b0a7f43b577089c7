"""The folded matching on a CPU, as loops that numba compiles: one pass where torch takes a dozen over the same maps.

`qkgcc.nets.folding` says what is computed, and calls this in trainings; `folding_gpu` is the same for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor


class BandedProduct(torch.autograd.Function):
    """`folding.plain_banded_product` of float32, with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool) -> Tensor:
        given = [x.contiguous() for x in (u, v, rows, scales, table)]
        ctx.split = split
        ctx.save_for_backward(*given)
        result = u.new_empty(len(u), *table.shape)
        _in_parts(_products, len(u), [*given[:4], result], given[4], split)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *given, table = ctx.saved_tensors
        found = [torch.zeros_like(x) for x in given]
        parts = min(torch.get_num_threads(), len(gradient))
        by_part = table.new_zeros(parts, *table.shape)  # each thread has its own sums
        _in_parts(_gradients, len(gradient), [gradient.contiguous(), *given, *found], table, ctx.split, by_part)
        return *found, by_part.sum(0), None


def _in_parts(
    work: Callable[..., None], batch: int, tensors: list[Tensor], table: Tensor, split: bool, sums: Tensor | None = None
) -> None:
    """A part of the batch for each of torch's threads."""
    parts = max(1, min(torch.get_num_threads(), batch))
    edges = [batch * i // parts for i in range(parts + 1)]

    def one(i: int) -> None:
        rows = slice(edges[i], edges[i + 1])
        mine = [x.detach()[rows].numpy() for x in tensors]
        work(*mine, table.detach().numpy(), split, *([] if sums is None else [sums[i].numpy()]))

    if parts == 1:
        one(0)
        return
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(one, range(parts)))


@numba.njit(nogil=True, cache=True)
def _products(u: Any, v: Any, rows: Any, scales: Any, result: Any, table: Any, split: bool) -> None:
    batch, heads, terms, bins = u.shape
    offsets = table.shape[1]
    radius = offsets // 2
    for n in range(batch):
        s, t = scales[n, 0], scales[n, 1]
        for h in range(heads):
            for o in range(offsets):
                out, apart = result[n, h, o], o - radius
                first, last = max(0, -apart), min(bins, bins - apart)
                out[:first] = 0
                out[last:] = 0
                for k in range(first, last):
                    out[k] = s[k] * t[k + apart] * table[h, o, k]
                for m in range(terms):
                    left, a, b, right = u[n, h, m], rows[n, 0, m], rows[n, 1, m], v[n, h, m]
                    for k in range(first, last):
                        out[k] += left[k] * b[k + apart] + a[k] * right[k + apart]
            if split:
                _split(result[n, h])


@numba.njit(nogil=True, cache=True)
def _split(correlation: Any) -> None:
    """Offsets -b..b to center, symmetric, antisymmetric. Shape: (2 * radius + 1, bins)"""
    raw, radius = correlation.copy(), len(correlation) // 2
    correlation[0] = raw[radius]
    for d in range(1, radius + 1):
        for k in range(raw.shape[1]):
            above, below = raw[radius + d, k], raw[radius - d, k]
            correlation[d, k] = (above + below) / 2
            correlation[radius + d, k] = (above - below) / 2


@numba.njit(nogil=True, cache=True)
def _unsplit(gradient: Any, raw: Any) -> None:
    """The gradient of raw offsets."""
    radius = len(raw) // 2
    raw[radius] = gradient[0]
    for d in range(1, radius + 1):
        for k in range(raw.shape[1]):
            even, odd = gradient[d, k], gradient[radius + d, k]
            raw[radius + d, k] = (even + odd) / 2
            raw[radius - d, k] = (even - odd) / 2


@numba.njit(nogil=True, cache=True)
def _gradients(
    gradient: Any,
    u: Any,
    v: Any,
    rows: Any,
    scales: Any,
    of_u: Any,
    of_v: Any,
    of_rows: Any,
    of_scales: Any,
    table: Any,
    split: bool,
    of_table: Any,
) -> None:
    batch, heads, terms, bins = u.shape
    offsets = table.shape[1]
    radius = offsets // 2
    g = np.empty_like(table[0])
    for n in range(batch):
        s, t = scales[n, 0], scales[n, 1]
        of_s, of_t = of_scales[n, 0], of_scales[n, 1]
        for h in range(heads):
            if split:
                _unsplit(gradient[n, h], g)
            else:
                g[:] = gradient[n, h]
            for o in range(offsets):
                wanted, factor, of_factor, apart = g[o], table[h, o], of_table[h, o], o - radius
                first, last = max(0, -apart), min(bins, bins - apart)
                for k in range(first, last):
                    by_s, by_t = wanted[k] * s[k], wanted[k] * t[k + apart]
                    of_factor[k] += by_s * t[k + apart]
                    of_s[k] += by_t * factor[k]
                    of_t[k + apart] += by_s * factor[k]
                for m in range(terms):
                    left, a, b, right = u[n, h, m], rows[n, 0, m], rows[n, 1, m], v[n, h, m]
                    of_left, of_right = of_u[n, h, m], of_v[n, h, m]
                    of_a, of_b = of_rows[n, 0, m], of_rows[n, 1, m]
                    for k in range(first, last):
                        of_left[k] += wanted[k] * b[k + apart]
                        of_a[k] += wanted[k] * right[k + apart]
                    for k in range(first, last):
                        of_b[k + apart] += wanted[k] * left[k]
                        of_right[k + apart] += wanted[k] * a[k]
