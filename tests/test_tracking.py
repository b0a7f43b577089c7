"""Tracks of directions: sources that rest, move, cross, pause, begin and end, as frames with faults show them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from qkgcc.core.errors import InputError
from qkgcc.lab.study.scoring import score_tracks
from qkgcc.tracks.motion import Motion, State, angle_between, move, tangent_towards
from qkgcc.tracks.paths import TUNING, find_tracks
from qkgcc.tracks.segments import COLUMNS, Segment, rows, rttm, segments
from qkgcc.tracks.tracker import Track, Tracker, Trajectory, _smooth_states, smooth

pytestmark = pytest.mark.numeric

HOP = 0.064
Path = Callable[[float], float]


def unit(azimuth: float, elevation: float = 0.0) -> np.ndarray:
    a, e = np.radians(azimuth), np.radians(elevation)
    return np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])


def circle(step: float = 2.0) -> np.ndarray:
    return np.stack([unit(azimuth) for azimuth in np.arange(0, 360, step)])


def sphere(count: int = 2000) -> np.ndarray:
    """Evenly spread: Fibonacci's spiral."""
    up = 1 - (2 * np.arange(count) + 1) / count
    azimuth = np.pi * (1 + np.sqrt(5)) * np.arange(count)
    across = np.sqrt(1 - up**2)
    return np.stack([across * np.cos(azimuth), across * np.sin(azimuth), up], axis=1)


@dataclass
class Talker:
    """Someone at azimuth(t) and elevation(t), in degrees, who speaks from and to some seconds."""

    azimuth: Path
    speaks: Sequence[tuple[float, float]] = ((0.0, 1e9),)
    elevation: Path = lambda t: 0.0

    def at(self, t: float) -> np.ndarray:
        return unit(self.azimuth(t), self.elevation(t))

    def active(self, t: float) -> bool:
        return any(first <= t < last for first, last in self.speaks)


def frames(
    talkers: Sequence[Talker], seconds: float, grid: np.ndarray, seed: int = 0, clutter: float = 0.15, hop: float = HOP
) -> list[tuple[float, np.ndarray]]:
    """Weights as a network gives them: peaks of 5 degrees, missed by 4, now and then of nobody, of two or of all.

    In silence there is a weak peak anywhere, as noise has it.
    """
    rng = np.random.default_rng(seed)
    found = []
    for number in range(round(seconds / hop)):
        t = number * hop
        speaking = [talker for talker in talkers if talker.active(t)]
        peaks = [grid[rng.integers(len(grid))]]
        if speaking and rng.random() > clutter:
            chosen = rng.permutation(len(speaking))[: 1 + (rng.random() < 0.3)]
            peaks = [speaking[one].at(t) for one in chosen]
        flat = grid[:, 2].std() < 1e-9
        weights = np.full(len(grid), (0.15 if speaking else 0.6) / len(grid))
        for peak in peaks:
            noise = np.radians(4) * rng.standard_normal(3) * [1, 1, 0 if flat else 1]
            near = np.exp((grid @ ((peak + noise) / np.linalg.norm(peak + noise)) - 1) / np.radians(5) ** 2)
            weights += near / near.sum() / len(peaks) * (0.85 if speaking else 0.4)
        found.append((t, weights / weights.sum()))
    return found


def followed(
    talkers: Sequence[Talker],
    seconds: float,
    grid: np.ndarray | None = None,
    most: int | None = None,
    **how: float,
) -> list[tuple[float, list[Track]]]:
    grid = circle() if grid is None else grid
    tracker = Tracker(grid, how.get("hop", HOP), most=most)
    return [(t, tracker.update(t, weights)) for t, weights in frames(talkers, seconds, grid, **how)]


def share_and_ids(
    talker: Talker, history: Sequence[tuple[float, Sequence[Track]]], within: float = 10.0
) -> tuple[float, list[int]]:
    """The part of a talker's time with a track near, and the ids of those, each time that it changes."""
    ids: list[int] = []
    near, spoken = 0, 0
    for t, tracks in history:
        if not talker.active(t):
            continue
        spoken += 1
        angles = [float(angle_between(talker.at(t), track.direction)) for track in tracks]
        if angles and min(angles) <= within:
            near += 1
            ids.append(tracks[int(np.argmin(angles))].id)
    return near / spoken, [id for id, _ in itertools.groupby(ids)]


def by_time(trajectories: Sequence[Trajectory], times: Sequence[float]) -> list[tuple[float, list[Track]]]:
    moments: dict[float, list[Track]] = {t: [] for t in times}
    for moment in itertools.chain.from_iterable(trajectories):
        moments[moment.time].append(moment)
    return list(moments.items())


