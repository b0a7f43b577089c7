"""`qkgcc batch`: a file of delays for each recording in folders."""

import functools
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import TimeRemainingColumn

from qkgcc.cli.inputs import with_roots
from qkgcc.cli.options import (
    Channels,
    End,
    Overwrite,
    Pairs,
    Start,
    check_replaceable,
    delay_options,
    select_pairs,
    with_estimator_options,
)
from qkgcc.cli.tables import Pace, progress_bar, text_column
from qkgcc.core.errors import InputError

if TYPE_CHECKING:
    from qkgcc.batch.archives import Outcome, Task


class Output(StrEnum):
    csv = "csv"
    json = "json"


@with_estimator_options
def batch(
    files: Annotated[list[Path], typer.Argument(help="Folders of recordings, or recordings.", readable=False)],
    options: dict[str, Any],
    out: Annotated[Path, typer.Option(help="Folder for the outputs: one CSV (or JSON) file for each recording.")],
    channels: Channels = (0, 1),
    pairs: Pairs = None,
    start: Start = None,
    end: End = None,
    format: Annotated[Output, typer.Option(help="What to write.")] = Output.csv,
    curve: Annotated[bool, typer.Option(help="Include lags and curves in JSON.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Recordings at a time.")] = 1,
    skip_existing: Annotated[
        bool,
        typer.Option(
            "--skip-existing",
            help="Skip recordings whose output exists, unless it is empty or older than the recording. Stops if the "
            "folder holds outputs made with other options.",
        ),
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Estimate the delays of many recordings, and write a file for each.

    Damaged recordings are reported and skipped (exit code 1). After an interruption, the same command with
    `--skip-existing` does the rest.

    Examples:

    * `qkgcc batch recordings --out delays --jobs 8 --skip-existing`

    * `qkgcc batch meetings lectures --out delays --pairs all --format json`
    """
    from qkgcc.batch.archives import Work, options_of, tasks
    from qkgcc.core.interrupts import stop_requests
    from qkgcc.delay.estimator import DelayEstimator

    if Path("-") in files:
        raise InputError("batch reads no standard input: qkgcc estimate - prints the delays of a file that comes there")
    given = tasks(with_roots(files), out, format.value)
    work = Work(
        delay_options(options),
        format.value,
        curve,
        functools.partial(select_pairs, channels=channels, pairs=pairs),
        start,
        end,
    )
    DelayEstimator(**work.estimator)  # wrong options must not be remembered
    depends = options_of(work, channels=None if pairs else channels, pairs=pairs)
    missing = _missing(given, out, format.value, skip_existing, overwrite, depends)
    done: list[Outcome] = []
    pace = Pace()
    with stop_requests() as stop:
        interrupted = _run(missing, work, jobs, stop, done, pace)
    hint = "; --skip-existing goes on from here" if interrupted else ""
    typer.echo(_summary(done, given, missing, pace) + hint, err=True)
    if interrupted:
        raise KeyboardInterrupt
    if any(outcome.error is not None for outcome in done):
        raise typer.Exit(1)


def _missing(
    given: "list[Task]", folder: Path, format: str, skip_existing: bool, overwrite: bool, options: Mapping[str, Any]
) -> "list[Task]":
    """The outputs to be made, in a folder that is found to be writable before the work and not after it."""
    from qkgcc.batch.archives import OutputMemory
    from qkgcc.core.files import check_writable, display_name, make_folder
    from qkgcc.delay.result import CSV_COLUMNS

    begins = {"csv": re.compile(",".join(CSV_COLUMNS).encode()), "json": re.compile(rb'\{"source": "')}
    make_folder(folder)
    memory = OutputMemory(folder, format)
    missing = memory.unfinished(given, options) if skip_existing else given
    for task in missing:
        check_replaceable(task.output, overwrite, begins[format].match)
    for parent in sorted({task.output.parent for task in missing} | {folder}):
        if parent.is_dir():
            check_writable(parent)
    if skip_existing and len(missing) < len(given) and not memory.exists:
        typer.echo(
            f"warning: {display_name(folder)} does not say with what options its outputs were made: qkgcc takes them "
            "for outputs of these options",
            err=True,
        )
    memory.remember(options, skipping=skip_existing)
    return missing


def _run(missing: "list[Task]", work: Any, jobs: int, stop: Any, done: "list[Outcome]", pace: Pace) -> bool:
    """Make the outputs with a progress bar, and add what became of them to `done`. Whether it was interrupted."""
    from qkgcc.batch.archives import Share, Task, run

    # The lengths of recordings are known when they are opened; their bytes, at once.
    sizes = {task: _bytes(task.source) for task in missing}
    shares: dict[Task, float] = {}
    with progress_bar(text_column("{task.fields[state]}"), TimeRemainingColumn()) as bar:
        line = bar.add_task("recordings", total=sum(sizes.values()), state="")

        def show() -> None:
            completed = sum(sizes[task] * share for task, share in shares.items())
            bar.update(line, completed=completed, state=f"{len(done)}/{len(missing)}, {pace.hours:.2f} h, {pace}")

        def proceed(task: Task, share: Share) -> None:
            shares[task] = share.done
            pace.update(task, share.seconds, share.pairs)
            show()

        show()
        try:
            for outcome in run(missing, work, jobs, stop, proceed):
                done.append(outcome)
                shares[outcome.task] = 1.0
                pace.finish(outcome.task, outcome.seconds, outcome.pairs)
                show()
                for text in (*outcome.warnings, *([] if outcome.error is None else [outcome.error])):
                    kind = "warning" if outcome.error is None else "error"
                    bar.console.print(f"{kind}: {text}", soft_wrap=True)
            return bool(stop())
        except KeyboardInterrupt:
            return True


def _bytes(source: Path) -> int:
    try:
        return max(1, source.stat().st_size)
    except OSError:
        return 1  # a broken link: the work will report it


def _summary(done: "list[Outcome]", given: "list[Task]", missing: "list[Task]", pace: Pace) -> str:
    failed = sum(outcome.error is not None for outcome in done)
    hours = sum(outcome.seconds for outcome in done) / 3600
    parts = [f"{len(done) - failed} of {len(given)} recordings done ({hours:.2f} h, {pace})"]
    if skipped := len(given) - len(missing):
        parts.append(f"{skipped} skipped, their outputs exist")
    if failed:
        parts.append(f"{failed} failed")
    return ", ".join(parts)
