"""Tables and progress bars for people: an estimate on one screen."""

import math
import sys

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from qkgcc.arrays.directions.found import DirectionEstimate, described, elevation_text
from qkgcc.arrays.positions.placed import Position, PositionEstimate
from qkgcc.results import DelayEstimate

_ROWS = 24  # of a table: what a terminal shows at once


def console(*, error: bool = False) -> Console:
    """A console on the stream as it is now (tests and pipes replace it)."""
    stream = sys.stderr if error else sys.stdout
    # A pipe has no width; 80 columns would fold the table.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 110, soft_wrap=False)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, and none when that is not a terminal. Without columns: share done and time left."""
    screen = console(error=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *(columns or (TaskProgressColumn(), TimeRemainingColumn())),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )


def delay_table(estimate: DelayEstimate) -> Table:
    """At most 24 rows: neighbouring frames share a row, which shows the most confident of them."""
    group = math.ceil(len(estimate.times) / _ROWS)
    note = "" if group == 1 else f"; each row is the most confident of {group} frames"
    table = Table(
        title=f"{estimate.source}, channels {estimate.channels[0]} and {estimate.channels[1]}, {estimate.method}{note}",
        title_justify="left",
        caption=summary_line(estimate),
        caption_justify="left",
    )
    for heading in _headings(estimate):
        table.add_column(heading, justify="right")
    table.add_column("confidence")
    for first in range(0, len(estimate.times), group):
        part = slice(first, first + group)
        i = first + int(np.argmax(estimate.confidence[part]))
        table.add_row(*_cells(estimate, i))
    return table


def frames_heading(estimate: DelayEstimate) -> str:
    """What stands above `frame_lines`."""
    return _aligned([*_headings(estimate), "confidence"])


def frame_lines(estimate: DelayEstimate) -> list[str]:
    """A line for each frame, as wide as those of frames that are still to come."""
    return [_aligned(_cells(estimate, i)) for i in range(len(estimate.times))]


def _aligned(cells: list[str]) -> str:
    return "  ".join([*(f"{cell:>15}" for cell in cells[:-1]), cells[-1]])


def _headings(estimate: DelayEstimate) -> list[str]:
    return ["time (s)", "delay (samples)", "delay (µs)", *([] if estimate.angle is None else ["angle (°)"])]


def _cells(estimate: DelayEstimate, frame: int) -> list[str]:
    return [
        f"{estimate.times[frame]:.2f}",
        number(estimate.delay_samples[frame], 2),
        number(estimate.delay_seconds[frame] * 1e6, 0),
        *([] if estimate.angle is None else [number(estimate.angle[frame], 1)]),
        bar(estimate.confidence[frame]),
    ]


def direction_table(estimate: DirectionEstimate) -> Table:
    """A row for each direction of each block; at most 24 blocks, of a long recording the most confident of several."""
    group = math.ceil(len(estimate.blocks) / _ROWS)
    note = "" if group <= 1 else f"; each row is the most confident of {group} blocks"
    table = Table(
        title=f"{estimate.source}, {estimate.array}, {estimate.method}{note}",
        title_justify="left",
        caption=_directions_caption(estimate),
        caption_justify="left",
    )
    line = estimate.grid == "line"
    headings = ["time (s)", *(["from the line (°)", "azimuth (°)"] if line else ["azimuth (°)", "elevation (°)"])]
    far = all(one.distance is None for block in estimate.blocks for one in block.directions)
    for heading in headings if far else [*headings, "distance (m)"]:
        table.add_column(heading, justify="right")
    table.add_column("confidence")
    for first in range(0, len(estimate.blocks), max(1, group)):
        some = estimate.blocks[first : first + group]
        block = max(some, key=lambda one: max((found.confidence for found in one.directions), default=0.0))
        time = f"{block.start:.1f} - {block.end:.1f}"
        for one in block.directions:
            if one.cone is not None:
                (other, _), *_ = one.also
                where = [f"{one.cone:.1f}", f"{one.azimuth:+.1f} or {other:+.1f}"]
            else:
                where = [f"{one.azimuth:+.1f}", elevation_text(one).replace("°", "")]
            table.add_row(time, *where, *([] if far else [f"{one.distance:g}"]), bar(one.confidence))
            time = ""
        if not block.directions:
            table.add_row(time, *["-"] * (len(headings) - 1 + (not far)), "-")
    return table


