"""`qkgcc calibrate`: recorders that run apart, and microphones that are not quite where the drawing says."""

import itertools
import math
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qkgcc.audio.recording import Recording, open_audio
from qkgcc.cli.options import ArrayChannels, SpeedOfSound, Temperature, numbers, sound_speed, with_channels
from qkgcc.cli.overwriting import Overwrite, check_replaceable
from qkgcc.cli.tables import console, number, progress_bar
from qkgcc.core.errors import InputError
from qkgcc.core.files import display_name
from qkgcc.core.tables import json_numbers, json_text

app = typer.Typer(
    help="Calibrate: offsets and drift of recorders, positions of microphones.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Report(StrEnum):
    table = "table"
    json = "json"


Format = Annotated[Report, typer.Option(help="What to print.")]


@app.command()
def offsets(
    files: Annotated[
        list[Path], typer.Argument(help="One file for each recorder; or one file, whose channels are the recorders.")
    ],
    write: Annotated[Path | None, typer.Option(help="Write all of them, on the first one's clock, here.")] = None,
    distances: Annotated[
        str | None, typer.Option(help="Metres from the clap to each recorder, such as 1.2,0.8; takes its way out.")
    ] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Format = Report.table,
    overwrite: Overwrite = False,
) -> None:
    """Find when recorders were started and how far their clocks run apart, from a clap or from speech.

    Clap near to all of them, at most a metre away in a reverberant room, or let somebody talk who stays at one place;
    at the beginning and at the end, so that a drift shows. Offsets are positive where a recorder was started later than
    the first, drifts where its clock is slower. `--write` makes one WAV of 32-bit floats for each recorder, of the part
    that all have in common: shifted, resampled by the drift, at the sample rate of the first.

    Examples:

    * `qkgcc calibrate offsets left.wav right.wav`

    * `qkgcc calibrate offsets a.wav b.wav c.wav --write aligned`

    * `qkgcc calibrate offsets clap-a.wav clap-b.wav --distances 1.2,0.8 --format json`
    """
    from qkgcc.sync.alignment import aligned_paths, write_aligned
    from qkgcc.sync.synchronise import synchronise

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
    rate = answer.sample_rate
    if format is Report.json:
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
        typer.echo(json_text(content))
        return
    table = Table(title=f"against {names[0]}, {rate} Hz; positive: later, slower", title_justify="left")
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


@app.command()
def positions(
    file: Annotated[Path, typer.Argument(help="A recording of a walk around the microphones, talking or clapping.")],
    array: Annotated[str, typer.Option(help="Where they are meant to be: what `qkgcc array` takes.")],
    out: Annotated[Path | None, typer.Option(help="Write the refined geometry (.toml or .csv).")] = None,
    method: Annotated[str, typer.Option(help="Of the delays: one of `qkgcc methods`.")] = "phat",
    tolerance: Annotated[float, typer.Option(help="Metres by which the given places may be off.")] = 0.05,
    height: Annotated[
        float | None, typer.Option(help="Metres above the geometry's origin at which the source stayed, if known.")
    ] = None,
    nearest: Annotated[float, typer.Option(help="Metres from the array that the source always kept.")] = 0.5,
    offsets: Annotated[bool, typer.Option("--offsets", help="Channels may be late by a constant (to 1 ms).")] = False,
    channels: ArrayChannels = None,
    start: Annotated[float | None, typer.Option(help="Begin at this second.")] = None,
    end: Annotated[float | None, typer.Option(help="Stop at this second.")] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Format = Report.table,
    overwrite: Overwrite = False,
) -> None:
    """Refine the positions of microphones from a walk around them; nobody needs to know where it went.

    One person walks around the array, near and far, high and low, talking or clapping, for a minute. What the walk does
    not determine is named, and stays as it was given.

    Exit code 0: all places within a centimetre; 1: something is not determined.

    Examples:

    * `qkgcc calibrate positions walk.wav --array mine.toml --out refined.toml`

    * `qkgcc calibrate positions walk.wav --array circular:8:0.1 --height 0 --format json`
    """
    from qkgcc.arrays import array as named
    from qkgcc.arrays.geometry import write_geometry
    from qkgcc.selfcal.moments import measure_moments
    from qkgcc.selfcal.refine import refine

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
        content = {
            "microphones": found.geometry.microphones.round(6).tolist(),
            "sd": found.sd.round(6).tolist(),
            "moved": found.moved.round(6).tolist(),
            "offsets": json_numbers(found.offsets, 9),
            "residual_before": found.before,
            "residual": found.residual,
            "moments": len(moments.times),
            "unsolved": [
                {"what": one.what, "sd": one.sd if math.isfinite(one.sd) else None, "advice": one.advice}
                for one in found.unsolved
            ],
        }
        typer.echo(json_text(content))
    else:
        table = Table("channel", title=f"{nominal.name}, refined: cm", title_justify="left")
        for heading in ("front", "±", "left", "±", "up", "±", "moved", *(("late (µs)",) if offsets else ())):
            table.add_column(heading, justify="right")
        for channel, (place, sd) in enumerate(zip(found.geometry.microphones, found.sd, strict=True)):
            cells = [text for x, s in zip(place, sd, strict=True) for text in (f"{100 * x:z.2f}", f"{100 * s:.2f}")]
            late = [] if found.offsets is None else [number(1e6 * found.offsets[channel], 1)]
            table.add_row(str(channel), *cells, f"{100 * found.moved[channel]:.2f}", *late)
        console().print(table)
        console().print(
            f"{len(moments.times)} moments; delays miss by {1e6 * found.residual:.1f} µs, and by "
            f"{1e6 * found.before:.1f} µs with the places that were given."
        )
        for one in found.unsolved:
            size = f"±{100 * one.sd:.1f} cm" if one.sd < 1 else "not at all"
            console().print(f"Not determined: {one.what} ({size}): {one.advice}.")
        if out is not None:
            typer.echo(f"written: {display_name(out)}")
    if found.unsolved:
        raise typer.Exit(1)


def _recorders(files: list[Path]) -> tuple[list[Recording], list[str]]:
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
