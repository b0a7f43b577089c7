"""Microphone positions refined from a recording in which one source walks around them; nobody knows where it walked.

    delays of all pairs over time (`measure_moments`) -> fit of places and sources (`fit`) -> laid on the given places

What the delays do not tell stays as it was given, and so do the place and the attitude of the whole array, which no
delay tells. The matrix of the fit says which shifts of the microphones the walk determines, and which it does not.
These are named (`observability`): heights after a walk in the plane of the microphones, the size of a flat array after
a walk at unknown heights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from qkgcc.arrays.evidence import check_microphones, dead_microphone_warning, mostly_dead
from qkgcc.arrays.geometry import MAX_SOURCE_HEIGHT, Geometry
from qkgcc.arrays.presets import array
from qkgcc.audio.recording import Recording, as_recording
from qkgcc.core.checks import check_callback, check_flag, check_method, check_number, check_speed, short_repr
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.types import SILENCE, SPEED_OF_SOUND, Floats
from qkgcc.delay.estimator import NOTABLE, DelayEstimator
from qkgcc.delay.result import DelayEstimate
from qkgcc.network.registry import CLASSICAL
from qkgcc.pairs.frontend import FrontEnd, dead_microphones
from qkgcc.selfcal.fit import FitOptions, WavefrontFit
from qkgcc.selfcal.observability import LIMIT, Unsolved, name_undetermined_shifts, rigid_motions, undetermined_shifts

TOLERANCE = 0.05
"""Metres by which a microphone is expected to be off, at most about twice that."""
NEAREST = 0.5
"""Metres from the middle of the array that the source keeps at least, by default."""


@dataclass(frozen=True)
class WalkLimits:
    """What is kept of a walk, and when a fit is not believed."""

    frame: float = 0.256
    """Seconds of a classical method's frame: a walk is no farther than a hand's breadth in it."""
    min_confidence: float = 0.2
    """Below which a delay is not known."""
    max_moments: int = 300
    """The most confident of as many equal stretches of time."""
    min_moments: int = 20
    max_shift: float = 1.5
    """Times the tolerance that no microphone is off."""
    max_residual: float = 0.3
    """Of the size of the array, by which delays miss where they are not those of a source; noise: 0.8."""


WALK = WalkLimits()


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
    """Microphones without a signal, of which there are no delays."""
    warnings: tuple[str, ...] = ()
    """About the recording, one sentence each."""

    def of(self, microphones: list[int]) -> Moments:
        """Delays of the pairs among some microphones, which are numbered anew."""
        kept = [n for n, (i, j) in enumerate(self.pairs) if i in microphones and j in microphones]
        pairs = tuple((microphones.index(i), microphones.index(j)) for i, j in (self.pairs[n] for n in kept))
        return Moments(self.times, pairs, self.delays[:, kept], self.weights[:, kept])


@dataclass(frozen=True, eq=False)
class Refined:
    """Microphone places after a walk, with their uncertainty and what the walk did not determine."""

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
    """The tolerance in metres, if it is one."""
    return check_number("tolerance", tolerance, 1e-4, 10, "m")


def measure_moments(
    recording: Recording | str | Path,
    geometry: Geometry | str | Path,
    method: str | Path = "phat",
    *,
    tolerance: float = TOLERANCE,
    latest: float = 0.0,
    speed_of_sound: float = SPEED_OF_SOUND,
    progress: Callable[[float], object] | None = None,
) -> Moments:
    """Measure the delays of all pairs, weighted by their confidence, at the clearest moments of a walk.

    A microphone that is dead in nearly all of the recording has no delays.

    Args:
        recording: a `Recording`, or the path of one.
        geometry: a `Geometry`, or what `qkgcc.arrays.array` takes.
        tolerance: metres by which the places may be off; delays may exceed the spacing by four times that.
        latest: seconds by which a channel may be late of its own.
    """
    check_callback("progress", progress)
    recording, geometry, method = as_recording(recording), array(geometry), check_method(method)
    tolerance, speed_of_sound = check_tolerance(tolerance), check_speed(speed_of_sound)
    latest = check_number("largest offset of a channel", latest, 0, 1, "s")
    check_microphones(recording, geometry)
    dead, warnings = _dead_microphones(recording)
    estimates: dict[int, DelayEstimate] = {}
    for number, (first, second) in enumerate(geometry.pairs):
        if first in dead or second in dead:
            continue
        max_delay = (geometry.spacing(first, second) + 4 * tolerance) / speed_of_sound + latest
        frame = WALK.frame if method in CLASSICAL else None
        estimator = DelayEstimator(method, max_delay=max_delay, frame=frame, hop=WALK.frame / 2, threads=1)
        estimates[number] = estimator(recording.pick([first, second]), curve=False)
        if progress is not None:
            progress((number + 1) / len(geometry.pairs))
    times = next((estimate.times for estimate in estimates.values()), np.empty(0))
    delays, weights = np.zeros((2, len(times), len(geometry.pairs)))
    for number, estimate in estimates.items():
        known = np.isfinite(estimate.delay_seconds) & (estimate.confidence >= WALK.min_confidence)
        delays[known, number] = estimate.delay_seconds[known]
        weights[known, number] = estimate.confidence[known]
    clearest = [
        int(stretch[weights[stretch].sum(axis=1).argmax()])
        for stretch in np.array_split(np.arange(len(times)), WALK.max_moments)
        if len(stretch)
    ]
    clearest = [moment for moment in clearest if weights[moment].any()]
    return Moments(times[clearest], tuple(geometry.pairs), delays[clearest], weights[clearest], dead, warnings)


def _dead_microphones(recording: Recording) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Microphones that are dead in nearly all frames, and a sentence about each that is so in more than a few."""
    size = max(1, round(WALK.frame * recording.sample_rate))
    front, loud_frames = FrontEnd(recording.sample_rate, recording.sample_rate, size, size), 0
    dead = np.zeros(len(recording.channels), np.int64)
    for batch in front.frames_of(recording.blocks()):
        loud = np.sqrt(batch.power.max(axis=-1)) >= SILENCE
        loud_frames += int(loud.sum())
        dead += dead_microphones(batch.power)[loud].sum(axis=0)
    warnings = (
        dead_microphone_warning(int(one), int(dead[one]), loud_frames)
        for one in np.flatnonzero(dead > NOTABLE * loud_frames)
    )
    return tuple(mostly_dead(dead, loud_frames)), tuple(warnings)


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
    """Fit microphone places to the delays of a walk.

    Dead microphones stay where they were given, and are named as not determined.

    Args:
        nominal: a `Geometry`, or what `qkgcc.arrays.array` takes.
        tolerance: metres by which the nominal places may be off (a standard deviation).
        height: metres above the origin of the geometry at which the source stayed, if it is known.
        nearest: metres from the middle of the array that the source always kept.
        offsets: whether channels may be late by a constant each.
    """
    nominal = array(nominal)
    if not isinstance(moments, Moments):
        raise InputError(f"moments is {short_repr(moments)}; expected what measure_moments returns")
    count = len(nominal)
    if count < 3:
        raise InputError(f"the geometry has {count} microphones; refining places needs 3 or more")
    living = [i for i in range(count) if i not in moments.dead]
    if len(living) < 3 and moments.dead:
        raise InputError(
            f"{len(moments.dead)} of the {count} microphones are silent ({', '.join(map(str, moments.dead))}); "
            "refining places needs 3 or more that are not: check their cables and channels"
        )
    tolerance = check_tolerance(tolerance)
    nearest = check_number("nearest distance", nearest, 0.01, 100, "m")
    if height is not None:
        height = check_number("height", height, -MAX_SOURCE_HEIGHT, MAX_SOURCE_HEIGHT, "m")
    offsets, speed_of_sound = check_flag("offsets", offsets), check_speed(speed_of_sound)
    options = FitOptions(tolerance, height, nearest, offsets)
    if not moments.dead:
        return _refine_living(nominal, moments, options, speed_of_sound, living)
    alive = Geometry(nominal.microphones[living], nominal.name)
    refined = _refine_living(alive, moments.of(living), options, speed_of_sound, living)
    return _with_dead_microphones(refined, nominal, moments.dead, living, tolerance)


