"""Lines of microphones in rooms: what is thrown back of a talker is no other talker."""

import functools

import numpy as np
import pytest

from qkgcc.arrays import DirectionEstimate, DirectionEstimator, array
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.tracks.paths import find_tracks
from qkgcc.tracks.ridges import TUNING, deconvolve_ridges, reflection_ridges
from qkgcc.tracks.tracker import Tracker

pytestmark = pytest.mark.numeric

RATE = 16000


def ridge(cones: list[float], frames: int, seed: int = 0) -> np.ndarray:
    """Angles of frames: each is of a talker in a room, or between it and somewhere on the sphere."""
    rng = np.random.default_rng(seed)
    talker = rng.choice(cones, frames)
    return np.where(rng.random(frames) < TUNING.reflected, thrown_back(talker, rng), talker)


def thrown_back(talker: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    x = np.cos(np.radians(talker))
    x = x + rng.random(len(x)) * (rng.uniform(-1, 1, len(x)) - x)
    broadside = 90 + TUNING.broadside_width * rng.standard_normal(len(x))
    return np.where(rng.random(len(x)) < TUNING.broadside, broadside, np.degrees(np.arccos(x)))


def histogram(angles: np.ndarray) -> np.ndarray:
    return np.histogram(angles, np.arange(-0.5, 181))[0] / len(angles)


@pytest.mark.parametrize("cone", [0, 12, 60, 90, 175])
def test_the_ridge_is_that_of_a_talker_and_a_sphere_of_reflections(cone: int) -> None:
    angles = thrown_back(np.full(200_000, float(cone)), np.random.default_rng(cone))
    drawn = np.add.reduceat(histogram(angles), np.arange(0, 180, 10))
    np.testing.assert_allclose(
        np.add.reduceat(reflection_ridges(181)[:, cone], np.arange(0, 180, 10)), drawn, atol=0.004
    )


@pytest.mark.parametrize("cones", [[15.0], [40.0], [90.0], [20.0, 70.0], [60.0, 110.0]])
def test_ridges_are_unfolded_to_their_talkers(cones: list[float]) -> None:
    talkers = deconvolve_ridges(histogram(ridge(cones, 20_000)))
    assert talkers.sum() == pytest.approx(1, abs=0.01)
    for cone in cones:
        near = slice(int(cone) - 5, int(cone) + 6)
        assert talkers[near].sum() > 0.8 / len(cones)


def test_a_ridge_is_one_track_and_two_of_them_are_two() -> None:
    times = 0.032 * np.arange(250)
    angles = np.radians(np.arange(181.0))
    grid = np.stack([np.sin(angles), np.cos(angles), 0 * angles], axis=1)
    for cones in ([20.0], [30.0, 100.0]):
        said = np.exp(-0.5 * ((np.arange(181) - ridge(cones, len(times))[:, None]) / 4) ** 2)
        tracks = find_tracks(times, said, np.ones(len(times), bool), grid, line=True)
        found = [np.degrees(np.arccos(np.mean([moment.direction[1] for moment in track]))) for track in tracks]
        assert sorted(found) == pytest.approx(cones, abs=10)


def test_live_a_ridge_is_explained_by_its_talker() -> None:
    angles = np.radians(np.arange(181.0))
    grid = np.stack([np.sin(angles), np.cos(angles), 0 * angles], axis=1)
    nobodys = {}
    for line in (True, False):
        tracker, nobodys[line], followed = Tracker(grid, 0.032, frame_seconds=0.064, line=line), 0, 0
        for frame, angle in enumerate(ridge([30.0], 300)):
            said = np.exp(-0.5 * ((np.arange(181) - angle) / 4) ** 2)
            active = [track for track in tracker.update(0.032 * frame, said) if track.active]
            away = [abs(np.degrees(np.arccos(np.clip(track.direction[1], -1, 1))) - 30) for track in active]
            nobodys[line] += sum(degrees > 15 for degrees in away)
            followed += any(degrees <= 10 for degrees in away)
        assert followed > 200
    assert nobodys[True] < 0.5 * nobodys[False]


@functools.cache
def in_a_room(cone: float, seconds: int = 4) -> DirectionEstimate:
    """Bursts of noise 1.6 m from a line of eight, T60 0.8 s."""
    rng = np.random.default_rng(3)
    bursts = np.repeat(rng.random(10 * seconds + 1) < 0.6, RATE // 10)[: seconds * RATE]
    talk = bursts * rng.standard_normal(seconds * RATE)
    geometry, centre = array("linear:8:0.04"), np.array([2.7, 2.4, 1.2])
    place = centre + 1.6 * np.array([np.sin(np.radians(cone)), np.cos(np.radians(cone)), 0.1])
    scene = Scene(np.array([6, 5, 2.8]), 0.8, geometry.microphones + centre, (Source("", place[None]),), 20.0)
    heard = 0.05 * render(scene, lambda _: talk, seconds, jobs=1).audio
    return DirectionEstimator(geometry, sources="auto", threads=1)(heard, RATE, track=True)


@pytest.mark.parametrize("cone", [25.0, 30.0, 150.0])
@pytest.mark.needs("numba")
def test_one_talker_near_the_end_of_a_line_is_one(cone: float) -> None:
    answer = in_a_room(cone)
    (found,) = answer.directions
    assert found.cone == pytest.approx(cone, abs=8)
    assert answer.tracks is not None
    (track,) = answer.tracks
    angle = answer.angles_of(track[len(track) // 2].direction).cone
    assert angle == pytest.approx(cone, abs=10)
