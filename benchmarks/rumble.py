"""Hum and rumble beside a talker, with and without `qkgcc.dsp.rumble`; low sources alone; rooms in which nobody speaks.

    python -m benchmarks.rumble --bank banks/test-clean --bank banks/dev-clean --bank banks/music --bank banks/noise

The talkers are validation voices in recordings that no training has seen (`framesets.unseen_recordings`), no test set.
Writes three tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import machine, write
from qkgcc import DelayEstimator
from qkgcc.core.types import SPEED_OF_SOUND, Samples
from qkgcc.dsp import rumble
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.study import general
from qkgcc.lab.study.framesets import FRAME, RATE, FrameSet, unseen_recordings
from qkgcc.network.registry import PRETRAINED, pretrained
from qkgcc.pairs.confidence import TOLERANCE
from qkgcc.pairs.evidence import Method, prepare_frames
from qkgcc.pairs.frontend import at_unit_level

LEVELS = (0, 5, 10, 20, 30)
"""dB above the frame as it is."""
TRIED = ((150.0, 3.0), (200.0, 3.0), (280.0, 1.5), (280.0, 6.0), (340.0, 3.0), (340.0, 6.0), (400.0, 3.0))
"""Highest frequencies and ratios beside those of `qkgcc.dsp.rumble`."""
LOW = {
    "a tone of 60 Hz": [60.0],
    "a tone of 120 Hz": [120.0],
    "a tone of 200 Hz": [200.0],
    "a tone of 260 Hz": [260.0],
    "a motor: 117 Hz, each harmonic 6 dB less": [117.0 * k for k in range(1, 12)],
}
"""Sources that are alone but for a noise of each microphone's own: frequencies, each 6 dB below the one before."""
DELAY = 5.3
"""Samples of theirs, of 9.3 that are possible."""
SPACINGS = (0.02, 0.05, 0.1, 0.3)
"""Metres, of the rooms in which nobody speaks."""
EVERY = 5
"""Of the frames that are measured."""

Prepare = Callable[[Method, Samples], Samples]


def hum(count: int, limits: Any) -> Any:
    """50 Hz and its multiples to 350 Hz, in both channels alike."""
    rng = np.random.default_rng(0)
    time = np.arange(FRAME) / RATE
    lines = [
        rng.uniform(0.2, 1, (count, 1)) / k * np.sin(2 * np.pi * 50 * k * time + rng.uniform(0, 2 * np.pi, (count, 1)))
        for k in range(1, 8)
    ]
    return np.stack(2 * [np.sum(lines, axis=0)], axis=1)


