"""Results as files: `results/NAME.json` grows row by row, so that an interrupted run goes on where it stopped.

    {schema, name, benchmark, engine, command, git, device, seconds, rows, checksum}

What a row is says whoever measures it. Those of the paper's tables (`reproduce`) are

    row:  {method, benchmark, params, flops, seeds: [...], mean, std, stored}
    seed: {seed, rmse, mae, acc10cm, cells: [{snr, t60, n, rmse, mae, acc10cm}], by_source: {all, snr, t60},
           engine, device, git, seconds, checkpoint, last, training}

`by_source` is the Acc@10cm of each utterance, over all cells and at each SNR and T60, so that two methods can be
compared pair by pair. `checkpoint` is the hash of the weights, `last` the figures of the last epoch's. A row is
`stored` when its checkpoint is too large for the repository: its figures cannot be computed again from there.
`checksum` covers all of it: a figure that somebody typed is found out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.tables import parse_json, save_text
from qkgcc.core.types import Floats
from qkgcc.lab.provenance import commit

if TYPE_CHECKING:
    from qkgcc.lab.corpora.banks import Bank
    from qkgcc.lab.training.data import PairSet

SCHEMA = 1
METRICS = ("rmse", "mae", "acc10cm")

Row = dict[str, Any]
Say = Callable[[str], object]
Track = Callable[[str, int], Callable[[int], object]]
"""From the name and the size of a task to a function that takes how much of it is done."""


@dataclass
class ReproductionRun:
    """Where things are and go, and what is to be done."""

    results: Path = Path("results")
    checkpoints: Path = Path("checkpoints")
    runs: Path = Path("runs")
    banks: Sequence[Bank] = ()
    data: Path | None = None
    """Folder of the corpora, for the real recordings."""
    device: str = "cpu"
    engine: str | None = None
    cache: Path | None = None
    from_checkpoints: bool = False
    """Measure everything anew, train nothing."""
    methods: Sequence[str] = ()
    """Only these; none: all."""
    seeds: Sequence[int] = ()
    """Only these; none: all."""
    scenes: int = 40
    """Of each kind of `array-test`."""
    stop_after: float | None = None
    """Seconds after which no more is begun, and a training is saved and left for the next time."""
    say: Say = print
    track: Track = lambda what, total: lambda done: None

    begun: float = field(default_factory=time.monotonic)
    sets: tuple[PairSet, PairSet] | None = None
    """The pairs that all methods train on, once they are made."""

    def bank(self, name: str) -> Bank | None:
        """The bank of a set, if it was given."""
        return next((bank for bank in self.banks if bank.name == name), None)

    def seconds_left(self) -> float:
        return float("inf") if self.stop_after is None else self.stop_after - (time.monotonic() - self.begun)


class Table:
    """The rows of a results file as they are measured."""

    def __init__(self, run: ReproductionRun, name: str, benchmark: Any, engine: str) -> None:
        self.name, self.benchmark, self.engine = name, benchmark, engine
        self.path = run.results / f"{name}.json"
        content = read(self.path) or {"rows": [], "seconds": 0.0}
        self.rows: list[Row] = content["rows"]
        self._seconds: float = content["seconds"]
        self._begun = time.monotonic()

    def find(self, **key: Any) -> Row | None:
        """The row with these values."""
        return next((row for row in self.rows if all(row[name] == value for name, value in key.items())), None)

    def extend(self, key: Row, about: Row, columns: dict[str, list[Any]]) -> None:
        """Lengthen the columns of the row with this key; without one, a new row begins."""
        row = self.find(**key)
        if row is None:
            row = {**key, **about, "engine": self.engine, "git": commit()}
            self.rows.append(row)
        for name, values in columns.items():
            row.setdefault(name, []).extend(values)

    def drop(self, belongs: Callable[[Row], bool]) -> None:
        self.rows = [row for row in self.rows if not belongs(row)]

    def write(self) -> None:
        now = time.monotonic()
        self._seconds, self._begun = round(self._seconds + now - self._begun, 1), now
        about = {
            "benchmark": self.benchmark,
            "engine": self.engine,
            "command": f"qkgcc reproduce {self.name}",
            "git": commit(),
            "device": "cpu",
            "seconds": self._seconds,
        }
        write(self.path, self.name, self.rows, about)


def read(path: Path) -> dict[str, Any] | None:
    """A results file, or None where there is none yet."""
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = parse_json(path.read_bytes(), str(path))
        checksum = content.pop("checksum")
        content["rows"]
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{path} is no results file, or a damaged one: restore it, or delete it to start anew"
        ) from None
    if content.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {content.get('schema')}; this qkgcc reads {SCHEMA}")
    if checksum != _checksum(content):
        raise InputError(
            f"{path} was changed by hand: it does not fit its checksum. Restore it (git checkout {path}), or "
            "delete it and compute it again"
        )
    return content


def read_rows(folder: Path, name: str) -> list[Row]:
    """The rows of a results file, none where there is none yet."""
    content = read(folder / f"{name}.json")
    return list(content["rows"]) if content else []


def write(path: Path, name: str, rows: list[Row], about: dict[str, Any]) -> None:
    """Write rows, with what `about` says of the run."""
    content: dict[str, Any] = {"schema": SCHEMA, "name": name, **about, "rows": rows}
    content["checksum"] = _checksum(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_text(_text(content), path)


def _text(content: dict[str, Any]) -> str:
    """JSON with a line for each row: changes are seen line by line, and thousands of cells stay small."""
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in content["rows"])
    rest = json.dumps({key: value for key, value in content.items() if key != "rows"}, indent=1)
    return rest.removesuffix("\n}") + f',\n "rows": [\n{rows}\n]\n}}\n'


def pack(values: npt.NDArray[np.uint8]) -> str:
    """A small number for each frame, as text.

    >>> unpack(pack(np.array([0, 3, 255], dtype=np.uint8))).tolist()
    [0, 3, 255]
    """
    return base64.b85encode(lzma.compress(values.tobytes(), format=lzma.FORMAT_ALONE)).decode()


def unpack(text: str) -> npt.NDArray[np.uint8]:
    """What `pack` wrote."""
    return np.frombuffer(lzma.decompress(base64.b85decode(text)), dtype=np.uint8)


def find(rows: Sequence[Row], benchmark: str, method: str) -> Row | None:
    """The row of a method on a benchmark."""
    return next((row for row in rows if (row["benchmark"], row["method"]) == (benchmark, method)), None)


def find_seed(row: Row | None, seed: int | None) -> dict[str, Any] | None:
    return next((one for one in row["seeds"] if one["seed"] == seed), None) if row else None


def with_mean_and_std(row: Row) -> Row:
    """The same row with mean and standard deviation (n - 1) over its seeds."""
    seeds = row["seeds"]
    mean = {key: statistics.fmean(one[key] for one in seeds) for key in METRICS} if seeds else None
    std = {key: statistics.stdev(one[key] for one in seeds) for key in METRICS} if len(seeds) > 1 else None
    return {**row, "mean": mean, "std": std}


def by_source(row: Row, axis: str = "all", value: float | None = None) -> Floats:
    """Acc@10cm of each utterance, mean over seeds; at one SNR or T60 if an axis is given. Shape: (utterances,)"""
    each = [one["by_source"][axis] if value is None else one["by_source"][axis][f"{value:g}"] for one in row["seeds"]]
    return np.asarray(np.mean(each, axis=0))


def interval(values: Floats) -> tuple[float, float, float]:
    """Mean and its 95 % interval, by a bootstrap over utterances: frames of an utterance are alike."""
    draws = np.random.default_rng(0).integers(0, len(values), (10_000, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
