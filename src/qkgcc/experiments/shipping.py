"""From a trained checkpoint to a model that ships: half precision, a calibrated confidence, safetensors and ONNX.

    python -m qkgcc.experiments.shipping general=runs/general-0/best.safetensors --bank banks/test-clean ...

The confidence is calibrated on recordings that no training has seen (`unseen`), with the validation voices; the test
sets take no part. Whatever depends on the weights is computed from the half-precision ones, which are what ships.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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
from qkgcc.experiments.framesets import FRAME, RATE, FrameSet
from qkgcc.experiments.unseen import unseen_recordings
from qkgcc.methods import WEIGHTS
from qkgcc.models import checkpoint
from qkgcc.models.export import export
from qkgcc.models.steered import Steered
from qkgcc.neural import Model, Network
from qkgcc.runtime import OnnxModel

RATES = (11025, 8000)
"""Hz, of recordings that hold less than the network's band: for which the curves may hold all the same."""
ALLOWED = 0.03
"""Expected calibration error up to which they do."""
SCENES = 1500
_COUNTED = 5  # frames of each recording that a curve is fitted to

Floats = npt.NDArray[np.float64]


class Heard(NamedTuple):
    """What a network makes of frames before any calibration. (N,) each"""

    delays: Floats
    own: Floats
    """The probability that the frame itself gives to its delay."""
    support: Floats
    """See `decoding.support`."""


def heard(model: Model, given: FrameSet, decoders: Sequence[str], rate: int = RATE) -> dict[str, Heard]:
    """By each decoder, as of recordings at a rate, which hold nothing above half of it."""
    found = {name: Heard(*np.full((3, len(given)), np.nan)) for name in decoders}
    whole, reach = Network.of(model), TOLERANCE * RATE
    frame = model.card.frame / model.card.sample_rate
    for sequence in np.unique(given.sequences):
        rows = np.flatnonzero(given.sequences == sequence)
        method = whole.limited(rate, float(given.limits[rows[0]]) / RATE, None)
        curve = method.decode(method.evidence(at_unit_level(given.frames[rows]))).curve
        for name, answer in found.items():
            delay = np.clip(DECODERS[name](curve, method.lags), -method.limit, method.limit)
            answer.delays[rows] = delay
            answer.own[rows] = decoding.probability_near(curve, method.lags, delay, reach)
            around = decoding.support(curve, method.lags, delay, given.times[rows], tolerance=reach, frame=frame)
            answer.support[rows] = around
    return found


def calibrated(model: Model, given: FrameSet) -> Card:
    """The network's card with its decoder and its calibration; every other recording chooses, the others measure."""
    asked = np.isfinite(given.delays)
    fitted, measuring = (asked & (given.groups % 2 == i) for i in (0, 1))
    # Dense frames of a recording are one after the other: as many of each recording count.
    fitted &= _as_many_of_each(given)
    true, within = given.delays, TOLERANCE * RATE + 1e-6
    found = heard(model, given, list(DECODERS))
    # Of the answers that are right at all, the decoder that is nearest.
    right = np.all([np.abs(answer.delays - true) <= 2 * within for answer in found.values()], axis=0)
    error = {name: np.abs(answer.delays - true) for name, answer in found.items()}
    decoder = min(found, key=lambda name: float(np.median(error[name][right & fitted])))
    answer, hits = found[decoder], error[decoder] <= within
    curve = Calibration.fit(answer.own[fitted], hits[fitted])
    around = fitted & np.isfinite(answer.support)
    context = Context.fit(answer.own[around], answer.support[around], hits[around])

    def miscalibrated(rate: int) -> float:
        low = heard(model, given, [decoder], rate)[decoder] if rate < RATE else answer
        stated = np.where(np.isfinite(low.support), context(low.own, np.nan_to_num(low.support)), curve(low.own))
        return expected_calibration_error(stated[measuring], (np.abs(low.delays - true) <= within)[measuring])

    by_rate = {rate: miscalibrated(rate) for rate in RATES}
    measured = {
        "decoder": decoder,
        KEY: curve.to_card(),
        CONTEXT_KEY: context.to_card(),
        LOWEST_RATE_KEY: min([RATE, *itertools.takewhile(lambda rate: by_rate[rate] <= ALLOWED, RATES)]),
        "unseen": {
            "frames": int(measuring.sum()),
            "acc62us": round(100 * float(hits[measuring].mean()), 2),
            "expected_calibration_error": round(
                expected_calibration_error(curve(answer.own[measuring]), hits[measuring]), 4
            ),
            "expected_calibration_error_in_context": round(miscalibrated(RATE), 4),
            "expected_calibration_error_by_rate": {str(rate): round(value, 4) for rate, value in by_rate.items()},
            "median_error": {name: round(float(np.median(e[right & measuring])), 4) for name, e in error.items()},
        },
    }
    return dataclasses.replace(model.card, metrics=model.card.metrics | measured)


def _as_many_of_each(given: FrameSet) -> npt.NDArray[np.bool_]:
    """Five frames of each recording, evenly, or all where there are fewer."""
    chosen = np.zeros(len(given), dtype=bool)
    for sequence in np.unique(given.sequences):
        rows = np.flatnonzero((given.sequences == sequence) & np.isfinite(given.delays))
        if len(rows):
            chosen[rows[np.linspace(0, len(rows) - 1, _COUNTED).round().astype(int)]] = True
    return chosen


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
    parser.add_argument("model", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--bank", type=Path, action="append", required=True)
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    arguments = parser.parse_args()
    with Progress() as progress:
        bar = progress.add_task("unseen recordings", total=arguments.scenes)
        banks = [Bank.load(bank) for bank in arguments.bank]
        given = unseen_recordings(
            banks, arguments.scenes, frame=FRAME, progress=lambda count: progress.advance(bar, count)
        )
    for model in arguments.model:
        name, _, path = model.partition("=")
        card = ship(Path(path), name, given, arguments.out)
        print(name, {key: card.metrics[key] for key in ("decoder", LOWEST_RATE_KEY, "unseen")})


if __name__ == "__main__":
    main()
