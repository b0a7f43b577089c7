"""The line on which the delays between two recorders lie over time: its offset and its slope, and how sure they are.

    claps             few delays; most lie on one line
    talkers           who sit at several places: parallel lines of one slope
    a walk with stops while it stands, a source has a line; all these stays share the slope
    a walk            scatters around one line, and that is what the uncertainty says

Of the last two, what is surer is answered: a drift cannot be told from a source that creeps, but nobody creeps at one
pace through every stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import Bools, Floats
from qkgcc.dsp.long_lags import Line, Track, consensus, measure_drift, modal_slope

AGREE = 2e-4
"""Seconds within which claps have to agree on a line."""

_GAP = 60e-6  # seconds between the delays of two places
_PLACE = 3  # delays that make a place
_PLACES, _SEATED = 4, 0.75  # more places, or a smaller share of the delays at them, are those of a walk
_MOSTLY = 0.6  # of the delays of a source far away
_NARROW = 35e-6  # seconds by which these scatter around their lines
_SOME = 150  # delays of which all pairs are compared
_STEEPEST = 300e-6  # seconds per second between two clocks
_WEAK = 6.0  # height of a peak that a stay may have
_LINKED = (4.0, 40e-6)  # seconds between two peaks of a stay, and between their delays
_STAY = (4, 2.0)  # peaks and seconds that make one
_ENDS = 0.6  # seconds at both ends of it, in which blocks hear of the walk, too
_STAYS, _STAYING = 3, 12  # stays, and peaks in them, that are needed
_SHORTEST = 10.0  # seconds between the first and the last delay, for a drift
_MAIN = 0.5  # of the delays of a few seconds that lie at one place, or more; else they are chance
_SLOPED = 5  # delays from which on a few seconds can show that they move
_BATCHES = 10
_RESOLUTION = 15e-6  # seconds that a delay, or all of a place and a stretch, is uncertain by at least
_STUDENT = 1.15  # for ten stretches, two of these standard deviations hold 95 %
_WALK = 1.5  # the ten stretches of a walk differ by less than they err: it has ends
_USUAL = 50e-6  # seconds per second that clocks differ by, where it cannot be heard
_MOVED = 200e-6  # seconds by which delays of one place scatter when it is none


@dataclass(frozen=True)
class Clock:
    """How a recorder stands to the first one. All but `drift` in seconds."""

    name: str
    offset: float
    """At the beginning of the first recording, positive = started later."""
    offset_sd: float
    """Standard deviation; of what can be measured, not of the way to the source. Without a drift, 50 ppm are allowed
    for the time from the beginning to the sound."""
    drift: float | None
    """Seconds per second, positive = a slower clock; None: too little time to tell."""
    drift_sd: float | None
    used: int
    """Sounds that the line goes through: blocks of a second, or claps."""
    clear: int
    """Sounds with a clear delay."""
    places: int
    """Of the source or sources: lines found side by side."""
    spread: float
    """Between these places, or of the walk."""
    walked: bool = False
    """Whether the source seems to have walked."""
    at: float = 0.0
    """Second of the first recording at which the offset is known best: the middle of what was heard."""
    sd_there: float = 0.0
    inverted: bool = False

    @property
    def line(self) -> Line:
        return Line(self.offset, self.drift or 0.0)


def fit_clock(times: Floats, delays: Floats, clear: Bools, heights: Floats, rate: int) -> Clock | None:
    """Fit a line to the clear delays; None where few do not agree on any. Shape: (n,) each"""
    peaks = heights >= _WEAK
    t, d = times[clear], delays[clear]
    if len(t) and np.ptp(t) < _SHORTEST and not _seconds(times, peaks):
        return _at_once(t, d)
    drift = measure_drift(_track(t, d), 0) if len(t) else None
    if drift is not None and drift.agreed:
        slope, place = _parallel(t, d, drift.line.slope)
        if place.max() < _PLACES and (place >= 0).mean() >= _SEATED:
            return _lines(t, d, slope, place, rate)
    found: list[Clock | None] = []
    if _seconds(times, peaks):
        found = [_stays(times[peaks], delays[peaks], rate), _gathered(times[peaks], delays[peaks], rate)]
    if len(t) >= 2 * _BATCHES:
        found.append(_lines(t, d, _across(t, d), np.zeros(len(t), dtype=np.int64), rate, walked=True))
    sure = [clock for clock in found if clock is not None]
    if sure:
        return min(sure, key=lambda clock: clock.drift_sd or 0.0)
    if len(t) < 2:
        return None
    line, agreed = consensus(t, d, np.ones(len(t)), AGREE)
    if agreed.mean() < 0.7:
        return None
    # Claps that follow each other tell little of the slope, those at both ends all of it.
    steep = _within(t[agreed], d[agreed], np.zeros(int(agreed.sum()), dtype=np.int64))
    return _lines(t, d, *_parallel(t, d, line.slope if steep is None else steep), rate)


def _seconds(times: Floats, peaks: Bools) -> bool:
    return bool(peaks.sum() >= _STAYING and np.ptp(times[peaks]) >= 2 * _SHORTEST)


def _lines(
    times: Floats, delays: Floats, slope: float, place: npt.NDArray[np.int64], rate: int, *, walked: bool = False
) -> Clock:
    """The clock of parallel lines; `place` says on which of them each delay lies, -1: on none."""
    kept = place >= 0
    left = _centred(delays[kept], place[kept]) - slope * _centred(times[kept], place[kept])
    level = delays - slope * times
    most = kept if walked else kept & (place == int(np.bincount(place[kept]).argmax()))
    offset = float(np.median(level[most]))
    slope_sd, middle_sd = _uncertainty(times[kept], left, place[kept], rate)
    at = float(times[kept].mean())
    if walked:  # where it was most, nobody knows
        slope_sd *= _WALK if place.max() == 0 else 1.0
        middle_sd = max(middle_sd, float(np.std(level[kept])) / np.sqrt(_BATCHES))
    return Clock(
        "",
        offset,
        float(np.hypot(middle_sd, slope_sd * at)),
        slope,
        slope_sd,
        int(kept.sum()),
        len(times),
        1 if walked else int(place.max()) + 1,
        float(np.subtract(*np.quantile(level[kept], [0.95, 0.05]))),
        walked and float(np.std(level[kept])) > _MOVED / 2,
        at,
        middle_sd,
    )


def _at_once(times: Floats, delays: Floats) -> Clock | None:
    """Sounds within a few seconds tell the offset there, and no drift; None where they do not agree on a place."""
    # The clocks may run apart even so: what moves by less than a clock does is one place.
    slope = consensus(times, delays, np.ones(len(times)), _GAP)[0].slope if len(times) >= _SLOPED else 0.0
    slope = slope if abs(slope) <= _STEEPEST else 0.0
    level = delays - slope * times
    place = _places(level)
    main = place == int(np.bincount(place[place >= 0]).argmax())
    if main.sum() <= _MAIN * len(times) or place.max() >= _PLACES:
        return None
    # Blocks overlap by half, and those of one place err together.
    scatter = max(_RESOLUTION, float(np.std(level[main])) / float(np.sqrt(max(1.0, main.sum() / 2))))
    at = float(times[main].mean())
    return Clock(
        "",
        float(np.median(level[main])) + slope * at,
        float(np.hypot(scatter, _USUAL * at)),
        None,
        None,
        int((place >= 0).sum()),
        len(times),
        int(place.max()) + 1,
        float(np.ptp(level[place >= 0])),
        at=at,
        sd_there=scatter,
    )


def _parallel(times: Floats, delays: Floats, slope: float) -> tuple[float, npt.NDArray[np.int64]]:
    """The slope that the lines of all places share, and which of them each delay lies on (-1: none)."""
    place = _places(delays - slope * times)
    for _ in range(5):
        fitted = _within(times, delays, place)
        if fitted is None:
            break
        slope = fitted
        place = _places(delays - slope * times)
    return slope, place


def _stays(times: Floats, delays: Floats, rate: int) -> Clock | None:
    """The clock by what is heard while a source stands; None where it does not, or not often."""
    slope = modal_slope(times, delays)
    if slope is None:
        return None
    for _ in range(4):
        stay = _linked(times, delays - slope * times)
        for _ in range(3):  # what strays was heard while it still walked, or again
            if stay.max() + 1 < _STAYS or (stay >= 0).sum() < _STAYING:
                return None
            slope = _within(times, delays, stay) or 0.0
            kept = np.flatnonzero(stay >= 0)
            left = _centred(delays[kept], stay[kept]) - slope * _centred(times[kept], stay[kept])
            stay[kept[np.abs(left) > 2 * max(_RESOLUTION, float(np.median(np.abs(left))) / 0.6745)]] = -1
    return _lines(times, delays, slope, stay, rate, walked=True)


def _gathered(times: Floats, delays: Floats, rate: int) -> Clock | None:
    """The clock by the slope on which most pairs of delays agree, however far apart; None where few do.

    Of a source far away, few seconds are clear, and these at reflections as often as not: parallel lines, too.
    """
    some = np.linspace(0, len(times) - 1, min(len(times), _SOME)).astype(int)
    i, j = np.triu_indices(len(some), 1)
    apart, change = times[some][j] - times[some][i], delays[some][j] - delays[some][i]
    slopes = change[apart > _SHORTEST] / apart[apart > _SHORTEST]
    slopes = np.sort(slopes[np.abs(slopes) <= _STEEPEST])
    if len(slopes) < _STAYING:
        return None
    # The narrowest stretch with a tenth of all slopes is where they agree.
    size = max(3, len(slopes) // 10)
    first = int((slopes[size - 1 :] - slopes[: len(slopes) - size + 1]).argmin())
    slope, place = _parallel(times, delays, float(np.median(slopes[first : first + size])))
    kept = place >= 0
    left = _centred(delays[kept], place[kept]) - slope * _centred(times[kept], place[kept])
    main = np.bincount(place[kept]).max() / len(times)
    if place.max() >= _PLACES or kept.mean() < _MOSTLY or main < 0.5 or np.std(left) > _NARROW:
        return None  # delays all along a walk make lines, too, but no narrow ones
    return _lines(times, delays, slope, place, rate)


def _linked(times: Floats, level: Floats) -> npt.NDArray[np.int64]:
    """Number of the stay that each delay, its drift taken out, belongs to; -1: to none. Shape: (n,) -> (n,)"""
    number = np.arange(len(times))
    order = np.argsort(times)
    for rank, i in enumerate(order):
        for j in order[rank + 1 :]:
            if times[j] - times[i] > _LINKED[0]:
                break
            if abs(level[j] - level[i]) <= _LINKED[1] and number[j] != number[i]:
                number[number == number[j]] = number[i]
    stay = np.full(len(times), -1, dtype=np.int64)
    found = 0
    for one in np.unique(number):
        inside = number == one
        ends = times[inside].min() + _ENDS, times[inside].max() - _ENDS
        inside &= (times >= ends[0]) & (times <= ends[1])
        if inside.sum() >= _STAY[0] and np.ptp(times[inside]) >= _STAY[1]:
            stay[inside] = found
            found += 1
    return stay


def _within(times: Floats, delays: Floats, place: npt.NDArray[np.int64]) -> float | None:
    """The slope of parallel lines, by least squares."""
    kept = place >= 0
    t, d = _centred(times[kept], place[kept]), _centred(delays[kept], place[kept])
    square = float((t**2).sum())
    return float((t * d).sum() / square) if square > 0 else None


def _across(times: Floats, delays: Floats) -> float:
    """The slope through all of a walk. Beyond its tenths, delays are mistakes more often than far ends of it."""
    kept = np.ones(len(times), dtype=bool)
    slope = 0.0
    for _ in range(5):
        slope, level = np.polyfit(times[kept], delays[kept], 1)
        left = delays - slope * times - level
        low, high = np.quantile(left[kept], [0.1, 0.9])
        kept = (left > 2 * low - high) & (left < 2 * high - low)
    return float(slope)


def _places(level: Floats) -> npt.NDArray[np.int64]:
    """Number of the place that each delay, its drift taken out, belongs to; -1: to none. Shape: (n,) -> (n,)"""
    order = np.argsort(level)
    group = np.concatenate([[0], np.cumsum(np.diff(level[order]) > _GAP)])
    counts = np.bincount(group)
    fewest = min(_PLACE, int(counts.max()))
    # A place that few delays speak for is a mistake (a reflection) as likely as not.
    real = counts >= max(fewest, 0.05 * len(level))
    if not real.any():
        real = counts == counts.max()
    number = np.where(real, np.cumsum(real) - 1, -1)
    place = np.empty(len(level), dtype=np.int64)
    place[order] = number[group]
    return place


def _centred(values: Floats, place: npt.NDArray[np.int64]) -> Floats:
    means = np.bincount(place, values) / np.maximum(np.bincount(place), 1)
    return np.asarray(values - means[place])


def _uncertainty(times: Floats, left: Floats, place: npt.NDArray[np.int64], rate: int) -> tuple[float, float]:
    """Standard deviations of the slope, and of the line in its middle.

    Neighbouring delays err together (one sound, one place on a walk), so what counts as independent is each place in
    each of ten stretches of time.
    """
    least = max(_RESOLUTION, 0.05 / rate)
    about = _centred(times, place)
    square = float((about**2).sum())
    if len(times) < 2 * _BATCHES:
        scatter = max(least, float(np.sqrt((left**2).sum() / max(1, len(times) - 2))))
        return scatter / float(np.sqrt(square)), scatter / float(np.sqrt(len(times)))
    order = np.argsort(times)
    stretch = np.empty(len(times), dtype=np.int64)
    stretch[order] = np.arange(len(times)) * _BATCHES // len(times)
    _, group = np.unique(place * _BATCHES + stretch, return_inverse=True)
    groups = int(group.max()) + 1
    spare = _STUDENT**2 * groups / max(1, groups - 2)  # a line was fitted to them
    pulls, levels = np.bincount(group, about * left), np.bincount(group, left)
    together, counts = np.bincount(group, about), np.bincount(group)
    slope_sd = np.sqrt(max(spare * (pulls**2).sum(), least**2 * max((together**2).sum(), square))) / square
    middle_sd = np.sqrt(max(spare * (levels**2).sum(), least**2 * (counts**2).sum())) / len(times)
    return float(slope_sd), float(middle_sd)


def _track(times: Floats, delays: Floats) -> Track:
    both = np.stack([delays, delays], axis=1)
    return Track(times, both, np.ones_like(both), np.ones(both.shape, dtype=bool))
