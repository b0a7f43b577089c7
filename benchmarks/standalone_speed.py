"""The pretrained networks by this package and from ONNX files, and ways to have a Fourier transform in such a file.

    python -m benchmarks.standalone_speed

One thread. Writes two tables: the networks, with a textbook's GCC-PHAT of the same frames (also in docs/guide/onnx.md),
and transforms alone.
"""

import tempfile
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from benchmarks import plain_phat
from benchmarks.timing import RESULTS, WARM, interleaved, into_document, lines_of_table, ratio, write
from qkgcc.network import files, onnx_export
from qkgcc.network.onnx_graph import OPSET, Graph, save, value
from qkgcc.network.registry import PRETRAINED, pretrained
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs.evidence import prepare_frames
from qkgcc.pairs.neural import Network

COMMAND = "python -m benchmarks.standalone_speed"
PACKAGE = "this package"
LAGS = {"0.5 m": 24, "2 m": 96}
BATCHES = {1: 200, 16: 30, 64: 15}
"""Frames at once, and rounds."""
TRANSFORMS = {"7 windows of 512": (2048, 512, 512), "2048, zeros to 4096": (2048, 0, 4096)}
"""Samples of a frame, of a window, of the transform."""
FORMATS = {"kB": ".0f", "largest error": ".1e"} | {f"ms a frame, {batch} at once": ".3f" for batch in BATCHES}

Function = Callable[[], object]


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def measured(functions: dict[str, dict[int, Function]], against: str) -> dict[str, dict[str, float]]:
    """Columns of each name: a frame's share of the median time, and of the first batch its ratio to `against`."""
    found: dict[str, dict[str, float]] = {name: {} for name in functions}
    for batch, rounds in BATCHES.items():
        by_name = {name: by_batch[batch] for name, by_batch in functions.items()}
        seconds = interleaved(by_name, rounds, warm=WARM if batch == 1 else 0)
        for name, times in seconds.items():
            found[name][f"ms a frame, {batch} at once"] = 1000 * float(np.median(times)) / batch
            if batch == 1:
                found[name][f"times {against}"] = ratio(times, seconds[against])
    return found


def noise(batch: int) -> Any:
    return np.random.default_rng(0).standard_normal((batch, 2, 2048)).astype(np.float32)


def logits(model: SteeredModel, frames: Any, delays: Any) -> object:
    """With what an ONNX file does first."""
    frames, _ = prepare_frames(Network.of(model), frames)
    return model.logits(frames, None, delays)


