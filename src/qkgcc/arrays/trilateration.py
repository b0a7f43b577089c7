"""A position from the delays of pairs of microphones: weighted least squares with outlier rejection.

Of a source at s, the ways to microphones i and j differ by |s - m_i| - |s - m_j| = c tau. The fit is Gauss and Newton's
with the weights of Cauchy, so that delays of reflections come to count for nothing. Its matrix gives the ellipse of
uncertainty, and says where a position cannot be told.

Without a place to start from there is a closed form: with the distance r to one microphone as a fourth unknown, the
equations of the pairs with that microphone are linear in s and r.

J. O. Smith, J. S. Abel, "Closed-form least-squares source location estimation from range-difference measurements",
IEEE Trans. ASSP 35(12), 1987.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.result import Position
from qkgcc.arrays.steering import Pairs
from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Bools, Floats

MIN_UNCERTAINTY = 0.005
"""Metres, standard deviation of path differences."""

MAX_RESIDUAL, MIN_USED_SHARE = 0.06, 0.6
"""For delays that agree on a place: metres, RMS of the residuals that count, and share of the delays that count. In 14
simulated rooms that they were not chosen on, 11 of 12 places that were wrong by more than 0.3 m fail, and 2 of 44
others."""

MIN_AGREEING_SHARE = 0.5
"""Share of the delays: where fewer agree on a place, something is wrong with the microphones or their order. In 120
simulated rooms that was so of 2 % of the places that stood out, and of 15 % with two microphones exchanged."""

_MAX_STEPS = 50
_ROBUST_SCALE = 2.0  # standard deviations from which a delay counts less,
_MIN_WEIGHT_SHARE = 0.2  # and the share of its weight below which it is an outlier
_FIRST_SCALE = 0.15  # metres that delays may miss by at first
_MAX_RELATIVE_RADIUS = 0.3  # semi-axis against the distance from the array's middle: beyond, that way is unknown


class Fit(NamedTuple):
    place: Floats
    """(3,)"""
    residuals: Floats
    """(P,) metres by which each path difference misses the place."""
    used: Bools
    """(P,)"""
    covariance: Floats
    """(3, 3) metres^2; without bounds where the delays say nothing."""
    speed_of_sound: float


def closed_form(geometry: Geometry, pairs: Pairs, delays: Floats, speed_of_sound: float = SPEED_OF_SOUND) -> Floats:
    """A first position from the pairs of the microphone that is in most of them. Shape: (P,) seconds -> (3,)"""
    counts = np.bincount(np.array(pairs).ravel(), minlength=len(geometry))
    base = int(counts.argmax())
    rows, right = [], []
    for (i, j), tau in zip(pairs, delays, strict=True):
        if base in (i, j):
            other = j if i == base else i
            longer = speed_of_sound * (tau if i != base else -tau)  # |s - other| - |s - base|
            apart = geometry.microphones[other] - geometry.microphones[base]
            rows.append([*apart, longer])
            right.append((apart @ apart - longer**2) / 2)
    if len(rows) < 3:
        raise InputError(f"a position needs 3 delays with one microphone; there are {len(rows)}")
    solved = np.linalg.lstsq(np.array(rows), np.array(right), rcond=1e-6)[0]
    return np.asarray(geometry.microphones[base] + solved[:3])


def fit_position(
    geometry: Geometry,
    pairs: Pairs,
    delays: Floats,
    weights: Floats | None = None,
    start: Floats | None = None,
    *,
    height: float | None = None,
    robust: bool = True,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> Fit:
    """Fit a position to delays.

    Args:
        weights: how much each delay counts.
        start: a place near it; by default the closed form.
        height: metres up at which the source is, where that is known.
        robust: whether delays that miss count less; otherwise this is plain least squares.
    Shape: (P,) seconds, (P,), (3,)
    """
    first, second = np.array(pairs).T
    ways = np.asarray(delays, dtype=np.float64) * speed_of_sound
    trusted = np.ones(len(ways)) if weights is None else np.asarray(weights, dtype=np.float64)
    place = closed_form(geometry, pairs, delays, speed_of_sound) if start is None else np.array(start, np.float64)
    free = np.array([True, True, height is None])
    if height is not None:
        place[2] = height
    scale, damping = _FIRST_SCALE, 1e-3

    def residuals_at(at: Floats) -> tuple[Floats, Floats]:
        away = at - geometry.microphones
        distance = np.maximum(np.linalg.norm(away, axis=1), 1e-6)
        unit = away / distance[:, None]
        return ways - (distance[first] - distance[second]), (unit[first] - unit[second])[:, free]

    def cost_of(residuals: Floats) -> float:
        ratio = (residuals / (_ROBUST_SCALE * scale)) ** 2
        return float((trusted * (np.log1p(ratio) if robust else ratio)).sum())

    residuals, slope = residuals_at(place)
    for _ in range(_MAX_STEPS):
        counted = trusted / (1 + (residuals / (_ROBUST_SCALE * scale)) ** 2) if robust else trusted
        matrix = slope.T @ (counted[:, None] * slope)
        step = np.linalg.lstsq(
            matrix + damping * np.diag(np.diag(matrix) + 1e-9), slope.T @ (counted * residuals), rcond=None
        )
        tried = place.copy()
        tried[free] += np.clip(step[0], -1, 1)
        new_residuals, new_slope = residuals_at(tried)
        if cost_of(new_residuals) <= cost_of(residuals):
            done = float(np.abs(tried - place).max()) < 1e-6
            place, residuals, slope, damping = tried, new_residuals, new_slope, max(damping / 5, 1e-9)
            scale = max(MIN_UNCERTAINTY, min(scale, _spread(residuals, trusted)))
            if done:
                break
        else:
            damping *= 10
            if damping > 1e9:
                break
    scale = max(MIN_UNCERTAINTY, _spread(residuals, trusted))
    share = 1 / (1 + (residuals / (_ROBUST_SCALE * scale)) ** 2) if robust else np.ones(len(residuals))
    used = (share >= _MIN_WEIGHT_SHARE) & (trusted > 0.05 * trusted.max())
    return Fit(
        place,
        residuals,
        used,
        _covariance(slope, trusted * share, residuals, used, scale, free, len(geometry)),
        speed_of_sound,
    )


def _spread(residuals: Floats, trusted: Floats) -> float:
    """Median-based, every delay by its weight."""
    order = np.argsort(np.abs(residuals))
    total = np.cumsum(trusted[order])
    middle = int(np.searchsorted(total, total[-1] / 2)) if total[-1] > 0 else 0
    return float(np.abs(residuals[order])[min(middle, len(residuals) - 1)]) / 0.6745


def _covariance(
    slope: Floats,
    counted: Floats,
    residuals: Floats,
    used: Bools,
    scale: float,
    free: Floats,
    count: int,
) -> Floats:
    # Of M (M - 1) / 2 delays, M - 1 are independent; and so many unknowns were fitted to them.
    independent = count - 1
    spare = max(independent - int(free.sum()), 0.5) / independent
    sure = counted / max(float(counted.max()), 1e-12)
    # A single number for all: the delays that count miss by this.
    missed = (
        float(np.sqrt((sure * residuals**2)[used].sum() / max(float(sure[used].sum()), 1e-12))) if used.any() else scale
    )
    matrix = slope.T @ (sure[:, None] * slope) * (2 / count) / max(missed**2 / spare, MIN_UNCERTAINTY**2)
    values, vectors = np.linalg.eigh(matrix)
    spread = np.where(values > 1e-9 * max(values.max(), 1e-12), 1 / np.maximum(values, 1e-12), np.inf)
    full = np.zeros((3, 3))
    index = np.flatnonzero(free)
    # A direction without any information is kept finite here, and made infinite where the ellipse is read.
    full[np.ix_(index, index)] = (vectors * np.minimum(spread, 1e12)) @ vectors.T
    return full


def position_from_fit(  # noqa: PLR0913
    fit: Fit,
    geometry: Geometry,
    pairs: Pairs,
    volume: Floats,
    height: float | None,
    confidence: float = float("nan"),
    stands_out: bool | None = None,
    *,
    within: Floats | None = None,
    alone: bool = True,
) -> Position:
    """The position of a fit, with a remark where the delays tell less than a position.

    Args:
        confidence: of the place.
        stands_out: whether that is enough; None: not known, what counts is how well the delays agree (`MAX_RESIDUAL`).
        within: the place that was searched for, which is answered where the fit leaves the volume; None: it may.
        alone: no other place has taken delays of its own away, so that most of them should agree on it.
    """
    searched = fit.place
    outside = not ((searched >= volume[:, 0]) & (searched <= volume[:, 1])).all()
    far_outside = not ((searched >= volume[:, 0] - 0.5) & (searched <= volume[:, 1] + 0.5)).all()
    if within is not None and outside:
        fit = fit._replace(place=within)
    values, vectors = np.linalg.eigh(fit.covariance)
    radii = np.sqrt(np.maximum(values[::-1], 0))
    radii = np.where(radii > 1e4, np.inf, radii)
    axes = vectors[:, ::-1].T
    microphones = {microphone for pair, used in zip(pairs, fit.used, strict=True) if used for microphone in pair}
    needed = 4 if height is None else 3
    doubt = _doubt_of_delays(fit, stands_out)
    if doubt is None and len(microphones) < needed:
        doubt = f"only {len(microphones)} microphones agree on a place; {needed} are needed"
    doubt = doubt or _doubt_of_ellipse(fit, geometry, radii, axes)
    if doubt is None and far_outside:
        doubt = "the delays point outside the volume that was searched: give a larger one"
    remark = doubt
    if remark is None and geometry.dimensions == 2 and height is None:
        remark = _mirror_remark(fit, geometry, radii)
    if remark is None and alone and fit.used.mean() < MIN_AGREEING_SHARE:
        remark = (
            f"only {int(fit.used.sum())} of {len(fit.used)} delays agree on it: are the microphones where they should "
            "be, and the channels in their order? (`qkgcc doctor --array` looks for that)"
        )
    residuals = fit.residuals / fit.speed_of_sound
    return Position(fit.place, radii, axes, residuals, fit.used, confidence, doubt is None, remark)


def _doubt_of_delays(fit: Fit, stands_out: bool | None) -> str | None:
    """Why the delays give no place; None: they do."""
    residual = float(np.sqrt((fit.residuals[fit.used] ** 2).mean())) if fit.used.any() else np.inf
    if stands_out is False:
        guess = ", ".join(f"{x:.1f}" for x in fit.place)
        return f"hardly anything speaks for one place more than for others; ({guess}) is the likeliest"
    if stands_out is None and (residual > MAX_RESIDUAL or fit.used.mean() < MIN_USED_SHARE):
        return (
            f"the pairs do not agree on one place: {int(fit.used.sum())} of {len(fit.used)} delays miss it by "
            f"{100 * residual:.0f} cm, the others by more"
        )
    return None


def _doubt_of_ellipse(fit: Fit, geometry: Geometry, radii: Floats, axes: Floats) -> str | None:
    """What is not known where the error ellipse is too long; None: it is short enough."""
    middle = geometry.microphones.mean(axis=0)
    out = fit.place - middle
    distance = float(np.linalg.norm(out))
    size = float(np.linalg.norm(geometry.microphones - middle, axis=1).max())
    if not radii[0] > _MAX_RELATIVE_RADIUS * max(distance, size):
        return None
    if distance > 1.5 * size and abs(axes[0] @ out) > 0.8 * distance:
        azimuth = float(np.degrees(np.arctan2(out[1], out[0])))
        elevation = float(np.degrees(np.arcsin(out[2] / distance)))
        return (
            f"too far outside the microphones to tell how far: only the direction is known (azimuth {azimuth:.0f}, "
            f"elevation {elevation:.0f} degrees from their middle)"
        )
    way = ", ".join(f"{x:.2f}" for x in axes[0])
    return f"the microphones do not tell where it is along ({way}) (front, left, up)"


def _mirror_remark(fit: Fit, geometry: Geometry, radii: Floats) -> str | None:
    """The mirror image behind the plane of the microphones, where that is another place."""
    middle = geometry.microphones.mean(axis=0)
    normal = np.linalg.svd(geometry.microphones - middle)[2][2]
    other = fit.place - 2 * ((fit.place - middle) @ normal) * normal
    if not np.linalg.norm(other - fit.place) > 2 * max(radii[2], 0.05):
        return None
    way = ", ".join(f"{x:.2f}" for x in other)
    return f"the microphones are in one plane: ({way}) behind it sounds the same"
