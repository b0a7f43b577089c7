"""True delays of recordings, from a CSV file that anybody can write.

    file,delay_samples                     one delay for the whole recording
    file,start,end,delay_samples           one for each part, in seconds
    file,time,delay_samples                a course: between the moments the delay is interpolated

Instead of `delay_samples` (of the recording's own rate) there may be `delay_seconds`. Positive: the first channel hears
the source later. Other columns are ignored, but for `delays` of `qkgcc simulate`: those of a moving source every 64 ms.
"""

import itertools
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.tables import excerpt, table_rows, text_lines
from qkgcc.core.types import Floats

MOMENT = 0.064
"""Seconds between the delays in the column `delays`."""


@dataclass(frozen=True)
class _Part:
    start: float
    end: float
    times: tuple[float, ...]
    delays: tuple[float, ...]
    seconds: bool


@dataclass(frozen=True)
class Truth:
    """The true delays of some recordings."""

    path: Path
    parts: dict[str, list[_Part]]

    @classmethod
    def read(cls, path: Path) -> "Truth":
        """Read a table; an `InputError` names the line that is wrong."""
        rows = table_rows(text_lines(path), str(path))
        _, columns = next(rows, (0, []))
        wanted = [name for name in ("delay_samples", "delay_seconds") if name in columns]
        if "file" not in columns or len(wanted) != 1:
            found = f"has the columns {excerpt(columns)}" if columns else "is empty"
            raise InputError(
                f"{path} {found}; expected columns file and delay_samples (or delay_seconds), and start and end, or "
                "time, where a recording has several delays"
            )
        parts: dict[str, list[_Part]] = {}
        for line, cells in rows:
            if len(cells) > len(columns):
                raise InputError(f"{path}, line {line}: more cells than columns (a decimal comma?)")
            row = dict(zip(columns, cells, strict=False))
            name = row.get("file", "").strip()
            if not name:
                raise InputError(f"{path}, line {line}: the file is missing")
            parts.setdefault(name, []).append(_part(row, wanted[0], f"{path}, line {line}"))
        if not parts:
            raise InputError(f"{path} has no rows")
        return cls(path, {name: _joined(found, f"{path}: {excerpt([name])}") for name, found in parts.items()})

    def name_of(self, file: Path) -> str | None:
        """What a recording is called here: its path from the folder of the table, or just its name."""
        folder = self.path.resolve().parent
        absolute = Path(os.path.realpath(file))  # of a link to itself too, which `resolve` refuses
        names = [absolute.relative_to(folder).as_posix()] if absolute.is_relative_to(folder) else []
        return next((name for name in (*names, str(file), file.name) if name in self.parts), None)

    def at(self, name: str, times: npt.ArrayLike, sample_rate: float) -> Floats:
        """True delays in samples at some times in seconds, NaN where nothing is said. Shape: (T,) -> (T,)"""
        moments = np.asarray(times, dtype=np.float64)
        delays = np.full(moments.shape, np.nan)
        for part in self.parts[name]:
            inside = (moments >= part.start) & (moments <= part.end)
            values = np.interp(moments, part.times, part.delays) * (sample_rate if part.seconds else 1)
            delays[inside] = values[inside]
        return delays


def _part(row: dict[str, str], column: str, where: str) -> _Part:
    seconds = column == "delay_seconds"
    if moments := row.get("delays", "").split():
        course = tuple(_number(text, "delays", where) for text in moments)
        return _Part(0.0, math.inf, tuple(MOMENT * i for i in range(len(course))), course, False)
    delay = _number(row.get(column, ""), column, where)
    if row.get("time"):
        moment = _number(row["time"], "time", where)
        return _Part(moment, moment, (moment,), (delay,), seconds)
    start = _number(row["start"], "start", where) if row.get("start") else 0.0
    end = _number(row["end"], "end", where) if row.get("end") else math.inf
    if not start < end:
        raise InputError(f"{where}: the part ends at {end:g} s, before it starts at {start:g} s")
    return _Part(start, end, (0.0,), (delay,), seconds)


def _joined(parts: list[_Part], where: str) -> list[_Part]:
    """Single moments joined to one course; no moment may have two delays."""
    moments = sorted((part for part in parts if part.start == part.end), key=lambda part: part.start)
    rest = [part for part in parts if part.start != part.end]
    if moments:
        times, delays = tuple(part.times[0] for part in moments), tuple(part.delays[0] for part in moments)
        if len(set(times)) < len(times):
            raise InputError(f"{where} has two delays at the same time")
        rest.append(_Part(times[0], times[-1], times, delays, moments[0].seconds))
    rest.sort(key=lambda part: part.start)
    for one, other in itertools.pairwise(rest):
        if one.end > other.start:
            raise InputError(
                f"{where} has two delays from {other.start:g} s on: give each part its own start and end, or a time"
            )
    return rest


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {column} is {text!r:.60}; expected a number")
    return value
