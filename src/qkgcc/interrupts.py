"""Ctrl-C at the wrong moment: while a C library calls back into Python, or in the middle of a step of long work.

libsndfile reads and writes what is in memory through Python functions. An exception in one of them cannot pass through
the C code: it is printed and dropped, and the library believes that the data ended there. A file would be called
damaged, or be damaged, because somebody pressed Ctrl-C.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back until the block has ended, then let it through. The block should take milliseconds.

    Only the main thread is ever interrupted; in others there is nothing to do.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: held.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C or SIGTERM only asks to stop, and the function that is given tells so.

    Long work looks between two of its steps, and stops with everything in order. A second Ctrl-C interrupts at once.
    """
    asked = False

    def ask(*_: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
