"""Faults of single channels: dead, too quiet, clipped, with a constant offset, or with mains hum.

`survey` reads all of the recording once and keeps a few numbers per channel and the power of every 50 ms frame, so an
hour needs a few megabytes. What needs a closer look (hum, and the delays of `pairs`) is measured in an `excerpt`: the
most active stretch of the recording, at most five minutes, at 16 kHz or less.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.audio.frames import cut_frames, resample
from qkgcc.audio.recording import Recording
from qkgcc.core.types import SILENCE, Bools, Floats, Samples
from qkgcc.doctor.findings import Finding, channel_names, value_per_channel
from qkgcc.dsp.long_lags import Excerpt

SURVEY_FRAME = 0.05
"""Seconds of a frame whose power is kept."""
MAX_EXCERPT = 300.0
"""Seconds of the excerpt, at most."""
MAX_EXCERPT_RATE = 16000
"""Hz; speech has little above 8 kHz that is coherent between microphones."""
MAX_EXCERPT_SAMPLES = 40_000_000
"""Of all channels together (160 MB), so many channels get a shorter excerpt."""


@dataclass(frozen=True)
class LevelLimits:
    """When a channel is dead, too quiet, or off zero."""

    dead: float = 50.0
    """dB below the loudest channel. Clean: 11 at most (behind a head)."""
    dead_if_steady: float = 25.0
    """dB below the loudest channel, for one that does not get louder when the others do."""
    low: float = -55.0
    """dBFS in the loud frames. 16 bits still hold 40 dB of signal there; the quietest clean channel has -39."""
    offset: float = 0.005
    """Of full scale. Clean: 0.0005 at most in real recordings, 0.0024 in thunder; must be found: 0.01."""
    offset_to_rms: float = 0.5
    """Of the RMS of the sound, for an offset that dominates a quiet recording. Clean: 0.05 at most."""
    min_offset_frames: int = 10
    """The mean of less than half a second is no constant."""


@dataclass(frozen=True)
class ClippingLimits:
    """When samples pile up at a ceiling. Distances from it are shares of the channel's range."""

    share: float = 0.0004
    """Of the samples, at both ceilings. Clean: 0.00013 at most (3 samples of a short piece); must be found: 0.001."""
    min_samples: int = 10
    at_to_below: float = 2.0
    """Samples at a ceiling for one just below it. A sine has 0.3, hard clipping 4 and more."""
    at: float = 0.001
    below: float = 0.02
    min_height: float = 0.2
    """Of the ceiling above the mean: silence with a few clicks piles up at zero, which is no ceiling."""


@dataclass(frozen=True)
class HumLimits:
    """When a spectral line is mains hum, and when hum matters."""

    prominence: float = 15.0
    """dB that a line stands out of the floor around it. With twelve made-up mains frequencies from 45 to 80 Hz, none of
    364 recordings of speech has a line; 36 have one at 50 or 60 Hz: LibriSpeech's volunteers recorded with hum."""
    narrow: float = 12.0
    """dB that it falls off within 3 Hz. A room that rings at its own frequencies falls off by 7 at most."""
    quietest: float = -95.0
    """dBFS: less than that is the rounding of 16 bits."""
    level: float = -38.0
    """dB against the loud parts, below which hum is too weak to matter. Must be found: -30."""
    min_duration: float = 2.0
    """Seconds that are needed to tell a line from a held vowel."""
    multiples: int = 7


LEVELS, CLIPPING, HUM = LevelLimits(), ClippingLimits(), HumLimits()

_SHOULDER = np.array([-4, -3, 3, 4])  # Hz from a line: empty beside a sine, full beside a ringing room
_AROUND = np.concatenate([np.arange(-14, -4), np.arange(5, 15)])  # Hz from a line: its surroundings


