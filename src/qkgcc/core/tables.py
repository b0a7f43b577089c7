"""Text in and out: CSV, JSON and TOML that users give, read within bounds, and results written as CSV and JSON.

Whatever is wrong with a given text is an `InputError` of one sentence: its path may be a pipe or a device that never
ends, a line may be too long, brackets may be nested too deep for a parser.

In results, a number that is missing (None, NaN) is an empty cell in CSV and `null` in JSON.
"""

import csv
import io
import itertools
import json
import math
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.files import broken_link, display_name, write_whole

MAX_TEXT_CHARACTERS = 1_000_000
"""Of a text that is read as a whole: settings, a geometry."""
MAX_TABLE_ROWS = 1_000_000
"""Of a table."""
MAX_LINE_CHARACTERS = 1_000_000
"""In characters."""
_NUMBERS_PER_PIECE = 1 << 12


def excerpt(words: Iterable[str], most: int = 200) -> str:
    """Words of a file for a message: its beginning, in one line.

    >>> excerpt(["file", "de\\nlay"])
    'file, de?lay'
    """
    text = ", ".join(itertools.islice(words, most))
    line = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return line if len(text) <= most else f"{line} ..."


def read_text(path: str | Path) -> str:
    """A whole file in UTF-8, of at most `MAX_TEXT_CHARACTERS`."""
    parts, count = [], 0
    for line in text_lines(path):
        parts.append(line)
        count += len(line)
        if count > MAX_TEXT_CHARACTERS:
            raise InputError(
                f"{display_name(path)} is too long: expected a text of at most {MAX_TEXT_CHARACTERS} characters"
            )
    return "".join(parts)


def text_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file in UTF-8, with their ends."""
    name = display_name(path)
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            while line := file.readline(MAX_LINE_CHARACTERS + 1):
                if len(line) > MAX_LINE_CHARACTERS:
                    raise InputError(
                        f"{name} is no text file: it has a line of more than {MAX_LINE_CHARACTERS} characters"
                    )
                yield line
    except FileNotFoundError:
        raise InputError(f"cannot read {name}: {broken_link(path) or 'there is no such file'}") from None
    except OSError as error:
        raise InputError(f"cannot read {name}: {broken_link(path) or error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{name} is no text file: it is not in UTF-8") from None
    except ValueError as error:  # a name with a byte that no name can have
        raise InputError(f"cannot read {name}: {error}") from None


def table_rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV table that are not empty, each with the number of its line."""
    reader = csv.reader(lines)
    try:
        for count, row in enumerate(reader):
            if count > MAX_TABLE_ROWS:
                raise InputError(f"{name} has too many rows: expected at most {MAX_TABLE_ROWS}")
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}, is no CSV: {error}") from None


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """TOML's table; `name` is for messages."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name} is no TOML file: {error}") from None
    except ValueError:
        raise _too_many_digits(name) from None
    except RecursionError:
        raise InputError(f"{name} is no usable TOML file: its brackets are nested too deep") from None
    _check_numbers(content, name)
    return content


def parse_json(text: str | bytes, name: str) -> Any:
    """What JSON says; `name` is for messages."""
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name} is not JSON: {error}") from None
    except ValueError:
        raise _too_many_digits(name) from None
    except RecursionError:
        raise InputError(f"{name} is no usable JSON: its brackets are nested too deep") from None
    _check_numbers(content, name)
    return content


def _too_many_digits(name: str) -> InputError:
    """Python reads no longer numbers than this."""
    return InputError(f"{name} holds a number of more than {sys.get_int_max_str_digits()} digits; expected fewer")


def _check_numbers(content: Any, name: str) -> None:
    """Python's whole numbers have any size, which neither floats nor messages can hold; those of files have 64 bits."""
    waiting = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int) and value.bit_length() > 63:
            raise InputError(f"{name} holds a whole number of {value.bit_length()} bits; expected at most 63")


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
        lines = f"{text}\n" if text and not text.endswith("\n") else text
        write_whole(path, lambda target: target.write_text(lines, newline="", encoding="utf-8"))
    return text
