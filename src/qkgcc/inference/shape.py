"""What the options of a card say of a steered network; `qkgcc.models.steered.SteeredOptions` explains them.

Those of the front end mean the same for the published one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from qkgcc import windows
from qkgcc.card import Card
from qkgcc.errors import InputError


@dataclass(frozen=True)
class Shape:
    """Options that say how to compute; those left out of a card have these values."""

    frame: int = 2048
    dft: int = 4096
    width: int = 128
    heads: int = 4
    radius: int = 8
    magnitude: bool = True
    split: bool = True
    window: int = 0
    pool: int = 1
    projection: int = 0
    channels: int = 32
    blocks: int = 0
    block_channels: int = 96
    coarse: int = 4
    maps: int = 16
    kernel: int = 5
    window_kernel: int = 3
    delay_channels: int = 32
    delay_kernel: int = 7
    logit_kernel: int = 5
    step: float = 1.0

    @classmethod
    def of_card(cls, card: Card) -> Shape:
        """What the card tells the outside world must be what its options say."""
        names = {field.name for field in dataclasses.fields(cls)}
        shape = cls(**{name: value for name, value in card.options.items() if name in names})
        even = np.allclose(np.diff(card.delays), shape.step)
        if (card.frame, card.dft) != (shape.frame, shape.dft) or not even:
            raise InputError("the network is not the one that its card describes; another version of qkgcc?")
        return shape

    @property
    def numbers(self) -> int:
        """Of a token."""
        return 3 if self.magnitude else 2

    @property
    def bins(self) -> int:
        return self.dft // 2 + 1

    @property
    def rows(self) -> int:
        """Of evidence: bins, or some of them taken as one."""
        return -(-self.bins // self.pool)

    @property
    def features(self) -> int:
        return self.heads * (2 * self.radius + 1)

    @property
    def local_kernel(self) -> tuple[int, int]:
        """Of the first convolution, along windows and frequency."""
        return (self.window_kernel if self.window else 1, self.kernel)

    @property
    def gate_kernel(self) -> tuple[int, int]:
        return (1, 1) if self.blocks else self.local_kernel

    @property
    def spare(self) -> int:
        """Lags that the convolutions along the delays use up at each end."""
        return 2 * (self.delay_kernel // 2) + self.logit_kernel // 2

    def windows(self, frame: int) -> int:
        """Of a frame of so many samples."""
        return windows.count(frame, self.window) if self.window else 1
