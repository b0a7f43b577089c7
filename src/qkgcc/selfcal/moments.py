"""Delays of all pairs of an array over time, for fits that take delays and not curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from qkgcc.arrays.evidence import check_microphones, dead_microphone_warning, mostly_dead
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.presets import array
from qkgcc.audio.frames import Framer
from qkgcc.audio.recording import Recording, as_recording
from qkgcc.core.checks import check_callback, check_method, check_number, check_speed
from qkgcc.core.types import SILENCE, SPEED_OF_SOUND, Floats
from qkgcc.delay.estimator import NOTABLE, DelayEstimator
from qkgcc.network.registry import CLASSICAL
from qkgcc.pairs.frontend import dead_microphones
from qkgcc.selfcal.refine import TOLERANCE, Moments, check_tolerance

MOST = 300
"""Moments that are kept: the most confident of as many equal stretches of time."""
UNSURE = 0.2
"""Confidence below which a delay is not known."""

_FRAME = 0.256  # seconds of a classical method's frame: a walk is no farther than a hand's breadth in it


def measure_moments(
    recording: Recording | str | Path,
    geometry: Geometry | str | Path,
    method: str | Path = "phat",
    *,
    tolerance: float = TOLERANCE,
    latest: float = 0.0,
    speed_of_sound: float = SPEED_OF_SOUND,
    progress: Callable[[float], object] | None = None,
) -> Moments:
    """Delays of each pair, weighted by their confidence, at the moments that are clearest.

    A microphone that is dead in nearly all of the recording has no delays.

    Args:
        recording: a `Recording`, or the path of one.
        geometry: a `Geometry`, or what `qkgcc.arrays.array` takes.
        tolerance: metres by which the places may be off; delays up to four times that beyond the spacing are looked
            for.
        latest: seconds by which a channel may be late of its own.
    """
    check_callback("progress", progress)
    recording, geometry, method = as_recording(recording), array(geometry), check_method(method)
    tolerance, speed_of_sound = check_tolerance(tolerance), check_speed(speed_of_sound)
    latest = check_number("largest offset of a channel", latest, 0, 1, "s")
    check_microphones(recording, geometry)
    dead, warnings = _dead_microphones(recording)
    delays: list[Floats | None] = []
    weights: list[Floats | None] = []
    times: Floats = np.empty(0)
    for count, (first, second) in enumerate(geometry.pairs):
        if first in dead or second in dead:
            delays.append(None)
            weights.append(None)
            continue
        reach = (geometry.spacing(first, second) + 4 * tolerance) / speed_of_sound + latest
        frame = _FRAME if method in CLASSICAL else None
        estimator = DelayEstimator(method, max_delay=reach, frame=frame, hop=_FRAME / 2, threads=1)
        answer = estimator(recording.pick([first, second]), curve=False)
        times = answer.times
        known = np.isfinite(answer.delay_seconds) & (answer.confidence >= UNSURE)
        delays.append(np.where(known, answer.delay_seconds, 0.0))
        weights.append(np.where(known, answer.confidence, 0.0))
        if progress is not None:
            progress((count + 1) / len(geometry.pairs))
    nothing = np.zeros(len(times))
    delay, weight = (np.stack([nothing if one is None else one for one in some], axis=1) for some in (delays, weights))
    chosen = [
        int(part[weight[part].sum(axis=1).argmax()])
        for part in np.array_split(np.arange(len(times)), MOST)
        if len(part)
    ]
    chosen = [moment for moment in chosen if weight[moment].any()]
    return Moments(times[chosen], tuple(geometry.pairs), delay[chosen], weight[chosen], dead, warnings)


def _dead_microphones(recording: Recording) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Those that are dead in nearly all frames, and a sentence about each that is so in more than a few."""
    size = max(1, round(_FRAME * recording.sample_rate))
    framer, heard = Framer(size, size), 0
    dead = np.zeros(len(recording.channels), np.int64)
    for block in recording.blocks():
        for frames in framer.push(block):
            power = np.var(frames, axis=-1, dtype=np.float64)
            loud = np.sqrt(power.max(axis=-1)) >= SILENCE
            heard += int(loud.sum())
            dead += dead_microphones(power)[loud].sum(axis=0)
    said = (dead_microphone_warning(int(one), int(dead[one]), heard) for one in np.flatnonzero(dead > NOTABLE * heard))
    return tuple(mostly_dead(dead, heard)), tuple(said)
