"""Geometries in files that say their units and their axes.

TOML, with the direction of each of the three numbers:

    units = "cm"
    axes = ["right", "front", "up"]
    microphones = [[0, 0, 0], [14, -3, 1], [-3, 11, 4], [5, 4, 12]]

or CSV, with both in the names of its columns, in the order of the channels:

    right_cm,front_cm,up_cm
    0,0,0
    14,-3,1

Nothing is assumed: a geometry in centimetres that is read as metres, or one whose left is another's front, gives no
error, only wrong answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.arrays.geometry import Geometry
from qkgcc.core.checks import check_name
from qkgcc.core.errors import InputError
from qkgcc.core.files import MARK, write_whole
from qkgcc.core.textfiles import parse_toml, read_text, table_rows

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
AXES = {"front": (0, 1), "back": (0, -1), "left": (1, 1), "right": (1, -1), "up": (2, 1), "down": (2, -1)}
"""The place of each in a geometry's rows, and its sign."""
_EXAMPLE = '["right", "front", "up"]'


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
