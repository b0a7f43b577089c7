"""The recordings that a command is given, done one after the other: folders, pictures' names, failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import ProgressColumn

from qkgcc.cli.options import check_replaceable
from qkgcc.cli.tables import paused, progress_bar
from qkgcc.core.errors import InputError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

AUDIO_SUFFIXES = frozenset(
    {".aif", ".aifc", ".aiff", ".au", ".avr", ".caf", ".flac", ".mp3"}
    | {".oga", ".ogg", ".opus", ".rf64", ".snd", ".w64", ".wav", ".wave"}
)


def expand(files: list[Path]) -> list[Path]:
    """Files as given; folders as the recordings below them, sorted."""
    return [source for _, source in with_roots(files)]


def with_roots(files: list[Path]) -> list[tuple[Path, Path]]:
    """Each recording, after the folder that was given or that it lies in."""
    from qkgcc.core.files import is_folder

    sources: list[tuple[Path, Path]] = []
    for file in files:
        if is_folder(file):
            found = sorted(p for p in file.rglob("*") if p.suffix.lower() in AUDIO_SUFFIXES and _is_recording(p))
            if not found:
                raise InputError(f"the folder {file} holds no recordings")
            sources += [(file, source) for source in found]
        else:
            sources.append((file.parent, file))
    return sources


def _is_recording(path: Path) -> bool:
    """A file, or a link to a missing one, which is to be reported and not left out in silence."""
    return path.is_file() or (path.is_symlink() and not path.exists())


@dataclass
class Pictures:
    """Where `--plot` writes: one picture as it is named, several with the names of their recordings and pairs."""

    plot: Path | None
    overwrite: bool
    several: bool
    """Whether there are several recordings."""
    _taken: set[Path] = field(default_factory=set)

    def check(self, *, several_pairs: bool = False) -> None:
        """Before the work, not after it: raise an `InputError` if the picture cannot be written."""
        from qkgcc.plots import check_plotting

        if self.plot is not None:
            check_plotting(self.plot)
            if not self.several and not several_pairs:
                check_replaceable(self.plot, self.overwrite)

    def path(self, source: Path, pair: tuple[int, int] | None = None) -> Path:
        """The next picture, with a number where its name is taken."""
        assert self.plot is not None
        name = self.plot.stem
        if self.several:
            name += f"-{source.stem}"
        if pair is not None:
            name += f"-{pair[0]}-{pair[1]}"
        path, number = self.plot.with_name(name + self.plot.suffix), 2
        while path in self._taken:
            path, number = self.plot.with_name(f"{name}-{number}{self.plot.suffix}"), number + 1
        self._taken.add(path)
        check_replaceable(path, self.overwrite)
        return path


@dataclass
class Run:
    """The work on a command's recordings, with its progress bar."""

    progress: Progress
    task: TaskID
    number: int = 0
    """Recordings that are done."""
    first: bool = True
    """Whether nothing has been printed: a CSV table has its header once."""
    incomplete: bool = False
    """Whether a part of a recording has failed."""

    def show(self, share: float, pace: str = "") -> None:
        """Show the share of this recording that is done."""
        self.progress.update(self.task, completed=self.number + share, pace=pace)

    def print(self, write: Callable[[], object], about: str, warnings: tuple[str, ...]) -> None:
        """Print an answer by `write`, and its warnings on standard error."""
        with paused(self.progress):
            write()
            for warning in warnings:
                typer.echo(f"warning: {about}: {warning}", err=True)
        self.first = False

    def report(self, error: object) -> None:
        """Print an error that does not end the command."""
        with paused(self.progress):
            typer.echo(f"error: {error}", err=True)


def for_each(sources: list[Path], work: Callable[[Path, Run], None], *columns: ProgressColumn) -> None:
    """Call `work` with every recording. One of several that fails is reported and skipped: exit code 1."""
    failed = 0
    with progress_bar(*columns) as progress:
        run = Run(progress, progress.add_task("", total=float(len(sources)), pace=""))
        for run.number, source in enumerate(sources):
            progress.update(run.task, description=source.name, completed=float(run.number))
            try:
                work(source, run)
            except InputError as error:
                if len(sources) == 1:
                    raise
                failed += 1
                run.report(error)
    if failed:
        typer.echo(f"{failed} of {len(sources)} recordings failed", err=True)
    if failed or run.incomplete:
        raise typer.Exit(1)
