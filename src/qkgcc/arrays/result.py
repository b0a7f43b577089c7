"""Results of a `DirectionEstimator` and a `PositionEstimator`, and how they are written to CSV, JSON and RTTM.

A missing value is NaN in arrays, `null` in JSON and empty in CSV. Azimuths are degrees counterclockwise from the front
of the array, elevations degrees up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from qkgcc.arrays.ambiguity import IN_SPACE, Ambiguity
from qkgcc.core.tables import cell, csv_text, json_numbers, json_text, save_text
from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.tracks.segments import COLUMNS, Angles, Segment, rows, rttm, segments
from qkgcc.tracks.tracker import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class _Block:
    """Some seconds of a recording."""

    start: float
    end: float
    frames: int
    """Frames that are not silence."""


class _Estimate:
    """What directions and positions have in common: sources in the whole recording and in its blocks.

    A subclass is a dataclass with the fields `warnings`, `blocks` and one named as `SOURCES` says: the sources of the
    whole recording, which every block has under the same name.
    """

    SOURCES: ClassVar[str]
    HEAD: ClassVar[tuple[str, ...]]
    """Fields that JSON begins with."""
    COLUMNS: ClassVar[tuple[str, ...]]
    """Of CSV, after those of the block."""
    source: str
    blocks: tuple[Any, ...]

    def scale_confidence(self, factor: float) -> Self:
        """The same estimate with all confidences multiplied by a factor."""

        def scaled(holder: Any) -> Any:
            sources = [
                replace(source, confidence=factor * source.confidence) for source in getattr(holder, self.SOURCES)
            ]
            return replace(holder, **{self.SOURCES: tuple(sources)})

        whole: Any = self
        scaled_whole: Self = scaled(replace(whole, blocks=tuple(scaled(block) for block in self.blocks)))
        return scaled_whole

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line for each source of each block, also written to `path` if given."""
        return save_text(blocks_csv([self]), path)

    def _json(self, path: str | Path | None, more: dict[str, Any]) -> str:
        """One JSON object on one line, also written to `path` if given: head, sources, blocks, and `more`."""
        record: dict[str, Any] = {name: getattr(self, name) for name in self.HEAD}
        record[self.SOURCES] = [source.record() for source in getattr(self, self.SOURCES)]
        record["blocks"] = [
            {
                "start": round(block.start, 6),
                "end": round(block.end, 6),
                "frames": block.frames,
                self.SOURCES: [source.record() for source in getattr(block, self.SOURCES)],
            }
            for block in self.blocks
        ]
        return save_text(json_text(record | more), path)


@dataclass(frozen=True)
class Direction:
    """Where a source is heard from."""

    azimuth: float
    """Degrees, -180 to 180, from the middle of the microphones."""
    elevation: float | None
    """Degrees; None of an array on a line."""
    cone: float | None
    """Degrees between it and the line of the microphones, from the first to the last of them; None of other arrays."""
    distance: float | None
    """Metres, where sources were looked for nearby; otherwise None."""
    confidence: float
    """Probability that a source is within 10 degrees of it (of an azimuth, on a circle): calibrated for blocks of 1 s
    in simulated rooms with talkers, flat arrays or lines, and a network (`maps.probability`). Elsewhere, as of a whole
    recording, it ranks. An array on a line is sure of the `cone`; where dead microphones or the pairs that were chosen
    leave two directions that the array would tell apart, each has at most 0.5. Of classical methods: the mean
    correlation of the pairs there, which is no probability at all."""
    share: float
    """Of all that the frames say, what lies within 10 degrees of it: with several sources, roughly who prevailed how
    often."""
    also: tuple[tuple[float, float], ...] = ()
    """(azimuth, elevation) of other directions that sound the same to this array."""

    def record(self) -> dict[str, Any]:
        """As it stands in JSON."""
        numbers = {
            name: None if value is None else round(value, 4) for name, value in asdict(self).items() if name != "also"
        }
        return numbers | {"also": [{"azimuth": round(a, 4), "elevation": round(e, 4)} for a, e in self.also]}

    def cells(self, rank: int) -> list[str | int]:
        """As they stand in CSV."""
        also = self.also[0] if self.also else (None, None)
        numbers = (self.azimuth, self.elevation, self.cone, self.distance, self.confidence, self.share, *also)
        return [rank, *(cell(number, 3) for number in numbers), POSITIVE_SIDE]


@dataclass(frozen=True)
class DirectionBlock(_Block):
    """Directions within some seconds, the strongest first; none: silence.

    With a `context` they are those in the middle of these seconds, and the strongest has the most frames.
    """

    directions: tuple[Direction, ...]


