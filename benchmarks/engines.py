"""Do tables come out the same whichever engine renders the benchmark? A 5 % slice of each set, every weighting.

    python -m benchmarks.engines --bank banks/test-clean --engine cpu     (then, elsewhere, --engine gpu)
    python -m benchmarks.engines --bank banks/test-clean --bank banks/music --bank banks/noise --engine cpu

With one bank it is `paper-test`, with three `general-test`, too. Each run adds its rows to results/engines.json; the
table shows all that are there. Required: Acc@10cm of every method within 0.1 point of the CPU engine's.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.timing import RESULTS, write
from qkgcc.delay import metrics
from qkgcc.dsp import gcc
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.benchmark import difference
from qkgcc.lab.frozen.general_set import CHUNK, SCENES, GeneralBenchmark
from qkgcc.lab.frozen.paper_sets import SNRS, T60S, PaperBenchmark

Scores = dict[str, Any]


def measure_paper(bank: Bank, engine: str) -> Scores:
    """Every 20th utterance of paper-test."""
    benchmark = PaperBenchmark.load("paper-test")
    rows = range(0, len(benchmark.ids), 20)
    expected = benchmark.fingerprints
    frames, true, off = [], [], []
    for t60 in track(T60S, description=f"paper-test, {engine}"):
        clean = benchmark.clean(bank, t60, rows, engine=engine)
        for snr in SNRS:
            frames.append(benchmark.frames(clean, snr, t60, rows))
            off.append(difference(frames[-1], expected[f"{snr}/{t60}"], rows))
            true.append(benchmark.delays(t60, rows))
    return scores(frames, np.concatenate(true), max_lag=23) | {"difference": max(off)}


def measure_general(banks: list[Bank], engine: str) -> Scores:
    """The first 200 scenes of general-test, in which delays go up to 94 samples."""
    benchmark = GeneralBenchmark.load()
    expected = benchmark.fingerprints
    frames, off = [], []
    for first in track(range(0, SCENES // 20, CHUNK), description=f"general-test, {engine}"):
        frames.append(benchmark.frames(banks, first, first + CHUNK, engine=engine))
        off.append(difference(frames[-1], expected[str(first)]))
    return scores(frames, benchmark.delays[: SCENES // 20].ravel(), max_lag=94) | {"difference": max(off)}


def scores(frames: list[np.ndarray], true: np.ndarray, max_lag: int) -> Scores:
    found = {
        weighting: np.concatenate(
            [gcc.delays(part.astype(np.float64), weighting, max_lag=max_lag, interpolation="none") for part in frames]
        )
        for weighting in gcc.WEIGHTINGS
    }
    return {weighting: metrics.accuracy(delays, true) for weighting, delays in found.items()} | {"frames": len(true)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True, action="append")
    parser.add_argument("--engine", choices=("cpu", "gpu"), required=True)
    arguments = parser.parse_args()
    banks = {bank.name: bank for bank in map(Bank.load, arguments.bank)}
    engine = arguments.engine
    old = RESULTS / "engines.json"
    rows: dict[tuple[str, str], Scores] = {}
    if old.exists():
        rows = {(row["set"], row["engine"]): row for row in json.loads(old.read_text())["rows"]}
    if "test-clean" in banks:
        rows["paper-test", engine] = measure_paper(banks["test-clean"], engine)
    if {"test-clean", "music", "noise"} <= set(banks):
        rows["general-test", engine] = measure_general(list(banks.values()), engine)
    table = []
    for (name, which), row in sorted(rows.items(), key=lambda item: (item[0][0] != "paper-test", item[0][1])):
        row = {"set": name, "engine": which} | row | {"difference": f"{float(row['difference']):.1e}", "required": ""}
        reference = rows.get((name, "cpu"))
        if which == "gpu" and reference is not None:
            apart = max(abs(row[w] - reference[w]) for w in gcc.WEIGHTINGS)
            # A slice of 1000 frames knows no smaller difference than 0.1 but none.
            row["required"] = f"within 0.1: {'met' if apart < 0.1 + 1e-6 else 'MISSED'} ({apart:.2f})"
        table.append(row)
    note = "Acc@10cm in percent of a twentieth of each set. `difference`: of the frames to the CPU engine's, worst row."
    headings = ["set", "engine", *gcc.WEIGHTINGS, "frames", "difference", "required"]
    write("engines", "The benchmark by engine", "python -m benchmarks.engines", headings, table, [note])


if __name__ == "__main__":
    main()
