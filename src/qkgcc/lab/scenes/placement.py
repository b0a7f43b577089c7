"""Where microphones and sources stand in a room, drawn for many rooms at once.

Microphones are placed by construction. Sources are redrawn, each try from a stream of its own, until they keep their
distance; only the rooms still without one are drawn again, so a room's place does not depend on the others beside it.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

WALL = 0.2
"""Metres from any wall."""
NEAREST_NEAR, NEAREST_FAR = 0.2, 0.3
"""Metres from any microphone, of sources that are to be near and of the others."""

_TRIES = 2000  # even the worst room, a fast walk in a narrow one, is found in a few dozen

Floats = npt.NDArray[np.float64]


def directions(numbers: Floats) -> Floats:
    """Unit vectors, uniform over the sphere. Shape: (..., 2) in [0, 1) -> (..., 3)."""
    height = 2 * numbers[..., 0] - 1
    around = 2 * math.pi * numbers[..., 1]
    wide = np.sqrt(1 - height**2)
    return np.stack([wide * np.cos(around), wide * np.sin(around), height], axis=-1)


def place_pairs(rooms: Floats, spacing: Floats, numbers: Floats) -> Floats:
    """Two microphones each, at any place and in any orientation that leaves both off the walls.

    Sides of 2.4 m and more have room for a spacing of 2 m, however it is turned.
    Shape: (B, 3), (B,), (B, 5) -> (B, 2, 3)
    """
    half = spacing[:, None] / 2 * directions(numbers[:, 3:5])
    margin = WALL + np.abs(half)
    centre = margin + (rooms - 2 * margin) * numbers[:, :3]
    return np.stack([centre - half, centre + half], axis=1)


def place_arrays(rooms: Floats, aperture: Floats, numbers: Floats, others: Floats) -> Floats:
    """Pairs as above and further microphones, uniform in the ball of which each pair is a diameter.

    Shape: (B, 3), (B,), (B, 5), (B, M - 2, 3) -> (B, M, 3)
    """
    radius = aperture[:, None] / 2
    centre = WALL + radius + (rooms - 2 * (WALL + radius)) * numbers[:, :3]
    half = radius * directions(numbers[:, 3:5])
    inside = radius[:, None] * others[..., 2:] ** (1 / 3) * directions(others[..., :2])
    return np.concatenate([(centre - half)[:, None], (centre + half)[:, None], centre[:, None] + inside], axis=1)


def place_sources(
    rooms: Floats,
    microphones: Floats,
    near: npt.NDArray[np.bool_],
    distance: Floats,
    travel: Floats,
    draw: Callable[[int, npt.NDArray[np.int64]], Floats],
) -> tuple[Floats, Floats]:
    """First and last place of a source in each room. It moves on a level line of length `travel`, 0 for one at rest.

    A near source begins at `distance` (at most 1 m) from one of the microphones, the others anywhere in the room.

    Args:
        draw: from the number of the try and the rows that still need a place to 5 numbers each.
    Shape: (B, 3), (B, M, 3), (B,), (B,), (B,) -> (B, 3), (B, 3)
    """
    first, last = np.empty_like(rooms), np.empty_like(rooms)
    rows = np.arange(len(rooms))
    for attempt in range(_TRIES):
        if not len(rows):
            return first, last
        numbers = draw(attempt, rows)
        room, array, close = rooms[rows], microphones[rows], near[rows]
        start = WALL + (room - 2 * WALL) * numbers[:, :3]
        if close.any():
            start[close] = _beside(room[close], array[close], distance[rows][close], numbers[close])
        heading = 2 * math.pi * numbers[:, 4]
        level = np.stack([np.cos(heading), np.sin(heading), np.zeros_like(heading)], axis=-1)
        end = start + travel[rows, None] * level
        free = ((end >= WALL) & (end <= room - WALL)).all(axis=1)
        free &= _nearest(start, end, array) >= np.where(close, NEAREST_NEAR - 1e-9, NEAREST_FAR)
        first[rows[free]], last[rows[free]] = start[free], end[free]
        rows = rows[~free]
    raise RuntimeError(f"no place for a source in a room of {rooms[rows[0]]} m after {_TRIES} tries")


def _beside(room: Floats, array: Floats, distance: Floats, numbers: Floats) -> Floats:
    """A place at a distance from a microphone. Where that is beyond a wall, the other side of the microphone is not."""
    chosen = (numbers[:, 3] * array.shape[1]).astype(np.int64)
    microphone = np.take_along_axis(array, chosen[:, None, None], axis=1)[:, 0]
    away = distance[:, None] * directions(numbers[:, :2])
    place = microphone + away
    beyond = (place < WALL) | (place > room - WALL)
    return np.where(beyond, microphone - away, place)


def _nearest(start: Floats, end: Floats, array: Floats) -> Any:
    """Shortest distance between the line from start to end and any microphone.

    Shape: (B, 3), (B, 3), (B, M, 3) -> (B,)
    """
    along = (end - start)[:, None]
    length = np.maximum((along**2).sum(axis=-1), 1e-12)
    share = np.clip(((array - start[:, None]) * along).sum(axis=-1) / length, 0, 1)
    return np.linalg.norm(start[:, None] + share[..., None] * along - array, axis=-1).min(axis=1)
