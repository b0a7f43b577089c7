"""Tables for people, from the results files: README.md and docs are written by this, between markers.

python -m qkgcc.lab.study.report            writes them
python -m qkgcc.lab.study.report --check    says whether they are as they should be
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.tables import save_text
from qkgcc.lab.study import array_report, arrays, catalog, general_report, results

FILES = ("README.md", "docs/reports/results.md", "docs/reports/general.md", "docs/reports/array-test.md")
_HIGH = 3000.0  # Hz: where a coherence that falls from the lowest frequencies on no longer makes the correlation
_MARKED = re.compile(r"(<!-- (?P<what>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rows_of(table: catalog.Table, rows: list[results.Row]) -> list[list[str]]:
    """Headings and cells of a table, ours beside the paper's; a dash where nothing is known yet."""
    lines = [["method", "benchmark", "seeds", "params", "MFLOP (paper)", "RMSE", "MAE", "Acc@10cm", "paper's three"]]
    for benchmark in table.benchmarks:
        for method in table.methods:
            row = results.find(rows, benchmark, method.name)
            paper = catalog.published(table.name, benchmark, method.name)
            lines.append(
                [
                    method.label + (" (stored)" if row and row["stored"] else ""),
                    benchmark,
                    str(len(row["seeds"])) if row and row["seeds"] and method.trained else "-",
                    f"{row['params']:,}" if row and row["params"] else "-",
                    _flops(row, method.name),
                    *(_spread(row, key) for key in results.METRICS),
                    " / ".join(f"{paper[key]:.2f}" for key in results.METRICS) if paper else "-",
                ]
            )
    if len(table.benchmarks) == 1:
        lines = [[cell for i, cell in enumerate(line) if i != 1] for line in lines]
    return lines


def _flops(row: results.Row | None, method: str) -> str:
    ours = f"{row['flops'] / 1e6:.1f}" if row and row["flops"] else "-"
    paper = catalog.published_flops(method)
    return ours if paper is None else f"{ours} ({paper:g})"


def _spread(row: results.Row | None, key: str) -> str:
    if row is None or row["mean"] is None:
        return "-"
    return f"{row['mean'][key]:.2f}" + (f" ± {row['std'][key]:.2f}" if row["std"] else "")


def markdown(lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in lines[0][1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]]) + "\n"


def table_text(name: str, folder: Path) -> str:
    table = catalog.table(name)
    return markdown(rows_of(table, results.read_rows(folder, name)))


def summary_text(folder: Path) -> str:
    """Table 1 in short, and the variant that serves better in another room, for the README."""
    lines, (_, *variants) = (
        rows_of(catalog.table(name), results.read_rows(folder, name)) for name in ("table1", "variants")
    )
    smooth = [method.name for method in catalog.table("variants").methods].index("qkgcc-smooth")
    lines.append(["QK-GCC, positions from 65 rows", *variants[smooth][1:]])
    keep = [lines[0].index(heading) for heading in ("method", "params", "RMSE", "MAE", "Acc@10cm", lines[0][-1])]
    return markdown([[line[i] for i in keep] for line in lines])


def claims_text(folder: Path) -> str:
    """The order of the methods on every column, and what the paper says of Figure 2, checked."""
    lines = [["claim", "measured", ""]]
    for name in ("table1", "table2"):
        rows_there = results.read_rows(folder, name)
        for benchmark in catalog.table(name).benchmarks:
            rows = {method: results.find(rows_there, benchmark, method) for method in _ORDER}
            lines += [_order_claim(benchmark, rows, key) for key in ("rmse", "mae")]
            for better, worse in (*itertools.pairwise(_ORDER), (_ORDER[0], _ORDER[-1])):
                claim = f"{benchmark}, Acc@10cm: {better} above {worse}"
                lines.append(_difference(claim, rows[better], rows[worse]))
    return markdown(lines + _our_claims(folder) + _figure_2_claims(folder))


_ORDER = ("qkgcc", "ngcc", "pgcc", "gcc-phat")


