"""What the frames of some seconds say of the delays of each pair, added up.

A network's posteriors are *summed* over frames, as those of directions are: a histogram of delays for each pair, in
which every talker has a peak, and so has a place that a talker walked through. Its curve is

    log(p / uniform + `FLOOR`),

which adds up over pairs: a pair that says nothing of a place, for it heard a reflection or another talker, costs that
place little, whatever it says instead. Histograms are smoothed by the width that a frame's own error has.

Correlations have no such scale and are averaged, which is steered response power.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.ndimage import gaussian_filter1d

from qkgcc.arrays.evidence import ArrayEvidence, ArrayFrames

FLOOR = 1.0
"""Added to a histogram that is 1 where it is uniform."""
SMOOTHED = 1e-4
"""Seconds, standard deviation: 3 cm of a way."""

Floats = npt.NDArray[np.float64]


class DelaySums:
    """Frames added up: the same little memory however many they are."""

    def __init__(self, evidence: ArrayEvidence) -> None:
        self._evidence = evidence
        self.frames = 0
        """That are no silence."""
        self._sums = np.zeros(sum(len(lags) for lags in evidence.lags))

    def add(self, frames: ArrayFrames) -> None:
        said = frames.curves[frames.heard]
        self.frames += len(said)
        self._sums += (np.exp(said) if self._evidence.kind == "posterior" else said).sum(axis=0, dtype=np.float64)

    def join(self, other: DelaySums) -> None:
        """Add the frames of another of the same evidence."""
        self.frames += other.frames
        self._sums += other._sums

    @property
    def curves(self) -> Floats:
        """Of all pairs one after the other. Shape: (K,)"""
        mean = self._sums / max(1, self.frames)
        if self._evidence.kind != "posterior":
            return mean
        parts = []
        for lags, part in zip(self._evidence.lags, self._evidence.split(mean), strict=True):
            smooth = gaussian_filter1d(part, SMOOTHED / (lags[1] - lags[0]), mode="nearest")
            parts.append(np.log(smooth * len(lags) + FLOOR))
        return np.concatenate(parts)
