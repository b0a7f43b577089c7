"""What the doctor answers: findings, each with what was seen and what to do, and everything that was measured."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
"""Every finding there is, in the order in which they are reported: what spoils everything after it comes first."""


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


def named(channels: Iterable[int]) -> str:
    """
    >>> named([2]), named([0, 1]), named([0, 1, 3])
    ('channel 2', 'channels 0 and 1', 'channels 0, 1 and 3')
    """
    numbers = [str(channel) for channel in channels]
    if len(numbers) == 1:
        return f"channel {numbers[0]}"
    return f"channels {', '.join(numbers[:-1])} and {numbers[-1]}"


def each(channels: Iterable[int], values: Iterable[str]) -> str:
    """
    >>> each([0, 2], ["-3 dB", "-4 dB"])
    '-3 dB in channel 0, -4 dB in channel 2'
    """
    return ", ".join(f"{value} in channel {channel}" for channel, value in zip(channels, values, strict=True))
