import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import typer.main

from qkgcc import METHODS, InputError, open_audio, samples
from qkgcc.audio import decode
from qkgcc.cli import app, main
from signals import delayed_noise

Run = subprocess.CompletedProcess[str]


def qkgcc(*arguments: object, stdin: bytes = b"", cwd: Path | None = None) -> Run:
    """The command as a user runs it, in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", "from qkgcc.cli import main; main()", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        check=False,
    )
    return subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode(), run.stderr.decode())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, good and bad."""
    folder = tmp_path_factory.mktemp("recordings")
    pair = 0.1 * delayed_noise(5, 16000)[0]
    four = np.concatenate([pair, 0.1 * delayed_noise(-3, 16000, seed=1)[0]])
    bad = pair.copy()
    bad[0, 5000] = np.nan
    for name, x in {
        "pair": pair,
        "four": four,
        "nan": bad,
        "mono": pair[:1],
        "second": pair[1:],
        "short": pair[:, :500],
        "longer": np.tile(pair[1:], 2),
    }.items():
        soundfile.write(folder / f"{name}.wav", x.T, 16000, subtype="FLOAT")
    soundfile.write(folder / "silent.wav", np.zeros((16000, 2)), 16000)
    (folder / "empty.wav").touch()
    (folder / "text.wav").write_text("no sound in here" * 100)
    data = (folder / "pair.wav").read_bytes()
    (folder / "cut.wav").write_bytes(data[: len(data) // 2])
    return folder


def test_the_table_shows_the_delay_and_the_summary(folder: Path) -> None:
    run = qkgcc("estimate", folder / "pair.wav", "--spacing", 0.2, "--method", "phat")
    assert run.returncode == 0, run.stderr
    assert re.search(r"whole recording: 5\.00 samples = 31[23] µs, 32\.4°", run.stdout)  # 312.5
    assert run.stdout.count("+5.") + run.stdout.count("+4.9") >= 10
    assert "not a calibrated probability, nor are those of the frames" in " ".join(run.stdout.split())
    assert run.stderr == ""


def test_every_output_says_which_side_is_positive(folder: Path) -> None:
    pair = ("estimate", folder / "pair.wav", "--spacing", 0.2, "-m", "phat")
    assert "(right, if channel 0 is the left microphone)" in " ".join(qkgcc(*pair).stdout.split())
    assert json.loads(qkgcc(*pair, "--format", "json").stdout)["positive_side"] == "right"
    rows = list(csv.DictReader(io.StringIO(qkgcc(*pair, "--format", "csv").stdout)))
    assert {(row["positive_side"], float(row["angle"]) > 0) for row in rows} == {("right", True)}
    line = ("locate", folder / "pair.wav", "--array", "linear:2:0.2", "-m", "phat")
    assert "positive is left" in " ".join(qkgcc(*line).stdout.split())
    assert json.loads(qkgcc(*line, "--format", "json").stdout)["positive_side"] == "left"
    rows = list(csv.DictReader(io.StringIO(qkgcc(*line, "--format", "csv").stdout)))
    # The same sign for a pair and its array, whose channel 0 is at the right end.
    assert {(row["positive_side"], float(row["azimuth"]) > 0) for row in rows} == {("left", True)}
    rows = list(csv.DictReader(io.StringIO(qkgcc(*line, "--channels", "1,0", "--format", "csv").stdout)))
    assert {float(row["azimuth"]) > 0 for row in rows} == {False}


def test_json_is_one_object_a_line(folder: Path) -> None:
    run = qkgcc("estimate", folder / "pair.wav", folder / "four.wav", "--format", "json", "--method", "scot")
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert [Path(r["source"]).name for r in records] == ["pair.wav", "four.wav"]
    assert records[0]["summary"]["delay_samples"] == pytest.approx(5, abs=0.05)
    assert records[0]["method"] == "scot"


def test_csv_of_several_files_has_one_header(folder: Path) -> None:
    run = qkgcc("estimate", folder / "pair.wav", folder / "four.wav", "--format", "csv", "-m", "phat")
    rows = list(csv.DictReader(io.StringIO(run.stdout)))
    assert {Path(row["source"]).name for row in rows} == {"pair.wav", "four.wav"}
    assert all(float(row["delay_samples"]) == pytest.approx(5, abs=0.1) for row in rows)


def test_all_pairs_of_four_channels(folder: Path) -> None:
    run = qkgcc("estimate", folder / "four.wav", "--pairs", "all", "--format", "json", "--no-curve", "-m", "phat")
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert [tuple(r["channels"]) for r in records] == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert records[-1]["summary"]["delay_samples"] == pytest.approx(-3, abs=0.05)
    run = qkgcc("estimate", folder / "four.wav", "--pairs", "3-2", "--format", "json", "-m", "phat")
    assert json.loads(run.stdout)["summary"]["delay_samples"] == pytest.approx(3, abs=0.05)


def test_channels_start_end_and_temperature(folder: Path) -> None:
    run = qkgcc(
        "estimate", folder / "four.wav", "--channels", 3, 2, "--start", 0.2, "--end", 0.6, "--spacing", 0.2,
        "--temperature", 0, "--format", "json", "--method", "phat",
    )  # fmt: skip
    record = json.loads(run.stdout)
    assert record["channels"] == [3, 2]
    assert record["times"][0] == pytest.approx(0.264)
    assert record["times"][-1] < 0.6
    assert record["summary"]["angle"] == pytest.approx(np.degrees(np.arcsin(3 / 16000 * 331.3 / 0.2)), abs=0.2)


def test_two_recorders(folder: Path) -> None:
    run = qkgcc("estimate", folder / "mono.wav", "--with", folder / "second.wav", "--format", "json", "-m", "phat")
    assert json.loads(run.stdout)["summary"]["delay_samples"] == pytest.approx(5, abs=0.05)


def test_standard_input(folder: Path) -> None:
    data = (folder / "four.wav").read_bytes()
    run = qkgcc("estimate", "-", "--pairs", "0-1,2-3", "--format", "json", stdin=data)
    records = [json.loads(line) for line in run.stdout.splitlines()]
    assert [round(r["summary"]["delay_samples"]) for r in records] == [5, -3]
    assert records[0]["source"] == "standard input"


class TestInterruptedStandardInput:
    """Nothing is printed, nothing is written, and no file is called damaged."""

    COMMANDS = (("estimate", "-"), ("doctor", "-"), ("explain", "-", "--plot", "weights.png"))

    def interrupted(
        self, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["qkgcc", *command])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 130
        assert capfd.readouterr() == ("", "interrupted\n")
        assert not Path("weights.png").exists()

    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
    @pytest.mark.needs("matplotlib")
    def test_while_it_is_read(
        self,
        command: tuple[str, ...],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        class Waiting(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                raise KeyboardInterrupt

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Waiting()))
        self.interrupted(command, monkeypatch, capfd)

    @pytest.mark.parametrize("moment", [1, 20, 40])
    @pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
    @pytest.mark.needs("matplotlib")
    def test_while_it_is_decoded(
        self,
        command: tuple[str, ...],
        moment: int,
        folder: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        """libsndfile calls back into Python, where Ctrl-C would be raised, printed and dropped."""
        calls = 0

        class Interrupted(decode._Reader):
            def readinto(self, buffer: Any) -> int:
                nonlocal calls
                calls += 1
                if calls == moment:
                    signal.raise_signal(signal.SIGINT)
                return super().readinto(buffer)

        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "pair.wav").read_bytes())))
        monkeypatch.setattr("qkgcc.audio.decode._Reader", Interrupted)
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.interrupted(command, monkeypatch, capfd)
        finally:
            signal.signal(signal.SIGINT, before)
        assert calls >= moment


