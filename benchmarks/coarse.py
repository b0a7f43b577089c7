"""What the decoder `coarse` gives and costs, and how much the exact delay is to count in it.

    python -m benchmarks.coarse --bank banks/test-clean --bank banks/dev-clean --bank banks/music --bank banks/noise

On recordings of validation voices that no training has seen (`qkgcc.experiments.unseen`), not on a test set.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import write
from qkgcc import decoding, metrics
from qkgcc.confidence import TOLERANCE
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.data.banks import Bank
from qkgcc.evidence import at_unit_level
from qkgcc.experiments.framesets import RATE, FrameSet
from qkgcc.experiments.general import WIDE
from qkgcc.experiments.unseen import unseen_recordings
from qkgcc.methods import WEIGHTS
from qkgcc.neural import Network

REACHES = (0.5, 1.0, 1.5)
COUNTS = (0.0, 0.03, 0.1, 0.2, 0.5)


def rows(given: FrameSet) -> list[dict[str, Any]]:
    """`quadratic`, and `coarse` with every `decoding.EXACT` that is tried."""
    tried = [None, *((reach, count) for count in COUNTS for reach in REACHES)]
    answers = np.full((len(tried), len(given)), np.nan)
    network, kept = Network.load(WEIGHTS / "general.safetensors"), decoding.EXACT
    for limit in np.unique(given.limits):
        here = np.flatnonzero(given.limits == limit)
        method = network.limited(RATE, float(limit) / RATE, None)
        frames = at_unit_level(given.frames[here].astype(np.float64)).astype(np.float32)
        curve = method.decode(method.evidence(frames)).curve
        for exact, answer in zip(tried, answers, strict=True):
            decoding.EXACT = exact or kept
            decode = decoding.quadratic if exact is None else decoding.coarse
            answer[here] = np.clip(decode(curve, method.lags), -method.limit, method.limit)
    decoding.EXACT = kept
    wide = given.limits >= WIDE * RATE / SPEED_OF_SOUND
    return [
        {
            "decoder": "quadratic" if exact is None else "coarse",
            "exact within": "" if exact is None else f"{exact[0]:g} samples",
            "counts": "" if exact is None else f"{exact[1]:g}" + (" (taken)" if exact == kept else ""),
            "62.5 us": f"{100 * np.mean(np.abs(answer - given.delays) <= TOLERANCE * RATE + 1e-6):.2f} %",
            "10 cm, from 0.2 m": f"{100 * metrics.hits(answer, given.delays)[wide].mean():.2f} %",
        }
        for exact, answer in zip(tried, answers, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, action="append", required=True)
    parser.add_argument("--scenes", type=int, default=1000)
    arguments = parser.parse_args()
    made = unseen_recordings([Bank.load(bank) for bank in arguments.bank], arguments.scenes)
    given = made.take(np.flatnonzero(np.isfinite(made.delays)))
    table = rows(given)
    command = " ".join(["python -m benchmarks.coarse", *(f"--bank banks/{bank.name}" for bank in arguments.bank)])
    notes = [f"`general` on {len(given)} frames of {arguments.scenes} recordings of validation voices."]
    write("coarse", "What coarse gives and costs", command, list(table[0]), table, notes)


if __name__ == "__main__":
    main()
