"""Delays of all pairs of an array over time, for fits that take delays and not curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from qkgcc.arrays.calibration.refine import TOLERANCE, Moments
from qkgcc.arrays.evidence import wrong_channels
from qkgcc.arrays.geometry import Floats, Geometry
from qkgcc.audio import Recording
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.errors import InputError
from qkgcc.estimate import DelayEstimator
from qkgcc.methods import CLASSICAL

MOST = 300
"""Moments that are kept: the most confident of as many equal stretches of time."""
UNSURE = 0.2
"""Confidence below which a delay is not known."""

_FRAME = 0.256  # seconds of a classical method's frame: a walk is no farther than a hand's breadth in it


def measure_moments(
    recording: Recording,
    geometry: Geometry,
    method: str | Path = "phat",
    *,
    tolerance: float = TOLERANCE,
    latest: float = 0.0,
    speed_of_sound: float = SPEED_OF_SOUND,
    progress: Callable[[float], object] | None = None,
) -> Moments:
    """Delays of each pair, weighted by their confidence, at the moments that are clearest.

    Args:
        tolerance: metres by which the places may be off; delays up to four times that beyond the spacing are looked
            for.
        latest: seconds by which a channel may be late of its own.
    """
    if len(recording.channels) != len(geometry):
        raise InputError(wrong_channels(recording.name, len(recording.channels), geometry))
    delays, weights = [], []
    times: Floats = np.empty(0)
    for count, (first, second) in enumerate(geometry.pairs):
        reach = (geometry.spacing(first, second) + 4 * tolerance) / speed_of_sound + latest
        frame = _FRAME if str(method) in CLASSICAL else None
        estimator = DelayEstimator(method, max_delay=reach, frame=frame, hop=_FRAME / 2, threads=1)
        answer = estimator(recording.pick([first, second]), curve=False)
        times = answer.times
        known = np.isfinite(answer.delay_seconds) & (answer.confidence >= UNSURE)
        delays.append(np.where(known, answer.delay_seconds, 0.0))
        weights.append(np.where(known, answer.confidence, 0.0))
        if progress is not None:
            progress((count + 1) / len(geometry.pairs))
    delay, weight = np.stack(delays, axis=1), np.stack(weights, axis=1)
    chosen = [
        int(part[weight[part].sum(axis=1).argmax()])
        for part in np.array_split(np.arange(len(times)), MOST)
        if len(part)
    ]
    chosen = [moment for moment in chosen if weight[moment].any()]
    return Moments(times[chosen], tuple(geometry.pairs), delay[chosen], weight[chosen])
