"""Recorders that were started apart and whose clocks run apart: how each stands to the first one.

What stands at the time t in the file of the first recorder stands at t - (offset + drift t) in that of another: both
are positive where the other one hears things earlier in its file, because it was started later or its clock is slower.

    envelopes (seconds to minutes of offset) -> line -> GCC-PHAT around it, second by second -> robust line (`lines`)

Claps are few: theirs is the correlation of what begins abruptly, or of its leading edges (`edges`) where they are far
away. What no sound can tell from an offset is a longer way to one of the recorders: a source that is a metre nearer to
one of them shifts it by 2.9 ms. Where its distances are known, they are taken out.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.fft

from qkgcc.audio.frames import resample, warp
from qkgcc.audio.recording import Recording, as_recording
from qkgcc.core.checks import check_array, check_callback, check_speed, short_repr
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.types import SPEED_OF_SOUND, Floats, Floats32
from qkgcc.dsp.long_lags import Excerpt, Line, Track, consensus, track
from qkgcc.sync.clock_fit import AGREE, Clock, fit_clock
from qkgcc.sync.edges import ALIKE, LIKE, first_to_arrive, track_edges

RATE = 16000
"""Hz at which recordings are compared; speech has little above 8 kHz that is coherent between recorders."""

_HOP = 0.01  # seconds between the values of an envelope
_BANDS = (100.0, 500.0, 1500.0, 3500.0, 7000.0)  # Hz, edges of its four bands
_SEGMENT, _SEGMENTS = 30.0, 24  # seconds of the first recording that are looked for in another, and how many at most
_FOUND = 6.5  # height of a peak of the envelopes' correlation over its noise; of 100,000 values of noise: 4.8
_RIVALS = 4  # places at which a segment may be found, and lines that are tried
_COMPARABLE = 0.9  # of what speaks for the first line, for another to be tried
_TOLERANCE = 0.03  # seconds within which segments agree
_SURE = 12.0  # height of a peak that no chance has
_LOUD, _KNOWN = 0.25, 0.3  # of the power of the loudest, for a sound to be a clap, and of these that have to be found
_REACH = (0.06, 0.02)  # seconds around the line of the envelopes, and around that of the first look: 7 m
_ENOUGH = 12  # seconds with a peak
_FEW = (40, 0.25)  # of these, and their share, that may be those of claps: each is heard in two
_SPOKEN = (4, 1.5, 0.4)  # blocks with a peak, seconds between them, and their share, that are of no clap
_LOW = 4.5  # height of these peaks: one of them is chance, but most of them do not agree by chance
_MOST, _STRETCH = 600, 15.0  # blocks of a second, and seconds of a stretch of them in a long recording
_ABRUPT, _APART = 0.03, 0.25  # seconds around a sound that begins abruptly, and between two of them
_MANY = 4  # claps that agree on a line; three of them do so by chance
_HIGH = 6.0  # height of a peak that counts; noise has 4

Progress = Callable[[float], object]


@dataclass(frozen=True)
class Synchronisation:
    """Of all recorders against the first."""

    sample_rate: int
    """Of the first recorder."""
    clocks: tuple[Clock, ...]
    """The first one is all zeros."""
    distances: tuple[float, ...] | None
    """Metres from the source to each recorder, where they were given."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know about the figures."""
        said = []
        if self.distances is None:
            said.append(
                "An offset holds the way of the sound, too: a source a metre nearer to one recorder shifts it by "
                "2.9 ms. No recording can tell them apart: clap at equal distances, or give the distances."
            )
        for clock in self.clocks[1:]:
            if clock.drift is None:
                said.append(
                    f"{clock.name}: the clear sounds lie too close together in time to see a drift. The offset is that "
                    f"at {clock.at:.1f} s; a clock that is off by 50 ppm moves it by 3 ms in a minute."
                )
            if clock.walked:
                said.append(
                    f"{clock.name}: the source seems to have moved ({1000 * clock.spread:.2f} ms); the offset is that "
                    "of the middle of its way."
                )
            elif clock.places > 1:
                said.append(
                    f"{clock.name}: sound came from {clock.places} places, up to {1000 * clock.spread:.2f} ms apart; "
                    "the offset is that of the one heard most."
                )
            if clock.inverted:
                said.append(f"{clock.name} is the inverse of the first: exchanged poles of a cable.")
        return tuple(said)


