"""`qkgcc locate`: directions, tracks or positions of sources, by an array of microphones."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkgcc.cli.inputs import Pictures, Run, expand, for_each
from qkgcc.cli.options import (
    ADVANCED,
    Array,
    ArrayChannels,
    Band,
    End,
    FilesOrFolders,
    Overwrite,
    Plot,
    SpeedOfSound,
    Start,
    Temperature,
    Threads,
    channel_numbers,
    numbers,
    read_pairs,
    sound_speed,
    source_count,
)
from qkgcc.cli.tables import console
from qkgcc.core.errors import InputError
from qkgcc.network.registry import ARRAY_DEFAULT

if TYPE_CHECKING:
    from rich.table import Table

    from qkgcc.audio.recording import Recording

WIDE_ARRAY = 1.5
"""Metres across an array beyond which users are told of --position."""


class Output(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"
    rttm = "rttm"


def locate(
    files: FilesOrFolders,
    geometry: Array,
    method: Annotated[
        str, typer.Option("--method", "-m", help="One of `qkgcc methods` (phat: SRP-PHAT), or a steered network.")
    ] = ARRAY_DEFAULT,
    sources: Annotated[
        str | None,
        typer.Option(help="Number of sources in each block, or auto (default: 1); with --track, at a time."),
    ] = None,
    track: Annotated[
        bool, typer.Option("--track", help="Follow sources that move, begin and end, each with an id.")
    ] = False,
    position: Annotated[
        bool, typer.Option("--position", help="Find positions in metres, for microphones metres apart.")
    ] = False,
    height: Annotated[
        float | None, typer.Option(help="With --position: height of the sources in metres, if known.")
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(help="With --position: where to search, lowest and highest front, left and up: 0,5,0,4,0,2.5."),
    ] = None,
    channels: ArrayChannels = None,
    pairs: Annotated[
        str | None, typer.Option(help="Pairs of microphones to use: `all`, or some: 0-1,0-3.", rich_help_panel=ADVANCED)
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            help="circle: search azimuths (flat arrays); sphere: elevations, too (other arrays).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    distance: Annotated[
        str | None, typer.Option(help="Distance of near sources in metres, or several to try: 0.3,0.5,1.")
    ] = None,
    band: Band = None,
    block: Annotated[float, typer.Option(help="Block length in seconds: one answer each.")] = 1.0,
    context: Annotated[
        float | None,
        typer.Option(help="Seconds of context used before and after each block (default: 2; 0: none)."),
    ] = None,
    frame: Annotated[
        float | None,
        typer.Option(
            help="Frame length in seconds (default: 0.064; longer with --position).", rich_help_panel=ADVANCED
        ),
    ] = None,
    hop: Annotated[
        float | None,
        typer.Option(help="Seconds from one frame to the next (default: half a frame).", rich_help_panel=ADVANCED),
    ] = None,
    start: Start = None,
    end: End = None,
    threads: Threads = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Annotated[
        Output, typer.Option(help="What to print; rttm: who speaks when (needs --track).")
    ] = Output.table,
    frames: Annotated[bool, typer.Option(help="Include frames in JSON, not only blocks and the whole.")] = True,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Find the directions of sources with a microphone array: over time, and in the whole recording.

    Azimuths are degrees from the front of the array, positive to the left; elevations are degrees up. Directions that
    the array cannot tell apart are all given. With --position: metres to the front, to the left and up from the
    array's origin. `linear:` presets have channel 0 at the right end, so a pair and its array agree on the sign; if
    channel 0 is the left microphone, give the channels in reverse: `--channels 1,0`.

    Examples:

    * `qkgcc locate talk.wav --array respeaker4`

    * `qkgcc locate meeting.flac --array circular:8:0.1 --sources auto --plot meeting.png`

    * `qkgcc locate talk.wav --array respeaker4 --sources 2 --track`

    * `qkgcc locate meeting.flac --array circular:8:0.1 --track --format rttm > meeting.rttm`

    * `qkgcc locate six.wav --array respeaker4 --channels 1,2,3,4 --format csv > directions.csv`

    * `qkgcc locate room.wav --array corners.toml --position --sources 2 --plot room.png`

    * `qkgcc locate desk.wav --array mine.toml --distance 0.3,0.5,1 --format json`
    """
    from qkgcc.audio.recording import open_audio

    if format is Output.rttm and not track:
        raise InputError("--format rttm says which source speaks when: give --track as well")
    given = expand(files)
    pictures = Pictures(plot, overwrite, len(given) > 1)
    pictures.check()
    common: dict[str, Any] = {
        "hop": hop,
        "band": band,
        "block": block,
        "threads": threads,
        "speed_of_sound": sound_speed(speed_of_sound, temperature),
    }
    common |= {} if sources is None else {"sources": source_count(sources)}
    common |= {} if frame is None else {"frame": frame}
    if position:
        _refuse(
            "is for directions: leave it out, or --position",
            {"track": track, "pairs": pairs, "grid": grid, "distance": distance, "context": context is not None},
        )
        locator = _positions(geometry, method, common | {"height": height, "volume": _volume(volume)})
    else:
        _refuse("is for positions: give --position as well", {"height": height is not None, "volume": volume})
        common |= {
            "grid": grid,
            "distance": numbers("--distance", distance),
            "pairs": None if pairs in (None, "all") else read_pairs(str(pairs)),
        }
        common |= {} if context is None else {"context": context}
        locator = _directions(geometry, method, common, track=track, keep_maps=plot is not None, frames=frames)
    chosen = channel_numbers(channels)

    def work(source: Path, run: Run) -> None:
        recording = open_audio(source, start=start, end=end)
        if chosen is not None:
            recording = recording.pick(chosen, "record all microphones into one file")
        answer = locator.find(recording, run.show)
        if plot is not None:
            answer.plot(pictures.path(source))

        def write() -> None:
            if format is Output.table:
                console().print(locator.table(answer))
            else:
                typer.echo(locator.text[format](answer, run.first), nl=False)

        run.print(write, answer.source, answer.warnings)

    for_each(given, work)


