"""Recorders that were started apart and whose clocks run apart: how each stands to the first one.

What stands at the time t in the file of the first recorder stands at t - (offset + drift t) in that of another: both
are positive where the other one hears things earlier in its file, because it was started later or its clock is slower.

    envelopes (seconds to minutes of offset) -> line -> GCC-PHAT around it, second by second -> robust line

Talkers who sit at several places give several parallel lines, which have one slope; a source that walks scatters around
one line, which the uncertainty says. What no sound can tell from an offset is a longer way to one of the recorders:
a source that is a metre nearer to one of them shifts it by 2.9 ms. Where its distances are known, they are taken out.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.arrays.calibration.alignment import warped
from qkgcc.audio import Recording, resampled
from qkgcc.clocks import measure_drift
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.errors import InputError
from qkgcc.lags import Excerpt, Floats, Line, Track, consensus, track

RATE = 16000
"""Hz at which recordings are compared; speech has little above 8 kHz that is coherent between recorders."""

_HOP = 0.01  # seconds between the values of an envelope
_BANDS = (100.0, 500.0, 1500.0, 3500.0, 7000.0)  # Hz, edges of its four bands
_SEGMENT, _SEGMENTS = 30.0, 24  # seconds of the first recording that are looked for in another, and how many at most
_FOUND = 6.5  # height of a peak of the envelopes' correlation over its noise; of 100,000 values of noise: 4.8
_RIVALS = 4  # places at which a segment may be found, and lines that are tried
_COMPARABLE = 0.9  # of what speaks for the first line, for another to be tried
_TOLERANCE = 0.03  # seconds within which segments agree
_REACH = (0.06, 0.02)  # seconds around the line of the envelopes, and around that of the first look: 7 m
_ENOUGH = 12  # clear seconds
_ABRUPT, _APART = 0.03, 0.25  # seconds around a sound that begins abruptly, and between two of them
_HIGH = 6.0  # height of the peak of such a sound; noise has 4
_GAP = 60e-6  # seconds between the delays of two places
_PLACE = 3  # delays that make a place
_SHORTEST = 10.0  # seconds between the first and the last delay, for a drift
_CLAPS = 2e-4  # seconds within which few delays have to agree on a line
_BATCHES = 10
_RESOLUTION = 10e-6  # seconds that a delay is uncertain by at least: a sixth of a sample at 16 kHz
_MOVED = 200e-6  # seconds by which delays of one place scatter when it is none

Progress = Callable[[float], object]


@dataclass(frozen=True)
class Clock:
    """How a recorder stands to the first one. All but `drift` in seconds."""

    name: str
    offset: float
    """At the beginning of the first recording, positive = started later."""
    offset_sd: float
    """Standard deviation; of what can be measured, not of the way to the source."""
    drift: float | None
    """Seconds per second, positive = a slower clock; None: too little time to tell."""
    drift_sd: float | None
    used: int
    """Blocks of a second that the line goes through."""
    clear: int
    """Blocks with a clear delay."""
    places: int
    """Of the source or sources: lines found side by side."""
    spread: float
    """Between these places, or of the walk."""
    inverted: bool = False

    @property
    def line(self) -> Line:
        return Line(self.offset, self.drift or 0.0)

    @property
    def moved(self) -> bool:
        """Whether the source seems to have walked."""
        return self.places == 1 and self.spread > _MOVED


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
                said.append(f"{clock.name}: the clear sounds lie too close together in time to see a drift.")
            if clock.moved:
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
    recordings: Sequence[Recording],
    *,
    distances: Sequence[float] | None = None,
    speed_of_sound: float = SPEED_OF_SOUND,
    progress: Progress | None = None,
) -> Synchronisation:
    """Offset and drift of each recorder against the first, from a clap or from any sound that all of them heard.

    Of a recorder with several channels the first that is not silent is taken: its channels share a clock.

    Args:
        recordings: one for each recorder; lengths and sample rates may differ. Two are compared at a time, for which
            an hour takes 500 MB.
        distances: metres from the source to each recorder, if it stayed at one place.
        progress: called with the share that is done, from 0 to 1.
    """
    if len(recordings) < 2:
        raise InputError(f"{len(recordings)} recorder was given; offsets need 2 or more")
    if distances is not None and (len(distances) != len(recordings) or not all(0 <= d <= 1000 for d in distances)):
        raise InputError(f"the distances are {list(distances)}; expected {len(recordings)}, of 0 to 1000 m")
    rate = min(RATE, *(recording.sample_rate for recording in recordings))
    first = _mono(recordings[0], rate)
    envelope = _envelope(first, rate)
    clocks = [Clock(recordings[0].name, 0.0, 0.0, 0.0, 0.0, 0, 0, 1, 0.0)]
    for count, recording in enumerate(recordings[1:], 1):
        other = _mono(recording, rate)
        tried = (_measure(first, other, rate, line) for line in _coarse(envelope, _envelope(other, rate)))
        clock = next((clock for clock in tried if clock is not None), None)
        if clock is None:
            raise InputError(
                f"no sound of {recordings[0].name} is found in {recording.name} at a clear delay: they need claps near "
                "to both, or half a minute of speech from one place, that both heard well"
            )
        clock = replace(clock, name=recording.name)
        if distances is not None:
            apart = (distances[0] - distances[count]) / speed_of_sound
            clock = replace(clock, offset=clock.offset - apart)
        clocks.append(clock)
        if progress is not None:
            progress(count / (len(recordings) - 1))
    given = None if distances is None else tuple(float(d) for d in distances)
    return Synchronisation(recordings[0].sample_rate, tuple(clocks), given)


def _mono(recording: Recording, rate: int) -> npt.NDArray[np.float32]:
    """The first channel that is not silent, at another rate and without a constant offset. Shape: (n,)"""
    parts = [part.astype(np.float32) for part in resampled(recording.blocks(), recording.sample_rate, rate)]
    samples = np.concatenate(parts, axis=1)
    for channel in samples:
        if channel.std() > 1e-6:
            return np.asarray(channel - channel.mean(), dtype=np.float32)
    raise InputError(f"{recording.name} is silent: there is nothing to find in the others")


def _envelope(samples: npt.NDArray[np.float32], rate: int) -> Floats:
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


def _measure(first: npt.NDArray[np.float32], other: npt.NDArray[np.float32], rate: int, coarse: Line) -> Clock | None:
    """None: nothing is clear around that line."""
    line, column = coarse, 0
    fit: Clock | None = None
    for look, reach in enumerate(_REACH):
        # The second look is at a recording on the first one's clock, in which no delay moves within a block.
        begin = max(0, int(line.offset * rate))
        end = min(len(first), int((len(other) / rate + line.offset) / (1 - line.slope) * rate))
        if end - begin < 0.1 * rate:
            return None
        if look:
            moved = warped(other, 1 - line.slope, begin * (1 - line.slope) - line.offset * rate, end - begin)
            rest = Line()
        else:
            shift = round(float(line.at((begin + end) / 2 / rate)) * rate)
            moved = _cut(other, begin - shift, end - shift)
            rest = Line(line.offset + line.slope * begin / rate - shift / rate, line.slope)
        part = Excerpt(begin / rate, rate, np.stack([first[begin:end], moved.astype(np.float32)]))
        followed = _followed(part, reach, rest)
        column = _upright(followed)
        if not followed.clear[:, column].any():
            return None
        # Back on the first recording's time and on the whole delay.
        base = line if look else Line(shift / rate)
        times = followed.times + part.start
        delays = followed.delays + base.at(times)[:, None]
        fit = _fit(Track(times, delays, followed.heights, followed.clear), column, rate)
        if fit is None:
            return None
        line = Line(fit.offset, fit.drift or 0.0)
    return None if fit is None else replace(fit, inverted=column == 1)


def _followed(part: Excerpt, reach: float, line: Line) -> Track:
    """Delays of seconds; or, where few of these are clear (claps, a walk), of the sounds that begin most abruptly."""
    seconds = track(part, 0, 1, reach, line)
    if seconds.clear[:, _upright(seconds)].sum() >= _ENOUGH:
        return seconds
    # So short that the direct sound is most of it. Reflections rival it even so: which peaks are right, the line says.
    centres = _onsets(part.samples[0], part.rate) + _ABRUPT / 6
    onsets = track(part, 0, 1, max(reach, _REACH[0]), line, block=_ABRUPT, centres=centres)
    onsets = replace(onsets, clear=onsets.heights >= _HIGH)
    counts = [one.clear[:, _upright(one)].sum() for one in (seconds, onsets)]
    return onsets if counts[1] > counts[0] else seconds


def _upright(followed: Track) -> int:
    """The column of a track that is clearer: 1 where one recorder is the inverse of the other."""
    return int(np.argmax((followed.heights * followed.clear).sum(axis=0)))


def _onsets(samples: npt.NDArray[np.float32], rate: int) -> Floats:
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


def _fit(followed: Track, column: int, rate: int) -> Clock | None:
    """A line through most of the clear delays, or through parallel ones; None where few do not agree on any."""
    clear = followed.clear[:, column]
    times, delays = followed.times[clear], followed.delays[clear, column]
    span = float(np.ptp(times))
    slope, walked = 0.0, False
    if span >= _SHORTEST:
        drift = measure_drift(followed, column)
        walked = drift is not None and not drift.agreed
        if walked:
            slope = _across(times, delays)
        elif drift is not None:
            slope = drift.line.slope
        else:
            line, agreed = consensus(times, delays, np.ones(len(times)), _CLAPS)
            # Two delays make any line; of more, most have to lie on it.
            if len(times) > 2 and agreed.mean() < 0.7:
                return None
            slope = line.slope
    for _ in range(5 if span >= _SHORTEST else 1):
        # Of somebody who walks, every place is one of the same way.
        place = np.zeros(len(times), dtype=np.int64) if walked else _places(delays - slope * times)
        kept = place >= 0
        t, d = _centred(times[kept], place[kept]), _centred(delays[kept], place[kept])
        if span >= _SHORTEST and not walked and (t**2).sum() > 0:
            slope = float((t * d).sum() / (t**2).sum())
    used, left = times[kept], d - slope * t
    most = int(np.bincount(place[kept]).argmax())
    main = kept & (place == most)
    offset = float(np.median(delays[main] - slope * times[main]))
    if span < _SHORTEST:
        scatter = max(_RESOLUTION, float(np.std(delays[main]))) / np.sqrt(main.sum())
        return Clock("", offset, scatter, None, None, int(kept.sum()), len(times), *_extent(delays, place, 0 * times))
    slope_sd, middle_sd = _uncertainty(used, left, rate)
    at_zero = float(np.hypot(middle_sd, slope_sd * used.mean()))
    extent = _extent(delays, place, slope * times)
    return Clock("", offset, at_zero, slope, slope_sd, int(kept.sum()), len(times), *extent)


def _across(times: Floats, delays: Floats) -> float:
    """The median slope of pairs a third of the recording apart: of a walk to and fro, little is left."""
    first, second = np.triu_indices(len(times), 1)
    apart = times[second] - times[first]
    far = apart >= np.ptp(times) / 3
    return float(np.median((delays[second] - delays[first])[far] / apart[far]))


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
    means = np.bincount(place, values) / np.bincount(place)
    return np.asarray(values - means[place])


def _extent(delays: Floats, place: npt.NDArray[np.int64], drifted: Floats) -> tuple[int, float]:
    """How many places there are, and seconds between the outermost delays of them (without the last tenths)."""
    level = (delays - drifted)[place >= 0]
    return int(place.max()) + 1, float(np.subtract(*np.quantile(level, [0.95, 0.05])))


def _uncertainty(times: Floats, left: Floats, rate: int) -> tuple[float, float]:
    """Standard deviations of the slope, and of the line in its middle.

    Neighbouring delays err together (one sound, one place on a walk), so the means of ten stretches of time are what
    counts as independent.
    """
    least = max(_RESOLUTION, 0.05 / rate)
    if len(times) < 2 * _BATCHES:
        scatter = max(least, float(np.sqrt((left**2).sum() / max(1, len(times) - 2))))
        about = times - times.mean()
        return scatter / float(np.sqrt((about**2).sum())), scatter / float(np.sqrt(len(times)))
    order = np.argsort(times)
    batches = np.array_split(order, _BATCHES)
    middle = np.array([times[batch].mean() for batch in batches])
    level = np.array([left[batch].mean() for batch in batches])
    scatter = max(least / np.sqrt(len(times) / _BATCHES), float(np.sqrt((level**2).sum() / (_BATCHES - 2))))
    about = middle - middle.mean()
    return scatter / float(np.sqrt((about**2).sum())), scatter / float(np.sqrt(_BATCHES))


def _cut(samples: npt.NDArray[np.float32], begin: int, end: int) -> npt.NDArray[np.float32]:
    """Zeros where there is nothing."""
    low, high = max(0, begin), min(len(samples), end)
    return np.pad(samples[low:high], (low - begin, end - high)) if high > low else np.zeros(end - begin, np.float32)
