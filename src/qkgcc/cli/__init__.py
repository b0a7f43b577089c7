"""The command line.

For recordings: `qkgcc estimate`, `batch`, `listen`, `locate`, `calibrate`, `doctor`, `array`, `methods`, `demo`,
`evaluate`, `explain` and `export`; for making models: `simulate`, `data`, `train` and `reproduce`. Modules of commands
import at their top only what `qkgcc --help` needs.

Exit codes: 0 done; 1 done, but some of several inputs failed (or `doctor` found something, or `calibrate` could not
determine something); 2 nothing could be done; 130 interrupted.
"""

import io
import os
import sys
from typing import Annotated

import typer

from qkgcc.cli import batch, calibrate, estimate, evaluate, export, listen, locate, tools
from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.interrupts import INTERRUPTED
from qkgcc.lab.cli import data, reproduce, simulate, train

_ABOUT = "Time delay between two microphones, and directions of sources with more."
_COMMANDS = {
    "Delays of two microphones": (estimate.estimate, batch.batch, listen.listen),
    "Directions and positions with an array": (locate.locate, tools.array),
    "Recordings and methods": (
        tools.doctor,
        tools.methods,
        tools.demo,
        evaluate.evaluate,
        evaluate.explain,
        export.export,
    ),
    "Lab: rooms, corpora, trainings, the paper's tables": (
        simulate.simulate,
        train.train,
        reproduce.reproduce,
    ),
}
*_, _RECORDINGS, _LAB = _COMMANDS
_MOVED = {
    "--out": "batch",
    "--jobs": "batch",
    "-j": "batch",
    "--skip-existing": "batch",
    "--raw": "listen",
    "--raw-channels": "listen",
    "--sample-rate": "listen",
    "--lookahead": "listen",
}
"""Options that `estimate` had, and the command that has them."""
_MOVED_TO = {
    "batch": "qkgcc batch FOLDER --out OUT; one file as a table: --format csv > FILE.csv",
    "listen": "qkgcc listen - --raw s16le --sample-rate 48000",
}

app = typer.Typer(
    help=_ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.add_typer(calibrate.app, name="calibrate", rich_help_panel=_RECORDINGS)
app.add_typer(data.app, name="data", rich_help_panel=_LAB)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"qkgcc {version('qkgcc')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Time delay between two microphones, and directions of sources with more."""


def _replace_closed_streams() -> None:
    """Open streams that the shell closed (`>&-`), or the next file that is opened takes their place.

    Writing to standard output then fails, as it should; standard error is dropped.
    """
    if sys.stdout is None:
        null = open(os.open(os.devnull, os.O_RDONLY), "wb", buffering=0)  # noqa: SIM115, PTH123
        sys.stdout = io.TextIOWrapper(null, encoding="utf-8", write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _check_moved(arguments: list[str]) -> None:
    """Name the new command where an option of `estimate` is typed that has moved there."""
    if arguments[:1] != ["estimate"]:
        return
    for word in arguments[1:]:
        if word == "--":
            return
        option = word.split("=")[0]
        if option in _MOVED:
            raise InputError(f"estimate has no {option}: use {_MOVED_TO[_MOVED[option]]}")


def main() -> None:
    """Run the command line. What a user can fix is one sentence, not a traceback."""
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error shows such letters as numbers of its own accord
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters is no reason to stop
    try:
        _check_moved(sys.argv[1:])
        app()
    except (InputError, MissingExtraError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        # The output cannot be written: a full disk. (A closed pipe is click's to handle.)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - what is left in the buffer cannot be written either
        typer.echo(f"error: cannot write the output: {error.strerror or error}", err=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:  # typer has caught the Ctrl-C, and says nothing
            typer.echo("interrupted", err=True)
        raise
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