@dataclass(frozen=True, eq=False)
class DirectionEstimate(_Estimate):
    """Directions in the whole recording, in its blocks and in its frames. Shape: T frames, C cells of the grid."""

    SOURCES: ClassVar[str] = "directions"
    HEAD: ClassVar[tuple[str, ...]] = ("source", "method", "array", "sample_rate", "grid", "kind", "cannot_tell")
    COLUMNS: ClassVar[tuple[str, ...]] = (
        *("rank", "azimuth", "elevation", "cone", "distance", "confidence", "share"),
        *("also_azimuth", "also_elevation", "positive_side"),
    )

    source: str
    method: str
    array: str
    sample_rate: int
    grid: str
    """'line', 'circle' or 'sphere': what was searched."""
    kind: str
    """'posterior' or 'correlation'."""
    cannot_tell: str | None
    """Which directions sound the same to the microphones that live; None: all differ."""
    directions: tuple[Direction, ...]
    """Of the whole recording, the strongest first."""
    blocks: tuple[DirectionBlock, ...]
    times: Floats
    """(T,) centres of the frames in seconds."""
    azimuth: Floats
    """(T,) of the strongest direction in each frame alone; NaN: silence."""
    elevation: Floats | None
    cone: Floats | None
    """(T,) degrees to the line of the microphones; None of other arrays."""
    distance: Floats | None
    confidence: Floats
    """(T,) of what the frame says, the share within 10 degrees of its direction."""
    level: Floats
    """(T,) RMS, full scale = 1."""
    angles: Floats
    """(C,) degrees: azimuths of the grid's cells, of a line its angles."""
    maps: Floats32 | None = None
    """(T, C) what each frame says of each cell; None where it was not to be kept."""
    ambiguity: Ambiguity = IN_SPACE
    """What sounds the same to the microphones that live."""
    hop: float = 0.0
    """Seconds from one frame to the next."""
    tracks: tuple[Trajectory, ...] | None = None
    """Sources that were followed, by id, each moment by moment from its first word to its last; None: not asked for."""
    warnings: tuple[str, ...] = ()

    def scale_confidence(self, factor: float) -> DirectionEstimate:
        """The same estimate with all confidences, and the probabilities of tracks, multiplied by a factor."""
        tracks = self.tracks and tuple(
            [replace(moment, probability=factor * moment.probability) for moment in track] for track in self.tracks
        )
        return replace(super().scale_confidence(factor), confidence=factor * self.confidence, tracks=tracks)

    def to_json(self, path: str | Path | None = None, *, frames: bool = True) -> str:
        """One JSON object on one line, also written to `path` if given. `frames=False` leaves out the frames."""
        record: dict[str, Any] = {"positive_side": POSITIVE_SIDE}
        if frames:
            record["times"] = json_numbers(self.times, 6)
            for name in ("azimuth", "elevation", "cone", "distance", "confidence"):
                values = getattr(self, name)
                record[name] = json_numbers(values, 4)
            record["level"] = json_numbers(self.level, 7)
        if self.tracks is not None:
            record["tracks"] = [_track_record(track, self.angles_of) for track in self.tracks]
            record["segments"] = [asdict(segment) for segment in self.segments]
        return self._json(path, record | {"warnings": list(self.warnings)})

    @property
    def axis(self) -> Floats | None:
        """(3,) along the line that was searched; None of other grids."""
        return self.ambiguity.axis if self.grid == "line" else None

    @property
    def rising(self) -> bool:
        """Whether tracks have elevations: on a circle or a line they are followed in its plane."""
        return self.grid == "sphere"

    def angles_of(self, direction: Floats) -> Angles:
        """A direction that was followed, as these microphones know it."""
        return self.ambiguity.angles(direction, rising=self.rising)

    @property
    def segments(self) -> list[Segment]:
        """When the sources that were followed speak, and from where."""
        moments = [moment for track in self.tracks or () for moment in track]
        return segments(moments, self.hop, angles=self.angles_of)

    def to_rttm(self) -> str:
        """Who speaks when, a line for each segment, as diarization tools read it."""
        name = "_".join(Path(self.source).stem.split()) or "recording"
        return "".join(f"{line}\n" for line in rttm(self.segments, name))

    def plot(self, path: str | Path | None = None) -> Figure:
        """A picture: the map of directions over time, the blocks' directions on it, and all of it around the array."""
        from qkgcc.plots import plot_directions

        return plot_directions(self, path)

    def __str__(self) -> str:
        found = "; ".join(describe_direction(direction) for direction in self.directions) or "silence"
        return f"{self.source}: {found}, by {self.method}"


@dataclass(frozen=True, eq=False)
class Position:
    """Where a source is, and how well that is known. P pairs."""

    place: Floats
    """(3,) metres to the front, to the left and up."""
    radii: Floats
    """(3,) metres: semi-axes of the error ellipse, one standard deviation, the longest first; infinite: not known."""
    axes: Floats
    """(3, 3) a row of unit length for each of them."""
    residuals: Floats
    """(P,) seconds by which the delays of the pairs miss the place."""
    used: Bools
    """(P,) which of the delays the place rests on; the others were outliers."""
    confidence: float
    """Probability that a source is within half a metre of it on the floor; of correlations, how high they are there."""
    solved: bool
    remark: str | None = None
    """What cannot be told, and what is known instead; None: nothing."""

    @property
    def rms(self) -> float:
        """Seconds, of the residuals that count."""
        return float(np.sqrt((self.residuals[self.used] ** 2).mean())) if self.used.any() else float("nan")

    def record(self) -> dict[str, Any]:
        """As it stands in JSON."""
        return {
            "place": self.place.round(4).tolist(),
            "radii": [round(float(radius), 4) if np.isfinite(radius) else None for radius in self.radii],
            "axes": self.axes.round(4).tolist(),
            "residuals": self.residuals.round(9).tolist(),
            "used": self.used.tolist(),
            "confidence": round(self.confidence, 4),
            "solved": self.solved,
            "remark": self.remark,
        }

    def cells(self, rank: int) -> list[str | int]:
        """As they stand in CSV, in the order of their rank."""
        radius = f"{self.radii[0]:.4f}" if np.isfinite(self.radii[0]) else ""
        return [
            *(f"{x:.4f}" for x in self.place),
            radius,
            f"{self.confidence:.4f}",
            int(self.solved),
            self.remark or "",
        ]


