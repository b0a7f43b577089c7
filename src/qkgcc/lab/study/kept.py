"""Checkpoints that are kept: in half precision, small enough for the repository, and what ties figures to them.

A card remembers the logits of one probe frame, so that weights that were swapped, damaged or read in another way are
found out; results remember the hash of the weights that they are of.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.draws import normal, stream
from qkgcc.lab.training import config as configs
from qkgcc.lab.training.data import set_hash
from qkgcc.nets import checkpoint
from qkgcc.network.card import Card

LARGEST = 5_000_000
"""Bytes: larger checkpoints stay in the folder of their run, and their rows are marked `stored`."""

_FRAMES = 64  # on which half precision is compared with what was trained


def keep(path: Path, name: str, folder: Path, seconds: float) -> Path:
    """A trained checkpoint in half precision: in `folder`, or beside the trained one if it is large."""
    model, card = checkpoint.load(path)
    before = _logits(model, _FRAMES, card.frame)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    after = _logits(model, _FRAMES, card.frame)
    remembered: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "probe": after[0].tolist(),
        "half_precision": {
            "largest_difference": float((after - before).abs().max()),
            "same_delay": float((after.argmax(dim=1) == before.argmax(dim=1)).float().mean()),
        },
    }
    card = dataclasses.replace(card, metrics=card.metrics | remembered)
    half = path.with_name(f"{name}.safetensors")
    checkpoint.save(model, half, card, torch.float16)
    if half.stat().st_size > LARGEST:
        return half
    folder.mkdir(parents=True, exist_ok=True)
    return half.replace(folder / half.name)


def probe_error(model: nn.Module, card: Card) -> float:
    """How far the logits of the probe are from those that the card remembers, relative to their size."""
    then = torch.tensor(card.metrics["probe"])
    now = _logits(model, 1, card.frame)[0]
    return float((now - then).abs().max() / then.abs().max())


def weights_hash(path: Path) -> str:
    """Names the weights in a file, whatever its card says."""
    digest = hashlib.sha256()
    try:
        with safe_open(path, framework="np") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                digest.update(f"{name}:{tensor.dtype}:{tensor.shape}".encode())
                digest.update(np.ascontiguousarray(tensor).tobytes())
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged or cut short ({error})") from None
    return digest.hexdigest()[:16]


def check_card(path: Path, card: Card, method: str, seed: int | None, bank: Bank | None) -> None:
    """An `InputError` unless a checkpoint is the training of a method: its network, its grid, its data."""
    config = configs.load(method)
    with torch.device("meta"):
        options: Any = checkpoint.build(config.architecture, config.options).options
    expected: dict[str, Any] = {
        "name": f"{method}-{seed}",
        "architecture": config.architecture,
        "seed": seed,
        "options": dataclasses.asdict(options),
        "delays": tuple(options.delays),
    }
    if bank is not None:
        expected["data_hash"] = set_hash(config, [bank], "train", options.frame)
    for field, wanted in expected.items():
        if field == "options":  # those that are younger than the checkpoint have their defaults
            card = dataclasses.replace(card, options=dataclasses.asdict(type(options).read(card.options)))
        if (found := getattr(card, field)) != wanted:
            raise InputError(f"{path} is not {method}-{seed}: its {field} is {found!r}, expected {wanted!r}")


def probe_frames(count: int, frame: int) -> npt.NDArray[np.float32]:
    """Noise that channel 1 hears 5 samples later, the same on every machine. Shape: (count, 2, frame)"""
    noise = normal(stream("probe", 0), np.arange(count * (frame + 5), dtype=np.int64)).reshape(count, frame + 5)
    return np.stack([noise[:, :-5], noise[:, 5:]], axis=1)


def _logits(model: nn.Module, count: int, frame: int) -> Tensor:
    """Of the first `count` probe frames."""
    frames = torch.from_numpy(probe_frames(count, frame))
    with torch.inference_mode():
        logits: Tensor = model(frames.to(next(model.parameters()).device)).float().cpu()
    return logits
