"""Where the microphones of an array are, in metres to the front, to the left and up, and geometries in files.

A file says its units and its axes. TOML, with the direction of each of the three numbers:

    units = "cm"
    axes = ["right", "front", "up"]
    microphones = [[0, 0, 0], [14, -3, 1], [-3, 11, 4], [5, 4, 12]]

or CSV, with both in the names of its columns, in the order of the channels:

    right_cm,front_cm,up_cm
    0,0,0
    14,-3,1

Neither is ever assumed: a geometry in centimetres that is read as metres, or one whose left is another's front, gives
no error, only wrong answers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.core.checks import check_array, check_indices, check_name, short_repr
from qkgcc.core.errors import InputError
from qkgcc.core.files import MARK, write_whole
from qkgcc.core.tables import parse_toml, read_text, table_rows
from qkgcc.core.types import Floats

MAX_SOURCE_HEIGHT = 10_000.0
"""Metres above or below the origin of a geometry that a source may be at."""
MAX_DISTANCE = 1e9
"""Metres from the origin: farther out, distances between microphones are rounding errors."""
MAX_MICROPHONES = 256
"""Of an array: what is computed and kept of each pair grows with their square."""

_MIN_SPACING, _MAX_APERTURE = 0.001, 100.0  # metres between two microphones; anything else is a slip in the units
_MIN_EXTENT = 0.02  # of the largest: what is thinner is a line or a plane, however well it was measured

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
AXES = {"front": (0, 1), "back": (0, -1), "left": (1, 1), "right": (1, -1), "up": (2, 1), "down": (2, -1)}
"""The place of each in a geometry's rows, and its sign."""
_EXAMPLE = '["right", "front", "up"]'


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
        if len(positions) > MAX_MICROPHONES:
            raise InputError(f"there are {len(positions)} microphones; expected at most {MAX_MICROPHONES}")
        if not np.isfinite(positions).all():
            raise InputError("a microphone position is not a finite number")
        if np.abs(positions).max() > MAX_DISTANCE:
            raise InputError(f"a microphone is {np.abs(positions).max():g} m from the origin: are the units right?")
        object.__setattr__(self, "microphones", positions)
        apart = np.linalg.norm(positions[:, None] - positions, axis=-1)
        np.fill_diagonal(apart, np.inf)
        first, second = (int(i) for i in np.unravel_index(apart.argmin(), apart.shape))
        if apart.min() < _MIN_SPACING:
            raise InputError(
                f"microphones {first} and {second} are {apart.min():g} m apart; expected at least {_MIN_SPACING:g} m: "
                "are the units right?"
            )
        if self.aperture > _MAX_APERTURE:
            raise InputError(
                f"the microphones span {self.aperture:g} m; expected at most {_MAX_APERTURE:g} m: are the units right?"
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
        return spanned_dimensions(self.microphones - self.microphones.mean(axis=0))

    @property
    def cannot_tell(self) -> str | None:
        """Which directions sound the same to this array; None: all differ."""
        return indistinguishable(self.dimensions, "the microphones")


def spanned_dimensions(vectors: Floats) -> int:
    """1: all along one line, 2: in a plane, 3: neither; up to what is too thin to count. Shape: (N, 3)"""
    extents = np.linalg.svd(vectors, compute_uv=False)
    return int((extents > _MIN_EXTENT * extents[0]).sum())


def indistinguishable(dimensions: int, what: str) -> str | None:
    """Which directions sound the same to what lies on a line or in a plane; None: all differ."""
    return {
        1: f"directions at the same angle to the line of {what} (a cone around it)",
        2: f"a direction from its mirror image behind the plane of {what}",
    }.get(dimensions)


def read_geometry(path: str | Path) -> Geometry:
    """The geometry in a TOML or CSV file."""
    path = Path(check_name("file of a geometry", path, "a path"))
    rows, units, axes = (_csv if path.suffix.lower() == ".csv" else _toml)(path, read_text(path))
    if not isinstance(units, str) or units not in UNITS:
        raise InputError(f"{path}: units = {units!r:.60}; expected one of {', '.join(UNITS)}")
    places = _places(path, axes)
    try:
        given = np.array(rows, dtype=np.float64).reshape(len(rows), 3) * UNITS[units]
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{path}: microphones must be a list of three numbers each") from None
    positions = np.empty_like(given)
    for column, (place, sign) in enumerate(places):
        positions[:, place] = sign * given[:, column]
    try:
        return Geometry(positions, path.stem)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def write_geometry(geometry: Geometry, path: str | Path) -> Path:
    """A geometry as `read_geometry` reads it: TOML, or CSV where the name ends so, in metres."""
    path = Path(check_name("file of a geometry", path, "a path"))
    axes = ("front", "left", "up")
    rows = [[round(float(x), 6) + 0.0 for x in place] for place in geometry.microphones]
    if path.suffix.lower() == ".csv":
        lines = [",".join(f"{axis}_m" for axis in axes), *(",".join(map(str, row)) for row in rows)]
    elif path.suffix.lower() == ".toml":
        quoted = ", ".join(f'"{axis}"' for axis in axes)
        lines = [
            f"# {MARK}",
            'units = "m"',
            f"axes = [{quoted}]",
            "microphones = [",
            *(f"  {row}," for row in rows),
            "]",
        ]
    else:
        raise InputError(f"cannot write a geometry to {path}: expected a name that ends in .toml or .csv")
    return write_whole(path, lambda target: target.write_text("\n".join(lines) + "\n", encoding="utf-8"))


def _places(path: Path, axes: Any) -> list[tuple[int, int]]:
    known = (
        isinstance(axes, Sequence)
        and not isinstance(axes, str)
        and all(isinstance(name, str) and name in AXES for name in axes)
    )
    places = [AXES[name] for name in axes] if known else []
    if sorted(place for place, _ in places) != [0, 1, 2]:
        raise InputError(
            f"{path}: axes = {axes!r:.60}; expected three such as {_EXAMPLE}: one of front and back, one of left and "
            "right, one of up and down"
        )
    return places


def _toml(path: Path, text: str) -> tuple[Any, Any, Any]:
    content = parse_toml(text, str(path))
    if "units" not in content:
        raise InputError(f'{path} does not say its units: add a line units = "m" (or "cm", "mm")')
    if "axes" not in content:
        raise InputError(f"{path} does not say its axes: add a line axes = {_EXAMPLE}, where each number points")
    rows = content.get("microphones")
    if not isinstance(rows, list):
        raise InputError(f"{path} has no microphones: add microphones = [[0, 0, 0], ...], one for each channel")
    return rows, content["units"], content["axes"]


def _csv(path: Path, text: str) -> tuple[Any, Any, Any]:
    rows = [row for _, row in table_rows(text.splitlines(), str(path))]
    heading = [name.strip().lower() for name in rows[0]] if rows else []
    parts = [name.partition("_") for name in heading]
    if len(parts) != 3 or len({unit for *_, unit in parts}) != 1 or not parts[0][2]:
        raise InputError(
            f"{path} begins with {','.join(heading)!r:.60}; expected three columns that say axis and units, such as "
            "right_cm,front_cm,up_cm"
        )
    return rows[1:], parts[0][2], [axis for axis, *_ in parts]
