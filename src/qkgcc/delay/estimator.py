"""One estimator over every method: a recording in, a `DelayEstimate` out.

    recording -> (resample) -> frames -> evidence -> curve, delay, confidence

Evidence adds up over frames. Decoding the evidence of one frame gives that frame's delay; decoding the mean of all
gives the one delay of the whole recording.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from qkgcc.audio.recording import Recording, as_recording, check_channels, check_long_enough, open_audio
from qkgcc.core.checks import (
    check_band,
    check_band_in_recording,
    check_callback,
    check_choice,
    check_count,
    check_flag,
    check_frame,
    check_hop,
    check_indices,
    check_method,
    check_number,
    check_pairs,
    check_spacing,
    check_speed,
    check_threads,
    short_repr,
)
from qkgcc.core.errors import InputError
from qkgcc.core.files import broken_link, check_file, exists, is_folder
from qkgcc.core.types import SILENCE, SPEED_OF_SOUND, Floats, Samples
from qkgcc.delay.result import DelayEstimate, DelaySummary, Explanation
from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import INTERPOLATIONS
from qkgcc.network.registry import CLASSICAL, DEFAULT, METHODS, NETWORKS, pretrained
from qkgcc.pairs.classical import Classical
from qkgcc.pairs.confidence import TOLERANCE, limit_cap
from qkgcc.pairs.evidence import FrameEstimates, Method, prepare_frames
from qkgcc.pairs.frontend import FrontEnd
from qkgcc.pairs.neural import Network, TorchModel
from qkgcc.pairs.pipeline import Pipeline

DEFAULT_SPACING = 0.5
"""Metres: the lag range when neither a spacing nor a largest delay is given."""
DEFAULT_FRAME = 0.128
"""Seconds."""
NOTABLE = 0.05
"""Share of the frames that something has to concern before it is said."""
AGREE = 0.03
"""Share of the frames that must agree on an impossible delay before the spacing is doubted."""
RIVALS = 0.33
"""Frames with impossible delays, of those with possible ones that are sure, before it is."""
HALF = 0.5
"""Confidence from which on a frame is sure; a delay at the limit that deserves no more is too long."""
OFTEN = 0.3
"""Share of the frames that are so: a source in line with the microphones, in a room, has fewer."""
ALWAYS = 0.9
"""The same of microphones so close together that noise has its answers there."""

MOST_CURVES = 1 << 24
"""Numbers of the curves of several pairs that are kept at a time: 64 MB. One pair has all of its own."""
MOST_COLUMNS = 1000
"""Moments of an `Explanation`."""


class DelayEstimator:
    """Delay between two microphones over time. Positive: the first channel hears the source later.

    Args:
        method: a name out of `METHODS`, or the path of a network's checkpoint.
        spacing: metres between the microphones. Limits the delays to what is possible, and gives angles.
        max_delay: largest delay in seconds; by default what the spacing allows. Without either, classical methods look
            for what 0.5 m allows, networks for all that they were trained on.
        frame, hop: seconds. A checkpoint brings its own frame.
        band: lowest and highest frequency in Hz that may count: what a fan or the mains do below is left out. A
            network's confidence is not calibrated then.
        interpolation: between the samples of a correlation: "band-limited" (by default), "parabolic" or "none".
        decoder: from a network's posterior to a delay (`qkgcc.pairs.decoding`), by default what its card says.
            "argmax", "mean" and "quadratic" answer the highest peak; "coarse" the delay that most likely is right to 10
            cm of path; "balanced" one that is likely to be right to that, and exactly.
        beta: exponent of "phat-beta".
        max_sources: how many peaks of a network's posterior to report, besides the one delay.
        symmetric: swapping the channels gives exactly the opposite answer: a network is asked both ways, and the mean
            counts. Twice the work.
        smoothing: smooth the posterior of a network over time (`qkgcc.pairs.smoothing`), with what comes up to so many
            seconds after a frame; 0 takes only what came before. The confidence is then the model's own, uncalibrated.
        threads: that share the frames of a recording, where the method is a network; by default one for each core. The
            answer is the same with any number, to the bit, but for networks that torch runs.
        speed_of_sound: metres per second.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal(16007)
    >>> estimator = DelayEstimator("phat", spacing=0.2)
    >>> answer = estimator(np.stack([x[:-7], x[7:]]), sample_rate=16000)
    >>> round(answer.summary.delay_samples, 2), round(answer.summary.angle)
    (7.0, 49)
    """

    def __init__(  # noqa: C901, PLR0913 - what users may set, each checked
        self,
        method: str | Path = DEFAULT,
        *,
        spacing: float | None = None,
        max_delay: float | None = None,
        frame: float | None = None,
        hop: float = 0.064,
        band: tuple[float, float] | None = None,
        interpolation: str | None = None,
        decoder: str | None = None,
        beta: float | None = None,
        max_sources: int = 1,
        symmetric: bool = False,
        smoothing: float | None = None,
        threads: int | None = None,
        speed_of_sound: float = SPEED_OF_SOUND,
    ) -> None:
        speed_of_sound = check_speed(speed_of_sound)
        if spacing is not None:
            spacing = check_spacing(spacing)
        if max_delay is not None:
            max_delay = check_number("largest delay", max_delay, 1e-6, 10, "s")
        if frame is not None:
            frame = check_frame(frame)
        hop = check_hop(hop)
        if smoothing is not None:
            smoothing = check_number("smoothing", smoothing, 0, 10, "s")
        if beta is not None:
            beta = check_number("exponent beta", beta, 0, 1)
        if interpolation is not None:
            check_choice("interpolation", interpolation, INTERPOLATIONS)
        max_sources = check_count("max_sources", max_sources, 1, 1000)
        if threads is not None:
            threads = check_threads(threads)
        symmetric = check_flag("symmetric", symmetric)
        self.method = check_method(method)
        self.spacing = spacing
        self.max_delay = max_delay if spacing is None or max_delay else spacing / speed_of_sound
        self.frame = frame
        self.hop = hop
        self.band = check_band(band)
        self.interpolation = interpolation or INTERPOLATIONS[0]
        self.beta = gcc.BETA if beta is None else beta
        self.max_sources = max_sources
        self.smoothing = smoothing
        self.speed_of_sound = speed_of_sound
        # Seconds: a spacing is seldom measured so well; a largest delay is meant.
        self._range_tolerance = TOLERANCE / 2 if max_delay is None else 0.0
        self._network: Network | None = None
        self._methods: dict[int, Method] = {}  # by sample rate: to make one takes as long as a frame
        if self.method in CLASSICAL:
            if symmetric:
                raise InputError(f"symmetric is for networks; {self.method} answers the opposite for swapped channels")
            if decoder is not None or max_sources > 1 or smoothing is not None:
                raise InputError(
                    "a decoder, several sources and smoothing need the posterior of a network; "
                    f"{self.method} has a correlation"
                )
            return
        for what, value in (("an interpolation", interpolation), ("beta", beta)):
            if value is not None:
                raise InputError(f"{what} is for the classical methods, such as phat; {self.method} is a network")
        network = load_network(self.method, decoder, threads)
        range_tolerance = self._range_tolerance * network.sample_rate
        self._network = dataclasses.replace(network, symmetric=symmetric, range_tolerance=range_tolerance)

    def __call__(
        self,
        source: Any,
        sample_rate: int | None = None,
        *,
        channels: Sequence[int] = (0, 1),
        start: float | None = None,
        end: float | None = None,
        other: Any = None,
        progress: Callable[[float], object] | None = None,
        curve: bool = True,
    ) -> DelayEstimate:
        """Estimate from a file, an array (2, n) with its `sample_rate`, or a `Recording` of two channels.

        Args:
            channels: which two channels of the file or array.
            start, end, other: as for `open_audio`.
            progress: called with the share that is done, from 0 to 1.
            curve: keep the curve of every frame, which is nearly all of an answer's memory; without, it is (T, 0).
        """
        recording = _opened(source, sample_rate, channels, start, end, other)
        (answer,) = self.of_pairs(recording, [(0, 1)], progress=progress, curve=curve)
        return answer

    def of_pairs(
        self,
        recording: Recording,
        pairs: Sequence[tuple[int, int]],
        *,
        progress: Callable[[float], object] | None = None,
        curve: bool = True,
    ) -> Iterator[DelayEstimate]:
        """Answers for pairs of a recording's channels, in their order, each as if it were asked for alone.

        A channel is read and resampled once for all of them, or as often as their curves need so that `MOST_CURVES`
        of them are in memory at a time.

        >>> sound = open_audio(np.random.default_rng(0).standard_normal((3, 16000)), 16000)
        >>> [answer.channels for answer in DelayEstimator("phat").of_pairs(sound, [(0, 1), (2, 0)])]
        [(0, 1), (2, 0)]
        """
        recording, pairs, curve = as_recording(recording), check_pairs(pairs), check_flag("curve", curve)
        check_callback("progress", progress)
        for pair in pairs:
            check_channels(recording.name, len(recording.channels), pair)
        method = self.method_at(recording.sample_rate)
        frames = recording.duration * method.sample_rate / self._hop(method)
        together = max(1, int(MOST_CURVES / (frames * len(method.lags)))) if self._keeps(curve) else len(pairs)
        for first in range(0, len(pairs), max(1, together)):
            chosen = pairs[first : first + together]

            def told(share: float, first: int = first, count: int = len(chosen)) -> None:
                if progress is not None:
                    progress((first + count * share) / len(pairs))

            yield from self._together(method, recording, chosen, told, curve)

    def _together(
        self,
        method: Method,
        recording: Recording,
        pairs: Sequence[tuple[int, int]],
        progress: Callable[[float], object],
        curve: bool,
    ) -> Iterator[DelayEstimate]:
        used = sorted({channel for pair in pairs for channel in pair})
        picked = recording.pick(used)
        places = [(used.index(one), used.index(two)) for one, two in pairs]
        levels = _levels(method, picked)
        pipeline = self.pipeline(
            method,
            picked.sample_rate,
            pairs=places,
            start=picked.start,
            levels=[levels[one] for one, _ in places],
        )
        kept = self._keeps(curve)
        parts: list[list[FrameEstimates]] = [[] for _ in pairs]

        def keep(estimates: list[FrameEstimates]) -> None:
            for rows, part in zip(estimates, parts, strict=True):
                part.append(rows if kept else rows.without_curves())

        for block in _blocks(method, picked, progress):
            keep(pipeline.push(block))
        keep(pipeline.flush())
        for number, (one, two) in enumerate(places):
            rows = FrameEstimates.joined(parts[number])
            parts[number].clear()
            named = picked.channels[one], picked.channels[two]
            yield self.answer(pipeline, number, rows, rows, picked.name, named, picked.sample_rate)

    def _keeps(self, curve: bool) -> bool:
        """Whether curves are kept until the end: the delays of several sources are read from them."""
        return curve or self.max_sources > 1

    @property
    def frame_by_frame(self) -> bool:
        """Whether frames have the same answer to the bit whichever are asked for together: not by torch."""
        return self._network is None or not isinstance(self._network.model, TorchModel)

    def pipeline(
        self,
        method: Method,
        sample_rate: int,
        **options: Any,
    ) -> Pipeline:
        """From blocks at a sample rate to estimates of frames; the options are those of `Pipeline`."""
        return Pipeline(method, sample_rate, self._hop(method), smoothing=self.smoothing, **options)

    def answer(
        self,
        pipeline: Pipeline,
        number: int,
        rows: FrameEstimates,
        recent: FrameEstimates,
        name: str,
        channels: tuple[int, int],
        sample_rate: int,
    ) -> DelayEstimate:
        """Estimates of frames as an answer, with one delay for all that the pipeline has seen.

        Args:
            number: of the pair in the pipeline.
            recent: the frames that warnings are about.
        """
        method, total = pipeline.method, pipeline.totals[number]
        whole = total.decode(method)
        whole_delay, whole_confidence = math.nan, 0.0
        if whole is not None:
            whole_delay = float(whole.delay[0])
            whole_confidence = float(whole.confidence[0]) * (1 - total.doubtful / total.answered)
        seconds = rows.delay.astype(np.float64) / method.sample_rate
        whole_seconds = whole_delay / method.sample_rate
        whole_angle = self._angle(np.array([whole_seconds]))
        sources, weights = None, None
        if self.max_sources > 1:
            sources, weights = cast(Network, method).sources(rows.curve, rows.delay, self.max_sources)
        return DelayEstimate(
            source=name,
            method=self.method,
            channels=channels,
            sample_rate=sample_rate,
            times=rows.times,
            delay_samples=seconds * sample_rate,
            delay_seconds=seconds,
            angle=self._angle(seconds),
            confidence=rows.confidence.astype(np.float64),
            calibrated=pipeline.calibrated,
            lags=method.lags * (sample_rate / method.sample_rate),
            curve=rows.curve,
            kind=method.kind,
            summary=DelaySummary(
                delay_samples=whole_seconds * sample_rate,
                delay_seconds=whole_seconds,
                angle=None if whole_angle is None else float(whole_angle[0]),
                confidence=whole_confidence,
                frames=total.frames,
                answered=total.answered,
            ),
            source_delays=None if sources is None else sources * (sample_rate / method.sample_rate),
            source_weights=weights,
            warnings=tuple(self._warnings(method, recent)),
        )

    def explain(
        self,
        source: Any,
        sample_rate: int | None = None,
        *,
        channels: Sequence[int] = (0, 1),
        start: float | None = None,
        end: float | None = None,
        other: Any = None,
        progress: Callable[[float], object] | None = None,
    ) -> Explanation:
        """How much each frequency of a recording counts to a steered network; the arguments are those of a call."""
        if self._network is None or not self._network.model.any_delay:
            raise InputError(
                f"{self.method} has no learned weights of frequencies to show: use general or another steered network"
            )
        check_callback("progress", progress)
        recording = _opened(source, sample_rate, channels, start, end, other)
        method = cast(Network, self.method_at(recording.sample_rate))
        check_long_enough(recording, method.frame, method.sample_rate)
        # Neighbouring frames become one, so that an hour takes no more memory than a picture shows.
        count = 1 + int((recording.duration * method.sample_rate - method.frame) / self._hop(method))
        together = -(-count // MOST_COLUMNS)
        sums = np.zeros((-(-count // together) + 1, len(method.frequencies)))
        frames_of = np.zeros(len(sums))
        front = FrontEnd(
            recording.sample_rate, method.sample_rate, method.frame, self._hop(method), start=recording.start
        )
        times: list[float] = []
        level = _levels(method, recording)[0]
        for batch in front.frames_of(_blocks(method, recording, progress)):
            frames, heard = prepare_frames(method, batch.samples, level)
            column = (len(times) + np.flatnonzero(heard)) // together
            np.add.at(sums, column, method.reliability(frames[heard]))
            np.add.at(frames_of, column, 1)
            times += batch.times.tolist()
        if not frames_of.any():
            raise InputError(
                f"{recording.name}: the channels are silent, or one of them is: there is nothing to explain"
            )
        columns = -(-len(times) // together)
        with np.errstate(invalid="ignore"):
            weight = (sums / frames_of[:, None])[:columns].astype(np.float32)
        known = method.frequencies <= min(recording.sample_rate, method.sample_rate) / 2
        middles = [float(np.mean(times[i : i + together])) for i in range(0, len(times), together)]
        return Explanation(
            source=recording.name,
            method=self.method,
            times=np.array(middles),
            frequencies=method.frequencies[known],
            weight=weight[:, known],
        )

    def _limit_in_words(self, method: Method) -> str:
        """The largest delay, by what it was given, and what to do where the true one is longer."""
        largest = f"{1000 * (self.max_delay or float(np.abs(method.lags).max()) / method.sample_rate):.2f} ms"
        if self.spacing is not None and self.max_delay == self.spacing / self.speed_of_sound:
            return f"your spacing allows ({largest}): the spacing is probably too small"
        if self.max_delay:
            return f"the largest delay that you allow ({largest}): this limit is probably too small"
        return f"the largest delay that is searched ({largest}): give the spacing of the microphones"

    def _warnings(self, method: Method, rows: FrameEstimates) -> Iterator[str]:
        _, _, delay, confidence, out_of_range_delay, copied = rows
        answered = max(1, int(np.isfinite(delay).sum()))
        milliseconds = 1000 / method.sample_rate
        if method.warning is not None:
            yield method.warning
        outside = np.isfinite(out_of_range_delay)
        agreeing = _agreeing(out_of_range_delay[outside], TOLERANCE * method.sample_rate)
        sure = (confidence >= HALF) & ~outside
        if len(agreeing) > AGREE * answered and outside.sum() >= RIVALS * sure.sum():
            yield (
                f"in {outside.sum()} of {answered} frames the delay looks longer "
                f"({float(np.median(agreeing)) * milliseconds:+.2f} ms) than {self._limit_in_words(method)}"
            )
        if copied.sum() > NOTABLE * answered:
            yield (
                f"in {copied.sum()} of {answered} frames both channels hold the same signal: this is one microphone "
                "twice, and says nothing about a source"
            )
        size = np.abs(delay)
        # Of closer microphones, noise too has its answers there.
        close = method.limit < TOLERANCE * 2 * method.sample_rate
        if not close:
            last = (size >= method.limit + method.range_tolerance - 1e-6) & ~outside
            # more on one side than on the other: where there is no source, they are on both
            if abs(np.sign(delay[last]).sum()) > OFTEN * answered:
                last_delay = (method.limit + method.range_tolerance) * milliseconds
                yield (
                    f"in {last.sum()} of {answered} frames the answer is the last delay that is looked for, "
                    f"{last_delay:.2f} ms: the true one may be longer, or another"
                )
        if self.spacing is not None:
            largest = self.spacing / self.speed_of_sound * method.sample_rate
            impossible = size > largest + TOLERANCE / 2 * method.sample_rate + 1e-3  # of single precision
            cap = limit_cap((size - largest) / method.sample_rate, largest / method.sample_rate)
            longer = (cap <= HALF) & (confidence >= cap - 1e-3) & ~impossible & ~outside
            if abs(np.sign(delay[longer]).sum()) > (ALWAYS if close else OFTEN) * answered:  # on one side, as above
                yield (
                    f"in {longer.sum()} of {answered} frames the delay is a little longer than a spacing of "
                    f"{self.spacing:g} m allows: are the microphones further apart?"
                )
            if impossible.sum() > NOTABLE * answered:
                yield (
                    f"{impossible.sum()} of {answered} delays are longer than a spacing of {self.spacing:g} m allows; "
                    "they have no angle"
                )

    def _hop(self, method: Method) -> int:
        return max(1, round(self.hop * method.sample_rate))

    def method_at(self, sample_rate: int) -> Method:
        """The method for recordings at a rate."""
        if sample_rate not in self._methods:
            self._methods[sample_rate] = self._method_at(sample_rate)
        return self._methods[sample_rate]

    def _method_at(self, sample_rate: int) -> Method:
        check_band_in_recording(self.band, sample_rate)
        if self._network is not None:
            limited = self._network.limited(sample_rate, self.max_delay, self.frame)
            return limited if self.band is None else limited.within(*self.band)
        frame = round((self.frame or DEFAULT_FRAME) * sample_rate)
        max_delay = self.max_delay or DEFAULT_SPACING / self.speed_of_sound
        max_lag = gcc.lag_range(max_delay, sample_rate)
        if 2 * max_lag > frame:
            raise InputError(
                f"delays up to {1000 * max_delay:.1f} ms need frames of at least {2000 * max_delay:.0f} ms; "
                f"these have {1000 * frame / sample_rate:.0f} ms: use a longer frame or a smaller spacing (in metres)"
            )
        return Classical(
            self.method,
            sample_rate,
            frame,
            max_lag,
            limit=max_delay * sample_rate,
            band=self.band,
            beta=self.beta,
            interpolation=self.interpolation,
            range_tolerance=self._range_tolerance * sample_rate,
        )

    def _angle(self, seconds: Floats) -> Floats | None:
        if self.spacing is None:
            return None
        sine = seconds * self.speed_of_sound / self.spacing
        # A little more than possible is an inexact measure; much more has no angle.
        largest_sine = 1 + max(0.1, (TOLERANCE / 2 + 1e-7) * self.speed_of_sound / self.spacing)
        return np.where(np.abs(sine) > largest_sine, np.nan, np.degrees(np.arcsin(np.clip(sine, -1, 1))))


def _opened(
    source: Any, sample_rate: int | None, channels: Sequence[int], start: float | None, end: float | None, other: Any
) -> Recording:
    channels = check_indices("channels", channels, "(0, 1)")
    if isinstance(source, Recording):
        if (channels, start, end, other, sample_rate) != ((0, 1), None, None, None, None):
            raise InputError("a Recording has its channels and times already: choose them in open_audio and pick")
        recording = source
    else:
        if len(channels) != 2:
            raise InputError(f"a delay is between 2 channels, not {len(channels)}: choose two")
        recording = open_audio(source, sample_rate, start=start, end=end, other=other).pick(channels)
    if len(recording.channels) != 2:
        raise InputError(
            f"a delay is between 2 channels; the Recording holds {len(recording.channels)}: pick two of them"
        )
    return recording


def _agreeing(delays: Floats, tolerance: float) -> Floats:
    """The most delays that lie within a tolerance of each other, the smallest of equals."""
    ordered = np.sort(delays)
    if not len(ordered):
        return ordered
    ends = np.searchsorted(ordered, ordered + tolerance, side="right")
    first = int(np.argmax(ends - np.arange(len(ordered))))
    return ordered[first : ends[first]]


def _blocks(method: Method, recording: Recording, progress: Callable[[float], object] | None) -> Iterator[Samples]:
    """The blocks of a recording that is long enough; what is done is said when the next one is asked for."""
    check_long_enough(recording, method.frame, method.sample_rate)
    done = 0
    for block in recording.blocks():
        yield block
        done += block.shape[1]
        if progress is not None:
            progress(done / recording.samples)


def _levels(method: Method, recording: Recording) -> list[float]:
    """Standard deviation of each channel over the whole recording, where the method asks for it."""
    if method.scaling != "utterance":
        return [1.0] * len(recording.channels)
    count, sums = 0, np.zeros((2, len(recording.channels)))
    for block in recording.blocks():
        count += block.shape[1]
        sums += [[fold(channel) for channel in block] for fold in (_sum, _energy)]  # each as if it were alone
    mean, square = sums / count
    return [float(level) for level in np.maximum(np.sqrt(np.maximum(0.0, square - mean**2)), SILENCE)]


def _sum(channel: Samples) -> float:
    return float(channel.sum(dtype=np.float64))


def _energy(channel: Samples) -> float:
    return float(np.square(channel, dtype=np.float64).sum())


def load_network(method: str | Path, decoder: str | None = None, threads: int | None = None) -> Network:
    """A network by its name or its file."""
    name = check_method(method)
    path = pretrained(name) if name in NETWORKS else Path(name)
    if is_folder(path):
        raise InputError(f"{path} is a folder; a method is a name or the file of a network")
    if exists(path) or broken_link(path):
        check_file(path)
    else:
        raise InputError(
            f"unknown method {short_repr(name)}; known are {', '.join(METHODS)}, or the path of a network (no such "
            "file)"
        )
    return Network.load(path, decoder, threads)
