"""Directions against SRP-PHAT, MUSIC and NormMUSIC of pyroomacoustics, on real recordings and in simulated rooms.

    python -m benchmarks.directions real FOLDER            # folders such as a180e20_a225e35 hold the true azimuths
    python -m benchmarks.directions rooms BANK --count 12  # speech from a bank (`qkgcc data bank`)
    python -m benchmarks.directions cost

Every method is asked for as many sources as there are, for each block of 1 s and for the whole recording, as azimuths.
A source is found where an answer is within 10 degrees; each answer finds one. All work on the same samples. The grid of
pyroomacoustics is a circle of 1 degree, its frames have 512 samples, its frequencies are its own default, 500 to 4000
Hz.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.arrays import Geometry, array
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.audio import open_audio
from qkgcc.data.banks import Bank
from qkgcc.simulate.render import render
from qkgcc.simulate.scenes import Scene, Source

RATE = 16000
OURS = ("general", "general-small", "phat")
THEIRS = ("SRP", "MUSIC", "NormMUSIC")
NEAR = 10.0
T60 = (0.2, 0.6, 0.8, 1.0)
SECONDS = 6

Floats = npt.NDArray[np.float64]
Answer = Callable[[npt.NDArray[np.floating], int], list[float]]
"""From samples (M, n) and a number of sources to azimuths in degrees."""


@dataclass(frozen=True, eq=False)
class Case:
    group: str
    array: str
    samples: npt.NDArray[np.floating]
    azimuths: list[float]


def real(folder: Path) -> Iterator[Case]:
    """Recordings of a ReSpeaker 4; the folder that holds a distance names the azimuths."""
    for path in sorted(folder.rglob("*.flac")):
        truth = [float(one) for one in re.findall(r"a(\d+)e\d+", path.parent.parent.name)]
        yield Case(f"real, {len(truth)} sources", "respeaker4", open_audio(path).read(), truth)


def rooms(bank_path: Path, count: int) -> Iterator[Case]:
    """Talkers at rest, 30 degrees apart and more, in rooms with diffuse noise 5 to 25 dB below the first of them."""
    bank = Bank.load(bank_path)
    voices = {group: np.flatnonzero((bank.groups == group) & (bank.samples >= 3 * RATE)) for group in set(bank.groups)}
    voices = {group: numbers for group, numbers in sorted(voices.items()) if len(numbers) >= 2}

    def speech(id: str) -> npt.NDArray[np.floating]:
        return np.concatenate([bank.audio(int(number)) for number in id.split("+")])

    for name in ("respeaker4", "circular:8:0.1"):
        geometry = array(name)
        for talkers in (1, 2, 3):
            for index in range(count):
                rng = np.random.default_rng([index, talkers, len(geometry)])
                scene, truth = _scene(geometry, talkers, T60[index % len(T60)], voices, rng)
                samples = 0.05 * render(scene, speech, SECONDS, jobs=1).audio
                wet = "T60 0.2" if index % len(T60) == 0 else "T60 0.6-1"
                yield Case(f"{name}, {talkers} talkers, {wet}", name, samples, truth)


def _scene(
    geometry: Geometry, talkers: int, t60: float, voices: dict[str, npt.NDArray[np.intp]], rng: np.random.Generator
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


def ours(name: str, method: str) -> Answer:
    estimators: dict[int, DirectionEstimator] = {}

    def answer(samples: npt.NDArray[np.floating], count: int) -> list[float]:
        if count not in estimators:
            estimators[count] = DirectionEstimator(array(name), method, sources=count, threads=1)
        return [one.azimuth for one in estimators[count](samples, RATE).directions]

    return answer


def theirs(name: str, method: str) -> Answer:
    import pyroomacoustics as pra

    places = array(name).microphones[:, :2].T

    def answer(samples: npt.NDArray[np.floating], count: int) -> list[float]:
        finder = pra.doa.algorithms[method](places, RATE, 512, c=343.0, num_src=count, n_grid=360)
        spectra = pra.transform.stft.analysis(samples.T, 512, 256).transpose(2, 1, 0)
        finder.locate_sources(spectra, num_src=count)
        return [float(one) for one in np.degrees(np.atleast_1d(finder.azimuth_recon))]

    return answer


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


def compare(cases: Iterable[Case]) -> None:
    methods: dict[tuple[str, str], Answer] = {}
    whole: dict[tuple[str, str], list[float]] = {}
    blocks: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        for method in (*OURS, *THEIRS):
            if (case.array, method) not in methods:
                methods[case.array, method] = (ours if method in OURS else theirs)(case.array, method)
            answer, key = methods[case.array, method], (case.group, method)
            count = len(case.azimuths)
            whole.setdefault(key, []).extend(errors(answer(case.samples, count), case.azimuths))
            for first in range(0, case.samples.shape[1] - RATE + 1, RATE):
                part = answer(case.samples[:, first : first + RATE], count)
                blocks.setdefault(key, []).extend(errors(part, case.azimuths))
    print("| recordings | method | whole: found | worst | 1 s: median | within 5 | within 10 |")
    print("|---|---|---|---|---|---|---|")
    for group, method in whole:
        all_of, each = np.array(whole[group, method]), np.array(blocks[group, method])
        print(
            f"| {group} | {method} | {(all_of <= NEAR).sum()} of {len(all_of)} | {all_of.max():.1f} | "
            f"{np.median(each):.1f} | {100 * (each <= 5).mean():.0f} % | {100 * (each <= NEAR).mean():.0f} % |"
        )


def cost() -> None:
    """Times real time on one core, with hops of 1024 samples."""
    rng = np.random.default_rng(0)
    print("| array | method | times real time |\n|---|---|---|")
    for name in ("respeaker4", "circular:8:0.1"):
        samples = 0.1 * rng.standard_normal((len(array(name)), 20 * RATE)).astype(np.float32)
        for method in OURS:
            estimator = DirectionEstimator(array(name), method, hop=1024 / RATE, threads=1)
            estimator(samples[:, :RATE], RATE)
            begin = time.process_time()
            estimator(samples, RATE)
            print(f"| {name} | {method} | {20 / (time.process_time() - begin):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("real", "rooms", "cost"))
    parser.add_argument("path", type=Path, nargs="?", help="of the recordings, or of the bank")
    parser.add_argument("--count", type=int, default=12, help="rooms for each array and number of talkers")
    given = parser.parse_args()
    if given.what == "cost":
        cost()
    else:
        compare(real(given.path) if given.what == "real" else rooms(given.path, given.count))


if __name__ == "__main__":
    main()