@dataclass(frozen=True, eq=False)
class Survey:
    """Levels of a whole recording. Shape: M channels, T frames."""

    frame: float
    """Seconds."""
    offset: Floats
    """(M,) what is constant: the mean, or the median of the means of the frames where that is smaller (clipping moves
    the one, lopsided music the other)."""
    lowest: Floats
    highest: Floats
    power: Floats
    """(T, M) mean square of each frame about its own mean, so that a constant offset is no level."""

    @property
    def rms(self) -> Floats:
        """(M,) of the whole recording, without the offset."""
        rms: Floats = np.sqrt(self.power.mean(axis=0))
        return rms

    @property
    def peak(self) -> Floats:
        """(M,) largest magnitude of a sample."""
        return np.maximum(self.highest, -self.lowest)

    def loud_frames(self, channels: list[int]) -> Bools:
        """(T,) frames within 10 dB of the loud ones (the 95th percentile), every channel counting the same."""
        mean = self.power[:, channels].mean(axis=0)
        joint = (self.power[:, channels] / np.where(mean > 0, mean, 1)).mean(axis=1)
        loud: Bools = joint >= max(0.1 * float(np.quantile(joint, 0.95)), np.finfo(float).tiny)
        return loud

    def active_level(self, channels: list[int]) -> Floats:
        """(M,) dBFS in the frames that are loud in the given channels."""
        loud = self.loud_frames(channels)
        return decibels(self.power[loud].mean(axis=0)) if loud.any() else decibels(self.rms**2)


def survey(recording: Recording) -> Survey:
    """Measure the levels of a whole recording in one pass."""
    size = min(max(1, round(SURVEY_FRAME * recording.sample_rate)), recording.samples)
    lowest, highest = np.full(len(recording.channels), np.inf), np.full(len(recording.channels), -np.inf)
    power: list[Floats] = []
    means: list[Floats] = []

    def blocks() -> Iterator[Samples]:
        nonlocal lowest, highest
        for block in recording.blocks():
            lowest, highest = np.minimum(lowest, block.min(axis=1)), np.maximum(highest, block.max(axis=1))
            yield block

    for frames in cut_frames(blocks(), size, size):
        power.append(frames.var(axis=2, dtype=np.float64))
        means.append(frames.mean(axis=2, dtype=np.float64))
    mean, median = np.mean(np.concatenate(means), axis=0), np.median(np.concatenate(means), axis=0)
    offset = np.where(mean * median > 0, np.sign(mean) * np.minimum(np.abs(mean), np.abs(median)), 0.0)
    return Survey(size / recording.sample_rate, offset, lowest, highest, np.concatenate(power))


def excerpt(recording: Recording, levels: Survey, channels: list[int]) -> Excerpt:
    """The stretch in which most frames are loud in the given channels, the earliest of equals."""
    rate = min(recording.sample_rate, MAX_EXCERPT_RATE)
    seconds = min(MAX_EXCERPT, MAX_EXCERPT_SAMPLES / (rate * len(recording.channels)))
    frames = max(1, int(seconds / levels.frame))
    first = 0
    if frames < len(levels.power):
        loud = np.concatenate([[0], np.cumsum(levels.loud_frames(channels))])
        first = int(np.argmax(loud[frames:] - loud[:-frames]))
    begin = round(first * levels.frame * recording.sample_rate)
    end = begin + round(seconds * recording.sample_rate)
    blocks = _blocks_between(recording.blocks(), begin, end)
    parts = [part.astype(np.float32) for part in resample(blocks, recording.sample_rate, rate)]
    samples = np.concatenate(parts, axis=1)
    samples -= samples.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return Excerpt(begin / recording.sample_rate, rate, samples)


def _blocks_between(blocks: Iterator[Samples], begin: int, end: int) -> Iterator[npt.NDArray[Any]]:
    position = 0
    for block in blocks:
        part = block[:, max(0, begin - position) : max(0, end - position)]
        position += block.shape[1]
        if part.shape[1]:
            yield part
        if position >= end:
            return


def decibels(power: npt.ArrayLike) -> Floats:
    """Decibels of a power; digital silence is -200, so that it can be written as JSON."""
    return 10 * np.log10(np.maximum(np.asarray(power, dtype=np.float64), 1e-20))


def _dbfs(level: float) -> str:
    return "digital silence" if level <= -190 else f"{level:.1f} dBFS"


