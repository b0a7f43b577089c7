"""`qkgcc reproduce`: the paper's tables and figures."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.progress import Progress
from rich.table import Table

from qkgcc.cli.options import Overwrite, check_replaceable
from qkgcc.cli.tables import console, progress_bar
from qkgcc.core.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from qkgcc.lab.study.locators import Follower, Locator
    from qkgcc.lab.study.results import ReproductionRun

    Method = TypeVar("Method", Locator, Follower)


class Item(StrEnum):
    TABLE1 = "table1"
    TABLE2 = "table2"
    TABLE3 = "table3"
    VARIANTS = "variants"
    FIG1 = "fig1"
    FIG2 = "fig2"
    FIG3 = "fig3"
    GENERAL = "general"
    CALIBRATION = "calibration"
    ARRAYS = "arrays"
    TRACKS = "tracks"


def reproduce(
    item: Annotated[list[Item], typer.Argument(help="What to reproduce.", show_choices=True)],
    from_checkpoints: Annotated[
        bool, typer.Option("--from-checkpoints", help="Evaluate the kept checkpoints again instead of training.")
    ] = False,
    bank: Annotated[
        list[Path] | None, typer.Option(help="Banks: test-clean (training, paper-test), noise, music (table2).")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these rows, such as qkgcc or qkgcc-b16.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda where there is one).")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine that rendered the benchmark: cpu or gpu.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("results"),
    checkpoints: Annotated[Path, typer.Option(help="Folder of the kept checkpoints.")] = Path("checkpoints"),
    runs: Annotated[Path, typer.Option(help="Folder of the trainings.")] = Path("runs"),
    figures: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("docs/figures"),
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of the corpora with real recordings (general, arrays).", envvar="QKGCC_DATA"),
    ] = None,
    scenes: Annotated[int, typer.Option(min=1, max=40, help="Scenes of each kind (arrays, tracks).")] = 40,
    cache: Annotated[Path | None, typer.Option(help="Where benchmarks are (default: the user's cache folder).")] = None,
    stop_after: Annotated[
        float | None, typer.Option(min=1, help="Save and stop after this many seconds; the same command continues.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Reproduce tables and figures of the paper. Existing rows are kept, so a table grows row by row.

    Examples:

    * `qkgcc reproduce table1 --bank banks/test-clean`

    * `qkgcc reproduce table1 --from-checkpoints --method qkgcc --bank banks/test-clean`

    * `qkgcc reproduce table2 --bank banks/noise --bank banks/music`

    * `qkgcc reproduce fig2 fig3 --bank banks/test-clean`

    * `qkgcc reproduce general --bank banks/test-clean --data ~/corpora`

    * `qkgcc reproduce arrays --bank banks/test-clean --data ~/corpora --scenes 8`

    * `qkgcc reproduce tracks --bank banks/test-clean --scenes 8`
    """
    try:
        from qkgcc.lab.study import figures as pictures
        from qkgcc.lab.study import paper_tables
        from qkgcc.lab.study.reproduce import fill
        from qkgcc.lab.study.results import ReproductionRun
    except ImportError:
        raise MissingExtraError("the paper's tables need torch: pip install 'qkgcc[train]'") from None
    from qkgcc.core.files import display_name
    from qkgcc.lab.corpora.banks import Bank
    from qkgcc.lab.scenes.engines import ENGINES
    from qkgcc.nets.checkpoint import checked_device

    if engine not in (None, *ENGINES):
        raise InputError(f"unknown engine {engine!r}; known are {', '.join(ENGINES)}")
    bar = progress_bar()
    run = ReproductionRun(
        results=results,
        checkpoints=checkpoints,
        runs=runs,
        banks=[Bank.load(path) for path in bank or []],
        device=checked_device(device),
        engine=engine,
        cache=cache,
        data=data,
        scenes=scenes,
        from_checkpoints=from_checkpoints,
        methods=method or [],
        seeds=seed or [],
        stop_after=stop_after,
        say=lambda text: typer.echo(text, err=True),
        track=lambda what, total: _bar(bar, what, total),
    )
    try:
        for wanted in item:
            if wanted.value in paper_tables.TABLES:
                table = paper_tables.TABLES[wanted.value]
                _show(paper_tables.table_lines(table, fill(table, run)), table.title)
            elif wanted is Item.GENERAL:
                _compare_general(run)
            elif wanted is Item.ARRAYS:
                _compare_arrays(run)
            elif wanted is Item.TRACKS:
                _compare_tracks(run)
            else:
                for suffix in (".png", ".svg"):
                    check_replaceable(figures / f"{wanted.value}{suffix}", overwrite)
                for path in pictures.draw(wanted.value, run, figures):
                    typer.echo(f"picture: {display_name(path)}")
    finally:
        bar.stop()


def _compare_general(run: "ReproductionRun") -> None:
    """The models for any pair beside the others, on every set whose frames are at hand."""
    from qkgcc.lab.study import general
    from qkgcc.network.registry import PRETRAINED, pretrained

    files = [run.checkpoints / f"{name}-0.safetensors" for name in ("ngcc", "qkgcc")]
    published = [path for path in files if path.exists()]
    there = general.candidates([pretrained(name) for name in sorted(PRETRAINED)], published)
    general.fill(run, [method for method in there if not run.methods or method.name in run.methods])


def _compare_arrays(run: "ReproductionRun") -> None:
    """What finds directions and positions, on the first scenes of each kind of `array-test` and on real recordings."""
    from qkgcc.lab.scenes.array_scenes import ARRAYS
    from qkgcc.lab.study import array_report, arrays, locators

    rows = arrays.fill(run, _chosen(run, [*locators.ours(), *locators.peers()], "arrays"))
    for name in ARRAYS:
        if array_report.methods(rows, name):
            _show(array_report.part_lines(rows, name), f"{name}: median error, share within the limit")
    for locator in locators.ours()[:1]:
        _show(array_report.difference_lines(rows, locator.name), "Against the best other method of each part")
    if run.data is not None:
        _show(array_report.respeaker_lines(rows), "Real recordings, ReSpeaker")


def _compare_tracks(run: "ReproductionRun") -> None:
    """What follows sources, on the first scenes of each kind of `array-test` with a compact array."""
    from qkgcc.lab.study import array_report, arrays, locators

    rows = arrays.fill_tracks(run, _chosen(run, locators.followers(), "tracks"))
    _show(
        array_report.track_lines(rows), "Talker time within 10 degrees, changes of id a minute, false tracks a minute"
    )


def _chosen(run: "ReproductionRun", there: "list[Method]", what: str) -> "list[Method]":
    """Those that were asked for by name, or all."""
    if unknown := set(run.methods) - {method.name for method in there}:
        known = ", ".join(method.name for method in there)
        raise InputError(f"there is no method {', '.join(sorted(unknown))} for {what}; there are {known}")
    return [method for method in there if not run.methods or method.name in run.methods]


def _bar(bar: Progress, what: str, total: int) -> Callable[[int], object]:
    """A bar on the screen until it is full."""
    for old in bar.task_ids:
        bar.remove_task(old)
    task = bar.add_task(what, total=total)
    bar.start()

    def show(done: int) -> None:
        bar.update(task, completed=done)
        if done >= total:
            bar.stop()

    return show


def _show(rows: list[list[str]], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if i == 0 else "right", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    screen = console()
    if not screen.is_terminal:
        screen.width = 140  # a file has room for a whole row
    screen.print(table)
