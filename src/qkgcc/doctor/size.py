"""The size of an array, and the side of a source: plane waves whose slowness is not held to that of sound.

A plane wave crosses the array with the slowness |u| / c. In a geometry that is too small by half, delays need |u| = 2,
which no sound has; of microphones in space a |u| of 0.5 says that it is too large. (A flat array does not see the part
of u across it: |u| below 1 means a source above it.) A mirror image of an array has all its distances, so no delay
tells it from the array: that takes a source whose side is known.
"""

from dataclasses import dataclass

import numpy as np

from qkgcc.arrays import Geometry
from qkgcc.core.types import Floats
from qkgcc.doctor.findings import Finding
from qkgcc.doctor.order import MISFIT, WIDE, Order, arrival_times, misfit
from qkgcc.dsp.long_lags import Track

TOO_SMALL, TOO_LARGE = 1.3, 0.75
"""Slowness of the plane waves, in that of sound: 1 for microphones in space, and at most 1 for flat arrays."""
TINY = 0.15
"""The same of all sound, in an array that is said to be metres across: its units are wrong."""
AGREE = 0.6
"""Of the blocks that must be beyond."""
NO_ORDER = 3.0
"""Times the misfit from which on a geometry is wrong when no order fits it, either."""

_BLOCKS = 4
_SIDE = 0.3  # of a unit vector: so far to the left or to the right


@dataclass(frozen=True, eq=False)
class Waves:
    """Plane waves fitted to the arrival times of blocks."""

    slowness: Floats
    """(B,) in that of sound."""
    left: Floats
    """(B,) of their directions, to the left."""
    error: float
    """RMS in seconds, the median of the blocks."""
    dimensions: int
    sees_left: bool
    wide: bool
    """Metres across: sources near to such an array make no plane waves."""


def measure_waves(
    tracks: dict[tuple[int, int], Track], channels: list[int], geometry: Geometry, speed_of_sound: float
) -> Waves | None:
    """None with fewer than three channels, or without enough blocks in which the pairs agree."""
    if len(channels) < 3:
        return None
    times = arrival_times(tracks, channels)
    if len(times) < _BLOCKS:
        return None
    places = geometry.microphones[channels]
    design = -(places - places.mean(axis=0)) / speed_of_sound
    _, scale, axes = np.linalg.svd(design, full_matrices=False)
    seen = scale > 0.05 * scale[0]
    direction = times @ np.linalg.pinv(design @ axes[seen].T).T @ axes[seen]
    left = times - direction @ design.T
    length = np.linalg.norm(direction, axis=1)
    return Waves(
        slowness=length,
        left=direction[:, 1] / np.maximum(length, 1e-9),
        error=float(np.median(np.sqrt(np.mean(left**2, axis=1)))),
        dimensions=int(seen.sum()),
        sees_left=bool((axes[seen][:, 1] ** 2).sum() > 0.8),
        wide=geometry.aperture > WIDE,
    )


def wrong_size(waves: Waves | None, order: Order | None, channels: list[int], sample_rate: int) -> list[Finding]:
    """A geometry in which delays are impossible; of another order, `order` has been asked before."""
    if waves is None or order is None or order.wrong:
        return []
    if waves.wide:
        return _tiny_delays(waves, order, channels)
    limit = misfit(order.crossing)
    fits = waves.error <= limit
    if fits and (waves.slowness > TOO_SMALL).mean() >= AGREE:
        times = float(np.median(waves.slowness))
        return [
            Finding(
                "outside-spacing",
                tuple(channels),
                f"The delays are {times:.2g} times as large as sound could make them between these positions, and fit "
                f"them but for that ({waves.error * sample_rate:.2f} samples).",
                f"Check the units and the size of the geometry: it has to be {times:.2g} times as large"
                + (" or more." if waves.dimensions < 3 else "."),
            )
        ]
    if fits and waves.dimensions == 3 and (waves.slowness < TOO_LARGE).mean() >= AGREE:
        times = float(np.median(waves.slowness))
        return [
            Finding(
                "wrong-geometry",
                tuple(channels),
                f"The delays are those of an array {times:.2g} times as large as this one.",
                "Check the units and the size of the geometry.",
            )
        ]
    if order.given >= NO_ORDER * limit and order.best >= limit:
        return [
            Finding(
                "wrong-geometry",
                tuple(channels),
                f"The delays miss the geometry by {order.given * sample_rate:.2f} samples, and in every other order of "
                f"the channels by {order.best * sample_rate:.2f} or more.",
                "Check the positions, or find them by a walk around the array: qkgcc calibrate positions.",
            )
        ]
    return []


def _tiny_delays(waves: Waves, order: Order, channels: list[int]) -> list[Finding]:
    """An array said to be metres across that hears plane waves, all of them from its zenith: one of centimetres.

    Sources near to a wide array make no plane waves, and none stays at the same distance from all of its microphones.
    """
    if waves.error > 2 * MISFIT[0] or (waves.slowness < TINY).mean() < AGREE:
        return []
    slowness = float(np.quantile(waves.slowness, 0.9))
    times = 10.0 ** round(np.log10(1 / max(slowness, 1e-4)))  # wrong units
    return [
        Finding(
            "wrong-geometry",
            tuple(channels),
            f"The delays of all pairs are tiny: at most {100 * slowness:.2g} % of what an array that sound needs "
            f"{1000 * order.crossing:.0f} ms to cross would have. The geometry looks "
            + ("up to " if waves.dimensions < 3 else "")
            + f"{times:.0f} times too large.",
            "Are the units right (mm or cm given as m)? If they are, the source was in the very middle of the array.",
        )
    ]


def mirrored(waves: Waves | None, expect: str) -> list[Finding]:
    """A source that is heard on the other side than it was."""
    if waves is None or waves.wide or not waves.sees_left:
        return []
    sign = 1 if expect == "left" else -1
    if (sign * waves.left < -_SIDE).mean() < AGREE:
        return []
    other = "right" if expect == "left" else "left"
    return [
        Finding(
            "wrong-geometry",
            (),
            f"The source was on the {expect}, but by the geometry {100 * (sign * waves.left < -_SIDE).mean():.0f} % of "
            f"the sound comes from the {other}.",
            "The geometry is mirrored or turned, or the channels are in the order of its mirror image: check which "
            "way is front, and that left is positive.",
        )
    ]
