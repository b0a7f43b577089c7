"""Which shifts of microphones a walk determines, and a name and advice for those that it does not.

Shifts of all microphones together (3 M numbers) that leave every delay as it was are no fault of the walk where the
whole array moves or turns; these are rest out. Of the others, those with a standard deviation above 5 mm are named: by
an axis, where they all lie along one, or as a stretch of the array, or by the microphones they move most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qkgcc.core.types import Floats

LIMIT = 0.005
"""Metres of standard deviation from which a shift counts as not determined: two of these are a centimetre."""
AXES = ("front", "left", "up")

MIN_OVERLAP = 0.9
"""Share of a shift that lies along an axis, or in a stretch, to be named so."""
MAX_FLAT_EXTENT = 0.25
"""Of the largest extent: directions or places that extend less along an axis lie in a plane or a line."""


@dataclass(frozen=True, eq=False)
class Unsolved:
    """Shifts of microphones that a walk does not determine, by a common name."""

    what: str
    """The name, such as `where the microphones lie along up`."""
    sd: float
    """Metres, of the least certain of these shifts, as far as the delays tell; may be infinite."""
    advice: str
    """How to determine them."""
    shifts: Floats
    """(K, M, 3) unit shifts, each at right angles to the others."""


def rigid_motions(places: Floats) -> Floats:
    """Shifts and turns of the whole array. Shape: (M, 3) -> (up to 6, 3 M), orthonormal rows"""
    centred = places - places.mean(axis=0)
    rows = [np.tile(axis, (len(places), 1)) for axis in np.eye(3)]
    rows += [np.cross(axis, centred) for axis in np.eye(3)]
    _, size, motions = np.linalg.svd(np.array([row.ravel() / np.linalg.norm(centred) for row in rows]))
    return np.asarray(motions[: int((size > 1e-6 * size[0]).sum())])


def undetermined_shifts(information: Floats, places: Floats, limit: float) -> tuple[Floats, Floats]:
    """Unit shifts with a standard deviation above a limit, and these deviations in metres.

    Shape: (3 M, 3 M) -> (K, M, 3), (K,)
    """
    motions = rigid_motions(places)
    rest = np.linalg.svd(motions)[2][len(motions) :]
    amount, vectors = np.linalg.eigh(rest @ information @ rest.T)
    weak = amount < limit**-2
    return (vectors[:, weak].T @ rest).reshape(-1, *places.shape), 1 / np.sqrt(np.maximum(amount[weak], 1e-12))


def name_undetermined_shifts(
    information: Floats, places: Floats, directions: Floats, height_known: bool, numbers: Sequence[int]
) -> tuple[Unsolved, ...]:
    """Name the shifts that the delays do not determine.

    Args:
        information: inverse of the covariance of the places, without anything trusted beforehand. Shape: (3 M, 3 M)
        directions: of the source at each moment. Shape: (B, 3)
        numbers: of the microphones, as they are called.
    """
    shifts, sds = undetermined_shifts(information, places, LIMIT)
    if not len(shifts):
        return ()
    found = []
    for name, part, advice in _name_shifts(shifts, places, directions, height_known, numbers):
        # Each shift belongs to the name that holds most of it.
        share = ((part.reshape(len(part), -1) @ shifts.reshape(len(shifts), -1).T) ** 2).sum(axis=0)
        sd = float(sds[share > 0.1].max()) if (share > 0.1).any() else float(sds.max())
        found.append(Unsolved(name, sd if sd < 1e5 else float("inf"), advice, part))
    return tuple(found)


def _name_shifts(
    shifts: Floats, places: Floats, directions: Floats, height_known: bool, numbers: Sequence[int]
) -> list[tuple[str, Floats, str]]:
    """Names, the shifts of each, and advice."""
    named: list[tuple[str, Floats, str]] = []
    rest = shifts
    # Along one axis altogether: heights, most of all.
    for axis in _main_axes(rest):
        along = _overlap(rest, np.einsum("ij,x->ijx", np.eye(len(places)), axis))
        if len(along) >= max(1, len(places) - 4):
            who = _microphone_names(along, numbers)
            named.append((f"where {who} lie along {_axis_name(axis)}", along, _axis_advice(axis, places, directions)))
            rest = _complement(rest, along)
    if len(rest):
        along = _overlap(rest, _stretches(places))
        if len(along):
            what = "the size of the array along " + " and ".join(_axis_name(axis) for axis in _main_axes(along))
            advice = "give the height of the source, and walk at that height all around the array"
            if height_known:
                advice = "walk all around the array, also near to it"
            named.append((what, along, advice))
            rest = _complement(rest, along)
    if len(rest):
        size = np.sqrt((rest**2).sum(axis=0)).ravel()
        largest = [i for i in np.argsort(-size)[:4] if size[i] > 0.3 * size.max()]
        parts = ", ".join(f"{AXES[i % 3]} of microphone {numbers[i // 3]}" for i in largest)
        what = f"{len(rest)} combined shift{'s' if len(rest) > 1 else ''} of microphones, most of all {parts}"
        advice = "walk all around the array, above and below it, and let the source be heard from more places"
        named.append((what, rest, advice))
    return named


def _main_axes(shifts: Floats) -> list[Floats]:
    """Axes along which the shifts go, the one with most of them first, as long as they hold a tenth."""
    if not len(shifts):
        return []
    extent, axes = np.linalg.eigh(np.einsum("kmx,kmy->xy", shifts, shifts))
    share = extent / extent.sum()
    return [axes[:, i] * np.sign(axes[np.abs(axes[:, i]).argmax(), i]) for i in (2, 1, 0) if share[i] > 0.1]


def _overlap(shifts: Floats, space: Floats) -> Floats:
    """The shifts of a space that lie in another, nearly; orthonormal. Shape: (K, M, 3), (S, M, 3) -> (N, M, 3)"""
    if not len(shifts) or not len(space):
        return shifts[:0]
    flat = np.linalg.svd(space.reshape(len(space), -1), full_matrices=False)
    basis = flat[2][flat[1] > 1e-6 * flat[1][0]]
    mine = shifts.reshape(len(shifts), -1)
    turn, cosine, _ = np.linalg.svd(mine @ basis.T, full_matrices=False)
    kept = turn.T[cosine**2 > MIN_OVERLAP] @ mine
    return np.asarray(kept.reshape(-1, *shifts.shape[1:]))


def _complement(shifts: Floats, part: Floats) -> Floats:
    """The part of a space beside another. Shape: (K, M, 3), (N, M, 3) -> (K - N, M, 3)"""
    mine, gone = shifts.reshape(len(shifts), -1), part.reshape(len(part), -1)
    rest = mine - mine @ gone.T @ gone
    _, size, rows = np.linalg.svd(rest, full_matrices=False)
    return np.asarray(rows[size > 0.3].reshape(-1, *shifts.shape[1:]))


def _stretches(places: Floats) -> Floats:
    """All shifts that are linear in the place, without turns. Shape: (6, M, 3)"""
    centred = places - places.mean(axis=0)
    made = []
    for i in range(3):
        for j in range(i + 1):
            matrix = np.zeros((3, 3))
            matrix[i, j] = matrix[j, i] = 1
            made.append(centred @ matrix)
    return np.array(made)


def _axis_name(axis: Floats) -> str:
    best = int(np.abs(axis).argmax())
    if abs(axis[best]) > 0.95:
        return AXES[best]
    return "(" + ", ".join(f"{value:.2f} {name}" for value, name in zip(axis, AXES, strict=True)) + ")"


def _microphone_names(shifts: Floats, numbers: Sequence[int]) -> str:
    size = np.sqrt((shifts**2).sum(axis=(0, 2)))
    moving = np.flatnonzero(size > 0.3 * size.max())
    if len(moving) == shifts.shape[1]:
        return "the microphones"
    return f"microphone{'s' if len(moving) > 1 else ''} " + ", ".join(str(numbers[int(i)]) for i in moving)


def _axis_advice(axis: Floats, places: Floats, directions: Floats) -> str:
    centred = places - places.mean(axis=0)
    extent = np.linalg.svd(centred, compute_uv=False)
    if extent[1] < MAX_FLAT_EXTENT * extent[0] and np.linalg.norm(centred @ axis) < MAX_FLAT_EXTENT * extent[0]:
        return "no walk can tell offsets perpendicular to a row: measure them by hand"
    flat = np.sqrt(((directions @ axis) ** 2).mean())
    if flat < MAX_FLAT_EXTENT:
        return f"all sound came from about the same height along {_axis_name(axis)}: walk above and below it, too"
    return f"let the source be heard from more directions along {_axis_name(axis)}"
