"""Are the microphones of an array wired as its geometry says: no two exchanged, none with its poles reversed?

The correlations of all pairs (GCC-PHAT, averaged over a second) are steered to every direction, and the largest mean S
is kept: for the given wiring, and for each other way in which the microphones might be wired. With a wrong order no
direction explains all delays, so another order has a larger S. The correlations of an inverted microphone are upside
down, so S grows when its sign is turned. An order that is the array itself, turned or mirrored, cannot be told from it
and is not tried.

Here microphones are near to each other, and sources far away (of a line, also near to it). Of microphones metres apart
see `search.find_exchange`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.steering import Pairs, arrivals, sphere
from qkgcc.core.types import Floats

MAX_FAR_FIELD_APERTURE = 1.0
"""Metres across, up to which the sources of an array are taken to be far away."""
MISWIRED_TRUST = 0.3
"""What confidences are multiplied by after a finding. With four microphones 8 to 51 % of the answers are right then; of
six and more with one inverted nearly all may be (benchmarks/results/wiring_confidence.md)."""


@dataclass(frozen=True)
class Tuning:
    """Constants of the check; gains were chosen on the validation rooms of `benchmarks.wiring`."""

    min_order_gain: float = 0.0065
    """Share by which S has to be larger for another order than for the given one to be a finding."""
    min_order_rise: float = 0.0008
    """The same as a difference: of faint sounds a share is soon large."""
    min_polarity_gain: float = 0.2
    """Share by which S has to be larger with microphones inverted."""
    min_response: float = 0.03
    """S below which nothing is said: that of noise, in which each microphone hears its own, is smaller."""
    min_blocks: int = 3
    """Blocks for a verdict."""
    max_microphones: int = 16
    """Of larger arrays a wrong one changes little, and the check would take longer than the answer."""
    block: float = 1.0
    """Seconds, and as much sound where there are gaps between frames."""
    band: tuple[float, float] = (100.0, 7000.0)
    """Hz."""
    lags_per_sample: int = 8
    directions: int = 3200
    near_distances: tuple[float, ...] = (0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.5)
    """Metres to sources that are tried near a line of microphones."""
    max_inverted_array: int = 6
    """Microphones up to which more than one inverted one is looked for."""
    max_all_directions: int = 8
    """Microphones up to which orders are compared in all directions. With more, two that are exchanged change little,
    and all directions would take long."""
    likeliest_directions: int = 64
    """In which orders are compared then."""
    shape_tolerance: float = 0.05
    """Share of the aperture by which the distances of two equal shapes may differ."""


TUNING = Tuning()


@dataclass(frozen=True)
class Miswiring:
    """How the microphones seem to be wired."""

    inverted: tuple[int, ...]
    exchanged: tuple[int, ...]
    """Those that are in each other's places; empty where some are inverted."""

    @property
    def sentence(self) -> str:
        """
        >>> Miswiring((2,), ()).sentence.partition(";")[0]
        'microphone 2 is probably inverted (reversed polarity): check its cable'
        >>> Miswiring((), (0, 1)).sentence.partition(":")[0]
        'microphones 0 and 1 are probably exchanged (or a mirror image of that)'
        """
        *first, last = self.inverted or self.exchanged
        names = f"microphones {', '.join(map(str, first))} and {last} are" if first else f"microphone {last} is"
        if self.inverted:
            what = f"{names} probably inverted (reversed polarity): check {'their cables' if first else 'its cable'}"
        else:
            how = "exchanged" if len(self.exchanged) == 2 else "in another order"
            what = f"{names} probably {how} (or a mirror image of that): check the cables and the order of the channels"
        return f"{what}; confidences are lowered, and `qkgcc doctor --array` tells more"


