"""From a posterior over candidate delays to delays between the candidates, and to several sources. NumPy only.

Three decoders begin at the most probable candidate:

- `argmax` answers it.
- `mean` answers the mean delay of the posterior within 2 steps of it. Steady; a little drawn to the candidate itself.
- `quadratic` answers the vertex of the parabola through the logarithm of the posterior at it and at its neighbours:
  exact where the posterior is a normal distribution, wherever that lies between the candidates.

Two look for the delay that is most likely to be right:

- `coarse` answers the delay with the largest probability mass within +-10 cm of path (4.7 samples at 16 kHz). Where one
  peak prevails, that is its vertex. Where several peaks lie within 10 cm of each other, it is one of them or between
  them. Fewer answers are far off, and fewer are exact. For microphones 0.1 m apart or less every delay is within reach,
  so the mass decides nothing; up to 0.2 m its reach grows.
- `balanced` adds half the mass within one sample: of several peaks it takes one that has others near it, and seldom
  answers between them.

Candidates are evenly spaced and rise; delays come in their unit. A posterior with NaN in it has no delay: NaN.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Floats, Indices
from qkgcc.dsp.peaks import vertex

_TINY = float(np.finfo(np.float64).tiny)
COARSE = 0.10 / SPEED_OF_SOUND * 16000
"""Samples of 10 cm of path, within which `coarse` sums the mass."""
EXACT = 1.0
"""Samples within which `coarse` and `balanced` count an answer as exact."""
EXACT_WEIGHT = {"coarse": 0.1, "balanced": 0.5}
"""Weight of the mass within `EXACT` beside that within `COARSE`. docs/reports/trials/coarse.md has others."""
REACH = 2
"""Steps either side of the peak that `mean` looks at."""
WINDOW = 1.0
"""Seconds around a frame in which others may support its delay."""
ROWS = 4096
"""Frames that are looked at together."""
APART = 0.1
"""Seconds that they are away at least: nearer ones hear the same samples."""
NEARNESS = 0.25
"""Seconds after which a frame's word counts for 1/e: later on, another source may be heard."""
SPARSE = 0.4
"""Seconds: frames that have no other as near as that speak for themselves alone. Those that the curves are made of are
0.38 s apart at most; of frames further apart, hardly any would say enough of each other."""
RESERVE = 0.5
"""Frames that say nothing, added to those around: one is not taken for the word of many."""
SEPARATION = 2.0
"""Samples that two sources' delays are apart at least."""


class Decoded(NamedTuple):
    """What a method makes of its evidence, for each of a batch."""

    curve: npt.NDArray[Any]
    """(batch, L) over the possible delays."""
    delay: npt.NDArray[Any]
    """(batch,) samples."""
    confidence: npt.NDArray[Any]
    """(batch,)"""
    out_of_range_delay: npt.NDArray[Any]
    """(batch,) a delay that is impossible, yet more likely than not, in samples; NaN where there is none."""


def posterior(logits: npt.ArrayLike) -> Floats:
    """Probabilities of the candidates: the softmax of their logits.

    Shape: (..., delays) -> the same

    >>> posterior([0.0, np.log(3.0)]).round(2).tolist()
    [0.25, 0.75]
    """
    values = np.asarray(logits, dtype=np.float64)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def argmax(posterior: npt.ArrayLike, delays: npt.ArrayLike) -> Floats:
    """The most probable candidate. Shape: (..., delays), (delays,) -> (...,)"""
    return _decode(posterior, delays, _keep)


def mean(posterior: npt.ArrayLike, delays: npt.ArrayLike) -> Floats:
    """The mean delay within `REACH` steps of the most probable candidate. Shape: (..., delays), (delays,) -> (...,)"""
    return _decode(posterior, delays, _local_mean)


