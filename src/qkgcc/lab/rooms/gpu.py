"""The GPU engine: image sources of a whole batch of different rooms at once, in Triton. Needs only torch.

The kernel adds each image to four neighbouring cells of its response's histogram (see `shoebox`). Four such additions
would be four atomic operations; Hopper has one for four aligned floats. So there are four copies of each histogram, the
image goes to the copy whose alignment fits its first cell, and the copies are added up with their shifts afterwards.
Elsewhere, and in Triton's interpreter, the same four cells are added one by one.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl

from qkgcc.core.errors import InputError
from qkgcc.core.types import Samples
from qkgcc.lab.rooms.shoebox import OVERSAMPLING, TAPS, from_histogram, transform_length

_ROWS, _COLUMNS = 4, 64  # images of one step of one program: y by z
_PASSES = 6  # histograms' worth of memory that a response needs at its most: four copies, their sum, its transform


def responses(
    rooms: Samples,
    reflections: Samples,
    orders: npt.NDArray[np.integer[Any]],
    sources: Samples,
    microphones: Samples,
    *,
    samples: int,
    sample_rate: int,
    speed_of_sound: float,
    device: torch.device | str = "cuda",
) -> torch.Tensor:
    """One response each of B sources in B rooms at B microphones, all in float32.

    Images that arrive after `samples` are left out.

    Shape: (B, 3), (B,), (B,), (B, 3), (B, 3) -> (B, samples)
    """
    device = torch.device(device)
    length = transform_length(samples, sample_rate)
    cells = OVERSAMPLING * length + TAPS  # a multiple of four: every copy stays aligned
    out = torch.empty(len(orders), samples, device=device)
    geometry = torch.as_tensor(
        np.concatenate([rooms, sources, microphones], axis=1), dtype=torch.float32, device=device
    )
    with np.errstate(divide="ignore"):  # a wall that absorbs all reflects nothing: 2^-1000 is 0 in float32
        decay = np.maximum(np.log2(np.asarray(reflections, dtype=np.float64)), -1000.0)
    decays = torch.as_tensor(decay, dtype=torch.float32, device=device)
    order = torch.as_tensor(np.asarray(orders), dtype=torch.int32, device=device)
    for part in _parts(len(orders), cells, device):
        highest = int(np.max(orders[part]))
        copies = torch.zeros(part.stop - part.start, TAPS, cells, device=device)
        span = 2 * highest + 1
        grid = (span * triton.cdiv(span, _ROWS), len(copies))
        _add_images[grid](
            copies,
            geometry[part],
            decays[part],
            order[part],
            highest,
            OVERSAMPLING * sample_rate / speed_of_sound,
            samples * speed_of_sound / sample_rate,
            cells,
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            PACKED=_packed(device),
            num_warps=4,
        )
        histogram = copies[:, 0]
        for shift in range(1, TAPS):
            histogram[:, shift:] += copies[:, shift, :-shift]
        out[part] = from_histogram(histogram[:, : OVERSAMPLING * length], samples, sample_rate)
    return out


def _packed(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def _parts(count: int, cells: int, device: torch.device) -> Iterator[slice]:
    """Slices of the batch that fit in half of the memory that is free."""
    each = 4 * TAPS * cells * _PASSES // 2
    fit = 64 if device.type == "cpu" else torch.cuda.mem_get_info(device)[0] // 2 // each
    if fit == 0:
        raise InputError(f"the GPU has too little free memory: one response needs {2 * each / 2**20:.0f} MiB")
    size = min(fit, 32768)
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


@triton.jit  # type: ignore[untyped-decorator]
def _add_images(  # type: ignore[no-untyped-def]
    copies,
    geometry,
    decays,
    orders,
    highest,
    cells_per_metre,
    reach,
    cells,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACKED: tl.constexpr,
):
    """One program: one x-image, ROWS y-images, all z-images of one response."""
    response = tl.program_id(1)
    blocks = (2 * highest + ROWS) // ROWS
    nx = tl.program_id(0) // blocks - highest
    ny = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS) - highest
    order = tl.load(orders + response)
    left = order - tl.abs(nx) - tl.abs(ny)  # bounces left for z, by row
    most = tl.max(left, axis=0)
    if most >= 0:
        place = geometry + response * 9
        decay = tl.load(decays + response)
        width = tl.load(place)
        sx = tl.load(place + 3)
        dx = nx * width + tl.where(nx % 2 == 0, sx, width - sx) - tl.load(place + 6)
        depth = tl.load(place + 1)
        sy = tl.load(place + 4)
        dy = ny * depth + tl.where(ny % 2 == 0, sy, depth - sy) - tl.load(place + 7)
        height = tl.load(place + 2)
        sz = tl.load(place + 5)
        mz = tl.load(place + 8)
        across = dx * dx + dy * dy
        bounces = tl.abs(nx) + tl.abs(ny)
        target = copies + response.to(tl.int64) * (4 * cells)
        start = -most
        while start <= most:  # no range(): the interpreter cannot take its bounds from a tensor under NumPy 2.4
            nz = start + tl.arange(0, COLUMNS)
            dz = nz * height + tl.where(nz % 2 == 0, sz, height - sz) - mz
            path = tl.sqrt(across[:, None] + (dz * dz)[None, :])
            hits = bounces[:, None] + tl.abs(nz)[None, :]
            inside = (tl.abs(nz)[None, :] <= left[:, None]) & (path <= reach)
            amplitude = tl.exp2(hits.to(tl.float32) * decay) / (6 * path)
            time = path * cells_per_metre
            cell = time.to(tl.int32)
            f = time - cell.to(tl.float32)
            g = 1 - f
            w0 = amplitude * g * g * g
            w1 = amplitude * (4 - f * f * (6 - 3 * f))
            w2 = amplitude * (4 - g * g * (6 - 3 * g))
            w3 = amplitude * f * f * f
            copy = cell % 4
            at = target + (copy * cells + cell - copy)
            if PACKED:
                tl.inline_asm_elementwise(
                    """{
                    .reg .pred p;
                    setp.ne.s32 p, $6, 0;
                    @p red.relaxed.gpu.global.add.v4.f32 [$1], {$2, $3, $4, $5};
                    mov.u32 $0, 0;
                    }""",
                    "=r,l,f,f,f,f,r",
                    [at.to(tl.int64), w0, w1, w2, w3, inside.to(tl.int32)],
                    dtype=tl.int32,
                    is_pure=False,
                    pack=1,
                )
            else:
                tl.atomic_add(at, w0, mask=inside, sem="relaxed")
                tl.atomic_add(at + 1, w1, mask=inside, sem="relaxed")
                tl.atomic_add(at + 2, w2, mask=inside, sem="relaxed")
                tl.atomic_add(at + 3, w3, mask=inside, sem="relaxed")
            start += COLUMNS
