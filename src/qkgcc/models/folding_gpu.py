"""Triton kernels of the folded matching (see `folding`): the product, and its gradients without atomic additions.

One program of the product, or of the gradients of its six factors, has one frame, one head and a block of bins; it
walks along the offsets. Its own bins stay in registers, the neighbours' come from the cache, so that memory sees the
result (or its gradient) once and the factors, a few numbers a bin, about once. The table's gradient is a sum over the
batch: one program for each head, offset and block of bins adds up the frames in their order. Everything is summed in
float32, in a fixed order: the same input gives the same bits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BINS = 128  # of one program: one for each thread
_FRAMES = 8  # read at once for the table's gradient
_WARPS = _BINS // 32


def forward(
    u: Tensor, a: Tensor, s: Tensor, v: Tensor, b: Tensor, t: Tensor, table: Tensor, split: bool, dtype: torch.dtype
) -> Tensor:
    """`folding.plain_banded_product`, with the same shapes."""
    batch, heads, terms, bins = u.shape
    result = torch.empty(batch, *table.shape, dtype=dtype, device=u.device)
    factors = [x.contiguous() for x in (u, a, s, v, b, t, table)]
    _product[triton.cdiv(bins, _BINS), heads, batch](result, *factors, bins, **_shape(terms, table, split))
    return result


def backward(
    gradient: Tensor, u: Tensor, a: Tensor, s: Tensor, v: Tensor, b: Tensor, t: Tensor, table: Tensor, split: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, a, s, v, b, t and the table.

    Shape: as `forward`, but those of a, s, b and t have the heads as their second dimension
    """
    batch, heads, terms, bins = u.shape
    gradient = gradient.contiguous()
    u, a, s, v, b, t, table = (x.contiguous() for x in (u, a, s, v, b, t, table))
    du, da, dv, db = (torch.empty_like(u) for _ in range(4))
    ds, dt = (torch.empty(batch, heads, bins, device=u.device) for _ in range(2))
    dtable = torch.empty_like(table)
    blocks = triton.cdiv(bins, _BINS)
    shape = _shape(terms, table, split)
    _factor_gradients[blocks, heads, batch](du, da, ds, dv, db, dt, gradient, u, a, s, v, b, t, table, bins, **shape)
    del shape["TERMS"]
    _table_gradient[blocks, table.shape[1], heads](dtable, gradient, s, t, batch, bins, FRAMES=_FRAMES, **shape)
    return du, da, ds, dv, db, dt, dtable


def _shape(terms: int, table: Tensor, split: bool) -> dict[str, Any]:
    radius = table.shape[1] // 2
    return {"TERMS": terms, "RADIUS": radius, "SPLIT": split, "BINS": _BINS, "num_warps": _WARPS}


