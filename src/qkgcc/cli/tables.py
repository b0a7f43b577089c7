"""Tables, progress bars and their sentences: an estimate on one screen."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from qkgcc.arrays.result import DirectionEstimate, Position, PositionEstimate
    from qkgcc.delay.result import DelayEstimate
    from qkgcc.tracks.segments import Segment

MAX_ROWS = 24
"""Rows of a table: what a terminal shows at once."""


def console(*, error: bool = False) -> Console:
    """A console on the stream as it is now (tests and pipes replace it).

    Names of files, arrays and sound cards are printed as they are: `take[final].wav` has no markup, nor `:smile:.wav`.
    """
    stream = sys.stderr if error else sys.stdout
    # A pipe has no width; 80 columns would fold the table.
    width = None if stream.isatty() else 110
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def left_table(title: str, right: tuple[str, ...], *others: str, caption: str | None = None) -> Table:
    """An empty table with its title and caption at the left.

    Args:
        right: headings of columns aligned to the right, which come first.
        others: headings of columns aligned to the left.
    """
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for heading in right:
        table.add_column(heading, justify="right")
    for heading in others:
        table.add_column(heading)
    return table


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, and none when that is not a terminal. Without columns: share done and time left."""
    screen = console(error=True)
    return Progress(
        text_column("{task.description}"),
        BarColumn(20 if columns else 40),  # the columns of a batch and 20 of a bar fit into 80
        *(columns or (TaskProgressColumn(), TimeRemainingColumn())),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )


@contextmanager
def paused(progress: Progress) -> Iterator[None]:
    """Take the bar off the screen while something else is printed."""
    progress.stop()
    try:
        yield
    finally:
        progress.start()


def text_column(text: str) -> TextColumn:
    """A column of a progress bar that shows file names as they are, not as markup."""
    return TextColumn(text, markup=False)


class Pace:
    """How fast recordings are processed: seconds of audio per second."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._done = self._done_of_pairs = 0.0
        self._current: dict[object, tuple[float, int]] = {}

    def update(self, recording: object, seconds: float, pairs: int) -> None:
        """Note that so many seconds of a recording are done, for all its pairs."""
        self._current[recording] = seconds, pairs

    def finish(self, recording: object, seconds: float, pairs: int) -> None:
        """Note that a recording is done; 0 seconds: it failed."""
        self._current.pop(recording, None)
        self._done += seconds
        self._done_of_pairs += seconds * pairs

    @property
    def hours(self) -> float:
        """Audio that is done."""
        return (self._done + sum(seconds for seconds, _ in self._current.values())) / 3600

    def __str__(self) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-6)
        of_pairs = self._done_of_pairs + sum(seconds * pairs for seconds, pairs in self._current.values())
        rate, rate_of_pairs = 3600 * self.hours / elapsed, of_pairs / elapsed
        each = f", {_rate(rate_of_pairs)} x for one pair" if rate_of_pairs > 1.01 * rate else ""
        return f"{_rate(rate)} x real time{each}"


def _rate(rate: float) -> str:
    """A rate in two digits or more.

    >>> _rate(0.52), _rate(118.4)
    ('0.5', '118')
    """
    return f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"


def number(value: float, digits: int) -> str:
    """A number with its sign; a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:+.{digits}f}"


def bar(confidence: float) -> str:
    """A confidence from 0 to 1 as a number and a bar."""
    return f"{confidence:.2f} " + "█" * round(confidence * 10)


def delay_table(estimate: DelayEstimate) -> Table:
    """At most 24 rows: neighbouring frames share a row, which shows the most confident of them."""
    group = math.ceil(len(estimate.times) / MAX_ROWS)
    note = "" if group == 1 else f"; each row is the most confident of {group} frames"
    first, second = estimate.channels
    title = f"{estimate.source}, channels {first} and {second}, {estimate.method}{note}"
    table = left_table(title, tuple(_delay_headings(estimate)), "confidence", caption=summary_line(estimate))
    for begin in range(0, len(estimate.times), group):
        table.add_row(*_delay_cells(estimate, begin + int(estimate.confidence[begin : begin + group].argmax())))
    return table


