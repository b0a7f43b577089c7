"""`qkgcc locate`: where sources are, heard by an array."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from qkgcc.audio.recording import Recording, open_audio
from qkgcc.cli.estimate import expand, paused, plot_path, read_pairs
from qkgcc.cli.options import SpeedOfSound, Temperature, channel_numbers, numbers, sound_speed, source_count
from qkgcc.cli.overwriting import Overwrite, check_replaceable
from qkgcc.cli.tables import console, progress_bar
from qkgcc.core.errors import InputError
from qkgcc.network.registry import ARRAY_DEFAULT
from qkgcc.plots import check_plotting

WIDE = 1.5
"""Metres across an array beyond which places are what one would ask it for."""


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"
    rttm = "rttm"


def locate(
    files: Annotated[
        list[Path],
        typer.Argument(help="Recordings or folders of them; - reads a WAV from standard input.", readable=False),
    ],
    geometry: Annotated[
        str, typer.Option("--array", help="A preset such as respeaker4 or circular:8:0.1, or a TOML or CSV file.")
    ],
    method: Annotated[
        str, typer.Option("--method", "-m", help="One of `qkgcc methods` (phat: SRP-PHAT), or a steered network.")
    ] = ARRAY_DEFAULT,
    sources: Annotated[
        str | None,
        typer.Option(help="How many to look for in each block, or auto (1); with --track, at any moment (all)."),
    ] = None,
    track: Annotated[
        bool, typer.Option("--track", help="Follow sources that move, begin and end, each with an id.")
    ] = False,
    position: Annotated[
        bool, typer.Option("--position", help="Places in metres instead, for microphones metres apart.")
    ] = False,
    height: Annotated[
        float | None, typer.Option(help="Metres up at which the sources are, if known (with --position).")
    ] = None,
    volume: Annotated[
        str | None,
        typer.Option(help="Lowest and highest front, left and up to search in: 0,5,0,4,0,2.5 (with --position)."),
    ] = None,
    channels: Annotated[
        str | None, typer.Option(help="Those that are the microphones, in their order: 1,2,3,4 (default: all).")
    ] = None,
    pairs: Annotated[str | None, typer.Option(help="Of microphones that count: `all`, or some: 0-1,0-3.")] = None,
    grid: Annotated[
        str | None, typer.Option(help="circle: azimuths (flat arrays), or sphere (arrays in space).")
    ] = None,
    distance: Annotated[
        str | None, typer.Option(help="Metres to near sources, or several that are tried: 0.3,0.5,1.")
    ] = None,
    block: Annotated[float, typer.Option(help="Seconds that one answer is about.")] = 1.0,
    context: Annotated[
        float | None, typer.Option(help="Seconds around a block that are heard with it (default: 2; 0: none).")
    ] = None,
    frame: Annotated[
        float | None, typer.Option(help="Seconds in a frame (default: 0.064, or more for places).")
    ] = None,
    hop: Annotated[
        float | None, typer.Option(help="Seconds from one frame to the next (default: half of one).")
    ] = None,
    start: Annotated[float | None, typer.Option(help="Begin at this second.")] = None,
    end: Annotated[float | None, typer.Option(help="Stop at this second.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="That share a recording's frames (default: one for each core).")
    ] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Annotated[Format, typer.Option(help="What to print; rttm: who speaks when, with --track.")] = Format.table,
    frames: Annotated[
        bool, typer.Option(help="Whether JSON holds the frames too, or only blocks and the whole.")
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a picture; several inputs give OUT-NAME.png each.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Directions of sources over time and in the whole recording, heard by an array of microphones, or their places.

    Azimuths are degrees from the front of the array, positive to the left; elevations degrees up. Directions that the
    array cannot tell apart are all named. Places (--position) are metres to the front, to the left and up, in the
    coordinates of the array.

    Examples:

    * `qkgcc locate talk.wav --array respeaker4`

    * `qkgcc locate meeting.flac --array circular:8:0.1 --sources auto --plot meeting.png`

    * `qkgcc locate talk.wav --array respeaker4 --sources 2 --track`

    * `qkgcc locate meeting.flac --array circular:8:0.1 --track --format rttm > meeting.rttm`

    * `qkgcc locate six.wav --array respeaker4 --channels 1,2,3,4 --format csv > directions.csv`

    * `qkgcc locate room.wav --array corners.toml --position --sources 2 --plot room.png`

    * `qkgcc locate desk.wav --array mine.toml --distance 0.3,0.5,1 --format json`
    """
    if format is Format.rttm and not track:
        raise InputError("--format rttm says which source speaks when: give --track as well")
    if plot is not None:
        check_plotting(plot)  # before the work, not after it
    common: dict[str, Any] = {
        "hop": hop,
        "block": block,
        "threads": threads,
        "speed_of_sound": sound_speed(speed_of_sound, temperature),
    }
    if sources is not None:
        common["sources"] = source_count(sources)
    if frame is not None:
        common["frame"] = frame
    if position:
        given_too = {"--track": track, "--pairs": pairs, "--grid": grid, "--distance": distance}
        for option, used in (given_too | {"--context": context is not None}).items():
            if used:
                raise InputError(f"{option} is for directions: leave it out, or --position")
        locator = _positions(geometry, method, common | {"height": height, "volume": _volume(volume)})
    else:
        for option, used in {"--height": height is not None, "--volume": volume}.items():
            if used:
                raise InputError(f"{option} is for places: give --position as well")
        common |= {
            "grid": grid,
            "distance": numbers("--distance", distance),
            "pairs": None if pairs in (None, "all") else read_pairs(str(pairs)),
        }
        if context is not None:
            common["context"] = context
        locator = _directions(geometry, method, common, track=track, keep_maps=plot is not None, frames=frames)
    chosen = channel_numbers(channels)
    given = expand(files)
    if plot is not None and len(given) == 1:
        check_replaceable(plot, overwrite)
    taken: set[Path] = set()
    failed, header = 0, True
    with progress_bar() as progress:
        task = progress.add_task("", total=float(len(given)))
        for number, source in enumerate(given):
            progress.update(task, description=source.name, completed=float(number))

            def show(share: float, done: int = number) -> None:
                progress.update(task, completed=done + share)

            try:
                recording = open_audio(source, start=start, end=end)
                if chosen is not None:
                    recording = recording.pick(chosen, "record all microphones into one file")
                answer = locator.find(recording, show)
                if plot is not None:
                    picture = plot_path(plot, source if len(given) > 1 else None, None, taken)
                    check_replaceable(picture, overwrite)
                    answer.plot(picture)
                with paused(progress):
                    if format is Format.table:
                        console().print(locator.table(answer))
                    else:
                        typer.echo(locator.text[format](answer, header), nl=False)
                    header = False
                    for warning in answer.warnings:
                        typer.echo(f"warning: {answer.source}: {warning}", err=True)
            except InputError as error:
                if len(given) == 1:
                    raise
                failed += 1
                with paused(progress):
                    typer.echo(f"error: {error}", err=True)
    if failed:
        typer.echo(f"{failed} of {len(given)} recordings failed", err=True)
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Locator:
    """What finds directions or places, and how they are shown."""

    find: Callable[[Recording, Callable[[float], object]], Any]
    table: Callable[[Any], Table]
    text: dict[Format, Callable[[Any, bool], str]]
    """Of an answer, with a header or without."""