# One source


@pytest.mark.parametrize("azimuth", [0.0, 91.0, 359.0])
@pytest.mark.parametrize("hop", [0.032, 0.064])
def test_a_source_at_rest_is_one_track_that_speaks_where_it_is(azimuth: float, hop: float) -> None:
    talker = Talker(lambda t: azimuth)
    history = followed([talker], 10, hop=hop)
    share, ids = share_and_ids(talker, history)
    assert share > 0.93
    assert ids == [1]
    final = history[-1][1]
    assert [track.id for track in final] == [1]
    assert final[0].active
    assert final[0].probability > 0.95
    assert angle_between(final[0].direction, unit(azimuth)) < 4
    assert (final[0].azimuth - azimuth + 180) % 360 - 180 == pytest.approx(0, abs=4)
    assert 0.5 < final[0].spread < 5


def test_a_source_on_the_sphere_has_an_elevation() -> None:
    talker = Talker(lambda t: 200.0, elevation=lambda t: 40.0)
    history = followed([talker], 6, sphere())
    share, ids = share_and_ids(talker, history)
    assert share > 0.9
    assert ids == [1]
    assert history[-1][1][0].azimuth == pytest.approx(-160, abs=5)
    assert history[-1][1][0].elevation == pytest.approx(40, abs=4)


def test_a_coarse_grid_does_with_what_it_has() -> None:
    tracker = Tracker(circle(15), HOP, error=0.1)
    for t, weights in frames([Talker(lambda t: 52.0)], 5, circle(15)):
        tracks = tracker.update(t, weights)
    assert [track.id for track in tracks] == [1]
    assert angle_between(tracks[0].direction, unit(52)) < 10


@pytest.mark.parametrize("pace", [-30.0, 20.0, 60.0])
def test_a_walker_is_followed_and_keeps_the_id(pace: float) -> None:
    talker = Talker(lambda t: 50 + pace * t)
    history = followed([talker], 10)
    share, ids = share_and_ids(talker, history)
    assert share > 0.85
    assert ids == [1]


def test_a_walker_over_the_pole_is_followed_on_the_sphere() -> None:
    talker = Talker(lambda t: 30.0, elevation=lambda t: 20 + 14 * t)  # beyond 90 it comes down on the other side
    share, ids = share_and_ids(talker, followed([talker], 9, sphere()))
    assert share > 0.85
    assert ids == [1]


def test_the_velocity_of_a_walker_is_found() -> None:
    history = followed([Talker(lambda t: 25 * t)], 8, clutter=0.05)
    last = history[-1][1][0]
    ahead = np.cross([0, 0, 1], last.direction)
    assert np.degrees(last.state.velocity @ ahead) == pytest.approx(25, abs=12)


def test_a_pause_makes_a_track_silent_and_not_another() -> None:
    talker = Talker(lambda t: 120.0, speaks=((0, 4), (6, 10)))
    history = followed([talker], 10)
    _, ids = share_and_ids(talker, history)
    assert ids == [1]
    pausing = [track for t, tracks in history if 5.2 < t < 5.9 for track in tracks if track.id == 1]
    assert len(pausing) >= 10  # it is still there
    assert not any(track.active for track in pausing)
    assert all(track.active for t, tracks in history if 7 < t < 9.9 for track in tracks if track.id == 1)


def test_a_frame_that_says_nothing_changes_no_direction() -> None:
    grid = circle()
    tracker = Tracker(grid, HOP)
    for t, weights in frames([Talker(lambda t: 90.0)], 4, grid):
        before = tracker.update(t, weights)
    elsewhere = np.exp((grid @ unit(100) - 1) / np.radians(5) ** 2)
    for number in range(1, 30):
        after = tracker.update(t + number * HOP, elsewhere, reliability=0.0)
    coasted = before[0].state.velocity @ np.cross([0, 0, 1], before[0].direction)  # its velocity fades over a second
    assert after[0].id == before[0].id
    assert angle_between(after[0].direction, before[0].direction) < abs(np.degrees(coasted)) + 0.1
    assert after[0].spread > before[0].spread
    assert not after[0].active


# Births and deaths


def test_nobody_is_tracked_in_clutter() -> None:
    history = followed([], 30)
    assert sum(track.active for _, tracks in history for track in tracks) * HOP < 1.0


