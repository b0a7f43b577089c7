"""The place of a volume at which the curves of all pairs add up to most, and the next one without it.

It is searched from coarse to fine. The curves are widened to the largest value within a cell's reach, so that no cell
is left out only because its middle misses a narrow peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d

from qkgcc.arrays.evidence import ArrayEvidence
from qkgcc.arrays.steering import Steering, near_delays
from qkgcc.dsp.peaks import vertex

TAKEN = 5e-4
"""Seconds around the delays of a place in which the curves of the pairs are explained by it."""

_COARSE, _FINE = 0.4, 0.01  # metres, sides of the first and last cells
_MOST = 30_000  # first cells: those of a larger volume are larger
_KEPT = 250  # cells that are divided further
_AROUND = 0.25  # metres of difference of ways around a place, within which a pair's own delay is looked for
_FLAT = 1e-6  # a curve that differs by no more says nothing: a microphone of its pair is dead
_REACH = 0.7  # of the farthest that a cell's corner can change a delay: few corners change those of all pairs so much

Floats = npt.NDArray[np.float64]


class PlaceSearch:
    """For one evidence and one volume: it has no memory.

    Args:
        volume: (3, 2) metres, the lowest and highest front, left and up; a height that is known is both.
    """

    def __init__(self, evidence: ArrayEvidence, volume: Floats, speed_of_sound: float) -> None:
        self.evidence, self._speed = evidence, speed_of_sound
        self._free = volume[:, 1] > volume[:, 0]
        sides = (volume[:, 1] - volume[:, 0])[self._free]
        self._side = _COARSE
        while np.prod(sides / self._side) > _MOST:
            self._side *= 2
        axes = [
            np.arange(low + self._side / 2, high + self._side / 2, self._side) if free else np.array([low])
            for (low, high), free in zip(volume, self._free, strict=True)
        ]
        self._cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
        corners = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], dtype=np.float64)
        self._corners = np.unique(corners * self._free, axis=0)

    def delays(self, places: Floats) -> Floats:
        """Seconds. Shape: (D, 3) -> (pairs, D)"""
        return near_delays(self.evidence.geometry, self.evidence.pairs, places, self._speed)

    def best(self, curves: Floats, apart: Sequence[Floats] = (), separation: float = 0.0) -> Floats | None:
        """The place at which they add up to most; None: there is none left.

        Args:
            apart: places that it has to be away from, by metres on the floor.
        Shape: (K,) -> (3,)
        """
        side, places, steering = self._side, self._cells, self._coarse
        while True:
            reach = _REACH * side * np.sqrt(self._free.sum()) / self._speed  # twice the half of the diagonal
            said = steering(self._widened(curves, reach)[None])[0]
            for other in apart:
                said[np.linalg.norm((places - other)[:, :2], axis=1) < separation] = -np.inf
            if not np.isfinite(said.max()):
                return None
            if side <= _FINE:
                return np.asarray(places[int(said.argmax())])
            best = np.argsort(-said)[:_KEPT]
            side /= 2
            places = (places[best][:, None] + side / 2 * self._corners).reshape(-1, 3)
            steering = self.evidence.steering(self.delays(places))

    def said(self, curves: Floats, place: Floats) -> float:
        """The mean of the curves at a place, over the pairs that say anything at all."""
        total = float(self.evidence.steering(self.delays(place[None]))(curves[None])[0, 0])
        living = self.living(curves)
        flat = [float(curve[0]) for curve, lives in zip(self.evidence.split(curves), living, strict=True) if not lives]
        return (total - sum(flat)) / int(living.sum()) if living.any() else 0.0

    def living(self, curves: Floats) -> npt.NDArray[np.bool_]:
        """Which pairs say anything at all: those of a dead microphone do not. Shape: (P,)"""
        return np.array([np.ptp(curve) > _FLAT for curve in self.evidence.split(curves)])

    def reached(self, curves: Floats, place: Floats) -> float:
        """How high the curves are at a place, above their medians and against their peaks: the mean over the pairs that
        say anything at all."""
        shares = []
        expected = self.delays(place[None])[:, 0]
        for lags, curve, tau in zip(self.evidence.lags, self.evidence.split(curves), expected, strict=True):
            middle = float(np.median(curve))
            above = float(curve.max()) - middle
            if np.ptp(curve) > _FLAT:
                shares.append((float(curve[int(np.abs(lags - tau).argmin())]) - middle) / max(above, _FLAT))
        return float(np.mean(shares)) if shares else 0.0

    def delays_near(self, curves: Floats, place: Floats) -> tuple[Floats, Floats]:
        """The peak of each pair's curve around its delay of a place, and how much it counts. Shape: (P,), (P,)"""
        delays, weights = [], []
        expected = self.delays(place[None])[:, 0]
        for lags, curve, tau in zip(self.evidence.lags, self.evidence.split(curves), expected, strict=True):
            near = np.flatnonzero(np.abs(lags - tau) <= _AROUND / self._speed)
            best = int(near[curve[near].argmax()]) if len(near) else int(np.abs(lags - tau).argmin())
            offset = 0.0
            if 0 < best < len(lags) - 1:
                offset = float(np.clip(vertex(*curve[best - 1 : best + 2]), -0.5, 0.5))
            delays.append(lags[best] + offset * (lags[1] - lags[0]))
            # How far the peak stands out: a curve that is higher elsewhere, or flat, counts for little.
            middle = float(np.median(curve))
            spread = float(curve.max()) - middle
            weights.append(max(0.0, float(curve[best]) - middle) / spread if spread > _FLAT else 0.0)
        return np.array(delays), np.array(weights) ** 2

    def without(self, curves: Floats, place: Floats) -> Floats:
        """The curves with what a place explains taken out of each: no more than their median there. Shape: (K,)"""
        left = curves.copy()
        expected = self.delays(place[None])[:, 0]
        for lags, curve, tau in zip(self.evidence.lags, self.evidence.split(left), expected, strict=True):
            near = np.abs(lags - tau) <= TAKEN
            curve[near] = np.minimum(curve[near], np.median(curve))
        return left

    @cached_property
    def _coarse(self) -> Steering:
        return self.evidence.steering(self.delays(self._cells))

    def _widened(self, curves: Floats, reach: float) -> Floats:
        """Each value the largest within so many seconds."""
        parts = zip(self.evidence.lags, self.evidence.split(curves), strict=True)
        return np.concatenate(
            [maximum_filter1d(part, 2 * round(reach / (lags[1] - lags[0])) + 1, mode="nearest") for lags, part in parts]
        )
