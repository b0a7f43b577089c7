"""A trained steered network with a smaller kernel in its gate, to go on training from (`Config.start`).

    python -m qkgcc.experiments.slimming checkpoints/general-large.safetensors --kernel 3 --out runs/slim.safetensors \\
        --bank banks/test-clean --bank banks/dev-clean --bank banks/music --bank banks/noise

The gate's first convolution is the dearest part of a network that has a look at the surroundings anyway. The smaller
one is fitted, by least squares on frames of training scenes, to what the larger one answers; nothing else changes.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from qkgcc.card import Card
from qkgcc.data.banks import Bank
from qkgcc.errors import InputError
from qkgcc.models import checkpoint
from qkgcc.models.steered import Steered
from qkgcc.train import config as configs
from qkgcc.train.data import make_sets

SCENES = 256
"""One frame of each is what the kernel is fitted to: 460,000 bins for a few hundred weights."""


def slimmed(model: Steered, kernel: int, frames: Tensor) -> tuple[Steered, float]:
    """The network with another `kernel`, and the share of the convolution's variance that it leaves unexplained.

    Shape of the frames: (N, 2, frame)
    """
    slim = Steered(dataclasses.replace(model.options, kernel=kernel)).train(model.training)
    given, kept = model.state_dict(), slim.state_dict()
    # What looks around a bin itself has a gate of the kernel's size, too: only the first convolution is fitted here.
    changed = [name for name in kept if kept[name].shape != given[name].shape]
    if changed and changed != ["head.local.0.weight"]:
        raise InputError(f"a kernel of {kernel} would change {', '.join(changed)}: slim a network with blocks")
    slim.load_state_dict(kept | {name: value for name, value in given.items() if name not in changed})
    old, new = model.head.local[0], slim.head.local[0]
    if not (isinstance(old, torch.nn.Conv2d) and isinstance(new, torch.nn.Conv2d)):
        raise TypeError("the gate does not begin with a convolution")
    with torch.no_grad():
        x = torch.unflatten(model.features(frames, None), 0, (-1, model.options.windows)).transpose(1, 2)
        x = model.head.project(x)  # (frames, channels, windows, rows)
        wanted = old(x).flatten(2).mT.flatten(0, 1).double()
        height, width = new.weight.shape[2:]
        seen = F.unfold(x, (height, width), padding=(height // 2, width // 2)).mT.flatten(0, 1).double()
        seen = torch.cat([seen, torch.ones(len(seen), 1, dtype=seen.dtype)], dim=1)
        square = seen.mT @ seen
        # A hair of a ridge: some features are zero at the ends of the band, or copies of others.
        square += 1e-6 * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
        fitted = torch.linalg.solve(square, seen.mT @ wanted)
        unexplained = (wanted - seen @ fitted).var(dim=0).mean() / wanted.var(dim=0).mean()
        new.weight.copy_(fitted[:-1].mT.reshape(new.weight.shape))
        if new.bias is not None:
            new.bias.copy_(fitted[-1])
    return slim, float(unexplained)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--kernel", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bank", type=Path, action="append", default=[], help="none: synthetic sounds")
    given = parser.parse_args(arguments)
    model, card = checkpoint.load(given.checkpoint)
    if not isinstance(model, Steered):
        raise InputError(f"{given.checkpoint} holds a {card.architecture}; expected a steered QK-GCC")
    each = configs.load("general").frames_per_scene
    changes = [
        f"pairs={SCENES * each}",
        "validation_pairs=1",
        "teacher=",
        "start=",
        "plain=0.0",
        "synthetic_pool=64",
        "batch=2",
    ]
    config = configs.load("general", changes)
    banks = [Bank.load(bank) for bank in given.bank]
    made, _ = make_sets(config, banks, "cpu", frame=model.options.frame)
    model.folded = True
    slim, unexplained = slimmed(model, given.kernel, made.frames[::each])
    checkpoint.save(slim, given.out, _card(card, slim))
    print(f"{given.out}: the kernel of {given.kernel} explains all but {100 * unexplained:.1f} % of the larger one")


def _card(card: Card, slim: Steered) -> Card:
    """Without what was measured of the larger network."""
    return dataclasses.replace(card, options=dataclasses.asdict(slim.options), metrics={"start": card.name})


if __name__ == "__main__":
    main()
