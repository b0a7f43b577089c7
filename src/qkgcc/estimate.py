"""One estimator over every method: a recording in, a `DelayEstimate` out.

    recording -> (resample) -> frames -> evidence -> curve, delay, confidence

Evidence adds up over frames. Decoding the evidence of one frame gives that frame's delay; decoding the mean of all
gives the one delay of the whole recording.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qkgcc import gcc
from qkgcc.audio import Recording, framed, open_audio, resampled
from qkgcc.classical import Classical
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.errors import InputError
from qkgcc.methods import METHODS
from qkgcc.peaks import INTERPOLATIONS
from qkgcc.results import DelayEstimate, DelaySummary

DEFAULT_SPACING = 0.5
"""Metres: the lag range when neither a spacing nor a largest delay is given."""
DEFAULT_FRAME = 0.128
"""Seconds."""
SILENCE = 1e-5
"""Joint RMS of a frame (full scale = 1) below which there is no estimate."""

DEAD = 1e-7
"""RMS of one channel below which it holds nothing, whatever the other does: less than the last of 24 bits."""

Frames = npt.NDArray[np.floating[Any]]


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

    def decode(
        self, evidence: tuple[npt.NDArray[Any], ...]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """Curve (batch, L), delay in samples (batch,), confidence (batch,)."""


class DelayEstimator:
    """Delay between two microphones over time. Positive: the first channel hears the source later.

    Args:
        method: "cc", "phat", "phat-beta", "roth", "scot", "ml", or the path of a checkpoint.
        spacing: metres between the microphones. Limits the delays to what is possible, and gives angles.
        max_delay: largest delay in seconds; by default what the spacing allows, or 0.5 m without one.
        frame, hop: seconds. A checkpoint brings its own frame.
        band: lowest and highest frequency in Hz that may count.
        interpolation: "band-limited", "parabolic" or "none".
        beta: exponent of "phat-beta".
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
        method: str | Path = "phat",
        *,
        spacing: float | None = None,
        max_delay: float | None = None,
        frame: float | None = None,
        hop: float = 0.064,
        band: tuple[float, float] | None = None,
        interpolation: str = "band-limited",
        beta: float = gcc.BETA,
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
        if not 0 <= beta <= 1:
            raise InputError(f"beta is {beta:g}; expected 0 (plain correlation) to 1 (phase transform)")
        if interpolation not in INTERPOLATIONS:
            raise InputError(f"unknown interpolation {interpolation!r}; known are {', '.join(INTERPOLATIONS)}")
        self.method = str(method)
        self.spacing = spacing
        self.max_delay = max_delay if spacing is None or max_delay else spacing / speed_of_sound
        self.frame = frame
        self.hop = hop
        self.band = _checked_band(band)
        self.interpolation = interpolation
        self.beta = beta
        self.speed_of_sound = speed_of_sound
        self._network: Any = None
        if self.method not in METHODS:
            self._network = _load_network(Path(method))
            if self.band is not None:
                raise InputError(
                    "a band limit is for the classical methods; a checkpoint chooses its frequencies itself"
                )

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
        if isinstance(source, Recording):
            if (tuple(channels), start, end, other, sample_rate) != ((0, 1), None, None, None, None):
                raise InputError("a Recording has its channels and times already: choose them in open_audio and pick")
            recording = source
        else:
            recording = open_audio(source, sample_rate, start=start, end=end, other=other).pick(channels)
        if len(recording.channels) != 2:
            raise InputError(f"a delay is between 2 channels; {len(recording.channels)} were given (use pick)")
        method = self._method(recording.sample_rate)
        hop = max(1, round(self.hop * method.sample_rate))
        if recording.duration * method.sample_rate < method.frame:
            raise InputError(
                f"{recording.name} has {recording.samples} samples ({recording.duration:.3f} s), less than a frame "
                f"({method.frame / method.sample_rate:.3f} s): give a longer recording or a shorter frame"
            )
        level = _channel_1_level(recording) if method.scaling == "utterance" else 1.0
        blocks = resampled(recording.blocks(), recording.sample_rate, method.sample_rate)
        parts: list[tuple[Frames, Frames, Frames]] = []
        total: list[npt.NDArray[Any]] = []
        done = 0
        for frames in framed(blocks, method.frame, hop):
            answer, evidence = _estimate_batch(method, frames, level)
            parts.append(answer)
            if evidence:
                sums = [part.sum(axis=0, dtype=np.result_type(part, np.float64)) for part in evidence]
                total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
            done += len(frames)
            if progress is not None:
                progress(min(1.0, (done * hop + method.frame) / (recording.duration * method.sample_rate)))
        curve, delay, confidence = (np.concatenate(column) for column in zip(*parts, strict=True))
        times = recording.start + (np.arange(len(delay)) * hop + method.frame / 2) / method.sample_rate
        answered = int(np.isfinite(delay).sum())
        whole_delay, whole_confidence = math.nan, 0.0
        if answered:
            _, one_delay, one_confidence = method.decode(tuple(part[None] / answered for part in total))
            whole_delay, whole_confidence = float(one_delay[0]), float(one_confidence[0])
        seconds = delay.astype(np.float64) / method.sample_rate
        whole_seconds = whole_delay / method.sample_rate
        whole_angle = self._angle(np.array([whole_seconds]))
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
        )

    def _method(self, sample_rate: int) -> Method:
        if self._network is not None:
            network: Method = self._network.limited(sample_rate, self.max_delay, self.frame)
            return network
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
        sine = np.clip(seconds * self.speed_of_sound / self.spacing, -1, 1)
        return np.asarray(np.degrees(np.arcsin(sine)))


def _estimate_batch(
    method: Method, frames: Frames, level: float
) -> tuple[tuple[Frames, Frames, Frames], tuple[npt.NDArray[Any], ...]]:
    """Curve, delay and confidence of each frame, and the evidence of those that are not silent."""
    # What counts as sound is what changes: a constant offset is silence too.
    power = np.var(frames, axis=-1, dtype=np.float64)
    heard = (np.sqrt(power.mean(axis=-1)) >= SILENCE) & (np.sqrt(power) >= DEAD).all(axis=-1)
    curve = np.zeros((len(frames), len(method.lags)), dtype=np.float32)
    if method.kind == "posterior":
        curve += 1 / len(method.lags)
    delay = np.full(len(frames), np.nan)
    confidence = np.zeros(len(frames))
    evidence: tuple[npt.NDArray[Any], ...] = ()
    if heard.any():
        loud = frames[heard]
        if method.scaling == "frame":
            joint = np.sqrt(np.mean(np.square(loud, dtype=np.float64), axis=(1, 2), keepdims=True))
            loud = loud / joint.astype(frames.dtype)
        elif method.scaling == "utterance":
            loud = loud / frames.dtype.type(level)
        evidence = method.evidence(loud)
        curve[heard], delay[heard], confidence[heard] = method.decode(evidence)
    return (curve, delay, confidence), evidence


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


def _load_network(path: Path) -> Any:
    if not path.is_file():
        raise InputError(
            f"unknown method {str(path)!r}; known are {', '.join(METHODS)}, or the path of a checkpoint (no such file)"
        )
    from qkgcc.neural import Network

    return Network.load(path)


def _check(what: str, value: float, low: float, high: float, unit: str) -> None:
    if not isinstance(value, (int, float, np.number)):
        raise InputError(f"the {what} is {value!r}; expected a number from {low:g} to {high:g} {unit}")
    if not low <= value <= high:
        raise InputError(f"the {what} is {value:g} {unit}; expected {low:g} to {high:g} {unit}")
