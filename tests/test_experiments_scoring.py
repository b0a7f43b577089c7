"""Errors of found talkers, on cases that can be checked by hand."""

import numpy as np
import pytest

from qkgcc import InputError
from qkgcc.lab.study.scoring import (
    azimuth_distances,
    compare,
    errors,
    errors_of_blocks,
    floor_distances,
    space_distances,
    summary,
)


def towards(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)


def test_azimuths_are_compared_around_the_circle_and_without_elevation() -> None:
    found = towards(355.0, 10.0)
    found[1] += [0, 0, 5.0]
    np.testing.assert_allclose(azimuth_distances(towards(2.0), found), [[7.0, 8.0]])


def test_positions_are_compared_on_the_floor_and_in_space() -> None:
    true, found = np.array([[0.0, 0, 0]]), np.array([[3.0, 0, 4.0]])
    assert floor_distances(true, found) == 3
    assert space_distances(true, found) == 5


def test_the_order_of_what_was_found_does_not_matter() -> None:
    true = towards(10.0, 100.0, 250.0)
    for found in (towards(12.0, 90.0, 251.0), towards(251.0, 12.0, 90.0)):
        np.testing.assert_allclose(errors(azimuth_distances(true, found)), [2.0, 10.0, 1.0], atol=1e-9)


def test_the_nearest_is_not_taken_twice() -> None:
    """30 is nearest to both; the sum is smallest when the second talker takes 80."""
    np.testing.assert_allclose(errors(azimuth_distances(towards(20, 40), towards(30, 80))), [10.0, 40.0], atol=1e-9)


def test_a_talker_that_was_not_found_has_an_infinite_error() -> None:
    np.testing.assert_allclose(errors(azimuth_distances(towards(20, 90), towards(95))), [np.inf, 5.0], atol=1e-9)
    np.testing.assert_array_equal(errors(azimuth_distances(towards(20, 90), np.empty((0, 3)))), [np.inf, np.inf])


def test_only_talkers_who_speak_are_looked_for() -> None:
    places = np.stack([np.repeat(towards(angle), 3, axis=0) for angle in (0.0, 90.0)])
    active = np.array([[True, True, False], [False, True, False]])
    found = [towards(3.0), towards(91.0, 358.0), np.empty((0, 3))]
    each = errors_of_blocks(azimuth_distances, places, active, found)
    np.testing.assert_allclose(each, [3.0, 2.0, 1.0], atol=1e-9)


def test_more_than_were_asked_for_do_not_help() -> None:
    each = errors_of_blocks(azimuth_distances, towards(0.0)[:, None], np.array([[True]]), [towards(40.0, 0.0)])
    np.testing.assert_allclose(each, [40.0])


def test_results_have_to_fit_the_blocks() -> None:
    with pytest.raises(InputError, match="found in 2 blocks; there are 1"):
        errors_of_blocks(azimuth_distances, towards(0.0)[:, None], np.array([[True]]), [towards(0.0)] * 2)
    with pytest.raises(InputError, match="not a finite number"):
        errors(np.array([[np.nan]]))


def test_a_summary_counts_what_was_not_found() -> None:
    found = summary(np.array([1.0, 2.0, 30.0, np.inf, np.inf]), 10.0)
    assert (found.count, found.median, found.share) == (5, 30.0, 40.0)
    assert np.isnan(summary(np.empty(0), 10.0).median)


def test_comparisons_are_paired_by_scene() -> None:
    """Scenes differ far more than the methods do: half the error everywhere gives a narrow interval."""
    rng = np.random.default_rng(0)
    theirs = [size * (1 + rng.random(10)) for size in (1, 4, 9, 15, 30, 2, 7, 12)]
    found = compare([0.5 * scene for scene in theirs], theirs, limit=10.0)
    assert found.ratio[0] == pytest.approx(0.5)
    assert found.ratio[1] == pytest.approx(0.5)
    assert found.ratio[2] == pytest.approx(0.5)
    assert found.points[1] <= found.points[0] <= found.points[2]
    assert found.points[0] > 10
    same = compare(theirs, theirs, limit=10.0)
    assert same.points == (0.0, 0.0, 0.0)
    with pytest.raises(InputError, match="not measured on the same scenes"):
        compare(theirs[:-1], theirs, limit=10.0)