@dataclass(frozen=True)
class PositionBlock(_Block):
    """Positions within some seconds."""

    positions: tuple[Position, ...]
    """The strongest first; none: silence, or nothing that stands out."""


@dataclass(frozen=True, eq=False)
class PositionEstimate(_Estimate):
    """Positions of sources in the whole recording and in its blocks."""

    SOURCES: ClassVar[str] = "positions"
    HEAD: ClassVar[tuple[str, ...]] = ("source", "method", "array", "sample_rate", "kind")
    COLUMNS: ClassVar[tuple[str, ...]] = ("front", "left", "up", "radius", "confidence", "solved", "remark")

    source: str
    method: str
    array: str
    microphones: Floats
    """(M, 3) metres."""
    sample_rate: int
    kind: str
    """'posterior' or 'correlation'."""
    pairs: tuple[tuple[int, int], ...]
    positions: tuple[Position, ...]
    """Of the whole recording, of sources that stay at their places."""
    blocks: tuple[PositionBlock, ...]
    warnings: tuple[str, ...] = ()

    def to_json(self, path: str | Path | None = None) -> str:
        """One JSON object on one line, also written to `path` if given."""
        return self._json(path, {"pairs": [list(pair) for pair in self.pairs], "warnings": list(self.warnings)})

    def plot(self, path: str | Path | None = None) -> Figure:
        """A picture: the microphones and the places from above and from the side, with their ellipses."""
        from qkgcc.plots import plot_positions

        return plot_positions(self, path)


def describe_direction(direction: Direction) -> str:
    """A direction in words, with what sounds the same."""
    if direction.cone is not None:
        (other, _), *_ = direction.also
        where = f"{direction.cone:.1f}° from the line (azimuth {direction.azimuth:.1f}° or {other:.1f}°)"
    else:
        where = f"azimuth {direction.azimuth:.1f}°, elevation {elevation_text(direction)}"
    away = "" if direction.distance is None else f", {direction.distance:g} m"
    return f"{where}{away}, confidence {direction.confidence:.2f}"


def elevation_text(direction: Direction) -> str:
    """Its elevation; with both signs where the array does not know it, and the mirror image where that is elsewhere."""
    if direction.elevation is None:
        return "unknown"
    if not direction.also:
        return f"{direction.elevation:.1f}°"
    (azimuth, elevation), *_ = direction.also
    if abs((azimuth - direction.azimuth + 180) % 360 - 180) < 0.05:
        return f"±{abs(direction.elevation):.1f}°"
    return f"{direction.elevation:.1f}° (or azimuth {azimuth:.1f}°, elevation {elevation:.1f}°)"


POSITIVE_SIDE = "left"
"""Of azimuths, in CSV and JSON."""


def blocks_csv(estimates: Sequence[_Estimate], *, header: bool = True) -> str:
    """Blocks of estimates of one kind, under one header. A block of silence is a line without a source."""
    columns = estimates[0].COLUMNS

    def rows() -> Iterator[list[Any]]:
        for estimate in estimates:
            for block in estimate.blocks:
                begin = [estimate.source, f"{block.start:.3f}", f"{block.end:.3f}"]
                sources = getattr(block, estimate.SOURCES)
                yield from ([*begin, *source.cells(rank)] for rank, source in enumerate(sources, 1))
                if not sources:
                    yield begin

    return csv_text(("source", "start", "end", *columns), rows(), header=header)


def tracks_csv(estimates: Sequence[DirectionEstimate], *, header: bool = True) -> str:
    """A line for each moment of each source that was followed, under one header."""

    def cells() -> Iterator[list[Any]]:
        for estimate in estimates:
            for row in rows((moment for track in estimate.tracks or () for moment in track), estimate.angles_of):
                shown = row | {"active": int(bool(row["active"]))}
                yield [
                    estimate.source,
                    *("" if shown[name] is None else shown[name] for name in COLUMNS),
                    POSITIVE_SIDE,
                ]

    return csv_text(("source", *COLUMNS, "positive_side"), cells(), header=header)


def _track_record(track: Trajectory, angles: Callable[[Floats], Angles]) -> dict[str, Any]:
    table = rows(track, angles)
    record: dict[str, Any] = {"id": track[0].id}
    for name in COLUMNS:
        if name != "track":
            values = [row[name] for row in table]
            record[name] = None if all(value is None for value in values) else values
    return record
