"""Sources followed on `array-test` with the compact arrays: `results/tracks.json`.

    {schema, name, benchmark, engine, command, git, device, seconds, rows, checksum}
    row: {method, way, settings, benchmark, engine, git, cell, scenes, share, changes, false, talker_seconds, seconds}

A row is a method on a cell (an array, a number of talkers, a motion), in one of two ways: `whole`, with the whole
recording at hand, as `DirectionEstimator(...)(..., track=True)` and `qkgcc locate --track` answer, or `online`, frame
by frame, as `DirectionStream` and `qkgcc listen --track`. `scenes` names those that were measured, the lists behind it
hold what `scoring.score_tracks` says of each: the true azimuth and who speaks are known at the middle of every frame.

The baseline is the same tracker, with the same settings, on maps of SRP-PHAT.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from qkgcc.arrays import DirectionEstimator, Geometry
from qkgcc.arrays.evidence import ArrayFrames, frames_of
from qkgcc.arrays.stream import DirectionStream
from qkgcc.audio.recording import open_audio
from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.array_set import NAME as SET
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes.array_scenes import KINDS, SAMPLE_RATE, Kind
from qkgcc.lab.study import results
from qkgcc.lab.study.scoring import score_tracks
from qkgcc.network.registry import ARRAY_DEFAULT, WEIGHTS
from qkgcc.tracks.paths import find_tracks
from qkgcc.tracks.tracker import Track, Trajectory

NAME = "tracks"
WAYS = ("whole", "online")
SCORES = ("share", "changes", "false", "talker_seconds", "seconds")
BLOCK = 1024
"""Samples that come at once where sources are followed online."""

Floats = npt.NDArray[np.float64]
History = list[tuple[float, list[Track]]]
"""The times of all frames, and the tracks at each."""
Say = Callable[[str], object]
Progress = Callable[[str, int], Callable[[int], object]]


class Followed(NamedTuple):
    """The same recording, followed in both ways."""

    whole: History
    online: History


class Follower(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on: rows of other settings are measured anew."""
        ...

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed: ...


@dataclass(frozen=True)
class Tracks:
    """This package's tracks, as users get them."""

    name: str
    method: str = ARRAY_DEFAULT

    @property
    def settings(self) -> dict[str, Any]:
        weights = (WEIGHTS / f"{self.method}.safetensors").read_bytes()
        return {"method": self.method, "weights": hashlib.sha256(weights).hexdigest()[:16]}

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed:
        estimator = DirectionEstimator(geometry, self.method, threads=1)
        answer = estimator(audio, sample_rate, track=True)
        stream = DirectionStream(estimator, sample_rate, track=True)
        online: History = []
        for first in range(0, audio.shape[1], BLOCK):
            frames = stream.push(audio[:, first : first + BLOCK])
            online += zip(frames.times.tolist(), frames.tracks or (), strict=True)
        return Followed(by_time(answer.tracks or (), answer.times.tolist()), online)