def synchronise(
    recordings: Sequence[Recording | str | Path],
    *,
    distances: Sequence[float] | None = None,
    speed_of_sound: float = SPEED_OF_SOUND,
    progress: Progress | None = None,
) -> Synchronisation:
    """Offset and drift of each recorder against the first, from a clap or from any sound that all of them heard.

    Of a recorder with several channels the first that is not silent is taken: its channels share a clock.

    Args:
        recordings: one for each recorder, or their paths; lengths and sample rates may differ. Two are compared at a
            time, for which an hour takes 500 MB.
        distances: metres from the source to each recorder, if it stayed at one place.
        progress: called with the share that is done, from 0 to 1.
    """
    check_callback("progress", progress)
    speed_of_sound = check_speed(speed_of_sound)
    if not isinstance(recordings, Sequence) or isinstance(recordings, str):
        raise InputError(f"recordings is {short_repr(recordings)}; expected one for each of 2 or more recorders")
    recorders = [as_recording(one) for one in recordings]
    if len(recorders) < 2:
        raise InputError(f"{quantity(len(recorders), 'recorder')} given; offsets need 2 or more")
    if distances is not None:
        metres = check_array("distances", distances, "metres, one for each recorder")
        if metres.shape != (len(recorders),) or not ((metres >= 0) & (metres <= 1000)).all():
            raise InputError(f"the distances are {short_repr(distances)}; expected {len(recorders)}, of 0 to 1000 m")
        distances = metres.tolist()
    rate = min(RATE, *(recording.sample_rate for recording in recorders))
    first = _mono(recorders[0], rate)
    envelope = _envelope(first, rate)
    clocks = [Clock(recorders[0].name, 0.0, 0.0, 0.0, 0.0, 0, 0, 1, 0.0)]
    for count, recording in enumerate(recorders[1:], 1):
        other = _mono(recording, rate)
        tried = (_measure(first, other, rate, line) for line in _coarse(envelope, _envelope(other, rate)))
        clock = next((clock for clock in tried if clock is not None), None)
        if clock is None:
            raise InputError(
                f"no sound of {recorders[0].name} is found in {recording.name} at a clear delay: they need claps near "
                "to both, or half a minute of speech from one place, that both heard well"
            )
        clock = replace(clock, name=recording.name)
        if distances is not None:
            apart = (distances[0] - distances[count]) / speed_of_sound
            clock = replace(clock, offset=clock.offset - apart)
        clocks.append(clock)
        if progress is not None:
            progress(count / (len(recorders) - 1))
    return Synchronisation(recorders[0].sample_rate, tuple(clocks), None if distances is None else tuple(distances))


def _mono(recording: Recording, rate: int) -> Floats32:
    """The first channel that is not silent, at another rate and without a constant offset. Shape: (n,)"""
    parts = [part.astype(np.float32) for part in resample(recording.blocks(), recording.sample_rate, rate)]
    samples = np.concatenate(parts, axis=1)
    for channel in samples:
        if channel.std() > 1e-6:
            return np.asarray(channel - channel.mean(), dtype=np.float32)
    raise InputError(f"{recording.name} is silent: there is nothing to find in the others")


