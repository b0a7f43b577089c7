"""Calibration: how well recorders are put on one clock and microphones on their places, in simulated rooms.

    python -m benchmarks.calibration                          # by the bundled voices
    python -m benchmarks.calibration --bank banks/dev-clean   # by those of a bank
    python -m benchmarks.calibration --kept rooms             # rooms that were heard before are read from this folder

Recorders stand metres apart and record for five minutes. Microphones are centimetres off where they are said to be, and
somebody talks and walks around them for a minute and a half. Everything is drawn from the number of the room.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import write
from qkgcc import samples
from qkgcc.arrays import Geometry, array
from qkgcc.audio.frames import warp
from qkgcc.audio.recording import open_audio
from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.core.types import Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.selfcal import Refined, measure_moments, refine
from qkgcc.selfcal.observability import rigid_motions
from qkgcc.sync import synchronise

RATE = 16000
SECONDS = 300.0
T60 = (0.2, 0.5, 0.8)
SPEED = 343.0
STEP = 0.03
"""Metres between the points of a walk."""
OFFSETS, DRIFTS = (-20.0, 20.0), (-100.0, 100.0)
"""Seconds and ppm between recorders, uniform."""
LIMITS = {"offset": 1.0, "drift": 2.0, "place": 0.01}
"""Samples, ppm and metres that are asked for."""

Speech = Callable[[np.random.Generator, float], Floats]


def kept(folder: Path | None, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a room sounds like (float32), made once: hearing it takes a minute, judging it a second."""
    if folder is None:
        return _narrow(make())
    path = folder / f"{name}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = _narrow(make())
        write_whole(path, lambda target: np.savez(target, **made))
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def _narrow(made: dict[str, Any]) -> dict[str, Any]:
    return {key: np.asarray(x, np.float32) if np.ndim(x) and np.size(x) > RATE else x for key, x in made.items()}


# Sounds


def voices(bank: Path | None) -> Speech:
    """From a generator and seconds to speech of one voice, with pauses."""
    if bank is None:
        return _bundled
    opened = Bank.load(bank)
    groups = {group: np.flatnonzero(opened.groups == group) for group in sorted(set(opened.groups))}
    long = [numbers for numbers in groups.values() if opened.samples[numbers].sum() > 40 * RATE]
    if not long:
        raise InputError(f"{bank}: no voice of it speaks for 40 s")

    def speech(rng: np.random.Generator, seconds: float) -> Floats:
        # Another voice takes over when one has said all.
        order = [number for group in rng.permutation(len(long)) for number in rng.permutation(long[group])]
        said = (opened.audio(int(number)).astype(np.float64) for number in order)
        return _with_pauses(said, rng, seconds)

    return speech


def _bundled(rng: np.random.Generator, seconds: float) -> Floats:
    import soundfile
    import soxr

    dry = soundfile.read(samples.path("talkers-2ch"))[0][:, 0]
    dry = dry * (np.convolve(dry**2, np.ones(320) / 320, mode="same") > 0.01 * np.mean(dry**2))  # its own room's noise

    def said() -> Iterator[Floats]:
        # Backwards and at another speed each time: no part comes twice.
        for speed in np.linspace(0.7, 1.4, 60)[rng.permutation(60)]:
            yield soxr.resample(dry[:: int(rng.choice([-1, 1]))], 1.0, float(speed))

    return _with_pauses(said(), rng, seconds)


def _with_pauses(said: Iterator[Floats], rng: np.random.Generator, seconds: float) -> Floats:
    parts: list[Floats] = []
    while sum(map(len, parts)) < seconds * RATE:
        try:
            one = next(said)
        except StopIteration:
            raise InputError(
                f"the voices speak for {sum(map(len, parts)) / RATE:.0f} s, less than {seconds:g}"
            ) from None
        parts += [one / one.std(), np.zeros(int(rng.uniform(0.3, 1.5) * RATE))]
    return np.concatenate(parts)[: int(seconds * RATE)]


def claps(rng: np.random.Generator, at: list[float]) -> Floats:
    """Bursts of noise that die away within 10 ms, each another one."""
    world = np.zeros(int(SECONDS * RATE))
    size = int(0.08 * RATE)
    for second in at:
        burst = rng.standard_normal(size) * np.exp(-np.arange(size) / (rng.uniform(0.004, 0.01) * RATE))
        world[int(second * RATE) :][:size] += burst
    return world


# Recorders


