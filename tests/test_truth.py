"""The truth about recordings, as people write it down, and `qkgcc evaluate`, which compares with it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkgcc.core.errors import InputError
from qkgcc.delay.truth import Truth


def written(folder: Path, text: str) -> Truth:
    path = folder / "truth.csv"
    path.write_text(text)
    return Truth.read(path)


def test_one_delay_for_a_recording_or_for_its_parts_or_a_course(tmp_path: Path) -> None:
    truth = written(tmp_path, "file,delay_samples\na.wav,3.5\nb.wav,-2\n")
    np.testing.assert_array_equal(truth.at("a.wav", [0, 99], 16000), [3.5, 3.5])
    truth = written(tmp_path, "file,start,end,delay_samples\na.wav,0,1,3\na.wav,2,3,-4\n")
    np.testing.assert_array_equal(truth.at("a.wav", [0.5, 1.5, 2.5, 3.5], 16000), [3, np.nan, -4, np.nan])
    truth = written(tmp_path, "time,file,delay_samples\n2,a.wav,10\n1,a.wav,0\n")
    np.testing.assert_allclose(truth.at("a.wav", [0.5, 1.0, 1.5, 2.0, 2.5], 16000), [np.nan, 0, 5, 10, np.nan])


def test_seconds_become_samples_of_the_recording(tmp_path: Path) -> None:
    truth = written(tmp_path, "file,delay_seconds\na.wav,0.001\n")
    assert truth.at("a.wav", [0.0], 48000)[0] == pytest.approx(48)


def test_recordings_are_found_by_path_or_by_name(tmp_path: Path) -> None:
    truth = written(tmp_path, "file,delay_samples\nsub/a.wav,1\nb.wav,2\n")
    assert truth.name_of(tmp_path / "sub" / "a.wav") == "sub/a.wav"
    assert truth.name_of(Path("/elsewhere/b.wav")) == "b.wav"
    assert truth.name_of(tmp_path / "c.wav") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "truth.csv is empty; expected columns file and delay_samples"),
        ("file,delay\na,1\n", "has the columns file, delay; expected"),
        ("file,delay_samples\n", "has no rows"),
        ("file,delay_samples\na,x\n", "line 2: delay_samples is 'x'; expected a number"),
        ("file,delay_samples\na,1\nb,\n", "line 3: delay_samples is ''"),
        ("file,delay_samples\n,1\n", "line 2: the file is missing"),
        ("file,start,end,delay_samples\na,2,1,0\n", "ends at 1 s, before it starts at 2 s"),
        ("file,delay_samples\na,3,5\n", "line 2: more cells than columns"),
        ("file,delay_samples\na,3\na,4\n", "a has two delays from 0 s on"),
        ("file,start,end,delay_samples\na,0,2,1\na,1,3,2\n", "a has two delays from 1 s on"),
        ("file,time,delay_samples\na,1,1\na,1,2\n", "a has two delays at the same time"),
    ],
)
def test_a_bad_table_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        written(tmp_path, text)


def test_no_table_at_all_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        Truth.read(tmp_path / "none.csv")


# The command


def evaluate(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qkgcc", "evaluate", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    rng = np.random.default_rng(0)
    rows = ["file,start,end,delay_samples"]
    for name, rate, delay in (("near.wav", 16000, 3), ("far.wav", 48000, -21)):
        x = rng.standard_normal(2 * rate + 100)
        pair = np.stack([x[50 : 50 + 2 * rate], x[50 + delay : 50 + delay + 2 * rate]])
        soundfile.write(folder / name, 0.1 * pair.T, rate)
        rows.append(f"{name},,,{delay}")
    # Half of this one is labelled, and wrongly so.
    soundfile.write(folder / "wrong.wav", 0.1 * rng.standard_normal((32000, 2)), 16000)
    rows.append("wrong.wav,0,1,0")
    (folder / "truth.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_methods_are_scored_against_the_truth(recordings: Path) -> None:
    done = evaluate(
        *(recordings / name for name in ("near.wav", "far.wav")),
        *("--truth", recordings / "truth.csv", "-m", "phat", "-m", "cc", "--spacing", 0.3, "--format", "json"),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["method"] for row in rows] == ["phat", "cc"]
    for row in rows:
        assert row["acc10cm"] == 100
        assert row["within_1_sample"] == 100
        assert row["mae"] < 0.05
        assert row["n"] == row["answered"] == 60


def test_only_labelled_frames_count_and_wrong_answers_show(recordings: Path) -> None:
    done = evaluate("--truth", recordings / "truth.csv", "--spacing", 0.3, "--by-file", "--format", "csv")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("file,method,n,answered,rmse,mae,acc10cm,within_1_sample")
    rows = {line.split(",")[0]: line.split(",") for line in lines[1:]}
    assert set(rows) == {"near.wav", "far.wav", "wrong.wav", "all"}
    assert int(rows["wrong.wav"][2]) < int(rows["near.wav"][2])
    assert float(rows["wrong.wav"][6]) < 80
    assert float(rows["near.wav"][6]) == 100


def test_delays_beyond_what_is_searched_are_warned_of(recordings: Path) -> None:
    done = evaluate(recordings / "near.wav", "--truth", recordings / "truth.csv", "--spacing", 0.02)
    assert done.returncode == 0
    assert "larger than the search range" in done.stderr
    fine = evaluate(recordings / "near.wav", "--truth", recordings / "truth.csv", "--spacing", 0.3)
    assert fine.stderr == ""


def test_a_recording_that_fails_leaves_the_others(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_text(f"file,delay_samples\nnone.wav,0\n{recordings / 'near.wav'},3\n")
    done = evaluate("--truth", tmp_path / "truth.csv", "--spacing", 0.3)
    assert done.returncode == 1
    assert "1 of 2 recordings failed" in done.stderr
    assert "general" in done.stdout


def test_a_recording_without_truth_is_one_sentence(recordings: Path, tmp_path: Path) -> None:
    (tmp_path / "truth.csv").write_text("file,delay_samples\nother.wav,0\n")
    done = evaluate(recordings / "near.wav", "--truth", tmp_path / "truth.csv")
    assert done.returncode == 2
    assert "truth.csv names near.wav" in done.stderr
    assert "Traceback" not in done.stderr
