"""Ctrl-C while a C library calls back into Python.

libsndfile reads and writes what is in memory through Python functions. An exception in one of them cannot pass through
the C code: it is printed and dropped, and the library believes that the data ended there. A file would be called
damaged, or be damaged, because somebody pressed Ctrl-C.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
