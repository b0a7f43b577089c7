"""What a frame costs, method by method, on one thread: alone, and among 64.

    python -m benchmarks.runtime

From samples to a delay, for 0.5 m between the microphones: levels, transforms, network, decoding. All methods take
turns, round by round, on the same frames. The accuracy beside it is that of the stored results on `paper-test`
(docs/results.md, docs/general.md), within 10 cm.
"""

# ruff: noqa: E402 - threads are counted when NumPy is imported

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import interleaved, ratio, write
from qkgcc import gcc
from qkgcc.card import Card
from qkgcc.classical import Classical
from qkgcc.evidence import Method, at_unit_level
from qkgcc.experiments import general, results
from qkgcc.inference.model import SteeredModel
from qkgcc.methods import PRETRAINED, pretrained
from qkgcc.models import checkpoint
from qkgcc.neural import Network, TorchModel
from qkgcc.peaks import INTERPOLATIONS

ROOT = Path(__file__).parents[1]
SPACING = 0.5 / 343  # seconds
BATCH = 64
ROUNDS = {1: 60, BATCH: 7}


def networks() -> dict[str, tuple[str, Network]]:
    """Name -> under which its figures are stored, and the network."""
    found: dict[str, tuple[str, Network]] = {}
    for name in PRETRAINED:
        for kind, compiled in (("compiled", True), ("NumPy", False)):
            model = SteeredModel.load(pretrained(name), threads=1, compiled=compiled)
            found[f"{name}, {kind}"] = name, Network.of(model)
    for name in ("qkgcc", "ngcc", "pgcc"):
        found[f"{name}, torch"] = name, Network.of(by_torch(name))
    whole = by_torch("qkgcc")
    whole.network.folded = False  # type: ignore[assignment]
    found["qkgcc, torch, not folded"] = "qkgcc", Network.of(whole)
    return found


def by_torch(name: str) -> TorchModel:
    """A kept checkpoint; where it is too large to be kept, random weights, which take as long."""
    path = ROOT / "checkpoints" / f"{name}-0.safetensors"
    if path.exists():
        return TorchModel(*checkpoint.load(path))
    model: Any = checkpoint.build(name, {})
    o = model.options
    sizes = {"sample_rate": 16000, "frame": o.frame, "dft": o.dft, "delays": o.delays}
    return TorchModel(model, Card(name=name, architecture=name, options=vars(o), scaling="utterance", **sizes))


def accuracy(name: str) -> float:
    """Percent of `paper-test` within 10 cm."""
    if name in PRETRAINED:
        return general.accuracy(
            results.read(ROOT / "results" / "general.json")["rows"], name, "paper-test", "right10cm"
        )
    row = results.find(results.read(ROOT / "results" / "table1.json"), "paper-test", name)
    return float(row["mean"]["acc10cm"])


def main() -> None:
    torch.set_num_threads(1)
    frames = at_unit_level(np.random.default_rng(0).standard_normal((BATCH, 2, 2048)).astype(np.float32))
    lag = gcc.lag_range(SPACING, 16000)
    phat = Classical("phat", 16000, 2048, lag, SPACING * 16000, None, gcc.BETA, INTERPOLATIONS[0])
    methods: dict[str, tuple[str, Method]] = {"GCC-PHAT": ("gcc-phat", phat)}
    for name, (stored, network) in networks().items():
        methods[name] = stored, network.limited(16000, SPACING, None)
    seconds: dict[int, dict[str, Any]] = {}
    for batch, rounds in ROUNDS.items():
        functions = {
            name: lambda method=method, batch=batch: method.decode(method.evidence(frames[:batch]))
            for name, (_, method) in methods.items()
        }
        seconds[batch] = interleaved(functions, rounds)
    rows = [
        {
            "method": name,
            "ms a frame": f"{1000 * np.median(seconds[1][name]):.3f}",
            f"ms a frame, of {BATCH}": f"{1000 * np.median(seconds[BATCH][name]) / BATCH:.3f}",
            "times GCC-PHAT": f"{ratio(seconds[1][name], seconds[1]['GCC-PHAT']):.1f}",
            "times general": f"{ratio(seconds[1][name], seconds[1]['general, compiled']):.2f}",
            "within 10 cm": f"{accuracy(stored):.1f} %",
        }
        for name, (stored, _) in methods.items()
    ]
    notes = [
        f"One thread; median of {ROUNDS[1]} single frames and of {ROUNDS[BATCH]} batches. Ratios round by round, of "
        "single frames."
    ]
    write("runtime", "What a frame costs", "python -m benchmarks.runtime", list(rows[0]), rows, notes)


if __name__ == "__main__":
    main()
