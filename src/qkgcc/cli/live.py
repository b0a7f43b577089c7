"""`qkgcc estimate - --raw FORMAT`: sound that is still coming, a line for each frame."""

import dataclasses
import math
from collections.abc import Callable

import typer

from qkgcc.audio import pcm
from qkgcc.audio.decode import standard_input
from qkgcc.audio.recording import check_channels
from qkgcc.cli.tables import frame_lines, frames_heading, summary_line
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.interrupts import interrupts_wait
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.result import DelayEstimate, delays_csv
from qkgcc.delay.stream import DelayStream

NAME = "standard input"
_BLOCK = 100  # a second: answers do not depend on how the bytes come, and wait for a hundredth of one at most


def live(
    estimator: DelayEstimator,
    *,
    raw: str,
    sample_rate: int,
    of_channels: int,
    channels: tuple[int, int],
    lookahead: float,
    format: str,
    curve: bool,
) -> None:
    """Print frames as they complete, until the input ends or somebody presses Ctrl-C. What is printed stays."""
    pcm.sample_bytes(raw)
    check_channels(NAME, of_channels, channels, "--raw-channels says how many there are")
    given = standard_input()
    stream = DelayStream(estimator, sample_rate, lookahead=lookahead)
    show = frame_printer(format, curve)
    last: DelayEstimate | None = None

    def answered(answer: DelayEstimate) -> None:
        nonlocal last
        last = dataclasses.replace(answer, source=NAME, channels=channels)
        if len(answer.times):
            show(last)

    heard = 0
    fault: BaseException | None = None
    try:
        for block in pcm.blocks(given, raw, of_channels, math.ceil(sample_rate / _BLOCK)):
            with interrupts_wait():  # between hearing a frame and printing it, it would be lost
                heard += block.shape[1]
                answered(stream.push(block[list(channels)]))
    except (InputError, KeyboardInterrupt) as error:
        fault = error  # what was heard until then is answered as if a recording ended there
    answered(stream.flush())
    assert last is not None
    conclude(last, heard, fault, table=format == "table")


def conclude(last: DelayEstimate, heard: int, fault: BaseException | None, *, table: bool) -> None:
    """What is to be said when the sound has ended, and the exit code.

    Args:
        last: answer, of the flush.
        heard: samples.
        fault: why it ended, if not as it should.
        table: whether the one delay of all frames is printed.
    """
    if last.summary.answered:
        if table:
            typer.echo(summary_line(last))
        for warning in last.warnings:
            typer.echo(f"warning: {last.source}: {warning}", err=True)
    if isinstance(fault, InputError) and last.summary.answered:
        typer.echo(f"error: {fault}", err=True)
        raise typer.Exit(1)
    if fault is not None:
        raise fault
    if not heard:
        raise InputError(f"{last.source} is empty (0 bytes)")
    if not last.summary.frames:
        raise InputError(
            f"{last.source} has {quantity(heard, 'sample')} ({heard / last.sample_rate:.4g} s), less than a frame: "
            "record longer, or give a shorter --frame"
        )
    if not last.summary.answered:
        first, second = last.channels
        raise InputError(
            f"{last.source}: channels {first} and {second} are silent, or one of them is: there is no delay to find"
        )


def frame_printer(format: str, curve: bool) -> Callable[[DelayEstimate], None]:
    """What prints frames, the heading before the first of them."""
    first = True

    def show(answer: DelayEstimate) -> None:
        nonlocal first
        if format == "csv":
            typer.echo(delays_csv([answer], header=first), nl=False)
        elif format == "json":
            typer.echo(answer.to_json(curve=curve))
        else:
            typer.echo("\n".join([*([frames_heading(answer)] if first else []), *frame_lines(answer)]))
        first = False

    return show
