"""The line on which the delays between two recorders lie over time: its offset and its slope, and how sure they are.

    claps             few delays; most lie on one line
    talkers           who sit at several places: parallel lines of one slope
    a walk with stops while it stands, a source has a line; all these stays share the slope
    a walk            scatters around one line, and that is what the uncertainty says

Of the last two, the one with the smaller uncertainty is taken: a drift cannot be told from a source that creeps, but
nobody creeps at one pace through every stay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import Bools, Floats
from qkgcc.dsp.long_lags import Line, Track, consensus, measure_drift, modal_slope


@dataclass(frozen=True)
class LineLimits:
    """How delays are gathered to lines. Times in seconds, slopes in seconds per second."""

    agree: float = 2e-4
    """Within which claps have to agree on a line."""
    min_agreeing: float = 0.7
    """Share of the claps that have to."""
    min_duration: float = 10.0
    """Between the first and the last delay, for a drift."""
    max_slope: float = 300e-6
    """Between two clocks."""
    usual_slope: float = 50e-6
    """That clocks differ by, where it cannot be measured."""
    min_height: float = 6.0
    """Of a peak that may belong to a stay."""
    place_gap: float = 60e-6
    """Between the delays of two places."""
    min_place: int = 3
    """Delays that make a place."""
    max_places: int = 4
    """More places, or a smaller share of the delays at them than the next, are those of a walk."""
    min_at_places: float = 0.75
    far_at_places: float = 0.6
    """The same share for a source far away."""
    far_scatter: float = 35e-6
    """By which the delays of a source far away scatter around their lines, at most."""
    max_compared: int = 150
    """Delays of which all pairs are compared."""
    main_place: float = 0.5
    """Share of the delays of a few seconds that lie at one place; else they are chance."""
    min_sloped: int = 5
    """Delays with which a few seconds can show that they move."""
    moved: float = 200e-6
    """By which delays of one place scatter when it is none."""


@dataclass(frozen=True)
class StayLimits:
    """When a source that walks stands still. Times in seconds."""

    link_time: float = 4.0
    link_delay: float = 40e-6
    """Between two peaks of a stay."""
    min_peaks: int = 4
    min_duration: float = 2.0
    """Of a stay."""
    ends: float = 0.6
    """At both ends of a stay, in which blocks hold some of the walk, too."""
    min_stays: int = 3
    min_total_peaks: int = 12
    """In all stays."""


@dataclass(frozen=True)
class ErrorModel:
    """What standard deviations are made of."""

    batches: int = 10
    """Stretches of time that are taken to err independently."""
    resolution: float = 15e-6
    """Seconds that a delay, or all of a place and a stretch, is uncertain by at least."""
    student: float = 1.15
    """For ten stretches, two of these standard deviations hold 95 %."""
    walk: float = 1.5
    """The ten stretches of a walk differ by less than they err: it has ends."""


LINES, STAYS, ERRORS = LineLimits(), StayLimits(), ErrorModel()


@dataclass(frozen=True)
class Clock:
    """How a recorder stands to the first one. All but `drift` in seconds."""

    name: str
    offset: float
    """At the beginning of the first recording, positive = started later."""
    offset_sd: float
    """Standard deviation, without that of the sound's travel time. Without a drift, 50 ppm are allowed for the time
    from the beginning to the sound."""
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
    """Second of the first recording at which the offset is known best: the middle of the sounds."""
    sd_there: float = 0.0
    """Standard deviation of the offset at that time."""
    inverted: bool = False
    """Whether one of the two was recorded with reversed polarity."""

    @property
    def line(self) -> Line:
        """The delay of the first recorder against this one over time."""
        return Line(self.offset, self.drift or 0.0)


def fit_clock(times: Floats, delays: Floats, clear: Bools, heights: Floats, rate: int) -> Clock | None:
    """Offset and drift by the delays between two recorders; None where these are few and do not agree.

    Shape: (n,) each
    """
    peaks = heights >= LINES.min_height
    t, d = times[clear], delays[clear]
    if len(t) and np.ptp(t) < LINES.min_duration and not _long_enough(times, peaks):
        return _clock_without_drift(t, d)
    drift = measure_drift(_as_track(t, d), 0) if len(t) else None
    if drift is not None and drift.agreed:
        slope, place = _fit_parallel_lines(t, d, drift.line.slope)
        if place.max() < LINES.max_places and (place >= 0).mean() >= LINES.min_at_places:
            return _clock_of_lines(t, d, slope, place, rate)
    candidates: list[Clock | None] = []
    if _long_enough(times, peaks):
        candidates = [
            _clock_of_stays(times[peaks], delays[peaks], rate),
            _clock_of_agreeing_pairs(times[peaks], delays[peaks], rate),
        ]
    if len(t) >= 2 * ERRORS.batches:
        candidates.append(
            _clock_of_lines(t, d, _slope_of_walk(t, d), np.zeros(len(t), dtype=np.int64), rate, walked=True)
        )
    clocks = [clock for clock in candidates if clock is not None]
    if clocks:
        return min(clocks, key=lambda clock: clock.drift_sd or 0.0)
    if len(t) < 2:
        return None
    line, agreed = consensus(t, d, np.ones(len(t)), LINES.agree)
    if agreed.mean() < LINES.min_agreeing:
        return None
    # Claps that follow each other tell little of the slope, those at both ends all of it.
    steep = _common_slope(t[agreed], d[agreed], np.zeros(int(agreed.sum()), dtype=np.int64))
    return _clock_of_lines(t, d, *_fit_parallel_lines(t, d, line.slope if steep is None else steep), rate)


def _long_enough(times: Floats, peaks: Bools) -> bool:
    return bool(peaks.sum() >= STAYS.min_total_peaks and np.ptp(times[peaks]) >= 2 * LINES.min_duration)


def _clock_of_lines(
    times: Floats, delays: Floats, slope: float, place: npt.NDArray[np.int64], rate: int, *, walked: bool = False
) -> Clock:
    """The clock of parallel lines; `place` says on which of them each delay lies, -1: on none."""
    used = place >= 0
    residual = _residuals(times[used], delays[used], place[used], slope)
    level = delays - slope * times
    most = used if walked else used & (place == int(np.bincount(place[used]).argmax()))
    offset = float(np.median(level[most]))
    slope_sd, middle_sd = _uncertainty(times[used], residual, place[used], rate)
    at = float(times[used].mean())
    if walked:  # nobody knows where it was most of the time
        slope_sd *= ERRORS.walk if place.max() == 0 else 1.0
        middle_sd = max(middle_sd, float(np.std(level[used])) / np.sqrt(ERRORS.batches))
    return Clock(
        name="",
        offset=offset,
        offset_sd=float(np.hypot(middle_sd, slope_sd * at)),
        drift=slope,
        drift_sd=slope_sd,
        used=int(used.sum()),
        clear=len(times),
        places=1 if walked else int(place.max()) + 1,
        spread=float(np.subtract(*np.quantile(level[used], [0.95, 0.05]))),
        walked=walked and float(np.std(level[used])) > LINES.moved / 2,
        at=at,
        sd_there=middle_sd,
    )


def _clock_without_drift(times: Floats, delays: Floats) -> Clock | None:
    """Sounds within a few seconds tell the offset there, and no drift; None where they do not agree on a place."""
    # The clocks may run apart even so: what moves by less than a clock does is one place.
    slope = 0.0
    if len(times) >= LINES.min_sloped:
        slope = consensus(times, delays, np.ones(len(times)), LINES.place_gap)[0].slope
    slope = slope if abs(slope) <= LINES.max_slope else 0.0
    level = delays - slope * times
    place = _group_places(level)
    main = place == int(np.bincount(place[place >= 0]).argmax())
    if main.sum() <= LINES.main_place * len(times) or place.max() >= LINES.max_places:
        return None
    # Blocks overlap by half, and those of one place err together.
    scatter = max(ERRORS.resolution, float(np.std(level[main])) / float(np.sqrt(max(1.0, main.sum() / 2))))
    at = float(times[main].mean())
    return Clock(
        name="",
        offset=float(np.median(level[main])) + slope * at,
        offset_sd=float(np.hypot(scatter, LINES.usual_slope * at)),
        drift=None,
        drift_sd=None,
        used=int((place >= 0).sum()),
        clear=len(times),
        places=int(place.max()) + 1,
        spread=float(np.ptp(level[place >= 0])),
        at=at,
        sd_there=scatter,
    )


def _fit_parallel_lines(times: Floats, delays: Floats, slope: float) -> tuple[float, npt.NDArray[np.int64]]:
    """The slope that the lines of all places share, and which of them each delay lies on (-1: none)."""
    place = _group_places(delays - slope * times)
    for _ in range(5):
        fitted = _common_slope(times, delays, place)
        if fitted is None:
            break
        slope = fitted
        place = _group_places(delays - slope * times)
    return slope, place


def _clock_of_stays(times: Floats, delays: Floats, rate: int) -> Clock | None:
    """The clock by the delays while a source stands still; None where it does not, or not often."""
    slope = modal_slope(times, delays)
    if slope is None:
        return None
    for _ in range(4):
        stay = _group_stays(times, delays - slope * times)
        for _ in range(3):  # outliers are from the walk before or after the stay
            if stay.max() + 1 < STAYS.min_stays or (stay >= 0).sum() < STAYS.min_total_peaks:
                return None
            slope = _common_slope(times, delays, stay) or 0.0
            used = np.flatnonzero(stay >= 0)
            residual = _residuals(times[used], delays[used], stay[used], slope)
            stay[used[np.abs(residual) > 2 * max(ERRORS.resolution, float(np.median(np.abs(residual))) / 0.6745)]] = -1
    return _clock_of_lines(times, delays, slope, stay, rate, walked=True)


def _clock_of_agreeing_pairs(times: Floats, delays: Floats, rate: int) -> Clock | None:
    """The clock by the slope on which most pairs of delays agree, however far apart; None where few do.

    Of a source far away, few seconds are clear, and these at reflections as often as not: parallel lines, too.
    """
    some = np.linspace(0, len(times) - 1, min(len(times), LINES.max_compared)).astype(int)
    i, j = np.triu_indices(len(some), 1)
    apart, change = times[some][j] - times[some][i], delays[some][j] - delays[some][i]
    slopes = change[apart > LINES.min_duration] / apart[apart > LINES.min_duration]
    slopes = np.sort(slopes[np.abs(slopes) <= LINES.max_slope])
    if len(slopes) < STAYS.min_total_peaks:
        return None
    # The narrowest stretch with a tenth of all slopes is where they agree.
    size = max(3, len(slopes) // 10)
    first = int((slopes[size - 1 :] - slopes[: len(slopes) - size + 1]).argmin())
    slope, place = _fit_parallel_lines(times, delays, float(np.median(slopes[first : first + size])))
    used = place >= 0
    residual = _residuals(times[used], delays[used], place[used], slope)
    main = np.bincount(place[used]).max() / len(times)
    if (
        place.max() >= LINES.max_places
        or used.mean() < LINES.far_at_places
        or main < 0.5
        or np.std(residual) > LINES.far_scatter
    ):
        return None  # delays all along a walk make lines, too, but no narrow ones
    return _clock_of_lines(times, delays, slope, place, rate)


def _group_stays(times: Floats, level: Floats) -> npt.NDArray[np.int64]:
    """Number of the stay that each delay, its drift taken out, belongs to; -1: to none. Shape: (n,) -> (n,)"""
    number = np.arange(len(times))
    order = np.argsort(times)
    for rank, i in enumerate(order):
        for j in order[rank + 1 :]:
            if times[j] - times[i] > STAYS.link_time:
                break
            if abs(level[j] - level[i]) <= STAYS.link_delay and number[j] != number[i]:
                number[number == number[j]] = number[i]
    stay = np.full(len(times), -1, dtype=np.int64)
    found = 0
    for one in np.unique(number):
        inside = number == one
        ends = times[inside].min() + STAYS.ends, times[inside].max() - STAYS.ends
        inside &= (times >= ends[0]) & (times <= ends[1])
        if inside.sum() >= STAYS.min_peaks and np.ptp(times[inside]) >= STAYS.min_duration:
            stay[inside] = found
            found += 1
    return stay


def _common_slope(times: Floats, delays: Floats, place: npt.NDArray[np.int64]) -> float | None:
    """The slope of parallel lines, by least squares; None if it is undetermined."""
    used = place >= 0
    t, d = _subtract_group_means(times[used], place[used]), _subtract_group_means(delays[used], place[used])
    square = float((t**2).sum())
    return float((t * d).sum() / square) if square > 0 else None


def _slope_of_walk(times: Floats, delays: Floats) -> float:
    """The slope through all of a walk, without outliers: far beyond its tenths, most delays are errors."""
    used = np.ones(len(times), dtype=bool)
    slope = 0.0
    for _ in range(5):
        slope, level = np.polyfit(times[used], delays[used], 1)
        residual = delays - slope * times - level
        low, high = np.quantile(residual[used], [0.1, 0.9])
        used = (residual > 2 * low - high) & (residual < 2 * high - low)
    return float(slope)


def _group_places(level: Floats) -> npt.NDArray[np.int64]:
    """Number of the place that each delay, its drift taken out, belongs to; -1: to none. Shape: (n,) -> (n,)"""
    order = np.argsort(level)
    group = np.concatenate([[0], np.cumsum(np.diff(level[order]) > LINES.place_gap)])
    counts = np.bincount(group)
    fewest = min(LINES.min_place, int(counts.max()))
    # A place that few delays speak for is a mistake (a reflection) as likely as not.
    real = counts >= max(fewest, 0.05 * len(level))
    if not real.any():
        real = counts == counts.max()
    number = np.where(real, np.cumsum(real) - 1, -1)
    place = np.empty(len(level), dtype=np.int64)
    place[order] = number[group]
    return place


def _residuals(times: Floats, delays: Floats, place: npt.NDArray[np.int64], slope: float) -> Floats:
    """Delays minus the parallel lines of all places. Shape: (n,) each -> (n,)"""
    return _subtract_group_means(delays, place) - slope * _subtract_group_means(times, place)


def _subtract_group_means(values: Floats, place: npt.NDArray[np.int64]) -> Floats:
    means = np.bincount(place, values) / np.maximum(np.bincount(place), 1)
    return np.asarray(values - means[place])


def _uncertainty(times: Floats, residual: Floats, place: npt.NDArray[np.int64], rate: int) -> tuple[float, float]:
    """Standard deviations of the slope, and of the line in its middle.

    Neighbouring delays err together (one sound, one place on a walk), so what counts as independent is each place in
    each of ten stretches of time.
    """
    least = max(ERRORS.resolution, 0.05 / rate)
    about = _subtract_group_means(times, place)
    square = float((about**2).sum())
    if len(times) < 2 * ERRORS.batches:
        scatter = max(least, float(np.sqrt((residual**2).sum() / max(1, len(times) - 2))))
        return scatter / float(np.sqrt(square)), scatter / float(np.sqrt(len(times)))
    order = np.argsort(times)
    stretch = np.empty(len(times), dtype=np.int64)
    stretch[order] = np.arange(len(times)) * ERRORS.batches // len(times)
    _, group = np.unique(place * ERRORS.batches + stretch, return_inverse=True)
    groups = int(group.max()) + 1
    spare = ERRORS.student**2 * groups / max(1, groups - 2)  # a line was fitted to them
    pulls, levels = np.bincount(group, about * residual), np.bincount(group, residual)
    together, counts = np.bincount(group, about), np.bincount(group)
    slope_sd = np.sqrt(max(spare * (pulls**2).sum(), least**2 * max((together**2).sum(), square))) / square
    middle_sd = np.sqrt(max(spare * (levels**2).sum(), least**2 * (counts**2).sum())) / len(times)
    return float(slope_sd), float(middle_sd)


def _as_track(times: Floats, delays: Floats) -> Track:
    both = np.stack([delays, delays], axis=1)
    return Track(times, both, np.ones_like(both), np.ones(both.shape, dtype=bool))
