"""Timing several functions fairly on a noisy machine, and writing what came out."""

import json
import math
import platform
import re
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.progress import track

from qkgcc.lab.provenance import commit

RESULTS = Path(__file__).parent / "results"
WARM = 3
"""Frames before a single one that is measured: by then caches hold what the method needs, not what the one before it
did."""


def interleaved(functions: Mapping[str, Callable[[], object]], rounds: int, *, warm: int = 0) -> dict[str, np.ndarray]:
    """Seconds of each function in each round; every round runs them all, so that a slow spell hits each of them.

    Args:
        warm: how often to run each before it is measured, so that caches hold its own data, as they do frame after
            frame, not what the function before it has left.
    """
    for function in functions.values():
        function()
    seconds = {name: np.empty(rounds) for name in functions}
    for i in track(range(rounds), description="rounds"):
        for name, function in functions.items():
            for _ in range(warm):
                function()
            start = time.perf_counter()
            function()
            seconds[name][i] = time.perf_counter() - start
    return seconds


def ratio(seconds: np.ndarray, reference: np.ndarray) -> float:
    """Median of the ratios round by round."""
    return float(np.median(seconds / reference))


def machine() -> dict[str, str]:
    packages = ("numpy", "scipy", "torch", "onnxruntime", "pyroomacoustics")
    return {
        "processor": _processor(),
        "python": platform.python_version(),
        "git": commit() or "unknown",
    } | {name: _version(name) for name in packages}


Rows = list[dict[str, Any]]


def write(
    name: str,
    title: str,
    command: str,
    headings: list[str],
    rows: Rows,
    notes: list[str],
    *,
    formats: Mapping[str, str] = MappingProxyType({}),
    asked: Rows | None = None,
    here: dict[str, str] | None = None,
) -> None:
    """`rows` as results/NAME.json, and as a Markdown table in results/NAME.md. Printed too.

    Args:
        formats: how the numbers of a heading look in the table; others have two digits.
        asked: lines of `benchmarks.asked`, a table of their own.
        here: what `machine` said before the first table of the run was written.
    """
    RESULTS.mkdir(exist_ok=True)
    here = here or machine()  # once: the files that are written below make a difference to the commit
    record = {"schema": 1, "name": name, "command": command, "machine": here, "rows": [_figures(row) for row in rows]}
    lines = [f"# {title}", "", f"Written by `{command}`; do not edit.", "", *_table(headings, rows, formats)]
    if asked is not None:
        record["asked"] = asked
        plain = dict.fromkeys(("measured", "asked", "aim"), ".3g")
        lines += ["", "What was asked, and aimed at:", "", *_table(list(asked[0]), asked, plain)]
    lines += ["", *notes, "", ", ".join(f"{key} {value}" for key, value in here.items())]
    text = "\n".join(lines) + "\n"
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def into_document(mark: str, inside: str, document: str) -> None:
    """Between the marks in a document of docs/."""
    path = RESULTS.parents[1] / "docs" / document
    marked = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
    path.write_text(marked.sub(lambda found: f"{found[1]}{inside}\n{found[2]}", path.read_text()))


def lines_of_table(text: str) -> str:
    """Of a results file."""
    return "".join(line + "\n" for line in text.splitlines() if line.startswith("|"))


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """A number that was written as text, for the digits that a table shows, is a number all the same."""

    def figure(value: Any) -> Any:
        try:
            number = float(value) if isinstance(value, str) else math.nan
        except ValueError:
            return value
        return number if math.isfinite(number) else value

    return {key: figure(value) for key, value in row.items()}


def _table(headings: list[str], rows: Rows, formats: Mapping[str, str]) -> list[str]:
    cells = [[_cell(row[heading], formats.get(heading, ".2f")) for heading in headings] for row in rows]
    first, *others = ("| " + " | ".join(line) + " |" for line in (headings, *cells))
    return [first, "|" + "---|" * len(headings), *others]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not there"


def _cell(value: object, shown: str) -> str:
    if value is None:
        return "-"
    return format(value, shown) if isinstance(value, float) else str(value)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor()
