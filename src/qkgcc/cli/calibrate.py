"""`qkgcc calibrate`: recorders without a shared clock, and microphones that are not quite where the drawing says."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkgcc.cli.options import (
    ArrayChannels,
    End,
    Overwrite,
    Report,
    Reported,
    SpeedOfSound,
    Start,
    Temperature,
    check_replaceable,
    numbers,
    sound_speed,
    with_channels,
)
from qkgcc.cli.tables import console, left_table, number, progress_bar
from qkgcc.core.errors import InputError

if TYPE_CHECKING:
    from qkgcc.audio.recording import Recording

app = typer.Typer(
    help="Calibrate offsets and drift of recorders, or positions of microphones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def offsets(
    files: Annotated[
        list[Path], typer.Argument(help="One file for each recorder, or one file with a channel for each.")
    ],
    write: Annotated[
        Path | None, typer.Option(help="Folder for aligned copies of all recordings, on the clock of the first.")
    ] = None,
    distances: Annotated[
        str | None,
        typer.Option(
            help="Distance from the clap to each recorder in metres, such as 1.2,0.8: takes out the travel time."
        ),
    ] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Reported = Report.table,
    overwrite: Overwrite = False,
) -> None:
    """Find the start offsets and clock drifts of recorders without a shared clock, from a clap or from speech.

    Clap close to all recorders (at most a metre away in a reverberant room), or let somebody talk from one place. Do so
    at the beginning and at the end, which is needed to measure the drift. Without --distances, the offset includes the
    sound's travel time.

    A positive offset: the recorder was started later than the first. A positive drift: its clock is slower. `--write`
    writes a WAV file of 32-bit floats for each recorder, with the part that all have in common: shifted, resampled by
    the drift, at the sample rate of the first.

    Examples:

    * `qkgcc calibrate offsets left.wav right.wav`

    * `qkgcc calibrate offsets a.wav b.wav c.wav --write aligned`

    * `qkgcc calibrate offsets clap-a.wav clap-b.wav --distances 1.2,0.8 --format json`
    """
    from qkgcc.core.files import display_name
    from qkgcc.sync import aligned_paths, synchronise, write_aligned

    metres = numbers("--distances", distances)
    recordings, names = _recorders(files)
    for path in [] if write is None else aligned_paths(write, names):
        if path not in files:  # those are refused in any case
            check_replaceable(path, overwrite)
    with progress_bar() as bar:
        task = bar.add_task("comparing", total=1.0)
        answer = synchronise(
            recordings,
            distances=metres,
            speed_of_sound=sound_speed(speed_of_sound, temperature),
            progress=lambda share: bar.update(task, completed=share),
        )
        written: list[Path] = []
        if write is not None:
            task = bar.add_task("writing", total=1.0)
            written = write_aligned(
                answer,
                recordings,
                write,
                names,
                sources=files,
                progress=lambda share: bar.update(task, completed=share),
            )
    if format is Report.json:
        typer.echo(_offsets_json(answer, names, written))
        return
    rate = answer.sample_rate
    table = left_table(f"against {names[0]}, {rate} Hz; positive: later, slower", ())
    table.add_column("recorder")
    for heading in ("offset (s)", "samples", "±", "drift (ppm)", "±", "seconds used"):
        table.add_column(heading, justify="right")
    for name, clock in zip(names, answer.clocks, strict=True):
        drift = (
            ("-", "-") if clock.drift is None else (f"{1e6 * clock.drift:+.2f}", f"{1e6 * (clock.drift_sd or 0):.2f}")
        )
        table.add_row(
            name,
            f"{clock.offset:+.6f}",
            f"{clock.offset * rate:+.2f}",
            f"{clock.offset_sd * rate:.2f}",
            *drift,
            f"{clock.used} of {clock.clear}" if clock is not answer.clocks[0] else "",
        )
    console().print(table)
    for remark in answer.remarks:
        console().print(remark)
    for path in written:
        typer.echo(f"written: {display_name(path)}")


def _offsets_json(answer: Any, names: list[str], written: list[Path]) -> str:
    from qkgcc.core.tables import json_text

    rate = answer.sample_rate
    rows = [
        {
            "file": name,
            "offset_seconds": round(clock.offset, 9),
            "offset_samples": round(clock.offset * rate, 4),
            "offset_sd_samples": round(clock.offset_sd * rate, 4),
            "drift_ppm": None if clock.drift is None else round(1e6 * clock.drift, 4),
            "drift_sd_ppm": None if clock.drift_sd is None else round(1e6 * clock.drift_sd, 4),
            "blocks_used": clock.used,
            "blocks_clear": clock.clear,
            "places": clock.places,
            "inverted": clock.inverted,
        }
        for name, clock in zip(names, answer.clocks, strict=True)
    ]
    content = {
        "sample_rate": rate,
        "recorders": rows,
        "remarks": answer.remarks,
        "written": list(map(str, written)),
    }
    return json_text(content)


@app.command()
def positions(
    file: Annotated[Path, typer.Argument(help="A recording of a walk around the microphones, talking or clapping.")],
    array: Annotated[str, typer.Option(help="Nominal positions: what `qkgcc array` takes.")],
    out: Annotated[Path | None, typer.Option(help="Write the refined geometry (.toml or .csv).")] = None,
    method: Annotated[str, typer.Option(help="Method for the delays: one of `qkgcc methods`.")] = "phat",
    tolerance: Annotated[float, typer.Option(help="Largest error of the given positions in metres.")] = 0.05,
    height: Annotated[
        float | None, typer.Option(help="Height of the source above the geometry's origin in metres, if known.")
    ] = None,
    nearest: Annotated[float, typer.Option(help="Smallest distance of the source from the array in metres.")] = 0.5,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Estimate a constant delay of each channel, too (up to 1 ms).")
    ] = False,
    channels: ArrayChannels = None,
    start: Start = None,
    end: End = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Reported = Report.table,
    overwrite: Overwrite = False,
) -> None:
    """Refine the positions of microphones from a walk around them, whose path need not be known.

    One person walks around the array for a minute, near and far, high and low, talking or clapping. What the walk does
    not determine is reported, and stays as it was given.

    Exit code 0: all positions are known to a centimetre; 1: something is not determined.

    Examples:

    * `qkgcc calibrate positions walk.wav --array mine.toml --out refined.toml`

    * `qkgcc calibrate positions walk.wav --array circular:8:0.1 --height 0 --format json`
    """
    from qkgcc.arrays import array as named
    from qkgcc.arrays.geometry import write_geometry
    from qkgcc.audio.recording import open_audio
    from qkgcc.core.files import display_name
    from qkgcc.selfcal import measure_moments, refine

    nominal = named(array)
    if out is not None:
        check_replaceable(out, overwrite)  # before the work, not after it
    speed = sound_speed(speed_of_sound, temperature)
    with progress_bar() as bar:
        task = bar.add_task("delays", total=1.0)
        moments = measure_moments(
            with_channels(open_audio(file, start=start, end=end), channels, len(nominal)),
            nominal,
            method,
            tolerance=tolerance,
            latest=0.001 if offsets else 0.0,
            speed_of_sound=speed,
            progress=lambda share: bar.update(task, completed=share),
        )
    for warning in moments.warnings:
        typer.echo(f"warning: {file.name}: {warning}", err=True)
    found = refine(
        nominal, moments, tolerance=tolerance, height=height, nearest=nearest, offsets=offsets, speed_of_sound=speed
    )
    if out is not None:
        write_geometry(found.geometry, out)
    if format is Report.json:
        typer.echo(_positions_json(found, len(moments.times)))
    else:
        _print_positions(found, nominal.name, len(moments.times))
        if out is not None:
            typer.echo(f"written: {display_name(out)}")
    if found.unsolved:
        raise typer.Exit(1)


def _positions_json(found: Any, moments: int) -> str:
    from qkgcc.core.tables import json_numbers, json_text

    content = {
        "microphones": found.geometry.microphones.round(6).tolist(),
        "sd": found.sd.round(6).tolist(),
        "moved": found.moved.round(6).tolist(),
        "offsets": json_numbers(found.offsets, 9),
        "residual_before": found.before,
        "residual": found.residual,
        "moments": moments,
        "unsolved": [
            {"what": one.what, "sd": one.sd if math.isfinite(one.sd) else None, "advice": one.advice}
            for one in found.unsolved
        ],
    }
    return json_text(content)


def _print_positions(found: Any, name: str, moments: int) -> None:
    late = [] if found.offsets is None else ["late (µs)"]
    table = left_table(f"{name}, refined: cm", ())
    table.add_column("channel")
    for heading in ("front", "±", "left", "±", "up", "±", "moved", *late):
        table.add_column(heading, justify="right")
    for channel, (place, sd) in enumerate(zip(found.geometry.microphones, found.sd, strict=True)):
        cells = [text for x, s in zip(place, sd, strict=True) for text in (f"{100 * x:z.2f}", f"{100 * s:.2f}")]
        offset = [] if found.offsets is None else [number(1e6 * found.offsets[channel], 1)]
        table.add_row(str(channel), *cells, f"{100 * found.moved[channel]:.2f}", *offset)
    console().print(table)
    console().print(
        f"{moments} moments; residual of the delays {1e6 * found.residual:.1f} µs, {1e6 * found.before:.1f} µs with "
        "the positions that were given."
    )
    for one in found.unsolved:
        size = f"±{100 * one.sd:.1f} cm" if one.sd < 1 else "not at all"
        console().print(f"Not determined: {one.what} ({size}): {one.advice}.")


def _recorders(files: list[Path]) -> "tuple[list[Recording], list[str]]":
    """The recordings, and their names."""
    from qkgcc.audio.recording import open_audio
    from qkgcc.core.files import display_name

    if len(files) > 1:
        names = [file.stem for file in files]
        if len(set(names)) < len(names):
            names = [f"{file.parent.name}-{file.stem}" for file in files]
        recordings = [open_audio(file) for file in files]
        for first, second in itertools.combinations(files, 2):
            if first.exists() and second.exists() and first.samefile(second):
                what = "is given twice" if first == second else f"and {display_name(second)} are one file"
                raise InputError(f"{display_name(first)} {what}: give one file for each recorder")
        return recordings, names
    recording = open_audio(files[0])
    if len(recording.channels) < 2:
        raise InputError(f"{recording.name} has 1 channel; give one file for each of two recorders or more")
    channels = range(len(recording.channels))
    names = [f"{files[0].stem}-{channel}" for channel in channels]
    return [replace(recording.pick([n]), name=name) for n, name in enumerate(names)], names
