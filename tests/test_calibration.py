"""A calibrated probability counts: of the answers with 0.8, eight in ten are right."""

import numpy as np
import pytest

from qkgcc.calibration import Calibration, Context, expected_calibration_error, reliability
from qkgcc.errors import InputError


def answers(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A network that is too sure: what it calls 0.9 is right in 0.81 of the cases."""
    rng = np.random.default_rng(seed)
    stated = rng.beta(2, 1, count)
    return stated, rng.random(count) < stated**2


def test_a_fitted_curve_holds_on_answers_it_has_not_seen() -> None:
    curve = Calibration.fit(*answers(20_000, 0))
    stated, right = answers(50_000, 1)
    assert expected_calibration_error(stated, right) > 0.1
    assert expected_calibration_error(curve(stated), right) < 0.015
    for row in reliability(curve(stated), right):
        if row["answers"] >= 300:
            assert row["stated"] == pytest.approx(row["right"], abs=0.05)


def test_it_rises_and_keeps_to_its_range() -> None:
    curve = Calibration.fit(*answers(20_000, 0))
    values = curve(np.linspace(0, 1, 1001))
    assert (np.diff(values) >= 0).all()
    assert values[0] >= 0
    assert values[-1] <= 1


def test_one_sided_answers_have_a_curve_too() -> None:
    stated = np.linspace(0.2, 0.9, 1000)
    np.testing.assert_allclose(Calibration.fit(stated, np.ones(1000))([0.0, 0.5, 1.0]), 1.0)
    np.testing.assert_allclose(Calibration.fit(np.ones(1000), np.arange(1000) < 700)([1.0]), 0.7)


def test_it_travels_in_a_card() -> None:
    curve = Calibration.fit(*answers(2_000, 0))
    assert Calibration.of_card({"calibration": curve.to_card()}) == curve
    assert Calibration.of_card({}) is None


@pytest.mark.parametrize(
    "given", [3, {"stated": [0, 1]}, {"stated": [0, 1], "right": [1, 0]}, {"stated": [0, 0.5], "right": [0, 1]}]
)
def test_what_is_no_curve_is_said(given: object) -> None:
    with pytest.raises(InputError, match="calibration"):
        Calibration.of_card({"calibration": given})


def test_few_answers_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        Calibration.fit([0.5] * 20, [True] * 20)


def test_reliability_counts_every_answer_once() -> None:
    rows = reliability([0.0, 0.05, 0.95, 1.0], [False, True, True, True])
    assert [(row["from"], row["answers"], row["right"]) for row in rows] == [(0.0, 2, 0.5), (0.9, 2, 1.0)]


class TestContext:
    @staticmethod
    def answers(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whether an answer is right shows in its own probability a little, and in its support more."""
        rng = np.random.default_rng(seed)
        right = rng.random(count) < 0.6
        own, support = (1 / (1 + np.exp(-(k * (2 * right - 1) + rng.standard_normal(count)))) for k in (0.5, 1.5))
        return own, support, right

    def test_support_makes_answers_surer_and_stays_calibrated(self) -> None:
        own, support, right = self.answers(20_000, 0)
        alone, context = Calibration.fit(own, right), Context.fit(own, support, right)
        own, support, right = self.answers(20_000, 1)
        assert expected_calibration_error(context(own, support), right) < 0.015
        brier = [np.mean((stated - right) ** 2) for stated in (alone(own), context(own, support))]
        assert brier[1] < 0.6 * brier[0]

    def test_more_of_either_never_makes_less_sure(self) -> None:
        context = Context.fit(*self.answers(5_000, 0))
        grid = np.linspace(0, 1, 21)
        values = context(*(x.ravel() for x in np.meshgrid(grid, grid))).reshape(21, 21)
        assert (np.diff(values, axis=0) >= 0).all()
        assert (np.diff(values, axis=1) >= 0).all()

    def test_it_travels_in_a_card(self) -> None:
        context = Context.fit(*self.answers(5_000, 0))
        assert Context.of_card({"calibration_in_context": context.to_card()}) == context
        assert Context.of_card({}) is None
        bad = context.to_card() | {"weights": [1.0]}
        with pytest.raises(InputError, match="expected three weights"):
            Context.of_card({"calibration_in_context": bad})