def test_what_cannot_be_read_from_standard_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Broken()))
    with pytest.raises(InputError, match="standard input cannot be read: Input/output error"):
        open_audio("-")


def test_options_reach_the_estimator(folder: Path) -> None:
    run = qkgcc(
        "estimate", folder / "pair.wav", "--max-delay", 0.001, "--frame", 0.256, "--hop", 0.1, "--band", 300, 6000,
        "--interpolation", "none", "--method", "phat-beta", "--beta", 0.5, "--format", "json",
    )  # fmt: skip
    record = json.loads(run.stdout)
    assert record["lags"][-1] == 16
    assert record["times"][:2] == pytest.approx([0.128, 0.228])
    assert set(record["delay_samples"]) == {5.0}


@pytest.mark.needs("matplotlib")
def test_a_plot_is_written(folder: Path, tmp_path: Path) -> None:
    run = qkgcc("estimate", folder / "pair.wav", "--plot", tmp_path / "out.png")
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.needs("matplotlib")
def test_several_plots_get_names_of_their_own(folder: Path, tmp_path: Path) -> None:
    qkgcc("estimate", folder / "four.wav", folder / "pair.wav", "--pairs", "0-1", "--plot", tmp_path / "o.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o-four.png", "o-pair.png"]


def test_the_rest_go_on_past_bad_files_and_the_exit_code_is_one(folder: Path) -> None:
    run = qkgcc("estimate", *sorted(folder.iterdir()), "--format", "json", "--no-curve")
    assert run.returncode == 1
    answered = {Path(json.loads(line)["source"]).name for line in run.stdout.splitlines()}
    assert answered == {"pair.wav", "four.wav"}
    errors = run.stderr.splitlines()
    assert len([line for line in errors if line.startswith("error: ")]) == 9
    assert errors[-1] == "9 of 11 recordings failed"


