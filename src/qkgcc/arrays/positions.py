"""Positions of sources, for microphones metres apart, in two steps.

1. The posteriors of each pair over its delays (of a network; PHAT where a pair is wider apart than the network was
   trained on) are added up over the frames of a block, and the place is searched for at which those of all pairs add up
   to most (`search`).
2. Around that place each pair has a delay of its own. A robust least squares fit of all delays gives the position, the
   residual of each delay, and the uncertainty in each direction (`trilateration`).

Then the peaks that this place explains are removed from every pair's curve, and the next source is found in the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.evidence import (
    ArrayEvidence,
    ArrayFrames,
    array_network,
    check_microphones,
    check_sources,
    fewer_found,
    frames_of,
    opened,
)
from qkgcc.arrays.geometry import MAX_SOURCE_HEIGHT, Geometry
from qkgcc.arrays.presets import array
from qkgcc.arrays.result import Position, PositionBlock, PositionEstimate
from qkgcc.arrays.search import HISTOGRAM_FLOOR, MAX_EXCHANGE_BLOCKS, DelayHistogram, PlaceSearch, find_exchange
from qkgcc.arrays.trilateration import MIN_AGREEING_SHARE, fit_position, position_from_fit
from qkgcc.arrays.wiring import MAX_FAR_FIELD_APERTURE, MISWIRED_TRUST, Miswiring
from qkgcc.audio.recording import Recording
from qkgcc.core.checks import (
    check_array,
    check_band,
    check_callback,
    check_frame,
    check_hop,
    check_method,
    check_number,
    check_speed,
    check_threads,
)
from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.network.registry import ARRAY_DEFAULT, CLASSICAL

FRAME = 0.128
"""Seconds: delays of metres are longer than those of a small array."""
BLOCK = 1.0
"""Seconds that one answer of a `PositionBlock` is about."""
SEARCH_MARGIN = 1.0
"""Metres beyond the microphones to every side that are searched by default. They hang in a room, and behind its walls a
search would find mirror images of the talkers."""
MIN_SEPARATION = 0.4
"""Metres between two sources on the floor."""
MAX_AUTO_SOURCES = 4
"""Sources that `sources="auto"` looks for."""
MIN_CONFIDENCE = 0.5
"""Of a place that "auto" counts, and that is called solved."""
MIN_FURTHER_CONFIDENCE = 0.65
"""Of further places that "auto" counts: a source that is not there is worse than one that is missed. With 0.5, 16 % of
them were nobody in the blocks that `probability` was fitted to; with this 6 % are, and 53 instead of 55 % of the
talkers are found."""

# Constant and slopes of `mean_evidence` and `agreement`, for `probability`.
_LOGIT_FIRST, _LOGIT_FURTHER = (5.44, 1.69, 4.01), (4.78, 1.50, 3.88)
_SPARE_DELAY_PENALTY = (3.2, 1.4, 0.0)  # off the log odds, by the number of spare delays


def probability(mean_evidence: float, agreement: float, *, further: bool = False, spare: int = 2) -> float:
    """That a source is within half a metre on the floor of a place that the pairs speak for.

    `mean_evidence` is the mean over the pairs of log(p / uniform + 1) - log 2 at its delays: 0 where they say nothing.
    `agreement` is how high their curves are there against their own peaks. It is low where a few pairs support this
    place and the others another one, as with places where nobody is. The logistic function of both logarithms was
    fitted to blocks of 1 s of 120 simulated rooms, six microphones in each and one to three talkers
    (docs/guide/places.md).

    Args:
        further: whether it was found in what others had left, up to the first that was nobody's.
        spare: delays more than a place needs, of those that do not follow from each other: microphones less one, less
            the coordinates that are looked for. Four microphones have none in space: nearly any three delays meet
            somewhere, and what they say there is no proof. What that takes off the odds was fitted to 36 rooms.

    >>> [round(probability(mean_evidence, 0.5), 2) for mean_evidence in (0.1, 0.2, 0.3, 0.6)]
    [0.23, 0.49, 0.65, 0.86]
    >>> round(probability(0.3, 0.5, further=True), 2), round(probability(0.3, 0.3, further=True), 2)
    (0.57, 0.15)
    >>> [round(probability(0.6, 0.8, spare=spare), 2) for spare in (0, 1, 2, 5)]
    [0.62, 0.91, 0.98, 0.98]
    """
    start, of_evidence, of_agreement = _LOGIT_FURTHER if further else _LOGIT_FIRST
    odds = (
        start
        - _SPARE_DELAY_PENALTY[min(max(spare, 0), 2)]
        + of_evidence * np.log(max(mean_evidence, 1e-9))
        + of_agreement * np.log(max(agreement, 1e-9))
    )
    return float(1 / (1 + np.exp(-np.clip(odds, -50, 50))))


class PositionEstimator:
    """Positions of one or several sources in the coordinates of the geometry (metres to the front, to the left, up).

    Args:
        geometry: where the microphones are: a `Geometry`, or what `qkgcc.arrays.array` takes.
        method: a name out of `qkgcc.network.registry.METHODS`, or the file of a steered network.
        sources: how many to look for in each block and in the whole, or "auto": those that are there rather than not
            by their confidence, up to `MAX_AUTO_SOURCES`.
        height: metres up at which the sources are, where that is known; then three microphones will do.
        volume: (3, 2) metres: the lowest and highest front, left and up that are searched; best the room, for no place
            is answered outside it. By default what is up to a metre beyond the microphones; a fit may leave that.
        frame, hop: seconds; by default hops are half a frame.
        block: seconds that one block's answer is about.
        band: lowest and highest frequency in Hz that may count: what a fan or the mains do below is left out.
            Confidences are not calibrated then.
        threads: that share the frames, where the method is a network; by default one for each core.
        speed_of_sound: metres per second.
    """

    def __init__(  # noqa: PLR0913 - what users may set
        self,
        geometry: Geometry | str | Path,
        method: str | Path = ARRAY_DEFAULT,
        *,
        sources: int | str = 1,
        height: float | None = None,
        volume: npt.ArrayLike | None = None,
        frame: float | None = None,
        hop: float | None = None,
        block: float = BLOCK,
        band: tuple[float, float] | None = None,
        threads: int | None = None,
        speed_of_sound: float = SPEED_OF_SOUND,
    ) -> None:
        geometry = array(geometry)
        block = check_number("block", block, 0.05, 3600, "s")
        sources = check_sources(sources, method)
        if height is not None:
            height = check_number("height", height, -MAX_SOURCE_HEIGHT, MAX_SOURCE_HEIGHT, "m")
        if frame is not None:
            frame = check_frame(frame)
        if hop is not None:
            hop = check_hop(hop)
        if threads is not None:
            threads = check_threads(threads)
        speed_of_sound = check_speed(speed_of_sound)
        needed, what = (4, "in space") if height is None else (3, "at a known height")
        if len(geometry) < needed:
            raise InputError(
                f"{geometry.name} has {len(geometry)} microphones; a position {what} needs {needed} or more"
                + (": give the height of the source, or ask for a direction" if height is None else "")
            )
        if height is None and geometry.dimensions == 1:
            raise InputError(
                f"the microphones of {geometry.name} are on a line, around which all places sound the same: give the "
                "height of the source, or put one of them elsewhere"
            )
        self.geometry, self.method, self.height, self.block = geometry, check_method(method), height, block
        self.sources = sources
        self.volume = _checked_volume(geometry, volume, height)
        self._bounded = volume is not None  # somebody knows that there is nothing outside
        self._speed = speed_of_sound
        widest = geometry.aperture / speed_of_sound
        self._options: dict[str, Any] = {
            # Twice the longest delay, so that both channels of a frame hold the same sound.
            "frame": max(FRAME, 2.5 * widest) if frame is None else frame,
            "hop": hop,
            "band": check_band(band),
            "speed_of_sound": speed_of_sound,
        }
        self._loaded = self.method if self.method in CLASSICAL else array_network(method, threads)

    def evidence(self, sample_rate: int, start: float = 0.0) -> ArrayEvidence:
        """What turns blocks at a rate into frames, from `start` seconds on."""
        return ArrayEvidence(self.geometry, self._loaded, sample_rate=sample_rate, start=start, **self._options)

    def search(self, evidence: ArrayEvidence) -> PlaceSearch:
        """What finds places for the curves of its pairs."""
        return PlaceSearch(evidence, self.volume, self._speed)

    def __call__(
        self,
        source: Any,
        sample_rate: int | None = None,
        *,
        channels: Sequence[int] | None = None,
        start: float | None = None,
        end: float | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> PositionEstimate:
        """Estimate from a file, an array (M, n) with its `sample_rate`, or a `Recording`."""
        check_callback("progress", progress)
        recording = opened(source, sample_rate, channels, start, end)
        check_microphones(recording, self.geometry)
        evidence = self.evidence(recording.sample_rate, recording.start)
        blocks = _Blocks(self, evidence, recording)
        for frames in frames_of(evidence, recording, progress):
            blocks.add(frames)
        evidence.check_heard(recording.name)
        found, whole = blocks.results()
        miswired = evidence.miswired or blocks.miswired()
        answer = PositionEstimate(
            source=recording.name,
            method=self.method,
            array=self.geometry.name,
            microphones=self.geometry.microphones,
            sample_rate=recording.sample_rate,
            kind=evidence.kind,
            pairs=tuple(evidence.pairs),
            positions=whole,
            blocks=found,
            warnings=(
                *([] if miswired is None or miswired == evidence.miswired else [miswired.sentence]),
                *evidence.warnings,
                *fewer_found(self.sources, len(whole), [len(one.positions) for one in found if one.frames]),
            ),
        )
        trust = evidence.band_trust * (1.0 if miswired is None else MISWIRED_TRUST)
        return answer if trust == 1 else answer.scale_confidence(trust)

    def locate(self, search: PlaceSearch, curves: Floats) -> tuple[Position, ...]:
        """As many positions as were asked for, the one that most speaks for first. Shape: (K,)"""
        auto = self.sources == "auto"
        left, taken = curves, list[Floats]()
        found = list[Position]()
        while len(found) < (MAX_AUTO_SOURCES if auto else int(self.sources)):
            place = search.best_place(left, taken, MIN_SEPARATION)
            if place is None:
                break
            position = self._fit(search, left, place, further=bool(found))
            if auto and position.confidence < (MIN_FURTHER_CONFIDENCE if found else MIN_CONFIDENCE):
                break
            found.append(position)
            taken.append(place)
            left = search.remove_place(left, place)
        return tuple(found)

    def _fit(self, search: PlaceSearch, curves: Floats, place: Floats, *, further: bool) -> Position:
        evidence, mean_evidence = search.evidence, search.mean_evidence(curves, place)
        delays, weights = search.delays_near(curves, place)
        fit = fit_position(
            self.geometry, evidence.pairs, delays, weights, place, height=self.height, speed_of_sound=self._speed
        )
        if evidence.kind == "posterior":
            heard = np.unique(np.array(evidence.pairs)[search.informative_pairs(curves)])
            spare = len(heard) - 1 - (3 if self.height is None else 2)
            confidence = probability(
                mean_evidence - np.log1p(HISTOGRAM_FLOOR),
                search.peak_agreement(curves, place),
                further=further,
                spare=spare,
            )
            confidence *= min(1.0, float(fit.used.mean()) / MIN_AGREEING_SHARE)
            stands_out = confidence >= MIN_CONFIDENCE
        else:
            confidence, stands_out = min(1.0, max(0.0, mean_evidence)), None
        within = np.clip(place, self.volume[:, 0], self.volume[:, 1]) if self._bounded else None
        return position_from_fit(
            fit,
            self.geometry,
            evidence.pairs,
            self.volume,
            self.height,
            confidence,
            stands_out,
            within=within,
            alone=not further,
        )


class _Blocks:
    """Frames to blocks by their centres; blocks count from the recording's start."""

    def __init__(self, estimator: PositionEstimator, evidence: ArrayEvidence, recording: Recording) -> None:
        self._estimator, self._evidence = estimator, evidence
        self._search = estimator.search(evidence)
        self._start, self._end = recording.start, recording.start + recording.duration
        self._count = int(np.ceil(recording.duration / estimator.block - 1e-9))
        self._whole, self._sums = DelayHistogram(evidence), DelayHistogram(evidence)
        self._done: list[PositionBlock] = []
        self._said: list[tuple[int, Floats]] = []

    def add(self, frames: ArrayFrames) -> None:
        numbers = np.floor((frames.times - self._start) / self._estimator.block + 1e-9).astype(int)
        numbers = np.minimum(numbers, self._count - 1)
        for number in np.unique(numbers):
            while len(self._done) < number:
                self._finish()
            self._sums.add(frames.part(numbers == number))

    def results(self) -> tuple[tuple[PositionBlock, ...], tuple[Position, ...]]:
        """The blocks, and the positions of the whole."""
        while len(self._done) < self._count:
            self._finish()
        return tuple(self._done), self._found(self._whole)

    def _finish(self) -> None:
        first = self._start + len(self._done) * self._estimator.block
        last = min(first + self._estimator.block, self._end)
        self._done.append(PositionBlock(first, last, self._sums.frames, self._found(self._sums)))
        if self._sums.frames and self._estimator.geometry.aperture > MAX_FAR_FIELD_APERTURE:
            self._said = sorted([*self._said, (self._sums.frames, self._sums.curves)], key=lambda one: -one[0])
            self._said = self._said[:MAX_EXCHANGE_BLOCKS]
        self._whole.join(self._sums)
        self._sums = DelayHistogram(self._evidence)

    def miswired(self) -> Miswiring | None:
        """Whether two microphones that are far apart seem to be exchanged."""
        return find_exchange(self._search, [curves for _, curves in self._said])

    def _found(self, sums: DelayHistogram) -> tuple[Position, ...]:
        return self._estimator.locate(self._search, sums.curves) if sums.frames else ()


def _checked_volume(geometry: Geometry, volume: npt.ArrayLike | None, height: float | None) -> Floats:
    if volume is None:
        low, high = geometry.microphones.min(axis=0) - SEARCH_MARGIN, geometry.microphones.max(axis=0) + SEARCH_MARGIN
        box = np.stack([low, high], axis=1)
    else:
        box = check_array("volume", volume, "the lowest and highest front, left and up, in metres")
        if box.shape != (3, 2) or not np.isfinite(box).all() or (box[:, 0] >= box[:, 1]).any():
            raise InputError(
                "the volume is not understood; expected the lowest and highest front, left and up, in metres"
            )
        if (box[:, 1] - box[:, 0]).max() > 200:
            raise InputError("the volume is more than 200 m wide: are the units right?")
    if height is not None:
        box[2] = height
    return np.asarray(box)
