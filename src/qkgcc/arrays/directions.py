"""Directions of one or several sources, from a recording of an array or from blocks as they come.

recording -> `evidence.ArrayEvidence` -> `maps.SpatialPosterior` -> frames, blocks and the whole -> `DirectionEstimate`

DirectionEstimator("respeaker4")("talk.wav").directions[0].azimuth
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qkgcc.arrays.ambiguity import MAX_AMBIGUOUS_CONFIDENCE, Ambiguity
from qkgcc.arrays.context import CONTEXT, MAX_CONTEXT_BLOCK, Context
from qkgcc.arrays.evidence import (
    FRAME,
    ArrayEvidence,
    ArrayFrames,
    array_network,
    check_microphones,
    check_sources,
    checked_pairs,
    fewer_found,
    frames_of,
    mostly_dead,
    opened,
)
from qkgcc.arrays.geometry import MAX_DISTANCE, Geometry
from qkgcc.arrays.grids import Grid
from qkgcc.arrays.maps import (
    FIT_CIRCLE,
    FIT_LINE_CONTEXT,
    MIN_SEPARATION,
    NEAR_ANGLE,
    DirectionHistogram,
    FrameMaps,
    Peak,
    SpatialPosterior,
    probability,
)
from qkgcc.arrays.presets import array
from qkgcc.arrays.result import Direction, DirectionBlock, DirectionEstimate
from qkgcc.arrays.steering import Pairs
from qkgcc.audio.recording import Recording
from qkgcc.core.checks import (
    check_array,
    check_band,
    check_callback,
    check_flag,
    check_frame,
    check_hop,
    check_method,
    check_number,
    check_speed,
    check_threads,
    short_repr,
)
from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Bools, Floats, Floats32
from qkgcc.network.registry import ARRAY_DEFAULT, CLASSICAL
from qkgcc.tracks.motion import Motion, angle_between, azimuth_elevation
from qkgcc.tracks.paths import find_tracks
from qkgcc.tracks.tracker import Track, Tracker, Trajectory, smooth

MAX_AUTO_SOURCES = 4
"""Sources that `sources="auto"` looks for."""
MIN_AUTO_SHARE = 0.06
"""Share of the frames' weight that a source needs to be counted by "auto", or that of uniform frames where that is
more."""
MIN_AUTO_WEIGHT = 0.15
"""Summed frame weight (`FrameMaps.weights`) that a further source needs to be counted by "auto": in pauses a few frames
would otherwise support any direction."""
TRACKER_ERROR, TRACKER_SHARPNESS, TRACKER_SPEED = 4.0, 2.0, 10.0
"""`error` (degrees), `sharpness` and usual speed (degrees a second) of the `Tracker`: the best of some on simulated
scenes with talkers of dev-clean who stand and walk."""
BLOCK = 1.0
"""Seconds that one answer of a `DirectionBlock` is about."""

_TIME_ROUNDING = 1e-6  # seconds


class DirectionEstimator:
    """Directions from which sources are heard by an array, in its own coordinates (front, left, up).

    Args:
        geometry: where the microphones are: a `Geometry`, or what `qkgcc.arrays.array` takes, such as "respeaker4".
        method: a name out of `qkgcc.METHODS`, or the file of a steered network. Classical ones are steered response
            power, such as SRP-PHAT.
        sources: how many to look for in each block and in the whole, or "auto": those that more frames speak for
            than chance would have it, up to `MAX_AUTO_SOURCES`. A number is also the most that are followed at any
            moment. By default one, and as many tracks as there are.
        grid: "circle" (azimuths; by default of flat arrays) or "sphere" (by default of those in space); a line has its
            own.
        distance: metres from the middle of the microphones to the sources, or several that are tried; by default they
            are far away: ten times the size of the array is.
        frame, hop: seconds; by default hops are half a frame.
        block: seconds that one block's answer is about.
        context: seconds before and after a block that are heard with it, see `arrays.context`; 0: each block for
            itself, as are those of more than `MAX_CONTEXT_BLOCK` seconds, of a sphere, and of classical methods.
        pairs: of microphones that count; by default all. What their baselines span is all that is known: one pair of a
            square is a line, three pairs of the same face of a tetrahedron are a plane.
        band: lowest and highest frequency in Hz that may count: what a fan or the mains do below is left out.
            Confidences are not calibrated then.
        threads: that share the frames, where the method is a network; by default one for each core.
        speed_of_sound: metres per second.

    >>> x = np.random.default_rng(0).standard_normal(16000)
    >>> estimator = DirectionEstimator("linear:2:0.343", "phat")
    >>> answer = estimator(np.stack([np.roll(x, 8), x]), sample_rate=16000)  # 8 of 16 samples, from the left
    >>> round(answer.directions[0].cone), round(answer.directions[0].azimuth), round(answer.directions[0].also[0][0])
    (60, 30, 150)
    """

    def __init__(  # noqa: PLR0913 - what users may set
        self,
        geometry: Geometry | str | Path,
        method: str | Path = ARRAY_DEFAULT,
        *,
        sources: int | str | None = None,
        grid: str | None = None,
        distance: float | Sequence[float] | None = None,
        frame: float = FRAME,
        hop: float | None = None,
        block: float = BLOCK,
        context: float = CONTEXT,
        pairs: Pairs | None = None,
        band: tuple[float, float] | None = None,
        threads: int | None = None,
        speed_of_sound: float = SPEED_OF_SOUND,
    ) -> None:
        block = check_number("block", block, 0.05, 3600, "s")
        context = check_number("context", context, 0, 10, "s")
        frame = check_frame(frame)
        if hop is not None:
            hop = check_hop(hop)
        if threads is not None:
            threads = check_threads(threads)
        speed_of_sound = check_speed(speed_of_sound)
        self.method = check_method(method)
        self.sources = check_sources(1 if sources is None else sources, method)
        self.most = None if sources is None or isinstance(self.sources, str) else self.sources
        """Sources that are followed at any moment, at most; None: all."""
        self._distances = (math.inf,) if distance is None else _checked_distances(distance)
        self.geometry, self.block = array(geometry), block
        geometry = self.geometry
        pairs = None if pairs is None else checked_pairs(geometry, pairs)
        self.grid = Grid.of(geometry, grid, self._distances, pairs)
        alone = self.method in CLASSICAL or self.grid.kind == "sphere" or block > MAX_CONTEXT_BLOCK
        self.context = 0.0 if alone else context
        self._options: dict[str, Any] = {
            "frame": frame,
            "hop": hop,
            "pairs": pairs,
            "band": check_band(band),
            "speed_of_sound": speed_of_sound,
        }
        self._loaded = self.method if self.method in CLASSICAL else array_network(method, threads)

    def evidence(self, sample_rate: int, start: float = 0.0) -> ArrayEvidence:
        """What turns blocks at a rate into frames, from `start` seconds on."""
        return ArrayEvidence(self.geometry, self._loaded, sample_rate=sample_rate, start=start, **self._options)

    def maps(self, evidence: ArrayEvidence) -> SpatialPosterior:
        """What turns its frames into maps of directions."""
        return SpatialPosterior(evidence, self.grid, self._options["speed_of_sound"])

    def tracker(self, evidence: ArrayEvidence) -> Tracker:
        """What follows sources through the maps of its frames."""
        if evidence.kind != "posterior":
            raise InputError(
                f"{self.method} gives no distributions to follow: tracks need a network such as {ARRAY_DEFAULT}"
            )
        return Tracker(
            self.grid.cells,
            evidence.hop / evidence.rate,
            frame_seconds=evidence.frame / evidence.rate,
            error=TRACKER_ERROR,
            sharpness=TRACKER_SHARPNESS,
            motion=Motion(speed=TRACKER_SPEED),
            most=self.most,
            line=self.grid.kind == "line",
        )

    def peaks(self, summed: DirectionHistogram) -> list[Peak]:
        """As many directions as were asked for."""
        if self.sources != "auto":
            return summed.peaks(int(self.sources))
        least = max(MIN_AUTO_SHARE, self.grid.chance(NEAR_ANGLE))
        found = summed.peaks(MAX_AUTO_SOURCES, least)
        others = itertools.takewhile(lambda peak: peak.share * summed.weight >= MIN_AUTO_WEIGHT, found[1:])
        return summed.peaks(min(len(found), 1 + len(list(others))), least)

    def peaks_along(
        self, summed: DirectionHistogram, context: Context, first: float, last: float, *, whole: bool = True
    ) -> list[Peak]:
        """The same of a block from `first` to `last` seconds, with the seconds around it.

        "auto" counts those of the block itself: who is silent in it is known from the seconds around it, too.

        Args:
            whole: False where the end of the recording cuts it short.
        """
        count = len(self.peaks(summed)) if self.sources == "auto" else int(self.sources)
        lines = context.lines(first, last, count, may_drift=whole)
        total = sum(line.around for line in lines)
        fitted = FIT_LINE_CONTEXT if self.grid.kind == "line" else FIT_CIRCLE
        sure = (probability(line.around, total - line.around, fitted) for line in lines)
        return [Peak(*summed.refine_peak(line.cell), line.share, one) for line, one in zip(lines, sure, strict=True)]

    def __call__(
        self,
        source: Any,
        sample_rate: int | None = None,
        *,
        channels: Sequence[int] | None = None,
        start: float | None = None,
        end: float | None = None,
        progress: Callable[[float], object] | None = None,
        keep_maps: bool = False,
        track: bool = False,
    ) -> DirectionEstimate:
        """Estimate from a file, an array (M, n) with its `sample_rate`, or a `Recording`.

        Args:
            channels: those that are the microphones, in their order; by default all.
            start, end: as for `open_audio`.
            progress: called with the share that is done, from 0 to 1.
            keep_maps: keep what every frame says of every cell of the grid, for a picture.
            track: follow sources from their first word to their last, at most as many at any moment as were asked
                for; for networks.
        """
        check_callback("progress", progress)
        keep_maps, track = check_flag("keep_maps", keep_maps), check_flag("track", track)
        recording = opened(source, sample_rate, channels, start, end)
        check_microphones(recording, self.geometry)
        evidence = self.evidence(recording.sample_rate, recording.start)
        maps = self.maps(evidence)
        whole, blocks = DirectionHistogram(maps), _Blocks(self, maps, recording)
        following = _Following(self, evidence) if track else None
        rows: list[tuple[Floats, ...]] = []
        kept: list[Floats] = []
        for frames in frames_of(evidence, recording, progress):
            found = maps(frames)
            direction, distance, confidence = maps.directions(found)
            direction = np.where(frames.heard[:, None], direction, np.nan)
            rows.append((frames.times, direction, distance, confidence, frames.level))
            whole.add(frames, found)
            blocks.add(frames, found)
            if following is not None:
                following.add(frames, found)
            if keep_maps:
                kept.append(np.where(frames.heard[:, None], found.cells, np.nan).astype(np.float32))
        evidence.check_heard(recording.name)
        fewer = self._reduced_to_living(evidence.dead)
        if fewer is not None:
            living, alone = fewer
            found_alone = alone(recording.pick(living), progress=progress, keep_maps=keep_maps, track=track)
            return self._with_warnings(dataclasses.replace(found_alone, warnings=evidence.warnings))
        times, directions, distances, confidence, level = (np.concatenate(part) for part in zip(*rows, strict=True))
        azimuth, elevation = azimuth_elevation(directions)
        line = self.grid.kind == "line"
        answer = DirectionEstimate(
            source=recording.name,
            method=self.method,
            array=self.geometry.name,
            sample_rate=recording.sample_rate,
            grid=self.grid.kind,
            kind=evidence.kind,
            cannot_tell=self.cannot_tell(evidence.dead),
            directions=self.directions(self.peaks(whole), whole),
            blocks=blocks.results(),
            times=times,
            azimuth=azimuth,
            elevation=None if line else elevation,
            cone=angle_between(directions, np.asarray(self.grid.axis)) if line else None,
            distance=distances if np.isfinite(self.grid.ranges).any() else None,
            confidence=confidence,
            level=level,
            angles=self.grid.angles,
            maps=np.concatenate(kept) if keep_maps else None,
            ambiguity=self.grid.ambiguity,
            hop=evidence.hop / evidence.rate,
            tracks=None if following is None else tuple(following.results()),
            warnings=evidence.warnings,
        )
        return self._with_warnings(answer.scale_confidence(evidence.trust))

    def _with_warnings(self, answer: DirectionEstimate) -> DirectionEstimate:
        """With a word on sources that were asked for and not found; those that are followed are at most so many."""
        if answer.tracks is not None:
            return answer
        blocks = [len(block.directions) for block in answer.blocks if block.frames]
        fewer = fewer_found(self.sources, len(answer.directions), blocks)
        return dataclasses.replace(answer, warnings=(*answer.warnings, *fewer))

    def directions(self, peaks: Sequence[Peak], summed: DirectionHistogram) -> tuple[Direction, ...]:
        """Directions of peaks, with those that sound the same to the microphones that are alive in these frames.

        Where fewer microphones live than the grid is made for, two of its peaks may be one source.
        """
        ambiguity = self._ambiguity_of(mostly_dead(summed.dead, summed.frames))
        if ambiguity is self.grid.ambiguity:
            return tuple(self.direction(peak, ambiguity) for peak in peaks)
        found: list[Peak] = []
        for peak in peaks:
            here = (
                peak._replace(direction=ambiguity.front_representative(peak.direction))
                if ambiguity.dimensions == 1
                else peak
            )
            same = [one for other in found for one in (other.direction, *ambiguity.mirrors(other.direction))]
            if all(self.grid.between(here.direction, one) >= MIN_SEPARATION / 2 for one in same):
                found.append(here)
        return tuple(self.direction(peak, ambiguity) for peak in found)

    def direction(self, peak: Peak, ambiguity: Ambiguity) -> Direction:
        """The direction of a peak, with those that sound the same."""
        azimuth, elevation = (float(one) for one in azimuth_elevation(peak.direction))
        also = [azimuth_elevation(one) for one in ambiguity.mirrors(peak.direction)]
        return Direction(
            azimuth=azimuth,
            elevation=None if ambiguity.dimensions == 1 else elevation,
            cone=ambiguity.cone(peak.direction),
            distance=None if math.isinf(peak.distance) else peak.distance,
            confidence=min(peak.confidence, ambiguity.max_confidence) if self.posterior else peak.confidence,
            share=peak.share,
            also=tuple((float(a), float(e)) for a, e in also),
        )

    @property
    def posterior(self) -> bool:
        """Whether confidences are probabilities."""
        return self.method not in CLASSICAL

    def cannot_tell(self, dead: Sequence[int]) -> str | None:
        """Which directions sound the same to the microphones that live: a triangle of which one is dead is a line."""
        return self._ambiguity_of(dead).cannot_tell

    def _ambiguity_of(self, dead: Sequence[int]) -> Ambiguity:
        """What sounds the same to those that live; the grid's own where that is no more than it is to all of them."""
        living = self._living(dead)
        ambiguity = self.grid.ambiguity if living is None else Ambiguity.of(living.geometry, living.pairs)
        less = ambiguity.dimensions < self.grid.ambiguity.dimensions
        return dataclasses.replace(ambiguity, max_confidence=MAX_AMBIGUOUS_CONFIDENCE) if less else self.grid.ambiguity

    def _living(self, dead: Sequence[int]) -> _Living | None:
        """The microphones without the dead ones; None: none is dead, or no pair that counts is left."""
        kept = [i for i in range(len(self.geometry)) if i not in dead]
        if len(kept) < 2 or not dead:
            return None
        pairs = self._options["pairs"]
        if pairs is not None:
            pairs = [(kept.index(i), kept.index(j)) for i, j in pairs if i in kept and j in kept]
            if not pairs:
                return None
        return _Living(kept, Geometry(self.geometry.microphones[kept], self.geometry.name), pairs)

    def _reduced_to_living(self, dead: Sequence[int]) -> tuple[list[int], DirectionEstimator] | None:
        """Those that live, and an estimator for them, where they tell less than all of them would.

        A square of which two are dead is a line: its grid has one place for all that sounds the same.
        """
        living, ambiguity = self._living(dead), self._ambiguity_of(dead)
        if living is None or ambiguity is self.grid.ambiguity:
            return None
        kept, geometry, pairs = living
        alone = copy.copy(self)
        alone.geometry, alone._options = geometry, self._options | {"pairs": pairs}
        grid = Grid.of(geometry, None if ambiguity.dimensions == 1 else self.grid.kind, self._distances, pairs)
        alone.grid = dataclasses.replace(grid, ambiguity=ambiguity)
        return kept, alone


