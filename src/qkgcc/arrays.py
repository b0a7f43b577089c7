"""Where the microphones of an array are: positions in metres, one row a channel, and the TOML file that says so.

    units = "cm"
    microphones = [[0, 0, 0], [14, -3, 1], [-3, 11, 4], [5, 4, 12]]

The file names its units, because a geometry in centimetres that is read as metres gives no error, only wrong answers.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.errors import InputError

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}

_SMALLEST, _LARGEST = 0.001, 100.0  # metres between two microphones; anything else is a slip in the units


@dataclass(frozen=True, eq=False)
class Geometry:
    """Microphone positions; channel k of a recording is meant to be microphone k.

    >>> Geometry(np.array([[0, 0, 0], [0.3, 0.4, 0]])).spacing(0, 1)
    0.5
    """

    microphones: npt.NDArray[np.float64]
    """(M, 3) in metres."""

    def __post_init__(self) -> None:
        positions = np.array(self.microphones, dtype=np.float64)
        if positions.ndim != 2 or positions.shape[1] != 3 or len(positions) < 2:
            raise InputError(
                f"microphones have shape {positions.shape}; expected one row of x, y, z for each of 2 or more of them"
            )
        if not np.isfinite(positions).all():
            raise InputError("a microphone position is not a finite number")
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
        return float(np.linalg.norm(self.microphones[first] - self.microphones[second]))

    @property
    def aperture(self) -> float:
        """Metres between the two microphones that are farthest apart."""
        return float(np.linalg.norm(self.microphones[:, None] - self.microphones, axis=-1).max())


def read_geometry(path: str | Path) -> Geometry:
    """A geometry from a TOML file with `units` ("m", "cm" or "mm") and `microphones`, a list of [x, y, z]."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML file ({error})") from None
    units = content.get("units")
    if units is None:
        raise InputError(f'{path} does not say its units: add a line units = "m" (or "cm", "mm")')
    if not isinstance(units, str) or units not in UNITS:
        raise InputError(f"{path}: units = {units!r}; expected one of {', '.join(UNITS)}")
    rows = content.get("microphones")
    if rows is None:
        raise InputError(f"{path} has no microphones: add microphones = [[x, y, z], ...], one for each channel")
    try:
        positions = np.array(rows, dtype=np.float64) * UNITS[units]
    except (ValueError, TypeError):
        raise InputError(f"{path}: microphones must be a list of [x, y, z], three numbers each") from None
    try:
        return Geometry(positions)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
