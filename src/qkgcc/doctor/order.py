"""The order of the channels of an array: do the delays fit the microphone positions, or would they in another order?

A far source in direction u (a unit vector) is heard by a microphone at p at the time -p.u / c. Of each block, the
delays of all pairs give one arrival time per channel; the closest plane wave is fitted to them, in the given order of
the microphones and in every other. The length of u is held to 1, or to at most 1 for arrays that are flat or straight
and cannot see all of it: without that, four microphones in space would fit in any order.

Sources are not far from microphones that are metres apart. For these, the closest wave is looked up in a library of
spherical ones (`arrays.steering`), from places all around and among them.

Some orders are as good as the given one for every direction (turning or mirroring a square). They are no finding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from qkgcc.arrays import Geometry
from qkgcc.arrays.steering import arrivals, sphere
from qkgcc.core.types import Floats
from qkgcc.dsp.long_lags import Track

MISFIT = (16e-6, 0.03)
"""RMS error of the given order from which another is preferred: seconds, and a share of the time across the array.
Clean: 1.3e-6 s at most on real recordings of a small array; wrong orders that are no mirror image: 16e-6 s and more."""
BETTER = 3.0
"""Times smaller that the error in the other order must be."""
WIDE = 1.0
"""Metres across, from which sources are taken to be near."""

_CLOSURE = 95e-6  # seconds by which the delays around a triangle may miss
_BLOCKS = 3  # that are needed
_ALL_ORDERS = 6  # microphones; of more than that, orders are searched step by step
_DIRECTIONS, _DISTANCES = 800, (0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.4, 2.0, 4.0)  # of the library; in sizes of the array
_MOST = 20  # blocks that are compared with it
_STARTS = 6  # orders that such a search begins with, where the given one does not fit

Waves = Callable[[Floats, Floats], Floats]
"""From arrival times of blocks, and microphones in an order, to those of the closest waves."""


@dataclass(frozen=True)
class Order:
    given: float
    """RMS error in seconds of the given order."""
    best: float
    channels: tuple[int, ...]
    microphones: tuple[int, ...]
    """Row of the geometry that each of these channels fits best."""
    blocks: int
    crossing: float
    """Seconds that sound needs to cross the array."""

    @property
    def wrong(self) -> bool:
        return self.given >= max(misfit(self.crossing), BETTER * self.best)


def measure_order(
    tracks: dict[tuple[int, int], Track], channels: list[int], geometry: Geometry, speed_of_sound: float
) -> Order | None:
    """None with fewer than three channels, or without enough blocks in which the delays of all pairs agree."""
    if len(channels) < 3:
        return None
    times = arrival_times(tracks, channels)
    if len(times) < _BLOCKS:
        return None
    positions = geometry.microphones[channels]
    wide = geometry.aperture > WIDE
    waves = _Library(positions, speed_of_sound) if wide else _Plane(speed_of_sound)
    if wide:
        times = times[:: -(-len(times) // _MOST)]

    def error_of(times: Floats, positions: Floats) -> float:
        left = times - waves(times, positions)
        return float(np.median(np.sqrt(np.mean(left**2, axis=1))))

    tried = [tuple(range(len(channels)))]
    if len(channels) <= _ALL_ORDERS:
        tried = sorted(permutations(range(len(channels))), key=_moved)
    errors = [error_of(times, positions[list(order)]) for order in tried]
    crossing = geometry.aperture / speed_of_sound
    if len(channels) > _ALL_ORDERS and errors[0] >= misfit(crossing):
        searched = _search(times, positions, waves, error_of)
        tried += sorted(searched, key=_moved)
        errors += [searched[order] for order in tried[1:]]
    # Equally good orders: the one that moves the fewest channels.
    chosen = int(np.flatnonzero(np.array(errors) <= 1.1 * min(errors) + 1e-6)[0])
    microphones = tuple(channels[i] for i in tried[chosen])
    return Order(errors[0], errors[chosen], tuple(channels), microphones, len(times), crossing)


def arrival_times(tracks: dict[tuple[int, int], Track], channels: list[int]) -> Floats:
    """Arrival times relative to their mean, of blocks in which the pairs agree. Shape: (blocks, M), in seconds."""
    pairs = list(combinations(range(len(channels)), 2))
    design = np.zeros((len(pairs), len(channels)))
    for row, (i, j) in enumerate(pairs):
        design[row, i], design[row, j] = 1, -1
    followed = [tracks[channels[i], channels[j]] for i, j in pairs]
    clear = np.stack([track.clear[:, 0] for track in followed], axis=1)
    delays = np.stack([track.delays[:, 0] for track in followed], axis=1)
    rows = []
    for known, delay in zip(clear, delays, strict=True):
        if known.sum() < len(channels) or np.linalg.matrix_rank(design[known]) < len(channels) - 1:
            continue  # no pair to spare that could show a mistake, or a channel left out
        times = np.linalg.lstsq(design[known], delay[known], rcond=None)[0]
        if np.abs(design[known] @ times - delay[known]).max() <= _CLOSURE:
            rows.append(times - times.mean())
    return np.array(rows).reshape(-1, len(channels))


class _Library:
    """Spherical waves around and among microphones."""

    def __init__(self, positions: Floats, speed_of_sound: float) -> None:
        self._positions = positions
        centred = positions - positions.mean(axis=0)
        size = float(np.linalg.norm(centred, axis=1).max())
        nearness = np.concatenate([[0.0], 1 / (size * np.array(_DISTANCES))])
        directions = sphere(_DIRECTIONS)
        waves = arrivals(centred, np.tile(directions, (len(nearness), 1)), np.repeat(nearness, _DIRECTIONS))
        self._waves = (waves - waves.mean(axis=1, keepdims=True)) / speed_of_sound

    def __call__(self, times: Floats, positions: Floats) -> Floats:
        """The waves closest to those of the blocks, for these microphones in another order. Shape: as `plane_waves`"""
        order = [int((self._positions == place).all(axis=1).argmax()) for place in positions]
        waves = self._waves[:, order]
        best = ((waves**2).sum(axis=1) - 2 * times @ waves.T).argmin(axis=1)
        return np.asarray(waves[best])


class _Plane:
    """The waves of far sources."""

    def __init__(self, speed_of_sound: float) -> None:
        self._speed = speed_of_sound

    def __call__(self, times: Floats, positions: Floats) -> Floats:
        return plane_waves(times, positions, self._speed)


def plane_waves(times: Floats, positions: Floats, speed_of_sound: float) -> Floats:
    """The arrival times of the plane waves closest to those of the blocks. Shape: (B, M), (M, 3) -> (B, M)

    The constrained least squares fit has the form (A'A + l) u = A't; |u| falls as l grows, so l is found by bisection.
    """
    design = -(positions - positions.mean(axis=0)) / speed_of_sound
    _, scale, axes = np.linalg.svd(design, full_matrices=False)
    seen = scale > 0.05 * scale[0]  # directions along which the array has any extent
    design, scale = design @ axes[seen].T, scale[seen] ** 2
    target = times @ design
    low = np.full(len(times), -scale.min() if seen.sum() == 3 else 0.0)
    high = np.linalg.norm(target, axis=1) + scale.max()
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", over="ignore"):
            long = (np.square(target / (scale + middle[:, None]))).sum(axis=1) > 1
        low, high = np.where(long, middle, low), np.where(long, high, middle)
    direction = target / (scale + high[:, None])
    return np.asarray(direction @ design.T)


def _search(
    times: Floats, positions: Floats, waves: Waves, error_of: Callable[[Floats, Floats], float]
) -> dict[tuple[int, ...], float]:
    """Orders of many microphones that fit, with their errors, from a few that they are reached from step by step.

    A step gives each channel the microphone whose arrival times are the closest to its own, all at once (the assignment
    problem), or, where that changes nothing, exchanges the two channels that gain most.
    """
    rng = np.random.default_rng(0)
    count = len(positions)
    found: dict[tuple[int, ...], float] = {}
    for start in range(_STARTS):
        order = tuple(range(count)) if start == 0 else tuple(int(i) for i in rng.permutation(count))
        error = error_of(times, positions[list(order)])
        while True:
            assigned = _assigned(times, positions, order, waves)
            steps = [assigned] if assigned != order else []
            errors = [error_of(times, positions[list(step)]) for step in steps]
            if not errors or min(errors) >= error:
                steps = [_exchanged(order, i, j) for i, j in combinations(range(count), 2)]
                errors = [error_of(times, positions[list(step)]) for step in steps]
            best = int(np.argmin(errors))
            if errors[best] >= 0.999 * error:
                break
            order, error = steps[best], errors[best]
        found[order] = error
    return found


def _assigned(times: Floats, positions: Floats, order: tuple[int, ...], waves: Waves) -> tuple[int, ...]:
    """The order in which channels lie closest to the waves that fit in the given one."""
    from scipy.optimize import linear_sum_assignment

    expected = np.empty_like(times)
    expected[:, list(order)] = waves(times, positions[list(order)])  # by microphone
    cost = ((times[:, :, None] - expected[:, None]) ** 2).sum(axis=0)
    return tuple(int(i) for i in linear_sum_assignment(cost)[1])


def _exchanged(order: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    changed = list(order)
    changed[i], changed[j] = order[j], order[i]
    return tuple(changed)


def misfit(crossing: float) -> float:
    """Seconds from which delays do not fit an array that sound needs so long to cross."""
    return max(MISFIT[0], MISFIT[1] * crossing)


def _moved(order: tuple[int, ...]) -> int:
    return sum(place != channel for place, channel in enumerate(order))
