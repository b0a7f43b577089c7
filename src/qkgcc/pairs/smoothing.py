"""Delays that are smooth over time: a hidden Markov model over the delays that a network is asked for.

A source moves little between two frames, and now and then another one begins to speak. So the delay walks at random
(`WALK`), and at times jumps anywhere (`JUMP`); each frame's posterior is what is observed of it:

    a[t] ~ o[t] (T a[t-1])          forward: what the frames until now know
    b[t] ~ T' (o[t+1] b[t+1])       backward: what those after it add, `ahead` seconds of them

The smoothed posterior is a b. Without frames ahead it is the filter a, and nothing is waited for. Frames that overlap
hear the same samples: the posterior counts by the part of a frame that is new, and never rules a delay out (`DOUBT`).

L. R. Rabiner, "A tutorial on hidden Markov models", Proc. IEEE 77(2), 1989.
"""

import math

import numpy as np

from qkgcc.core.types import Floats
from qkgcc.pairs.evidence import FrameEstimates
from qkgcc.pairs.neural import Network

WALK = 200e-6
"""Seconds of delay: how far it usually goes in a second. A source whose delay changes by more than some 0.6 ms a second
is followed late, above all in noise and without frames ahead."""
JUMP = 2.0
"""Jumps a second."""
DOUBT = 0.05
"""Probability that a frame hears something else."""


class Smoother:
    """Gives frames the posterior, delay and probability that their past and the frames `ahead` leave.

    Args:
        hop: seconds from one frame to the next.
        ahead: seconds after a frame within which later ones count, and are waited for.
    """

    whole = False  # its probabilities were never measured

    def __init__(self, method: Network, hop: float, ahead: float) -> None:
        self._method = method
        self.after = math.ceil(ahead / hop - 1e-9)
        self._share = min(1.0, hop * method.sample_rate / method.frame)
        self._transition = _transition(
            method.lags, WALK * math.sqrt(hop) * method.sample_rate, -math.expm1(-JUMP * hop)
        )
        self._waiting = FrameEstimates.none(len(method.lags))
        self._forward: Floats = np.empty((0, len(method.lags)))  # of those that wait, and so is the next
        self._observed: Floats = np.empty((0, len(method.lags)))
        self._now: Floats = np.full(len(method.lags), 1 / len(method.lags))

    def push(self, rows: FrameEstimates) -> FrameEstimates:
        observed, forward = self._observations(rows), []
        for one in observed:
            self._now = _normed(one * (self._now @ self._transition))
            forward.append(self._now)
        self._waiting = FrameEstimates.joined([self._waiting, rows])
        self._observed = np.concatenate([self._observed, observed])
        self._forward = np.concatenate([self._forward, *(one[None] for one in forward)])
        return self._finish(len(self._observed) - self.after)

    def flush(self) -> FrameEstimates:
        return self._finish(len(self._observed))

    def _observations(self, rows: FrameEstimates) -> Floats:
        """Likelihoods of the delays; those of silence, of copies and of impossible delays say nothing. (T, L)"""
        found: Floats = (1 - DOUBT) * rows.curve.astype(np.float64) + DOUBT / rows.curve.shape[1]
        found **= self._share
        found[np.isnan(rows.delay) | np.isfinite(rows.out_of_range_delay) | rows.copied] = 1.0
        return found

    def _finish(self, end: int) -> FrameEstimates:
        count = max(0, end)
        rows, self._waiting = self._waiting.part(slice(count)), self._waiting.part(slice(count, None))
        smoothed = self._forward[:count].copy()
        for i in range(count):
            # Only the frames that it may wait for, though more may be here: blocks of any size give the same.
            back = np.ones(smoothed.shape[1])
            for later in self._observed[i + 1 : i + 1 + self.after][::-1]:
                back = _normed(self._transition @ (later * back))
            smoothed[i] = _normed(smoothed[i] * back)
        self._forward, self._observed = self._forward[count:], self._observed[count:]
        heard = np.isfinite(rows.delay)
        delay, confidence = rows.delay.copy(), np.zeros(count)
        curve = rows.curve.copy()
        delay[heard], confidence[heard] = self._method.read(smoothed[heard])
        curve[heard] = smoothed[heard]
        unsure = rows.copied | np.isfinite(rows.out_of_range_delay)
        confidence[unsure] = np.minimum(confidence, rows.confidence)[unsure]
        return rows._replace(curve=curve, delay=delay, confidence=confidence)


def _transition(lags: Floats, walk: float, jump: float) -> Floats:
    """Probability of each delay after each. Shape: (L,) -> (from, to)

    Args:
        walk: the mean step, in the unit of the lags. Most steps are small and a few large: exponential to both sides.
    """
    distance = (lags[:, None] - lags) / walk
    near = np.exp(-np.abs(distance))
    return np.asarray((1 - jump) * near / near.sum(axis=1, keepdims=True) + jump / len(lags))


def _normed(values: Floats) -> Floats:
    return np.asarray(values / values.sum())
