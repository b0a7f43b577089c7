"""Which shifts of microphones a walk determines, and what to call those that it does not.

Shifts of all microphones together (3 M numbers) that leave every delay as it was are no fault of the walk where the
whole array moves or turns; these are taken out. Of the others, those with a standard deviation above 5 mm are named: by
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

_ALONG = 0.9  # share of what moves that lies along an axis, or in a stretch, to be called so
_FLAT = 0.25  # of the largest: directions whose extent along an axis is smaller lie in a plane or a line


@dataclass(frozen=True, eq=False)
class Unsolved:
    what: str
    """Its name."""
    sd: float
    """Metres, of the worst of these shifts, as far as the delays tell; may be infinite."""
    advice: str
    shifts: Floats
    """(K, M, 3) unit shifts, each at right angles to the others."""


def rigid_motions(places: Floats) -> Floats:
    """Shifts and turns of the whole array. Shape: (M, 3) -> (up to 6, 3 M), orthonormal rows"""
    centred = places - places.mean(axis=0)
    rows = [np.tile(axis, (len(places), 1)) for axis in np.eye(3)]
    rows += [np.cross(axis, centred) for axis in np.eye(3)]
    _, size, motions = np.linalg.svd(np.array([row.ravel() / np.linalg.norm(centred) for row in rows]))
    return np.asarray(motions[: int((size > 1e-6 * size[0]).sum())])


def undetermined(information: Floats, places: Floats, limit: float) -> tuple[Floats, Floats]:
    """Shifts with a standard deviation above a limit, and that, both in metres. Shape: (3 M, 3 M) -> (K, M, 3), (K,)"""
    motions = rigid_motions(places)
    rest = np.linalg.svd(motions)[2][len(motions) :]
    amount, vectors = np.linalg.eigh(rest @ information @ rest.T)
    weak = amount < limit**-2
    return (vectors[:, weak].T @ rest).reshape(-1, *places.shape), 1 / np.sqrt(np.maximum(amount[weak], 1e-12))


def unsolved(
    information: Floats, places: Floats, directions: Floats, height_known: bool, numbers: Sequence[int]
) -> tuple[Unsolved, ...]:
    """What the delays do not determine.

    Args:
        information: inverse of the covariance of the places, without anything trusted beforehand. Shape: (3 M, 3 M)
        directions: of the source at each moment. Shape: (B, 3)
        numbers: what the microphones are called.
    """
    shifts, sds = undetermined(information, places, LIMIT)
    if not len(shifts):
        return ()
    found = []
    for name, part, advice in _named(shifts, places, directions, height_known, numbers):
        # Each shift belongs to the name that holds most of it.
        share = ((part.reshape(len(part), -1) @ shifts.reshape(len(shifts), -1).T) ** 2).sum(axis=0)
        sd = float(sds[share > 0.1].max()) if (share > 0.1).any() else float(sds.max())
        found.append(Unsolved(name, sd if sd < 1e5 else float("inf"), advice, part))
    return tuple(found)


def _named(
    shifts: Floats, places: Floats, directions: Floats, height_known: bool, numbers: Sequence[int]
) -> list[tuple[str, Floats, str]]:
    named: list[tuple[str, Floats, str]] = []
    left = shifts
    # Along one axis altogether: heights, most of all.
    for axis, _ in _by_size(left):
        along = _within(left, np.einsum("ij,x->ijx", np.eye(len(places)), axis))
        if len(along) >= max(1, len(places) - 3 - 1) and len(along):
            who = _microphones(along, numbers)
            named.append((f"where {who} lie along {_called(axis)}", along, _advice_axis(axis, places, directions)))
            left = _without(left, along)
    if len(left):
        stretches = _stretches(places)
        along = _within(left, stretches)
        if len(along):
            axes = [axis for axis, _ in _by_size(along)]
            what = "the size of the array along " + " and ".join(_called(axis) for axis in axes)
            advice = "give the height of the source, and walk at that height all around the array"
            if height_known:
                advice = "walk all around the array, also near to it"
            named.append((what, along, advice))
            left = _without(left, along)
    if len(left):
        size = np.sqrt((left**2).sum(axis=0))
        most = np.argsort(-size.ravel())[: min(4, size.size)]
        parts = [
            f"{AXES[i % 3]} of microphone {numbers[i // 3]}" for i in most if size.ravel()[i] > 0.3 * size.max()
        ]  # fmt: skip
        named.append(
            (
                f"{len(left)} combined shift{'s' if len(left) > 1 else ''} of microphones, most of all "
                + ", ".join(parts),
                left,
                "walk all around the array, above and below it, and let the source be heard from more places",
            )
        )
    return named


def _by_size(shifts: Floats) -> list[tuple[Floats, float]]:
    """Axes along which the shifts go, the one with most of them first, as long as they hold a tenth."""
    if not len(shifts):
        return []
    extent, axes = np.linalg.eigh(np.einsum("kmx,kmy->xy", shifts, shifts))
    share = extent / extent.sum()
    return [
        (axes[:, i] * np.sign(axes[np.abs(axes[:, i]).argmax(), i]), float(share[i]))
        for i in (2, 1, 0)
        if share[i] > 0.1
    ]


def _within(shifts: Floats, space: Floats) -> Floats:
    """The shifts of a space that lie in another, nearly; orthonormal. Shape: (K, M, 3), (S, M, 3) -> (N, M, 3)"""
    if not len(shifts) or not len(space):
        return shifts[:0]
    flat = np.linalg.svd(space.reshape(len(space), -1), full_matrices=False)
    basis = flat[2][flat[1] > 1e-6 * flat[1][0]]
    mine = shifts.reshape(len(shifts), -1)
    turn, cosine, _ = np.linalg.svd(mine @ basis.T, full_matrices=False)
    kept = turn.T[cosine**2 > _ALONG] @ mine
    return np.asarray(kept.reshape(-1, *shifts.shape[1:]))


def _without(shifts: Floats, part: Floats) -> Floats:
    """What is left of a space. Shape: (K, M, 3), (N, M, 3) -> (K - N, M, 3)"""
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


def _called(axis: Floats) -> str:
    best = int(np.abs(axis).argmax())
    if abs(axis[best]) > 0.95:
        return AXES[best]
    return "(" + ", ".join(f"{value:.2f} {name}" for value, name in zip(axis, AXES, strict=True)) + ")"


def _microphones(shifts: Floats, numbers: Sequence[int]) -> str:
    size = np.sqrt((shifts**2).sum(axis=(0, 2)))
    moving = np.flatnonzero(size > 0.3 * size.max())
    if len(moving) == shifts.shape[1]:
        return "the microphones"
    return f"microphone{'s' if len(moving) > 1 else ''} " + ", ".join(str(numbers[int(i)]) for i in moving)


def _advice_axis(axis: Floats, places: Floats, directions: Floats) -> str:
    centred = places - places.mean(axis=0)
    extent = np.linalg.svd(centred, compute_uv=False)
    if extent[1] < _FLAT * extent[0] and np.linalg.norm(centred @ axis) < _FLAT * extent[0]:
        return "no walk tells what lies beside a row: measure it by hand"
    flat = np.sqrt(((directions @ axis) ** 2).mean())
    if flat < _FLAT:
        return f"the sound came from places of about one height along {_called(axis)}: walk above and below them, too"
    return f"let the source be heard from more directions along {_called(axis)}"
