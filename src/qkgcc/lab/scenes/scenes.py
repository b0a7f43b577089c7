"""A scene: a room, microphones, sources that may move, noise. Frozen, checked, drawn from (distribution, seed, index).

What is heard in it is rendered elsewhere (`engines`, `mixing`, `render`); what spoils it is a `Degradations`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.lab.rooms.degradations import Degradations, frozen
from qkgcc.lab.rooms.noise import NOISES
from qkgcc.lab.rooms.shoebox import sabine, sabine_t60

MAX_MICROPHONES = 16
MAX_SOURCES = 3
MIN_SOURCE_DISTANCE = 1e-4
"""Metres that a source keeps from every microphone."""


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
        object.__setattr__(self, "path", frozen(self.path, 2))
        object.__setattr__(self, "times", frozen(self.times, 1))
        rising = np.isfinite(self.times).all() and (np.diff(self.times) > 0).all()
        if self.path.shape != (len(self.times), 3) or not rising:
            raise InputError(
                f"a path of {len(self.path)} points with {self.path.shape[-1]} coordinates does not fit "
                f"{len(self.times)} rising times"
            )
        if not math.isfinite(self.level):
            raise InputError(f"the level of a source is {self.level:g} dB; expected a finite number")
        if not 0 <= self.start <= 1:
            raise InputError(f"a source starts at {self.start:g} of its signal; expected 0 (its beginning) to 1")

    @property
    def moving(self) -> bool:
        return bool((self.path != self.path[0]).any())


@dataclass(frozen=True, eq=False)
class Scene:
    """One draw of a distribution. Positions in metres from a corner of the room."""

    room: Floats
    t60: float | None
    """Seconds, as asked of Sabine's formula; 0 is an open field. None: the walls are given by `absorption`."""
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
    absorption: float | None = None
    """Share of the energy that the walls absorb, instead of a T60."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "room", frozen(self.room, 1))
        object.__setattr__(self, "microphones", frozen(self.microphones, 2))
        if (self.t60 is None) == (self.absorption is None):
            given = "both" if self.absorption is not None else "neither"
            raise InputError(f"a room has a T60 or an absorption of its walls; got {given}: give one, the other None")
        _ = self.walls  # says so if the room cannot have it
        if not 1 <= len(self.microphones) <= MAX_MICROPHONES or self.microphones.shape[-1] != 3:
            raise InputError(f"microphones have shape {self.microphones.shape}; expected (1 to {MAX_MICROPHONES}, 3)")
        if not 1 <= len(self.sources) <= MAX_SOURCES:
            raise InputError(f"{len(self.sources)} sources; expected 1 to {MAX_SOURCES}")
        if self.noise not in NOISES:
            raise InputError(f"unknown noise {self.noise!r}; known are {', '.join(NOISES)}")
        if not self.sample_rate > 0:
            raise InputError(f"the sample rate is {self.sample_rate:g} Hz; expected more than 0, such as 16000")
        for what, value, unit in (("SNR", self.snr, "dB"), ("slope of the noise", self.noise_slope, "dB per octave")):
            if not math.isfinite(value):
                raise InputError(f"the {what} is {value:g} {unit}; expected a finite number")
        spoiled = self.degradations
        each = (spoiled.gain, spoiled.tilt, spoiled.peak, spoiled.peak_frequency, spoiled.position_error)
        if any(len(values) not in (1, len(self.microphones)) for values in each):
            raise InputError(f"degradations of {max(map(len, each))} microphones in a scene of {len(self.microphones)}")
        self._check_places()

    def _check_places(self) -> None:
        """Everything is inside the room, and no source where a microphone is: it would be infinitely loud there."""
        places = [("microphone", i, place[None]) for i, place in enumerate(self.microphones)]
        places += [("source", i, source.path) for i, source in enumerate(self.sources)]
        for what, number, path in places:
            outside = ~((path > 0) & (path < self.room)).all(axis=1)
            if outside.any():
                size = " x ".join(f"{x:g}" for x in self.room)
                raise InputError(
                    f"{what} {number} at {_format_place(path[outside][0])} is outside the room of {size} m"
                )
        for number, source in enumerate(self.sources):
            gaps = np.linalg.norm(source.path[:, None] - self.microphones, axis=-1)
            if gaps.min() < MIN_SOURCE_DISTANCE:
                point, microphone = np.unravel_index(gaps.argmin(), gaps.shape)
                raise InputError(
                    f"source {number} at {_format_place(source.path[point])} is where microphone {microphone} is; "
                    f"keep them {MIN_SOURCE_DISTANCE:g} m apart or more"
                )

    @property
    def walls(self) -> tuple[float, float, int]:
        """Absorption, T60 in seconds and order of the images: one of the first two was given, the rest is Sabine's."""
        if self.absorption is not None:
            return self.absorption, *sabine_t60(self.absorption, self.room, self.speed_of_sound)
        t60 = self.t60 or 0.0
        absorption, order = sabine(t60, self.room, self.speed_of_sound)
        return absorption, t60, order

    @property
    def nominal_microphones(self) -> Floats:
        """(M, 3) metres: where the microphones are believed to be."""
        return self.microphones - self.degradations.position_error

    def delay(self, source: int = 0, pair: tuple[int, int] = (0, 1)) -> Any:
        """True delays in samples at each point of a source's path, positive = the pair's first microphone later."""
        paths = np.linalg.norm(self.sources[source].path[:, None] - self.microphones[list(pair)], axis=-1)
        return (paths[:, 0] - paths[:, 1]) * self.sample_rate / self.speed_of_sound


def _format_place(place: Floats) -> str:
    return f"({', '.join(f'{x:g}' for x in place)}) m"
