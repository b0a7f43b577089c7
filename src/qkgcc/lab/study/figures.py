"""The paper's figures, as PNG and SVG: Figure 1 is drawn, Figure 2 comes from Table 1, Figure 3 from a checkpoint."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.lab.frozen.benchmark import FRAMES, SNRS, T60S, Benchmark
from qkgcc.lab.frozen.rendering import load_cell
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes.engines import best_engine
from qkgcc.lab.study import catalog, general_report, kept, results
from qkgcc.lab.study.interpretability import analyse
from qkgcc.lab.study.report import curve
from qkgcc.lab.study.reproduce import Workshop, render
from qkgcc.lab.training.loop import device_name
from qkgcc.nets import checkpoint
from qkgcc.pairs.calibration import expected_calibration_error, reliability
from qkgcc.plots import metadata, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 30  # answers of a tenth, below which its share of right ones is not drawn
EVERY = 10
"""Figure 3 takes every tenth utterance of paper-test, in all 30 cells."""


def draw(name: str, shop: Workshop, folder: Path) -> list[Path]:
    """Draw a figure; the files that were written."""
    figure = {
        "fig1": _architecture,
        "fig2": _robustness,
        "fig3": _interpretability,
        "calibration": _calibration,
    }[name](shop)
    return save(figure, name, folder)


def save(figure: Figure, name: str, folder: Path) -> list[Path]:
    """As PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    import matplotlib as mpl

    # Without a date and with fixed ids, the same figure gives the same file.
    with mpl.rc_context({"svg.hashsalt": name}):
        png, svg = (folder / f"{name}{kind}" for kind in (".png", ".svg"))
        return [
            write_whole(png, lambda target: figure.savefig(target, dpi=130, metadata=metadata(".png"))),
            write_whole(svg, lambda target: figure.savefig(target, metadata={**metadata(".svg"), "Date": None})),
        ]


def _robustness(shop: Workshop) -> Figure:
    """Figure 2: Acc@10cm over SNR and over T60; bands from the lowest to the highest seed."""
    content = results.read(shop.results / "table1.json")
    if content is None:
        raise InputError(f"{shop.results / 'table1.json'} is not there: qkgcc reproduce table1 makes it")
    figure = new_figure((10, 4.2))
    axes: list[Axes] = figure.subplots(1, 2, sharey=True).tolist()
    drawn = []
    for i, method in enumerate(catalog.table("table1").methods):
        row = results.find(content, "paper-test", method.name)
        if row is None or not row["seeds"]:
            continue
        for ax, axis in zip(axes, ("snr", "t60"), strict=True):
            mean = curve(row, axis)
            each = np.array([list(curve(row, axis, seed).values()) for seed in range(len(row["seeds"]))])
            ax.plot(list(mean), list(mean.values()), "o-", color=f"C{i}", label=method.label)
            if len(each) > 1:
                ax.fill_between(list(mean), each.min(axis=0), each.max(axis=0), color=f"C{i}", alpha=0.25, linewidth=0)
            spread = {"lowest": each.min(axis=0).tolist(), "highest": each.max(axis=0).tolist()}
            drawn.append({"method": method.name, "axis": axis, "at": list(mean), "mean": list(mean.values()), **spread})
    axes[0].set(xlabel="SNR in dB (mean over T60)", ylabel="Acc@10cm in %")
    axes[1].set(xlabel="T60 in s (mean over SNR)")
    for ax in axes:
        ax.grid(alpha=0.3)
    axes[0].legend()
    about = {key: content[key] for key in ("benchmark", "engine", "device", "seconds")}  # the table's own
    _write_numbers(shop, "fig2", drawn, about)
    return figure


