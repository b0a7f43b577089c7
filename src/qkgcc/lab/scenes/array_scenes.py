"""Talkers around an array of microphones, for ten seconds: the scenes of `array-test`, drawn from (seed, index).

There is a kind of scene for every array, number of talkers and motion, and scenes take turns: scene i is of kind
i mod 18, so the first 18 n are n of each. T60 and SNR go through their ranges evenly in any of these parts (a sequence
of low discrepancy with a start drawn for each kind), everything else is drawn independently.

A talker is a chain of utterances of one speaker with pauses. It stands, or walks at an even pace along a line or a bow
of constant curvature, level with the floor. Compact arrays lie flat on a table, turned by any angle.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from qkgcc.arrays import Geometry, array
from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.lab.rooms.degradations import Degradations
from qkgcc.lab.rooms.draws import stream, uniform
from qkgcc.lab.scenes.general import between, entry
from qkgcc.lab.scenes.scenes import Scene, Source

SAMPLE_RATE = 16000
SECONDS = 10.0
BLOCKS = 10
"""Of one second each."""
DISTRIBUTED = "distributed"
ARRAYS = ("respeaker4", "circular:8:0.1", DISTRIBUTED)
TALKERS = (1, 2, 3)
STEP = 0.01
"""Metres between the points of a path. Half-way between two of them both sound at once: 2 dB less at 7 kHz, at most."""

_GOLDEN_STEPS = (0.7548776662466927, 0.5698402909980532)  # steps of the two-dimensional golden ratio
_MOMENTS = 101  # at which talkers have to keep apart
_PLACES_AT_ONCE = 64  # places that are tried at once
_TRIES = 5000


@dataclass(frozen=True)
class ArrayLaw:
    width: tuple[float, float] = entry((4.5, 8.0), "m, room, uniform")
    depth: tuple[float, float] = entry((4.0, 7.0), "m, room, uniform")
    height: tuple[float, float] = entry((2.4, 3.5), "m, room, uniform")
    t60: tuple[float, float] = entry((0.2, 1.0), "s, spread evenly")
    snr: tuple[float, float] = entry((0.0, 30.0), "dB at microphone 1, of the first talker, spread evenly")
    diffuse: float = entry(0.5, "the noise is a diffuse field with a slope, else white and each microphone's own")
    slope: tuple[float, float] = entry((-6.0, 0.0), "dB per octave of diffuse noise, uniform")
    level: tuple[float, float] = entry((-35.0, -20.0), "dB of full scale, RMS of the recording, uniform")

    table: tuple[float, float] = entry((0.7, 1.3), "m, height of a compact array, uniform")
    middle: tuple[float, float] = entry((0.3, 0.7), "of width and depth: where a compact array stands, uniform")
    spread: float = entry(1.0, "m between distributed microphones, at least")
    hung: tuple[float, float] = entry((0.5, 2.2), "m, heights of distributed microphones, uniform")

    off_walls: float = entry(0.4, "m from the walls to talkers, at least")
    mouth: tuple[float, float] = entry((1.1, 1.8), "m, height of talkers, uniform")
    distance: tuple[float, float] = entry((0.7, 3.5), "m on the floor between talker and compact array, all the time")
    nearest: float = entry(0.3, "m between talker and any distributed microphone, at least")
    apart: float = entry(25.0, "degrees of azimuth between talkers at a compact array, at least, all the time")
    aside: float = entry(0.8, "m between talkers among distributed microphones, at least, all the time")
    loudness: tuple[float, float] = entry((-3.0, 3.0), "dB of further talkers against the first, uniform")
    speed: tuple[float, float] = entry((0.3, 1.0), "m/s of walking talkers, uniform")
    curvature: tuple[float, float] = entry((-1.2, 1.2), "1/m of their ways, uniform; 0 is a line")
    begin: tuple[float, float] = entry((0.0, 0.5), "s before a talker begins, uniform")
    pause: tuple[float, float] = entry((0.2, 1.2), "s between utterances, uniform")


LAW = ArrayLaw()


@dataclass(frozen=True)
class Kind:
    """What a scene is counted under."""

    array: str
    talkers: int
    moving: bool

    @property
    def compact(self) -> bool:
        """Directions are asked for, not positions."""
        return self.array != DISTRIBUTED


KINDS = tuple(Kind(name, talkers, moving) for name in ARRAYS for talkers in TALKERS for moving in (False, True))


@dataclass(frozen=True, eq=False)
class ArrayScene:
    """A scene, and how the array stands in it."""

    kind: Kind
    scene: Scene
    geometry: Geometry
    """As an estimator is told: of compact arrays in their own axes, of distributed microphones in those of the room."""
    centre: Floats
    """(3,) metres: where the origin of the geometry is in the room."""
    yaw: float
    """Degrees by which its front is turned to the left of the room's first axis."""

    @cached_property
    def truth(self) -> Floats:
        """(talkers, blocks, 3) `places` at the middle of each block."""
        return self.places((np.arange(BLOCKS) + 0.5) * SECONDS / BLOCKS)

    def places(self, times: Floats) -> Floats:
        """Where the sound was made that arrives at some times, in the axes of the geometry, in metres.

        Shape: (T,) -> (talkers, T, 3)
        """
        places = [_places_at(source, self._made_at(source, times)) for source in self.scene.sources]
        return np.asarray((np.stack(places) - self.centre) @ yaw_rotation(self.yaw))

    def speaking(self, times: Floats, utterances: Mapping[str, int]) -> Bools:
        """Whose speech arrives at some times. Shape: (T,) -> (talkers, T)"""
        samples = round(SECONDS * SAMPLE_RATE)
        heard = []
        for source in self.scene.sources:
            made = np.floor(self._made_at(source, times) * SAMPLE_RATE).astype(np.int64)
            inside = (made >= 0) & (made < samples)
            heard.append(inside & spoken_samples(source.signal, utterances)[np.clip(made, 0, samples - 1)])
        return np.stack(heard)

    def _made_at(self, source: Source, times: Floats) -> Floats:
        """When the sound was made that arrives at some times; on its way nobody walks farther than a centimetre."""
        travel = np.linalg.norm(_places_at(source, times) - self.scene.microphones.mean(axis=0), axis=1)
        return np.asarray(times - travel / self.scene.speed_of_sound)


