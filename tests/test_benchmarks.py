"""What the benchmarks say of themselves is so: turns, memory of a process of its own, sizes that are known or not."""

import json

import numpy as np
import pytest
from benchmarks import footprint, runtime_figure
from benchmarks.timing import RESULTS, interleaved


@pytest.mark.parametrize(("warm", "turn"), [(0, ["a", "b"]), (1, ["a", "a", "b", "b"])])
def test_functions_take_turns(warm: int, turn: list[str]) -> None:
    calls: list[str] = []
    seconds = interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, 3, warm=warm)  # type: ignore[misc]
    assert calls == ["a", "b"] + 3 * turn
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3}


def test_the_picture_has_every_row_of_the_table() -> None:
    rows = json.loads((RESULTS / "runtime.json").read_text())["rows"]
    (ax,) = runtime_figure.draw(rows).axes
    drawn = [line.get_xydata()[0] for line in ax.lines if len(line.get_xdata()) == 1]
    expected = [(float(row["ms a frame"]), float(row["within 10 cm"].split()[0])) for row in rows]
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
    own, light, both, given = (row["measured"] for row in footprint.download_rows())
    assert (own, both, given) == ("2.00 MB", "3.50 MB", "52.0 MB")
    assert light == "1.50 MB (soundfile 1.30 MB, soxr 0.20 MB)"


def test_a_size_that_is_not_known_is_not_invented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint, "downloads", lambda: (2.0, None))
    assert footprint.download_rows()[-1]["measured"].startswith("not known")
