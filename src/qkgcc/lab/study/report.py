"""Documents are filled with tables of the results, between markers.

    python -m qkgcc.lab.study.report            writes README.md and the reports
    python -m qkgcc.lab.study.report --check    says whether they are up to date

A table is declared in `TABLES`: its marker, and what makes its lines of the folder of the results. The first line holds
the headings; where nothing has been measured, it stands alone.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkgcc.core.errors import InputError
from qkgcc.core.tables import save_text
from qkgcc.lab.study import array_report, arrays, general_report, paper_tables, results

FILES = ("README.md", "docs/reports/results.md", "docs/reports/general.md", "docs/reports/array-test.md")
_MARKED = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Lines = list[list[str]]


def _of_rows(name: str, lines: Callable[..., Lines], *arguments: Any) -> Callable[[Path], Lines]:
    """Lines of the rows of `results/NAME.json`."""
    return lambda folder: lines(results.read_rows(folder, name), *arguments)


def _of_paper(table: paper_tables.Table) -> Callable[[Path], Lines]:
    return lambda folder: paper_tables.table_lines(table, results.read_rows(folder, table.name))


TABLES: dict[str, Callable[[Path], Lines]] = {
    **{name: _of_paper(table) for name, table in paper_tables.TABLES.items()},
    "summary": paper_tables.summary_lines,
    "claims": paper_tables.claim_lines,
    "cost": paper_tables.cost_lines,
    "interpretability": paper_tables.interpretability_lines,
    "general-asked": general_report.requirement_lines,
    "general-trust": general_report.calibration_error_lines,
    "general-rates": lambda folder: general_report.rate_lines(),
    "general-accuracy": general_report.accuracy_lines,
    "general-errors": general_report.error_lines,
    "general-differences": general_report.claim_lines,
    "general-cells": general_report.worst_cell_lines,
    "general-calibration": general_report.calibration_lines,
    "general-sources": general_report.two_sources_lines,
    "general-behaviour": general_report.behaviour_lines,
    "arrays-summary": _of_rows(arrays.NAME, array_report.summary_lines, "qkgcc"),
    "arrays-respeaker4": _of_rows(arrays.NAME, array_report.part_lines, "respeaker4"),
    "arrays-circle": _of_rows(arrays.NAME, array_report.part_lines, "circular:8:0.1"),
    "arrays-distributed": _of_rows(arrays.NAME, array_report.part_lines, "distributed"),
    "arrays-differences": _of_rows(arrays.NAME, array_report.difference_lines, "qkgcc"),
    "arrays-crossed": _of_rows(arrays.NAME, array_report.difference_lines, "qkgcc", array_report.finest_parts),
    "arrays-real": _of_rows(arrays.NAME, array_report.respeaker_lines),
    "arrays-tracks": _of_rows(arrays.TRACKS, array_report.track_lines),
}


def markdown(lines: Lines) -> str:
    rule = ["---", *("---:" for _ in lines[0][1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]]) + "\n"


def fill_document(text: str, folder: Path) -> str:
    """A document with the tables between its markers written anew."""

    def table(found: re.Match[str]) -> str:
        if found["name"] not in TABLES:
            raise InputError(f"there is no table {found['name']!r}; there are {', '.join(TABLES)}")
        return found[1] + markdown(TABLES[found["name"]](folder)) + found[3]

    return _MARKED.sub(table, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 when a document is out of date"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="of the repository")
    arguments = parser.parse_args()
    stale = []
    for name in FILES:
        path = arguments.root / name
        old = path.read_text()
        try:
            new = fill_document(old, arguments.root / "results")
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        if new != old:
            stale.append(name)
            if not arguments.check:
                save_text(new, path)
    print(f"{'out of date' if arguments.check else 'written'}: {', '.join(stale) or 'nothing'}")
    sys.exit(bool(stale) and arguments.check)


if __name__ == "__main__":
    main()
