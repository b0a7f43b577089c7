"""Delays of the pairs of an array for directions and places, and the sum of the pairs' curves at these delays.

A pair's delay is positive when its first microphone hears the source later: for a far source in the unit direction u,
tau = (m_j - m_i) . u / c; for a source at s, tau = (|s - m_i| - |s - m_j|) / c.

Both are one wavefront (`arrivals`): a source in direction u at the distance r = 1 / w from the origin reaches a
microphone at m earlier or later than the origin by f / c, where

    f = |u / w - m| - 1 / w = (w |m|^2 - 2 m.u) / (|u - w m| + 1)

The second form holds for w = 0, too, where it is the plane wave f = -m.u. So a fit treats the nearness w as a number
like the others, and nothing has to be decided between near and far. Delay of a pair in metres: f_i - f_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from qkgcc.arrays.geometry import Geometry
from qkgcc.core.types import SPEED_OF_SOUND, Floats

Pairs = Sequence[tuple[int, int]]

_MAX_PLANE_CURVATURE = 1e-4  # microphone distance times nearness, below which the derivative is that of a plane wave


def far_delays(geometry: Geometry, pairs: Pairs, directions: Floats, speed_of_sound: float = SPEED_OF_SOUND) -> Floats:
    """Seconds. Shape: (D, 3) unit vectors -> (pairs, D)

    >>> from qkgcc.arrays import array
    >>> far_delays(array("linear:2:0.343"), [(0, 1)], np.array([[0.0, 1.0, 0.0]]))  # from the left: the right is later
    array([[0.001]])
    """
    first, second = np.array(pairs).T
    return np.asarray((geometry.microphones[second] - geometry.microphones[first]) @ directions.T / speed_of_sound)


def near_delays(geometry: Geometry, pairs: Pairs, places: Floats, speed_of_sound: float = SPEED_OF_SOUND) -> Floats:
    """Seconds. Shape: (D, 3) metres, in the coordinates of the geometry -> (pairs, D)"""
    first, second = np.array(pairs).T
    path = np.linalg.norm(places[None] - geometry.microphones[:, None], axis=-1)
    return np.asarray((path[first] - path[second]) / speed_of_sound)


class Steering:
    """Adds up the curves of pairs, each at its own delay, for many places at once.

    Between the lags of a curve it is cubic (Catmull-Rom); beyond its ends, the end counts. A frame gets the same
    answer to the bit whichever frames stand beside it.

    Args:
        lags: (L,) of each pair in seconds, evenly spaced; a frame's curves stand one after the other in a row.
        delays: (pairs, D) seconds.
    """

    def __init__(self, lags: Sequence[Floats], delays: Floats) -> None:
        sizes = np.array([len(one) for one in lags])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        first, step = np.array([(one[0], one[1] - one[0]) for one in lags]).T[:, :, None]
        place = np.clip((delays - first) / step, 1, sizes[:, None] - 2 - 1e-9)
        whole = np.floor(place)
        f = place - whole
        weights = [
            -f * (1 - f) ** 2 / 2,
            (2 - 5 * f**2 + 3 * f**3) / 2,
            f * (1 + 4 * f - 3 * f**2) / 2,
            -(1 - f) * f**2 / 2,
        ]
        columns = starts[:-1, None, None] + whole[..., None].astype(np.intp) + np.arange(-1, 3)
        # A row for each place, in it four numbers for each pair.
        values, columns = (np.moveaxis(part, 0, 1).ravel() for part in (np.stack(weights, axis=-1), columns))
        count, in_row = delays.shape[1], 4 * len(lags)
        ends = np.arange(0, in_row * count + 1, in_row)
        self._matrix = scipy.sparse.csr_array((values, columns, ends), shape=(count, int(starts[-1])))

    def __call__(self, curves: npt.NDArray[Any]) -> Floats:
        """Shape: (T, K) -> (T, D), sums over the pairs; K the lags of all pairs"""
        return np.ascontiguousarray((self._matrix @ curves.T.astype(np.float64)).T)


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
    plane = np.abs(w) * np.sqrt(square) < _MAX_PLANE_CURVATURE
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
