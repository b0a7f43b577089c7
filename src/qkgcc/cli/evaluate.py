"""`qkgcc evaluate` and `explain`: how good methods are on your own recordings, and what a network listens to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from qkgcc.cli.inputs import expand
from qkgcc.cli.options import (
    Band,
    Channels,
    End,
    Format,
    MaxDelay,
    Other,
    Overwrite,
    Printed,
    Spacing,
    SpeedOfSound,
    Start,
    Temperature,
    check_replaceable,
    sound_speed,
)
from qkgcc.cli.tables import console, progress_bar
from qkgcc.core.errors import InputError, quantity
from qkgcc.network.registry import DEFAULT

if TYPE_CHECKING:
    import numpy as np

    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.delay.truth import Truth

_RATE = 16000
"""Hz: errors are shown in samples at the rate of the published benchmark."""


def evaluate(
    truth: Annotated[
        Path, typer.Option(help="CSV with columns file, delay_samples (or delay_seconds), and start, end or time.")
    ],
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Recordings, or folders of them (default: all that the truth file names)."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", "-m", help="One of `qkgcc methods`, or the checkpoint of a network; may be given several times."
        ),
    ] = None,
    channels: Channels = (0, 1),
    spacing: Spacing = None,
    max_delay: MaxDelay = None,
    hop: Annotated[float, typer.Option(help="Seconds from one frame to the next.")] = 0.064,
    distance: Annotated[
        float, typer.Option(min=0.001, help="Largest error that counts as right, in metres of path difference.")
    ] = 0.10,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    by_file: Annotated[bool, typer.Option("--by-file", help="Add a row for each recording.")] = False,
    format: Printed = Format.table,
) -> None:
    """Compare methods with your own truth, frame by frame. Frames that the truth does not cover are left out.

    The truth is a CSV file: `file,delay_samples`, or `file,start,end,delay_samples` for parts of a recording, or
    `file,time,delay_samples` for a delay that changes. Positive: the first channel hears the source later.

    Examples:

    * `qkgcc evaluate recordings --truth recordings/truth.csv -m phat -m scot --spacing 0.2`

    * `qkgcc evaluate --truth rooms/truth.csv -m phat -m checkpoints/qkgcc-0.safetensors --by-file`
    """
    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.delay.truth import Truth

    table = Truth.read(truth)
    sources = expand(files) if files else [truth.parent / name for name in table.parts]
    if unknown := [source.name for source in sources if table.name_of(source) is None]:
        raise InputError(f"no row of {truth} names {', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''}")
    speed = sound_speed(speed_of_sound, temperature)
    estimators = {
        name: DelayEstimator(name, spacing=spacing, max_delay=max_delay, hop=hop, speed_of_sound=speed)
        for name in method or [DEFAULT]
    }
    comparison = _Comparison(table, estimators, channels)
    with progress_bar() as progress:
        task = progress.add_task("", total=len(sources))
        for source in sources:
            progress.update(task, description=source.name)
            try:
                comparison.add(source)
            except InputError as error:
                if len(sources) == 1:
                    raise
                comparison.failed += 1
                progress.console.print(f"error: {error}", soft_wrap=True)
            progress.advance(task)
    if comparison.failed == len(sources):
        raise InputError("none of the recordings could be evaluated")
    _print(comparison.rows(by_file, distance, speed), format, by_file)
    if comparison.out_of_range:
        typer.echo(
            f"warning: the true delays of {quantity(comparison.out_of_range, 'recording')} are larger than the search "
            "range: give the real --spacing or --max-delay",
            err=True,
        )
    if comparison.failed:
        typer.echo(f"{comparison.failed} of {len(sources)} recordings failed", err=True)
        raise typer.Exit(1)


class _Comparison:
    """Estimated and true delays of every method, in samples at 16 kHz, on the same frames of the same recordings."""

    def __init__(self, truth: "Truth", estimators: "dict[str, DelayEstimator]", channels: tuple[int, int]) -> None:
        self._truth, self._estimators, self._channels = truth, estimators, channels
        self._delays: list[tuple[str, dict[str, tuple[np.ndarray, np.ndarray]]]] = []
        self.failed = 0
        self.out_of_range = 0
        """Recordings with a true delay that was not searched."""

    def add(self, source: Path) -> None:
        """Estimate a recording by all methods, or by none if one of them fails."""
        import numpy as np

        name = str(self._truth.name_of(source))
        found = {}
        out_of_range = []
        for method, estimator in self._estimators.items():
            answer = estimator(source, channels=self._channels)
            true = self._truth.at(name, answer.times, answer.sample_rate) / answer.sample_rate * _RATE
            known = np.isfinite(true)
            if not known.any():
                raise InputError(f"{source}: no row of the truth file covers any of its {len(known)} frames")
            found[method] = answer.delay_seconds[known] * _RATE, true[known]
            largest = (estimator.max_delay or np.abs(answer.lags).max() / answer.sample_rate) * _RATE
            out_of_range.append(bool((np.abs(true[known]) > largest + 1).any()))
        self.out_of_range += out_of_range[0]
        self._delays.append((name, found))

    def rows(self, by_file: bool, distance: float, speed: float) -> list[dict[str, object]]:
        """Scores of each method, over all recordings and perhaps of each."""
        import numpy as np

        rows: list[dict[str, object]] = []
        for name, found in self._delays if by_file else ():
            rows += [{"file": name, "method": m, **_scores(*pair, distance, speed)} for m, pair in found.items()]
        for m in self._estimators:
            estimated, true = (
                np.concatenate(one) for one in zip(*(found[m] for _, found in self._delays), strict=True)
            )
            rows.append({"file": "all", "method": m, **_scores(estimated, true, distance, speed)})
        return rows


def _scores(estimated: "np.ndarray", true: "np.ndarray", distance: float, speed: float) -> dict[str, float]:
    import numpy as np

    from qkgcc.delay import metrics
    from qkgcc.pairs.confidence import TOLERANCE

    scores = metrics.evaluate(estimated, true, sample_rate=_RATE, distance=distance, speed_of_sound=speed)
    with np.errstate(invalid="ignore"):
        close = np.abs(estimated - true) <= TOLERANCE * _RATE
    return scores | {"within_1_sample": float(100 * close.mean())}


def _print(rows: list[dict[str, object]], format: Format, by_file: bool) -> None:
    from qkgcc.core.tables import csv_text, json_text, none_if_nan

    plain = [{key: none_if_nan(value) for key, value in row.items()} for row in rows]
    columns = list(rows[0])
    if format is Format.json:
        typer.echo(json_text(plain, indent=1))
        return
    if format is Format.csv:
        typer.echo(csv_text(columns, [list(row.values()) for row in plain]), nl=False)
        return
    table = Table(title=f"errors in samples at {_RATE // 1000} kHz, shares in %", title_justify="left")
    for column in columns:
        if column != "file" or by_file:
            table.add_column(column.replace("_", " "), justify="left" if column in ("file", "method") else "right")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns if column != "file" or by_file))
    console().print(table)


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def explain(
    file: Annotated[Path, typer.Argument(help="A recording; - reads a WAV file from standard input.", readable=False)],
    plot: Annotated[Path, typer.Option(help="Where to write the picture (.png, .svg, .pdf).")],
    method: Annotated[str, typer.Option("--method", "-m", help="A pretrained or steered network.")] = DEFAULT,
    spacing: Spacing = None,
    max_delay: MaxDelay = None,
    band: Band = None,
    channels: Channels = (0, 1),
    other: Other = None,
    start: Start = None,
    end: End = None,
    overwrite: Overwrite = False,
) -> None:
    """Draw how much weight a network gives each frequency over time: its learned reliability.

    A large weight does not make a frequency right: loud noise that differs between the channels gets weight, too.

    Examples:

    * `qkgcc explain talk.wav --spacing 0.2 --plot talk-weights.png`

    * `qkgcc explain hall.flac --band 300 8000 --plot hall-weights.png`

    * `qkgcc explain array.flac --method mine.safetensors --channels 0 3 --start 10 --end 20 --plot weights.svg`
    """
    import numpy as np

    from qkgcc.audio.recording import open_audio
    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.plots import check_plotting

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
    typer.echo("25 % of the weight is below {:.0f} Hz, 50 % below {:.0f} Hz, 75 % below {:.0f} Hz".format(*quarters))
    typer.echo(f"written: {plot}")
