"""`qkgcc estimate`: delays of files, folders, pairs of recorders, standard input, live sound."""

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, TaskProgressColumn, TimeRemainingColumn

from qkgcc.audio.pcm import FORMATS
from qkgcc.audio.recording import Recording, open_audio
from qkgcc.batch.archives import Work, options_of, tasks
from qkgcc.cli.archive import archive
from qkgcc.cli.live import live
from qkgcc.cli.options import Band, MaxDelay, Other, Spacing, SpeedOfSound, Temperature, sound_speed, whole_number
from qkgcc.cli.overwriting import Overwrite, check_replaceable
from qkgcc.cli.pace import Pace
from qkgcc.cli.tables import console, delay_table, progress_bar, text_column
from qkgcc.core.errors import InputError
from qkgcc.core.files import is_folder
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.result import DelayEstimate, delays_csv
from qkgcc.network.registry import DEFAULT
from qkgcc.plots import check_plotting

AUDIO_SUFFIXES = frozenset(
    {".aif", ".aifc", ".aiff", ".au", ".avr", ".caf", ".flac", ".mp3"}
    | {".oga", ".ogg", ".opus", ".rf64", ".snd", ".w64", ".wav", ".wave"}
)


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


def estimate(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Recordings or folders of them; - reads a WAV from standard input, or with --raw live sound.",
            readable=False,
        ),
    ],
    method: Annotated[
        str, typer.Option("--method", "-m", help="One of `qkgcc methods`, or the checkpoint of a network.")
    ] = DEFAULT,
    channels: Annotated[tuple[int, int], typer.Option(help="The two channels, counted from 0.")] = (0, 1),
    pairs: Annotated[
        str | None, typer.Option(help="`all` pairs of a recording with more channels, or some: 0-1,0-3.")
    ] = None,
    other: Other = None,
    spacing: Spacing = None,
    max_delay: MaxDelay = None,
    frame: Annotated[float | None, typer.Option(help="Seconds in a frame (0.128 when not given).")] = None,
    hop: Annotated[float, typer.Option(help="Seconds from one frame to the next.")] = 0.064,
    band: Band = None,
    interpolation: Annotated[
        str | None, typer.Option(help="Of a correlation: band-limited (default), parabolic or none.")
    ] = None,
    decoder: Annotated[
        str | None,
        typer.Option(help="Of a network's posterior: argmax, mean, quadratic, balanced or coarse (default: its own)."),
    ] = None,
    symmetric: Annotated[
        bool,
        typer.Option("--symmetric", help="Exactly the opposite answer for swapped channels; half as fast."),
    ] = False,
    smoothing: Annotated[
        float | None,
        typer.Option(help="Follow a network's delay over time, knowing so many seconds more (or 0)."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="That share a recording's frames (default: one for each core and job).")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="Exponent of phat-beta (0.8 when not given).")] = None,
    max_sources: Annotated[
        int, typer.Option(help="Peaks of a network's posterior in JSON, CSV and picture, for several sources.", min=1)
    ] = 1,
    start: Annotated[float | None, typer.Option(help="Begin at this second.")] = None,
    end: Annotated[float | None, typer.Option(help="Stop at this second.")] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.table,
    curve: Annotated[
        bool | None,
        typer.Option(
            "--curve/--no-curve",
            help="Whether JSON holds the lags and curves, too (default: where it is printed, and not with --out).",
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a picture; several inputs give OUT-NAME.png each.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder: write a CSV (or JSON) for each recording instead of printing.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="With --out: recordings at a time.")] = 1,
    skip_existing: Annotated[
        bool,
        typer.Option(
            "--skip-existing",
            help="With --out: leave out recordings whose output is there, not empty and not older than they are. "
            "Outputs made with other options are refused.",
        ),
    ] = False,
    raw: Annotated[
        str | None, typer.Option(help=f"Live sound without a header on standard input: {', '.join(FORMATS)}.")
    ] = None,
    sample_rate: Annotated[int | None, typer.Option(help="With --raw: its sample rate in Hz.")] = None,
    raw_channels: Annotated[
        int | None, typer.Option(min=1, help="With --raw: how many channels it has (2 when not given).")
    ] = None,
    lookahead: Annotated[
        float | None,
        typer.Option(help="With --raw: seconds that a confidence waits (0; with 1 it is a recording's, calibrated)."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Delay between two channels over time, and one for the whole recording.

    Examples:

    * `qkgcc estimate talk.wav --spacing 0.2 --plot talk.png`

    * `qkgcc estimate left.wav --with right.wav --max-delay 0.005`

    * `qkgcc estimate array.flac --pairs all --format csv > delays.csv`

    * `ffmpeg -i clip.mp4 -f wav - | qkgcc estimate - --format json`

    * `qkgcc estimate recordings --out delays --jobs 8 --skip-existing`

    * `arecord -f S16_LE -r 48000 -c 2 -t raw | qkgcc estimate - --raw s16le --sample-rate 48000 --spacing 0.2`
    """
    options = {
        "method": method,
        "spacing": spacing,
        "max_delay": max_delay,
        "frame": frame,
        "hop": hop,
        "band": band,
        "interpolation": interpolation,
        "decoder": decoder,
        "beta": beta,
        "max_sources": max_sources,
        "symmetric": symmetric,
        "smoothing": smoothing,
        "threads": threads,
        "speed_of_sound": sound_speed(speed_of_sound, temperature),
    }
    if raw is not None:
        if files != [Path("-")] or any(one is not None for one in (other, pairs, plot, out, start, end)):
            raise InputError(
                "--raw is live sound on standard input: give - and no other file, no --with, --pairs, --plot, --out, "
                "--start or --end"
            )
        if sample_rate is None:
            raise InputError("--raw has no header that says its rate: give --sample-rate, too")
        live(
            DelayEstimator(**options),  # type: ignore[arg-type]
            raw=raw,
            sample_rate=sample_rate,
            of_channels=2 if raw_channels is None else raw_channels,
            channels=channels,
            lookahead=0.0 if lookahead is None else lookahead,
            format=format.value,
            curve=curve is not False,
        )
        return
    if any(one is not None for one in (sample_rate, raw_channels, lookahead)):
        raise InputError(
            "--sample-rate, --raw-channels and --lookahead are for sound without a header: give --raw, too"
        )
    if out is not None:
        if other is not None or plot is not None or Path("-") in files:
            raise InputError("--out takes files and folders: no --with, no --plot, no standard input")
        kind = "csv" if format is Format.table else format.value
        pick = functools.partial(_pairs, channels=channels, pairs=pairs)
        given = tasks(_with_roots(files), out, kind)
        work = Work(options, kind, curve is True, pick, start, end)
        depends = options_of(work, channels=None if pairs else channels, pairs=pairs)
        archive(given, work, out, jobs=jobs, skip_existing=skip_existing, overwrite=overwrite, options=depends)
        return
    if jobs != 1 or skip_existing:
        raise InputError("--jobs and --skip-existing are for many outputs: give --out FOLDER, too")
    estimator = DelayEstimator(**options)  # type: ignore[arg-type]
    if other is not None and len(files) != 1:
        raise InputError("--with takes exactly one first recording")
    if plot is not None:
        check_plotting(plot)  # before the work, not after it
    sources = expand(files)
    if plot is not None and len(sources) == 1 and pairs is None:
        check_replaceable(plot, overwrite)
    failed = 0
    incomplete = False
    header = True
    taken: set[Path] = set()
    curve = curve is not False
    pace = Pace()
    columns = TaskProgressColumn(), text_column("{task.fields[pace]}"), TimeRemainingColumn()
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=float(len(sources)), pace="")
        for number, source in enumerate(sources):
            progress.update(task, description=source.name, completed=float(number))
            try:
                recording = open_audio(source, start=start, end=end, other=other)
                chosen = _pairs(recording, channels, pairs)

                def show(
                    share: float,
                    number: int = number,
                    seconds: float = recording.duration,
                    of_pairs: int = len(chosen),
                ) -> None:
                    pace.proceeds(number, share * seconds, of_pairs)
                    progress.update(task, completed=number + share, pace=str(pace))

                shown = plot is not None or (format is Format.json and curve)
                for answer in estimator.of_pairs(recording, chosen, progress=show, curve=shown):
                    pair = answer.channels
                    if not answer.summary.answered:
                        silent = (
                            f"{answer.source}: channels {pair[0]} and {pair[1]} are silent, or one of them is: "
                            "there is no delay to find"
                        )
                        if len(chosen) == 1:
                            raise InputError(silent)
                        incomplete = True
                        with paused(progress):
                            typer.echo(f"error: {silent}", err=True)
                        continue
                    if plot is not None:
                        named = (source if len(sources) > 1 else None), (pair if len(chosen) > 1 else None)
                        picture = plot_path(plot, *named, taken)
                        check_replaceable(picture, overwrite)
                        answer.plot(picture)
                    with paused(progress):
                        _print(answer, format, header=header, curve=curve)
                        for warning in answer.warnings:
                            which = f", channels {pair[0]} and {pair[1]}" if len(chosen) > 1 else ""
                            typer.echo(f"warning: {answer.source}{which}: {warning}", err=True)
                    header = False
            except InputError as error:
                if len(sources) == 1:
                    raise
                failed += 1
                with paused(progress):
                    typer.echo(f"error: {error}", err=True)
    if failed:
        typer.echo(f"{failed} of {len(sources)} recordings failed", err=True)
    if failed or incomplete:
        raise typer.Exit(1)


def expand(files: list[Path]) -> list[Path]:
    """Files as given; folders as the recordings below them, sorted."""
    return [source for _, source in _with_roots(files)]


def _with_roots(files: list[Path]) -> list[tuple[Path, Path]]:
    """Each recording, after the folder that was given or that it lies in."""
    sources: list[tuple[Path, Path]] = []
    for file in files:
        if is_folder(file):
            found = sorted(p for p in file.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES and _is_recording(p))
            if not found:
                raise InputError(f"the folder {file} holds no recordings")
            sources += [(file, source) for source in found]
        else:
            sources.append((file.parent, file))
    return sources


def _is_recording(path: Path) -> bool:
    """A file, or a link to one that is gone: left out, nobody would miss it."""
    return path.is_file() or (path.is_symlink() and not path.exists())


def _pairs(recording: Recording, channels: tuple[int, int], pairs: str | None) -> list[tuple[int, int]]:
    """The channel pairs that `--channels` or `--pairs` ask for.

    >>> import numpy as np
    >>> _pairs(open_audio(np.zeros((3, 9)), 8000), (0, 1), "all")
    [(0, 1), (0, 2), (1, 2)]
    """
    if pairs is None:
        return [channels]
    if pairs == "all":
        if len(recording.channels) == 1:
            raise InputError(f"{recording.name} has 1 channel; a delay needs 2")
        return list(itertools.combinations(range(len(recording.channels)), 2))
    return read_pairs(pairs)


def read_pairs(text: str) -> list[tuple[int, int]]:
    """
    >>> read_pairs("0-1, 0-3")
    [(0, 1), (0, 3)]
    """
    chosen = []
    for part in text.split(","):
        first, second = (whole_number(channel) for channel in part.strip().partition("-")[::2])
        if first is None or second is None:
            raise InputError(f"--pairs {text}: expected `all`, or pairs of channels such as 0-1,0-3")
        chosen.append((first, second))
    return chosen


def plot_path(plot: Path, source: Path | None, pair: tuple[int, int] | None, taken: set[Path]) -> Path:
    """The picture's name, with the recording's name and the pair where they are given, and a number if it is taken."""
    name = plot.stem
    if source is not None:
        name += f"-{source.stem}"
    if pair is not None:
        name += f"-{pair[0]}-{pair[1]}"
    path, number = plot.with_name(name + plot.suffix), 2
    while path in taken:
        path, number = plot.with_name(f"{name}-{number}{plot.suffix}"), number + 1
    taken.add(path)
    return path


def _print(answer: DelayEstimate, format: Format, *, header: bool, curve: bool) -> None:
    if format is Format.table:
        console().print(delay_table(answer))
    elif format is Format.csv:
        typer.echo(delays_csv([answer], header=header), nl=False)
    else:
        for piece in answer.json_pieces(curve=curve):
            typer.echo(piece, nl=False)
        typer.echo()


@contextmanager
def paused(progress: Progress) -> Iterator[None]:
    """Take the bar off the screen while something else is printed."""
    progress.stop()
    try:
        yield
    finally:
        progress.start()
