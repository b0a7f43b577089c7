import json
from pathlib import Path

import numpy as np
import pytest

from qkgcc import InputError
from qkgcc.delay import metrics

GOLDEN = json.loads((Path(__file__).parent / "golden_scores.json").read_text())
TRUE = np.array(GOLDEN["true"])
ESTIMATED = np.array([np.nan if x is None else x for x in GOLDEN["estimated"]])


def test_pooled_scores_are_the_golden_ones() -> None:
    assert metrics.evaluate(ESTIMATED, TRUE) == pytest.approx(GOLDEN["pooled"], abs=1e-6)


def test_cell_scores_are_the_golden_ones() -> None:
    cells = metrics.evaluate_cells(ESTIMATED, TRUE, GOLDEN["snr"], GOLDEN["t60"])
    assert len(cells) == len(GOLDEN["cells"])
    for cell, golden in zip(cells, GOLDEN["cells"], strict=True):
        assert cell == pytest.approx(golden, abs=1e-6)


def test_ten_centimetres_are_four_and_two_thirds_of_a_sample() -> None:
    assert metrics.accuracy([4.66], [0.0]) == 100
    assert metrics.accuracy([4.67], [0.0]) == 0
    assert metrics.accuracy([4.67], [0.0], speed_of_sound=331.0) == 100
    assert metrics.accuracy([13.9], [0.0], sample_rate=48000) == 100
    assert list(metrics.evaluate([1.0], [0.0], distance=0.05)) == ["n", "answered", "rmse", "mae", "acc5cm"]


def test_no_answer_is_wrong_but_has_no_error() -> None:
    scores = metrics.evaluate([np.nan, 1.0], [0.0, 0.0])
    assert scores == {"n": 2, "answered": 1, "rmse": 1.0, "mae": 1.0, "acc10cm": 50.0}
    nothing = metrics.evaluate([np.nan], [0.0])
    assert np.isnan(nothing["rmse"])
    assert nothing["acc10cm"] == 0


def test_pooled_rmse_is_not_the_mean_over_cells() -> None:
    cells = metrics.evaluate_cells([0.0, 10.0], [0.0, 0.0], [0, 6], [0.2, 0.2])
    assert np.mean([cell["rmse"] for cell in cells]) == 5
    assert metrics.rmse([0.0, 10.0], [0.0, 0.0]) == pytest.approx(50**0.5)


@pytest.mark.parametrize(
    ("estimated", "true", "message"),
    [
        ([1.0], [1.0, 2.0], "1 estimated delays for 2 true ones"),
        ([], [], "no delays"),
        ([[1.0]], [1.0], "one number a frame"),
        ([1.0], [np.nan], "1 true delays are not finite"),
        ([np.inf], [1.0], "infinite"),
    ],
)
def test_bad_input_is_said(estimated: list[float], true: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        metrics.evaluate(estimated, true)


def test_conditions_must_fit_the_delays() -> None:
    with pytest.raises(InputError, match="as many SNRs"):
        metrics.evaluate_cells([1.0, 2.0], [1.0, 2.0], [0, 6], [0.2])