def _checked_distances(distance: float | Sequence[float]) -> tuple[float, ...]:
    several = np.atleast_1d(check_array("distance", distance, "metres, or several of them"))
    if several.ndim != 1 or not len(several) or not (np.abs(several) <= MAX_DISTANCE).all():
        raise InputError(
            f"the distance is {short_repr(distance)} m; expected numbers up to {MAX_DISTANCE:g}: "
            "without it they are far away"
        )
    return tuple(several.tolist())


class _Living(NamedTuple):
    """Microphones that live."""

    kept: list[int]
    """Their numbers among all."""
    geometry: Geometry
    pairs: list[tuple[int, int]] | None
    """Those that count, by their numbers among themselves; None: all."""


def update_tracks(tracker: Tracker, frames: ArrayFrames, found: FrameMaps) -> list[list[Track]]:
    """The tracks after each frame."""
    return [
        tracker.update(float(time), cells, reliability=1.0 if heard else 0.0)
        for time, cells, heard in zip(frames.times, found.cells, frames.heard, strict=True)
    ]


class _Following:
    """The frames of a recording, and at its end the sources in them.

    On a circle or a line they are the best paths through all frames (`tracks.paths`). A sphere has too many states for
    that: there, the tracks of the filter are smoothed.
    """

    def __init__(self, estimator: DirectionEstimator, evidence: ArrayEvidence) -> None:
        self._grid, self._tracker, self._most = estimator.grid, estimator.tracker(evidence), estimator.most
        self._seconds = evidence.frame / evidence.rate
        self._history: list[tuple[float, list[Track]]] = []
        self._frames: list[tuple[Floats, Floats32, Bools]] = []

    def add(self, frames: ArrayFrames, found: FrameMaps) -> None:
        if self._grid.kind == "sphere":
            self._history += zip(frames.times.tolist(), update_tracks(self._tracker, frames, found), strict=True)
        else:
            self._frames.append((frames.times, found.cells.astype(np.float32), frames.heard))

    def results(self) -> list[Trajectory]:
        if self._grid.kind == "sphere":
            return smooth(self._history, self._tracker.motion)
        times, weights, heard = (np.concatenate(part) for part in zip(*self._frames, strict=True))
        return find_tracks(
            times,
            weights,
            heard,
            self._grid.cells,
            frame_seconds=self._seconds,
            most=self._most,
            line=self._grid.kind == "line",
        )


