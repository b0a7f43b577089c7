"""A larger network that has been trained already, and what it says of every pair of a set.

Its answers are computed once, before the training: in the mean with the mirrored answer of the swapped pair, where the
network can do that, so that they hold for both orders of the channels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkgcc.core.errors import InputError
from qkgcc.lab.scenes import paper
from qkgcc.lab.training.config import Config
from qkgcc.lab.training.step import autocast, matrix_precision
from qkgcc.nets import checkpoint
from qkgcc.nets.checkpoint import in_batches
from qkgcc.network import files
from qkgcc.network.steered import SteeredModel

_BATCH = 512


def checked(config: Config, options: Any) -> dict[str, Any]:
    """What a card remembers of its network's teacher; an `InputError` where it cannot teach this network."""
    if not Path(config.teacher).is_file():
        raise InputError(
            f"{config.name} learns from the network {config.teacher}, which is not there: set teacher to its "
            "path, or to nothing to learn without"
        )
    _, card = checkpoint.load(config.teacher)
    scaling = "utterance" if config.distribution == "paper" else "frame"
    same = (card.sample_rate, card.frame, card.scaling) == (paper.SAMPLE_RATE, options.frame, scaling)
    if not same or len(card.delays) != len(options.delays) or not np.allclose(card.delays, options.delays):
        raise InputError(
            f"{config.teacher} cannot teach {config.name}: it takes other frames, or answers for other delays"
        )
    return {"teacher": {"name": card.name, "weight": config.teacher_weight}}


def logits(config: Config, frames: Tensor) -> Tensor:
    """Of every pair, in half precision, on its device. Shape: (N, 2, frame) -> (N, classes)"""
    card, weights = files.read(Path(config.teacher))
    if frames.device.type == "cpu" and card.architecture == "steered":
        return _by_kernel(SteeredModel(card, weights, Path(config.teacher)), frames)
    model: Any = checkpoint.load(config.teacher)[0].to(frames.device).eval()
    if hasattr(model, "folded"):
        model.folded = True
    if hasattr(model, "symmetric"):
        model.symmetric = True
    with torch.no_grad(), matrix_precision(config), autocast(config, frames.device):
        return in_batches(lambda part: model(part).half(), frames, _BATCH)


def _by_kernel(model: SteeredModel, frames: Tensor) -> Tensor:
    """Without torch: several times as fast on a CPU."""
    delays = np.asarray(model.card.delays, dtype=np.float64)

    def answer(part: Tensor) -> Tensor:
        given = part.numpy()
        as_is, swapped = (model.logits(one, None, delays) for one in (given, np.ascontiguousarray(given[:, ::-1])))
        return torch.from_numpy((as_is + swapped[:, ::-1]) / 2).half()

    return in_batches(answer, frames, _BATCH)