@dataclass(frozen=True, eq=False)
class Situation:
    """What happens within reach of the recorders."""

    what: str
    far: bool = False
    claps: tuple[float, ...] = ()
    """Seconds; none: speech."""
    walk: float = 0.0
    """Metres per second."""
    stops: bool = False

    @property
    def determined(self) -> str:
        """Whether there is one offset at all: it holds the way of the sound, which a walk changes all the time."""
        if self.walk:
            return "no: the way changes"
        return "yes" if len(self.claps) != 1 else "where it claps"


SITUATIONS = (
    Situation("one clap, within a metre", claps=(60.0,)),
    Situation("a clap at each end, within a metre", claps=(30.0, 275.0)),
    Situation("three claps at each end, 3 to 5 m away", claps=(29.0, 30.1, 31.7, 273.0, 274.2, 276.1), far=True),
    Situation("speech from one place", far=True),
    Situation("speech of a talker who walks and stops", walk=0.7, stops=True),
    Situation("speech of a talker who always walks", walk=0.7),
)


@dataclass(frozen=True, eq=False)
class Heard:
    files: list[Floats]
    offsets: Floats
    """Seconds, with the way of the sound in them; of a walk, with its median."""
    drifts: Floats
    t60: float


def recorders(situation: Situation, number: int, speech: Speech, folder: Path | None = None) -> Heard:
    """A room with two to four recorders, of which each has its own clock and was started by hand."""
    name = f"recorders-{SITUATIONS.index(situation)}-{number}-{SECONDS:g}"
    room = kept(folder, name, lambda: _recorded(situation, number, speech))
    files = [room[f"file{k}"].astype(np.float64) for k in range(len(room["offsets"]))]
    return Heard(files, room["offsets"], room["drifts"], float(room["t60"]))


def _recorded(situation: Situation, number: int, speech: Speech) -> dict[str, Any]:
    rng = np.random.default_rng([number, SITUATIONS.index(situation)])
    t60, count = T60[number % len(T60)], 2 + number % 3
    room = rng.uniform([5.5, 5, 2.5], [8, 7, 3.5])
    sound = claps(rng, list(situation.claps)) if situation.claps else speech(rng, SECONDS)
    while True:
        middle = rng.uniform([1.5, 1.5, 0.8], [room[0] - 1.5, room[1] - 1.5, 1.2])
        places = middle + rng.uniform([-1, -1, -0.2], [1, 1, 0.2], (count, 3))
        path, times = _way(situation, room, rng)
        away = np.linalg.norm(path[:, None] - places, axis=-1)
        apart = np.linalg.norm(places[:, None] - places, axis=-1)[np.triu_indices(count, 1)]
        low, high = (3.0, 5.0) if situation.far and situation.claps else (0.5, 4.0) if situation.far else (0.2, 1.0)
        if apart.min() > 0.6 and (situation.walk > 0 or (low < away.min() and away.max() < high)) and away.min() > 0.2:
            break
    scene = Scene(room, t60, places, (Source("sound", path, times),), 200.0)
    world = render(scene, lambda _: sound, SECONDS, jobs=1, early=0.05, late_step=0.6).audio.astype(np.float64)
    # Noise of each recorder: 10 to 25 dB below speech, 20 to 35 dB below the loudest 80 ms of a clap.
    level = world.std(axis=1)
    if situation.claps:
        power = np.add.reduceat(world**2, np.arange(0, world.shape[1], 1280), axis=1) / 1280
        level = np.sqrt(power.max(axis=1))
    below = rng.uniform(20, 35) if situation.claps else rng.uniform(10, 25)
    started = rng.uniform(0, OFFSETS[1], count)
    ppm = rng.uniform(*DRIFTS, count)
    ppm[0] = 0.0
    files = []
    for k in range(count):
        step = 1 / (1 - 1e-6 * ppm[k])
        samples = int((world.shape[1] - started[k] * RATE) / step) - 100
        noise = 10 ** (-below / 20) * level[k] * rng.standard_normal(samples)
        files.append(warp(world[k], step, started[k] * RATE, samples) + noise)
    # What is heard at t_1 in the first file is heard at (1 - drift) (t_1 + started_1 - started_k + way) in another.
    when = np.arange(0.0, SECONDS, 0.1)
    there = np.stack([np.interp(when, times, path[:, x]) for x in range(3)], axis=1)
    away = np.linalg.norm(there[:, None] - places, axis=-1)
    way = np.median(away[:, :1] - away, axis=0) / SPEED
    offsets = (1 - 1e-6 * ppm) * (started - started[0] + way)
    return {f"file{k}": file for k, file in enumerate(files)} | {"offsets": offsets, "drifts": ppm, "t60": t60}


