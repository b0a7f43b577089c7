"""How directions move: von Mises-Fisher densities on a circle or a sphere, with a velocity that fades.

A state is a direction u, its velocity v along the circle or sphere (a tangent vector, radians a second), and what is
known of the two: a covariance of position and velocity, the same along every tangent axis. Its position alone is the
von Mises-Fisher density of concentration 1 / (variance of the position),

    p(g) ~ exp(k (u.g - 1)).

The velocity is an Ornstein-Uhlenbeck process: it is forgotten over `memory` seconds and drawn anew with the spread
`speed`. In a second a talker keeps on walking; in ten, nobody knows. All functions take states of any leading shape.

Whether a source speaks is a hidden Markov model (`speech_transition`), whose probabilities over a whole recording are
those of the forward-backward algorithm (`speech_probability`). Both smoothers, that of states on the sphere and that of
angles along a path, take the step back in time of Rauch, Tung and Striebel (`smoother_step`): with the covariance P of
the filter, the motion F and the covariance P' of the prediction of the next moment,

    J = P F' / P',   x_s[t] = x[t] + J (x_s[t+1] - x'),   P_s[t] = P[t] + J (P_s[t+1] - P') J'.

H. E. Rauch, F. Tung, C. T. Striebel, "Maximum likelihood estimates of linear dynamic systems", AIAA J. 3(8), 1965.
J. Traa, P. Smaragdis, "Multiple speaker tracking with the factorial von Mises-Fisher filter", MLSP 2014.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from qkgcc.core.checks import check_number
from qkgcc.core.types import Floats


@dataclass(frozen=True)
class SpeechModel:
    """How talkers take turns: seconds that they usually speak, are silent, and stay when silent."""

    speaking: float = 1.5
    pause: float = 1.5
    life: float = 30.0


SPEECH = SpeechModel()


class State(NamedTuple):
    """Where something is and goes."""

    direction: Floats
    """(..., 3) unit vectors."""
    velocity: Floats
    """(..., 3) radians a second, at right angles to the direction."""
    covariance: Floats
    """(..., 2, 2) of position and velocity along each tangent axis, in radians and radians a second."""

    def part(self, which: Any) -> State:
        return State(self.direction[which], self.velocity[which], self.covariance[which])


@dataclass(frozen=True)
class Motion:
    """How sources move."""

    speed: float = 20.0
    """Degrees a second: how fast they usually are. 20 is for walkers; 8 tells people in chairs apart better."""
    memory: float = 1.0
    """Seconds after which they have usually changed it."""
    widest: float = 25.0
    """Degrees: the most that a direction spreads while nobody hears it."""

    def __post_init__(self) -> None:
        check_number("usual speed", self.speed, 1e-3, 720, "degrees a second")
        check_number("time that velocities are remembered", self.memory, 1e-3, 1e6, "s")
        check_number("widest spread", self.widest, 1, 90, "degrees")

    def after(self, seconds: float) -> tuple[Floats, Floats]:
        """What `seconds` make of position and velocity, F, and the covariance that they add, Q. (2, 2) each"""
        kept = math.exp(-seconds / self.memory)
        s, m = math.radians(self.speed), self.memory
        step = np.array([[1, m * (1 - kept)], [0, kept]])
        cross = s**2 * m * (1 - kept) ** 2
        noise = np.array(
            [
                [s**2 * m**2 * max(0.0, 2 * seconds / m - 3 + 4 * kept - kept**2), cross],
                [cross, s**2 * (1 - kept**2)],
            ]
        )
        return step, noise

    def predict(self, state: State, seconds: float) -> State:
        step, noise = self.after(seconds)
        covariance = step @ state.covariance @ step.T + noise
        scale = self.width_scale(covariance)
        covariance = covariance * scale[..., :, None] * scale[..., None, :]
        direction, velocity = move(state.direction, step[0, 1] * state.velocity, step[1, 1] * state.velocity)
        return State(direction, velocity, covariance)

    def width_scale(self, covariance: Floats) -> Floats:
        """What position and velocity are scaled by, so that no direction spreads beyond `widest`. Shape: (..., 2)

        Both parts of a covariance are scaled alike: it stays one.
        """
        wide = np.sqrt(np.minimum(1.0, math.radians(self.widest) ** 2 / covariance[..., 0, 0]))[..., None]
        return np.concatenate([wide, np.ones_like(wide)], axis=-1)


def move(direction: Floats, way: Floats, carried: Floats) -> tuple[Floats, Floats]:
    """The end of a geodesic, and a tangent vector carried along it without turning. Shape: (..., 3) each"""
    angle = np.linalg.norm(way, axis=-1, keepdims=True)
    along = way / np.where(angle > 0, angle, 1.0)
    end = np.cos(angle) * direction + np.sin(angle) * along
    end /= np.linalg.norm(end, axis=-1, keepdims=True)
    ahead = np.sum(carried * along, axis=-1, keepdims=True)
    carried = carried + ahead * ((np.cos(angle) - 1) * along - np.sin(angle) * direction)
    return end, carried - np.sum(carried * end, axis=-1, keepdims=True) * end


def tangent_towards(direction: Floats, other: Floats) -> Floats:
    """The tangent vector that leads from a direction to another; none for the opposite one. Shape: (..., 3)"""
    cosine = np.clip(np.sum(direction * other, axis=-1, keepdims=True), -1, 1)
    across = other - cosine * direction
    sine = np.linalg.norm(across, axis=-1, keepdims=True)
    return np.asarray(across * np.arctan2(sine, cosine) / np.where(sine > 1e-12, sine, 1.0))


def azimuth_elevation(directions: Floats) -> tuple[Floats, Floats]:
    """Degrees; azimuths from -180 to 180. Shape: (..., 3) -> (...,), (...,)"""
    front, left, up = np.moveaxis(directions, -1, 0)
    return np.degrees(np.arctan2(left, front)), np.degrees(np.arctan2(up, np.hypot(front, left)))


def angle_between(direction: Floats, other: Floats) -> Floats:
    """Degrees, precise for small angles too. Shape: (..., 3), (..., 3) -> (...)"""
    sine = np.linalg.norm(np.cross(direction, other), axis=-1)
    return np.asarray(np.degrees(np.arctan2(sine, np.sum(direction * other, axis=-1))))


def smoother_step(covariance: Floats, step: Floats, predicted: Floats, smoothed: Floats) -> tuple[Floats, Floats]:
    """One step back in time: the gain J of the correction, and the smoothed covariance, see above. Shape: (2, 2) each

    Args:
        covariance, predicted: of the filter now, and of its prediction of the next moment by the motion `step`.
        smoothed: of the next moment.
    """
    gain = covariance @ step.T @ np.linalg.inv(predicted)
    return gain, covariance + gain @ (smoothed - predicted) @ gain.T


@functools.lru_cache(maxsize=128)
def speech_transition(seconds: float, *, ends: bool) -> Floats:
    """Transition probabilities of a source after some seconds. (from, to)

    Args:
        ends: whether it may be gone. The states are then gone, silent and speaking; otherwise silent and speaking.
    """
    end = 1 / SPEECH.life if ends else 0.0
    speak, stop = 1 / SPEECH.pause, 1 / SPEECH.speaking
    rates = np.array([[0, 0, 0], [end, -end - speak, speak], [0, stop, -stop]])
    return np.asarray(scipy.linalg.expm((rates if ends else rates[1:, 1:]) * seconds))


def speech_probability(evidence: Floats, seconds: float | Sequence[float], prior: float = 0.5) -> Floats:
    """Probability of speech in each frame, by the forward-backward algorithm. Shape: (T,)

    Args:
        evidence: how much more probable each frame is if the source speaks.
        seconds: from one frame to the next, or from each to the next.
        prior: probability of speech before the first frame.
    """
    count = len(evidence)
    given = [seconds] * (count - 1) if isinstance(seconds, float) else seconds
    steps = [speech_transition(round(one, 6), ends=False) for one in given]
    seen = np.stack([np.ones(count), evidence], axis=1)
    forward, backward = [seen[0] * [1 - prior, prior]], [np.ones(2)]
    for step, frame in zip(steps, seen[1:], strict=True):
        forward.append(normalise((forward[-1] @ step) * frame))
    for step, frame in zip(steps[::-1], seen[:0:-1], strict=True):
        backward.append(normalise(step @ (frame * backward[-1])))
    both = np.array(forward) * np.array(backward[::-1])
    return np.asarray(both[:, 1] / both.sum(axis=1))


def normalise(values: Floats) -> Floats:
    """Values with the sum 1."""
    return np.asarray(values / values.sum())
