"""`qkgcc locate`: where sources are, heard by an array."""

from pathlib import Path
from typing import Annotated

import typer

from qkgcc.arrays import array
from qkgcc.audio import open_audio
from qkgcc.cli.estimate import PLOT_SUFFIXES, Format, expand, paused, plot_path, read_pairs
from qkgcc.cli.options import SpeedOfSound, Temperature, sound_speed
from qkgcc.cli.tables import console, direction_table, progress_bar
from qkgcc.errors import InputError
from qkgcc.methods import DEFAULT
from qkgcc.plots import check_plotting


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
    ] = DEFAULT,
    sources: Annotated[str, typer.Option(help="How many to look for, or auto.")] = "1",
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
    frame: Annotated[float | None, typer.Option(help="Seconds in a frame (0.064 when not given).")] = None,
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
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.table,
    frames: Annotated[
        bool, typer.Option(help="Whether JSON holds the frames too, or only blocks and the whole.")
    ] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a picture; several inputs give OUT-NAME.png each.")] = None,
) -> None:
    """Directions of sources over time and in the whole recording, heard by an array of microphones.

    Azimuths are degrees from the front of the array, positive to the left; elevations degrees up. Directions that the
    array cannot tell apart are all named.

    Examples:

    * `qkgcc locate talk.wav --array respeaker4`

    * `qkgcc locate meeting.flac --array circular:8:0.1 --sources auto --plot meeting.png`

    * `qkgcc locate six.wav --array respeaker4 --channels 1,2,3,4 --format csv > directions.csv`

    * `qkgcc locate desk.wav --array mine.toml --distance 0.3,0.5,1 --format json`
    """
    from qkgcc.arrays.directions import DirectionEstimator
    from qkgcc.arrays.evidence import FRAME
    from qkgcc.arrays.found import directions_csv

    if plot is not None and plot.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError(f"--plot {plot}: the ending says the format, one of {' '.join(PLOT_SUFFIXES)}")
    if plot is not None:
        check_plotting(plot)  # before the work, not after it
    if sources != "auto" and not sources.isdecimal():
        raise InputError(f"--sources {sources}: expected a number such as 2, or auto")
    estimator = DirectionEstimator(
        array(geometry),
        method,
        sources="auto" if sources == "auto" else int(sources),
        grid=grid,
        distance=_numbers("--distance", distance),
        frame=FRAME if frame is None else frame,
        hop=hop,
        block=block,
        pairs=None if pairs in (None, "all") else read_pairs(str(pairs)),
        threads=threads,
        speed_of_sound=sound_speed(speed_of_sound, temperature),
    )
    chosen = _numbers("--channels", channels)
    if chosen is not None and not all(one == int(one) for one in chosen):
        raise InputError(f"--channels {channels}: expected whole numbers such as 1,2,3,4")
    given = expand(files)
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
                    recording = recording.pick([int(one) for one in chosen])
                answer = estimator(recording, progress=show, keep_maps=plot is not None)
                if plot is not None:
                    answer.plot(plot_path(plot, source if len(given) > 1 else None, None, taken))
                with paused(progress):
                    if format is Format.table:
                        console().print(direction_table(answer))
                    elif format is Format.csv:
                        typer.echo(directions_csv([answer], header=header), nl=False)
                    else:
                        typer.echo(answer.to_json(frames=frames))
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


def _numbers(option: str, text: str | None) -> list[float] | None:
    """
    >>> _numbers("--distance", "0.3, 1")
    [0.3, 1.0]
    """
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} {text}: expected numbers with commas between them, such as 1,2,3") from None
