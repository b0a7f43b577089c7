"""A calibrated probability counts: of the answers with 0.8, eight in ten are right."""

import numpy as np
import pytest

from qkgcc.core.errors import InputError
from qkgcc.pairs.calibration import KEY, Calibration, Context, Curves, expected_calibration_error, reliability
from qkgcc.pairs.decoding import Support

pytestmark = pytest.mark.numeric


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
    assert Calibration.of_card(curve.to_card()) == curve


@pytest.mark.parametrize(
    "given", [3, {"stated": [0, 1]}, {"stated": [0, 1], "right": [1, 0]}, {"stated": [0, 0.5], "right": [0, 1]}]
)
def test_what_is_no_curve_is_said(given: object) -> None:
    with pytest.raises(InputError, match="calibration"):
        Calibration.of_card(given)


def test_few_answers_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        Calibration.fit([0.5] * 20, [True] * 20)


def test_reliability_counts_every_answer_once() -> None:
    rows = reliability([0.0, 0.05, 0.95, 1.0], [False, True, True, True])
    assert [(row["from"], row["answers"], row["right"]) for row in rows] == [(0.0, 2, 0.5), (0.9, 2, 1.0)]


def in_recordings(count: int, seed: int) -> tuple[np.ndarray, Support, np.ndarray]:
    """Whether an answer is right shows in its own probability a little, and in what is around it more."""
    rng = np.random.default_rng(seed)
    right = rng.random(count) < 0.6
    own, agreeing, against = (k * (2 * right - 1) + rng.standard_normal(count) for k in (0.5, 1.2, -0.8))
    return 1 / (1 + np.exp(-own)), Support(agreeing / 4, against / 4), right


class TestContext:
    def test_support_makes_answers_surer_and_stays_calibrated(self) -> None:
        own, support, right = in_recordings(20_000, 0)
        alone, context = Calibration.fit(own, right), Context.fit(own, support, right)
        own, support, right = in_recordings(20_000, 1)
        assert expected_calibration_error(context(own, support), right) < 0.015
        brier = [np.mean((stated - right) ** 2) for stated in (alone(own), context(own, support))]
        assert brier[1] < 0.6 * brier[0]

    def test_more_for_a_delay_or_less_against_it_never_makes_less_sure(self) -> None:
        fitted = Context.fit(*in_recordings(5_000, 0))
        # Not even where that were so in what it is fitted to.
        own, support, right = in_recordings(5_000, 0)
        misled = Context.fit(own, Support(support.against, support.agreeing), right)
        grid = np.linspace(-1, 1, 11)
        own, agreeing, against = (x.ravel() for x in np.meshgrid((grid + 1) / 2, grid, grid, indexing="ij"))
        for context in (fitted, misled):
            values = context(own, Support(agreeing, against)).reshape(11, 11, 11)
            assert (np.diff(values, axis=0) >= 0).all()
            assert (np.diff(values, axis=1) >= 0).all()
            assert (np.diff(values, axis=2) <= 0).all()
        assert fitted([0.5], Support(np.array([1.0]), np.array([0.0]))) > 0.9

    def test_it_travels_in_a_card(self) -> None:
        context = Context.fit(*in_recordings(5_000, 0))
        assert Context.of_card(context.to_card()) == context
        with pytest.raises(InputError, match="expected four weights"):
            Context.of_card(context.to_card() | {"weights": [1.0]})


class TestCurves:
    def test_a_frame_with_none_around_keeps_its_own_curve(self) -> None:
        own, support, right = in_recordings(5_000, 0)
        curves = Curves(16000, Calibration.fit(own, right), Context.fit(own, support, right))
        lonely = np.arange(len(own)) % 3 == 0
        given = Support(*(np.where(lonely, np.nan, part) for part in support))
        assert curves.context is not None
        np.testing.assert_array_equal(
            curves(own, given), np.where(lonely, curves.alone(own), curves.context(own, support))
        )

    def test_the_nearest_rate_is_chosen(self) -> None:
        line = Calibration((0.0, 1.0), (0.0, 1.0))
        curves = [Curves(rate, line) for rate in (16000, 11025, 8000)]
        for rate, expected in {4000: 8000, 8000: 8000, 9000: 8000, 12000: 11025, 14000: 16000, 16000: 16000}.items():
            chosen = Curves.nearest(curves, rate)
            assert chosen is not None
            assert chosen.rate == expected
        assert Curves.nearest([], 16000) is None

    def test_they_travel_in_a_card(self) -> None:
        line, context = Calibration((0.0, 1.0), (0.0, 1.0)), Context.fit(*in_recordings(5_000, 0))
        curves = Curves(16000, line, context), Curves(8000, line)
        assert Curves.of_card({KEY: [one.to_card() for one in reversed(curves)]}) == curves
        assert Curves.of_card({}) == ()
        for bad in (3, [3], [{"rate": 16000}], [{"rate": "?", "alone": line.to_card()}]):
            with pytest.raises(InputError, match=f"the card's {KEY}"):
                Curves.of_card({KEY: bad})


def test_cards_that_would_turn_the_confidence_around_are_refused() -> None:
    curve = {"stated": [0.0, 1.0], "right": [0.0, 1.0]}
    with pytest.raises(InputError, match="none may be negative"):
        Context.of_card({"weights": [0, -5, -5, -5], **curve})
    with pytest.raises(InputError, match="expected positive ones"):
        Curves.of_card({"confidence": [{"rate": 0, "alone": curve}]})
