"""The paper's tables: which methods stand in which, what the paper says of them, and how they are shown."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.core.types import Floats
from qkgcc.lab.study import results
from qkgcc.lab.study.results import Row

SEEDS = (0, 1, 2)
REPRESENTATIVE = 0
"""The seed of everything that is trained only once."""
_ORDER = ("qkgcc", "ngcc", "pgcc", "gcc-phat")
"""From the best to the worst, as the paper claims."""
_HIGH = 3000.0  # Hz: where a coherence that falls from the lowest frequencies on no longer makes the correlation


@dataclass(frozen=True)
class Method:
    """A row. Its name is that of its training, too; GCC-PHAT has none."""

    name: str
    label: str
    seeds: tuple[int | None, ...] = SEEDS

    @property
    def trained(self) -> bool:
        return self.seeds != (None,)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    benchmarks: tuple[str, ...]
    methods: tuple[Method, ...]


GCC_PHAT = Method("gcc-phat", "GCC-PHAT", (None,))
_COMPARED = (
    GCC_PHAT,
    Method("pgcc", "PGCC-PHAT"),
    Method("ngcc", "NGCC-PHAT"),
    Method("qkgcc", "QK-GCC"),
    Method("steered", "steered QK-GCC (ours)"),
)


def _once(name: str, label: str) -> Method:
    return Method(name, label, (REPRESENTATIVE,))


TABLES = {
    table.name: table
    for table in (
        Table("table1", "Speech", ("paper-test",), _COMPARED),
        Table("table2", "Zero-shot: noise and music", ("paper-noise", "paper-music"), _COMPARED),
        Table(
            "table3",
            "Ablations",
            ("paper-test",),
            (
                GCC_PHAT,
                _once("pgcc", "PGCC-PHAT"),
                _once("ngcc", "NGCC-PHAT"),
                _once("transformer", "Transformer"),
                _once("qkgcc-raw-offsets", "QK-GCC without sym / asym"),
                _once("qkgcc-no-magnitude", "QK-GCC without magnitude"),
                _once("qkgcc-b0", "QK-GCC, b = 0"),
                _once("qkgcc", "QK-GCC, b = 8 (default)"),
                _once("qkgcc-b16", "QK-GCC, b = 16"),
                _once("qkgcc-b32", "QK-GCC, b = 32"),
                _once("steered", "steered QK-GCC (ours)"),
            ),
        ),
        # Not in the paper. It does not print the widths of the head: two fit what it counts. And a network that cannot
        # learn the modes of the training room bin by bin.
        Table(
            "variants",
            "Other heads and positions",
            ("paper-test",),
            (
                _once("qkgcc", "68 -> 32 (5 bins) -> 32 (5 bins), as above"),
                _once("qkgcc-head96", "68 -> 96 (1 bin) -> 32 (3 bins)"),
                _once("qkgcc-smooth", "as above, positions from 65 rows"),
            ),
        ),
    )
}


@cache
def _published() -> dict[str, Any]:
    return tomllib.loads((resources.files("qkgcc.lab.study") / "published.toml").read_text())


def published(table: str, benchmark: str, method: str) -> dict[str, Any] | None:
    """The paper's figures of a row.

    >>> published("table1", "paper-test", "qkgcc")["acc10cm"]
    66.69
    """
    row: dict[str, Any] | None = _published().get(table, {}).get(benchmark, {}).get(method)
    return row


def published_flops(method: str) -> float | None:
    """Millions of operations a frame that the paper prints."""
    count: float | None = _published()["flops"].get(method)
    return count


def table_lines(table: Table, rows: Sequence[Row]) -> list[list[str]]:
    """Headings and cells of a table, ours beside the paper's; a dash where nothing is known yet."""
    lines = [["method", "benchmark", "seeds", "params", "MFLOP (paper)", "RMSE", "MAE", "Acc@10cm", "paper's three"]]
    for benchmark in table.benchmarks:
        for method in table.methods:
            row = results.find(rows, benchmark, method.name)
            paper = published(table.name, benchmark, method.name)
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


def _flops(row: Row | None, method: str) -> str:
    ours = f"{row['flops'] / 1e6:.1f}" if row and row["flops"] else "-"
    paper = published_flops(method)
    return ours if paper is None else f"{ours} ({paper:g})"


def _spread(row: Row | None, key: str) -> str:
    if row is None or row["mean"] is None:
        return "-"
    return f"{row['mean'][key]:.2f}" + (f" ± {row['std'][key]:.2f}" if row["std"] else "")


