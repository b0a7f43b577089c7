"""The peers find what is easy to find, and say what they cannot do."""

import numpy as np
import pytest

from qkgcc import InputError
from qkgcc.arrays import Geometry, array
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.study.locators import (
    Directions,
    LeastSquares,
    Locator,
    Positions,
    Pyroom,
    blocks,
    ours,
    peers,
)
from qkgcc.lab.study.scoring import azimuth_distances, errors, space_distances

pytestmark = [pytest.mark.numeric, pytest.mark.needs("pyroomacoustics")]

RATE = 16000


def heard_from(places: np.ndarray, geometry: Geometry, samples: int, seed: int = 0) -> np.ndarray:
    """Noises from some places, in the open, in phase with the geometry at all frequencies. Shape: (M, samples)"""
    rng = np.random.default_rng(seed)
    frequencies = np.fft.rfftfreq(2 * samples, 1 / RATE)
    audio = 1e-3 * rng.standard_normal((len(geometry), samples))
    for place in places:
        spectrum = np.fft.rfft(rng.standard_normal(2 * samples))
        times = np.linalg.norm(place - geometry.microphones, axis=1) / SPEED_OF_SOUND
        turned = spectrum * np.exp(-2j * np.pi * frequencies * times[:, None])
        audio += np.fft.irfft(turned)[:, samples // 2 : samples // 2 + samples]
    return audio


@pytest.mark.parametrize("locator", [one for one in peers() if not one.positions], ids=lambda one: one.name)
def test_directions_are_found(locator: Locator) -> None:
    geometry = array("circular:8:0.1")
    angles = np.radians([40.0, 200.0])
    true = 50 * np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    audio = heard_from(true, geometry, RATE)
    found = locator.locate(np.tile(audio, 2), RATE, geometry, [2, 0], RATE)
    assert [len(some) for some in found] == [2, 0]
    assert errors(azimuth_distances(true, found[0])).max() <= 2.0 + 1e-9  # side lobes of one move the other
    np.testing.assert_allclose(np.linalg.norm(found[0], axis=1), 1)


def test_a_peer_can_search_elevations_too() -> None:
    geometry = array("respeaker4")
    around, up = np.radians([40.0, 40.0])
    true = 50 * np.array([[np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)]])
    locator = next(one for one in peers() if one.name == "normmusic-elevations")
    assert locator.real_only
    assert locator.settings["elevations"] == [0, 10, 20, 30, 40, 50, 60]
    (found,) = locator.locate(heard_from(true, geometry, RATE), RATE, geometry, [1], RATE)
    assert errors(azimuth_distances(true, found))[0] <= 1.5
    assert abs(np.degrees(np.arcsin(found[0, 2])) - 40) <= 10


def test_the_left_is_at_90_degrees() -> None:
    """A mirrored axis would not be seen at angles that are chosen symmetrically."""
    geometry = array("respeaker4")
    (found,) = Pyroom("srp-phat", "SRP").locate(
        heard_from(np.array([[0.0, 50.0, 0.0]]), geometry, RATE), RATE, geometry, [1], RATE
    )
    assert errors(azimuth_distances(np.array([[0.0, 1.0, 0.0]]), found))[0] <= 1.5


def test_positions_are_found_by_least_squares() -> None:
    microphones = np.array(
        [[0.3, 0.2, 0.8], [5, 0.4, 1.5], [4.6, 3.8, 2.0], [0.4, 3.7, 1.1], [2.4, 0.3, 2.1], [2.6, 3.6, 0.7]]
    )
    geometry = Geometry(microphones)
    true = np.array([[1.7, 2.4, 1.5]])
    found = LeastSquares().locate(heard_from(true, geometry, 2 * RATE), RATE, geometry, [1, 1], RATE)
    for place in found:
        assert np.linalg.norm(place[0] - true[0]) < 0.03


def test_a_second_position_is_sought_in_other_peaks() -> None:
    geometry = Geometry(np.array([[0.3, 0.2, 0.8], [5, 0.4, 1.5], [4.6, 3.8, 2.0], [0.4, 3.7, 1.1]]))
    (found,) = LeastSquares().locate(heard_from(np.array([[1.7, 2.4, 1.5]]), geometry, RATE), RATE, geometry, [2], RATE)
    assert found.shape == (2, 3)
    assert np.linalg.norm(found[0] - [1.7, 2.4, 1.5]) < 0.03
    assert np.linalg.norm(found[0] - found[1]) > 0.05


def test_ours_answers_through_the_same_call() -> None:
    geometry = array("respeaker4")
    true = 50 * np.array([[np.cos(2.0), np.sin(2.0), 0.0]])
    found = Directions("ours", "phat").locate(heard_from(true, geometry, 2 * RATE), RATE, geometry, [1, 0], RATE)
    assert [len(some) for some in found] == [1, 0]
    assert errors(azimuth_distances(true, found[0]))[0] <= 2.0


def test_blocks_can_be_heard_with_the_samples_beside_them() -> None:
    audio = np.arange(10.0)[None]
    parts = [(part[0, 0], part[0, -1], count) for part, count in blocks(audio, [1, 2, 3], 3, beside=2)]
    assert parts == [(0, 4, 1), (1, 7, 2), (4, 9, 3)]


def test_our_positions_answer_through_the_same_call() -> None:
    geometry = Geometry(
        np.array([[0.3, 0.2, 0.8], [5, 0.4, 1.5], [4.6, 3.8, 2.0], [0.4, 3.7, 1.1], [2.4, 0.3, 2.1], [2.6, 3.6, 0.7]])
    )
    true = np.array([[1.7, 2.4, 1.5], [4.0, 1.5, 1.2]])
    found = Positions("ours", "phat").locate(heard_from(true, geometry, 3 * RATE), RATE, geometry, [2, 0, 1], RATE)
    assert [len(some) for some in found] == [2, 0, 1]
    assert errors(space_distances(true, found[0])).max() < 0.1
    assert errors(space_distances(found[2], true)).min() < 0.1


def test_ours_are_directions_and_positions_of_the_same_names() -> None:
    names = {positions: [one.name for one in ours() if one.positions == positions] for positions in (False, True)}
    assert names[True] == ["qkgcc", "qkgcc-small", "qkgcc-phat"]
    assert names[False] == [*names[True], "qkgcc-alone"]
    assert {"weights", "margin"} <= set(next(one for one in ours() if one.positions).settings)


def test_blocks_beyond_the_recording_are_an_error() -> None:
    with pytest.raises(InputError, match="2 blocks of 16000 samples were asked for; there are 16001 in all"):
        LeastSquares().locate(np.zeros((4, RATE + 1)), RATE, array("respeaker4"), [1, 1], RATE)