def frames_heading(estimate: DelayEstimate) -> str:
    """The heading above `frame_lines`."""
    return _aligned([*_delay_headings(estimate), "confidence"])


def frame_lines(estimate: DelayEstimate) -> list[str]:
    """A line for each frame, as wide as those of frames that are still to come."""
    return [_aligned(_delay_cells(estimate, i)) for i in range(len(estimate.times))]


def _aligned(cells: list[str]) -> str:
    return "  ".join([*(f"{cell:>15}" for cell in cells[:-1]), cells[-1]])


def _delay_headings(estimate: DelayEstimate) -> list[str]:
    return ["time (s)", "delay (samples)", "delay (µs)", *([] if estimate.angle is None else ["angle (°)"])]


def _delay_cells(estimate: DelayEstimate, frame: int) -> list[str]:
    return [
        f"{estimate.times[frame]:.2f}",
        number(estimate.delay_samples[frame], 2),
        number(estimate.delay_seconds[frame] * 1e6, 0),
        *([] if estimate.angle is None else [number(estimate.angle[frame], 1)]),
        bar(estimate.confidence[frame]),
    ]


def summary_line(estimate: DelayEstimate) -> str:
    """The delay of the whole recording, and which side is positive."""
    best = estimate.summary
    angle = "" if best.angle is None else f", {best.angle:.1f}°"
    silent = best.frames - best.answered
    quiet = f"; {silent} of {best.frames} frames are silent" if silent else ""
    ranking = "a ranking, not a calibrated probability" + (
        "" if estimate.calibrated else ", nor are those of the frames"
    )
    first, second = estimate.channels
    side = "" if best.angle is None else f" (right, if channel {first} is the left microphone)"
    return (
        f"whole recording: {best.delay_samples:.2f} samples = {best.delay_seconds * 1e6:.0f} µs{angle}, "
        f"confidence {best.confidence:.2f} ({ranking}){quiet}. Positive: channel {first} hears it later, the source is "
        f"nearer to channel {second}{side}."
    )


def silence_text(estimate: DelayEstimate) -> str:
    """Why there is no delay."""
    first, second = estimate.channels
    return f"{estimate.source}: channels {first} and {second} are silent, or one of them is: there is no delay to find"


def direction_table(estimate: DirectionEstimate) -> Table:
    """A row for each direction of each block; at most 24 blocks, of a long recording the most confident of several."""
    from qkgcc.arrays.result import describe_direction, elevation_text

    group = math.ceil(len(estimate.blocks) / MAX_ROWS)
    note = "" if group <= 1 else f"; each row is the most confident of {group} blocks"
    every = [one for block in estimate.blocks for one in block.directions]
    # Both where microphones die on the way, and leave a line.
    on_line = any(one.cone is not None for one in every) or estimate.grid == "line"
    rising = estimate.grid != "line"
    far = all(one.distance is None for one in every)
    headings = ["time (s)", *["from the line (°)"] * on_line, "azimuth (°)", *["elevation (°)"] * rising]
    headings += [] if far else ["distance (m)"]
    whole = "; ".join(describe_direction(one) for one in estimate.directions) or "silence, or no direction stands out"
    table = left_table(
        f"{estimate.source}, {estimate.array}, {estimate.method}{note}",
        tuple(headings),
        "confidence",
        caption=f"whole recording: {whole}.{_angle_note(estimate)}",
    )
    for first in range(0, len(estimate.blocks), max(1, group)):
        some = estimate.blocks[first : first + group]
        block = max(some, key=lambda one: max((found.confidence for found in one.directions), default=0.0))
        time = f"{block.start:.1f} - {block.end:.1f}"
        for one in block.directions:
            if one.cone is not None:
                (other, _), *_ = one.also
                where = [f"{one.cone:.1f}", f"{one.azimuth:+.1f} or {other:+.1f}", *["-"] * rising]
            else:
                where = [*["-"] * on_line, f"{one.azimuth:+.1f}", elevation_text(one).replace("°", "")]
            table.add_row(time, *where, *([] if far else [f"{one.distance:g}"]), bar(one.confidence))
            time = ""
        if not block.directions:
            table.add_row(time, *["-"] * len(headings))
    return table


