"""Maps of where sources are, over a grid of directions: of each frame, added up over time, and their peaks.

A network's frame becomes a distribution over directions: the log-posteriors of all pairs are averaged at each
direction's delays, and

    p(direction) ~ exp(`FRAME_CONCENTRATION` * mean over the pairs).

A mean, and not a sum: pairs share microphones, so their errors are not independent, and how sure a frame is does not
grow with their number. Distributions of frames are then *summed*, not multiplied: in a moment of a conversation one
talker prevails, and the sum is a histogram of who did. Frames count by how sure they are, (1 - entropy / its
largest)^2; by how loud they are makes nothing better (docs/guide/arrays.md has what was tried).

On a line, what rooms throw back makes a ridge of every talker, from its angle towards broadside: there, peaks are those
of the talkers whose ridges make the histogram (`tracks.ridges`).

A correlation has no such scale. Its maps are the plain sums of SRP-PHAT, over pairs and frames.

A peak is finer than the grid: by a parabola through the histogram, and where it has none (elevations, spheres) by the
curves of the frames that speak for it, each by how much it does.

J. H. DiBiase, "A high-accuracy, low-latency technique for talker localization in reverberant environments using
microphone arrays", PhD thesis, Brown University, 2000 (SRP-PHAT).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse

from qkgcc.arrays.evidence import ArrayEvidence, ArrayFrames
from qkgcc.arrays.grids import ELEVATION_STEP, STEP, Grid, unit_vectors
from qkgcc.arrays.steering import Steering
from qkgcc.core.types import Floats
from qkgcc.dsp.peaks import vertex
from qkgcc.tracks.motion import angle_between, azimuth_elevation
from qkgcc.tracks.ridges import deconvolve_ridges, sharpen

FRAME_CONCENTRATION = 16.0
"""Concentration of a frame's distribution, see above."""
WEIGHT_EXPONENT = 2.0
"""Exponent of the weights of frames, see above."""
MIN_SEPARATION = 20.0
"""Degrees between two sources."""
SILENT_SHARE = 0.02
"""Share that each frame leaves to no direction, against a weight of at most 1: where no frame is sure, as in pauses, no
peak is."""
NEAR_ANGLE = 10.0
"""Degrees around a direction in which the weight of frames speaks for it."""

FIT_CIRCLE = (0.090, 2.05)
"""The a and b of `probability`."""
FIT_LINE_CONTEXT, FIT_LINE = (0.145, 2.14), (0.36, 3.64)
"""The same of microphones on a line: with the seconds around a block, and of `DirectionHistogram.sources` alone."""

_REFINEMENTS = 8  # times that the refinement halves its steps: from 2 degrees to less than a hundredth


class FrameMaps(NamedTuple):
    """Maps of single frames over a grid. Shape: T frames, C cells, V points in each."""

    cells: Floats
    """(T, C) distributions, rows that sum to 1 (uniform for silence); or sums of correlations."""
    points: Floats
    """(T, C * V) the same of the points; cells are their sums, or their largest."""
    weights: Floats
    """(T,) how much a frame counts; 0: silence."""


class Peak(NamedTuple):
    """A maximum of a map."""

    direction: Floats
    """(3,) unit vector."""
    distance: float
    """Metres; infinite: a far source."""
    share: float
    """Of all that was said by the frames, what lies near it; of correlations, how well they agree on it."""
    confidence: float
    """Probability that a source is within `NEAR_ANGLE` degrees, see `probability`; of correlations, the share again."""


def probability(share: float, others: float, fitted: tuple[float, float] = FIT_CIRCLE) -> float:
    """That a source is within `NEAR_ANGLE` degrees of a peak with a share, from what no other peak explains.

    c = share / (1 - others) says too little: a peak with a third of it is right in 9 of 10 cases. 1 / (1 + (a / c)^b)
    was fitted to the blocks of 1 s of 96 simulated rooms (two arrays, one to three talkers;
    docs/guide/arrays.md); that of lines to those of 56 rooms with three lines (one and two talkers, as in
    `benchmarks.lines`).

    >>> [round(probability(share, 0.2), 2) for share in (0.05, 0.1, 0.2, 0.5)]
    [0.32, 0.66, 0.89, 0.98]
    """
    half, slope = fitted
    return float(1 / (1 + (half / max(min(1.0, share / max(1 - others, 1e-9)), 1e-9)) ** slope))


