"""A small steered network, really trained for a few seconds: white noise, any delay of up to 12 samples."""

import dataclasses
from pathlib import Path

import numpy as np
import torch

from qkgcc.calibration import KEY, Calibration, Curves
from qkgcc.card import Card
from qkgcc.models import checkpoint
from qkgcc.models.export import export
from qkgcc.models.steered import Steered, SteeredOptions
from qkgcc.train.targets import cross_entropy
from signals import delayed_noise

RATE = 16000
OPTIONS = SteeredOptions(
    frame=256,
    dft=512,
    max_delay=12,
    width=16,
    heads=2,
    radius=1,
    positions=17,
    channels=8,
    maps=4,
    kernel=3,
    delay_channels=8,
)
ALONE = Calibration((0.0, 0.5, 1.0), (0.0, 0.4, 0.95))


def steered_card(**changes: object) -> Card:
    fields = {
        "name": "tiny",
        "architecture": "steered",
        "options": dataclasses.asdict(OPTIONS),
        "sample_rate": RATE,
        "frame": OPTIONS.frame,
        "dft": OPTIONS.dft,
        "delays": OPTIONS.delays,
        "scaling": "frame",
        "metrics": {"decoder": "quadratic", KEY: [Curves(RATE, ALONE).to_card()]},
    }
    return Card(**(fields | changes))  # type: ignore[arg-type]


def train_steered() -> Steered:
    torch.manual_seed(0)
    model = Steered(OPTIONS)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    rng = np.random.default_rng(0)
    grid = torch.tensor(OPTIONS.delays)
    for step in range(200):
        delays = rng.uniform(-12, 12, 48)
        snr = float(rng.uniform(-10, 25))
        frames = delayed_noise(delays, OPTIONS.frame, seed=step + 1000, snr=snr, dtype=np.float32)
        frames /= np.sqrt(np.mean(frames**2, axis=(1, 2), keepdims=True))
        logits = model(torch.from_numpy(frames))
        loss = cross_entropy(logits, grid, torch.from_numpy(delays.astype(np.float32)), width=0.7)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def save_steered(folder: Path, model: Steered) -> tuple[Path, Path]:
    """As a checkpoint and as ONNX."""
    paths = folder / "tiny.safetensors", folder / "tiny.onnx"
    checkpoint.save(model, paths[0], steered_card(), dtype=torch.float32)
    export(model, steered_card(), paths[1])
    return paths