def _write_numbers(shop: Workshop, name: str, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Keep what a figure shows, unless it is there already."""
    old = results.read(shop.results / f"{name}.json")
    if old is None or old["rows"] != rows:
        whence = {"command": f"qkgcc reproduce {name}", "git": commit()}
        results.write(shop.results / f"{name}.json", name, rows, about | whence)


_ANALYSED = {"qkgcc": "QK-GCC", "qkgcc-smooth": "positions from 65 rows"}
"""The networks of Figure 3, a row of panels each: the paper's, and the variant that cannot learn bin by bin."""


def _interpretability(shop: Workshop) -> Figure:
    """Figure 3, of the representative seed. Its numbers are kept in results/fig3.json."""
    content = results.read(shop.results / "fig3.json")
    paths = {method: shop.checkpoints / f"{method}-{catalog.REPRESENTATIVE}.safetensors" for method in _ANALYSED}
    if content is None or shop.from_checkpoints or not _same_weights(content["rows"], paths):
        rows = _analysed(shop, paths)
    else:
        rows = content["rows"]
    figure = new_figure((12, 3.8 * len(rows)))
    for panels, numbers in zip(figure.subplots(len(rows), 3), rows, strict=True):
        _panels(panels, numbers)
    return figure


def _panels(panels: Any, numbers: dict[str, Any]) -> None:
    left, middle, right = panels
    kilohertz = np.array(numbers["frequency"]) / 1000
    left.plot(
        kilohertz, numbers["norm_product"], color="C0", alpha=0.3, linewidth=0.6, label="mean |q| |k|, bin by bin"
    )
    left.plot(kilohertz, numbers["norm_product_smoothed"], color="C0", label="at the coherence's resolution")
    left.set(xlabel="frequency in kHz", ylabel="mean |q| |k|")
    other = left.twinx()
    other.plot(kilohertz, numbers["coherence"], color="C1", linewidth=1)
    left.plot([], [], color="C1", label="coherence between the channels")
    other.set_ylabel("magnitude-squared coherence")
    pearson = f"r = {numbers['pearson']:.2f}, smoothed {numbers['pearson_smoothed']:.2f}"
    left.set_title(f"(a) {_ANALYSED[numbers['method']]}: {pearson}", loc="left", fontsize="medium")
    left.legend(loc="upper right", fontsize="small")
    energy = np.array(numbers["offset_energy"])
    radius = energy.shape[1] // 2
    for head, row in enumerate(energy):
        middle.plot(np.arange(-radius, radius + 1), row, ".-", label=f"head {head + 1}")
    middle.set(xlabel="offset in bins", ylabel="energy of C / largest")
    middle.set_title("(b)", loc="left", fontsize="medium")
    middle.legend()
    shares, base = np.array(numbers["shares"]), np.zeros(len(energy))
    for i, part in enumerate(("center", "symmetric", "antisymmetric")):
        right.bar(np.arange(1, len(energy) + 1), shares[:, i], bottom=base, label=part)
        base = base + shares[:, i]
    right.set(xlabel="head", ylabel="share of the energy", ylim=(0, 1.2))
    right.set_title("(c)", loc="left", fontsize="medium")
    right.legend(ncols=3, fontsize="x-small", loc="upper center", columnspacing=0.8, handlelength=1)


def _same_weights(rows: list[dict[str, Any]], paths: dict[str, Path]) -> bool:
    """Whether these numbers are those of the checkpoints that are there."""
    known = {row["method"]: row["checkpoint"] for row in rows}
    there = {method: kept.weights_hash(path) for method, path in paths.items() if path.exists()}
    return known | there == known and set(known) == set(paths)


def _analysed(shop: Workshop, paths: dict[str, Path]) -> list[dict[str, Any]]:
    benchmark, engine = Benchmark.named("paper-test"), shop.engine or best_engine()
    render(benchmark, engine, shop)
    rows = (np.arange(0, len(benchmark.ids), EVERY)[:, None] * FRAMES + np.arange(FRAMES)).ravel()
    cells = [load_cell(benchmark, engine, snr, t60, shop.cache)[rows] for t60 in T60S for snr in SNRS]
    found, begun = [], time.monotonic()
    for method, path in paths.items():
        model, card = checkpoint.load(path)
        kept.check_card(path, card, method, catalog.REPRESENTATIVE, shop.bank("test-clean"))
        bar = shop.track(f"figure 3, {method}", len(cells) * len(rows) // FRAMES)
        numbers = analyse(model, cells, device=shop.device, progress=bar)  # type: ignore[arg-type]
        found.append({"method": method, "checkpoint": kept.weights_hash(path)} | numbers)
    about = {
        "benchmark": {benchmark.name: benchmark.hash},
        "engine": engine,
        "device": device_name(torch.device(shop.device)),
        "seconds": round(time.monotonic() - begun, 1),
    }
    _write_numbers(shop, "fig3", found, about)
    return found


def _calibration(shop: Workshop) -> Figure:
    """A reliability diagram of the pretrained model: how often it is right where it says that it is so sure."""
    found = general_report.confidences(shop.results)
    if not found:
        raise InputError(
            f"{shop.results / 'general.json'} has no calibrated model: qkgcc reproduce general measures it"
        )
    figure = new_figure((10, 4.6))
    left, right = figure.subplots(1, 2)
    left.fill_between([0, 1], [-0.05, 0.95], [0.05, 1.05], color="0.9", label="within 5 points")
    left.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for i, (name, (stated, hits)) in enumerate(found.items()):
        parts = [part for part in reliability(stated, hits) if part["answers"] >= _FEW]
        error = 100 * expected_calibration_error(stated, hits)
        label = f"{name}, error {error:.1f} points"
        left.plot([p["stated"] for p in parts], [p["right"] for p in parts], "o-", color=f"C{i}", label=label)
        share = np.histogram(stated, bins=10, range=(0, 1))[0] / len(stated)
        right.plot(np.arange(10) / 10 + 0.05, share, "o-", color=f"C{i}")
    left.set(xlabel="confidence", ylabel="share of right answers (62.5 us)", xlim=(0, 1), ylim=(0, 1))
    left.legend(fontsize="small")
    right.set(xlabel="confidence", ylabel="share of the frames", xlim=(0, 1), ylim=(0, None))
    for ax in (left, right):
        ax.grid(alpha=0.3)
    return figure


# Figure 1

_STEPS = {
    "GCC": [
        ("two frames", "x1, x2"),
        ("spectra", "X1, X2"),
        ("weighted\ncross-spectrum", "Ψ X1 X2*"),
        ("inverse transform", "R[τ]"),
        ("highest peak", "delay"),
    ],
    "QK-GCC": [
        ("two frames", "x1, x2"),
        ("tokens per bin", "log(1+|X|), cos, sin"),
        ("shared front end", "h = LN(z W + e_k)\nq = h1 W_Q,  k = h2 W_K"),
        ("local frequency\ncorrelation", "C[k, δ] = ⟨q[k], k[k+δ]⟩\ncenter / sym / asym"),
        ("delay head", "conv, conv, mean, MLP\n47 delays"),
    ],
}


def _architecture(shop: Workshop) -> Figure:
    """Figure 1: what QK-GCC puts in the place of each step of GCC."""
    from matplotlib.patches import FancyBboxPatch

    figure = new_figure((12, 4.4))
    ax = figure.subplots()
    ax.set(xlim=(-1.1, 14.2), ylim=(-0.5, 4.1))
    ax.axis("off")
    for row, (name, steps) in enumerate(_STEPS.items()):
        y = 2.4 - 2.5 * row
        ax.text(-0.15, y + 0.6, name, ha="right", va="center", fontsize=13, weight="bold")
        for i, (title, detail) in enumerate(steps):
            x = 2.85 * i
            learned = row == 1 and i >= 2
            face = "#fde9c8" if learned else "#e4edf7"
            box: dict[str, Any] = {"boxstyle": "round,pad=0.06", "facecolor": face, "edgecolor": "#444444"}
            ax.add_patch(FancyBboxPatch((x, y), 2.25, 1.25, **box))
            ax.text(x + 1.12, y + 0.9, title, ha="center", va="center", fontsize=10)
            ax.text(x + 1.12, y + 0.32, detail, ha="center", va="center", fontsize=8.5, color="#333333")
            if i:
                arrow = {"arrowstyle": "->", "color": "#444444"}
                ax.annotate("", (x - 0.06, y + 0.62), (x - 0.54, y + 0.62), arrowprops=arrow)
    notes = {2: "a fixed weight and phase match\nbecome learned ones", 3: "a bin is matched with\nits neighbourhood"}
    for i, note in notes.items():
        ax.text(2.85 * i + 1.12, 1.76, note, ha="center", va="center", fontsize=8.5, style="italic", color="#8a5a00")
    return figure
