"""A long run: processes that work on batches, what they find, and the report."""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import multiprocessing.connection
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.engine import MEGABYTES, SECONDS, Failure, Tally, limit_memory, literal, outcome, run_batch, run_seeds
from fuzz.targets import TARGETS
from fuzz.workplace import root

BATCH = 400
"""Inputs that share a name; fewer of slow targets."""
SEEDS = -1
"""The number of the batch that holds what failed once."""
SHIFT = 40
"""Batches after which a process is replaced: hypothesis and the allocator keep some of what they had."""
_STOPS = signal.SIGINT, signal.SIGTERM
_FOUND = Path(__file__).parent / "found"
_SEEDS = Path(__file__).parent / "seeds"

_Batch = tuple[str, int, int]  # target, number, inputs


@dataclass
class Totals:
    """What became of the inputs of a target."""

    answers: int = 0
    refusals: int = 0
    hashes: set[int] = field(default_factory=set)
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_input: str = ""
    memory: int = 0

    @property
    def inputs(self) -> int:
        return self.answers + self.refusals

    def add(self, tally: Tally, seconds: float) -> None:
        self.answers += tally.answers
        self.refusals += tally.refusals
        self.hashes |= tally.hashes
        self.seconds += seconds
        self.memory = max(self.memory, tally.memory)
        if tally.slowest > self.slowest:
            self.slowest, self.slowest_input = tally.slowest, tally.slowest_input


