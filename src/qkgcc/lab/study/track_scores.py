"""How well tracks follow talkers: the share of talker time with a track near, changes of id, and tracks of nobody.

At each time, tracks and talkers who speak are paired one to one within `within` degrees: first those who were a pair
before, if they are still near, then the nearest. So an id changes when a talker gets another track, and not while two
talkers pass each other (the correspondence of CLEAR MOT).

K. Bernardin, R. Stiefelhagen, "Evaluating multiple object tracking performance: the CLEAR MOT metrics", EURASIP J. on
Image and Video Processing, 2008.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.tracks.motion import angle_between
from qkgcc.tracks.tracker import Track


def evaluate(
    history: Sequence[tuple[float, Sequence[Track]]],
    directions: npt.NDArray[np.float64],
    speaking: npt.NDArray[np.bool_],
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
        angles = _angles(directions[:, number], tracks)
        found = _paired(angles, speaking[:, number], [track.id for track in tracks], pairs, within)
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


def _angles(directions: npt.NDArray[np.float64], tracks: Sequence[Track]) -> npt.NDArray[np.float64]:
    """Degrees. Shape: (S, 3), K -> (S, K)"""
    if not tracks:
        return np.empty((len(directions), 0))
    return angle_between(directions[:, None], np.stack([track.direction for track in tracks]))


def _paired(
    angles: npt.NDArray[np.float64],
    speaking: npt.NDArray[np.bool_],
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
