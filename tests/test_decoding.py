"""Decoders find delays between the candidates, and several sources, in posteriors whose truth is known."""

import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from qkgcc.core.errors import InputError
from qkgcc.pairs import decoding
from qkgcc.pairs.decoding import (
    COARSE,
    DECODERS,
    EXACT,
    argmax,
    balanced,
    coarse,
    mean,
    peaks,
    posterior,
    probability_near,
    quadratic,
)

pytestmark = pytest.mark.numeric

DELAYS = np.arange(-23.0, 24.0)


def bell(center: npt.ArrayLike, width: float = 0.8, delays: np.ndarray = DELAYS) -> np.ndarray:
    """A normal distribution over the candidates. Shape: (...,) -> (..., delays)"""
    return posterior(-0.5 * ((delays - np.asarray(center)[..., None]) / width) ** 2)


def test_a_posterior_is_the_softmax_of_logits_of_any_size() -> None:
    logits = np.array([[1000.0, 1000.0 + np.log(3)], [-1e4, -1e4]])
    np.testing.assert_allclose(posterior(logits), [[0.25, 0.75], [0.5, 0.5]])


@pytest.mark.parametrize("step", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_every_decoder_finds_every_delay(decoder: str, step: float) -> None:
    """Within half a step for `argmax`; between the candidates for the others, exactly where it is a parabola."""
    delays = np.arange(-60, 61) * step
    true = np.linspace(-50, 50, 997) * step
    found = DECODERS[decoder](bell(true, 0.8 * step, delays), delays)
    bound = {"argmax": 0.5, "mean": 0.1, "quadratic": 1e-9, "balanced": 1e-9, "coarse": 1e-9}[decoder]
    assert np.abs(found - true).max() <= bound * step * (1 + 1e-9)


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_decoders_keep_the_shape_of_the_batch(decoder: str) -> None:
    true = np.array([[-3.0, 0.0, 7.0], [1.0, 2.0, 22.0]])
    np.testing.assert_allclose(DECODERS[decoder](bell(true), DELAYS), true, atol=0.05)
    assert DECODERS[decoder](bell(3.0), DELAYS).shape == ()


@pytest.mark.parametrize("decoder", [argmax, quadratic])
@pytest.mark.parametrize("end", [-23.0, 23.0])
def test_a_peak_at_the_end_of_the_range_stays_there(decoder, end: float) -> None:  # type: ignore[no-untyped-def]
    assert decoder(bell(2 * end), DELAYS) == end


def test_a_far_rival_does_not_move_the_local_mean() -> None:
    mixed = 0.6 * bell(5.0) + 0.4 * bell(-10.0)
    assert mean(mixed, DELAYS) == pytest.approx(5.0, abs=1e-6)
    assert (mixed * DELAYS).sum() == pytest.approx(-1.0, abs=1e-6)  # which the mean over everything would answer


def test_coarse_is_about_right_as_often_as_anything_can_be() -> None:
    """On posteriors that are true: the best that can be done is known, and a peak is found as `quadratic` finds it."""
    random = np.random.default_rng(5)
    weights = random.dirichlet(np.full(6, 0.7), 4000)
    centres = random.uniform(-21, 21, (4000, 6))
    given = (weights[..., None] * bell(centres)).sum(axis=1)
    given /= given.sum(axis=-1, keepdims=True)
    probability = {
        name: probability_near(given, DELAYS, np.clip(DECODERS[name](given, DELAYS), -23, 23), COARSE).mean()
        for name in DECODERS
    }
    every = np.stack([probability_near(given, DELAYS, np.full(4000, d), COARSE) for d in np.arange(-23, 23.1, 0.25)])
    best = every.max(axis=0).mean()
    assert best - 0.01 < probability["coarse"] <= best + 1e-3
    assert probability["quadratic"] < probability["coarse"] - 0.02
    # `balanced` is between the two in both respects, and nothing beats it in what it is made for.
    assert probability["quadratic"] < probability["balanced"] < probability["coarse"]
    exact = {
        name: probability_near(given, DELAYS, np.clip(DECODERS[name](given, DELAYS), -23, 23), EXACT).mean()
        for name in DECODERS
    }
    assert exact["coarse"] < exact["balanced"] < exact["quadratic"]
    assert max(DECODERS, key=lambda name: probability[name] + 0.5 * exact[name]) == "balanced"


@pytest.mark.parametrize("decoder", [balanced, coarse])
def test_what_may_answer_between_two_peaks_mirrors(decoder) -> None:  # type: ignore[no-untyped-def]
    given = 0.3 * bell(-8.0) + 0.3 * bell(-3.3) + 0.4 * bell(14.2)
    assert decoder(given, DELAYS) == pytest.approx(-decoder(given[::-1], DELAYS), abs=0.3)


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_certainty_and_ignorance_both_have_an_answer(decoder: str) -> None:
    certain = np.eye(47)[30]
    assert DECODERS[decoder](certain, DELAYS) == DELAYS[30]
    assert np.isfinite(DECODERS[decoder](np.full(47, 1 / 47), DELAYS))
    assert DECODERS[decoder]([1.0], [4.0]) == 4.0
    assert DECODERS[decoder]([0.2, 0.8], [4.0, 5.0]) in (4.8, 5.0)


@pytest.mark.parametrize("decoder", sorted(DECODERS))
def test_no_posterior_no_delay(decoder: str) -> None:
    found = DECODERS[decoder](np.stack([bell(2.0), np.full(47, np.nan)]), DELAYS)
    assert found[0] == pytest.approx(2.0)
    assert np.isnan(found[1])


# Several sources


def test_peaks_are_found_with_their_weights_most_probable_first() -> None:
    mixed = 0.3 * bell(-7.3, 0.3) + 0.5 * bell(4.0, 0.3) + 0.2 * bell(15.0, 0.3)
    delays, weights = peaks(mixed, DELAYS, max_sources=3)
    np.testing.assert_allclose(delays, [4.0, -7.3, 15.0], atol=1e-6)
    np.testing.assert_allclose(weights, [0.5, 0.3, 0.2], atol=2e-3)


def test_fewer_peaks_than_asked_for_leave_nan_and_no_weight() -> None:
    delays, weights = peaks(np.stack([bell(3.2), np.full(47, np.nan)]), DELAYS, max_sources=2)
    assert delays.shape == weights.shape == (2, 2)
    assert delays[0, 0] == pytest.approx(3.2)
    assert np.isnan(delays[0, 1])
    assert np.isnan(delays[1]).all()
    assert weights[0, 1] == 0
    assert (weights[1] == 0).all()


@pytest.mark.parametrize("step", [1.0, 0.5, 0.1])
def test_sources_are_at_least_two_samples_apart(step: float) -> None:
    delays = np.arange(-100, 101) * step
    for distance, count in ((1.0, 1), (2.0, 2), (3.0, 2)):
        two = 0.6 * bell(0.0, 0.2, delays) + 0.4 * bell(distance, 0.2, delays)
        assert np.isfinite(peaks(two, delays, max_sources=2)[0]).sum() == count


def test_a_shoulder_is_no_source() -> None:
    delays, _ = peaks(bell(0.0, width=3.0), DELAYS, max_sources=4)
    assert delays[0] == 0
    assert np.isnan(delays[1:]).all()


def test_weights_count_no_probability_twice() -> None:
    rng = np.random.default_rng(0)
    _, weights = peaks(rng.dirichlet(np.full(47, 0.2), size=200), DELAYS, max_sources=20)
    assert (weights.sum(axis=-1) <= 1 + 1e-12).all()
    assert weights.max() > 0.2


# Bad input


@pytest.mark.parametrize(
    ("values", "delays", "message"),
    [
        (np.ones(3) / 3, [0, 1], r"shape \(3,\) does not fit delays of shape \(2,\)"),
        (np.ones(3) / 3, [0, 1, 3], "even steps"),
        (np.ones(3) / 3, [2, 1, 0], "rise"),
        ([-1.0, 0.0, 1.0], [0, 1, 2], "look like logits"),
    ],
)
def test_what_cannot_be_decoded_is_said(values: npt.ArrayLike, delays: npt.ArrayLike, message: str) -> None:
    with pytest.raises(InputError, match=message):
        quadratic(values, delays)
    with pytest.raises(InputError, match=message):
        peaks(values, delays, max_sources=2)


def test_no_sources_are_refused() -> None:
    with pytest.raises(InputError, match="max_sources is 0"):
        peaks(bell(0.0), DELAYS, max_sources=0)


def test_decoding_needs_no_torch() -> None:
    script = "import sys, qkgcc.pairs.decoding; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


SPREAD = np.arange(-10.0, 11.0)


def support_of(p: np.ndarray, answer: object, times: object) -> decoding.Support:
    return decoding.support(p, SPREAD, answer, times, tolerance=1.0, frame=0.128)


def sharp(delay: object) -> np.ndarray:
    return bell(np.asarray(delay, dtype=np.float64), width=0.4, delays=SPREAD)


def test_support_is_what_the_frames_around_say() -> None:
    times = 0.064 * np.arange(40)
    answer = np.where(np.arange(40) == 20, -6.0, 3.0)  # one frame disagrees
    found = support_of(sharp(answer), answer, times)
    assert found.agreeing[10] > 0.6
    assert found.against[10] < 0.05
    assert found.agreeing[20] < 0
    assert found.against[20] > 0.6
    assert found.agreeing[10] > found.agreeing[17] > found.agreeing[20]  # two frames of those around it have less say
    assert found.agreeing[0] < found.agreeing[10]  # it has nobody before


def test_pauses_say_nothing() -> None:
    nothing, same, other = np.full(21, 1 / 21), sharp(3.0), sharp(-6.0)
    found = {
        name: support_of(np.stack([around, same, around]), [delay, 3.0, delay], [0.0, 0.2, 0.4])
        for name, around, delay in (("pause", nothing, 8.0), ("same", same, 3.0), ("other", other, -6.0))
    }
    assert found["pause"].agreeing[1] == pytest.approx(0, abs=1e-9)
    assert found["pause"].against[1] == pytest.approx(0, abs=1e-9)
    assert found["same"].agreeing[1] > 0.4
    assert found["other"].against[1] > 0.4
    # Nor do they take away from what others say.
    times = 0.128 * np.arange(9)
    burst = np.stack([nothing] * 3 + [same] * 3 + [nothing] * 3)
    short, alone = support_of(burst, np.full(9, 3.0), times), support_of(burst[3:6], np.full(3, 3.0), times[3:6])
    np.testing.assert_allclose(short.agreeing[3:6], alone.agreeing)


def test_more_for_a_delay_is_never_less_support() -> None:
    rng = np.random.default_rng(0)
    answer, times = np.where(np.arange(12) == 5, 6.0, -4.0), 0.128 * np.arange(12)
    p = 0.6 * sharp(answer) + 0.4 * rng.dirichlet(np.ones(21), 12)
    before = support_of(p, answer, times)
    for other in (0, 3, 7, 11):
        # A frame that is as sure as before of its own delay, but gives more to the delay of another.
        near = np.abs(SPREAD - answer[5]) <= 1
        spare = (np.abs(SPREAD - answer[other]) > 2) & (np.abs(SPREAD - answer[5]) > 2)
        moved = p.copy()
        moved[other, near] += moved[other, spare].sum() / near.sum()
        moved[other, spare] = 0
        after = support_of(moved, answer, times)
        assert after.agreeing[5] > before.agreeing[5]
        assert after.against[5] < before.against[5]


def test_dense_and_sparse_frames_of_one_recording_have_alike_support() -> None:
    found = {}
    for hop in (0.016, 0.032, 0.064, 0.128):
        times = np.arange(0, 3, hop)
        answer = np.full(len(times), 3.0)
        middle = len(times) // 2
        found[hop] = support_of(sharp(answer), answer, times).agreeing[middle]
    assert max(found.values()) - min(found.values()) < 0.1
    far = support_of(sharp([3.0] * 5), [3.0] * 5, 0.384 * np.arange(5)).agreeing[2]
    assert 0.2 < far < found[0.128]  # few frames, and later ones, are less than many


def test_support_of_many_frames_is_that_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    answer = np.where(rng.random(300) < 0.1, np.nan, rng.uniform(-9, 9, 300))
    times = np.cumsum(rng.uniform(0, 0.3, 300))
    p = rng.dirichlet(np.ones(21), 300)
    whole = support_of(p, answer, times)
    for rows in (1, 7, 64):
        monkeypatch.setattr(decoding, "ROWS", rows)
        np.testing.assert_array_equal(support_of(p, answer, times), whole)


def test_support_comes_from_frames_that_are_apart_near_and_not_silent() -> None:
    answer = np.array([3.0, 3.0, np.nan, 3.0])
    p = bell(np.array([3.0, 3.0, -6.0, 3.0]), delays=SPREAD)
    found = support_of(p, answer, [0.0, 0.05, 0.5, 2.0])
    assert np.isnan(found).all()  # the second hears the same samples, the third is silent, the fourth far away
    found = support_of(p, answer, [0.0, 0.2, 0.5, 2.0])
    assert np.isfinite(found.agreeing).tolist() == np.isfinite(found.against).tolist() == [True, True, False, False]
    assert np.isnan(support_of(p[:1], answer[:1], [0.0])).all()


def test_support_where_hardly_any_delay_is_possible() -> None:
    for count in (1, 2, 3):
        delays = np.arange(count, dtype=np.float64)
        p = np.full((3, count), 1 / count)
        found = decoding.support(p, delays, np.zeros(3), [0.0, 0.2, 0.4], tolerance=1.0, frame=0.128)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("decoder", ["balanced", "coarse"])
def test_where_few_delays_are_possible_near_ones_are_no_company(decoder: str) -> None:
    """Of 6 cm, with 10 cm everything would be about right."""
    delays = np.arange(-4, 5)
    several = np.select([delays == -3, delays == 1, delays == 4], [0.4, 0.3, 0.3])
    assert DECODERS[decoder](several, delays) == pytest.approx(-3, abs=0.5)
