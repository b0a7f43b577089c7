"""Tables for `docs/reports/general.md` from `results/general.json`; `qkgcc.lab.study.report` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from qkgcc.core.types import Bools, Floats
from qkgcc.lab.study import general, results
from qkgcc.lab.study.general import CellScores
from qkgcc.network import files
from qkgcc.network.registry import pretrained
from qkgcc.pairs.calibration import expected_calibration_error, reliability

OURS = ("general", "general-medium", "general-small")
COMPARED = (*OURS, *(f"{OURS[0]}-{decoder}" for decoder in general.VARIANTS))
REFERENCE = "gcc-phat"
AS_SHIPPED = "phat"
"""The same of this package, whose frames fade in and out, and which is right more often."""
ENOUGH = 400
"""Frames of a cell that a judgement of it takes."""
MARGIN = -0.5
"""Points: a cell is worse when its whole interval lies below."""
ENOUGH_CONFIDENCES = 300
"""Frames of a tenth that a judgement of its calibration takes."""

REQUIRED_AGAINST = (REFERENCE, "ngcc-0", "qkgcc-0")
REAL_SETS = ("respeaker", "surrey")

Lines = list[list[str]]
Requirement = tuple[str, float, float | None, float | None]
"""What, reached, required, aim; at least, unless `what` says at most."""
Rows = Sequence[CellScores]


def accuracy_lines(folder: Path) -> Lines:
    """A line a method: percent within 62.5 us of every set, and within 10 cm where that means something."""
    rows = general.read(folder)
    headings = ["method", *(f"{name}, 62.5 us" for name in general.SETS), "general-test, 10 cm", "paper-test, 10 cm"]
    lines = [headings]
    for method in _methods(rows):
        cells = [_share(rows, method, name, "right62us") for name in general.SETS]
        wide = [row for row in rows if row.set == "general-test" and is_wide(row)]
        lines.append(
            [
                method,
                *cells,
                _share(wide, method, "general-test", "right10cm"),
                _share(rows, method, "paper-test", "right10cm"),
            ]
        )
    return lines


def error_lines(folder: Path) -> Lines:
    """Errors in samples at 16 kHz on real recordings and in dry rooms."""
    rows = general.read(folder)
    chosen = [row for row in rows if row.set in ("respeaker", "surrey", "dry")]
    places = list(dict.fromkeys(_cell_label(row) for row in chosen))
    lines = [["method", *(f"{place}: mean (median of the right)" for place in places)]]
    for method in _methods(rows):
        found = {_cell_label(row): row for row in chosen if row.method == method}
        texts = [
            f"{found[place].mean_error:.3f} ({_three_digits(found[place].median_right)})" if place in found else "-"
            for place in places
        ]
        lines.append([method, *texts])
    return lines


def claim_lines(folder: Path) -> Lines:
    """Our models less the others, and the smaller ones less the default, in points, on the two frozen sets."""
    rows = general.read(folder)
    there = _methods(rows)
    others = [name for name in there if not name.startswith(OURS[0])]
    pairs = [(better, worse) for better in COMPARED for worse in others] + [(name, OURS[0]) for name in OURS[1:]]
    lines = [["difference", "general-test, 62.5 us", "general-test, 10 cm", "paper-test, 10 cm"]]
    wide = [row for row in rows if row.set != "general-test" or is_wide(row)]
    for better, worse in pairs:
        if better not in there or worse not in there:
            continue
        cells = [
            _difference(rows, better, worse, "general-test", "right62us"),
            _difference(wide, better, worse, "general-test", "right10cm"),
            _difference(rows, better, worse, "paper-test", "right10cm"),
        ]
        lines.append([f"{better} - {worse}", *cells])
    return lines


def worst_cell_lines(folder: Path) -> Lines:
    """In how many cells a model is worse than GCC-PHAT, and where it comes nearest to it."""
    rows = general.read(folder)
    headings = ["model", "set", "cells", f"of {ENOUGH} frames or more", "worse, 62.5 us", "worse, 10 cm"]
    lines = [[*headings, "least gain (62.5 us), interval, cell", f"worse than {AS_SHIPPED}, 62.5 us, 10 cm"]]
    for better in OURS:
        for name in general.SETS:
            cells = [row for row in rows if (row.method, row.set) == (better, name)]
            large = _compared(rows, [row for row in cells if row.n >= ENOUGH], REFERENCE)
            if not large:
                continue
            row, (mean, low, high) = min(((row, exact) for row, exact, _ in large), key=lambda item: item[1][0])
            least = f"{mean:+.1f} ({low:+.1f} to {high:+.1f}), {_cell_label(row)}"
            worse = worse_cells(rows, better, name, REFERENCE)
            other = "{}, {}".format(*worse_cells(rows, better, name, AS_SHIPPED))
            lines.append([better, name, str(len(cells)), str(len(large)), *map(str, worse), least, other])
    return lines


def worse_cells(rows: Rows, better: str, name: str, reference: str) -> tuple[int, int]:
    """Cells of a set in which a model is worse than a reference, within 62.5 us and within 10 cm."""
    cells = [row for row in rows if (row.method, row.set) == (better, name) and row.n >= ENOUGH]
    found = _compared(rows, cells, reference)
    return sum(exact[2] < MARGIN for _, exact, _ in found), sum(about[2] < MARGIN for _, _, about in found)


def _compared(
    rows: Rows, cells: Rows, reference: str
) -> list[tuple[CellScores, tuple[float, float, float], tuple[float, float, float]]]:
    """Cells that a reference was measured on, too: differences within 62.5 us and within 10 cm, with intervals."""
    pairs = [(row, _same_cell(rows, row, reference)) for row in cells]
    return [
        (row, general.difference(row, other, "right62us"), general.difference(row, other, "right10cm"))
        for row, other in pairs
        if other is not None
    ]


def confidences(folder: Path, method: str = OURS[0]) -> dict[str, tuple[Floats, Bools]]:
    """Of each set: the confidences that a model states, and whether its answers are right. Shape: (N,), (N,)"""
    found: dict[str, list[tuple[Floats, Bools]]] = {}
    for row in general.read(folder):
        if row.method == method and row.confidence is not None:
            found.setdefault(row.set, []).append((row.confidence, row.right62us))
    return {
        name: (np.concatenate([stated for stated, _ in found[name]]), np.concatenate([hit for _, hit in found[name]]))
        for name in general.SETS
        if name in found
    }


def calibration_lines(folder: Path) -> Lines:
    """Stated and true share of right answers in each tenth of the confidence."""
    lines = [["set", "confidence", "frames", "stated", "right", "difference"]]
    for name, (stated, right) in confidences(folder).items():
        for part in reliability(stated, right):
            apart = 100 * (part["stated"] - part["right"])
            few = "" if part["answers"] >= ENOUGH_CONFIDENCES else " (few)"
            span = f"{part['from']:.1f} to {part['to']:.1f}"
            values = (f"{part['answers']}{few}", f"{100 * part['stated']:.1f} %", f"{100 * part['right']:.1f} %")
            lines.append([name, span, *values, f"{apart:+.1f}"])
        error = 100 * expected_calibration_error(stated, right)
        lines.append([name, "all: expected calibration error", str(len(stated)), "", "", f"{error:.1f}"])
    return lines


def calibration_error_lines(folder: Path) -> Lines:
    """Of each model and set: the expected calibration error, and the tenth that is furthest off."""
    lines = [["model", "set", "frames", "expected calibration error", f"furthest off, of {ENOUGH_CONFIDENCES} frames"]]
    for method in OURS:
        for name, (stated, right) in confidences(folder, method).items():
            error = 100 * expected_calibration_error(stated, right)
            far = furthest_off(stated, right)
            said = "-" if far is None else f"{far[1]:+.1f}, {far[0]:.1f} to {far[0] + 0.1:.1f}"
            lines.append([method, name, str(len(stated)), f"{error:.1f}", said])
    return lines


def furthest_off(stated: Floats, right: Bools) -> tuple[float, float] | None:
    """Where the tenth begins whose stated share is furthest from the true one, and by how many points."""
    large = [part for part in reliability(stated, right) if part["answers"] >= ENOUGH_CONFIDENCES]
    apart = [(part["from"], 100 * (part["stated"] - part["right"])) for part in large]
    return max(apart, key=lambda item: abs(item[1]), default=None)


def rate_lines() -> Lines:
    """As the cards say: on the recordings that calibrate, at other sample rates."""
    lines = [["model", "sample rate", "within 62.5 us", "calibration error, a frame alone", "in its recording"]]
    for name in OURS:
        card, _ = files.read(pretrained(name))
        unseen = card.metrics["unseen"]
        errors = [unseen[f"expected_calibration_error{end}"] for end in ("", "_in_context")]
        for rate, share in unseen["acc62us"].items():
            lines.append([name, f"{rate} Hz", f"{share:.1f} %", *(f"{100 * error[rate]:.1f}" for error in errors)])
    return lines


def two_sources_lines(folder: Path) -> Lines:
    """Two sources at once: how often the louder one is the answer, and the weaker one of the two highest peaks."""
    lines = [["method", "frames", "the louder one", "the weaker one among two peaks"]]
    for row in general.read(folder):
        if row.set == "two-sources":
            shares = [100 * getattr(row, key).mean() for key in ("right62us", "weaker62us")]
            lines.append([row.method, str(row.n), *(f"{share:.1f} %" for share in shares)])
    return lines


def behaviour_lines(folder: Path) -> Lines:
    """How many answers follow a shift of channel 1, and mirror when the channels are swapped."""
    lines = [["method", f"follows a shift of {general.SHIFT} samples, +- 0.5", "mirrors under swap, +- 0.5"]]
    rows = general.read(folder)
    for method in _methods(rows):
        found = [row.behaviour for row in rows if row.method == method and row.behaviour]
        if found:
            total, *shares = (sum(counts) for counts in zip(*found, strict=True))
            lines.append([method, *(f"{100 * share / total:.1f} %" for share in shares)])
    return lines


def _three_digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _methods(rows: Rows) -> list[str]:
    """The others as they were measured, then this package's networks, each with its further decoders behind it."""
    own = [name if decoder is None else f"{name}-{decoder}" for name in OURS for decoder in (None, *general.VARIANTS)]
    found = dict.fromkeys(row.method for row in rows)
    return [*(name for name in found if name not in own), *(name for name in own if name in found)]


