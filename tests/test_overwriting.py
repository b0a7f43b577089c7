"""No command overwrites a file that qkgcc did not make; every command is here."""

import errno
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
import typer
from typer.testing import CliRunner, Result

from qkgcc import DelayEstimator, InputError, samples
from qkgcc.arrays import array
from qkgcc.arrays.geometry import read_geometry, write_geometry
from qkgcc.audio.recording import open_audio
from qkgcc.cli import app
from qkgcc.core.files import MARK, write_whole
from qkgcc.plots import plot_array
from qkgcc.sync import synchronise, write_aligned

pytestmark = pytest.mark.needs("matplotlib", "torch")  # commands of every extra are tried

THEIRS = b"what a person has written: years of work"
PAIR, FOUR = str(samples.path("talkers-2ch")), str(samples.path("talkers-4ch"))
SHORT = ["--start", "0", "--end", "2", "-m", "phat"]
PICTURES = ("plot.png", "plot.svg", "plot.pdf")

COMMANDS: dict[str, tuple[list[str], str]] = {
    "estimate --plot": (["estimate", PAIR, *SHORT, "--plot", "a.png"], "a.png"),
    "estimate --plot, all pairs": (["estimate", FOUR, *SHORT, "--pairs", "0-1,0-2", "--plot", "a.png"], "a-0-2.png"),
    "batch --out": (["batch", PAIR, *SHORT, "--out", "out"], f"out/{Path(PAIR).name}.csv"),
    "batch --out, JSON": (
        ["batch", PAIR, *SHORT, "--out", "out", "--format", "json"],
        f"out/{Path(PAIR).name}.json",
    ),
    "locate --plot": (
        ["locate", "four.wav", "--array", "respeaker4", *SHORT[:4], "-m", "phat", "--plot", "a.png"],
        "a.png",
    ),
    "explain --plot": (
        ["explain", PAIR, "--start", "0", "--end", "1", "-m", "general-small", "--plot", "a.svg"],
        "a.svg",
    ),
    "array --plot": (["array", "respeaker4", "--plot", "a.pdf"], "a.pdf"),
    "demo --plot": (["demo", "-m", "phat", "--plot", "a.png"], "a.png"),
    "calibrate offsets --write": (["calibrate", "offsets", "one.wav", "two.wav", "--write", "out"], "out/two.wav"),
    "calibrate positions --out": (
        ["calibrate", "positions", "walk.wav", "--array", "respeaker4", "--out", "a.toml"],
        "a.toml",
    ),
    "simulate --plot": (["simulate", "--show", "0", "--engine", "cpu", "--plot", "a.png"], "a.png"),
    "simulate --out": (["simulate", "--bank", "bank", "--count", "1", "--out", "out"], "out/truth.csv"),
    "export --out": (["export", "general-small", "--out", "a.onnx"], "a.onnx"),
    "data bank --out": (["data", "bank", "--set", "test-clean", "--data", ".", "--out", "a"], "a.json"),
    "data bank --out, sound": (["data", "bank", "--set", "test-clean", "--data", ".", "--out", "a"], "a.audio"),
    "train --out": (["train", "qkgcc", "--set", "sources=synthetic", "--out", "out"], "out/best.safetensors"),
    "reproduce --figures": (["reproduce", "fig1", "--figures", "."], "fig1.png"),
    "listen --record": (["listen", "--from", PAIR, "--speed", "0", "--seconds", "1", "--record", "a.wav"], "a.wav"),
}
WITHOUT_OUTPUT = {"evaluate", "doctor", "methods"}
OUTPUTS = {"plot", "out", "write", "record", "figures"}
"""Options that name what is written."""
ELSEWHERE = {"results", "checkpoints", "runs", "cache"}
"""Of files with checks of their own: checksums, cards, fingerprints."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sound, rate = soundfile.read(FOUR)
    soundfile.write("four.wav", sound[: 3 * rate], rate)
    noise = 0.1 * np.random.default_rng(0).standard_normal(8 * 16000)
    soundfile.write("one.wav", noise[: 7 * 16000], 16000)
    soundfile.write("two.wav", noise[800 : 7 * 16000 + 800], 16000)
    return tmp_path


def run(arguments: list[str]) -> Result:
    return CliRunner().invoke(app, arguments)


def commands() -> dict[str, Callable[..., object]]:
    """All of them, by name, also those below others."""

    def below(group: typer.Typer, names: str) -> Iterator[tuple[str, Callable[..., object]]]:
        for one in group.registered_commands:
            assert one.callback is not None
            yield f"{names}{one.name or one.callback.__name__}", one.callback
        for part in group.registered_groups:
            assert part.typer_instance is not None
            yield from below(part.typer_instance, f"{names}{part.name} ")

    return dict(below(app, ""))


def test_every_option_that_names_an_output_is_tested() -> None:
    tested = {name.split(",")[0] for name in COMMANDS}
    for name, command in commands().items():
        paths = {
            option
            for option, parameter in inspect.signature(command).parameters.items()
            if "Path" in str(parameter.annotation) and parameter.default is not inspect.Parameter.empty
        }
        given = OUTPUTS & set(inspect.signature(command).parameters)
        inputs = {"files", "file", "other", "bank", "data", "truth", "config"}
        assert paths <= OUTPUTS | ELSEWHERE | inputs, f"{name}: is {paths} an output?"
        if name in WITHOUT_OUTPUT:
            assert not given
        elif name != "data download":  # whose files are the corpus's own, by their names
            assert {f"{name} --{option}" for option in given} <= tested


@pytest.mark.parametrize("name", COMMANDS)
def test_what_others_made_is_not_overwritten(name: str, folder: Path) -> None:
    arguments, output = COMMANDS[name]
    path = folder / output
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(THEIRS)
    result = run(arguments)
    assert path.read_bytes() == THEIRS
    if name in ("simulate --out",):  # before which its bank is looked for
        assert isinstance(result.exception, InputError)
    elif name == "estimate --plot, all pairs":
        assert result.exit_code != 0
    else:
        assert isinstance(result.exception, InputError)
        assert "exists already" in str(result.exception) or "without the config.json" in str(result.exception)


@pytest.mark.parametrize(
    "name",
    ["estimate --plot", "batch --out", "batch --out, JSON", "explain --plot", "array --plot", "export --out",
     "calibrate offsets --write"],
)  # fmt: skip
def test_a_command_replaces_what_it_has_made_and_with_overwrite_what_others_have(name: str, folder: Path) -> None:
    arguments, output = COMMANDS[name]
    path = folder / output
    for overwrite in ([], [], ["--overwrite"]):
        if overwrite:
            path.write_bytes(THEIRS)
        elif path.exists():
            path.touch()
        result = run([*arguments, *overwrite])
        assert result.exception is None, result.exception
        assert path.read_bytes() != THEIRS


def test_a_recording_is_not_overwritten(folder: Path) -> None:
    arguments, output = COMMANDS["listen --record"]
    assert run(arguments).exit_code == 0
    recorded = (folder / output).read_bytes()
    result = run(arguments)
    assert "--record a.wav exists already: give another name, or --overwrite" in str(result.exception)
    assert (folder / output).read_bytes() == recorded
    (folder / output).write_bytes(THEIRS)
    assert run([*arguments, "--overwrite"]).exit_code == 0
    assert (folder / output).read_bytes() == recorded


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_say_who_made_them(name: str, folder: Path) -> None:
    plot_array(array("respeaker4"), name)
    assert MARK.encode() in (folder / name).read_bytes()


def test_a_written_geometry_is_read_with_its_mark(folder: Path) -> None:
    path = write_geometry(array("respeaker4"), folder / "a.toml")
    assert MARK in path.read_text()
    np.testing.assert_allclose(read_geometry(path).microphones, array("respeaker4").microphones, atol=1e-6)


def test_methods_of_python_replace_what_is_there(folder: Path) -> None:
    """As `numpy.save` does: whoever names a file in a program has decided."""
    answer = DelayEstimator("phat")(PAIR, end=1.0)
    for write in (answer.to_csv, answer.to_json, answer.plot):
        (folder / "a.png").write_bytes(THEIRS)
        write("a.png")
        assert (folder / "a.png").read_bytes() != THEIRS


def test_a_link_leads_to_what_is_written_and_stays(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "link.csv").symlink_to("data/real.csv")
    for text in ("one", "two"):
        write_whole("link.csv", lambda target, text=text: target.write_text(text))  # type: ignore[misc]
        assert (folder / "link.csv").is_symlink()
        assert (folder / "data" / "real.csv").read_text() == text
    assert [path.name for path in (folder / "data").iterdir()] == ["real.csv"]


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="there are no devices")
def test_a_device_is_not_replaced() -> None:
    with pytest.raises(InputError, match="/dev/null: it is a pipe or a device; expected the name of a file"):
        write_whole("/dev/null", lambda target: target.write_text("a"))
    assert Path("/dev/null").is_char_device()


# Full disks


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.argv[1:] = sys.argv[2:]
from qkgcc.cli import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files")
@pytest.mark.parametrize(
    "name",
    ["calibrate offsets --write", "export --out", "array --plot", "estimate --plot", "batch --out"],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(name: str, folder: Path) -> None:
    arguments, output = COMMANDS[name]
    before = set(folder.rglob("*"))
    command = [sys.executable, "-c", FULL, "2000", *arguments]
    # Coverage would write a file of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    written = output.replace("two", "one")  # the first of several
    assert f"{written}: File too large" in done.stderr
    left = {path.name for path in set(folder.rglob("*")) - before if path.is_file()}
    assert left <= {".qkgcc-csv"}


def test_aligned_recordings_on_a_full_disk_keep_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = [open_audio(name) for name in ("one.wav", "two.wav")]
    answer = synchronise(recordings)
    (first, *_) = write_aligned(answer, recordings, folder / "out", ["one", "two"])
    whole = first.read_bytes()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("qkgcc.live.recorder.WavFile.write", full)
    with pytest.raises(InputError, match=r"cannot write .*one\.wav: No space left on device"):
        write_aligned(answer, recordings, folder / "out", ["one", "two"])
    assert first.read_bytes() == whole
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["one.wav", "two.wav"]
