"""What a frame costs, method by method, on one thread: alone, and among 64. A table, and a picture beside accuracy.

    python -m benchmarks.runtime

From samples to a delay, for 0.5 m between the microphones: levels, transforms, network, decoding. All methods take
turns, round by round, on the same frames. What they cost is compared with a textbook's GCC-PHAT. The accuracy beside it
is not measured here: it is that of the stored results on all of `paper-test` (docs/reports), within 10 cm. A
second table has what was asked, and what was aimed at: start, memory and download are measured in the same run
(`benchmarks.footprint`, whose own table is written, too).
"""

# ruff: noqa: E402 - threads are counted when NumPy is imported

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import asked, footprint, plain_phat, runtime_figure
from benchmarks.standalone_speed import session
from benchmarks.timing import WARM, interleaved, machine, ratio, write
from qkgcc.core.types import Floats, Floats32
from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import INTERPOLATIONS
from qkgcc.lab.study import general, results
from qkgcc.nets import checkpoint
from qkgcc.network import files, onnx_export
from qkgcc.network.card import Card
from qkgcc.network.published import PublishedModel
from qkgcc.network.registry import ARRAY_DEFAULT, PRETRAINED, pretrained
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs.classical import Classical
from qkgcc.pairs.evidence import Method, prepare_frames
from qkgcc.pairs.neural import Model, Network, TorchModel

ROOT = Path(__file__).parents[1]
SPACING = 0.5 / 343  # seconds
BATCH = 64
ROUNDS = {1: 60, BATCH: 7}
PGCC = "PGCC, timed with random weights"
LABELS = {"qkgcc": "QK-GCC", "steered": "steered QK-GCC", "ngcc": "NGCC", "pgcc": PGCC}
UNFOLDED = "torch, not folded"
TIMES, OF_MANY, RIGHT = f"times {plain_phat.NAME}", f"ms a frame, of {BATCH}", "within 10 cm, %"
ACCURACY = (
    f"`{RIGHT}` is not measured in this run: it is stored, of all 97,200 frames of `paper-test`, `phat` and the "
    "`general` networks in results/general.json, the others in results/table1.json, where it is the mean over seeds if "
    "there are several (the first is timed). Rows of one method are one network run in several ways, and have one "
    "accuracy: by onnxruntime, NumPy and torch the logits are the same but for rounding (tests/test_inference.py, "
    "tests/test_onnx_export.py)."
)
"""What the column of accuracies is."""
_REFERENCES = {"NGCC": "NGCC, torch", "unfolded QK-GCC": f"QK-GCC, {UNFOLDED}"}


@dataclass(frozen=True)
class Row:
    label: str
    by: str
    """What runs it."""
    stored: str
    """Under which its figures are stored."""
    run: Callable[[Floats32], object]
    """From frames to delays."""

    @property
    def name(self) -> str:
        return f"{self.label}, {self.by}"


def rows(folder: Path) -> list[Row]:
    """Every method by everything that runs it; ONNX files go to `folder`."""
    lag = gcc.lag_range(SPACING, 16000)
    phat = Classical("phat", 16000, 2048, lag, SPACING * 16000, None, gcc.BETA, INTERPOLATIONS[0])
    found = [
        Row(plain_phat.NAME, "NumPy", "gcc-phat", partial(plain_phat.delays, max_lag=lag)),
        Row("phat", "NumPy", "phat", partial(answer, phat)),
    ]

    def add(name: str, by: str, model: Model) -> None:
        network = Network.of(model).limited(16000, SPACING, None)
        found.append(Row(LABELS.get(name, name), by, name, partial(answer, network)))

    for name, path in {**{name: pretrained(name) for name in PRETRAINED}, "steered": kept("steered")}.items():
        add(name, "compiled", SteeredModel.load(path, threads=1, compiled=True))
        if name in PRETRAINED:
            add(name, "onnxruntime", Exported(path, folder / f"{name}.onnx"))
            add(name, "NumPy", SteeredModel.load(path, threads=1, compiled=False))
    path = kept("qkgcc")
    add("qkgcc", "compiled", PublishedModel.load(path, threads=1, compiled=True))
    add("qkgcc", "onnxruntime", Exported(path, folder / "qkgcc.onnx"))
    add("qkgcc", "NumPy", PublishedModel.load(path, threads=1, compiled=False))
    add("qkgcc", "torch", by_torch("qkgcc"))
    whole = by_torch("qkgcc")
    whole.network.folded = False  # type: ignore[assignment]
    add("qkgcc", UNFOLDED, whole)
    for name in ("ngcc", "pgcc"):
        add(name, "torch", by_torch(name))
    return found


