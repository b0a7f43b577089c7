"""The place in a volume at which the curves of all pairs add up to most.

Two steps of `positions` are here, and one of its checks:

- `DelayHistogram` adds up what the frames of a block say of the delays of each pair. A network's posteriors are
  *summed* over frames: a histogram of delays for each pair, in which every talker has a peak, and so has a place that a
  talker walked through. Its curve is

      log(p / uniform + `HISTOGRAM_FLOOR`),

  which adds up over pairs: a pair that says nothing of a place, because it heard a reflection or another talker, costs
  that place little. Correlations have no such scale and are averaged, which is steered response power.
- `PlaceSearch` finds the place from coarse to fine. The curves are widened to the largest value within a cell's reach,
  so that no cell is left out only because its middle misses a narrow peak.
- `find_exchange`: are two microphones of a wide array exchanged? Then the pairs agree better on a place with the two in
  each other's places. In each of some blocks the best place is searched for in the given order and with every exchange
  of two microphones. An exchange that wins by more than chance is a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import combinations

import numpy as np
from scipy.ndimage import gaussian_filter1d, maximum_filter1d

from qkgcc.arrays.evidence import ArrayEvidence, ArrayFrames
from qkgcc.arrays.steering import Steering, near_delays
from qkgcc.arrays.wiring import Miswiring, exchange, same_shape
from qkgcc.core.types import Bools, Floats
from qkgcc.dsp.peaks import vertex

HISTOGRAM_FLOOR = 1.0
"""Added to a histogram of delays, which is 1 where it is uniform."""
SMOOTHING = 1e-4
"""Seconds, standard deviation of the smoothing of histograms: as wide as a frame's own error, 3 cm of path."""
EXPLAINED_DELAY = 5e-4
"""Seconds around the delays of a place in which that place explains the curves of the pairs."""
MIN_EXCHANGE_GAIN = 0.08
"""Share by which the pairs have to agree better on a place with two microphones exchanged; chosen on the validation
rooms of `benchmarks.wiring`."""
MIN_EXCHANGE_BLOCKS, MAX_EXCHANGE_BLOCKS = 3, 10
"""Blocks needed for a verdict on exchanges, and the most that are kept for it: those with the most frames."""

_COARSE, _FINE = 0.4, 0.01  # metres, sides of the first and last cells
_MAX_FIRST_CELLS = 30_000  # the first cells of a larger volume are larger
_DIVIDED_CELLS = 250  # the best cells, which are divided further
_NEAR_PATH = 0.25  # metres of path difference around a place, within which a pair's own delay is looked for
_FLAT_RANGE = 1e-6  # a curve that varies by no more says nothing: a microphone of its pair is dead
_CORNER_REACH = 0.7  # share of the largest delay change in a cell: few corners change the delays of all pairs so much
_TRIED_BLOCKS = 3  # after which an exchange is given up that fits no better than the given order


