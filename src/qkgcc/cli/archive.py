"""`qkgcc estimate --out FOLDER`: an output for each of many recordings."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from rich.progress import TimeRemainingColumn

from qkgcc.batch.archives import Outcome, OutputMemory, Share, Task, Work, run
from qkgcc.cli.overwriting import check_replaceable
from qkgcc.cli.pace import Pace
from qkgcc.cli.tables import progress_bar, text_column
from qkgcc.core.files import check_writable, display_name, make_folder
from qkgcc.core.interrupts import stop_requests
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.result import CSV_COLUMNS

_BEGIN = {"csv": re.compile(",".join(CSV_COLUMNS).encode()), "json": re.compile(rb'\{"source": "')}
"""How outputs begin."""


def archive(
    given: list[Task],
    work: Work,
    folder: Path,
    *,
    jobs: int,
    skip_existing: bool,
    overwrite: bool,
    options: Mapping[str, Any],
) -> None:
    """Do it with a bar, say what fails, sum up, also after Ctrl-C or SIGTERM; exit code 1 when something has failed.

    Args:
        options: what the outputs depend on, see `qkgcc.batch.archives`.
    """
    DelayEstimator(**work.estimator)  # options that cannot be are not to be remembered
    left = _prepared(given, folder, work.format, skip_existing, overwrite, options)
    done: list[Outcome] = []
    pace = Pace()
    with stop_requests() as stop, progress_bar(text_column("{task.fields[state]}"), TimeRemainingColumn()) as bar:
        # How long recordings are is known when they are opened; how many bytes they have, at once and before.
        sizes = {task: _size(task.source) for task in left}
        shares: dict[Task, float] = {}
        line = bar.add_task("recordings", total=sum(sizes.values()), state="")

        def show() -> None:
            completed = sum(sizes[task] * share for task, share in shares.items())
            state = f"{len(done)}/{len(left)}, {pace.hours:.2f} h, {pace}"
            bar.update(line, completed=completed, state=state)

        def proceeds(task: Task, share: Share) -> None:
            shares[task] = share.done
            pace.proceeds(task, share.seconds, share.pairs)
            show()

        show()
        try:
            for outcome in run(left, work, jobs, stop, proceeds):
                done.append(outcome)
                shares[outcome.task] = 1.0
                pace.done(outcome.task, outcome.seconds, outcome.pairs)
                show()
                for text in (*outcome.warnings, *([] if outcome.error is None else [outcome.error])):
                    kind = "warning" if outcome.error is None else "error"
                    bar.console.print(f"{kind}: {text}", soft_wrap=True)
            interrupted = stop()
        except KeyboardInterrupt:
            interrupted = True
    hint = "; --skip-existing goes on from here" if interrupted else ""
    typer.echo(_summary(done, given, left, pace) + hint, err=True)
    if interrupted:
        raise KeyboardInterrupt
    if any(outcome.error is not None for outcome in done):
        raise typer.Exit(1)


def _prepared(
    given: list[Task], folder: Path, format: str, skip_existing: bool, overwrite: bool, options: Mapping[str, Any]
) -> list[Task]:
    """The tasks that are left, in a folder that can be written to: found out before the work, not after it."""
    make_folder(folder)
    memory = OutputMemory(folder, format)
    left = memory.unfinished(given, options) if skip_existing else given
    for task in left:
        check_replaceable(task.output, overwrite, _BEGIN[format].match)
    for parent in sorted({task.output.parent for task in left} | {folder}):
        if parent.is_dir():
            check_writable(parent)
    if skip_existing and len(left) < len(given) and not memory.exists:
        typer.echo(
            f"warning: {display_name(folder)} does not say with what options its outputs were made: they are taken for "
            "these options' own",
            err=True,
        )
    memory.remember(options, skipping=skip_existing)
    return left


def _size(source: Path) -> int:
    try:
        return max(1, source.stat().st_size)
    except OSError:
        return 1  # a link to nothing: its failure is an outcome


def _summary(done: list[Outcome], given: list[Task], left: list[Task], pace: Pace) -> str:
    failed = sum(outcome.error is not None for outcome in done)
    hours = sum(outcome.seconds for outcome in done) / 3600
    parts = [f"{len(done) - failed} of {len(given)} recordings done ({hours:.2f} h, {pace})"]
    if skipped := len(given) - len(left):
        parts.append(f"{skipped} were there already")
    if failed:
        parts.append(f"{failed} failed")
    return ", ".join(parts)
