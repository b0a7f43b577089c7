"""Tracks of a whole recording, with what came after each moment: smoothed, joined, and without those too short to be.

Backward over the states that the filter left, Rauch's, Tung's and Striebel's recursion, in the tangent plane of each
prediction: with the filtered state x, its covariance P, the motion F and the prediction (x', P') of the next moment,

    J = P F' / P',   x_s[t] = x[t] + J (x_s[t+1] - x'),   P_s[t] = P[t] + J (P_s[t+1] - P') J'.

Whether a source speaks is smoothed by forward-backward over the evidence of the frames. A track that ended where
another began soon after is one source, whose id is the first one's.

H. E. Rauch, F. Tung, C. T. Striebel, "Maximum likelihood estimates of linear dynamic systems", AIAA J. 3(8), 1965.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import scipy.linalg

from qkgcc.core.checks import check_number, short_repr
from qkgcc.core.errors import InputError
from qkgcc.tracks.motion import Motion, State, angle_between, moved, way_to
from qkgcc.tracks.tracker import PAUSE, SPEAKING, Track

GAP = 5.0
"""Seconds of silence over which two tracks are joined, at most."""
NEAR = 15.0
"""Degrees between the end of one and the beginning of the other, at most."""
SHORTEST = 0.5
"""Seconds that a source speaks in all; what is shorter was none."""

Floats = npt.NDArray[np.float64]
Trajectory = list[Track]
"""One source, moment by moment."""


def smooth(history: Iterable[tuple[float, Sequence[Track]]], motion: Motion | None = None) -> list[Trajectory]:
    """The sources of a recording, by id, each from its first word to its last.

    Args:
        history: times of all frames and what `Tracker.update` answered.
        motion: that of the tracker.
    """
    try:
        frames = [(check_number("time of a frame", time, -1e9, 1e9, "s"), list(tracks)) for time, tracks in history]
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the history is {short_repr(history)}; expected times, each with its tracks") from None
    if motion is not None and not isinstance(motion, Motion):
        raise InputError(f"motion is {short_repr(motion)}; expected a Motion")
    times = [time for time, _ in frames]
    if any(later <= earlier for earlier, later in itertools.pairwise(times)):
        raise InputError("the times of a history must rise: give one recording at a time, in order")
    by_id: dict[int, Trajectory] = {}
    for _, tracks in frames:
        for track in tracks:
            own = by_id.setdefault(track.id, [])
            # A candidate that goes on as an older track was it since it began.
            past = [dataclasses.replace(moment, id=track.id) for moment in track.past]
            first = past[0].time if past else track.time
            while own and own[-1].time >= first:
                own.pop()
            own += [*past, track]
    step = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    smoothed = [_smoothed(track, motion or Motion()) for _, track in sorted(by_id.items())]
    whole = joined([heard for one in smoothed if (heard := trimmed(one))])
    return [one for one in whole if step * sum(moment.active for moment in one) >= SHORTEST]


def _smoothed(track: Trajectory, motion: Motion) -> Trajectory:
    # What was doubtful while it was a candidate is not so any more: it became a track.
    certain = np.maximum.accumulate([moment.probability for moment in track[::-1]])[::-1]
    return [
        dataclasses.replace(moment, state=state, probability=float(alive), speaking=float(speech * alive), past=())
        for moment, state, speech, alive in zip(track, _backward(track, motion), _speaking(track), certain, strict=True)
    ]


def _backward(track: Trajectory, motion: Motion) -> list[State]:
    states = [track[-1].state]
    for now, then in zip(track[-2::-1], track[:0:-1], strict=True):
        seconds = then.time - now.time
        predicted, (step, _) = motion.predict(now.state, seconds), motion.after(seconds)
        known, after = now.state.covariance, states[-1]
        back = known @ step.T @ np.linalg.inv(predicted.covariance)
        _, velocity = moved(after.direction, way_to(after.direction, predicted.direction), after.velocity)
        missed = np.stack([way_to(predicted.direction, after.direction), velocity - predicted.velocity])
        # The correction is a pair of tangent vectors at the prediction; carried to where the source was.
        home = way_to(predicted.direction, now.state.direction)
        correction = [moved(predicted.direction, home, part)[1] for part in back @ missed]
        direction, velocity = moved(now.state.direction, correction[0], now.state.velocity + correction[1])
        states.append(State(direction, velocity, known + back @ (after.covariance - predicted.covariance) @ back.T))
    return states[::-1]


def _speaking(track: Trajectory) -> Floats:
    """Probability of speech at each moment of one that is there. Shape: (T,)"""
    steps = np.diff([moment.time for moment in track])
    return speech(np.array([moment.evidence for moment in track]), steps.tolist(), 0.9)


def speech(evidence: Floats, seconds: float | Sequence[float], begins: float = 0.5) -> Floats:
    """Probability of speech from how much more probable it makes each frame: forward and backward. Shape: (T,)

    Args:
        seconds: from one frame to the next, or from each to the next.
        begins: probability of speech before anything is heard.
    """
    count = len(evidence)
    given = [seconds] * (count - 1) if isinstance(seconds, float) else seconds
    steps = [_transition(round(one, 6)) for one in given]
    seen = np.stack([np.ones(count), evidence], axis=1)
    forward, backward = [seen[0] * [1 - begins, begins]], [np.ones(2)]
    for step, one in zip(steps, seen[1:], strict=True):
        forward.append(_normed((forward[-1] @ step) * one))
    for step, one in zip(steps[::-1], seen[:0:-1], strict=True):
        backward.append(_normed(step @ (one * backward[-1])))
    both = np.array(forward) * np.array(backward[::-1])
    return np.asarray(both[:, 1] / both.sum(axis=1))


def _normed(values: Floats) -> Floats:
    return np.asarray(values / values.sum())


@functools.lru_cache(maxsize=64)
def _transition(seconds: float) -> Floats:
    """Of silent and speaking. (from, to)"""
    rates = np.array([[-1 / PAUSE, 1 / PAUSE], [1 / SPEAKING, -1 / SPEAKING]])
    return np.asarray(scipy.linalg.expm(rates * seconds))


def trimmed(track: Trajectory) -> Trajectory:
    """From its first word to its last."""
    heard = [number for number, moment in enumerate(track) if moment.active]
    return track[heard[0] : heard[-1] + 1] if heard else []


def joined(tracks: list[Trajectory]) -> list[Trajectory]:
    """Pieces of one source put together, the nearest first."""
    tracks = list(tracks)
    while True:
        fits = [
            (angle, a, b)
            for a, b in itertools.permutations(range(len(tracks)), 2)
            if 0 < tracks[b][0].time - tracks[a][-1].time <= GAP
            and (angle := float(angle_between(tracks[a][-1].direction, tracks[b][0].direction))) <= NEAR
        ]
        if not fits:
            return tracks
        _, a, b = min(fits)
        tracks[a] = tracks[a] + [dataclasses.replace(moment, id=tracks[a][0].id) for moment in tracks[b]]
        del tracks[b]
