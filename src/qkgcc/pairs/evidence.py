"""What a method says of frames, each by itself: a curve, a delay, a confidence, and evidence that adds up."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import DEAD, SILENCE
from qkgcc.dsp.rumble import without_rumble
from qkgcc.pairs.decoding import WINDOW, Decoded

COPIED = 1e-7
"""Share of a frame's power that differs between the channels, their gains aside, below which one is a copy."""

Frames = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
Evidence = tuple[npt.NDArray[Any], ...]


class Method(Protocol):
    """What the estimator needs of a method. Its lags are samples at its own `sample_rate`.

    What it says of a frame is the same to the bit whichever frames are asked for with it, so that a stream says what a
    recording does (`neural.TorchModel` alone does not keep that).
    """

    @property
    def kind(self) -> str: ...
    @property
    def calibrated(self) -> bool: ...
    @property
    def scaling(self) -> str:
        """'frame': unit joint RMS a frame; 'utterance': unit variance of channel 1 over the recording; 'none': a gain
        of both channels changes nothing."""

    @property
    def rumble(self) -> float:
        """Hz up to which hum and rumble are taken out of frames that they drown, where the scaling is 'frame'."""

    @property
    def sample_rate(self) -> int: ...
    @property
    def frame(self) -> int: ...
    @property
    def lags(self) -> npt.NDArray[np.float64]: ...
    @property
    def limit(self) -> float:
        """Samples beyond which no delay is possible."""

    @property
    def slack(self) -> float:
        """Samples by which an answer may exceed `limit`: a spacing is seldom measured so well."""

    def of_channels(self, frames: Frames) -> tuple[Any, ...] | None:
        """What every channel needs alone, so that pairs share it; None: nothing. Shape: (batch, channels, frame)"""

    def evidence(self, frames: Frames, channels: Any = None) -> Evidence:
        """Arrays whose mean over frames is the evidence of them all.

        Args:
            channels: what `of_channels` made of the first and of the second channel, where it is known already.
        Shape: (batch, 2, frame) -> (batch, ...) each
        """

    def decode(self, evidence: Evidence) -> Decoded:
        """Shape: (batch, ...) each -> `Decoded`"""

    @property
    def of_many(self) -> "Method":
        """What decodes the mean of many frames."""

    @property
    def context(self) -> float:
        """Seconds around a frame in which others count for its confidence; 0: none do."""

    def in_context(
        self,
        posterior: Any,
        delay: Any,
        confidence: Any,
        beyond: Any,
        times: Any,
        wanted: slice | None = None,
        ahead: float = WINDOW,
    ) -> npt.NDArray[Any]:
        """Confidences of frames that know of each other.

        Args:
            wanted: which of the T frames are asked for; all N = T by default.
            ahead: seconds after a frame within which later ones count.
        Shape: (T, L), (T,), (T,), (T,), (T,) -> (N,)
        """

    @property
    def remark(self) -> str | None:
        """What to know about this method as it is used here."""


class Judged(NamedTuple):
    """Frames and what is known of each. Shape: T frames, L lags."""

    times: Floats
    """(T,) centres in seconds."""
    curve: npt.NDArray[np.float32]
    """(T, L)"""
    delay: Floats
    """(T,) samples; NaN: silence."""
    confidence: Floats
    beyond: Floats
    """(T,) see `decoding.Decoded`."""
    copied: npt.NDArray[np.bool_]
    """(T,) whether one channel is a copy of the other."""

    @staticmethod
    def none(lags: int) -> "Judged":
        empty = np.empty(0)
        return Judged(empty, np.empty((0, lags), np.float32), empty, empty, empty, np.empty(0, np.bool_))

    @staticmethod
    def joined(parts: "Iterable[Judged]") -> "Judged":
        some = list(parts)
        if len(some) == 1:
            return some[0]
        return Judged._make(np.concatenate(column) for column in zip(*some, strict=True))

    def without_curves(self) -> "Judged":
        return self._replace(curve=np.empty((len(self.delay), 0), np.float32))

    def part(self, frames: slice) -> "Judged":
        return Judged._make(column[frames] for column in self)


