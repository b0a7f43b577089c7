"""Arrays on a line in rooms: one talker and two, by a network and by SRP-PHAT in the same call.

    python -m benchmarks.lines --bank banks/test-clean

What walls, floor and ceiling throw back lies on other cones around the line than the talker, mostly nearer to
broadside. Here is how often that is taken for talkers.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.timing import write
from qkgcc.arrays import Geometry, array
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.result import DirectionEstimate
from qkgcc.core.types import Indices
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.network.registry import ARRAY_DEFAULT

RATE = 16000
SECONDS = 6
ARRAYS = ("linear:2:0.15", "linear:4:0.05", "linear:8:0.04")
T60 = (0.3, 0.8)
METHODS = (ARRAY_DEFAULT, "phat")
NEAR, ELSEWHERE = 10.0, 15.0
"""Degrees: what is found, and what is no talker."""
APART = 40.0
"""Degrees between the cones of two talkers, at least."""


@dataclass(frozen=True, eq=False)
class Case:
    t60: float
    samples: dict[str, npt.NDArray[np.floating]]
    """(M, n) of each array."""
    cones: list[float]
    """Degrees between the talkers and the line."""


def rooms(bank_path: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Talkers at rest, 1 to 2.5 m away and at least 10 degrees off the line, in rooms with diffuse noise 15 to 25 dB
    below the first of them. All arrays lie along one line, turned somehow, in the same rooms."""
    bank = Bank.load(bank_path)
    voices = {group: np.flatnonzero((bank.groups == group) & (bank.samples >= 3 * RATE)) for group in set(bank.groups)}
    voices = {group: numbers for group, numbers in sorted(voices.items()) if len(numbers) >= 2}

    def speech(id: str) -> npt.NDArray[np.floating]:
        return np.concatenate([bank.audio(int(number)) for number in id.split("+")])

    arrays = {name: array(name) for name in ARRAYS}
    ends = np.cumsum([0, *(len(one) for one in arrays.values())])
    every = Geometry(
        np.concatenate([one.microphones + np.array([0.001 * i, 0, 0]) for i, one in enumerate(arrays.values())])
    )
    for talkers in (1, 2):
        for t60 in T60:
            for index in range(count):
                rng = np.random.default_rng([seed, index, talkers, round(10 * t60)])
                scene, cones = _scene(every, talkers, t60, voices, rng)
                heard = 0.05 * render(scene, speech, SECONDS, jobs=1).audio
                parts = {name: heard[ends[i] : ends[i + 1]] for i, name in enumerate(arrays)}
                yield Case(t60, parts, cones)


def _scene(
    geometry: Geometry, talkers: int, t60: float, voices: dict[str, Indices], rng: np.random.Generator
) -> tuple[Scene, list[float]]:
    room = rng.uniform([4, 3.5, 2.5], [8, 6, 3.5])
    centre = np.array([rng.uniform(1, room[0] - 1), rng.uniform(1, room[1] - 1), rng.uniform(0.7, 1.5)])
    turn = rng.uniform(0, 2 * np.pi)
    around = np.array([[np.cos(turn), -np.sin(turn), 0], [np.sin(turn), np.cos(turn), 0], [0, 0, 1]])
    line = around @ np.array([0.0, 1.0, 0.0])  # from the first microphone to the last
    sources: list[Source] = []
    cones: list[float] = []
    speakers = list(rng.permutation(list(voices)))
    while len(sources) < talkers:
        azimuth, away = rng.uniform(0, 2 * np.pi), rng.uniform(1, 2.5)
        place = np.array([*(centre[:2] + away * np.array([np.cos(azimuth), np.sin(azimuth)])), rng.uniform(1, 1.8)])
        inside = (place[:2] > 0.4).all() and (place[:2] < room[:2] - 0.4).all()
        cone = float(np.degrees(np.arccos((place - centre) @ line / np.linalg.norm(place - centre))))
        if not (inside and 10 <= cone <= 170) or any(abs(cone - one) < APART for one in cones):
            continue
        signal = "+".join(str(number) for number in rng.choice(voices[speakers[len(sources)]], 2, replace=False))
        level = 0.0 if not sources else float(rng.uniform(-3, 3))
        sources.append(Source(signal, place[None], level=level))
        cones.append(cone)
    microphones, snr = geometry.microphones @ around.T + centre, float(rng.uniform(15, 25))
    seed = int(rng.integers(1 << 31))
    return Scene(room, t60, microphones, tuple(sources), snr, noise="diffuse", seed=seed), cones


