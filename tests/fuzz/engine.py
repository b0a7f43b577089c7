"""Batches of inputs of one target, each under the limits of time and memory.

A batch is named by its target and a number, and holds the same inputs each time: what fails is found again. Most inputs
take less than a millisecond, so they share a process. Where that dies (a crash in C, a loop without end), the batch is
run again with a process for each input, and hypothesis makes the one that kills it smaller as any other.
"""

from __future__ import annotations

import ast
import hashlib
import os
import pickle
import resource
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from qkgcc.core.errors import InputError, MissingExtraError

SECONDS = 5.0
"""Of an input, in processor time: others may be at work on the machine."""
MEGABYTES = 500
"""Memory of an input: what a process may allocate on top of what it has when it begins, and what it may hold in all."""
_HANGS = 60.0  # seconds of wall time after which a process is killed, in C too, and if it only waits

ANSWER, REFUSAL = "answer", "refusal"


@dataclass(frozen=True)
class Target:
    """Something that takes inputs from users."""

    name: str
    inputs: SearchStrategy[Any]
    """Of Python literals."""
    run: Callable[[Any], object]
    """Ends in an answer or raises; an `InputError` and a `MissingExtraError` are fine."""
    share: float
    """Of all inputs of a run."""


class TooMuch(Exception):
    """An input took too long, or too much memory."""


class Died(Exception):
    """An input ended its process."""


@dataclass
class Failure:
    target: str
    given: str
    """The smallest input found, as a literal."""
    said: str
    """The traceback."""

    @property
    def where(self) -> str:
        """What tells faults apart: the error and the innermost line of it."""
        lines = self.said.strip().splitlines()
        places = [line.strip() for line in lines if line.strip().startswith("File ")]
        kind = lines[-1].partition(":")[0]
        return f"{self.target}: {kind}, {places[-1] if places else 'nowhere'}"


@dataclass
class Tally:
    """What became of the inputs of a batch."""

    target: str
    answers: int = 0
    refusals: int = 0
    slowest: float = 0.0
    slowest_input: str = ""
    memory: int = 0
    """MB, the most that the process had in RAM at once: interpreter, libraries and all."""
    hashes: set[int] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)


def outcome(target: Target, value: Any) -> str:
    """Run one input in this process: an answer or a refusal; everything else is raised."""
    begun = _processor_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            target.run(value)
        ended = ANSWER
    except (InputError, MissingExtraError) as error:
        _check_message(str(error))
        ended = REFUSAL
    taken = _processor_time() - begun
    if taken > SECONDS:
        raise TooMuch(f"{taken:.1f} s")
    return ended


def _check_message(said: str) -> None:
    """A sentence for a person: not empty, and no longer than somebody would read."""
    if not said.strip() or len(said) > 5000:
        raise AssertionError(f"a message of {len(said)} characters: {said[:200]!r}")


def run_batch(target: Target, number: int, count: int, *, alone: bool = False) -> Tally:
    """Draw and run `count` inputs.

    Args:
        alone: each in a process of its own.
    """
    tally = Tally(target.name)
    failed: dict[tuple[type, str], tuple[str, str]] = {}

    def check(value: Any) -> None:
        text = repr(value)
        tally.hashes.add(int.from_bytes(hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()))
        begun = _processor_time()
        try:
            ended = _forked(target, value) if alone else _limited(target, value)
        except Exception as error:
            failed[type(error), _place(error)] = text, "".join(traceback.format_exception(error))
            raise
        taken = _processor_time() - begun
        if taken > tally.slowest:
            tally.slowest, tally.slowest_input = taken, text
        tally.answers += ended == ANSWER
        tally.refusals += ended == REFUSAL

    quiet = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    try:
        seed(number)(quiet(given(target.inputs)(check)))()
    except Exception:
        # Of each fault the last input that hypothesis tried and that failed, which is the smallest.
        tally.failures = [Failure(target.name, text, said) for text, said in failed.values()]
        if not failed:
            raise
    tally.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return tally


def run_seeds(target: Target, texts: list[str], *, alone: bool = False) -> Tally:
    """Run inputs that failed once; `alone` as for `run_batch`."""
    tally = Tally(target.name)
    for text in texts:
        try:
            ended = _forked(target, literal(text)) if alone else _limited(target, literal(text))
        except Exception as error:
            tally.failures.append(Failure(target.name, text, "".join(traceback.format_exception(error))))
        else:
            tally.answers += ended == ANSWER
            tally.refusals += ended == REFUSAL
    return tally


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _limited(target: Target, value: Any) -> str:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, wherever it is
    signal.setitimer(signal.ITIMER_REAL, _HANGS)
    try:
        return outcome(target, value)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10 > MEGABYTES:
            os._exit(1)  # the batch is run again with a process for each input, which tells which one it was


def _processor_time() -> float:
    """Seconds of this process and of those that it has waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _forked(target: Target, value: Any) -> str:
    """Run an input in a child process; its end there is an exception here."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        answer: tuple[str, str] = ("", "")
        try:
            os.close(read)
            answer = _limited(target, value), ""
        except BaseException as error:
            answer = type(error).__name__, "".join(traceback.format_exception(error))
        finally:
            os.write(write, pickle.dumps(answer)[:60_000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not said:
        code = os.waitstatus_to_exitcode(status)
        ways = {1: f"more than {MEGABYTES} MB", -signal.SIGALRM: f"no end after {_HANGS:g} s"}
        raise Died(ways.get(code, f"the process ended with {code}"))
    ended, trace = pickle.loads(said)
    if trace:
        raise Died(trace)
    return str(ended)


def limit_memory() -> None:
    """From now on, this process may allocate `MEGABYTES` more; files that it writes stay small."""
    with open("/proc/self/statm") as file:  # noqa: PTH123
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (MEGABYTES << 20), resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def literal(text: str) -> Any:
    """An input from its line."""
    return ast.literal_eval(text)