@dataclass(frozen=True)
class PhatTracks:
    """The same on SRP-PHAT: exp(`sharpness` * mean correlation of the pairs) are the weights of a frame."""

    name: str = "phat"
    sharpness: float = 150.0
    """The best for whole recordings of 10, 20, 30, 50, 100, 150, 200 and 300, on scenes of dev-clean."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness}

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed:
        estimator = DirectionEstimator(geometry, "phat")
        evidence = estimator.evidence(sample_rate)
        maps = estimator.maps(evidence)
        network = DirectionEstimator(geometry, threads=1)
        tracker = network.tracker(network.evidence(sample_rate))
        frames = ArrayFrames.joined(frames_of(evidence, open_audio(audio, sample_rate)))
        mean = maps(frames).cells
        weights = np.exp(self.sharpness * (mean - mean.max(axis=1, keepdims=True)))
        paths = find_tracks(frames.times, weights, frames.heard, estimator.grid.cells)
        times = frames.times.tolist()
        rows = zip(times, weights, frames.heard, strict=True)
        online = [(time, tracker.update(time, row, reliability=1.0 if heard else 0.0)) for time, row, heard in rows]
        return Followed(by_time(paths, times), online)


def followers() -> list[Follower]:
    return [Tracks("qkgcc"), PhatTracks()]


def by_time(tracks: Sequence[Trajectory], times: Sequence[float]) -> History:
    """Trajectories as what there is at each of the times of the frames."""
    moments: dict[float, list[Track]] = {time: [] for time in times}
    for moment in itertools.chain.from_iterable(tracks):
        moments[moment.time].append(moment)
    return list(moments.items())


def measure(
    follower: Follower, benchmark: ArrayBenchmark, index: int, engine: str = "cpu", cache: Path | None = None
) -> dict[str, dict[str, float]]:
    """The scores of a scene, by way."""
    drawn = benchmark.scene(index)
    audio = benchmark.load_scene(index, engine, cache)
    found = follower.follow(audio, SAMPLE_RATE, drawn.geometry)
    scores = {}
    for way, history in found._asdict().items():
        times = np.array([time for time, _ in history])
        flat = drawn.places(times) * [1.0, 1.0, 0.0]  # azimuths are compared: a flat array follows them in its plane
        directions = flat / np.linalg.norm(flat, axis=-1, keepdims=True)
        scores[way] = score_tracks(history, directions, drawn.speaking(times, benchmark.utterances))
    return scores


def fill(
    path: Path,
    chosen: Sequence[Follower],
    each: int,
    *,
    engine: str = "cpu",
    cache: Path | None = None,
    bank: Bank | None = None,
    again: bool = False,
    say: Say = print,
    track: Progress = lambda what, total: lambda done: None,
) -> list[results.Row]:
    """Measure what is missing of the first `each` scenes of each kind with a compact array.

    Written after every scene of each kind, so an interrupted run goes on where it stopped.

    Args:
        bank: of test-clean; None where the scenes are rendered.
        again: measure anew what is there.
    """
    benchmark = ArrayBenchmark.load()
    if not 1 <= each <= len(benchmark) // len(KINDS):
        raise InputError(f"{each} scenes of each kind; expected 1 to {len(benchmark) // len(KINDS)}")
    table = _Table(path, results.read(path), benchmark, engine)
    wanted = [index for index in range(each * len(KINDS)) if KINDS[index % len(KINDS)].compact]
    rendered = track(f"{SET}: rendering", len(wanted))
    for done, index in enumerate(wanted, 1):
        benchmark.render([bank] if bank else [], engine, only=[str(index)], cache=cache)
        rendered(done)
    for follower in chosen:
        if again or table.is_stale(follower):
            table.drop(follower)
        waiting = [index for index in wanted if not table.has(follower, index)]
        advance = track(f"{SET}: tracks by {follower.name}", len(waiting))
        for done, index in enumerate(waiting, 1):
            table.add(follower, index, measure(follower, benchmark, index, engine, cache))
            if done % 12 == 0 or done == len(waiting):
                table.write()
            advance(done)
        say(f"{follower.name}: measured")
    return table.rows


class _Table:
    """The rows of the results file, as they grow."""

    def __init__(self, path: Path, content: dict[str, Any] | None, benchmark: ArrayBenchmark, engine: str) -> None:
        self.path, self.benchmark, self.engine = path, benchmark, engine
        self.seconds: float = content["seconds"] if content else 0.0
        self.begun = time.monotonic()
        self.rows: list[results.Row] = content["rows"] if content else []

    def is_stale(self, follower: Follower) -> bool:
        """Whether its rows are of another set or other settings."""
        mine = [row for row in self.rows if row["method"] == follower.name]
        return any(row["settings"] != follower.settings or row["benchmark"] != self.benchmark.hash for row in mine)

    def drop(self, follower: Follower) -> None:
        self.rows = [row for row in self.rows if row["method"] != follower.name]

    def has(self, follower: Follower, index: int) -> bool:
        return all(index in self._row(follower, way, index)["scenes"] for way in WAYS)

    def add(self, follower: Follower, index: int, scores: dict[str, dict[str, float]]) -> None:
        for way in WAYS:
            row = self._row(follower, way, index)
            row["scenes"].append(index)
            for name in SCORES:
                row[name].append(round(scores[way][name], 4))

    def _row(self, follower: Follower, way: str, index: int) -> results.Row:
        cell = cell_of(KINDS[index % len(KINDS)])
        key = (follower.name, way, cell)
        row = next((row for row in self.rows if (row["method"], row["way"], row["cell"]) == key), None)
        if row is None:
            about = {"settings": follower.settings, "benchmark": self.benchmark.hash, "engine": self.engine}
            row = {"method": follower.name, "way": way, **about, "git": commit(), "cell": cell, "scenes": []}
            row |= {name: [] for name in SCORES}
            self.rows.append(row)
        return row

    def write(self) -> None:
        now = time.monotonic()
        self.seconds, self.begun = round(self.seconds + now - self.begun, 1), now
        about = {
            "benchmark": self.benchmark.hash,
            "engine": self.engine,
            "command": f"qkgcc reproduce {NAME}",
            "git": commit(),
            "device": "cpu",
            "seconds": self.seconds,
        }
        results.write(self.path, NAME, self.rows, about)


def cell_of(kind: Kind) -> dict[str, str]:
    return {"array": kind.array, "talkers": str(kind.talkers), "motion": "moving" if kind.moving else "static"}
