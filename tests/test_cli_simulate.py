"""`qkgcc simulate` as a user meets it."""

import csv
import dataclasses
import io
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import soundfile
import torch
from typer.testing import CliRunner

from qkgcc import DelayEstimator
from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.rooms.degradations import Degradations
from qkgcc.lab.rooms.shoebox import energy_decay, measured_t60
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.engines import responses
from qkgcc.lab.scenes.paper_frames import Sources, paper_frames
from qkgcc.lab.scenes.recordings import Recordings, encode_flac
from qkgcc.lab.scenes.render import Rendered, delay_at, render
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.lab.scenes.signals import lookup
from qkgcc.plots import plot_scene
from test_cli import qkgcc
from test_data_corpora import make_clips, make_librispeech


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bank of speech and one of noise, of made-up corpora."""
    root = tmp_path_factory.mktemp("corpora")
    make_librispeech(root, {"1089": [3.0, 3.0], "61": [3.0]})
    make_clips(root / "musan" / "noise" / "made", {"a.wav": 4.0, "b.wav": 4.0})
    build("test-clean", root, root / "speech")
    build("noise", root, root / "noise")
    return root


def truth(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "truth.csv").read_text().splitlines()))


def test_recordings_come_with_their_truth(banks: Path, tmp_path: Path) -> None:
    run = qkgcc("simulate", "--count", 6, "--bank", banks / "speech", "--engine", "cpu", "--out", tmp_path / "rooms")
    assert run.returncode == 0, run.stderr
    rows = truth(tmp_path / "rooms")
    assert len(rows) == 6
    easy = 0
    for row in rows:
        info = soundfile.info(tmp_path / "rooms" / row["file"])
        assert (info.channels, info.samplerate, info.frames) == (2, 16000, 32000)
        if float(row["t60"]) < 0.4:  # steady noise: longer rooms mislead GCC-PHAT
            answer = DelayEstimator("phat")(tmp_path / "rooms" / row["file"])
            assert answer.summary.delay_samples == pytest.approx(float(row["delay_samples"]), abs=0.5)
            easy += 1
        scene = paper.training_scene(0, int(row["index"]), [row["signal"]])
        assert float(row["delay_samples"]) == pytest.approx(float(scene.delay()[0]), abs=1e-3)
    assert easy >= 2


def test_a_folder_that_is_partly_there_is_completed(banks: Path, tmp_path: Path) -> None:
    command = ["simulate", "--bank", banks / "speech", "--out", tmp_path, "--seconds", 0.5, "--distribution", "paper"]
    qkgcc(*command, "--count", 2)
    before = (tmp_path / "000001.flac").read_bytes()
    run = qkgcc(*command, "--count", 3)
    assert "1 recording rendered, 2 were there already" in run.stdout
    assert (tmp_path / "000001.flac").read_bytes() == before
    (tmp_path / "000001.flac").unlink()
    qkgcc(*command, "--count", 3)
    assert (tmp_path / "000001.flac").read_bytes() == before


def test_recordings_have_the_level_of_the_whole_utterance_at_one_scale(banks: Path, tmp_path: Path) -> None:
    """What the file holds, divided by its scale, is what training takes its frames from, but for 16 bits."""
    qkgcc("simulate", "--count", 2, "--bank", banks / "speech", "--engine", "cpu", "--out", tmp_path)
    bank = Bank.load(banks / "speech")
    pairs = paper.training_pairs(0, [0, 1], len(bank.select(split="train")))
    frames, _ = paper_frames(pairs, Sources.of(bank, "train", "cpu"))
    for i, row in enumerate(truth(tmp_path)):
        assert float(row["scale"]) == 1 / 32
        audio = soundfile.read(tmp_path / row["file"])[0].T / float(row["scale"])
        first = int(pairs.start[i])
        np.testing.assert_allclose(audio[:, first : first + paper.FRAME], frames[i].numpy(), atol=3e-3)


def test_a_folder_is_only_completed_with_the_settings_it_was_made_with(banks: Path, tmp_path: Path) -> None:
    command = ["simulate", "--count", 1, "--seconds", 0.2, "--engine", "cpu", "--bank", banks / "speech"]
    assert qkgcc(*command, "--out", tmp_path).returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"000000.flac", "settings.json", "truth.csv"}
    for changes, message in {
        ("--seed", 1): "made with seed 0, not 1",
        ("--distribution", "general"): "made with distribution paper, not general",
        ("--seconds", 0.3): "made with seconds 0.2, not 0.3",
        ("--split", "test"): "made with split train, not test",
        ("--engine", "reference"): "made with engine cpu, not reference",
        ("--bank", banks / "noise"): "made with banks",
    }.items():
        run = qkgcc(*command, *changes, "--out", tmp_path)
        assert run.returncode == 2
        assert message in run.stderr
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "settings.json").unlink()
    assert "holds recordings without the settings.json" in qkgcc(*command, "--out", tmp_path).stderr


def test_an_interrupted_run_stops_at_once_with_a_row_for_every_file_and_goes_on(banks: Path, tmp_path: Path) -> None:
    command = ["simulate", "--seconds", "0.3", "--engine", "cpu", "--bank", str(banks / "speech"), "--out", "rooms"]
    # A shell that runs tests in the background lets them ignore Ctrl-C.
    python = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from qkgcc.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", python, *command, "--count", "100000"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while len(list((tmp_path / "rooms").glob("0*.flac"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert said == "interrupted\n"
    files = sorted(path.name for path in (tmp_path / "rooms").glob("*.flac"))
    assert [row["file"] for row in truth(tmp_path / "rooms")] == files
    run = qkgcc(*command, "--count", len(files) + 1, cwd=tmp_path)
    assert f"1 recording rendered, {len(files)} were there already" in run.stdout
    assert len(truth(tmp_path / "rooms")) == len(files) + 1


def test_a_machine_that_stopped_leaves_nothing_that_is_believed(banks: Path, tmp_path: Path) -> None:
    """A row without its file, half a row, a file without its row: all are made again."""
    command = ["simulate", "--seconds", 0.2, "--engine", "cpu", "--bank", banks / "speech", "--out", tmp_path]
    qkgcc(*command, "--count", 4)
    whole = (tmp_path / "truth.csv").read_text()
    (tmp_path / "000001.flac").unlink()
    (tmp_path / "truth.csv").write_text(whole[:-20])
    run = qkgcc(*command, "--count", 4)
    assert "2 recordings rendered, 2 were there already" in run.stdout
    assert (tmp_path / "truth.csv").read_text() == whole


def test_a_disk_that_is_full_leaves_no_half_of_a_recording(tmp_path: Path) -> None:
    """Files of at most 1000 bytes are a small disk that needs no rights."""
    scene = paper.training_scene(0, 0, ["x"])
    noise = np.random.default_rng(0).standard_normal((2, 8000)).astype(np.float32)
    recordings = Recordings(tmp_path, {"distribution": "paper", "seed": 0, "scale": 1 / 32})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with recordings.growing():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        try:
            with pytest.raises(InputError, match=r"cannot write .*000000\.flac: File too large"):
                recordings.add(0, scene, Rendered(noise, np.zeros((1, 8000), np.float32)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["settings.json", "truth.csv"]
    assert truth(tmp_path) == []


def test_what_is_too_loud_for_its_file_is_halved_until_it_fits() -> None:
    audio = np.array([[0.5, -2.9], [0.1, 0.2]], dtype=np.float32)
    data, scale = encode_flac(audio, 16000, 1.0)
    assert scale == 0.25
    np.testing.assert_allclose(soundfile.read(io.BytesIO(data))[0].T / scale, audio, atol=2e-4)


def test_the_truth_follows_a_source_that_moves_and_says_what_spoils_the_recording(tmp_path: Path) -> None:
    path = np.linspace([2.0, 1.0, 1.5], [2.0, 3.0, 1.5], 401)
    microphones = np.array([[3.0, 2.0, 1.5], [3.0, 2.2, 1.5]])
    moving = Source("noise:1", path, np.linspace(0, 2, 401))
    spoiled = Degradations(position_error=[[0, 0, 0], [0, 0.01, 0]], clipped=0.02, band=(300.0, 3400.0), level=-25.0)
    scene = Scene(
        [6.0, 4.0, 2.5], 0.0, microphones, (moving, Source("tones:1", [1.0, 1, 1], level=-5)), 12.0,
        noise="diffuse", noise_slope=-3.0, degradations=spoiled,
    )  # fmt: skip
    recordings = Recordings(tmp_path, {"distribution": "general", "seed": 3, "scale": 1.0})
    with recordings.growing():
        recordings.add(0, scene, render(scene, lookup([], 2.0), 2.0))
        recordings.add(1, dataclasses.replace(scene, sources=scene.sources[1:]), render(scene, lookup([], 2.0), 2.0))
    row, still = truth(tmp_path)
    course = [float(delay) for delay in row["delays"].split()]
    assert row["moving"] == "1"
    np.testing.assert_allclose(course, delay_at(scene, 0.064 * np.arange(32)), atol=1e-3)
    expected = delay_at(scene, [0.0, 1.0, 2.0])
    found = [float(row[name]) for name in ("delay_first", "delay_samples", "delay_last")]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert found[2] - found[0] > 10
    assert (row["noise"], row["noise_slope"], row["sources"], row["snr"]) == ("diffuse", "-3.00", "2", "12.00")
    assert (row["spacing"], row["nominal_spacing"]) == ("0.2000", "0.1900")
    assert (row["clipped"], row["band_low"], row["band_high"], row["level"]) == ("0.0200", "300.0", "3400.0", "-25.00")
    assert (still["moving"], still["delays"], still["delay_first"]) == ("0", "", still["delay_last"])


def test_recordings_longer_than_what_a_bank_keeps_are_refused(banks: Path, tmp_path: Path) -> None:
    root = tmp_path / "corpora"
    make_librispeech(root, {"1089": [7.0], "61": [3.0]})
    build("test-clean", root, tmp_path / "cut")
    run = qkgcc("simulate", "--seconds", 5, "--bank", tmp_path / "cut", "--out", tmp_path / "rooms")
    assert run.returncode == 2
    assert "recordings of 5 s were asked for, and the bank cut keeps 3 s of an utterance" in run.stderr
    assert not (tmp_path / "rooms").exists()


def test_the_general_distribution_takes_several_banks(banks: Path, tmp_path: Path) -> None:
    run = qkgcc(
        "simulate", "--distribution", "general", "--count", 3, "--seconds", 0.5, "--out", tmp_path,
        "--bank", banks / "speech", "--bank", banks / "noise",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    spacings = [float(row["spacing"]) for row in truth(tmp_path)]
    assert len(set(spacings)) == 3
    assert all(0.02 < spacing < 2.1 for spacing in spacings)


def test_a_scene_is_shown_as_a_picture(tmp_path: Path) -> None:
    run = qkgcc("simulate", "--show", 7, "--plot", tmp_path / "scene.png")
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "scene.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_shows_what_is_rendered(banks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same scene with the same signals, of the banks that are given; without any it says that they are not."""
    drawn: list[tuple[Scene, str]] = []
    monkeypatch.setattr("qkgcc.plots.plot_scene", lambda scene, *_, title: drawn.append((scene, title)))
    common = ["--distribution", "general", "--seed", "5"]
    given = [*common, "--bank", str(banks / "speech"), "--bank", str(banks / "noise")]
    monkeypatch.chdir(tmp_path)
    for arguments in ([*given, "--show", "2"], [*common, "--show", "2"]):
        CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    qkgcc("simulate", *given, "--count", 3, "--seconds", 0.2, "--out", tmp_path / "rooms")
    (shown, title), (_, without) = drawn
    assert shown.sources[0].signal == truth(tmp_path / "rooms")[2]["signal"]
    assert title == "general, seed 5, scene 2"
    assert without == "general, seed 5, scene 2\n(no bank given: signals are synthetic)"


