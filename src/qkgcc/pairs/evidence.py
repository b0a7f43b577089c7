"""Estimates of single frames by any method: a curve, a delay, a confidence, and evidence that adds up over frames."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import Bools, Floats, Floats32, Samples
from qkgcc.pairs.decoding import WINDOW, Decoded
from qkgcc.pairs.frontend import FrameBatch, channel_power, frame_levels, normalise_frames, one_is_a_copy

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
    def lags(self) -> Floats: ...
    @property
    def limit(self) -> float:
        """Samples beyond which no delay is possible."""

    @property
    def range_tolerance(self) -> float:
        """Samples by which an answer may exceed `limit`: a spacing is seldom measured so well."""

    def channel_features(self, frames: Samples) -> tuple[Any, ...] | None:
        """What is computed once for each channel and shared by its pairs, or None. Shape: (batch, channels, frame)"""

    def evidence(self, frames: Samples, channels: Any = None) -> Evidence:
        """Arrays whose mean over frames is the evidence of them all.

        Args:
            channels: what `channel_features` made of the first and of the second channel, where it is known already.
        Shape: (batch, 2, frame) -> (batch, ...) each
        """

    def decode(self, evidence: Evidence) -> Decoded:
        """Shape: (batch, ...) each -> `Decoded`"""

    @property
    def for_pooled_evidence(self) -> "Method":
        """The method that decodes the mean evidence of many frames."""

    @property
    def context(self) -> float:
        """Seconds around a frame in which others count for its confidence; 0: none do."""

    def in_context(
        self,
        posterior: Any,
        delay: Any,
        confidence: Any,
        out_of_range_delay: Any,
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
    def warning(self) -> str | None:
        """Warning shown with the answer, or None."""


class FrameEstimates(NamedTuple):
    """A curve, a delay and a confidence for each frame of a pair. Shape: T frames, L lags."""

    times: Floats
    """(T,) centres in seconds."""
    curve: Floats32
    """(T, L)"""
    delay: Floats
    """(T,) samples; NaN: silence."""
    confidence: Floats
    out_of_range_delay: Floats
    """(T,) samples of a likely delay that the spacing does not allow, see `decoding.Decoded`; NaN: none."""
    copied: Bools
    """(T,) whether one channel is a copy of the other."""

    @staticmethod
    def none(lags: int) -> "FrameEstimates":
        empty = np.empty(0)
        return FrameEstimates(empty, np.empty((0, lags), np.float32), empty, empty, empty, np.empty(0, np.bool_))

    @staticmethod
    def joined(parts: "Iterable[FrameEstimates]") -> "FrameEstimates":
        some = list(parts)
        if len(some) == 1:
            return some[0]
        return FrameEstimates._make(np.concatenate(column) for column in zip(*some, strict=True))

    def without_curves(self) -> "FrameEstimates":
        return self._replace(curve=np.empty((len(self.delay), 0), np.float32))

    def part(self, frames: slice) -> "FrameEstimates":
        return FrameEstimates._make(column[frames] for column in self)


def estimate_frames(
    method: Method, batch: FrameBatch, pairs: Sequence[tuple[int, int]], levels: Sequence[float]
) -> list[tuple[FrameEstimates, Evidence]]:
    """Estimates of each pair of channels in each frame, and the evidence of the frames that are not silent.

    Args:
        levels: of each pair in the recording, for methods whose scaling is 'utterance'.
    """
    alone = method.channel_features(batch.samples)
    return [_estimate_pair(method, batch, pair, level, alone) for pair, level in zip(pairs, levels, strict=True)]


def _estimate_pair(
    method: Method, batch: FrameBatch, pair: tuple[int, int], level: float, alone: tuple[Any, ...] | None
) -> tuple[FrameEstimates, Evidence]:
    # take, not an index: pairs lie in memory as they would alone, and so are summed in the same order
    recorded = np.take(batch.samples, pair, axis=1)
    frames = _scaled(method, recorded, level)
    heard = frame_levels(np.take(batch.power, pair, axis=1), faint=0.0).audible
    curve = np.zeros((len(frames), len(method.lags)), dtype=np.float32)
    if method.kind == "posterior":
        curve += 1 / len(method.lags)
    delay, out_of_range_delay = np.full((2, len(frames)), np.nan)
    confidence = np.zeros(len(frames))
    copied = np.zeros(len(frames), dtype=np.bool_)
    evidence: Evidence = ()
    if heard.any():
        channels = None
        if alone is not None:
            kept = alone if heard.all() else tuple(one.of_frames(heard) for one in alone)
            channels = tuple(tuple(one.channel(number) for one in kept) for number in pair)
        evidence = method.evidence(frames[heard], channels)
        curve[heard], delay[heard], confidence[heard], out_of_range_delay[heard] = method.decode(evidence)
        copied[heard] = one_is_a_copy(recorded[heard])
        confidence[copied] = 0.0
    return FrameEstimates(batch.times, curve, delay, confidence, out_of_range_delay, copied), evidence


def prepare_frames(method: Method, frames: Samples, level: float = 1.0) -> tuple[Samples, Bools]:
    """Frames as the method wants them, and which of them are not silent. Shape: (batch, 2, frame), (batch,)"""
    return _scaled(method, frames, level), frame_levels(channel_power(frames), faint=0.0).audible


def _scaled(method: Method, frames: Samples, level: float) -> Samples:
    if method.scaling == "frame":
        return normalise_frames(frames, method.sample_rate, method.rumble)
    return frames / frames.dtype.type(level) if method.scaling == "utterance" else frames