class _Blocks:
    """Frames to blocks by their centres; blocks count from the recording's start, and wait for what is heard after."""

    def __init__(self, estimator: DirectionEstimator, maps: SpatialPosterior, recording: Recording) -> None:
        self._estimator, self._maps = estimator, maps
        self._start, self._end = recording.start, recording.start + recording.duration
        self._context = Context(maps.grid, estimator.context) if estimator.context else None
        self._waiting: deque[DirectionHistogram] = deque([DirectionHistogram(maps)])
        self._done: list[DirectionBlock] = []

    def add(self, frames: ArrayFrames, found: FrameMaps) -> None:
        numbers = np.floor((frames.times - self._start) / self._estimator.block + 1e-9).astype(int)
        for number in np.unique(numbers):
            rows = numbers == number
            part = FrameMaps._make(column[rows] for column in found)
            while len(self._done) + len(self._waiting) <= number:
                self._waiting.append(DirectionHistogram(self._maps))
            while self._bounds()[1] + self._estimator.context <= frames.times[rows][0]:
                self._finish()
            if self._context is not None:
                self._context.add(frames.times[rows], part)
            self._waiting[number - len(self._done)].add(frames.part(rows), part)

    def results(self) -> tuple[DirectionBlock, ...]:
        while self._waiting:
            self._finish()
        return tuple(self._done)

    def _bounds(self) -> tuple[float, float]:
        """Seconds from which and to which the next block goes."""
        first = self._start + len(self._done) * self._estimator.block
        return first, first + self._estimator.block

    def _finish(self) -> None:
        estimator, summed = self._estimator, self._waiting.popleft()
        first, last = self._bounds()
        whole = last <= self._end + _TIME_ROUNDING
        last = last if whole else self._end
        if self._context is None:
            peaks = estimator.peaks(summed)
        else:
            self._context.forget(first - estimator.context)
            peaks = estimator.peaks_along(summed, self._context, first, last, whole=whole)
        found = estimator.directions(peaks, summed)
        self._done.append(DirectionBlock(first, min(last, self._end), summed.frames, found))