def test_the_picture_says_asked_and_measured_t60() -> None:
    scene = Scene(paper.TEST_ROOM, 0.4, paper.TEST_MICROPHONES, (Source("x", [1.0, 1, 1]),), snr=10)
    figure = plot_scene(scene, responses(scene, "cpu")[0][0])
    texts = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert texts[-1] == "T60 0.40 s asked (Sabine)"
    assert all("measured" in text for text in texts[:2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say where the recordings go"),
        (["--out", "x"], "no sources: give a bank"),
        (["--out", "x", "--bank", "nowhere"], "nowhere.json does not exist"),
        (["--show", "1", "--plot", "nowhere/a.png"], "the folder nowhere does not exist"),
        (["--show", "1", "--plot", "a.foo"], "cannot write a.foo: the suffix says the kind of picture, one of .png"),
        (["--show", "99999999999999999999"], "281474976710656"),
        (["--out", "a-file", "--bank", "BANKS/speech"], "cannot write recordings to a-file: it is a file"),
        (["--out", "a-file/x", "--bank", "BANKS/speech"], "cannot write recordings to a-file/x: Not a directory"),
    ],
)
def test_mistakes_are_one_sentence(arguments: list[str], message: str, banks: Path, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    run = qkgcc("simulate", *(text.replace("BANKS", str(banks)) for text in arguments), cwd=tmp_path)
    assert run.returncode == 2
    assert message in " ".join(run.stderr.replace("│", " ").split())
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]
    assert "Traceback" not in run.stderr