def measured(case: Case, name: str, method: str) -> dict[str, list[float]]:
    """What one array makes of a room: errors of the blocks, confidences of those that are right and wrong, and by a
    network how many it counts, seconds of tracks that are nobody's and of the talkers that are followed."""
    geometry, samples = array(name), case.samples[name]
    asked = DirectionEstimator(geometry, method, sources=len(case.cones), threads=1)(samples, RATE)
    found: dict[str, list[float]] = {"errors": [], "said": [], "right": []}
    for block in asked.blocks:
        cones = [one.cone for one in block.directions if one.cone is not None]
        found["errors"] += errors(cones, case.cones)
        found["said"] += [one.confidence for one in block.directions]
        found["right"] += [float(min(abs(cone - one) for one in case.cones) <= NEAR) for cone in cones]
    if method != "phat":
        auto = DirectionEstimator(geometry, method, sources="auto", threads=1)(samples, RATE, track=True)
        nobody, followed = tracked(auto, case.cones)
        found |= {"counted": [len(auto.directions)], "nobody": [nobody], "followed": followed}
    return found


def errors(answers: list[float], truth: list[float]) -> list[float]:
    """Of each talker, in the order that makes them least; 180 where there is no answer."""
    padded = [*answers[: len(truth)], *[np.inf] * (len(truth) - len(answers))]
    tried = [
        [min(180.0, abs(one - other)) for one, other in zip(truth, order, strict=True)]
        for order in itertools.permutations(padded)
    ]
    return min(tried, key=sum)


def tracked(answer: DirectionEstimate, cones: list[float]) -> tuple[float, list[float]]:
    """Seconds that tracks speak where nobody does, and that each talker is followed while it does."""
    nobody, followed = 0.0, [0.0] * len(cones)
    for moment in (moment for track in answer.tracks or () for moment in track if moment.active):
        cone = answer.angles_of(moment.direction).cone
        assert cone is not None
        away = [abs(cone - one) for one in cones]
        nearest = int(np.argmin(away))
        nobody += answer.hop * (away[nearest] > ELSEWHERE)
        followed[nearest] += answer.hop * (away[nearest] <= NEAR)
    return nobody, followed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True, help="of voices")
    parser.add_argument("--count", type=int, default=12, help="rooms for each T60 and number of talkers")
    given = parser.parse_args()
    found: dict[tuple[int, str, float, str], dict[str, list[float]]] = {}
    for case in rooms(given.bank, given.count):
        for name, method in itertools.product(ARRAYS, METHODS):
            all_of = found.setdefault((len(case.cones), name, case.t60, method), {})
            for what, values in measured(case, name, method).items():
                all_of.setdefault(what, []).extend(values)
    command = "python -m benchmarks.lines --bank banks/test-clean"
    rows = [_row(*key, all_of) for key, all_of in sorted(found.items())]
    notes = [
        f"{given.count} simulated rooms for each line, recordings of {SECONDS} s, blocks of 1 s; talkers 1 to 2.5 m "
        f"away, 10 to 170 degrees from the line, two of them at least {APART:g} degrees apart; diffuse noise 15 to 25 "
        "dB below the first. Errors are of the angle to the line (`cone`). Counted: by `auto`, of the whole recording. "
        f"Tracks are nobody's where they are more than {ELSEWHERE:g} degrees from every talker; seconds on average, of "
        f"{SECONDS} for each talker."
    ]
    write("directions_lines", "Arrays on a line in rooms", command, list(rows[0]), rows, notes)
    table = _confidence([all_of for key, all_of in found.items() if key[3] != "phat"])
    notes = [f"Blocks of 1 s by `{ARRAY_DEFAULT}`, of the same rooms; right: within 10 degrees of a talker."]
    title = "What the confidence of arrays on a line is worth"
    write("directions_lines_confidence", title, command, list(table[0]), table, notes)


def _row(talkers: int, name: str, t60: float, method: str, found: dict[str, list[float]]) -> dict[str, Any]:
    missed = np.array(found["errors"])
    followed = f"{np.mean(found['followed']):.1f} s" if "followed" in found else ""
    return {
        "talkers": talkers,
        "array": name,
        "T60": f"{t60:g} s",
        "method": method,
        "median": f"{np.median(missed):.1f}°",
        "within 10°": f"{100 * (missed <= NEAR).mean():.0f} %",
        "counted rightly": sum(one == talkers for one in found["counted"]) if "counted" in found else "",
        "nobody's tracks": f"{np.mean(found['nobody']):.2f} s" if "nobody" in found else "",
        "recordings with them": sum(one > 0.3 for one in found["nobody"]) if "nobody" in found else "",
        "talkers followed": followed,
    }


def _confidence(found: list[dict[str, list[float]]]) -> list[dict[str, Any]]:
    said, right = (np.array([one for all_of in found for one in all_of[what]]) for what in ("said", "right"))
    rows = []
    for low, high in itertools.pairwise((0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.01)):
        inside = (said >= low) & (said < high)
        if inside.any():
            rows.append(
                {
                    "confidence": f"{low:g} to {min(1, high):g}",
                    "directions": int(inside.sum()),
                    "said on average": f"{100 * said[inside].mean():.0f} %",
                    "right": f"{100 * right[inside].mean():.0f} %",
                }
            )
    return rows


if __name__ == "__main__":
    main()
