"""What a `DirectionEstimator` answers, and how it is written down. No estimate is NaN in arrays, `null` in JSON and
empty in CSV. Azimuths are degrees counterclockwise from the front of the array, elevations degrees up."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.ambiguity import IN_SPACE, Ambiguity
from qkgcc.core.tables import cell, json_numbers, json_text, save_text
from qkgcc.tracks.segments import COLUMNS, Angles, Segment, rows, rttm, segments
from qkgcc.tracks.smoothing import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


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


@dataclass(frozen=True)
class DirectionBlock:
    """The directions within some seconds, the strongest first; none: silence.

    With a `context`, where they are in the middle of these seconds, and the strongest is whose frames are most."""

    start: float
    end: float
    frames: int
    """That are no silence."""
    directions: tuple[Direction, ...]


@dataclass(frozen=True, eq=False)
class DirectionEstimate:
    """Directions in the whole recording, in its blocks and in its frames. Shape: T frames, C cells of the grid."""

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
    maps: npt.NDArray[np.float32] | None = None
    """(T, C) what each frame says of each cell; None where it was not to be kept."""
    ambiguity: Ambiguity = IN_SPACE
    """What sounds the same to the microphones that live."""
    hop: float = 0.0
    """Seconds from one frame to the next."""
    tracks: tuple[Trajectory, ...] | None = None
    """Sources that were followed, by id, each moment by moment from its first word to its last; None: not asked for."""
    warnings: tuple[str, ...] = ()

    def doubted(self, trust: float) -> DirectionEstimate:
        """The same with all confidences multiplied by a number."""

        def less(found: Sequence[Direction]) -> tuple[Direction, ...]:
            return tuple(replace(one, confidence=trust * one.confidence) for one in found)

        tracks = self.tracks and tuple(
            [replace(moment, probability=trust * moment.probability) for moment in track] for track in self.tracks
        )
        blocks = tuple(replace(block, directions=less(block.directions)) for block in self.blocks)
        directions, confidence = less(self.directions), trust * self.confidence
        return replace(self, directions=directions, blocks=blocks, confidence=confidence, tracks=tracks)

    def to_json(self, path: str | Path | None = None, *, frames: bool = True) -> str:
        """One JSON object on one line, also written to `path` if given. `frames=False` leaves out the frames."""
        record: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("source", "method", "array", "sample_rate", "grid", "kind", "cannot_tell")
        }
        record["directions"] = [_plain(one) for one in self.directions]
        record["blocks"] = [
            {
                "start": round(block.start, 6),
                "end": round(block.end, 6),
                "frames": block.frames,
                "directions": [_plain(one) for one in block.directions],
            }
            for block in self.blocks
        ]
        if frames:
            record["times"] = json_numbers(self.times, 6)
            for name in ("azimuth", "elevation", "cone", "distance", "confidence"):
                values = getattr(self, name)
                record[name] = json_numbers(values, 4)
            record["level"] = json_numbers(self.level, 7)
        if self.tracks is not None:
            record["tracks"] = [_track(one, self.angles_of) for one in self.tracks]
            record["segments"] = [asdict(one) for one in self.segments]
        record["warnings"] = list(self.warnings)
        return save_text(json_text(record), path)

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

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line for each direction of each block, also written to `path` if given."""
        return save_text(directions_csv([self]), path)

    def plot(self, path: str | Path | None = None) -> Figure:
        """A picture: what the frames say over time, the blocks' directions on it, and all of it around the array."""
        from qkgcc.plots import plot_directions

        return plot_directions(self, path)

    def __str__(self) -> str:
        found = "; ".join(described(one) for one in self.directions) or "silence"
        return f"{self.source}: {found}, by {self.method}"


def described(direction: Direction) -> str:
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


CSV_COLUMNS = (
    "source",
    "start",
    "end",
    "rank",
    "azimuth",
    "elevation",
    "cone",
    "distance",
    "confidence",
    "share",
    "also_azimuth",
    "also_elevation",
)


def directions_csv(estimates: list[DirectionEstimate], *, header: bool = True) -> str:
    """Blocks of several estimates under one header; a block of silence is a line without a direction."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(CSV_COLUMNS)
    for estimate in estimates:
        for block in estimate.blocks:
            begin = [estimate.source, f"{block.start:.3f}", f"{block.end:.3f}"]
            if not block.directions:
                writer.writerow(begin + [""] * (len(CSV_COLUMNS) - len(begin)))
            for rank, one in enumerate(block.directions, 1):
                numbers = (one.azimuth, one.elevation, one.cone, one.distance, one.confidence, one.share)
                also = one.also[0] if one.also else (None, None)
                writer.writerow(begin + [rank] + [cell(value, 3) for value in (*numbers, *also)])
    return out.getvalue()


TRACK_COLUMNS = ("source", *COLUMNS)


def tracks_csv(estimates: list[DirectionEstimate], *, header: bool = True) -> str:
    """A line for each moment of each source that was followed, under one header."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(TRACK_COLUMNS)
    for estimate in estimates:
        for row in rows((moment for track in estimate.tracks or () for moment in track), estimate.angles_of):
            shown = row | {"active": int(bool(row["active"]))}
            writer.writerow([estimate.source, *("" if shown[name] is None else shown[name] for name in COLUMNS)])
    return out.getvalue()


def _track(track: Trajectory, angles: Callable[[Floats], Angles]) -> dict[str, Any]:
    table = rows(track, angles)
    record: dict[str, Any] = {"id": track[0].id}
    for name in COLUMNS:
        if name != "track":
            values = [row[name] for row in table]
            record[name] = None if all(one is None for one in values) else values
    return record


def _plain(direction: Direction) -> dict[str, Any]:
    record = {
        name: None if value is None else round(value, 4) for name, value in asdict(direction).items() if name != "also"
    }
    return record | {"also": [{"azimuth": round(a, 4), "elevation": round(e, 4)} for a, e in direction.also]}