def test_a_gpu_that_is_not_there_is_said_before_anything_is_made(banks: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    run = qkgcc("simulate", "--engine", "gpu", "--bank", banks / "speech", "--out", tmp_path / "rooms")
    assert run.returncode == 2
    assert "the gpu engine needs a GPU" in run.stderr
    assert not (tmp_path / "rooms").exists()


class TestDecay:
    def test_an_exponential_decay_has_the_t60_it_was_made_with(self) -> None:
        time = np.arange(32000) / 16000
        noise = np.random.default_rng(0).standard_normal(32000)
        assert measured_t60(noise * 10 ** (-3 * time / 0.5), 16000) == pytest.approx(0.5, rel=0.05)

    def test_the_decay_falls_from_zero(self) -> None:
        decay = energy_decay(np.random.default_rng(0).standard_normal(1000))
        assert decay[0] == 0
        assert (np.diff(decay) <= 0).all()

    def test_sabine_overshoots_and_the_docs_say_so(self) -> None:
        """Asked 1.0 s, the image method gives about 1.3 s."""
        scene = Scene(paper.TEST_ROOM, 1.0, paper.TEST_MICROPHONES[:1], (Source("x", [1.0, 1, 1]),), snr=10)
        assert 1.15 < measured_t60(responses(scene, "cpu")[0][0, 0], 16000) < 1.6

    def test_a_response_too_short_to_decay_has_none(self) -> None:
        assert np.isnan(measured_t60(np.ones(1), 16000))
