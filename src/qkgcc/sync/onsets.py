"""Sounds that begin abruptly: where they begin, and the delay between their onsets in two recordings.

Some metres from a source, its reflections together are louder than itself, and a correlation of all that is heard of it
peaks anywhere. But nothing comes before the direct sound. Of a clap, the leading edge is looked for in each recording,
and only the few milliseconds behind these are correlated. Of speech, the correlations of hundreds of onsets are added
up: reflections that have not arrived yet have no part in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.fft

from qkgcc.core.types import Floats, Floats32
from qkgcc.dsp.long_lags import Excerpt, Line, Track, phat
from qkgcc.dsp.peaks import vertex

HOP = 0.01
"""Seconds between the powers in which onsets are searched."""
ONSET_SPACING = 0.25
"""Seconds between two onsets, at least."""
MAX_ONSETS = 240


@dataclass(frozen=True)
class EdgeLimits:
    """How leading edges are found and compared. Times in seconds."""

    same_sound: float = 0.6
    """Correlation of two onsets, above which they are one sound; different ones have up to 0.55."""
    likely_same_sound: float = 0.45
    """Correlation that most onsets of one sound have, and some of different ones: these have to agree on a line."""
    search: float = 0.03
    """Around an onset, in which its leading edge lies."""
    hop: float = 0.00025
    """Between the powers that show an edge."""
    before: float = 0.001
    after: float = 0.003
    """Before and after an edge, that are correlated."""
    tolerance: float = 0.0015
    """By which the two edges may be detected too early or too late."""
    rise: float = 0.12
    """Of the largest power within reach: at the edge, this and the next are exceeded."""
    rise_over_noise: float = 8.0
    """Times the noise before."""
    loud: float = 25.0
    """Times the power of the quietest quarter of a second around it; the loudest moment of noise has 10."""
    pause: float = 0.01
    """That separates what comes before the loudest part from it: that is another sound."""
    band: tuple[float, float] = (500.0, 7000.0)
    """Hz; below, rooms ring and rumble."""


@dataclass(frozen=True)
class DirectSoundLimits:
    """When the summed correlation of many onsets shows the direct sound at another lag than the line's."""

    duration: float = 0.015
    """Seconds of an onset."""
    max_height: float = 12.0
    """Height that one onset counts at most."""
    height: float = 5.0
    """Of the sum, in multiples of its noise."""
    over_line: float = 1.3
    """Times the height on the line."""


EDGES, DIRECT_SOUND = EdgeLimits(), DirectSoundLimits()


def find_onsets(samples: Floats32, rate: int) -> Floats:
    """Seconds at which the power rises most, a block apart from each other. Shape: (n,) -> (up to MAX_ONSETS,)"""
    hop = round(HOP * rate)
    count = len(samples) // hop
    power = np.square(samples[: count * hop], dtype=np.float64).reshape(count, hop).mean(axis=1)
    total = np.concatenate([[0.0], np.cumsum(power)])
    place = np.arange(count)
    after = total[np.minimum(place + 5, count)] - total[place]
    before = total[place] - total[np.maximum(place - 20, 0)]
    rise = after / (before / 4 + 0.05 * power.mean() + 1e-20) * (after > 0)
    found: list[int] = []
    apart = round(ONSET_SPACING / HOP)
    while len(found) < MAX_ONSETS and rise.max() > 0:
        best = int(rise.argmax())
        found.append(best)
        rise[max(0, best - apart) : best + apart + 1] = 0
    return np.sort(np.array(found, dtype=np.float64)) * HOP + HOP


