"""Places among distributed microphones: what they cost, and what their ellipses, confidence and counting are worth.

    python -m benchmarks.places                           # cost
    python -m benchmarks.places --bank banks/test-clean   # and the rest, in rooms of these voices
    python -m benchmarks.places --bank banks/test-clean --example meeting   # meeting.wav and .toml, for a picture

How they compare with least squares, on frozen scenes: `qkgcc reproduce arrays`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import soundfile

from benchmarks.timing import write
from qkgcc.arrays import Geometry, Position, PositionEstimate, PositionEstimator
from qkgcc.arrays.geometry import write_geometry
from qkgcc.core.types import Bools, Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.array_set import ACTIVE, SCALE, record_scene
from qkgcc.lab.rooms.degradations import Degradations
from qkgcc.lab.scenes.array_scenes import BLOCKS, DISTRIBUTED, KINDS, ArrayScene, Kind, array_scene, spoken_shares
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.network.registry import ARRAY_DEFAULT

RATE = 16000
SECONDS = 10
SEED = 20_260_131
"""Other rooms than those of array-test."""
METHODS = (ARRAY_DEFAULT, "general-small", "phat")
NEAR = 0.5
"""Metres on the floor within which a place is right: what `Position.confidence` is about."""
FEWER = (4, 5)
"""Microphones: how far a place can be trusted depends on how many more delays there are than it needs."""
ON_WALLS = (0.05, 0.3)
"""Metres off a wall."""
SIX = Geometry(
    np.array([[1.0, 0.9, 1.0], [5.0, 1.0, 2.0], [4.9, 4.0, 0.8], [1.1, 4.1, 1.9], [2.6, 0.8, 0.7], [3.4, 4.2, 2.1]]),
    "six",
)


@dataclass(frozen=True, eq=False)
class Room:
    kind: Kind
    microphones: str
    """Where they are."""
    size: Floats
    geometry: Geometry
    samples: Floats
    places: Floats
    """(talkers, blocks, 3)"""
    active: Bools
    """(talkers, blocks)"""


def rooms(bank_path: Path, count: int) -> Iterator[Room]:
    """So many of each kind, drawn like those of array-test."""
    bank = Bank.load(bank_path)
    utterances = {id: int(n) for id, n in zip(bank.ids, bank.samples, strict=True) if n >= RATE}
    distributed = [number for number, kind in enumerate(KINDS) if kind.array == DISTRIBUTED]
    for where, repeat, number in itertools.product(("anywhere", "on walls"), range(count), distributed):
        drawn = array_scene(SEED, repeat * len(KINDS) + number, utterances)
        if where == "on walls":
            if drawn.kind.moving:
                continue
            drawn = moved_to_walls(drawn, np.random.default_rng([SEED, repeat, number]))
        speaks = np.stack([spoken_shares(source.signal, utterances) for source in drawn.scene.sources])
        places = np.broadcast_to(drawn.truth, (len(speaks), BLOCKS, 3))
        samples = record_scene(drawn, bank, jobs=1) / SCALE
        yield Room(drawn.kind, where, drawn.scene.room, drawn.geometry, samples, places, speaks >= ACTIVE)


def moved_to_walls(drawn: ArrayScene, rng: np.random.Generator) -> ArrayScene:
    """The same scene with microphones on three walls or four, a metre apart and more."""
    room = drawn.scene.room
    talkers = np.array([source.path[0] for source in drawn.scene.sources])
    while True:
        microphones = rng.uniform([0.3, 0.3, 0.5], [*(room[:2] - 0.3), 2.2], (6, 3))
        walls, off = rng.integers(0, 4, 6), rng.uniform(*ON_WALLS, 6)
        microphones[np.arange(6), walls // 2] = np.where(walls % 2, room[walls // 2] - off, off)
        apart = np.linalg.norm(microphones[:, None] - microphones, axis=-1) + 9 * np.eye(6)
        nearest = np.linalg.norm(microphones[:, None] - talkers, axis=-1).min()
        if apart.min() >= 1 and nearest >= 0.4 and len(set(walls)) >= 3:
            break
    scene = dataclasses.replace(drawn.scene, microphones=microphones)
    return dataclasses.replace(drawn, scene=scene, geometry=Geometry(microphones, DISTRIBUTED))


def with_fewer(room: Room, count: int) -> Room:
    """The same room heard by some of its microphones."""
    random = np.random.default_rng([SEED, count, round(1e6 * room.size[0])])  # others in every room
    chosen = np.sort(random.permutation(len(room.geometry))[:count])
    geometry = Geometry(room.geometry.microphones[chosen], DISTRIBUTED)
    where = f"{count}, {room.microphones}"
    return dataclasses.replace(room, microphones=where, geometry=geometry, samples=room.samples[chosen])


def write_example(bank_path: Path, name: Path) -> None:
    """Ten seconds of one who stands and one who walks past the other microphones, and the file of the microphones."""
    bank = Bank.load(bank_path)
    utterances = {id: int(n) for id, n in zip(bank.ids, bank.samples, strict=True) if n >= 2.5 * RATE}
    drawn = array_scene(SEED, 15, utterances)  # for two voices and what they say
    stands, walks = (source.signal for source in drawn.scene.sources)
    along = np.linspace(0, 1, 400)[:, None]
    way = (
        np.array([1.2, 3.9, 1.6]) + along * np.array([3.6, -0.6, 0.0]) + np.sin(np.pi * along) * np.array([0, -0.5, 0])
    )
    sources = (
        Source(stands, np.array([[1.6, 1.5, 1.2]])),
        Source(walks, way, np.linspace(0, SECONDS, len(way))),
    )
    loudness = Degradations(level=-26.0)
    room = np.array([6.0, 5.0, 2.7])
    scene = Scene(room, 0.4, SIX.microphones, sources, 20.0, noise="diffuse", degradations=loudness)
    audio = record_scene(ArrayScene(drawn.kind, scene, SIX, np.zeros(3), 0.0), bank)
    soundfile.write(name.with_suffix(".wav"), audio.T, RATE)
    write_geometry(SIX, name.with_suffix(".toml"))


def estimated(room: Room, method: str, sources: int | str) -> PositionEstimate:
    volume = np.stack([0 * room.size, room.size], axis=1)
    return PositionEstimator(room.geometry, method, sources=sources, volume=volume, threads=1)(room.samples, RATE)


@dataclass(frozen=True, eq=False)
class Found:
    """A position, and the true place next to it."""

    room: Room
    position: Position
    true: Floats

    @property
    def right(self) -> bool:
        return bool(np.linalg.norm((self.position.place - self.true)[:2]) <= NEAR)

    @property
    def inside(self) -> bool:
        """Whether the true place is in the 95 % ellipsoid."""
        off = self.position.axes @ (self.true - self.position.place) / self.position.radii
        return bool((off**2).sum() <= scipy.stats.chi2.ppf(0.95, 3))


def found_in(room: Room, answer: PositionEstimate) -> Iterator[Found]:
    """As many of each block as there are talkers."""
    for number, block in enumerate(answer.blocks):
        true = room.places[room.active[:, number], number]
        for one in block.positions[: len(true)]:
            nearest = np.linalg.norm((true - one.place)[:, :2], axis=1).argmin()
            yield Found(room, one, true[nearest])


def ellipses(found: list[Found], method: str) -> list[dict[str, Any]]:
    rows = []
    for where, moving in (("anywhere", False), ("anywhere", True), ("on walls", False)):
        every = [one for one in found if (one.room.microphones, one.room.kind.moving) == (where, moving)]
        solved = [one for one in every if one.position.solved]
        right = [one for one in solved if one.right]
        rows.append(
            {
                "method": method,
                "microphones": where,
                "talkers": "walking" if moving else "standing",
                "places": len(every),
                "solved": len(solved),
                "right": f"{100 * np.mean([one.right for one in solved]):.0f} %",
                "in the ellipse, of the right ones": f"{100 * np.mean([one.inside for one in right]):.0f} %",
                "median of its longest axis": f"{100 * np.median([one.position.radii[0] for one in right]):.1f} cm",
            }
        )
    return rows


def confidence(found: list[Found], method: str, where: str) -> list[dict[str, Any]]:
    there = [one for one in found if one.room.microphones == where]
    said = np.array([one.position.confidence for one in there])
    right = np.array([one.right for one in there])
    rows = []
    for low, high in ((0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)):
        inside = (said >= low) & (said < high)
        if inside.any():
            rows.append(
                {
                    "method": method,
                    "microphones": where,
                    "confidence": f"{low:g} to {min(1, high):g}",
                    "places": int(inside.sum()),
                    "said on average": f"{100 * said[inside].mean():.0f} %",
                    "right": f"{100 * right[inside].mean():.0f} %",
                }
            )
    return rows


@dataclass(frozen=True)
class Counted:
    """How many talkers were counted in some seconds, and how many of the places are theirs."""

    part: str
    talkers: int
    places: int
    found: int


def counted_in(room: Room, answer: PositionEstimate) -> Iterator[Counted]:
    """Of its blocks in which anybody is to be found, and of the whole where talkers stand."""
    for number, block in enumerate(answer.blocks):
        active = int(room.active[:, number].sum())
        if active:
            # Who speaks in less than half of a block need not be found, but is no mistake.
            found = theirs(block.positions, room.places[:, number])
            yield Counted("blocks of 1 s", active, len(block.positions), found)
    if not room.kind.moving:
        found = theirs(answer.positions, room.places[:, 0])
        yield Counted("whole, standing", room.kind.talkers, len(answer.positions), found)


def theirs(positions: tuple[Position, ...], talkers: Floats) -> int:
    """Places near a talker, each talker once."""
    near = {
        int(off.argmin())
        for one in positions
        if (off := np.linalg.norm((talkers - one.place)[:, :2], axis=1)).min() <= NEAR
    }
    return len(near)


def counting(counts: list[Counted], method: str) -> list[dict[str, Any]]:
    rows = []
    for part, talkers in sorted({(one.part, one.talkers) for one in counts}):
        some = [one for one in counts if (one.part, one.talkers) == (part, talkers)]
        places = sum(one.places for one in some)
        nobody = places - sum(one.found for one in some)
        rows.append(
            {
                "method": method,
                "part": part,
                "talkers": talkers,
                "times": len(some),
                **{f"counted as {n}": sum(one.places == n for one in some) for n in range(5)},
                "places of nobody": f"{100 * nobody / max(1, places):.0f} %",
            }
        )
    return rows


def cost() -> list[dict[str, Any]]:
    """Times real time on one core."""
    samples = 0.1 * np.random.default_rng(0).standard_normal((len(SIX), SECONDS * RATE)).astype(np.float32)
    rows = []
    for method, sources in itertools.product(METHODS, (1, 2)):
        estimator = PositionEstimator(SIX, method, sources=sources, threads=1)
        estimator(samples[:, :RATE], RATE)
        seconds = []
        for _ in range(5):
            begin = time.process_time()
            estimator(samples, RATE)
            seconds.append(time.process_time() - begin)
        asked = int(estimator.evidence(RATE).learned.sum())
        row = {"method": method, "sources": sources, "pairs": len(SIX.pairs), "of these by the network": asked}
        rows.append(row | {"times real time": f"{SECONDS / np.median(seconds):.1f}"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, help="of voices")
    parser.add_argument("--count", type=int, default=8, help="rooms of each kind (1 to 3 talkers, standing or walking)")
    parser.add_argument("--example", type=Path, metavar="NAME", help="write NAME.wav and NAME.toml, and nothing else")
    given = parser.parse_args()
    if given.example is not None:
        if given.bank is None:
            parser.error("--example needs a --bank")
        write_example(given.bank, given.example)
        return
    command = "python -m benchmarks.places"
    rows = cost()
    notes = [
        "Six microphones in a room of 6 x 5 m, blocks of 1 s and the whole; one thread, frames of 128 ms and hops of "
        "64 ms; noise of 10 s, median of 5."
    ]
    write("places_cost", "What places cost", command, list(rows[0]), rows, notes)
    if given.bank is None:
        return
    rooms_of = (
        f"{6 * given.count} simulated rooms with six microphones, drawn like those of array-test but not among them: 1 "
        f"to 3 talkers, T60 0.2 to 1 s, SNR 0 to 30 dB; and {3 * given.count} of them with the microphones on walls, 5 "
        "to 30 cm off. The room is searched."
    )
    found: dict[str, list[Found]] = {method: [] for method in METHODS}
    counts: list[Counted] = []
    for room in rooms(given.bank, given.count):
        for method in METHODS:
            found[method] += found_in(room, estimated(room, method, room.kind.talkers))
        for count in FEWER:
            less = with_fewer(room, count)
            found[ARRAY_DEFAULT] += found_in(less, estimated(less, ARRAY_DEFAULT, less.kind.talkers))
        if room.microphones == "anywhere":
            counts += counted_in(room, estimated(room, ARRAY_DEFAULT, "auto"))
    command += f" --bank banks/{given.bank.name} --count {given.count}"
    table = [row for method in METHODS for row in ellipses(found[method], method)]
    notes = [
        f"Blocks of 1 s, as many places as talkers. Right: within {NEAR} m on the floor of a talker. In the ellipse: "
        "the talker's place in the middle of the block is within the 95 % ellipsoid; one walks up to a metre in a "
        f"block, which the ellipse knows nothing of. {rooms_of}"
    ]
    write("places_ellipse", "What the ellipse of a place is worth", command, list(table[0]), table, notes)
    places = ("anywhere", "on walls")
    every = [*places, *(f"{count}, {where}" for count in FEWER for where in places)]
    table = [row for where in every for row in confidence(found[ARRAY_DEFAULT], ARRAY_DEFAULT, where)]
    notes = [
        f"Blocks of 1 s, as many places as talkers; right: within {NEAR} m on the floor of a talker. {rooms_of} A "
        "number is that of the microphones that are heard, of the six of a room."
    ]
    write("places_confidence", "What the confidence of places is worth", command, list(table[0]), table, notes)
    table = counting(counts, ARRAY_DEFAULT)
    notes = [
        f'`sources="auto"`: blocks by how many speak in half of them or more, and whole recordings of {SECONDS} s of '
        f"talkers who stand. A place is somebody's within {NEAR} m on the floor, the first one of each talker; "
        f"microphones anywhere. {rooms_of}"
    ]
    write("places_counted", "How many talkers are counted", command, list(table[0]), table, notes)


if __name__ == "__main__":
    main()
