"""One estimator over every method: a recording in, a `DelayEstimate` out.

    recording -> (resample) -> frames -> evidence -> curve, delay, confidence

Evidence adds up over frames. Decoding the evidence of one frame gives that frame's delay; decoding the mean of all
gives the one delay of the whole recording.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qkgcc import gcc
from qkgcc.audio import Recording, framed, open_audio, resampled
from qkgcc.classical import Classical
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.decoding import Decoded, peaks
from qkgcc.errors import InputError
from qkgcc.methods import CLASSICAL, DEFAULT, METHODS, PRETRAINED, pretrained
from qkgcc.neural import SLACK, Network
from qkgcc.peaks import INTERPOLATIONS
from qkgcc.results import DelayEstimate, DelaySummary, Explanation

DEFAULT_SPACING = 0.5
"""Metres: the lag range when neither a spacing nor a largest delay is given."""
DEFAULT_FRAME = 0.128
"""Seconds."""
SILENCE = 1e-5
"""Joint RMS of a frame (full scale = 1) below which there is no estimate."""

COPIED = 1e-7
"""Share of a frame's power that differs between the channels, their gains aside, below which one is a copy."""
NOTABLE = 0.05
"""Share of the frames that something has to concern before it is said."""

DEAD = 1e-7
"""RMS of one channel below which it holds nothing, whatever the other does: less than the last of 24 bits."""

LEAST_WEIGHT = 1e-3
"""Probability below which a peak is no source."""
MOST_COLUMNS = 1000
"""Moments of an `Explanation`."""

Frames = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]