class SpatialPosterior:
    """Turns frames into maps, for one evidence and one grid. It has no state; `DirectionHistogram` has."""

    def __init__(self, evidence: ArrayEvidence, grid: Grid, speed_of_sound: float) -> None:
        self.grid, self.posterior = grid, evidence.kind == "posterior"
        self.evidence_size = sum(len(one) for one in evidence.lags)
        self._lags, self._pairs, self._speed = evidence.lags, evidence.pairs, speed_of_sound
        self._first, self._second = np.array(evidence.pairs).T
        self._steering = self.steering(grid.points.reshape(-1, 3), np.tile(grid.ranges, len(grid.cells)))

    def steering(self, directions: Floats, ranges: Floats) -> Steering:
        """Shape: (D, 3), (D,) metres"""
        return Steering(self._lags, self.grid.delays_of(directions, ranges, self._pairs, self._speed))

    def __call__(self, frames: ArrayFrames) -> FrameMaps:
        grid = self.grid
        shape = (len(frames.times), *grid.possible.shape)
        live = np.maximum(1, (~(frames.dead[:, self._first] | frames.dead[:, self._second])).sum(axis=1))
        mean = self._steering(frames.curves) / live[:, None]
        impossible = ~grid.possible.ravel()
        if not self.posterior:
            mean[:, impossible] = -1.0
            cells = mean.reshape(shape).max(axis=-1)
            return FrameMaps(cells, mean, frames.heard.astype(np.float64))
        mean[:, impossible] = -np.inf
        mean -= mean.max(axis=1, keepdims=True)
        points = np.exp(FRAME_CONCENTRATION * mean)
        points /= points.sum(axis=1, keepdims=True)
        cells = np.ascontiguousarray(points.reshape(shape).sum(axis=-1))
        entropy = -(cells * np.log(np.maximum(cells, 1e-300))).sum(axis=1)
        sure = np.clip(1 - entropy / np.log(grid.possible.any(axis=1).sum()), 0, 1) ** WEIGHT_EXPONENT
        return FrameMaps(cells, points, np.where(frames.heard, sure, 0.0))

    def directions(self, found: FrameMaps) -> tuple[Floats, Floats, Floats]:
        """Of each frame by itself: direction, distance in metres, confidence. Shape: T frames -> (T, 3), (T,), (T,)

        The confidence is what the frame says within `NEAR_ANGLE` degrees, or the mean correlation of the pairs there.
        """
        grid, (_, variants) = self.grid, self.grid.possible.shape
        best = found.cells.argmax(axis=1) if len(found.cells) else np.zeros(0, np.intp)
        frames = np.arange(len(best))
        within = found.points.reshape(len(best), len(grid.cells), variants)[frames, best]
        direction, distance = grid.points[best, within.argmax(axis=1)], grid.ranges[within.argmax(axis=1)]
        if grid.kind == "sphere":
            if self.posterior:
                near = found.cells[frames[:, None], grid.neighbours[best]]
                direction = (near[..., None] * grid.cells[grid.neighbours[best]]).sum(axis=1)
                direction = direction / np.linalg.norm(direction, axis=1, keepdims=True)
        else:
            value = np.log(np.maximum(found.cells, 1e-300)) if self.posterior else found.cells
            below, top, above = (value[frames, grid.neighbours[best, side]] for side in range(3))
            bend = 2 * top - below - above
            offset = np.where(bend > 0, (above - below) / np.where(bend > 0, 2 * bend, 1), 0.0)
            direction = grid.refine_angles(direction, best, np.clip(offset, -0.5, 0.5))
        confidence = np.zeros(len(best))
        for cell in np.unique(best):
            rows = best == cell
            near = np.flatnonzero(grid.apart(grid.cells[cell]) <= NEAR_ANGLE) if self.posterior else np.array([cell])
            confidence[rows] = np.ascontiguousarray(found.cells[rows][:, near]).sum(axis=1)
        most = grid.ambiguity.max_confidence if self.posterior else 1.0
        return direction, distance, np.where(found.weights > 0, np.clip(confidence, 0, most), 0.0)


