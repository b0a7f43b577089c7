"""When the sound of a source reaches each microphone, for sources near and far alike.

A source in direction u (a unit vector) at the distance r = 1 / w from the origin is heard by a microphone at m earlier
or later than at the origin by f / c, where

    f = |u / w - m| - 1 / w = (w |m|^2 - 2 m.u) / (|u - w m| + 1)

The second form holds for w = 0, too, where it is the plane wave f = -m.u. So the nearness w is a number like the others
of a fit, and nothing has to be decided between near and far. Delay of a pair in metres: f_i - f_j, positive = i later.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_PLANE = 1e-4  # times the nearness, below which the derivative is that of a plane wave


def arrivals(microphones: Floats, direction: Floats, nearness: Floats) -> Floats:
    """f in metres. Shape: (M, 3), (B, 3), (B,) -> (B, M)

    >>> at = np.array([[0.5, 0.0, 0.0], [-0.5, 0.0, 0.0]])
    >>> arrivals(at, np.array([[1.0, 0, 0]]), np.array([0.0])).tolist()  # far in front: the first hears it earlier
    [[-0.5, 0.5]]
    """
    along = direction @ microphones.T
    square = (microphones**2).sum(axis=1)
    away = np.linalg.norm(direction[:, None] - nearness[:, None, None] * microphones, axis=-1)
    return np.asarray((nearness[:, None] * square - 2 * along) / (away + 1))


def derivatives(
    microphones: Floats, direction: Floats, nearness: Floats
) -> tuple[Floats, Floats, tuple[Floats, Floats]]:
    """f, by the place of its microphone, and by the source: two steps across the direction, and the nearness.

    Shape: (M, 3), (B, 3), (B,) -> (B, M), (B, M, 3), ((B, M, 3), (B, 2, 3)); the last are the two steps
    """
    f = arrivals(microphones, direction, nearness)
    q = direction[:, None] - nearness[:, None, None] * microphones
    away = np.maximum(np.linalg.norm(q, axis=-1), 1e-9)
    by_place = -q / away[..., None]
    steps = across(direction)
    by_source = np.empty_like(by_place)
    by_source[..., :2] = -np.einsum("bsx,mx->bms", steps, microphones) / away[..., None]
    square, along = (microphones**2).sum(axis=1), direction @ microphones.T
    w = nearness[:, None]
    curved = (-(np.einsum("bmx,mx->bm", q, microphones)) / away - f) / np.maximum(w, 1e-12)
    plane = np.abs(w) * np.sqrt(square) < _PLANE
    by_source[..., 2] = np.where(plane, (square - along**2) / 2, curved)
    return f, by_place, (by_source, steps)


def across(direction: Floats) -> Floats:
    """Two unit vectors at right angles to each direction and to each other. Shape: (B, 3) -> (B, 2, 3)"""
    least = np.eye(3)[np.abs(direction).argmin(axis=1)]
    first = np.cross(direction, least)
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    return np.stack([first, np.cross(direction, first)], axis=1)


def sphere(count: int) -> Floats:
    """Directions that are spread evenly (a Fibonacci spiral). Shape: (count, 3)"""
    up = 1 - (2 * np.arange(count) + 1) / count
    turn = np.pi * (3 - np.sqrt(5)) * np.arange(count)
    flat = np.sqrt(1 - up**2)
    return np.stack([flat * np.cos(turn), flat * np.sin(turn), up], axis=1)


def nearest_wavefronts(
    microphones: Floats, pairs: npt.NDArray[np.int64], delays: Floats, weights: Floats, nearness: Floats, count: int
) -> tuple[Floats, Floats]:
    """Of a grid of directions and nearnesses, the one whose delays miss by the least (the weighted sum of amounts).

    Shape: (M, 3), (P, 2), (B, P) metres, (B, P), (W,) -> (B, 3), (B,)
    """
    directions = sphere(count)
    u, w = np.tile(directions, (len(nearness), 1)), np.repeat(nearness, count)
    f = arrivals(microphones, u, w)
    expected = (f[:, pairs[:, 0]] - f[:, pairs[:, 1]]).astype(np.float32)
    seen, counted = delays.astype(np.float32), weights.astype(np.float32)
    best = np.array(
        [
            int(np.argmin(np.abs(expected - row) @ weight))
            for row, weight in zip(seen, counted, strict=True)
        ],
        dtype=np.int64,
    )  # fmt: skip
    return u[best], w[best]
