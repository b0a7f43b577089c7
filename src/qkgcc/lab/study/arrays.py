"""Arrays of microphones on `array-test` and on real recordings: `results/arrays.json` and `results/tracks.json`.

    row of arrays: {method, settings, set, benchmark, engine, git, cell, scenes, counts, errors, heights}
    row of tracks: {method, way, settings, benchmark, engine, git, cell, scenes, share, changes, false, talker_seconds,
                    seconds}

A row is a method on a cell: in `array-test` an array, a number of talkers and a motion. `scenes` names the scenes that
were measured. A part of them can be measured, and more later: they take turns, so the first n of each cell are a set of
their own.

In `arrays`, `counts` says how many talkers each scene has in all its blocks, and `errors` are theirs in turn: degrees
of azimuth, or metres on the floor and, in `heights`, in space. A talker that was not found is null. A method that finds
directions and positions is two locators of one name, and each has the rows of its own arrays. In its set `respeaker` a
cell is a number of sources, `scenes` are the files, and `errors` those of the blocks of a second that are louder than
half the file. `whole` has the errors of the sources when the whole file is one block.

In `tracks`, of the compact arrays, a method has two ways: `whole`, with the whole recording at hand, as
`DirectionEstimator(...)(..., track=True)` and `qkgcc locate --track` answer, or `online`, frame by frame, as
`DirectionStream` and `qkgcc listen --track`. The lists hold what `scoring.score_tracks` says of each scene: the true
azimuth and who speaks are known at the middle of every frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.arrays import array
from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats
from qkgcc.lab.frozen.array_set import NAME as SET
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.scenes.array_scenes import BLOCKS, DISTRIBUTED, KINDS, SAMPLE_RATE, SECONDS, Kind
from qkgcc.lab.study import framesets, scoring
from qkgcc.lab.study.locators import Follower, Locator
from qkgcc.lab.study.results import ReproductionRun, Row, Table

NAME = "arrays"
TRACKS = "tracks"
RESPEAKER = "respeaker"
BLOCK = round(SECONDS * SAMPLE_RATE / BLOCKS)
SCORES = ("share", "changes", "false", "talker_seconds", "seconds")

Columns = dict[str, list[Any]]
Added = tuple[Row, Columns]
"""What a scene adds to a table: the key of a row, and what its columns grow by."""


def fill(run: ReproductionRun, locators: Sequence[Locator]) -> list[Row]:
    """Measure what is missing of the first scenes of each kind, and of the real recordings if there are corpora.

    Written after every scene of each kind, so an interrupted run goes on where it stopped.
    """
    benchmark, table = _begin(run, NAME)
    wanted = _rendered(run, benchmark, range(run.scenes * len(KINDS)))
    for locator in locators:
        suited = [i for i in wanted if KINDS[i % len(KINDS)].compact != locator.positions and not locator.real_only]
        _measure_scenes(run, table, locator, suited, partial(_locate_scene, run, benchmark, locator))
        known = any(_is_of(row, locator) and row["set"] == RESPEAKER for row in table.rows)
        if run.data is not None and not locator.positions and not known:
            for path, sources in respeaker_files(run.data):
                _extend(table, locator, _locate_recording(locator, path, sources))
            table.write()
        run.say(f"{locator.name}: measured")
    return table.rows


def fill_tracks(run: ReproductionRun, followers: Sequence[Follower]) -> list[Row]:
    """Measure what is missing of the first scenes of each kind with a compact array, written as in `fill`."""
    benchmark, table = _begin(run, TRACKS)
    every = range(run.scenes * len(KINDS))
    wanted = _rendered(run, benchmark, [index for index in every if KINDS[index % len(KINDS)].compact])
    for follower in followers:
        _measure_scenes(run, table, follower, wanted, partial(_follow_scene, run, benchmark, follower))
        run.say(f"{follower.name}: measured")
    return table.rows


def _locate_scene(run: ReproductionRun, benchmark: ArrayBenchmark, locator: Locator, index: int) -> Iterator[Added]:
    errors, in_space = measure(locator, benchmark, index, run.engine or "cpu", run.cache)
    columns: Columns = {"scenes": [index], "counts": [len(errors)]}
    columns["errors"] = _listed(errors, 2 if in_space is None else 3)
    if in_space is not None:
        columns["heights"] = _listed(in_space, 3)
    yield {"method": locator.name, "set": SET, "cell": cell_of(KINDS[index % len(KINDS)])}, columns


def _locate_recording(locator: Locator, path: Path, sources: Floats) -> Iterator[Added]:
    blockwise, whole = measure_respeaker(locator, path, sources)
    columns: Columns = {"scenes": ["/".join(path.parts[-3:])], "counts": [len(blockwise)]}
    columns |= {"errors": _listed(blockwise, 2), "whole": [_listed(whole, 2)]}
    yield {"method": locator.name, "set": RESPEAKER, "cell": {"talkers": str(len(sources))}}, columns


def _follow_scene(run: ReproductionRun, benchmark: ArrayBenchmark, follower: Follower, index: int) -> Iterator[Added]:
    for way, scores in measure_tracks(follower, benchmark, index, run.engine or "cpu", run.cache).items():
        columns: Columns = {"scenes": [index], **{name: [round(scores[name], 4)] for name in SCORES}}
        yield {"method": follower.name, "way": way, "cell": cell_of(KINDS[index % len(KINDS)])}, columns


def _begin(run: ReproductionRun, name: str) -> tuple[ArrayBenchmark, Table]:
    benchmark = ArrayBenchmark.load()
    if not 1 <= run.scenes <= len(benchmark) // len(KINDS):
        raise InputError(f"{run.scenes} scenes of each kind; expected 1 to {len(benchmark) // len(KINDS)}")
    return benchmark, Table(run, name, benchmark.hash, run.engine or "cpu")


def _rendered(run: ReproductionRun, benchmark: ArrayBenchmark, wanted: Sequence[int]) -> Sequence[int]:
    """The same scenes, once they are in the cache."""
    bank = run.bank("test-clean")
    advance = run.track(f"{SET}: rendering", len(wanted))
    for done, index in enumerate(wanted, 1):
        benchmark.render([bank] if bank else [], run.engine or "cpu", only=[str(index)], cache=run.cache)
        advance(done)
    return wanted


def _measure_scenes(
    run: ReproductionRun,
    table: Table,
    method: Locator | Follower,
    wanted: Sequence[int],
    measured: Callable[[int], Iterable[Added]],
) -> None:
    """Measure a method on the scenes that its rows do not have; rows of another set or other settings are dropped."""
    mine = [row for row in table.rows if _is_of(row, method)]
    stale = any(row["settings"] != method.settings or row["benchmark"] != _hash_of(table, row) for row in mine)
    if stale or run.from_checkpoints:
        table.drop(lambda row: _is_of(row, method))
        mine = []
    known = {index for row in mine for index in row["scenes"]}
    waiting = [index for index in wanted if index not in known]
    kinds = len({index % len(KINDS) for index in wanted})
    advance = run.track(f"{SET}: {method.name}", len(waiting))
    for done, index in enumerate(waiting, 1):
        _extend(table, method, measured(index))
        if done % kinds == 0 or done == len(waiting):
            table.write()
        advance(done)


def _is_of(row: Row, method: Locator | Follower) -> bool:
    """Whether a method measured a row: locators of directions and of positions share their names."""
    distributed = row["cell"].get("array") == DISTRIBUTED
    return bool(row["method"] == method.name and distributed == getattr(method, "positions", False))


def _extend(table: Table, method: Locator | Follower, added: Iterable[Added]) -> None:
    for key, columns in added:
        about = {"settings": method.settings, "benchmark": _hash_of(table, key)}
        table.extend(key, about, columns)


def _hash_of(table: Table, row: Row) -> str | None:
    """Of the benchmark that a row is of; real recordings have none."""
    return table.benchmark if row.get("set", SET) == SET else None


def measure(
    locator: Locator, benchmark: ArrayBenchmark, index: int, engine: str = "cpu", cache: Path | None = None
) -> tuple[Floats, Floats | None]:
    """Errors of the talkers of a scene, block by block; of positions also those in space."""
    truth = benchmark.truth(index)
    audio = benchmark.load_scene(index, engine, cache)
    found = locator.locate(audio, SAMPLE_RATE, truth.geometry, truth.talkers, BLOCK)
    if truth.kind.compact:
        return scoring.errors_of_blocks(scoring.azimuth_distances, truth.places, truth.active, found), None
    floor, space = (
        scoring.errors_of_blocks(distances, truth.places, truth.active, found)
        for distances in (scoring.floor_distances, scoring.space_distances)
    )
    return floor, space


def measure_tracks(
    follower: Follower, benchmark: ArrayBenchmark, index: int, engine: str = "cpu", cache: Path | None = None
) -> dict[str, dict[str, float]]:
    """The scores of a scene, with the whole recording at hand and online."""
    drawn = benchmark.scene(index)
    audio = benchmark.load_scene(index, engine, cache)
    found = follower.follow(audio, SAMPLE_RATE, drawn.geometry)
    scores = {}
    for way, history in found._asdict().items():
        times = np.array([time for time, _ in history])
        flat = drawn.places(times) * [1.0, 1.0, 0.0]  # azimuths are compared: a flat array follows them in its plane
        directions = flat / np.linalg.norm(flat, axis=-1, keepdims=True)
        scores[way] = scoring.score_tracks(history, directions, drawn.speaking(times, benchmark.utterances))
    return scores


def respeaker_files(data: Path) -> list[tuple[Path, Floats]]:
    """Recordings and the true directions of their sources, unit vectors, from the names of their folders."""
    paths = sorted((data / "real" / "respeaker").glob("a*e*/*/*.flac"))
    if not paths:
        raise InputError(f"{data}/real/respeaker holds no recordings, such as a180e20/50cm/x.flac")
    out = []
    for path in paths:
        angles = np.radians(np.array(re.findall(r"a(\d+)e(\d+)", path.parent.parent.name), dtype=np.float64))
        azimuth, elevation = angles.T
        flat = np.stack([np.cos(azimuth), np.sin(azimuth)]) * np.cos(elevation)
        out.append((path, np.stack([*flat, np.sin(elevation)], axis=1)))
    return out


def measure_respeaker(locator: Locator, path: Path, sources: Floats) -> tuple[Floats, Floats]:
    """Errors in degrees of azimuth on a real recording: of its loud blocks in turn, and of the file as one block."""
    audio = framesets.read_respeaker(path)
    geometry = array("respeaker4")
    count = audio.shape[-1] // BLOCK
    levels = audio[:, : count * BLOCK].reshape(len(audio), count, BLOCK).std(axis=(0, 2))
    loud = levels > 0.5 * audio.std()
    active = np.tile(loud, (len(sources), 1))
    places = np.repeat(sources[:, None], count, axis=1)
    found = locator.locate(audio, SAMPLE_RATE, geometry, active.sum(axis=0).tolist(), BLOCK)
    whole = locator.locate(audio, SAMPLE_RATE, geometry, [len(sources)], audio.shape[-1])
    distances = scoring.azimuth_distances
    return (
        scoring.errors_of_blocks(distances, places, active, found),
        scoring.errors_of_blocks(distances, sources[:, None], np.ones((len(sources), 1), dtype=bool), whole),
    )


def errors_by_scene(row: Row, what: str = "errors") -> list[Floats]:
    """The errors of each scene of a row, infinity where nothing was found."""
    values = np.array([np.inf if value is None else value for value in row[what]], dtype=np.float64)
    return np.split(values, np.cumsum(row["counts"])[:-1])


def cell_of(kind: Kind) -> dict[str, str]:
    return {"array": kind.array, "talkers": str(kind.talkers), "motion": "moving" if kind.moving else "static"}


def _listed(values: Iterable[float], digits: int) -> list[float | None]:
    return [round(float(value), digits) if np.isfinite(value) else None for value in values]
