"""From blocks of samples to estimates of frames, for recordings and streams alike:

    block -> (resample) -> frames -> evidence -> frames that know of each other -> finished frames

All pairs of channels go through it together: what comes before the evidence is done once for each channel. Every part
keeps what it still needs of the past and replaces it at each step, never changing an array in place: a shallow copy of
the parts is a copy of the whole state. However blocks are cut, frames are the same to the bit.
"""

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np

from qkgcc.core.types import Samples
from qkgcc.pairs.decoding import Decoded
from qkgcc.pairs.evidence import Evidence, FrameEstimates, Method, estimate_frames
from qkgcc.pairs.frontend import FrameBatch, FrontEnd
from qkgcc.pairs.neural import Network
from qkgcc.pairs.smoothing import Smoother


class Total:
    """The evidence of all frames, added up one by one."""

    def __init__(self) -> None:
        self.frames = self.answered = 0
        self.doubtful = 0
        """Frames that hold one signal twice, or that an impossible delay explains better."""
        self._sums: Evidence = ()
        self._decoded: Decoded | None = None

    def add(self, rows: FrameEstimates, evidence: Evidence) -> None:
        self._decoded = None
        self.frames += len(rows.delay)
        self.answered += int(np.isfinite(rows.delay).sum())
        self.doubtful += int((rows.copied | np.isfinite(rows.out_of_range_delay)).sum())
        for frame in zip(*evidence, strict=True):  # one by one: the sum does not depend on the batches
            wide = tuple(part.astype(np.result_type(part, np.float64)) for part in frame)
            self._sums = tuple(a + b for a, b in zip(self._sums, wide, strict=True)) if self._sums else wide

    def decode(self, method: Method) -> Decoded | None:
        """What it says; None when all was silence."""
        if self._decoded is None and self.answered:
            self._decoded = method.for_pooled_evidence.decode(tuple(part[None] / self.answered for part in self._sums))
        return self._decoded


class InContext:
    """Gives frames their confidence by what those around say, as soon as those that may count are there.

    Args:
        hop: seconds from one frame to the next.
        ahead: seconds after a frame within which later ones count, and are waited for.
    """

    def __init__(self, method: Method, hop: float, ahead: float = math.inf) -> None:
        self._method, self._ahead = method, min(ahead, method.context)
        self.whole = self._ahead == method.context
        """Whether all count that do in a recording."""
        self._before, self.after = (math.floor(seconds / hop + 1e-9) for seconds in (method.context, self._ahead))
        self._window = FrameEstimates.none(len(method.lags))
        self._done = 0  # frames of the window that were given out

    def push(self, rows: FrameEstimates) -> FrameEstimates:
        self._window = FrameEstimates.joined([self._window, rows])
        return self._finish(len(self._window.delay) - self.after)

    def flush(self) -> FrameEstimates:
        return self._finish(len(self._window.delay))

    def _finish(self, end: int) -> FrameEstimates:
        window, new = self._window, slice(self._done, max(self._done, end))
        if new.start == new.stop:
            return window.part(new)
        _, curve, delay, confidence, out_of_range_delay, _ = window
        found = self._method.in_context(curve, delay, confidence, out_of_range_delay, window.times, new, self._ahead)
        rows = window.part(new)
        gone = max(0, new.stop - self._before)
        self._window, self._done = window.part(slice(gone, None)), new.stop - gone
        return rows._replace(confidence=np.where(rows.copied, 0.0, found))


class Pipeline:
    """The state between two blocks. All times are of the method's frames, from the first sample on.

    Args:
        hop: samples at the method's rate.
        pairs: of channels of the blocks.
        start: seconds of the first sample.
        levels: of each pair, see `estimate_frames`.
        ahead: see `InContext`.
        smoothing: seconds ahead, see `Smoother`; None: frames are not smoothed. For networks.
    """

    def __init__(
        self,
        method: Method,
        sample_rate: int,
        hop: int,
        *,
        pairs: Sequence[tuple[int, int]] = ((0, 1),),
        start: float = 0.0,
        levels: Sequence[float] | None = None,
        ahead: float = math.inf,
        smoothing: float | None = None,
    ) -> None:
        self.method, self.pairs = method, tuple(pairs)
        self._levels = [1.0] * len(pairs) if levels is None else list(levels)
        self._front = FrontEnd(sample_rate, method.sample_rate, method.frame, hop, start=start)
        seconds = hop / method.sample_rate
        fresh: InContext | Smoother = (
            Smoother(method, seconds, smoothing)
            if smoothing is not None and isinstance(method, Network)
            else InContext(method, seconds, ahead)
        )
        self._over_time = [copy.copy(fresh) for _ in pairs]
        self.totals = [Total() for _ in pairs]
        """Of each pair."""
        self.none = FrameEstimates.none(len(method.lags))
        self.latency = self._front.latency + fresh.after * seconds
        """Seconds from the last sample of a frame to the one that finishes it, at most."""
        self.calibrated = method.calibrated and fresh.whole

    def push(self, block: Samples) -> list[FrameEstimates]:
        """The frames that are finished by now, of each pair. Shape: (channels, n) -> T frames"""
        return self._estimate(self._front.push(block))

    def flush(self) -> list[FrameEstimates]:
        """The rest, at the end; an incomplete frame is none."""
        last = self._estimate(self._front.flush())
        return [FrameEstimates.joined([rows, over.flush()]) for rows, over in zip(last, self._over_time, strict=True)]

    def copy(self) -> "Pipeline":
        twin = copy.copy(self)
        twin._front = self._front.copy()
        twin._over_time = [copy.copy(one) for one in self._over_time]
        twin.totals = [copy.copy(one) for one in self.totals]
        return twin

    def _estimate(self, batches: Iterator[FrameBatch]) -> list[FrameEstimates]:
        finished: list[list[FrameEstimates]] = [[] for _ in self.pairs]
        for batch in batches:
            estimates = estimate_frames(self.method, batch, self.pairs, self._levels)
            for (rows, evidence), total, over, done in zip(
                estimates, self.totals, self._over_time, finished, strict=True
            ):
                total.add(rows, evidence)
                done.append(over.push(rows))
        return [FrameEstimates.joined(done) if done else self.none for done in finished]
