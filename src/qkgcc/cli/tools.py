"""`qkgcc doctor`, `array`, `methods` and `demo`: what helps to use the others."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qkgcc.cli.options import (
    ArrayChannels,
    End,
    Method,
    Other,
    Overwrite,
    Picture,
    Report,
    Reported,
    Spacing,
    SpeedOfSound,
    Start,
    Temperature,
    check_replaceable,
    sound_speed,
    with_channels,
)
from qkgcc.cli.tables import bar, console, number
from qkgcc.core.errors import quantity
from qkgcc.network.registry import ARRAY_DEFAULT, DEFAULT, METHODS, PAPER, PRETRAINED

_DEMO = "talkers-2ch"


class Side(StrEnum):
    left = "left"
    right = "right"


def doctor(
    file: Annotated[
        Path, typer.Argument(help="A recording of two or more channels; - reads a WAV file from standard input.")
    ],
    spacing: Spacing = None,
    expect: Annotated[
        Side | None,
        typer.Option(help="Side the source was on (without --array: channel 0 is the left microphone)."),
    ] = None,
    geometry: Annotated[
        str | None,
        typer.Option("--array", "--geometry", help="Microphone positions to check: what `qkgcc array` takes."),
    ] = None,
    rate: Annotated[int | None, typer.Option(help="Sample rate that the recording should have, in Hz.")] = None,
    other: Other = None,
    channels: ArrayChannels = None,
    start: Start = None,
    end: End = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Reported = Report.table,
) -> None:
    """Find what spoils the delays of a recording: wiring, levels, clocks, clipping, hum.

    Channels are counted from 0; with `--channels`, in the order given there. Exit code 0: no finding; 1: findings.

    Examples:

    * `qkgcc doctor talk.wav --spacing 0.2`

    * `qkgcc doctor talk.wav --expect left`

    * `qkgcc doctor left.wav --with right.wav`

    * `qkgcc doctor meeting.wav --array respeaker4 --channels 1,2,3,4`
    """
    from qkgcc.arrays import array
    from qkgcc.audio.recording import open_audio
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


def array(
    name: Annotated[str, typer.Argument(help="A preset such as respeaker4 or circular:8:0.1, or a TOML or CSV file.")],
    plot: Annotated[
        Path | None, typer.Option(help="Write a picture, from above and from behind (.png, .svg, .pdf).")
    ] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    overwrite: Overwrite = False,
) -> None:
    """Show a microphone array: positions, spacings, largest delays, and which directions it cannot tell apart.

    Presets: respeaker4, respeaker6, linear:COUNT:SPACING (channel 0 at the right end), circular:COUNT:RADIUS,
    tetrahedral:EDGE. Files state their units and axes: `units = "cm"`, `axes = ["right", "front", "up"]` and
    `microphones = [[0, 0, 0], ...]` in TOML, or CSV with columns such as `right_cm,front_cm,up_cm`; one row for each
    channel of the recording.

    Examples:

    * `qkgcc array respeaker4`

    * `qkgcc array circular:8:0.1 --plot array.png`

    * `qkgcc array mine.toml`
    """
    from qkgcc import arrays, plots

    if plot is not None:
        plots.check_plotting(plot)  # before anything is printed
        check_replaceable(plot, overwrite)
    speed = sound_speed(speed_of_sound, temperature)
    geometry = arrays.array(name)
    table = Table("channel", "front", "left", "up", title=f"{geometry.name}: cm", title_justify="left")
    for channel, place in enumerate(geometry.microphones):
        table.add_row(str(channel), *(f"{100 * x:z.2f}" for x in place))
    spacings = [geometry.spacing(*pair) for pair in geometry.pairs]
    console().print(table)
    console().print(
        f"{quantity(len(spacings), 'pair')}, {100 * min(spacings):.2f} to {100 * max(spacings):.2f} cm apart: delays "
        f"up to {1000 * max(spacings) / speed:.3f} ms"
    )
    unclear = geometry.cannot_tell
    console().print("It can tell all directions apart." if unclear is None else f"It cannot tell {unclear}.")
    if plot is not None:
        plots.plot_array(geometry, plot)
        typer.echo(f"picture: {plot}")


def methods() -> None:
    """List the methods, each with a line and a reference, and the inference backend in use.

    Examples:

    * `qkgcc methods`
    """
    table = Table("method", "what it does", "reference")
    for method in METHODS.values():
        table.add_row(method.name, method.line, method.reference)
    table.caption = (
        f"{DEFAULT} is the default, {ARRAY_DEFAULT} the default of arrays, {' and '.join(PAPER)} the network of the "
        "paper. A network of your own is a method, too: qkgcc estimate FILE --method path/to/best.safetensors\n"
        + "\n".join(_backends())
    )
    table.caption_justify = "left"
    console().print(table)


def _backends() -> Iterator[str]:
    """A line for each inference backend: one for all networks, unless a kernel has room for some only."""
    from qkgcc.network.published import PublishedModel
    from qkgcc.network.registry import pretrained
    from qkgcc.network.steered import SteeredModel

    backends = {name: SteeredModel.load(pretrained(name)).runner for name in PRETRAINED}
    backends |= {name: PublishedModel.load(pretrained(name)).runner for name in PAPER}
    for backend in dict.fromkeys(backends.values()):
        names = [name for name, one in backends.items() if one == backend]
        listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        yield f"Here {listed} {'is' if len(names) == 1 else 'are'} run by {backend}."


def demo(method: Method = DEFAULT, plot: Picture = None, overwrite: Overwrite = False) -> None:
    """Estimate the delays of the bundled recording and compare them with the truth.

    Examples:

    * `qkgcc demo`

    * `qkgcc demo --method phat --plot demo.png`
    """
    import numpy as np

    from qkgcc import samples
    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.plots import check_plotting

    if plot is not None:
        check_plotting(plot)  # before the work, not after it
        check_replaceable(plot, overwrite)
    path, truth = samples.path(_DEMO), samples.truth(_DEMO)
    estimator = DelayEstimator(method, spacing=truth["spacing"], speed_of_sound=truth["speed_of_sound"])
    table = Table(
        title=f"{path.name}: {len(truth['segments'])} synthetic talkers in a simulated room, "
        f"microphones {truth['spacing']} m apart, {method}; delays in samples",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("time (s)", justify="right")
    table.add_column("voice")
    for heading in ("distance", "true delay", "estimate", "error", "angle"):
        table.add_column(heading, justify="right")
    table.add_column("confidence", no_wrap=True)
    for segment in truth["segments"]:
        best = estimator(path, start=segment["start"], end=segment["end"]).summary
        true = segment["delay_samples"]
        table.add_row(
            f"{segment['start']:.1f}-{segment['end']:.1f}",
            segment["voice"],
            f"{segment['distance']:.2f} m",
            f"{true:+.2f}",
            number(best.delay_samples, 2),
            number(best.delay_samples - true, 2),
            number(np.nan if best.angle is None else best.angle, 1) + "°",
            bar(best.confidence),
        )
    answer = estimator(path)
    true_delay = samples.truth_at(answer.times, _DEMO)
    spoken = np.isfinite(true_delay)
    right = np.abs(answer.delay_samples - true_delay)[spoken] <= 1
    sure = answer.confidence[spoken] >= np.median(answer.confidence[spoken])
    table.caption = (
        f"frame by frame ({spoken.sum()} of 0.128 s): {right.mean():.0%} within one sample of the truth; "
        f"{right[sure].mean():.0%} of the more confident half, {right[~sure].mean():.0%} of the other. Positive angle: "
        "right, with channel 0 as the left microphone."
    )
    console().print(table)
    if plot is not None:
        answer.plot(plot, truth=true_delay)
        typer.echo(f"picture: {plot}")