class DelayHistogram:
    """Histograms of the delays of all pairs over some frames; its memory does not grow with their number."""

    def __init__(self, evidence: ArrayEvidence) -> None:
        self._evidence = evidence
        self.frames = 0
        """Frames that are not silence."""
        self._sums = np.zeros(sum(len(lags) for lags in evidence.lags))

    def add(self, frames: ArrayFrames) -> None:
        curves = frames.curves[frames.heard]
        self.frames += len(curves)
        self._sums += (np.exp(curves) if self._evidence.kind == "posterior" else curves).sum(axis=0, dtype=np.float64)

    def join(self, other: DelayHistogram) -> None:
        """Add the frames of another of the same evidence."""
        self.frames += other.frames
        self._sums += other._sums

    @property
    def curves(self) -> Floats:
        """Curves of all pairs, one after the other. Shape: (K,)"""
        mean = self._sums / max(1, self.frames)
        if self._evidence.kind != "posterior":
            return mean
        parts = []
        for lags, part in zip(self._evidence.lags, self._evidence.split(mean), strict=True):
            smooth = gaussian_filter1d(part, SMOOTHING / (lags[1] - lags[0]), mode="nearest")
            parts.append(np.log(smooth * len(lags) + HISTOGRAM_FLOOR))
        return np.concatenate(parts)


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
        while np.prod(sides / self._side) > _MAX_FIRST_CELLS:
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

    def best_place(self, curves: Floats, apart: Sequence[Floats] = (), separation: float = 0.0) -> Floats | None:
        """The place at which they add up to most; None: there is none left.

        Args:
            apart: places that it has to be away from, by metres on the floor.
        Shape: (K,) -> (3,)
        """
        side, places, steering = self._side, self._cells, self._coarse
        while True:
            reach = _CORNER_REACH * side * np.sqrt(self._free.sum()) / self._speed  # twice the half of the diagonal
            totals = steering(self._widen(curves, reach)[None])[0]
            for other in apart:
                totals[np.linalg.norm((places - other)[:, :2], axis=1) < separation] = -np.inf
            if not np.isfinite(totals.max()):
                return None
            if side <= _FINE:
                return np.asarray(places[int(totals.argmax())])
            best = np.argsort(-totals)[:_DIVIDED_CELLS]
            side /= 2
            places = (places[best][:, None] + side / 2 * self._corners).reshape(-1, 3)
            steering = self.evidence.steering(self.delays(places))

    def mean_evidence(self, curves: Floats, place: Floats) -> float:
        """The mean of the curves at a place, over the pairs that say anything at all."""
        total = float(self.evidence.steering(self.delays(place[None]))(curves[None])[0, 0])
        living = self.informative_pairs(curves)
        flat = [float(curve[0]) for curve, lives in zip(self.evidence.split(curves), living, strict=True) if not lives]
        return (total - sum(flat)) / int(living.sum()) if living.any() else 0.0

    def informative_pairs(self, curves: Floats) -> Bools:
        """Which pairs say anything at all: those of a dead microphone do not. Shape: (P,)"""
        return np.array([np.ptp(curve) > _FLAT_RANGE for curve in self.evidence.split(curves)])

    def peak_agreement(self, curves: Floats, place: Floats) -> float:
        """How high the curves are at a place, above their medians and against their peaks: the mean over the pairs that
        say anything at all."""
        shares = []
        expected = self.delays(place[None])[:, 0]
        for lags, curve, tau in zip(self.evidence.lags, self.evidence.split(curves), expected, strict=True):
            middle = float(np.median(curve))
            above = float(curve.max()) - middle
            if np.ptp(curve) > _FLAT_RANGE:
                shares.append((float(curve[int(np.abs(lags - tau).argmin())]) - middle) / max(above, _FLAT_RANGE))
        return float(np.mean(shares)) if shares else 0.0

    def delays_near(self, curves: Floats, place: Floats) -> tuple[Floats, Floats]:
        """The peak of each pair's curve around its delay of a place, and how much it counts. Shape: (P,), (P,)"""
        delays, weights = [], []
        expected = self.delays(place[None])[:, 0]
        for lags, curve, tau in zip(self.evidence.lags, self.evidence.split(curves), expected, strict=True):
            near = np.flatnonzero(np.abs(lags - tau) <= _NEAR_PATH / self._speed)
            best = int(near[curve[near].argmax()]) if len(near) else int(np.abs(lags - tau).argmin())
            offset = 0.0
            if 0 < best < len(lags) - 1:
                offset = float(np.clip(vertex(*curve[best - 1 : best + 2]), -0.5, 0.5))
            delays.append(lags[best] + offset * (lags[1] - lags[0]))
            # How far the peak stands out: a curve that is higher elsewhere, or flat, counts for little.
            middle = float(np.median(curve))
            spread = float(curve.max()) - middle
            weights.append(max(0.0, float(curve[best]) - middle) / spread if spread > _FLAT_RANGE else 0.0)
        return np.array(delays), np.array(weights) ** 2

    def remove_place(self, curves: Floats, place: Floats) -> Floats:
        """The curves with what a place explains taken out of each: no more than their median there. Shape: (K,)"""
        left = curves.copy()
        expected = self.delays(place[None])[:, 0]
        for lags, curve, tau in zip(self.evidence.lags, self.evidence.split(left), expected, strict=True):
            near = np.abs(lags - tau) <= EXPLAINED_DELAY
            curve[near] = np.minimum(curve[near], np.median(curve))
        return left

    @cached_property
    def _coarse(self) -> Steering:
        return self.evidence.steering(self.delays(self._cells))

    def _widen(self, curves: Floats, reach: float) -> Floats:
        """Each value the largest within so many seconds."""
        parts = zip(self.evidence.lags, self.evidence.split(curves), strict=True)
        return np.concatenate(
            [maximum_filter1d(part, 2 * round(reach / (lags[1] - lags[0])) + 1, mode="nearest") for lags, part in parts]
        )


def find_exchange(search: PlaceSearch, blocks: list[Floats]) -> Miswiring | None:
    """The two microphones that seem to be exchanged; None: none, or nobody can tell.

    Args:
        blocks: the curves of the pairs in each (`DelayHistogram.curves`), at most `MAX_EXCHANGE_BLOCKS` of them.
    """
    evidence = search.evidence
    if evidence.kind != "posterior" or len(blocks) < MIN_EXCHANGE_BLOCKS:
        return None
    if len(evidence.geometry) < 5:  # any three delays of four meet somewhere
        return None
    given = tuple(range(len(evidence.geometry)))
    tried = [(i, j) for i, j in combinations(given, 2) if not same_shape(evidence.geometry, exchange(given, i, j))]
    agreed = np.array([_agreement(search, curves) for curves in blocks])
    gains: dict[tuple[int, int], float] = {}
    for pair in tried:
        sums = 0.0
        for count, curves in enumerate(blocks, start=1):
            sums += _agreement(search, _relabel(evidence, curves, exchange(given, *pair)))
            if count == _TRIED_BLOCKS and sums <= agreed[:_TRIED_BLOCKS].sum():
                break
        else:
            gains[pair] = 1 - agreed.sum() / sums
    best = max(gains, key=lambda pair: gains[pair], default=None)
    return None if best is None or gains[best] <= MIN_EXCHANGE_GAIN else Miswiring((), best)


def _agreement(search: PlaceSearch, curves: Floats) -> float:
    """How much the pairs speak for the best place: 0 where they say nothing."""
    place = search.best_place(curves)
    return 0.0 if place is None else search.mean_evidence(curves, place) - float(np.log1p(HISTOGRAM_FLOOR))


def _relabel(evidence: ArrayEvidence, curves: Floats, order: tuple[int, ...]) -> Floats:
    """Curves with channel i at microphone order[i]; what lies outside the lags of a pair is unknown. Shape: (K,)"""
    parts, numbers = evidence.split(curves), {pair: number for number, pair in enumerate(evidence.pairs)}
    made = []
    for lags, (i, j) in zip(evidence.lags, evidence.pairs, strict=True):
        first, second = order[i], order[j]  # an exchange is its own inverse
        number = numbers[min(first, second), max(first, second)]
        part = parts[number] if first < second else parts[number][::-1]
        middle = float(np.median(part))
        made.append(np.interp(lags, evidence.lags[number], part, left=middle, right=middle))
    return np.concatenate(made)
