"""How far talkers that were found are from the true ones: in blocks, and along tracks.

In a block, found and true talkers are assigned to each other so that the sum of the distances is smallest. A talker
that nothing was found for has an error of infinity: it counts in medians, and is right within no limit. Directions are
compared by azimuth, the angle that flat arrays can tell; positions on the floor and in space.

Tracks are scored by the share of talker time with a track near, changes of id, and tracks of nobody. At each time,
tracks and talkers who speak are paired one to one within some degrees: first those who were a pair before, if they are
still near, then the nearest. So an id changes when a talker gets another track, and not while two talkers pass each
other (the correspondence of CLEAR MOT).

K. Bernardin, R. Stiefelhagen, "Evaluating multiple object tracking performance: the CLEAR MOT metrics", EURASIP J. on
Image and Video Processing, 2008.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.optimize

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats
from qkgcc.tracks.motion import angle_between
from qkgcc.tracks.tracker import Track

_NOT_FOUND = 1e6  # stands for infinity in an assignment


def azimuth_distances(true: Floats, found: Floats) -> Floats:
    """Degrees between azimuths, 0 to 180. Shape: (T, 3), (F, 3) -> (T, F)

    >>> azimuth_distances(np.array([[1.0, 0, 0]]), np.array([[0.0, 2, 5], [-1, 0, 0]]))
    array([[ 90., 180.]])
    """
    angles = [np.degrees(np.arctan2(places[:, 1], places[:, 0])) for places in (true, found)]
    return np.asarray(np.abs((angles[0][:, None] - angles[1] + 180) % 360 - 180))


def floor_distances(true: Floats, found: Floats) -> Floats:
    """Metres, heights left aside. Shape: (T, 3), (F, 3) -> (T, F)"""
    return np.asarray(np.linalg.norm(true[:, None, :2] - found[:, :2], axis=-1))


def space_distances(true: Floats, found: Floats) -> Floats:
    """Metres. Shape: (T, 3), (F, 3) -> (T, F)"""
    return np.asarray(np.linalg.norm(true[:, None] - found, axis=-1))


def errors(distances: Floats) -> Floats:
    """The error of each true talker after the best assignment; infinity where nothing is left for it.

    Shape: (T, F) -> (T,)

    >>> errors(np.array([[2.0, 50.0], [3.0, 170.0]]))
    array([50.,  3.])
    >>> errors(np.array([[2.0], [1.0]]))
    array([inf,  1.])
    """
    if np.isnan(distances).any():
        raise InputError("a found talker is not a finite number; leave out what was not found")
    out = np.full(len(distances), np.inf)
    rows, columns = scipy.optimize.linear_sum_assignment(np.minimum(distances, _NOT_FOUND))
    out[rows] = distances[rows, columns]
    return out


def errors_of_blocks(
    distances: Callable[[Floats, Floats], Floats],
    places: Floats,
    active: Bools,
    found: Sequence[Floats],
) -> Floats:
    """Errors of all active talkers, block by block. Of more than there are, the first found count.

    Shape: (T, blocks, 3), (T, blocks) -> (active in all,)
    """
    if len(found) != active.shape[1]:
        raise InputError(f"talkers were found in {len(found)} blocks; there are {active.shape[1]}")
    each = []
    for block, some in enumerate(found):
        true = places[active[:, block], block]
        each.append(errors(distances(true, np.asarray(some, dtype=np.float64).reshape(-1, 3)[: len(true)])))
    return np.concatenate(each)


@dataclass(frozen=True)
class Summary:
    """Of the errors of a part of a set."""

    count: int
    median: float
    share: float
    """Percent within the limit."""


def summary(values: Floats, limit: float) -> Summary:
    """Of errors; a part without any has a median of NaN."""
    if not len(values):
        return Summary(0, float("nan"), float("nan"))
    return Summary(len(values), float(np.median(values)), float(100 * np.mean(values <= limit)))


@dataclass(frozen=True)
class Comparison:
    """One method less another on the same talkers of the same blocks, with 95 % intervals by scene."""

    points: tuple[float, float, float]
    """Of the share within the limit, in points: difference, low, high."""
    ratio: tuple[float, float, float]
    """Of the medians: the one's over the other's, low, high."""


def compare(one: Sequence[Floats], other: Sequence[Floats], limit: float, draws: int = 1000) -> Comparison:
    """Two methods on the same scenes, whole scenes drawn with replacement: blocks of one are alike.

    Args:
        one, other: errors of each scene, in the same order.
    """
    if [len(scene) for scene in one] != [len(scene) for scene in other]:
        raise InputError("the two methods were not measured on the same scenes")
    scenes = [k for k, scene in enumerate(one) if len(scene)]
    if not scenes:
        raise InputError("there are no errors to compare")
    drawn = np.random.default_rng(0).integers(0, len(scenes), (draws, len(scenes)))
    order = np.vstack([np.arange(len(scenes)), drawn])
    times = np.stack([np.bincount(choice, minlength=len(scenes)) for choice in order])
    ours, theirs = (_shares_and_medians([side[k] for k in scenes], times, limit) for side in (one, other))
    points = 100 * (ours[0] - theirs[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((theirs[1] > 0) & np.isfinite(theirs[1]), ours[1] / theirs[1], np.nan)

    def interval(values: Floats) -> tuple[float, float, float]:
        if not np.isfinite(values[0]):  # most talkers were not found
            return float("nan"), float("nan"), float("nan")
        # The nearest of the drawn values: in between, an infinite one would make a NaN.
        low, high = np.nanpercentile(values[1:], [2.5, 97.5], method="nearest")
        return float(values[0]), float(low), float(high)

    return Comparison(interval(points), interval(ratios))


def _shares_and_medians(scenes: Sequence[Floats], times: npt.NDArray[np.int64], limit: float) -> tuple[Floats, Floats]:
    """Share within the limit and median of all errors, where each scene counts so many times.

    Shape: N scenes, (draws, N) -> (draws,), (draws,)
    """
    errors, scene = np.concatenate(scenes), np.repeat(np.arange(len(scenes)), [len(one) for one in scenes])
    order = np.argsort(errors)
    errors, scene = errors[order], scene[order]
    medians = np.empty(len(times))
    counts = times @ np.array([len(one) for one in scenes])
    for draw, weights in enumerate(times):  # one by one: a table of all draws would not stay in the cache
        until = np.cumsum(weights[scene])
        middle = np.searchsorted(until, [(counts[draw] - 1) // 2, counts[draw] // 2], side="right")
        medians[draw] = errors[middle].mean()
    return times @ np.array([np.sum(one <= limit) for one in scenes]) / counts, medians


def score_tracks(
    history: Sequence[tuple[float, Sequence[Track]]],
    directions: Floats,
    speaking: Bools,
    *,
    within: float = 10.0,
    false_beyond: float = 15.0,
) -> dict[str, float]:
    """Scores of one recording.

    Args:
        history: times of all frames, evenly spaced, and the tracks at each.
        directions: of the talkers at these times, unit vectors. Shape: (S, T, 3)
        speaking: who speaks then. Shape: (S, T)
        false_beyond: degrees from every talker, speaking or not, at which an active track is one of nobody.

    Returns `share` of talker time with a track near, `changes` of id a minute of talker time, `false` seconds of tracks
    of nobody a minute, and what they were counted over, to add recordings up: `talker_seconds`, `seconds`.
    """
    if len(history) < 2 or directions.shape != (*speaking.shape, 3) or speaking.shape[1:] != (len(history),):
        raise InputError(
            f"{len(history)} times, directions of shape {directions.shape} and speech of shape {speaking.shape}; "
            "expected (talkers, times, 3) and (talkers, times), of 2 or more times"
        )
    step = (history[-1][0] - history[0][0]) / (len(history) - 1)
    pairs: dict[int, int] = {}
    near = changes = false = 0
    for number, (_, tracks) in enumerate(history):
        angles = _angles_between(directions[:, number], tracks)
        found = _pair_up(angles, speaking[:, number], [track.id for track in tracks], pairs, within)
        near += len(found)
        changes += sum(pairs.get(talker, id) != id for talker, id in found.items())
        pairs.update(found)
        active = np.array([track.active for track in tracks], dtype=bool)
        false += int((active & (angles > false_beyond).all(axis=0)).sum())
    spoken = int(speaking.sum())
    minutes = step * spoken / 60
    return {
        "share": near / spoken if spoken else float("nan"),
        "changes": changes / minutes if spoken else float("nan"),
        "false": 60 * false / len(history),
        "talker_seconds": step * spoken,
        "seconds": step * len(history),
    }


def _angles_between(directions: Floats, tracks: Sequence[Track]) -> Floats:
    """Degrees. Shape: (S, 3), K -> (S, K)"""
    if not tracks:
        return np.empty((len(directions), 0))
    return angle_between(directions[:, None], np.stack([track.direction for track in tracks]))


def _pair_up(
    angles: Floats,
    speaking: Bools,
    ids: Sequence[int],
    before: dict[int, int],
    within: float,
) -> dict[int, int]:
    """The id of the track of each talker who speaks and has one."""
    near = np.argwhere((angles <= within) & speaking[:, None]).tolist()
    order = sorted(near, key=lambda pair: (before.get(pair[0]) != ids[pair[1]], angles[pair[0], pair[1]]))
    found: dict[int, int] = {}
    for talker, track in order:
        if talker not in found and ids[track] not in found.values():
            found[talker] = ids[track]
    return found