def track_edges(part: Excerpt, onsets: Floats, reach: float, line: Line) -> Track:
    """Delays of sounds that begin at these seconds of the first channel, within `reach` seconds of the line.

    The heights are correlations, 0 to 1.
    """
    first, second = (_band_pass(samples, part.rate) for samples in part.samples[:2])
    rows = []
    for onset in onsets:
        rows.append(_delay_between_edges(first, second, part.rate, float(onset), float(line.at(onset)), reach))
    delay, height = np.array(rows).reshape(-1, 2).T
    delays, heights = np.stack([delay, delay], axis=1), np.stack([height, -height], axis=1)
    return Track(onsets, delays, heights, heights >= EDGES.same_sound)


def direct_sound_lag(part: Excerpt, onsets: Floats, reach: float, line: Line, sign: int) -> float | None:
    """Seconds from the line to the direct sound, by all onsets together; None: it lies on the line, or is not clear.

    Args:
        line: of the delays that are known, in the excerpt as it is.
        sign: -1 where one channel is the inverse of the other.
    """
    length, lags = round(DIRECT_SOUND.duration * part.rate), round(reach * part.rate)
    total = np.zeros(2 * lags + 1)
    for onset in onsets:
        start = round(onset * part.rate) - length // 2
        if 0 <= start <= part.samples.shape[1] - length:
            shift = round(float(line.at(onset + part.start)) * part.rate)
            total += np.clip(
                sign * phat(part, (0, 1), start, length, lags, shift), -DIRECT_SOUND.max_height, DIRECT_SOUND.max_height
            )
    noise = float(np.median(np.abs(total))) / 0.6745
    best = int(total.argmax())
    here = float(total[lags - 1 : lags + 2].max())
    if noise == 0 or total[best] < DIRECT_SOUND.height * noise or total[best] < DIRECT_SOUND.over_line * here:
        return None
    return (best - lags) / part.rate


def _delay_between_edges(
    first: Floats, second: Floats, rate: int, onset: float, expected: float, reach: float
) -> tuple[float, float]:
    """Seconds and correlation of the sound at an onset of the first channel; 0 and 0 where it is not found."""
    here = _leading_edge(first, rate, onset - EDGES.search, onset + EDGES.search)
    if here is None:
        return 0.0, 0.0
    there = _leading_edge(second, rate, here / rate - expected - reach, here / rate - expected + reach)
    if there is None:
        return 0.0, 0.0
    before, after, tolerance = (round(x * rate) for x in (EDGES.before, EDGES.after, EDGES.tolerance))
    low, high = here - before, here + after
    begin, end = there - before - tolerance, there + after + tolerance
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


def _leading_edge(samples: Floats, rate: int, begin: float, end: float) -> int | None:
    """The sample at which the power first rises towards its largest value."""
    hop = max(1, round(EDGES.hop * rate))
    low, high = max(0, round(begin * rate)), min(len(samples), round(end * rate))
    count = (high - low) // hop
    if count < 8:
        return None
    power = (samples[low : low + count * hop] ** 2).reshape(count, hop).mean(axis=1)
    best = int(power.argmax())
    around = samples[max(0, low - rate // 2) : high + rate // 2]
    around = (around[: len(around) // hop * hop] ** 2).reshape(-1, hop).mean(axis=1)
    if power[best] < EDGES.loud * np.quantile(around, 0.25):
        return None
    quiet = float(np.median(power[:best])) if best >= 8 else 0.0
    above = power >= max(EDGES.rise * power[best], EDGES.rise_over_noise * quiet)
    pause = round(EDGES.pause / EDGES.hop)
    start = best
    for i in range(best, -1, -1):
        if above[i]:
            start = i
        elif start - i >= pause:
            break
    return low + start * hop


def _band_pass(samples: Floats32, rate: int) -> Floats:
    """The samples within `EDGES.band`."""
    size = scipy.fft.next_fast_len(len(samples), real=True)
    spectrum = scipy.fft.rfft(samples, size)
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    spectrum[(frequencies < EDGES.band[0]) | (frequencies > min(EDGES.band[1], 0.45 * rate))] = 0
    return np.asarray(scipy.fft.irfft(spectrum, size)[: len(samples)], dtype=np.float64)
