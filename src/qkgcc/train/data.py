"""The one fixed set of pairs that a training reads, generated where it is used and kept there.

    config -> pairs of the paper's distribution -> frames (float32) and classes on the device

Nothing is stored: a set is a pure function of the utterances and a few numbers, and `hash` names it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkgcc.data.banks import Bank
from qkgcc.data.spectra import power_spectrum
from qkgcc.errors import InputError
from qkgcc.simulate import paper
from qkgcc.simulate.frames import Sources, paper_frames
from qkgcc.simulate.signals import synthetic
from qkgcc.train.config import Config

SPLITS = ("train", "validation")

_SYNTHETIC = 96  # utterances of steady noise in each split, where no bank is
_VALIDATION = 1 << 40  # first index of the validation pairs: no training set is that large


@dataclass(frozen=True)
class PairSet:
    """N pairs on a device."""

    frames: Tensor
    """(N, 2, frame)"""
    delays: Tensor
    """(N,) true delays in samples, positive = channel 1 later."""
    classes: Tensor
    """(N,) int64: which of the delays -max_delay..max_delay is nearest."""
    hash: str
    """Names the pairs: everything that they are a function of."""

    def __len__(self) -> int:
        return len(self.delays)


def make_sets(
    config: Config,
    bank: Bank | None,
    device: torch.device | str,
    *,
    frame: int,
    max_delay: int,
    progress: Callable[[int], object] | None = None,
) -> tuple[PairSet, PairSet]:
    """The training set and the validation set: the same room and distribution, other speakers.

    `progress` is called with the number of pairs made since the last call.
    """
    made = []
    utterances = bank if config.sources == "bank" else None
    for split in SPLITS:  # before the first room is made
        set_hash(config, bank, split, frame)
    for split, first, count in zip(SPLITS, (0, _VALIDATION), (config.pairs, config.validation_pairs), strict=True):
        sources = _synthetic(split, device) if utterances is None else Sources.of(utterances, split, device)
        index = first + np.arange(count)
        pairs = paper.training_pairs(config.data_seed, index, len(sources.signals), t60=config.t60, snr=config.snr)
        frames, delays = paper_frames(pairs, sources, frame=frame, progress=progress)
        classes = delays.round().clamp(-max_delay, max_delay).long() + max_delay
        if config.shuffled_labels:
            order = np.random.default_rng(config.data_seed).permutation(count)
            classes = classes[torch.as_tensor(order, device=classes.device)]
        made.append(PairSet(frames, delays, classes, set_hash(config, bank, split, frame)))
    return made[0], made[1]


def set_hash(config: Config, bank: Bank | None, split: str, frame: int) -> str:
    """Names a set by all that it is a function of; the engines that make it agree but for rounding.

    An `InputError` says what is missing to make it.
    """
    if config.sources == "synthetic":
        names = "synthetic"
    elif bank is None:
        raise InputError(
            f"the training {config.name} needs a bank of utterances: give --bank FILE (qkgcc data bank makes one)"
        )
    elif not len(bank.select(split=split)):
        raise InputError(f"the bank {bank.path} has no {split} split: take the one of test-clean")
    else:
        names = bank.hash
    count = {"train": config.pairs, "validation": config.validation_pairs}[split]
    what = ["paper", split, config.data_seed, count, config.t60, config.snr, frame, names, config.shuffled_labels]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _synthetic(split: str, device: torch.device | str) -> Sources:
    first = {"train": 0, "validation": _SYNTHETIC}[split]
    samples = round(paper.SECONDS * paper.SAMPLE_RATE)
    signals = np.stack([synthetic(f"noise:{first + i}", samples, paper.SAMPLE_RATE) for i in range(_SYNTHETIC)])
    power = np.stack([power_spectrum(signal) for signal in signals])
    return Sources(
        torch.as_tensor(signals, device=device),
        torch.as_tensor(power, device=device),
        torch.full((_SYNTHETIC,), float(samples), device=device),
    )
