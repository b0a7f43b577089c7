"""Every method on a set of frames, each as it is used: limited by the spacing, with its own sub-sample decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import INTERPOLATIONS
from qkgcc.lab.study.framesets import FRAME, RATE, FrameSet
from qkgcc.pairs.classical import TAPER, Classical
from qkgcc.pairs.decoding import peaks
from qkgcc.pairs.evidence import Frames, Method, prepared
from qkgcc.pairs.neural import Model, Network

Floats = npt.NDArray[np.float64]
_BATCH = 256  # frames at a time


@dataclass(frozen=True, eq=False)
class Answers:
    """N answers."""

    delays: Floats
    """(N,) samples."""
    confidence: Floats
    """(N,)"""
    peaks: Floats
    """(N, 2) the two highest peaks, samples: of the posterior, or of the correlation where it is positive."""


def classical(weighting: str, taper: float = TAPER) -> Callable[[float], Method]:
    """A weighting, for a largest delay in samples, of frames of which a share is tapered."""

    def limited(limit: float) -> Method:
        lag = gcc.lag_range(limit / RATE, RATE)
        return Classical(weighting, RATE, FRAME, lag, limit, None, gcc.BETA, INTERPOLATIONS[0], taper)

    return limited


def network(path: Path, decoder: str | None = None) -> Callable[[float], Method]:
    """A checkpoint, for a largest delay in samples. One that knows fewer delays answers with those."""
    return _limited(Network.load(path, decoder))


def of_model(model: Model, decoder: str | None = None) -> Callable[[float], Method]:
    """The same for a network that is not in a file yet."""
    return _limited(Network.of(model, decoder))


def _limited(whole: Network) -> Callable[[float], Method]:
    furthest = float(np.max(whole.card.delays))

    def limited(limit: float) -> Method:
        seconds = (limit if whole.model.any_delay else min(limit, furthest)) / RATE
        return whole.limited(RATE, seconds, None)

    return limited


def answers(
    limited: Callable[[float], Method], given: FrameSet, *, progress: Callable[[int], object] | None = None
) -> Answers:
    """Delays and confidences of all frames; `progress` is called with the number of frames done since the last call."""
    delays, confidence = np.full((2, len(given)), np.nan)
    two = np.full((len(given), 2), np.nan)
    limits, which = np.unique(given.limits, return_inverse=True)
    for i, limit in enumerate(limits.tolist()):
        method = limited(limit)
        rows = np.flatnonzero(which == i)
        curves, beyond = np.empty((len(rows), len(method.lags))), np.empty(len(rows))
        for first in range(0, len(rows), _BATCH):
            here = slice(first, first + _BATCH)
            part = rows[here]
            frames: Frames = given.frames[part].astype(np.float64)
            if method.scaling == "utterance":
                frames = frames / given.levels[part, None, None]
            else:
                frames, _ = prepared(method, frames)
            evidence = method.evidence(frames.astype(np.float32))
            curves[here], delays[part], confidence[part], beyond[here] = method.decode(evidence)
            if isinstance(method, Network):
                two[part], _ = method.sources(curves[here], delays[part], 2)
            else:
                two[part], _ = peaks(np.maximum(curves[here], 0), method.lags, 2)
            if progress is not None:
                progress(len(part))
        if method.kind == "posterior":
            for sequence in np.unique(given.sequences[rows]):
                of = np.flatnonzero(given.sequences[rows] == sequence)
                at = rows[of]
                confidence[at] = method.in_context(curves[of], delays[at], confidence[at], beyond[of], given.times[at])
    return Answers(delays, confidence, two)
