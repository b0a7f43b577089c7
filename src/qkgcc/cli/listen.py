"""`qkgcc listen`: live from a sound card, from a file in real time, or raw samples from a pipe."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkgcc.cli.options import (
    Format,
    delay_options,
    picked_channels,
    source_count,
    with_estimator_options,
)
from qkgcc.cli.tables import console, frame_lines, frames_heading, silence_text, summary_line
from qkgcc.core.errors import InputError, quantity
from qkgcc.network.registry import ARRAY_DEFAULT

if TYPE_CHECKING:
    from qkgcc.arrays import Geometry
    from qkgcc.arrays.stream import DirectionFrames
    from qkgcc.cli.listen_view import Picture
    from qkgcc.core.types import Floats32
    from qkgcc.delay.result import DelayEstimate
    from qkgcc.delay.stream import DelayStream
    from qkgcc.live.capture import Source
    from qkgcc.live.session import Session

PIPE = "standard input"
_PIPE_BLOCKS = 100  # a second: answers do not depend on how the bytes come, and wait for a hundredth of one at most


@with_estimator_options
def listen(
    options: dict[str, Any],
    pipe: Annotated[
        str | None, typer.Argument(metavar="[-]", help="Give - to read raw samples from standard input (with --raw).")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Number of a sound card, or a part of its name.")
    ] = None,
    list_devices: Annotated[bool, typer.Option("--devices", help="List the sound cards and stop.")] = False,
    file: Annotated[
        Path | None, typer.Option("--from", help="Replay this recording in real time instead of a sound card.")
    ] = None,
    speed: Annotated[
        float | None,
        typer.Option(help="With --from: playback speed (1 = real time, 0 = as fast as possible, no audio dropped)."),
    ] = None,
    raw: Annotated[
        str | None,
        typer.Option(help="With -: sample format of the pipe, one of u8, s16le, s24le, s32le, f32le, f64le."),
    ] = None,
    raw_channels: Annotated[
        int | None, typer.Option(min=1, help="With --raw: number of channels in the pipe (default: 2).")
    ] = None,
    sample_rate: Annotated[
        int | None, typer.Option(help="Sample rate in Hz of the sound card (default: its own) or of the pipe.")
    ] = None,
    array: Annotated[
        str | None, typer.Option(help="Find directions: a preset such as respeaker4, or a TOML or CSV file.")
    ] = None,
    track: Annotated[bool, typer.Option("--track", help="With --array: follow sources, each with an id.")] = False,
    sources: Annotated[
        str | None, typer.Option(help="With --track: largest number of sources at a time (default: no limit).")
    ] = None,
    channels: Annotated[
        str | None, typer.Option(help="Channels to use as microphones, in array order: 1,2,3,4 (default: the first).")
    ] = None,
    lookahead: Annotated[
        float | None,
        typer.Option(help="Wait this long before giving the confidence (0 to 1 s; 1 gives the calibrated one)."),
    ] = None,
    record: Annotated[Path | None, typer.Option(help="Record all channels: .wav or .flac.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds of sound.")] = None,
    format: Annotated[Format, typer.Option(help="What to print; in a terminal, table is a live view.")] = Format.table,
    curve: Annotated[bool, typer.Option(help="Include curves or maps in JSON.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --record replace an existing file.")] = False,
) -> None:
    """Show the delay or direction of live sound, until Ctrl-C.

    In a terminal: levels, the delay or direction, and how well the machine keeps up. In a pipe, or with --format csv
    or json: a line for each frame. Angles of two microphones are positive towards the second one (right, if the first
    is the left microphone), azimuths of an array are positive to the left.

    Examples:

    * `qkgcc listen --devices`

    * `qkgcc listen --spacing 0.2`

    * `qkgcc listen --device ReSpeaker --array respeaker4 --channels 1,2,3,4 --record talk.wav`

    * `qkgcc listen --array respeaker4 --track --format csv > tracks.csv`

    * `qkgcc listen --from talk.wav --spacing 0.2`  (needs no sound card)

    * `arecord -f S16_LE -r 48000 -c 2 -t raw | qkgcc listen - --raw s16le --sample-rate 48000 --spacing 0.2`
    """
    if list_devices:
        _print_devices()
        return
    _check_source(pipe, raw, raw_channels, sample_rate, device, file, speed)
    _check_record(record, file, overwrite)
    if seconds is not None and not 0 < seconds < 1e9:
        raise InputError(f"--seconds {seconds:g}: expected more than 0")
    if pipe is not None:
        if array is not None or track or sources or record is not None or seconds is not None:
            raise InputError(
                "raw samples from a pipe give the delay of two channels: leave out --array, --track, --sources, "
                "--record and --seconds"
            )
        of_channels = 2 if raw_channels is None else raw_channels
        first, second = picked_channels(channels, 2)
        _pipe_delays(
            delay_options(options), str(raw), int(sample_rate or 0), of_channels, (first, second), lookahead or 0.0,
            format, curve,
        )  # fmt: skip
        return
    heard = Input(file, speed, device, sample_rate, channels, record, seconds, format, curve)
    if array is None:
        if track:
            raise InputError("--track follows directions: give --array as well")
        if sources is not None:
            raise InputError("--sources limits the sources that --track follows: give --array and --track as well")
        _delays(heard, lookahead or 0.0, delay_options(options))
    else:
        from qkgcc.arrays import array as named

        _directions(heard, named(array), track, _array_options(options, lookahead, track, sources))


def _check_source(
    pipe: str | None,
    raw: str | None,
    raw_channels: int | None,
    sample_rate: int | None,
    device: str | None,
    file: Path | None,
    speed: float | None,
) -> None:
    """Raise an `InputError` for options that do not fit to where the sound comes from."""
    if pipe is None and (raw is not None or raw_channels is not None):
        raise InputError("--raw and --raw-channels describe raw samples from a pipe: give - as well")
    if pipe is not None:
        if pipe != "-":
            raise InputError(f"{pipe}: expected - (raw samples from a pipe); to replay a recording, give --from {pipe}")
        if raw is None:
            raise InputError("- reads raw samples: give their format with --raw, such as --raw s16le")
        if sample_rate is None:
            raise InputError("raw samples do not say their rate: give --sample-rate as well")
        if device is not None or file is not None:
            raise InputError("- reads raw samples from a pipe: leave out --device and --from")
    if file is None and speed is not None:
        raise InputError("--speed is for replaying a recording: give --from FILE as well")
    if file is not None and (device is not None or sample_rate is not None):
        raise InputError("--from replays a recording at its own sample rate: leave out --device and --sample-rate")


def _check_record(record: Path | None, file: Path | None, overwrite: bool) -> None:
    from qkgcc.core.files import display_name, exists

    if record is None or not exists(record):
        return
    if file is not None and exists(file) and record.samefile(file):
        raise InputError(f"--record {display_name(record)} is the recording that is replayed: give another name")
    if not overwrite:
        raise InputError(
            f"--record {display_name(record)} exists already: give another name, or --overwrite to replace it"
        )


def _array_options(
    options: dict[str, Any], lookahead: float | None, track: bool, sources: str | None
) -> dict[str, Any]:
    """The arguments of `DirectionEstimator`."""
    shared = ("method", "band", "frame", "hop", "threads", "speed_of_sound")
    given = [name for name, value in options.items() if name not in shared and value is not None and value is not False]
    given = [name for name in given if (name, options[name]) != ("max_sources", 1)]
    if given or lookahead is not None:
        name = (given or ["lookahead"])[0].replace("_", "-")
        raise InputError(f"--{name} is for two microphones: leave it out with --array")
    chosen = {name: options[name] for name in shared if options[name] is not None}
    if sources is not None:
        if not track:
            raise InputError("--sources limits the sources that --track follows: give --track as well")
        chosen["sources"] = source_count(sources)
    return {"method": ARRAY_DEFAULT} | chosen


@dataclasses.dataclass(frozen=True)
class Input:
    """Where the sound comes from, and what becomes of it: options of the command line."""

    file: Path | None
    speed: float | None
    device: str | None
    sample_rate: int | None
    channels: str | None
    record: Path | None
    seconds: float | None
    format: Format
    curve: bool

    def open(self, geometry: "Geometry | None") -> "tuple[Source, list[int]]":
        """The source, and which of its channels are the microphones."""
        from qkgcc.arrays.evidence import wrong_channels
        from qkgcc.audio.recording import check_channels
        from qkgcc.live.capture import Replay, SoundCard

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
    """A `DelayStream` whose answers carry the name of the source and its channels."""

    def __init__(self, stream: "DelayStream", name: str, channels: tuple[int, int]) -> None:
        self._stream, self._name, self._channels = stream, name, channels
        self.frame, self.latency = stream.frame, stream.latency
        self.notices: dict[str, str] = {}  # its warnings are about the whole recording, and printed at the end
        self.last: DelayEstimate | None = None

    def push(self, block: "Floats32") -> "DelayEstimate":
        return self._named(self._stream.push(block))

    def flush(self) -> "DelayEstimate":
        return self._named(self._stream.flush())

    def _named(self, answer: "DelayEstimate") -> "DelayEstimate":
        self.last = dataclasses.replace(answer, source=self._name, channels=self._channels)
        return self.last


def _delays(heard: Input, lookahead: float, options: dict[str, Any]) -> None:
    """Of two channels of a sound card or a recording."""
    from qkgcc.cli.listen_view import delay_picture
    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.delay.stream import DelayStream
    from qkgcc.live.session import Session

    estimator = DelayEstimator(**options)
    source, picked = heard.open(None)
    stream = DelayStream(estimator, source.sample_rate, lookahead=lookahead)
    named = _NamedDelays(stream, source.name, (picked[0], picked[1]))
    session = Session(source, named, picked, record=heard.record, seconds=heard.seconds)
    fault = _run(session, delay_picture, _delay_printer(heard.format, heard.curve), heard.format)
    assert named.last is not None
    _conclude(named.last, session.samples, fault, table=heard.format is Format.table)


def _pipe_delays(
    options: dict[str, Any],
    raw: str,
    sample_rate: int,
    of_channels: int,
    channels: tuple[int, int],
    lookahead: float,
    format: Format,
    curve: bool,
) -> None:
    """Of raw samples, until the input ends or somebody presses Ctrl-C. What is printed stays."""
    from qkgcc.audio import pcm
    from qkgcc.audio.decode import standard_input
    from qkgcc.audio.recording import check_channels
    from qkgcc.core.interrupts import interrupts_wait
    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.delay.stream import DelayStream

    estimator = DelayEstimator(**options)
    pcm.sample_bytes(raw)
    check_channels(PIPE, of_channels, channels, "--raw-channels says how many there are")
    given = standard_input()
    stream = _NamedDelays(DelayStream(estimator, sample_rate, lookahead=lookahead), PIPE, channels)
    show = _delay_printer(format, curve)
    samples = 0
    fault: BaseException | None = None

    def show_frames(answer: "DelayEstimate") -> None:
        if len(answer.times):
            show(answer)

    try:
        for block in pcm.blocks(given, raw, of_channels, math.ceil(sample_rate / _PIPE_BLOCKS)):
            with interrupts_wait():  # between estimating a frame and printing it, it would be lost
                samples += block.shape[1]
                show_frames(stream.push(block[list(channels)]))
    except (InputError, KeyboardInterrupt) as error:
        fault = error  # what came until then is answered as if a recording ended there
    last = stream.flush()
    show_frames(last)
    _conclude(last, samples, fault, table=format is Format.table)


def _conclude(last: "DelayEstimate", samples: int, fault: BaseException | None, *, table: bool) -> None:
    """Print the summary and warnings when the sound has ended, and set the exit code.

    Args:
        last: answer, of the flush.
        samples: that came.
        fault: why it ended, if not as it should.
        table: whether the delay of all frames is printed.
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
    if not samples:
        raise InputError(f"{last.source} is empty (0 bytes)")
    if not last.summary.frames:
        raise InputError(
            f"{last.source} has {quantity(samples, 'sample')} ({samples / last.sample_rate:.4g} s), less than a frame: "
            "record longer, or give a shorter --frame"
        )
    if not last.summary.answered:
        raise InputError(silence_text(last))


