"""Tracks as rows: who speaks when, in the Rich Transcription Time Marked form, and where, moment by moment.

    SPEAKER meeting 1 3.200 1.408 <NA> <NA> 2 <NA> <NA>

is track 2 in the recording `meeting`, which speaks from 3.2 s on for 1.408 s. RTTM has no place for directions; they
are in `rows` (for CSV and JSON).

NIST, "The 2009 (RT-09) Rich Transcription Meeting Recognition Evaluation Plan", 2009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats
from qkgcc.tracks.motion import azimuth_elevation
from qkgcc.tracks.tracker import Track

ANGLES = ("azimuth", "elevation", "cone", "also_azimuth", "also_elevation")
COLUMNS = ("time", "track", *ANGLES, "spread", "probability", "speaking", "active")
"""Of the rows: seconds, id, degrees (None: not known, or there is none), and what is probable from 0 to 1."""


class Angles(NamedTuple):
    """A direction in degrees, and another that sounds the same to the microphones."""

    azimuth: float
    elevation: float | None = None
    """None: it is followed in the plane of a flat array, or around a line."""
    cone: float | None = None
    """To the line of the microphones; None of other arrays."""
    also_azimuth: float | None = None
    also_elevation: float | None = None

    @staticmethod
    def of(direction: Floats) -> Angles:
        """Where none sounds like another."""
        azimuth, elevation = azimuth_elevation(direction)
        return Angles(float(azimuth), float(elevation))


@dataclass(frozen=True)
class Segment:
    """A time in which a track speaks, in seconds, and the middle of where, in degrees: see `Angles`."""

    id: int
    start: float
    duration: float
    azimuth: float
    elevation: float | None
    cone: float | None = None
    also_azimuth: float | None = None
    also_elevation: float | None = None


def rows(
    tracks: Iterable[Track], angles: Callable[[Floats], Angles] = Angles.of
) -> list[dict[str, float | int | bool | None]]:
    """One row for each moment of each track, by time and id, with the names of `COLUMNS`.

    Args:
        angles: of a direction, as the array knows it.
    """
    ordered = sorted(tracks, key=lambda track: (track.time, track.id))
    return [
        {
            "time": round(track.time, 4),
            "track": track.id,
            **{name: _round_angle(value) for name, value in zip(ANGLES, angles(track.direction), strict=True)},
            "spread": round(track.spread, 2),
            "probability": round(track.probability, 4),
            "speaking": round(track.speaking, 4),
            "active": track.active,
        }
        for track in ordered
    ]


def segments(
    tracks: Iterable[Track],
    seconds_per_frame: float,
    *,
    pause: float = 0.3,
    angles: Callable[[Floats], Angles] = Angles.of,
) -> list[Segment]:
    """The times in which tracks speak, by their beginnings.

    Args:
        tracks: moments of any tracks; the time of each is the middle of what its frame adds.
        seconds_per_frame: that each moment stands for.
        pause: seconds of silence that do not end a segment.
        angles: of a direction, as the array knows it.
    """
    if not seconds_per_frame > 0:
        raise InputError(f"frames of {seconds_per_frame:g} s; expected seconds from one to the next, such as 0.064")
    runs: dict[int, list[list[Track]]] = {}
    for track in sorted(tracks, key=lambda track: track.time):
        if track.active:
            own = runs.setdefault(track.id, [])
            # A hair more: times are sums of steps that binary numbers only come near to.
            if own and track.time - own[-1][-1].time <= pause + seconds_per_frame * 1.001:
                own[-1].append(track)
            else:
                own.append([track])
    found = [_segment(run, seconds_per_frame, angles) for own in runs.values() for run in own]
    return sorted(found, key=lambda segment: (segment.start, segment.id))


def _segment(run: list[Track], seconds_per_frame: float, angles: Callable[[Floats], Angles]) -> Segment:
    mean = np.mean([track.direction for track in run], axis=0)
    start = max(0.0, run[0].time - seconds_per_frame / 2)
    middle = angles(mean / max(float(np.linalg.norm(mean)), 1e-12))
    return Segment(run[0].id, start, run[-1].time + seconds_per_frame / 2 - start, *middle)


def _round_angle(value: float | None) -> float | None:
    return None if value is None else round(value, 2) + 0.0


def rttm(found: Iterable[Segment], name: str) -> list[str]:
    """Lines of an RTTM file about the recording `name`.

    >>> rttm([Segment(2, 3.2, 1.408, 90.0, 0.0)], "meeting")
    ['SPEAKER meeting 1 3.200 1.408 <NA> <NA> 2 <NA> <NA>']
    """
    if not name or name.split() != [name]:
        raise InputError(f"the name {name!r} cannot stand in an RTTM file, whose fields end at spaces: use one without")
    return [f"SPEAKER {name} 1 {one.start:.3f} {one.duration:.3f} <NA> <NA> {one.id} <NA> <NA>" for one in found]
