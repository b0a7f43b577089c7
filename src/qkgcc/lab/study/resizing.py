"""A trained steered network whose gate has another kernel or width, to go on training from (`Config.start`).

    python -m qkgcc.lab.study.resizing checkpoints/general-large.safetensors --kernel 3 --out runs/slim.safetensors \\
        --bank banks/test-clean --bank banks/dev-clean --bank banks/music --bank banks/noise

The gate's convolutions are the dearest part of a network. Those of another size are fitted, by least squares on frames
of training scenes, to what the ones before answer, one after the other, the second on what the first one gives. What is
new begins as something that says nothing yet: channels are random features that the fit may use, maps are steered
random evidence that nothing reads.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.provenance import commit
from qkgcc.lab.training import config as configs
from qkgcc.lab.training.data import make_sets
from qkgcc.nets import checkpoint
from qkgcc.nets.steered import Steered
from qkgcc.network.card import Card

SCENES = 256
"""One frame of each is what the kernels are fitted to: 460,000 bins for a few hundred weights."""


def resize_gate(
    model: Steered, frames: Tensor, *, kernel: int | None = None, channels: int | None = None, maps: int | None = None
) -> tuple[Steered, float]:
    """The network with another size, in eval mode, and the share of the gate's variance that it leaves unexplained.

    Shape of the frames: (N, 2, frame)
    """
    old = model.options
    options = dataclasses.replace(
        old, kernel=kernel or old.kernel, channels=channels or old.channels, maps=maps or old.maps
    )
    if fewer := [name for name in ("channels", "maps") if getattr(options, name) < getattr(old, name)]:
        raise InputError(f"{' and '.join(fewer)} can only grow; expected at least {getattr(old, fewer[0])}")
    if old.blocks and options.channels != old.channels:
        raise InputError("the surroundings read the gate's channels: those of a network with blocks stay as they are")
    torch.manual_seed(0)
    new = Steered(options).eval()
    new.folded = model.folded
    _copy_values(model, new)
    with torch.no_grad():
        x = torch.unflatten(model.features(frames, None), 0, (-1, old.windows)).transpose(1, 2)
        unexplained = _fit_outputs(_first_layer(new), x, _first_layer(model)(x))
        if options.channels > old.channels:
            norm: Any = new.head.local[1]
            fresh = _first_layer(new)(x)[:, old.channels :]
            norm.running_mean[old.channels :] = fresh.mean((0, 2, 3))
            norm.running_var[old.channels :] = fresh.var((0, 2, 3))
        if not old.blocks:
            unexplained = _fit_outputs(new.head.gate, new.head.local(x), model.head.gate(model.head.local(x)))
        if options.maps > old.maps:
            _start_new_maps(new, old.maps, frames)
    return new, unexplained


def _first_layer(model: Steered) -> nn.Conv2d:
    layer = model.head.local[0]
    assert isinstance(layer, nn.Conv2d)
    return layer


def _copy_values(model: Steered, new: Steered) -> None:
    """Every number that has a place in the new network; a first one of its own where there is none."""
    given, values = model.state_dict(), new.state_dict()
    for name, value in values.items():
        known = given[name]
        if value.dim() == 4 and value.shape[2:] != known.shape[2:]:
            continue  # another kernel: it will be fitted
        value[tuple(slice(n) for n in known.shape)] = known
    new.load_state_dict(values)


def _fit_outputs(layer: nn.Conv2d, x: Tensor, wanted: Tensor) -> float:
    """The outputs of a convolution that are wanted, as well as it can, the further ones left as they are.

    Shape: (frames, inputs, windows, rows), (frames, outputs, windows, rows) -> share of the variance left unexplained
    """
    outputs = wanted.shape[1]
    height, width = layer.weight.shape[2:]
    target = wanted.flatten(2).mT.flatten(0, 1).double()
    seen = F.unfold(x, (height, width), padding=(height // 2, width // 2)).mT.flatten(0, 1).double()
    seen = torch.cat([seen, torch.ones(len(seen), 1, dtype=seen.dtype)], dim=1)
    square = seen.mT @ seen
    # A hair of a ridge: some features are zero at the ends of the band, or copies of others.
    square += 1e-6 * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
    fitted = torch.linalg.solve(square, seen.mT @ target)
    layer.weight[:outputs] = fitted[:-1].mT.reshape(layer.weight[:outputs].shape).to(layer.weight)
    assert layer.bias is not None
    layer.bias[:outputs] = fitted[-1].to(layer.bias)
    return float((target - seen @ fitted).var(dim=0).mean() / target.var(dim=0).mean())


def _start_new_maps(new: Steered, known: int, frames: Tensor) -> None:
    """Maps beyond those that are known: the gates of the first ones, random evidence, read by nothing."""
    gate, evidence, head = new.head.gate, new.head.evidence, new.head
    norm: Any = head.delays[0]
    read: Any = head.delays[1]
    added = len(gate.weight) - known
    gate.weight[known:], gate.bias[known:] = gate.weight[:added], gate.bias[:added]  # type: ignore[index]
    evidence.weight[2 * known :].normal_(0, float(evidence.weight[: 2 * known].std()))
    read.weight[:, known:] = 0
    found = head.weighted_evidence(new.features(frames, None), None).flatten(-2)
    count = len(new.options.delays) + 2 * head.spare
    steered = head.steering(found, 0.0, count) / (new.options.windows * new.options.bins) ** 0.5
    norm.running_mean[known:] = steered[:, known:].mean((0, 2))
    norm.running_var[known:] = steered[:, known:].var((0, 2))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    for name in ("kernel", "channels", "maps"):
        parser.add_argument(f"--{name}", type=int, help="as it is, if not given")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bank", type=Path, action="append", default=[], help="none: synthetic sounds")
    try:
        _resize(parser.parse_args(arguments))
    except InputError as error:
        raise SystemExit(f"error: {error}") from None


def _resize(given: argparse.Namespace) -> None:
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
    size = {"kernel": given.kernel, "channels": given.channels, "maps": given.maps}
    new, unexplained = resize_gate(model.eval(), made.frames[::each], **size)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(new, given.out, _card(card, new, made.hash))
    print(f"{given.out}: explains all but {100 * unexplained:.1f} % of what the gate answered")


def _card(card: Card, new: Steered, data_hash: str) -> Card:
    """Without what was measured of the network before; of the data are those that it was fitted to."""
    return dataclasses.replace(
        card,
        options=dataclasses.asdict(new.options),
        metrics={"start": card.name},
        data_hash=data_hash,
        git=commit(),
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main()
