"""Sources of a block, found in the block and the seconds around it: sources stand or walk, and do not vanish between.

In the seconds around a block, each source is taken to go along a straight line, azimuth(t) = a + v (t - middle of the
block). Every frame is of one of the N sources or of none, so that its likelihood, against that of a frame which says
nothing, is

    1 + `SOURCE_TO_NOISE_LIKELIHOOD` * sum over sources of C p_t(a + v (t - middle)),

p_t: the frame's distribution over C cells.

The lines are those for which the sum of its logarithms over the frames is largest, frames weighted by how sure they are
and by their distance from the block. They are found one after the other, each for the gain that it adds to those before
it, then each anew against all others. Without that exclusion a line that crosses the places of two talkers, of each for
a while, would be as good as a talker; and a histogram of the same seconds smears whoever walks.

In the last block, after which nothing is heard, a track without support from its own frames is held still, so that it
does not drift past the last speech.

A line is followed along cells, so this is for the grids circle and line; blocks of a sphere answer for themselves.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from qkgcc.arrays.grids import STEP, Grid
from qkgcc.arrays.maps import MIN_SEPARATION, NEAR_ANGLE, SILENT_SHARE, FrameMaps
from qkgcc.core.types import Bools, Floats, Indices
from qkgcc.dsp.peaks import vertex
from qkgcc.tracks.ridges import sharpen, talker_ridges

CONTEXT = 2.0
"""Seconds before and after a block that are heard with it."""
MAX_CONTEXT_BLOCK = 2.0
"""Seconds: in longer blocks sources do not keep to a straight line, so these are answered without context."""
ADJACENT_WEIGHT = 0.4
"""Weight of a frame right beside the block, against 1 of one in it; it falls to 0 at `CONTEXT`. All of them together
count less than a block of a second: whoever speaks in that alone is still its source."""
SOURCE_TO_NOISE_LIKELIHOOD = 10.0
"""How much likelier a frame is of a source than of none."""
TRIED_RATES = np.arange(-48.0, 49.0, 8.0)
"""Degrees per second."""
MAX_RATE_PENALTY = 0.3
"""Share that the gain of a track of the largest rate is lowered by: people stand more often than they run."""

_BLUR = 2.0  # degrees by which what frames say is smeared: nobody's line is quite straight
_BLUR_REACH = 6  # cells to either side that it is smeared over
_TIME_ROUNDING = 1e-9  # seconds: a frame on the border is of the later block
_REFITS = 2  # times that each line is found anew against all others


class LinearTrack(NamedTuple):
    """The straight line of a source through the seconds around a block."""

    cell: float
    """Where it is in the middle of the block, between the cells."""
    rate: float
    """Degrees per second."""
    share: float
    """Of the distribution of the block's frames, what lies within `NEAR_ANGLE` degrees of it."""
    around: float
    """The same of all frames, by their weights."""
    frames: float
    """Expected number of the block's frames that are of this source."""


class Context:
    """Frames of the last seconds, and the lines of sources through them. Shape: T frames, C cells"""

    def __init__(self, grid: Grid, seconds: float) -> None:
        self.seconds = seconds
        self._wraps, self._cells, self.step = grid.kind == "circle", len(grid.cells), STEP[grid.kind]
        self._chance = grid.chance(NEAR_ANGLE)
        self._kept: deque[tuple[Floats, Floats, Floats]] = deque()

    def add(self, times: Floats, found: FrameMaps) -> None:
        if len(times):
            self._kept.append((times, found.weights, found.cells))

    def forget(self, before: float) -> None:
        """Drop what ends before a time."""
        while self._kept and self._kept[0][0][-1] < before:
            self._kept.popleft()

    def lines(self, first: float, last: float, count: int, *, may_drift: bool = True) -> list[LinearTrack]:
        """Up to so many sources of a block from `first` to `last` seconds, those with the most frames in it first.

        Args:
            may_drift: whether a line may move that the block's own frames support no more than by chance.
        """
        if not self._kept or not count:
            return []
        times, weights, cells = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        outside = np.maximum(first - times, times - last)
        inside = (times >= first - _TIME_ROUNDING) & (times < last - _TIME_ROUNDING)
        counts = weights * np.where(inside, 1.0, ADJACENT_WEIGHT * np.clip(1 - outside / self.seconds, 0, 1))
        some = counts > 0
        if not (some & inside).any():
            return []
        said = _spoken_share(counts, weights, inside), _spoken_share(counts, weights, some)
        frames = _Frames(self, cells[some], counts[some], times[some] - (first + last) / 2, inside[some], said)
        found: list[tuple[float, float]] = []
        while len(found) < count:
            line = frames.best(found)
            if line is None:
                break
            found.append(line)
        for number in list(range(len(found))) * (_REFITS if len(found) > 1 else 0):
            found[number] = frames.best(found[:number] + found[number + 1 :]) or found[number]
        for number, line in enumerate(found):
            if not may_drift and line[1] and frames.shares(line)[0] < self._chance:
                found[number] = frames.best(found[:number] + found[number + 1 :], still=True) or line
        own = frames.frame_counts(found)
        lines = [LinearTrack(*line, *frames.shares(line), some) for line, some in zip(found, own, strict=True)]
        return sorted(lines, key=lambda line: -line.frames)

    def wrap_cells(self, cells: Floats | Indices) -> Indices:
        """Cells as indices; beyond the ends of a line of directions, the one after the last."""
        rounded = np.rint(cells).astype(np.intp)
        if self._wraps:
            return np.asarray(rounded % self._cells)
        return np.where((rounded >= 0) & (rounded < self._cells), rounded, self._cells)

    def blur(self, cells: Floats) -> Floats:
        """What frames say of sources in each cell, smeared by a few degrees, for nobody's line is quite straight; of
        microphones on a line, with all that is thrown back of each (`tracks.ridges`). Shape: (T, C) -> same"""
        if not self._wraps:
            return np.asarray(sharpen(cells) @ talker_ridges(self._cells))
        offsets = np.arange(-_BLUR_REACH, _BLUR_REACH + 1)
        smear = np.exp(-0.5 * (offsets * self.step / _BLUR) ** 2)
        padded = np.pad(cells, ((0, 0), (_BLUR_REACH, _BLUR_REACH)), mode="wrap")
        out = np.zeros_like(cells)
        for first, part in enumerate(smear / smear.sum()):
            out += part * padded[:, first : first + self._cells]
        return out

    def cells_travelled(self, rate: float, times: Floats) -> Floats:
        """Cells that a source goes in some seconds."""
        return rate * times / self.step

    def apart(self, cell: float) -> Floats:
        """Degrees from a place to every cell."""
        away = np.abs(np.arange(self._cells) - cell)
        return np.asarray(self.step * (np.minimum(away, self._cells - away) if self._wraps else away))


