"""From a trained checkpoint to a model that ships: half precision, a calibrated confidence, safetensors and ONNX.

    python -m qkgcc.experiments.shipping runs/general-0/best.safetensors --name general --bank banks/test-clean ...

The confidence is calibrated on scenes of the general law that no training has seen, with the validation voices; the
test sets take no part. Whatever depends on the weights is computed from the half-precision ones, which are what ships.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress

from qkgcc import decoding
from qkgcc.calibration import CONTEXT_KEY, KEY, LOWEST_RATE_KEY, Calibration, Context, expected_calibration_error
from qkgcc.card import Card
from qkgcc.confidence import TOLERANCE
from qkgcc.data.banks import Bank
from qkgcc.decoding import DECODERS
from qkgcc.errors import InputError
from qkgcc.estimate import at_unit_level
from qkgcc.experiments.estimators import answers, of_model
from qkgcc.experiments.framesets import RATE, FrameSet
from qkgcc.methods import WEIGHTS
from qkgcc.models import checkpoint
from qkgcc.models.export import export
from qkgcc.models.steered import Steered
from qkgcc.neural import Model, Network
from qkgcc.runtime import OnnxModel
from qkgcc.train import config as configs
from qkgcc.train.data import general_set

RATES = (11025, 8000)
"""Hz, of recordings that hold less than the network's band: for which the curves may hold all the same."""
ALLOWED = 0.03
"""Expected calibration error up to which they do."""
SCENES = 1500
FRAMES = 10
"""Of each scene."""
_EVERY = 0.128  # seconds from one frame to the next
_FIRST = 1 << 41  # index of the first scene: neither a training nor its validation has that many


