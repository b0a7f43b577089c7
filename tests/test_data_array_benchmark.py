"""`array-test` draws, renders and keeps what its manifest says."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkgcc.core.types import Floats

pytest.importorskip("torch")

from typer.testing import CliRunner

from qkgcc import InputError
from qkgcc.arrays import Geometry
from qkgcc.cli import app
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen import benchmark
from qkgcc.lab.frozen.array_set import EACH, SCENES, ArrayBenchmark
from qkgcc.lab.frozen.benchmark import scene_digest
from qkgcc.lab.scenes.array_scenes import BLOCKS, KINDS, directions, spoken_shares
from qkgcc.lab.study import arrays, results
from qkgcc.lab.study.array_report import difference_lines, errors_on_part, part_lines, parts, respeaker_lines
from rounding import ROUNDED_SAMPLES

BENCHMARK = ArrayBenchmark.load()


def test_the_set_has_40_scenes_of_each_of_18_kinds() -> None:
    assert len(BENCHMARK) == SCENES == 720 == EACH * len(KINDS)
    digests = [scene["digest"] for scene in BENCHMARK.manifest["scenes"]]
    assert len(set(digests)) == SCENES
    t60, snr = (np.array([scene[key] for scene in BENCHMARK.manifest["scenes"]]) for key in ("t60", "snr"))
    assert 0.2 <= t60.min() < 0.22
    assert 0.98 < t60.max() <= 1.0
    assert 0 <= snr.min() < 0.5
    assert 29.5 < snr.max() <= 30
    size = (Path(benchmark.__file__).parent / "benchmarks" / "array-test.json").stat().st_size
    assert size < 1_500_000


def test_the_scenes_are_drawn_as_they_were() -> None:
    for index in (0, 5, 11, 17, 300, 359, 719):
        drawn = BENCHMARK.scene(index)
        about = BENCHMARK.manifest["scenes"][index]
        assert scene_digest(drawn.scene) == about["digest"]
        np.testing.assert_allclose(about["microphones"], drawn.scene.microphones, atol=1e-4)
        truth = BENCHMARK.truth(index)
        np.testing.assert_allclose(truth.places, drawn.truth, atol=1e-4)
        np.testing.assert_allclose(truth.geometry.microphones, drawn.geometry.microphones, atol=1e-4)
        for source, active in zip(drawn.scene.sources, truth.active, strict=True):
            np.testing.assert_array_equal(
                np.round(spoken_shares(source.signal, BENCHMARK.utterances), 2) >= 0.5, active
            )


def test_a_scene_that_is_drawn_differently_is_an_error() -> None:
    changed = dataclasses.replace(BENCHMARK, manifest={**BENCHMARK.manifest, "seed": 1})
    with pytest.raises(InputError, match="scene 7 is drawn differently by this version"):
        changed.scene(7)


def test_only_test_speakers_are_in_it() -> None:
    assert {id.split("-")[0] for id in BENCHMARK.utterances} == {"61", "121", "237"}


def test_what_is_to_be_found_is_said_for_every_block() -> None:
    shares = []
    for index in range(36):
        truth = BENCHMARK.truth(index)
        assert truth.places.shape == (truth.kind.talkers, BLOCKS, 3)
        assert max(truth.talkers) <= truth.kind.talkers
        shares.append(truth.active.mean())
        if truth.kind.compact and truth.kind.talkers > 1:
            azimuth = directions(truth.places)[0]
            apart = np.abs((azimuth[0] - azimuth[1] + 180) % 360 - 180)
            assert apart.min() > 24
    assert 0.8 < np.mean(shares) < 1


def test_a_missing_scene_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"scene-003\.npy does not exist: render it"):
        BENCHMARK.load_scene(3, cache=tmp_path)
    with pytest.raises(InputError, match=r"scene-003\.npy does not exist: give the bank of test-clean"):
        BENCHMARK.render([], "cpu", only=["3"], cache=tmp_path)
    with pytest.raises(InputError, match="the reference engine differs"):
        BENCHMARK.render([], "reference", only=["3"], cache=tmp_path)


def test_a_scene_that_was_altered_is_never_read(tmp_path: Path) -> None:
    path = BENCHMARK.path("0", "cpu", tmp_path)
    path.parent.mkdir(parents=True)
    np.save(path, np.zeros(BENCHMARK.shape("0"), dtype=np.int16))
    with pytest.raises(InputError, match=r"scene-000\.npy is damaged, or not what was rendered"):
        BENCHMARK.load_scene(0, cache=tmp_path)


def test_another_bank_is_found_out() -> None:
    class Other:
        name, ids, content_hashes, samples = "dev-clean", ["1-2-3"], ["ab"], [5]

    with pytest.raises(InputError, match="is not in the bank dev-clean: give the complete bank of test-clean"):
        BENCHMARK.check_banks([Other()])  # type: ignore[list-item]


class Stubborn:
    """Answers 180, then 90 degrees, whatever it hears, and counts how often it is asked."""

    name = "stubborn"
    real_only = False

    def __init__(self, version: int = 1, *, positions: bool = False) -> None:
        self.settings: dict[str, Any] = {"version": version}
        self.positions = positions
        self.asked: list[int] = []

    def locate(
        self, audio: Floats, sample_rate: int, geometry: Geometry, talkers: Sequence[int], block: int
    ) -> list[Floats]:
        self.asked.append(len(geometry))
        return [np.array([[-1.0, 0, 0], [0, 1.0, 0]])[:count] for count in talkers]


def test_tables_show_what_was_measured() -> None:
    """Rows as a run would write them: one method is off by 2 degrees everywhere, the other by 8."""
    rows = []
    for name, off in (("fine", 2.0), ("rough", 8.0)):
        for number, kind in enumerate(KINDS[:6]):
            scenes = [number, number + len(KINDS)]
            counts = [sum(BENCHMARK.truth(i).talkers) for i in scenes]
            rows.append(
                {
                    "method": name,
                    "set": "array-test",
                    "cell": arrays.cell_of(kind),
                    "scenes": scenes,
                    "counts": counts,
                    "errors": [off] * (sum(counts) - 1) + [None],
                }
            )
    every = parts(BENCHMARK)
    assert sum(map(len, errors_on_part(rows, "fine", "respeaker4", every["all"]).values())) == sum(
        sum(row["counts"]) for row in rows[:6]
    )
    lively = errors_on_part(rows, "fine", "respeaker4", every["T60 from 0.6 s"])
    assert set(lively) == {
        i for row in rows[:6] for i in row["scenes"] if BENCHMARK.manifest["scenes"][i]["t60"] >= 0.6
    }
    lines = part_lines(rows, "respeaker4")
    assert lines[0] == ["", "scenes", "fine", "rough"]
    assert lines[1][:2] == ["all", "12"]
    assert lines[1][2].startswith("2.0°, 9")
    (first, *_) = difference_lines(rows, "fine")[1:]
    assert first[:6] == ["respeaker4", "all", "12", "rough: 8.00°", "2.00°", "0.25 (0.25 to 0.25)"]
    assert first[8] == "0.0 (0.0 to 0.0)"
    rows[-1] |= {"scenes": rows[-1]["scenes"][:1], "counts": rows[-1]["counts"][:1]}
    rows[-1]["errors"] = rows[-1]["errors"][: rows[-1]["counts"][0]]
    assert part_lines(rows, "respeaker4")[1][1] == "11"  # only what both were measured on


def test_real_recordings_are_scored(corpora: Path) -> None:
    files = arrays.respeaker_files(corpora)
    assert [len(sources) for _, sources in files] == [1] * 4 + [2] * 4 + [3] * 4
    blocks, whole = arrays.measure_respeaker(Stubborn(), *files[0])
    np.testing.assert_allclose(whole, [0.0], atol=1e-9)
    assert 3 <= len(blocks) <= 5
    _, whole = arrays.measure_respeaker(Stubborn(), *files[4])
    np.testing.assert_allclose(whole, [0.0, 135.0], atol=1e-9)
    _, whole = arrays.measure_respeaker(Stubborn(), *files[8])
    assert sorted(whole)[0] == pytest.approx(0)
    assert np.isinf(whole).sum() == 1


def save_silence(cache: Path, each: int) -> None:
    """Instead of the scenes, as if it had been rendered."""
    for index in range(each * len(KINDS)):
        silence = np.zeros(BENCHMARK.shape(str(index)), dtype=np.int16)
        benchmark.save(BENCHMARK.path(str(index), "cpu", cache), silence)


def test_a_measured_part_is_kept_and_extended(tmp_path: Path) -> None:
    """The first of each kind, silence instead of the scenes: what counts is what is called for, and what is written."""
    one, changed = Stubborn(), Stubborn(version=2)
    save_silence(tmp_path, 2)
    run = results.ReproductionRun(results=tmp_path, cache=tmp_path, scenes=1, say=lambda text: None)
    arrays.fill(run, [one])
    assert one.asked == [4] * 6 + [8] * 6
    arrays.fill(run, [one])
    assert len(one.asked) == 12
    rows = arrays.fill(replace(run, scenes=2), [one])
    assert len(one.asked) == 24
    assert rows[0]["scenes"] == [0, 18]
    arrays.fill(run, [changed])
    assert len(changed.asked) == 12
    rows = arrays.fill(replace(run, from_checkpoints=True), [changed])
    assert len(changed.asked) == 24
    assert rows[0]["scenes"] == [0]
    with pytest.raises(InputError, match="41 scenes of each kind; expected 1 to 40"):
        arrays.fill(replace(run, scenes=41), [])


def test_directions_and_positions_of_one_name_keep_their_own_rows(tmp_path: Path) -> None:
    save_silence(tmp_path, 1)
    run = results.ReproductionRun(results=tmp_path, cache=tmp_path, scenes=1, say=lambda text: None)
    directions, positions = Stubborn(), Stubborn(version=7, positions=True)
    rows = arrays.fill(run, [directions, positions])
    assert (len(directions.asked), positions.asked) == (12, [6] * 6)
    assert {(row["cell"]["array"], row["settings"]["version"]) for row in rows} == {
        ("respeaker4", 1),
        ("circular:8:0.1", 1),
        ("distributed", 7),
    }
    arrays.fill(run, [directions, positions])
    assert len(directions.asked) + len(positions.asked) == 18  # neither is stale for the other's sake
    changed = Stubborn(version=8, positions=True)
    rows = arrays.fill(run, [directions, changed])
    assert (len(directions.asked), len(changed.asked), len(rows)) == (12, 6, 18)


def test_the_command_measures_and_shows(tmp_path: Path) -> None:
    save_silence(tmp_path, 1)
    arguments = ["reproduce", "arrays", "--scenes", "1", "--cache", str(tmp_path), "--results", str(tmp_path)]
    answer = CliRunner().invoke(app, [*arguments, "--method", "gcc-phat-ls"])
    assert answer.exit_code == 0
    assert "distributed: median error" in answer.stdout
    content = results.read(tmp_path / "arrays.json")
    assert content is not None
    assert [row["scenes"] for row in content["rows"]] == [[12], [13], [14], [15], [16], [17]]
    answer = CliRunner().invoke(app, [*arguments, "--method", "magic"])
    assert isinstance(answer.exception, InputError)
    assert "there is no method magic for arrays" in str(answer.exception)


@pytest.mark.skipif("QKGCC_BANK" not in os.environ, reason="QKGCC_BANK does not name a bank of test-clean")
def test_a_scene_comes_back_as_it_was_rendered(tmp_path: Path) -> None:
    bank = Bank.load(os.environ["QKGCC_BANK"])
    off = BENCHMARK.render([bank], "cpu", only=["0", "1"], cache=tmp_path)
    assert max(off.values()) < ROUNDED_SAMPLES


def test_rows_of_real_recordings_become_a_line() -> None:
    row = {"method": "m", "set": "respeaker", "scenes": ["x"], "counts": [4], "errors": [1.0, 2.0, 3.0, 9.0]}
    rows = [{**row, "cell": {"talkers": str(n)}, "whole": [[4.0] * (n - 1) + [11.0]]} for n in (1, 2, 3)]
    assert respeaker_lines(rows)[1] == ["m", "11.0°", "75 % of 4", "1 of 2", "2 of 3", "100 % of 4", "100 % of 4"]
