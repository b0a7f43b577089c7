"""How the evidence for each delay goes on through the windows of a frame.

Summed over a frame, a reflection that lasts outweighs the sound that came before it. So some maps are steered window by
window as well, and a small network looks along windows and delays.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Courses(nn.Module):
    """Shape: (batch, maps, windows, lags) -> (batch, 2 * channels, lags - 6)"""

    def __init__(self, maps: int, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(maps),
            nn.Conv2d(maps, channels, (3, 5), padding=(1, 0)),
            nn.BatchNorm2d(channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 3, padding=(1, 0)),
            nn.BatchNorm2d(channels),
            nn.GELU(),
        )

    def forward(self, steered: Tensor) -> Tensor:
        y = self.layers(steered)
        return torch.cat([y.mean(-2), y.amax(-2)], dim=1)
