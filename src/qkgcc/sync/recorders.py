"""Recorders that were started apart and whose clocks run apart: offset, drift, and files on the first one's clock.

What stands at the time t in the file of the first recorder stands at t - (offset + drift t) in that of another: both
are positive where the other one hears things earlier in its file, because it was started later or its clock is slower.

    envelopes (seconds to minutes of offset) -> line -> GCC-PHAT around it, second by second -> line (`clock_fit`)

Claps are few: theirs is the correlation of sounds that begin abruptly, or of their leading edges (`onsets`) where they
are far away. No sound can tell an offset from a longer path to one of the recorders: a source that is a metre nearer to
one of them shifts it by 2.9 ms. Where its distances are known, they are taken out.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.fft

from qkgcc.audio.frames import WARP_TAPS, resample, warp
from qkgcc.audio.recording import Recording, as_recording
from qkgcc.core.checks import check_array, check_callback, check_speed, short_repr
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.files import display_name, make_folder, write_whole
from qkgcc.core.types import SPEED_OF_SOUND, Floats, Floats32, Samples
from qkgcc.dsp.long_lags import Excerpt, Line, Track, consensus, track
from qkgcc.live.recorder import WavFile
from qkgcc.sync.clock_fit import LINES, Clock, fit_clock
from qkgcc.sync.onsets import EDGES, HOP, direct_sound_lag, find_onsets, track_edges

RATE = 16000
"""Hz at which recordings are compared; speech has little above 8 kHz that is coherent between recorders."""


@dataclass(frozen=True)
class EnvelopeSearch:
    """How segments of one recording are found in another, by their envelopes. Times in seconds."""

    bands: tuple[float, ...] = (100.0, 500.0, 1500.0, 3500.0, 7000.0)
    """Hz, edges of the four bands of an envelope."""
    segment: float = 30.0
    max_segments: int = 24
    min_height: float = 6.5
    """Of a peak of the correlation over its noise; of 100,000 values of noise: 4.8."""
    rivals: int = 4
    """Places at which a segment may be found, and lines that are tried."""
    comparable: float = 0.9
    """Of the weight of the first line, for another to be tried."""
    tolerance: float = 0.03
    """Within which segments agree."""


@dataclass(frozen=True)
class BlockLimits:
    """How delays are measured in blocks of a second, and when these are enough. Times in seconds."""

    reach: tuple[float, float] = (0.06, 0.02)
    """Around the line of the envelopes, and around that of the first attempt: 7 m."""
    min_height: float = 6.0
    """Of a peak that counts; noise has 4."""
    min_speech_height: float = 4.5
    """Of peaks of speech: one of them is chance, but most of them do not agree by chance."""
    min_peaks: int = 12
    clap_peaks: int = 40
    clap_share: float = 0.25
    """Peaks, and their share of the blocks, that may be those of claps: each is heard in two."""
    speech_peaks: int = 4
    speech_duration: float = 1.5
    speech_share: float = 0.4
    """Blocks with a peak, seconds between them, and their share, that are of no clap."""
    max_blocks: int = 600
    stretch: float = 15.0
    """Of a stretch of blocks in a long recording."""


@dataclass(frozen=True)
class ClapLimits:
    """How delays of sounds that begin abruptly are measured, and when they are believed."""

    duration: float = 0.03
    """Seconds around an onset that are correlated."""
    loud: float = 0.25
    """Of the power of the loudest, for a sound to be a clap."""
    min_found: float = 0.3
    """Share of the loud ones that have to be found: else the others are chance."""
    min_agreeing: int = 4
    """Claps that agree on a line; three of them do so by chance."""
    certain_height: float = 12.0
    """Of a peak that chance does not reach."""


ENVELOPES, BLOCKS, CLAPS = EnvelopeSearch(), BlockLimits(), ClapLimits()

Progress = Callable[[float], object]


@dataclass(frozen=True)
class Synchronisation:
    """Offsets and drifts of all recorders against the first."""

    sample_rate: int
    """Of the first recorder."""
    clocks: tuple[Clock, ...]
    """The first one is all zeros."""
    distances: tuple[float, ...] | None
    """Metres from the source to each recorder, where they were given."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences about what the offsets include and what could not be measured."""
        remarks = []
        if self.distances is None:
            remarks.append(
                "The offset includes the sound's travel time: a source a metre nearer to one recorder shifts it by "
                "2.9 ms. No recording can tell them apart: clap at equal distances, or give the distances."
            )
        for clock in self.clocks[1:]:
            if clock.drift is None:
                remarks.append(
                    f"{clock.name}: the clear sounds lie too close together in time to measure a drift. The offset is "
                    f"that at {clock.at:.1f} s; a clock that is off by 50 ppm changes it by 3 ms in a minute."
                )
            if clock.walked:
                remarks.append(
                    f"{clock.name}: the source seems to have moved ({1000 * clock.spread:.2f} ms); the offset is that "
                    "of the middle of its path."
                )
            elif clock.places > 1:
                remarks.append(
                    f"{clock.name}: sound came from {clock.places} places, up to {1000 * clock.spread:.2f} ms apart; "
                    "the offset is that of the place with most sounds."
                )
            if clock.inverted:
                remarks.append(
                    f"{clock.name} is the inverse of the first recorder: look for a cable wired with reversed polarity."
                )
        return tuple(remarks)


