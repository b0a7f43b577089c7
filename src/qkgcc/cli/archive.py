"""`qkgcc estimate --out FOLDER`: an output for each of many recordings."""

import time
from pathlib import Path

import typer
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from qkgcc.archives import Outcome, Task, Work, run
from qkgcc.cli.tables import progress_bar
from qkgcc.errors import InputError
from qkgcc.interrupts import stop_requests


def archive(given: list[Task], work: Work, folder: Path, *, jobs: int, skip_existing: bool) -> None:
    """Do it with a bar, say what fails, sum up, also after Ctrl-C or SIGTERM; exit code 1 when something has failed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror or error}") from None
    left = [task for task in given if not (skip_existing and task.output.exists())]
    done: list[Outcome] = []
    begun = time.monotonic()
    columns = MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn()
    with stop_requests() as stop, progress_bar(*columns) as bar:
        shown = bar.add_task("recordings", total=len(left), rate="")
        try:
            for outcome in run(left, work, jobs, stop):
                done.append(outcome)
                bar.update(shown, advance=1, rate=_rate(done, begun))
                for text in (*outcome.warnings, *([] if outcome.error is None else [outcome.error])):
                    kind = "warning" if outcome.error is None else "error"
                    bar.console.print(f"{kind}: {text}", highlight=False, markup=False, soft_wrap=True)
            interrupted = stop()
        except KeyboardInterrupt:
            interrupted = True
    hint = "; --skip-existing goes on from here" if interrupted else ""
    typer.echo(_summary(done, given, left, begun) + hint, err=True)
    if interrupted:
        raise KeyboardInterrupt
    if any(outcome.error is not None for outcome in done):
        raise typer.Exit(1)


def _rate(done: list[Outcome], begun: float) -> str:
    seconds = max(time.monotonic() - begun, 1e-6)
    return f"{sum(outcome.seconds for outcome in done) / seconds:.0f} x real time"


def _summary(done: list[Outcome], given: list[Task], left: list[Task], begun: float) -> str:
    failed = sum(outcome.error is not None for outcome in done)
    hours = sum(outcome.seconds for outcome in done) / 3600
    parts = [f"{len(done) - failed} of {len(given)} recordings done ({hours:.2f} h, {_rate(done, begun)})"]
    if skipped := len(given) - len(left):
        parts.append(f"{skipped} were there already")
    if failed:
        parts.append(f"{failed} failed")
    return ", ".join(parts)
