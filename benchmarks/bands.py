"""Narrow bands: how many delays are right from a part of the sound.

    python -m benchmarks.bands --bank banks/dev-clean

Talkers in rooms of the law `PLAIN`, two microphones 0.15 to 1 m apart, voices of dev-clean: no test set.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.timing import Rows, write
from qkgcc import DelayEstimator
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.general import PLAIN, general_scene
from qkgcc.lab.scenes.render import Rendered, render
from qkgcc.lab.scenes.scenes import Scene
from qkgcc.lab.scenes.signals import Catalog, lookup
from qkgcc.pairs.confidence import TOLERANCE

RATE, SECONDS, SEED = 16000, 3.0, 20
METHODS = ("general", "phat")
WIDTHS = (63, 125, 250, 500, 1000, 2000)
CENTRES = (600, 1500, 3000, 5500)
"""Hz."""

Recorded = list[tuple[Scene, Rendered]]


def recorded(bank: Bank, count: int) -> Recorded:
    """Recordings of one talker each."""
    catalog, signals = Catalog.from_banks([bank], "train"), lookup([bank], SECONDS)
    scenes = [general_scene(SEED, number, catalog, law=PLAIN) for number in range(count)]
    return [(scene, render(scene, signals, SECONDS)) for scene in scenes]


def right(method: str, band: tuple[float, float] | None, given: Recorded) -> dict[str, float]:
    """Shares of frames and of whole recordings whose delay is right, and the mean confidence of frames."""
    correct: list[np.ndarray] = []
    confidence: list[np.ndarray] = []
    whole = []
    for scene, made in given:
        spacing = float(np.linalg.norm(np.subtract(*scene.microphones)))
        answer = DelayEstimator(method, spacing=spacing, band=band)(made.audio, RATE, curve=False)
        heard = np.isfinite(answer.delay_samples)
        truth = made.delays[0, np.round(answer.times * RATE).astype(int)]
        correct.append((np.abs(answer.delay_samples - truth) <= TOLERANCE * RATE)[heard])
        confidence.append(answer.confidence[heard])
        whole.append(abs(answer.summary.delay_samples - np.median(truth)) <= TOLERANCE * RATE)
    return {
        "frames": float(np.concatenate(correct).mean()),
        "confidence": float(np.concatenate(confidence).mean()),
        "whole": float(np.mean(whole)),
    }


def chance(given: Recorded) -> float:
    """The share that is right of delays that are anywhere between those that the spacing allows."""
    limits = np.array([np.linalg.norm(np.subtract(*scene.microphones)) for scene, _ in given]) / 343.0
    return float(np.minimum(1.0, TOLERANCE / limits).mean())


def table(given: Recorded, methods: Sequence[str]) -> Rows:
    rows: Rows = []
    for method in methods:
        rows.append({"method": method, "band in Hz": "all", "width": 8000, **right(method, None, given)})
        for centre in CENTRES:
            for width in WIDTHS:
                low, high = centre - width / 2, centre + width / 2
                if low > 0:
                    try:
                        found = right(method, (low, high), given)
                    except ValueError:  # networks refuse less than `NARROWEST`
                        continue
                    rows.append({"method": method, "band in Hz": f"{low:g} to {high:g}", "width": width, **found})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True, help="of dev-clean")
    parser.add_argument("--count", type=int, default=30, help="recordings")
    arguments = parser.parse_args()
    given = recorded(Bank.load(arguments.bank), arguments.count)
    write(
        "bands",
        "Delays from a part of the sound",
        "python -m benchmarks.bands --bank banks/dev-clean",
        ["method", "band in Hz", "width", "frames", "confidence", "whole"],
        table(given, METHODS),
        [
            f"Shares of the frames, and of the whole recordings, whose delay is right to 62.5 microseconds, of "
            f"{len(given)} recordings of {SECONDS:g} s. By chance {chance(given):.2f} of the frames are. Confidence is "
            "the mean of the frames'."
        ],
        formats={"width": "d"},
    )


if __name__ == "__main__":
    main()
