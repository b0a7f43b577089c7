"""The general distribution: any room, any pair, any source, and what spoils recordings, as its `Law` says.

A model for any pair of microphones has to have met what pairs meet. The law is every probability and every range, in
one table that the docs print.

Scenes are drawn in arrays, a row each, so that thousands cost little more than one; every row is a pure function of
(law, seed, index). A quantity is one column of one named stream. A new one takes a free column or a new stream, and
moves nothing that was drawn before it.

Microphones are placed by construction. Sources are redrawn, each try from a stream of its own, until they keep their
distance; only the rooms still without one are drawn again, so a room's place does not depend on the others beside it.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats
from qkgcc.lab.rooms.degradations import TILT_CENTRE, Degradations
from qkgcc.lab.rooms.draws import normal, stream, uniform
from qkgcc.lab.rooms.shoebox import sabine_many
from qkgcc.lab.scenes.scenes import MAX_MICROPHONES, MAX_SOURCES, Scene, Source
from qkgcc.lab.scenes.signals import SYNTHETIC_NUMBERS, Catalog

SOURCE_KINDS = ("speech", "music", "noise", "clicks", "tones")
SECONDS = 2.0
"""How long a source moves; then it rests."""
STEP = 0.005
"""Metres between the points of a path: at most a quarter of a sample of delay at 16 kHz. Half-way between two of them
both sound at once, and coarser steps would comb the high frequencies out: this one costs 0.5 dB at 7 kHz."""
TELEPHONE = (300.0, 3400.0)
"""Hz"""
RESAMPLED = (0.0, 3800.0)
"""Hz: what an 8 kHz recording holds, with the transition band of its filter taken off."""
WALL = 0.2
"""Metres from any wall."""
NEAREST_NEAR, NEAREST_FAR = 0.2, 0.3
"""Metres from any microphone, of sources that are to be near and of the others."""

_PLACEMENT_TRIES = 2000  # even the worst room, a fast walk in a narrow one, is found in a few dozen
_COLUMNS = np.arange(16)  # of a stream
_OF_MICROPHONES = np.arange(4 * MAX_MICROPHONES)  # gain, tilt, peak and its frequency of each

Draw = Callable[..., Floats]
"""From the name of a stream and, where not all, the rows to the numbers of its columns. Shape: (rows, columns)"""


def entry(value: float | tuple[float, ...], meaning: str) -> Any:
    """A field of a law: its default, and what it means."""
    return field(default=value, metadata={"meaning": meaning})


@dataclass(frozen=True)
class Law:
    """A number is a probability, a pair of numbers a range. `dataclasses.replace` gives a law with less or more of it:
    what is drawn of everything else stays the same."""

    speech: float = entry(0.5, "source: a talker; kinds that a catalog lacks leave their share to the others")
    music: float = entry(0.15, "source: music")
    noise: float = entry(0.15, "source: noise")
    clicks: float = entry(0.1, "source: clicks, claps or knocks, 5 to 25 a second (synthetic)")
    tones: float = entry(0.1, "source: a tone (20 %), a harmonic complex (50 %), sweeps (30 %) (synthetic)")
    steady: float = entry(0.3, "a noise source is steady and synthetic, else from a bank")

    width: tuple[float, float] = entry((3.0, 10.0), "m, room, uniform")
    depth: tuple[float, float] = entry((3.0, 8.0), "m, room, uniform")
    height: tuple[float, float] = entry((2.4, 4.0), "m, room, uniform")
    dry: float = entry(0.1, "no walls at all: T60 0")
    t60: tuple[float, float] = entry((0.0, 1.2), "s, uniform over the part of it that the room can have")
    spacing: tuple[float, float] = entry((0.03, 2.0), "m, log-uniform; any position and orientation")

    near: float = entry(0.25, "a source stands close to a microphone, else anywhere beyond 0.3 m")
    distance: tuple[float, float] = entry((0.2, 1.0), "m from that microphone, log-uniform")
    moving: float = entry(0.1, "a source walks on a straight, level line for 2 s")
    speed: tuple[float, float] = entry((0.1, 1.0), "m/s, uniform")

    one_interferer: float = entry(0.2, "exactly one other source, at rest or walking like the first")
    two_interferers: float = entry(0.05, "exactly two other sources")
    talker: float = entry(0.7, "an interferer is a talker, else of any kind as above")
    interference: tuple[float, float] = entry((-20.0, 0.0), "dB at the microphones against the first source, uniform")

    snr: tuple[float, float] = entry((0.0, 30.0), "dB at microphone 1, uniform")
    diffuse: float = entry(0.5, "the noise is a diffuse field, else each microphone's own")
    coloured: float = entry(0.6, "the noise is coloured, else white")
    slope: tuple[float, float] = entry((-6.0, 3.0), "dB per octave of coloured noise, uniform")

    unequal_gains: float = entry(0.5, "each microphone has a gain of its own")
    gain: tuple[float, float] = entry((-6.0, 6.0), "dB, uniform")
    unequal_responses: float = entry(0.5, "each microphone has a response of its own: a tilt and a bump")
    tilt: tuple[float, float] = entry((-3.0, 3.0), "dB from the lowest to the highest frequencies, uniform")
    peak: tuple[float, float] = entry((-3.0, 3.0), "dB of the bump, uniform")
    peak_frequency: tuple[float, float] = entry((200.0, 6000.0), "Hz of the bump, log-uniform")
    misplaced: float = entry(0.5, "microphones are not where they are believed to be")
    position_error: float = entry(0.002, "m, standard deviation in each coordinate (no probability)")
    clipping: float = entry(0.1, "the recording is clipped")
    clipped: tuple[float, float] = entry((0.001, 0.05), "share of the samples that are, log-uniform")
    telephone: float = entry(0.05, "300 to 3400 Hz pass")
    resampled: float = entry(0.05, "the recording was at 8 kHz once: nothing above 3.8 kHz")
    narrow: float = entry(0.05, "low and high cut as drawn")
    low_cut: tuple[float, float] = entry((50.0, 500.0), "Hz, log-uniform")
    high_cut: tuple[float, float] = entry((2500.0, 7500.0), "Hz, log-uniform")
    level: tuple[float, float] = entry((-45.0, -15.0), "dB of full scale, RMS of every recording, uniform")


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


def law_table(law: Any = GENERAL) -> str:
    """This law, or another dataclass whose fields say what they mean, as a table in Markdown.

    >>> print(law_table().splitlines()[2])
    | speech | 0.5 | source: a talker; kinds that a catalog lacks leave their share to the others |
    """
    lines = ["| | probability or range | meaning |", "|---|---|---|"]
    for row in fields(law):
        value = getattr(law, row.name)
        text = " to ".join(f"{v:g}" for v in value) if isinstance(value, tuple) else f"{value:g}"
        lines.append(f"| {row.name} | {text} | {row.metadata['meaning']} |")
    return "\n".join(lines)


def between(ends: tuple[Any, Any], number: Floats) -> Any:
    """Numbers in [0, 1) spread over a range."""
    low, high = ends
    return low + (high - low) * number


def log_between(ends: tuple[float, float], number: Floats) -> Any:
    """Numbers in [0, 1) spread over a range, each octave alike."""
    low, high = ends
    return low * (high / low) ** number


def unit_vectors(numbers: Floats) -> Floats:
    """Unit vectors, uniform over the sphere. Shape: (..., 2) in [0, 1) -> (..., 3)."""
    height = 2 * numbers[..., 0] - 1
    around = 2 * math.pi * numbers[..., 1]
    wide = np.sqrt(1 - height**2)
    return np.stack([wide * np.cos(around), wide * np.sin(around), height], axis=-1)


def place_pairs(rooms: Floats, spacing: Floats, numbers: Floats) -> Floats:
    """Two microphones each, at any place and in any orientation that leaves both off the walls.

    Sides of 2.4 m and more have room for a spacing of 2 m, however it is turned.
    Shape: (B, 3), (B,), (B, 5) -> (B, 2, 3)
    """
    half = spacing[:, None] / 2 * unit_vectors(numbers[:, 3:5])
    margin = WALL + np.abs(half)
    centre = margin + (rooms - 2 * margin) * numbers[:, :3]
    return np.stack([centre - half, centre + half], axis=1)


def place_arrays(rooms: Floats, aperture: Floats, numbers: Floats, others: Floats) -> Floats:
    """Pairs as above and further microphones, uniform in the ball of which each pair is a diameter.

    Shape: (B, 3), (B,), (B, 5), (B, M - 2, 3) -> (B, M, 3)
    """
    radius = aperture[:, None] / 2
    centre = WALL + radius + (rooms - 2 * (WALL + radius)) * numbers[:, :3]
    half = radius * unit_vectors(numbers[:, 3:5])
    inside = radius[:, None] * others[..., 2:] ** (1 / 3) * unit_vectors(others[..., :2])
    return np.concatenate([(centre - half)[:, None], (centre + half)[:, None], centre[:, None] + inside], axis=1)


def place_sources(
    rooms: Floats,
    microphones: Floats,
    near: Bools,
    distance: Floats,
    travel: Floats,
    draw: Callable[[int, npt.NDArray[np.int64]], Floats],
) -> tuple[Floats, Floats]:
    """First and last place of a source in each room. It moves on a level line of length `travel`, 0 for one at rest.

    A near source begins at `distance` (at most 1 m) from one of the microphones, the others anywhere in the room.

    Args:
        draw: from the number of the try and the rows that still need a place to 5 numbers each.
    Shape: (B, 3), (B, M, 3), (B,), (B,), (B,) -> (B, 3), (B, 3)
    """
    first, last = np.empty_like(rooms), np.empty_like(rooms)
    rows = np.arange(len(rooms))
    for attempt in range(_PLACEMENT_TRIES):
        if not len(rows):
            return first, last
        numbers = draw(attempt, rows)
        room, array, close = rooms[rows], microphones[rows], near[rows]
        start = WALL + (room - 2 * WALL) * numbers[:, :3]
        if close.any():
            start[close] = _places_beside(room[close], array[close], distance[rows][close], numbers[close])
        heading = 2 * math.pi * numbers[:, 4]
        level = np.stack([np.cos(heading), np.sin(heading), np.zeros_like(heading)], axis=-1)
        end = start + travel[rows, None] * level
        free = ((end >= WALL) & (end <= room - WALL)).all(axis=1)
        free &= _nearest_distance(start, end, array) >= np.where(close, NEAREST_NEAR - 1e-9, NEAREST_FAR)
        first[rows[free]], last[rows[free]] = start[free], end[free]
        rows = rows[~free]
    raise RuntimeError(f"no place for a source in a room of {rooms[rows[0]]} m after {_PLACEMENT_TRIES} tries")


def _places_beside(room: Floats, array: Floats, distance: Floats, numbers: Floats) -> Floats:
    """A place at a distance from a microphone. Where that is beyond a wall, the other side of the microphone is not."""
    chosen = (numbers[:, 3] * array.shape[1]).astype(np.int64)
    microphone = np.take_along_axis(array, chosen[:, None, None], axis=1)[:, 0]
    away = distance[:, None] * unit_vectors(numbers[:, :2])
    place = microphone + away
    beyond = (place < WALL) | (place > room - WALL)
    return np.where(beyond, microphone - away, place)


def _nearest_distance(start: Floats, end: Floats, array: Floats) -> Any:
    """Shortest distance between the line from start to end and any microphone.

    Shape: (B, 3), (B, 3), (B, M, 3) -> (B,)
    """
    along = (end - start)[:, None]
    length = np.maximum((along**2).sum(axis=-1), 1e-12)
    share = np.clip(((array - start[:, None]) * along).sum(axis=-1) / length, 0, 1)
    return np.linalg.norm(start[:, None] + share[..., None] * along - array, axis=-1).min(axis=1)


def draw_sources(law: Law, catalog: Catalog, room: Floats, microphones: Floats, draw: Draw) -> dict[str, Any]:
    """The columns signal, start, interference, first and last of `general.Scenes`."""
    scenes = len(room)
    signal = np.full((scenes, MAX_SOURCES), "", dtype=object)
    start, interference = np.zeros((2, scenes, MAX_SOURCES))
    first, last = np.zeros((2, scenes, MAX_SOURCES, 3))
    crowd = draw("crowd")[:, 0]
    for s in range(MAX_SOURCES):
        share = (1.0, law.one_interferer + law.two_interferers, law.two_interferers)[s]
        rows = np.flatnonzero(crowd < share)
        if not len(rows):
            break
        numbers = draw(f"source/{s}", rows)
        talks = (numbers[:, 0] < law.talker) & (s > 0)
        signal[rows, s] = _draw_signals(law, catalog, talks, numbers[:, 1:4])
        start[rows, s] = numbers[:, 4]
        interference[rows, s] = between(law.interference, numbers[:, 5]) if s else 0.0
        near, distance = numbers[:, 6] < law.near, log_between(law.distance, numbers[:, 7])
        travel = np.where(numbers[:, 8] < law.moving, SECONDS * between(law.speed, numbers[:, 9]), 0.0)

        def place(attempt: int, left: npt.NDArray[np.int64], s: int = s, rows: Any = rows) -> Floats:
            return draw(f"place/{s}/{attempt}", rows[left])

        first[rows, s], last[rows, s] = place_sources(room[rows], microphones[rows], near, distance, travel, place)
    return {"signal": signal, "start": start, "interference": interference, "first": first, "last": last}


def _draw_signals(law: Law, catalog: Catalog, talks: Bools, numbers: Floats) -> npt.NDArray[np.object_]:
    """Ids: of a kind, then of its list, or synthetic. Shape: (B,), (B, 3) -> (B,)."""
    recorded = {"speech": catalog.speech, "music": catalog.music, "noise": catalog.noise}
    there = [kind not in ("speech", "music") or bool(recorded[kind]) for kind in SOURCE_KINDS]
    shares = np.where(there, [getattr(law, kind) for kind in SOURCE_KINDS], 0.0)
    if not shares.sum() > 0:
        raise InputError("the catalog holds no signal of the kinds that the law asks for")
    kinds = np.searchsorted(np.cumsum(shares / shares.sum())[:-1], numbers[:, 0], side="right")
    if catalog.speech:
        kinds = np.where(talks, SOURCE_KINDS.index("speech"), kinds)
    steady = numbers[:, 2] < law.steady
    ids = np.empty(len(numbers), dtype=object)
    for i, (kind, number) in enumerate(zip(kinds.tolist(), numbers[:, 1].tolist(), strict=True)):
        name = SOURCE_KINDS[kind]
        signals = recorded.get(name, ())
        if signals and not (name == "noise" and steady[i]):
            ids[i] = signals[int(number * len(signals))]
        else:
            ids[i] = f"{name}:{int(number * SYNTHETIC_NUMBERS)}"
    return ids


@dataclass(frozen=True, eq=False)
class Scenes:
    """B scenes with M microphones and up to 3 sources each, as arrays. The truth is the delay of the first source."""

    seed: int
    index: npt.NDArray[np.int64]
    room: Floats
    """(B, 3) metres."""
    t60: Floats
    """(B,) seconds."""
    nominal: Floats
    """(B, M, 3) metres: where the microphones are believed to be."""
    position_error: Floats
    """(B, M, 3) metres: where they truly are, less that."""
    signal: npt.NDArray[np.object_]
    """(B, 3) ids, empty where there is no further source; so below."""
    start: Floats
    """(B, 3) where in its signal each source begins, 0 to 1."""
    interference: Floats
    """(B, 3) dB against the first source."""
    first: Floats
    """(B, 3, 3) metres: sources, coordinates; where each is at time 0."""
    last: Floats
    """(B, 3, 3) metres: where it is after `SECONDS`."""
    snr: Floats
    diffuse: Bools
    slope: Floats
    """(B,) dB per octave."""
    gain: Floats
    """(B, M) dB, and so the three below."""
    tilt: Floats
    peak: Floats
    peak_frequency: Floats
    clipped: Floats
    """(B,) share."""
    band: Floats
    """(B, 2) Hz."""
    level: Floats
    """(B,) dB of full scale."""

    @property
    def microphones(self) -> Floats:
        """(B, M, 3) metres: where they truly are."""
        return self.nominal + self.position_error

    def __len__(self) -> int:
        return len(self.index)

    def take(self, rows: npt.NDArray[np.int64]) -> "Scenes":
        """Some of the scenes."""
        columns: Any = {name: column[rows] for name, column in self._columns().items()}
        return dataclasses.replace(self, **columns)

    def replace_rows(self, rows: Bools, others: "Scenes") -> "Scenes":
        """With some of the scenes from others of as many. Shape: (B,)"""
        columns: Any = {name: column.copy() for name, column in self._columns().items()}
        for name, column in columns.items():
            column[rows] = getattr(others, name)[rows]
        return dataclasses.replace(self, **columns)

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "seed"}

    def scene(self, i: int) -> Scene:
        """One row as a scene."""
        sources = tuple(self._source(i, s) for s in range(MAX_SOURCES) if self.signal[i, s])
        return Scene(
            room=self.room[i],
            t60=float(self.t60[i]),
            microphones=self.nominal[i] + self.position_error[i],
            sources=sources,
            snr=float(self.snr[i]),
            noise="diffuse" if self.diffuse[i] else "independent",
            noise_slope=float(self.slope[i]),
            degradations=Degradations(
                gain=self.gain[i],
                tilt=self.tilt[i],
                peak=self.peak[i],
                peak_frequency=self.peak_frequency[i],
                position_error=self.position_error[i],
                clipped=float(self.clipped[i]),
                band=(float(self.band[i, 0]), float(self.band[i, 1])),
                level=float(self.level[i]),
            ),
            seed=stream(f"general/noise-seed/{self.index[i]}", self.seed),
        )

    def _source(self, i: int, s: int) -> Source:
        first, last = self.first[i, s], self.last[i, s]
        points = 1 + int(np.ceil(np.linalg.norm(last - first) / STEP))
        return Source(
            signal=self.signal[i, s],
            path=np.linspace(first, last, points),
            times=np.linspace(0, SECONDS, points),
            level=float(self.interference[i, s]),
            start=float(self.start[i, s]),
        )


def general_scene(seed: int, index: int, catalog: Catalog, *, microphones: int = 2, law: Law = GENERAL) -> Scene:
    """One scene of the distribution."""
    return general_scenes(seed, index, catalog, microphones=microphones, law=law).scene(0)


def general_scenes(
    seed: int, index: npt.ArrayLike, catalog: Catalog, *, microphones: int = 2, law: Law = GENERAL
) -> Scenes:
    """The scenes of the given indices, in arrays."""
    if not 2 <= microphones <= MAX_MICROPHONES:
        raise InputError(f"{microphones} microphones; expected 2 to {MAX_MICROPHONES}")
    number = np.atleast_1d(np.asarray(index, dtype=np.int64))

    def draw(name: str, rows: Any = slice(None), columns: npt.NDArray[np.int64] = _COLUMNS) -> Floats:
        values: Floats = uniform(f"general/{name}", seed, number[rows, None] * len(columns) + columns)
        return values

    numbers = draw("room")
    smallest, largest = np.transpose([law.width, law.depth, law.height])
    room = between((smallest, largest), numbers[:, :3])
    array = draw("array")
    spacing = log_between(law.spacing, array[:, 5])
    if microphones == 2:
        nominal = place_pairs(room, spacing, array)
    else:
        others = np.stack([draw(f"microphone/{m}")[:, :3] for m in range(2, microphones)], axis=1)
        nominal = place_arrays(room, spacing, array, others)

    noise = draw("noise")
    coloured = noise[:, 2] < law.coloured
    recorder = draw("recorder")
    unequal = draw("unequal")
    gains, responses, misplaced = (
        unequal[:, i, None] < p for i, p in enumerate((law.unequal_gains, law.unequal_responses, law.misplaced))
    )
    each = draw("microphones", columns=_OF_MICROPHONES).reshape(-1, 4, MAX_MICROPHONES)[..., :microphones]
    errors = normal(
        stream("general/position-error", seed),
        (number[:, None, None] * MAX_MICROPHONES + np.arange(microphones)[:, None]) * 3 + np.arange(3),
    )
    return Scenes(
        seed=seed,
        index=number,
        room=room,
        t60=np.where(numbers[:, 3] < law.dry, 0.0, _possible_t60(law, room, numbers[:, 4])),
        nominal=nominal,
        position_error=np.where(misplaced[..., None], law.position_error * errors.astype(np.float64), 0.0),
        **draw_sources(law, catalog, room, nominal, draw),
        snr=between(law.snr, noise[:, 0]),
        diffuse=noise[:, 1] < law.diffuse,
        slope=np.where(coloured, between(law.slope, noise[:, 3]), 0.0),
        gain=np.where(gains, between(law.gain, each[:, 0]), 0.0),
        tilt=np.where(responses, between(law.tilt, each[:, 1]), 0.0),
        peak=np.where(responses, between(law.peak, each[:, 2]), 0.0),
        peak_frequency=np.where(responses, log_between(law.peak_frequency, each[:, 3]), TILT_CENTRE),
        clipped=np.where(recorder[:, 0] < law.clipping, log_between(law.clipped, recorder[:, 1]), 0.0),
        band=_draw_bands(law, recorder[:, 2:5]),
        level=between(law.level, recorder[:, 5]),
    )


def _possible_t60(law: Law, room: Floats, number: Floats) -> Floats:
    """Uniform over the times that each room can have: what redrawing the impossible ones comes to, in one draw."""
    low, high = law.t60
    # Sabine's absorption goes with 1 / T60, and is 1 at the shortest.
    shortest = sabine_many(np.full(len(room), high), room)[0] * high * (1 + 1e-9)
    times: Floats = between((np.maximum(low, shortest), high), number)
    return times


def _draw_bands(law: Law, numbers: Floats) -> Floats:
    """Lowest and highest frequency. Shape: (B, 3) -> (B, 2)."""
    bands = np.tile([0.0, np.inf], (len(numbers), 1))
    kind = np.searchsorted(np.cumsum([law.telephone, law.resampled, law.narrow]), numbers[:, 0], side="right")
    bands[kind == 0] = TELEPHONE
    bands[kind == 1] = RESAMPLED
    drawn = np.stack([log_between(law.low_cut, numbers[:, 1]), log_between(law.high_cut, numbers[:, 2])], axis=1)
    return np.where((kind == 2)[:, None], drawn, bands)
