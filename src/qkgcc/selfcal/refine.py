"""Microphone positions refined from a recording in which one source walks around them; nobody knows where it walked.

Delays of all pairs over time are fitted by the places of the microphones and, for each moment, of the source
(`wavefronts`: near or far). It is a robust least squares fit (Levenberg and Marquardt, Cauchy weights) that starts at
the nominal geometry and is drawn to it as far as that is trusted: what the delays do not tell stays as it was given,
and so do the place and the attitude of the whole array, which no delay tells. The unknowns of each moment are
eliminated first (Schur's complement), so the time grows with the length of the walk and not with its cube.

What is left of the matrix says which shifts of the microphones the walk determines, and which it does not. These are
named: heights after a walk in the plane of the microphones, the size of a flat array after a walk at unknown heights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.geometry import MAX_SOURCE_HEIGHT, Geometry
from qkgcc.arrays.presets import array
from qkgcc.arrays.steering import across, arrivals, derivatives, nearest_wavefronts
from qkgcc.core.checks import check_flag, check_number, check_speed, short_repr
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.selfcal.observability import LIMIT, Unsolved, rigid_motions, undetermined, unsolved

TOLERANCE = 0.05
"""Metres by which a microphone is expected to be off, at most about twice that."""
NEAREST = 0.5
"""Metres from the middle of the array that the source keeps at least, by default."""

_FEWEST = 20  # moments
_GRID = 500  # directions that a fit of a moment starts from: 9 degrees apart
_STEPS = 40
_ASTRAY = 1.5  # times the tolerance that no microphone is off
_LEAST, _TYPICAL = 0.001, 0.003  # metres: delays are not better than that, and are usually as good as that
_ROBUST = 2.0  # standard deviations from which a delay counts less
_HEIGHT = 0.04  # how well a height is kept, as a share of the distance
_LOST = 0.3  # of the size of the array, that delays miss by where they are not those of a source; noise: 0.8
_DEEP = 0.35  # of the largest extent of an array: one with less depth is thin
_OFFSET = 0.35  # metres of sound's way: a millisecond of constant offset of a channel


@dataclass(frozen=True, eq=False)
class Moments:
    """Delays of pairs of microphones at several times. Shape: B moments, P pairs."""

    times: Floats
    """(B,) seconds."""
    pairs: tuple[tuple[int, int], ...]
    delays: Floats
    """(B, P) seconds, positive = the first of the pair later."""
    weights: Floats
    """(B, P) 0: not known, 1: sure."""
    dead: tuple[int, ...] = ()
    """Microphones that hold nothing, of which there are no delays."""
    warnings: tuple[str, ...] = ()
    """What to know of the recording, one sentence each."""

    def of(self, microphones: list[int]) -> Moments:
        """Those of the pairs of some microphones, numbered anew."""
        kept = [n for n, (i, j) in enumerate(self.pairs) if i in microphones and j in microphones]
        pairs = tuple((microphones.index(i), microphones.index(j)) for i, j in (self.pairs[n] for n in kept))
        return Moments(self.times, pairs, self.delays[:, kept], self.weights[:, kept])


@dataclass(frozen=True, eq=False)
class Refined:
    """Where the microphones are, as far as the walk tells."""

    geometry: Geometry
    """Moved as a whole to lie closest to the nominal one."""
    sd: Floats
    """(M, 3) metres, standard deviations; what the walk does not tell is as uncertain as it was."""
    moved: Floats
    """(M,) metres from the nominal places."""
    offsets: Floats | None
    """(M,) seconds by which each channel is late, their mean 0, where they were asked for; NaN: it is dead."""
    unsolved: tuple[Unsolved, ...]
    """Shifts that the walk does not determine; none: all within a centimetre (two standard deviations)."""
    residual: float
    """Seconds by which delays of pairs miss the fit (median-based standard deviation)."""
    before: float
    """The same with the nominal places."""
    directions: Floats
    """(B, 3) of the source at each moment."""
    distances: Floats
    """(B,) metres from the middle of the array; infinite: too far to tell."""
    used: float
    """Share of the delays that the fit goes through."""


def check_tolerance(tolerance: float) -> float:
    return check_number("tolerance", tolerance, 1e-4, 10, "m")


def refine(
    nominal: Geometry | str | Path,
    moments: Moments,
    *,
    tolerance: float = TOLERANCE,
    height: float | None = None,
    nearest: float = NEAREST,
    offsets: bool = False,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> Refined:
    """Fit microphone places to the delays of a walk. Those of dead microphones stay, and are named as not determined.

    Args:
        nominal: a `Geometry`, or what `qkgcc.arrays.array` takes.
        tolerance: metres by which the nominal places may be off (a standard deviation).
        height: metres above the origin of the geometry at which the source stayed, if it is known.
        nearest: metres from the middle of the array that the source always kept.
        offsets: whether channels may be late by a constant each.
    """
    nominal = array(nominal)
    if not isinstance(moments, Moments):
        raise InputError(f"moments is {short_repr(moments)}; expected what measure_moments answers")
    count = len(nominal)
    if count < 3:
        raise InputError(f"the geometry has {count} microphones; their places can be refined from 3 on")
    living = [i for i in range(count) if i not in moments.dead]
    if len(living) < 3 and moments.dead:
        raise InputError(
            f"{len(moments.dead)} of the {count} microphones are silent ({', '.join(map(str, moments.dead))}); places "
            "can be refined from 3 on that are not: check their cables and channels"
        )
    tolerance = check_tolerance(tolerance)
    nearest = check_number("nearest distance", nearest, 0.01, 100, "m")
    if height is not None:
        height = check_number("height", height, -MAX_SOURCE_HEIGHT, MAX_SOURCE_HEIGHT, "m")
    offsets, speed_of_sound = check_flag("offsets", offsets), check_speed(speed_of_sound)
    whole, nominal = nominal, Geometry(nominal.microphones[living], nominal.name) if moments.dead else nominal
    moments, dead, count = moments.of(living) if moments.dead else moments, moments.dead, len(living)
    known = (moments.weights > 0).sum(axis=1) >= count - 1
    if known.sum() < _FEWEST:
        raise InputError(
            f"only {quantity(int(known.sum()), 'moment')} with enough clear delays; refining needs {_FEWEST}: a walk "
            "around the microphones while talking or clapping, for half a minute or more"
        )
    middle = nominal.microphones.mean(axis=0)
    start = nominal.microphones - middle
    fit = _Fit(
        start,
        np.array(moments.pairs, dtype=np.int64),
        moments.delays[known] * speed_of_sound,
        moments.weights[known],
        tolerance,
        None if height is None else height - middle[2],
        nearest,
        offsets,
    )
    fit.begin()
    before = fit.scale()
    fit.converge_twice()
    if fit.scale() > _LOST * nominal.aperture:
        raise InputError(
            f"the delays fit no source that walks around these microphones: they miss by "
            f"{1e6 * fit.scale() / speed_of_sound:.0f} µs. Is there one talker, louder than the noise, and does every "
            "channel have its microphone? `qkgcc doctor --array` looks for that"
        )
    # The fit may have turned as a whole; what is known of its places turns with them onto the given ones.
    turn = _turn(fit.places, start)
    places = (fit.places - fit.places.mean(axis=0)) @ turn + start.mean(axis=0)
    directions = fit.direction @ turn
    all_of_them = np.kron(np.eye(count), turn)
    information, covariance = (all_of_them.T @ matrix @ all_of_them for matrix in fit.information())
    # What is not known better than it was given stays so.
    loose = undetermined(information, places, tolerance / 2)[0].reshape(-1, 3 * count)
    moved = (places - start).ravel()
    places = start + (moved - moved @ loose.T @ loose).reshape(count, 3)
    advice = None
    astray = np.linalg.norm(places - start, axis=1).max() > _ASTRAY * tolerance
    if astray and len(undetermined(information, places, LIMIT)[0]):
        # Far along a shift that is nearly free, others become free: nothing of this can be trusted, though at the given
        # places much would seem to be told.
        fit.stay()
        fit.converge_twice()
        places, directions = start, fit.direction
        information, covariance = 0 * information, tolerance**2 * np.eye(3 * count)
        advice = "the fit went astray: give the height of the source or a smaller tolerance, or measure these by hand"
    motions = rigid_motions(places)
    free = np.eye(3 * count) - motions.T @ motions
    sd = np.sqrt(np.clip(np.diag(free @ covariance @ free), 0, None)).reshape(count, 3)
    with np.errstate(divide="ignore"):
        distances = np.where(fit.nearness > 0.02, 1 / fit.nearness, np.inf)
    lost = unsolved(information, places, directions, height is not None, living)
    found = Refined(
        geometry=Geometry(places + middle, nominal.name),
        sd=sd,
        moved=np.linalg.norm(places - start, axis=1),
        offsets=(fit.late - fit.late.mean()) / speed_of_sound if offsets else None,
        unsolved=tuple(one if advice is None else replace(one, advice=advice) for one in lost),
        residual=fit.scale() / speed_of_sound,
        before=before / speed_of_sound,
        directions=directions,
        distances=distances,
        used=float((fit.robust() > 0.5)[fit.weights > 0].mean()),
    )
    return _with_dead(found, whole, dead, living, tolerance) if dead else found


def _with_dead(found: Refined, given: Geometry, dead: tuple[int, ...], living: list[int], tolerance: float) -> Refined:
    """The same with the dead microphones, which are where they were given, and as uncertain."""
    places, sd, moved = given.microphones.copy(), np.full((len(given), 3), tolerance), np.zeros(len(given))
    places[living], sd[living], moved[living] = found.geometry.microphones, found.sd, found.moved
    offsets = None
    if found.offsets is not None:
        offsets = np.full(len(given), np.nan)
        offsets[living] = found.offsets
    lost = []
    for one in found.unsolved:
        shifts = np.zeros((len(one.shifts), len(given), 3))
        shifts[:, living] = one.shifts
        lost.append(replace(one, shifts=shifts))
    for microphone in dead:
        shifts = np.zeros((3, len(given), 3))
        shifts[:, microphone] = np.eye(3)
        lost.append(
            Unsolved(
                f"where microphone {microphone} lies", math.inf, "it is silent: mend it, and walk once more", shifts
            )
        )
    geometry = Geometry(places, given.name)
    return replace(found, geometry=geometry, sd=sd, moved=moved, offsets=offsets, unsolved=tuple(lost))


class _Fit:
    """The state of the fit, in metres throughout."""

    def __init__(
        self,
        start: Floats,
        pairs: npt.NDArray[np.int64],
        delays: Floats,
        weights: Floats,
        tolerance: float,
        height: float | None,
        nearest: float,
        offsets: bool,
    ) -> None:
        self.start, self.places = start, start.copy()
        self.late = np.zeros(len(start))
        self.pairs, self.delays = pairs, np.where(weights > 0, delays, 0.0)
        # All pairs together say more often than they know: of M (M - 1) / 2 delays, M - 1 are independent.
        self.weights = weights * (2 / len(start))
        self.tolerance, self.height, self.offsets = tolerance, height, offsets
        self.nearest = nearest
        self.usual = 0.5 / nearest  # nearness: each moment's is about that of all, and that is about this
        self.design = np.zeros((len(pairs), len(start)))
        self.design[np.arange(len(pairs)), pairs[:, 0]] = 1
        self.design[np.arange(len(pairs)), pairs[:, 1]] = -1
        self.direction, self.nearness = np.zeros((len(delays), 3)), np.zeros(len(delays))
        self.sigma = 0.02
        self.fixed = False

    def stay(self) -> None:
        """Begin again, with places that do not move."""
        self.fixed = True
        self.places, self.late = self.start.copy(), 0 * self.late
        self.usual = 0.5 / self.nearest
        self.begin()

    def begin(self) -> None:
        """The source of each moment, out of a grid."""
        grid = np.array([0.0, 0.15, 0.35, 0.65, 1.0]) / self.nearest
        delays = self.delays - self.late @ self.design.T
        self.direction, self.nearness = nearest_wavefronts(self.places, self.pairs, delays, self.weights, grid, _GRID)
        extent = np.linalg.svd(self.places, compute_uv=False)
        if extent[2] < 0.02 * extent[0]:  # a flat array cannot tell above from below: all begin on the same side
            normal = np.linalg.svd(self.places)[2][2]
            side = normal @ np.array([0.0, 0.0, 1.0 if self.height is None or self.height >= 0 else -1.0])
            normal = normal if side >= 0 else -normal
            below = self.direction @ normal
            self.direction -= 2 * np.minimum(below, 0)[:, None] * normal
        if self.height is not None:
            self._level(self.height)

    def _level(self, height: float) -> None:
        """Directions turned towards the height that the source had."""
        up = np.clip(self.nearness * height, -0.9, 0.9)
        flat = self.direction[:, :2] / np.maximum(np.linalg.norm(self.direction[:, :2], axis=1, keepdims=True), 1e-9)
        self.direction = np.concatenate([flat * np.sqrt(1 - up**2)[:, None], up[:, None]], axis=1)

    def left(self) -> Floats:
        """What the fit leaves of each delay. Shape: (B, P)"""
        f = arrivals(self.places, self.direction, self.nearness) + self.late
        return np.asarray(self.delays - f @ self.design.T)

    def scale(self) -> float:
        known = self.weights > 0
        return max(_LEAST, float(np.median(np.abs(self.left()[known]))) / 0.6745)

    def robust(self) -> Floats:
        """How much each delay counts by what is left of it, 0 to 1 (Cauchy)."""
        return np.asarray(1 / (1 + (self.left() / (_ROBUST * self.sigma)) ** 2))

    def _weight(self) -> Floats:
        """Of each delay, in 1 / metres^2. Shape: (B, P)"""
        # At the nominal places delays miss because of these, not because they are wrong.
        counted = self.weights if self.fixed else self.weights * self.robust()
        return np.asarray(counted / self.sigma**2)

    def _cost(self) -> float:
        ratio = self.left() / (_ROBUST * self.sigma)
        data = _ROBUST**2 * (self.weights * np.log1p(ratio**2)).sum()
        drawn = ((self.places - self.start) ** 2).sum() / self.tolerance**2 + (self.late**2).sum() / _OFFSET**2
        near = (4 * self.nearest**2) * (
            ((self.nearness - self.usual) ** 2).sum() + (self.usual - 0.5 / self.nearest) ** 2
        )
        level = 0.0
        if self.height is not None:
            level = (((self.direction[:, 2] - self.nearness * self.height) / _HEIGHT) ** 2).sum()
        return float(data + drawn + near + level)

    def converge_twice(self) -> None:
        """With better places, moments may find another source."""
        self.converge()
        self.begin()
        self.converge()

    def converge(self) -> None:
        damping = 1e-3
        self.sigma = self.scale()
        cost = self._cost()
        for step in range(_STEPS):
            kept = self.places, self.late, self.direction, self.nearness, self.usual
            self._move(damping)
            tried = self._cost()
            if tried < cost:
                small = cost - tried < 1e-6 * cost
                damping = max(damping / 5, 1e-9)
                # A smaller scale as the fit gets better; the cost is another one then.
                self.sigma = self.scale() if step < _STEPS // 2 else self.sigma
                cost = self._cost()
                if small and step > 5:
                    break
            else:
                self.places, self.late, self.direction, self.nearness, self.usual = kept
                damping *= 10
                if damping > 1e6:
                    break

    def _move(self, damping: float) -> None:
        source, cross, shared, by_source, by_shared = self._normal_equations()
        source = source * (1 + damping * np.eye(3)) + 1e-12 * np.eye(3)
        shared = shared * (1 + damping * np.eye(len(shared)))
        solved = np.linalg.solve(source, cross)
        reduced = shared - np.einsum("bsg,bsh->gh", cross, solved)
        right = by_shared - np.einsum("bsg,bs->g", solved, by_source)
        # Not along shifts that no delay determines: there the fit would go wherever the noise leads it.
        told, ways = np.linalg.eigh(self._told(reduced, source))
        kept = ways[:, told > (self.tolerance / 2) ** -2] if not self.fixed else ways[:, :0]
        allowed = np.zeros((len(reduced), kept.shape[1] + len(reduced) - len(kept)))
        allowed[: len(kept), : kept.shape[1]] = kept
        allowed[len(kept) :, kept.shape[1] :] = np.eye(len(reduced) - len(kept))
        moved = allowed @ np.linalg.solve(allowed.T @ reduced @ allowed, allowed.T @ right)
        change = np.linalg.solve(source, (by_source - cross @ moved)[..., None])[..., 0]
        count = len(self.start)
        self.places = self.places + moved[: 3 * count].reshape(count, 3)
        self.late = self.late + (moved[3 * count : -1] if self.offsets else 0.0)
        self.usual += float(moved[-1])
        turn = np.einsum("bs,bsx->bx", np.clip(change[:, :2], -0.5, 0.5), across(self.direction))
        turned = self.direction + turn
        self.direction = turned / np.linalg.norm(turned, axis=1, keepdims=True)
        self.nearness = np.clip(self.nearness + change[:, 2], 0.0, 2 / self.nearest)

    def _normal_equations(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """In units of one standard deviation: of each source (B, 3, 3), between it and what all share (B, 3, G), of
        that (G, G), and the right sides (B, 3), (G,). G: places, then offsets, then the usual nearness."""
        count = len(self.start)
        _, by_place, (by_source, steps) = derivatives(self.places, self.direction, self.nearness)
        weight = self._weight()
        between = np.einsum("pi,bp,pj->bij", self.design, weight, self.design)
        pull = np.einsum("pi,bp->bi", self.design, weight * self.left())

        weighted = np.einsum("bij,bjs->bis", between, by_source)
        source = np.einsum("bis,bit->bst", by_source, weighted)
        towards = np.einsum("bis,bi->bs", by_source, pull)
        cross = np.einsum("bis,bix->bsix", weighted, by_place).reshape(len(weight), 3, 3 * count)
        shared = np.einsum("bij,bix,bjy->ixjy", between, by_place, by_place).reshape(3 * count, 3 * count)
        right = np.einsum("bix,bi->ix", by_place, pull).ravel()
        if self.offsets:
            cross = np.concatenate([cross, weighted.transpose(0, 2, 1)], axis=2)
            mixed = np.einsum("bij,bix->ixj", between, by_place).reshape(3 * count, count)
            shared = np.block([[shared, mixed], [mixed.T, between.sum(axis=0)]])
            right = np.concatenate([right, pull.sum(axis=0)])

        # A row of microphones does not see where on its cone a source is; a radian is as far as that matters.
        source[:, :2, :2] += np.eye(2)
        firm = 4 * self.nearest**2
        source[:, 2, 2] += firm
        towards[:, 2] -= firm * (self.nearness - self.usual)
        cross = np.concatenate([cross, np.zeros((len(cross), 3, 1))], axis=2)
        cross[:, 2, -1] = -firm
        shared = np.pad(shared, (0, 1))
        shared[-1, -1] = firm * (len(weight) + 1)
        back = firm * ((self.nearness - self.usual).sum() - (self.usual - 0.5 / self.nearest))
        right = np.append(right, back)
        if self.height is not None:
            by = np.concatenate([steps[..., 2], np.full((len(steps), 1), -self.height)], axis=1) / _HEIGHT
            off = (self.direction[:, 2] - self.nearness * self.height) / _HEIGHT
            source += by[:, :, None] * by[:, None]
            towards -= by * off[:, None]
        places = slice(0, 3 * count)
        shared[places, places] += np.eye(3 * count) / self.tolerance**2
        right[places] -= (self.places - self.start).ravel() / self.tolerance**2
        if self.offsets:
            late = slice(3 * count, 4 * count)
            shared[late, late] += np.eye(count) / _OFFSET**2
            right[late] -= self.late / _OFFSET**2
        return source, cross, shared, towards, right

    def information(self) -> tuple[Floats, Floats]:
        """Of the places: what the delays say (the inverse of a covariance), and the covariance with what was trusted.

        Shape: (3M, 3M) each, in metres
        """
        # At the nominal places delays miss because of these; what matters there is what they could tell.
        self.sigma = _TYPICAL if self.fixed else self.scale()
        source, cross, shared, _, _ = self._normal_equations()
        reduced = shared - np.einsum("bsg,bsh->gh", cross, np.linalg.solve(source, cross))
        # Sources and places were fitted to the same delays, which then miss by less than they err.
        fitted = np.einsum("bii->", np.linalg.solve(source, source - self._trusted(len(source))))
        delays = (len(self.start) - 1) * len(source)
        spare = max(delays - fitted - 3 * len(self.start), 0.05 * delays) / delays
        places = 3 * len(self.start)
        data = self._told(reduced, source) * spare
        amount, ways = np.linalg.eigh(data)
        data = (ways * np.maximum(amount, 0)) @ ways.T
        return data, np.linalg.inv(data + np.eye(places) / self.tolerance**2)

    def _told(self, reduced: Floats, source: Floats) -> Floats:
        """What the delays say of the places, whatever the offsets and the usual nearness are. Shape: (3M, 3M)

        A microphone is seen to move along the direction of the source. Where that direction is itself a matter of noise
        (its height, say, after a walk in the plane), it would seem to see; its own covariance is taken off.
        """
        n = self.start.size
        told = reduced[:n, :n] - reduced[:n, n:] @ np.linalg.solve(reduced[n:, n:], reduced[n:, :n])
        steps = across(self.direction)
        unsure = np.einsum("bsx,bst,bty->bxy", steps, np.linalg.inv(source)[:, :2, :2], steps)
        between = np.einsum("pi,bp,pj->bij", self.design, self._weight(), self.design)
        extent = np.linalg.svd(self.start, compute_uv=False)
        if extent[2] > _DEEP * extent[0]:
            # What the source of a moment explains tells nothing of places, not even seemingly. (Of a thin array, it is
            # by the depth of its faults alone that the height of a source shows, so nothing is taken off that.)
            _, _, (by_source, _) = derivatives(self.places, self.direction, self.nearness)
            weighted = np.einsum("bij,bjs->bis", between, by_source)
            between = between - np.einsum("bis,bst,bjt->bij", weighted, np.linalg.inv(source), weighted)
        seeming = np.einsum("bij,bxy->ixjy", between, unsure).reshape(n, n)
        return np.asarray(told - np.eye(n) / self.tolerance**2 - seeming)

    def _trusted(self, moments: int) -> Floats:
        """What was known of each source beforehand. Shape: (B, 3, 3)"""
        known = np.zeros((moments, 3, 3))
        known[:, :2, :2] = np.eye(2)
        known[:, 2, 2] = (2 * self.nearest) ** 2
        if self.height is not None:
            steps = across(self.direction)
            by = np.concatenate([steps[..., 2], np.full((moments, 1), -self.height)], axis=1) / _HEIGHT
            known += by[:, :, None] * by[:, None]
        return known


def _turn(places: Floats, nominal: Floats) -> Floats:
    """The turn by which places lie closest to the nominal ones (Procrustes, no mirror image). Shape: (3, 3)"""
    left, _, right = np.linalg.svd((places - places.mean(axis=0)).T @ (nominal - nominal.mean(axis=0)))
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    return np.asarray((left * sign) @ right)
