"""A scene: a room, microphones, sources that may move, noise. Frozen, checked, drawn from (distribution, seed, index).

What is heard in it is rendered elsewhere (`engines`, `mixing`, `render`); what spoils it is a `Degradations`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.errors import InputError
from qkgcc.simulate.degradations import Degradations
from qkgcc.simulate.noise import NOISES
from qkgcc.simulate.rooms import sabine

MAX_MICROPHONES = 16
MAX_SOURCES = 3

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Source:
    """A sound at rest (one point) or on its way along several points."""

    signal: str
    """Id of its signal in a bank, or a synthetic one (`signals`)."""
    path: Floats
    """(P, 3) metres."""
    times: Floats = field(default_factory=lambda: np.zeros(1))
    """(P,) seconds at which it is at each point; in between, it is cross-faded from one to the next."""
    level: float = 0.0
    """dB relative to the first source: of the power over all microphones, for the truth is the loudest there."""
    start: float = 0.0
    """Where in a signal longer than needed it begins: 0 at its beginning, 1 as late as possible."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", np.atleast_2d(np.asarray(self.path, dtype=np.float64)))
        object.__setattr__(self, "times", np.atleast_1d(np.asarray(self.times, dtype=np.float64)))
        if self.path.shape != (len(self.times), 3) or not (np.diff(self.times) > 0).all():
            raise InputError(
                f"a path of {len(self.path)} points with {self.path.shape[-1]} coordinates does not fit "
                f"{len(self.times)} rising times"
            )


@dataclass(frozen=True, eq=False)
class Scene:
    """One draw of a distribution. Positions in metres from a corner of the room."""

    room: Floats
    t60: float
    """Seconds, as asked of Sabine's formula; 0 is an open field."""
    microphones: Floats
    """(M, 3), where they truly are."""
    sources: tuple[Source, ...]
    snr: float
    """dB at microphone 1: of the first source against the noise."""
    noise: str = "independent"
    """Of each microphone alone, or `diffuse`."""
    noise_slope: float = 0.0
    """dB per octave of the noise's power; 0 is white."""
    degradations: Degradations = field(default_factory=Degradations)
    seed: int = 0
    """Of the noise."""
    sample_rate: int = 16000
    speed_of_sound: float = SPEED_OF_SOUND

    def __post_init__(self) -> None:
        object.__setattr__(self, "room", np.asarray(self.room, dtype=np.float64))
        object.__setattr__(self, "microphones", np.atleast_2d(np.asarray(self.microphones, dtype=np.float64)))
        sabine(self.t60, self.room, self.speed_of_sound)  # says so if the room cannot have it
        if not 1 <= len(self.microphones) <= MAX_MICROPHONES or self.microphones.shape[-1] != 3:
            raise InputError(f"microphones have shape {self.microphones.shape}; expected (1 to {MAX_MICROPHONES}, 3)")
        if not 1 <= len(self.sources) <= MAX_SOURCES:
            raise InputError(f"{len(self.sources)} sources; expected 1 to {MAX_SOURCES}")
        if self.noise not in NOISES:
            raise InputError(f"unknown noise {self.noise!r}; known are {', '.join(NOISES)}")
        spoiled = self.degradations
        each = (spoiled.gain, spoiled.tilt, spoiled.peak, spoiled.peak_frequency, spoiled.position_error)
        if any(len(values) not in (1, len(self.microphones)) for values in each):
            raise InputError(f"degradations of {max(map(len, each))} microphones in a scene of {len(self.microphones)}")
        places = [("microphone", i, place) for i, place in enumerate(self.microphones)]
        places += [("source", i, place) for i, source in enumerate(self.sources) for place in source.path]
        for what, number, place in places:
            if not ((place > 0) & (place < self.room)).all():
                where = ", ".join(f"{x:g}" for x in place)
                size = " x ".join(f"{x:g}" for x in self.room)
                raise InputError(f"{what} {number} at ({where}) m is outside the room of {size} m")

    @property
    def absorption(self) -> float:
        return sabine(self.t60, self.room, self.speed_of_sound)[0]

    @property
    def order(self) -> int:
        return sabine(self.t60, self.room, self.speed_of_sound)[1]

    @property
    def nominal_microphones(self) -> Floats:
        """(M, 3) metres: where the microphones are believed to be."""
        return self.microphones - self.degradations.position_error

    def delay(self, source: int = 0, pair: tuple[int, int] = (0, 1)) -> Any:
        """True delays in samples at each point of a source's path, positive = the pair's first microphone later."""
        paths = np.linalg.norm(self.sources[source].path[:, None] - self.microphones[list(pair)], axis=-1)
        return (paths[:, 0] - paths[:, 1]) * self.sample_rate / self.speed_of_sound
