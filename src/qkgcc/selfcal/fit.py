"""Least squares fit of microphone places, and of the source of each moment, to the delays of a walk.

A robust fit (Levenberg and Marquardt, Cauchy weights) of spherical wavefronts (`arrays.steering`: near or far). It
starts at the nominal geometry and is drawn to it as far as that is trusted. The unknowns of each moment are eliminated
first (Schur's complement), so the time grows with the length of the walk and not with its cube.

All in metres. Shapes: M microphones, P pairs, B moments, G unknowns that all moments share (places, then offsets, then
the usual nearness), 3 unknowns of each moment (two steps of its direction, and its nearness).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.steering import across, arrivals, derivatives, nearest_wavefronts
from qkgcc.core.types import Floats


@dataclass(frozen=True)
class FitLimits:
    """Constants of the fit. Lengths in metres of path."""

    directions: int = 500
    """That the fit of a moment starts from: 9 degrees apart."""
    max_steps: int = 40
    min_residual: float = 0.001
    """Delays are not better than that,"""
    typical_residual: float = 0.003
    """and are usually as good as that."""
    robust: float = 2.0
    """Standard deviations above which a delay counts less."""
    height_sd: float = 0.04
    """How well a height is kept, as a share of the distance."""
    offset_sd: float = 0.35
    """A millisecond of constant offset of a channel."""
    min_depth: float = 0.35
    """Of the largest extent of an array: one with less depth is thin."""


FIT = FitLimits()


@dataclass(frozen=True)
class FitOptions:
    """What is known beforehand. Lengths in metres."""

    tolerance: float
    """Standard deviation of the nominal places."""
    height: float | None
    """Of the source above the middle of the array, if it was always the same."""
    nearest: float
    """Distance from the middle of the array that the source always kept."""
    offsets: bool
    """Whether channels may be late by a constant each."""


@dataclass(frozen=True, eq=False)
class Unknowns:
    """What is fitted."""

    places: Floats
    """(M, 3) of the microphones."""
    offsets: Floats
    """(M,) metres of path by which each channel is late."""
    direction: Floats
    """(B, 3) unit vectors to the source."""
    nearness: Floats
    """(B,) inverse distances of the source."""
    usual_nearness: float
    """Each moment's nearness is drawn to it, and it is drawn to half of the largest."""


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """Of the linearised fit, in units of one standard deviation."""

    source: Floats
    """(B, 3, 3) of each moment."""
    cross: Floats
    """(B, 3, G) between a moment and what all share."""
    shared: Floats
    """(G, G)"""
    source_right: Floats
    """(B, 3) right sides."""
    shared_right: Floats
    """(G,)"""

    def with_damping(self, damping: float) -> NormalEquations:
        """With larger diagonals, for a shorter step (Marquardt)."""
        source = self.source * (1 + damping * np.eye(3)) + 1e-12 * np.eye(3)
        return replace(self, source=source, shared=self.shared * (1 + damping * np.eye(len(self.shared))))

    def eliminate_sources(self) -> tuple[Floats, Floats]:
        """The equations of what all moments share (Schur's complement). Shape: (G, G), (G,)"""
        solved = np.linalg.solve(self.source, self.cross)
        reduced = self.shared - np.einsum("bsg,bsh->gh", self.cross, solved)
        return reduced, self.shared_right - np.einsum("bsg,bs->g", solved, self.source_right)

    def solve_sources(self, shared_step: Floats) -> Floats:
        """Steps of the moments, given that of what they share. Shape: (G,) -> (B, 3)"""
        right = self.source_right - self.cross @ shared_step
        return np.asarray(np.linalg.solve(self.source, right[..., None])[..., 0])