def summary_lines(folder: Path) -> list[list[str]]:
    """Table 1 in short, and the variant that serves better in another room, for the README."""
    lines, (_, *variants) = (
        table_lines(TABLES[name], results.read_rows(folder, name)) for name in ("table1", "variants")
    )
    smooth = [method.name for method in TABLES["variants"].methods].index("qkgcc-smooth")
    lines.append(["QK-GCC, positions from 65 rows", *variants[smooth][1:]])
    keep = [lines[0].index(heading) for heading in ("method", "params", "RMSE", "MAE", "Acc@10cm", lines[0][-1])]
    return [[line[i] for i in keep] for line in lines]


def claim_lines(folder: Path) -> list[list[str]]:
    """The order of the methods on every column, what is claimed of the variants, and of Figure 2, checked."""
    found: dict[tuple[str, str], Row] = {}
    for name in ("variants", "table2", "table1"):
        found |= {(row["benchmark"], row["method"]): row for row in results.read_rows(folder, name)}
    lines = [["claim", "measured", ""]]
    benchmarks = (*TABLES["table1"].benchmarks, *TABLES["table2"].benchmarks)
    for benchmark in benchmarks:
        rows = {method: found.get((benchmark, method)) for method in _ORDER}
        lines += [_order_claim(benchmark, rows, key) for key in ("rmse", "mae")]
        pairs = (*itertools.pairwise(_ORDER), (_ORDER[0], _ORDER[-1]))
        lines += [_difference(found, benchmark, better, worse) for better, worse in pairs]
    # Ours, not the paper's: positions that cannot be learned bin by bin, and the steered network beside all others.
    lines += [_difference(found, "paper-test", "qkgcc-smooth", method) for method in ("qkgcc", "ngcc")]
    for benchmark in benchmarks:
        lines += [_difference(found, benchmark, "steered", method) for method in ("qkgcc", "ngcc")]
    lines.append(_difference(found, "paper-test", "steered", "qkgcc-smooth"))
    return lines + _figure_2_claims(found)


def _order_claim(benchmark: str, rows: dict[str, Row | None], key: str) -> list[str]:
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


def _difference(found: dict[tuple[str, str], Row], benchmark: str, better: str, worse: str) -> list[str]:
    """Of two methods on a benchmark: utterance by utterance, with an interval."""
    claim = f"{benchmark}, Acc@10cm: {better} above {worse}"
    rows = [found.get((benchmark, method)) for method in (better, worse)]
    known = [results.by_source(row) for row in rows if row and row["seeds"]]
    return _decided(claim, known[0] - known[1]) if len(known) == 2 else [claim, "-", "-"]


def _decided(claim: str, differences: Floats) -> list[str]:
    mean, low, high = results.interval(differences)
    verdict = "yes" if low > 0 else "no" if high < 0 else "not decided"
    return [claim, f"{mean:+.2f} ({low:+.2f} to {high:+.2f})", verdict]


def _figure_2_claims(found: dict[tuple[str, str], Row]) -> list[list[str]]:
    ours = found.get(("paper-test", "qkgcc"))
    lines = []
    for method, label in (("ngcc", "NGCC"), ("gcc-phat", "GCC-PHAT")):
        other = found.get(("paper-test", method))
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


def interpretability_lines(folder: Path) -> list[list[str]]:
    """What Figure 3 comes to, a line a network."""
    lines = [
        [
            "network",
            "r bin by bin",
            "r at the coherence's resolution",
            f"r above {_HIGH / 1000:g} kHz",
            "center / symmetric / antisymmetric, head by head",
        ]
    ]
    for row in results.read_rows(folder, "fig3"):
        shares = "; ".join(" / ".join(f"{100 * x:.0f}" for x in head) for head in row["shares"])
        high = np.array(row["frequency"]) > _HIGH
        above = np.corrcoef(np.array(row["norm_product"])[high], np.array(row["coherence"])[high])[0, 1]
        lines.append([row["method"], f"{row['pearson']:.2f}", f"{row['pearson_smoothed']:.2f}", f"{above:.2f}", shares])
    return lines


def curve(row: Row, axis: str, seed: int | None = None) -> dict[float, float]:
    """Acc@10cm over SNR (mean over T60) or over T60 (mean over SNR), mean over seeds or of the one in that place."""
    chosen = row["seeds"] if seed is None else [row["seeds"][seed]]
    values: dict[float, list[float]] = {}
    for one in chosen:
        for cell in one["cells"]:
            values.setdefault(cell[axis], []).append(cell["acc10cm"])
    return {key: sum(found) / len(found) for key, found in sorted(values.items())}


def cost_lines(folder: Path) -> list[list[str]]:
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
    return lines
