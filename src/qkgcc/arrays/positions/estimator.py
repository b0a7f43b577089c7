"""Where a source is, heard by microphones metres apart: from what every pair says, twice.

1. The curves of all pairs over their delays (log-posteriors of a network; PHAT where a pair is wider apart than the
   network knows) are averaged over the frames of a block and added up at every place of a volume. It is searched from
   coarse to fine: the curves are widened to the largest value within a cell's reach, so that no cell is left out only
   because its middle misses a narrow peak.
2. Around that place each pair gives its own delay, and a robust least squares fit of all of them the position, what
   each of them misses it by, and how far it is uncertain in which direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import maximum_filter1d

from qkgcc.arrays.delays import near_delays
from qkgcc.arrays.evidence import ArrayEvidence, ArrayFrames, array_network, frames_of, wrong_channels
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.positions.placed import Position, PositionBlock, PositionEstimate
from qkgcc.arrays.positions.trilateration import described, fit_position
from qkgcc.audio import Recording, open_audio
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.errors import InputError
from qkgcc.estimate import check_range
from qkgcc.methods import CLASSICAL, DEFAULT

FRAME = 0.128
"""Seconds: delays of metres are longer than those of a small array."""
BLOCK = 1.0
"""Seconds that one answer of a `PositionBlock` is about."""
BEYOND = 2.0
"""Metres beyond the microphones to every side that are searched, by default, or their aperture where that is more."""

_COARSE, _FINE = 0.4, 0.01  # metres, sides of the first and last cells
_KEPT = 250  # cells that are divided further
_REACH = 0.7  # of the farthest that a cell's corner can change a delay: few corners change those of all pairs so much
_AROUND = 0.25  # metres of difference of ways around the place, within which a pair's own delay is looked for

Floats = npt.NDArray[np.float64]


class PositionEstimator:
    """Positions of a source in the coordinates of the geometry (metres to the front, to the left, up).

    Args:
        geometry: where the microphones are.
        method: a name out of `qkgcc.methods.METHODS`, or the file of a steered network.
        height: metres up at which the source is, where that is known; then three microphones will do.
        volume: (3, 2) metres: the lowest and highest front, left and up that are searched.
        frame, hop: seconds; by default hops are half a frame.
        block: seconds that one block's answer is about.
        threads: that share the frames, where the method is a network; by default one for each core.
        speed_of_sound: metres per second.
    """

    def __init__(
        self,
        geometry: Geometry,
        method: str | Path = DEFAULT,
        *,
        height: float | None = None,
        volume: npt.ArrayLike | None = None,
        frame: float | None = None,
        hop: float | None = None,
        block: float = BLOCK,
        threads: int | None = None,
        speed_of_sound: float = SPEED_OF_SOUND,
    ) -> None:
        check_range("block", block, 0.05, 3600, "s")
        needed, what = (4, "in space") if height is None else (3, "at a known height")
        if len(geometry) < needed:
            raise InputError(
                f"{geometry.name} has {len(geometry)} microphones; a position {what} needs {needed} or more"
                + (": give the height of the source, or ask for a direction" if height is None else "")
            )
        if height is None and geometry.dimensions == 1:
            raise InputError(
                f"the microphones of {geometry.name} are on a line, around which all places sound the same: give the "
                "height of the source, or put one of them elsewhere"
            )
        self.geometry, self.method, self.height, self.block = geometry, str(method), height, block
        self.volume = _checked_volume(geometry, volume, height)
        self._speed = speed_of_sound
        widest = geometry.aperture / speed_of_sound
        self._options: dict[str, Any] = {
            # Twice the longest delay, so that both channels of a frame hold the same sound.
            "frame": max(FRAME, 2.5 * widest) if frame is None else frame,
            "hop": hop,
            "threads": threads,
            "speed_of_sound": speed_of_sound,
        }
        if self.method not in CLASSICAL:
            array_network(method, threads)

    def evidence(self, sample_rate: int, start: float = 0.0) -> ArrayEvidence:
        return ArrayEvidence(self.geometry, self.method, sample_rate=sample_rate, start=start, **self._options)

    def __call__(
        self,
        source: Any,
        sample_rate: int | None = None,
        *,
        channels: Sequence[int] | None = None,
        start: float | None = None,
        end: float | None = None,
        progress: Callable[[float], object] | None = None,
    ) -> PositionEstimate:
        """Estimate from a file, an array (M, n) with its `sample_rate`, or a `Recording`."""
        recording = source if isinstance(source, Recording) else open_audio(source, sample_rate, start=start, end=end)
        if channels is not None:
            recording = recording.pick(channels)
        if len(recording.channels) != len(self.geometry):
            raise InputError(wrong_channels(recording.name, len(recording.channels), self.geometry))
        evidence = self.evidence(recording.sample_rate, recording.start)
        count = int(np.ceil(recording.duration / self.block - 1e-9))
        sums = np.zeros((count, sum(len(lags) for lags in evidence.lags)))
        heard = np.zeros(count, dtype=np.int64)
        for frames in frames_of(evidence, recording, progress):
            self._add(frames, recording.start, sums, heard)
        blocks = []
        for number in range(count):
            first = recording.start + number * self.block
            last = min(first + self.block, recording.start + recording.duration)
            place = self.locate(evidence, sums[number] / heard[number]) if heard[number] else None
            blocks.append(PositionBlock(first, last, int(heard[number]), place))
        whole = self.locate(evidence, sums.sum(axis=0) / heard.sum()) if heard.any() else None
        return PositionEstimate(
            source=recording.name,
            method=self.method,
            array=self.geometry.name,
            microphones=self.geometry.microphones,
            sample_rate=recording.sample_rate,
            kind=evidence.kind,
            pairs=tuple(evidence.pairs),
            position=whole,
            blocks=tuple(blocks),
            warnings=evidence.warnings,
        )

    def _add(self, frames: ArrayFrames, start: float, sums: Floats, heard: npt.NDArray[np.int64]) -> None:
        numbers = np.clip(np.floor((frames.times - start) / self.block + 1e-9).astype(int), 0, len(sums) - 1)
        for number in np.unique(numbers):
            rows = (numbers == number) & frames.heard
            sums[number] += frames.curves[rows].sum(axis=0, dtype=np.float64)
            heard[number] += int(rows.sum())

    def locate(self, evidence: ArrayEvidence, curves: Floats) -> Position:
        """The position that mean curves of all pairs speak for. Shape: (K,)"""
        place = self.accumulate(evidence, curves)
        delays, weights = self._delays_near(evidence, curves, place)
        fit = fit_position(
            self.geometry, evidence.pairs, delays, weights, place, height=self.height, speed_of_sound=self._speed
        )
        return described(fit, self.geometry, evidence.pairs, self.volume, self.height)

    def accumulate(self, evidence: ArrayEvidence, curves: Floats) -> Floats:
        """The place in the volume at which the curves add up to most. Shape: (K,) -> (3,)"""
        side = _COARSE
        axes = [
            np.array([low]) if high <= low else np.arange(low + side / 2, high + side / 2, side)
            for low, high in self.volume
        ]
        places = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
        free = self.volume[:, 1] > self.volume[:, 0]
        halves = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], dtype=np.float64)
        halves = np.unique(halves * free, axis=0)
        while True:
            reach = _REACH * side * np.sqrt(free.sum()) / self._speed  # twice the half of the diagonal
            said = evidence.steering(near_delays(self.geometry, evidence.pairs, places, self._speed))(
                self._widened(evidence, curves, reach)[None]
            )[0]
            if side <= _FINE:
                return np.asarray(places[int(said.argmax())])
            best = np.argsort(-said)[:_KEPT]
            side /= 2
            places = (places[best][:, None] + side / 2 * halves).reshape(-1, 3)

    def _widened(self, evidence: ArrayEvidence, curves: Floats, reach: float) -> Floats:
        """Each value the largest within so many seconds."""
        wide, start = [], 0
        for lags in evidence.lags:
            size = 2 * round(reach / (lags[1] - lags[0])) + 1
            wide.append(maximum_filter1d(curves[start : start + len(lags)], size, mode="nearest"))
            start += len(lags)
        return np.concatenate(wide)

    def _delays_near(self, evidence: ArrayEvidence, curves: Floats, place: Floats) -> tuple[Floats, Floats]:
        """The peak of each pair's curve around its delay of a place, and how much it counts. Shape: (P,), (P,)"""
        expected = near_delays(self.geometry, evidence.pairs, place[None], self._speed)[:, 0]
        delays, weights, start = [], [], 0
        for lags, tau in zip(evidence.lags, expected, strict=True):
            curve = curves[start : start + len(lags)]
            start += len(lags)
            near = np.flatnonzero(np.abs(lags - tau) <= _AROUND / self._speed)
            best = int(near[curve[near].argmax()]) if len(near) else int(np.abs(lags - tau).argmin())
            offset = 0.0
            if 0 < best < len(lags) - 1:
                below, top, above = curve[best - 1 : best + 2]
                bend = 2 * top - below - above
                offset = float(np.clip((above - below) / (2 * bend), -0.5, 0.5)) if bend > 0 else 0.0
            delays.append(lags[best] + offset * (lags[1] - lags[0]))
            # How far the peak stands out: a curve that is higher elsewhere, or flat, counts for little.
            spread = float(curve.max() - np.median(curve))
            weights.append(max(0.0, float(curve[best] - np.median(curve))) / spread if spread > 0 else 0.0)
        return np.array(delays), np.array(weights) ** 2


def _checked_volume(geometry: Geometry, volume: npt.ArrayLike | None, height: float | None) -> Floats:
    if volume is None:
        beyond = max(BEYOND, geometry.aperture)
        low, high = geometry.microphones.min(axis=0) - beyond, geometry.microphones.max(axis=0) + beyond
        box = np.stack([low, high], axis=1)
    else:
        box = np.array(volume, dtype=np.float64)
        if box.shape != (3, 2) or not np.isfinite(box).all() or (box[:, 0] >= box[:, 1]).any():
            raise InputError(
                "the volume is not understood; expected the lowest and highest front, left and up, in metres"
            )
        if (box[:, 1] - box[:, 0]).max() > 200:
            raise InputError("the volume is more than 200 m wide: are the units right?")
    if height is not None:
        box[2] = height
    return np.asarray(box)