def _envelope(samples: Floats32, rate: int) -> Floats:
    """How much each band gets louder, every 10 ms, in units of its standard deviation. Shape: (n,) -> (4, T)"""
    hop = round(_HOP * rate)
    size = 2 * hop
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    edges = np.searchsorted(frequencies, _BANDS)
    count = max(2, (len(samples) - size) // hop + 1)
    power = np.zeros((len(_BANDS) - 1, count))
    padded = np.pad(samples, (0, max(0, (count - 1) * hop + size - len(samples))))
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    for start in range(0, count, 4096):
        spectrum = np.abs(scipy.fft.rfft(windows[start : start + 4096] * np.hanning(size).astype(np.float32))) ** 2
        for band, (low, high) in enumerate(itertools.pairwise(edges)):
            power[band, start : start + 4096] = spectrum[: count - start, low:high].sum(axis=1)
    # Well above the noise, so that what is loud counts and the flutter of the background does not.
    floor = 4 * np.median(power, axis=1, keepdims=True) + 1e-4 * power.max(axis=1, keepdims=True) + 1e-20
    rise = np.maximum(np.diff(np.log(power + floor), axis=1, prepend=0), 0)
    rise[:, 0] = 0
    rise -= rise.mean(axis=1, keepdims=True)
    return np.asarray(rise / np.maximum(rise.std(axis=1, keepdims=True), 1e-12))


def _coarse(first: Floats, other: Floats) -> list[Line]:
    """The lines on which segments of one envelope are found in the other, the likeliest first."""
    length = min(round(_SEGMENT / _HOP), first.shape[1])
    starts = np.linspace(0, first.shape[1] - length, min(_SEGMENTS, -(-first.shape[1] // length))).astype(int)
    size = scipy.fft.next_fast_len(length + other.shape[1], real=True)
    spectrum = np.conj(scipy.fft.rfft(other, size))
    near = round(3 * _TOLERANCE / _HOP)
    peaks = []
    for start in starts:
        curve = scipy.fft.irfft(scipy.fft.rfft(first[:, start : start + length], size) * spectrum, size).sum(axis=0)
        noise = float(np.median(np.abs(curve))) / 0.6745
        for _ in range(_RIVALS):  # one clap is like another
            best = int(curve.argmax())
            height = curve[best] / noise if noise > 0 else 0.0
            if height < _FOUND:
                break
            lag = (best if best < length else best - size) + start
            peaks.append(((start + length / 2) * _HOP, lag * _HOP, float(height)))
            curve[np.arange(best - near, best + near + 1) % size] = 0
    lines: list[Line] = []
    most = 0.0
    while peaks and len(lines) < _RIVALS:
        times, lags, heights = (np.array(column) for column in zip(*peaks, strict=True))
        line, chosen = consensus(times, lags, heights, _TOLERANCE)
        most = most or float(heights[chosen].sum())
        if heights[chosen].sum() < _COMPARABLE * most:  # claps at equal intervals fit when shifted by one, nearly
            break
        lines.append(line)
        peaks = [peak for peak, gone in zip(peaks, chosen, strict=True) if not gone]
    return lines


def _measure(first: Floats32, other: Floats32, rate: int, coarse: Line) -> Clock | None:
    """None: nothing is clear around that line."""
    line = coarse
    fit: Clock | None = None
    for look, reach in enumerate(_REACH):
        # The second look is at a recording on the first one's clock, in which no delay moves within a block.
        begin = max(0, int(line.offset * rate))
        end = min(len(first), int((len(other) / rate + line.offset) / (1 - line.slope) * rate))
        if end - begin < 0.1 * rate:
            return None
        if look:
            moved = warp(other, 1 - line.slope, begin * (1 - line.slope) - line.offset * rate, end - begin)
            base, rest = line, Line()
        else:
            shift = round(float(line.at((begin + end) / 2 / rate)) * rate)
            moved = _cut(other, begin - shift, end - shift)
            base, rest = Line(shift / rate), Line(line.offset + line.slope * begin / rate - shift / rate, line.slope)
        part = Excerpt(begin / rate, rate, np.stack([first[begin:end], moved.astype(np.float32)]))
        fit = _heard(part, reach, rest, base, rate, strict=look == 1)
        if fit is None:
            return None
        line = fit.line
    if fit is None or fit.walked or fit.clear < _ENOUGH:
        return fit
    # Where reflections are louder than the direct sound, all seconds agree on one of them; what begins does not.
    later = first_to_arrive(part, _onsets(part.samples[0], rate), reach, line - base, -1 if fit.inverted else 1)
    if later is None:
        return fit
    sd, there = (float(np.hypot(one, 0.5 / rate)) for one in (fit.offset_sd, fit.sd_there))
    return replace(fit, offset=fit.offset + later, offset_sd=sd, sd_there=there)


def _heard(part: Excerpt, reach: float, rest: Line, base: Line, rate: int, *, strict: bool) -> Clock | None:
    """The clock by delays of seconds; or, where few of these are clear (claps), of sounds that begin abruptly."""

    def fitted(followed: Track) -> Clock | None:
        column = _upright(followed)
        # Back on the first recording's time and on the whole delay.
        times = followed.times + part.start
        delays = followed.delays[:, column] + base.at(times)
        fit = fit_clock(times, delays, followed.clear[:, column], followed.heights[:, column], rate)
        return None if fit is None else replace(fit, inverted=column == 1)

    seconds = track(part, 0, 1, reach, rest, centres=_centres(part.seconds))
    high = (seconds.heights >= _HIGH).any(axis=1)
    fit = fitted(seconds) if high.sum() >= _ENOUGH else None
    if fit is None and _spoken(seconds):
        fit = fitted(replace(seconds, clear=seconds.heights >= _LOW))
    if fit is not None and (high.sum() >= _FEW[0] or high.mean() >= _FEW[1]):
        return fit
    return _abrupt(part, reach, rest, fitted, strict=strict) or fit


def _abrupt(
    part: Excerpt, reach: float, rest: Line, fitted: Callable[[Track], Clock | None], *, strict: bool
) -> Clock | None:
    """The clock by sounds that begin abruptly."""
    # So short that the direct sound is most of it. Where reflections rival it even so, its leading edge does not.
    onsets, reach = _onsets(part.samples[0], part.rate), max(reach, _REACH[0])
    bursts = track(part, 0, 1, reach, rest, block=_ABRUPT, centres=onsets + _ABRUPT / 6)
    bursts = _trusted(bursts, part, onsets, _HIGH)
    near = fitted(bursts)
    edges = track_edges(part, onsets, reach, rest)
    far = fitted(_trusted(edges, part, onsets, LIKE))
    if far is None or far.used < _MANY:
        # Beginnings that are less alike are one sound all the same where more of them agree.
        more = fitted(_trusted(edges, part, onsets, ALIKE))
        far = more if more is not None and more.used >= _MANY else far
    found = [fit for fit in (near, far) if fit is not None]
    if near is not None and far is not None:
        at = far.at if far.drift is None else near.at
        strict = strict and abs(float(near.line.at(at) - far.line.at(at))) >= AGREE
    strict = strict and (near is None or float(bursts.heights[bursts.clear].min()) < _SURE)
    if strict:  # one clap or two could be found anywhere by chance: only what both ways find is believed
        found = [fit for fit in found if fit.used > 2]
    return max(found, key=lambda fit: fit.used, default=None)


def _spoken(seconds: Track) -> bool:
    """Whether much of what was recorded is heard, as of a few seconds of speech.

    A clap is heard in two or three blocks, one beside the other.
    """
    fewest, apart, share = _SPOKEN
    times = seconds.times[(seconds.heights >= _LOW).any(axis=1)]
    return bool(len(times) >= max(fewest, share * len(seconds.times)) and np.ptp(times) >= apart)


def _trusted(followed: Track, part: Excerpt, onsets: Floats, least: float) -> Track:
    """What is high enough is clear, unless most of what is as loud is not found: then the rest is chance."""
    size = round(_ABRUPT * part.rate)
    power = np.array(
        [np.square(part.samples[0, (at := round(onset * part.rate)) : at + size]).sum() for onset in onsets]
    )
    loud = power >= _LOUD * power.max()
    clear = followed.heights >= least
    return replace(followed, clear=clear & (clear[loud].mean(axis=0) >= _KNOWN))


def _centres(seconds: float) -> Floats:
    """Of blocks of a second: two each second, in stretches that are spread over what is too long for that."""
    whole = np.arange(0.5, max(seconds - 0.5, 0.51), 0.5)
    if len(whole) <= _MOST:
        return np.asarray(whole)
    starts = np.linspace(0, seconds - _STRETCH, round(_MOST / 2 / _STRETCH))
    return np.concatenate([start + np.arange(0.5, _STRETCH, 0.5) for start in starts])


def _upright(followed: Track) -> int:
    """The column of a track that is clearer: 1 where one recorder is the inverse of the other."""
    return int(np.argmax((followed.heights * followed.clear).sum(axis=0)))


def _onsets(samples: Floats32, rate: int) -> Floats:
    """Seconds at which the power rises most, a block apart from each other. Shape: (n,) -> (up to 240,)"""
    hop = round(_HOP * rate)
    count = len(samples) // hop
    power = np.square(samples[: count * hop], dtype=np.float64).reshape(count, hop).mean(axis=1)
    total = np.concatenate([[0.0], np.cumsum(power)])
    place = np.arange(count)
    after = total[np.minimum(place + 5, count)] - total[place]
    before = total[place] - total[np.maximum(place - 20, 0)]
    rise = after / (before / 4 + 0.05 * power.mean() + 1e-20) * (after > 0)
    found: list[int] = []
    apart = round(_APART / _HOP)
    while len(found) < 240 and rise.max() > 0:
        best = int(rise.argmax())
        found.append(best)
        rise[max(0, best - apart) : best + apart + 1] = 0
    return np.sort(np.array(found, dtype=np.float64)) * _HOP + _HOP


def _cut(samples: Floats32, begin: int, end: int) -> Floats32:
    """Zeros where there is nothing."""
    low, high = max(0, begin), min(len(samples), end)
    return np.pad(samples[low:high], (low - begin, end - high)) if high > low else np.zeros(end - begin, np.float32)
