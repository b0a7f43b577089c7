"""`qkgcc data`: get corpora, make banks of them, render the frozen benchmarks."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import DownloadColumn, TransferSpeedColumn
from rich.table import Table

from qkgcc.cli.options import Overwrite, check_replaceable
from qkgcc.cli.tables import console, progress_bar
from qkgcc.core.errors import InputError

app = typer.Typer(
    help="Corpora: download them, and pack them into banks for training and the benchmark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_BANK = re.compile(rb'\{\s*"format": \d+,\s*"set": "')
"""How the index of a bank begins."""

SetName = Annotated[str, typer.Option("--set", metavar="SET", help="One of test-clean, dev-clean, music, noise.")]
Data = Annotated[Path | None, typer.Option(help="Folder of the corpora (default: $QKGCC_DATA).")]


@app.command()
def download(
    set_name: SetName,
    out: Annotated[Path, typer.Option(help="Folder for the corpora; created if missing.")],
) -> None:
    """Download a corpus from openslr.org, check it and unpack it.

    test-clean and dev-clean are LibriSpeech (0.35 GB each); music and noise are both MUSAN (11 GB). A download that was
    interrupted continues where it stopped.

    Examples:

    * `qkgcc data download --set test-clean --out ~/corpora`

    * `qkgcc data download --set noise --out ~/corpora`
    """
    from qkgcc.lab.corpora.download import archive_of
    from qkgcc.lab.corpora.download import download as get

    archive = archive_of(set_name)
    place = out / archive.into / archive.holds
    if place.is_dir():
        typer.echo(f"{place} is there already")
        return
    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(archive.file)

        def show(stage: str, done: int, total: int) -> None:
            bar.update(task, description=f"{stage} {archive.file}", completed=done, total=total)

        get(archive, out, show)
    typer.echo(f"{place} (licence: {archive.licence})")
    typer.echo(f"now: export QKGCC_DATA={out.resolve()}")


@app.command()
def bank(
    set_name: SetName,
    out: Annotated[Path, typer.Option(help="Name of the bank: FILE.audio and FILE.json are written.")],
    seconds: Annotated[
        float | None,
        typer.Option(help="Seconds kept of an utterance (default: 3 s of speech, all of music and noise)."),
    ] = None,
    whole_split: Annotated[
        str, typer.Option(help="Split to keep whole and lossless: train, validation, test or none.")
    ] = "test",
    data: Data = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Threads (default: one per core).")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Pack a set into a bank: silence removed, encoded, in one file with an index.

    Utterances of 2 s or less without silence are left out. The same set and options give the same bytes.

    Examples:

    * `qkgcc data bank --set test-clean --out banks/test-clean`

    * `qkgcc data bank --set noise --out banks/noise --data ~/corpora`

    * `qkgcc data bank --set music --out banks/music --seconds 10 --whole-split none`
    """
    from qkgcc.core.files import make_folder
    from qkgcc.lab.corpora.banks import bank_files
    from qkgcc.lab.corpora.packing import build, recipe_for
    from qkgcc.lab.corpora.sets import data_root

    audio, index = bank_files(out)
    check_replaceable(index, overwrite, _BANK.match)
    if not index.exists():
        check_replaceable(audio, overwrite)
    recipe = recipe_for(set_name, seconds, None if whole_split == "none" else whole_split)
    root = data_root(data)
    make_folder(out.parent)  # before the work, not after it
    with progress_bar() as bar:
        task = bar.add_task(f"packing {set_name}")
        made = build(
            set_name, root, out, recipe, jobs=jobs, progress=lambda n, all: bar.update(task, completed=n, total=all)
        )
    table = Table(title=f"{made.path}: {made.path.stat().st_size / 1e6:.1f} MB", title_justify="left")
    table.add_column("split")
    for heading in ("utterances", "groups", "left out", "minutes kept", "minutes whole"):
        table.add_column(heading, justify="right")
    for split in dict.fromkeys(made.splits.tolist()):
        chosen = made.select(split=split)
        table.add_row(
            split,
            str(len(chosen)),
            str(len(set(made.groups[chosen].tolist()))),
            str(sum(row["split"] == split for row in made.left_out)),
            f"{made.samples[chosen].sum() / made.sample_rate / 60:.1f}",
            f"{made.whole_samples[chosen].sum() / made.sample_rate / 60:.1f}",
        )
    table.caption = f"left out: 2 s or less without silence. hash {made.hash[:16]}"
    table.caption_justify = "left"
    console().print(table)


@app.command()
def benchmark(
    name: Annotated[str, typer.Argument(help="paper-test, paper-music, paper-noise, general-test or array-test.")],
    bank: Annotated[
        list[Path],
        typer.Option(help="Bank to render from: test-clean, music or noise; general-test needs all three."),
    ],
    engine: Annotated[str | None, typer.Option(help="cpu or gpu (default: the fastest that this machine has).")] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for the frames (default: the user's cache folder).")
    ] = None,
) -> None:
    """Render a frozen benchmark into the cache and check it against its fingerprints.

    An interrupted run goes on where it stopped. What is in the cache already is checked, and rendered again if damaged.

    Examples:

    * `qkgcc data benchmark paper-test --bank banks/test-clean`

    * `qkgcc data benchmark general-test --bank banks/test-clean --bank banks/music --bank banks/noise`

    * `qkgcc data benchmark array-test --bank banks/test-clean`
    """
    from qkgcc.lab.corpora.banks import Bank
    from qkgcc.lab.frozen.array_set import ArrayBenchmark
    from qkgcc.lab.frozen.benchmark import FrozenBenchmark
    from qkgcc.lab.frozen.general_set import GeneralBenchmark
    from qkgcc.lab.frozen.paper_sets import PaperBenchmark
    from qkgcc.lab.scenes.engines import best_engine, check_engine

    chosen = engine or best_engine()
    check_engine(chosen)
    banks = [Bank.load(path) for path in bank]
    kinds: tuple[type[FrozenBenchmark], ...] = (PaperBenchmark, GeneralBenchmark, ArrayBenchmark)
    known = {each: kind for kind in kinds for each in kind.NAMES}
    if name not in known:
        raise InputError(f"there is no benchmark {name!r}; there are {', '.join(known)}")
    made = known[name].load(name)
    with progress_bar() as bar:
        task = bar.add_task(f"{name}, {chosen} engine", total=made.steps)
        off = made.render(banks, chosen, cache=cache, progress=lambda: bar.advance(task))
    equal = sum(value == 0 for value in off.values())
    typer.echo(
        f"{made.folder(chosen, cache)}: {len(off)} parts rendered, {equal} of them bit-equal; "
        f"{len(made.fingerprints) - len(off)} were there already and whole"
    )
    if equal < len(off):
        typer.echo(f"largest difference of the others: {max(off.values()):.1e} of their level")