BAD = {
    "mono.wav": "has 1 channel; a delay needs 2",
    "nan.wav": "channel 0 holds nan",
    "silent.wav": "there is no delay to find",
    "short.wav": "less than a frame",
    "empty.wav": "is empty (0 bytes)",
    "text.wav": "cannot be read as audio",
    "cut.wav": "is truncated",
    "missing.wav": "does not exist",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.needs("matplotlib")
def test_a_bad_file_alone_is_one_sentence_and_exit_code_two(folder: Path, tmp_path: Path, name: str) -> None:
    run = qkgcc("estimate", folder / name, "--format", "json", "--plot", tmp_path / "out.png")
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith("error: ")
    assert BAD[name] in run.stderr
    assert run.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "nosuch"], "unknown method 'nosuch'"),
        (["--method", "nosuch.safetensors"], "nosuch.safetensors"),
        (["--spacing", "-1"], "the spacing is -1 m"),
        (["--spacing", "20000"], "the spacing is 20000 m"),
        (["--channels", "0", "9"], "has channels 0 to 1, not 9"),
        (["--pairs", "some"], "expected `all`, or pairs of channels"),
        (["--temperature", "20", "--speed-of-sound", "343"], "not both"),
        (["--temperature", "900"], "the temperature is 900"),
        (["--plot", "picture"], "the suffix says the kind of picture"),
        (["--plot", "nowhere/p.png"], "the folder nowhere does not exist"),
        (["--start", "5"], "start 5 s is past the end of"),
        (["--start", "nan"], "the start is nan s"),
        (["--plot", "."], "the suffix says the kind of picture"),
        (["--format", "xml"], "Invalid value for '--format'"),
    ],
)
@pytest.mark.needs("matplotlib")
def test_bad_options_are_said(folder: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    run = qkgcc("estimate", folder / "pair.wav", *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_dead_channel_costs_its_own_pairs_only(folder: Path, tmp_path: Path) -> None:
    x, rate = soundfile.read(folder / "four.wav")
    x[:, 1] = 0
    soundfile.write(tmp_path / "dead.wav", x, rate)
    run = qkgcc("estimate", tmp_path / "dead.wav", "--pairs", "all", "--format", "json", "--no-curve", "-m", "phat")
    assert run.returncode == 1
    assert [json.loads(line)["channels"] for line in run.stdout.splitlines()] == [[0, 2], [0, 3], [2, 3]]
    assert run.stderr.count("there is no delay to find") == 3


@pytest.mark.needs("matplotlib")
def test_recordings_of_one_name_get_pictures_of_their_own(folder: Path, tmp_path: Path) -> None:
    qkgcc("estimate", folder / "pair.wav", folder / "pair.wav", "--plot", tmp_path / "o.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["o-pair-2.png", "o-pair.png"]


def test_a_full_disk_behind_the_output_is_said(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "from qkgcc.cli import main; main()", "estimate", str(folder / "pair.wav")]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert run.returncode == 2
    assert b"cannot write the output: No space left on device" in run.stderr
    assert b"Traceback" not in run.stderr


def test_a_terminal_without_greek_letters_is_no_reason_to_stop(folder: Path) -> None:
    command = [sys.executable, "-c", "from qkgcc.cli import main; main()", "estimate", str(folder / "pair.wav")]
    run = subprocess.run(command, env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert run.returncode == 0


def test_unequal_recorders_are_said(folder: Path) -> None:
    run = qkgcc("estimate", folder / "mono.wav", "--with", folder / "longer.wav")
    assert run.returncode == 2
    assert "unequal lengths" in run.stderr


def test_a_folder_without_recordings_is_said(tmp_path: Path) -> None:
    run = qkgcc("batch", tmp_path, "--out", tmp_path / "out")
    assert run.returncode == 2
    assert "holds no recordings" in run.stderr


def test_methods_are_listed_with_their_references() -> None:
    run = qkgcc("methods")
    for name in METHODS:
        assert name in run.stdout
    assert "Knapp & Carter 1976" in run.stdout
    assert "Here general, general-medium, general-small and qk-gcc are run by the compiled kernel" in run.stdout


def commands() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, one in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        found += [(name, part) for part in one.commands] if hasattr(one, "commands") else [(name,)]
    return found


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_examples_of_options_that_it_has(command: tuple[str, ...]) -> None:
    one: Any = typer.main.get_command(app)
    for name in command:
        one = one.commands[name]
    examples = re.findall(r"`([^`]*qkgcc [^`]*)`", one.help.partition("Examples:")[2])
    assert examples
    options = {text for parameter in one.params for text in parameter.opts}
    for example in examples:
        words = example.split("|")[-1].partition("qkgcc ")[2].partition(">")[0].split()
        assert tuple(words[: len(command)]) == command
        assert {word for word in words if re.match("--?[a-z]", word)} <= options, example


def test_help_shows_the_labs_commands_under_their_own_heading() -> None:
    shown = qkgcc("--help").stdout
    assert shown.index("Delays of two microphones") < shown.index("estimate") < shown.index("Lab: ")
    lab = shown.partition("Lab: ")[2]
    for name in ("simulate", "data", "train", "reproduce"):
        assert f" {name} " in lab
    for name in ("estimate", "batch", "listen", "locate", "calibrate", "doctor", "evaluate", "export"):
        assert f" {name} " not in lab
    assert qkgcc("--version").stdout.startswith("qkgcc 0.")


@pytest.mark.needs("matplotlib")
def test_the_demo_compares_with_the_truth(tmp_path: Path) -> None:
    run = qkgcc("demo", "--plot", tmp_path / "demo.png")
    assert run.returncode == 0, run.stderr
    truth = samples.truth("talkers-2ch")
    for segment in truth["segments"]:
        assert f"{segment['delay_samples']:+.2f}" in run.stdout
    assert "within one sample of the truth" in run.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000


class TestDoctor:
    def test_a_healthy_recording_exits_with_zero(self) -> None:
        run = qkgcc("doctor", samples.path("talkers-2ch"), "--spacing", 0.5)
        assert run.returncode == 0, run.stdout + run.stderr
        assert "nothing found" in run.stdout

    def test_a_finding_is_said_and_exits_with_one(self, tmp_path: Path) -> None:
        x, rate = soundfile.read(samples.path("talkers-2ch"))
        x[:, 1] *= -1
        soundfile.write(tmp_path / "inverted.flac", x, rate)
        run = qkgcc("doctor", tmp_path / "inverted.flac")
        assert run.returncode == 1
        assert "inverted-polarity" in run.stdout
        run = qkgcc("doctor", tmp_path / "inverted.flac", "--format", "json")
        assert [f["code"] for f in json.loads(run.stdout)["findings"]] == ["inverted-polarity"]

    def test_what_is_expected_can_be_said(self) -> None:
        # The first talker is at +16 samples: channel 0, the left microphone, hears it later, so it stands on the right.
        path = samples.path("talkers-2ch")
        assert qkgcc("doctor", path, "--expect", "right", "--start", 0.2, "--end", 2.2).returncode == 0
        run = qkgcc("doctor", path, "--expect", "left", "--start", 0.2, "--end", 2.2)
        assert run.returncode == 1
        assert "swapped-channels" in run.stdout
        assert "rate-mismatch" in qkgcc("doctor", path, "--rate", 48000).stdout

    def test_a_bad_file_exits_with_two(self, folder: Path) -> None:
        run = qkgcc("doctor", folder / "text.wav")
        assert run.returncode == 2
        assert run.stderr.startswith("error: ")


def test_help_loads_only_what_it_needs() -> None:
    script = """
import sys
from qkgcc.cli import app, main
sys.argv = ["qkgcc", "--help"]
try:
    main()
finally:
    print([m for m in ("numpy", "scipy", "soundfile", "matplotlib", "torch", "qkgcc.arrays") if m in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("words", [["estimate", "-"], ["listen", "-", "--raw", "s16le", "--sample-rate", "16000"]])
def test_a_closed_standard_input_is_one_sentence(words: list[str]) -> None:
    command = [sys.executable, "-c", "from qkgcc.cli import main; main()", *words]
    done = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    assert done.stderr.count("\n") == 1
