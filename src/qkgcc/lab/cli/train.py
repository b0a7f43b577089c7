"""`qkgcc train`: one network on the paper's distribution, or on a narrower one."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from qkgcc.cli.tables import console, progress_bar, text_column
from qkgcc.core.errors import MissingExtraError
from qkgcc.core.interrupts import INTERRUPTED, stop_requests


def train(
    config: Annotated[
        str | None,
        typer.Argument(help="Name of a training, or the path of a TOML file; omit to list all training names."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/NAME-SEED).")] = None,
    bank: Annotated[
        list[Path] | None,
        typer.Option(help="Bank of utterances with train and validation speakers; the general law takes several."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda where there is one).")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed (weights, data order, channel swaps).")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, such as epochs=5 or options.radius=4.")
    ] = None,
    stop_after: Annotated[
        float | None, typer.Option(min=1, help="Save and stop after this many seconds; the same command continues.")
    ] = None,
) -> None:
    """Train a network. An interrupted run continues when the same command is started again.

    Several GPUs: `torchrun --nproc-per-node 4 -m qkgcc train ...`.

    Examples:

    * `qkgcc train qkgcc --bank banks/test-clean`

    * `qkgcc train qkgcc-b16 --seed 1 --bank banks/test-clean --device cuda --set precision=bf16`

    * `qkgcc train mine.toml --out runs/mine --bank banks/test-clean --stop-after 3000`
    """
    from qkgcc.lab.corpora.banks import Bank
    from qkgcc.lab.training import config as configs

    if config is None:
        typer.echo("trainings: " + ", ".join(configs.names()))
        return
    try:
        from qkgcc.lab.training import distributed, loop
    except ImportError:
        raise MissingExtraError("training needs torch: pip install 'qkgcc[train]'") from None

    changes = [*(change or []), *([] if seed is None else [f"seed={seed}"])]
    settings = configs.load(config, changes)
    folder = out or Path("runs") / f"{settings.name}-{settings.seed}"
    banks = [Bank.load(path) for path in bank or []]
    place = distributed.join(device)
    try:
        with progress_bar(
            BarColumn(),
            MofNCompleteColumn(),
            text_column("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        ) as bar:
            pairs = settings.pairs + settings.validation_pairs
            task = bar.add_task("rooms", total=pairs, note="")
            trainer = loop.Trainer(settings, folder, banks, place, progress=lambda n: bar.advance(task, n))
            bar.update(task, visible=False)
            steps = bar.add_task("steps", total=settings.steps, completed=trainer.step, note="")

            def show(step: int) -> None:
                last = trainer.history[-1] if trainer.history else None
                note = "" if last is None else f"validation: loss {last['loss']:.3f}, Acc@10cm {last['acc10cm']:.1f}"
                bar.update(steps, completed=step, note=note)

            with stop_requests() as stop:  # a job that is told to end saves its state, as one that is interrupted
                best = trainer.run(progress=show, stop_after=stop_after, stop=stop)
                interrupted = best is None and stop()
        if distributed.first():
            _report(trainer.history, best, folder, settings.epochs)
        distributed.wait()
        if interrupted:
            raise typer.Exit(INTERRUPTED)
    finally:
        distributed.leave()


def _report(history: list[dict[str, Any]], best: dict[str, Any] | None, folder: Path, epochs: int) -> None:
    if history:
        table = Table(title=f"{folder}: validation speakers", title_justify="left")
        for heading in ("epoch", "train loss", "loss", "RMSE", "MAE", "Acc@10cm", "seconds"):
            table.add_column(heading, justify="right")
        shown = {0, len(history) - 1, *(i for i, row in enumerate(history) if row is best), *range(0, len(history), 5)}
        for i in sorted(shown):
            row = history[i]
            cells = (f"{row[key]:.3f}" for key in ("train_loss", "loss", "rmse", "mae"))
            mark = " (best)" if row is best else ""
            table.add_row(f"{row['epoch']}{mark}", *cells, f"{row['acc10cm']:.2f}", f"{row['seconds']:.0f}")
        console().print(table)
    if best is None:
        typer.echo(f"stopped after {len(history)} of {epochs} epochs; the same command goes on")
    else:
        typer.echo(f"checkpoints: {folder / 'best.safetensors'}, {folder / 'last.safetensors'}")
