"""Tables for people, from the results files: README.md and docs/results.md are written by this, between markers.

python -m qkgcc.experiments.report            writes them
python -m qkgcc.experiments.report --check    says whether they are as they should be
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qkgcc.errors import InputError
from qkgcc.experiments import catalog, results
from qkgcc.files import write_whole

FILES = ("README.md", "docs/results.md")
_MARKED = re.compile(r"(<!-- (?P<what>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rows_of(table: catalog.Table, rows: list[results.Row]) -> list[list[str]]:
    """Headings and cells of a table, ours beside the paper's; a dash where nothing is known yet."""
    costs = ["params", "MFLOP", "MFLOP, paper's"]
    lines = [["method", "benchmark", "seeds", *costs, "RMSE", "MAE", "Acc@10cm", "paper: RMSE / MAE / Acc"]]
    content = {"rows": rows}
    for benchmark in table.benchmarks:
        for method in table.methods:
            row = results.find(content, benchmark, method.name)
            paper = catalog.published(table.name, benchmark, method.name)
            lines.append(
                [
                    method.label + (" (stored)" if row and row["stored"] else ""),
                    benchmark,
                    str(len(row["seeds"])) if row and row["seeds"] and method.trained else "-",
                    f"{row['params']:,}" if row and row["params"] else "-",
                    f"{row['flops'] / 1e6:.1f}" if row and row["flops"] else "-",
                    "-" if (count := catalog.published_flops(method.name)) is None else f"{count:g}",
                    *(_spread(row, key) for key in results.METRICS),
                    " / ".join(f"{paper[key]:.2f}" for key in results.METRICS) if paper else "-",
                ]
            )
    if len(table.benchmarks) == 1:
        lines = [[cell for i, cell in enumerate(line) if i != 1] for line in lines]
    return lines


def _spread(row: results.Row | None, key: str) -> str:
    if row is None or row["mean"] is None:
        return "-"
    return f"{row['mean'][key]:.2f}" + (f" ± {row['std'][key]:.2f}" if row["std"] else "")


def markdown(lines: list[list[str]]) -> str:
    rule = ["---", *("---:" for _ in lines[0][1:])]
    return "\n".join("| " + " | ".join(line) + " |" for line in [lines[0], rule, *lines[1:]]) + "\n"


def table_text(name: str, folder: Path) -> str:
    table = catalog.table(name)
    content = results.read(folder / f"{name}.json") or {"rows": []}
    return markdown(rows_of(table, content["rows"]))


def summary_text(folder: Path) -> str:
    """Table 1 in short, for the README."""
    lines = rows_of(catalog.table("table1"), (results.read(folder / "table1.json") or {"rows": []})["rows"])
    keep = [lines[0].index(heading) for heading in ("method", "params", "RMSE", "MAE", "Acc@10cm", lines[0][-1])]
    return markdown([[line[i] for i in keep] for line in lines])


def claims_text(folder: Path) -> str:
    """The order of the methods with paired intervals, and what the paper says of Figure 2, checked."""
    lines = [["claim", "measured", ""]]
    for name in ("table1", "table2"):
        content = results.read(folder / f"{name}.json")
        for benchmark in catalog.table(name).benchmarks:
            rows = {
                method: results.find(content, benchmark, method) for method in ("qkgcc", "ngcc", "pgcc", "gcc-phat")
            }
            for better, worse in (("qkgcc", "ngcc"), ("ngcc", "pgcc"), ("pgcc", "gcc-phat"), ("qkgcc", "gcc-phat")):
                first, second = rows[better], rows[worse]
                if not (first and second and first["seeds"] and second["seeds"]):
                    lines.append([f"{benchmark}: {better} above {worse}", "-", "-"])
                    continue
                mean, low, high = results.paired_difference(first, second)
                verdict = "yes" if low > 0 else "no" if high < 0 else "not decided"
                lines.append(
                    [f"{benchmark}: {better} above {worse}", f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", verdict]
                )
    return markdown(lines + _figure_2_claims(folder))


def _figure_2_claims(folder: Path) -> list[list[str]]:
    content = results.read(folder / "table1.json")
    rows = [results.find(content, "paper-test", method) for method in ("qkgcc", "ngcc", "gcc-phat")]
    if not all(row and row["seeds"] for row in rows):
        return []
    snr = [curve(row, "snr") for row in rows if row]
    t60 = [curve(row, "t60") for row in rows if row]
    lines = []
    for i, other in ((1, "NGCC"), (2, "GCC-PHAT")):
        low, high = snr[0][0] - snr[i][0], snr[0][30] - snr[i][30]
        lines.append(
            [
                f"Figure 2: the margin over {other} widens at low SNR",
                f"{low:+.2f} at 0 dB, {high:+.2f} at 30 dB",
                "yes" if low > high else "no",
            ]
        )
        falls = [one[0.2] - one[1.0] for one in (t60[0], t60[i])]
        lines.append(
            [
                f"Figure 2: the fall with T60 is slower than {other}'s",
                f"{falls[0]:.2f} against {falls[1]:.2f} points from 0.2 to 1.0 s",
                "yes" if falls[0] < falls[1] else "no",
            ]
        )
    return lines


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
    lines = [["method", "seed", "seconds", "device", "best epoch", "validation Acc@10cm"]]
    seen = set()
    for name in ("table1", "table3"):
        for row in (results.read(folder / f"{name}.json") or {"rows": []})["rows"]:
            for one in row["seeds"]:
                training: dict[str, Any] | None = one.get("training")
                if training is None or (row["method"], one["seed"]) in seen:
                    continue
                seen.add((row["method"], one["seed"]))
                seconds = f"{training['seconds']:.0f}" if training["seconds"] else "-"
                cells = (str(one["seed"]), seconds, one["device"], str(training["epoch"]), f"{training['acc10cm']:.2f}")
                lines.append([row["method"], *cells])
    return markdown(lines)


PARTS: dict[str, Callable[[Path], str]] = {
    "summary": summary_text,
    "table1": lambda folder: table_text("table1", folder),
    "table2": lambda folder: table_text("table2", folder),
    "table3": lambda folder: table_text("table3", folder),
    "claims": claims_text,
    "cost": cost_text,
}


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
        new = filled(old, arguments.root / "results")
        if new != old:
            stale.append(name)
            if not arguments.check:
                write_whole(path, lambda target, new=new: target.write_text(new))  # type: ignore[misc]
    print(f"{'out of date' if arguments.check else 'written'}: {', '.join(stale) or 'nothing'}")
    sys.exit(bool(stale) and arguments.check)


if __name__ == "__main__":
    main()
