"""The paper's figures, as PNG and SVG: Figure 1 is drawn, Figure 2 comes from Table 1, Figure 3 from a checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.lab.frozen.paper_sets import FRAMES, SCALE, SNRS, T60S, PaperBenchmark
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes.engines import best_engine
from qkgcc.lab.study import general_report, paper_tables, results
from qkgcc.lab.study.paper_tables import curve
from qkgcc.lab.study.reproduce import check_card, render, weights_hash
from qkgcc.lab.study.results import ReproductionRun
from qkgcc.lab.training.loop import device_name
from qkgcc.nets import checkpoint
from qkgcc.nets.matching import center_symmetric_antisymmetric
from qkgcc.nets.qkgcc import QKGCC
from qkgcc.pairs.calibration import expected_calibration_error, reliability
from qkgcc.plots import metadata, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 30  # answers of a tenth, below which its share of right ones is not drawn
FIGURE_3_STEP = 10
"""Figure 3 takes every tenth utterance of paper-test, in all 30 cells."""
COHERENCE_SEGMENT = 512
"""Samples of a segment of the coherence: 31 Hz, and 119 half-overlapping segments a clip."""


def draw(name: str, run: ReproductionRun, folder: Path) -> list[Path]:
    """Draw a figure; the files that were written."""
    figure = {
        "fig1": _architecture,
        "fig2": _robustness,
        "fig3": _interpretability,
        "calibration": _calibration,
    }[name](run)
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


def _robustness(run: ReproductionRun) -> Figure:
    """Figure 2: Acc@10cm over SNR and over T60; bands from the lowest to the highest seed."""
    content = results.read(run.results / "table1.json")
    if content is None:
        raise InputError(f"{run.results / 'table1.json'} is not there: qkgcc reproduce table1 makes it")
    figure = new_figure((10, 4.2))
    axes: list[Axes] = figure.subplots(1, 2, sharey=True).tolist()
    drawn = []
    for i, method in enumerate(paper_tables.TABLES["table1"].methods):
        row = results.find(content["rows"], "paper-test", method.name)
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
    _write_numbers(run, "fig2", drawn, about)
    return figure


def _write_numbers(run: ReproductionRun, name: str, rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    """Keep what a figure shows, unless it is there already."""
    old = results.read(run.results / f"{name}.json")
    if old is None or old["rows"] != rows:
        whence = {"command": f"qkgcc reproduce {name}", "git": commit()}
        results.write(run.results / f"{name}.json", name, rows, about | whence)


_FIGURE_3_NETWORKS = {"qkgcc": "QK-GCC", "qkgcc-smooth": "positions from 65 rows"}
"""The networks of Figure 3, a row of panels each: the paper's, and the variant that cannot learn bin by bin."""


def _interpretability(run: ReproductionRun) -> Figure:
    """Figure 3, of the representative seed. Its numbers are kept in results/fig3.json."""
    content = results.read(run.results / "fig3.json")
    paths = {
        method: run.checkpoints / f"{method}-{paper_tables.REPRESENTATIVE}.safetensors" for method in _FIGURE_3_NETWORKS
    }
    if content is None or run.from_checkpoints or not _same_weights(content["rows"], paths):
        rows = _analyse(run, paths)
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
    left.set_title(f"(a) {_FIGURE_3_NETWORKS[numbers['method']]}: {pearson}", loc="left", fontsize="medium")
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
    there = {method: weights_hash(path) for method, path in paths.items() if path.exists()}
    return known | there == known and set(known) == set(paths)


