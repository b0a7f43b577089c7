"""Faults between two channels: copies, unrelated sounds, gains, polarity, offsets and drift, wrong spacing or side.

All are measured in the excerpt. For delays, each channel is searched for in the first one (`find_line`: an offset or a
drift), then the delays of every pair are followed around that (`track`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.core.types import SILENCE, Floats, Floats32
from qkgcc.doctor.channels import decibels
from qkgcc.doctor.findings import MAX_UNKNOWN_SPACING, Finding, Setup, channel_names
from qkgcc.dsp.long_lags import (
    BAND,
    SEARCH,
    Drift,
    Excerpt,
    Line,
    Track,
    find_line,
    measure_drift,
    phat,
    track,
)

COPY = -30.0
"""dB of one channel that the other does not explain, for a copy. Clean: -20 at least (a head, anechoic, straight on); a
16 bit copy at a tenth of the level: -34 at most."""

Phasors = npt.NDArray[np.complex64]


@dataclass(frozen=True)
class SharedSoundLimits:
    """When two channels share a sound, and how it is measured."""

    shared: float = 4.5
    """Standard deviations from chance, at least, of channels that share a sound: see benchmarks/unrelated.py."""
    enough: float = 6.0
    """Seconds of sound in both channels above which channels are called unrelated. A talker 2 m away from microphones
    3 m apart, in noise as loud as the voice and a T60 of 1 s, may take so long to be known."""
    max_duration: float = 60.0
    """Seconds that are compared."""
    windows: tuple[tuple[float, int], ...] = (
        *((0.064, 8), (0.256, 4), (1.024, 4)),
        *((0.064, 0), (0.128, 0), (0.256, 0), (0.512, 0)),
    )
    """Seconds of a window, and windows whose phases are averaged (0: all). Long windows hold more of the reverberation,
    few windows follow a source that moves."""
    control_shifts: int = 8


@dataclass(frozen=True)
class GainLimits:
    """When a level difference is one of gains, and how it is measured."""

    mismatch: float = 5.0
    """dB in all bands, loud and quiet. Clean: 3.1 at most where the bands agree; 8 dB of gain: 5 in 95 % of 2 s
    pieces."""
    spread: float = 5.0
    """dB between the bands in the quiet frames. A head, where all differences reach 4 dB: 8.7 and more; gains in rooms:
    4."""
    frame: float = 0.05
    edges: tuple[float, ...] = (100.0, 300.0, 1000.0, 3000.0, 7000.0)
    """Hz, of the four bands."""
    part: float = 0.2
    """Share of the frames that are loud, and of those that are quiet."""
    min_contrast: float = 8.0
    """dB between loud and quiet frames in some band, or there is no quiet part to judge by."""
    gated: float = 0.05
    """Share of the frames that are digital silence, above which the recording has no background."""


@dataclass(frozen=True)
class DelayLimits:
    """When the delays of a pair show a fault. Times in seconds."""

    inverted_share: float = -0.16
    """Upright minus inverted peaks as a share of both. Clean: -0.06 at least. Inverted: below it (and the next) in real
    rooms, and in 86 % of 2 s pieces with T60 to 0.8 s and SNR from 0 dB up."""
    inverted_amount: float = -2.5
    """The same in multiples of its noise. Clean: -0.7 at least."""
    outside: float = 0.2
    """Share of the clear delays, two at least, outside what the spacing allows. Clean: none of them in any room."""
    side: float = 94e-6
    """From the middle (1.5 samples at 16 kHz), from which a source is clearly on one side."""
    side_share: float = 0.75
    """Of the clear delays that must be on the same side."""
    sample: float = 62.5e-6
    """One at 16 kHz: delays closer than that to a limit do not pass it."""
    min_clear: int = 2
    """Clear delays for a verdict."""
    min_clear_share: float = 0.25
    """Of the blocks, for a verdict."""
    same_slope: float = 5e-6
    """Seconds per second by which channels with one clock may differ."""


SHARED_SOUND, GAIN, DELAYS = SharedSoundLimits(), GainLimits(), DelayLimits()


# Copies and unrelated channels


def find_copies(part: Excerpt, live: list[int]) -> Iterator[Finding]:
    """One finding for each signal that several channels hold, scaled or not; the first of them is the original."""
    residual, correlation = _unexplained_by_each_other(part)
    rest = list(live)
    while rest:
        first = rest[0]
        group = [channel for channel in rest if channel == first or residual[first, channel] < COPY]
        rest = [channel for channel in rest if channel not in group]
        if len(group) > 1:
            largest = max(residual[first, channel] for channel in group[1:])
            inverted = min(correlation[first, channel] for channel in group) < 0
            yield Finding(
                "identical-channels",
                tuple(group),
                f"{channel_names(group).capitalize()} hold the same signal"
                f"{' (with inverted polarity)' if inverted else ''}: what differs is {-largest:.0f} dB below it.",
                "Record each microphone to its own channel: this is one signal, as from a mono input.",
            )


def _unexplained_by_each_other(part: Excerpt) -> tuple[Floats, Floats]:
    """1 - r^2 in dB and r of every pair of channels, r the correlation of their differences at lag 0.

    Differences from sample to sample, because low rumble alone is much the same in any two microphones.
    Shape: two of (M, M)
    """
    change = np.diff(part.samples)
    gram = np.zeros((len(change), len(change)))
    step = 1 << 20
    for start in range(0, change.shape[1], step):
        piece = change[:, start : start + step].astype(np.float64)
        gram += piece @ piece.T
    scale = np.sqrt(np.maximum(np.diag(gram), np.finfo(float).tiny))
    correlation = gram / scale[:, None] / scale
    return decibels(1 - correlation**2), correlation


def find_unrelated_channels(part: Excerpt, live: list[int], setup: Setup) -> Iterator[Finding]:
    """Channels that share no sound with the largest group that does, or too little sound to tell.

    A sound that two channels share has the same phase between them from one window to the next, whatever its level.
    Noise and reverberation blur that, but seldom wholly. Of unrelated channels (noise of their own, different talkers,
    recordings of different moments) every phase is as likely, so that the mean of n unit phasors has a mean square of
    1 / n, and its spread is known. The mean over all frequencies is compared with that, in standard deviations.
    """
    groups = [[channel] for channel in live]
    largest = -np.inf
    for first, second in combinations(live, 2):
        one, other = (next(group for group in groups if channel in group) for channel in (first, second))
        if one is other:
            continue
        agreement = _phase_agreement(part, first, second, setup.max_delay())
        if agreement >= SHARED_SOUND.shared:
            one += other
            groups.remove(other)
        else:
            largest = max(largest, agreement)
    if len(groups) < 2:
        return
    related = max(groups, key=len)
    related = sorted(related) if len(related) > 1 else []
    others = [channel for channel in live if channel not in related]
    share = "shares" if len(others) == 1 else "share"
    with_related = f" with {channel_names(related)}" if related else ""
    seconds = min(SHARED_SOUND.max_duration, part.seconds) * _share_with_sound(part.samples[live], part.rate)
    if seconds < SHARED_SOUND.enough:
        yield Finding(
            "too-little-sound",
            tuple(others),
            f"{seconds:.1f} s of sound are too little to tell whether {channel_names(others)} {share} any"
            f"{with_related}: delays, gains and polarity were not checked.",
            f"Record {SHARED_SOUND.enough:g} s or more.",
        )
        return
    yield Finding(
        "unrelated-channels",
        tuple(others),
        f"{channel_names(others).capitalize()} {share} no sound{with_related}: their phases agree only by chance "
        f"({largest:.1f} standard deviations; a shared sound gives {SHARED_SOUND.shared:g} or more).",
        "No delay can be found: check that all microphones were in one room and recorded at the same time, and that "
        "each channel is the input that you mean.",
    )


def _phase_agreement(part: Excerpt, first: int, second: int, max_delay: float) -> float:
    """Standard deviations by which the phases between two channels agree more than by chance.

    Args:
        max_delay: seconds, above which recorders that were started apart are looked for.
    """
    largest = -np.inf
    for line in _alignments(part, first, second, max_delay):
        largest = max(largest, _agreement_along(part, first, second, line))
        if largest >= SHARED_SOUND.shared:
            break
    return largest


def _alignments(part: Excerpt, first: int, second: int, max_delay: float) -> Iterator[Line]:
    """As they are; at the lag at which they correlate most; and as recorders whose clocks run apart."""
    yield Line()
    yield _largest_correlation(part, first, second)
    line = find_line(part, first, second, max_delay)
    if line is not None:
        yield line


def _largest_correlation(part: Excerpt, first: int, second: int) -> Line:
    """The lag at which the channels correlate most, of all that are searched."""
    length = min(part.samples.shape[1], round(SHARED_SOUND.max_duration * part.rate))
    reach = min(round(SEARCH * part.rate), length - length // 4)
    heights = np.abs(phat(part, (first, second), 0, length, reach))
    return Line((int(heights.argmax()) - reach) / part.rate)


def _agreement_along(part: Excerpt, first: int, second: int, line: Line) -> float:
    """The largest agreement of several kinds of windows, the second channel moved by the line.

    Harmonics of two steady voices keep their phases, too. So do windows that are no longer at the same time: the
    agreement counts as far as it exceeds that of such windows.
    """
    largest = -np.inf
    for window, averaged in SHARED_SOUND.windows:
        one, other = _phasors(part, first, second, line, window)
        count = min(averaged or len(one), len(one))
        if count < 2:
            continue
        agreement = _beyond_chance(one * other, count)
        if agreement >= SHARED_SOUND.shared:
            shifts = np.unique(np.linspace(0, len(one), SHARED_SOUND.control_shifts + 2).astype(int)[1:-1])
            control = [_beyond_chance(one * np.roll(other, shift, axis=0), count) for shift in shifts if shift]
            # Where the control agrees, too, this is a tone: it cannot tell shared from unrelated sound.
            if control and np.mean(control) < SHARED_SOUND.shared:
                agreement = (agreement - float(np.mean(control))) / max(1.0, float(np.std(control)))
        largest = max(largest, agreement)
        if largest >= SHARED_SOUND.shared:
            break
    return largest


def _beyond_chance(phasors: Phasors, count: int) -> float:
    """Standard deviations by which the means of `count` windows are larger than by chance. Shape: (T, F)"""
    groups = len(phasors) // count
    means = phasors[: groups * count].reshape(groups, count, -1).mean(axis=1)
    spread = np.sqrt((count - 1) / count**3 / means.size)
    return float((np.mean(np.abs(means) ** 2) - 1 / count) / spread)


def _phasors(part: Excerpt, first: int, second: int, line: Line, window: float) -> tuple[Phasors, Phasors]:
    """Phases of the one and negated phases of the other, in the windows in which both hold sound. Shape: (T, F)"""
    size, total = round(window * part.rate), part.samples.shape[1]
    starts = np.arange(0, min(total, round(SHARED_SOUND.max_duration * part.rate)) - size + 1, size)
    others = starts - np.round(line.at((starts + size / 2) / part.rate) * part.rate).astype(int)
    inside = (others >= 0) & (others + size <= total)
    cuts = [
        part.samples[channel, begin[inside, None] + np.arange(size)]
        for channel, begin in ((first, starts), (second, others))
    ]
    loud = (cuts[0].std(axis=1) > SILENCE) & (cuts[1].std(axis=1) > SILENCE)
    frequencies = np.fft.rfftfreq(size, 1 / part.rate)
    in_band = (frequencies >= BAND[0]) & (frequencies <= min(BAND[1], 0.45 * part.rate))
    one, other = (scipy.fft.rfft(cut[loud] * np.hanning(size).astype(np.float32))[:, in_band] for cut in cuts)
    tiny = np.finfo(np.float32).tiny
    return one / np.maximum(np.abs(one), tiny), np.conj(other) / np.maximum(np.abs(other), tiny)


def _share_with_sound(samples: Floats32, rate: int) -> float:
    """Share of the windows in which all channels hold sound. Shape: (M, n)"""
    size = round(SHARED_SOUND.windows[0][0] * rate)
    count = max(1, samples.shape[1] // size)
    windows = samples[:, : count * size].reshape(len(samples), count, -1)
    return float((windows.std(axis=2) > SILENCE).all(axis=0).mean())


# Gains


@dataclass(frozen=True, eq=False)
class BandLevels:
    """Levels of all channels in the loud and the quiet frames of four bands."""

    level: Floats
    """(4 bands x loud and quiet, M) in dB."""
    gated: bool
    """The pauses are digital silence, so that the quiet frames are only the fading of the sounds before them."""


def measure_band_levels(part: Excerpt, channels: list[int]) -> BandLevels | None:
    """Levels by band; None if the recording is too short, or never quiet."""
    size = round(GAIN.frame * part.rate)
    count = part.samples.shape[1] // size
    frames = part.samples[:, : count * size].reshape(len(part.samples), count, size)
    loud = (frames[channels].std(axis=2) > SILENCE).all(axis=0)
    if loud.sum() < 10:
        return None
    spectra = np.abs(scipy.fft.rfft(frames[:, loud] * np.hanning(size).astype(np.float32))) ** 2
    frequencies = np.fft.rfftfreq(size, 1 / part.rate)
    some = max(2, int(GAIN.part * loud.sum()))
    levels, contrasts = [], []
    for low, high in pairwise(GAIN.edges):
        inside = (frequencies >= low) & (frequencies < min(high, 0.45 * part.rate))
        power = spectra[:, :, inside].sum(axis=2, dtype=np.float64)
        mean = power[channels].mean(axis=1, keepdims=True)
        joint = (power[channels] / np.maximum(mean, np.finfo(float).tiny)).mean(axis=0)
        order = np.argsort(joint)
        loudest, quietest = order[-some:], order[:some]
        contrasts.append(decibels(joint[loudest].mean()) - decibels(joint[quietest].mean()))
        levels += [decibels(power[:, loudest].mean(axis=1)), decibels(power[:, quietest].mean(axis=1))]
    if max(contrasts) < GAIN.min_contrast:
        return None
    return BandLevels(np.array(levels), loud.mean() < 1 - GAIN.gated)


def _gain_differences(levels: BandLevels, channels: list[int]) -> tuple[int, Floats]:
    """The channel of the middle level, and by how much each differs from it.

    A head between the microphones shadows the high frequencies more than the low ones. A talker near one of them is
    louder there, but the background in the pauses is not. A wrong gain changes everything alike. So a difference counts
    by the smallest of the four bands, loud and quiet, and only if the bands agree on it in the quiet frames.

    Shape: (M,) in dB; 0 where they disagree on the sign, or the bands on the amount
    """
    middle = sorted(channels, key=lambda channel: float(np.median(levels.level[:, channel])))[(len(channels) - 1) // 2]
    difference = levels.level - levels.level[:, [middle]]
    low, high = difference.min(axis=0), difference.max(axis=0)
    smallest = np.where(low > 0, low, np.where(high < 0, high, 0.0))
    quiet = difference[1::2]
    return middle, np.where(np.ptp(quiet, axis=0) <= GAIN.spread, smallest, 0.0)


def find_gain_mismatch(levels: BandLevels | None, channels: list[int], delays: "Pairs") -> Iterator[Finding]:
    """Channels whose input gain differs from that of the others.

    A gated recording has no background, and a talker near the microphone that leads explains a difference.
    """
    if levels is None or len(channels) < 2:
        return
    middle, smallest = _gain_differences(levels, channels)
    for channel in channels:
        if abs(smallest[channel]) < GAIN.mismatch:
            continue
        loud, quiet = (channel, middle) if smallest[channel] > 0 else (middle, channel)
        pair = (min(loud, quiet), max(loud, quiet))
        delay = delays.median_delay(pair) or 0.0
        if levels.gated and (delay if loud > quiet else -delay) > DELAYS.sample:
            continue
        difference = abs(float(np.median(levels.level[:, loud] - levels.level[:, quiet])))
        yield Finding(
            "gain-mismatch",
            pair,
            f"Channel {loud} is {difference:.1f} dB louder than channel {quiet}, in the loud and the quiet parts "
            "and at all frequencies.",
            "Set both inputs to the same gain, with automatic gain control off.",
        )


# Delays: polarity, offset, drift, spacing, side


@dataclass(frozen=True, eq=False)
class Pairs:
    """Delays of all pairs over time, and how each channel stands to a reference channel."""

    reference: int
    inverted: dict[int, bool]
    """Of every other channel: is it the inverse of the reference?"""
    lines: dict[int, Line]
    """Delay of the reference against every channel, where that is an offset or a drift; a zero line otherwise."""
    drifts: dict[int, Drift | None]
    tracks: dict[tuple[int, int], Track]

    def column(self, first: int, second: int) -> int:
        """Which column of a track holds the delays: 1 if just one of the channels is inverted."""
        return int(self.inverted.get(first, False) != self.inverted.get(second, False))

    def clear_delays(self, pair: tuple[int, int]) -> Floats | None:
        """Seconds; None if too few of the blocks are clear for a verdict."""
        return _clear_delays(self.tracks[pair], self.column(*pair))

    def median_delay(self, pair: tuple[int, int]) -> float | None:
        """Seconds; None if too few of the blocks are clear for a verdict."""
        delays = self.clear_delays(pair)
        return None if delays is None else float(np.median(delays))

    def synchronous_channels(self, setup: Setup) -> list[int]:
        """The largest group of channels with the same line, the earliest of equals."""
        groups: list[list[int]] = []
        for channel, line in sorted(self.lines.items()):
            for group in groups:
                difference = line - self.lines[group[0]]
                close = abs(difference.offset) <= setup.offset_limit(group[0], channel)
                if close and abs(difference.slope) < DELAYS.same_slope:
                    group.append(channel)
                    break
            else:
                groups.append([channel])
        return max(groups, key=len)


def measure_pairs(part: Excerpt, channels: list[int], setup: Setup) -> Pairs | None:
    """Follow the delays of all pairs; None when there is nothing to compare."""
    if len(channels) < 2 or part.seconds < 0.1:
        return None
    reference, others = channels[0], channels[1:]
    reach = setup.max_delay()
    count = len(channels) * (len(channels) - 1) // 2
    tracks, inverted, drifts = {}, {}, {}
    lines = {reference: Line()}
    for channel in others:
        pair = reference, channel
        coarse = find_line(part, reference, channel, reach)
        tracks[pair] = track(part, reference, channel, reach, coarse, count)
        inverted[channel] = _is_inverted(tracks[pair])
        column = int(inverted[channel])
        drifts[channel] = measure_drift(tracks[pair], column)
        lines[channel] = _line(_clear_delays(tracks[pair], column), coarse, drifts[channel], setup, pair)
    for first, second in combinations(others, 2):
        tracks[first, second] = track(part, first, second, reach, lines[second] - lines[first], count)
    return Pairs(reference, inverted, lines, drifts, tracks)


def _line(delays: Floats | None, coarse: Line | None, drift: Drift | None, setup: Setup, pair: tuple[int, int]) -> Line:
    """The line of a pair: its drift, or its constant offset, or none."""
    limit = setup.offset_limit(*pair)
    if drift is not None and drift.steady:
        return Line(drift.line.offset if abs(drift.line.offset) > limit else 0.0, drift.line.slope)
    if delays is None:
        return coarse or Line()
    median = float(np.median(delays))
    if coarse is not None:
        return Line(median)
    spread = 2 * (setup.distance(*pair) or MAX_UNKNOWN_SPACING) / setup.speed_of_sound
    agree = np.subtract(*np.quantile(delays, [0.9, 0.1])) <= spread
    return Line(median) if abs(median) > limit and agree else Line()


def _clear_delays(delays: Track, column: int) -> Floats | None:
    clear = delays.clear[:, column]
    if clear.sum() < DELAYS.min_clear or clear.mean() < DELAYS.min_clear_share:
        return None
    return np.asarray(delays.delays[clear, column])


def upright_surplus(delays: Track) -> tuple[float, float]:
    """Upright minus inverted peaks: as a share of both (-1 to 1), and in multiples of its noise."""
    upright, inverted = delays.heights.sum(axis=0)
    both = upright + inverted
    return (upright - inverted) / both if both > 0 else 0.0, (upright - inverted) / np.sqrt(len(delays.times))


def _is_inverted(delays: Track) -> bool:
    share, amount = upright_surplus(delays)
    return bool(share < DELAYS.inverted_share and amount < DELAYS.inverted_amount)


def find_inverted_polarity(pairs: Pairs) -> Iterator[Finding]:
    """Channels of the other polarity than most; of two, nobody knows which is wrong."""
    inverted = sorted(channel for channel, against in pairs.inverted.items() if against)
    if not inverted:
        return
    upright = sorted({pairs.reference, *pairs.inverted} - set(inverted))
    if len(pairs.inverted) == 1:
        yield inverted_polarity(
            (upright[0], inverted[0]),
            f"Channel {inverted[0]} is the inverse of channel {upright[0]}: their correlation peak is negative.",
            "one of them",
        )
        return
    if len(inverted) > len(upright):
        inverted, upright = upright, inverted
    yield inverted_polarity(
        tuple(inverted),
        f"{channel_names(inverted).capitalize()} {'is' if len(inverted) == 1 else 'are'} inverted relative to "
        f"{channel_names(upright)}.",
        channel_names(inverted),
    )


def inverted_polarity(channels: tuple[int, ...], seen: str, which: str) -> Finding:
    """The finding `inverted-polarity`, with its advice."""
    advice = f"Invert the sign of {which}, and look for a cable wired with reversed polarity."
    return Finding("inverted-polarity", channels, seen, advice)


def find_offset_and_drift(pairs: Pairs, setup: Setup, sample_rate: int, start: float) -> Iterator[Finding]:
    """Channels that do not run with the largest group of the others: started apart, or with another clock.

    Args:
        start: of the excerpt, in seconds.
    """
    group = pairs.synchronous_channels(setup)
    for channel in sorted(set(pairs.lines) - set(group)):
        line = pairs.lines[channel] - pairs.lines[group[0]]
        offset = line.offset - line.slope * start
        pair = (min(group[0], channel), max(group[0], channel))
        if abs(line.offset) > setup.offset_limit(*pair):
            late, early = (group[0], channel) if offset > 0 else (channel, group[0])
            yield Finding(
                "constant-offset",
                pair,
                f"Channel {late} hears everything {1000 * abs(offset):.1f} ms "
                f"({abs(offset) * sample_rate:.0f} samples) later than channel {early}"
                + (" (at the beginning)" if line.slope else "")
                + ", more than any distance explains.",
                f"Cut the first {abs(offset):.4f} s off channel {late} (the recorders were started apart), "
                "or record both with one device.",
            )
        if line.slope:
            ppm = 1e6 * line.slope
            yield Finding(
                "clock-drift",
                pair,
                f"The clock of channel {channel} is {abs(ppm):.1f} ppm {'slower' if ppm > 0 else 'faster'} than "
                f"that of channel {group[0]}: the delay changes steadily, by {abs(ppm) * sample_rate * 6e-5:.1f} "
                "samples a minute.",
                f"Resample channel {channel} by a factor of {1 + line.slope:.7f}, or record both with one clock.",
            )


def find_outside_spacing(pairs: Pairs, channels: list[int], setup: Setup, sample_rate: int) -> Iterator[Finding]:
    """Delays longer than the spacing allows: one finding, with the sentence of the pair that is farthest outside."""
    outside = []
    for pair in combinations(channels, 2):
        distance, delays = setup.distance(*pair), pairs.clear_delays(pair)
        if distance is None or delays is None:
            continue
        allowed = distance / setup.speed_of_sound
        longer = np.abs(delays) > allowed + max(1 / sample_rate, DELAYS.sample)
        if longer.sum() >= 2 and longer.mean() > DELAYS.outside:
            needed = float(np.quantile(np.abs(delays), 0.9))
            outside.append((needed - allowed, needed, float(longer.mean()), distance, pair))
    if not outside:
        return
    excess, needed, share, distance, pair = max(outside)
    check = "Check the positions in the geometry and the order of the channels"
    if setup.geometry is None:
        check = "Measure the spacing again, in metres"
    yield Finding(
        "outside-spacing",
        tuple(sorted({channel for *_, pair in outside for channel in pair})),
        f"{100 * share:.0f} % of the clear delays between {channel_names(pair)} are longer than {distance:g} m allow: "
        f"{1000 * needed:.2f} ms ({needed * sample_rate:.1f} samples), not {1000 * (needed - excess):.2f} ms.",
        f"{check}: these delays need at least {needed * setup.speed_of_sound:.2g} m.",
    )


def find_wrong_side(delays: Floats | None, expect: str, sample_rate: int) -> Iterator[Finding]:
    """Channels 0 (left) and 1 (right) that were swapped, by the side on which the source was.

    Args:
        delays: clear ones in seconds, positive = channel 0 later = the source is on the right.
    """
    if delays is None:
        return
    median = float(np.median(delays))
    sign = 1 if expect == "left" else -1  # of delays from the wrong side
    if sign * median < DELAYS.side or (sign * delays > DELAYS.sample).mean() < DELAYS.side_share:
        return
    yield Finding(
        "swapped-channels",
        (0, 1),
        f"The source was on the {expect}, but its microphone (channel {0 if expect == 'left' else 1}) hears it "
        f"{abs(median) * 1e6:.0f} us ({abs(median) * sample_rate:.1f} samples) later than the other.",
        "Swap the two channels (or the cables), or check which microphone is channel 0.",
    )