def test_a_source_that_leaves_is_dropped_and_a_new_one_is_another() -> None:
    first, second = Talker(lambda t: 40.0, speaks=((0, 4),)), Talker(lambda t: 220.0, speaks=((5, 20),))
    history = followed([first, second], 20)
    assert share_and_ids(first, history)[1] == [1]
    ids = share_and_ids(second, history)[1]
    assert len(ids) == 1
    assert ids != [1]
    assert [track.id for track in history[-1][1]] == ids
    heard = next(t for t, tracks in history if any(track.id == ids[0] for track in tracks))
    assert 5.0 < heard < 6.0


# Several sources


@pytest.mark.parametrize("azimuths", [(40.0, 75.0), (10.0, 130.0, 250.0)])
def test_talkers_at_once_are_as_many_tracks(azimuths: tuple[float, ...]) -> None:
    talkers = [Talker(lambda t, azimuth=azimuth: azimuth) for azimuth in azimuths]
    history = followed(talkers, 20)
    every = set()
    for talker in talkers:
        # Each is dominant in a third of the frames or fewer, so it takes some seconds to be sure of all.
        share, ids = share_and_ids(talker, [entry for entry in history if entry[0] > 5])
        assert share > 0.8
        assert len(ids) == 1
        every.update(ids)
    assert len(every) == len(azimuths)
    assert {track.id for track in history[-1][1]} == every


def test_three_talkers_on_the_sphere() -> None:
    places = ((0.0, 0.0), (90.0, 30.0), (200.0, 60.0))
    talkers = [Talker(lambda t, a=a: a, elevation=lambda t, e=e: e) for a, e in places]
    history = followed(talkers, 12, sphere())
    for talker in talkers:
        share, ids = share_and_ids(talker, [entry for entry in history if entry[0] > 5])
        assert share > 0.8
        assert len(ids) == 1
    assert len(history[-1][1]) == 3


@pytest.mark.parametrize("seed", range(4))
def test_talkers_who_cross_keep_their_ids(seed: int) -> None:
    left, right = (Talker(lambda t, way=way: 120 + way * (54 - 18 * max(0.0, t - 4))) for way in (1, -1))
    history = followed([left, right], 10, seed=seed)  # they stand until 4 s and meet at 7 s
    before = [entry for entry in history if 3 < entry[0] < 6]
    after = [entry for entry in history if entry[0] > 8.5]
    for talker in (left, right):
        assert share_and_ids(talker, before)[0] > 0.8
        assert share_and_ids(talker, after)[0] > 0.8
        assert len(share_and_ids(talker, before + after)[1]) == 1
    assert share_and_ids(left, after)[1] != share_and_ids(right, after)[1]


def test_tracks_that_stay_in_one_direction_become_one() -> None:
    stays, comes = Talker(lambda t: 100.0), Talker(lambda t: max(100.0, 160 - 15 * t))
    history = followed([stays, comes], 12)
    assert max(len(tracks) for t, tracks in history if t < 3) == 2
    assert [track.id for track in history[-1][1]] == [1]


def test_who_walks_on_in_silence_keeps_the_id() -> None:
    speaks = ((0.0, 5.0), (6.0, 10.0))
    walker = Talker(lambda t: 30 * min(t, 5.2), speaks)
    stands = Talker(lambda t: 300.0, speaks=((0.0, 20.0),))

    def turned(t: float) -> float:
        """It walks, falls silent, and goes back: nobody can foresee where it speaks again."""
        return 30 * t if t < 5 else 150 - 40 * min(t - 5, 1.0)

    for talkers in ([walker], [Talker(turned, speaks)], [walker, stands]):
        history = followed(talkers, 10)
        assert len(share_and_ids(talkers[0], history)[1]) == 1


def test_the_first_report_of_a_track_has_its_past() -> None:
    history = followed([Talker(lambda t: 80.0)], 5)
    reports = [track for _, tracks in history for track in tracks if track.id == 1]
    past = reports[0].past
    assert len(past) > 2
    assert past[-1].time == pytest.approx(reports[0].time - HOP)
    assert all(angle_between(moment.direction, unit(80)) < 12 for moment in past)
    assert not any(track.past for track in reports[1:])


# Smoothing


def test_smoothing_is_nearer_to_the_truth_than_the_filter() -> None:
    talker = Talker(lambda t: 60 * np.sin(0.6 * t), speaks=((0, 7), (8, 15)))
    errors: dict[str, list[float]] = {"filter": [], "smooth": []}
    for seed in range(3):
        history = followed([talker], 15, seed=seed)
        later = by_time(smooth(history), [t for t, _ in history])
        for what, found in (("filter", history), ("smooth", later)):
            errors[what] += [
                float(angle_between(talker.at(t), track.direction))
                for t, tracks in found
                for track in tracks
                if talker.active(t)
            ]
    filtered, smoothed = (float(np.sqrt(np.mean(np.square(errors[what])))) for what in ("filter", "smooth"))
    assert smoothed < 0.9 * filtered


