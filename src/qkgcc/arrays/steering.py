"""Delays of the pairs of an array for places that a source may be at, and what evidence over lags says of them.

A pair's delay is positive when its first microphone hears the source later: for a far source in the unit direction u,
tau = (m_j - m_i) . u / c; for a source at s, tau = (|s - m_i| - |s - m_j|) / c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from qkgcc.arrays.geometry import Geometry
from qkgcc.core.types import SPEED_OF_SOUND

Floats = npt.NDArray[np.float64]
Pairs = Sequence[tuple[int, int]]


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
