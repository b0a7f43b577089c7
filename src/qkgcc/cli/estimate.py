"""`qkgcc estimate`: delays of files, pairs of recorders, a file on standard input."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TaskProgressColumn, TimeRemainingColumn

from qkgcc.cli.inputs import Pictures, Run, for_each
from qkgcc.cli.options import (
    Channels,
    End,
    Files,
    Format,
    Other,
    Overwrite,
    Pairs,
    Plot,
    Printed,
    Start,
    delay_options,
    select_pairs,
    with_estimator_options,
)
from qkgcc.cli.tables import Pace, console, delay_table, silence_text, text_column
from qkgcc.core.errors import InputError

if TYPE_CHECKING:
    from qkgcc.delay.result import DelayEstimate


@with_estimator_options
def estimate(
    files: Files,
    options: dict[str, Any],
    channels: Channels = (0, 1),
    pairs: Pairs = None,
    other: Other = None,
    start: Start = None,
    end: End = None,
    format: Printed = Format.table,
    curve: Annotated[bool, typer.Option(help="Include lags and curves in JSON.")] = True,
    plot: Plot = None,
    overwrite: Overwrite = False,
) -> None:
    """Estimate the delay between two channels: over time, and one for the whole recording.

    A delay is positive when the first channel hears the source later. An angle (with --spacing) is positive towards
    the second microphone: to the right, if the first channel is the left microphone.

    Folders: `qkgcc batch`. Live sound: `qkgcc listen`.

    Examples:

    * `qkgcc estimate talk.wav --spacing 0.2 --plot talk.png`

    * `qkgcc estimate left.wav --with right.wav --max-delay 0.005`

    * `qkgcc estimate array.flac --pairs all --format csv > delays.csv`

    * `ffmpeg -i clip.mp4 -f wav - | qkgcc estimate - --format json`
    """
    from qkgcc.audio.recording import open_audio
    from qkgcc.core.files import display_name, is_folder
    from qkgcc.delay.estimator import DelayEstimator

    estimator = DelayEstimator(**delay_options(options))
    if other is not None and len(files) != 1:
        raise InputError(f"--with takes exactly one first recording; {len(files)} were given")
    for file in files:
        if is_folder(file):
            raise InputError(
                f"{display_name(file)} is a folder: qkgcc batch {display_name(file)} --out OUT estimates its recordings"
            )
    pictures = Pictures(plot, overwrite, len(files) > 1)
    pictures.check(several_pairs=pairs is not None)
    pace = Pace()

    def work(source: Path, run: Run) -> None:
        recording = open_audio(source, start=start, end=end, other=other)
        chosen = select_pairs(recording, channels, pairs)

        def show(share: float) -> None:
            pace.update(run.number, share * recording.duration, len(chosen))
            run.show(share, pace=str(pace))

        drawn = plot is not None or (format is Format.json and curve)
        for answer in estimator.of_pairs(recording, chosen, progress=show, curve=drawn):
            first, second = answer.channels
            if not answer.summary.answered:
                silent = silence_text(answer)
                if len(chosen) == 1:
                    raise InputError(silent)
                run.incomplete = True
                run.report(silent)
                continue
            if plot is not None:
                answer.plot(pictures.path(source, answer.channels if len(chosen) > 1 else None))
            about = answer.source + (f", channels {first} and {second}" if len(chosen) > 1 else "")
            run.print(lambda: _print(answer, format, header=run.first, curve=curve), about, answer.warnings)  # noqa: B023

    for_each(files, work, TaskProgressColumn(), text_column("{task.fields[pace]}"), TimeRemainingColumn())


def _print(answer: "DelayEstimate", format: Format, *, header: bool, curve: bool) -> None:
    from qkgcc.delay.result import delays_csv

    if format is Format.table:
        console().print(delay_table(answer))
    elif format is Format.csv:
        typer.echo(delays_csv([answer], header=header), nl=False)
    else:
        for piece in answer.json_pieces(curve=curve):
            typer.echo(piece, nl=False)
        typer.echo()
