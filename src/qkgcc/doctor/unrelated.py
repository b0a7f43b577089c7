"""Channels that share no sound: noise of their own, different talkers, recordings of different moments.

A sound that two channels share has the same phase between them from one window to the next, whatever its level. Noise
and reverberation blur that, but seldom wholly. Of unrelated channels every phase is as likely, so that the mean of n
unit phasors has a mean square of 1 / n, and its spread is known. The mean over all frequencies is compared with that,
in standard deviations of chance: in short and in long windows, which hold more of the reverberation, and over few
windows, for a source that moves, and over all.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.doctor.findings import Finding, named
from qkgcc.doctor.setup import Setup
from qkgcc.doctor.survey import SILENCE
from qkgcc.dsp.long_lags import BAND, SEARCH, Excerpt, Line, find_line, phat

SHARED = 4.5
"""Standard deviations from chance, at least, of channels that share a sound: see benchmarks/unrelated.py."""
ENOUGH = 6.0
"""Seconds of sound in both channels from which on channels are called unrelated. A talker 2 m away from microphones 3 m
apart, in noise as loud as the voice and a T60 of 1 s, may take so long to be known."""

_LONGEST = 60.0  # seconds that are looked at
_WINDOWS = ((0.064, 8), (0.256, 4), (1.024, 4), (0.064, 0), (0.128, 0), (0.256, 0), (0.512, 0))  # s, windows (0: all)
_SHIFTS = 8

Phasors = npt.NDArray[np.complex64]


def unrelated_channels(part: Excerpt, live: list[int], setup: Setup) -> tuple[list[int], list[Finding]]:
    """The largest group of channels that are known to share a sound, and the finding for the others."""
    groups = [[channel] for channel in live]
    apart = -np.inf
    for first, second in combinations(live, 2):
        one, other = (next(group for group in groups if channel in group) for channel in (first, second))
        if one is other:
            continue
        shared = shared_sound(part, first, second, setup.reach())
        if shared >= SHARED:
            one += other
            groups.remove(other)
        else:
            apart = max(apart, shared)
    if len(groups) < 2:
        return live, []
    seconds = min(_LONGEST, part.seconds) * float(_loud(part.samples[live], part.rate).mean())
    related = max(groups, key=lambda group: len(group))
    related = sorted(related) if len(related) > 1 else []
    alone = [channel for channel in live if channel not in related]
    return related, [_unrelated(alone, related, apart) if seconds >= ENOUGH else _unknown(alone, related, seconds)]


def _unknown(alone: list[int], related: list[int], seconds: float) -> Finding:
    return Finding(
        "too-little-sound",
        tuple(alone),
        f"{seconds:.1f} s of sound are too little to tell whether {named(alone)} {_share(alone)} any"
        f"{f' with {named(related)}' if related else ''}: delays, gains and polarity were not checked.",
        f"Record {ENOUGH:g} s or more.",
    )


def _unrelated(alone: list[int], related: list[int], shared: float) -> Finding:
    return Finding(
        "unrelated-channels",
        tuple(alone),
        f"{named(alone).capitalize()} {_share(alone)} no sound{f' with {named(related)}' if related else ''}: their "
        f"phases agree only by chance ({shared:.1f} standard deviations; a shared sound gives {SHARED:g} or more).",
        "No delay can be found: check that all microphones were in one room and recorded at the same time, and that "
        "each channel is the input that you mean.",
    )


def _share(channels: list[int]) -> str:
    return "shares" if len(channels) == 1 else "share"


def shared_sound(part: Excerpt, first: int, second: int, reach: float) -> float:
    """Standard deviations by which the phases between two channels agree more than by chance.

    Args:
        reach: seconds of delay beyond which recorders that were started apart are looked for.
    """
    largest = -np.inf
    for line in _lines(part, first, second, reach):
        largest = max(largest, _agreement(part, first, second, line))
        if largest >= SHARED:
            break
    return largest


def _lines(part: Excerpt, first: int, second: int, reach: float) -> Iterator[Line]:
    """As they are; at the lag at which they correlate most; and of clocks that run apart."""
    yield Line()
    yield _constant(part, first, second)
    line = find_line(part, first, second, reach)
    if line is not None:
        yield line


def _constant(part: Excerpt, first: int, second: int) -> Line:
    """The lag at which the channels correlate most, of all that are searched."""
    length = min(part.samples.shape[1], round(_LONGEST * part.rate))
    reach = min(round(SEARCH * part.rate), length - length // 4)
    heights = np.abs(phat(part, (first, second), 0, length, reach))
    return Line((int(heights.argmax()) - reach) / part.rate)


def _agreement(part: Excerpt, first: int, second: int, line: Line) -> float:
    """The largest of several kinds of windows; the second channel is moved by the line.

    Harmonics of two steady voices keep their phases, too. So do windows that are no longer at the same time: the
    agreement is what such windows have less of it.
    """
    largest = -np.inf
    for window, together in _WINDOWS:
        one, other = _phasors(part, first, second, line, window)
        count = min(together or len(one), len(one))
        if count < 2:
            continue
        found = _from_chance(one * other, count)
        if found >= SHARED:
            shifts = np.unique(np.linspace(0, len(one), _SHIFTS + 2).astype(int)[1:-1])
            by_chance = [_from_chance(one * np.roll(other, shift, axis=0), count) for shift in shifts if shift]
            if by_chance and np.mean(by_chance) < SHARED:  # else it is a tone, of which nobody knows
                found = (found - float(np.mean(by_chance))) / max(1.0, float(np.std(by_chance)))
        largest = max(largest, found)
        if largest >= SHARED:
            break
    return largest


def _from_chance(turned: Phasors, count: int) -> float:
    """Standard deviations by which the means of `count` windows are larger than by chance. Shape: (T, F)"""
    groups = len(turned) // count
    means = turned[: groups * count].reshape(groups, count, -1).mean(axis=1)
    spread = np.sqrt((count - 1) / count**3 / means.size)
    return float((np.mean(np.abs(means) ** 2) - 1 / count) / spread)


def _phasors(part: Excerpt, first: int, second: int, line: Line, window: float) -> tuple[Phasors, Phasors]:
    """Phases of the one and their opposites of the other, in the windows in which both hold sound. Shape: (T, F)"""
    size, total = round(window * part.rate), part.samples.shape[1]
    starts = np.arange(0, min(total, round(_LONGEST * part.rate)) - size + 1, size)
    others = starts - np.round(line.at((starts + size / 2) / part.rate) * part.rate).astype(int)
    inside = (others >= 0) & (others + size <= total)
    cuts = [
        part.samples[channel, begin[inside, None] + np.arange(size)]
        for channel, begin in ((first, starts), (second, others))
    ]
    heard = (cuts[0].std(axis=1) > SILENCE) & (cuts[1].std(axis=1) > SILENCE)
    frequencies = np.fft.rfftfreq(size, 1 / part.rate)
    counts = (frequencies >= BAND[0]) & (frequencies <= min(BAND[1], 0.45 * part.rate))
    one, other = (scipy.fft.rfft(cut[heard] * np.hanning(size).astype(np.float32))[:, counts] for cut in cuts)
    tiny = np.finfo(np.float32).tiny
    return one / np.maximum(np.abs(one), tiny), np.conj(other) / np.maximum(np.abs(other), tiny)


def _loud(samples: npt.NDArray[np.float32], rate: int) -> npt.NDArray[np.bool_]:
    """The windows in which all channels hold sound. Shape: (M, n) -> (T,)"""
    size = round(_WINDOWS[0][0] * rate)
    count = max(1, samples.shape[1] // size)
    return np.asarray((samples[:, : count * size].reshape(len(samples), count, -1).std(axis=2) > SILENCE).all(axis=0))
