"""Milliseconds a frame of steered networks as plain ONNX on one thread, spectra and steering included.

    python -m benchmarks.onnx_speed                  designs with random weights: speed does not depend on them
    python -m benchmarks.onnx_speed mine.onnx ...    and these files

One frame at a time, as live use has them. GCC-PHAT of the same frames is measured in the same rounds, for the ratio.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from qkgcc.runtime import OnnxModel

from benchmarks.timing import interleaved, ratio, write
from qkgcc import gcc
from qkgcc.card import Card
from qkgcc.models import cost
from qkgcc.models.export import export
from qkgcc.models.steered import Steered, SteeredOptions

DESIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    "DFT 2048": {"dft": 2048},
    "DFT 2048, 48 channels, 32 maps": {"dft": 2048, "positions": 129, "channels": 48, "maps": 32, "delay_channels": 48},
    "DFT 2048, 64 channels, 32 maps": {"dft": 2048, "positions": 129, "channels": 64, "maps": 32, "delay_channels": 64},
    "small: DFT 2048, width 64, radius 3, 24 channels": {
        "dft": 2048,
        "positions": 65,
        "width": 64,
        "radius": 3,
        "channels": 24,
    },
}
LAGS = {"0.5 m": 24, "2 m": 95}
ROUNDS = 40


def exported(options: dict[str, Any], folder: Path) -> Path:
    torch.manual_seed(0)
    model = Steered(SteeredOptions(**options)).eval()
    o = model.options
    card = Card(
        name="random",
        architecture="steered",
        options=dataclasses.asdict(o),
        sample_rate=16000,
        frame=o.frame,
        dft=o.dft,
        delays=o.delays,
        scaling="frame",
    )
    export(model, card, folder / "random.onnx")
    return folder / "random.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    frames = np.random.default_rng(0).standard_normal((1, 2, 2048)).astype(np.float32)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = [(name, lambda options=options: exported(options, Path(folder))) for name, options in DESIGNS.items()]
        given = [(path.name, lambda path=path: path) for path in arguments.file]
        for name, find in [*made, *given]:
            network = OnnxModel(find(), threads=1)
            options = dataclasses.replace(SteeredOptions.read(network.card.options), max_delay=LAGS["0.5 m"])
            model = Steered(options).eval()
            model.folded = True
            functions: dict[str, Callable[[], object]] = {
                spacing: lambda network=network, lags=lags: network.logits(frames, None, np.arange(-lags, lags + 1.0))
                for spacing, lags in LAGS.items()
            }
            functions["gcc-phat"] = lambda: gcc.delays(frames, "phat", max_lag=23)
            seconds = interleaved(functions, ROUNDS)
            rows.append(
                {
                    "network": name,
                    "parameters": cost.parameters(model),
                    "MMAC, 0.5 m": f"{cost.honest_flops(model) / 2e6:.1f}",
                    **{f"ms, {spacing}": f"{1000 * np.median(seconds[spacing]):.2f}" for spacing in LAGS},
                    "times GCC-PHAT": f"{ratio(seconds['0.5 m'], seconds['gcc-phat']):.1f}",
                }
            )
    notes = ["Median of 40 frames; delays up to what the spacing allows. Random weights but for named files."]
    write("onnx_speed", "Steered networks as ONNX", "python -m benchmarks.onnx_speed", list(rows[0]), rows, notes)


if __name__ == "__main__":
    main()
