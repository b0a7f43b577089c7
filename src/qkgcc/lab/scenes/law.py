"""The law of the `general` distribution: every probability and every range, in one table that the docs print.

A model for any pair of microphones has to have met what pairs meet: DESIGN 5.4 lists it, this says how often.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = ("speech", "music", "noise", "clicks", "tones")


def _row(value: float | tuple[float, ...], meaning: str) -> Any:
    return field(default=value, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Law:
    """A number is a probability, a pair of numbers a range. `dataclasses.replace` gives a law with less or more of it:
    what is drawn of everything else stays the same."""

    speech: float = _row(0.5, "source: a talker; kinds that a catalog lacks leave their share to the others")
    music: float = _row(0.15, "source: music")
    noise: float = _row(0.15, "source: noise")
    clicks: float = _row(0.1, "source: clicks, claps or knocks, 5 to 25 a second (synthetic)")
    tones: float = _row(0.1, "source: a tone (20 %), a harmonic complex (50 %), sweeps (30 %) (synthetic)")
    steady: float = _row(0.3, "a noise source is steady and synthetic, else from a bank")

    width: tuple[float, float] = _row((3.0, 10.0), "m, room, uniform")
    depth: tuple[float, float] = _row((3.0, 8.0), "m, room, uniform")
    height: tuple[float, float] = _row((2.4, 4.0), "m, room, uniform")
    dry: float = _row(0.1, "no walls at all: T60 0")
    t60: tuple[float, float] = _row((0.0, 1.2), "s, uniform over the part of it that the room can have")
    spacing: tuple[float, float] = _row((0.03, 2.0), "m, log-uniform; any position and orientation")

    near: float = _row(0.25, "a source stands close to a microphone, else anywhere beyond 0.3 m")
    distance: tuple[float, float] = _row((0.2, 1.0), "m from that microphone, log-uniform")
    moving: float = _row(0.1, "a source walks on a straight, level line for 2 s")
    speed: tuple[float, float] = _row((0.1, 1.0), "m/s, uniform")

    one_interferer: float = _row(0.2, "exactly one other source, at rest or walking like the first")
    two_interferers: float = _row(0.05, "exactly two other sources")
    talker: float = _row(0.7, "an interferer is a talker, else of any kind as above")
    interference: tuple[float, float] = _row((-20.0, 0.0), "dB at the microphones against the first source, uniform")

    snr: tuple[float, float] = _row((0.0, 30.0), "dB at microphone 1, uniform")
    diffuse: float = _row(0.5, "the noise is a diffuse field, else each microphone's own")
    coloured: float = _row(0.6, "the noise is coloured, else white")
    slope: tuple[float, float] = _row((-6.0, 3.0), "dB per octave of coloured noise, uniform")

    unequal_gains: float = _row(0.5, "each microphone has a gain of its own")
    gain: tuple[float, float] = _row((-6.0, 6.0), "dB, uniform")
    unequal_responses: float = _row(0.5, "each microphone has a response of its own: a tilt and a bump")
    tilt: tuple[float, float] = _row((-3.0, 3.0), "dB from the lowest to the highest frequencies, uniform")
    peak: tuple[float, float] = _row((-3.0, 3.0), "dB of the bump, uniform")
    peak_frequency: tuple[float, float] = _row((200.0, 6000.0), "Hz of the bump, log-uniform")
    misplaced: float = _row(0.5, "microphones are not where they are believed to be")
    position_error: float = _row(0.002, "m, standard deviation in each coordinate (no probability)")
    clipping: float = _row(0.1, "the recording is clipped")
    clipped: tuple[float, float] = _row((0.001, 0.05), "share of the samples that are, log-uniform")
    telephone: float = _row(0.05, "300 to 3400 Hz pass")
    resampled: float = _row(0.05, "the recording was at 8 kHz once: nothing above 3.8 kHz")
    narrow: float = _row(0.05, "low and high cut as drawn")
    low_cut: tuple[float, float] = _row((50.0, 500.0), "Hz, log-uniform")
    high_cut: tuple[float, float] = _row((2500.0, 7500.0), "Hz, log-uniform")
    level: tuple[float, float] = _row((-45.0, -15.0), "dB of full scale, RMS of every recording, uniform")


GENERAL = Law()

PLAIN = replace(
    GENERAL,
    speech=1.0,
    music=0.0,
    noise=0.0,
    clicks=0.0,
    tones=0.0,
    dry=0.0,
    t60=(0.15, 1.1),
    spacing=(0.15, 1.0),
    near=0.1,
    moving=0.0,
    one_interferer=0.0,
    two_interferers=0.0,
    diffuse=0.1,
    coloured=0.2,
    unequal_gains=0.3,
    unequal_responses=0.3,
    clipping=0.03,
    telephone=0.02,
    resampled=0.02,
    narrow=0.02,
)
"""A talker who stands in a room, microphones some way apart, mostly the microphones' own white noise: a small part of
`GENERAL`, and what most people measure. A training may have more of it (`Config.plain`)."""


def table(law: Any = GENERAL) -> str:
    """This law, or another dataclass whose fields say what they mean, as a table in Markdown.

    >>> print(table().splitlines()[2])
    | speech | 0.5 | source: a talker; kinds that a catalog lacks leave their share to the others |
    """
    lines = ["| | probability or range | meaning |", "|---|---|---|"]
    for row in fields(law):
        value = getattr(law, row.name)
        text = " to ".join(f"{v:g}" for v in value) if isinstance(value, tuple) else f"{value:g}"
        lines.append(f"| {row.name} | {text} | {row.metadata['meaning']} |")
    return "\n".join(lines)


def between(ends: tuple[Any, Any], number: npt.NDArray[np.float64]) -> Any:
    """Numbers in [0, 1) spread over a range."""
    low, high = ends
    return low + (high - low) * number


def log_between(ends: tuple[float, float], number: npt.NDArray[np.float64]) -> Any:
    """Numbers in [0, 1) spread over a range, each octave alike."""
    low, high = ends
    return low * (high / low) ** number