def test_smoothing_begins_where_the_source_did() -> None:
    talker = Talker(lambda t: 80.0, speaks=((2, 8),))
    history = followed([talker], 10)
    known = next(t for t, tracks in history if tracks)
    (trajectory,) = smooth(history)
    assert trajectory[0].time < known
    assert trajectory[0].time == pytest.approx(2, abs=0.4)
    assert trajectory[-1].time == pytest.approx(8, abs=0.6)
    assert all(b.time > a.time for a, b in itertools.pairwise(trajectory))


def moments(id: int, azimuth: float, first: float, last: float) -> list[Track]:
    covariance = np.diag([np.radians(3) ** 2, np.radians(5) ** 2])
    state = State(unit(azimuth), np.zeros(3), covariance)
    return [Track(id, t, state, 0.99, 0.9, 3.0) for t in np.arange(first, last, HOP)]


def history_of(*tracks: list[Track]) -> list[tuple[float, list[Track]]]:
    every = sorted({moment.time for track in tracks for moment in track})
    return [(t, [moment for track in tracks for moment in track if moment.time == t]) for t in every]


def test_pieces_of_one_source_are_joined_and_others_are_not() -> None:
    apart = history_of(moments(1, 40, 0, 3), moments(2, 46, 5, 8), moments(3, 150, 4, 9))
    joined = smooth(apart)
    assert [(track[0].id, round(track[0].time), round(track[-1].time)) for track in joined] == [(1, 0, 8), (3, 4, 9)]
    assert {moment.id for moment in joined[0]} == {1}
    for late, far in ((9.0, 46.0), (5.0, 70.0)):  # too late, too far
        assert len(smooth(history_of(moments(1, 40, 0, 3), moments(2, far, late, late + 3)))) == 2


def test_two_who_speak_at_once_are_never_joined() -> None:
    assert len(smooth(history_of(moments(1, 40, 0, 5), moments(2, 50, 3, 8)))) == 2


def test_what_speaks_for_a_moment_only_is_no_source() -> None:
    assert smooth(history_of(moments(1, 40, 0, 0.3))) == []
    assert smooth([]) == []


def test_a_history_out_of_order_is_an_error() -> None:
    with pytest.raises(InputError, match="must rise"):
        smooth([(1.0, []), (0.5, [])])


# As many as were asked for

THREE = [Talker(lambda t, azimuth=azimuth: azimuth) for azimuth in (60.0, 180.0, 300.0)]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_are_followed_at_any_moment_than_were_asked_for(most: int) -> None:
    whole = best_paths(THREE, 10, most=most)
    assert len(whole) == most
    live = followed(THREE, 10, most=most)
    assert max(len(tracks) for _, tracks in live) == most
    assert {track.id for _, tracks in live for track in tracks} == set(range(1, most + 1))
    for track in [*(moment for one in whole for moment in one), *live[-1][1]]:
        assert min(float(angle_between(talker.at(0), track.direction)) for talker in THREE) < 10


def test_who_speaks_before_or_after_another_is_followed_beside_a_single_one() -> None:
    first, later = Talker(lambda t: 60.0, speaks=((0, 6),)), Talker(lambda t: 200.0, speaks=((20, 30),))
    whole = best_paths([first, later], 30, most=1)
    assert [round(track[0].azimuth / 20) * 20 for track in whole] == [60, -160]
    times = sorted(moment.time for track in whole for moment in track)
    assert len(set(times)) == len(times)  # never two at once
    then = Talker(lambda t: 200.0, speaks=((5, 15),))
    live = followed([first, then], 15, most=1)
    assert max(len(tracks) for _, tracks in live) == 1
    last = live[-1][1][0]
    assert last.azimuth == pytest.approx(-160, abs=10)
    assert all(not track.past for t, tracks in live for track in tracks if t > 6)  # it was a candidate beside another


def test_less_than_one_track_is_an_error() -> None:
    with pytest.raises(InputError, match="most is 0; expected a whole number, at least 1"):
        Tracker(circle(), HOP, most=0)


# Paths through whole recordings


