"""Two microphones that were exchanged, where delays are seldom clear: metres apart, in a room.

No single pair may have a clear delay there, but all pairs together agree on a place (steered response power): the
height of each pair's correlation is read at the delay that a place would have, and the largest sum is searched for.
With two microphones exchanged, no place is as good as with both where they belong. This is tried for every two of them;
an exchange that is better in nearly every second of the recording is found.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.ndimage

from qkgcc.core.types import Floats, Floats32
from qkgcc.dsp.long_lags import Excerpt, phat

BETTER, OFTEN = 1.08, 0.75
"""Times the sum of the given order, and share of the blocks, that an exchange needs. Right orders in simulated rooms
(T60 0.3 to 0.9, one talker or two): 1.04 and 0.55 at most; exchanged ones: 1.14 and 0.82 at least, but 1.12 and 0.67 of
two talkers at a T60 of 0.7, and 1.05 and 0.6 at 0.9."""
KNOWN = 1.1
"""Times the sum of a middling exchange that the given order has where it can be told from them: 1.14 and more, but 1.04
and less of two talkers at a T60 of 0.7 to 0.9."""

_BLOCK, _BLOCKS, _FEWEST = 1.0, 20, 5  # seconds, how many at most, and at least
_MOST = 12  # height that a pair counts at most
_BEYOND = 0.5  # metres around the microphones in which sources are looked for
_POINTS = 40_000  # of the grid
_FINE = 0.03  # metres between the points of the second look
_MICROPHONES = 10

Places = Floats


@dataclass(frozen=True)
class Exchange:
    better: float
    """Times the sum of the given order that the best exchange has."""
    often: float
    """Share of the blocks in which it is better."""
    given: float
    """Times the sum of a middling exchange that the given order has."""
    channels: tuple[int, int]
    blocks: int

    @property
    def found(self) -> bool:
        return self.better >= BETTER and self.often >= OFTEN

    @property
    def checked(self) -> bool:
        """Whether it would have been found."""
        return self.found or self.given >= KNOWN


def measure_exchange(part: Excerpt, channels: list[int], microphones: Places, speed_of_sound: float) -> Exchange | None:
    """The exchange of two channels that fits best; None for fewer than four or more than ten, or too short a sound.

    Args:
        microphones: of these channels. Shape: (M, 3)
    """
    count = len(channels)
    if not 4 <= count <= _MICROPHONES or part.seconds < (_FEWEST + 1) / 2 * _BLOCK:
        return None
    heard = _Heard(part, channels, microphones, speed_of_sound)
    given = heard.sums(tuple(range(count)))
    tried = []
    for i, j in combinations(range(count), 2):
        order = list(range(count))
        order[i], order[j] = j, i
        tried.append((heard.sums(tuple(order)), (channels[i], channels[j])))
    sums, who = max(tried, key=lambda one: float(one[0].mean()))
    level = max(float(given.mean()), 1e-9)
    middling = float(np.median([one.mean() for one, _ in tried]))
    return Exchange(
        float(sums.mean()) / level, float((sums > given).mean()), level / max(middling, 1e-9), who, len(given)
    )


class _Heard:
    """Correlations of all pairs in some blocks, and the places that are compared with them."""

    def __init__(self, part: Excerpt, channels: list[int], microphones: Places, speed_of_sound: float) -> None:
        self._microphones, self._samples = microphones, part.rate / speed_of_sound
        low, high = microphones.min(axis=0) - _BEYOND, microphones.max(axis=0) + _BEYOND
        self._step = float((np.prod(high - low) / _POINTS) ** (1 / 3))
        self._grid = _grid(low, high, self._step)
        self._pairs = list(combinations(range(len(channels)), 2))
        widest = max(float(np.linalg.norm(microphones[i] - microphones[j])) for i, j in self._pairs)
        self._reach = int(widest * self._samples) + 8
        length = round(_BLOCK * part.rate)
        total = part.samples.shape[1]
        starts = np.linspace(0, total - length, min(_BLOCKS, 2 * total // length - 1)).astype(int)
        self._sharp = np.stack(
            [
                [
                    np.clip(phat(part, (channels[i], channels[j]), int(start), length, self._reach), 0, _MOST)
                    for i, j in self._pairs
                ]
                for start in starts
            ]
        ).astype(np.float32)
        # A peak as wide as the grid is coarse, so that none falls between its points.
        wide = 2 * max(1, round(self._step * self._samples * 0.75)) + 1
        self._broad = scipy.ndimage.maximum_filter1d(self._sharp, wide, axis=-1)
        self._sharp = scipy.ndimage.maximum_filter1d(self._sharp, 3, axis=-1)

    def sums(self, order: tuple[int, ...]) -> Floats:
        """Of each block, the largest sum of any place, with channel i at microphone order[i]. Shape: (B,)"""
        away = np.linalg.norm(self._grid[:, None] - self._microphones[list(order)], axis=-1) * self._samples
        largest = []
        around = _grid(np.full(3, -self._step / 2), np.full(3, self._step / 2), _FINE)
        for broad, sharp in zip(self._broad, self._sharp, strict=True):
            best = self._grid[int(self._sum(broad, away).argmax())]
            near = np.linalg.norm((best + around)[:, None] - self._microphones[list(order)], axis=-1) * self._samples
            largest.append(float(self._sum(sharp, near).max()))
        return np.array(largest)

    def _sum(self, curves: Floats32, away: Floats) -> Floats32:
        """Shape: (P, lags), (N, M) samples -> (N,)"""
        total = np.zeros(len(away), np.float32)
        for curve, (i, j) in zip(curves, self._pairs, strict=True):
            total += curve[np.rint(away[:, i] - away[:, j]).astype(np.int64) + self._reach]
        return total


def _grid(low: Places, high: Places, step: float) -> Places:
    axes = [np.arange(a, b + step, step) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
