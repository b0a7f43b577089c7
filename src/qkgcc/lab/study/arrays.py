"""Arrays of microphones on `array-test` and on real recordings of a ReSpeaker: `results/arrays.json`.

    {schema, name, benchmark, engine, command, git, device, seconds, rows, checksum}
    row: {method, settings, set, benchmark, engine, git, cell, scenes, counts, errors, heights}

A row is a method on a cell. In `array-test` a cell is an array, a number of talkers and a motion; `scenes` names those
that were measured, `counts` says how many talkers of its blocks each has to find, and `errors` are theirs in turn:
degrees of azimuth, or metres on the floor and, in `heights`, in space. What nothing was found for is null. A part of
the scenes can be measured, and more of them later: they take turns, so the first n of each cell are a set of their own.
A method that finds directions and positions is two locators of one name, and each has the rows of its own arrays.

In `respeaker` a cell is a number of sources, `scenes` are the files, and `errors` those of the blocks of a second that
are louder than half the file. `whole` has the errors of the sources when the whole file is one block.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.arrays import array
from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.array_set import NAME as SET
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes.array_scenes import BLOCKS, DISTRIBUTED, KINDS, SAMPLE_RATE, SECONDS, Kind
from qkgcc.lab.study import framesets, results, scoring
from qkgcc.lab.study.locators import Locator

NAME = "arrays"
RESPEAKER = "respeaker"
BLOCK = round(SECONDS * SAMPLE_RATE / BLOCKS)

Floats = npt.NDArray[np.float64]
Say = Callable[[str], object]
Track = Callable[[str, int], Callable[[int], object]]


def fill(
    path: Path,
    locators: Sequence[Locator],
    each: int,
    *,
    engine: str = "cpu",
    cache: Path | None = None,
    bank: Bank | None = None,
    data: Path | None = None,
    again: bool = False,
    say: Say = print,
    track: Track = lambda what, total: lambda done: None,
) -> list[results.Row]:
    """Measure what is missing of the first `each` scenes of each cell, and of the real recordings if they are there.

    Written after every 18 scenes, so an interrupted run goes on where it stopped.

    Args:
        bank: of test-clean; None where the scenes are rendered.
        data: folder of the corpora; None leaves the real recordings out.
        again: measure anew what is there.
    """
    benchmark = ArrayBenchmark.load()
    if not 1 <= each <= len(benchmark) // len(KINDS):
        raise InputError(f"{each} scenes of each kind; expected 1 to {len(benchmark) // len(KINDS)}")
    table = _Table(path, results.read(path), benchmark, engine)
    wanted = range(each * len(KINDS))
    rendered = track(f"{SET}: rendering", len(wanted))
    for done, index in enumerate(wanted, 1):
        benchmark.render([bank] if bank else [], engine, only=[str(index)], cache=cache)
        rendered(done)
    for locator in locators:
        if again or table.is_stale(locator):
            table.drop(locator)
        waiting = [i for i in wanted if _suits(locator, KINDS[i % len(KINDS)]) and not table.has(locator, i)]
        advance = track(f"{SET}: {locator.name}", len(waiting))
        for done, index in enumerate(waiting, 1):
            table.add(locator, index, *measure(locator, benchmark, index, engine, cache))
            if done % len(KINDS) == 0 or done == len(waiting):
                table.write()
            advance(done)
        if data is not None and not locator.positions and not table.heard(locator):
            table.listen(locator, data)
            table.write()
        say(f"{locator.name}: measured")
    return table.rows


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


def _suits(locator: Locator, kind: Kind) -> bool:
    return kind.compact != locator.positions and not locator.real_only


def _is_of(row: results.Row, locator: Locator) -> bool:
    """Whether a locator measured a row: directions and positions share their names."""
    distributed = row["cell"].get("array") == DISTRIBUTED
    return bool(row["method"] == locator.name and distributed == locator.positions)


class _Table:
    """The rows of a results file, as they grow."""

    def __init__(self, path: Path, content: dict[str, Any] | None, benchmark: ArrayBenchmark, engine: str) -> None:
        self.path, self.benchmark, self.engine = path, benchmark, engine
        self.seconds: float = content["seconds"] if content else 0.0
        self.begun = time.monotonic()
        self.rows: list[results.Row] = content["rows"] if content else []

    def is_stale(self, locator: Locator) -> bool:
        """Whether its rows are of another set or other settings."""
        mine = [row for row in self.rows if _is_of(row, locator)]
        return any(row["settings"] != locator.settings or row["benchmark"] != self._hash(row["set"]) for row in mine)

    def _hash(self, set: str) -> str | None:
        return self.benchmark.hash if set == SET else None

    def drop(self, locator: Locator) -> None:
        self.rows = [row for row in self.rows if not _is_of(row, locator)]

    def has(self, locator: Locator, index: int) -> bool:
        row = self._find(locator, SET, _cell(KINDS[index % len(KINDS)]))
        return row is not None and index in row["scenes"]

    def heard(self, locator: Locator) -> bool:
        return any(row["set"] == RESPEAKER and row["method"] == locator.name for row in self.rows)

    def _find(self, locator: Locator, set: str, cell: dict[str, str]) -> results.Row | None:
        key = (locator.name, set, cell)
        return next((row for row in self.rows if (row["method"], row["set"], row["cell"]) == key), None)

    def _row(self, locator: Locator, set: str, cell: dict[str, str]) -> results.Row:
        row = self._find(locator, set, cell)
        if row is None:
            about = {"settings": locator.settings, "set": set, "benchmark": self._hash(set), "engine": self.engine}
            row = {"method": locator.name, **about, "git": commit(), "cell": cell}
            row |= {"scenes": [], "counts": [], "errors": []}
            self.rows.append(row)
        return row

    def add(self, locator: Locator, index: int, errors: Floats, in_space: Floats | None) -> None:
        row = self._row(locator, SET, _cell(KINDS[index % len(KINDS)]))
        row["scenes"].append(index)
        row["counts"].append(len(errors))
        row["errors"] += _listed(errors, 2 if in_space is None else 3)
        if in_space is not None:
            row["heights"] = row.get("heights", []) + _listed(in_space, 3)

    def listen(self, locator: Locator, data: Path) -> None:
        for path, sources in respeaker_files(data):
            blockwise, whole = hear(locator, path, sources)
            row = self._row(locator, RESPEAKER, {"talkers": str(len(sources))})
            row["scenes"].append("/".join(path.parts[-3:]))
            row["counts"].append(len(blockwise))
            row["errors"] += _listed(blockwise, 2)
            row["whole"] = [*row.get("whole", []), _listed(whole, 2)]

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


def hear(locator: Locator, path: Path, sources: Floats) -> tuple[Floats, Floats]:
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


def errors_by_scene(row: results.Row, what: str = "errors") -> list[Floats]:
    """The errors of each scene of a row, infinity where nothing was found."""
    values = np.array([np.inf if value is None else value for value in row[what]], dtype=np.float64)
    return np.split(values, np.cumsum(row["counts"])[:-1])


def _cell(kind: Kind) -> dict[str, str]:
    motion = "moving" if kind.moving else "static"
    return {"array": kind.array, "talkers": str(kind.talkers), "motion": motion}


def _listed(values: Iterable[float], digits: int) -> list[float | None]:
    return [round(float(value), digits) if np.isfinite(value) else None for value in values]