def _way(situation: Situation, room: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Points of a source and when it is there: legs between places all over the room, with stops of 4 to 15 s."""
    inside = ([0.6, 0.6, 1.2], [room[0] - 0.6, room[1] - 0.6, 1.8])
    place, now = rng.uniform(*inside), 0.0
    if not situation.walk:
        return place[None], np.zeros(1)
    path, times = [place], [0.0]
    while now < SECONDS:
        if situation.stops:
            now += rng.uniform(4, 15)
            path.append(place)
            times.append(now)
        target = rng.uniform(*inside)
        target[2] = place[2]
        length = float(np.linalg.norm(target - place))
        for share in np.arange(STEP, length, STEP) / length:
            path.append(place + share * (target - place))
            times.append(now + share * length / situation.walk)
        place, now = target, now + length / situation.walk
    return np.array(path), np.array(times)


def clocks(speech: Speech, count: int, folder: Path | None) -> list[dict[str, Any]]:
    rows = []
    for situation in SITUATIONS:
        off, off_sd, drift, drift_sd, lost, total = [], [], [], [], 0, 0
        for number in range(count):
            heard = recorders(situation, number, speech, folder)
            for k in range(1, len(heard.files)):
                total += 1
                pair = [open_audio(heard.files[i][None], RATE) for i in (0, k)]
                try:
                    clock = synchronise(pair).clocks[1]
                except InputError:
                    lost += 1
                    print(
                        f"  {situation.what}, room {number} (T60 {heard.t60}), recorder {k}: nothing found", flush=True
                    )
                    continue
                # Of a single clap, the offset is known where it was heard.
                there = 0.0 if clock.drift is not None else 1e-6 * heard.drifts[k] * clock.at
                off.append((clock.offset - heard.offsets[k] - there) * RATE)
                off_sd.append((clock.offset_sd if clock.drift is not None else clock.sd_there) * RATE)
                if clock.drift is not None and clock.drift_sd is not None:
                    drift.append(1e6 * clock.drift - heard.drifts[k])
                    drift_sd.append(1e6 * clock.drift_sd)
                print(
                    f"  {situation.what}, room {number} (T60 {heard.t60}), recorder {k}: offset {off[-1]:+.2f} ± "
                    f"{off_sd[-1]:.2f} samples, drift "
                    + ("unknown" if clock.drift is None else f"{drift[-1]:+.2f} ± {drift_sd[-1]:.2f} ppm"),
                    flush=True,
                )
        rows.append(
            {
                "what is heard": situation.what,
                "offset determined": situation.determined,
                "recorders": total,
                "refused": lost,
                "offset: median error (samples)": _median(off),
                "within 1": _share(off, LIMITS["offset"]),
                "within 2 sd ": _covered(off, off_sd),
                "drift: median error (ppm)": _median(drift),
                "within 2": _share(drift, LIMITS["drift"]),
                "within 2 sd": _covered(drift, drift_sd),
            }
        )
    return rows


# Positions


def scattered(rng: np.random.Generator) -> Geometry:
    return Geometry(rng.uniform([-1.2, -1.2, -0.5], [1.2, 1.2, 0.8], (6, 3)), "6 metres apart")


@dataclass(frozen=True)
class Walk:
    array: str
    off: float
    """Metres by which each microphone is off along each axis, a standard deviation."""
    level: bool
    """At the height of the array, and `refine` is told so; else between knee and raised hand, and it is not."""
    nearest: float = 0.8
    """Metres from the middle of the array."""

    @property
    def what(self) -> str:
        return "at its height, which is known" if self.level else "high and low, at heights unknown"


WALKS = (
    Walk("respeaker4", 0.01, True),
    Walk("circular:8:0.1", 0.02, True),
    Walk("circular:8:0.1", 0.02, False),
    Walk("linear:4:0.05", 0.01, True),
    Walk("linear:4:0.05", 0.01, False),
    Walk("tetrahedral:0.2", 0.02, False),
    Walk("6 metres apart", 0.03, False, 0.3),
)
WALKED = 90.0


def way_around(walk: Walk, centre: Floats, room: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Points and times of a walk around the array at 0.5 m/s, near and far."""
    turn = np.linspace(0, 2 * np.pi * 8, 8000) + rng.uniform(0, 6)
    phase = rng.uniform(0, 6, 2)
    radius = walk.nearest + 0.5 + 0.4 * np.sin(0.37 * turn + phase[0])
    height = centre[2] + (0 if walk.level else 0.8) * np.sin(0.23 * turn + phase[1])
    path = np.stack([centre[0] + radius * np.cos(turn), centre[1] + radius * np.sin(turn), height], axis=1)
    path = np.clip(path, 0.2, room - 0.2)
    gone = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    along = np.arange(0, min(gone[-1], 0.5 * WALKED), STEP)
    return np.stack([np.interp(along, gone, path[:, x]) for x in range(3)], axis=1), along / 0.5


def walked(
    walk: Walk, number: int, speech: Speech, folder: Path | None = None
) -> tuple[Geometry, Geometry, Floats, float]:
    """The true array, the nominal one, what is heard, and the T60."""
    name = f"walk-{WALKS.index(walk)}-{number}-{WALKED:g}"
    room = kept(folder, name, lambda: _walked(walk, number, speech))
    true, nominal = (Geometry(room[key], walk.array) for key in ("true", "nominal"))
    return true, nominal, room["heard"].astype(np.float64), float(room["t60"])


def _walked(walk: Walk, number: int, speech: Speech) -> dict[str, Any]:
    rng = np.random.default_rng([number, WALKS.index(walk), 7])
    true, t60 = scattered(rng) if "metres" in walk.array else array(walk.array), (0.2, 0.4, 0.6)[number % 3]
    nominal = Geometry(true.microphones + walk.off * rng.standard_normal((len(true), 3)), walk.array)
    room = rng.uniform([5, 5, 2.6], [8, 7, 3.5])
    centre = np.array([*(room[:2] / 2 + rng.uniform(-0.4, 0.4, 2)), 1.2])
    while True:
        path, times = way_around(walk, centre, room, rng)
        if np.linalg.norm(path[:, None] - centre - true.microphones, axis=-1).min() > 0.15:
            break
    scene = Scene(room, t60, centre + true.microphones, (Source("speech", path, times),), float(rng.uniform(15, 25)))
    heard = render(scene, lambda _: speech(rng, WALKED), WALKED, jobs=1, early=0.05, late_step=0.6).audio
    return {"true": true.microphones, "nominal": nominal.microphones, "heard": 0.1 * heard, "t60": t60}


@dataclass(frozen=True, eq=False)
class Judged:
    before: Floats
    """(M,) metres by which places are off, without turns of the whole array and without what is named as unsolved."""
    after: Floats
    covered: float
    """Share of what is left that is within two standard deviations."""
    determined: int
    """Shifts that are not named as unsolved,"""
    shifts: int
    """of so many."""


def solved(found: Refined, true: Geometry, nominal: Geometry) -> Judged:
    """The truth is laid on the array that was found: of a true row, any roll would be as good the other way round."""
    unsolved = [one.shifts.reshape(len(one.shifts), -1) for one in found.unsolved]
    rigid = rigid_motions(found.geometry.microphones)
    _, size, rows = np.linalg.svd(np.concatenate([rigid, *unsolved]), full_matrices=False)
    basis = rows[size > 1e-6]

    def off(geometry: Geometry) -> Floats:
        x, y = true.microphones, geometry.microphones
        x, y = x - x.mean(axis=0), y - y.mean(axis=0)
        left, _, right = np.linalg.svd(x.T @ y)
        sign = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
        missed = (y - x @ (left * sign) @ right).ravel()
        missed = missed - missed @ basis.T @ basis
        return np.asarray(missed.reshape(-1, 3))

    before, after = off(nominal), off(found.geometry)
    kept = 1 - (basis**2).sum(axis=0).reshape(-1, 3) > 0.5
    covered = float((np.abs(after) < 2 * found.sd)[kept].mean()) if kept.any() else float("nan")
    determined, shifts = before.size - len(basis), before.size - len(rigid)
    return Judged(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1), covered, determined, shifts)