def _spoken_share(counts: Floats, weights: Floats, some: Bools) -> float:
    """What some frames say of directions, against all that they could: `SILENT_SHARE` is what each says of none."""
    heard = some & (weights > 0)
    total = float(counts[heard].sum())
    return total / (total + SILENT_SHARE * float((counts[heard] / weights[heard]).sum()))


class _Frames:
    """The frames around one block, and how well lines explain them."""

    def __init__(
        self,
        context: Context,
        cells: Floats,
        counts: Floats,
        times: Floats,
        inside: Bools,
        said: tuple[float, float],
    ) -> None:
        self._context, self._cells, self._counts, self._times, self._inside = context, cells, counts, times, inside
        self._spoken_share = said
        number = cells.shape[1]
        self._likelier = (
            SOURCE_TO_NOISE_LIKELIHOOD * number * np.pad(context.blur(cells), ((0, 0), (0, 1)))
        )  # the last: beyond the ends
        start = np.arange(number) + np.zeros((len(times), 1))
        rows = (number + 1) * np.arange(len(times))[:, None]
        self._tried_cells = [
            rows + context.wrap_cells(start + context.cells_travelled(rate, times)[:, None]) for rate in TRIED_RATES
        ]

    def best(self, others: list[tuple[float, float]], *, still: bool = False) -> tuple[float, float] | None:
        """The line that adds most to some: its cell in the middle of the block, and its rate. `still`: if it stands."""
        context = self._context
        tried = [number for number, rate in enumerate(TRIED_RATES) if not (still and rate)]
        rates = TRIED_RATES[tried]
        explained = np.ones(len(self._times))
        for line in others:
            explained += self._likelier[np.arange(len(self._times)), self._cells_of(line)]
        gains = np.log1p(self._likelier / explained[:, None]).ravel()
        added = np.stack([self._counts @ gains[self._tried_cells[number]] for number in tried])
        value = added * (1 - MAX_RATE_PENALTY * np.abs(rates)[:, None] / np.abs(TRIED_RATES).max())
        top = value.max(axis=0)
        number, ended = np.arange(len(top)), np.append(top, -np.inf)
        peak = (top >= ended[context.wrap_cells(number - 1)]) & (top >= ended[context.wrap_cells(number + 1)])
        for cell, _ in others:
            peak &= context.apart(cell) >= MIN_SEPARATION
        if not peak.any():
            return None
        cell = int(np.where(peak, top, -np.inf).argmax())
        rate = int(value[:, cell].argmax())
        sides = context.wrap_cells(np.array([cell - 1, cell + 1]))
        if sides.max() == len(top):
            return float(cell), float(rates[rate])
        below, above = added[rate, sides]
        offset = float(np.clip(vertex(below, added[rate, cell], above), -0.5, 0.5))
        return cell + offset, float(rates[rate])

    def shares(self, line: tuple[float, float]) -> tuple[float, float]:
        """What is said within `NEAR_ANGLE` degrees of a line: of all in the block, and of all around it."""
        reach = int(NEAR_ANGLE / self._context.step)
        near = self._positions_of(line)[:, None] + np.arange(-reach, reach + 1)
        padded = np.pad(self._cells, ((0, 0), (0, 1)))
        said = np.take_along_axis(padded, self._context.wrap_cells(near), axis=1).sum(axis=1)
        counts, inside = self._counts, self._inside
        return (
            float(self._spoken_share[0] * (counts[inside] @ said[inside]) / counts[inside].sum()),
            float(self._spoken_share[1] * (counts @ said) / counts.sum()),
        )

    def frame_counts(self, lines: list[tuple[float, float]]) -> list[float]:
        """Of the frames of the block, how many each of some lines explains."""
        rows = np.arange(len(self._times))
        likelier = np.array([self._likelier[rows, self._cells_of(line)] for line in lines])
        shared = likelier / (1 + likelier.sum(axis=0))
        return [float(one) for one in shared[:, self._inside].sum(axis=1)]

    def _cells_of(self, line: tuple[float, float]) -> Indices:
        """The cell of a line in each frame."""
        return self._context.wrap_cells(self._positions_of(line))

    def _positions_of(self, line: tuple[float, float]) -> Floats:
        return line[0] + self._context.cells_travelled(line[1], self._times)
