"""Where the microphones of an array are: metres to the front, to the left and up, one row a channel."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkgcc.core.checks import check_array, check_indices, check_name, short_repr
from qkgcc.core.errors import InputError

HIGHEST = 10_000.0
"""Metres above or below the origin of a geometry that a source may be at."""

MOST_MICROPHONES = 256
"""Of an array: what is computed and kept of each pair grows with their square."""

_SMALLEST, _LARGEST = 0.001, 100.0  # metres between two microphones; anything else is a slip in the units
FARTHEST = 1e9  # metres from the origin, beyond which distances between microphones are rounding errors
_FLAT = 0.02  # of the largest extent: what is thinner is a line or a plane, however well it was measured

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Geometry:
    """Microphone positions; channel k of a recording is meant to be microphone k.

    >>> Geometry(np.array([[0, 0, 0], [0.3, 0.4, 0]])).spacing(0, 1)
    0.5
    """

    microphones: Floats
    """(M, 3) metres to the front, to the left and up."""
    name: str = "array"

    def __post_init__(self) -> None:
        check_name("name of an array", self.name, "text")
        positions = check_array(
            "microphones", self.microphones, "one row of three numbers for each of 2 or more of them"
        )
        if positions.ndim != 2 or positions.shape[1] != 3 or len(positions) < 2:
            raise InputError(
                f"microphones have shape {positions.shape}; expected one row of three numbers for each of 2 or more of "
                "them"
            )
        if len(positions) > MOST_MICROPHONES:
            raise InputError(f"there are {len(positions)} microphones; expected at most {MOST_MICROPHONES}")
        if not np.isfinite(positions).all():
            raise InputError("a microphone position is not a finite number")
        if np.abs(positions).max() > FARTHEST:
            raise InputError(f"a microphone is {np.abs(positions).max():g} m from the origin: are the units right?")
        object.__setattr__(self, "microphones", positions)
        apart = np.linalg.norm(positions[:, None] - positions, axis=-1)
        np.fill_diagonal(apart, np.inf)
        first, second = (int(i) for i in np.unravel_index(apart.argmin(), apart.shape))
        if apart.min() < _SMALLEST:
            raise InputError(
                f"microphones {first} and {second} are {apart.min():g} m apart; expected at least {_SMALLEST:g} m: "
                "are the units right?"
            )
        if self.aperture > _LARGEST:
            raise InputError(
                f"the microphones span {self.aperture:g} m; expected at most {_LARGEST:g} m: are the units right?"
            )

    def __len__(self) -> int:
        return len(self.microphones)

    def spacing(self, first: int, second: int) -> float:
        """Metres between two microphones."""
        for one in check_indices("a pair", (first, second), "(0, 1)"):
            if not 0 <= one < len(self):
                raise InputError(
                    f"{self.name} has microphones 0 to {len(self) - 1}; there is no microphone {short_repr(one)}"
                )
        return float(np.linalg.norm(self.microphones[first] - self.microphones[second]))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All of them, the lower channel first."""
        return list(itertools.combinations(range(len(self)), 2))

    @property
    def aperture(self) -> float:
        """Metres between the two microphones that are farthest apart."""
        return float(np.linalg.norm(self.microphones[:, None] - self.microphones, axis=-1).max())

    @property
    def dimensions(self) -> int:
        """1: on a line, 2: in a plane, 3: neither.

        >>> Geometry(np.array([[0, 0, 0], [0.3, 0, 0], [0, 0.4, 0.0001]])).dimensions
        2
        """
        return spanned(self.microphones - self.microphones.mean(axis=0))

    @property
    def cannot_tell(self) -> str | None:
        """Which directions sound the same to this array; None: all differ."""
        return not_told(self.dimensions, "the microphones")


def spanned(vectors: Floats) -> int:
    """1: all along one line, 2: in a plane, 3: neither; up to what is too thin to count. Shape: (N, 3)"""
    extents = np.linalg.svd(vectors, compute_uv=False)
    return int((extents > _FLAT * extents[0]).sum())


def not_told(dimensions: int, what: str) -> str | None:
    """Which directions sound the same to what lies on a line or in a plane; None: all differ."""
    return {
        1: f"directions at the same angle to the line of {what} (a cone around it)",
        2: f"a direction from its mirror image behind the plane of {what}",
    }.get(dimensions)