def array_scene(seed: int, index: int, utterances: Mapping[str, int], law: ArrayLaw = LAW) -> ArrayScene:
    """One scene.

    Args:
        utterances: samples of each utterance at 16 kHz; what stands before the first dash of its id is the speaker.
    """
    repeat, number = divmod(index, len(KINDS))
    kind = KINDS[number]

    def draw(name: str, count: int = 16) -> Floats:
        values: Floats = uniform(f"arrays/{name}", seed, index * 1024 + np.arange(count))
        return values

    starts = uniform("arrays/spread", seed, 2 * number + np.arange(2))
    t60, snr = (
        float(between(ends, (start + repeat * step) % 1))
        for ends, start, step in zip((law.t60, law.snr), starts, _GOLDEN_STEPS, strict=True)
    )
    numbers = draw("room")
    room = np.array([between(e, n) for e, n in zip((law.width, law.depth, law.height), numbers[:3], strict=True)])
    if kind.compact:
        geometry, yaw = array(kind.array), float(360 * numbers[3])
        centre = np.array([*(room[:2] * between(law.middle, numbers[4:6])), between(law.table, numbers[6])])
        microphones = centre + geometry.microphones @ yaw_rotation(yaw).T
    else:
        microphones = _place_distributed(law, room, draw)
        geometry, yaw, centre = Geometry(microphones, DISTRIBUTED), 0.0, np.zeros(3)
    noise = draw("noise")
    diffuse = bool(noise[0] < law.diffuse)
    ways = _draw_ways(law, kind, room, microphones, draw)
    signals = _draw_chains(law, kind.talkers, utterances, draw)
    levels = [0.0, *between(law.loudness, draw("loudness")[: kind.talkers - 1])]
    sources = tuple(
        Source(signal, path, np.linspace(0, SECONDS, len(path)) if len(path) > 1 else np.zeros(1), float(level))
        for signal, path, level in zip(signals, ways, levels, strict=True)
    )
    scene = Scene(
        room=room,
        t60=t60,
        microphones=microphones,
        sources=sources,
        snr=snr,
        noise="diffuse" if diffuse else "independent",
        noise_slope=float(between(law.slope, noise[1])) if diffuse else 0.0,
        degradations=Degradations(level=float(between(law.level, noise[2]))),
        seed=stream(f"arrays/noise-seed/{index}", seed),
        sample_rate=SAMPLE_RATE,
    )
    return ArrayScene(kind, scene, geometry, centre, yaw)


