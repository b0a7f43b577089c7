"""From a trained checkpoint to a model that ships: half precision, a calibrated confidence, an ONNX file beside it.

    python -m qkgcc.lab.study.shipping runs/general-0/best.safetensors --name general --decoder balanced \\
        --bank banks/test-clean --bank banks/dev-clean --bank banks/music --bank banks/noise

The confidence is calibrated on recordings that no training has seen (`framesets.unseen_recordings`), with the
validation voices; the test sets take no part. Whatever depends on the weights is computed from the half-precision ones,
which are what ships.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import Progress

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.study.framesets import RATE, FrameSet, unseen_recordings
from qkgcc.nets import checkpoint
from qkgcc.nets.steered import Steered
from qkgcc.network import files, onnx_export
from qkgcc.network.card import Card
from qkgcc.network.registry import WEIGHTS
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs import decoding
from qkgcc.pairs.calibration import KEY, Calibration, Context, Curves, expected_calibration_error
from qkgcc.pairs.confidence import TOLERANCE
from qkgcc.pairs.decoding import DECODERS, Support
from qkgcc.pairs.evidence import prepare_frames
from qkgcc.pairs.neural import Model, Network

RATES = (RATE, 11025, 8000)
"""Hz, of recordings that there are curves for. The lower ones hold less than the network's band."""
STRIDES = (1, 2, 6)
"""A recording is also taken as if it had every second or every sixth of its frames only: users choose the hop, and the
curves are to hold for frames that overlap, that follow each other, and that are far apart."""
FINE = ("argmax", "mean", "quadratic")
"""Decoders of the highest peak, of which the card names the best unless another is asked for."""
SCENES = 1500
WITHIN = TOLERANCE * RATE + 1e-6
"""Samples. A hair more: a true delay of 3.0 answered with 2.0 is within a sample, however it is rounded."""


class Posterior(NamedTuple):
    """Of the frames of one recording, before any calibration."""

    rows: npt.NDArray[np.int64]
    """(T,) which frames of the set they are."""
    method: Network
    curve: Floats
    """(T, L)"""

    def delays(self, decoder: str) -> Floats:
        """(T,)"""
        return self.method.answered(self.curve, decoder)


class UncalibratedAnswers(NamedTuple):
    """What a network makes of frames before any calibration."""

    delays: Floats
    """(N,)"""
    own: Floats
    """(N,) the probability that the frame itself gives to its delay."""
    support: tuple[Support, ...]
    """For each of the `STRIDES`."""

    def right(self, given: FrameSet) -> Bools:
        """(N,) False where there is no true delay."""
        return np.asarray(np.abs(self.delays - given.delays) <= WITHIN)


def compute_posteriors(
    model: Model, given: FrameSet, rate: int, progress: Callable[[int], object] | None = None
) -> list[Posterior]:
    """As of recordings at a rate, which hold nothing above half of it. `progress` counts recordings."""
    whole, found = Network.of(model), []
    for sequence in np.unique(given.sequences):
        rows = np.flatnonzero(given.sequences == sequence)
        method = whole.limited(rate, float(given.limits[rows[0]]) / RATE, None)
        frames, _ = prepare_frames(method, given.frames[rows])
        found.append(Posterior(rows, method, method.decode(method.evidence(frames)).curve))
        if progress is not None:
            progress(1)
    return found


def decode_posteriors(found: Sequence[Posterior], given: FrameSet, decoder: str) -> UncalibratedAnswers:
    """The answers of a decoder, and what is around them."""
    delays, own = np.full((2, len(given)), np.nan)
    support = np.full((len(STRIDES), 2, len(given)), np.nan)
    for posterior in found:
        rows, method, curve = posterior
        delays[rows] = delay = posterior.delays(decoder)
        own[rows] = decoding.probability_near(curve, method.lags, delay, TOLERANCE * RATE)
        for stride, result in zip(STRIDES, support, strict=True):
            for first in range(min(stride, len(rows))):
                part = slice(first, None, stride)
                result[:, rows[part]] = decoding.support(
                    curve[part],
                    method.lags,
                    delay[part],
                    given.times[rows[part]],
                    tolerance=TOLERANCE * RATE,
                    frame=method.frame / method.sample_rate,
                )
    return UncalibratedAnswers(delays, own, tuple(Support(*result) for result in support))


def fit_curves(rate: int, answer: UncalibratedAnswers, given: FrameSet, rows: Bools) -> Curves:
    """From some of the frames, as far as they have a true delay."""
    asked = rows & np.isfinite(given.delays)
    right = answer.right(given)
    around = [asked & np.isfinite(support.agreeing) for support in answer.support]
    own, hits = (np.concatenate([column[some] for some in around]) for column in (answer.own, right))
    pairs = zip(answer.support, around, strict=True)
    support = Support(
        *(np.concatenate(part) for part in zip(*([x[some] for x in one] for one, some in pairs), strict=True))
    )
    return Curves(rate, Calibration.fit(answer.own[asked], right[asked]), Context.fit(own, support, hits))


