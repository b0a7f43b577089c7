"""The command line: `qkgcc estimate`, `listen`, `locate`, `evaluate`, `explain`, `doctor`, `array`, `calibrate`,
`methods` and `demo` for recordings; `simulate`, `data`, `train`, `export` and `reproduce` for making models.

Exit codes: 0 done; 1 done, but some of several inputs failed (or `doctor` found something, or `calibrate` could not
determine something); 2 nothing could be done; 130 interrupted.
"""

import io
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from qkgcc.cli import array, calibrate, demo, doctor, estimate, evaluate, explain, export, listen, locate, methods
from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.interrupts import INTERRUPTED
from qkgcc.lab.cli import data, reproduce, simulate, train

app = typer.Typer(
    help="Time delay between two microphones. Positive: the first channel hears the source later.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    estimate.estimate,
    listen.listen,
    evaluate.evaluate,
    explain.explain,
    doctor.doctor,
    locate.locate,
    array.array,
    methods.methods,
    demo.demo,
    simulate.simulate,
    train.train,
    export.export,
    reproduce.reproduce,
):
    app.command()(command)
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qkgcc {version('qkgcc')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Time delay between two microphones. Positive: the first channel hears the source later."""


def _replace_closed_streams() -> None:
    """Python has none where the shell closed them (`>&-`), and the next file that is opened takes their place.

    Writing to standard output then fails, as it should. What is said on standard error, nobody wants to read.
    """
    if sys.stdout is None:
        null = open(os.open(os.devnull, os.O_RDONLY), "wb", buffering=0)  # noqa: SIM115, PTH123
        sys.stdout = io.TextIOWrapper(null, encoding="utf-8", write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def main() -> None:
    """Run the command line; what a user can mend is one sentence, not a traceback."""
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error shows such letters as numbers of its own accord
        sys.stdout.reconfigure(errors="replace")  # a terminal without Greek letters is no reason to stop
    try:
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
