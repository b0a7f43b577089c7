"""`qkgcc demo`: the bundled recording, whose truth is known."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from qkgcc import samples
from qkgcc.cli.overwriting import Overwrite, check_replaceable
from qkgcc.cli.tables import bar, console, number
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.network.registry import DEFAULT
from qkgcc.plots import check_plotting

_NAME = "talkers-2ch"


def demo(
    method: Annotated[str, typer.Option("--method", "-m", help="One of `qkgcc methods`, or a checkpoint.")] = DEFAULT,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the delays with the truth on it.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Estimate the delays of the bundled recording and compare them with the truth."""
    if plot is not None:
        check_plotting(plot)  # before the work, not after it
        check_replaceable(plot, overwrite)
    path, truth = samples.path(_NAME), samples.truth(_NAME)
    estimator = DelayEstimator(method, spacing=truth["spacing"], speed_of_sound=truth["speed_of_sound"])
    table = Table(
        title=f"{path.name}: {len(truth['segments'])} synthetic talkers in a simulated room, "
        f"microphones {truth['spacing']} m apart, {method}; delays in samples",
        title_justify="left",
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
    true_delay = samples.truth_at(answer.times, _NAME)
    spoken = np.isfinite(true_delay)
    right = np.abs(answer.delay_samples - true_delay)[spoken] <= 1
    sure = answer.confidence[spoken] >= np.median(answer.confidence[spoken])
    table.caption = (
        f"frame by frame ({spoken.sum()} of 0.128 s): {right.mean():.0%} within one sample of the truth; "
        f"{right[sure].mean():.0%} of the more confident half, {right[~sure].mean():.0%} of the other."
    )
    table.caption_justify = "left"
    console().print(table)
    if plot is not None:
        answer.plot(plot, truth=true_delay)
        typer.echo(f"picture: {plot}")
