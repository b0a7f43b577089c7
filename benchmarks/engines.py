"""Do tables come out the same whichever engine renders the benchmark? A 5 % slice of `paper-test`, every weighting.

    python -m benchmarks.engines --bank banks/test-clean --engine cpu     (then, elsewhere, --engine gpu)

Each run adds its engine to results/engines.json; the table shows all that are there. Required: Acc@10cm of every method
within 0.1 point of the CPU engine's.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from rich.progress import track

from benchmarks.timing import RESULTS, write
from qkgcc import gcc, metrics
from qkgcc.data.banks import Bank
from qkgcc.data.benchmark import SNRS, T60S, Benchmark
from qkgcc.data.fingerprints import difference
from qkgcc.data.rendering import fingerprints
from qkgcc.simulate.engines import ENGINES


def measure(bank: Bank, engine: str) -> dict[str, float]:
    benchmark = Benchmark.named("paper-test")
    rows = range(0, len(benchmark.ids), 20)
    expected = fingerprints(benchmark)
    found: dict[str, list[np.ndarray]] = {weighting: [] for weighting in gcc.WEIGHTINGS}
    true, off = [], []
    for t60 in track(T60S, description=engine):
        clean = benchmark.clean(bank, t60, rows, engine=engine)
        for snr in SNRS:
            frames = benchmark.frames(clean, snr, t60, rows)
            off.append(difference(frames, expected[f"{snr}/{t60}"], rows))
            true.append(benchmark.delays(t60, rows))
            for weighting, delays in found.items():
                delays.append(gcc.delays(frames.astype(np.float64), weighting, max_lag=23, interpolation="none"))
    truth = np.concatenate(true)
    scores = {weighting: metrics.accuracy(np.concatenate(delays), truth) for weighting, delays in found.items()}
    return scores | {"difference": max(off), "frames": len(truth)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--engine", choices=ENGINES, required=True)
    arguments = parser.parse_args()
    old = RESULTS / "engines.json"
    scores = {row["engine"]: row for row in json.loads(old.read_text())["rows"]} if old.exists() else {}
    scores[arguments.engine] = {"engine": arguments.engine} | measure(Bank.load(arguments.bank), arguments.engine)
    headings = ["engine", *gcc.WEIGHTINGS, "frames", "difference", "required"]
    rows = []
    for engine in ENGINES:
        if engine not in scores:
            continue
        apart = max(abs(scores[engine][w] - scores["cpu"][w]) for w in gcc.WEIGHTINGS) if "cpu" in scores else np.nan
        verdict = f"within 0.1: {'met' if apart <= 0.1 else 'MISSED'} ({apart:.2f})" if engine == "gpu" else ""
        rows.append(scores[engine] | {"required": verdict, "difference": f"{float(scores[engine]['difference']):.1e}"})
    note = (
        "Acc@10cm in percent of every 20th utterance of paper-test, 30 cells. `difference`: of the frames to the CPU's."
    )
    write("engines", "The benchmark by engine", "python -m benchmarks.engines", headings, rows, [note])


if __name__ == "__main__":
    main()
