"""Directions that a source may come from, as cells that are told apart and points that are tried in each.

| array           | grid     | a cell is                | its points                                |
|-----------------|----------|--------------------------|-------------------------------------------|
| on a line       | `line`   | an angle to the line     | one on the front side of the cone         |
| in a plane      | `circle` | an azimuth               | elevations, on one side of the plane      |
| in space        | `sphere` | a direction              | itself                                    |

each at every distance that is tried. What sounds the same to an array is tried once; `Grid.mirrors` are the others.
Where pairs are chosen, what their baselines span is the array: a pair of a square is a line.
Azimuths are degrees counterclockwise from the front, elevations degrees up, both from the middle of the microphones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from qkgcc.arrays.ambiguity import Ambiguity, front_perpendicular
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.steering import Pairs, far_delays, near_delays
from qkgcc.core.checks import check_choice
from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats, Indices
from qkgcc.tracks.motion import angle_between, azimuth_elevation

GRIDS = ("line", "circle", "sphere")
STEP = {"line": 1.0, "circle": 2.0, "sphere": 4.0}
"""Degrees between cells."""
ELEVATION_STEP, MAX_ELEVATION = 10.0, 70.0
"""Degrees between the elevations of a circle's cell, and the largest of them."""

_SECTOR_STEP = 10.0  # degrees between the sectors of a sphere


def unit_vectors(azimuth: npt.ArrayLike, elevation: npt.ArrayLike = 0.0) -> Floats:
    """Shape: (...,), (...,) degrees -> (..., 3)

    >>> unit_vectors(90.0).round(6).tolist()  # to the left
    [0.0, 1.0, 0.0]
    """
    around, up = np.broadcast_arrays(np.radians(azimuth), np.radians(elevation))
    return np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], axis=-1)


