"""Are the microphones of an array wired as its geometry says: no two exchanged, none with its poles reversed?

The correlations of all pairs (GCC-PHAT, averaged over a second) are steered to every direction, and the largest mean S
is kept: for the given wiring, and for each other way in which the microphones might be wired. With a wrong order no
direction explains all delays, so another order has a larger S. The correlations of an inverted microphone are upside
down, so S grows when its sign is turned. An order that is the array itself, turned or mirrored, cannot be told from it
and is not tried.

Here microphones are near to each other, and sources far away (of a line, also near to it). Of microphones metres apart
see `arrays.search`.
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

WIDEST = 1.0
"""Metres across, up to which the sources of an array are taken to be far away."""
ORDER_GAIN, POLARITY_GAIN = 0.0065, 0.2
"""Share by which S of another wiring is larger than that of the given one, from which it is a finding. Chosen on the
validation rooms of `benchmarks.wiring`."""
ORDER_RISE = 0.0008
"""The same of an order as a difference: of faint sounds a share is soon large."""
FAINT = 0.03
"""S below which nothing is said: that of noise, in which each microphone hears its own, is smaller."""
MAX_MICROPHONES = 16
"""Of larger arrays a wrong one changes little, and the check would take longer than the answer."""
MIN_BLOCKS = 3
"""For a verdict."""
MISWIRED = 0.3
"""What confidences are multiplied by after a finding. With four microphones 8 to 51 % of the answers are right then; of
six and more with one inverted nearly all may be (benchmarks/results/wiring_confidence.md)."""

_BLOCK = 1.0  # seconds, and as much sound where there are gaps between frames
_BAND = (100.0, 7000.0)  # Hz
_FINER = 8  # lags in a sample
_DIRECTIONS = 3200
_NEAR = (0.25, 0.35, 0.5, 0.7, 1.0, 1.5, 2.5)  # metres to sources near to a line
_SMALL = 6  # microphones up to which more than one inverted one is looked for
_MANY = 8  # microphones, of more than which orders are compared in the likeliest directions alone: two that are
_LIKELIEST = 64  # exchanged change little there, and all directions would take long
_SAME = 0.05  # of the aperture, by which distances may differ

Floats = npt.NDArray[np.float64]


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
        distances = [math.inf] + [r for r in _NEAR if geometry.dimensions == 1 and r > geometry.aperture / 2]
        nearness = np.repeat(1 / np.array(distances), _DIRECTIONS)
        times = arrivals(centred, np.tile(sphere(_DIRECTIONS), (len(distances), 1)), nearness) / speed_of_sound
        steps = np.rint(times * rate * _FINER).astype(np.int64)
        self._arrivals = np.unique(steps - steps[:, :1], axis=0)
        """(D, M) of waves, in steps of the correlations; every wave once."""
        self._reach = int(np.ptp(self._arrivals, axis=1).max())
        self._orders = _orders(geometry)
        self._signs = _signs(count)
        self._block = max(round(_BLOCK * rate / hop), math.ceil(_BLOCK * rate / frame))
        self._window = np.hanning(frame)
        frequencies = np.fft.rfftfreq(frame, 1 / rate)
        self._band = (frequencies >= _BAND[0]) & (frequencies <= min(_BAND[1], 0.9 * highest))
        self._cross = np.zeros((len(pairs), int(self._band.sum())), np.complex128)
        self._frames = self._blocks = 0  # of this block; until now
        self.found: Miswiring | None = None
        """How the microphones seem to be wired; None: as the geometry says, or nobody can tell yet."""
        self._of_orders, self._of_signs = np.zeros(len(self._orders)), np.zeros(len(self._signs))

    @staticmethod
    def applies(geometry: Geometry) -> bool:
        """Whether the array is one that can be checked."""
        return geometry.aperture <= WIDEST and len(geometry) <= MAX_MICROPHONES

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
        return 1.0 if self.found is None else MISWIRED

    def copy(self) -> WiringCheck:
        """Another that has heard the same."""
        twin = copy.copy(self)
        twin._cross, twin._of_orders, twin._of_signs = self._cross.copy(), self._of_orders.copy(), self._of_signs.copy()
        return twin

    def _verdict(self) -> Miswiring | None:
        if self._blocks < MIN_BLOCKS:
            return None
        signs, orders = self._of_signs / self._blocks, self._of_orders / self._blocks
        if max(signs.max(), orders.max()) < FAINT:
            return None
        best = int(signs.argmax())
        if signs[best] >= orders.max() and signs[best] - signs[0] > POLARITY_GAIN * signs[best]:
            return Miswiring(tuple(int(i) for i in np.flatnonzero(self._signs[best] < 0)), ())
        best = int(orders.argmax())
        if orders[best] - orders[0] > max(ORDER_GAIN * orders[best], ORDER_RISE):
            return Miswiring((), tuple(i for i, place in enumerate(self._orders[best]) if i != place))
        return None

    def _finish(self) -> None:
        curves = self._curves()
        given = self._steered(curves, self._orders[0], self._arrivals)
        waves = self._arrivals
        if len(self._orders[0]) > _MANY:
            waves = waves[np.argsort(given.sum(axis=0))[-_LIKELIEST:]]
        self._of_orders += [self._steered(curves, order, waves).mean(axis=0).max() for order in self._orders]
        signs = self._signs[:, self._pairs[:, 0]] * self._signs[:, self._pairs[:, 1]]
        self._of_signs += (signs @ given).max(axis=1) / len(self._pairs)
        self._blocks += 1
        self._cross[:] = 0
        self._frames = 0

    def _curves(self) -> Floats:
        """Correlations within reach, 1 where both channels are the same. Shape: (P, 2 reach + 1)"""
        length = 2 * _FINER * (len(self._window) // 2)
        spectra = np.zeros((len(self._pairs), length // 2 + 1), np.complex128)
        spectra[:, np.flatnonzero(self._band)] = self._cross / self._frames
        whole = np.fft.irfft(spectra, length) * length / (2 * self._band.sum())
        return np.concatenate([whole[:, -self._reach :], whole[:, : self._reach + 1]], axis=1)

    def _steered(self, curves: Floats, order: tuple[int, ...], waves: npt.NDArray[np.int64]) -> Floats:
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
        others = [exchanged(given, i, j) for i, j in combinations(given, 2)]
    return [given, *(order for order in others if not same_shape(geometry, order))]


def exchanged(order: tuple[int, ...], i: int, j: int) -> tuple[int, ...]:
    """With two in each other's places.

    >>> exchanged((0, 1, 2), 0, 2)
    (2, 1, 0)
    """
    changed = list(order)
    changed[i], changed[j] = order[j], order[i]
    return tuple(changed)


def same_shape(geometry: Geometry, order: tuple[int, ...]) -> bool:
    """Whether microphones in an order are the array itself, turned or mirrored: then no delay tells it."""
    apart = np.linalg.norm(geometry.microphones[:, None] - geometry.microphones, axis=-1)
    return bool(np.abs(apart[np.ix_(order, order)] - apart).max() < _SAME * apart.max())


def _signs(count: int) -> npt.NDArray[np.float64]:
    """Upright first, then up to half of the microphones inverted, the fewest first. Shape: (S, M)"""
    most = count // 2 if count <= _SMALL else 1
    sets = [inverted for size in range(most + 1) for inverted in combinations(range(count), size)]
    signs = np.ones((len(sets), count))
    for row, inverted in zip(signs, sets, strict=True):
        row[list(inverted)] = -1
    return signs
