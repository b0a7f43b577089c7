"""Arrays by name: two that are sold, and the usual shapes with a size.

respeaker4                square of 4.57 cm
respeaker6                circle of 6, 9.26 cm across
linear:4:0.05             4 in a row from right to left, 5 cm apart
circular:8:0.1            8 on a circle of radius 10 cm, the first in front, counterclockwise
tetrahedral:0.1           3 on the floor, one in front, and one above their middle, all 10 cm apart
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from qkgcc.arrays.geometry import MAX_MICROPHONES, Geometry, read_geometry
from qkgcc.core.checks import check_count, check_name, short_repr
from qkgcc.core.errors import InputError
from qkgcc.core.files import broken_link, exists
from qkgcc.core.types import Floats


def _linear(count: int, spacing: float) -> Floats:
    left = spacing * (np.arange(count) - (count - 1) / 2)
    return np.stack([0 * left, left, 0 * left], axis=1)


def _circular(count: int, radius: float, first: float = 0.0) -> Floats:
    angle = math.radians(first) + 2 * np.pi * np.arange(count) / count
    return radius * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)


def _tetrahedral(edge: float) -> Floats:
    floor = _circular(3, edge / math.sqrt(3))
    corners = np.vstack([floor, [0, 0, edge * math.sqrt(2 / 3)]])
    return np.asarray(corners - corners.mean(axis=0))


FIXED: dict[str, Callable[[], Floats]] = {
    "respeaker4": lambda: _circular(4, 0.02285 * math.sqrt(2), 45.0),
    "respeaker6": lambda: _circular(6, 0.0463),
}
SHAPES: dict[str, tuple[str, Callable[..., Floats]]] = {
    "linear": ("linear:COUNT:METRES between neighbours", _linear),
    "circular": ("circular:COUNT:RADIUS in metres", _circular),
    "tetrahedral": ("tetrahedral:EDGE in metres", _tetrahedral),
}


def array(name: str | Path | Geometry) -> Geometry:
    """A preset by its name, the geometry in a TOML or CSV file, or a `Geometry` as it is.

    >>> array("circular:8:0.1").spacing(0, 4)
    0.2
    """
    if isinstance(name, Geometry):
        return name
    text = check_name("array", name, "the name of a preset, the path of a TOML or CSV file, or a Geometry")
    shape, *sizes = text.split(":")
    if text in FIXED:
        return Geometry(FIXED[text](), text)
    if shape in SHAPES:
        return Geometry(_positions_of_shape(text, shape, sizes), text)
    if Path(text).suffix.lower() in (".toml", ".csv") or exists(text) or broken_link(text):
        return read_geometry(text)
    forms = [*FIXED, *(form for form, _ in SHAPES.values())]
    raise InputError(f"there is no array {short_repr(text)}; there are {', '.join(forms)}, or give a TOML or CSV file")


def _positions_of_shape(text: str, shape: str, sizes: list[str]) -> Floats:
    form, make = SHAPES[shape]
    try:
        *counts, size = sizes
        numbers, metres = [int(count) for count in counts], float(size)
        if len(sizes) != form.count(":"):
            raise ValueError
    except ValueError:
        raise InputError(
            f"the array {short_repr(text)} is not understood; expected {form}, such as {_example(shape)}"
        ) from None
    for number in numbers:
        check_count(f"the number of microphones of {short_repr(text)}", number, 2, MAX_MICROPHONES)
    if not 0 < metres < math.inf:
        raise InputError(
            f"the size of {short_repr(text)} is {metres:g} m; expected more than 0, such as {_example(shape)}"
        )
    return make(*numbers, metres)


def _example(shape: str) -> str:
    return {"linear": "linear:4:0.05", "circular": "circular:8:0.1", "tetrahedral": "tetrahedral:0.1"}[shape]