def _directions(
    geometry: str, method: str, options: dict[str, Any], *, track: bool, keep_maps: bool, frames: bool
) -> _Locator:
    from qkgcc.arrays import DirectionEstimator, array
    from qkgcc.arrays.result import blocks_csv, tracks_csv
    from qkgcc.cli.array_tables import direction_table, track_table

    estimator = DirectionEstimator(array(geometry), method, **options)
    if estimator.geometry.aperture > WIDE:
        typer.echo(f"note: {estimator.geometry.name} is metres wide; --position finds places", err=True)
    as_csv = tracks_csv if track else blocks_csv
    return _Locator(
        lambda recording, progress: estimator(recording, progress=progress, keep_maps=keep_maps, track=track),
        track_table if track else direction_table,
        {
            Format.csv: lambda answer, header: as_csv([answer], header=header),
            Format.json: lambda answer, _: answer.to_json(frames=frames) + "\n",
            Format.rttm: lambda answer, _: answer.to_rttm(),
        },
    )


def _positions(geometry: str, method: str, options: dict[str, Any]) -> _Locator:
    from qkgcc.arrays import PositionEstimator, array
    from qkgcc.arrays.result import blocks_csv
    from qkgcc.cli.array_tables import position_table

    estimator = PositionEstimator(array(geometry), method, **options)
    return _Locator(
        lambda recording, progress: estimator(recording, progress=progress),
        position_table,
        {
            Format.csv: lambda answer, header: blocks_csv([answer], header=header),
            Format.json: lambda answer, _: answer.to_json() + "\n",
        },
    )


def _volume(text: str | None) -> list[list[float]] | None:
    """
    >>> _volume("0,5,0,4,0,2.5")
    [[0.0, 5.0], [0.0, 4.0], [0.0, 2.5]]
    """
    edges = numbers("--volume", text)
    if edges is not None and len(edges) != 6:
        raise InputError(f"--volume {text}: expected six numbers, the lowest and highest front, left and up")
    return None if edges is None else [edges[:2], edges[2:4], edges[4:]]
