"""Requirements of the networks for any pair, and what they reach: a table of `docs/reports/general.md`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qkgcc.lab.study import general, general_report, results
from qkgcc.lab.study.general_report import OURS, REFERENCE, Lines
from qkgcc.pairs.calibration import expected_calibration_error

OTHERS = (REFERENCE, "ngcc-0", "qkgcc-0")
REAL = ("respeaker", "surrey")
Line = tuple[str, float, float | None, float | None]
"""What, reached, asked, aim; at least, unless `what` says at most."""


def lines(folder: Path) -> Lines:
    """A line for each figure; without results the headings alone."""
    table = [["what", "reached", "asked", "aim", "asked is", "aim is"]]
    for what, reached, asked, aim in (*_steered(folder), *_general(folder)):
        meets = _at_most if "at most" in what else _at_least
        verdicts = ["-" if limit is None else "met" if meets(reached, limit) else "MISSED" for limit in (asked, aim)]
        shown = ["-" if limit is None else f"{limit:g}" for limit in (asked, aim)]
        table.append([what, f"{reached:.3g}", *shown, *verdicts])
    return table


def _at_least(reached: float, limit: float) -> bool:
    return reached >= limit - 1e-9


def _at_most(reached: float, limit: float) -> bool:
    return reached <= limit + 1e-9


def _steered(folder: Path) -> Iterator[Line]:
    row = results.find(results.read(folder / "table1.json"), "paper-test", "steered")
    if row is not None:
        yield "steered on paper-test, within 10 cm, %", row["mean"]["acc10cm"], 80, 85
        yield "steered on paper-test, mean error, samples, at most", row["mean"]["mae"], 3.3, None


def _general(folder: Path) -> Iterator[Line]:
    rows, ours, small = general_report.read(folder), OURS[0], OURS[-1]
    there = {(row["method"], row["set"]) for row in rows}
    wide = [row for row in rows if row["set"] != "general-test" or general_report.is_wide(row)]

    def gain(better: str, worse: str, name: str, what: str) -> float:
        chosen = wide if what == "right10cm" else rows
        return general.accuracy(chosen, better, name, what) - general.accuracy(chosen, worse, name, what)

    for other in OTHERS:
        if {(ours, "general-test"), (other, "general-test")} <= there:
            aim = 20 if other == REFERENCE else None
            said = f"{ours} above {other} on general-test"
            yield f"{said}, within 62.5 us, points", gain(ours, other, "general-test", "right62us"), 12, aim
            yield f"{said}, within 10 cm from 0.2 m, points", gain(ours, other, "general-test", "right10cm"), 14, aim
    if (ours, "paper-test") in there:
        reached = general.accuracy(rows, ours, "paper-test", "right10cm")
        yield f"{ours} on paper-test, within 10 cm, %", reached, 78, 82
    worse = [general_report.worse_cells(rows, name, set, REFERENCE) for name in OURS for set in general.SETS]
    if there:
        yield f"cells in which a network is worse than {REFERENCE}, at most", sum(map(sum, worse)), 0, None
    for snr in general.SURREY_SNRS:
        here = [row for row in rows if row["set"] == "surrey" and row["cell"]["snr"] == str(snr)]
        if {ours, REFERENCE} <= {row["method"] for row in here}:
            right = [general.accuracy(here, method, "surrey") for method in (ours, REFERENCE)]
            yield f"{ours} above {REFERENCE} on surrey, {snr} dB, within 62.5 us, points", right[0] - right[1], 0, None
    yield from _errors(rows, ours)
    for name in OURS:
        yield from _confidence(folder, name)
    for name, what, said in (
        ("general-test", "right62us", "within 62.5 us"),
        ("general-test", "right10cm", "within 10 cm from 0.2 m"),
        ("paper-test", "right10cm", "within 10 cm"),
    ):
        if {(ours, name), (small, name)} <= there:
            yield f"{small} behind {ours} on {name}, {said}, points, at most", gain(ours, small, name, what), None, 3


def _errors(rows: general_report.Rows, ours: str) -> Iterator[Line]:
    def found(method: str, name: str, key: str) -> list[float]:
        return [row[key] for row in rows if (row["method"], row["set"]) == (method, name)]

    for error, other in zip(
        found(ours, "respeaker", "mean_error"), found(REFERENCE, "respeaker", "mean_error"), strict=True
    ):
        yield f"{ours} on respeaker, mean error, samples, at most", error, 0.15, None
        yield f"{ours} on respeaker, mean error by that of {REFERENCE}, at most", error / other, 0.5, None
    for median in found(ours, "dry", "median_right")[:1]:
        yield f"{ours} in the open at 20 dB, median error of the right, samples, at most", median, 0.1, None


def _confidence(folder: Path, ours: str) -> Iterator[Line]:
    confidences = general_report.confidences(folder, ours)
    far = general_report.furthest_off(*confidences["general-test"]) if "general-test" in confidences else None
    if far is not None:
        yield f"confidence of {ours} on general-test, furthest off in a tenth, points, at most", abs(far[1]), 5, None
    for name in REAL:
        if name in confidences:
            error = 100 * expected_calibration_error(*confidences[name])
            yield f"confidence of {ours} on {name}, expected calibration error, points, at most", error, 5, None
