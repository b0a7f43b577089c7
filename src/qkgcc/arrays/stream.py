"""Directions of sound that is still coming: blocks of any size in, frames out as they complete.

    stream = DirectionStream(DirectionEstimator("respeaker4"), sample_rate=48000)
    for block in microphones:        # (4, any number of samples)
        frames = stream.push(block)  # those that this block completed, perhaps none

Whatever the blocks, frames are those that the estimator finds in the whole recording, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qkgcc.arrays.ambiguity import IN_SPACE, Ambiguity
from qkgcc.arrays.directions import DirectionEstimator, update_tracks
from qkgcc.arrays.evidence import ArrayFrames
from qkgcc.arrays.grids import unit_vectors
from qkgcc.arrays.maps import FrameMaps
from qkgcc.arrays.result import POSITIVE_SIDE
from qkgcc.core.checks import check_flag, check_name, short_repr
from qkgcc.core.errors import InputError
from qkgcc.core.tables import cell, csv_text, json_numbers, json_text
from qkgcc.core.types import Floats, Samples
from qkgcc.tracks.motion import angle_between, azimuth_elevation
from qkgcc.tracks.segments import ANGLES, Angles
from qkgcc.tracks.tracker import Track

RECENT = 0.5
"""Seconds over which what frames say is averaged for the direction of now: older ones count less and less."""


class DirectionFrames(NamedTuple):
    """Frames, each with its own direction, and what they say together. Shape: T frames, C cells of the grid."""

    source: str
    times: Floats
    """(T,) centres in seconds."""
    azimuth: Floats
    """(T,) degrees, -180 to 180; NaN: silence."""
    elevation: Floats | None
    """(T,) degrees; None of an array on a line."""
    cone: Floats | None
    """(T,) degrees to the line of the microphones; None of other arrays."""
    confidence: Floats
    """(T,) of what the frame says, the share within 10 degrees of its direction."""
    trust: Floats
    """(T,) what that was multiplied by, and what is written of tracks is: see `ArrayFrames.trust`."""
    level: Floats
    """(T,) RMS, full scale = 1."""
    now: Floats
    """(C,) what the last half second or so says of the cells; zeros where nothing was heard."""
    tracks: list[list[Track]] | None
    """Of each frame, the sources that are followed; None where that was not asked for."""
    ambiguity: Ambiguity = IN_SPACE
    """What sounds the same to the microphones."""
    rising: bool = False
    """Whether tracks have elevations."""

    def also_azimuth(self, number: int) -> float | None:
        """Of a frame without tracks: another azimuth that sounds the same."""
        if math.isnan(self.azimuth[number]):
            return None
        up = 0.0 if self.elevation is None else self.elevation[number]
        return self.ambiguity.angles(unit_vectors(self.azimuth[number], up), rising=False).also_azimuth

    def angles_of(self, track: Track) -> Angles:
        """Where a source that is followed is, as these microphones know it."""
        return self.ambiguity.angles(track.direction, rising=self.rising)


class DirectionStream:
    """A `DirectionEstimator` at work on sound that is still coming. It needs the same little memory however long.

    Args:
        sample_rate: of all blocks.
        track: whether sources are followed; for networks.
        source: what it is called in what is written down.
    """

    def __init__(
        self, estimator: DirectionEstimator, sample_rate: int, *, track: bool = False, source: str = "the stream"
    ) -> None:
        if not isinstance(estimator, DirectionEstimator):
            raise InputError(
                f"a stream takes a DirectionEstimator, not {short_repr(estimator)}: "
                "DirectionStream(DirectionEstimator(...), sample_rate)"
            )
        track = check_flag("track", track)
        self.estimator, self.source = estimator, check_name("name of the source", source, "text")
        self.evidence = estimator.evidence(sample_rate)
        self.maps = estimator.maps(self.evidence)
        self.frame = self.evidence.frame / self.evidence.rate
        """Seconds."""
        self.hop = self.evidence.hop / self.evidence.rate
        self._tracker = estimator.tracker(self.evidence) if track else None
        self._fading = math.exp(-self.hop / RECENT)
        self._now, self._weight = np.zeros(len(self.maps.grid.cells)), 0.0
        self._ended = False
        self._nothing: DirectionFrames | None = None  # the answer without frames, since the last that had some
        self.answered = 0
        """Frames until now that are no silence."""

    @property
    def latency(self) -> float:
        """Seconds after the last sample of a frame until it is answered, at most; the frame itself comes on top."""
        return self.evidence.latency

    @property
    def notices(self) -> dict[str, str]:
        """What to know of what was heard, by what it is about, such as a microphone; not in the first second."""
        if not self._ended and self.evidence.count * self.hop < 1:
            return {}
        return {sentence.partition(" is silent")[0]: sentence for sentence in self.evidence.warnings}

    def push(self, block: Samples) -> DirectionFrames:
        """The frames that are complete with this block. Shape: (M, n)"""
        return self._answer(self.evidence.push(block))

    def flush(self) -> DirectionFrames:
        """The rest, at the end."""
        self._ended = True
        return self._answer(self.evidence.flush())

    def _answer(self, frames: ArrayFrames) -> DirectionFrames:
        if self._nothing is not None and not len(frames.times):
            return self._nothing  # most blocks complete no frame
        found = self.maps(frames)
        direction, _, confidence = self.maps.directions(found)
        direction = np.where(frames.heard[:, None], direction, np.nan)
        azimuth, elevation = azimuth_elevation(direction)
        grid = self.maps.grid
        line = grid.kind == "line"
        self.answered += int(frames.heard.sum())
        self._fade(found)
        answer = DirectionFrames(
            self.source,
            frames.times,
            azimuth,
            None if line else elevation,
            angle_between(direction, np.asarray(grid.axis)) if line else None,
            frames.trust * confidence,
            frames.trust,
            frames.level,
            self._now / max(self._weight, 1e-12),
            None if self._tracker is None else update_tracks(self._tracker, frames, found),
            grid.ambiguity,
            grid.kind == "sphere",
        )
        self._nothing = None if len(frames.times) else answer
        return answer

    def _fade(self, found: FrameMaps) -> None:
        for weight, cells in zip(found.weights, found.cells, strict=True):
            self._now = self._fading * self._now + weight * np.maximum(cells, 0)
            self._weight = self._fading * self._weight + weight


CSV_COLUMNS = (
    "source",
    "time",
    "azimuth",
    "elevation",
    "cone",
    "confidence",
    "level",
    "track",
    "also_azimuth",
    "positive_side",
)


def frames_csv(frames: DirectionFrames, *, header: bool = True) -> str:
    """A line for each frame; where sources are followed, for each that speaks in it, with its id."""

    def rows() -> Iterator[list[Any]]:
        for number, time in enumerate(frames.times):
            begin, level = [frames.source, f"{time:.6f}"], f"{frames.level[number]:.7f}"
            if frames.tracks is None:
                values = (frames.azimuth, frames.elevation, frames.cone)
                angles = [cell(None if value is None else value[number], 3) for value in values]
                also = cell(frames.also_azimuth(number), 3)
                yield [*begin, *angles, f"{frames.confidence[number]:.4f}", level, "", also, POSITIVE_SIDE]
                continue
            for track in active_tracks(frames, number):
                angles = [cell(value, 3) for value in frames.angles_of(track)]
                confidence = f"{frames.trust[number] * track.speaking:.4f}"
                yield [*begin, *angles[:3], confidence, level, track.id, angles[3], POSITIVE_SIDE]

    return csv_text(CSV_COLUMNS, rows(), header=header)


def active_tracks(frames: DirectionFrames, number: int) -> list[Track]:
    """The sources that are heard in a frame."""
    return [] if frames.tracks is None else [one for one in frames.tracks[number] if one.active]


def frames_json(frames: DirectionFrames, *, now: bool = True) -> str:
    """One JSON object on one line. `now=False` leaves out what is said of the grid's cells."""
    record: dict[str, Any] = {"source": frames.source, "positive_side": POSITIVE_SIDE}
    record["times"] = json_numbers(frames.times, 6)
    for name in ("azimuth", "elevation", "cone", "confidence"):
        values = getattr(frames, name)
        record[name] = json_numbers(values, 4)
    record["level"] = json_numbers(frames.level, 7)
    record["tracks"] = None
    if frames.tracks is not None:
        rows = zip(frames.tracks, frames.trust, strict=True)
        record["tracks"] = [[_track(frames, one, float(trust)) for one in row] for row, trust in rows]
    if now:
        record["now"] = json_numbers(frames.now, 5)
    return json_text(record)


def _track(frames: DirectionFrames, track: Track, trust: float) -> dict[str, Any]:
    angles = zip(ANGLES, frames.angles_of(track), strict=True)
    return {
        "id": track.id,
        **{name: None if value is None else round(value, 4) for name, value in angles},
        "spread": round(track.spread, 4),
        "probability": round(trust * track.probability, 4),
        "speaking": round(track.speaking, 4),
    }