def find_dead_channels(levels: Survey) -> Iterator[Finding]:
    """Channels without a signal: far below the loudest one, or below it and just as quiet when it is loud."""
    everyone = list(range(len(levels.offset)))
    level, silence = levels.active_level(everyone), decibels(SILENCE**2)
    best = int(level.argmax())
    if level[best] < silence:
        yield Finding(
            "dead-channel",
            tuple(everyone),
            f"No channel holds any sound: the loudest is at {_dbfs(level[best])}.",
            "Check that the recording was armed, and that the right input was chosen.",
        )
        return
    level = decibels(levels.power[levels.loud_frames([best])].mean(axis=0))
    rise = level - decibels(np.quantile(levels.power, 0.1, axis=0))
    below = level[best] - level
    steady = (below >= LEVELS.dead_if_steady) & (rise < 1.5) & (rise[best] > 8)
    dead = np.flatnonzero((level < silence) | (below >= LEVELS.dead) | steady).tolist()
    if dead:
        one = len(dead) == 1
        quiet_only = one and steady[dead[0]] and below[dead[0]] < LEVELS.dead
        yield Finding(
            "dead-channel",
            tuple(dead),
            f"{channel_names(dead).capitalize()} {'holds' if one else 'hold'} no sound: "
            f"{value_per_channel(dead, (_dbfs(level[channel]) for channel in dead))}, {_dbfs(level[best])} in channel "
            f"{best}{' and does not rise with it' if quiet_only else ''}.",
            "Check the cable, the input and its power, or leave the channel out.",
        )


def find_low_levels(levels: Survey, live: list[int]) -> Iterator[Finding]:
    """Channels whose loud parts are so quiet that 16 bits hold little of them."""
    level = levels.active_level(live)
    low = [channel for channel in live if level[channel] < LEVELS.low]
    if low:
        yield Finding(
            "low-level",
            tuple(low),
            f"The loud parts are very quiet: {value_per_channel(low, (_dbfs(level[channel]) for channel in low))}.",
            f"Raise the input gain until speech reaches about -25 dBFS (at least {LEVELS.low:.0f}).",
        )


def find_dc_offsets(levels: Survey, live: list[int]) -> Iterator[Finding]:
    """Channels whose samples have a mean other than zero."""
    scale = np.maximum(1, np.maximum(np.abs(levels.lowest), np.abs(levels.highest)))  # floats may exceed full scale
    share = np.abs(levels.offset) / scale
    dominant = np.abs(levels.offset) > LEVELS.offset_to_rms * np.maximum(levels.rms, 1e-4)
    offset = [channel for channel in live if share[channel] >= LEVELS.offset or dominant[channel]]
    if offset and len(levels.power) >= LEVELS.min_offset_frames:
        means = (f"{100 * levels.offset[channel]:+.2f} % of full scale" for channel in offset)
        yield Finding(
            "dc-offset",
            tuple(offset),
            f"The mean of the samples is not zero but {value_per_channel(offset, means)}.",
            "Remove the mean, or apply a high-pass filter at 20 Hz, before anything else.",
        )


def clipped_share(recording: Recording, levels: Survey) -> Floats:
    """(M,) share of samples that pile up at a ceiling, be it full scale or below; 0 for a channel without clipping.

    The largest samples of an unclipped channel thin out towards its peak. A clipped one has more samples in the last
    thousandth of its range than in the twenty thousandths before it. Upper and lower ceiling are judged separately.
    """
    at, below = _ceiling_shares(recording, levels)
    height = np.stack([levels.highest - levels.offset, levels.offset - levels.lowest])
    far_from_mean = height >= CLIPPING.min_height * (levels.highest - levels.lowest)
    piled_up = (at >= CLIPPING.at_to_below * below) & far_from_mean
    clipped = np.where(piled_up, at, 0).sum(axis=0)
    return np.where(clipped >= max(CLIPPING.share, CLIPPING.min_samples / recording.samples), clipped, 0.0)


def _ceiling_shares(recording: Recording, levels: Survey) -> tuple[Floats, Floats]:
    """Share of the samples at the upper and lower ceiling, and of those just below each. Shape: two of (2, M)"""
    span = (levels.highest - levels.lowest)[:, None]
    counts = np.zeros((2, 2, len(recording.channels)))
    for block in recording.blocks():
        for side, distance in enumerate((levels.highest[:, None] - block, block - levels.lowest[:, None])):
            at = (distance <= CLIPPING.at * span).sum(axis=1)
            counts[0, side] += at
            counts[1, side] += (distance <= CLIPPING.below * span).sum(axis=1) - at
    at_ceiling, below_ceiling = counts / recording.samples
    return at_ceiling, below_ceiling