def synchronise(
    recordings: Sequence[Recording | str | Path],
    *,
    distances: Sequence[float] | None = None,
    speed_of_sound: float = SPEED_OF_SOUND,
    progress: Progress | None = None,
) -> Synchronisation:
    """Measure offset and drift of each recorder against the first, from a clap or any sound that all of them recorded.

    Of a recorder with several channels the first that is not silent is taken: its channels share a clock.

    Args:
        recordings: one for each recorder, or their paths; lengths and sample rates may differ. Two are compared at a
            time, for which an hour takes 500 MB.
        distances: metres from the source to each recorder, if it stayed at one place; its travel time is taken out.
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
    envelope = _onset_envelope(first, rate)
    clocks = [Clock(recorders[0].name, 0.0, 0.0, 0.0, 0.0, 0, 0, 1, 0.0)]
    for count, recording in enumerate(recorders[1:], 1):
        other = _mono(recording, rate)
        lines = _coarse_lines(envelope, _onset_envelope(other, rate))
        attempts = (_measure_clock(first, other, rate, line) for line in lines)
        clock = next((clock for clock in attempts if clock is not None), None)
        if clock is None:
            raise InputError(
                f"no sound of {recorders[0].name} is found in {recording.name} at a clear delay: record claps near to "
                "both, or half a minute of speech from one place, loud enough in both"
            )
        clock = replace(clock, name=recording.name)
        if distances is not None:
            travel_time = (distances[0] - distances[count]) / speed_of_sound
            clock = replace(clock, offset=clock.offset - travel_time)
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
    raise InputError(f"{recording.name} is silent: it cannot be compared with the others")


def _onset_envelope(samples: Floats32, rate: int) -> Floats:
    """How much each band gets louder, every 10 ms, in units of its standard deviation. Shape: (n,) -> (4, T)"""
    hop = round(HOP * rate)
    size = 2 * hop
    frequencies = np.fft.rfftfreq(size, 1 / rate)
    edges = np.searchsorted(frequencies, ENVELOPES.bands)
    count = max(2, (len(samples) - size) // hop + 1)
    power = np.zeros((len(ENVELOPES.bands) - 1, count))
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


def _coarse_lines(first: Floats, other: Floats) -> list[Line]:
    """The lines on which segments of one envelope are found in the other, the likeliest first."""
    length = min(round(ENVELOPES.segment / HOP), first.shape[1])
    segments = min(ENVELOPES.max_segments, -(-first.shape[1] // length))
    starts = np.linspace(0, first.shape[1] - length, segments).astype(int)
    size = scipy.fft.next_fast_len(length + other.shape[1], real=True)
    spectrum = np.conj(scipy.fft.rfft(other, size))
    near = round(3 * ENVELOPES.tolerance / HOP)
    peaks = []
    for start in starts:
        curve = scipy.fft.irfft(scipy.fft.rfft(first[:, start : start + length], size) * spectrum, size).sum(axis=0)
        noise = float(np.median(np.abs(curve))) / 0.6745
        for _ in range(ENVELOPES.rivals):  # one clap may be taken for another
            best = int(curve.argmax())
            height = curve[best] / noise if noise > 0 else 0.0
            if height < ENVELOPES.min_height:
                break
            lag = (best if best < length else best - size) + start
            peaks.append(((start + length / 2) * HOP, lag * HOP, float(height)))
            curve[np.arange(best - near, best + near + 1) % size] = 0
    lines: list[Line] = []
    largest = 0.0
    while peaks and len(lines) < ENVELOPES.rivals:
        times, lags, heights = (np.array(column) for column in zip(*peaks, strict=True))
        line, chosen = consensus(times, lags, heights, ENVELOPES.tolerance)
        largest = largest or float(heights[chosen].sum())
        # Other lines are tried, too: claps at equal intervals fit nearly as well when shifted by one.
        if heights[chosen].sum() < ENVELOPES.comparable * largest:
            break
        lines.append(line)
        peaks = [peak for peak, used in zip(peaks, chosen, strict=True) if not used]
    return lines


def _measure_clock(first: Floats32, other: Floats32, rate: int, coarse: Line) -> Clock | None:
    """The clock near a line of the envelopes, measured twice; None: no delay is clear around that line."""
    line = coarse
    fit: Clock | None = None
    for attempt, reach in enumerate(BLOCKS.reach):
        # The second attempt is at a recording on the first one's clock, in which no delay moves within a block.
        begin = max(0, int(line.offset * rate))
        end = min(len(first), int((len(other) / rate + line.offset) / (1 - line.slope) * rate))
        if end - begin < 0.1 * rate:
            return None
        if attempt:
            moved = warp(other, 1 - line.slope, begin * (1 - line.slope) - line.offset * rate, end - begin)
            base, rest = line, Line()
        else:
            shift = round(float(line.at((begin + end) / 2 / rate)) * rate)
            moved = _cut_padded(other, begin - shift, end - shift)
            base, rest = Line(shift / rate), Line(line.offset + line.slope * begin / rate - shift / rate, line.slope)
        part = Excerpt(begin / rate, rate, np.stack([first[begin:end], moved.astype(np.float32)]))
        fit = _clock_of_blocks(part, reach, rest, base, rate, strict=attempt == 1)
        if fit is None:
            return None
        line = fit.line
    if fit is None or fit.walked or fit.clear < BLOCKS.min_peaks:
        return fit
    # Where reflections are louder than the direct sound, all blocks agree on one of them; onsets do not.
    later = direct_sound_lag(part, find_onsets(part.samples[0], rate), reach, line - base, -1 if fit.inverted else 1)
    if later is None:
        return fit
    sd, there = (float(np.hypot(one, 0.5 / rate)) for one in (fit.offset_sd, fit.sd_there))
    return replace(fit, offset=fit.offset + later, offset_sd=sd, sd_there=there)


def _clock_of_blocks(part: Excerpt, reach: float, rest: Line, base: Line, rate: int, *, strict: bool) -> Clock | None:
    """The clock by delays of seconds; or, where few of these are clear (claps), of sounds that begin abruptly."""

    def fit_of(followed: Track) -> Clock | None:
        column = _clearer_column(followed)
        # Back on the first recording's time and on the whole delay.
        times = followed.times + part.start
        delays = followed.delays[:, column] + base.at(times)
        fit = fit_clock(times, delays, followed.clear[:, column], followed.heights[:, column], rate)
        return None if fit is None else replace(fit, inverted=column == 1)

    seconds = track(part, 0, 1, reach, rest, centres=_block_centres(part.seconds))
    high = (seconds.heights >= BLOCKS.min_height).any(axis=1)
    fit = fit_of(seconds) if high.sum() >= BLOCKS.min_peaks else None
    if fit is None and _is_speech(seconds):
        fit = fit_of(replace(seconds, clear=seconds.heights >= BLOCKS.min_speech_height))
    if fit is not None and (high.sum() >= BLOCKS.clap_peaks or high.mean() >= BLOCKS.clap_share):
        return fit
    return _clock_of_claps(part, reach, rest, fit_of, strict=strict) or fit


def _clock_of_claps(
    part: Excerpt, reach: float, rest: Line, fit_of: Callable[[Track], Clock | None], *, strict: bool
) -> Clock | None:
    """The clock by sounds that begin abruptly, correlated around their onsets and by their leading edges."""
    # Blocks so short that the direct sound is most of them. Where reflections are as loud, leading edges are not wrong.
    onsets, reach = find_onsets(part.samples[0], part.rate), max(reach, BLOCKS.reach[0])
    bursts = track(part, 0, 1, reach, rest, block=CLAPS.duration, centres=onsets + CLAPS.duration / 6)
    bursts = _mark_clear(bursts, part, onsets, BLOCKS.min_height)
    near = fit_of(bursts)
    edges = track_edges(part, onsets, reach, rest)
    far = fit_of(_mark_clear(edges, part, onsets, EDGES.same_sound))
    if far is None or far.used < CLAPS.min_agreeing:
        # Onsets that correlate less are one sound all the same where more of them agree.
        more = fit_of(_mark_clear(edges, part, onsets, EDGES.likely_same_sound))
        far = more if more is not None and more.used >= CLAPS.min_agreeing else far
    found = [fit for fit in (near, far) if fit is not None]
    if near is not None and far is not None:
        at = far.at if far.drift is None else near.at
        strict = strict and abs(float(near.line.at(at) - far.line.at(at))) >= LINES.agree
    strict = strict and (near is None or float(bursts.heights[bursts.clear].min()) < CLAPS.certain_height)
    if strict:  # one clap or two may agree by chance: these count only where both ways find them
        found = [fit for fit in found if fit.used > 2]
    return max(found, key=lambda fit: fit.used, default=None)


def _is_speech(seconds: Track) -> bool:
    """Whether many blocks have a peak, as of a few seconds of speech; a clap is in two or three, side by side."""
    times = seconds.times[(seconds.heights >= BLOCKS.min_speech_height).any(axis=1)]
    enough = max(BLOCKS.speech_peaks, BLOCKS.speech_share * len(seconds.times))
    return bool(len(times) >= enough and np.ptp(times) >= BLOCKS.speech_duration)


def _mark_clear(followed: Track, part: Excerpt, onsets: Floats, min_height: float) -> Track:
    """Mark the delays of high peaks as clear, unless few of the loud sounds have one: then the others are chance."""
    size = round(CLAPS.duration * part.rate)
    power = np.array(
        [np.square(part.samples[0, (at := round(onset * part.rate)) : at + size]).sum() for onset in onsets]
    )
    loud = power >= CLAPS.loud * power.max()
    clear = followed.heights >= min_height
    return replace(followed, clear=clear & (clear[loud].mean(axis=0) >= CLAPS.min_found))


def _block_centres(seconds: float) -> Floats:
    """Centres of blocks of a second: two each second, of a long recording in stretches that are spread over it."""
    whole = np.arange(0.5, max(seconds - 0.5, 0.51), 0.5)
    if len(whole) <= BLOCKS.max_blocks:
        return np.asarray(whole)
    starts = np.linspace(0, seconds - BLOCKS.stretch, round(BLOCKS.max_blocks / 2 / BLOCKS.stretch))
    return np.concatenate([start + np.arange(0.5, BLOCKS.stretch, 0.5) for start in starts])


def _clearer_column(followed: Track) -> int:
    """The column of a track that is clearer: 1 where one recorder is the inverse of the other."""
    return int(np.argmax((followed.heights * followed.clear).sum(axis=0)))


def _cut_padded(samples: Floats32, begin: int, end: int) -> Floats32:
    """Samples from begin to end, zeros beyond the recording."""
    low, high = max(0, begin), min(len(samples), end)
    return np.pad(samples[low:high], (low - begin, end - high)) if high > low else np.zeros(end - begin, np.float32)


def write_aligned(
    synchronisation: Synchronisation,
    recordings: Sequence[Recording],
    folder: str | Path,
    names: Sequence[str],
    *,
    sources: Sequence[Path] = (),
    progress: Progress | None = None,
) -> list[Path]:
    """Write all recordings on the clock of the first: one WAV (32-bit float) each, of the part that all of them have.

    All have the sample rate of the first, and the same length. A file is put in place when it is whole.

    Args:
        names: of the files, without their ending.
        sources: files that must not be written over.
    """
    folder = Path(folder)
    make_folder(folder)
    paths = aligned_paths(folder, names)
    if len(set(paths)) < len(paths):
        raise InputError(f"two of the recordings would be written to one file: {', '.join(sorted(names))}")
    for path in paths:
        if any(path.resolve() == source.resolve() for source in sources):
            raise InputError(f"{display_name(path)} is one of the recordings: choose another folder")
    rate = synchronisation.sample_rate
    begin, end = common_part(synchronisation, recordings)
    for count, (path, recording, clock) in enumerate(zip(paths, recordings, synchronisation.clocks, strict=True)):
        line = clock.line
        step = 1 - line.slope
        blocks = resample(recording.blocks(), recording.sample_rate, rate)

        def write(
            target: Path,
            blocks: Iterator[Samples] = blocks,
            step: float = step,
            start: float = begin * step - line.offset * rate,
            channels: int = len(recording.channels),
        ) -> None:
            file = WavFile(target, rate, channels)
            try:
                for part in _read_at(blocks, step, start, end - begin):
                    file.write(part)
            finally:
                file.close()

        write_whole(path, write)
        if progress is not None:
            progress((count + 1) / len(paths))
    return paths


def aligned_paths(folder: Path, names: Sequence[str]) -> list[Path]:
    """Paths of the files that `write_aligned` makes."""
    return [folder / f"{name}.wav" for name in names]


def common_part(synchronisation: Synchronisation, recordings: Sequence[Recording]) -> tuple[int, int]:
    """Samples of the first recording between which all of them have sound."""
    rate = synchronisation.sample_rate
    begin, end = 0, recordings[0].samples
    for recording, clock in zip(recordings, synchronisation.clocks, strict=True):
        line = clock.line
        begin = max(begin, math.ceil(line.offset / (1 - line.slope) * rate))
        end = min(end, math.floor((recording.duration + line.offset) / (1 - line.slope) * rate))
    if end <= begin:
        raise InputError("the recordings do not overlap in time: there is nothing to write")
    return begin, end


def _read_at(blocks: Iterator[Samples], step: float, start: float, count: int) -> Iterator[Samples]:
    """Read blocks at steps of other than a sample, as `warp` does with a whole recording."""
    made = position = 0  # samples made, and the place of the buffer's first one
    buffer: Samples | None = None
    ended = False
    while made < count:
        block = next(blocks, None)
        if block is None:
            ended = True
        elif buffer is None:
            buffer = block
        else:
            buffer = np.concatenate([buffer, block], axis=1)
        if buffer is None:
            return
        # What can be made now has all of its taps.
        reach = position + buffer.shape[1] - WARP_TAPS // 2 - 1
        ready = count if ended else min(count, max(made, math.floor((reach - start) / step)))
        if ready > made:
            yield warp(buffer, step, start + step * made - position, ready - made)
            made = ready
            drop = max(0, min(buffer.shape[1], math.floor(start + step * made) - WARP_TAPS - position))
            buffer, position = buffer[:, drop:], position + drop