def answer(method: Method, frames: Floats32) -> object:
    return method.decode(method.evidence(prepare_frames(method, frames)[0]))


def kept(name: str) -> Path:
    return ROOT / "checkpoints" / f"{name}-0.safetensors"


class Exported:
    """A network as `qkgcc export` writes it, run by onnxruntime, frame by frame on one thread."""

    any_frame = False
    step = 1.0  # of all networks timed here

    def __init__(self, source: Path, path: Path) -> None:
        self.card, weights = files.read(source)
        onnx_export.export(self.card, weights, path)
        self._session = session(path)
        self.any_delay = any(one.name == "delays" for one in self._session.get_inputs())

    def logits(self, frames: Any, bins: None, delays: Floats) -> Floats32:
        given = {"delays": (delays / self.card.sample_rate).astype(np.float32)} if self.any_delay else {}
        found = [self._session.run(["logits"], given | {"frames": frame[None]})[0] for frame in frames]
        logits = np.concatenate(found)
        return logits if self.any_delay else logits[:, np.isin(self.card.delays, delays)]

    def reliability(self, frames: Any, bins: None) -> Floats32:
        raise NotImplementedError("exported networks have logits only")


def by_torch(name: str) -> TorchModel:
    """A kept checkpoint; where it is too large to be kept, random weights, which take as long."""
    if kept(name).exists():
        return TorchModel(*checkpoint.load(kept(name)))
    model: Any = checkpoint.build(name, {})
    o = model.options
    sizes = {"sample_rate": 16000, "frame": o.frame, "dft": o.dft, "delays": o.delays}
    return TorchModel(model, Card(name=name, architecture=name, options=vars(o), scaling="utterance", **sizes))


def accuracy(name: str) -> float:
    """Percent of `paper-test` within 10 cm, as stored; `ACCURACY` says of what."""
    if name in PRETRAINED or name == "phat":
        return general.accuracy(general.read(ROOT / "results"), name, "paper-test", "right10cm")
    row = results.find(results.read_rows(ROOT / "results", "table1"), "paper-test", name)
    return float(row["mean"]["acc10cm"])


def talking(count: int) -> Any:
    """Frames with one source, 5 samples earlier at the second microphone, 10 dB above noise of their own."""
    rng = np.random.default_rng(0)
    source = rng.standard_normal((count, 2048 + 5))
    frames = np.stack([source[:, :-5], source[:, 5:]], axis=1) + 0.3 * rng.standard_normal((count, 2, 2048))
    return (0.05 * frames).astype(np.float32)


def measured(found: list[Row]) -> list[dict[str, Any]]:
    """Lines of the table."""
    frames = talking(BATCH)
    seconds: dict[int, dict[str, np.ndarray]] = {}
    for batch, rounds in ROUNDS.items():
        functions = {row.name: partial(row.run, frames[:batch]) for row in found}
        seconds[batch] = interleaved(functions, rounds, warm=WARM if batch == 1 else 0)
    one, many = seconds[1], seconds[BATCH]
    return [
        {
            "method": row.label,
            "run by": row.by,
            "ms a frame": 1000 * float(np.median(one[row.name])),
            OF_MANY: 1000 * float(np.median(many[row.name])) / BATCH,
            TIMES: ratio(one[row.name], one[found[0].name]),
            **{f"{label} / this": ratio(one[reference], one[row.name]) for label, reference in _REFERENCES.items()},
            RIGHT: accuracy(row.stored),
        }
        for row in found
    ]