def _analyse(run: ReproductionRun, paths: dict[str, Path]) -> list[dict[str, Any]]:
    benchmark, engine = PaperBenchmark.load("paper-test"), run.engine or best_engine()
    render(benchmark, engine, run)
    rows = (np.arange(0, len(benchmark.ids), FIGURE_3_STEP)[:, None] * FRAMES + np.arange(FRAMES)).ravel()
    cells = [benchmark.load_cell(engine, snr, t60, run.cache)[rows] for t60 in T60S for snr in SNRS]
    found, begun = [], time.monotonic()
    for method, path in paths.items():
        model, card = checkpoint.load(path)
        check_card(path, card, method, paper_tables.REPRESENTATIVE, run.bank("test-clean"))
        bar = run.track(f"figure 3, {method}", len(cells) * len(rows) // FRAMES)
        numbers = analyse_matching(model, cells, device=run.device, progress=bar)  # type: ignore[arg-type]
        found.append({"method": method, "checkpoint": weights_hash(path)} | numbers)
    about = {
        "benchmark": {benchmark.name: benchmark.hash},
        "engine": engine,
        "device": device_name(torch.device(run.device)),
        "seconds": round(time.monotonic() - begun, 1),
    }
    _write_numbers(run, "fig3", found, about)
    return found


def analyse_matching(
    model: QKGCC,
    cells: Sequence[np.ndarray],
    *,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """What the network has learned, as Figure 3 shows it, over cells of a benchmark, each in whole clips.

    (a) |q| |k| over frequency, mean over frames, beside the magnitude-squared coherence between the channels. The
        coherence is Welch's, within each clip (over clips of different delay it would cancel), then the mean.
    (b) energy of C over the offsets, per head, divided by its largest.
    (c) shares of center, symmetric and antisymmetric energy, per head.

    Shape of a cell: (clips * 15, 2, 2048)

    `progress` is called with the number of clips that are done.
    """
    o = model.options
    model = model.to(device).eval()
    weight, coherence = np.zeros(o.bins), np.zeros(COHERENCE_SEGMENT // 2 + 1)
    offsets, parts = np.zeros((o.heads, 2 * o.radius + 1)), np.zeros((o.heads, 3))
    clips = 0
    for cell in cells:
        for clip in cell.reshape(-1, FRAMES, 2, o.frame):
            frames = torch.from_numpy(clip.astype(np.float32) / SCALE).to(device)
            found = model.explain(frames)
            weight += found.norm_product.mean(dim=0).cpu().numpy()
            energy = found.correlation.square().mean(dim=(0, 3))
            offsets += energy.cpu().numpy()
            split = center_symmetric_antisymmetric(found.correlation).square().mean(dim=(0, 3)).cpu().numpy()
            b = o.radius
            parts += np.stack([split[:, 0], split[:, 1 : b + 1].sum(axis=1), split[:, b + 1 :].sum(axis=1)], axis=1)
            coherence += magnitude_squared_coherence(clip.transpose(1, 0, 2).reshape(2, -1) / SCALE)
            clips += 1
            if progress is not None:
                progress(clips)
    frequency = np.linspace(0, 8000, o.bins)
    smooth = np.interp(frequency, np.linspace(0, 8000, COHERENCE_SEGMENT // 2 + 1), coherence / clips)
    weight /= clips
    # The coherence is that smooth; the weight, with a table of positions behind it, jitters bin by bin.
    width = o.dft // COHERENCE_SEGMENT
    even = np.convolve(np.pad(weight, width // 2, mode="edge"), np.ones(width) / width, mode="same")[
        width // 2 : width // 2 + o.bins
    ]
    return {
        "clips": clips,
        "frequency": frequency.tolist(),
        "norm_product": weight.tolist(),
        "coherence": smooth.tolist(),
        "pearson": float(np.corrcoef(weight, smooth)[0, 1]),
        "norm_product_smoothed": even.tolist(),
        "pearson_smoothed": float(np.corrcoef(even, smooth)[0, 1]),
        "offset_energy": (offsets / offsets.max(axis=1, keepdims=True)).tolist(),
        "shares": (parts / parts.sum(axis=1, keepdims=True)).tolist(),
    }


def magnitude_squared_coherence(audio: np.ndarray, segment: int = COHERENCE_SEGMENT) -> np.ndarray:
    """Welch's, of two channels: Hann segments, half overlapping. Shape: (2, n) -> (segment / 2 + 1,)

    >>> noise = np.random.default_rng(0).standard_normal((3, 16000))
    >>> alike = magnitude_squared_coherence(noise[[0, 0]] + 0.01 * noise[1:])
    >>> bool(alike.min() > 0.99), bool(magnitude_squared_coherence(noise[:2]).mean() < 0.05)
    (True, True)
    """
    windows = np.lib.stride_tricks.sliding_window_view(audio, segment, axis=1)[:, :: segment // 2]
    spectra = np.fft.rfft(windows * np.hanning(segment))
    cross = (spectra[0] * spectra[1].conj()).mean(axis=0)
    power = np.square(np.abs(spectra)).mean(axis=1)
    return np.asarray(np.square(np.abs(cross)) / (power[0] * power[1]))


def _calibration(run: ReproductionRun) -> Figure:
    """A reliability diagram of the pretrained model: how often it is right where it says that it is so sure."""
    found = general_report.confidences(run.results)
    if not found:
        raise InputError(f"{run.results / 'general.json'} has no calibrated model: qkgcc reproduce general measures it")
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


def _architecture(run: ReproductionRun) -> Figure:
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
