"""Worker processes that share many tasks and stop on request.

Each worker has one task at a time and a pipe of its own. So when one dies, its task is known; and no queue holds tasks
that would still be done after an interrupt.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

from qkgcc.core.errors import InputError
from qkgcc.core.interrupts import StopRequest

T = TypeVar("T")
R = TypeVar("R")

_POLL_SECONDS = 0.1  # between two looks whether to stop
_END_SECONDS = 5.0  # in which a worker has to end: longer than a file takes to be written


@dataclass
class _Worker:
    process: Any
    begun: bool = False
    task: Any = None
    """The task that it is working on."""


@dataclass(frozen=True)
class _Progress:
    """Message of a worker: how far it is with its task."""

    what: Any


def share_tasks(  # noqa: C901 - one loop with its ways to end
    tasks: Sequence[T],
    begin: Callable[..., Callable[[T, StopRequest, Callable[[Any], object]], R]],
    arguments: tuple[Any, ...],
    jobs: int,
    stop: StopRequest,
    progress: Callable[[T, Any], object],
) -> Iterator[tuple[T, R | None]]:
    """Pairs of a task and its result, as they are completed; the result is None where the worker died.

    After a request to stop no task is begun, and running ones are given up unless they are nearly complete. Leaving the
    iteration early stops the workers, too.

    Args:
        begin: called in each worker with the arguments; returns the function that does a task. What that function must
            not leave half done happens outside `StopRequest.at_once`. It reports its progress by its last argument.
        progress: called in this process with a task and what its worker reports.
    """
    waiting = deque(tasks)
    workers: dict[Any, _Worker] = {}
    processes = []

    def start() -> None:
        pipe, worker = _start(begin, arguments)
        workers[pipe] = worker
        processes.append(worker.process)

    try:
        for _ in range(min(jobs, len(tasks))):
            start()
        while workers and not stop():
            for pipe in _ready(workers, _POLL_SECONDS):
                worker = workers[pipe]
                answer, alive = _received(pipe)
                if isinstance(answer, _Progress):
                    progress(worker.task, answer.what)
                    continue
                had, worker.task = worker.task, None
                began, worker.begun = worker.begun, True
                if alive and waiting and not stop():
                    worker.task = waiting.popleft()
                    with suppress(OSError):  # it has died meanwhile: that is seen at the next look
                        pipe.send(worker.task)
                elif not alive or not waiting:
                    del workers[pipe]
                    pipe.close()  # which ends it
                    if began and waiting and not stop():
                        start()
                if began and (alive or not stop()):
                    yield had, answer
        if waiting and not stop():
            raise InputError("the workers died as they began, perhaps for want of memory: use fewer jobs")
        for worker in workers.values():
            worker.process.terminate()
        end = time.monotonic() + _END_SECONDS
        while workers and (left := end - time.monotonic()) > 0:
            for pipe in _ready(workers, left):
                answer, alive = _received(pipe)
                if not alive:
                    del workers[pipe]
                elif answer is not None and not isinstance(answer, _Progress):
                    yield workers[pipe].task, answer
    finally:
        for pipe, worker in workers.items():
            worker.process.terminate()
            pipe.close()
        for process in processes:
            process.join(_END_SECONDS)
            process.kill()


def _ready(workers: dict[Any, _Worker], seconds: float) -> list[Any]:
    """The pipes of workers that have sent something or have died; waits for one."""
    return connection.wait(list(workers), seconds)


def _received(pipe: Any) -> tuple[Any, bool]:
    """The message of a worker, and whether it is alive."""
    try:
        return pipe.recv(), True
    except (EOFError, OSError):
        return None, False


def _start(begin: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, _Worker]:
    context = multiprocessing.get_context("spawn")  # threads of the libraries do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, begin, arguments), daemon=True)
    with _interrupts_blocked():
        process.start()
    theirs.close()
    return ours, _Worker(process)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started in this context ignore Ctrl-C, which goes to all of them: the first process decides."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # beginning with the first process, it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Any, begin: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """What a worker process runs: it does the tasks that it receives until the pipe is closed."""
    stop = StopRequest()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, stop.ask)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with stop.at_once():
            do = begin(*arguments)
        pipe.send(None)
        while not stop():
            with stop.at_once():
                task = pipe.recv()
            pipe.send(do(task, stop, lambda what: pipe.send(_Progress(what))))
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass
    os._exit(0)  # threads that are at work on a recording are not waited for


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