def track_table(estimate: DirectionEstimate) -> Table:
    """A row for each time in which a source speaks."""
    table = Table(
        title=f"{estimate.source}, {estimate.array}, {estimate.method}: who speaks when, and from where",
        title_justify="left",
        caption=_tracks_caption(estimate),
        caption_justify="left",
    )
    for heading in ("time (s)", "track", "azimuth (°)", "elevation (°)"):
        table.add_column(heading, justify="right")
    for one in estimate.segments:
        up = f"{one.elevation:.1f}" if estimate.rising else "-"
        span = f"{one.start:.1f} - {one.start + one.duration:.1f}"
        table.add_row(span, str(one.id), f"{one.azimuth:+.1f}", up)
    return table


def position_table(estimate: PositionEstimate) -> Table:
    """A row for each position of each block."""
    table = Table(
        title=f"{estimate.source}, {estimate.array}, {estimate.method}: metres",
        title_justify="left",
        caption=_position_caption(estimate),
        caption_justify="left",
    )
    for heading in ("time (s)", "front", "left", "up", "±"):
        table.add_column(heading, justify="right")
    table.add_column("confidence")
    table.add_column("")
    for block in estimate.blocks:
        time = f"{block.start:.1f} - {block.end:.1f}"
        for found in block.positions:
            where = (*(f"{x:z.2f}" for x in found.place), f"{found.radii[0]:.2f}") if found.solved else ("-",) * 4
            table.add_row(time, *where, bar(found.confidence), found.remark or "")
            time = ""
        if not block.positions:
            table.add_row(time, *["-"] * 5, "nothing that stands out" if block.frames else "silence")
    return table


def _position_caption(estimate: PositionEstimate) -> str:
    if not any(block.frames for block in estimate.blocks):
        return "silence."
    if not estimate.positions:
        return "whole recording: nothing stands out."
    several = len(estimate.positions) > 1
    whole = "; ".join(_place(found) for found in estimate.positions)
    return (
        f"whole recording, if the source{'s stay' if several else ' stays'}: {whole}. ±: the longest axis of the error "
        "ellipse, one standard deviation."
    )


def _place(found: Position) -> str:
    if not found.solved:
        return str(found.remark)
    front, left, up = found.place
    return (
        f"{front:z.2f} to the front, {left:z.2f} to the left, {up:z.2f} up, from {int(found.used.sum())} of "
        f"{len(found.used)} delays, which miss it by {1e6 * found.rms:.0f} µs"
    )


def _tracks_caption(estimate: DirectionEstimate) -> str:
    count = len(estimate.tracks or ())
    found = f"{count} source{'s' if count != 1 else ''} followed; azimuths are means, --format csv has every moment."
    unsure = "" if estimate.cannot_tell is None else f" This array cannot tell {estimate.cannot_tell}."
    return f"{found}{unsure} Azimuths: 0 is the front, positive is left."


def _directions_caption(estimate: DirectionEstimate) -> str:
    found = [described(one) for one in estimate.directions]
    whole = "whole recording: " + ("; ".join(found) if found else "silence, or nothing that stands out") + "."
    unsure = "" if estimate.cannot_tell is None else f" This array cannot tell {estimate.cannot_tell}."
    return f"{whole}{unsure} Azimuths: 0 is the front, positive is left."


def summary_line(estimate: DelayEstimate) -> str:
    """The one delay of all frames."""
    best = estimate.summary
    angle = "" if best.angle is None else f", {best.angle:.1f}°"
    silent = best.frames - best.answered
    quiet = f"; {silent} of {best.frames} frames are silent" if silent else ""
    ranking = "a ranking, not a calibrated probability" + (
        "" if estimate.calibrated else ", nor are those of the frames"
    )
    return (
        f"whole recording: {best.delay_samples:.2f} samples = {best.delay_seconds * 1e6:.0f} µs{angle}, "
        f"confidence {best.confidence:.2f} ({ranking}){quiet}. Positive: channel {estimate.channels[0]} hears it later."
    )


def number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:+.{digits}f}"


def bar(confidence: float) -> str:
    return f"{confidence:.2f} " + "█" * round(confidence * 10)
