"""Are two microphones of a wide array exchanged? Then the pairs agree better on a place with the two in each other's
places.

In each of some blocks the place is searched for which all pairs speak most, with the given order and with every
exchange of two microphones. An exchange that wins by more than chance is a finding.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.delay_histogram import FLOOR
from qkgcc.arrays.evidence import ArrayEvidence
from qkgcc.arrays.search import PlaceSearch
from qkgcc.arrays.wiring import Miswiring, exchanged, same_shape

GAIN = 0.08
"""Share by which the pairs have to agree better on a place; chosen on the validation rooms of `benchmarks.wiring`."""
MIN_BLOCKS = 3
"""For a verdict."""
MAX_BLOCKS = 10
"""That are kept for it: those with the most frames."""
TRIED = 3
"""Blocks after which exchanges are given up that fit no better than the given order."""

Floats = npt.NDArray[np.float64]


def find_exchange(search: PlaceSearch, blocks: list[Floats]) -> Miswiring | None:
    """The two microphones that seem to be exchanged; None: none, or nobody can tell.

    Args:
        blocks: the curves of the pairs in each (`heard.DelaySums.curves`), at most `MAX_BLOCKS` of them.
    """
    evidence = search.evidence
    if evidence.kind != "posterior" or len(blocks) < MIN_BLOCKS:
        return None
    if len(evidence.geometry) < 5:  # any three delays of four meet somewhere
        return None
    given = tuple(range(len(evidence.geometry)))
    tried = [(i, j) for i, j in combinations(given, 2) if not same_shape(evidence.geometry, exchanged(given, i, j))]
    agreed = np.array([_agreement(search, curves) for curves in blocks])
    gains: dict[tuple[int, int], float] = {}
    for pair in tried:
        sums = 0.0
        for count, curves in enumerate(blocks, start=1):
            sums += _agreement(search, _relabelled(evidence, curves, exchanged(given, *pair)))
            if count == TRIED and sums <= agreed[:TRIED].sum():
                break
        else:
            gains[pair] = 1 - agreed.sum() / sums
    best = max(gains, key=lambda pair: gains[pair], default=None)
    return None if best is None or gains[best] <= GAIN else Miswiring((), best)


def _agreement(search: PlaceSearch, curves: Floats) -> float:
    """How much the pairs speak for the best place: 0 where they say nothing."""
    place = search.best(curves)
    return 0.0 if place is None else search.said(curves, place) - float(np.log1p(FLOOR))


def _relabelled(evidence: ArrayEvidence, curves: Floats, order: tuple[int, ...]) -> Floats:
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
