"""A small steered network that was really trained, on white noise with any delay of up to 12 samples: without torch.

`python tests/networks.py` trains it again.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from safetensors.numpy import save_file

from qkgcc.network import files
from qkgcc.network.card import KEY
from qkgcc.pairs.calibration import Calibration

TINY = Path(__file__).with_name("tiny.safetensors")
CARD, _ = files.read(TINY)
RATE, FRAME = CARD.sample_rate, CARD.frame
ALONE = Calibration((0.0, 0.5, 1.0), (0.0, 0.4, 0.95))
"""Its confidence in a frame."""


def tiny_with(metrics: Mapping[str, object], folder: Path) -> Path:
    """Its file with other figures on the card."""
    card, arrays = files.read(TINY)
    path = folder / "other.safetensors"
    save_file(arrays, path, metadata={KEY: replace(card, metrics=card.metrics | metrics).to_json()})
    return path
