"""How directions move: von Mises-Fisher densities on a circle or a sphere, with a velocity that fades.

A state is a direction u, its velocity v along the circle or sphere (a tangent vector, radians a second), and what is
known of the two: a covariance of position and velocity, the same along every tangent axis. Its position alone is the
von Mises-Fisher density of concentration 1 / (variance of the position),

    p(g) ~ exp(k (u.g - 1)).

The velocity is an Ornstein-Uhlenbeck process: it is forgotten over `memory` seconds and drawn anew with the spread
`speed`. In a second a talker keeps on walking; in ten, nobody knows. All functions take states of any leading shape.

J. Traa, P. Smaragdis, "Multiple speaker tracking with the factorial von Mises-Fisher filter", MLSP 2014.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkgcc.core.checks import check_number

Floats = npt.NDArray[np.float64]


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
        # Beyond `widest`, both are scaled alike: the two stay a covariance, and a direction never knows nothing.
        wide = np.sqrt(np.minimum(1.0, math.radians(self.widest) ** 2 / covariance[..., 0, 0]))[..., None]
        scale = np.concatenate([wide, np.ones_like(wide)], axis=-1)
        covariance = covariance * scale[..., :, None] * scale[..., None, :]
        direction, velocity = moved(state.direction, step[0, 1] * state.velocity, step[1, 1] * state.velocity)
        return State(direction, velocity, covariance)


def moved(direction: Floats, way: Floats, carried: Floats) -> tuple[Floats, Floats]:
    """The end of a geodesic, and a tangent vector carried along it without turning. Shape: (..., 3) each"""
    angle = np.linalg.norm(way, axis=-1, keepdims=True)
    along = way / np.where(angle > 0, angle, 1.0)
    end = np.cos(angle) * direction + np.sin(angle) * along
    end /= np.linalg.norm(end, axis=-1, keepdims=True)
    ahead = np.sum(carried * along, axis=-1, keepdims=True)
    carried = carried + ahead * ((np.cos(angle) - 1) * along - np.sin(angle) * direction)
    return end, carried - np.sum(carried * end, axis=-1, keepdims=True) * end


def way_to(direction: Floats, other: Floats) -> Floats:
    """The tangent vector that leads from a direction to another; none for the opposite one. Shape: (..., 3)"""
    cosine = np.clip(np.sum(direction * other, axis=-1, keepdims=True), -1, 1)
    across = other - cosine * direction
    sine = np.linalg.norm(across, axis=-1, keepdims=True)
    return np.asarray(across * np.arctan2(sine, cosine) / np.where(sine > 1e-12, sine, 1.0))


def angle_between(direction: Floats, other: Floats) -> Floats:
    """Degrees, precise for small angles too. Shape: (..., 3), (..., 3) -> (...)"""
    sine = np.linalg.norm(np.cross(direction, other), axis=-1)
    return np.asarray(np.degrees(np.arctan2(sine, np.sum(direction * other, axis=-1))))