def is_wide(row: CellScores) -> bool:
    """Of pairs that do not score within 10 cm by answering 0."""
    return float(row.cell["spacing"].split(" ")[0]) >= general.WIDE


def _cell_label(row: CellScores) -> str:
    return ", ".join([row.set, *(f"{key} {value}" for key, value in row.cell.items())])


def _same_cell(rows: Rows, row: CellScores, method: str) -> CellScores | None:
    return next((one for one in rows if (one.method, one.set, one.cell) == (method, row.set, row.cell)), None)


def _share(rows: Rows, method: str, name: str, what: str) -> str:
    if not any((row.method, row.set) == (method, name) for row in rows):
        return "-"
    return f"{general.accuracy(rows, method, name, what):.2f}"


def _difference(rows: Rows, better: str, worse: str, name: str, what: str) -> str:
    """Over all cells of a set, with an interval over scenes or utterances."""
    parts = []
    for row in rows:
        if (row.method, row.set) != (better, name):
            continue
        other = _same_cell(rows, row, worse)
        if other is None:
            return "-"
        each = getattr(row, what).astype(np.float64) - getattr(other, what)
        parts.append(np.split(100 * each, np.cumsum(row.groups)[:-1]))
    if not parts:
        return "-"
    if name != "general-test":  # the same utterances in every cell: all that is of one belongs together
        parts = [[np.concatenate(one) for one in zip(*parts, strict=True)]]
    pieces = [piece for part in parts for piece in part]
    mean, low, high = general.interval_by_group(np.concatenate(pieces), [len(piece) for piece in pieces])
    return f"{mean:+.2f} ({low:+.2f} to {high:+.2f})"


