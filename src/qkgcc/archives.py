"""Folders of thousands of recordings: one output each, several at a time, and what is done stays done.

Every worker is a process with an estimator of its own. Outputs are written whole or not at all, and a recording that
fails does not stop the others: after an interrupt, or when the damaged files are mended, a second run does the rest.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkgcc.audio import Recording, open_audio
from qkgcc.errors import InputError
from qkgcc.estimate import DelayEstimator
from qkgcc.files import shown, write_whole
from qkgcc.interrupts import StopRequest
from qkgcc.results import DelayEstimate, csv_text
from qkgcc.workers import shared


def first_two(recording: Recording) -> Sequence[tuple[int, int]]:
    """The first two channels."""
    return [(0, 1)]


@dataclass(frozen=True)
class Task:
    """A recording and the file that its delays go to."""

    source: Path
    output: Path


@dataclass(frozen=True)
class Outcome:
    task: Task
    seconds: float = 0.0
    """Of audio; 0 where it failed."""
    error: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """What is done with every recording."""

    estimator: Mapping[str, Any]
    """Arguments of `DelayEstimator`."""
    format: str = "csv"
    """csv: a line a frame; json: an object a line, one for each pair of channels."""
    curve: bool = True
    """Whether JSON holds lags and curves."""
    pairs: Callable[[Recording], Sequence[tuple[int, int]]] = first_two
    """Which channels of a recording. To a worker it travels by its name: a function of a module, or a partial one."""
    start: float | None = None
    end: float | None = None


def tasks(inputs: Sequence[tuple[Path, Path]], folder: Path, format: str) -> list[Task]:
    """Outputs in `folder`: the path of each recording below its root, with the format's suffix behind its own.

    Args:
        inputs: (root, recording) each; a recording that was named itself has its folder as root.

    >>> [task.output.as_posix() for task in tasks([(Path("talks"), Path("talks/may/a.wav"))], Path("out"), "csv")]
    ['out/may/a.wav.csv']
    """
    made = [
        Task(source, folder / source.relative_to(root).with_name(f"{source.name}.{format}")) for root, source in inputs
    ]
    sources: dict[Path, Path] = {}
    for task in made:
        if (other := sources.setdefault(task.output, task.source)) != task.source:
            raise InputError(f"{other} and {task.source} would both be written to {task.output}: take one at a time")
    return list({task.output: task for task in made}.values())


def run(given: Sequence[Task], work: Work, jobs: int = 1, stop: StopRequest | None = None) -> Iterator[Outcome]:
    """Do the tasks, `jobs` at a time, and give their outcomes as they come. Leaving it early stops the workers.

    Args:
        stop: when it is asked, the outcomes end early, and there is one for every output that has been written.
    """
    stop = stop or StopRequest()
    try:
        with stop.at_once():
            estimator = DelayEstimator(**work.estimator)  # what is wrong with it is said here, not by every worker
        if jobs == 1:
            do = functools.partial(_do, work=work, estimator=estimator)
            for task in given:
                if stop():
                    return
                yield do(task, stop)
            return
        for task, outcome in shared(given, _begin, (work, jobs), jobs, stop):
            yield outcome or Outcome(task, error=f"{shown(task.source)}: {_DIED}")
    except KeyboardInterrupt:
        if not stop():
            raise


_DIED = "its worker died, perhaps for want of memory: try it again with fewer jobs, and skip what is written already"


def _begin(work: Work, jobs: int) -> Callable[[Task, StopRequest], Outcome]:
    """In a worker: what does a task there."""
    each = max(1, (os.cpu_count() or 1) // jobs)
    options = dict(work.estimator)
    options["threads"] = options.get("threads") or each
    estimator = DelayEstimator(**options)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(each)
    return functools.partial(_do, work=work, estimator=estimator)


def _do(task: Task, stop: StopRequest, *, work: Work, estimator: DelayEstimator) -> Outcome:
    """Whatever is wrong with one recording is its outcome, and no exception: the others are to be done."""
    name = shown(task.source)
    try:
        with stop.at_once():
            recording = open_audio(task.source, start=work.start, end=work.end)
            curve = work.format == "json" and work.curve
            answers = [estimator(recording.pick(pair), curve=curve) for pair in work.pairs(recording)]
            if not any(answer.summary.answered for answer in answers):
                raise InputError(f"{name}: the channels are silent, or one of them is: there is no delay to find")
            text = csv_text(answers) if work.format == "csv" else _json_text(answers, work.curve)
        task.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(task.output, lambda target: target.write_text(text, newline="", encoding="utf-8"))
    except InputError as error:
        return Outcome(task, error=str(error) if str(error).startswith(name) else f"{name}: {error}")
    except OSError as error:
        return Outcome(task, error=f"{name}: {error.strerror or error}")
    except MemoryError:
        return Outcome(task, error=f"{name}: there is not enough memory for it; use fewer jobs")
    except Exception as error:
        return Outcome(task, error=f"{name}: {type(error).__name__}: {error}")
    several = len(answers) > 1
    warnings = [
        f"{answer.source}{f', channels {answer.channels[0]} and {answer.channels[1]}' if several else ''}: {warning}"
        for answer in answers
        for warning in answer.warnings
    ]
    silent = [answer.channels for answer in answers if not answer.summary.answered]
    warnings += [f"{name}: channels {one} and {two} are silent, or one of them is" for one, two in silent]
    return Outcome(task, recording.duration, warnings=tuple(warnings))


def _json_text(answers: Sequence[DelayEstimate], curve: bool) -> str:
    return "".join(answer.to_json(curve=curve) + "\n" for answer in answers)