def _refuse(why: str, options: dict[str, object]) -> None:
    """Raise an `InputError` for the first option that was given."""
    for option, given in options.items():
        if given:
            raise InputError(f"--{option} {why}")


@dataclass(frozen=True)
class _Locator:
    """What finds directions or positions, and how they are printed."""

    find: Callable[["Recording", Callable[[float], object]], Any]
    table: Callable[[Any], "Table"]
    text: dict[Output, Callable[[Any, bool], str]]
    """An answer as text, with a header or without."""


def _directions(
    geometry: str, method: str, options: dict[str, Any], *, track: bool, keep_maps: bool, frames: bool
) -> _Locator:
    from qkgcc.arrays import DirectionEstimator, array
    from qkgcc.arrays.result import blocks_csv, tracks_csv
    from qkgcc.cli.tables import direction_table, track_table

    estimator = DirectionEstimator(array(geometry), method, **options)
    if estimator.geometry.aperture > WIDE_ARRAY:
        typer.echo(f"note: {estimator.geometry.name} is metres wide: --position finds positions", err=True)
    as_csv = tracks_csv if track else blocks_csv
    return _Locator(
        lambda recording, progress: estimator(recording, progress=progress, keep_maps=keep_maps, track=track),
        track_table if track else direction_table,
        {
            Output.csv: lambda answer, header: as_csv([answer], header=header),
            Output.json: lambda answer, _: answer.to_json(frames=frames) + "\n",
            Output.rttm: lambda answer, _: answer.to_rttm(),
        },
    )


def _positions(geometry: str, method: str, options: dict[str, Any]) -> _Locator:
    from qkgcc.arrays import PositionEstimator, array
    from qkgcc.arrays.result import blocks_csv
    from qkgcc.cli.tables import position_table

    estimator = PositionEstimator(array(geometry), method, **options)
    return _Locator(
        lambda recording, progress: estimator(recording, progress=progress),
        position_table,
        {
            Output.csv: lambda answer, header: blocks_csv([answer], header=header),
            Output.json: lambda answer, _: answer.to_json() + "\n",
        },
    )


def _volume(text: str | None) -> list[list[float]] | None:
    """The ranges to search in.

    >>> _volume("0,5,0,4,0,2.5")
    [[0.0, 5.0], [0.0, 4.0], [0.0, 2.5]]
    """
    edges = numbers("--volume", text)
    if edges is not None and len(edges) != 6:
        raise InputError(f"--volume {text}: expected six numbers, the lowest and highest front, left and up")
    return None if edges is None else [edges[:2], edges[2:4], edges[4:]]
