"""What `qkgcc listen` does: opens what is listened to, answers, shows, and says at the end how it went."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.table import Table

from qkgcc.arrays import Geometry
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.evidence import wrong_channels
from qkgcc.arrays.stream import DirectionFrames, DirectionStream, frames_csv, frames_json
from qkgcc.audio.recording import check_channels
from qkgcc.cli.estimate import Format
from qkgcc.cli.listening_view import (
    Picture,
    View,
    delay_picture,
    direction_heading,
    direction_lines,
    direction_picture,
    load_text,
    overruns_text,
)
from qkgcc.cli.live import conclude, frame_printer
from qkgcc.cli.options import picked_channels
from qkgcc.cli.tables import console
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.files import display_name
from qkgcc.core.interrupts import stop_requests
from qkgcc.core.types import Floats32
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.result import DelayEstimate
from qkgcc.delay.stream import DelayStream
from qkgcc.live.capture import Replay, SoundCard, Source, devices
from qkgcc.live.session import A, Session


@dataclasses.dataclass(frozen=True)
class Heard:
    """What is listened to, and what becomes of it: options of the command line."""

    file: Path | None
    speed: float | None
    device: str | None
    sample_rate: int | None
    channels: str | None
    record: Path | None
    seconds: float | None
    format: Format
    curve: bool

    def opened(self, geometry: Geometry | None) -> tuple[Source, list[int]]:
        """The source, and which of its channels are the microphones."""
        picked = picked_channels(self.channels, 2 if geometry is None else len(geometry))
        if self.file is None:
            return SoundCard(self.device, channels=max(picked) + 1, sample_rate=self.sample_rate), picked
        source = Replay(self.file, speed=1.0 if self.speed is None else self.speed)
        if self.channels is None and geometry is not None and source.channels != len(geometry):
            raise InputError(wrong_channels(source.name, source.channels, geometry))
        check_channels(
            source.name, source.channels, picked, "two mono recordings: join them into one file with two channels"
        )
        return source, picked


class _NamedDelays:
    """A `DelayStream` whose answers say what they are about."""

    def __init__(self, stream: DelayStream, name: str, channels: tuple[int, int]) -> None:
        self._stream, self._name, self._channels = stream, name, channels
        self.frame, self.latency = stream.frame, stream.latency
        self.notices: dict[str, str] = {}  # its warnings are about the whole, and said at the end
        self.last: DelayEstimate | None = None

    def push(self, block: Floats32) -> DelayEstimate:
        return self._named(self._stream.push(block))

    def flush(self) -> DelayEstimate:
        return self._named(self._stream.flush())

    def _named(self, answer: DelayEstimate) -> DelayEstimate:
        self.last = dataclasses.replace(answer, source=self._name, channels=self._channels)
        return self.last


def delays(heard: Heard, lookahead: float, method: str, **options: Any) -> None:
    """Of two channels."""
    estimator = DelayEstimator(method, **options)
    source, picked = heard.opened(None)
    stream = DelayStream(estimator, source.sample_rate, lookahead=lookahead)
    named = _NamedDelays(stream, source.name, (picked[0], picked[1]))
    session = Session(source, named, picked, record=heard.record, seconds=heard.seconds)
    fault = _run(session, delay_picture, frame_printer(heard.format.value, heard.curve), heard.format)
    assert named.last is not None
    conclude(named.last, session.samples, fault, table=heard.format is Format.table)


def directions(heard: Heard, geometry: Geometry, track: bool, method: str, **options: Any) -> None:
    """By an array."""
    estimator = DirectionEstimator(geometry, method, **options)
    source, picked = heard.opened(geometry)
    stream = DirectionStream(estimator, source.sample_rate, track=track, source=source.name)
    session = Session(source, stream, picked, record=heard.record, seconds=heard.seconds)
    picture = direction_picture(estimator.grid.angles, estimator.grid.kind)
    fault = _run(session, picture, _direction_printer(heard.format, heard.curve), heard.format)
    unclear = estimator.cannot_tell(stream.evidence.dead)
    if unclear is not None and stream.answered:
        typer.echo(f"note: {geometry.name} cannot tell {unclear}", err=True)
    if isinstance(fault, InputError) and stream.answered:
        typer.echo(f"error: {fault}", err=True)
        raise typer.Exit(1)
    if fault is not None:
        raise fault
    if not session.frames:
        raise InputError(f"{source.name}: {session.seconds:.3f} s are less than a frame: listen longer")
    if not stream.answered:
        stream.evidence.check_heard(source.name)  # one microphone alone is a fault; silence is an answer
        typer.echo(f"note: {source.name}: silence, in which there is no direction to find", err=True)


def _run(
    session: Session[A], picture: Callable[[A], Picture], show: Callable[[A], object], format: Format
) -> BaseException | None:
    """Listen, show, and say at the end how it went. Why it ended, if not by itself."""
    screen = console()
    fault: BaseException | None = None
    with stop_requests() as stop:
        try:
            if format is Format.table and screen.is_terminal:
                with View(session, picture, screen) as view:
                    session.run(stop, view.show, view.tick, view.say)
            else:

                def print_line(answer: A) -> None:
                    show(answer)
                    session.mark_displayed()

                session.run(stop, print_line, lambda: None, lambda text: typer.echo(f"warning: {text}", err=True))
        finally:
            if session.samples:
                typer.echo(_summary(session), err=True)
        if stop():
            fault = KeyboardInterrupt()
    return fault or session.source.fault


def _summary(session: Session[Any]) -> str:
    parts = [f"heard {session.seconds:.1f} s, {quantity(session.frames, 'frame')}, {overruns_text(session)}"]
    if session.latencies:
        typical, worst = 1000 * np.median(session.latencies), 1000 * max(session.latencies)
        parts.append(f"latency {typical:.0f} ms, at most {worst:.0f} ms")
    parts.append(load_text(session.mean_load, 1))
    if session.recorder is not None:
        parts.append(f"recording: {display_name(session.recorder.path)} ({session.recorder.seconds:.1f} s)")
    return "; ".join(parts)


def _direction_printer(format: Format, curve: bool) -> Callable[[DirectionFrames], None]:
    """What prints frames, the heading before the first of them."""
    first = True

    def show(frames: DirectionFrames) -> None:
        nonlocal first
        if format is Format.csv:
            typer.echo(frames_csv(frames, header=first), nl=False)
        elif format is Format.json:
            typer.echo(frames_json(frames, now=curve))
        else:
            typer.echo("\n".join([*([direction_heading(frames)] if first else []), *direction_lines(frames)]))
        first = False

    return show


def print_devices() -> None:
    """The sound cards, as a table."""
    table = Table("number", "sound card", "channels", "rate (Hz)", title="* is listened to by default")
    for one in devices():
        table.add_row(f"{one.number}{'*' if one.default else ''}", one.name, str(one.channels), str(one.sample_rate))
    console().print(table)