def networks(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for name in PRETRAINED:
        own = SteeredModel.load(pretrained(name), threads=1, compiled=True)
        card, arrays = files.read(pretrained(name))
        for spacing, most in LAGS.items():
            delays = np.arange(-most, most + 1.0)
            seconds = (delays / card.sample_rate).astype(np.float32)
            paths = {"ONNX": folder / "free.onnx", "ONNX, frozen delays": folder / "frozen.onnx"}
            for path, frozen in zip(paths.values(), (None, delays.tolist()), strict=True):
                onnx_export.export(card, arrays, path, frozen)
            opened = {way: session(path) for way, path in paths.items()}
            functions: dict[str, dict[int, Function]] = {way: {} for way in (PACKAGE, *paths, plain_phat.NAME)}
            for batch in BATCHES:
                frames = noise(batch)
                functions[PACKAGE][batch] = partial(logits, own, frames, delays)
                functions[plain_phat.NAME][batch] = partial(plain_phat.delays, frames, most)
                for way, one in opened.items():
                    given = {"frames": frames} | ({} if "frozen" in way else {"delays": seconds})
                    functions[way][batch] = partial(one.run, None, given)
            stored = {PACKAGE: pretrained(name), **paths}
            for way, times in measured(functions, PACKAGE).items():
                size = stored[way].stat().st_size / 1000 if way in stored else None
                rows.append({"network": name, "by": way, "delays of": spacing, "kB": size, **times})
    return rows


def in_products(length: int, dft: int, windows: int, path: Path) -> None:
    build = Graph()
    onnx_export.transform(build, "x", length, dft, output="y")
    _save(build, length, dft, windows, path)


def as_operator(length: int, dft: int, windows: int, path: Path) -> None:
    build = Graph()
    column = build.add("Unsqueeze", "x", [4])
    spectra = build.add("DFT", column, np.array(dft), np.array(3), onesided=1)
    build.add("Transpose", spectra, output="y", perm=[0, 1, 2, 4, 3])
    _save(build, length, dft, windows, path)


def in_one_matrix(length: int, dft: int, windows: int, path: Path) -> None:
    build, bins = Graph(), dft // 2 + 1
    angle = 2 * np.pi * np.outer(np.arange(length), np.arange(bins)) / dft
    spectra = build.add("MatMul", "x", np.concatenate([np.cos(angle), -np.sin(angle)], axis=1))
    build.add("Reshape", spectra, [0, 0, 2, 2, bins], output="y")
    _save(build, length, dft, windows, path)


def _save(build: Graph, length: int, dft: int, windows: int, path: Path) -> None:
    x, y = value("x", ["batch", windows, 2, length]), value("y", ["batch", windows, 2, 2, dft // 2 + 1])
    save(build.to_proto("transform", [x], [y]), {}, path)


WAYS = {"two small products": in_products, "the operator DFT": as_operator, "one product with a matrix": in_one_matrix}


def transforms(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for what, (frame, window, dft) in TRANSFORMS.items():
        windows = 2 * frame // window - 1 if window else 1
        given = {
            batch: np.random.default_rng(0).standard_normal((batch, windows, 2, window or frame)).astype(np.float32)
            for batch in BATCHES
        }
        exact = np.fft.rfft(given[1].astype(np.float64), n=dft)
        exact = np.stack([exact.real, exact.imag], axis=3)
        functions: dict[str, dict[int, Function]] = {}
        sizes, errors = {}, {}
        for way, make in WAYS.items():
            path = folder / "transform.onnx"
            make(window or frame, dft, windows, path)
            opened = session(path)
            sizes[way] = path.stat().st_size / 1000
            (found,) = opened.run(None, {"x": given[1]})
            errors[way] = float(np.abs(found - exact).max() / np.sqrt(np.mean(exact**2)))
            functions[way] = {batch: partial(opened.run, None, {"x": x}) for batch, x in given.items()}
        for way, times in measured(functions, "two small products").items():
            row = {"of both channels": what, "as": way, "kB": sizes[way], "largest error": errors[way]}
            rows.append(row | times)
    return rows


def conclusion_of_transforms(rows: list[dict[str, Any]]) -> str:
    """The table of transforms in a sentence: both lengths, a frame at once (round by round) and more (medians)."""
    products, operator = (
        [row for row in rows if row["as"] == way] for way in ("two small products", "the operator DFT")
    )
    columns = ["times two small products", *(f"ms a frame, {batch} at once" for batch in BATCHES if batch > 1)]
    times = [two[name] / one[name] for one, two in zip(products, operator, strict=True) for name in columns]
    said = (
        f"The operator DFT would be the plainest. On a CPU it takes {min(times):.1f} to {max(times):.1f} times as long "
        "as two products with small matrices and a turn in between (512 = 16 x 32), which is also nearer to the exact "
        "spectrum"
    )
    link = "([standalone_transform.md](../../benchmarks/results/standalone_transform.md))."
    return "\n".join([*textwrap.wrap(said, 120), link])


def conclusion(rows: list[dict[str, Any]]) -> str:
    """The table in a sentence or two."""

    def span(way: str) -> str:
        values = [float(row[f"times {PACKAGE}"]) for row in rows if row["by"] == way]
        return f"{min(values):.1f} to {max(values):.1f} times"

    free = [row for row in rows if row["by"] == "ONNX"]
    few, many = (np.array([float(row[f"ms a frame, {batch} at once"]) for row in free]) for batch in (16, 64))
    compared = (
        "slower than" if (many > few).all() else "faster than" if (many < few).all() else "now faster, now slower than"
    )
    said = (
        f"One frame at a time, onnxruntime takes {span('ONNX')} as long as the package's kernel; with frozen delays, "
        f"for which steering is computed already, {span('ONNX, frozen delays')}. A frame of 64 at once is {compared} "
        "one of 16 there. Absolute times are of a shared machine; ratios were taken round by round."
    )
    return "\n".join(textwrap.wrap(said, 120))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = networks(Path(folder))
        notes = [
            "Medians, one thread; ratios round by round, one frame at once, which is measured after",
            f"{WARM} others of its row, as in runtime.md. `this package`: the compiled kernel, 16 frames at once at",
            "most; `ONNX`: what `qkgcc export` writes, by onnxruntime; `frozen delays`: the steering matrix is in the",
            "file, too. From frames to logits; runtime.md counts the decoding, too.",
            f"{plain_phat.MEANS} (as there), of the same frames.",
        ]
        title = "The pretrained networks: by this package, and as ONNX"
        write("standalone_speed", title, COMMAND, list(rows[0]), rows, notes, formats=FORMATS)
        said = f"{lines_of_table((RESULTS / 'standalone_speed.md').read_text())}\n{conclusion(rows)}"
        into_document("speed", said, "guide/onnx.md")
        rows = transforms(Path(folder))
        notes = [f"Medians, one thread, opset {OPSET}. The error is relative to the spectrum's RMS."]
        title = "Fourier transforms in ONNX"
        write("standalone_transform", title, COMMAND, list(rows[0]), rows, notes, formats=FORMATS)
        into_document("transform", conclusion_of_transforms(rows), "guide/onnx.md")


if __name__ == "__main__":
    main()
