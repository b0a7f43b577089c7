"""The command `qkgcc`, and `python -m qkgcc`: until everything is imported, Ctrl-C ends it without a traceback."""

import os
import signal
from types import FrameType

from qkgcc.core.interrupts import INTERRUPTED


def main() -> None:
    """Import the command line, and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # a shell may have it ignored
        signal.signal(signal.SIGINT, _leave)
    from qkgcc import cli

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