@triton.jit  # type: ignore[untyped-decorator]
def _rows(pointer, at, inside, bins, TERMS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The terms of the bins `at`, zero where not `inside`. Shape: (4, BINS); more than TERMS are zero."""
    term = tl.arange(0, 4)[:, None]
    return tl.load(pointer + term * bins + at[None, :], mask=(term < TERMS) & inside[None, :], other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _write_rows(pointer, rows, at, inside, bins, TERMS: tl.constexpr):  # type: ignore[no-untyped-def]
    term = tl.arange(0, 4)[:, None]
    tl.store(pointer + term * bins + at[None, :], rows, mask=(term < TERMS) & inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _at_offset(u, a, s, v, b, t, table, at, inside, offset, bins, TERMS: tl.constexpr, RADIUS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The product of the bins `at` with their neighbours at one offset; v, b, t and the table are pointers."""
    near = at + offset
    both = inside & (near >= 0) & (near < bins)
    terms = u * _rows(b, near, both, bins, TERMS) + a * _rows(v, near, both, bins, TERMS)
    scales = s * tl.load(t + near, mask=both, other=0.0)
    return tl.sum(terms, axis=0) + scales * tl.load(table + (RADIUS + offset) * bins + at, mask=both, other=0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    result,
    u,
    a,
    s,
    v,
    b,
    t,
    table,
    bins,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    SPLIT: tl.constexpr,
    BINS: tl.constexpr,
):
    head = tl.program_id(1)
    frame = tl.program_id(2).to(tl.int64)
    both = frame * tl.num_programs(1) + head
    at = tl.program_id(0) * BINS + tl.arange(0, BINS)
    inside = at < bins
    own_u = _rows(u + both * TERMS * bins, at, inside, bins, TERMS)
    own_a = _rows(a + frame * TERMS * bins, at, inside, bins, TERMS)
    own_s = tl.load(s + frame * bins + at, mask=inside, other=0.0)
    v += both * TERMS * bins
    b += frame * TERMS * bins
    t += frame * bins
    table += head * (2 * RADIUS + 1) * bins
    result += both * (2 * RADIUS + 1) * bins + at
    center = _at_offset(own_u, own_a, own_s, v, b, t, table, at, inside, 0, bins, TERMS, RADIUS)
    tl.store(result + (0 if SPLIT else RADIUS) * bins, center.to(result.dtype.element_ty), mask=inside)
    for offset in range(1, RADIUS + 1):
        above = _at_offset(own_u, own_a, own_s, v, b, t, table, at, inside, offset, bins, TERMS, RADIUS)
        below = _at_offset(own_u, own_a, own_s, v, b, t, table, at, inside, -offset, bins, TERMS, RADIUS)
        if SPLIT:
            first, second = offset, RADIUS + offset
            above, below = (above + below) / 2, (above - below) / 2
        else:
            first, second = RADIUS + offset, RADIUS - offset
        tl.store(result + first * bins, above.to(result.dtype.element_ty), mask=inside)
        tl.store(result + second * bins, below.to(result.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _unsplit(gradient, at, inside, offset, bins, RADIUS: tl.constexpr, SPLIT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of the product at one offset, whatever the order the result was written in."""
    if SPLIT:
        row = tl.abs(offset)
        even = tl.load(gradient + row * bins + at, mask=inside, other=0.0).to(tl.float32)
        odd = tl.load(gradient + (RADIUS + row) * bins + at, mask=inside & (row > 0), other=0.0).to(tl.float32)
        return tl.where(offset == 0, even, tl.where(offset > 0, even + odd, even - odd) / 2)
    else:
        return tl.load(gradient + (RADIUS + offset) * bins + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _factor_gradients(  # type: ignore[no-untyped-def]
    du,
    da,
    ds,
    dv,
    db,
    dt,
    gradient,
    u,
    a,
    s,
    v,
    b,
    t,
    table,
    bins,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    SPLIT: tl.constexpr,
    BINS: tl.constexpr,
):
    """A bin as the query of its neighbours at + offset gives du, da, ds; as the key of at - offset, dv, db, dt."""
    head = tl.program_id(1)
    frame = tl.program_id(2).to(tl.int64)
    both = frame * tl.num_programs(1) + head
    at = tl.program_id(0) * BINS + tl.arange(0, BINS)
    inside = at < bins
    u += both * TERMS * bins
    v += both * TERMS * bins
    a += frame * TERMS * bins
    b += frame * TERMS * bins
    s += frame * bins
    t += frame * bins
    table += head * (2 * RADIUS + 1) * bins
    gradient += both * (2 * RADIUS + 1) * bins
    sum_u = tl.zeros((4, BINS), tl.float32)
    sum_a = tl.zeros((4, BINS), tl.float32)
    sum_v = tl.zeros((4, BINS), tl.float32)
    sum_b = tl.zeros((4, BINS), tl.float32)
    sum_s = tl.zeros((BINS,), tl.float32)
    sum_t = tl.zeros((BINS,), tl.float32)
    for offset in range(-RADIUS, RADIUS + 1):
        key = at + offset
        there = inside & (key >= 0) & (key < bins)
        g = _unsplit(gradient, at, there, offset, bins, RADIUS, SPLIT)
        sum_u += g[None, :] * _rows(b, key, there, bins, TERMS)
        sum_a += g[None, :] * _rows(v, key, there, bins, TERMS)
        weight = tl.load(table + (RADIUS + offset) * bins + at, mask=there, other=0.0)
        sum_s += g * weight * tl.load(t + key, mask=there, other=0.0)

        query = at - offset
        there = inside & (query >= 0) & (query < bins)
        g = _unsplit(gradient, query, there, offset, bins, RADIUS, SPLIT)
        sum_b += g[None, :] * _rows(u, query, there, bins, TERMS)
        sum_v += g[None, :] * _rows(a, query, there, bins, TERMS)
        weight = tl.load(table + (RADIUS + offset) * bins + query, mask=there, other=0.0)
        sum_t += g * weight * tl.load(s + query, mask=there, other=0.0)
    _write_rows(du + both * TERMS * bins, sum_u, at, inside, bins, TERMS)
    _write_rows(da + both * TERMS * bins, sum_a, at, inside, bins, TERMS)
    _write_rows(dv + both * TERMS * bins, sum_v, at, inside, bins, TERMS)
    _write_rows(db + both * TERMS * bins, sum_b, at, inside, bins, TERMS)
    tl.store(ds + both * bins + at, sum_s, mask=inside)
    tl.store(dt + both * bins + at, sum_t, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _table_gradient(  # type: ignore[no-untyped-def]
    dtable,
    gradient,
    s,
    t,
    batch,
    bins,
    FRAMES: tl.constexpr,
    RADIUS: tl.constexpr,
    SPLIT: tl.constexpr,
    BINS: tl.constexpr,
):
    """One head, one offset, one block of bins; all frames, FRAMES at a time."""
    head = tl.program_id(2)
    offset = tl.program_id(1) - RADIUS
    at = tl.program_id(0) * BINS + tl.arange(0, BINS)
    near = at + offset
    there = (at < bins) & (near >= 0) & (near < bins)
    total = tl.zeros((BINS,), tl.float32)
    first = 0
    while first < batch:  # no range(): the interpreter cannot take its bounds from a tensor under NumPy 2.4
        frame = (first + tl.arange(0, FRAMES)).to(tl.int64)[:, None]
        valid = (frame < batch) & there[None, :]
        rows = gradient + (frame * tl.num_programs(2) + head) * (2 * RADIUS + 1) * bins
        g = _unsplit(rows, at[None, :], valid, offset, bins, RADIUS, SPLIT)
        scales = tl.load(s + frame * bins + at[None, :], mask=valid, other=0.0)
        scales *= tl.load(t + frame * bins + near[None, :], mask=valid, other=0.0)
        total += tl.sum(g * scales, axis=0)
        first += FRAMES
    tl.store(dtable + (head * (2 * RADIUS + 1) + tl.program_id(1)) * bins + at, total, mask=at < bins)