def directions(places: Floats) -> tuple[Floats, Floats]:
    """Azimuth (0 in front, 90 to the left) and elevation, in degrees. Shape: (..., 3) -> (...), (...)

    >>> directions(np.array([0.0, 2.0, 2.0]))
    (np.float64(90.0), np.float64(45.0))
    """
    azimuth = np.degrees(np.arctan2(places[..., 1], places[..., 0])) % 360
    return azimuth, np.degrees(np.arctan2(places[..., 2], np.hypot(places[..., 0], places[..., 1])))


def parts_of_chain(chain: str) -> list[tuple[int, str]]:
    """First sample and id of each utterance of a talker.

    >>> parts_of_chain("800:61-70968-0001+64000:61-70968-0020")
    [(800, '61-70968-0001'), (64000, '61-70968-0020')]
    """
    pairs = (part.split(":", 1) for part in chain.split("+"))
    return [(int(first), id) for first, id in pairs]


def join_utterances(chain: str, signals: Callable[[str], npt.NDArray[np.floating]]) -> Floats32:
    """Ten seconds of a talker: utterances with silence in between. Shape: (160000,)"""
    whole = np.zeros(round(SECONDS * SAMPLE_RATE), dtype=np.float32)
    for first, id in parts_of_chain(chain):
        said = signals(id)[: len(whole) - first]
        whole[first : first + len(said)] = said
    return whole


def spoken_shares(chain: str, utterances: Mapping[str, int]) -> Floats:
    """Share of each block in which a talker speaks. Shape: (blocks,)"""
    return np.asarray(spoken_samples(chain, utterances).reshape(BLOCKS, -1).mean(axis=1))


def spoken_samples(chain: str, utterances: Mapping[str, int]) -> Bools:
    """In which of its samples a talker speaks. Shape: (160000,)"""
    speaks = np.zeros(round(SECONDS * SAMPLE_RATE), dtype=np.bool_)
    for first, id in parts_of_chain(chain):
        speaks[first : first + utterances[id]] = True
    return speaks


def yaw_rotation(yaw: float) -> Floats:
    """From the axes of the geometry to those of the room."""
    cos, sin = math.cos(math.radians(yaw)), math.sin(math.radians(yaw))
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def _places_at(source: Source, times: Floats) -> Floats:
    return np.stack([np.interp(times, source.times, source.path[:, axis]) for axis in range(3)], axis=-1)


def _place_distributed(law: ArrayLaw, room: Floats, draw: Callable[..., Floats], count: int = 6) -> Floats:
    """Microphones anywhere, 20 cm off the walls, redrawn until none is too close to one before it."""
    numbers = draw("microphones", 3 * 340).reshape(-1, 3)
    wall = np.array([0.2, 0.2, 0.0])
    low, high = np.array([0.0, 0.0, law.hung[0]]) + wall, np.array([*room[:2], min(law.hung[1], room[2])]) - wall
    placed: list[Floats] = []
    for place in low + (high - low) * numbers:
        if all(np.linalg.norm(place - other) >= law.spread for other in placed):
            placed.append(place)
        if len(placed) == count:
            return np.array(placed)
    raise RuntimeError(f"no place for {count} microphones in a room of {room} m")