def _directions(heard: Input, geometry: "Geometry", track: bool, options: dict[str, Any]) -> None:
    """By an array."""
    from qkgcc.arrays.directions import DirectionEstimator
    from qkgcc.arrays.stream import DirectionStream
    from qkgcc.cli.listen_view import direction_picture
    from qkgcc.live.session import Session

    estimator = DirectionEstimator(geometry, **options)
    source, picked = heard.open(geometry)
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
        typer.echo(f"note: {source.name}: silence, there is no direction to find", err=True)


def _run(
    session: "Session[Any]", picture: "Callable[[Any], Picture]", show: Callable[[Any], object], format: Format
) -> BaseException | None:
    """Listen, show frames, and print at the end how it went. Returns why it ended, if not by itself."""
    from qkgcc.cli.listen_view import View
    from qkgcc.core.interrupts import stop_requests

    screen = console()
    fault: BaseException | None = None
    with stop_requests() as stop:
        try:
            if format is Format.table and screen.is_terminal:
                with View(session, picture, screen) as view:
                    session.run(stop, view.show, view.tick, view.say)
            else:

                def print_line(answer: Any) -> None:
                    show(answer)
                    session.mark_displayed()

                session.run(stop, print_line, lambda: None, lambda text: typer.echo(f"warning: {text}", err=True))
        finally:
            if session.samples:
                typer.echo(_summary(session), err=True)
        if stop():
            fault = KeyboardInterrupt()
    return fault or session.source.fault