@dataclass(frozen=True, eq=False)
class Grid:
    """C cells of V points each. `Grid.of` makes them."""

    kind: str
    geometry: Geometry
    cells: Floats
    """(C, 3) what stands for each; a circle's lie in the horizontal plane."""
    points: Floats
    """(C, V, 3) unit vectors."""
    ranges: Floats
    """(V,) metres from the middle of the microphones; infinite: a far source."""
    possible: Bools
    """(C, V) whether a point lies on the side that is tried."""
    ambiguity: Ambiguity
    """What sounds the same to the array."""
    neighbours: Indices
    """(C, N) cells next to each, itself among them."""
    sectors: Indices
    """(C,) the sector of each cell: evidence for a refined direction is kept by sector."""

    @classmethod
    def of(
        cls,
        geometry: Geometry,
        kind: str | None = None,
        distances: Sequence[float] = (math.inf,),
        pairs: Pairs | None = None,
    ) -> Grid:
        """The grid that fits an array; a circle or a sphere may be asked for.

        Args:
            distances: metres that are tried, where sources are near.
            pairs: of microphones that count; by default all.
        """
        ambiguity = Ambiguity.of(geometry, pairs)
        chosen = GRIDS[ambiguity.dimensions - 1] if kind is None else check_choice("grid", kind, GRIDS)
        if ambiguity.dimensions == 1 and chosen != "line":
            line = "is a line" if geometry.dimensions == 1 else "is a line with the pairs that were chosen"
            raise InputError(f"{geometry.name} {line}, which knows the angle to it only: leave the grid out")
        if ambiguity.dimensions > 1 and chosen == "line":
            raise InputError(f"{geometry.name} is no line: take circle or sphere as its grid")
        nearest = np.linalg.norm(geometry.microphones - geometry.microphones.mean(axis=0), axis=1).max()
        for distance in distances:
            if not distance > nearest:
                raise InputError(
                    f"a distance of {distance:g} m lies within the array: it is counted from the middle of the "
                    f"microphones, and has to be more than {nearest:.3g} m"
                )
        axis = ambiguity.axis
        if chosen == "line":
            assert axis is not None
            angles = np.radians(np.arange(0, 180 + STEP["line"] / 2, STEP["line"]))[:, None]
            cells = np.cos(angles) * axis + np.sin(angles) * front_perpendicular(axis)
            bases, neighbours = cells[:, None], _cells_beside(len(cells), wraps=False)
        elif chosen == "circle":
            azimuths = np.arange(0, 360, STEP["circle"])
            cells, neighbours = unit_vectors(azimuths), _cells_beside(len(azimuths), wraps=True)
            bases = unit_vectors(azimuths[:, None], np.arange(-MAX_ELEVATION, MAX_ELEVATION + 1, ELEVATION_STEP))
        else:
            cells = _sphere_cells(STEP["sphere"])
            if axis is not None:
                cells = cells[cells @ axis >= -1e-9]
            bases = cells[:, None]
            _, neighbours = cKDTree(cells).query(cells, k=9)
        points = np.repeat(bases, len(distances), axis=1)
        possible = np.ones(points.shape[:2], np.bool_)
        if axis is not None and chosen == "circle":
            possible = points @ axis >= -1e-9
            some = possible.any(axis=0)  # of a level array, half of the elevations
            points, possible = points[:, some], possible[:, some]
            ranges = np.tile(distances, bases.shape[1])[some]
        else:
            ranges = np.tile(np.asarray(distances, np.float64), bases.shape[1])
        sectors = np.arange(len(cells))
        if chosen == "sphere":
            _, sectors = cKDTree(_sphere_cells(_SECTOR_STEP)).query(cells)
        return cls(chosen, geometry, cells, points, ranges, possible, ambiguity, neighbours, sectors.astype(np.intp))

    @property
    def axis(self) -> Floats | None:
        """(3,) along a line, or across a plane; None in space."""
        return self.ambiguity.axis

    @property
    def angles(self) -> Floats:
        """(C,) azimuths of a circle's cells, angles of a line's; of a sphere's, azimuths too. Degrees."""
        if self.kind == "line":
            return np.asarray(np.arange(len(self.cells)) * STEP["line"], np.float64)
        azimuths, _ = azimuth_elevation(self.cells)
        return azimuths

    def delays(self, pairs: Pairs, speed_of_sound: float) -> Floats:
        """Of all points, in seconds. Shape: (pairs, C * V)"""
        ranges = np.broadcast_to(self.ranges, self.points.shape[:2]).ravel()
        return self.delays_of(self.points.reshape(-1, 3), ranges, pairs, speed_of_sound)

    def delays_of(self, directions: Floats, ranges: Floats, pairs: Pairs, speed_of_sound: float) -> Floats:
        """Of any directions, in seconds. Shape: (D, 3), (D,) metres -> (pairs, D)"""
        far = np.isinf(ranges)
        delays = np.empty((len(pairs), len(directions)))
        if far.any():
            delays[:, far] = far_delays(self.geometry, pairs, directions[far], speed_of_sound)
        if not far.all():
            places = self.geometry.microphones.mean(axis=0) + ranges[~far, None] * directions[~far]
            delays[:, ~far] = near_delays(self.geometry, pairs, places, speed_of_sound)
        return delays

    def apart(self, direction: Floats) -> Floats:
        """Degrees from a direction to every cell, as this grid tells them apart. Shape: (3,) -> (C,)"""
        return self.between(direction, self.cells)

    def between(self, first: Floats, second: Floats) -> Floats:
        """Degrees between directions, as this grid tells them apart. Shape: (..., 3), (..., 3) -> (...,)"""
        if self.kind == "line":
            assert self.axis is not None
            return np.asarray(np.abs(angle_between(first, self.axis) - angle_between(second, self.axis)))
        if self.kind == "circle":
            turned = azimuth_elevation(first)[0] - azimuth_elevation(second)[0]
            return np.asarray(np.abs((turned + 180) % 360 - 180))
        return angle_between(first, second)

    def chance(self, near: float) -> float:
        """Share of the cells that lie within so many degrees of one."""
        return float((self.apart(self.cells[len(self.cells) // 2]) <= near).mean())

    def refine_angles(self, directions: Floats, cells: Indices, offsets: Floats) -> Floats:
        """Directions in cells of a line or a circle, as high as they are, but between the cells.

        Args:
            offsets: from -1/2 to 1/2 of a step.
        Shape: (T, 3), (T,), (T,) -> (T, 3)
        """
        angles = (cells + offsets) * STEP[self.kind]
        if self.kind == "circle":
            return unit_vectors(angles, azimuth_elevation(directions)[1])
        assert self.axis is not None
        radians = np.radians(angles)[:, None]
        return np.asarray(np.cos(radians) * self.axis + np.sin(radians) * front_perpendicular(self.axis))

    def fold(self, directions: Floats) -> Floats:
        """Directions on the side that is searched: those on the other side become their mirror images.

        Shape: (..., 3) -> same
        """
        if self.axis is None:
            return directions
        along = (directions @ self.axis)[..., None]
        if self.kind == "line":
            across = np.sqrt(np.maximum(0.0, 1 - along**2))
            return np.asarray(along * self.axis + across * front_perpendicular(self.axis))
        return np.asarray(directions - 2 * np.minimum(along, 0) * self.axis)

    def mirrors(self, direction: Floats) -> list[Floats]:
        """Other directions that sound the same, see `Ambiguity`."""
        return self.ambiguity.mirrors(direction)


def _cells_beside(count: int, *, wraps: bool) -> Indices:
    near = np.arange(count)[:, None] + np.arange(-1, 2)
    return near % count if wraps else np.clip(near, 0, count - 1)


def _sphere_cells(step: float) -> Floats:
    """Directions about `step` degrees apart all over the sphere. Shape: (C, 3)"""
    rows = []
    for elevation in np.linspace(-90, 90, round(180 / step) + 1):
        count = max(1, round(360 * math.cos(math.radians(elevation)) / step))
        rows.append(unit_vectors(360 / count * np.arange(count), elevation))
    return np.concatenate(rows)