class Method(Protocol):
    """What the estimator needs of a method. Its lags are samples at its own `sample_rate`."""

    @property
    def kind(self) -> str: ...
    @property
    def calibrated(self) -> bool: ...
    @property
    def scaling(self) -> str:
        """'frame': unit joint RMS a frame; 'utterance': unit variance of channel 1 over the recording; 'none'."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def frame(self) -> int: ...
    @property
    def lags(self) -> npt.NDArray[np.float64]: ...

    def evidence(self, frames: Frames) -> tuple[npt.NDArray[Any], ...]:
        """Arrays whose mean over frames is the evidence of them all. Shape: (batch, 2, frame) -> (batch, ...) each."""

    def decode(self, evidence: tuple[npt.NDArray[Any], ...]) -> Decoded:
        """Shape: (batch, ...) each -> `Decoded`"""

    def in_context(self, posterior: Any, delay: Any, confidence: Any, beyond: Any, times: Any) -> npt.NDArray[Any]:
        """Confidences of frames that know of each other. Shape: (T, L), (T,), (T,), (T,), (T,) -> (T,)"""

    @property
    def remark(self) -> str | None:
        """What to know about this method as it is used here."""


class DelayEstimator:
    """Delay between two microphones over time. Positive: the first channel hears the source later.

    Args:
        method: a name out of `METHODS`, or the file of a network: a checkpoint, or ONNX.
        spacing: metres between the microphones. Limits the delays to what is possible, and gives angles.
        max_delay: largest delay in seconds; by default what the spacing allows. Without either, classical methods look
            for what 0.5 m allows, networks for all that they were trained on.
        frame, hop: seconds. A checkpoint brings its own frame.
        band: lowest and highest frequency in Hz that may count.
        interpolation: between the samples of a correlation: "band-limited" (by default), "parabolic" or "none".
        decoder: from a network's posterior to a delay: "argmax", "mean" or "quadratic"; by default what its card says.
        beta: exponent of "phat-beta".
        max_sources: how many peaks of a network's posterior to report, besides the one delay.
        symmetric: swapping the channels gives exactly the opposite answer: a network is asked both ways, and the mean
            counts. Twice the work.
        speed_of_sound: metres per second.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.standard_normal(16007)
    >>> estimator = DelayEstimator("phat", spacing=0.2)
    >>> answer = estimator(np.stack([x[:-7], x[7:]]), sample_rate=16000)
    >>> round(answer.summary.delay_samples, 2), round(answer.summary.angle)
    (7.0, 49)
    """

    def __init__(
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
        speed_of_sound: float = SPEED_OF_SOUND,
    ) -> None:
        _check("speed of sound", speed_of_sound, 100, 10_000, "m/s")
        if spacing is not None:
            _check("spacing", spacing, 0.001, 100, "m")
        if max_delay is not None:
            _check("largest delay", max_delay, 1e-6, 10, "s")
        if frame is not None:
            _check("frame", frame, 0.001, 60, "s")
        _check("hop", hop, 1e-4, 3600, "s")
        if beta is not None and not 0 <= beta <= 1:
            raise InputError(f"beta is {beta:g}; expected 0 (plain correlation) to 1 (phase transform)")
        if interpolation is not None and interpolation not in INTERPOLATIONS:
            raise InputError(f"unknown interpolation {interpolation!r}; known are {', '.join(INTERPOLATIONS)}")
        if not isinstance(max_sources, int) or max_sources < 1:
            raise InputError(f"max_sources is {max_sources!r}; expected a whole number, at least 1")
        self.method = str(method)
        self.spacing = spacing
        self.max_delay = max_delay if spacing is None or max_delay else spacing / speed_of_sound
        self.frame = frame
        self.hop = hop
        self.band = _checked_band(band)
        self.interpolation = interpolation or INTERPOLATIONS[0]
        self.beta = gcc.BETA if beta is None else beta
        self.max_sources = max_sources
        self.speed_of_sound = speed_of_sound
        self._network: Network | None = None
        if self.method in CLASSICAL:
            if symmetric:
                raise InputError(f"symmetric is for networks; {self.method} answers the opposite for swapped channels")
            if decoder is not None or max_sources > 1:
                raise InputError(
                    f"a decoder and several sources need the posterior of a network; {self.method} has a correlation"
                )
            return
        for what, value in (("a band", band), ("an interpolation", interpolation), ("beta", beta)):
            if value is not None:
                raise InputError(f"{what} is for the classical methods, such as phat; {self.method} is a network")
        self._network = dataclasses.replace(_load_network(method, decoder), symmetric=symmetric)

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
    ) -> DelayEstimate:
        """Estimate from a file, an array (2, n) with its `sample_rate`, or a `Recording` of two channels.

        Args:
            channels: which two channels of the file or array.
            start, end, other: as for `open_audio`.
            progress: called with the share that is done, from 0 to 1.
        """
        recording = _opened(source, sample_rate, channels, start, end, other)
        method = self._method(recording.sample_rate)
        parts: list[tuple[Frames, ...]] = []
        total: list[npt.NDArray[Any]] = []
        for frames, heard in self._batches(method, recording, progress):
            answer, evidence = _estimate_batch(method, frames, heard)
            parts.append(answer)
            if evidence:
                sums = [part.sum(axis=0, dtype=np.result_type(part, np.float64)) for part in evidence]
                total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
        curve, delay, confidence, beyond, copied = (np.concatenate(column) for column in zip(*parts, strict=True))
        times = self._times(method, recording, len(delay))
        confidence = np.where(copied, 0.0, method.in_context(curve, delay, confidence, beyond, times))
        answered = int(np.isfinite(delay).sum())
        whole_delay, whole_confidence = math.nan, 0.0
        if answered:
            whole = method.decode(tuple(part[None] / answered for part in total))
            whole_delay = float(whole.delay[0])
            whole_confidence = float(whole.confidence[0]) * (1 - float(copied.sum()) / answered)
        seconds = delay.astype(np.float64) / method.sample_rate
        whole_seconds = whole_delay / method.sample_rate
        whole_angle = self._angle(np.array([whole_seconds]))
        sources, weights = None, None
        if self.max_sources > 1:
            sources, weights = peaks(curve, method.lags, min(self.max_sources, len(method.lags)))
            sources[:, 0] = delay  # the same peak, read by the decoder
            none = (weights < LEAST_WEIGHT) | np.isnan(delay)[:, None]
            sources[none], weights[none] = np.nan, 0.0
        return DelayEstimate(
            source=recording.name,
            method=self.method,
            channels=(recording.channels[0], recording.channels[1]),
            sample_rate=recording.sample_rate,
            times=times,
            delay_samples=seconds * recording.sample_rate,
            delay_seconds=seconds,
            angle=self._angle(seconds),
            confidence=confidence.astype(np.float64),
            calibrated=method.calibrated,
            lags=method.lags * (recording.sample_rate / method.sample_rate),
            curve=curve.astype(np.float32),
            kind=method.kind,
            summary=DelaySummary(
                delay_samples=whole_seconds * recording.sample_rate,
                delay_seconds=whole_seconds,
                angle=None if whole_angle is None else float(whole_angle[0]),
                confidence=whole_confidence,
                frames=len(delay),
                answered=answered,
            ),
            source_delays=None if sources is None else sources * (recording.sample_rate / method.sample_rate),
            source_weights=weights,
            warnings=tuple(self._warnings(method, delay, beyond, copied)),
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
            raise InputError(f"{self.method} has no learned weights of frequencies to show: take a steered network")
        recording = _opened(source, sample_rate, channels, start, end, other)
        method = self._network.limited(recording.sample_rate, self.max_delay, self.frame)
        # Neighbouring frames become one, so that an hour takes no more memory than a picture shows.
        count = 1 + int((recording.duration * method.sample_rate - method.frame) / self._hop(method))
        together = -(-count // MOST_COLUMNS)
        sums = np.zeros((-(-count // together) + 1, len(method.frequencies)))
        frames_of = np.zeros(len(sums))
        first = 0
        for frames, heard in self._batches(method, recording, progress):
            column = (first + np.flatnonzero(heard)) // together
            np.add.at(sums, column, method.reliability(frames[heard]))
            np.add.at(frames_of, column, 1)
            first += len(frames)
        if not frames_of.any():
            raise InputError(
                f"{recording.name}: the channels are silent, or one of them is: there is nothing to explain"
            )
        columns = -(-first // together)
        with np.errstate(invalid="ignore"):
            weight = (sums / frames_of[:, None])[:columns].astype(np.float32)
        known = method.frequencies <= min(recording.sample_rate, method.sample_rate) / 2
        times = self._times(method, recording, first)
        middles = [float(times[i : i + together].mean()) for i in range(0, first, together)]
        return Explanation(
            source=recording.name,
            method=self.method,
            times=np.array(middles),
            frequencies=method.frequencies[known],
            weight=weight[:, known],
        )

    def _warnings(self, method: Method, delay: Floats, beyond: Floats, copied: npt.NDArray[np.bool_]) -> Iterator[str]:
        answered = max(1, int(np.isfinite(delay).sum()))
        milliseconds = 1000 / method.sample_rate
        if method.remark is not None:
            yield method.remark
        outside = np.isfinite(beyond)
        if outside.sum() > NOTABLE * answered:
            largest = 1000 * self.max_delay if self.max_delay else float(np.abs(method.lags).max()) * milliseconds
            by_size = sorted(beyond[outside], key=abs)
            yield (
                f"in {outside.sum()} of {answered} frames more speaks for a delay such as "
                f"{by_size[len(by_size) // 2] * milliseconds:+.2f} ms than for any up to {largest:.2f} ms, the largest "
                "looked for: give the spacing of the microphones, or the right one"
            )
        if copied.sum() > NOTABLE * answered:
            yield (
                f"in {copied.sum()} of {answered} frames both channels hold the same signal: this is one microphone "
                "twice, and says nothing about a source"
            )
        if self.spacing is not None:
            largest = self.spacing / self.speed_of_sound + SLACK / method.sample_rate
            impossible = np.abs(delay) / method.sample_rate > largest
            if impossible.sum() > NOTABLE * answered:
                yield (
                    f"{impossible.sum()} of {answered} delays are longer than a spacing of {self.spacing:g} m allows; "
                    "they have no angle"
                )

    def _batches(
        self, method: Method, recording: Recording, progress: Callable[[float], object] | None
    ) -> Iterator[tuple[Frames, npt.NDArray[np.bool_]]]:
        """Frames as the method wants them, and which of them are not silent. Shape: (batch, 2, frame), (batch,)"""
        if recording.duration * method.sample_rate < method.frame:
            raise InputError(
                f"{recording.name} has {recording.samples} samples ({recording.duration:.3f} s), less than a frame "
                f"({method.frame / method.sample_rate:.3f} s): give a longer recording or a shorter frame"
            )
        hop = self._hop(method)
        level = _channel_1_level(recording) if method.scaling == "utterance" else 1.0
        blocks = resampled(recording.blocks(), recording.sample_rate, method.sample_rate)
        done = 0
        for frames in framed(blocks, method.frame, hop):
            # What counts as sound is what changes: a constant offset is silence too.
            power = np.var(frames, axis=-1, dtype=np.float64)
            heard = (np.sqrt(power.mean(axis=-1)) >= SILENCE) & (np.sqrt(power) >= DEAD).all(axis=-1)
            if method.scaling == "frame":
                frames = at_unit_level(frames)
            elif method.scaling == "utterance":
                frames = frames / frames.dtype.type(level)
            yield frames, heard
            done += len(frames)
            if progress is not None:
                progress(min(1.0, (done * hop + method.frame) / (recording.duration * method.sample_rate)))

    def _hop(self, method: Method) -> int:
        return max(1, round(self.hop * method.sample_rate))

    def _times(self, method: Method, recording: Recording, frames: int) -> npt.NDArray[np.float64]:
        """Centres of the frames in seconds."""
        return recording.start + (np.arange(frames) * self._hop(method) + method.frame / 2) / method.sample_rate

    def _method(self, sample_rate: int) -> Method:
        if self._network is not None:
            return self._network.limited(sample_rate, self.max_delay, self.frame)
        frame = round((self.frame or DEFAULT_FRAME) * sample_rate)
        max_delay = self.max_delay or DEFAULT_SPACING / self.speed_of_sound
        max_lag = gcc.lag_range(max_delay, sample_rate)
        if 2 * max_lag > frame:
            raise InputError(
                f"delays up to {1000 * max_delay:.1f} ms need frames of at least {2000 * max_delay:.0f} ms; "
                f"these have {1000 * frame / sample_rate:.0f} ms: use a longer frame or a smaller spacing (in metres)"
            )
        if self.band is not None and self.band[0] >= sample_rate / 2:
            raise InputError(f"a recording at {sample_rate} Hz holds nothing above {self.band[0]:g} Hz: lower the band")
        limit = max_delay * sample_rate
        return Classical(self.method, sample_rate, frame, max_lag, limit, self.band, self.beta, self.interpolation)

    def _angle(self, seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
        if self.spacing is None:
            return None
        sine = seconds * self.speed_of_sound / self.spacing
        # A little more than possible is an inexact measure; much more has no angle.
        slack = 1 + max(0.1, SLACK / 16000 * self.speed_of_sound / self.spacing)
        return np.where(np.abs(sine) > slack, np.nan, np.degrees(np.arcsin(np.clip(sine, -1, 1))))


def at_unit_level(frames: Frames) -> Frames:
    """Frames without large constant offsets, both channels divided by their joint RMS. Shape: (batch, 2, n) -> same"""
    mean = frames.mean(axis=-1, keepdims=True, dtype=np.float64)
    spread = frames.std(axis=-1, keepdims=True, dtype=np.float64)
    # Sound has a small mean of its own, which networks know. Of a large one a hundredth is left: with nothing left, the
    # lowest bin would have no phase but that of rounding.
    offset = np.where(np.abs(mean) > 0.1 * spread, 0.99 * mean, 0.0).astype(frames.dtype)
    centred = frames - offset
    joint = np.sqrt(np.mean(np.square(centred, dtype=np.float64), axis=(1, 2), keepdims=True))
    return np.asarray(centred / np.maximum(joint, SILENCE / 2).astype(frames.dtype))


def _opened(
    source: Any, sample_rate: int | None, channels: Sequence[int], start: float | None, end: float | None, other: Any
) -> Recording:
    if isinstance(source, Recording):
        if (tuple(channels), start, end, other, sample_rate) != ((0, 1), None, None, None, None):
            raise InputError("a Recording has its channels and times already: choose them in open_audio and pick")
        recording = source
    else:
        recording = open_audio(source, sample_rate, start=start, end=end, other=other).pick(channels)
    if len(recording.channels) != 2:
        raise InputError(f"a delay is between 2 channels; {len(recording.channels)} were given (use pick)")
    return recording


def _estimate_batch(
    method: Method, frames: Frames, heard: npt.NDArray[np.bool_]
) -> tuple[tuple[Frames, ...], tuple[npt.NDArray[Any], ...]]:
    """Of each frame: curve, delay, confidence, a delay beyond the possible ones, whether one channel is a copy of the
    other; and the evidence of those that are not silent."""
    curve = np.zeros((len(frames), len(method.lags)), dtype=np.float32)
    if method.kind == "posterior":
        curve += 1 / len(method.lags)
    delay, beyond = np.full((2, len(frames)), np.nan)
    confidence = np.zeros(len(frames))
    copied = np.zeros(len(frames), dtype=bool)
    evidence: tuple[npt.NDArray[Any], ...] = ()
    if heard.any():
        evidence = method.evidence(frames[heard])
        curve[heard], delay[heard], confidence[heard], beyond[heard] = method.decode(evidence)
        copied[heard] = _one_is_a_copy(frames[heard])
        confidence[copied] = 0.0
    return (curve, delay, confidence, beyond, copied), evidence


def _one_is_a_copy(frames: Frames) -> npt.NDArray[np.bool_]:
    """Whether the channels are the same but for a gain. Shape: (batch, 2, frame) -> (batch,)"""
    first, second = frames[:, 0].astype(np.float64), frames[:, 1].astype(np.float64)
    product = (first * second).sum(axis=-1) ** 2
    power = (first**2).sum(axis=-1) * (second**2).sum(axis=-1)
    return np.asarray(product >= (1 - COPIED) * power)


def _channel_1_level(recording: Recording) -> float:
    """Standard deviation of channel 1 over the whole recording."""
    count, total, squares = 0, 0.0, 0.0
    for block in recording.blocks():
        count += block.shape[1]
        total += float(block[0].sum(dtype=np.float64))
        squares += float(np.square(block[0], dtype=np.float64).sum())
    return max(math.sqrt(max(0.0, squares / count - (total / count) ** 2)), SILENCE)


def _checked_band(band: Sequence[float] | None) -> tuple[float, float] | None:
    if band is None:
        return None
    if len(band) != 2:
        raise InputError(f"a band is a lowest and a highest frequency in Hz; got {band!r}")
    return float(band[0]), float(band[1])


def _load_network(method: str | Path, decoder: str | None) -> Network:
    path = pretrained(str(method)) if str(method) in PRETRAINED else Path(method)
    if path.is_dir():
        raise InputError(f"{path} is a folder; a method is a name or the file of a network")
    if not path.is_file():
        raise InputError(
            f"unknown method {str(method)!r}; known are {', '.join(METHODS)}, or the path of a network (no such file)"
        )
    return Network.load(path, decoder)


def _check(what: str, value: float, low: float, high: float, unit: str) -> None:
    if not isinstance(value, (int, float, np.number)):
        raise InputError(f"the {what} is {value!r}; expected a number from {low:g} to {high:g} {unit}")
    if not low <= value <= high:
        raise InputError(f"the {what} is {value:g} {unit}; expected {low:g} to {high:g} {unit}")
