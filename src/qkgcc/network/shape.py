"""What the options of a card say of a steered network; `qkgcc.nets.steered.SteeredOptions` explains them.

Those of the front end mean the same for the published one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.tables import excerpt
from qkgcc.network.card import LARGEST_NUMBER, Card, current_options
from qkgcc.network.steering import count_windows

COARSE = 4
"""Bins that the blocks of the surroundings see as one."""
BLOCK_KERNEL = 5
"""Coarse rows that a block of the surroundings sees along frequency."""
_LEAST = dict.fromkeys(("radius", "window", "blocks", "positions", "max_delay"), 0)
"""Whole numbers that may be 0."""
_MOST = {"radius": 256}
"""What would need gigabytes beyond it."""


@dataclass(frozen=True)
class Shape:
    """Options that say how to compute; those left out of a card have these values."""

    frame: int = 2048
    dft: int = 4096
    width: int = 128
    heads: int = 4
    radius: int = 8
    magnitude: bool = True
    positions: int = 2049
    split: bool = True
    window: int = 0
    channels: int = 32
    blocks: int = 0
    block_channels: int = 96
    maps: int = 16
    kernel: int = 5
    window_kernel: int = 3
    delay_channels: int = 32
    delay_kernel: int = 7
    logit_kernel: int = 5
    step: float = 1.0
    max_delay: int = 23

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            number = isinstance(value, (int, float) if kind is float else kind)
            low, high = _LEAST.get(field.name, 1e-3), _MOST.get(field.name, LARGEST_NUMBER)
            right = number and (kind is bool or (not isinstance(value, bool) and low <= value <= high))
            if field.name.endswith("kernel"):
                right = right and value % 2 == 1
            if not right:
                raise InputError(f"the card's option {field.name} is {value!r:.60}, which no steered network has")
        if self.width % self.heads or self.window % 2 or self.dft < (self.window or self.frame):
            raise InputError("the card's options contradict each other; another version of qkgcc?")

    @classmethod
    def of_card(cls, card: Card) -> Shape:
        """What the card tells the outside world must be what its options say."""
        names = {field.name for field in dataclasses.fields(cls)}
        options = current_options(card.architecture, card.options)
        unknown = sorted(set(options) - names)
        if card.architecture == "steered" and unknown:
            raise InputError(
                f"the card has options that this qkgcc does not know ({excerpt(unknown)}): get a newer one"
            )
        shape = cls(**{name: value for name, value in options.items() if name in names})
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
        return count_windows(frame, self.window) if self.window else 1
