"""Two recorders: clocks that run apart.

Drift is told from a moving source by its steadiness. Talkers may sit anywhere and take turns, so their delays lie on
several parallel lines. The slope of these lines is the one on which most pairs of delays, a few seconds apart, agree.
It has to explain clearly more of them than no slope does, and to be the same in each third of the recording: nobody
walks like that for half a minute (a source that creeps at a constant rate all the time would be mistaken for a drift).
"""

from dataclasses import dataclass

import numpy as np

from qkgcc.core.types import Bools, Floats
from qkgcc.dsp.long_lags import Line, Track

DRIFT = 14e-6
"""Seconds per second. Must be found: 20e-6 over 30 s."""
GATHERED = 1.8
"""Pairs of delays that agree on the slope, for one that does without. Clean: 1.2 at most; 20 ppm: 2.1 (9 of 10)."""

_WINDOW = 6.0  # seconds between the two delays of a pair: talkers stay put for longer
_WIDTH = 20e-6  # seconds within which two delays agree,
_BLUR = 0.1  # and this many times the slope: the delay of a block is that of its loudest part, not of its middle
_SHARE, _NEAR = 0.35, 2.1  # of the pairs at most so many seconds apart must agree: 0.5 to 0.9 where clocks drift
_UNEVEN = (7e-6, 0.08)  # how much a third may differ: so many seconds per second, and this part of the slope
_STEEPEST = 600e-6
_SHORTEST, _FEWEST = 20.0, 12  # seconds, and clear delays, that are needed


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
        return self.share >= _SHARE and self.uneven <= _UNEVEN[0] + _UNEVEN[1] * abs(self.line.slope)

    @property
    def steady(self) -> bool:
        return abs(self.line.slope) >= DRIFT and self.gathered >= GATHERED and self.agreed


def measure_drift(track: Track, column: int) -> Drift | None:
    """Of the clear delays in a column of the track; None where they are too few or over too little time."""
    clear = track.clear[:, column]
    times, delays = track.times[clear], track.delays[clear, column]
    if len(times) < _FEWEST or np.ptp(times) < _SHORTEST:
        return None
    thirds = [modal_slope(times[third], delays[third]) for third in np.array_split(np.arange(len(times)), 3)]
    slope = modal_slope(times, delays)
    if slope is None or None in thirds:
        return None
    uneven = max(abs(third - slope) for third in thirds if third is not None)
    apart, change = _pairs(times, delays, _WINDOW)
    # Somebody who walks up and down is found on the opposite slope as often.
    without = max(1, *(_agreeing(apart, change, other).sum() for other in (0.0, -slope)))
    agreeing = _agreeing(apart, change, slope)
    gathered, share = float(agreeing.sum() / without), float(agreeing[apart <= _NEAR].mean())
    slope = _refined(times, delays, slope)
    return Drift(Line(float(np.median(delays - slope * times)), slope), gathered, share, uneven)


def modal_slope(times: Floats, delays: Floats) -> float | None:
    """The slope that most pairs agree on; None if there are few of them."""
    apart, change = _pairs(times, delays, _WINDOW)
    if (apart <= _NEAR).sum() < 5:
        return None
    slopes = np.arange(-_STEEPEST, _STEEPEST, _WIDTH / _WINDOW / 4)
    agreeing = np.array([_agreeing(apart, change, slope).sum() for slope in slopes])
    return float(np.median(slopes[agreeing == agreeing.max()]))


def _refined(times: Floats, delays: Floats, slope: float) -> float:
    """Pairs farther and farther apart make the slope more precise; those of different talkers drop out."""
    window = _WINDOW
    while window < 2 * np.ptp(times):
        apart, change = _pairs(times, delays, window)
        agree = _agreeing(apart, change, slope)
        if agree.any():
            slope = float((apart[agree] * change[agree]).sum() / (apart[agree] ** 2).sum())
        window *= 2
    return slope


def _agreeing(apart: Floats, change: Floats, slope: float) -> Bools:
    """Which of the pairs of delays agree on a slope."""
    agreeing: Bools = np.abs(change - slope * apart) <= _WIDTH + _BLUR * abs(slope)
    return agreeing


def _pairs(times: Floats, delays: Floats, window: float) -> tuple[Floats, Floats]:
    """Seconds between the two of each pair, and how much the delay changes."""
    first, second = np.triu_indices(len(times), 1)
    near = times[second] - times[first] <= window
    first, second = first[near], second[near]
    return times[second] - times[first], delays[second] - delays[first]