def _size(name: str, size: int) -> int:
    return max(1, size // {"process": 100, "command": 4}.get(name, 1))


def seeds(name: str) -> list[str]:
    """Inputs of a target that failed once, as literals."""
    path = _SEEDS / f"{name}.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if line and not line.startswith("#")]


def _work(pipe: Any, batches: list[_Batch], alone: bool) -> None:
    """A process's life."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_DFL)
    gc.freeze()
    limit_memory()
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - libraries note there what is odd about a file
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for name, number, size in batches:
        begun = time.perf_counter()
        if number == SEEDS:
            tally = run_seeds(TARGETS[name], seeds(name), alone=alone)
        else:
            tally = run_batch(TARGETS[name], number, size, alone=alone)
        pipe.send((tally, time.perf_counter() - begun))


class _Worker:
    """A process and the batches that it has in hand."""

    def __init__(self, batches: list[_Batch], *, alone: bool = False) -> None:
        self.batches, self.alone = batches, alone
        context = multiprocessing.get_context("fork")  # what is imported is imported once
        self.pipe, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_work, args=(theirs, batches, alone), daemon=True)
        self.process.start()
        theirs.close()


class Campaign:
    """Shares batches among processes until the time is over or enough inputs are done."""

    def __init__(self, names: list[str], first: int, size: int) -> None:
        self.names = names
        self._first = first
        self._sizes = {name: _size(name, size) for name in names}
        self.totals = {name: Totals() for name in names}
        self.failures: dict[str, Failure] = {}
        self.died = 0
        """Processes that ended in the middle of a batch."""

    @property
    def inputs(self) -> int:
        return sum(one.inputs for one in self.totals.values())

    def _shifts(self, batches: int | None) -> Iterator[list[_Batch]]:
        """What one process does after the other: what failed once, then new batches.

        Args:
            batches: of each target; None: without end, those next that are most behind their share.
        """
        yield [(name, SEEDS, 0) for name in self.names]
        if batches is not None:
            yield [(name, self._first + i, self._sizes[name]) for name in self.names for i in range(batches)]
            return
        numbers = dict.fromkeys(self.names, 0)
        while True:
            chosen = []
            for _ in range(SHIFT):
                name = min(self.names, key=lambda one: numbers[one] * self._sizes[one] / TARGETS[one].share)
                chosen.append((name, self._first + numbers[name], self._sizes[name]))
                numbers[name] += 1
            yield chosen

    def run(self, jobs: int, seconds: float, inputs: float, batches: int | None = None) -> None:
        end = time.monotonic() + seconds
        shifts = self._shifts(batches)
        workers: list[_Worker] = []
        shown = time.monotonic()
        try:
            while True:
                over = time.monotonic() > end or self.inputs >= inputs
                while not over and len(workers) < jobs and (shift := next(shifts, None)):
                    workers.append(_Worker(shift))
                if not workers or (over and not any(worker.alone for worker in workers)):
                    return
                ready = multiprocessing.connection.wait([worker.pipe for worker in workers], 1.0)
                for worker in [worker for worker in workers if worker.pipe in ready]:
                    try:
                        tally, taken = worker.pipe.recv()
                    except EOFError:
                        worker.process.join()
                        workers.remove(worker)
                        workers += self._after(worker)
                    else:
                        worker.batches.pop(0)
                        self._take(tally, taken)
                if time.monotonic() - shown > 15:
                    shown = time.monotonic()
                    print(f"{self.inputs} inputs, {len(self.failures)} failures", flush=True)
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()

    def _after(self, worker: _Worker) -> list[_Worker]:
        """When a process has ended: nothing, or what it could not do."""
        if not worker.batches:
            return []
        name, number, size = worker.batches[0]
        if not worker.alone:
            self.died += 1
            print(f"{name}: a process died in batch {number}; again with a process for each input", flush=True)
            rest = [_Worker(worker.batches[1:])] if worker.batches[1:] else []
            return [_Worker([(name, number, size)], alone=True), *rest]
        self._fail(Failure(name, f"batch {number}", f"the process ended with {worker.process.exitcode}"))
        return []

    def _take(self, tally: Tally, taken: float) -> None:
        self.totals[tally.target].add(tally, taken)
        for failure in tally.failures:
            self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        known = self.failures.get(failure.where)
        if known is not None and len(known.given) <= len(failure.given):
            return
        self.failures[failure.where] = failure
        _FOUND.mkdir(exist_ok=True)
        with (_FOUND / f"{failure.target}.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"# {failure.where}\n{failure.given}\n")
        if known is None:
            print(f"\nFAILED {failure.where}\n{failure.said[-3000:]}\n{reproduction(failure)}\n", flush=True)


def reproduction(failure: Failure) -> str:
    """The command that runs the input again."""
    given = failure.given.replace("'", "'\\''")
    return f"again: PYTHONPATH=tests python -m fuzz --replay {failure.target} '{given}'"


def report(campaign: Campaign, command: str, seconds: float, jobs: int) -> str:
    """The run as a table."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run(["git", "status", "--porcelain", "src"], capture_output=True, text=True).stdout.strip()
    rows = list(campaign.totals.items())
    different = sum(len(one.hashes) for _, one in rows)
    lines = [
        "# Fuzzing",
        "",
        f"`{command}` at commit {commit}{' with changes in src' if changed else ''}: {campaign.inputs:,} inputs "
        f"({different:,} different ones), {len(campaign.failures)} failures, in {seconds / 60:.0f} minutes of {jobs} "
        f"processes. {platform.machine()}, Python {platform.python_version()}.",
        "",
        f"Each input ends in an answer or in an `InputError` (or `MissingExtraError`), within {SECONDS:g} s of "
        f"processor time and {MEGABYTES} MB; a warning is a failure, too. Memory is that of the whole process, with "
        "interpreter and libraries; no input may allocate more than the limit. What the targets are: `tests/fuzz`.",
        "",
        "| target | inputs | different | answers | errors | ms an input | slowest (s) | memory (MB) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, one in rows:
        each = 1000 * one.seconds / max(1, one.inputs)
        lines.append(
            f"| {name} | {one.inputs:,} | {len(one.hashes):,} | {one.answers:,} | {one.refusals:,} | {each:.1f} | "
            f"{one.slowest:.2f} | {one.memory} |"
        )
    if campaign.died:
        lines += [
            "",
            f"{campaign.died} processes ended in a batch, by a crash or by what all inputs of a process took together; "
            "those batches were run again with a process for each input.",
        ]
    slowest = max((one for _, one in rows), key=lambda one: one.slowest)
    lines += ["", f"The slowest input took {slowest.slowest:.2f} s: `{slowest.slowest_input[:300]}`."]
    for failure in campaign.failures.values():
        lines += ["", f"Failed: `{failure.where}`", "", f"    {failure.given[:500]}"]
    return "\n".join(lines) + "\n"


def replay(name: str, text: str) -> int:
    """Run one input; what it ends in is printed or raised."""
    limit_memory()
    print(outcome(TARGETS[name], literal(text)))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz qkgcc.")
    parser.add_argument("--seconds", type=float, default=600, help="stop after so many seconds (600)")
    parser.add_argument("--inputs", type=float, default=float("inf"), help="stop after so many inputs")
    parser.add_argument("--batches", type=int, help="stop after so many batches of each target")
    parser.add_argument("--size", type=int, default=BATCH, help=f"inputs of a batch ({BATCH})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one for each core)")
    parser.add_argument("--only", nargs="+", default=list(TARGETS), choices=list(TARGETS), help="targets")
    parser.add_argument("--first", type=int, help="number of the first batches (by default another one each time)")
    parser.add_argument("--report", type=Path, help="write a report here")
    parser.add_argument("--replay", nargs=2, metavar=("TARGET", "INPUT"), help="run one input instead")
    options = parser.parse_args()
    root()
    if options.replay:
        return replay(*options.replay)
    # Batches are numbered by millions, so that two runs do not repeat each other.
    first = int(time.time()) * 1_000_000 if options.first is None else options.first
    print(f"the first batches have the number {first}: --first {first} repeats the run", flush=True)
    campaign, begun, interrupted = Campaign(options.only, first, options.size), time.monotonic(), False
    for number in _STOPS:  # of a run in the background, too, in which shells ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    try:
        campaign.run(options.jobs, options.seconds, options.inputs, options.batches)
    except KeyboardInterrupt:
        interrupted = True
    command = "python -m fuzz " + " ".join(sys.argv[1:])
    text = report(campaign, command, time.monotonic() - begun, options.jobs)
    print(text)
    if options.report:
        options.report.write_text(text, encoding="utf-8")
    return 1 if campaign.failures or interrupted else 0
