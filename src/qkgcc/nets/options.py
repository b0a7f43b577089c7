"""What every network is told and given: options (plain JSON values), frames, masks and weights, each checked once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from qkgcc.core.errors import InputError


@dataclass(frozen=True)
class NetworkOptions:
    """The options that all networks share; each adds its own fields, numbers or booleans, in a subclass.

    >>> NetworkOptions.read({"max_delay": 1}).delays
    (-1, 0, 1)
    """

    LEAST: ClassVar[Mapping[str, int]] = {"max_delay": 0}
    """The least value of a whole number, where it is not 1."""

    frame: int = 2048  # samples
    dft: int = 4096  # length of the zero-padded transform
    max_delay: int = 23  # samples; the classes are -max_delay..max_delay

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), self.LEAST.get(field.name, 1)
            if isinstance(field.default, bool):
                self.expect(isinstance(value, bool), field.name, "; expected true or false")
            elif isinstance(field.default, float):
                number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
                self.expect(number, field.name, "; expected a positive number")
            else:
                whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
                self.expect(whole, field.name, f"; expected a whole number >= {least}")
        part = "frame" if self.transformed == self.frame else "window"
        self.expect(self.dft >= self.transformed, "dft", f", shorter than the {part} of {self.transformed} samples")

    @classmethod
    def network(cls) -> str:
        """The name of the network in messages."""
        return cls.__name__.removesuffix("Options")

    def expect(self, ok: bool, name: str, problem: str) -> None:
        """Refuse the value of the option `name` unless `ok`."""
        if not ok:
            raise InputError(f"{self.network()} option {name} is {getattr(self, name)!r}{problem}")

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """From the JSON object of a card; options left out keep their defaults."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise InputError(f"{cls.network()} has no option {', '.join(unknown)}; it knows {', '.join(known)}")
        return cls(**options)

    @property
    def transformed(self) -> int:
        """Samples that are transformed at a time."""
        return self.frame

    @property
    def bins(self) -> int:
        """F, the number of frequency bins from 0 to the Nyquist frequency."""
        return self.dft // 2 + 1

    @property
    def delays(self) -> tuple[float, ...]:
        """The delay of each class, in samples; positive = channel 1 later."""
        return tuple(range(-self.max_delay, self.max_delay + 1))

    def check_input(self, frames: Tensor, bins: Tensor | None) -> None:
        """Frames must be pairs of this length, and a mask one boolean per bin."""
        if frames.ndim != 3 or frames.shape[1:] != (2, self.frame):
            raise InputError(f"frames have shape {tuple(frames.shape)}; this network expects (batch, 2, {self.frame})")
        if bins is not None and (bins.shape != (self.bins,) or bins.dtype != torch.bool):
            given = f"{bins.dtype} of shape {tuple(bins.shape)}"
            raise InputError(f"bins are {given}; expected booleans of shape ({self.bins},), False where masked")


def check_weights(expected: Mapping[str, Tensor], given: Mapping[str, Tensor], message: str) -> None:
    """Refuse weights of other names or shapes than `expected`; the error begins with `message`."""
    for name in [*expected, *(name for name in given if name not in expected)]:
        shapes = [tuple(side[name].shape) if name in side else "missing" for side in (expected, given)]
        if shapes[0] != shapes[1]:
            wanted = "no such tensor" if shapes[0] == "missing" else shapes[0]
            raise InputError(f"{message}: {name} is {shapes[1]}, expected {wanted}")
