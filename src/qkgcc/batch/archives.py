"""Folders of thousands of recordings: one output each, several at a time, and what is done stays done.

Every worker is a process with an estimator of its own. Outputs are written whole or not at all, and a recording that
fails does not stop the others: after an interrupt, or when the damaged files are mended, a second run does the rest.

A second run leaves out the outputs that are up to date: not empty, not older than their recording, and made with the
options of this run. What the options were is remembered in the folder (`.qkgcc-csv` or `.qkgcc-json`), with the time
since when outputs have been made with them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

from qkgcc.audio.recording import Recording, open_audio
from qkgcc.batch.workers import share_tasks
from qkgcc.core.errors import InputError
from qkgcc.core.files import check_writable, display_name, is_file, write_whole
from qkgcc.core.interrupts import StopRequest
from qkgcc.core.tables import parse_json, read_text, save_text
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.result import DelayEstimate, write_delays_csv
from qkgcc.network.registry import NETWORKS, pretrained


def first_two(recording: Recording) -> Sequence[tuple[int, int]]:
    """The first two channels."""
    return [(0, 1)]


@dataclass(frozen=True)
class Task:
    """A recording and the file that its delays go to."""

    source: Path
    output: Path


class Share(NamedTuple):
    """Progress of a recording."""

    done: float
    """From 0 to 1."""
    seconds: float
    """Of audio that are done, of all pairs together: with two of three pairs done, two thirds of the recording."""
    pairs: int
    """Of channels."""


@dataclass(frozen=True)
class Outcome:
    task: Task
    seconds: float = 0.0
    """Of audio; 0 where it failed."""
    pairs: int = 1
    """Of channels, each of them that long."""
    error: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """Options that apply to every recording."""

    estimator: Mapping[str, Any]
    """Arguments of `DelayEstimator`."""
    format: str = "csv"
    """csv: a line a frame; json: an object a line, one for each pair of channels."""
    curve: bool = False
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


def ignore_progress(task: Task, share: Share) -> None:
    """The callback for those who do not follow the progress."""


def run(
    given: Sequence[Task],
    work: Work,
    jobs: int = 1,
    stop: StopRequest | None = None,
    progress: Callable[[Task, Share], object] = ignore_progress,
) -> Iterator[Outcome]:
    """Do the tasks, `jobs` at a time, and give their outcomes as they come. Leaving it early stops the workers.

    Args:
        stop: when it is asked, the outcomes end early, and there is one for every output that has been written.
        progress: called with a task as it proceeds, after every ten seconds of its audio or so.
    """
    stop = stop or StopRequest()
    try:
        with stop.at_once():
            estimator = DelayEstimator(**work.estimator)  # what is wrong with it is said here, not by every worker
        if jobs == 1:
            process = functools.partial(_process, work=work, estimator=estimator)
            for task in given:
                if stop():
                    return
                yield process(task, stop, functools.partial(progress, task))
            return
        for task, outcome in share_tasks(given, _prepare_worker, (work, jobs), jobs, stop, progress):
            yield outcome or Outcome(task, error=f"{display_name(task.source)}: {_DIED}")
    except KeyboardInterrupt:
        if not stop():
            raise


_DIED = "its worker died, perhaps for want of memory: try it again with fewer jobs, and skip what is written already"


def _prepare_worker(work: Work, jobs: int) -> Callable[[Task, StopRequest, Callable[[Share], object]], Outcome]:
    """In a worker: what does a task there."""
    options = dict(work.estimator)
    options["threads"] = options.get("threads") or max(1, (os.cpu_count() or 1) // jobs)
    return functools.partial(_process, work=work, estimator=DelayEstimator(**options))


def _process(
    task: Task, stop: StopRequest, report: Callable[[Share], object], *, work: Work, estimator: DelayEstimator
) -> Outcome:
    """Whatever is wrong with one recording is its outcome, and no exception: the others are to be done."""
    name = display_name(task.source)
    warnings: list[str] = []
    try:
        with stop.at_once():
            recording = open_audio(task.source, start=work.start, end=work.end)
            pairs = work.pairs(recording)
        answers = _answers(recording, pairs, work, estimator, report, warnings)
        with stop.at_once():
            first = list(itertools.islice(answers, 1))  # most of the work, before there is a file that a kill leaves

        def write(target: Path) -> None:
            with stop.at_once(), target.open("w", newline="", encoding="utf-8") as out:
                _write(out, first, answers, work)

        task.output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(task.output, write)
    except InputError as error:
        return Outcome(task, error=str(error) if str(error).startswith(name) else f"{name}: {error}")
    except OSError as error:
        return Outcome(task, error=f"{name}: {error.strerror or error}")
    except MemoryError:
        return Outcome(task, error=f"{name}: there is not enough memory for it; use fewer jobs")
    except Exception as error:
        return Outcome(task, error=f"{name}: {type(error).__name__}: {error}")
    return Outcome(task, recording.duration, len(pairs), warnings=tuple(warnings))


def _answers(
    recording: Recording,
    pairs: Sequence[tuple[int, int]],
    work: Work,
    estimator: DelayEstimator,
    report: Callable[[Share], object],
    warnings: list[str],
) -> Iterator[DelayEstimate]:
    """The delays of each pair; what there is to warn of is added to `warnings`."""

    def progress(share: float) -> None:
        report(Share(share, share * recording.duration, len(pairs)))

    silent = []
    curve = work.format == "json" and work.curve
    for answer in estimator.of_pairs(recording, pairs, progress=progress, curve=curve):
        one, two = answer.channels
        which = f", channels {one} and {two}" if len(pairs) > 1 else ""
        warnings += [f"{answer.source}{which}: {warning}" for warning in answer.warnings]
        if not answer.summary.answered:
            silent.append(f"{recording.name}: channels {one} and {two} are silent, or one of them is")
        yield answer
    if len(silent) == len(pairs):
        raise InputError(f"{recording.name}: the channels are silent, or one of them is: there is no delay to find")
    warnings += silent


def _write(out: IO[str], waiting: list[DelayEstimate], answers: Iterator[DelayEstimate], work: Work) -> None:
    """Write the answer that waits and the others, each of which is let go when it is written: it may be large."""
    header = True
    while waiting:
        if work.format == "csv":
            write_delays_csv(out, waiting.pop(), header=header)
        else:
            out.writelines(waiting.pop().json_pieces(curve=work.curve))
            out.write("\n")
        header = False
        waiting.extend(itertools.islice(answers, 1))


_NO_INFLUENCE = ("threads",)
"""Options of an estimator that change no answer."""


def options_of(work: Work, **others: Any) -> dict[str, Any]:
    """What the outputs depend on, but for the recordings, as JSON has it.

    Args:
        others: what chooses the pairs.
    """
    made = {name: value for name, value in work.estimator.items() if name not in _NO_INFLUENCE}
    method = str(made["method"])
    file = pretrained(method) if method in NETWORKS else Path(method)
    if is_file(file):  # a network of the same name may be another one tomorrow
        made["network"] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    made |= {"curve": work.format == "json" and work.curve, "start": work.start, "end": work.end, **others}
    plain: dict[str, Any] = json.loads(json.dumps(made))  # a band may end at infinity
    return plain


class OutputMemory:
    """What the outputs of one format in a folder were made with, and since when: the file `.qkgcc-FORMAT` there."""

    def __init__(self, folder: Path, format: str) -> None:
        self.folder = folder
        self._path = folder / f".qkgcc-{format}"
        self._options: dict[str, Any] | None = None
        self._since = 0.0
        with suppress(ValueError, TypeError, KeyError):
            record = parse_json(read_text(self._path), str(self._path))
            self._options, self._since = dict(record["options"]), float(record["since"])

    @property
    def exists(self) -> bool:
        """Whether it is remembered how outputs were made."""
        return self._options is not None

    def unfinished(self, given: Sequence[Task], options: Mapping[str, Any]) -> list[Task]:
        """The tasks whose outputs are missing or outdated. Outputs made with other options are an `InputError`."""
        held = {task for task in given if _is_up_to_date(task, self._since)}
        if held and self._options is not None and (changed := _changes(self._options, options)):
            raise InputError(
                f"{display_name(self.folder)} holds {len(held)} of these outputs made with other options "
                f"({'; '.join(changed)}): give those or another folder, or do not skip existing outputs"
            )
        return [task for task in given if task not in held]

    def remember(self, options: Mapping[str, Any], *, skipping: bool) -> None:
        """Before outputs are made with these options.

        Args:
            skipping: outputs of which nothing is remembered are taken for made with these options.
        """
        now = check_writable(self.folder)
        if self._options is None or _changes(self._options, options):
            since = 0.0 if self._options is None and skipping else now
            save_text(json.dumps({"options": options, "since": since}), self._path)


def _is_up_to_date(task: Task, since: float) -> bool:
    try:
        output = task.output.stat()
    except OSError:
        return False
    try:
        recorded = task.source.stat().st_mtime
    except OSError:
        recorded = 0.0  # a link to nothing has an output all the same
    return output.st_size > 0 and output.st_mtime >= max(recorded, since)


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    named = [name for name in names if name != "network"] or names
    return [
        "another version of the network" if name == "network" else f"{name} was {before.get(name)}, is {now.get(name)}"
        for name in named
    ]
