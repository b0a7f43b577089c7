"""Results as text: CSV tables and JSON records. A number that is missing (None, NaN) is an empty cell and `null`."""

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy.typing as npt

from qkgcc.core.files import write_whole

_NUMBERS_PER_PIECE = 1 << 12


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, header: bool = True) -> str:
    r"""A table as `write_csv` writes it.

    >>> csv_text(["time", "delay"], [["0.1", cell(2.5, 2)], ["0.2"]])
    'time,delay\n0.1,2.50\n0.2,\n'
    """
    out = io.StringIO()
    write_csv(out, columns, rows, header=header)
    return out.getvalue()


def write_csv(out: IO[str], columns: Sequence[str], rows: Iterable[Sequence[Any]], *, header: bool = True) -> None:
    """Write a table row by row; a row that is shorter than the header ends in empty cells."""
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([*row, *[""] * (len(columns) - len(row))] for row in rows)


def cell(value: float | None, digits: int) -> str:
    """A number in a CSV table.

    >>> cell(2.5, 3), cell(float("nan"), 3), cell(None, 3)
    ('2.500', '', '')
    """
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def json_text(record: Any, indent: int | None = None) -> str:
    """A record as JSON, by default on one line. NaN and infinity, which JSON does not have, raise a ValueError."""
    return json.dumps(record, allow_nan=False, indent=indent)


def json_numbers(values: npt.NDArray[Any] | None, digits: int) -> list[Any] | None:
    """An array as rounded numbers for JSON, nested as the array is.

    >>> import numpy as np
    >>> json_numbers(np.array([0.123, np.nan]), 2), json_numbers(None, 2)
    ([0.12, None], None)
    """
    if values is None:
        return None
    if values.ndim > 1:
        return [json_numbers(row, digits) for row in values]
    return [None if math.isnan(value) else round(value, digits) for value in values.tolist()]


def json_array_pieces(values: npt.NDArray[Any] | None, digits: int) -> Iterator[str]:
    """`json_text(json_numbers(values, digits))` in pieces: the text of a long array takes ten times its memory."""
    if values is None:
        yield "null"
        return
    yield "["
    rows = max(1, _NUMBERS_PER_PIECE * len(values) // max(1, values.size))
    for first in range(0, len(values), rows):
        yield (", " if first else "") + json_text(json_numbers(values[first : first + rows], digits))[1:-1]
    yield "]"


def none_if_nan(value: Any) -> Any:
    """
    >>> none_if_nan(float("nan")), none_if_nan(2), none_if_nan("a")
    (None, 2, 'a')
    """
    return None if isinstance(value, float) and math.isnan(value) else value


def save_text(text: str, path: str | Path | None) -> str:
    """The text, also written to `path` if given; a file ends with a line's end."""
    if path is not None:
        lines = text if text.endswith("\n") else f"{text}\n"
        write_whole(path, lambda target: target.write_text(lines, newline="", encoding="utf-8"))
    return text
