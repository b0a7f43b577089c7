"""The command `qkgcc`, and `python -m qkgcc`: until everything is imported, Ctrl-C ends it without a traceback."""

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""Exit code, as in `core.interrupts`, which imports too much before Ctrl-C is caught."""


def main() -> None:
    """Import the command line, and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, _leave)
    from qkgcc import cli

    if len(sys.argv) > 1 and not {"--help", "-h", "--version"} & {*sys.argv}:
        import qkgcc.delay.estimator  # noqa: F401 - with NumPy and SciPy, which commands import in their functions

    try:
        signal.signal(signal.SIGINT, before)
        cli.main()
    except KeyboardInterrupt:
        _leave(signal.SIGINT, None)


def _leave(number: int, frame: FrameType | None) -> None:
    """Stop at once: an exception can be lost in the middle of an import, and nothing is done that has to be undone."""
    try:
        os.write(2, b"interrupted\n")
    finally:  # also where standard error is closed
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
