"""Sounds far away: how their beginnings lie to each other in two recordings.

Some metres from a source, its reflections together are louder than itself, and a correlation of all that is heard of it
peaks anywhere. But nothing comes before the direct sound. Of a clap, the leading edge is looked for in each recording,
and only the few milliseconds behind these are correlated. Of speech, the correlations of hundreds of beginnings are
added up: reflections that have not arrived yet have no part in them.
"""

from __future__ import annotations

import numpy as np
import scipy.fft

from qkgcc.core.types import Floats, Floats32
from qkgcc.dsp.long_lags import Excerpt, Line, Track, phat
from qkgcc.dsp.peaks import vertex

LIKE = 0.6
"""Correlation of two beginnings from which they are one sound; unlike ones have up to 0.55."""

ALIKE = 0.45
"""Correlation that most beginnings of one sound have, and some of unlike ones: what is believed has to agree."""

_HOP = 0.00025  # seconds between the powers that show an edge
_BEFORE, _AFTER = 0.001, 0.003  # seconds around an edge that are correlated
_SLACK = 0.0015  # seconds by which the two edges may be seen too early or too late
_RISE = (0.12, 8.0)  # of the largest power within reach, and times the noise before: the edge is where both are passed
_LOUD = 25.0  # times the power of the quietest quarter of a second around it; the loudest moment of noise has 10
_BEGINNING = 0.015  # seconds of the beginning of a sound
_MOST = 12.0  # height that one beginning counts at most
_SUM, _CLEARLY = 5.0, 1.3  # height of the sum, and times that on the line, from which another lag is the direct one
_BAND = (500.0, 7000.0)  # Hz; below, rooms ring and rumble


def track_edges(part: Excerpt, onsets: Floats, reach: float, line: Line) -> Track:
    """Delays of sounds that begin at these seconds of the first channel, within `reach` seconds of the line.

    The heights are correlations, 0 to 1.
    """
    first, second = (_filtered(samples, part.rate) for samples in part.samples[:2])
    rows = []
    for onset in onsets:
        rows.append(_between(first, second, part.rate, float(onset), float(line.at(onset)), reach))
    delay, height = np.array(rows).reshape(-1, 2).T
    delays, heights = np.stack([delay, delay], axis=1), np.stack([height, -height], axis=1)
    return Track(onsets, delays, heights, heights >= LIKE)


def first_to_arrive(part: Excerpt, onsets: Floats, reach: float, line: Line, sign: int) -> float | None:
    """Seconds from the line at which the beginnings of sounds are alike; None: on it, or nothing is clear.

    Args:
        line: of the delays that are known, in the excerpt as it is.
        sign: -1 where one channel is the inverse of the other.
    """
    length, lags = round(_BEGINNING * part.rate), round(reach * part.rate)
    total = np.zeros(2 * lags + 1)
    for onset in onsets:
        start = round(onset * part.rate) - length // 2
        if 0 <= start <= part.samples.shape[1] - length:
            shift = round(float(line.at(onset + part.start)) * part.rate)
            total += np.clip(sign * phat(part, (0, 1), start, length, lags, shift), -_MOST, _MOST)
    noise = float(np.median(np.abs(total))) / 0.6745
    best = int(total.argmax())
    here = float(total[lags - 1 : lags + 2].max())
    if noise == 0 or total[best] < _SUM * noise or total[best] < _CLEARLY * here:
        return None
    return (best - lags) / part.rate


def _between(
    first: Floats, second: Floats, rate: int, onset: float, expected: float, reach: float
) -> tuple[float, float]:
    here = _edge(first, rate, onset - 0.03, onset + 0.03)
    if here is None:
        return 0.0, 0.0
    there = _edge(second, rate, here / rate - expected - reach, here / rate - expected + reach)
    if there is None:
        return 0.0, 0.0
    before, after, slack = (round(x * rate) for x in (_BEFORE, _AFTER, _SLACK))
    low, high = here - before, here + after
    begin, end = there - before - slack, there + after + slack
    if low < 0 or begin < 0 or high > len(first) or end > len(second):
        return 0.0, 0.0
    piece = first[low:high] * np.hanning(high - low)
    stretch = second[begin:end]
    curve = np.correlate(stretch, piece, mode="valid")
    power = np.convolve(stretch**2, np.hanning(high - low) ** 2, mode="valid")
    curve = curve / np.sqrt(np.maximum(power * (first[low:high] ** 2).sum(), 1e-30))
    best = int(np.abs(curve).argmax())
    place = float(best)
    if 0 < best < len(curve) - 1:
        place += float(vertex(*np.abs(curve[best - 1 : best + 2])))
    return (low - begin - place) / rate, float(curve[best])


def _edge(samples: Floats, rate: int, begin: float, end: float) -> int | None:
    """The sample at which the power first rises towards its largest value."""
    hop = max(1, round(_HOP * rate))
    low, high = max(0, round(begin * rate)), min(len(samples), round(end * rate))
    count = (high - low) // hop
    if count < 8:
        return None
    power = (samples[low : low + count * hop] ** 2).reshape(count, hop).mean(axis=1)
    best = int(power.argmax())
    around = samples[max(0, low - rate // 2) : high + rate // 2]
    around = (around[: len(around) // hop * hop] ** 2).reshape(-1, hop).mean(axis=1)
    if power[best] < _LOUD * np.quantile(around, 0.25):
        return None
    quiet = float(np.median(power[:best])) if best >= 8 else 0.0
    above = power >= max(_RISE[0] * power[best], _RISE[1] * quiet)
    # The last pause before the loudest part, of 10 ms: what comes before it is another sound.
    pause = round(0.01 / _HOP)
    start = best
    for i in range(best, -1, -1):
        if above[i]:
            start = i
        elif start - i >= pause:
            break
    return low + start * hop


def _filtered(samples: Floats32, rate: int) -> Floats:
    size = scipy.fft.next_fast_len(len(samples), real=True)
    spectrum = scipy.fft.rfft(samples, size)
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    spectrum[(frequencies < _BAND[0]) | (frequencies > min(_BAND[1], 0.45 * rate))] = 0
    return np.asarray(scipy.fft.irfft(spectrum, size)[: len(samples)], dtype=np.float64)
