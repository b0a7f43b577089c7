"""Delays of sound that is still coming: blocks of any size in, frames out as they complete.

    estimator = DelayEstimator(spacing=0.2)
    stream = DelayStream(estimator, sample_rate=48000)
    for block in microphone:  # (2, any number of samples)
        answer = stream.push(block)  # the frames that this block completed, perhaps none

Whatever the blocks, delays, curves and times are those that the estimator finds in the whole recording, to the bit:
both go through one `Pipeline`. A network's confidence in a recording counts the frames up to a second around each. A
stream that answers at once knows those before; with `lookahead=1` it waits for those after too, and the confidence is
the recording's to the bit as well. With less lookahead the full-context calibration curves are used (no others exist),
so `calibrated` is False.
"""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.audio.recording import as_floats, check_rate, check_samples, read_block
from qkgcc.core.checks import check_number, short_repr
from qkgcc.core.errors import InputError
from qkgcc.core.types import Samples
from qkgcc.delay.estimator import DelayEstimator
from qkgcc.delay.result import DelayEstimate
from qkgcc.pairs.evidence import FrameEstimates

RECENT = 1000
"""Frames that the warnings of a stream are about, at most: the last ones."""


class DelayStream:
    """A `DelayEstimator` at work on sound that is still coming. It needs the same little memory however long it runs.

    Args:
        sample_rate: of all blocks.
        lookahead: seconds after a frame that are waited for, up to 1, so that the frames there count for its
            confidence; below 1 that is not calibrated. Only networks do, and not with smoothing: how far that looks
            ahead is the estimator's option.

    >>> from qkgcc import DelayEstimator
    >>> x = np.random.default_rng(0).standard_normal(16007)
    >>> stream = DelayStream(DelayEstimator("phat", spacing=0.2), sample_rate=16000)
    >>> answer = stream.push(np.stack([x[:3000], x[7:3007]]))
    >>> answer.times, answer.delay_samples.round(1)
    (array([0.064]), array([7.]))
    """

    def __init__(self, estimator: DelayEstimator, sample_rate: int, *, lookahead: float = 0.0) -> None:
        lookahead = check_number("lookahead", lookahead, 0, 1, "s")
        if not isinstance(estimator, DelayEstimator):
            raise InputError(
                f"a stream takes a DelayEstimator, not {short_repr(estimator)}: "
                "DelayStream(DelayEstimator(...), sample_rate)"
            )
        self.estimator = estimator
        self.sample_rate = check_rate(sample_rate)
        self.lookahead = lookahead
        method = estimator.method_at(self.sample_rate)
        if method.scaling == "utterance":
            raise InputError(
                f"{estimator.method} is scaled by the level of a whole recording, which a stream does not know: take "
                "general, a steered checkpoint scaled by frame, or a classical method"
            )
        if not estimator.frame_by_frame:
            raise InputError(
                f"{estimator.method} is run by torch, which rounds a frame by those beside it: a stream takes one "
                "of `qkgcc methods`, or a steered checkpoint"
            )
        self._fresh = estimator.pipeline(method, self.sample_rate, ahead=self.lookahead)
        self.reset()

    @property
    def frame(self) -> float:
        """Seconds of a frame."""
        return self._fresh.method.frame / self._fresh.method.sample_rate

    @property
    def latency(self) -> float:
        """Seconds after the last sample of a frame until it is answered, at most; the frame itself comes on top."""
        return self._fresh.latency

    def reset(self) -> None:
        """Forget all that was heard: the next block is the first one, at 0 s."""
        self._pipeline = self._fresh.copy()
        self._recent = FrameEstimates.none(0)
        self._nothing: tuple[int, DelayEstimate | None] = (
            -1,
            None,
        )  # the answer without frames, when so many had been heard
        self._samples = 0
        self._dtype: np.dtype[Any] | None = None
        self._ended = False

    def copy(self) -> "DelayStream":
        """Another stream that has heard the same and goes its own way from here."""
        twin = copy.copy(self)
        twin._pipeline = self._pipeline.copy()
        return twin

    def push(self, block: npt.ArrayLike, sample_rate: int | None = None) -> DelayEstimate:
        """The frames that are complete with this block, and one delay for all until now.

        A block that cannot be used is an `InputError`; nothing of it is taken, and the stream goes on with the next.

        Args:
            block: whole numbers or floats, as for an estimator. Shape: (2, n), n may be 0, or an empty list
            sample_rate: of the block, if it is known: another one than the stream's is an error.
        """
        samples, dtype = self._checked(block, sample_rate)
        if not samples.shape[1]:
            return self._answer(self._pipeline.none)
        pipeline = self._pipeline.copy()
        (rows,) = pipeline.push(samples)  # if that is interrupted, the stream is as it was
        self._pipeline, self._dtype = pipeline, dtype
        self._samples += samples.shape[1]
        return self._answer(rows)

    def flush(self) -> DelayEstimate:
        """The frames that were waited for: the stream ends here, as a recording does, and only `reset` goes on."""
        self._check_open()
        pipeline = self._pipeline.copy()
        (rows,) = pipeline.flush()
        self._pipeline, self._ended = pipeline, True
        return self._answer(rows)

    def _answer(self, rows: FrameEstimates) -> DelayEstimate:
        seen = self._pipeline.totals[0].frames
        before, nothing = self._nothing
        if nothing is not None and before == seen and not len(rows.delay):
            return nothing  # most blocks complete no frame
        if len(rows.delay):  # without curves: a thousand of them take longer to move than a frame to answer
            self._recent = FrameEstimates.joined([self._recent, rows.without_curves()]).part(slice(-RECENT, None))
        answer = self.estimator.answer(self._pipeline, 0, rows, self._recent, "the stream", (0, 1), self.sample_rate)
        if not len(rows.delay):
            self._nothing = seen, answer
        return answer

    def _checked(self, block: npt.ArrayLike, sample_rate: int | None) -> tuple[Samples, np.dtype[Any]]:
        """The samples as floats, and the type that they came in."""
        self._check_open()
        if sample_rate is not None and check_rate(sample_rate) != self.sample_rate:
            raise InputError(
                f"a block at {sample_rate} Hz in a stream at {self.sample_rate} Hz: begin another stream for it"
            )
        read = read_block(block, 2)
        if read.size and self._dtype is not None and read.dtype != self._dtype:
            floats = read.dtype.kind == self._dtype.kind == "f"
            why = "frames are computed in the type they come in" if floats else "full scales may differ"
            raise InputError(f"a block of {read.dtype} in a stream of {self._dtype}: {why}, convert it")
        samples = as_floats(read) if read.size else np.empty((2, 0))
        check_samples(samples, "the stream", (0, 1), self.sample_rate, self._samples / self.sample_rate)
        return samples, read.dtype

    def _check_open(self) -> None:
        if self._ended:
            raise InputError("the stream has ended: reset() begins another")
