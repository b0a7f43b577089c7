"""What a frame costs, method by method, on one thread: alone, and among 64. A table, and a picture beside accuracy.

    python -m benchmarks.runtime

From samples to a delay, for 0.5 m between the microphones: levels, transforms, network, decoding. All methods take
turns, round by round, on the same frames. The accuracy beside it is that of the stored results on all of `paper-test`
(docs/results.md, docs/general.md), within 10 cm.
"""

# ruff: noqa: E402 - threads are counted when NumPy is imported

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import runtime_figure
from benchmarks.timing import interleaved, ratio, write
from qkgcc import gcc
from qkgcc.card import Card
from qkgcc.classical import Classical
from qkgcc.evidence import Method, at_unit_level
from qkgcc.experiments import general, results
from qkgcc.inference import files
from qkgcc.inference.model import SteeredModel
from qkgcc.inference.published import PublishedModel
from qkgcc.methods import PRETRAINED, pretrained
from qkgcc.models import checkpoint, standalone
from qkgcc.neural import Model, Network, TorchModel
from qkgcc.onnx_files import StandaloneModel
from qkgcc.peaks import INTERPOLATIONS

ROOT = Path(__file__).parents[1]
SPACING = 0.5 / 343  # seconds
BATCH = 64
ROUNDS = {1: 60, BATCH: 7}
WARM = 3
"""Frames before one that is measured: by then caches hold what the method needs, not what the one before it did."""
LABELS = {"qkgcc": "QK-GCC", "steered": "steered QK-GCC", "ngcc": "NGCC", "pgcc": "PGCC"}
UNFOLDED = "torch, not folded"
_REFERENCES = {"NGCC": "NGCC, torch", "unfolded QK-GCC": f"QK-GCC, {UNFOLDED}"}


@dataclass(frozen=True)
class Row:
    label: str
    by: str
    """What runs it."""
    stored: str
    """Under which its figures are stored."""
    method: Method

    @property
    def name(self) -> str:
        return f"{self.label}, {self.by}"


def rows(folder: Path) -> list[Row]:
    """Every method by everything that runs it; ONNX files go to `folder`."""
    lag = gcc.lag_range(SPACING, 16000)
    phat = Classical("phat", 16000, 2048, lag, SPACING * 16000, None, gcc.BETA, INTERPOLATIONS[0])
    found = [Row("GCC-PHAT", "NumPy", "gcc-phat", phat)]

    def add(name: str, by: str, model: Model) -> None:
        found.append(Row(LABELS.get(name, name), by, name, Network.of(model).limited(16000, SPACING, None)))

    for name, path in {**{name: pretrained(name) for name in PRETRAINED}, "steered": kept("steered")}.items():
        add(name, "compiled", SteeredModel.load(path, threads=1, compiled=True))
        if name in PRETRAINED:
            add(name, "onnxruntime", exported(path, folder / f"{name}.onnx"))
            add(name, "NumPy", SteeredModel.load(path, threads=1, compiled=False))
    path = kept("qkgcc")
    add("qkgcc", "compiled", PublishedModel.load(path, threads=1, compiled=True))
    add("qkgcc", "onnxruntime", exported(path, folder / "qkgcc.onnx"))
    add("qkgcc", "NumPy", PublishedModel.load(path, threads=1, compiled=False))
    add("qkgcc", "torch", by_torch("qkgcc"))
    whole = by_torch("qkgcc")
    whole.network.folded = False  # type: ignore[assignment]
    add("qkgcc", UNFOLDED, whole)
    for name in ("ngcc", "pgcc"):
        add(name, "torch", by_torch(name))
    return found


def kept(name: str) -> Path:
    return ROOT / "checkpoints" / f"{name}-0.safetensors"


def exported(source: Path, path: Path) -> StandaloneModel:
    standalone.export(*files.read(source), path)
    return StandaloneModel(path, threads=1)


def by_torch(name: str) -> TorchModel:
    """A kept checkpoint; where it is too large to be kept, random weights, which take as long."""
    if kept(name).exists():
        return TorchModel(*checkpoint.load(kept(name)))
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


def talking(count: int) -> Any:
    """Frames with one source, 5 samples earlier at the second microphone, 10 dB above noise of their own."""
    rng = np.random.default_rng(0)
    source = rng.standard_normal((count, 2048 + 5))
    frames = np.stack([source[:, :-5], source[:, 5:]], axis=1) + 0.3 * rng.standard_normal((count, 2, 2048))
    return at_unit_level(frames.astype(np.float32))


def measured(found: list[Row]) -> list[dict[str, str]]:
    """Lines of the table."""
    frames = talking(BATCH)
    seconds: dict[int, dict[str, np.ndarray]] = {}
    for batch, rounds in ROUNDS.items():
        functions = {
            row.name: lambda method=row.method, batch=batch: method.decode(method.evidence(frames[:batch]))
            for row in found
        }
        seconds[batch] = interleaved(functions, rounds, warm=WARM if batch == 1 else 0)
    one, many = seconds[1], seconds[BATCH]
    return [
        {
            "method": row.label,
            "run by": row.by,
            "ms a frame": f"{1000 * np.median(one[row.name]):.3f}",
            f"ms a frame, of {BATCH}": f"{1000 * np.median(many[row.name]) / BATCH:.3f}",
            "times GCC-PHAT": f"{ratio(one[row.name], one[found[0].name]):.1f}",
            **{
                f"{label} / this": f"{ratio(one[reference], one[row.name]):.1f}"
                for label, reference in _REFERENCES.items()
            },
            "within 10 cm": f"{accuracy(row.stored):.1f} %",
        }
        for row in found
    ]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        lines = measured(rows(Path(folder)))
    notes = [
        f"One thread, frames with one source; median of {ROUNDS[1]} single frames and of {ROUNDS[BATCH]} batches. "
        f"Ratios round by round, of single frames. A frame is measured after {WARM} others by the same method, as in a "
        "recording; the first after another method takes up to twice as long. `compiled`: this package's kernel; "
        "`onnxruntime`: what `qkgcc export` writes, frame by frame. QK-GCC is folded except where it says so. "
        "`general` and `general-small` were trained on any room, the others on rooms like those of `paper-test`."
    ]
    write("runtime", "What a frame costs", "python -m benchmarks.runtime", list(lines[0]), lines, notes)
    runtime_figure.main()


if __name__ == "__main__":
    main()
