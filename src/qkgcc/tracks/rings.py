"""Angles in cells of a degree or so, along a circle of azimuths or of those to a line: what paths are searched on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.tracks import reflections

REFLECTED = 0.4
"""On a line of microphones: how much of what is heard of a source lies elsewhere (`arrays.reflections`). The more, the
fewer talkers are invented, and the fewer of two are found."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ring:
    """Cells of a degree or so along a circle, or a part of one that does not close."""

    first: Floats
    across: Floats
    """Unit vectors: angle 0, and 90 degrees."""
    step: float
    """Degrees from a cell to the next."""
    finer: int
    """Cells for each of the given grid."""
    count: int
    closed: bool
    reflected: Floats | None
    """(A, A) of angles to a line of microphones: where else a source in each cell is heard, with a mean of 1."""

    @classmethod
    def of(cls, grid: npt.ArrayLike, line: bool = False) -> Ring:
        given = np.asarray(grid, np.float64)
        if given.ndim != 2 or given.shape[1] != 3 or len(given) < 8:
            raise InputError(f"a grid of shape {given.shape}; expected 8 or more directions in the order of a circle")
        across = given[1] - (given[1] @ given[0]) * given[0]
        across /= np.linalg.norm(across)
        step = math.degrees(math.acos(float(given[0] @ given[1])))
        angles = np.radians(step * np.arange(len(given)))[:, None]
        if not np.allclose(given, np.cos(angles) * given[0] + np.sin(angles) * across, atol=1e-6):
            raise InputError("the directions of the grid do not lie evenly along a circle, one after the other")
        closed = abs(len(given) * step - 360) < step / 2
        finer = max(1, round(step))
        count = finer * len(given) - (0 if closed else finer - 1)
        reflected = count * reflections.reflected(count).T if line else None
        return cls(given[0], across, step / finer, finer, count, closed, reflected)

    def spread(self, weights: Floats) -> Floats:
        """Weights of the given grid on the cells, linear in between, rows that sum to 1. Shape: (T, G) -> (T, A)"""
        own = np.arange(weights.shape[1]) * self.finer
        around = (own[-1] + self.finer,) if self.closed else ()
        padded = np.concatenate([weights, weights[:, :1]], axis=1) if self.closed else weights
        at = np.arange(self.count)
        places = np.array([*own, *around])
        left = np.minimum(np.searchsorted(places, at, "right") - 1, len(places) - 2)
        share = (at - places[left]) / self.finer
        fine = padded[:, left] * (1 - share) + padded[:, left + 1] * share
        return np.asarray(fine / fine.sum(axis=1, keepdims=True))

    def apart(self, cells: Floats) -> Floats:
        """Degrees from each cell to some angles, in cells. Shape: (...) -> (..., A)"""
        difference = np.arange(self.count) - cells[..., None]
        if self.closed:
            difference -= self.count * np.rint(difference / self.count)
        return np.asarray(self.step * difference)

    def density(self, cells: Floats, width: float) -> Floats:
        """Bells around angles, whose mean over the cells is 1. Shape: (N,) -> (N, A)"""
        bell = np.exp(-0.5 * (self.apart(cells) / width) ** 2)
        return np.asarray(bell * (self.count / bell.sum(axis=-1, keepdims=True)))

    def heard(self, cells: Floats, width: float) -> Floats:
        """The same with what is reflected of sources there (`arrays.reflections`). Shape: (N,) -> (N, A)"""
        bells = self.density(cells, width)
        if self.reflected is None:
            return bells
        return np.asarray((1 - REFLECTED) * bells + REFLECTED * self.reflected[self.whole(cells)])

    def whole(self, cells: Floats) -> npt.NDArray[np.int64]:
        """The nearest cells."""
        nearest = np.rint(cells).astype(np.int64)
        return nearest % self.count if self.closed else np.clip(nearest, 0, self.count - 1)

    def direction(self, cells: float) -> tuple[Floats, Floats]:
        """The unit vector at an angle, and the one ahead of it."""
        angle = math.radians(self.step * cells)
        cos, sin = math.cos(angle), math.sin(angle)
        return cos * self.first + sin * self.across, cos * self.across - sin * self.first