def places(speech: Speech, count: int, folder: Path | None) -> list[dict[str, Any]]:
    rows = []
    for walk in WALKS:
        judged = []
        named: dict[str, int] = {}
        for number in range(count):
            true, nominal, heard, t60 = walked(walk, number, speech, folder)
            moments = measure_moments(open_audio(heard, RATE), nominal)
            found = refine(nominal, moments, nearest=walk.nearest, height=0.0 if walk.level else None)
            one = solved(found, true, nominal)
            judged.append(one)
            for lost in found.unsolved:
                named[kind(lost.what)] = named.get(kind(lost.what), 0) + 1
            print(
                f"  {walk.array}, {walk.what}, room {number} (T60 {t60}): {100 * one.before.max():.2f} -> "
                f"{100 * one.after.max():.2f} cm at most, {one.determined} of {one.shifts} shifts, "
                f"{100 * one.covered:.0f} % within 2 sd; not determined: "
                + "; ".join(f"{lost.what} ({100 * lost.sd:.1f} cm)" for lost in found.unsolved),
                flush=True,
            )
        # A walk of which nothing is determined proves nothing: it counts on neither side.
        told = [one for one in judged if one.determined]
        good = sum(one.after.max() < LIMITS["place"] for one in told)
        covered = [one.covered for one in told if not np.isnan(one.covered)]
        rows.append(
            {
                "array": walk.array,
                "walk": walk.what,
                "shifts determined": ", ".join(f"{one.determined} of {one.shifts}" for one in judged),
                "before: median (cm)": _centimetres([one.before for one in told]),
                "after: median (cm)": _centimetres([one.after for one in told]),
                "worst microphone (cm)": f"{100 * max(one.after.max() for one in told):.2f}" if told else "-",
                "all within 1 cm": (f"{good} of {len(told)}" if told else "-")
                + (f"; nothing determined: {count - len(told)}" if len(told) < count else ""),
                "within 2 sd": f"{100 * np.mean(covered):.0f} %" if covered else "-",
                "not determined (walks)": "; ".join(f"{what} ({n})" for what, n in named.items()) or "nothing",
            }
        )
    return rows