def find_clipping(clipped: Floats, levels: Survey, live: list[int]) -> Iterator[Finding]:
    """Channels with samples that were cut off at a ceiling."""
    channels = [channel for channel in live if clipped[channel] > 0]
    if channels:
        shares = (f"{100 * clipped[channel]:.2g} % of them at {levels.peak[channel]:.3g}" for channel in channels)
        yield Finding(
            "clipping",
            tuple(channels),
            f"Samples pile up at a ceiling: {value_per_channel(channels, shares)} (1 is full scale).",
            "Lower the input gain and record again: what was cut off cannot be brought back.",
        )


@dataclass(frozen=True, eq=False)
class Hum:
    """Spectral lines at multiples of a mains frequency."""

    mains: int
    """50 or 60 Hz, whichever shows more."""
    level: Floats
    """(M,) dBFS of all the lines that stand out, -200 without any."""


def measure_hum(part: Excerpt) -> Hum | None:
    """Lines at 50 or 60 Hz and their multiples that are narrow and never stop; None for recordings too short to tell.

    Of each 1 Hz bin the quiet end over time is taken (its 20th percentile over one-second windows). Voices, whose pitch
    moves and pauses, vanish from that floor; a steady line stays and stands out of the bins around it.
    """
    if part.seconds < HUM.min_duration:
        return None
    floor = _noise_floor(part)
    candidates = [Hum(mains, _line_level(floor, mains * np.arange(1, HUM.multiples + 1))) for mains in (50, 60)]
    return max(candidates, key=lambda hum: float(hum.level.max()))


def _line_level(floor: Floats, lines: npt.NDArray[np.int64]) -> Floats:
    """(M,) dBFS of all the lines (in Hz) that are prominent and narrow."""
    peak = floor[:, lines]
    around = np.stack([np.median(floor[:, line + _AROUND], axis=1) for line in lines], axis=1)
    prominence = decibels(peak) - decibels(around)
    # A line stands in its own bin; a neighbour's that leaks into it does not count.
    shoulder = np.stack([floor[:, line + _SHOULDER].max(axis=1) for line in lines], axis=1)
    summit = np.stack([floor[:, line - 1 : line + 2].argmax(axis=1) == 1 for line in lines], axis=1)
    narrow = summit & (decibels(peak) - decibels(shoulder) >= HUM.narrow)
    clear = narrow & (prominence >= HUM.prominence) & (decibels(peak) > HUM.quietest)
    # A held vowel can look like one multiple. The fundamental lies below voices; without it, two are needed.
    clear &= clear[:, :1] | (clear[:, 1:2] & (clear.sum(axis=1, keepdims=True) >= 2))
    return decibels(np.where(clear, peak, 0).sum(axis=1))


def _noise_floor(part: Excerpt) -> Floats:
    """Power of a sine in each 1 Hz bin that is there most of the time. Shape: (M, bins)"""
    size = part.rate
    hop = max(size // 8, (part.samples.shape[1] - size) // 150)  # 150 windows are enough for a percentile
    starts = range(0, part.samples.shape[1] - size + 1, hop)
    window = np.hanning(size).astype(np.float32)
    bins = 60 * HUM.multiples + 20
    power = np.empty((len(starts), len(part.samples), bins), dtype=np.float32)
    for i, start in enumerate(starts):
        spectrum = scipy.fft.rfft(part.samples[:, start : start + size] * window)[:, :bins]
        power[i] = 2 * np.abs(spectrum / window.sum()) ** 2
    return np.quantile(power, 0.2, axis=0).astype(np.float64)


def find_hum(hum: Hum | None, active: Floats, live: list[int]) -> Iterator[Finding]:
    """Mains hum that is loud enough to matter.

    Args:
        active: dBFS of the loud parts. Shape: (M,)
    """
    if hum is None:
        return
    channels = [channel for channel in live if hum.level[channel] - active[channel] >= HUM.level]
    if channels:
        loudest = max(hum.level[channel] - active[channel] for channel in channels)
        yield Finding(
            "hum",
            tuple(channels),
            f"A steady line at {hum.mains} Hz or its multiples: "
            f"{value_per_channel(channels, (f'{hum.level[channel]:.0f} dBFS' for channel in channels))}, "
            f"{loudest:.0f} dB relative to the loud parts.",
            "Look for a ground loop or a cable beside a mains cable; a band from 300 Hz upwards leaves out most of it.",
        )
