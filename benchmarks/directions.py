"""Directions of arrays: what they cost, what their confidence is worth, and what the rules behind them are worth.

    python -m benchmarks.directions                                  # cost, and latency in real time
    python -m benchmarks.directions --latency                        # latency alone: half a minute, on a quiet machine
    python -m benchmarks.directions --bank banks/test-clean          # and confidence in rooms of these voices
    python -m benchmarks.directions --bank banks/dev-clean --trials  # other rules, in rooms of voices for that
    python -m benchmarks.directions --bank banks/test-clean --elevations  # how high talkers are heard, and nothing else
    python -m benchmarks.directions --bank banks/test-clean --example walk  # for docs/guide/tracks.md

How they compare with other methods, on frozen scenes and real recordings: `qkgcc reproduce arrays`.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from benchmarks.timing import write
from qkgcc.arrays import Geometry, array, maps
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.grids import unit_vectors
from qkgcc.arrays.stream import DirectionFrames, DirectionStream, frames_csv
from qkgcc.core.types import SPEED_OF_SOUND, Floats32, Indices
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.live.capture import Replay
from qkgcc.live.session import Session
from qkgcc.network.registry import ARRAY_DEFAULT, CLASSICAL

RATE = 16000
OURS = (ARRAY_DEFAULT, "general-small", "phat")
LEAST = {"respeaker4": 20, "circular:8:0.1": 4}
"""Times real time that networks are to reach."""
ARRAYS = tuple(LEAST)
NEAR = 10.0
T60 = (0.2, 0.6, 0.8, 1.0)
SECONDS = 6
EXAMPLE = 27
"""Scene of array-test that docs/guide/tracks.md shows."""
RISING = ("respeaker4", "circular:6:0.05", "tetrahedral:0.1")
"""Of the table of elevations."""


@dataclass(frozen=True, eq=False)
class Case:
    group: str
    array: str
    samples: npt.NDArray[np.floating]
    azimuths: list[float]


def rooms(bank_path: Path, count: int, counts: Sequence[int] = (1, 2, 3)) -> Iterator[Case]:
    """Talkers at rest, 30 degrees apart and more, in rooms with diffuse noise 5 to 25 dB below the first of them."""
    bank = Bank.load(bank_path)
    voices = {group: np.flatnonzero((bank.groups == group) & (bank.samples >= 3 * RATE)) for group in set(bank.groups)}
    voices = {group: numbers for group, numbers in sorted(voices.items()) if len(numbers) >= 2}

    def speech(id: str) -> npt.NDArray[np.floating]:
        return np.concatenate([bank.audio(int(number)) for number in id.split("+")])

    for name in ARRAYS:
        geometry = array(name)
        for talkers in counts:
            for index in range(count):
                rng = np.random.default_rng([index, talkers, len(geometry)])
                scene, truth = _scene(geometry, talkers, T60[index % len(T60)], voices, rng)
                samples = 0.05 * render(scene, speech, SECONDS, jobs=1).audio
                wet = "T60 0.2" if index % len(T60) == 0 else "T60 0.6-1"
                yield Case(f"{name}, {talkers} talkers, {wet}", name, samples, truth)


def _scene(
    geometry: Geometry, talkers: int, t60: float, voices: dict[str, Indices], rng: np.random.Generator
) -> tuple[Scene, list[float]]:
    room = rng.uniform([4, 3.5, 2.5], [8, 6, 3.5])
    centre = np.array([rng.uniform(1, room[0] - 1), rng.uniform(1, room[1] - 1), rng.uniform(0.7, 1.3)])
    sources: list[Source] = []
    truth: list[float] = []
    speakers = list(rng.permutation(list(voices)))
    while len(sources) < talkers:
        place = rng.uniform([0.4, 0.4, 1.0], [room[0] - 0.4, room[1] - 0.4, 1.9])
        front, left, _ = place - centre
        azimuth = float(np.degrees(np.arctan2(left, front)))
        if np.hypot(front, left) < 0.8 or any(_turn(azimuth, one) < 30 for one in truth):
            continue
        signal = "+".join(str(number) for number in rng.choice(voices[speakers[len(sources)]], 2, replace=False))
        level = 0.0 if not sources else float(rng.uniform(-3, 3))
        sources.append(Source(signal, place[None], level=level))
        truth.append(azimuth)
    microphones, snr = geometry.microphones + centre, float(rng.uniform(5, 25))
    seed = int(rng.integers(1 << 31))
    scene = Scene(room, t60, microphones, tuple(sources), snr, noise="diffuse", seed=seed)
    return scene, truth


def elevations(bank_path: Path, count: int, method: str = ARRAY_DEFAULT) -> list[dict[str, Any]]:
    """How high one talker is heard 1.5 m from the middle of flat arrays and of one in space, by true elevation."""
    bank = Bank.load(bank_path)
    voices = np.flatnonzero(bank.samples >= 3 * RATE)

    def speech(id: str) -> npt.NDArray[np.floating]:
        return np.concatenate([bank.audio(int(number)) for number in id.split("+")])

    rows = []
    for name, t60, true in itertools.product(RISING, (0.3, 0.8), (0.0, 10.0, 25.0)):
        found = []
        for index in range(count):
            rng = np.random.default_rng([index, int(true)])  # the same rooms and voices for all arrays
            room = rng.uniform([5, 4.5, 2.6], [8, 6, 3.2])
            centre = np.array([*rng.uniform(2, room[:2] - 2), 1.2])
            place = centre + 1.5 * unit_vectors(rng.uniform(-180, 180), true)
            signal = "+".join(str(number) for number in rng.choice(voices, 2, replace=False))
            scene = Scene(
                room,
                t60,
                array(name).microphones + centre,
                (Source(signal, place[None]),),
                20.0,
                noise="diffuse",
                seed=int(rng.integers(1 << 31)),
            )
            samples = 0.05 * render(scene, speech, SECONDS, jobs=1).audio
            (one,) = DirectionEstimator(array(name), method, threads=1)(samples, RATE).directions
            found.append(float(one.elevation or 0.0))
        low, middle, high = np.percentile(found, (10, 50, 90))
        rows.append(
            {
                "array": name,
                "T60": t60,
                "true": f"{true:.0f}",
                "found, median": f"{middle:.0f}",
                "10 to 90 %": f"{low:.0f} to {high:.0f}",
                "rooms": count,
            }
        )
    return rows


def _turn(first: float, second: float) -> float:
    return abs((first - second + 180) % 360 - 180)


def errors(answers: list[float], truth: list[float]) -> list[float]:
    """Of each true source; an answer finds one. 180 where there is no answer left."""
    left, found = list(answers), []
    for one in truth:
        errors = [_turn(answer, one) for answer in left]
        best = int(np.argmin(errors)) if errors else -1
        found.append(errors[best] if errors else 180.0)
        if errors and errors[best] <= NEAR:
            left.pop(best)
    return found


def confidence(cases: Iterable[Case], method: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """How often directions of 1 s blocks are within 10 degrees of a source, by what their confidence says; and how
    often "auto" counts the talkers of a recording rightly."""
    said: list[float] = []
    right: list[bool] = []
    counts: dict[tuple[str, int], list[int]] = {}
    for case in cases:
        talkers = len(case.azimuths)
        answer = DirectionEstimator(array(case.array), method, sources=talkers, threads=1)(case.samples, RATE)
        for one in (one for block in answer.blocks for one in block.directions):
            said.append(one.confidence)
            right.append(min(_turn(one.azimuth, azimuth) for azimuth in case.azimuths) <= NEAR)
        auto = DirectionEstimator(array(case.array), method, sources="auto", threads=1)(case.samples, RATE)
        counts.setdefault((case.array, talkers), []).append(len(auto.directions))
    stated, correct = np.array(said), np.array(right)
    rows = []
    for low, high in ((0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)):
        inside = (stated >= low) & (stated < high)
        if inside.any():
            rows.append(
                {
                    "method": method,
                    "confidence": f"{low:g} to {min(1, high):g}",
                    "directions": int(inside.sum()),
                    "said on average": f"{100 * stated[inside].mean():.0f} %",
                    "right": f"{100 * correct[inside].mean():.0f} %",
                }
            )
    counted = [
        {
            "method": method,
            "array": name,
            "talkers": talkers,
            "recordings": len(found),
            "counted rightly": sum(one == talkers for one in found),
        }
        for (name, talkers), found in counts.items()
    ]
    return rows, counted


TRIALS: dict[str, dict[str, float]] = {
    "as it is": {},
    "concentration 0.6": {"FRAME_CONCENTRATION": 0.6},
    "concentration 4": {"FRAME_CONCENTRATION": 4.0},
    "concentration 8": {"FRAME_CONCENTRATION": 8.0},
    "concentration 32": {"FRAME_CONCENTRATION": 32.0},
    "every frame counts the same": {"WEIGHT_EXPONENT": 0.0},
    "frames of 32 ms": {"frame": 0.032},
    "frames of 128 ms, hops of 32 ms": {"frame": 0.128, "hop": 0.032},
    "hops of 16 ms": {"hop": 0.016},
    "hops of 64 ms": {"hop": 0.064},
    "each block for itself": {"context": 0.0},
    "context of 1 s": {"context": 1.0},
    "context of 4 s": {"context": 4.0},
}


def trials(cases: Iterable[Case], method: str = "general-small") -> None:
    """Blocks of 1 s by other rules: medians, and shares within 10 degrees."""
    given = list(cases)
    groups = sorted({(case.array, len(case.azimuths) > 1) for case in given}, reverse=True)
    names = [f"{name}, {'2 and 3 talkers' if several else '1 talker'}" for name, several in groups]
    print(f"| | {' | '.join(names)} |\n|---{'|---' * len(names)}|")
    for label, changes in TRIALS.items():
        options: dict[str, Any] = {key: value for key, value in changes.items() if key.islower()}
        kept = {key: getattr(maps, key) for key in changes if key.isupper()}
        for key in kept:
            setattr(maps, key, changes[key])
        found: dict[tuple[str, bool], list[float]] = {group: [] for group in groups}
        for case in given:
            talkers = len(case.azimuths)
            estimator = DirectionEstimator(array(case.array), method, sources=talkers, threads=1, **options)
            for block in estimator(case.samples, RATE).blocks:
                some = [one.azimuth for one in block.directions]
                found[case.array, talkers > 1].extend(errors(some, case.azimuths))
        for key, value in kept.items():
            setattr(maps, key, value)
        cells = [f"{np.median(found[one]):.1f}, {100 * (np.array(found[one]) <= NEAR).mean():.0f} %" for one in groups]
        print(f"| {label} | {' | '.join(cells)} |", flush=True)


def cost() -> list[dict[str, Any]]:
    """Times real time on one core: at the hop that was asked about, as it is by default, and with tracks."""
    rows = []
    for name, (hop, track), method in itertools.product(ARRAYS, ((1024, False), (512, False), (512, True)), OURS):
        if track and method in CLASSICAL:
            continue
        samples = talkers_at_once(array(name), RATE, SECONDS)
        estimator = DirectionEstimator(array(name), method, hop=hop / RATE, threads=1)
        estimator(samples[:, :RATE], RATE, track=track)
        seconds = []
        for _ in range(5):
            begin = time.process_time()
            estimator(samples, RATE, track=track)
            seconds.append(time.process_time() - begin)
        asked = hop == 1024 and method == ARRAY_DEFAULT
        rows.append(
            {
                "array": name,
                "pairs": len(array(name).pairs),
                "method": method,
                "hop": f"{hop}{' (default)' if hop == 512 else ''}",
                "tracks": "yes" if track else "",
                "times real time": f"{SECONDS / np.median(seconds):.0f}",
                "asked": LEAST[name] if asked else "",
            }
        )
    return rows


def talkers_at_once(geometry: Geometry, rate: int, seconds: float) -> Floats32:
    """Noise in bursts from two far directions, and a little of each microphone's own: something to follow."""
    rng = np.random.default_rng(0)
    n = int(seconds * rate)
    frequencies = np.fft.rfftfreq(n, 1 / rate)
    heard = 0.05 * rng.standard_normal((len(geometry), n))
    for azimuth in (60.0, -100.0):
        bursts = np.repeat(rng.random(n // (rate // 5) + 1) < 0.7, rate // 5)[:n]
        later = -geometry.microphones @ unit_vectors(azimuth) / SPEED_OF_SOUND
        spectrum = np.fft.rfft(bursts * rng.standard_normal(n)) * np.exp(-2j * np.pi * frequencies * later[:, None])
        heard += np.fft.irfft(spectrum, n)
    return (0.05 * heard).astype(np.float32)


def latency(name: str = "respeaker4", seconds: float = 10.0) -> list[dict[str, Any]]:
    """From the last sample of a frame to its line, as `qkgcc listen --from FILE --track --format csv` goes it, in real
    time."""
    rows = []
    geometry = array(name)
    for rate in (16000, 44100, 48000):
        stream = DirectionStream(DirectionEstimator(geometry, threads=1), rate, track=True)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "talk.wav"
            soundfile.write(path, talkers_at_once(geometry, rate, seconds).T, rate)
            session = Session(Replay(path), stream, range(len(geometry)))

            def show(frames: DirectionFrames, session: Session[DirectionFrames] = session) -> None:
                frames_csv(frames)
                session.mark_displayed()

            session.run(lambda: False, show, lambda: None, print)
        taken = 1000 * np.array(session.latencies)
        rows.append(
            {
                "array": name,
                "rate": rate,
                "frames": len(taken),
                "median": f"{np.median(taken):.1f} ms",
                "95 %": f"{np.percentile(taken, 95):.1f} ms",
                "largest": f"{taken.max():.1f} ms",
                "asked": f"{20 + 1000 * stream.latency:.1f} ms",
                "of these the resampler's": f"{1000 * stream.latency:.1f} ms",
                "overruns": session.overruns,
                "load": f"{100 * session.mean_load:.0f} %",
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, help="of voices")
    parser.add_argument("--count", type=int, default=8, help="rooms for each array and number of talkers")
    parser.add_argument("--latency", action="store_true", help="latency in real time, and nothing else")
    parser.add_argument("--elevations", action="store_true", help="how high talkers are heard, and nothing else")
    parser.add_argument("--trials", action="store_true", help="other rules, and nothing else")
    parser.add_argument("--example", type=Path, metavar="NAME", help="write NAME.wav, and nothing else")
    given = parser.parse_args()
    if given.bank is None and (given.trials or given.example or given.elevations):
        parser.error("this needs a --bank")
    if given.example:
        walk = ArrayBenchmark.load().audio(EXAMPLE, Bank.load(given.bank))
        soundfile.write(given.example.with_suffix(".wav"), walk.T, RATE)
        return
    if given.trials:
        trials(rooms(given.bank, given.count))
        return
    command = "python -m benchmarks.directions"
    if given.elevations:
        rows = elevations(given.bank, given.count)
        notes = [
            f"Degrees; one talker 1.5 m from the middle of the array, diffuse noise 20 dB below, `{ARRAY_DEFAULT}`, "
            f"whole recordings of {SECONDS} s. Of flat arrays the one of two mirror images that is above."
        ]
        run = f"{command} --bank banks/{given.bank.name} --elevations --count {given.count}"
        write("directions_elevation", "How high talkers are heard", run, list(rows[0]), rows, notes)
        return
    if not given.latency:
        rows = cost()
        notes = ["One thread, hops in samples at 16 kHz; two bursts of noise at once, median of 5."]
        write("directions_cost", "What directions cost", command, list(rows[0]), rows, notes)
    rows = latency()
    notes = [
        "From the last sample of a frame to its answer, as `qkgcc listen --from FILE --track --format csv` goes it, 10 "
        "s in real time, one thread. Frames are answered with the block of 10 ms that completes them, at other rates "
        "than 16 kHz when the resampler has enough."
    ]
    write("directions_latency", "How late live tracks are", f"{command} --latency", list(rows[0]), rows, notes)
    if given.latency:
        return
    if given.bank is None:
        return
    cases = list(rooms(given.bank, given.count))
    said, counted = zip(*(confidence(cases, method) for method in OURS[:2]), strict=True)
    where = (
        f"{given.count} simulated rooms for each array and number of talkers, a quarter with a T60 of 0.2 s, others "
        "0.6 to 1 s, diffuse noise 5 to 25 dB below the first talker."
    )
    table = [row for rows in said for row in rows]
    write(
        "directions_confidence",
        "What the confidence of directions is worth",
        command,
        list(table[0]),
        table,
        [f"Blocks of 1 s; right: within 10 degrees of a talker. {where}"],
    )
    table = [row for rows in counted for row in rows]
    write(
        "directions_counted",
        "How many talkers are counted",
        command,
        list(table[0]),
        table,
        [f'`sources="auto"`, recordings of {SECONDS} s. {where}'],
    )


if __name__ == "__main__":
    main()
