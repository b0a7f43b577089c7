"""Tables and progress bars for people: an estimate on one screen."""

import math
import sys

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from qkgcc.delay.result import DelayEstimate

ROWS = 24  # of a table: what a terminal shows at once


def console(*, error: bool = False) -> Console:
    """A console on the stream as it is now (tests and pipes replace it).

    Names of files, arrays and sound cards are printed as they are: `take[final].wav` has no markup, nor `:smile:.wav`.
    """
    stream = sys.stderr if error else sys.stdout
    # A pipe has no width; 80 columns would fold the table.
    width = None if stream.isatty() else 110
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width, soft_wrap=False)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, and none when that is not a terminal. Without columns: share done and time left."""
    screen = console(error=True)
    return Progress(
        text_column("{task.description}"),
        BarColumn(20 if columns else 40),  # the columns of an archive and 20 of a bar fit into 80
        *(columns or (TaskProgressColumn(), TimeRemainingColumn())),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )


def text_column(text: str) -> TextColumn:
    """A column of a progress bar; what it shows of a file's name is no markup."""
    return TextColumn(text, markup=False)


def delay_table(estimate: DelayEstimate) -> Table:
    """At most 24 rows: neighbouring frames share a row, which shows the most confident of them."""
    group = math.ceil(len(estimate.times) / ROWS)
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