class WiringCheck:
    """Adds frames up to blocks, and compares wirings at the end of each.

    Args:
        rate: of the frames, in Hz.
        highest: Hz up to which they hold sound.
        frame, hop: samples.
    """

    def __init__(
        self,
        geometry: Geometry,
        pairs: Pairs,
        speed_of_sound: float,
        *,
        rate: int,
        highest: float,
        frame: int,
        hop: int,
    ) -> None:
        count = len(geometry)
        self._pairs = np.array(pairs)
        centred = geometry.microphones - geometry.microphones.mean(axis=0)
        # What stands right in front of a line bends its waves, as another order would.
        distances = [math.inf] + [
            r for r in TUNING.near_distances if geometry.dimensions == 1 and r > geometry.aperture / 2
        ]
        nearness = np.repeat(1 / np.array(distances), TUNING.directions)
        times = arrivals(centred, np.tile(sphere(TUNING.directions), (len(distances), 1)), nearness) / speed_of_sound
        steps = np.rint(times * rate * TUNING.lags_per_sample).astype(np.int64)
        self._arrivals = np.unique(steps - steps[:, :1], axis=0)
        """(D, M) of waves, in steps of the correlations; every wave once."""
        self._reach = int(np.ptp(self._arrivals, axis=1).max())
        self._orders = _orders(geometry)
        self._signs = _signs(count)
        self._block = max(round(TUNING.block * rate / hop), math.ceil(TUNING.block * rate / frame))
        self._window = np.hanning(frame)
        frequencies = np.fft.rfftfreq(frame, 1 / rate)
        self._band = (frequencies >= TUNING.band[0]) & (frequencies <= min(TUNING.band[1], 0.9 * highest))
        self._cross = np.zeros((len(pairs), int(self._band.sum())), np.complex128)
        self._frames = self._blocks = 0  # of this block; until now
        self.found: Miswiring | None = None
        """How the microphones seem to be wired; None: as the geometry says, or nobody can tell yet."""
        self._of_orders, self._of_signs = np.zeros(len(self._orders)), np.zeros(len(self._signs))

    @staticmethod
    def applies(geometry: Geometry) -> bool:
        """Whether the array is one that can be checked."""
        return geometry.aperture <= MAX_FAR_FIELD_APERTURE and len(geometry) <= TUNING.max_microphones

    def add(self, frame: npt.NDArray[np.floating]) -> None:
        """The next frame that is no silence; dead microphones are zeros. Shape: (M, n)"""
        spectra = np.fft.rfft((frame - frame.mean(axis=-1, keepdims=True)) * self._window)[:, self._band]
        size = np.abs(spectra)
        spectra = np.divide(spectra, size, out=np.zeros_like(spectra), where=size > 0)
        self._cross += spectra[self._pairs[:, 0]] * spectra[self._pairs[:, 1]].conj()
        self._frames += 1
        if self._frames == self._block:
            self._finish()
            self.found = self._verdict()

    @property
    def trust(self) -> float:
        """What confidences are multiplied by."""
        return 1.0 if self.found is None else MISWIRED_TRUST

    def copy(self) -> WiringCheck:
        """Another that has heard the same."""
        twin = copy.copy(self)
        twin._cross, twin._of_orders, twin._of_signs = self._cross.copy(), self._of_orders.copy(), self._of_signs.copy()
        return twin

    def _verdict(self) -> Miswiring | None:
        if self._blocks < TUNING.min_blocks:
            return None
        signs, orders = self._of_signs / self._blocks, self._of_orders / self._blocks
        if max(signs.max(), orders.max()) < TUNING.min_response:
            return None
        best = int(signs.argmax())
        if signs[best] >= orders.max() and signs[best] - signs[0] > TUNING.min_polarity_gain * signs[best]:
            return Miswiring(tuple(int(i) for i in np.flatnonzero(self._signs[best] < 0)), ())
        best = int(orders.argmax())
        if orders[best] - orders[0] > max(TUNING.min_order_gain * orders[best], TUNING.min_order_rise):
            return Miswiring((), tuple(i for i, place in enumerate(self._orders[best]) if i != place))
        return None

    def _finish(self) -> None:
        curves = self._curves()
        given = self._steer(curves, self._orders[0], self._arrivals)
        waves = self._arrivals
        if len(self._orders[0]) > TUNING.max_all_directions:
            waves = waves[np.argsort(given.sum(axis=0))[-TUNING.likeliest_directions :]]
        self._of_orders += [self._steer(curves, order, waves).mean(axis=0).max() for order in self._orders]
        signs = self._signs[:, self._pairs[:, 0]] * self._signs[:, self._pairs[:, 1]]
        self._of_signs += (signs @ given).max(axis=1) / len(self._pairs)
        self._blocks += 1
        self._cross[:] = 0
        self._frames = 0

    def _curves(self) -> Floats:
        """Correlations within reach, 1 where both channels are the same. Shape: (P, 2 reach + 1)"""
        length = 2 * TUNING.lags_per_sample * (len(self._window) // 2)
        spectra = np.zeros((len(self._pairs), length // 2 + 1), np.complex128)
        spectra[:, np.flatnonzero(self._band)] = self._cross / self._frames
        whole = np.fft.irfft(spectra, length) * length / (2 * self._band.sum())
        return np.concatenate([whole[:, -self._reach :], whole[:, : self._reach + 1]], axis=1)

    def _steer(self, curves: Floats, order: tuple[int, ...], waves: npt.NDArray[np.int64]) -> Floats:
        """What each pair says of plane waves, with channel i at microphone order[i]. Shape: ..., (D, M) -> (P, D)"""
        late = waves[:, order]
        lags = late[:, self._pairs[:, 0]] - late[:, self._pairs[:, 1]]
        return np.asarray(np.take_along_axis(curves, lags.T + self._reach, axis=1))


def _orders(geometry: Geometry) -> list[tuple[int, ...]]:
    """The given order, and others that can be told from it: all of up to four microphones, or the exchanges of two."""
    given = tuple(range(len(geometry)))
    if len(given) <= 4:
        others = sorted(permutations(given), key=lambda order: sum(a != b for a, b in zip(order, given, strict=True)))
    else:
        others = [exchange(given, i, j) for i, j in combinations(given, 2)]
    return [given, *(order for order in others if not same_shape(geometry, order))]


def exchange(order: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    """With two in each other's places.

    >>> exchange((0, 1, 2), 0, 2)
    (2, 1, 0)
    """
    changed = list(order)
    changed[i], changed[j] = order[j], order[i]
    return tuple(changed)


def same_shape(geometry: Geometry, order: tuple[int, ...]) -> bool:
    """Whether microphones in an order are the array itself, turned or mirrored: then no delay tells it."""
    apart = np.linalg.norm(geometry.microphones[:, None] - geometry.microphones, axis=-1)
    return bool(np.abs(apart[np.ix_(order, order)] - apart).max() < TUNING.shape_tolerance * apart.max())


def _signs(count: int) -> Floats:
    """Upright first, then up to half of the microphones inverted, the fewest first. Shape: (S, M)"""
    most = count // 2 if count <= TUNING.max_inverted_array else 1
    sets = [inverted for size in range(most + 1) for inverted in combinations(range(count), size)]
    signs = np.ones((len(sets), count))
    for row, inverted in zip(signs, sets, strict=True):
        row[list(inverted)] = -1
    return signs