def _order_claim(benchmark: str, rows: dict[str, results.Row | None], key: str) -> list[str]:
    """Decided where every seed of a method is on the same side of every seed of the next."""
    claim = f"{benchmark}, {key.upper()}: {' < '.join(rows)}"
    known = [row for row in rows.values() if row and row["mean"]]
    if len(known) < len(rows):
        return [claim, "-", "-"]
    values = [row["mean"][key] for row in known]
    seeds = [[one[key] for one in row["seeds"]] for row in known]
    apart = all(max(lower) < min(higher) for lower, higher in itertools.pairwise(seeds))
    verdict = "yes" if apart else "not decided" if values == sorted(values) else "no"
    return [claim, " / ".join(f"{value:.2f}" for value in values), verdict]


def _difference(claim: str, better: results.Row | None, worse: results.Row | None) -> list[str]:
    if not (better and worse and better["seeds"] and worse["seeds"]):
        return [claim, "-", "-"]
    return _decided(claim, results.by_source(better) - results.by_source(worse))


def _decided(claim: str, differences: Any) -> list[str]:
    mean, low, high = results.interval(differences)
    verdict = "yes" if low > 0 else "no" if high < 0 else "not decided"
    return [claim, f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", verdict]


def _our_claims(folder: Path) -> list[list[str]]:
    """Ours, not the paper's: positions that cannot be learned bin by bin, and the steered network beside all others."""
    table1, variants = (results.read_rows(folder, name) for name in ("table1", "variants"))
    smooth = results.find(variants, "paper-test", "qkgcc-smooth")
    claim = "paper-test, Acc@10cm: qkgcc-smooth above"
    lines = [
        _difference(f"{claim} {method}", smooth, results.find(table1, "paper-test", method))
        for method in ("qkgcc", "ngcc")
    ]
    for name in ("table1", "table2"):
        rows_there = results.read_rows(folder, name)
        for benchmark in catalog.table(name).benchmarks:
            steered = results.find(rows_there, benchmark, "steered")
            for method in ("qkgcc", "ngcc"):
                claim = f"{benchmark}, Acc@10cm: steered above {method}"
                lines.append(_difference(claim, steered, results.find(rows_there, benchmark, method)))
    steered = results.find(table1, "paper-test", "steered")
    return [*lines, _difference("paper-test, Acc@10cm: steered above qkgcc-smooth", steered, smooth)]


def _figure_2_claims(folder: Path) -> list[list[str]]:
    rows = results.read_rows(folder, "table1")
    ours = results.find(rows, "paper-test", "qkgcc")
    lines = []
    for method, label in (("ngcc", "NGCC"), ("gcc-phat", "GCC-PHAT")):
        other = results.find(rows, "paper-test", method)
        claims = (
            (f"Figure 2: the margin over {label} is wider at 0 dB than at 30 dB", "snr", 0, 30),
            (f"Figure 2: from 0.2 to 1.0 s it falls less than {label}", "t60", 1.0, 0.2),
        )
        for claim, axis, wide, narrow in claims:
            if not (ours and other and ours["seeds"] and other["seeds"]):
                lines.append([claim, "-", "-"])
                continue
            margins = [results.by_source(ours, axis, at) - results.by_source(other, axis, at) for at in (wide, narrow)]
            lines.append(_decided(claim, margins[0] - margins[1]))
            for at, margin in zip((wide, narrow), margins, strict=True):
                lines.append(_decided(f"above {label} at {at:g} {'dB' if axis == 'snr' else 's'}", margin))
    return lines


def interpretability_text(folder: Path) -> str:
    """What Figure 3 comes to, in words."""
    content = results.read(folder / "fig3.json")
    if content is None:
        return "Not computed yet.\n"
    lines = [
        [
            "network",
            "r bin by bin",
            "r at the coherence's resolution",
            f"r above {_HIGH / 1000:g} kHz",
            "center / symmetric / antisymmetric, head by head",
        ]
    ]
    for row in content["rows"]:
        shares = "; ".join(" / ".join(f"{100 * x:.0f}" for x in head) for head in row["shares"])
        high = np.array(row["frequency"]) > _HIGH
        above = np.corrcoef(np.array(row["norm_product"])[high], np.array(row["coherence"])[high])[0, 1]
        lines.append([row["method"], f"{row['pearson']:.2f}", f"{row['pearson_smoothed']:.2f}", f"{above:.2f}", shares])
    return markdown(lines)


def curve(row: results.Row, axis: str, seed: int | None = None) -> dict[float, float]:
    """Acc@10cm over SNR (mean over T60) or over T60 (mean over SNR), mean over seeds or of the one in that place."""
    chosen = row["seeds"] if seed is None else [row["seeds"][seed]]
    values: dict[float, list[float]] = {}
    for one in chosen:
        for cell in one["cells"]:
            values.setdefault(cell[axis], []).append(cell["acc10cm"])
    return {key: sum(found) / len(found) for key, found in sorted(values.items())}


def cost_text(folder: Path) -> str:
    """How long trainings took."""
    figures = ["validation Acc@10cm", "paper-test Acc@10cm", "of the last epoch"]
    lines = [["method", "seed", "seconds", "device", "best epoch", *figures]]
    seen = set()
    for name in ("table1", "table3", "variants"):
        for row in results.read_rows(folder, name):
            for one in row["seeds"]:
                training: dict[str, Any] | None = one.get("training")
                if training is None or (row["method"], one["seed"]) in seen:
                    continue
                seen.add((row["method"], one["seed"]))
                last = "-" if one["last"] is None else f"{one['last']['acc10cm']:.2f}"
                cells = (f"{training['acc10cm']:.2f}", f"{one['acc10cm']:.2f}", last)
                about = (str(one["seed"]), f"{training['seconds']:.0f}", training["device"], str(training["epoch"]))
                lines.append([row["method"], *about, *cells])
    return markdown(lines)


PARTS: dict[str, Callable[[Path], str]] = {
    "summary": summary_text,
    "table1": lambda folder: table_text("table1", folder),
    "table2": lambda folder: table_text("table2", folder),
    "table3": lambda folder: table_text("table3", folder),
    "variants": lambda folder: table_text("variants", folder),
    "claims": claims_text,
    "cost": cost_text,
    "interpretability": interpretability_text,
    "general-asked": lambda folder: markdown(general_report.requirement_lines(folder)),
    "general-trust": lambda folder: markdown(general_report.trust_lines(folder)),
    "general-rates": lambda folder: markdown(general_report.rate_lines()),
    "general-accuracy": lambda folder: markdown(general_report.accuracy_lines(folder)),
    "general-errors": lambda folder: markdown(general_report.error_lines(folder)),
    "general-differences": lambda folder: markdown(general_report.claim_lines(folder)),
    "general-cells": lambda folder: markdown(general_report.nowhere_worse_lines(folder)),
    "general-calibration": lambda folder: markdown(general_report.calibration_lines(folder)),
    "general-sources": lambda folder: markdown(general_report.two_sources_lines(folder)),
    "general-behaviour": lambda folder: markdown(general_report.behaviour_lines(folder)),
    "arrays-summary": lambda folder: markdown(array_report.summary_lines(array_rows(folder), "qkgcc")),
    "arrays-respeaker4": lambda folder: markdown(array_report.part_lines(array_rows(folder), "respeaker4")),
    "arrays-circle": lambda folder: markdown(array_report.part_lines(array_rows(folder), "circular:8:0.1")),
    "arrays-distributed": lambda folder: markdown(array_report.part_lines(array_rows(folder), "distributed")),
    "arrays-differences": lambda folder: markdown(array_report.difference_lines(array_rows(folder), "qkgcc")),
    "arrays-crossed": lambda folder: markdown(
        array_report.difference_lines(array_rows(folder), "qkgcc", array_report.crossed)
    ),
    "arrays-real": lambda folder: markdown(array_report.respeaker_lines(array_rows(folder))),
    "arrays-tracks": lambda folder: markdown(array_report.track_lines(array_rows(folder, arrays.TRACKS))),
}


def array_rows(folder: Path, name: str = arrays.NAME) -> list[results.Row]:
    return results.read_rows(folder, name)


def filled(text: str, folder: Path) -> str:
    """A document with its marked parts written anew."""

    def part(found: re.Match[str]) -> str:
        if found["what"] not in PARTS:
            raise InputError(f"there is no part {found['what']!r}; there are {', '.join(PARTS)}")
        return found[1] + PARTS[found["what"]](folder) + found[3]

    return _MARKED.sub(part, text)


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
            new = filled(old, arguments.root / "results")
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