def requirement_lines(folder: Path) -> Lines:
    """What was required of the networks for any pair, what was aimed at, and what they reach."""
    table = [["what", "reached", "asked", "aim", "asked is", "aim is"]]
    for what, reached, asked, aim in (*_of_steered(folder), *_of_any_pair(folder)):
        meets = _at_most if "at most" in what else _at_least
        verdicts = ["-" if limit is None else "met" if meets(reached, limit) else "MISSED" for limit in (asked, aim)]
        shown = ["-" if limit is None else f"{limit:g}" for limit in (asked, aim)]
        table.append([what, f"{reached:.3g}", *shown, *verdicts])
    return table


def _at_least(reached: float, limit: float) -> bool:
    return reached >= limit - 1e-9


def _at_most(reached: float, limit: float) -> bool:
    return reached <= limit + 1e-9


def _of_steered(folder: Path) -> Iterator[Requirement]:
    row = results.find(results.read_rows(folder, "table1"), "paper-test", "steered")
    if row is not None:
        yield "steered on paper-test, within 10 cm, %", row["mean"]["acc10cm"], 80, 85
        yield "steered on paper-test, mean error, samples, at most", row["mean"]["mae"], 3.3, None


def _of_any_pair(folder: Path) -> Iterator[Requirement]:
    rows, ours, small = general.read(folder), OURS[0], OURS[-1]
    there = {(row.method, row.set) for row in rows}
    wide = [row for row in rows if row.set != "general-test" or is_wide(row)]

    def gain(better: str, worse: str, name: str, what: str) -> float:
        chosen = wide if what == "right10cm" else rows
        return general.accuracy(chosen, better, name, what) - general.accuracy(chosen, worse, name, what)

    for other in REQUIRED_AGAINST:
        if {(ours, "general-test"), (other, "general-test")} <= there:
            aim = 20 if other == REFERENCE else None
            said = f"{ours} above {other} on general-test"
            yield f"{said}, within 62.5 us, points", gain(ours, other, "general-test", "right62us"), 12, aim
            yield f"{said}, within 10 cm from 0.2 m, points", gain(ours, other, "general-test", "right10cm"), 14, aim
    if (ours, "paper-test") in there:
        reached = general.accuracy(rows, ours, "paper-test", "right10cm")
        yield f"{ours} on paper-test, within 10 cm, %", reached, 78, 82
    worse = [worse_cells(rows, name, set, REFERENCE) for name in OURS for set in general.SETS]
    if there:
        yield f"cells in which a network is worse than {REFERENCE}, at most", sum(map(sum, worse)), 0, None
    for snr in general.SURREY_SNRS:
        here = [row for row in rows if row.set == "surrey" and row.cell["snr"] == str(snr)]
        if {ours, REFERENCE} <= {row.method for row in here}:
            right = [general.accuracy(here, method, "surrey") for method in (ours, REFERENCE)]
            yield f"{ours} above {REFERENCE} on surrey, {snr} dB, within 62.5 us, points", right[0] - right[1], 0, None
    yield from _of_errors(rows, ours)
    for name in OURS:
        yield from _of_confidence(folder, name)
    for name, what, said in (
        ("general-test", "right62us", "within 62.5 us"),
        ("general-test", "right10cm", "within 10 cm from 0.2 m"),
        ("paper-test", "right10cm", "within 10 cm"),
    ):
        if {(ours, name), (small, name)} <= there:
            yield f"{small} behind {ours} on {name}, {said}, points, at most", gain(ours, small, name, what), None, 3


def _of_errors(rows: Rows, ours: str) -> Iterator[Requirement]:
    def found(method: str, name: str, key: str) -> list[float]:
        return [getattr(row, key) for row in rows if (row.method, row.set) == (method, name)]

    for error, other in zip(
        found(ours, "respeaker", "mean_error"), found(REFERENCE, "respeaker", "mean_error"), strict=True
    ):
        yield f"{ours} on respeaker, mean error, samples, at most", error, 0.15, None
        yield f"{ours} on respeaker, mean error by that of {REFERENCE}, at most", error / other, 0.5, None
    for median in found(ours, "dry", "median_right")[:1]:
        yield f"{ours} in the open at 20 dB, median error of the right, samples, at most", median, 0.1, None


def _of_confidence(folder: Path, ours: str) -> Iterator[Requirement]:
    stated = confidences(folder, ours)
    far = furthest_off(*stated["general-test"]) if "general-test" in stated else None
    if far is not None:
        yield f"confidence of {ours} on general-test, furthest off in a tenth, points, at most", abs(far[1]), 5, None
    for name in REAL_SETS:
        if name in stated:
            error = 100 * expected_calibration_error(*stated[name])
            yield f"confidence of {ours} on {name}, expected calibration error, points, at most", error, 5, None