def _refine_living(
    nominal: Geometry, moments: Moments, options: FitOptions, speed_of_sound: float, numbers: list[int]
) -> Refined:
    """The same of microphones that all have delays; `numbers` are what they are called."""
    count = len(nominal)
    known = (moments.weights > 0).sum(axis=1) >= count - 1
    if known.sum() < WALK.min_moments:
        raise InputError(
            f"only {quantity(int(known.sum()), 'moment')} with enough clear delays; refining needs {WALK.min_moments}: "
            "a walk around the microphones while talking or clapping, for half a minute or more"
        )
    middle = nominal.microphones.mean(axis=0)
    if options.height is not None:
        options = replace(options, height=options.height - middle[2])
    start = nominal.microphones - middle
    pairs = np.array(moments.pairs, dtype=np.int64)
    fit = WavefrontFit(start, pairs, moments.delays[known] * speed_of_sound, moments.weights[known], options)
    before = fit.scale()
    fit.converge_twice()
    if fit.scale() > WALK.max_residual * nominal.aperture:
        raise InputError(
            f"the delays fit no source that walks around these microphones: they miss by "
            f"{1e6 * fit.scale() / speed_of_sound:.0f} µs. Is there one talker, louder than the noise, and does every "
            "channel have its microphone? `qkgcc doctor --array` checks that"
        )
    places, directions, information, covariance = _aligned_places(fit)
    advice = None
    far_off = np.linalg.norm(places - start, axis=1).max() > WALK.max_shift * options.tolerance
    if far_off and len(undetermined_shifts(information, places, LIMIT)[0]):
        # Far along a shift that is nearly free, others become free: nothing of this can be trusted, though at the given
        # places much would seem to be told.
        fit.fix_places()
        fit.converge_twice()
        places, directions = start, fit.unknowns.direction
        information, covariance = 0 * information, options.tolerance**2 * np.eye(3 * count)
        advice = (
            "the fit did not converge near the given places: give the height of the source or a smaller tolerance, or "
            "measure these by hand"
        )
    shifts = name_undetermined_shifts(information, places, directions, options.height is not None, numbers)
    nearness, late = fit.unknowns.nearness, fit.unknowns.offsets
    with np.errstate(divide="ignore"):
        distances = np.where(nearness > 0.02, 1 / nearness, np.inf)
    return Refined(
        geometry=Geometry(places + middle, nominal.name),
        sd=_standard_deviations(places, covariance),
        moved=np.linalg.norm(places - start, axis=1),
        offsets=(late - late.mean()) / speed_of_sound if options.offsets else None,
        unsolved=tuple(shift if advice is None else replace(shift, advice=advice) for shift in shifts),
        residual=fit.scale() / speed_of_sound,
        before=before / speed_of_sound,
        directions=directions,
        distances=distances,
        used=float((fit.robust_weights() > 0.5)[fit.weights > 0].mean()),
    )


