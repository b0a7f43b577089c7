"""`qkgcc explain`: which frequencies of a recording a network listens to."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from qkgcc.audio.recording import open_audio
from qkgcc.cli.options import Band, MaxDelay, Other, Spacing
from qkgcc.cli.overwriting import Overwrite, check_replaceable
from qkgcc.cli.tables import progress_bar
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.network.registry import DEFAULT
from qkgcc.plots import check_plotting


def explain(
    file: Annotated[Path, typer.Argument(help="A recording; - reads a WAV from standard input.", readable=False)],
    plot: Annotated[Path, typer.Option(help="Where to write the picture (.png, .svg or .pdf).")],
    method: Annotated[str, typer.Option("--method", "-m", help="A pretrained or steered network.")] = DEFAULT,
    spacing: Spacing = None,
    max_delay: MaxDelay = None,
    band: Band = None,
    channels: Annotated[tuple[int, int], typer.Option(help="The two channels, counted from 0.")] = (0, 1),
    other: Other = None,
    start: Annotated[float | None, typer.Option(help="Begin at this second.")] = None,
    end: Annotated[float | None, typer.Option(help="Stop at this second.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """A picture of how much each frequency counts, over time: the learned reliability.

    Frequencies that count need not be right: a loud noise of its own in each channel says much, too.

    Examples:

    * `qkgcc explain talk.wav --spacing 0.2 --plot talk-weights.png`

    * `qkgcc explain hall.flac --band 300 8000 --plot hall-weights.png`

    * `qkgcc explain array.flac --method mine.safetensors --channels 0 3 --start 10 --end 20 --plot weights.svg`
    """
    check_plotting(plot)
    check_replaceable(plot, overwrite)
    estimator = DelayEstimator(method, spacing=spacing, max_delay=max_delay, band=band)
    recording = open_audio(file, start=start, end=end, other=other).pick(channels)
    with progress_bar() as progress:
        task = progress.add_task(file.name, total=1.0)
        explanation = estimator.explain(recording, progress=lambda share: progress.update(task, completed=share))
    explanation.plot(plot)
    share = np.cumsum(explanation.mean) / explanation.mean.sum()
    quarters = explanation.frequencies[np.searchsorted(share, (0.25, 0.5, 0.75))]
    typer.echo("a quarter of all weight lies below {:.0f} Hz, half below {:.0f}, three below {:.0f}".format(*quarters))
    typer.echo(f"written: {plot}")