class DirectionHistogram:
    """Maps of frames added up, and what refines their peaks. Its memory does not grow with the number of frames."""

    def __init__(self, maps: SpatialPosterior) -> None:
        self._maps = maps
        self.frames, self.weight = 0, 0.0
        self.dead = np.zeros(len(maps.grid.geometry), np.int64)
        """(M,) in how many of the frames that are no silence each microphone is dead."""
        cells, points = maps.grid.possible.shape
        self._cells = np.zeros(cells if maps.posterior else (cells, points))
        sectors = int(maps.grid.sectors.max()) + 1 if maps.posterior else 1
        self._curves = np.zeros((sectors, maps.evidence_size))
        placed = (np.ones(cells), (maps.grid.sectors, np.arange(cells)))
        self._gather = scipy.sparse.csr_array(placed, shape=(sectors, cells)) if maps.posterior else None
        self._ridges = np.zeros(cells)  # of a line
        self._sources: Floats | None = None

    def add(self, frames: ArrayFrames, found: FrameMaps) -> None:
        self._sources = None
        heard = found.weights > 0
        weights = found.weights[heard]
        self.frames += int(frames.heard.sum())
        self.dead += frames.dead[frames.heard].sum(axis=0)
        self.weight += float(weights.sum())
        if self._gather is None:
            self._cells += (weights @ found.points[heard]).reshape(self._cells.shape)
            self._curves += weights @ frames.curves[heard]
            return
        weighted = weights[:, None] * found.cells[heard]
        self._cells += weighted.sum(axis=0)
        if self._maps.grid.kind == "line":
            self._ridges += weights @ sharpen(found.cells[heard])
        self._curves += (self._gather @ weighted.T) @ frames.curves[heard].astype(np.float64)

    @property
    def cells(self) -> Floats:
        """The distribution over directions of all frames (or mean correlations). Shape: (C,)"""
        whole = self._cells / self.weight if self.weight else np.zeros_like(self._cells)
        return np.asarray(whole if self._maps.posterior else whole.max(axis=-1))

    @property
    def sources(self) -> Floats:
        """The distribution of sources: of a line, without the ridges that reflections make of them. Shape: (C,)"""
        if self._maps.grid.kind != "line" or not self._maps.posterior or not self.weight:
            return self.cells
        if self._sources is None:
            self._sources = deconvolve_ridges(self._ridges / self.weight)
        return self._sources

    def peaks(self, count: int, least: float = 0.0) -> list[Peak]:
        """Up to so many, the strongest first, `MIN_SEPARATION` degrees apart.

        Args:
            least: share that each has to have.
        """
        grid, cells = self._maps.grid, self.sources
        if not self.weight:
            return []
        left = np.where((cells >= cells[grid.neighbours].max(axis=1)) & grid.possible.any(axis=1), cells, -np.inf)
        found: list[tuple[Floats, float]] = []
        shares: list[float] = []
        while len(found) < count and np.isfinite(left.max()):
            cell = int(left.argmax())
            direction, distance = self._refine(cell)
            # The refined direction of a weak peak may run into a stronger one: the cell itself stands then.
            if any(grid.between(direction, other) < MIN_SEPARATION / 2 for other, _ in found):
                direction = grid.fold(grid.cells[cell])
            share = self._share(cell, direction)
            if share < least:
                break
            found.append((direction, distance))
            shares.append(share)
            left[grid.apart(grid.cells[cell]) < MIN_SEPARATION] = -np.inf
        total = sum(shares)
        fitted = FIT_LINE if grid.kind == "line" else FIT_CIRCLE
        return [
            Peak(
                direction, distance, share, probability(share, total - share, fitted) if self._maps.posterior else share
            )
            for (direction, distance), share in zip(found, shares, strict=True)
        ]

    def _share(self, cell: int, direction: Floats) -> float:
        grid, cells = self._maps.grid, self.sources
        if not self._maps.posterior:
            return float(np.clip(cells[cell], 0, 1))
        said = self.weight / (self.weight + SILENT_SHARE * self.frames)
        return float(cells[grid.apart(direction) <= NEAR_ANGLE].sum() * said)

    def refine_peak(self, place: float) -> tuple[Floats, float]:
        """The direction and distance of a source at a known place between the cells, from the frames near it."""
        cell = round(place)
        return self._refine(cell % len(self._cells), place - cell)

    def _refine(self, cell: int, offset: float | None = None) -> tuple[Floats, float]:
        """The direction and distance of a peak, finer than the grid.

        Azimuths and angles to a line are where the parabola through the histogram's three cells has its top: frames in
        which two sources mix lie between them, and pull a mean of curves there, but not the top. The rest is where
        the curves of the frames that speak for the peak speak most.
        """
        maps, grid = self._maps, self._maps.grid
        curves = self._curves[:1]
        if maps.posterior:
            near = np.unique(grid.sectors[grid.apart(grid.cells[cell]) <= NEAR_ANGLE])
            curves = self._curves[near].sum(axis=0, keepdims=True)
        points, ranges = grid.points[cell], grid.ranges
        said = np.where(grid.possible[cell], maps.steering(points, ranges)(curves)[0], -np.inf)
        best = int(said.argmax())
        direction, distance = points[best], float(ranges[best])
        histogram = maps.posterior and grid.kind != "sphere"
        if histogram:
            if offset is None:
                offset = float(np.clip(vertex(*self.sources[grid.neighbours[cell]]), -0.5, 0.5))
            direction = grid.refine_angles(direction[None], np.array([cell]), np.array([offset]))[0]
            if grid.kind == "line":
                return direction, distance
        step = np.array([STEP[grid.kind], ELEVATION_STEP if grid.kind == "circle" else STEP[grid.kind]])
        for _ in range(_REFINEMENTS):
            if histogram:
                around = _elevations_around(direction, step[1])
                around = around if grid.axis is None else around[around @ grid.axis >= min(0, direction @ grid.axis)]
            else:
                around = grid.fold(_directions_around(direction, step, flat=grid.kind == "line", axis=grid.axis))
            said = maps.steering(around, np.full(len(around), distance))(curves)[0]
            direction = around[int(said.argmax())]
            step = step / 2
        strayed = grid.between(direction, grid.cells[cell])
        return (direction, distance) if strayed <= NEAR_ANGLE else (points[best], distance)