def _aligned_places(fit: WavefrontFit) -> tuple[Floats, Floats, Floats, Floats]:
    """Places laid on the nominal ones, and the directions, information and covariance turned with them.

    The fit may have turned as a whole. Shifts that are known no better than they were given are undone.
    """
    start, fitted = fit.start, fit.unknowns.places
    count = len(start)
    turn = _turn(fitted, start)
    places = (fitted - fitted.mean(axis=0)) @ turn + start.mean(axis=0)
    all_of_them = np.kron(np.eye(count), turn)
    information, covariance = (all_of_them.T @ matrix @ all_of_them for matrix in fit.information())
    loose = undetermined_shifts(information, places, fit.options.tolerance / 2)[0].reshape(-1, 3 * count)
    moved = (places - start).ravel()
    places = start + (moved - moved @ loose.T @ loose).reshape(count, 3)
    return places, fit.unknowns.direction @ turn, information, covariance


def _standard_deviations(places: Floats, covariance: Floats) -> Floats:
    """(M, 3) of the places, without shifts and turns of the whole array."""
    motions = rigid_motions(places)
    free = np.eye(places.size) - motions.T @ motions
    return np.asarray(np.sqrt(np.clip(np.diag(free @ covariance @ free), 0, None)).reshape(places.shape))


def _with_dead_microphones(
    refined: Refined, nominal: Geometry, dead: tuple[int, ...], living: list[int], tolerance: float
) -> Refined:
    """The result with the dead microphones, which are where they were given, and as uncertain."""
    count = len(nominal)
    places, sd, moved = nominal.microphones.copy(), np.full((count, 3), tolerance), np.zeros(count)
    places[living], sd[living], moved[living] = refined.geometry.microphones, refined.sd, refined.moved
    offsets = None
    if refined.offsets is not None:
        offsets = np.full(count, np.nan)
        offsets[living] = refined.offsets
    unsolved = []
    for one in refined.unsolved:
        shifts = np.zeros((len(one.shifts), count, 3))
        shifts[:, living] = one.shifts
        unsolved.append(replace(one, shifts=shifts))
    for microphone in dead:
        shifts = np.zeros((3, count, 3))
        shifts[:, microphone] = np.eye(3)
        advice = "it is silent: check its cable and input, and walk once more"
        unsolved.append(Unsolved(f"where microphone {microphone} lies", math.inf, advice, shifts))
    geometry = Geometry(places, nominal.name)
    return replace(refined, geometry=geometry, sd=sd, moved=moved, offsets=offsets, unsolved=tuple(unsolved))


def _turn(places: Floats, nominal: Floats) -> Floats:
    """The turn by which places lie closest to the nominal ones (Procrustes, no mirror image). Shape: (3, 3)"""
    left, _, right = np.linalg.svd((places - places.mean(axis=0)).T @ (nominal - nominal.mean(axis=0)))
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    return np.asarray((left * sign) @ right)
