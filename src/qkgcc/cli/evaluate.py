"""`qkgcc evaluate`: how good methods are on a user's own labelled recordings."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from qkgcc.cli.estimate import Format, expand
from qkgcc.cli.options import MaxDelay, Spacing, SpeedOfSound, Temperature, sound_speed
from qkgcc.cli.tables import console, progress_bar
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.tables import csv_text, json_text, none_if_nan
from qkgcc.delay import metrics
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.truth import Truth
from qkgcc.network.registry import DEFAULT
from qkgcc.pairs.confidence import TOLERANCE

_RATE = 16000  # errors are shown in samples at the rate of the published benchmark


def evaluate(
    truth: Annotated[
        Path, typer.Option(help="CSV with file, delay_samples (or delay_seconds), and start, end or time.")
    ],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Recordings or folders of them (default: all that the truth names).")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", help="Of `qkgcc methods`, or a checkpoint; may be repeated.")
    ] = None,
    channels: Annotated[tuple[int, int], typer.Option(help="The two channels, counted from 0.")] = (0, 1),
    spacing: Spacing = None,
    max_delay: MaxDelay = None,
    hop: Annotated[float, typer.Option(help="Seconds from one frame to the next.")] = 0.064,
    distance: Annotated[float, typer.Option(min=0.001, help="Metres of path difference that count as right.")] = 0.10,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    by_file: Annotated[bool, typer.Option("--by-file", help="A row for each recording, too.")] = False,
    format: Annotated[Format, typer.Option(help="What to print.")] = Format.table,
) -> None:
    """Compare methods with the truth, frame by frame. Frames for which the truth says nothing are left out.

    The truth is a CSV file: `file,delay_samples`, or `file,start,end,delay_samples` for parts of a recording, or
    `file,time,delay_samples` for a delay that changes. Positive: the first channel hears the source later.

    Examples:

    * `qkgcc evaluate recordings --truth recordings/truth.csv -m phat -m scot --spacing 0.2`

    * `qkgcc evaluate --truth rooms/truth.csv -m phat -m checkpoints/qkgcc-0.safetensors --by-file`
    """
    table = Truth.read(truth)
    sources = expand(files) if files else [truth.parent / name for name in table.parts]
    names = [table.name_of(source) for source in sources]
    if unknown := [source.name for source, name in zip(sources, names, strict=True) if name is None]:
        raise InputError(f"{truth} says nothing of {', '.join(unknown[:3])}{' ...' if len(unknown) > 3 else ''}")
    speed = sound_speed(speed_of_sound, temperature)
    methods = method or [DEFAULT]
    estimators = [
        DelayEstimator(m, spacing=spacing, max_delay=max_delay, hop=hop, speed_of_sound=speed) for m in methods
    ]
    rows: list[dict[str, object]] = []
    failed = beyond = 0
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {m: [] for m in methods}
    with progress_bar() as progress:
        task = progress.add_task("", total=len(sources))
        for source, name in zip(sources, names, strict=True):
            progress.update(task, description=source.name)
            try:
                pairs = []
                for m, estimator in zip(methods, estimators, strict=True):
                    answer = estimator(source, channels=channels)
                    true = table.at(str(name), answer.times, answer.sample_rate) / answer.sample_rate * _RATE
                    known = np.isfinite(true)
                    if not known.any():
                        raise InputError(f"{source}: the truth says nothing of any of its {len(known)} frames")
                    pairs.append((answer.delay_seconds[known] * _RATE, true[known]))
                    furthest = (estimator.max_delay or np.abs(answer.lags).max() / answer.sample_rate) * _RATE
                    beyond += m == methods[0] and bool((np.abs(true[known]) > furthest + 1).any())
            except InputError as error:
                if len(sources) == 1:
                    raise
                failed += 1
                progress.console.print(f"error: {error}", soft_wrap=True)
            else:  # all methods or none: they are compared on the same frames
                for m, pair in zip(methods, pairs, strict=True):
                    found[m].append(pair)
                    if by_file:
                        rows.append({"file": str(name), "method": m, **_scores(*pair, distance, speed)})
            progress.advance(task)
    if failed == len(sources):
        raise InputError("none of the recordings could be evaluated")
    for m in methods:
        estimated, true = (np.concatenate(column) for column in zip(*found[m], strict=True))
        rows.append({"file": "all", "method": m, **_scores(estimated, true, distance, speed)})
    _print(rows, format, by_file)
    if beyond:
        typer.echo(
            f"warning: the true delays of {quantity(beyond, 'recording')} are beyond the largest that is searched: "
            "give the real --spacing or --max-delay",
            err=True,
        )
    if failed:
        typer.echo(f"{failed} of {len(sources)} recordings failed", err=True)
        raise typer.Exit(1)


def _scores(estimated: np.ndarray, true: np.ndarray, distance: float, speed: float) -> dict[str, float]:
    scores = metrics.evaluate(estimated, true, sample_rate=_RATE, distance=distance, speed_of_sound=speed)
    with np.errstate(invalid="ignore"):
        close = np.abs(estimated - true) <= TOLERANCE * _RATE
    return scores | {"within_1_sample": float(100 * close.mean())}


def _print(rows: list[dict[str, object]], format: Format, by_file: bool) -> None:
    if format is Format.json:
        typer.echo(json_text([{key: none_if_nan(value) for key, value in row.items()} for row in rows], indent=1))
        return
    columns = list(rows[0])
    if format is Format.csv:
        typer.echo(csv_text(columns, [[none_if_nan(value) for value in row.values()] for row in rows]), nl=False)
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