def calibration_errors(
    curves: Curves, answer: UncalibratedAnswers, given: FrameSet, rows: Bools
) -> tuple[float, float]:
    """Expected calibration error of frames alone, and in their recordings: the mean over the `STRIDES`."""
    asked = rows & np.isfinite(given.delays)
    own, right = answer.own[asked], answer.right(given)[asked]
    together = [
        expected_calibration_error(curves(own, Support(*(part[asked] for part in support))), right)
        for support in answer.support
    ]
    return expected_calibration_error(curves.alone(own), right), float(np.mean(together))


def calibrate(
    model: Model, given: FrameSet, progress: Callable[[int], object] | None = None, decoder: str | None = None
) -> Card:
    """The network's card with its decoder (the finest, if none is given) and its curves for each rate.

    The curves are fitted to all recordings. How well they hold is measured on every other one, by curves of the rest.
    """
    asked = np.isfinite(given.delays)
    found = compute_posteriors(model, given, RATE, progress)
    order = np.concatenate([posterior.rows for posterior in found])
    error = {}
    for name in dict.fromkeys((*FINE, decoder or FINE[0])):
        answered = np.concatenate([posterior.delays(name) for posterior in found])
        error[name] = np.abs(answered - given.delays[order])
    # Of the answers that are right at all, the decoder that is nearest.
    near = np.all([value <= 2 * WITHIN for value in error.values()], axis=0)
    median = {name: float(np.median(value[near])) for name, value in error.items()}
    decoder = decoder or min(median, key=lambda name: median[name])
    halves = [given.groups % 2 == i for i in (0, 1)]
    curves, accuracy, alone, in_context = [], {}, {}, {}
    for rate in RATES:
        answer = decode_posteriors(
            found if rate == RATE else compute_posteriors(model, given, rate, progress), given, decoder
        )
        curves.append(fit_curves(rate, answer, given, asked))
        held = [
            calibration_errors(fit_curves(rate, answer, given, fit), answer, given, rest)
            for fit, rest in (halves, halves[::-1])
        ]
        alone[str(rate)], in_context[str(rate)] = np.mean(held, axis=0).round(4).tolist()
        accuracy[str(rate)] = round(100 * float(answer.right(given)[asked].mean()), 2)
    measured = {
        "decoder": decoder,
        KEY: [one.to_card() for one in curves],
        "unseen": {
            "frames": int(asked.sum()),
            "acc62us": accuracy,
            "expected_calibration_error": alone,
            "expected_calibration_error_in_context": in_context,
            "median_error": {name: round(value, 4) for name, value in median.items()},
        },
    }
    return dataclasses.replace(model.card, metrics=model.card.metrics | measured)


def ship(
    path: Path,
    name: str,
    given: FrameSet,
    folder: Path = WEIGHTS,
    progress: Callable[[int], object] | None = None,
    decoder: str | None = None,
) -> Card:
    """Write `name.safetensors` and `name.onnx` from a trained checkpoint; `progress` counts recordings at each rate."""
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
    bare = dataclasses.replace(card, name=name, metrics={k: v for k, v in card.metrics.items() if k != KEY})
    with tempfile.TemporaryDirectory() as temporary:
        checkpoint.save(model, Path(temporary) / "bare.safetensors", bare, torch.float16)
        card = calibrate(SteeredModel.load(Path(temporary) / "bare.safetensors"), given, progress, decoder)
    checkpoint.save(model, folder / f"{name}.safetensors", card, torch.float16)
    onnx_export.export(*files.read(folder / f"{name}.safetensors"), folder / f"{name}.onnx")
    return card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--bank", type=Path, action="append", required=True)
    parser.add_argument("--scenes", type=int, default=SCENES)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--decoder", choices=list(DECODERS), help="of its answers; by default the finest of its peaks'")
    arguments = parser.parse_args()
    with Progress() as progress:
        made = progress.add_task("unseen recordings", total=arguments.scenes)
        asked = progress.add_task("answers to them", total=len(RATES) * arguments.scenes)
        banks = [Bank.load(bank) for bank in arguments.bank]
        given = unseen_recordings(banks, arguments.scenes, progress=lambda count: progress.advance(made, count))
        card = ship(
            arguments.checkpoint,
            arguments.name,
            given,
            arguments.out,
            lambda count: progress.advance(asked, count),
            arguments.decoder,
        )
    print({key: card.metrics[key] for key in ("decoder", "unseen")})


if __name__ == "__main__":
    main()
