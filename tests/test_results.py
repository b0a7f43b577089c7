import csv
import dataclasses
import io
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from qkgcc import DelayEstimate, DelayEstimator, InputError
from signals import delayed_noise


@pytest.fixture(scope="module")
def answer() -> DelayEstimate:
    """Half a second of sound at delay 4, half a second of silence."""
    x = 0.1 * delayed_noise(4, 16000)[0]
    x[:, 8000:] = 0
    return DelayEstimator("phat", spacing=0.2)(x, 16000)


def test_an_estimate_is_frozen(answer: DelayEstimate) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.method = "cc"  # type: ignore[misc]


def test_json_is_one_object_with_the_names_of_the_fields(answer: DelayEstimate) -> None:
    record = json.loads(answer.to_json())
    assert set(record) == {field.name for field in dataclasses.fields(answer)} | {"positive_side"}
    assert record["sample_rate"] == 16000
    assert record["kind"] == "correlation"
    assert len(record["times"]) == len(record["delay_samples"]) == len(record["curve"])
    assert len(record["lags"]) == len(record["curve"][0])
    assert record["summary"]["delay_samples"] == pytest.approx(4, abs=0.05)
    assert "\n" not in answer.to_json()
    assert "curve" not in json.loads(answer.to_json(curve=False))


def test_json_in_pieces_is_what_the_json_module_writes() -> None:
    x = 0.1 * delayed_noise(4, 5 * 16000)[0]
    x[:, 16000:40000] = 0
    for options in ({"method": "general-small", "max_sources": 2}, {"method": "phat", "spacing": 0.3}):
        answer = DelayEstimator(**options)(x, 16000)  # type: ignore[arg-type]
        pieces = list(answer.json_pieces())
        assert max(map(len, pieces)) < 50_000
        record = json.loads(answer.to_json())
        assert "".join(pieces) == answer.to_json() == json.dumps(record, allow_nan=False)
        assert len(record["curve"]) == len(answer.curve)
        np.testing.assert_allclose(record["curve"], answer.curve, atol=6e-6)


def test_no_estimate_is_null_in_json_and_empty_in_csv(answer: DelayEstimate) -> None:
    record = json.loads(answer.to_json())
    assert record["delay_samples"][-1] is None
    assert record["delay_seconds"][-1] is None
    assert record["angle"][-1] is None
    assert record["confidence"][-1] == 0
    rows = list(csv.DictReader(io.StringIO(answer.to_csv())))
    assert len(rows) == len(answer.times)
    assert rows[-1]["delay_samples"] == rows[-1]["angle"] == ""
    assert float(rows[0]["delay_samples"]) == pytest.approx(4, abs=0.1)


def test_without_a_spacing_there_is_no_angle() -> None:
    plain = DelayEstimator("phat")(0.1 * delayed_noise(4, 4096)[0], 16000)
    assert json.loads(plain.to_json())["angle"] is None
    assert json.loads(plain.to_json())["summary"]["angle"] is None
    assert next(csv.DictReader(io.StringIO(plain.to_csv())))["angle"] == ""


def test_files_hold_what_is_returned(answer: DelayEstimate, tmp_path: Path) -> None:
    assert (tmp_path / "a.json").write_text("old")
    text = answer.to_json(tmp_path / "a.json")
    assert (tmp_path / "a.json").read_text() == text + "\n"
    text = answer.to_csv(tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.json"]


def test_a_folder_that_does_not_exist_is_said(answer: DelayEstimate, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder .*nowhere does not exist"):
        answer.to_csv(tmp_path / "nowhere" / "a.csv")


def test_a_fault_while_writing_leaves_the_old_file_and_nothing_else(
    answer: DelayEstimate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(InputError, match=r"cannot write .*: No space left on device"):
        answer.to_json(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_printing_says_the_summary(answer: DelayEstimate) -> None:
    assert "4.00 samples (250 us, 25.4 degrees)" in str(answer)


def test_json_of_many_frames_is_written_in_little_memory(answer: DelayEstimate) -> None:
    curve = np.random.default_rng(0).random((2000, len(answer.lags)), dtype=np.float32)
    long = dataclasses.replace(answer, curve=curve)
    tracemalloc.start()
    written = sum(map(len, long.json_pieces()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert written > 300_000
    assert peak < 1_000_000


def test_several_sources_are_in_the_csv_too() -> None:
    x = 0.1 * delayed_noise(4, 16000)[0]
    answer = DelayEstimator("general-small", spacing=0.3, max_sources=2)(x, 16000)
    assert answer.source_delays is not None
    assert answer.source_weights is not None
    rows = list(csv.DictReader(io.StringIO(answer.to_csv())))
    for number in (1, 2):
        for name, values in (("samples", answer.source_delays), ("weight", answer.source_weights)):
            found = [float(row[f"source_{number}_{name}"] or "nan") for row in rows]
            np.testing.assert_allclose(found, values[:, number - 1], atol=6e-5)
    assert "source_1_samples" not in DelayEstimator("general-small", spacing=0.3)(x, 16000).to_csv()


def test_the_confidence_of_a_whole_recording_is_never_said_to_be_calibrated() -> None:
    answer = DelayEstimator("general-small", spacing=0.3)(0.1 * delayed_noise(4, 16000)[0], 16000)
    record = json.loads(answer.to_json(curve=False))
    assert record["calibrated"]
    assert record["summary"]["calibrated"] is False
