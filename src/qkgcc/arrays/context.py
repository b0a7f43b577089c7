"""Blocks that are heard with the seconds around them: sources stand or walk, and do not vanish between two blocks.

In the seconds around a block, each source is taken to go along a straight line, azimuth(t) = a + v (t - middle of the
block). Every frame is of one of the N sources or of none, so that its likelihood, against that of a frame which says
nothing, is

    1 + `HEARD` * sum over sources of C p_t(a + v (t - middle)),    p_t: the frame's distribution over C cells.

The lines are those for which the sum of its logarithms over the frames is largest, frames weighted by how sure they are
and by their distance from the block. They are found one after the other, each for the gain that it adds to those before
it, then each anew against all others. Without that exclusion a line that crosses the places of two talkers, of each for
a while, would be as good as a talker; and a histogram of the same seconds smears whoever walks.

A line that moves is held by what is heard after a block. The last block, where the end of the recording cuts it short,
has nothing after it: there, a line that its own frames do not speak for stands, lest it goes on to where nobody is.

A line is followed along cells, so this is for the grids circle and line; blocks of a sphere answer for themselves.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.grids import STEP, Grid, Indices
from qkgcc.arrays.maps import NEAR, RESERVE, SEPARATION, FrameMaps
from qkgcc.dsp.peaks import vertex
from qkgcc.tracks.ridges import ridges, sharpen

CONTEXT = 2.0
"""Seconds before and after a block that are heard with it."""
LONGEST = 2.0
"""Seconds: sources of longer blocks go no straight lines, so that those answer for themselves."""
BESIDE = 0.4
"""What a frame right beside the block counts by, against one in it; less and less until `CONTEXT`. All of them together
count less than a block of a second: whoever speaks in that alone is still its source."""
HEARD = 10.0
"""How much likelier frames are those of a source than of none."""
RATES = np.arange(-48.0, 49.0, 8.0)
"""Degrees per second that are tried."""
STANDING = 0.3
"""By how much what speaks for a source of the largest rate is taken down: people stand more often than they run."""

_BLUR = 2.0  # degrees by which what frames say is smeared: nobody's line is quite straight
_REACH = 6  # cells to either side that it is smeared over
_TIE = 1e-9  # seconds: a frame on the border is of the later block
_SWEEPS = 2  # times that each line is found anew against all others

Floats = npt.NDArray[np.float64]


class Line(NamedTuple):
    """A source in the seconds around a block."""

    cell: float
    """Where it is in the middle of the block, between the cells."""
    rate: float
    """Degrees per second."""
    share: float
    """Of all that was said by the frames of the block, what lies within `NEAR` degrees of it."""
    around: float
    """The same of all frames, by what they count."""
    frames: float
    """Of the block, how many are more likely its own than others' or no one's."""


class Context:
    """The frames of the last seconds, and the lines of sources through them. Shape: T frames, C cells"""

    def __init__(self, grid: Grid, seconds: float) -> None:
        self.seconds = seconds
        self._wraps, self._cells, self.step = grid.kind == "circle", len(grid.cells), STEP[grid.kind]
        self._chance = grid.chance(NEAR)
        self._kept: deque[tuple[Floats, Floats, Floats]] = deque()

    def add(self, times: Floats, found: FrameMaps) -> None:
        if len(times):
            self._kept.append((times, found.weights, found.cells))

    def forget(self, before: float) -> None:
        """Drop what ends before a time."""
        while self._kept and self._kept[0][0][-1] < before:
            self._kept.popleft()

    def lines(self, first: float, last: float, count: int, *, held: bool = True) -> list[Line]:
        """Up to so many sources of a block from `first` to `last` seconds, those with the most frames in it first.

        Args:
            held: whether lines may move that its own frames speak for no more than chance would have it.
        """
        if not self._kept or not count:
            return []
        times, weights, cells = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        outside = np.maximum(first - times, times - last)
        inside = (times >= first - _TIE) & (times < last - _TIE)
        counts = weights * np.where(inside, 1.0, BESIDE * np.clip(1 - outside / self.seconds, 0, 1))
        some = counts > 0
        if not (some & inside).any():
            return []
        said = _said(counts, weights, inside), _said(counts, weights, some)
        frames = _Frames(self, cells[some], counts[some], times[some] - (first + last) / 2, inside[some], said)
        found: list[tuple[float, float]] = []
        while len(found) < count:
            line = frames.best(found)
            if line is None:
                break
            found.append(line)
        for number in list(range(len(found))) * (_SWEEPS if len(found) > 1 else 0):
            found[number] = frames.best(found[:number] + found[number + 1 :]) or found[number]
        for number, line in enumerate(found):
            if not held and line[1] and frames.shares(line)[0] < self._chance:
                found[number] = frames.best(found[:number] + found[number + 1 :], still=True) or line
        own = frames.own(found)
        lines = [Line(*line, *frames.shares(line), some) for line, some in zip(found, own, strict=True)]
        return sorted(lines, key=lambda line: -line.frames)

    def along(self, cells: Floats | Indices) -> Indices:
        """Cells as indices; beyond the ends of a line of directions, the one after the last."""
        rounded = np.rint(cells).astype(np.intp)
        if self._wraps:
            return np.asarray(rounded % self._cells)
        return np.where((rounded >= 0) & (rounded < self._cells), rounded, self._cells)

    def blurred(self, cells: Floats) -> Floats:
        """What frames say of sources in each cell, smeared by a few degrees, for nobody's line is quite straight; of
        microphones on a line, with all that is thrown back of each (`tracks.ridges`). Shape: (T, C) -> same"""
        if not self._wraps:
            return np.asarray(sharpen(cells) @ ridges(self._cells))
        offsets = np.arange(-_REACH, _REACH + 1)
        smear = np.exp(-0.5 * (offsets * self.step / _BLUR) ** 2)
        padded = np.pad(cells, ((0, 0), (_REACH, _REACH)), mode="wrap")
        out = np.zeros_like(cells)
        for first, part in enumerate(smear / smear.sum()):
            out += part * padded[:, first : first + self._cells]
        return out

    def turns(self, rate: float, times: Floats) -> Floats:
        """Cells that a source goes in some seconds."""
        return rate * times / self.step

    def apart(self, cell: float) -> Floats:
        """Degrees from a place to every cell."""
        away = np.abs(np.arange(self._cells) - cell)
        return np.asarray(self.step * (np.minimum(away, self._cells - away) if self._wraps else away))


def _said(counts: Floats, weights: Floats, some: npt.NDArray[np.bool_]) -> float:
    """What some frames say of directions, against all that they could: `RESERVE` is what each says of none."""
    heard = some & (weights > 0)
    total = float(counts[heard].sum())
    return total / (total + RESERVE * float((counts[heard] / weights[heard]).sum()))


class _Frames:
    """The frames around one block, and how well lines explain them."""

    def __init__(
        self,
        context: Context,
        cells: Floats,
        counts: Floats,
        times: Floats,
        inside: npt.NDArray[np.bool_],
        said: tuple[float, float],
    ) -> None:
        self._context, self._cells, self._counts, self._times, self._inside = context, cells, counts, times, inside
        self._said = said
        number = cells.shape[1]
        self._likelier = HEARD * number * np.pad(context.blurred(cells), ((0, 0), (0, 1)))  # the last: beyond the ends
        start = np.arange(number) + np.zeros((len(times), 1))
        rows = (number + 1) * np.arange(len(times))[:, None]
        self._ways = [rows + context.along(start + context.turns(rate, times)[:, None]) for rate in RATES]

    def best(self, others: list[tuple[float, float]], *, still: bool = False) -> tuple[float, float] | None:
        """The line that adds most to some: its cell in the middle of the block, and its rate. `still`: if it stands."""
        context = self._context
        tried = [number for number, rate in enumerate(RATES) if not (still and rate)]
        rates = RATES[tried]
        explained = np.ones(len(self._times))
        for line in others:
            explained += self._likelier[np.arange(len(self._times)), self._way(line)]
        gains = np.log1p(self._likelier / explained[:, None]).ravel()
        added = np.stack([self._counts @ gains[self._ways[number]] for number in tried])
        value = added * (1 - STANDING * np.abs(rates)[:, None] / np.abs(RATES).max())
        top = value.max(axis=0)
        number, ended = np.arange(len(top)), np.append(top, -np.inf)
        peak = (top >= ended[context.along(number - 1)]) & (top >= ended[context.along(number + 1)])
        for cell, _ in others:
            peak &= context.apart(cell) >= SEPARATION
        if not peak.any():
            return None
        cell = int(np.where(peak, top, -np.inf).argmax())
        rate = int(value[:, cell].argmax())
        sides = context.along(np.array([cell - 1, cell + 1]))
        if sides.max() == len(top):
            return float(cell), float(rates[rate])
        below, above = added[rate, sides]
        offset = float(np.clip(vertex(below, added[rate, cell], above), -0.5, 0.5))
        return cell + offset, float(rates[rate])

    def shares(self, line: tuple[float, float]) -> tuple[float, float]:
        """What is said within `NEAR` degrees of a line: of all in the block, and of all around it."""
        reach = int(NEAR / self._context.step)
        near = self._places(line)[:, None] + np.arange(-reach, reach + 1)
        padded = np.pad(self._cells, ((0, 0), (0, 1)))
        said = np.take_along_axis(padded, self._context.along(near), axis=1).sum(axis=1)
        counts, inside = self._counts, self._inside
        return (
            float(self._said[0] * (counts[inside] @ said[inside]) / counts[inside].sum()),
            float(self._said[1] * (counts @ said) / counts.sum()),
        )

    def own(self, lines: list[tuple[float, float]]) -> list[float]:
        """Of the frames of the block, how many each of some lines explains."""
        rows = np.arange(len(self._times))
        likelier = np.array([self._likelier[rows, self._way(line)] for line in lines])
        shared = likelier / (1 + likelier.sum(axis=0))
        return [float(one) for one in shared[:, self._inside].sum(axis=1)]

    def _way(self, line: tuple[float, float]) -> Indices:
        """The cell of a line in each frame."""
        return self._context.along(self._places(line))

    def _places(self, line: tuple[float, float]) -> Floats:
        return line[0] + self._context.turns(line[1], self._times)
