"""A spacing that is given too small: how often it is noticed, what the wrong answers' confidence is, and false alarms.

    python -m benchmarks.spacing --bank banks/test-clean

Talkers at rest in simulated rooms, two microphones 5 cm to 2 m apart, a third of the talkers in line with them
(end-fire). Each recording is asked with the right spacing and with smaller ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.progress import track

from benchmarks.timing import machine, write
from qkgcc import DelayEstimator
from qkgcc.core.types import SPEED_OF_SOUND, Floats, Floats32
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source

RATE = 16000
SECONDS = 5.0
SPACINGS = (0.05, 2.0)
"""Metres, log-uniform."""
END_FIRE = 1 / 3
"""Share of the talkers that stand in line with the microphones, to `IN_LINE` degrees."""
IN_LINE = 8.0


@dataclass(frozen=True, eq=False)
class Case:
    samples: Floats32
    """(2, n)"""
    spacing: float
    """Metres."""
    delay: float
    """Seconds."""
    end_fire: bool
    t60: float
    snr: float


def cases(bank: Bank, count: int, seed: int) -> Iterator[Case]:
    """Simulated recordings: T60 0 to 1 s, SNR 0 to 30 dB, noise of each microphone or diffuse."""
    voices = np.flatnonzero(bank.samples >= SECONDS / 2 * RATE)

    def speech(id: str) -> npt.NDArray[np.floating]:
        return np.concatenate([bank.audio(int(number)) for number in id.split("+")])

    for index in range(count):
        rng = np.random.default_rng([seed, index])
        end_fire = bool(rng.random() < END_FIRE)
        spacing = float(SPACINGS[0] * (SPACINGS[1] / SPACINGS[0]) ** rng.random())
        room, microphones, talker = places(rng, spacing, end_fire)
        t60 = 0.0 if rng.random() < 0.1 else float(rng.uniform(0.2, 1.0))
        snr = float(rng.uniform(0, 30))
        signal = "+".join(str(number) for number in rng.choice(voices, 2, replace=False))
        noise = str(rng.choice(["independent", "diffuse"]))
        scene = Scene(room, t60, microphones, (Source(signal, talker[None]),), snr, noise, seed=index)
        samples = 0.05 * render(scene, speech, SECONDS, jobs=1).audio
        yield Case(samples, spacing, float(scene.delay()[0]) / RATE, end_fire, t60, snr)


def places(rng: np.random.Generator, spacing: float, end_fire: bool) -> tuple[Floats, Floats, Floats]:
    """Room, microphones and talker, all 0.3 m and more from the walls."""
    while True:
        room = rng.uniform([4, 3.5, 2.5], [8, 6, 3.5])
        centre = rng.uniform([0.5, 0.5, 0.7], [room[0] - 0.5, room[1] - 0.5, 1.5])
        turn = rng.uniform(0, 2 * np.pi)
        line = np.array([np.cos(turn), np.sin(turn), 0.0])
        angle = np.radians(rng.uniform(0, IN_LINE) if end_fire else rng.uniform(0, 180))
        around = rng.uniform(0, 2 * np.pi)
        across = np.cos(around) * np.array([-np.sin(turn), np.cos(turn), 0.0]) + np.array([0, 0, 0.4 * np.sin(around)])
        way = np.cos(angle) * line + np.sin(angle) * across / np.linalg.norm(across)
        talker = centre + (spacing / 2 + rng.uniform(0.5, 2.5)) * way
        microphones = centre + spacing / 2 * np.stack([line, -line])
        microphones = microphones if rng.random() < 0.5 else microphones[::-1]
        every = np.vstack([microphones, talker])
        if (every > 0.3).all() and (every < room - 0.3).all():
            return room, microphones, talker


METHODS = ("general", "general-small", "phat", "phat-beta", "scot", "ml", "roth", "cc")
RIGHT = "right"
SHARES = (0.75, 0.5, 0.25)
"""Of the true spacing, that are given."""
CUT = 20e-6
"""Seconds by which the true delay exceeds what a spacing allows that cuts it off: 0.32 samples at 16 kHz."""
LEAST = 0.02
"""Metres: the smallest spacing that is given."""
IMPOSSIBLE = 1 / RATE
"""Seconds by which a delay exceeds what a spacing allows that is much too small."""
SAID = ("longer than a spacing", "the delay looks longer", "the last delay that is looked for")


@dataclass(frozen=True)
class Answer:
    """What one method makes of one recording with one spacing."""

    confidence: float
    """Mean over the frames."""
    whole: float
    """Of the whole recording."""
    warned: bool


def asked(case: Case) -> Iterator[tuple[str, float]]:
    """The spacings that are given, in metres, and the rows of the table that they count for."""
    yield RIGHT, case.spacing
    if case.end_fire:
        yield f"{RIGHT}, end-fire", case.spacing
    largest = abs(case.delay) * SPEED_OF_SOUND
    for share in SHARES:
        if largest - share * case.spacing > IMPOSSIBLE * SPEED_OF_SOUND:
            yield f"{share:g} times", share * case.spacing
    if largest - CUT * SPEED_OF_SOUND >= LEAST:
        yield f"{1e6 * CUT:.0f} us less than the delay", largest - CUT * SPEED_OF_SOUND


def answer(method: str, case: Case, spacing: float) -> Answer:
    said = DelayEstimator(method, spacing=spacing, threads=1)(case.samples, RATE, curve=False)
    return Answer(
        float(np.mean(said.confidence[np.isfinite(said.delay_seconds)])),
        said.summary.confidence,
        any(part in warning for warning in said.warnings for part in SAID),
    )


def rows(method: str, heard: list[Case]) -> Iterator[dict[str, Any]]:
    answers: dict[str, list[Answer]] = {}
    for case in heard:
        known: dict[float, Answer] = {}
        for name, spacing in asked(case):
            known[spacing] = known.get(spacing) or answer(method, case, spacing)
            answers.setdefault(name, []).append(known[spacing])
    for name in sorted(answers, key=lambda name: (not name.startswith(RIGHT), name)):
        found = answers[name]
        yield {
            "method": method,
            "spacing given": name,
            "recordings": f"{len(found)}",
            "warned of, %": 100 * float(np.mean([one.warned for one in found])),
            "confidence of frames": float(np.mean([one.confidence for one in found])),
            "of the recording": float(np.mean([one.whole for one in found])),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--recordings", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--method", action="append", help=f"one of {', '.join(METHODS)}; may be given several times")
    arguments = parser.parse_args()
    here = machine()
    heard = list(cases(Bank.load(arguments.bank), arguments.recordings, arguments.seed))
    table = []
    for method in track(arguments.method or METHODS):
        table += list(rows(method, heard))
    notes = [
        f"{arguments.recordings} recordings of {SECONDS:g} s: talkers at rest in simulated rooms, microphones "
        f"{100 * SPACINGS[0]:g} cm to {SPACINGS[1]:g} m apart, T60 to 1 s, SNR 0 to 30 dB, a third of the talkers in "
        f"line with the microphones to {IN_LINE:g} degrees (end-fire). Of spacings that are some times the true one, "
        f"those count that the true delay exceeds by {1e6 * IMPOSSIBLE:.1f} us or more. Confidence: means over the "
        "recordings.",
    ]
    command = f"python -m benchmarks.spacing --bank banks/{arguments.bank.name}"
    formats = {"warned of, %": ".1f"}
    write("spacing", "A spacing that is too small", command, list(table[0]), table, notes, formats=formats, here=here)


if __name__ == "__main__":
    main()