def kind(what: str) -> str:
    """What is not determined, without numbers of microphones and axes.

    >>> kind("the size of the array along front and left"), kind("where microphones 0, 1 lie along up")
    ('size', 'places along up')
    """
    if what.startswith("the size"):
        return "size"
    if what.startswith("where"):
        axis = what.rpartition(" along ")[2]
        return f"places along {axis}" if axis in ("front", "left", "up") else "places along an axis"
    return "combined shifts"


def _centimetres(errors: list[Floats]) -> str:
    return f"{100 * np.median(np.concatenate(errors)):.2f}" if errors else "-"


def _median(errors: list[float]) -> str:
    return f"{np.median(np.abs(errors)):.2f}" if errors else "-"


def _share(errors: list[float], limit: float) -> str:
    return f"{sum(abs(error) <= limit for error in errors)} of {len(errors)}" if errors else "-"


def _covered(errors: list[float], sds: list[float]) -> str:
    return f"{100 * np.mean(np.abs(errors) < 2 * np.array(sds)):.0f} %" if errors else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, help="of voices; by default those that are bundled")
    parser.add_argument("--rooms", type=int, default=3, help="for each situation and each array")
    parser.add_argument("--only", choices=("clocks", "places"))
    parser.add_argument("--kept", type=Path, help="folder of rooms that were heard before, and of those to come")
    given = parser.parse_args()
    speech = voices(given.bank)
    folder = given.kept and given.kept / (given.bank.name if given.bank else "bundled")
    command = "python -m benchmarks.calibration" + (f" --bank banks/{given.bank.name}" if given.bank else "")
    if given.only != "places":
        rows = clocks(speech, given.rooms, folder)
        notes = [
            f"{given.rooms} simulated rooms each, T60 {', '.join(map(str, T60))} s; two to four recorders 0.6 m apart "
            f"and more, {SECONDS:g} s at {RATE} Hz, offsets to 20 s, drifts to 100 ppm; noise 10 to 25 dB below "
            "speech, 20 to 35 dB below a clap. The way of the sound counts as part of an offset (of a walk: its "
            "median). Asked: 1 sample, 2 ppm.",
        ]
        write("calibration", "Recorders put on one clock", command, list(rows[0]), rows, notes)
    if given.only != "clocks":
        rows = places(speech, given.rooms, folder)
        notes = [
            f"{given.rooms} simulated rooms each, T60 0.2, 0.4, 0.6 s, noise 15 to 25 dB below; speech of somebody who "
            f"walks around at 0.5 m/s for {WALKED:g} s. Without the place and attitude of the whole array, and without "
            "what is named as not determined: of all shifts of the microphones, so many are (in each room). Asked: "
            "1 cm for these.",
        ]
        write("calibration_places", "Microphones found by a walk", command, list(rows[0]), rows, notes)


if __name__ == "__main__":
    main()