def _elevations_around(direction: Floats, step: float) -> Floats:
    """Directions with the same azimuth, higher and lower by up to two steps, itself among them. Shape: (N, 3)"""
    azimuth, elevation = azimuth_elevation(direction)
    return unit_vectors(azimuth, np.clip(elevation + step * np.arange(-2, 3), -90, 90))


def _directions_around(direction: Floats, step: Floats, *, flat: bool, axis: Floats | None) -> Floats:
    """Directions around one: steps along the horizon and up, or for a line along its angle only. Shape: (N, 3)"""
    if flat and axis is not None:
        angle = angle_between(direction, axis)
        across = direction - (direction @ axis) * axis
        size = np.linalg.norm(across)
        # At the very end of a line any direction across it will do: the grid folds it to its own side.
        across = across / size if size > 1e-9 else np.linalg.svd(axis[None])[2][1]
        angles = np.radians(np.clip(angle + step[0] * np.arange(-2, 3), 0, 180))[:, None]
        return np.asarray(np.cos(angles) * axis + np.sin(angles) * across)
    level = np.array([-direction[1], direction[0], 0.0])
    size = np.linalg.norm(level)
    level = level / size if size > 1e-9 else np.eye(3)[1]
    upwards = np.cross(direction, level)
    along, up = np.radians(step[:, None] * np.arange(-2, 3))
    moved = direction + np.tan(along)[:, None, None] * level + np.tan(up)[None, :, None] * upwards
    moved = moved.reshape(-1, 3)
    return np.asarray(moved / np.linalg.norm(moved, axis=1, keepdims=True))
