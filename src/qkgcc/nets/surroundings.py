"""What surrounds a bin in time and frequency, seen coarsely: from which the gate tells speech, onsets and noise.

    down    some adjacent bins become one                                    conv, BN, GELU
    blocks  x + GELU(conv 1x1(BN(conv channel by channel(x))))               along windows and frequency
    up      back to the bins, the same for all that were one

How far to trust a bin changes slowly along frequency: a quarter of the rows has room for three times the channels at a
third of the cost. The blocks are residual and separable, as in networks for small devices.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc.network.shape import BLOCK_KERNEL


class Surroundings(nn.Module):
    """Shape: (batch, channels, windows, rows), (rows,) or None -> (batch, channels, windows, rows)"""

    def __init__(self, channels: int, inside: int, blocks: int, coarse: int, window_kernel: int) -> None:
        super().__init__()
        kernel = (window_kernel, BLOCK_KERNEL)
        self.coarse = coarse
        self.down = nn.Sequential(
            nn.Conv2d(channels, inside, (1, coarse), stride=(1, coarse)), nn.BatchNorm2d(inside), nn.GELU()
        )
        self.blocks = nn.ModuleList(Separable(inside, kernel) for _ in range(blocks))
        self.up = nn.Conv2d(inside, channels, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`x` is zero where the mask is; what is outside the mask counts as outside the band."""
        rows = x.shape[-1]
        spare = -rows % self.coarse
        if mask is not None:  # a coarse row is usable where any of its rows is
            mask = torch.unflatten(F.pad(mask, (0, spare)), -1, (-1, self.coarse)).amax(-1)
        y: Tensor = _masked(self.down(F.pad(x, (0, spare))), mask)
        for block in self.blocks:
            y = _masked(block(y), mask)
        y = self.up(y)
        return y[..., None].expand(*y.shape, self.coarse).flatten(-2)[..., :rows]


class Separable(nn.Module):
    """Channel by channel along windows and frequency, then across the channels, added to what came in."""

    def __init__(self, channels: int, kernel: tuple[int, int]) -> None:
        super().__init__()
        self.along = nn.Conv2d(channels, channels, kernel, padding="same", groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.across = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        # Libraries for GPUs take longer for this convolution than for all the rest of a block: a compiler does better.
        written_out = torch.compiler.is_compiling() and x.device.type == "cuda"
        along = shifted_sum(x, self.along.weight) if written_out else self.along(x)
        return x + F.gelu(self.across(self.norm(along)))


def shifted_sum(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution channel by channel, written as the sum of shifted copies, each times its weight.

    Shape: (batch, channels, windows, rows), (channels, 1, height, width) -> (batch, channels, windows, rows)
    """
    height, width = weight.shape[2:]
    windows, rows = x.shape[2:]
    padded = F.pad(x, (width // 2, width // 2, height // 2, height // 2))
    # The product is of the type that convolutions have, which autocast would give them.
    kernel = weight.to(x.dtype)
    total = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            total = total + padded[..., i : i + windows, j : j + rows] * kernel[:, :, i, j, None]
    return total


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask
