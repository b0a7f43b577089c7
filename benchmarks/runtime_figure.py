"""Accuracy over cost, drawn from the table that `python -m benchmarks.runtime` wrote.

python -m benchmarks.runtime_figure
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

from benchmarks.timing import RESULTS
from qkgcc.lab.study.figures import save
from qkgcc.plots import new_figure

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
BELOW = {"QK-GCC", "GCC-PHAT, plain"}
"""Methods whose name stands below their line: above it is another's."""
LEFT = {"general-small"}
"""Methods whose name ends where their line begins: above and below it are others'."""
MARKERS = {"compiled": "o", "onnxruntime": "^", "NumPy": "s", "torch": "D", "torch, not folded": "X"}


def draw(rows: list[dict[str, Any]]) -> Figure:
    """A line for each method, from the fastest to the slowest of what runs it."""
    figure = new_figure((8.6, 4.6))
    ax = figure.subplots()
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        own = [row for row in rows if row["method"] == method]
        cost = [row["ms a frame"] for row in own]
        right = own[0]["within 10 cm, %"]
        ax.plot([min(cost), max(cost)], [right, right], color=f"C{i}", linewidth=1, alpha=0.5)
        for row, milliseconds in zip(own, cost, strict=True):
            ax.plot(milliseconds, right, MARKERS[row["run by"]], color=f"C{i}", markersize=8)
        offset = (0, -17 if method in BELOW else 9)
        side = "left"
        if method in LEFT:
            offset, side = (-8, -4), "right"
        name = method.partition(",")[0] if method.startswith("PGCC") else method  # how it was timed stands in the table
        ax.annotate(name, (min(cost), right), offset, textcoords="offset points", ha=side, color=f"C{i}", weight="bold")
    for by, marker in MARKERS.items():
        ax.plot([], [], marker, color="0.4", label=by)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set(xlabel="ms a frame of 128 ms, one thread", ylabel="within 10 cm on paper-test, %")
    ax.margins(x=0.08, y=0.12)
    ax.set_xlim(left=ax.get_xlim()[0] / 1.8)  # room for names
    ax.grid(alpha=0.3)
    ax.legend(title="run by", loc="lower right")
    return figure


def main() -> None:
    save(draw(json.loads((RESULTS / "runtime.json").read_text())["rows"]), "cost", FOLDER)


if __name__ == "__main__":
    main()
