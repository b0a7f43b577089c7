"""Ctrl-C at the wrong moment: while a C library calls back into Python, or in the middle of a step of long work.

libsndfile reads and writes what is in memory through Python functions. An exception in one of them cannot pass through
the C code: it is printed and dropped, and the library believes that the data ended there. A file would be called
damaged, or be damaged, because somebody pressed Ctrl-C.
"""

import signal
import threading
import time
from collections.abc import Iterator
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


_SAME_REQUEST_SECONDS = 0.5  # `timeout` sends its signal twice, once to the process and once to its group


class StopRequest:
    """Called, it says whether somebody has asked to stop. Long work calls it between two of its steps."""

    def __init__(self) -> None:
        self._asked: float | None = None
        self._open = False

    def __call__(self) -> bool:
        return self._asked is not None

    def ask(self, *_: Any) -> None:
        """The handler of a signal."""
        now = time.monotonic()
        if self._asked is None:
            self._asked = now
        if self._open or now - self._asked > _SAME_REQUEST_SECONDS:
            self._open = False
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A step that leaves nothing behind: a request is a `KeyboardInterrupt` in the middle of it."""
        self._open = True
        try:
            self._check()
            yield
            self._check()  # C code that called back into Python may have dropped the exception
        finally:
            self._open = False

    def _check(self) -> None:
        if self():
            raise KeyboardInterrupt


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Within the context, the first Ctrl-C or SIGTERM only asks to stop: the `StopRequest` then says so.

    Long work checks it between two steps, and stops with everything in order. A second Ctrl-C interrupts at once.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