def quadratic(posterior: npt.ArrayLike, delays: npt.ArrayLike) -> Floats:
    """The top of the log-posterior's parabola at its peak. Shape: (..., delays), (delays,) -> (...,)

    >>> delays = np.arange(-3, 4)
    >>> float(quadratic(posterior(-((delays - 1.3) ** 2)), delays).round(6))
    1.3
    """
    return _decode(posterior, delays, _vertex)


def coarse(posterior: npt.ArrayLike, delays: npt.ArrayLike) -> Floats:
    """The delay that is most likely within `COARSE` of the truth. Shape: (..., delays), (delays,) -> (...,)

    >>> delays = np.arange(-20, 21)
    >>> several = np.select([delays == -15, delays == 8, delays == 14], [0.4, 0.3, 0.3])
    >>> float(argmax(several, delays)), 9 < float(coarse(several, delays)) < 13
    (-15.0, True)
    """
    return likely_right(posterior, delays, EXACT, EXACT_WEIGHT["coarse"])


def balanced(posterior: npt.ArrayLike, delays: npt.ArrayLike) -> Floats:
    """The delay that is likely within `COARSE` of the truth, and exact. Shape: (..., delays), (delays,) -> (...,)

    >>> delays = np.arange(-20, 21)
    >>> several = np.select([delays == -15, delays == 8, delays == 11], [0.4, 0.32, 0.28])
    >>> float(argmax(several, delays)), float(balanced(several, delays))
    (-15.0, 8.0)
    """
    return likely_right(posterior, delays, EXACT, EXACT_WEIGHT["balanced"])


def likely_right(posterior: npt.ArrayLike, delays: npt.ArrayLike, exact: float, counts: float) -> Floats:
    """The delay that has the most probability within `COARSE`, and within `exact` of it times `counts`.

    Shape: (..., delays), (delays,) -> (...,)
    """
    return _decode(posterior, delays, partial(_about_right, near=exact, count=counts))


DECODERS: Mapping[str, Callable[[npt.ArrayLike, npt.ArrayLike], Floats]] = {
    "argmax": argmax,
    "mean": mean,
    "quadratic": quadratic,
    "balanced": balanced,
    "coarse": coarse,
}
"""Every decoder by its name."""
BETWEEN = frozenset({"balanced", "coarse"})
"""Those that may answer another delay than the highest peak's."""


def probability_near(posterior: npt.ArrayLike, delays: npt.ArrayLike, delay: npt.ArrayLike, tolerance: float) -> Floats:
    """The probability that the truth is within `tolerance` of a delay.

    Every candidate stands for the step around it, of which the part counts that is near: what is within reach of a
    delay between two candidates changes with it evenly.

    Shape: (..., delays), (delays,), (...,) -> (...,)

    >>> float(probability_near([0.1, 0.2, 0.4, 0.2, 0.1], [-2, -1, 0, 1, 2], 0.0, tolerance=1.0).round(3))
    0.6
    """
    p, candidates = _check(posterior, delays)
    step = candidates[1] - candidates[0] if len(candidates) > 1 else 2 * tolerance
    distance = np.abs(candidates - np.asarray(delay)[..., None])
    inside = (tolerance + step / 2 - distance) / step
    share = np.minimum(np.maximum(inside, 0.0), min(1.0, 2 * tolerance / step))
    return np.asarray((p * share).sum(axis=-1))


class Support(NamedTuple):
    """What the frames around each of N frames say of its delay, as a share of all that they could say.

    NaN where none is around.
    """

    agreeing: Floats
    """(N,) for it: near 1 where many are sure of it, 0 where none knows anything."""
    against: Floats
    """(N,) against it: near 1 where many are sure of other delays, 0 where none knows anything."""


