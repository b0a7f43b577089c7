"""The one fixed set of pairs that a training reads, generated where it is used and kept there.

    config -> pairs or scenes of a distribution -> frames (float32) and delays on the device

Nothing is stored: a set is a pure function of the utterances and a few numbers, and `hash` names it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.draws import uniform
from qkgcc.lab.rooms.mixing import power_spectrum
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.bulk_rooms import GeneralSources
from qkgcc.lab.scenes.general import PLAIN, Scenes, general_scenes
from qkgcc.lab.scenes.general_frames import general_frames
from qkgcc.lab.scenes.paper_frames import Sources, paper_frames
from qkgcc.lab.scenes.signals import Catalog, synthetic
from qkgcc.lab.training.config import Config

SPLITS = ("train", "validation")

_SYNTHETIC_UTTERANCES = 96  # utterances of steady noise in each split, where no bank is
_VALIDATION_INDEX = 1 << 40  # first index of the validation pairs: no training set is that large
_SCENES_AT_ONCE = 16384  # that are drawn at a time

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PairSet:
    """N pairs on a device."""

    frames: Tensor
    """(N, 2, frame)"""
    delays: Tensor
    """(N,) true delays in samples, positive = channel 1 later."""
    limits: Tensor | None
    """(N,) the largest delay that the microphones of each pair allow, in samples; None: not told."""
    hash: str
    """Names the pairs: everything that they are a function of."""
    teacher_logits: Tensor | None = None
    """(N, classes) of a teacher, in half precision (`loop.teacher_logits`)."""

    def __len__(self) -> int:
        return len(self.delays)


def make_sets(
    config: Config,
    banks: Sequence[Bank],
    device: torch.device | str,
    *,
    frame: int,
    progress: Callable[[int], object] | None = None,
) -> tuple[PairSet, PairSet]:
    """The training set and the validation set: the same distribution, other speakers.

    `progress` is called with the number of pairs made since the last call.
    """
    hashes = {split: set_hash(config, banks, split, frame) for split in SPLITS}  # before the first room is made
    make = _paper_pairs if config.distribution == "paper" else _general_pairs
    made = []
    for split, first in (("train", 0), ("validation", _VALIDATION_INDEX)):
        count = _count(config, split)
        index = first + np.arange(count)
        frames, delays, limits = make(config, banks, split, torch.device(device), index, frame, progress)
        if config.shuffled_labels:
            order = np.random.default_rng(config.data_seed).permutation(count)
            delays = delays[torch.as_tensor(order, device=delays.device)]
        made.append(PairSet(frames, delays, limits, hashes[split]))
    return made[0], made[1]


def set_hash(config: Config, banks: Sequence[Bank], split: str, frame: int) -> str:
    """Names a set by all that it is a function of; the engines that make it agree but for rounding.

    An `InputError` says what is missing to make it.
    """
    count = _count(config, split)
    if config.distribution == "general":
        names = ["synthetic"] if config.sources == "synthetic" else [_check_split(bank, split).hash for bank in banks]
        sizes = [config.frames_per_scene, config.synthetic_pool]
        what = ["general", split, config.data_seed, count, sizes, frame, names]
        if config.plain:
            what += [{"plain": config.plain, "law": dataclasses.asdict(PLAIN)}]
    else:
        name = "synthetic" if config.sources == "synthetic" else _only_bank(config, banks, split).hash
        what = ["paper", split, config.data_seed, count, config.t60, config.snr, frame, name]
    return hashlib.sha256(json.dumps([*what, config.shuffled_labels]).encode()).hexdigest()


def _count(config: Config, split: str) -> int:
    return config.pairs if split == "train" else config.validation_pairs


def _only_bank(config: Config, banks: Sequence[Bank], split: str) -> Bank:
    """The bank of a training that needs exactly one, with something of a split in it."""
    if len(banks) != 1:
        given = f"{len(banks)} were given" if banks else "give one (`qkgcc data bank` makes it)"
        raise InputError(f"the training {config.name} needs a bank of utterances, one: {given}")
    return _check_split(banks[0], split, needed=True)


def _check_split(bank: Bank, split: str, needed: bool = False) -> Bank:
    """The bank, or an `InputError` where it has nothing of a split that is needed, as that of training always is."""
    if (needed or split == "train") and not len(bank.select(split=split)):
        raise InputError(f"the bank {bank.path} has no {split} split: take the one of test-clean")
    return bank


def _paper_pairs(
    config: Config,
    banks: Sequence[Bank],
    split: str,
    device: torch.device,
    index: Integers,
    frame: int,
    progress: Callable[[int], object] | None,
) -> tuple[Tensor, Tensor, None]:
    if config.sources == "synthetic":
        sources = _synthetic_sources(split, device)
    else:
        sources = Sources.of(_only_bank(config, banks, split), split, device)
    pairs = paper.training_pairs(config.data_seed, index, len(sources.signals), t60=config.t60, snr=config.snr)
    return *paper_frames(pairs, sources, frame=frame, progress=progress), None


def _general_pairs(
    config: Config,
    banks: Sequence[Bank],
    split: str,
    device: torch.device,
    index: Integers,
    frame: int,
    progress: Callable[[int], object] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Frames at unit level, with the largest delays that their spacing allows."""
    each = config.frames_per_scene
    recorded = [] if config.sources == "synthetic" else banks
    sources = GeneralSources.of(recorded, split, device, pool=config.synthetic_pool)
    scenes = index[0] + np.arange(-(-len(index) // each))
    frames = torch.empty(len(scenes) * each, 2, frame, device=device)
    delays, limits = torch.empty(2, len(frames), device=device)
    for first in range(0, len(scenes), _SCENES_AT_ONCE):
        part = draw_scenes(config, scenes[first : first + _SCENES_AT_ONCE], sources.catalog)
        advance = None if progress is None else lambda done: progress(done * each)
        made = general_frames(part, sources, frame=frame, frames_per_scene=each, progress=advance)
        rows = slice(first * each, first * each + len(made.frames))
        # One number for both channels, as `DelayEstimator` scales a frame.
        level = made.frames.square().mean(dim=(1, 2), keepdim=True).sqrt()
        frames[rows] = made.frames / level.clamp_min(1e-9)
        delays[rows] = made.delays
        spacing = np.linalg.norm(part.nominal[:, 0] - part.nominal[:, 1], axis=-1)
        # A sample more than what the spacing allows: positions are not exact, and neither is the speed of sound.
        furthest = np.ceil(spacing / SPEED_OF_SOUND * paper.SAMPLE_RATE) + 1
        limits[rows] = torch.as_tensor(np.repeat(furthest, each), dtype=torch.float32, device=device)
    return frames[: len(index)], delays[: len(index)], limits[: len(index)]


def draw_scenes(config: Config, numbers: Integers, catalog: Catalog) -> Scenes:
    """The scenes of some numbers, so many of them plain ones as the settings say."""
    scenes = general_scenes(config.data_seed, numbers, catalog)
    if not config.plain:
        return scenes
    plain = general_scenes(config.data_seed, numbers, catalog, law=PLAIN)
    return scenes.replace_rows(uniform("general/plain", config.data_seed, numbers) < config.plain, plain)


def _synthetic_sources(split: str, device: torch.device | str) -> Sources:
    """Steady noise as the utterances of a split."""
    first = 0 if split == "train" else _SYNTHETIC_UTTERANCES
    samples, numbers = round(paper.SECONDS * paper.SAMPLE_RATE), range(first, first + _SYNTHETIC_UTTERANCES)
    signals = np.stack([synthetic(f"noise:{number}", samples, paper.SAMPLE_RATE) for number in numbers])
    power = np.stack([power_spectrum(signal) for signal in signals])
    return Sources(
        torch.as_tensor(signals, device=device),
        torch.as_tensor(power, device=device),
        torch.full((_SYNTHETIC_UTTERANCES,), float(samples), device=device),
    )
