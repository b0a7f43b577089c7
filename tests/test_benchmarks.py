"""What the benchmarks say of themselves is so: turns, memory of a process of its own, sizes that are known or not."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from benchmarks import asked, footprint, plain_phat, runtime, runtime_figure, standalone_speed, timing
from benchmarks.timing import RESULTS, interleaved


@pytest.mark.parametrize(("warm", "turn"), [(0, ["a", "b"]), (1, ["a", "a", "b", "b"])])
def test_functions_take_turns(warm: int, turn: list[str]) -> None:
    calls: list[str] = []
    seconds = interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, 3, warm=warm)  # type: ignore[misc]
    assert calls == ["a", "b"] + 3 * turn
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_the_picture_has_every_row_of_the_table() -> None:
    ways = [(plain_phat.NAME, "NumPy", 55.3), ("general", "compiled", 73.5), ("general", "onnxruntime", 73.5)]
    rows = [
        {"method": method, "run by": by, "ms a frame": 0.1 * 2**i, runtime.RIGHT: right}
        for i, (method, by, right) in enumerate(ways)
    ]
    (ax,) = runtime_figure.draw(rows).axes
    drawn = [line.get_xydata()[0] for line in ax.lines if len(line.get_xdata()) == 1]
    expected = [(row["ms a frame"], row[runtime.RIGHT]) for row in rows]
    np.testing.assert_allclose(drawn, expected)
    assert {text.get_text() for text in ax.texts} == {row["method"] for row in rows}
    assert ax.get_xscale() == "log"


def test_memory_is_that_of_the_estimating_process() -> None:
    ballast = np.ones(40_000_000)  # 320 MB that must not count
    assert 50 < footprint.peak_memory(1) < 300
    assert ballast[0]


def test_what_is_there_already_does_not_count_as_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {"numpy": 17.0, "scipy": 35.0, "qkgcc": 2.0, "soundfile": 1.3, "soxr": 0.2}
    monkeypatch.setattr(footprint, "downloads", lambda: (2.0, others))
    rows, total = footprint.download_rows()
    assert [row["measured"] for row in rows] == pytest.approx([2.0, 1.5, 3.5, 52.0])
    assert total == pytest.approx(3.5)
    assert rows[1]["what"].endswith("2 other packages (soundfile 1.30 MB, soxr 0.20 MB)")


def test_a_size_that_is_not_known_is_not_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "downloads", lambda: (2.0, None))
    rows, total = footprint.download_rows()
    assert total is None
    assert rows[-1]["measured"] is None
    assert asked.line("light install", "MB", total, 40.0, 33.0)["asked is"] == "not known"


def test_a_table_and_its_json_name_the_same_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    monkeypatch.setattr(timing, "commit", lambda: "clean" if not list(tmp_path.iterdir()) else "dirty")
    rows = [{"method": "phat", "ms": 0.12345, "right": "6 of 6", "times": "1.50"}]
    timing.write("a", "A", "python -m a", list(rows[0]), rows, [], formats={"ms": ".3f"})
    record, table = json.loads((tmp_path / "a.json").read_text()), (tmp_path / "a.md").read_text()
    assert record["machine"]["git"] == "clean"
    assert "git clean" in table
    assert record["rows"] == [{"method": "phat", "ms": 0.12345, "right": "6 of 6", "times": 1.5}]
    assert "| phat | 0.123 | 6 of 6 | 1.50 |" in table


def test_what_was_asked_is_said_to_be_met_or_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    lines = [asked.line("one frame", "ms", 0.63, 1.5, 0.6), asked.line("NGCC", "times", 77.0, 30.0, None, least=True)]
    timing.write("a", "A", "python -m a", ["what"], [{"what": "one frame"}], [], asked=lines)
    table = (tmp_path / "a.md").read_text()
    assert "| one frame | ms, at most | 0.63 | 1.5 | 0.6 | met | MISSED |" in table
    assert "| NGCC | times, at least | 77 | 30 | - | met | - |" in table


def test_every_figure_that_was_asked_of_a_frame_is_in_the_table() -> None:
    line = {"ms a frame": 0.4, runtime.OF_MANY: 0.5, "NGCC / this": 20.0, "unfolded QK-GCC / this": 5.0}
    names = ("general", "general-medium", "general-small")
    ways = [*((name, "compiled") for name in (*names, "QK-GCC")), *((name, "onnxruntime") for name in names)]
    lines = [{"method": name, "run by": by, **line} for name, by in ways]
    said = [(one["asked"], one["aim"], one["asked is"], one["aim is"]) for one in runtime.required(lines)]
    assert said == [
        (1.5, 0.6, "met", "met"),
        (30.0, None, "MISSED", "-"),
        (0.5, 0.25, "met", "MISSED"),
        (0.45, 0.25, "MISSED", "MISSED"),
        (0.45, 0.25, "MISSED", "MISSED"),
        (2.5, None, "met", "-"),
        (0.8, None, "met", "-"),
        (3.0, 6.0, "met", "MISSED"),
    ]


@pytest.mark.slow
def test_one_run_has_every_figure_that_was_asked_and_says_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [
        (plain_phat.NAME, "NumPy", "gcc-phat"),
        ("general", "compiled", "general"),
        ("general", "onnxruntime", "general"),
        ("general-medium", "compiled", "general-medium"),
        ("general-small", "compiled", "general-small"),
        ("general-small", "onnxruntime", "general-small"),
        ("QK-GCC", "compiled", "qkgcc"),
        ("QK-GCC", "torch", "qkgcc"),
        ("QK-GCC", runtime.UNFOLDED, "qkgcc"),
        ("NGCC", "torch", "ngcc"),
    ]
    monkeypatch.setattr(runtime, "rows", lambda folder: [runtime.Row(*way, run=np.sum) for way in ways])
    monkeypatch.setattr(runtime, "ROUNDS", {1: 1, runtime.BATCH: 1})
    monkeypatch.setattr(runtime_figure, "main", lambda: None)
    monkeypatch.setattr(timing, "RESULTS", tmp_path)
    monkeypatch.setattr(timing, "commit", lambda: "clean" if not list(tmp_path.iterdir()) else "dirty")
    monkeypatch.setattr(footprint, "downloads", lambda: (2.0, {"numpy": 17.0, "scipy": 35.0, "soxr": 0.2}))
    monkeypatch.setattr(footprint.measured, "__defaults__", (1, 1))  # a minute, one start
    runtime.main()
    runtime_record, footprint_record = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("runtime", "footprint")
    )
    by_what = {line["what"]: (line["asked"], line["aim"]) for line in runtime_record["asked"]}
    assert by_what == {
        "general, one frame": (1.5, 0.6),
        "NGCC / general, one frame": (30.0, None),
        "general-small, one frame": (0.5, 0.25),
        "general, a frame of 64": (0.45, 0.25),
        "general-medium, which arrays take, a frame of 64": (0.45, 0.25),
        "general as ONNX, one frame": (2.5, None),
        "general-small as ONNX, one frame": (0.8, None),
        "unfolded QK-GCC in torch / folded, one frame": (3.0, 6.0),
        "import, load and first estimate": (1.0, 0.5),
        "peak memory, 1 min of stereo": (300.0, 200.0),
        "peak memory, 1 min of stereo, as JSON": (300.0, 200.0),
        "light install over NumPy and SciPy": (40.0, 33.0),
    }
    assert all(line["measured"] is not None for line in runtime_record["asked"])
    assert runtime_record["asked"][8:] == footprint_record["asked"]
    assert runtime_record["machine"]["git"] == footprint_record["machine"]["git"] == "clean"
    assert "is not measured in this run: it is stored" in (tmp_path / "runtime.md").read_text()


def test_the_textbooks_method_finds_the_delay() -> None:
    assert (plain_phat.delays(runtime.talking(8), 23) == 5).all()


def test_the_document_says_of_speed_what_its_table_says() -> None:
    rows = json.loads((RESULTS / "standalone_speed.json").read_text())["rows"]
    document = (RESULTS.parents[1] / "docs" / "guide" / "onnx.md").read_text()
    assert standalone_speed.conclusion(rows) in document
    slower = [{**row, f"times {standalone_speed.PACKAGE}": 9.0} for row in rows]
    assert "takes 9.0 to 9.0 times as long" in standalone_speed.conclusion(slower)


def test_the_document_says_of_transforms_what_their_table_says() -> None:
    rows = json.loads((RESULTS / "standalone_transform.json").read_text())["rows"]
    document = (RESULTS.parents[1] / "docs" / "guide" / "onnx.md").read_text()
    assert standalone_speed.conclusion_of_transforms(rows) in document
    slow = [row | {"times two small products": 5.0} if row["as"] == "the operator DFT" else row for row in rows]
    assert "to 5.0 times as long" in standalone_speed.conclusion_of_transforms(slow)
