"""Where one channel is found in another: GCC-PHAT of a piece of the one against a longer stretch of the other.

The piece keeps all its sound at every lag, so nothing pulls towards lag 0 as it would between two equal windows. Curves
are in multiples of their own noise (median-based), hence a height of 8 means the same for a second and for four.

Two looks at a pair: `find_line` searches seconds of lag with a few long pieces, for recorders that were started one
after the other or whose clocks run apart; `track` follows the delay around that line second by second.

Two recorders: clocks that run apart.

Drift is told from a moving source by its steadiness. Talkers may sit anywhere and take turns, so their delays lie on
several parallel lines. The slope of these lines is the one on which most pairs of delays, a few seconds apart, agree.
It has to explain clearly more of them than no slope does, and to be the same in each third of the recording: nobody
walks like that for half a minute (a source that creeps at a constant rate all the time would be mistaken for a drift).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.dsp.peaks import vertex

BAND = (100.0, 7200.0)
"""Hz that count."""
SEARCH = 6.0
"""Seconds of lag that are searched."""

_MAX_SLOPE = 600e-6  # seconds per second: six times what two cheap clocks may differ
_TAPER_SECONDS = 0.01


@dataclass(frozen=True)
class _LineSearch:
    """The search over seconds of lag, by long pieces."""

    piece: float = 4.0
    """Seconds."""
    max_pieces: int = 24
    min_height: float = 7.0
    """Of a peak that counts; of 200,000 values of noise the largest is 4.5."""
    min_dominance: float = 1.5
    """Of the peaks over all those that a plausible delay could have; clean: 1.4 for two pieces that agree."""
    min_single_height: float = 8.0
    min_single_dominance: float = 1.9
    """Of a single piece; clean 2 s recordings: 1.6 at most."""


@dataclass(frozen=True)
class _Tracking:
    """Delays second by second. Of those that are clear, 95 % are right in reverberant speech."""

    block: float = 1.0
    """Seconds."""
    max_blocks: int = 240
    min_clear_height: float = 8.0
    max_clear_rival: float = 0.7
    """Of the runner-up, as a share of the height."""


@dataclass(frozen=True)
class _DriftTest:
    """When a slope is one of clocks."""

    min_slope: float = 14e-6
    """Seconds per second. Must be found: 20e-6 over 30 s."""
    min_gathered: float = 1.8
    """Pairs of delays that agree on the slope, for one that does without. Clean: 1.2 at most; 20 ppm: 2.1 (9 of 10)."""
    window: float = 6.0
    """Seconds between the two delays of a pair, at most: talkers stay put for longer."""
    width: float = 20e-6
    """Seconds within which two delays agree,"""
    blur: float = 0.1
    """and this many times the slope: the delay of a block is that of its loudest part, not of its middle."""
    near: float = 2.1
    """Seconds between the two delays of near pairs."""
    min_share: float = 0.35
    """Of the near pairs, that agree: 0.5 to 0.9 do where clocks drift."""
    max_uneven: float = 7e-6
    """Seconds per second by which a third of the recording may differ,"""
    max_uneven_share: float = 0.08
    """and this part of the slope."""
    min_seconds: float = 20.0
    min_delays: int = 12
    """That are clear."""


_LINE_SEARCH, _TRACKING, _DRIFT_TEST = _LineSearch(), _Tracking(), _DriftTest()


@dataclass(frozen=True, eq=False)
class Excerpt:
    """The part of a recording that is studied closely."""

    start: float
    """Seconds from the beginning of the recording."""
    rate: int
    samples: Floats32
    """(M, n), without the constant offset."""

    @property
    def seconds(self) -> float:
        return float(self.samples.shape[1] / self.rate)


@dataclass(frozen=True)
class Line:
    """A lag that moves steadily: `offset + slope * time`, all in seconds, positive = first channel later."""

    offset: float = 0.0
    slope: float = 0.0

    def at(self, time: npt.ArrayLike) -> Floats:
        return self.offset + self.slope * np.asarray(time, dtype=np.float64)

    def __sub__(self, other: "Line") -> "Line":
        return Line(self.offset - other.offset, self.slope - other.slope)


@dataclass(frozen=True, eq=False)
class Track:
    """Delays of a pair, block by block. Columns: as it is, and with one channel inverted. Shape: B blocks."""

    times: Floats
    """(B,) seconds from the beginning of the excerpt."""
    delays: Floats
    """(B, 2) seconds, positive = first channel later."""
    heights: Floats
    """(B, 2) in multiples of the noise."""
    clear: Bools
    """(B, 2) high enough and without a rival."""


def find_line(part: Excerpt, first: int, second: int, plausible: float) -> Line | None:
    """The line on which one channel is found in the other, if it leaves the plausible delays (seconds); else None."""
    rate, total = part.rate, part.samples.shape[1]
    length = min(round(_LINE_SEARCH.piece * rate), total)
    reach = min(round(SEARCH * rate), total - length // 4)
    near = min(round(plausible * rate), reach - 1)
    if near < 1:
        return None
    starts = np.linspace(0, total - length, min(_LINE_SEARCH.max_pieces, -(-total // length))).astype(int)
    peaks = []
    for start in starts:
        heights = np.abs(phat(part, (first, second), int(start), length, reach))
        lag = int(heights.argmax())
        inside = float(heights[reach - near : reach + near + 1].max())
        peaks.append(((start + length / 2) / rate, (lag - reach) / rate, float(heights[lag]), inside))
    times, lags, height, rivals = (np.array(column) for column in zip(*peaks, strict=True))
    found = height >= _LINE_SEARCH.min_height
    if not found.any():
        return None
    line, on_line = consensus(times[found], lags[found], height[found], plausible / 2)
    outside = on_line & (np.abs(lags[found]) > plausible)
    if not outside.any() or 2 * on_line.sum() <= found.sum():
        return None
    dominance = height[found][outside].mean() / rivals[found][outside].mean()
    if on_line.sum() == 1 and (
        height[found][on_line][0] < _LINE_SEARCH.min_single_height or dominance < _LINE_SEARCH.min_single_dominance
    ):
        return None
    return line if dominance >= _LINE_SEARCH.min_dominance else None


def track(
    part: Excerpt,
    first: int,
    second: int,
    reach: float,
    line: Line | None = None,
    pairs: int = 1,
    *,
    block: float = _TRACKING.block,
    centres: Floats | None = None,
) -> Track:
    """Delays within `reach` seconds of the line. With many `pairs` to do, each gets fewer blocks.

    Args:
        block: seconds.
        centres: of the blocks, in seconds; by default they are spread evenly.
    """
    line = line or Line()
    rate, total = part.rate, part.samples.shape[1]
    length = min(round(block * rate), total)
    if centres is None:
        most = max(40, min(_TRACKING.max_blocks, 3000 // pairs))
        starts = np.linspace(0, total - length, max(1, min(most, 2 * (total - length) // length + 1))).astype(int)
    else:
        starts = np.clip(np.round(centres * rate).astype(int) - length // 2, 0, total - length)
    times = (starts + length / 2) / rate
    shifts = np.round(line.at(times) * rate).astype(int)
    samples = max(2, round(reach * rate))
    rows = []
    for start, shift in zip(starts, shifts, strict=True):
        heights = phat(part, (first, second), int(start), length, samples, int(shift))
        rows.append([_peak(sign * heights) for sign in (1, -1)])
    lag, height, rival = np.array(rows).transpose(2, 0, 1)
    delays = (lag - samples + shifts[:, None]) / rate
    return Track(
        times, delays, height, (height >= _TRACKING.min_clear_height) & (rival <= _TRACKING.max_clear_rival * height)
    )


def phat(part: Excerpt, pair: tuple[int, int], start: int, length: int, reach: int, shift: int = 0) -> Floats:
    """GCC-PHAT at the lags shift - reach ... shift + reach samples, in multiples of its noise."""
    piece = np.zeros(length + 2 * reach, dtype=np.float32)
    piece[reach : reach + length] = part.samples[pair[0], start : start + length] * np.hanning(length)
    begin = start - shift - reach
    stretch = np.zeros_like(piece)
    low, high = max(0, begin), min(part.samples.shape[1], begin + len(stretch))
    silent = np.zeros(2 * reach + 1)
    if not low <= start + length // 2 - shift <= high:
        return silent
    taper = min(round(_TAPER_SECONDS * part.rate), (high - low) // 2)
    stretch[low - begin : high - begin] = part.samples[pair[1], low:high]
    ramp = 0.5 - 0.5 * np.cos(np.pi * (np.arange(taper) + 0.5) / max(taper, 1))
    stretch[low - begin : low - begin + taper] *= ramp
    stretch[high - begin - taper : high - begin] *= ramp[::-1]

    # No lag within reach takes the piece beyond the stretch, so the circular correlation needs no padding.
    size = scipy.fft.next_fast_len(len(piece), real=True)
    cross = scipy.fft.rfft(piece, size) * np.conj(scipy.fft.rfft(stretch, size))
    magnitude = np.abs(cross)
    frequencies = np.fft.rfftfreq(size, 1 / part.rate)
    inside = (frequencies >= BAND[0]) & (frequencies <= min(BAND[1], 0.45 * part.rate)) & (magnitude > 0)
    if not inside.any():
        return silent
    cross[~inside] = 0
    cross[inside] /= magnitude[inside]
    curve = scipy.fft.irfft(cross, size)
    # The noise is measured where at least half of the piece lies on the other channel: elsewhere there is less of it.
    lags = np.arange(-max(reach, length // 4), max(reach, length // 4) + 1)
    middle = start + length // 2 - shift - lags
    noise = float(np.median(np.abs(curve[lags[(middle >= low) & (middle <= high)]]))) / 0.6745
    if noise <= 0:
        return silent
    return np.concatenate([curve[-reach:], curve[: reach + 1]]).astype(np.float64) / noise


def _peak(heights: Floats) -> tuple[float, float, float]:
    """Place (with a fraction, by a parabola) and height of the largest value; the largest beyond two samples of it."""
    best = int(heights.argmax())
    place = float(best)
    if 0 < best < len(heights) - 1:
        place += float(vertex(*heights[best - 1 : best + 2]))
    rest = np.abs(heights)
    rest[max(0, best - 2) : best + 3] = 0
    return place, float(heights[best]), float(rest.max())


def consensus(times: Floats, lags: Floats, weight: Floats, tolerance: float) -> tuple[Line, Bools]:
    """The line through most of the points, and which these are; flat where that serves as well."""
    candidates = [(float(lag), 0.0) for lag in lags]
    for i in range(len(times)):
        for j in range(i):
            if times[i] == times[j]:
                continue
            slope = float((lags[i] - lags[j]) / (times[i] - times[j]))
            if abs(slope) <= _MAX_SLOPE:
                candidates.append((float(lags[i] - slope * times[i]), slope))
    offset, slope = np.array(candidates).T
    on_line = np.abs(lags - offset[:, None] - slope[:, None] * times) <= tolerance
    best = int(np.argmax((on_line * weight).sum(axis=1) * (1 - 1e-6 * (slope != 0))))
    chosen = on_line[best]
    if slope[best] != 0 and chosen.sum() > 2:
        t, d = times[chosen], lags[chosen]
        upper = np.triu_indices(len(t), 1)
        apart = t[upper[0]] - t[upper[1]]
        slope[best] = np.median((d[upper[0]] - d[upper[1]])[apart != 0] / apart[apart != 0])
    return Line(float(np.median(lags[chosen] - slope[best] * times[chosen])), float(slope[best])), chosen


@dataclass(frozen=True)
class Drift:
    line: Line
    """Delay over the time in the excerpt; its slope is the drift, positive = the first channel falls behind."""
    gathered: float
    """How many times more pairs of delays agree on that slope than on none, or on the opposite one."""
    share: float
    """Of the pairs two seconds apart that agree."""
    uneven: float
    """Largest difference of the slope in a third of the recording from that of the whole."""

    @property
    def agreed(self) -> bool:
        """Whether enough pairs of delays have this slope, whatever it is, and every third of the recording has it."""
        return (
            self.share >= _DRIFT_TEST.min_share
            and self.uneven <= _DRIFT_TEST.max_uneven + _DRIFT_TEST.max_uneven_share * abs(self.line.slope)
        )

    @property
    def steady(self) -> bool:
        return (
            abs(self.line.slope) >= _DRIFT_TEST.min_slope and self.gathered >= _DRIFT_TEST.min_gathered and self.agreed
        )


def measure_drift(track: Track, column: int) -> Drift | None:
    """Of the clear delays in a column of the track; None where they are too few or over too little time."""
    clear = track.clear[:, column]
    times, delays = track.times[clear], track.delays[clear, column]
    if len(times) < _DRIFT_TEST.min_delays or np.ptp(times) < _DRIFT_TEST.min_seconds:
        return None
    thirds = [modal_slope(times[third], delays[third]) for third in np.array_split(np.arange(len(times)), 3)]
    slope = modal_slope(times, delays)
    if slope is None or None in thirds:
        return None
    uneven = max(abs(third - slope) for third in thirds if third is not None)
    apart, change = _pairs(times, delays, _DRIFT_TEST.window)
    # Somebody who walks up and down is found on the opposite slope as often.
    without = max(1, *(_agreeing(apart, change, other).sum() for other in (0.0, -slope)))
    agreeing = _agreeing(apart, change, slope)
    gathered, share = float(agreeing.sum() / without), float(agreeing[apart <= _DRIFT_TEST.near].mean())
    slope = _refined(times, delays, slope)
    return Drift(Line(float(np.median(delays - slope * times)), slope), gathered, share, uneven)


def modal_slope(times: Floats, delays: Floats) -> float | None:
    """The slope that most pairs agree on; None if there are few of them."""
    apart, change = _pairs(times, delays, _DRIFT_TEST.window)
    if (apart <= _DRIFT_TEST.near).sum() < 5:
        return None
    slopes = np.arange(-_MAX_SLOPE, _MAX_SLOPE, _DRIFT_TEST.width / _DRIFT_TEST.window / 4)
    agreeing = np.array([_agreeing(apart, change, slope).sum() for slope in slopes])
    return float(np.median(slopes[agreeing == agreeing.max()]))


def _refined(times: Floats, delays: Floats, slope: float) -> float:
    """Pairs farther and farther apart make the slope more precise; those of different talkers drop out."""
    window = _DRIFT_TEST.window
    while window < 2 * np.ptp(times):
        apart, change = _pairs(times, delays, window)
        agree = _agreeing(apart, change, slope)
        if agree.any():
            slope = float((apart[agree] * change[agree]).sum() / (apart[agree] ** 2).sum())
        window *= 2
    return slope


def _agreeing(apart: Floats, change: Floats, slope: float) -> Bools:
    """Which of the pairs of delays agree on a slope."""
    agreeing: Bools = np.abs(change - slope * apart) <= _DRIFT_TEST.width + _DRIFT_TEST.blur * abs(slope)
    return agreeing


def _pairs(times: Floats, delays: Floats, window: float) -> tuple[Floats, Floats]:
    """Seconds between the two of each pair, and how much the delay changes."""
    first, second = np.triu_indices(len(times), 1)
    near = times[second] - times[first] <= window
    first, second = first[near], second[near]
    return times[second] - times[first], delays[second] - delays[first]
