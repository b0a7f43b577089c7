"""Results as files: `results/NAME.json`, in the format that DESIGN fixes, growing row by row.

    {schema, name, benchmark, engine, command, git, device, seconds, rows, checksum}
    row:  {method, benchmark, params, flops, seeds: [...], mean, std, stored}
    seed: {seed, rmse, mae, acc10cm, cells: [{snr, t60, n, rmse, mae, acc10cm}], by_source: {all, snr, t60},
           engine, device, git, seconds, checkpoint, last, training}

`by_source` is the Acc@10cm of each utterance, over all cells and at each SNR and T60, so that two methods can be
compared pair by pair. `checkpoint` is the hash of the weights, `last` the figures of the last epoch's. A row is
`stored` when its checkpoint is too large for the repository: its figures cannot be computed again from there.
`checksum` covers all of it: a figure that somebody typed is found out.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.core.tables import parse_json

SCHEMA = 1
METRICS = ("rmse", "mae", "acc10cm")

Row = dict[str, Any]
Floats = npt.NDArray[np.float64]


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


def write(path: Path, name: str, rows: list[Row], about: dict[str, Any]) -> None:
    """Write rows, with what `about` says of the run."""
    content: dict[str, Any] = {"schema": SCHEMA, "name": name, **about, "rows": rows}
    content["checksum"] = _checksum(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda target: target.write_text(_text(content)))


def _text(content: dict[str, Any]) -> str:
    """JSON with a line for each row: what changed is seen line by line, and thousands of cells stay small."""
    rows = ",\n".join(json.dumps(row) for row in content["rows"])
    rest = json.dumps({key: value for key, value in content.items() if key != "rows"}, indent=1)
    return rest.removesuffix("\n}") + f',\n "rows": [\n{rows}\n]\n}}\n'


def find(content: dict[str, Any] | None, benchmark: str, method: str) -> Row | None:
    """The row of a method on a benchmark."""
    rows: list[Row] = content["rows"] if content else []
    return next((row for row in rows if (row["benchmark"], row["method"]) == (benchmark, method)), None)


def find_seed(row: Row | None, seed: int | None) -> dict[str, Any] | None:
    return next((one for one in row["seeds"] if one["seed"] == seed), None) if row else None


def summed_up(row: Row) -> Row:
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