def judge(
    method: Method, frames: Frames, times: Floats, pairs: Sequence[tuple[int, int]], levels: Sequence[float]
) -> list[tuple[Judged, Evidence]]:
    """What a method says of each pair of channels in each frame, and the evidence of those that are not silent.

    Args:
        levels: of each pair in the recording, for methods whose scaling is 'utterance'.
    Shape: (batch, channels, frame)
    """
    alone = method.of_channels(frames)
    # take, not an index: pairs lie in memory as they would alone, and so are summed in the same order
    return [
        _judge_pair(method, np.take(frames, pair, axis=1), times, pair, level, alone)
        for pair, level in zip(pairs, levels, strict=True)
    ]


def _judge_pair(
    method: Method,
    frames: Frames,
    times: Floats,
    pair: tuple[int, int],
    level: float,
    alone: tuple[Any, ...] | None,
) -> tuple[Judged, Evidence]:
    recorded = frames
    frames, heard = prepared(method, frames, level)
    curve = np.zeros((len(frames), len(method.lags)), dtype=np.float32)
    if method.kind == "posterior":
        curve += 1 / len(method.lags)
    delay, beyond = np.full((2, len(frames)), np.nan)
    confidence = np.zeros(len(frames))
    copied = np.zeros(len(frames), dtype=np.bool_)
    evidence: Evidence = ()
    if heard.any():
        channels = None
        if alone is not None:
            kept = alone if heard.all() else tuple(one.of_frames(heard) for one in alone)
            channels = tuple(tuple(one.channel(number) for one in kept) for number in pair)
        evidence = method.evidence(frames[heard], channels)
        curve[heard], delay[heard], confidence[heard], beyond[heard] = method.decode(evidence)
        copied[heard] = _one_is_a_copy(recorded[heard])
        confidence[copied] = 0.0
    return Judged(times, curve, delay, confidence, beyond, copied), evidence


def prepared(method: Method, frames: Frames, level: float = 1.0) -> tuple[Frames, npt.NDArray[np.bool_]]:
    """Frames as the method wants them, and which of them are not silent. Shape: (batch, 2, frame), (batch,)"""
    # What counts as sound is what changes: a constant offset is silence too.
    power = np.var(frames, axis=-1, dtype=np.float64)
    heard = (np.sqrt(power.mean(axis=-1)) >= SILENCE) & (np.sqrt(power) >= DEAD).all(axis=-1)
    if method.scaling == "frame":
        frames = at_unit_level(without_rumble(frames, method.sample_rate, highest=method.rumble))
    elif method.scaling == "utterance":
        frames = frames / frames.dtype.type(level)
    return frames, heard


def at_unit_level(frames: Frames) -> Frames:
    """Frames without large constant offsets, all channels divided by their joint RMS. Shape: (batch, M, n) -> same"""
    mean = frames.mean(axis=-1, keepdims=True, dtype=np.float64)
    around = frames - mean
    spread = np.sqrt(np.multiply(around, around, out=around).mean(axis=-1, keepdims=True))
    # Sound has a small mean of its own, which networks know. Of a large one a hundredth is left: with nothing left, the
    # lowest bin would have no phase but that of rounding.
    large = np.abs(mean) > 0.1 * spread
    centred = frames - np.where(large, 0.99 * mean, 0.0).astype(frames.dtype) if large.any() else frames
    joint = np.sqrt(np.mean(np.square(centred, dtype=np.float64), axis=(1, 2), keepdims=True))
    return np.asarray(centred / np.maximum(joint, SILENCE / 2).astype(frames.dtype))


def _one_is_a_copy(frames: Frames) -> npt.NDArray[np.bool_]:
    """Whether the channels are the same but for a gain and an offset. Shape: (batch, 2, frame) -> (batch,)"""
    wide = frames.astype(np.float64)
    first, second = np.moveaxis(wide - wide.mean(axis=-1, keepdims=True), 1, 0)
    product = (first * second).sum(axis=-1) ** 2
    power = (first**2).sum(axis=-1) * (second**2).sum(axis=-1)
    return np.asarray(product >= (1 - COPIED) * power)