def track_table(estimate: DirectionEstimate) -> Table:
    """A row for each time in which a source speaks."""
    count = len(estimate.tracks or ())
    followed = f"{count} source{'s' if count != 1 else ''} followed; azimuths are means, --format csv has every moment."
    line = estimate.grid == "line"
    angles = ("from the line (°)", "azimuth (°)") if line else ("azimuth (°)", "elevation (°)")
    table = left_table(
        f"{estimate.source}, {estimate.array}, {estimate.method}: who speaks when, and from where",
        ("time (s)", "track", *angles),
        caption=f"{followed}{_angle_note(estimate)}",
    )
    for one in estimate.segments:
        span = f"{one.start:.1f} - {one.start + one.duration:.1f}"
        also = "" if one.also_azimuth is None or one.also_elevation is not None else f" or {one.also_azimuth:+.1f}"
        where = f"{one.azimuth:+.1f}{also}"
        up = "-" if one.elevation is None else f"{one.elevation:.1f}{_mirrored(one)}"
        table.add_row(span, str(one.id), *([f"{one.cone:.1f}", where] if line else [where, up]))
    return table


def _mirrored(one: Segment) -> str:
    """The other direction that sounds the same, where elevations are followed."""
    if one.also_azimuth is None or one.also_elevation is None:
        return ""
    return f" (or azimuth {one.also_azimuth:.1f}, elevation {one.also_elevation:.1f})"


def _angle_note(estimate: DirectionEstimate) -> str:
    unsure = "" if estimate.cannot_tell is None else f" This array cannot tell {estimate.cannot_tell}."
    return f"{unsure} Azimuths: 0 is the front, positive is left."


def position_table(estimate: PositionEstimate) -> Table:
    """A row for each position of each block."""
    table = left_table(
        f"{estimate.source}, {estimate.array}, {estimate.method}: metres",
        ("time (s)", "front", "left", "up", "±"),
        "confidence",
        "",
        caption=_position_caption(estimate),
    )
    for block in estimate.blocks:
        time = f"{block.start:.1f} - {block.end:.1f}"
        for found in block.positions:
            where = (*(f"{x:z.2f}" for x in found.place), f"{found.radii[0]:.2f}") if found.solved else ("-",) * 4
            table.add_row(time, *where, bar(found.confidence), found.remark or "")
            time = ""
        if not block.positions:
            table.add_row(time, *["-"] * 5, "no position stands out" if block.frames else "silence")
    return table


def _position_caption(estimate: PositionEstimate) -> str:
    if not any(block.frames for block in estimate.blocks):
        return "silence."
    if not estimate.positions:
        return "whole recording: no position stands out."
    several = len(estimate.positions) > 1
    whole = "; ".join(_position_text(found) for found in estimate.positions)
    return (
        f"whole recording, if the source{'s stay' if several else ' stays'}: {whole}. ±: the longest axis of the error "
        "ellipse, one standard deviation."
    )


def _position_text(found: Position) -> str:
    if not found.solved:
        return str(found.remark)
    front, left, up = found.place
    return (
        f"{front:z.2f} to the front, {left:z.2f} to the left, {up:z.2f} up, from {int(found.used.sum())} of "
        f"{len(found.used)} delays (residual {1e6 * found.rms:.0f} µs)" + (f" ({found.remark})" if found.remark else "")
    )