def diffuse(count: int, limits: Any, *, corner: float = 40.0, samples: int = FRAME) -> Any:
    """Noise from all around, 12 dB less per octave above `corner`; 0: white."""
    rng, length = np.random.default_rng(1), 2 * samples
    frequencies = np.fft.rfftfreq(length, 1 / RATE)
    size = 1 / (1 + (frequencies / corner) ** 2) if corner else np.ones(len(frequencies))
    size = size * (frequencies > 15)
    one, other = rng.standard_normal((2, count, len(frequencies), 2)).view(complex)[..., 0]
    alike = np.sinc(2 * frequencies * np.asarray(limits)[:, None] / RATE)
    both = np.stack([one, alike * one + np.sqrt(1 - alike**2) * other], axis=1)
    return np.fft.irfft(size * both, length)[..., samples // 2 : samples // 2 + samples]


SOUNDS = {"hum in both channels alike": hum, "diffuse rumble": diffuse}


def mixed(given: FrameSet, sound: Callable[[int, Any], Any], decibels: float) -> FrameSet:
    other = sound(len(given), given.limits)
    level = given.frames.std(axis=(1, 2)) / other.std(axis=(1, 2)) * 10 ** (decibels / 20)
    return replace(given, frames=(given.frames + level[:, None, None] * other).astype(np.float32))


def as_it_is(method: Method, frames: Samples) -> Samples:
    return at_unit_level(frames)


def as_shipped(method: Method, frames: Samples) -> Samples:
    return prepare_frames(method, frames)[0]


def tried(highest: float, drowns: float) -> Prepare:
    def prepare(method: Method, frames: Samples) -> Samples:
        return at_unit_level(rumble.without_rumble(frames, RATE, highest=highest, drowns=drowns))

    return prepare


def right(limited: Callable[[float], Method], given: FrameSet, prepare: Prepare = as_shipped) -> float:
    """Percent within 62.5 microseconds, each frame by itself."""
    delays = np.empty(len(given))
    for limit in np.unique(given.limits):
        here = np.flatnonzero(given.limits == limit)
        method = limited(float(limit))
        frames = prepare(method, given.frames[here].astype(np.float64)).astype(np.float32)
        delays[here] = method.decode(method.evidence(frames)).delay
    return float(100 * (np.abs(delays - given.delays) <= TOLERANCE * RATE + 1e-6).mean())


def beside_a_talker(given: FrameSet) -> list[dict[str, Any]]:
    sets = {("nothing", None): given} | {
        (name, level): mixed(given, sound, level) for name, sound in SOUNDS.items() for level in LEVELS
    }
    networks = {name: general.network(pretrained(name)) for name in PRETRAINED}
    first = next(iter(networks.values()))
    ways: dict[str, Callable[[FrameSet], float]] = {"phat": partial(right, general.classical("phat"))}
    for name, network in networks.items():
        ways |= {
            f"{name}, frames as they are": partial(right, network, prepare=as_it_is),
            name: partial(right, network),
        }
    for highest, drowns in TRIED:
        ways[f"{highest:g} Hz, {drowns:g} times"] = partial(right, first, prepare=tried(highest, drowns))
    return [
        {"beside a talker": name, "dB": "" if level is None else f"{level:+d}"}
        | {way: measure(frames) for way, measure in ways.items()}
        for (name, level), frames in sets.items()
    ]


def low_sources(count: int = 200) -> Iterator[dict[str, Any]]:
    limit = SPACINGS[2] * 2 / SPEED_OF_SOUND * RATE
    time = np.arange(FRAME) / RATE - np.array([DELAY / RATE, 0.0])[:, None]
    methods = {name: general.network(pretrained(name))(limit) for name in PRETRAINED}
    phat = general.classical("phat")(limit)
    for name, frequencies in LOW.items():
        for decibels in (10, 20, 30, 40, 60):
            rng = np.random.default_rng(3)
            phases = rng.uniform(0, 2 * np.pi, (len(frequencies), count, 1, 1))
            sound = sum(
                np.sin(2 * np.pi * f * time + phase) / 2**i
                for i, (f, phase) in enumerate(zip(frequencies, phases, strict=True))
            )
            frames = sound + np.std(sound) * 10 ** (-decibels / 20) * rng.standard_normal((count, 2, FRAME))
            yield {"alone": name, "dB above noise": decibels, "phat": _alone(phat, frames, as_shipped)} | {
                label: _alone(method, frames, prepare)
                for one, method in methods.items()
                for label, prepare in ((f"{one}, frames as they are", as_it_is), (one, as_shipped))
            }


def _alone(method: Method, frames: Samples, prepare: Prepare) -> str:
    decoded = method.decode(method.evidence(prepare(method, frames).astype(np.float32)))
    share = 100 * (np.abs(decoded.delay - DELAY) <= TOLERANCE * RATE + 1e-6).mean()
    return f"{share:.0f} ({decoded.confidence.mean():.2f})"


def nobody(seconds: float = 20.0) -> Iterator[dict[str, Any]]:
    """Confidences where there is no source."""
    samples = round(seconds * RATE)
    time = np.arange(samples) / RATE
    alike = np.stack(2 * [sum(np.sin(2 * np.pi * 50 * k * time + k) / k for k in range(1, 6))])
    for spacing in SPACINGS:
        limit = np.array([spacing / SPEED_OF_SOUND * RATE])
        rooms = {
            "noise of each microphone": np.random.default_rng(2).standard_normal((2, samples)),
            "diffuse, white": diffuse(1, limit, corner=0, samples=samples)[0],
            "diffuse, 12 dB less per octave above 40 Hz": diffuse(1, limit, samples=samples)[0],
        }
        own = np.random.default_rng(4).standard_normal((2, samples))
        for decibels in (20, 30, 40):
            below = 10 ** (-decibels / 20) * own
            rooms[f"a hum in both channels alike, {decibels} dB above their noise"] = alike / alike.std() + below
        for name, sound in rooms.items():
            answers = {one: DelayEstimator(one, spacing=spacing)(0.1 * sound / sound.std(), RATE) for one in PRETRAINED}
            yield {"nobody speaks, but": name, "spacing": f"{100 * spacing:g} cm"} | {
                one: f"{answer.confidence.mean():.2f} ({100 * (answer.confidence > 0.5).mean():.0f} %)"
                for one, answer in answers.items()
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, action="append", required=True)
    parser.add_argument("--scenes", type=int, default=400)
    arguments = parser.parse_args()
    here = machine()
    command = " ".join(["python -m benchmarks.rumble", *(f"--bank banks/{path.name}" for path in arguments.bank)])
    made = unseen_recordings([Bank.load(bank) for bank in arguments.bank], arguments.scenes)
    given = made.take(np.flatnonzero(np.isfinite(made.delays))[::EVERY])
    table = beside_a_talker(given)
    notes = [
        f"Percent of {len(given)} frames of {arguments.scenes} recordings of validation voices that are right to "
        "62.5 us, each frame by itself. dB: above the frame with all that is in it already. A network's name: as it "
        f"is used, `qkgcc.dsp.rumble` before it ({rumble.MAX_RUMBLE_HZ:g} Hz, "
        f"{rumble.MIN_RUMBLE_TO_REST:g} times); the last columns: "
        f"others of these two numbers, with `{next(iter(PRETRAINED))}`.",
    ]
    write("rumble", "Hum and rumble beside a talker", command, list(table[0]), table, notes, here=here)
    lowly = list(low_sources())
    notes = [
        "Percent right to 62.5 us, and the mean confidence of a frame by itself (`phat`: its coherence). A source of "
        "which nearly everything lies below 280 Hz is taken for rumble where noise is left when it is gone, and kept "
        f"where next to nothing is: from {10 * np.log10(rumble.MAX_RUMBLE_TO_REST):.0f} dB on.",
    ]
    write("low_sources", "Low sources alone", command, list(lowly[0]), lowly, notes, here=here)
    alone = list(nobody())
    notes = ["Mean confidence, and in how many frames it is above 0.5, of 20 s without any source."]
    write("nobody", "Where nobody speaks", command, list(alone[0]), alone, notes, here=here)


if __name__ == "__main__":
    main()
