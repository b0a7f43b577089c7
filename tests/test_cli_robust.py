"""The command line where names, streams and signals are unusual: no traceback, and words that are right."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from qkgcc.cli import main
from qkgcc.cli.listen_view import load_text
from signals import delayed_noise

Run = subprocess.CompletedProcess[str]
Qkgcc = Callable[..., Run]


@pytest.fixture
def qkgcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Qkgcc:
    """The command in a folder of its own, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["qkgcc", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Run(sys.argv, int(stop.value.code or 0), *capsys.readouterr())

    return run


def process(*arguments: object, cwd: Path, **options: Any) -> Run:
    """The command in a process of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    command = [sys.executable, "-m", "qkgcc", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, text=True, check=False, **streams)


def record(path: Path, channels: int = 2, samples: int = 8000) -> Path:
    sound = np.concatenate([0.1 * delayed_noise(5, samples, seed=seed)[0] for seed in range((channels + 1) // 2)])
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, sound[:channels].T, 16000)
    return path


NAMES = ("take[final].wav", "rec[/bold].wav", "[red]a.wav", ":smile:.wav", "a$b_$.wav")


@pytest.mark.skipif(sys.platform == "win32", reason="such names cannot be there")
def test_control_characters_of_a_name_do_not_reach_the_terminal(qkgcc: Qkgcc, tmp_path: Path) -> None:
    name, safe = "a\x1b[31m\x9bred\n.wav", r"a\x1b[31m\x9bred\n.wav"
    record(tmp_path / name)
    (tmp_path / f"no{name}").touch()
    for command in (["estimate", name], ["estimate", name, "--format", "csv"], ["doctor", name], ["locate", name]):
        run = qkgcc(*command, *(["--array", "linear:2:0.2"] if command[0] == "locate" else ()))
        assert safe in run.stdout + run.stderr, run
        assert not re.search(r"[\x1b\x9b]|red\n", run.stdout + run.stderr), run
    for wrong in (["estimate", name, "-m", f"no{name}"], ["estimate", f"no{name}"], ["batch", "--out", name, name]):
        run = qkgcc(*wrong)
        assert run.returncode == 2
        assert safe in run.stderr, run
        assert not re.search(r"[\x1b\x9b]|red\n", run.stderr), run


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.needs("matplotlib")
def test_names_with_brackets_are_shown_as_they_are(name: str, qkgcc: Qkgcc, tmp_path: Path) -> None:
    record(tmp_path / name)
    table = qkgcc("estimate", name, "-m", "phat", "--plot", "a.png")
    assert table.stdout.startswith(f"{name}, channels 0 and 1, phat"), table
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert qkgcc("doctor", name).stdout.startswith(f"{name}: nothing found")
    found = qkgcc("doctor", name, "--rate", 8000)
    assert found.stdout.startswith(name)
    for run in (table, found):
        assert run.stderr == ""
    absent = qkgcc("estimate", f"no-{name}")
    assert (absent.returncode, absent.stderr) == (2, f"error: no-{name} does not exist\n")


def test_other_commands_show_names_with_brackets_as_they_are(qkgcc: Qkgcc, tmp_path: Path) -> None:
    name = record(tmp_path / "rec[" / "bold].wav", channels=4).relative_to(tmp_path)
    (tmp_path / "mine[b].csv").write_text("front_m,left_m,up_m\n0,0,0\n0.1,0,0\n0,0.1,0\n0.1,0.1,0\n")
    (tmp_path / "truth.csv").write_text("file,delay_samples\nrec[/bold].wav,5\n")
    located = qkgcc("locate", name, "--array", "mine[b].csv", "-m", "phat")
    assert located.stdout.startswith(f"{name}, mine[b], phat"), located
    assert qkgcc("array", "mine[b].csv").stdout.startswith("mine[b]: cm")
    scored = qkgcc("evaluate", name, "--truth", "truth.csv", "-m", "phat", "--by-file")
    assert "rec[/bold].wav" in scored.stdout, scored
    record(tmp_path / "b" / "x[y].wav", channels=1, samples=16000)
    soundfile.write(tmp_path / "a.wav", soundfile.read(tmp_path / "b" / "x[y].wav")[0][100:], 16000)
    synchronised = qkgcc("calibrate", "offsets", "a.wav", "b/x[y].wav")
    assert "x[y]" in synchronised.stdout + synchronised.stderr, synchronised


def test_a_bar_shows_names_with_brackets_as_they_are(
    qkgcc: Qkgcc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, which a test has in the form of a variable that rich looks at."""
    record(tmp_path / "rec[" / "bold].wav")
    for variable, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(variable, value)
    run = qkgcc("estimate", "rec[/bold].wav", "-m", "phat")
    assert run.returncode == 0, run.stderr
    assert "bold].wav" in run.stderr


def test_output_that_is_closed_is_an_error_and_not_a_traceback(tmp_path: Path) -> None:
    record(tmp_path / "good.wav")
    for command in (["estimate", "good.wav", "-m", "phat"], ["--version"]):
        run = process(*command, cwd=tmp_path, preexec_fn=lambda: os.close(1))
        assert (run.returncode, run.stderr) == (2, "error: cannot write the output: Bad file descriptor\n")
    silent = ["batch", "good.wav", "-m", "phat", "--out", "out"]  # which prints nothing
    assert process(*silent, cwd=tmp_path, preexec_fn=lambda: os.close(1)).returncode == 0
    assert (tmp_path / "out" / "good.wav.csv").is_file()


def test_a_closed_standard_error_changes_no_exit_code(tmp_path: Path) -> None:
    record(tmp_path / "good.wav")
    good = process("estimate", "good.wav", "-m", "phat", cwd=tmp_path, preexec_fn=lambda: os.close(2))
    assert (good.returncode, "whole recording: 5.0" in good.stdout) == (0, True)
    assert process("estimate", "none.wav", cwd=tmp_path, preexec_fn=lambda: os.close(2)).returncode == 2


def test_a_pipe_that_nobody_reads_is_the_end(tmp_path: Path) -> None:
    record(tmp_path / "good.wav")
    for command in (["estimate", "good.wav", "-m", "phat"], ["estimate", "good.wav", "-m", "phat", "--format", "csv"]):
        read, write = os.pipe()
        os.close(read)
        run = process(*command, cwd=tmp_path, stdout=write)
        os.close(write)
        assert (run.returncode, run.stderr) == (1, "")


INTERRUPTED = """
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
sys.modules.pop({module!r}, None)
sys.argv = ["qkgcc", "methods"]
{run}
"""


SCRIPT = "from qkgcc.__main__ import main; main()"
MODULE = "runpy.run_module('qkgcc', run_name='__main__')"


@pytest.mark.parametrize(
    ("module", "run"),
    [
        ("numpy", MODULE),
        ("numpy", SCRIPT),
        ("typer", SCRIPT),
        ("qkgcc.delay.estimator", SCRIPT),
        ("typing", MODULE),
        ("contextlib", SCRIPT),
        ("threading", SCRIPT),
    ],
)
def test_control_c_while_python_imports_leaves_no_traceback(module: str, run: str) -> None:
    """The signal comes at the moment at which a module is to be imported."""
    script = INTERRUPTED.format(module=module, run=run)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_an_ignored_interrupt_stays_ignored() -> None:
    script = INTERRUPTED.format(module="numpy", run=SCRIPT)
    script = script.replace("signal.default_int_handler)", "signal.SIG_IGN)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["demo", "-m", "phat"],
        ["array", "respeaker4"],
        ["estimate", "good.wav"],
        ["explain", "good.wav"],
        ["locate", "good.wav", "--array", "linear:2:0.1"],
        ["simulate", "--show", "1"],
    ],
)
@pytest.mark.needs("matplotlib")
def test_a_picture_of_an_unknown_kind_is_refused_before_the_work(
    command: list[str], qkgcc: Qkgcc, tmp_path: Path
) -> None:
    record(tmp_path / "good.wav")
    run = qkgcc(*command, "--plot", "x.txt")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == ("error: cannot write x.txt: the suffix says the kind of picture, one of .png .svg .pdf\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["doctor", "good.wav", "--rate", 0], "a sample rate of 0 Hz is not usable; expected a whole number from 1000"),
        (["array", "circular:8:0"], "the size of 'circular:8:0' is 0 m; expected more than 0, such as circular:8:0.1"),
        (["array", "circular:1:0.1"], "the number of microphones of 'circular:1:0.1' is 1; expected .* 2 to 256"),
        (["calibrate", "offsets", "good.wav", "good.wav"], "good.wav is given twice: give one file for each recorder"),
        (["calibrate", "offsets", "good.wav", "link.wav"], "good.wav and link.wav are one file"),
        (["estimate", "loop.wav"], "loop.wav is a link to loop.wav, which leads back to it"),
        (["estimate", "gone.wav"], "gone.wav is a link to nowhere.wav, which does not exist"),
        (["doctor", "four.wav", "--array", "loop.wav"], "loop.wav is a link to loop.wav, which leads back to it"),
        (["estimate", "good.wav", "-m", "loop.wav"], "loop.wav is a link to loop.wav, which leads back to it"),
        (
            ["batch", "good.wav", "--out", "loop.wav"],
            "cannot make the folder loop.wav: loop.wav is a link to loop.wav, which leads back to it",
        ),
        (["estimate", "good.wav", "-m", "/dev/zero"], "/dev/zero is a pipe or a device; expected a file"),
        (["estimate", "one.wav"], r"one.wav has 1 sample, less than a frame \(2048 samples, 0.128 s\)"),
        (["estimate", "good.wav", "--end", 5], r"end 5 s is past the end of good.wav \(0.500 s\)"),
        (
            ["estimate", "good.wav", "--band", 9000, 9500],
            "holds frequencies up to 8000 Hz, and the band",
        ),
        (
            ["doctor", "four.wav", "--array", "linear:5:0.1", "--channels", "0,1,2,3,3"],
            "--channels 0,1,2,3,3: a channel is named twice; give each one once",
        ),
        (
            ["locate", "four.wav", "--array", "respeaker4", "--channels", "0,1,3"],
            "3 of the 4 channels of four.wav are chosen; respeaker4 has 4 microphones: choose as many",
        ),
    ],
)
def test_words_are_right(command: list[object], message: str, qkgcc: Qkgcc, tmp_path: Path) -> None:
    record(tmp_path / "good.wav")
    record(tmp_path / "four.wav", channels=4)
    soundfile.write(tmp_path / "one.wav", np.zeros((1, 2)), 16000)
    (tmp_path / "link.wav").symlink_to("good.wav")
    (tmp_path / "loop.wav").symlink_to("loop.wav")
    (tmp_path / "gone.wav").symlink_to("nowhere.wav")
    run = qkgcc(*command)
    assert run.returncode == 2
    assert re.fullmatch(f"error: .*{message}.*\n", run.stderr), run.stderr


def test_a_frame_and_what_is_shorter_are_told_apart_in_samples(qkgcc: Qkgcc, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.zeros((5644, 2)), 44100)
    run = qkgcc("estimate", "a.wav")
    assert "a.wav has 5644 samples, less than a frame (5645 samples, 0.128 s)" in run.stderr


def test_an_analysis_that_is_too_slow_is_said_in_seconds() -> None:
    assert (load_text(0.447), load_text(4.476)) == ("load 45 %", "needs 4.5 s for a second of sound")
