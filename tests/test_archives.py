"""Many recordings, one output each: nothing is lost by a damaged file, an interrupt or a second run."""

import functools
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkgcc import DelayEstimator, InputError
from qkgcc.audio.recording import Recording
from qkgcc.batch.archives import Share, Task, Work, run, tasks
from qkgcc.cli.tables import Pace
from qkgcc.delay.result import delays_csv
from signals import delayed_noise

COMMAND = [sys.executable, "-c", "from qkgcc.cli import main; main()"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four recordings, one of them in a folder of its own and one damaged."""
    (tmp_path / "in" / "may").mkdir(parents=True)
    for i, name in enumerate(("a.wav", "may/b.wav", "may/a.wav")):
        soundfile.write(tmp_path / "in" / name, 0.1 * delayed_noise(i + 1.0, 16000, seed=i)[0].T, 16000)
    (tmp_path / "in" / "c.wav").write_text("no sound in here" * 100)
    return tmp_path


def qkgcc(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, **options)  # type: ignore[call-overload, no-any-return]


def batch(*arguments: object) -> subprocess.CompletedProcess[str]:
    return qkgcc("batch", *arguments)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_output_for_each_recording(folder: Path, jobs: int) -> None:
    out = folder / "new" / "out"
    done = batch(folder / "in", "--out", out, "--jobs", jobs, "--spacing", 0.2, "--method", "phat")
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert "c.wav" in done.stderr
    assert "3 of 4 recordings done (0.00 h, " in done.stderr
    assert "1 failed" in done.stderr
    assert done.stdout == ""
    found = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.csv"))
    assert found == ["a.wav.csv", "may/a.wav.csv", "may/b.wav.csv"]
    for name in found:
        source = folder / "in" / name.removesuffix(".csv")
        assert (out / name).read_text() == delays_csv([DelayEstimator("phat", spacing=0.2)(source)])


def test_a_second_run_does_the_rest(folder: Path) -> None:
    out = folder / "out"
    (folder / "in" / "c.wav").unlink()
    assert batch(folder / "in" / "may", "--out", out, "--format", "json", "--no-curve").returncode == 0
    records = [json.loads(line) for line in (out / "a.wav.json").read_text().splitlines()]
    assert [record["channels"] for record in records] == [[0, 1]]
    (out / "a.wav.json").write_text("as it was")
    done = batch(folder / "in" / "may", "--out", out, "--format", "json", "--skip-existing")
    assert (done.returncode, (out / "a.wav.json").read_text()) == (0, "as it was")
    assert "0 of 2 recordings done" in done.stderr
    assert "2 skipped, their outputs exist" in done.stderr
    (out / "b.wav.json").unlink()
    done = batch(folder / "in" / "may", "--out", out, "--format", "json", "--skip-existing")
    assert "1 of 2 recordings done" in done.stderr
    assert (out / "b.wav.json").exists()
    refused = batch(folder / "in" / "may", "--out", out, "--format", "json")
    assert refused.returncode == 2
    assert "a.wav.json exists already, and qkgcc did not make it" in " ".join(refused.stderr.split())
    assert batch(folder / "in" / "may", "--out", out, "--format", "json", "--overwrite").returncode == 0
    assert (out / "a.wav.json").read_text() != "as it was"


def test_a_recording_may_have_a_long_name(tmp_path: Path) -> None:
    name = 240 * "n" + ".wav"
    soundfile.write(tmp_path / name, 0.1 * delayed_noise(1.0, 16000)[0].T, 16000)
    done = batch(tmp_path / name, "--out", tmp_path / "out", "--method", "phat")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "out").glob("*.csv")] == [f"{name}.csv"]


class TestOutputsThatDoNotHoldAreMadeAgain:
    @pytest.fixture
    def again(self, folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
        """Two recordings are done; this does them again but for outputs that hold."""
        arguments = folder / "in" / "may", "--out", folder / "out", "--method", "phat"
        assert batch(*arguments).returncode == 0
        return lambda *options: batch(*arguments, "--skip-existing", *options)

    def test_empty_and_older_ones(self, again: Callable[..., subprocess.CompletedProcess[str]], folder: Path) -> None:
        first, second = (folder / "out" / name for name in ("a.wav.csv", "b.wav.csv"))
        assert "2 skipped, their outputs exist" in again().stderr
        first.write_text("")
        assert "1 of 2 recordings done" in again().stderr
        assert first.read_text() == delays_csv([DelayEstimator("phat")(folder / "in" / "may" / "a.wav")])
        heading = second.read_text().splitlines()[0]  # without it, the file would be somebody's own
        second.write_text(f"{heading}\nof the recording as it was")
        os.utime(second, (1e9, 1e9))
        assert "1 of 2 recordings done" in again().stderr
        assert second.read_text() == delays_csv([DelayEstimator("phat")(folder / "in" / "may" / "b.wav")])

    def test_other_options_are_refused(
        self, again: Callable[..., subprocess.CompletedProcess[str]], folder: Path
    ) -> None:
        before = (folder / "out" / "a.wav.csv").read_text()
        for options, message in (
            (("--spacing", 0.2), "spacing was None, is 0.2"),
            (("--method", "scot"), "method was phat, is scot"),
            (("--pairs", "1-0"), "pairs was None, is 1-0"),
            (("--end", 0.5), "end was None, is 0.5"),
        ):
            done = again(*options)
            assert done.returncode == 2
            assert "holds 2 of these outputs made with other options" in done.stderr
            assert message in done.stderr
        assert (folder / "out" / "a.wav.csv").read_text() == before
        assert again("--threads", 1, "--jobs", 2).returncode == 0  # those change no answer

    def test_what_an_interrupted_run_left_of_other_options(
        self, again: Callable[..., subprocess.CompletedProcess[str]], folder: Path
    ) -> None:
        old = folder / "out" / "b.wav.csv"
        before = old.read_text()
        new = "--out", folder / "out", "--method", "scot"
        assert batch(folder / "in" / "may" / "a.wav", *new).returncode == 0  # and b not, as after an interrupt
        assert old.read_text() == before
        done = batch(folder / "in" / "may", *new, "--skip-existing")
        assert "1 of 2 recordings done" in done.stderr
        assert old.read_text() != before

    def test_outputs_of_unknown_options_are_warned_of(
        self, again: Callable[..., subprocess.CompletedProcess[str]], folder: Path
    ) -> None:
        (folder / "out" / ".qkgcc-csv").unlink()
        done = again("--method", "scot")
        assert "does not say with what options its outputs were made" in done.stderr
        assert "2 skipped, their outputs exist" in done.stderr
        assert "warning" not in again("--method", "scot").stderr

    def test_options_that_cannot_be_are_not_remembered(
        self, again: Callable[..., subprocess.CompletedProcess[str]], folder: Path
    ) -> None:
        assert batch(folder / "in" / "may", "--out", folder / "out", "--method", "phatt").returncode == 2
        assert "2 skipped, their outputs exist" in again().stderr


def test_a_folder_that_cannot_be_written_to_is_said_before_the_work(folder: Path) -> None:
    for out in (Path("/proc/sys"), Path("/sys/kernel")):
        if not out.is_dir():
            pytest.skip("no such folder here")
        done = batch(folder / "in", "--out", out, "--method", "phat")
        assert done.returncode == 2
        assert f"cannot write into the folder {out}: " in done.stderr
        assert done.stderr.count("\n") == 1


def test_json_of_all_pairs_is_an_object_a_line_without_curves_unless_they_are_asked_for(folder: Path) -> None:
    both = 0.1 * delayed_noise([1.0, 3.0], 16000)
    soundfile.write(folder / "three.wav", np.stack([*both[0], both[1, 0]], axis=1), 16000)
    for options, curve in (((), False), (("--curve",), True)):
        arguments = folder / "three.wav", "--method", "phat", "--pairs", "all", "--format", "json"
        assert batch(*arguments, "--out", folder / "out", *options).returncode == 0
        estimator = DelayEstimator("phat")
        expected = [estimator(folder / "three.wav", channels=pair) for pair in ((0, 1), (0, 2), (1, 2))]
        lines = [answer.to_json(curve=curve) + "\n" for answer in expected]
        assert (folder / "out" / "three.wav.json").read_text() == "".join(lines)
        assert qkgcc("estimate", *arguments).stdout == "".join(answer.to_json() + "\n" for answer in expected)


@pytest.mark.parametrize("jobs", [1, 2])
def test_it_is_told_how_far_a_long_recording_is(folder: Path, jobs: int) -> None:
    sound = 0.1 * delayed_noise(2.0, 45 * 16000)[0]
    soundfile.write(folder / "long.wav", np.stack([*sound, sound[0]], axis=1), 16000)
    told: list[tuple[Task, Share]] = []
    task = Task(folder / "long.wav", folder / "long.csv")
    work = Work({"method": "phat"}, pairs=functools.partial(three_pairs))
    (outcome,) = run([task], work, jobs, progress=lambda task, share: told.append((task, share)))
    assert (outcome.error, outcome.seconds, outcome.pairs) == (None, 45, 3)
    assert {task for task, _ in told} == {task}
    assert [share.seconds for _, share in told] == [10, 20, 30, 40, 45]
    assert [share.done for _, share in told] == pytest.approx([10 / 45, 20 / 45, 30 / 45, 40 / 45, 1])
    assert {share.pairs for _, share in told} == {3}


def three_pairs(recording: Recording) -> list[tuple[int, int]]:
    return [(0, 1), (0, 2), (1, 2)]


def test_the_pace_is_of_recordings_and_of_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr("qkgcc.cli.tables.time.monotonic", lambda: next(clock))
    pace = Pace()
    pace.finish("a", 100.0, 1)
    pace.update("b", 20.0, 1)
    assert str(pace) == "12 x real time"
    pace.update("b", 50.0, 1)  # so far, not that much more
    assert str(pace) == "15 x real time"
    pace.finish("b", 60.0, 3)
    assert str(pace) == "16 x real time, 28 x for one pair"


DEADLINE = 300.0
"""Seconds after which a process is taken to hang, on a busy machine, too."""


@pytest.fixture
def many(folder: Path) -> Path:
    """Forty recordings more, half a minute of work with one core."""
    sound = 0.1 * delayed_noise(2.0, 20 * 16000)[0].T
    soundfile.write(folder / "in" / "long-00.wav", sound, 16000)
    for i in range(1, 40):
        (folder / "in" / f"long-{i:02}.wav").hardlink_to(folder / "in" / "long-00.wav")
    return folder


@contextmanager
def at_work(folder: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """The command, when it has written the first of many."""
    arguments = [
        *COMMAND,
        "batch",
        str(folder / "in"),
        "--out",
        str(folder / "out"),
        "--threads",
        "1",
        *map(str, options),
    ]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not list((folder / "out").glob("long-*.csv")):
            assert process.poll() is None
            time.sleep(0.01)
        yield process


def children(process: subprocess.Popen[str]) -> list[int]:
    """Its workers."""
    task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not task.exists():
        pytest.skip("no list of child processes here")
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in task.read_text().split()}
    return [pid for pid, command in commands.items() if b"spawn_main" in command]


def kill_one_at_work(process: subprocess.Popen[str]) -> None:
    """End a worker that has a recording in hand: one that is still beginning may die without harm to any."""
    while process.poll() is None:
        for pid in children(process):
            os.kill(pid, signal.SIGSTOP)  # so that it has not finished before it is ended
            held = [link.readlink().suffix for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
            if ".wav" in held:
                os.kill(pid, signal.SIGKILL)
                return
            os.kill(pid, signal.SIGCONT)
        time.sleep(0.001)
    raise AssertionError("the command ended before a worker was seen with a recording")


def running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.parametrize(
    ("jobs", "number", "group"),
    [
        (1, signal.SIGINT, True),  # as from a terminal: the signal goes to the workers, too
        (2, signal.SIGINT, True),
        (2, signal.SIGINT, False),
        (1, signal.SIGTERM, False),
        (2, signal.SIGTERM, False),
        (2, signal.SIGTERM, True),
    ],
)
def test_an_interrupt_leaves_what_is_done_and_nothing_half_done(
    many: Path, jobs: int, number: signal.Signals, group: bool
) -> None:
    out = many / "out"
    with at_work(many, "--jobs", jobs) as process:
        workers = children(process)
        assert len(workers) == (jobs if jobs > 1 else 0)
        (os.killpg if group else os.kill)(process.pid, number)
        before = len(list(out.rglob("[!.]*.csv")))  # not those that are being written
        _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130
    assert not any(running(pid) for pid in workers)
    assert "Traceback" not in said
    written = sorted(out.rglob("*.csv"))
    assert before <= len(written) <= before + 10  # what was in hand, and a little time on the way: not all forty
    assert f"{len(written)} of 44 recordings done" in said
    assert "--skip-existing goes on from here" in said
    assert {path.suffix for path in out.rglob("[!.]*") if path.is_file()} == {".csv"}
    assert list(out.rglob(".*")) == [out / ".qkgcc-csv"]
    assert len({len(path.read_text().splitlines()) for path in out.glob("long-*.csv")}) == 1  # each is whole
    for path in sorted((many / "in").glob("long-*.wav"))[len(written) + 2 :]:
        path.unlink()
    done = batch(many / "in", "--out", out, "--jobs", jobs, "--skip-existing")
    assert f"{len(written)} skipped, their outputs exist" in done.stderr
    assert "1 failed" in done.stderr


def test_workers_end_with_their_parent(many: Path) -> None:
    with at_work(many, "--jobs", 2) as process:
        workers = children(process)
        process.kill()
        process.communicate(timeout=DEADLINE)
    end = time.monotonic() + DEADLINE
    while any(running(pid) for pid in workers):
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(list((many / "out").glob("long-*.csv"))) < 30


def test_a_worker_that_dies_is_one_failure(many: Path) -> None:
    for path in sorted((many / "in").glob("long-*.wav"))[12:]:
        path.unlink()
    with at_work(many, "--jobs", 2) as process:
        kill_one_at_work(process)
        _, said = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert re.search(r"error: .*/in/\S*\.wav: its worker died", said)
    assert "14 of 16 recordings done" in said
    assert "2 failed" in said
    assert len(list((many / "out").rglob("*.csv"))) in (14, 15)  # it may have been killed as it told


def deadly(recording: Recording) -> list[tuple[int, int]]:
    """Pairs of channels, but for recordings b."""
    if recording.name.endswith("b.wav"):
        os.kill(os.getpid(), signal.SIGKILL)
    return [(0, 1)]


def dies(recording: Recording) -> list[tuple[int, int]]:
    raise ZeroDivisionError("nothing to divide by")


@pytest.mark.parametrize(("pairs", "failed"), [(deadly, ["may/b.wav"]), (dies, ["a.wav", "may/a.wav", "may/b.wav"])])
def test_what_a_recording_does_to_its_worker_the_others_do_not_feel(
    folder: Path, pairs: Callable[[Recording], list[tuple[int, int]]], failed: list[str]
) -> None:
    given = tasks([(folder / "in", folder / "in" / n) for n in ("may/b.wav", "a.wav", "may/a.wav")], folder, "csv")
    outcomes = list(run(given, Work({"method": "phat"}, pairs=pairs), jobs=2))
    assert len(outcomes) == 3
    errors = sorted(outcome.error for outcome in outcomes if outcome.error is not None)
    assert [error.split(": ")[0] for error in errors] == [str(folder / "in" / name) for name in failed]
    assert not multiprocessing.active_children()


def test_leaving_early_ends_the_workers(many: Path) -> None:
    given = [Task(path, many / f"{path.name}.csv") for path in sorted((many / "in").glob("long-*.wav"))]
    outcomes = run(given, Work({"threads": 1}), jobs=2)
    next(outcomes)
    outcomes.close()  # type: ignore[attr-defined]
    assert not multiprocessing.active_children()
    assert len(list(many.glob("*.csv"))) < 5


def test_what_cannot_be_is_said(folder: Path) -> None:
    for arguments, message in (
        (("--jobs", 2), "Missing option '--out'"),
        (("-", "--out", folder / "o"), "batch reads no standard input: qkgcc estimate -"),
        (("--out", folder / "in" / "a.wav"), "cannot make the folder"),
        (("--out", folder / "o", "--method", "phatt"), "unknown method 'phatt'"),
    ):
        done = batch(folder / "in", *arguments)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
    with pytest.raises(InputError, match=r"would both be written to out.a\.wav\.csv"):
        tasks([(Path("x"), Path("x/a.wav")), (Path("y"), Path("y/a.wav"))], Path("out"), "csv")


@pytest.mark.parametrize(
    ("arguments", "new"),
    [
        (("in", "--out", "o"), "--out: use qkgcc batch FOLDER --out OUT; one file as a table: --format csv > FILE.csv"),
        (("in", "--out=o"), "--out: use qkgcc batch FOLDER --out OUT; one file as a table: --format csv > FILE.csv"),
        (("in", "-j", "2"), "-j: use qkgcc batch FOLDER --out OUT; one file as a table: --format csv > FILE.csv"),
        (
            ("in", "--skip-existing"),
            "--skip-existing: use qkgcc batch FOLDER --out OUT; one file as a table: --format csv > FILE.csv",
        ),
        (("-", "--raw", "s16le"), "--raw: use qkgcc listen - --raw s16le --sample-rate 48000"),
        (("-", "--lookahead", "1"), "--lookahead: use qkgcc listen - --raw s16le --sample-rate 48000"),
    ],
)
def test_old_options_of_estimate_name_the_new_command(folder: Path, arguments: tuple[str, ...], new: str) -> None:
    done = qkgcc("estimate", *arguments, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: estimate has no {new}\n")


def test_a_folder_given_to_estimate_names_batch(folder: Path) -> None:
    done = qkgcc("estimate", "in", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: in is a folder: qkgcc batch in --out OUT estimates its recordings\n"


def test_an_output_that_cannot_be_written_is_one_failure(folder: Path) -> None:
    (folder / "out" / "a.wav.csv").mkdir(parents=True)
    given = tasks([(folder / "in", folder / "in" / name) for name in ("a.wav", "may/b.wav")], folder / "out", "csv")
    outcomes = {outcome.task: outcome for outcome in run(given, Work({"method": "phat"}), jobs=2)}
    first, second = (outcomes[task] for task in given)
    assert first.error is not None
    assert "cannot write" in first.error
    assert (second.error, second.seconds) == (None, 1.0)


def test_silence_is_a_failure_that_is_named(folder: Path) -> None:
    soundfile.write(folder / "quiet.wav", 0 * delayed_noise(0.0, 16000)[0].T, 16000)
    (outcome,) = run([Task(folder / "quiet.wav", folder / "quiet.csv")], Work({"method": "phat"}))
    assert outcome.error is not None
    assert "quiet.wav: the channels are silent" in outcome.error
    assert not (folder / "quiet.csv").exists()
    pair = delayed_noise(1.0, 16000)[0]
    soundfile.write(folder / "half.wav", np.stack([*pair, 0 * pair[0]], axis=1), 16000)
    work = Work({"method": "phat"}, pairs=lambda recording: [(0, 1), (0, 2)])
    (outcome,) = run([Task(folder / "half.wav", folder / "half.csv")], work)
    assert outcome.error is None
    assert outcome.warnings == (f"{folder / 'half.wav'}: channels 0 and 2 are silent, or one of them is",)


NOT_UTF8 = os.fsdecode(b"bad\xff.wav")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_name_that_is_no_text_is_a_name(folder: Path, jobs: int) -> None:
    shutil.copy(folder / "in" / "a.wav", folder / "in" / NOT_UTF8)
    shutil.copy(folder / "in" / "c.wav", folder / "in" / f"worse-{NOT_UTF8}")
    done = batch(folder / "in", "--out", folder / "out", "--jobs", jobs, "--method", "phat")
    assert done.returncode == 1
    assert "4 of 6 recordings done" in done.stderr
    assert r"/worse-bad\xff.wav cannot be read as audio" in done.stderr
    written = (folder / "out" / f"{NOT_UTF8}.csv").read_text().splitlines()
    assert written[1].startswith(str(folder / "in") + r"/bad\xff.wav,0,1,")
    assert qkgcc("estimate", folder / "in" / NOT_UTF8, "--method", "phat").returncode == 0
    found = qkgcc("doctor", folder / "in" / NOT_UTF8)
    assert "Traceback" not in found.stderr
    assert r"bad\xff.wav" in found.stdout


@pytest.mark.parametrize("many", [False, True])
def test_a_link_to_nothing_and_an_unusable_rate_are_failures_that_are_named(folder: Path, many: bool) -> None:
    (folder / "in" / "may" / "link.wav").symlink_to("gone.wav")
    soundfile.write(folder / "in" / "may" / "slow.wav", 0.1 * delayed_noise(1.0, 500)[0].T, 500)
    recordings = sorted((folder / "in" / "may").iterdir())
    command = ("batch", "--out", folder / "out") if many else ("estimate",)
    done = qkgcc(*command, *recordings, "--method", "phat")
    assert done.returncode == 1
    assert f"error: {folder}/in/may/link.wav is a link to gone.wav, which does not exist\n" in done.stderr
    assert f"error: {folder}/in/may/slow.wav: a sample rate of 500 Hz is not usable" in done.stderr
    assert ("2 of 4 recordings done" if many else "2 of 4 recordings failed") in done.stderr