def _draw_ways(
    law: ArrayLaw, kind: Kind, room: Floats, microphones: Floats, draw: Callable[..., Floats]
) -> list[Floats]:
    """The points of each talker's path, one for a talker that stands."""
    for attempt in range(_TRIES):
        ways: list[Floats] = []
        while len(ways) < kind.talkers:
            numbers = draw(f"way/{len(ways)}/{attempt}", 6 * _PLACES_AT_ONCE).reshape(_PLACES_AT_ONCE, 6)
            speed = between(law.speed, numbers[:, 3]) if kind.moving else np.zeros(_PLACES_AT_ONCE)
            start = law.off_walls + (room[:2] - 2 * law.off_walls) * numbers[:, :2]
            mouth, heading = between(law.mouth, numbers[:, 2]), 2 * math.pi * numbers[:, 4]
            curvature = between(law.curvature, numbers[:, 5])
            others = [way[np.rint(np.linspace(0, len(way) - 1, _MOMENTS)).astype(np.int64)] for way in ways]
            tried = _walk(start, mouth, heading, curvature, speed * SECONDS, _MOMENTS)
            free = _keep_distances(law, kind, room, microphones, others, tried)
            if not free.any():
                break  # those before it may leave no room
            one = slice(int(free.argmax()), int(free.argmax()) + 1)
            length = speed[one] * SECONDS
            points = 1 + math.ceil(float(length[0]) / STEP)
            ways.append(_walk(start[one], mouth[one], heading[one], curvature[one], length, points)[0])
        else:
            return ways
    raise RuntimeError(f"no way for {kind.talkers} talkers in a room of {room} m after {_TRIES} tries")


def _keep_distances(
    law: ArrayLaw, kind: Kind, room: Floats, microphones: Floats, others: Sequence[Floats], ways: Floats
) -> Bools:
    """Which of the ways keep their distances from walls, microphones and other talkers. Shape: (B, T, 3) -> (B,)"""
    inside = (ways[..., :2] >= law.off_walls) & (ways[..., :2] <= room[:2] - law.off_walls)
    free = inside.all(axis=(1, 2))
    if kind.compact:
        seen = ways - microphones.mean(axis=0)
        across = np.hypot(seen[..., 0], seen[..., 1])
        free &= (across.min(axis=1) >= law.distance[0]) & (across.max(axis=1) <= law.distance[1])
        for other in others:
            turned = directions(seen)[0] - directions(other - microphones.mean(axis=0))[0]
            free &= np.abs((turned + 180) % 360 - 180).min(axis=1) >= law.apart
    else:
        gaps = np.linalg.norm(ways[:, :, None] - microphones, axis=-1)
        free &= gaps.min(axis=(1, 2)) >= law.nearest
        for other in others:
            free &= np.linalg.norm(ways - other, axis=-1).min(axis=1) >= law.aside
    return np.asarray(free)


def _walk(start: Floats, height: Floats, heading: Floats, curvature: Floats, length: Floats, points: int) -> Floats:
    """Level ways of constant curvature. Shape: (B, 2), (B,) each -> (B, points, 3)"""
    along = length[:, None] * np.linspace(0, 1, points)
    chord = along * np.sinc(curvature[:, None] * along / (2 * math.pi))
    angle = heading[:, None] + curvature[:, None] * along / 2
    x, y = (start[:, axis, None] + chord * turned for axis, turned in enumerate((np.cos(angle), np.sin(angle))))
    return np.stack([x, y, np.broadcast_to(height[:, None], x.shape)], axis=-1)


def _draw_chains(law: ArrayLaw, talkers: int, utterances: Mapping[str, int], draw: Callable[..., Floats]) -> list[str]:
    """What each talker says: speakers that differ, utterances of each in any order."""
    speakers = sorted({id.split("-")[0] for id in utterances})
    if len(speakers) < talkers:
        raise InputError(f"{talkers} talkers need as many speakers; there are {len(speakers)}")
    chosen = np.argsort(draw("speakers", len(speakers)))[:talkers]
    chains = []
    for talker, number in enumerate(chosen.tolist()):
        said = sorted(id for id in utterances if id.split("-")[0] == speakers[number])
        numbers = draw(f"chain/{talker}", 64).reshape(-1, 2)
        now, parts = float(between(law.begin, numbers[0, 0])), []
        for which, pause in numbers[1:]:
            if now >= SECONDS - 0.2:
                break
            id, first = said[int(which * len(said))], round(now * SAMPLE_RATE)
            parts.append(f"{first}:{id}")
            now += utterances[id] / SAMPLE_RATE + float(between(law.pause, pause))
        chains.append("+".join(parts))
    return chains
