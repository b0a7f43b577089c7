"""Tracks measured on `array-test`: what is counted, kept and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from typer.testing import CliRunner

from qkgcc.arrays import DirectionEstimator, Geometry, array
from qkgcc.arrays.grids import unit_vectors
from qkgcc.arrays.steering import far_delays
from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats
from qkgcc.lab.frozen import benchmark
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.scenes.array_scenes import KINDS
from qkgcc.lab.study import arrays, results
from qkgcc.lab.study.array_report import track_lines
from qkgcc.lab.study.locators import Followed, History, PhatTracks, Tracks
from qkgcc.tracks.motion import State
from qkgcc.tracks.tracker import Track

BENCHMARK = ArrayBenchmark.load()
TIMES = (np.arange(311) * 0.032 + 0.032).tolist()


def moment(id: int, time: float, place: np.ndarray) -> Track:
    flat = place * [1, 1, 0] / np.linalg.norm(place[:2])
    return Track(id, time, State(flat, np.zeros(3), np.eye(2) * 1e-3), 1.0, 1.0, 1.0)


class Oracle:
    """Of the whole, it knows everything of one scene; online, it loses its id after half of it."""

    name = "oracle"

    def __init__(self, index: int, version: int = 1) -> None:
        self.settings: dict[str, Any] = {"version": version}
        self.scene, self.asked = BENCHMARK.scene(index), 0

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed:
        self.asked += 1
        places = self.scene.places(np.array(TIMES))

        def history(ids: int) -> History:
            known = range(len(places))
            return [
                (t, [moment(s + ids * (t > 5), t, places[s, number]) for s in known]) for number, t in enumerate(TIMES)
            ]

        return Followed(history(0), history(10))


def save_silence(cache: Path, each: int) -> None:
    """Instead of the scenes, as if it had been rendered."""
    for index in range(each * len(KINDS)):
        if KINDS[index % len(KINDS)].compact:
            silence = np.zeros(BENCHMARK.shape(str(index)), dtype=np.int16)
            benchmark.save(BENCHMARK.path(str(index), "cpu", cache), silence)


def test_who_knows_everything_is_right_all_the_time(tmp_path: Path) -> None:
    save_silence(tmp_path, 1)
    scores = arrays.measure_tracks(Oracle(3), BENCHMARK, 3, cache=tmp_path)
    assert scores["whole"]["share"] == 1.0
    assert scores["whole"]["changes"] == 0.0
    assert scores["whole"]["false"] == 0.0
    minutes = scores["online"]["talker_seconds"] / 60
    assert scores["online"]["changes"] == pytest.approx(2 / minutes)  # of each of the two talkers
    spoken = sum(np.array(one["speaks"]).sum() for one in BENCHMARK.manifest["scenes"][3]["talkers"])
    assert scores["online"]["talker_seconds"] == pytest.approx(spoken, abs=0.2)


def test_a_measured_part_is_kept_and_shown(tmp_path: Path) -> None:
    save_silence(tmp_path, 2)
    one, changed = Oracle(0), Oracle(0, version=2)
    run = results.ReproductionRun(results=tmp_path, cache=tmp_path, scenes=1, say=lambda text: None)
    arrays.fill_tracks(run, [one])
    arrays.fill_tracks(run, [one])
    assert one.asked == 12
    rows = arrays.fill_tracks(replace(run, scenes=2), [one])
    assert one.asked == 24
    assert [row["scenes"] for row in rows if row["way"] == "whole"] == [[k, k + 18] for k in range(12)]
    lines = track_lines(rows)
    assert lines[0] == ["", "scenes", "oracle, whole", "oracle, online"]
    assert lines[1][0] == "respeaker4, 1 talker, static"
    assert lines[-1][:2] == ["all", "24"]
    counted = {line[0]: int(line[1]) for line in lines[1:]}
    assert counted["T60 below 0.6 s"] + counted["T60 from 0.6 s"] == counted["all"]
    first = next(row for row in rows if row["way"] == "whole")
    spoken = np.array(first["talker_seconds"])
    assert lines[1][2].startswith(f"{100 * np.array(first['share']) @ spoken / spoken.sum():.1f} %, ")
    arrays.fill_tracks(run, [changed])
    assert changed.asked == 12
    with pytest.raises(InputError, match="41 scenes of each kind; expected 1 to 40"):
        arrays.fill_tracks(replace(run, scenes=41), [])


def test_ours_and_the_baseline_follow_a_recording() -> None:
    """Ours is what users get: the estimator's tracks, and of a stream the same frames."""
    geometry, rate = array("circular:6:0.05"), 16000
    later = -far_delays(geometry, [(0, j) for j in range(1, 6)], unit_vectors([70.0], [0.0]))[:, 0]
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal(2 * rate))
    turned = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * rate, 1 / rate) * np.array([0.0, *later])[:, None])
    audio = 0.1 * np.fft.irfft(spectrum * turned)
    ours = Tracks("small", "general-small").follow(audio, rate, geometry)
    answer = DirectionEstimator(geometry, "general-small")(audio, rate, track=True)
    assert answer.tracks
    assert sum(len(tracks) for _, tracks in ours.whole) == sum(map(len, answer.tracks))
    for followed in (ours, PhatTracks().follow(audio, rate, geometry)):
        assert [time for time, _ in followed.online] == answer.times.tolist()
        for history in followed:
            (last,) = history[-1][1]
            assert last.azimuth == pytest.approx(70, abs=3)


def test_the_command_measures_and_shows(tmp_path: Path) -> None:
    save_silence(tmp_path, 1)
    arguments = ["reproduce", "tracks", "--scenes", "1", "--cache", str(tmp_path), "--results", str(tmp_path)]
    answer = CliRunner().invoke(app, [*arguments, "--method", "phat"])
    assert answer.exit_code == 0, answer.output
    assert "phat, whole" in answer.stdout
    content = results.read(tmp_path / "tracks.json")
    assert content is not None
    assert {row["way"] for row in content["rows"]} == {"whole", "online"}
    answer = CliRunner().invoke(app, [*arguments, "--method", "magic"])
    assert "there is no method magic for tracks; there are qkgcc, phat" in str(answer.exception)