def _summary(session: "Session[Any]") -> str:
    import numpy as np

    from qkgcc.cli.listen_view import load_text, overruns_text
    from qkgcc.core.files import display_name

    parts = [f"heard {session.seconds:.1f} s, {quantity(session.frames, 'frame')}, {overruns_text(session)}"]
    if session.latencies:
        typical, worst = 1000 * np.median(session.latencies), 1000 * max(session.latencies)
        parts.append(f"latency {typical:.0f} ms, at most {worst:.0f} ms")
    parts.append(load_text(session.mean_load, 1))
    if session.recorder is not None:
        parts.append(f"recording: {display_name(session.recorder.path)} ({session.recorder.seconds:.1f} s)")
    return "; ".join(parts)


def _delay_printer(format: Format, curve: bool) -> "Callable[[DelayEstimate], None]":
    """Prints frames, the heading before the first of them."""
    from qkgcc.delay.result import delays_csv

    first = True

    def show(answer: "DelayEstimate") -> None:
        nonlocal first
        if format is Format.csv:
            typer.echo(delays_csv([answer], header=first), nl=False)
        elif format is Format.json:
            typer.echo(answer.to_json(curve=curve))
        else:
            typer.echo("\n".join([*([frames_heading(answer)] if first else []), *frame_lines(answer)]))
        first = False

    return show


def _direction_printer(format: Format, curve: bool) -> "Callable[[DirectionFrames], None]":
    """Prints frames, the heading before the first of them."""
    from qkgcc.arrays.stream import frames_csv, frames_json
    from qkgcc.cli.listen_view import direction_heading, direction_lines

    first = True

    def show(frames: "DirectionFrames") -> None:
        nonlocal first
        if format is Format.csv:
            typer.echo(frames_csv(frames, header=first), nl=False)
        elif format is Format.json:
            typer.echo(frames_json(frames, now=curve))
        else:
            typer.echo("\n".join([*([direction_heading(frames)] if first else []), *direction_lines(frames)]))
        first = False

    return show


def _print_devices() -> None:
    from rich.table import Table

    from qkgcc.live.capture import devices

    table = Table("number", "sound card", "channels", "rate (Hz)", title="* is the default")
    for one in devices():
        table.add_row(f"{one.number}{'*' if one.default else ''}", one.name, str(one.channels), str(one.sample_rate))
    console().print(table)