def unseen_frames(banks: Sequence[Bank], scenes: int, *, progress: Callable[[int], object] | None = None) -> FrameSet:
    """Scenes of the general law with the validation voices, that no training has seen."""
    changes = ["distribution=general", f"frames_per_scene={FRAMES}", "synthetic_pool=256"]
    config = configs.load("steered", changes)
    index = _FIRST + np.arange(scenes * FRAMES)
    frames, delays, limits = general_set(
        config, banks, "validation", torch.device("cpu"), index, Steered().options.frame, progress
    )
    count = len(frames)
    # The training's limits are a sample more than the spacing's, as are the candidates of a network in use.
    limit = np.maximum(limits.numpy().astype(np.float64) - 1, 1)
    groups = np.repeat(np.arange(scenes), FRAMES)
    # Frames of a scene lie anywhere in its two seconds. They are taken as if they followed each other, with pauses in
    # every other pair of scenes: recordings have many frames around one, or few.
    every = np.where(np.arange(scenes) // 2 % 2 == 0, _EVERY, 3 * _EVERY)
    times: npt.NDArray[np.float64] = np.outer(every, np.arange(FRAMES, dtype=np.float64)).ravel()
    true = delays.numpy().astype(np.float64)
    return FrameSet("unseen", frames.numpy(), true, limit, np.ones(count), groups, groups, times)


def calibrated(model: Model, given: FrameSet) -> Card:
    """The network's card with its decoder and its calibration; half of the scenes choose, the other half measures."""
    fitted = given.groups % 2 == 0
    true, within = given.delays, TOLERANCE * RATE + 1e-6
    found = {name: answers(of_model(model, name), given) for name in DECODERS}
    # Of the answers that are right at all, the decoder that is nearest.
    right = np.all([np.abs(answer.delays - true) <= 2 * within for answer in found.values()], axis=0)
    decoder = min(found, key=lambda name: float(np.median(np.abs(found[name].delays - true)[right & fitted])))
    stated, hits = found[decoder].confidence, np.abs(found[decoder].delays - true) <= within
    curve = Calibration.fit(stated[fitted], hits[fitted])
    error = expected_calibration_error(curve(stated[~fitted]), hits[~fitted])
    support = _support(model, decoder, given)
    around = np.isfinite(support)
    context = Context.fit(stated[fitted & around], support[fitted & around], hits[fitted & around])
    measuring = ~fitted & around
    error_in_context = expected_calibration_error(context(stated[measuring], support[measuring]), hits[measuring])
    curves = {"decoder": decoder, KEY: curve.to_card(), CONTEXT_KEY: context.to_card()}
    by_rate = {rate: _error_at(rate, model, curves, given.take(~fitted)) for rate in RATES}
    held = list(itertools.takewhile(lambda rate: by_rate[rate] <= ALLOWED, RATES))
    measured = curves | {
        LOWEST_RATE_KEY: min([RATE, *held]),
        "unseen": {
            "expected_calibration_error_by_rate": {str(rate): round(found, 4) for rate, found in by_rate.items()},
            "frames": int((~fitted).sum()),
            "acc62us": round(100 * float(hits[~fitted].mean()), 2),
            "expected_calibration_error": round(error, 4),
            "expected_calibration_error_in_context": round(error_in_context, 4),
            "median_error": {
                name: round(float(np.median(np.abs(answer.delays - true)[right & ~fitted])), 4)
                for name, answer in found.items()
            },
        },
    }
    return dataclasses.replace(model.card, metrics=model.card.metrics | measured)


def _error_at(rate: int, model: Model, curves: dict[str, Any], given: FrameSet) -> float:
    """Expected calibration error for recordings at a lower rate, which hold nothing above half of it."""
    whole = Network.of(_Described(model, dataclasses.replace(model.card, metrics=curves)))
    found = answers(lambda limit: whole.limited(rate, limit / RATE, None), given)
    return expected_calibration_error(found.confidence, np.abs(found.delays - given.delays) <= TOLERANCE * RATE + 1e-6)


class _Described:
    """A network with another card."""

    def __init__(self, model: Model, card: Card) -> None:
        self.card, self.any_delay, self.step = card, model.any_delay, model.step
        self.logits, self.reliability = model.logits, model.reliability


def _support(model: Model, decoder: str, given: FrameSet) -> npt.NDArray[np.float64]:
    """What the frames around each frame say of its delay. Shape: (N,)"""
    result = np.full(len(given), np.nan)
    limited = of_model(model, decoder)
    for sequence in np.unique(given.sequences):
        rows = np.flatnonzero(given.sequences == sequence)
        method = limited(float(given.limits[rows[0]]))
        found = method.decode(method.evidence(at_unit_level(given.frames[rows])))
        result[rows] = decoding.support(found.curve, method.lags, found.delay, given.times[rows], TOLERANCE * RATE)
    return result


def ship(path: Path, name: str, given: FrameSet, folder: Path = WEIGHTS) -> Card:
    """Write `name.safetensors` and `name.onnx` from a trained checkpoint."""
    model, card = checkpoint.load(path)
    if not isinstance(model, Steered):
        raise InputError(
            f"{path} holds a {card.architecture}; what ships is a steered QK-GCC trained on the general law"
        )
    if card.scaling != "frame":
        raise InputError(f"{path} scales by the {card.scaling}: train it with distribution=general")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    old = (KEY, CONTEXT_KEY, LOWEST_RATE_KEY, "decoder")
    bare = dataclasses.replace(card, name=name, metrics={k: v for k, v in card.metrics.items() if k not in old})
    with tempfile.TemporaryDirectory() as temporary:
        export(model, bare, Path(temporary) / "bare.onnx")
        card = calibrated(OnnxModel(Path(temporary) / "bare.onnx"), given)
    checkpoint.save(model, folder / f"{name}.safetensors", card, torch.float16)
    export(model, card, folder / f"{name}.onnx")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--bank", type=Path, action="append", required=True)
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    with Progress() as progress:
        bar = progress.add_task("unseen frames", total=arguments.scenes * FRAMES)
        banks = [Bank.load(bank) for bank in arguments.bank]
        given = unseen_frames(banks, arguments.scenes, progress=lambda count: progress.advance(bar, count))
    card = ship(arguments.checkpoint, arguments.name, given, arguments.out)
    print({key: card.metrics[key] for key in ("decoder", KEY, CONTEXT_KEY, "unseen")})


if __name__ == "__main__":
    main()