def support(
    posterior: npt.ArrayLike,
    delays: npt.ArrayLike,
    delay: npt.ArrayLike,
    times: npt.ArrayLike,
    *,
    tolerance: float,
    frame: float,
    wanted: slice | None = None,
    ahead: float = WINDOW,
) -> Support:
    """What the frames around a frame, at most `WINDOW` seconds away and `APART` at least, say of its delay.

    What a frame says is the probability that it gives to the delay, beyond that of chance. The mean of the frames
    counts, so that it matters little how close they follow each other. In it, a frame weighs what it knows: a pause,
    whose posterior is nearly flat, says nothing for a delay nor against it. It weighs less the further away it is and,
    where frames overlap, by the part of it that is new.

    Args:
        times: of the frames, rising, in seconds. A frame without a delay (NaN) neither has support nor gives any.
        frame: seconds of a frame.
        wanted: the frames that are asked for, all N = T by default.
        ahead: seconds after a frame within which later ones count.
    Shape: (T, delays), (delays,), (T,), (T,) -> (N,) each
    """
    rows, answer = np.asarray(posterior), np.asarray(delay, dtype=np.float64)
    moments = np.asarray(times, dtype=np.float64)
    new = _new_part(moments, frame)
    begin, end, _ = (wanted or slice(None)).indices(len(answer))
    parts = [(Support(np.empty(0), np.empty(0)))]
    for first in range(begin, end, ROWS):  # and what is around them: hours take no more memory than minutes
        last = min(first + ROWS, end)
        # With a little more: whether a frame is just within the window is decided below, in one way.
        low = int(np.searchsorted(moments, moments[first] - WINDOW - 1e-6))
        high = int(np.searchsorted(moments, moments[last - 1] + WINDOW + 1e-6))
        here, inner = slice(low, high), np.arange(first - low, last - low)
        found = _check(rows[here], delays)
        parts.append(_support(*found, answer[here], moments[here], new[here], tolerance, inner, ahead))
    return Support(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _new_part(moments: Floats, frame: float) -> Floats:
    """The part of each frame that the nearer neighbour does not have too. Shape: (T,) -> (T,)"""
    gaps = np.diff(moments)
    nearest = np.minimum(np.append(gaps, np.inf), np.append(np.inf, gaps))
    # In single precision: times are rounded, and frames evenly apart are to weigh the same to the bit.
    return np.asarray(np.minimum(1.0, nearest / frame), dtype=np.float32).astype(np.float64)


def _support(
    p: Floats,
    candidates: Floats,
    answer: Floats,
    moments: Floats,
    new: Floats,
    tolerance: float,
    wanted: Indices,
    ahead: float,
) -> Support:
    known = np.isfinite(answer)
    knows = np.zeros(len(answer))
    # The fourth power: even a posterior of noise is not quite flat, and pauses have many frames.
    knows[known] = np.maximum(0.0, _beyond_chance(p[known], candidates, answer[known], tolerance)) ** 4
    reach = np.searchsorted(moments, moments[wanted] + WINDOW + 1e-6) - wanted
    reach = np.maximum(reach, 1 + wanted - np.searchsorted(moments, moments[wanted] - WINDOW - 1e-6))
    steps = np.arange(1, max(2, int(reach.max())))
    around = np.stack([steps, -steps], axis=1).ravel()  # the nearest first, whichever frames there are
    total, weight = np.zeros((2, len(wanted)))
    some = np.zeros(len(wanted), dtype=bool)
    for rows in np.array_split(np.arange(len(wanted)), 1 + len(wanted) * len(around) // ROWS):
        one = wanted[rows, None]
        other = np.clip(one + around, 0, len(answer) - 1)
        away = np.abs(moments[other] - moments[one])
        counts = (other == one + around) & known[other] & known[one] & (away >= APART) & (away <= WINDOW)
        counts &= (around < 0) | (away <= ahead)
        pairs = np.nonzero(counts)
        whose, which = rows[pairs[0]], other[pairs]
        word = np.zeros((2, *counts.shape))
        word[1][pairs] = np.exp(-away[pairs] / NEARNESS) * new[which] * knows[which]
        word[0][pairs] = word[1][pairs] * _beyond_chance(p[which], candidates, answer[wanted[whose]], tolerance)
        # One after the other: a sum by halves would depend on how many there are.
        total[rows], weight[rows] = np.add.accumulate(word, axis=-1)[..., -1]
        some[rows] = (counts & (away <= SPARSE + 1e-6)).any(axis=-1)
    agreeing, against = total / (RESERVE + weight), (weight - total) / (RESERVE + weight)
    return Support(np.where(some, agreeing, np.nan), np.where(some, against, np.nan))


def _beyond_chance(p: Floats, candidates: Floats, delay: Floats, tolerance: float) -> Floats:
    """The probability near a delay: 1 at most, 0 for a posterior that knows nothing, less where it is elsewhere."""
    span = len(candidates) * (candidates[1] - candidates[0]) if len(candidates) > 1 else 2 * tolerance
    chance = min(0.9, 2 * tolerance / span)  # where all delays are near each other, it would be 1
    return (probability_near(p, candidates, delay, tolerance) - chance) / (1 - chance)


def peaks(
    posterior: npt.ArrayLike, delays: npt.ArrayLike, max_sources: int, *, separation: float = SEPARATION
) -> tuple[Floats, Floats]:
    """The highest peaks of a posterior, most probable first: their delays, as `quadratic` reads them, and weights.

    A peak is a candidate above both neighbours, at least `separation` away from every higher peak. Its weight is the
    probability within half of that, counted once: what lies between two peaks belongs to the higher one. Where there
    are fewer peaks than asked for, the rest has the delay NaN and the weight 0.

    Shape: (..., delays), (delays,) -> (..., max_sources), (..., max_sources)
    """
    if max_sources < 1:
        raise InputError(f"max_sources is {max_sources}; expected at least 1")
    p, candidates = _check(posterior, delays)
    step = candidates[1] - candidates[0] if len(candidates) > 1 else separation
    # In whole steps, whatever the rounding of a step such as 0.1.
    apart, within = np.ceil(separation / step - 1e-6), np.floor(separation / 2 / step + 1e-6)
    rows = p.reshape(-1, p.shape[-1])
    places, weights = np.full((len(rows), max_sources), np.nan), np.zeros((len(rows), max_sources))
    every = np.arange(len(rows))
    outside = np.full((len(rows), 1), -np.inf)
    padded = np.concatenate([outside, rows, outside], axis=1)
    open_ = (rows >= padded[:, :-2]) & (rows > padded[:, 2:])  # a plateau has one peak: its last candidate
    open_ &= rows > 0
    unclaimed = rows.copy()
    for i in range(max_sources):
        index = np.where(open_, rows, -1.0).argmax(axis=-1)
        found = open_[every, index]
        distance = np.abs(np.arange(len(candidates)) - index[:, None])
        near = distance <= within
        weights[:, i] = np.where(found, np.where(near, unclaimed, 0.0).sum(axis=-1), 0.0)
        places[:, i] = np.where(found, _vertex(rows, candidates, index), np.nan)
        unclaimed[near & found[:, None]] = 0.0
        open_ &= distance >= apart
    shape = (*p.shape[:-1], max_sources)
    return places.reshape(shape), weights.reshape(shape)


def _decode(
    posterior: npt.ArrayLike, delays: npt.ArrayLike, place: Callable[[Floats, Floats, Indices], Floats]
) -> Floats:
    p, candidates = _check(posterior, delays)
    rows = p.reshape(-1, p.shape[-1])
    unknown = np.isnan(rows).any(axis=-1)
    if not unknown.any():
        return place(rows, candidates, rows.argmax(axis=-1)).reshape(p.shape[:-1])
    known = ~unknown
    result = np.full(len(rows), np.nan)
    result[known] = place(rows[known], candidates, rows[known].argmax(axis=-1))
    return result.reshape(p.shape[:-1])


def _check(posterior: npt.ArrayLike, delays: npt.ArrayLike) -> tuple[Floats, Floats]:
    p, candidates = np.asarray(posterior, dtype=np.float64), np.asarray(delays, dtype=np.float64)
    if candidates.ndim != 1 or p.ndim < 1 or len(candidates) == 0 or p.shape[-1] != len(candidates):
        raise InputError(f"a posterior of shape {p.shape} does not fit delays of shape {candidates.shape}")
    if not _even(candidates.tobytes()):
        raise InputError("the delays are to rise in even steps")
    if (p < 0).any():
        raise InputError("a posterior is never negative; these look like logits: take posterior(logits) first")
    return p, candidates


@lru_cache(maxsize=64)
def _even(candidates: bytes) -> bool:
    """Whether delays rise in even steps; the same few grids are asked for frame after frame."""
    steps = np.diff(np.frombuffer(candidates))
    return not len(steps) or bool(steps[0] > 0 and (np.abs(steps - steps[0]) <= 1e-6 * steps[0]).all())


# Where the peak at a candidate lies. Shape: (rows, delays), (delays,), (rows,) -> (rows,)


def _keep(rows: Floats, delays: Floats, index: Indices) -> Floats:
    return np.asarray(delays[index])


def _local_mean(rows: Floats, delays: Floats, index: Indices) -> Floats:
    near = np.abs(np.arange(len(delays)) - index[:, None]) <= REACH
    weights = np.where(near, rows, 0.0)
    # Relative to the peak: a delay far from 0 loses no digits.
    offsets = delays - delays[index][:, None]
    return np.asarray(delays[index] + (weights * offsets).sum(axis=-1) / weights.sum(axis=-1))


def _about_right(rows: Floats, delays: Floats, index: Indices, *, near: float, count: float) -> Floats:
    if len(delays) == 1:
        return _keep(rows, delays, index)
    step = delays[1] - delays[0]
    places = delays[0] + step / 4 * np.arange(4 * len(delays) - 3)
    total = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=-1)], axis=-1)

    def below(place: Floats) -> Floats:
        """The probability of delays below, where each candidate stands for the step around it."""
        at = np.clip((place - delays[0]) / step + 0.5, 0, len(delays))
        whole = np.minimum(at.astype(np.intp), len(delays) - 1)
        return np.asarray(total[:, whole] + rows[:, whole] * (at - whole))

    largest = (delays[-1] - delays[0]) / 2 - step  # the last one is beyond what is possible
    about = max(step, min(COARSE, largest - COARSE))
    likely = below(places + about) - below(places - about)
    likely += count * (below(places + near) - below(places - near))
    first = likely.argmax(axis=-1)
    # Those right after it that are as likely: the middle of them.
    order = np.arange(len(places))
    less = (likely < likely.max(axis=-1, keepdims=True) - 1e-9) & (order > first[:, None])
    answer = places[(first + np.where(less, order, len(places)).min(axis=-1) - 1) // 2]
    # A peak of the posterior that is hardly away is the answer, read as finely as `quadratic` reads it.
    peak = np.where(np.abs(delays - answer[:, None]) <= near, rows, -1.0).argmax(axis=-1)
    around = rows[np.arange(len(rows))[:, None], np.clip(peak[:, None] + np.arange(-1, 2), 0, len(delays) - 1)]
    return np.where(around.max(axis=-1) == around[:, 1], _vertex(rows, delays, peak), answer)


def _vertex(rows: Floats, delays: Floats, index: Indices) -> Floats:
    if len(delays) < 3:
        return _keep(rows, delays, index)
    inner = np.minimum(np.maximum(index, 1), len(delays) - 2)
    three = rows[np.arange(len(rows))[:, None], inner[:, None] + np.arange(-1, 2)]
    below, top, above = np.log(np.maximum(three, _TINY)).T
    # At an end of the range the peak has one neighbour: it stays where it is.
    offset = np.where(inner == index, vertex(below, top, above), 0.0)
    return np.asarray(delays[index] + offset * (delays[1] - delays[0]))