class WavefrontFit:
    """The fit of a walk: its data, and the unknowns as far as they are fitted.

    Args:
        start: nominal places about their middle. Shape: (M, 3)
        delays: metres. Shape: (B, P)
        weights: of the delays, 0: not known, 1: sure. Shape: (B, P)
    """

    def __init__(
        self, start: Floats, pairs: npt.NDArray[np.int64], delays: Floats, weights: Floats, options: FitOptions
    ) -> None:
        self.start, self.pairs, self.options = start, pairs, options
        self.delays = np.where(weights > 0, delays, 0.0)
        # All pairs together seem to say more than they know: of M (M - 1) / 2 delays, M - 1 are independent.
        self.weights = weights * (2 / len(start))
        self.design = np.zeros((len(pairs), len(start)))
        self.design[np.arange(len(pairs)), pairs[:, 0]] = 1
        self.design[np.arange(len(pairs)), pairs[:, 1]] = -1
        self.places_fixed = False
        self.sigma = 0.02
        """Standard deviation of a delay."""
        self.unknowns = self._nominal_unknowns()
        self.restart_sources()

    def _nominal_unknowns(self) -> Unknowns:
        count = len(self.delays)
        usual = 0.5 / self.options.nearest
        return Unknowns(self.start.copy(), np.zeros(len(self.start)), np.zeros((count, 3)), np.zeros(count), usual)

    def fix_places(self) -> None:
        """Begin again, with places that do not move."""
        self.places_fixed = True
        self.unknowns = self._nominal_unknowns()
        self.restart_sources()

    def restart_sources(self) -> None:
        """Set the source of each moment to the best of a grid of directions and distances."""
        places, nearest, height = self.unknowns.places, self.options.nearest, self.options.height
        grid = np.array([0.0, 0.15, 0.35, 0.65, 1.0]) / nearest
        delays = self.delays - self.unknowns.offsets @ self.design.T
        direction, nearness = nearest_wavefronts(places, self.pairs, delays, self.weights, grid, FIT.directions)
        extent = np.linalg.svd(places, compute_uv=False)
        if extent[2] < 0.02 * extent[0]:  # a flat array cannot tell above from below: all begin on the same side
            normal = np.linalg.svd(places)[2][2]
            side = normal @ np.array([0.0, 0.0, 1.0 if height is None or height >= 0 else -1.0])
            normal = normal if side >= 0 else -normal
            below = direction @ normal
            direction -= 2 * np.minimum(below, 0)[:, None] * normal
        if height is not None:  # turned towards the height that the source had
            up = np.clip(nearness * height, -0.9, 0.9)
            flat = direction[:, :2] / np.maximum(np.linalg.norm(direction[:, :2], axis=1, keepdims=True), 1e-9)
            direction = np.concatenate([flat * np.sqrt(1 - up**2)[:, None], up[:, None]], axis=1)
        self.unknowns = replace(self.unknowns, direction=direction, nearness=nearness)

    def residuals(self) -> Floats:
        """Delays minus those of the fit. Shape: (B, P)"""
        x = self.unknowns
        f = arrivals(x.places, x.direction, x.nearness) + x.offsets
        return np.asarray(self.delays - f @ self.design.T)

    def scale(self) -> float:
        """Standard deviation of the residuals, by their median."""
        known = self.weights > 0
        return max(FIT.min_residual, float(np.median(np.abs(self.residuals()[known]))) / 0.6745)

    def robust_weights(self) -> Floats:
        """How much each delay counts by its residual, 0 to 1 (Cauchy). Shape: (B, P)"""
        return np.asarray(1 / (1 + (self.residuals() / (FIT.robust * self.sigma)) ** 2))

    def _inverse_variances(self) -> Floats:
        """Of the delays. Shape: (B, P)"""
        # At the nominal places delays miss because of these, not because they are wrong.
        weights = self.weights if self.places_fixed else self.weights * self.robust_weights()
        return np.asarray(weights / self.sigma**2)

    def _cost(self) -> float:
        """Of the residuals (Cauchy), and of what the unknowns deviate from what was known beforehand."""
        x, nearest, height = self.unknowns, self.options.nearest, self.options.height
        ratio = self.residuals() / (FIT.robust * self.sigma)
        data = FIT.robust**2 * (self.weights * np.log1p(ratio**2)).sum()
        nominal = ((x.places - self.start) ** 2).sum() / self.options.tolerance**2
        nominal = nominal + (x.offsets**2).sum() / FIT.offset_sd**2
        near = ((x.nearness - x.usual_nearness) ** 2).sum() + (x.usual_nearness - 0.5 / nearest) ** 2
        level = 0.0
        if height is not None:
            level = (((x.direction[:, 2] - x.nearness * height) / FIT.height_sd) ** 2).sum()
        return float(data + nominal + (4 * nearest**2) * near + level)

    def converge_twice(self) -> None:
        """Fit, choose the sources again (with better places, moments may find another one), and fit again."""
        self.converge()
        self.restart_sources()
        self.converge()

    def converge(self) -> None:
        """Steps with a damping that grows where a step does not lower the cost, until the cost hardly changes."""
        damping = 1e-3
        self.sigma = self.scale()
        cost = self._cost()
        for step in range(FIT.max_steps):
            before = self.unknowns
            self.unknowns = self._step(damping)
            new_cost = self._cost()
            if new_cost < cost:
                small = cost - new_cost < 1e-6 * cost
                damping = max(damping / 5, 1e-9)
                # A smaller scale as the fit gets better; the cost is another one then.
                self.sigma = self.scale() if step < FIT.max_steps // 2 else self.sigma
                cost = self._cost()
                if small and step > 5:
                    break
            else:
                self.unknowns = before
                damping *= 10
                if damping > 1e6:
                    break

    def _step(self, damping: float) -> Unknowns:
        """The unknowns after one damped Gauss-Newton step."""
        equations = self._normal_equations().with_damping(damping)
        reduced, right = equations.eliminate_sources()
        basis = self._determined_shifts(reduced, equations.source)
        shared = basis @ np.linalg.solve(basis.T @ reduced @ basis, basis.T @ right)
        source = equations.solve_sources(shared)
        x, places = self.unknowns, self.start.size
        turn = np.einsum("bs,bsx->bx", np.clip(source[:, :2], -0.5, 0.5), across(x.direction))
        direction = x.direction + turn
        return Unknowns(
            places=x.places + shared[:places].reshape(-1, 3),
            offsets=x.offsets + (shared[places:-1] if self.options.offsets else 0.0),
            direction=direction / np.linalg.norm(direction, axis=1, keepdims=True),
            nearness=np.clip(x.nearness + source[:, 2], 0.0, 2 / self.options.nearest),
            usual_nearness=x.usual_nearness + float(shared[-1]),
        )

    def _determined_shifts(self, reduced: Floats, source: Floats) -> Floats:
        """Basis of the steps that are allowed: not along shifts that no delay determines, where noise would lead.

        Shape: (G, up to G)
        """
        amount, shifts = np.linalg.eigh(self._place_information(reduced, source))
        shifts = shifts[:, :0] if self.places_fixed else shifts[:, amount > (self.options.tolerance / 2) ** -2]
        places, count = shifts.shape
        basis = np.zeros((len(reduced), count + len(reduced) - places))
        basis[:places, :count] = shifts
        basis[places:, count:] = np.eye(len(reduced) - places)
        return basis

    def _normal_equations(self) -> NormalEquations:
        """Of the delays, and of what was known beforehand."""
        _, by_place, (by_source, _) = derivatives(self.unknowns.places, self.unknowns.direction, self.unknowns.nearness)
        size, moments, count = self.start.size, len(self.delays), len(self.start)
        variances = self._inverse_variances()
        between = np.einsum("pi,bp,pj->bij", self.design, variances, self.design)
        pull = np.einsum("pi,bp->bi", self.design, variances * self.residuals())

        weighted = np.einsum("bij,bjs->bis", between, by_source)
        source = np.einsum("bis,bit->bst", by_source, weighted)
        source_right = np.einsum("bis,bi->bs", by_source, pull)
        cross = np.einsum("bis,bix->bsix", weighted, by_place).reshape(moments, 3, size)
        shared = np.einsum("bij,bix,bjy->ixjy", between, by_place, by_place).reshape(size, size)
        shared_right = np.einsum("bix,bi->ix", by_place, pull).ravel()
        if self.options.offsets:
            cross = np.concatenate([cross, weighted.transpose(0, 2, 1)], axis=2)
            mixed = np.einsum("bij,bix->ixj", between, by_place).reshape(size, count)
            shared = np.block([[shared, mixed], [mixed.T, between.sum(axis=0)]])
            shared_right = np.concatenate([shared_right, pull.sum(axis=0)])
        # A column and a row for the usual nearness, which no delay depends on.
        cross = np.concatenate([cross, np.zeros((moments, 3, 1))], axis=2)
        equations = NormalEquations(source, cross, np.pad(shared, (0, 1)), source_right, np.append(shared_right, 0.0))
        self._add_priors(equations)
        return equations

    def _add_priors(self, equations: NormalEquations) -> None:
        """Add what was known beforehand of the sources, the nearness, the places and the offsets."""
        x, options, size = self.unknowns, self.options, self.start.size
        precision = 4 * options.nearest**2  # of the nearness
        self._add_source_prior(equations.source)
        deviation = x.nearness - x.usual_nearness
        equations.source_right[:, 2] -= precision * deviation
        equations.cross[:, 2, -1] = -precision
        equations.shared[-1, -1] = precision * (len(deviation) + 1)
        equations.shared_right[-1] = precision * (deviation.sum() - (x.usual_nearness - 0.5 / options.nearest))
        if options.height is not None:
            off = (x.direction[:, 2] - x.nearness * options.height) / FIT.height_sd
            equations.source_right[:] -= self._height_derivatives(options.height) * off[:, None]
        equations.shared[:size, :size] += np.eye(size) / options.tolerance**2
        equations.shared_right[:size] -= (x.places - self.start).ravel() / options.tolerance**2
        if options.offsets:
            late = slice(size, -1)
            equations.shared[late, late] += np.eye(len(x.offsets)) / FIT.offset_sd**2
            equations.shared_right[late] -= x.offsets / FIT.offset_sd**2

    def _add_source_prior(self, source: Floats) -> None:
        """Add what was known of each source beforehand. Shape: (B, 3, 3)"""
        # A row of microphones does not see where on its cone a source is; a radian is as far as that matters.
        source[:, :2, :2] += np.eye(2)
        source[:, 2, 2] += 4 * self.options.nearest**2
        if self.options.height is not None:
            by = self._height_derivatives(self.options.height)
            source += by[:, :, None] * by[:, None]

    def _height_derivatives(self, height: float) -> Floats:
        """Of the deviation from the height of the source, in standard deviations, by its unknowns. Shape: (B, 3)"""
        steps = across(self.unknowns.direction)
        return np.concatenate([steps[..., 2], np.full((len(steps), 1), -height)], axis=1) / FIT.height_sd

    def information(self) -> tuple[Floats, Floats]:
        """What the delays tell of the places (an inverse covariance), and the covariance with the nominal places.

        Shape: (3 M, 3 M) each
        """
        # At the nominal places delays miss because of these; what matters there is what they could tell.
        self.sigma = FIT.typical_residual if self.places_fixed else self.scale()
        equations = self._normal_equations()
        source = equations.source
        reduced, _ = equations.eliminate_sources()
        # Sources and places were fitted to the same delays, whose residuals are then smaller than their errors.
        prior = np.zeros_like(source)
        self._add_source_prior(prior)
        fitted = np.einsum("bii->", np.linalg.solve(source, source - prior))
        delays = (len(self.start) - 1) * len(source)
        spare = max(delays - fitted - 3 * len(self.start), 0.05 * delays) / delays
        data = self._place_information(reduced, source) * spare
        amount, shifts = np.linalg.eigh(data)
        data = (shifts * np.maximum(amount, 0)) @ shifts.T
        return data, np.linalg.inv(data + np.eye(self.start.size) / self.options.tolerance**2)

    def _place_information(self, reduced: Floats, source: Floats) -> Floats:
        """What the delays tell of the places, whatever the offsets and the usual nearness are. Shape: (3 M, 3 M)

        A microphone is seen to move along the direction of the source. Where that direction is itself a matter of noise
        (its height, say, after a walk in the plane), it only seems to be seen; its own covariance is taken off.
        """
        n = self.start.size
        information = reduced[:n, :n] - reduced[:n, n:] @ np.linalg.solve(reduced[n:, n:], reduced[n:, :n])
        x = self.unknowns
        steps = across(x.direction)
        covariance = np.linalg.inv(source)
        uncertain = np.einsum("bsx,bst,bty->bxy", steps, covariance[:, :2, :2], steps)
        between = np.einsum("pi,bp,pj->bij", self.design, self._inverse_variances(), self.design)
        extent = np.linalg.svd(self.start, compute_uv=False)
        if extent[2] > FIT.min_depth * extent[0]:
            # What the source of a moment explains tells nothing of places, not even seemingly. (Of a thin array, it is
            # by the depth of its faults alone that the height of a source shows, so nothing is taken off that.)
            _, _, (by_source, _) = derivatives(x.places, x.direction, x.nearness)
            weighted = np.einsum("bij,bjs->bis", between, by_source)
            between = between - np.einsum("bis,bst,bjt->bij", weighted, covariance, weighted)
        seeming = np.einsum("bij,bxy->ixjy", between, uncertain).reshape(n, n)
        return np.asarray(information - np.eye(n) / self.options.tolerance**2 - seeming)
