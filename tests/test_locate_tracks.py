"""`qkgcc locate --track`: two who take turns around an array, from the recording to RTTM."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from qkgcc.arrays import array
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.grids import unit_vectors
from qkgcc.arrays.result import DirectionEstimate
from qkgcc.arrays.steering import far_delays
from qkgcc.cli import app
from qkgcc.core.errors import InputError

pytestmark = pytest.mark.numeric

RATE, SECONDS = 16000, 1.5
TURNS = (60.0, -100.0, 60.0)
NAME = "circular:6:0.05"


def turns(name: str, elevation: float = 0.0) -> np.ndarray:
    """Noise from one direction after the other, each microphone with its exact delay, and a little noise of its own."""
    geometry, rng = array(name), np.random.default_rng(3)
    n = int(SECONDS * RATE)
    frequencies = np.fft.rfftfreq(n, 1 / RATE)
    parts = []
    for azimuth in TURNS:
        # Against microphone 0: a pair (0, j) has a positive delay where 0 hears it later.
        pairs = [(0, j) for j in range(1, len(geometry))]
        later = np.concatenate([[0], -far_delays(geometry, pairs, unit_vectors([azimuth], [elevation]))[:, 0]])
        spectrum = np.fft.rfft(rng.standard_normal(n)) * np.exp(-2j * np.pi * frequencies * later[:, None])
        parts.append(np.fft.irfft(spectrum, n))
    whole = np.concatenate(parts, axis=1)
    return np.asarray(0.1 * (whole + 0.05 * rng.standard_normal(whole.shape)))


@pytest.fixture(scope="module")
def followed() -> DirectionEstimate:
    return DirectionEstimator(array(NAME), "general-small", threads=1)(turns(NAME), RATE, track=True)


def test_two_who_take_turns_are_two_tracks(followed: DirectionEstimate) -> None:
    assert followed.tracks is not None
    assert len(followed.tracks) == 2
    found = followed.segments
    assert [one.id for one in found] == [1, 2, 1]
    for number, (one, azimuth) in enumerate(zip(found, TURNS, strict=True)):
        assert one.azimuth == pytest.approx(azimuth, abs=3)
        assert one.start == pytest.approx(SECONDS * number, abs=0.35)
        assert one.start + one.duration == pytest.approx(SECONDS * (number + 1), abs=0.35)


def test_tracks_change_nothing_else(followed: DirectionEstimate) -> None:
    plain = DirectionEstimator(array(NAME), "general-small", threads=1)(turns(NAME), RATE)
    assert plain.tracks is None
    assert plain.directions == followed.directions
    np.testing.assert_array_equal(plain.azimuth, followed.azimuth)


def test_an_array_in_space_follows_elevations_too() -> None:
    name = "tetrahedral:0.08"
    found = DirectionEstimator(array(name), "general-small", threads=1)(turns(name, 35.0), RATE, track=True)
    assert found.rising
    assert [round((one.elevation or 0) / 5) * 5 for one in found.segments] == [35, 35, 35]


def at_once(name: str) -> np.ndarray:
    """Two who speak all the time."""
    x = turns(name)
    n = x.shape[1] // 3
    return np.tile(x[:, :n] + x[:, n : 2 * n], 3)


def test_as_many_are_followed_as_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "both.wav"
    soundfile.write(path, at_once(NAME).T, RATE)
    assert "2 sources followed" in run(path, "--track")
    assert "2 sources followed" in run(path, "--track", "--sources", "auto")
    assert "1 source followed" in run(path, "--track", "--sources", "1")
    rows = list(csv.DictReader(run(path, "--track", "--sources", "1", "--format", "csv").splitlines()))
    assert len({row["time"] for row in rows}) == len(rows)


def test_tracks_of_a_line_say_which_directions_sound_the_same(tmp_path: Path) -> None:
    name, path = "linear:4:0.05", tmp_path / "line.wav"
    soundfile.write(path, turns(name)[:, : int(SECONDS * RATE)].T, RATE)
    options = ["--array", name, "-m", "general-small", "--track"]
    table = CliRunner().invoke(app, ["locate", str(path), *options], env={"COLUMNS": "120"}).stdout
    assert "from the line" in table
    rows = list(
        csv.DictReader(CliRunner().invoke(app, ["locate", str(path), *options, "--format", "csv"]).stdout.splitlines())
    )
    live = CliRunner().invoke(app, ["listen", "--from", str(path), "--speed", "0", *options, "--format", "csv"]).stdout
    for one in [*rows, *csv.DictReader(live.splitlines())]:
        azimuth, other, cone = (float(one[key]) for key in ("azimuth", "also_azimuth", "cone"))
        assert azimuth == pytest.approx(TURNS[0], abs=5)
        assert abs(azimuth) + abs(other) == pytest.approx(180, abs=0.1)
        assert cone == pytest.approx(90 - azimuth, abs=0.1)
        assert one["elevation"] == ""
    answer = DirectionEstimator(array(name), "general-small", threads=1)(path, track=True)
    assert f"{answer.segments[0].azimuth:+.1f} or {answer.segments[0].also_azimuth:+.1f}" in table
    record = json.loads(answer.to_json())
    assert record["tracks"][0]["elevation"] is None
    assert record["segments"][0]["cone"] == answer.segments[0].cone


def test_flat_arrays_have_no_elevations_in_their_tracks(recording: Path, followed: DirectionEstimate) -> None:
    assert [one.elevation for one in followed.segments] == [None] * 3
    options = ["--from", str(recording), "--speed", "0", "--array", NAME, "-m", "general-small", "--track"]
    rows = list(csv.DictReader(CliRunner().invoke(app, ["listen", *options, "--format", "csv"]).stdout.splitlines()))
    assert rows
    assert {(row["elevation"], row["cone"], row["also_azimuth"]) for row in rows} == {("", "", "")}
    line = CliRunner().invoke(app, ["listen", *options, "--format", "json"]).stdout.splitlines()[-1]
    assert {track["elevation"] for row in json.loads(line)["tracks"] for track in row} == {None}


def test_live_as_many_are_followed_as_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "both.wav"
    soundfile.write(path, at_once(NAME).T, RATE)
    options = ["--from", str(path), "--speed", "0", "--array", NAME, "-m", "general-small", "--format", "csv"]
    for sources, count in (((), 2), (("--sources", "1"), 1)):
        shown = CliRunner().invoke(app, ["listen", *options, "--track", *sources]).stdout
        assert len({row["track"] for row in csv.DictReader(shown.splitlines())}) == count
    refused = CliRunner().invoke(app, ["listen", *options, "--sources", "1"])
    assert "--sources limits the sources that --track follows: give --track as well" in str(refused.exception)


def test_classical_methods_cannot_be_followed() -> None:
    with pytest.raises(InputError, match="phat gives no distributions to follow: tracks need a network"):
        DirectionEstimator(array(NAME), "phat")(turns(NAME), RATE, track=True)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("turns") / "two talkers.wav"
    soundfile.write(path, turns(NAME).T, RATE)
    return path


def run(recording: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["locate", str(recording), "--array", NAME, "-m", "general-small", *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rttm_says_who_speaks_when(recording: Path, followed: DirectionEstimate) -> None:
    lines = run(recording, "--track", "--format", "rttm").splitlines()
    assert [line.split()[:3] for line in lines] == [["SPEAKER", "two_talkers", "1"]] * 3
    assert [float(line.split()[3]) for line in lines] == pytest.approx(
        [one.start for one in followed.segments], abs=0.05
    )


def test_every_moment_is_in_csv_and_json(recording: Path) -> None:
    rows = list(csv.DictReader(run(recording, "--track", "--format", "csv").splitlines()))
    assert {row["track"] for row in rows} == {"1", "2"}
    assert {row["elevation"] for row in rows} == {""}  # a flat array is followed in its plane
    answer = json.loads(run(recording, "--track", "--format", "json"))
    assert [one["id"] for one in answer["tracks"]] == [1, 2]
    assert sum(len(one["time"]) for one in answer["tracks"]) == len(rows)
    assert [one["elevation"] for one in answer["segments"]] == [None] * 3


@pytest.mark.needs("matplotlib")
def test_the_table_and_the_picture_show_tracks(recording: Path, tmp_path: Path) -> None:
    picture = tmp_path / "tracks.png"
    shown = run(recording, "--track", "--plot", str(picture))
    assert "2 sources followed" in shown
    assert picture.stat().st_size > 10_000


def test_rttm_needs_tracks(recording: Path) -> None:
    result = CliRunner().invoke(app, ["locate", str(recording), "--array", NAME, "--format", "rttm"])
    assert isinstance(result.exception, InputError)
    assert "give --track as well" in str(result.exception)
