"""`qkgcc doctor`: what is wrong with a recording."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qkgcc.audio.recording import open_audio
from qkgcc.cli.options import ArrayChannels, Other, Spacing, SpeedOfSound, Temperature, sound_speed, with_channels
from qkgcc.cli.tables import console


class Side(StrEnum):
    left = "left"
    right = "right"


class Report(StrEnum):
    table = "table"
    json = "json"


def doctor(
    file: Annotated[
        Path, typer.Argument(help="A recording of two or more channels; - reads a WAV from standard input.")
    ],
    spacing: Spacing = None,
    expect: Annotated[
        Side | None,
        typer.Option(help="Where the source was, of the array, or else with channel 0 as the left microphone."),
    ] = None,
    geometry: Annotated[
        str | None,
        typer.Option(
            "--array", "--geometry", help="Microphone positions, which are checked: what `qkgcc array` takes."
        ),
    ] = None,
    rate: Annotated[int | None, typer.Option(help="The sample rate it should have.")] = None,
    other: Other = None,
    channels: ArrayChannels = None,
    start: Annotated[float | None, typer.Option(help="Begin at this second.")] = None,
    end: Annotated[float | None, typer.Option(help="Stop at this second.")] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Annotated[Report, typer.Option(help="What to print.")] = Report.table,
) -> None:
    """Look for what spoils delays: wiring, levels, clocks, clipping, hum.

    Channels are counted from 0, those of `--channels` in their order there. Exit code 0: nothing found; 1: something
    found.

    Examples:

    * `qkgcc doctor talk.wav --spacing 0.2`

    * `qkgcc doctor talk.wav --expect left`

    * `qkgcc doctor left.wav --with right.wav`

    * `qkgcc doctor meeting.wav --array respeaker4 --channels 1,2,3,4`
    """
    from qkgcc.arrays import array
    from qkgcc.doctor import diagnose

    microphones = None if geometry is None else array(geometry)
    recording = open_audio(file, start=start, end=end, other=other)
    diagnosis = diagnose(
        with_channels(recording, channels, None if microphones is None else len(microphones)),
        spacing=spacing,
        expect=None if expect is None else expect.value,
        rate=rate,
        geometry=microphones,
        speed_of_sound=sound_speed(speed_of_sound, temperature),
    )
    if format is Report.json:
        typer.echo(diagnosis.to_json())
    elif not diagnosis.findings:
        console().print(f"{diagnosis.source}: nothing found", style="green")
    else:
        table = Table(
            "finding", "channels", "seen", "what to do", title=diagnosis.source, title_justify="left", show_lines=True
        )
        for finding in diagnosis.findings:
            table.add_row(finding.code, " ".join(map(str, finding.channels)), finding.seen, finding.advice)
        console().print(table)
    if format is Report.table:
        for note in diagnosis.notes:
            console().print(note)
    if diagnosis.findings:
        raise typer.Exit(1)
