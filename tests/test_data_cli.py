"""`qkgcc data` as a user meets it."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from typer.testing import CliRunner

from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from test_data_corpora import make_clips, make_librispeech


def run(*arguments: object) -> str:
    """What the command prints; an error is raised as it is, for `main` to print."""
    return CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False).output


def test_a_bank_is_made_and_summed_up(tmp_path: Path) -> None:
    make_librispeech(tmp_path, {"61": [2.5, 1.0], "1089": [2.5]})
    printed = run("bank", "--set", "test-clean", "--out", tmp_path / "bank", "--data", tmp_path, "--jobs", 1)
    made = Bank.load(tmp_path / "bank", verify=True)
    assert made.ids == ["1089-7-0000", "61-7-0000"]
    assert made.hash[:16] in printed
    assert "train" in printed
    assert "test" in printed


def test_the_variable_replaces_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_clips(tmp_path / "musan" / "music" / "made", {"a.wav": 4.0, "b.wav": 4.0})
    monkeypatch.setenv("QKGCC_DATA", str(tmp_path))
    run("bank", "--set", "music", "--out", tmp_path / "m.audio", "--seconds", 2.5, "--whole-split", "none")
    assert Bank.load(tmp_path / "m").samples.tolist() == [40000, 40000]
    monkeypatch.delenv("QKGCC_DATA")
    with pytest.raises(InputError, match="where are the corpora"):
        run("bank", "--set", "music", "--out", tmp_path / "m")


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no set 'musik'; there are test-clean"):
        run("bank", "--set", "musik", "--out", tmp_path / "m", "--data", tmp_path)
    with pytest.raises(InputError, match="no set 'musik'"):
        run("download", "--set", "musik", "--out", tmp_path)
    with pytest.raises(InputError, match="looked for"):
        run("bank", "--set", "noise", "--out", tmp_path / "m", "--data", tmp_path)
    (tmp_path / "a file").touch()
    with pytest.raises(InputError, match=r"cannot make the folder .*a file: "):
        run("bank", "--set", "noise", "--out", tmp_path / "a file" / "m", "--data", tmp_path)
    with pytest.raises(InputError, match="no split 'all'"):
        run("bank", "--set", "noise", "--out", tmp_path / "m", "--data", tmp_path, "--whole-split", "all")


def test_a_corpus_that_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    make_librispeech(tmp_path, {"61": [2.5]})
    assert "is there already" in run("download", "--set", "test-clean", "--out", tmp_path)


def test_a_benchmark_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    make_clips(tmp_path / "noise" / "made", {"a.wav": 3.0})
    bank = tmp_path / "new" / "banks" / "noise"  # folders that are not there are made
    run("bank", "--set", "noise", "--out", bank, "--data", tmp_path)
    cache = tmp_path / "cache"
    mistakes = {
        ("paper-noise", "cpu"): "which is not in the bank noise",
        ("general-test", "cpu"): "general-test needs .*: give the complete banks of test-clean, music, noise",
        ("paper-noise", "fast"): "unknown engine 'fast'",
        ("paper-noise", "reference"): "is rendered by the cpu engine .* or the gpu engine",
        ("general-test", "reference"): "is rendered by the cpu engine .* or the gpu engine",
    }
    if not torch.cuda.is_available():
        mistakes["paper-noise", "gpu"] = "torch finds none on this machine"
    for (name, engine), message in mistakes.items():
        with pytest.raises(InputError, match=message):
            run("benchmark", name, "--bank", bank, "--engine", engine, "--cache", cache)
    assert not cache.exists()


def test_help_shows_examples() -> None:
    assert "qkgcc data download --set test-clean" in run("download", "--help")
    assert "qkgcc data bank --set test-clean" in run("bank", "--help")
