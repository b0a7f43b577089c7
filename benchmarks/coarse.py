"""What the decoders `balanced` and `coarse` give and cost, and how much the exact delay is to count in them.

    python -m benchmarks.coarse --bank banks/test-clean --bank banks/dev-clean --bank banks/music --bank banks/noise

On recordings of validation voices that no training has seen (`qkgcc.lab.study.unseen`), not on a test set.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import write
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.delay import metrics
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.study.framesets import RATE, FrameSet
from qkgcc.lab.study.general import WIDE
from qkgcc.lab.study.unseen import unseen_recordings
from qkgcc.network.registry import DEFAULT, pretrained
from qkgcc.pairs import decoding
from qkgcc.pairs.confidence import TOLERANCE
from qkgcc.pairs.evidence import prepared
from qkgcc.pairs.neural import SLACK, Network

REACHES = (0.5, 1.0, 1.5)
COUNTS = (0.0, 0.03, 0.1, 0.2, 0.3, 0.5, 1.0)


def rows(given: FrameSet) -> list[dict[str, Any]]:
    """`quadratic`, and `decoding.likely_right` with everything that is tried."""
    tried = [None, *((reach, count) for count in COUNTS for reach in REACHES)]
    answers = np.full((len(tried), len(given)), np.nan)
    network = Network.load(pretrained(DEFAULT))
    for limit in np.unique(given.limits):
        here = np.flatnonzero(given.limits == limit)
        method = network.limited(RATE, float(limit) / RATE, None)
        frames, _ = prepared(method, given.frames[here].astype(np.float64))
        curve = method.decode(method.evidence(frames)).curve
        for exact, answer in zip(tried, answers, strict=True):
            way = (
                decoding.quadratic if exact is None else partial(decoding.likely_right, exact=exact[0], counts=exact[1])
            )
            answer[here] = np.clip(way(curve, method.lags), -method.limit - SLACK, method.limit + SLACK)
    taken = {(decoding.EXACT, count): name for name, count in decoding.EXACT_COUNTS.items()}
    wide = given.limits >= WIDE * RATE / SPEED_OF_SOUND
    return [
        {
            "decoder": "quadratic" if exact is None else taken.get(exact, ""),
            "exact within": "" if exact is None else f"{exact[0]:g} samples",
            "counts": "" if exact is None else f"{exact[1]:g}",
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
    write("coarse", "What balanced and coarse give and cost", command, list(table[0]), table, notes)


if __name__ == "__main__":
    main()
