"""What the doctor answers: findings, each with what was seen and what to do, and everything that was measured.

Every check of this folder is a function `find_...` from measurements to findings, none where nothing is wrong.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qkgcc.arrays import Geometry
from qkgcc.core.tables import json_text, save_text

CODES = (
    "rate-mismatch",
    "too-short",
    "dead-channel",
    "low-level",
    "clipping",
    "dc-offset",
    "hum",
    "identical-channels",
    "too-little-sound",
    "unrelated-channels",
    "gain-mismatch",
    "inverted-polarity",
    "constant-offset",
    "clock-drift",
    "outside-spacing",
    "swapped-channels",
    "wrong-geometry",
)
"""Codes of all findings, in the order in which they are reported: faults that spoil later checks come first."""

MAX_UNKNOWN_SPACING = 3.0
"""Metres that two microphones of one recording are taken to be apart at most, when nothing is known of them."""


@dataclass(frozen=True)
class Finding:
    """One fault of a recording."""

    code: str
    channels: tuple[int, ...]
    """Channels it is about, counted from 0."""
    seen: str
    """One sentence: what was seen, with numbers."""
    advice: str
    """One sentence: what to do."""


@dataclass(frozen=True)
class Diagnosis:
    """All findings of a recording, none for a sound one."""

    source: str
    sample_rate: int
    channels: int
    duration: float
    """Seconds."""
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    """Sentences about what could not be checked."""
    measured: dict[str, Any] = field(default_factory=dict)
    """What was measured on the way, in plain numbers, lists and dicts; None where it could not be."""

    def to_json(self, path: str | Path | None = None) -> str:
        """One JSON object on one line, also written to `path` if given."""
        return save_text(json_text(asdict(self)), path)

    def __str__(self) -> str:
        head = f"{self.source}: {self.channels} channels, {self.sample_rate} Hz, {self.duration:.1f} s"
        lines = [f"  {finding.code}: {finding.seen} {finding.advice}" for finding in self.findings]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join([head if self.findings else f"{head}: nothing wrong was found", *lines])


@dataclass(frozen=True)
class Setup:
    """The microphones as the user described them, and the delays that follow from that."""

    spacing: float | None
    geometry: Geometry | None
    speed_of_sound: float

    def distance(self, first: int, second: int) -> float | None:
        """Metres between two microphones, None if not known."""
        return self.spacing if self.geometry is None else self.geometry.spacing(first, second)

    def max_delay(self) -> float:
        """Largest delay, in seconds, that is followed over time."""
        largest = self.spacing or 0.0 if self.geometry is None else self.geometry.aperture
        return max(MAX_UNKNOWN_SPACING, 2 * largest) / self.speed_of_sound

    def offset_limit(self, first: int, second: int) -> float:
        """Delay in seconds above which no distance explains it: the recorders were started apart."""
        distance = self.distance(first, second)
        if distance is None:
            return MAX_UNKNOWN_SPACING / self.speed_of_sound
        return 4 * distance / self.speed_of_sound + 0.001


def channel_names(channels: Iterable[int]) -> str:
    """Channels as they stand in a sentence.

    >>> channel_names([2]), channel_names([0, 1]), channel_names([0, 1, 3])
    ('channel 2', 'channels 0 and 1', 'channels 0, 1 and 3')
    """
    numbers = [str(channel) for channel in channels]
    if len(numbers) == 1:
        return f"channel {numbers[0]}"
    return f"channels {', '.join(numbers[:-1])} and {numbers[-1]}"


def value_per_channel(channels: Iterable[int], values: Iterable[str]) -> str:
    """Values with their channels, as they stand in a sentence.

    >>> value_per_channel([0, 2], ["-3 dB", "-4 dB"])
    '-3 dB in channel 0, -4 dB in channel 2'
    """
    return ", ".join(f"{value} in channel {channel}" for channel, value in zip(channels, values, strict=True))
