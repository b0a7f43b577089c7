"""An exported network, frames of the bundled recording, and their logits by this package's own kernel, for `check.mjs`.

python tools/onnx_web/frames.py FOLDER --network general
"""

import argparse
import json
from pathlib import Path

import numpy as np
import soundfile

from qkgcc import samples
from qkgcc.network import files, onnx_export
from qkgcc.network.registry import PRETRAINED, pretrained
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs.frontend import at_unit_level

FRAMES = 16


def write(folder: Path, network: str) -> None:
    """`check.mjs` says what is in the folder."""
    card, weights = files.read(pretrained(network))
    onnx_export.export(card, weights, folder / "model.onnx")
    sound, _ = soundfile.read(samples.path("talkers-2ch"), dtype="float32")
    frames = np.stack([sound[i * card.frame : (i + 1) * card.frame, :2].T for i in range(FRAMES)])
    delays = np.arange(-24, 25.0)
    logits = SteeredModel.load(pretrained(network), threads=1).logits(at_unit_level(frames), None, delays)
    arrays = {"frames": frames, "delays": delays / card.sample_rate, "logits": logits}
    for name, array in arrays.items():
        np.ascontiguousarray(array, dtype="<f4").tofile(folder / f"{name}.f32")
    shapes = {name: array.shape for name, array in arrays.items()}
    (folder / "expected.json").write_text(json.dumps(shapes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--network", choices=list(PRETRAINED), default="general")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    write(given.folder, given.network)


if __name__ == "__main__":
    main()
