"""Small steered networks in torch. Run as a program, it trains the one of `tiny.py`: a few seconds of white noise."""

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import nn

from qkgcc.lab.training.step import cross_entropy
from qkgcc.nets import checkpoint
from qkgcc.nets.steered import Steered, SteeredOptions
from qkgcc.network.card import Card
from qkgcc.pairs.calibration import KEY, Curves
from signals import delayed_noise
from tiny import ALONE, TINY

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

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "raw offsets": {"split": False, "radius": 3},
    "no neighbours": {"radius": 0},
    "no magnitude": {"magnitude": False},
    "half steps": {"step": 0.5},
    "wide": {"radius": 40, "dft": 600},
    "windows": {"window": 64, "dft": 64},
    "surroundings": {"window": 64, "dft": 64, "blocks": 2, "block_channels": 6},
}
"""Options that an export has to know."""


def as_trained(options: SteeredOptions) -> Steered:
    """A network as after a training: no parameter and no statistic at its initial value."""
    torch.manual_seed(0)
    model = Steered(options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.running_mean.normal_()  # type: ignore[union-attr, operator]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return model


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


def save_steered(folder: Path, model: Steered) -> Path:
    """As a checkpoint."""
    path = folder / "tiny.safetensors"
    checkpoint.save(model, path, steered_card(), dtype=torch.float32)
    return path


if __name__ == "__main__":
    save_steered(TINY.parent, train_steered())