def best_paths(
    talkers: Sequence[Talker],
    seconds: float,
    grid: np.ndarray | None = None,
    most: int | None = None,
    **how: float,
) -> list[Trajectory]:
    grid = circle() if grid is None else grid
    times, weights = zip(*frames(talkers, seconds, grid, **how), strict=True)
    return find_tracks(times, np.array(weights), np.ones(len(times), dtype=bool), grid, most=most)


def test_a_talker_of_few_frames_is_found_by_all_of_them() -> None:
    loud, weak = Talker(lambda t: 60.0), Talker(lambda t: 200 - 12 * t)
    rng = np.random.default_rng(5)
    grid = circle()
    given = []
    for t, weights in frames([loud], 10, grid):
        heard = frames([Talker(lambda _, t=t: weak.azimuth(t))], HOP, grid, seed=int(1e6 * t), clutter=0.0)[0][1]
        given.append((t, heard if rng.random() < 0.15 else weights))
    times, weights = zip(*given, strict=True)
    found = find_tracks(times, np.array(weights), np.ones(len(times), dtype=bool), grid)
    assert len(found) == 2
    for talker in (loud, weak):
        share, ids = share_and_ids(talker, by_time(found, times))
        assert share > 0.8
        assert len(ids) == 1


@pytest.mark.parametrize("seed", range(3))
def test_paths_of_walkers_who_meet_go_through_each_other(seed: int) -> None:
    talkers = [Talker(lambda t, way=way: 170 + way * (90 - 18 * t)) for way in (1, -1)]  # they meet at 5 s
    found = best_paths(talkers, 10, seed=seed)
    assert [track[0].id for track in found] == [1, 2]
    history = by_time(found, [number * HOP for number in range(round(10 / HOP))])
    for talker in talkers:
        apart = [entry for entry in history if abs(entry[0] - 5) > 1.5]
        share, ids = share_and_ids(talker, apart)
        assert share > 0.8
        assert len(ids) == 1


@pytest.mark.parametrize("seed", range(4))
def test_paths_of_walkers_who_come_near_and_part_again_stay_their_own(seed: int) -> None:
    # One comes nearer until 5 s and stays, the other stands and walks away then; both pause in between.
    stays = Talker(lambda t: 165 + 18 * max(0.0, 5 - t), speaks=((0, 4.6), (5.6, 10)))
    leaves = Talker(lambda t: 135 - 18 * max(0.0, t - 5), speaks=((0, 4.4), (5.4, 10)))
    found = best_paths([stays, leaves], 10, seed=seed)
    history = by_time(found, [number * HOP for number in range(round(10 / HOP))])
    for talker in (stays, leaves):
        share, ids = share_and_ids(talker, [entry for entry in history if abs(entry[0] - 5) > 1])
        assert share > 0.8
        assert len(ids) == 1


