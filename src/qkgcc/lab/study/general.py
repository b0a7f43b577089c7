"""The model for any pair of microphones beside the others, on everything there is: `results/general.json`.

    row:    {set, benchmark, cells: [{cell, groups}], methods: [...]}
    method: {method, weights, engine, git, mean_error: [...], median_right: [...], right, weaker62us, confidence,
             behaviour: [...]}

A row is a set of frames: its cells, and what each method made of them. `paper-test` and its kin have a cell for each
SNR and T60, `general-test` one for each part of spacing x distance x T60, a real set is one. `benchmark` is the hash of
a frozen set. `groups` counts the groups of so many frames that belong to a scene or a file: [[5, 63]] is 63 of 5.

The lists of a method have a value for each cell; what is packed (`results.pack`) has one for each frame of all cells.

- `right`, packed: 1 within 62.5 microseconds, 2 within 10 cm of path, 3 both, so that methods can be compared frame by
  frame. `weaker62us`, packed, of `two-sources`: the weaker one is one of two peaks.
- `mean_error` and `median_right`, the median of the frames that are right within 62.5 microseconds, are in samples.
- `confidence`, packed: what was stated in whole percent, for methods that have been calibrated.
- `behaviour`, of `general-test`: of so many frames, how many answers follow when channel 1 comes 3 samples later, and
  mirror when the channels are swapped, each within half a sample.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats, Samples
from qkgcc.delay import metrics
from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import INTERPOLATIONS
from qkgcc.lab.frozen.general_set import GeneralBenchmark
from qkgcc.lab.frozen.paper_sets import SNRS, T60S, PaperBenchmark
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes.engines import best_engine
from qkgcc.lab.study import framesets, results
from qkgcc.lab.study.framesets import FRAME, RATE, FrameSet
from qkgcc.pairs.classical import TAPER, Classical
from qkgcc.pairs.confidence import TOLERANCE
from qkgcc.pairs.decoding import peaks
from qkgcc.pairs.evidence import Method, prepare_frames
from qkgcc.pairs.neural import Network

NAME = "general"
_PAPER_SETS = ("paper-test", "paper-noise", "paper-music")
SETS = ("general-test", *_PAPER_SETS, "respeaker", "surrey", "dry", "two-sources")
SURREY_SNRS = (0, 10, 20)
DRY_TIMES = (0.0, 0.15)
"""Seconds: in the open, and in a room that takes nearly all."""
SHIFT = 3
"""Samples."""
WIDE = 0.2
"""Metres: pairs that are closer score within 10 cm by answering 0."""

VARIANTS = ("quadratic", "coarse")
"""Decoders that a network is measured with besides its own; they follow its name, as in `general-coarse`."""

SPACINGS = (0.0, 0.08, WIDE, 0.6, np.inf)
DISTANCES = (0.0, 1.0, 2.0, np.inf)
TIMES = (0.0, 0.3, 0.7, np.inf)
_BATCH = 256  # frames at a time


@dataclass(frozen=True, eq=False)
class CellScores:
    """What a method made of the N frames of a cell."""

    set: str
    cell: dict[str, str]
    groups: list[int]
    """Frames of each scene or file."""
    method: str
    mean_error: float
    median_right: float | None
    right62us: Bools
    right10cm: Bools
    weaker62us: Bools | None
    confidence: Floats | None
    """(N,) from 0 to 1."""
    behaviour: list[int] | None
    """How many frames were tried, how many answers follow, how many mirror."""

    @property
    def n(self) -> int:
        return len(self.right62us)


@dataclass(frozen=True, eq=False)
class Answers:
    """N answers."""

    delays: Floats
    """(N,) samples."""
    confidence: Floats
    """(N,)"""
    peaks: Floats
    """(N, 2) the two highest peaks, samples: of the posterior, or of the correlation where it is positive."""


def classical(weighting: str, taper: float = TAPER) -> Callable[[float], Method]:
    """A weighting, for a largest delay in samples, of frames of which a share is tapered."""

    def limited(limit: float) -> Method:
        lag = gcc.lag_range(limit / RATE, RATE)
        return Classical(weighting, RATE, FRAME, lag, limit, None, gcc.BETA, INTERPOLATIONS[0], taper)

    return limited


def network(path: Path, decoder: str | None = None) -> Callable[[float], Method]:
    """A checkpoint, for a largest delay in samples. One that knows fewer delays answers with those."""
    return _limited(Network.load(path, decoder))


def _limited(whole: Network) -> Callable[[float], Method]:
    furthest = float(np.max(whole.card.delays))

    def limited(limit: float) -> Method:
        seconds = (limit if whole.model.any_delay else min(limit, furthest)) / RATE
        return whole.limited(RATE, seconds, None)

    return limited


def estimate(
    limited: Callable[[float], Method], given: FrameSet, *, progress: Callable[[int], object] | None = None
) -> Answers:
    """Delays and confidences of all frames; `progress` is called with the number of frames done since the last call."""
    delays, confidence = np.full((2, len(given)), np.nan)
    two = np.full((len(given), 2), np.nan)
    limits, which = np.unique(given.limits, return_inverse=True)
    for i, limit in enumerate(limits.tolist()):
        method = limited(limit)
        rows = np.flatnonzero(which == i)
        curves, beyond = np.empty((len(rows), len(method.lags))), np.empty(len(rows))
        for first in range(0, len(rows), _BATCH):
            here = slice(first, first + _BATCH)
            part = rows[here]
            frames: Samples = given.frames[part].astype(np.float64)
            if method.scaling == "utterance":
                frames = frames / given.levels[part, None, None]
            else:
                frames, _ = prepare_frames(method, frames)
            evidence = method.evidence(frames.astype(np.float32))
            curves[here], delays[part], confidence[part], beyond[here] = method.decode(evidence)
            if isinstance(method, Network):
                two[part], _ = method.sources(curves[here], delays[part], 2)
            else:
                two[part], _ = peaks(np.maximum(curves[here], 0), method.lags, 2)
            if progress is not None:
                progress(len(part))
        if method.kind == "posterior":
            for sequence in np.unique(given.sequences[rows]):
                of = np.flatnonzero(given.sequences[rows] == sequence)
                at = rows[of]
                confidence[at] = method.in_context(curves[of], delays[at], confidence[at], beyond[of], given.times[at])
    return Answers(delays, confidence, two)


@dataclass(frozen=True)
class Candidate:
    """A method to compare: its name, what makes it for a largest delay, and the file of its weights."""

    name: str
    limited: Callable[[float], Method]
    path: Path | None = None
    sets: tuple[str, ...] = SETS
    """What it is measured on."""

    @property
    def weights(self) -> str | None:
        """Names the file that was used."""
        return None if self.path is None else hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Cell:
    set: str
    cell: dict[str, str]
    frames: FrameSet
    weaker: Floats | None = None
    """(N,) the delays of a second, weaker source, where that is what a set is about."""


def candidates(models: Sequence[Path], published: Sequence[Path] = ()) -> list[Candidate]:
    """GCC-PHAT of frames as they are cut, weightings as this package has them, and a network for each file, called as
    the file is; networks for any pair with their own decoder, and with the `VARIANTS`.

    Published networks are left out on the paper's sets, where Tables 1 and 2 have them.
    """
    elsewhere = tuple(name for name in SETS if name not in _PAPER_SETS)
    return [
        Candidate("gcc-phat", classical("phat", taper=0.0)),
        *(Candidate(weighting, classical(weighting)) for weighting in ("cc", "phat", "phat-beta", "scot")),
        *(Candidate(path.stem, network(path), path, elsewhere) for path in published),
        *(Candidate(path.stem, network(path), path) for path in models),
        *(
            Candidate(f"{path.stem}-{decoder}", network(path, decoder), path)
            for path in models
            for decoder in VARIANTS
            if decoder != Network.load(path).decoder
        ),
    ]


def cells(name: str, engine: str, cache: Path | None, data: Path | None, bank: Any) -> Iterator[Cell]:
    """The cells of a set, one after the other: all at once would fill the memory."""
    if name == "general-test":
        yield from _parts_of_general(framesets.general_test(engine, cache))
    elif name == "respeaker":
        yield Cell(name, {}, framesets.respeaker(_given(data, "the folder of the corpora")))
    elif name == "surrey":
        for snr in SURREY_SNRS:
            yield Cell(
                name,
                {"snr": str(snr)},
                framesets.surrey(_given(data, "the folder of the corpora"), _given(bank, "a bank of utterances"), snr),
            )
    elif name == "two-sources":
        yield Cell(name, {}, *framesets.two_sources(engine, cache))
    elif name == "dry":
        for t60 in DRY_TIMES:
            yield Cell(name, {"t60": str(t60)}, framesets.dry(_given(bank, "a bank of utterances"), t60))
    else:
        benchmark = PaperBenchmark.load(name)
        for t60 in T60S:
            for snr in SNRS:
                yield Cell(
                    name, {"snr": str(snr), "t60": str(t60)}, framesets.paper_cell(benchmark, engine, snr, t60, cache)
                )


def measure(candidate: Candidate, cell: Cell) -> CellScores:
    """The answers of a method to the frames of a cell, scored."""
    found = estimate(candidate.limited, cell.frames)
    error = np.abs(found.delays - cell.frames.delays)
    # A hair more: a true delay of 3.0 answered with 2.0 is within a sample, however it is rounded.
    right = error <= TOLERANCE * RATE + 1e-6
    method = candidate.limited(float(cell.frames.limits[0]))
    changes = np.flatnonzero(np.diff(cell.frames.groups, prepend=-1, append=-1))
    return CellScores(
        cell.set,
        cell.cell,
        np.diff(changes).tolist(),
        candidate.name,
        mean_error=round(float(error.mean()), 4),
        median_right=round(float(np.median(error[right])), 4) if right.any() else None,
        right62us=right,
        right10cm=metrics.hits(found.delays, cell.frames.delays),
        weaker62us=None if cell.weaker is None else _is_among(cell.weaker, found.peaks),
        confidence=np.rint(100 * found.confidence) / 100 if method.calibrated else None,
        behaviour=behaviour(candidate, cell.frames, found.delays) if cell.set == "general-test" else None,
    )


def _is_among(delays: Floats, peaks: Floats) -> Bools:
    """Whether one of the peaks is the delay. Shape: (N,), (N, 2) -> (N,)"""
    return np.asarray((np.abs(peaks - delays[:, None]) <= TOLERANCE * RATE + 1e-6).any(axis=1))


def behaviour(candidate: Candidate, given: FrameSet, delays: Floats) -> list[int]:
    """Of how many frames, how many answers follow a shift of one channel, and mirror when the channels are swapped."""
    step = 10  # every tenth frame will do
    part = FrameSet(given.name, *(column[::step] for column in given.columns))
    moved = np.zeros_like(part.frames)
    moved[:, 0, SHIFT:], moved[:, 1] = part.frames[:, 0, :-SHIFT], part.frames[:, 1]
    room = part.limits + SHIFT  # so that no answer ends at a limit before or after
    before = estimate(candidate.limited, replace(part, limits=room)).delays
    after = estimate(candidate.limited, replace(part, frames=moved, limits=room)).delays
    swapped = estimate(candidate.limited, replace(part, frames=part.frames[:, ::-1])).delays
    follows, mirrors = np.abs(after - before - SHIFT) <= 0.5, np.abs(swapped + delays[::step]) <= 0.5
    return [len(part), int(follows.sum()), int(mirrors.sum())]


def fill(run: results.ReproductionRun, methods: Sequence[Candidate], sets: Sequence[str] = SETS) -> list[CellScores]:
    """Measure what is missing, or is of other weights than these; written after every set."""
    engine = run.engine or best_engine()
    hashes = {name: _hash_of(name) for name in ("general-test", *_PAPER_SETS)}
    table = results.Table(run, NAME, hashes, engine)
    for name in sets:
        row = table.find(set=name)
        waiting = [m for m in methods if name in m.sets and (run.from_checkpoints or not _is_measured(row, m))]
        if not waiting:
            continue
        fresh: dict[str, list[CellScores]] = {candidate.name: [] for candidate in waiting}
        advance, done = run.track(name, _COUNTS[name] * len(waiting)), itertools.count(1)
        for cell in cells(name, engine, run.cache, run.data, run.bank("test-clean")):
            for candidate in waiting:
                fresh[candidate.name].append(measure(candidate, cell))
                advance(next(done))
        new = set_row(fresh.values(), _hash_of(name))
        for method, candidate in zip(new["methods"], waiting, strict=True):
            method.update(weights=candidate.weights, engine=engine, git=commit())
        if row is not None and _is_same_set(row, new):
            new["methods"] = [m for m in row["methods"] if m["method"] not in fresh] + new["methods"]
        table.drop(lambda old, name=name: old["set"] == name)  # type: ignore[misc]
        table.rows.append(new)
        table.write()
        for candidate in waiting:
            right = accuracy(fresh[candidate.name], candidate.name, name)
            run.say(f"{name}, {candidate.name}: {right:.2f} % within 62.5 us")
    return [scores for row in table.rows for scores in scores_of_row(row)]


def set_row(methods: Iterable[Sequence[CellScores]], benchmark: str | None = None) -> results.Row:
    """A row of the results file, of what methods made of the cells of a set."""
    each = [list(scores) for scores in methods]
    first = each[0]
    return {
        "set": first[0].set,
        "benchmark": benchmark,
        "cells": [{"cell": one.cell, "groups": _run_lengths(one.groups)} for one in first],
        "methods": [_packed(scores) for scores in each],
    }


def _packed(scores: Sequence[CellScores]) -> dict[str, Any]:
    def joined(columns: Iterable[Any], factor: int = 1) -> str | None:
        known = [np.rint(factor * column) for column in columns if column is not None]
        return results.pack(np.concatenate(known).astype(np.uint8)) if known else None

    behaviours = [one.behaviour for one in scores if one.behaviour is not None]
    return {
        "method": scores[0].method,
        "mean_error": [one.mean_error for one in scores],
        "median_right": [one.median_right for one in scores],
        "right": joined(one.right62us + 2 * one.right10cm for one in scores),
        "weaker62us": joined((one.weaker62us for one in scores), 1),
        "confidence": joined((one.confidence for one in scores), 100),
        "behaviour": behaviours or None,
    }


def scores_of_row(row: results.Row) -> Iterator[CellScores]:
    """What `set_row` was made of."""
    groups = [[size for size, count in cell["groups"] for _ in range(count)] for cell in row["cells"]]
    ends = np.cumsum([sum(sizes) for sizes in groups])[:-1]

    def split(text: str | None) -> list[Any]:
        return [None] * len(groups) if text is None else np.split(results.unpack(text), ends)

    for method in row["methods"]:
        columns = (split(method[name]) for name in ("right", "weaker62us", "confidence"))
        for i, (right, weaker, percent) in enumerate(zip(*columns, strict=True)):
            yield CellScores(
                row["set"],
                row["cells"][i]["cell"],
                groups[i],
                method["method"],
                method["mean_error"][i],
                method["median_right"][i],
                right62us=right % 2 == 1,
                right10cm=right >= 2,
                weaker62us=None if weaker is None else weaker == 1,
                confidence=None if percent is None else percent / 100,
                behaviour=method["behaviour"] and method["behaviour"][i],
            )


def _run_lengths(values: Sequence[int]) -> list[list[int]]:
    return [[value, len(list(alike))] for value, alike in itertools.groupby(values)]


def _is_same_set(row: results.Row, other: results.Row) -> bool:
    """Whether two rows are of the same frames; otherwise their methods cannot be compared."""
    return all(row[key] == other[key] for key in ("benchmark", "cells"))


def _is_measured(row: results.Row | None, candidate: Candidate) -> bool:
    """Whether a row has the scores of a method with these weights, on the benchmark of today."""
    if row is None or row["benchmark"] != _hash_of(row["set"]):
        return False
    return any((m["method"], m["weights"]) == (candidate.name, candidate.weights) for m in row["methods"])


def read(folder: Path) -> list[CellScores]:
    """The scores of all methods on all cells, as far as they have been measured."""
    path = folder / f"{NAME}.json"
    return _read(path, path.stat().st_mtime_ns) if path.exists() else []


@lru_cache(maxsize=1)  # every table of a document is made of it
def _read(path: Path, changed: int) -> list[CellScores]:
    return [scores for row in results.read_rows(path.parent, NAME) for scores in scores_of_row(row)]


_COUNTS = {
    "general-test": (len(SPACINGS) - 1) * (len(DISTANCES) - 1) * (len(TIMES) - 1),
    "respeaker": 1,
    "surrey": len(SURREY_SNRS),
    "dry": len(DRY_TIMES),
    "two-sources": 1,
} | dict.fromkeys(_PAPER_SETS, len(SNRS) * len(T60S))
"""Cells of each set."""


def _hash_of(name: str) -> str | None:
    """Of a frozen set; the others have none."""
    if name in ("general-test", "two-sources"):
        return GeneralBenchmark.load().hash
    return PaperBenchmark.load(name).hash if name in _PAPER_SETS else None


def accuracy(rows: Sequence[CellScores], method: str, set: str, what: str = "right62us") -> float:
    """Percent of all frames of a set."""
    found = [getattr(row, what) for row in rows if (row.method, row.set) == (method, set)]
    return float(100 * np.concatenate(found).mean())


def difference(better: CellScores, worse: CellScores, what: str) -> tuple[float, float, float]:
    """In points, with a 95 % interval by a bootstrap over scenes or files, frame by frame."""
    each = getattr(better, what).astype(np.float64) - getattr(worse, what)
    return interval_by_group(100 * each, better.groups)


def interval_by_group(values: Floats, groups: Sequence[int], draws: int = 2000) -> tuple[float, float, float]:
    """Mean of frames and its 95 % interval, where whole groups are drawn with replacement."""
    ends = np.cumsum(groups)
    sums = np.add.reduceat(values, np.concatenate([[0], ends[:-1]]))
    times = _times_drawn(len(groups), draws)
    means = times @ sums / (times @ np.asarray(groups))
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


@lru_cache(maxsize=8)
def _times_drawn(count: int, draws: int) -> Floats:
    """How often each of so many groups is drawn. Shape: (draws, count)"""
    chosen = np.random.default_rng(0).integers(0, count, (draws, count))
    return np.array([np.bincount(row, minlength=count) for row in chosen], np.float64)


def _parts_of_general(whole: FrameSet) -> Iterator[Cell]:
    """Spacing x distance x T60."""
    manifest = GeneralBenchmark.load().manifest
    columns = [np.array(manifest[key])[whole.groups] for key in ("spacing", "distance", "t60")]
    edges = (SPACINGS, DISTANCES, TIMES)
    which = [np.digitize(column, edge) - 1 for column, edge in zip(columns, edges, strict=True)]
    for place in np.ndindex(*(len(edge) - 1 for edge in edges)):
        rows = np.flatnonzero(np.all([part == i for part, i in zip(which, place, strict=True)], axis=0))
        if not len(rows):
            continue
        names = [f"{edge[i]:g} to {edge[i + 1]:g}" for edge, i in zip(edges, place, strict=True)]
        part = FrameSet(whole.name, *(column[rows] for column in whole.columns))
        yield Cell(whole.name, dict(zip(("spacing", "distance", "t60"), names, strict=True)), part)


def _given(value: Any, what: str) -> Any:
    if value is None:
        raise InputError(f"this set needs {what}")
    return value
