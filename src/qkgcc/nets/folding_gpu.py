"""Triton kernels of the folded matching (see `folding`): the product, and its gradients without atomic additions.

One program of the product, or of the gradients of its factors, has one frame, one head and a block of bins; it walks
along the offsets. Its own bins stay in registers, the neighbours' come from the cache, so that memory sees the result
(or its gradient) once and the factors, a few numbers a bin, about once. The table's gradient is a sum over the batch:
one program for each head, offset and block of bins walks along the frames. Everything is summed in float32 and in a
fixed order: the same input gives the same bits.

Nothing is assumed of the number of bins, which is odd for every transform of a length that 4 divides. Were Triton told
of a multiple of 4, it would give each thread 4 bins and divide their terms among the warps.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BINS = 128  # of one program: one for each thread, which so has all terms of its bin and adds them up by itself
_FRAMES = 8  # read at once for the table's gradient
_WARPS = _BINS // 32


def forward(
    u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool, dtype: torch.dtype
) -> Tensor:
    """`folding.plain_banded_product`, with the same shapes."""
    batch, heads, terms, bins = u.shape
    result = torch.empty(batch, *table.shape, dtype=dtype, device=u.device)
    given = [x.contiguous() for x in (u, v, rows, scales, table)]
    _product[triton.cdiv(bins, _BINS), heads, batch](result, *given, bins, TERMS=terms, **_constants(table, split))
    return result


def backward(
    gradient: Tensor, u: Tensor, v: Tensor, rows: Tensor, scales: Tensor, table: Tensor, split: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of u, v, rows, scales and table.

    Shape: those of `forward`, but rows and scales have the heads as their second dimension
    """
    batch, heads, terms, bins = u.shape
    gradient, *given = (x.contiguous() for x in (gradient, u, v, rows, scales, table))
    du, dv, dtable = (torch.empty(x.shape, device=u.device) for x in (u, v, table))
    drows = torch.empty(batch, heads, 2, terms, bins, device=u.device)
    dscales = torch.empty(batch, heads, 2, bins, device=u.device)
    blocks, constants = triton.cdiv(bins, _BINS), _constants(table, split)
    _factor_gradients[blocks, heads, batch](du, dv, drows, dscales, gradient, *given, bins, TERMS=terms, **constants)
    _table_gradient[blocks, table.shape[1], heads](dtable, gradient, given[3], batch, bins, FRAMES=_FRAMES, **constants)
    return du, dv, drows, dscales, dtable


def _constants(table: Tensor, split: bool) -> dict[str, Any]:
    return {"RADIUS": table.shape[1] // 2, "SPLIT": split, "BINS": _BINS, "num_warps": _WARPS}


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


@triton.jit(do_not_specialize=["bins"])  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    result,
    u,
    v,
    rows,
    scales,
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
    v += both * TERMS * bins
    a = rows + frame * (2 * TERMS) * bins
    b = a + TERMS * bins
    s = scales + frame * 2 * bins
    t = s + bins
    own_u = _rows(u + both * TERMS * bins, at, inside, bins, TERMS)
    own_a = _rows(a, at, inside, bins, TERMS)
    own_s = tl.load(s + at, mask=inside, other=0.0)
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


@triton.jit(do_not_specialize=["bins"])  # type: ignore[untyped-decorator]
def _factor_gradients(  # type: ignore[no-untyped-def]
    du,
    dv,
    drows,
    dscales,
    gradient,
    u,
    v,
    rows,
    scales,
    table,
    bins,
    TERMS: tl.constexpr,
    RADIUS: tl.constexpr,
    SPLIT: tl.constexpr,
    BINS: tl.constexpr,
):
    """A bin is the query of the bins at + offset: that gives du, da, ds; and the key of at - offset: dv, db, dt."""
    head = tl.program_id(1)
    frame = tl.program_id(2).to(tl.int64)
    both = frame * tl.num_programs(1) + head
    at = tl.program_id(0) * BINS + tl.arange(0, BINS)
    inside = at < bins
    u += both * TERMS * bins
    v += both * TERMS * bins
    a = rows + frame * (2 * TERMS) * bins
    b = a + TERMS * bins
    s = scales + frame * 2 * bins
    t = s + bins
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
    _write_rows(dv + both * TERMS * bins, sum_v, at, inside, bins, TERMS)
    _write_rows(drows + both * 2 * TERMS * bins, sum_a, at, inside, bins, TERMS)
    _write_rows(drows + (both * 2 + 1) * TERMS * bins, sum_b, at, inside, bins, TERMS)
    tl.store(dscales + both * 2 * bins + at, sum_s, mask=inside)
    tl.store(dscales + (both * 2 + 1) * bins + at, sum_t, mask=inside)


@triton.jit(do_not_specialize=["bins"])  # type: ignore[untyped-decorator]
def _table_gradient(  # type: ignore[no-untyped-def]
    dtable,
    gradient,
    scales,
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
    total = tl.zeros((FRAMES, BINS), tl.float32)
    first = 0
    while first < batch:  # no range(): the interpreter cannot take its bounds from a tensor under NumPy 2.4
        frame = (first + tl.arange(0, FRAMES)).to(tl.int64)[:, None]
        valid = (frame < batch) & there[None, :]
        rows = gradient + (frame * tl.num_programs(2) + head) * (2 * RADIUS + 1) * bins
        g = _unsplit(rows, at[None, :], valid, offset, bins, RADIUS, SPLIT)
        s = tl.load(scales + frame * 2 * bins + at[None, :], mask=valid, other=0.0)
        t = tl.load(scales + (frame * 2 + 1) * bins + near[None, :], mask=valid, other=0.0)
        total += g * s * t
        first += FRAMES
    row = head * (2 * RADIUS + 1) + tl.program_id(1)
    tl.store(dtable + row * bins + at, tl.sum(total, axis=0), mask=at < bins)