def test_a_path_says_where_and_when_a_source_speaks() -> None:
    talker = Talker(lambda t: 350 + 20 * t, speaks=((2, 5), (7, 9)))  # through the front of the array
    (track,) = best_paths([talker], 12)
    # Now and then a peak of nobody, before or after, lies on its way.
    assert track[0].time == pytest.approx(2, abs=0.8)
    assert track[-1].time == pytest.approx(9, abs=0.8)
    assert all(b.time > a.time for a, b in itertools.pairwise(track))
    off = [float(angle_between(talker.at(one.time), one.direction)) for one in track]
    assert np.median(off) < 2
    assert max(off) < 8
    said = np.array([one.active for one in track]) == [talker.active(one.time) for one in track]
    assert said.mean() > 0.8
    middle = track[len(track) // 3]
    ahead = np.cross([0, 0, 1], middle.direction)
    assert np.degrees(middle.state.velocity @ ahead) == pytest.approx(20, abs=4)
    pausing = next(one for one in track if one.time > 6)
    assert 0.3 < middle.spread < pausing.spread < 20
    assert track[0].probability > 0.99


def test_who_speaks_elsewhere_after_a_long_silence_is_another() -> None:
    first, later = Talker(lambda t: 40.0, speaks=((0, 5),)), Talker(lambda t: 100.0, speaks=((30, 35),))
    found = best_paths([first, later], 36)
    assert [(track[0].id, round(track[0].azimuth / 10)) for track in found] == [(1, 4), (2, 10)]


def test_long_recordings_are_searched_in_windows_and_keep_their_ids() -> None:
    stands = Talker(lambda t: 40.0)
    walks = Talker(lambda t: 150 + 2 * (t - TUNING.window), speaks=((TUNING.window - 15, TUNING.window + 15),))
    found = best_paths([stands, walks], TUNING.window + 16)
    times = [number * HOP for number in range(round((TUNING.window + 16) / HOP))]
    for talker in (stands, walks):
        share, ids = share_and_ids(talker, by_time(found, times))
        assert share > 0.9
        assert len(ids) == 1


def test_no_path_goes_through_clutter() -> None:
    assert best_paths([], 30) == []
    grid = circle()
    times = np.arange(100) * HOP
    loud = np.tile(np.exp((grid @ unit(90) - 1) / np.radians(5) ** 2), (100, 1))
    assert len(find_tracks(times, loud, np.ones(100, dtype=bool), grid)) == 1
    assert find_tracks(times, loud, np.zeros(100, dtype=bool), grid) == []  # silence says nothing
    assert find_tracks([], np.empty((0, len(grid))), [], grid) == []


@pytest.mark.parametrize("azimuth", [2.0, 90.0, 178.0])
def test_paths_on_a_half_circle_stay_on_it(azimuth: float) -> None:
    half = np.stack([unit(angle) for angle in np.arange(0, 181, 1.0)])
    (track,) = best_paths([Talker(lambda t: azimuth)], 5, half)
    angles = np.array([moment.azimuth for moment in track])
    assert ((angles > -1e-6) & (angles < 180 + 1e-6)).all()
    assert np.median(angles) == pytest.approx(azimuth, abs=3)


@pytest.mark.parametrize(
    ("grid", "message"), [(sphere(), "evenly along a circle"), (circle()[:5], "8 or more"), (np.ones(9), "8 or more")]
)
def test_a_grid_without_an_order_has_no_paths(grid: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_tracks([0.0, HOP], np.ones((2, len(grid))), [True, True], grid)


# Scores


def truth(talkers: Sequence[Talker], history: Sequence[tuple[float, Sequence[Track]]]) -> tuple[np.ndarray, np.ndarray]:
    times = [t for t, _ in history]
    return np.array([[one.at(t) for t in times] for one in talkers]), np.array(
        [[one.active(t) for t in times] for one in talkers]
    )


def test_scores_count_what_is_near_what_changes_and_what_is_nobody() -> None:
    talker = Talker(lambda t: 40.0)
    exact = history_of(moments(1, 45, 0, 6))
    scores = score_tracks(exact, *truth([talker], exact))
    assert (scores["share"], scores["changes"], scores["false"]) == (1.0, 0.0, 0.0)
    assert scores["talker_seconds"] == pytest.approx(6, abs=HOP)
    changed = history_of(moments(1, 45, 0, 3.008), moments(2, 38, 3.008, 6.016))
    assert score_tracks(changed, *truth([talker], changed))["changes"] == pytest.approx(10, abs=0.2)  # 1 in 6 s
    away = history_of(moments(1, 60, 0, 6))
    scores = score_tracks(away, *truth([talker], away))
    assert (scores["share"], scores["changes"]) == (0.0, 0.0)
    assert scores["false"] == pytest.approx(60)
    one_for_two = score_tracks(exact, *truth([talker, Talker(lambda t: 47.0)], exact))
    assert one_for_two["share"] == 0.5


def test_talkers_who_pass_each_other_change_no_ids_in_the_scores() -> None:
    left, right = Talker(lambda t: 40 + 10 * t), Talker(lambda t: 80 - 10 * t)
    times = np.arange(0, 4, HOP)
    state = moments(1, 0, 0, 0.1)[0].state
    history = [
        (t, [Track(i, t, state._replace(direction=one.at(t)), 0.9, 0.9, 2.0) for i, one in enumerate((left, right), 1)])
        for t in times.tolist()
    ]
    scores = score_tracks(history, *truth([left, right], history))
    assert (scores["share"], scores["changes"], scores["false"]) == (1.0, 0.0, 0.0)


def test_scores_of_a_truth_that_does_not_fit() -> None:
    history = history_of(moments(1, 45, 0, 1))
    with pytest.raises(InputError, match="talkers, times"):
        score_tracks(history, np.zeros((1, 3, 3)), np.ones((1, 3), dtype=bool))


# Streaming


def state_of(tracks: Sequence[Track]) -> list[tuple[object, ...]]:
    return [(track.id, *track.direction, *track.state.velocity, track.probability, track.speaking) for track in tracks]


def test_the_same_frames_give_the_same_tracks_again_after_a_reset() -> None:
    grid = circle()
    given = frames([Talker(lambda t: 10 * t), Talker(lambda t: 200.0)], 5, grid)
    tracker = Tracker(grid, HOP)
    first = [state_of(tracker.update(t, weights)) for t, weights in given]
    tracker.reset()
    assert [state_of(tracker.update(t, weights)) for t, weights in given] == first
    assert any(first)


def test_a_copy_goes_its_own_way() -> None:
    grid = circle()
    given = frames([Talker(lambda t: 10 * t), Talker(lambda t: 200.0)], 6, grid)
    tracker = Tracker(grid, HOP)
    for t, weights in given[:40]:
        tracker.update(t, weights)
    other = tracker.copy()
    away = [other.update(t, np.roll(weights, 45)) for t, weights in given[40:]]
    here = [state_of(tracker.update(t, weights)) for t, weights in given[40:]]
    again = Tracker(grid, HOP)
    assert here == [state_of(again.update(t, weights)) for t, weights in given][40:]
    assert state_of(away[-1]) != here[-1]


def test_only_the_past_counts() -> None:
    grid = circle()
    given = frames([Talker(lambda t: 70.0)], 4, grid)
    whole, part = Tracker(grid, HOP), Tracker(grid, HOP)
    all_of_it = [state_of(whole.update(t, weights)) for t, weights in given]
    assert [state_of(part.update(t, weights)) for t, weights in given[:30]] == all_of_it[:30]


def test_weights_of_any_sum_say_the_same() -> None:
    grid = circle()
    given = frames([Talker(lambda t: 70.0)], 2, grid)
    one, two = Tracker(grid, HOP), Tracker(grid, HOP)
    for t, weights in given:
        a, b = one.update(t, weights), two.update(t, 8 * weights)
    assert state_of(a) == state_of(b)


def test_a_frame_costs_well_under_a_millisecond() -> None:
    grid = circle()
    given = frames([Talker(lambda t, a=a: a) for a in (0.0, 90.0, 200.0)], 20, grid)
    tracker = Tracker(grid, HOP)
    costs = []
    for t, weights in given:
        begun = time.thread_time()
        tracker.update(t, weights)
        costs.append(time.thread_time() - begun)
    assert np.median(costs) < 1e-3


# Directions that move


def test_a_way_leads_to_its_end_and_carries_vectors_without_turning() -> None:
    rng = np.random.default_rng(0)
    start, end = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in rng.standard_normal((2, 50, 3)))
    tangent = np.cross(start, rng.standard_normal((50, 3)))
    way = tangent_towards(start, end)
    arrived, carried = move(start, way, tangent)
    np.testing.assert_allclose(arrived, end, atol=1e-9)
    np.testing.assert_allclose(np.sum(carried * end, axis=1), 0, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(carried, axis=1), np.linalg.norm(tangent, axis=1))
    np.testing.assert_allclose(np.degrees(np.linalg.norm(way, axis=1)), angle_between(start, end))
    # And back again, it is the same vector.
    np.testing.assert_allclose(move(end, tangent_towards(end, start), carried)[1], tangent, atol=1e-9)


def test_two_steps_of_a_prediction_are_one_of_both() -> None:
    motion = Motion(speed=15, memory=0.8)
    state = State(unit(20), np.radians(30) * unit(110), np.diag([0.001, 0.02]))
    once, twice = motion.predict(state, 0.3), motion.predict(motion.predict(state, 0.1), 0.2)
    for a, b in zip(once, twice, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    assert angle_between(once.direction, state.direction) == pytest.approx(30 * 0.8 * (1 - np.exp(-0.3 / 0.8)))


def test_a_direction_that_nobody_hears_stays_within_its_widest_spread() -> None:
    motion = Motion(widest=20)
    state = State(unit(20), np.zeros(3), np.diag([0.001, 0.02]))
    later = motion.predict(state, 100.0)
    assert np.degrees(np.sqrt(later.covariance[0, 0])) == pytest.approx(20)
    assert (np.linalg.eigvalsh(later.covariance) > 0).all()


# Rows


def test_segments_are_the_times_in_which_tracks_speak() -> None:
    spoken = moments(2, 90, 0.032, 1.0) + moments(2, 92, 1.2, 2.0) + moments(2, 94, 4.0, 5.0) + moments(1, 10, 0.5, 1.0)
    found = segments(spoken, HOP)
    assert [(one.id, round(one.start, 1), round(one.duration, 1)) for one in found] == [
        (2, 0.0, 2.0),
        (1, 0.5, 0.5),
        (2, 4.0, 1.0),
    ]
    assert found[2].azimuth == pytest.approx(94)
    assert found[2].elevation == pytest.approx(0)
    assert len(segments(spoken, HOP, pause=0.1)) == 4


def test_segments_cross_the_front_and_leave_out_silence() -> None:
    around = moments(1, 358, 0, 1) + moments(1, 2, 1.024, 2)
    (found,) = segments(around, HOP)
    assert (found.azimuth + 180) % 360 == pytest.approx(180, abs=1)
    silent = [Track(1, 0.0, around[0].state, 0.9, 0.2, 1.0)]
    assert segments(silent, HOP) == []


def test_rttm_has_ten_fields() -> None:
    (line,) = rttm([Segment(3, 1.25, 0.5, 90.0, 0.0)], "talk")
    assert line.split() == ["SPEAKER", "talk", "1", "1.250", "0.500", "<NA>", "<NA>", "3", "<NA>", "<NA>"]
    with pytest.raises(InputError, match="without"):
        rttm([], "my talk")


def test_rows_say_where_at_each_moment() -> None:
    found = rows([*moments(2, 90, 0, 0.1), *moments(1, 359.999, 0, 0.1)])
    assert tuple(found[0]) == COLUMNS
    assert [(row["time"], row["track"]) for row in found] == [(0.0, 1), (0.0, 2), (0.064, 1), (0.064, 2)]
    assert found[0]["azimuth"] == 0.0  # and not 360
    assert found[1]["azimuth"] == 90.0
    assert found[1]["spread"] == 3.0
    assert found[1]["active"] is True


# Bad input


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (np.zeros((20, 2)), "three numbers"),
        (circle()[:4], "8 or more"),
        (2 * circle(), "unit vector"),
        (np.full((20, 3), np.nan), "unit vector"),
    ],
)
def test_a_grid_that_is_none(grid: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tracker(grid, HOP)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seconds_per_frame": 0.0}, "seconds_per_frame"),
        ({"seconds_per_frame": HOP, "frame_seconds": np.nan}, "frame_seconds"),
        ({"seconds_per_frame": HOP, "error": 0.0}, "0.1 to 45"),
        ({"seconds_per_frame": HOP, "sharpness": 0.0}, "0.1 to 100"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tracker(circle(), **settings)


@pytest.mark.parametrize(
    ("t", "weights", "reliability", "message"),
    [
        (0.0, np.ones(180), 1.0, "expected later times"),
        (np.nan, np.ones(180), 1.0, "time of a frame is nan"),
        (1.0, np.ones(90), 1.0, "one each"),
        (1.0, np.zeros(180), 1.0, "not all 0"),
        (1.0, np.arange(180) - 1.0, 1.0, "0 or more"),
        (1.0, np.full(180, np.nan), 1.0, "finite"),
        (1.0, np.ones(180), 1.5, "0 to 1"),
        (1.0, np.ones(180), np.nan, "0 to 1"),
    ],
)
def test_a_frame_that_cannot_be_is_an_error_and_changes_nothing(
    t: float, weights: np.ndarray, reliability: float, message: str
) -> None:
    tracker = Tracker(circle(), HOP)
    tracker.update(0.0, np.ones(180))
    with pytest.raises(InputError, match=message):
        tracker.update(t, weights, reliability)
    assert tracker.update(HOP, np.ones(180)) == []


def test_motion_and_segments_check_what_they_are_given() -> None:
    with pytest.raises(InputError, match="degrees a second"):
        Motion(speed=0)
    with pytest.raises(InputError, match="remembered is -1 s"):
        Motion(memory=-1)
    with pytest.raises(InputError, match="90"):
        Motion(widest=200)
    with pytest.raises(InputError, match=r"0\.064"):
        segments([], 0.0)


def test_long_pauses_leave_variances_positive() -> None:
    # While nobody speaks, the spread of a direction is limited; the way back in time has to know that.
    motion = Motion()
    ahead, way = np.array([1.0, 0, 0]), np.array([0, 0.1, 0])
    first = State(ahead, way, np.diag(np.radians([5.0, 20.0]) ** 2))
    for seconds in (0.032, 0.5, 2.0, 5.0):
        wide = motion.predict(first, 5.0)
        then = motion.predict(wide, seconds)
        known = State(then.direction, then.velocity, 1e-3 * then.covariance)
        moments = [(0.0, wide), (seconds, known)]
        track = [Track(1, time, state, probability=1.0, speaking=1.0, evidence=1.0) for time, state in moments]
        assert all((np.linalg.eigvalsh(state.covariance) > 0).all() for state in _smooth_states(track, motion))