def required(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was asked of the networks, compiled and as ONNX files, and what became of it."""
    by = {line["method"]: line for line in lines if line["run by"] == "compiled"}
    general, small, published = by["general"], by["general-small"], by["QK-GCC"]
    plain = {line["method"]: line for line in lines if line["run by"] == "onnxruntime"}
    return [
        asked.line("general, one frame", "ms", general["ms a frame"], 1.5, 0.6),
        asked.line("NGCC / general, one frame", "times", general["NGCC / this"], 30.0, None, least=True),
        asked.line("general-small, one frame", "ms", small["ms a frame"], 0.5, 0.25),
        asked.line(f"general, a frame of {BATCH}", "ms", general[OF_MANY], 0.45, 0.25),
        asked.line(
            f"{ARRAY_DEFAULT}, which arrays take, a frame of {BATCH}", "ms", by[ARRAY_DEFAULT][OF_MANY], 0.45, 0.25
        ),
        asked.line("general as ONNX, one frame", "ms", plain["general"]["ms a frame"], 2.5, None),
        asked.line("general-small as ONNX, one frame", "ms", plain["general-small"]["ms a frame"], 0.8, None),
        asked.line(
            "unfolded QK-GCC in torch / folded, one frame",
            "times",
            published["unfolded QK-GCC / this"],
            3.0,
            6.0,
            least=True,
        ),
    ]


def folding_in_torch(lines: list[dict[str, Any]]) -> str:
    """What folding does for QK-GCC where torch runs it."""
    folded, whole = (
        next(line for line in lines if (line["method"], line["run by"]) == ("QK-GCC", by)) for by in ("torch", UNFOLDED)
    )

    single, of_many = (folded[column] / whole[column] for column in ("ms a frame", OF_MANY))
    return (
        f"In torch, folded QK-GCC takes {single:.2f} times as long as the unfolded one on a single frame, and "
        f"{of_many:.2f} times as long on one of {BATCH}."
    )


def main() -> None:
    torch.set_num_threads(1)
    here = machine()
    package = footprint.measured()
    with tempfile.TemporaryDirectory() as folder:
        lines = measured(rows(Path(folder)))
    notes = [
        f"One thread, frames with one source; median of {ROUNDS[1]} single frames and of {ROUNDS[BATCH]} batches. "
        f"Ratios round by round, of single frames. A frame is measured after {WARM} others by the same method, as in a "
        "recording; the first after another method takes up to twice as long. `compiled`: this package's kernel; "
        "`onnxruntime`: what `qkgcc export` writes, frame by frame. QK-GCC is folded except where it says so. "
        "The `general` networks were trained on any room, the others on rooms like those of `paper-test`. "
        "Start, memory and download: footprint.md, of the same run.",
        "",
        ACCURACY,
        "",
        f"{plain_phat.MEANS}. `phat` is this package's: it takes out the mean, tapers the frame, keeps empty bins from "
        "counting, reads the peak between the samples (band-limited interpolation), and has a confidence, for which "
        "coherence is averaged over 13 windows of the frame: 26 FFTs of 1024 more.",
        "",
        folding_in_torch(lines),
        "",
        f"`{PGCC}`: its weights are too large to be kept here. Time does not depend on them; the accuracy beside it is "
        "the stored one of the networks that were trained (docs/reports/results.md).",
    ]
    three = dict.fromkeys(("ms a frame", OF_MANY), ".3f")
    one = dict.fromkeys((TIMES, RIGHT, *(f"{label} / this" for label in _REFERENCES)), ".1f")
    command = "python -m benchmarks.runtime"
    formats = three | one
    figures = [*required(lines), *package.asked]
    title = "What a frame costs"
    write("runtime", title, command, list(lines[0]), lines, notes, formats=formats, asked=figures, here=here)
    footprint.write_table(package, here)
    runtime_figure.main()


if __name__ == "__main__":
    main()
