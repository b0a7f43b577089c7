"""Text files that users give, read within bounds: whatever is wrong with one is an `InputError` of one sentence.

A path may be a pipe or a device that never ends, a line may be too long, brackets may be nested too deep for a parser.
"""

import csv
import itertools
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from qkgcc.core.errors import InputError
from qkgcc.core.files import broken_link, display_name

MOST_CHARACTERS = 1_000_000
"""Of a text that is read as a whole: settings, a geometry."""
MOST_ROWS = 1_000_000
"""Of a table."""
LONGEST_LINE = 1_000_000
"""In characters."""


def excerpt(words: Iterable[str], most: int = 200) -> str:
    """Words of a file for a message: its beginning, in one line.

    >>> excerpt(["file", "de\\nlay"])
    'file, de?lay'
    """
    text = ", ".join(itertools.islice(words, most))
    line = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return line if len(text) <= most else f"{line} ..."


def read_text(path: str | Path) -> str:
    """A whole file in UTF-8, of at most `MOST_CHARACTERS`."""
    parts, count = [], 0
    for line in text_lines(path):
        parts.append(line)
        count += len(line)
        if count > MOST_CHARACTERS:
            raise InputError(
                f"{display_name(path)} is too long: expected a text of at most {MOST_CHARACTERS} characters"
            )
    return "".join(parts)


def text_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file in UTF-8, with their ends."""
    name = display_name(path)
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            while line := file.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise InputError(f"{name} is no text file: it has a line of more than {LONGEST_LINE} characters")
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
            if count > MOST_ROWS:
                raise InputError(f"{name} has too many rows: expected at most {MOST_ROWS}")
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
