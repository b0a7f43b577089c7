"""Faults between a recording and the geometry of its array: order of the channels, size, units, mirror images.

A far source in direction u (a unit vector) is heard by a microphone at p at the time -p.u / c. Of each block, the
delays of all pairs give one arrival time per channel, and the closest waves are fitted to them: in the given order of
the microphones and in others, or with a slowness |u| / c other than that of sound, for geometries of a wrong size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations

import numpy as np
import scipy.ndimage
from scipy.optimize import linear_sum_assignment

from qkgcc.arrays import Geometry
from qkgcc.arrays.evidence import FRAME
from qkgcc.arrays.steering import arrivals, sphere
from qkgcc.arrays.wiring import Miswiring, WiringCheck
from qkgcc.audio.frames import cut_frames
from qkgcc.core.types import SILENCE, Floats, Floats32
from qkgcc.doctor.findings import Finding, Setup, channel_names
from qkgcc.doctor.pairs import inverted_polarity
from qkgcc.dsp.long_lags import Excerpt, Track, phat

WIDE = 1.0
"""Metres across, from which sources are taken to be near to the array."""


@dataclass(frozen=True)
class OrderLimits:
    """When another order of the channels is preferred, and how orders are searched."""

    misfit: float = 16e-6
    """Seconds of RMS error in the given order. Clean: 1.3e-6 s at most on real recordings of a small array; wrong
    orders that are no mirror image: 16e-6 s and more."""
    misfit_share: float = 0.03
    """The same as a share of the time that sound needs to cross the array; the larger one counts."""
    better: float = 3.0
    """Times smaller that the error in the other order must be."""
    closure: float = 95e-6
    """Seconds by which the delays around a triangle may miss."""
    min_blocks: int = 3
    max_exhaustive: int = 6
    """Microphones of which all orders are tried; of more, orders are searched step by step."""
    search_starts: int = 6
    """Orders that such a search begins with, where the given one does not fit."""
    directions: int = 800
    """Of the library of spherical waves."""
    distances: tuple[float, ...] = (0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.4, 2.0, 4.0)
    """Of the library, in sizes of the array."""
    max_library_blocks: int = 20


@dataclass(frozen=True)
class SizeLimits:
    """When the slowness of waves, in that of sound, shows a wrong geometry: it is 1, and at most 1 for flat arrays."""

    too_small: float = 1.3
    """Slowness above which the geometry is too small."""
    too_large: float = 0.75
    """Slowness below which a geometry of microphones in space is too large."""
    tiny: float = 0.15
    """Slowness of all sound in an array that is said to be metres across, below which its units are wrong."""
    agree: float = 0.6
    """Share of the blocks that must be beyond a limit."""
    no_order: float = 3.0
    """Times the misfit above which a geometry is wrong when no order fits it, either."""
    min_blocks: int = 4
    side: float = 0.3
    """Of a unit vector: so far to the left or right is a source that shows a mirror image."""


@dataclass(frozen=True)
class ExchangeLimits:
    """When two of many microphones were exchanged, and how sources among them are searched."""

    better: float = 1.08
    """Times the sum of the given order. Right orders in simulated rooms (T60 0.3 to 0.9, one talker or two): 1.04 at
    most; exchanged ones: 1.14 at least, but 1.12 of two talkers at a T60 of 0.7, and 1.05 at 0.9."""
    share: float = 0.75
    """Of the blocks in which it is better. Right: 0.55 at most; exchanged: 0.82 at least, but 0.67 and 0.6."""
    known: float = 1.1
    """Times the sum of a middling exchange that the given order has where it can be told from them: 1.14 and more, but
    1.04 and less of two talkers at a T60 of 0.7 to 0.9."""
    block: float = 1.0
    """Seconds."""
    max_blocks: int = 20
    min_blocks: int = 5
    max_height: float = 12
    """Height of a correlation peak that a pair counts at most."""
    margin: float = 0.5
    """Metres around the microphones in which sources are searched."""
    grid_points: int = 40_000
    fine_step: float = 0.03
    """Metres between the points of the second, local search."""
    max_microphones: int = 10


ORDER, SIZE, EXCHANGE = OrderLimits(), SizeLimits(), ExchangeLimits()

Waves = Callable[[Floats, Floats], Floats]
"""From arrival times of blocks, and microphones in an order, to those of the closest waves."""
Permutation = tuple[int, ...]
REORDER = "Reorder the channels, or the rows of the geometry file, and check the labels on the cables."


def arrival_times(tracks: dict[tuple[int, int], Track], channels: list[int]) -> Floats:
    """Arrival times relative to their mean, of blocks in which the pairs agree. Shape: (blocks, M), in seconds

    None of the blocks counts with fewer than three channels: no two pairs could disagree.
    """
    if len(channels) < 3:
        return np.empty((0, len(channels)))
    pairs = list(combinations(range(len(channels)), 2))
    design = np.zeros((len(pairs), len(channels)))
    for row, (i, j) in enumerate(pairs):
        design[row, i], design[row, j] = 1, -1
    followed = [tracks[channels[i], channels[j]] for i, j in pairs]
    clear = np.stack([track.clear[:, 0] for track in followed], axis=1)
    delays = np.stack([track.delays[:, 0] for track in followed], axis=1)
    rows = []
    for known, delay in zip(clear, delays, strict=True):
        if known.sum() < len(channels) or np.linalg.matrix_rank(design[known]) < len(channels) - 1:
            continue  # no pair to spare that could show a mistake, or a channel without a delay
        times = np.linalg.lstsq(design[known], delay[known], rcond=None)[0]
        if np.abs(design[known] @ times - delay[known]).max() <= ORDER.closure:
            rows.append(times - times.mean())
    return np.array(rows).reshape(-1, len(channels))


# The order of the channels


@dataclass(frozen=True)
class Order:
    """How well delays fit the geometry in the given order of the channels, and in the best one."""

    given: float
    """RMS error in seconds of the given order."""
    best: float
    channels: tuple[int, ...]
    microphones: tuple[int, ...]
    """Row of the geometry that each of these channels fits best."""
    crossing: float
    """Seconds that sound needs to cross the array."""

    @property
    def wrong(self) -> bool:
        """Whether another order fits clearly better."""
        return self.given >= max(misfit(self.crossing), ORDER.better * self.best)


def misfit(crossing: float) -> float:
    """RMS error in seconds above which delays do not fit an array that sound needs so long to cross."""
    return max(ORDER.misfit, ORDER.misfit_share * crossing)


def measure_order(times: Floats, channels: list[int], geometry: Geometry, speed_of_sound: float) -> Order | None:
    """Fit waves in the given order of the channels and in others; None with too few blocks.

    Some orders are as good as the given one for every direction (turning or mirroring a square); of these, the one that
    moves the fewest channels is taken.

    Args:
        times: arrival times of blocks. Shape: (B, M)
    """
    if len(times) < ORDER.min_blocks:
        return None
    positions = geometry.microphones[channels]
    waves: Waves = partial(_plane_waves, speed_of_sound=speed_of_sound)
    if geometry.aperture > WIDE:
        waves = _spherical_waves(positions, speed_of_sound)
        times = times[:: -(-len(times) // ORDER.max_library_blocks)]

    def error_of(order: Permutation) -> float:
        placed = positions[list(order)]
        residual = times - waves(times, placed)
        return float(np.median(np.sqrt(np.mean(residual**2, axis=1))))

    def channels_moved(order: Permutation) -> int:
        return sum(microphone != channel for channel, microphone in enumerate(order))

    crossing = geometry.aperture / speed_of_sound
    orders = [tuple(range(len(channels)))]
    if len(channels) <= ORDER.max_exhaustive:
        orders = sorted(permutations(range(len(channels))), key=channels_moved)
    errors = [error_of(order) for order in orders]
    if len(channels) > ORDER.max_exhaustive and errors[0] >= misfit(crossing):
        searched = _search_orders(times, positions, waves, error_of)
        orders += sorted(searched, key=channels_moved)
        errors += [searched[order] for order in orders[1:]]
    chosen = int(np.flatnonzero(np.array(errors) <= 1.1 * min(errors) + 1e-6)[0])
    microphones = tuple(channels[i] for i in orders[chosen])
    return Order(errors[0], errors[chosen], tuple(channels), microphones, crossing)


def _spherical_waves(microphones: Floats, speed_of_sound: float) -> Waves:
    """The closest of a library of spherical waves, from places all around and among the microphones.

    Sources are not far from microphones that are metres apart.
    """
    centred = microphones - microphones.mean(axis=0)
    size = float(np.linalg.norm(centred, axis=1).max())
    nearness = np.concatenate([[0.0], 1 / (size * np.array(ORDER.distances))])
    directions = np.tile(sphere(ORDER.directions), (len(nearness), 1))
    library = arrivals(centred, directions, np.repeat(nearness, ORDER.directions))
    library = (library - library.mean(axis=1, keepdims=True)) / speed_of_sound

    def closest(times: Floats, positions: Floats) -> Floats:
        order = [int((microphones == place).all(axis=1).argmax()) for place in positions]
        waves = library[:, order]
        best = ((waves**2).sum(axis=1) - 2 * times @ waves.T).argmin(axis=1)
        return np.asarray(waves[best])

    return closest


def _plane_waves(times: Floats, positions: Floats, speed_of_sound: float) -> Floats:
    """The arrival times of the plane waves closest to those of the blocks. Shape: (B, M), (M, 3) -> (B, M)

    The length of u is held to 1, or to at most 1 for arrays that are flat or straight and cannot see all of it: without
    that, four microphones in space would fit in any order. The constrained least squares fit has the form
    (A'A + l) u = A't; |u| falls as l grows, so l is found by bisection.
    """
    design, scale, axes = _visible_design(positions, speed_of_sound)
    design, scale = design @ axes.T, scale**2
    target = times @ design
    low = np.full(len(times), -scale.min() if len(axes) == 3 else 0.0)
    high = np.linalg.norm(target, axis=1) + scale.max()
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", over="ignore"):
            long = (np.square(target / (scale + middle[:, None]))).sum(axis=1) > 1
        low, high = np.where(long, middle, low), np.where(long, high, middle)
    direction = target / (scale + high[:, None])
    return np.asarray(direction @ design.T)


def _visible_design(positions: Floats, speed_of_sound: float) -> tuple[Floats, Floats, Floats]:
    """Arrival times by u, and the singular values and axes of that along which the array has any extent.

    Shape: (M, 3) -> (M, 3), (K,), (K, 3)
    """
    design = -(positions - positions.mean(axis=0)) / speed_of_sound
    _, scale, axes = np.linalg.svd(design, full_matrices=False)
    visible = scale > 0.05 * scale[0]
    return design, scale[visible], axes[visible]


def _search_orders(
    times: Floats, positions: Floats, waves: Waves, error_of: Callable[[Permutation], float]
) -> dict[Permutation, float]:
    """Orders of many microphones that fit, with their errors, from a few that they are reached from step by step.

    A step gives each channel the microphone whose arrival times are the closest to its own, all at once (the assignment
    problem), or, where that changes nothing, exchanges the two channels that gain most.
    """
    rng = np.random.default_rng(0)
    count = len(positions)
    found: dict[Permutation, float] = {}
    for start in range(ORDER.search_starts):
        order = tuple(range(count)) if start == 0 else tuple(int(i) for i in rng.permutation(count))
        error = error_of(order)
        while True:
            assigned = _assign(times, positions, order, waves)
            steps = [assigned] if assigned != order else []
            errors = [error_of(step) for step in steps]
            if not errors or min(errors) >= error:
                steps = [_swap(order, i, j) for i, j in combinations(range(count), 2)]
                errors = [error_of(step) for step in steps]
            best = int(np.argmin(errors))
            if errors[best] >= 0.999 * error:
                break
            order, error = steps[best], errors[best]
        found[order] = error
    return found


def _assign(times: Floats, positions: Floats, order: Permutation, waves: Waves) -> Permutation:
    """The order in which channels lie closest to the waves that fit in the given one."""
    expected = np.empty_like(times)
    expected[:, list(order)] = waves(times, positions[list(order)])  # by microphone
    cost = ((times[:, :, None] - expected[:, None]) ** 2).sum(axis=0)
    return tuple(int(i) for i in linear_sum_assignment(cost)[1])


def _swap(order: Permutation, i: int, j: int) -> Permutation:
    changed = list(order)
    changed[i], changed[j] = order[j], order[i]
    return tuple(changed)


def find_wrong_order(order: Order | None, sample_rate: int) -> Iterator[Finding]:
    """Channels that fit the geometry better in another order."""
    if order is None or not order.wrong:
        return
    exchanged = [pair for pair in zip(order.channels, order.microphones, strict=True) if pair[0] != pair[1]]
    places = ", ".join(f"channel {channel} is microphone {microphone}" for channel, microphone in exchanged)
    yield Finding(
        "swapped-channels",
        tuple(channel for channel, _ in exchanged),
        f"The delays miss the geometry by {order.given * sample_rate:.2f} samples in the given order, and by "
        f"{order.best * sample_rate:.2f} if {places} (or the mirror image of that).",
        REORDER,
    )


# The size of the geometry, and its mirror image


@dataclass(frozen=True, eq=False)
class PlaneWaves:
    """Plane waves fitted to the arrival times of blocks, whose slowness |u| is free.

    In a geometry that is too small by half, delays need |u| = 2, which no sound has; of microphones in space a |u| of
    0.5 says that it is too large. (A flat array does not see the part of u across it: |u| below 1 means a source above
    it.) A mirror image of an array has all its distances, so no delay tells it from the array: that takes a source
    whose side is known.
    """

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


def measure_plane_waves(
    times: Floats, channels: list[int], geometry: Geometry, speed_of_sound: float
) -> PlaneWaves | None:
    """Fit plane waves of any slowness; None with too few blocks.

    Args:
        times: arrival times of blocks. Shape: (B, M)
    """
    if len(times) < SIZE.min_blocks:
        return None
    design, _, axes = _visible_design(geometry.microphones[channels], speed_of_sound)
    direction = times @ np.linalg.pinv(design @ axes.T).T @ axes
    residual = times - direction @ design.T
    length = np.linalg.norm(direction, axis=1)
    return PlaneWaves(
        slowness=length,
        left=direction[:, 1] / np.maximum(length, 1e-9),
        error=float(np.median(np.sqrt(np.mean(residual**2, axis=1)))),
        dimensions=len(axes),
        sees_left=bool((axes[:, 1] ** 2).sum() > 0.8),
        wide=geometry.aperture > WIDE,
    )


def find_wrong_size(
    waves: PlaneWaves | None, order: Order | None, channels: list[int], sample_rate: int
) -> Iterator[Finding]:
    """A geometry in which the delays are impossible, in any order of the channels."""
    if waves is None or order is None or order.wrong:
        return
    if waves.wide:
        yield from _find_wrong_units(waves, order, channels)
        return
    limit = misfit(order.crossing)
    fits = waves.error <= limit
    ratio = float(np.median(waves.slowness))
    if fits and (waves.slowness > SIZE.too_small).mean() >= SIZE.agree:
        yield Finding(
            "outside-spacing",
            tuple(channels),
            f"The delays are {ratio:.2g} times as large as sound could make them between these positions, and fit "
            f"them otherwise ({waves.error * sample_rate:.2f} samples).",
            f"Check the units and the size of the geometry: it has to be {ratio:.2g} times as large"
            + (" or more." if waves.dimensions < 3 else "."),
        )
    elif fits and waves.dimensions == 3 and (waves.slowness < SIZE.too_large).mean() >= SIZE.agree:
        yield Finding(
            "wrong-geometry",
            tuple(channels),
            f"The delays are those of an array {ratio:.2g} times as large as this one.",
            "Check the units and the size of the geometry.",
        )
    elif order.given >= SIZE.no_order * limit and order.best >= limit:
        yield Finding(
            "wrong-geometry",
            tuple(channels),
            f"The delays miss the geometry by {order.given * sample_rate:.2f} samples, and in every other order of "
            f"the channels by {order.best * sample_rate:.2f} or more.",
            "Check the positions, or find them by a walk around the array: qkgcc calibrate positions.",
        )


def _find_wrong_units(waves: PlaneWaves, order: Order, channels: list[int]) -> Iterator[Finding]:
    """An array said to be metres across that hears plane waves, all of them from its zenith: one of centimetres.

    Sources near to a wide array make no plane waves, and none stays at the same distance from all of its microphones.
    """
    if waves.error > 2 * ORDER.misfit or (waves.slowness < SIZE.tiny).mean() < SIZE.agree:
        return
    slowness = float(np.quantile(waves.slowness, 0.9))
    ratio = 10.0 ** round(np.log10(1 / max(slowness, 1e-4)))
    yield Finding(
        "wrong-geometry",
        tuple(channels),
        f"The delays of all pairs are tiny: at most {100 * slowness:.2g} % of what an array that sound needs "
        f"{1000 * order.crossing:.0f} ms to cross would have. The geometry looks "
        f"{'up to ' if waves.dimensions < 3 else ''}{ratio:.0f} times too large.",
        "Are the units right (mm or cm given as m)? If they are, the source was in the very middle of the array.",
    )


def find_mirror_image(waves: PlaneWaves | None, expect: str) -> Iterator[Finding]:
    """A source that the geometry places on the other side than it was."""
    if waves is None or waves.wide or not waves.sees_left:
        return
    sign = 1 if expect == "left" else -1
    share = (sign * waves.left < -SIZE.side).mean()
    if share >= SIZE.agree:
        yield Finding(
            "wrong-geometry",
            (),
            f"The source was on the {expect}, but by the geometry {100 * share:.0f} % of the sound comes from the "
            f"{'right' if expect == 'left' else 'left'}.",
            "The geometry is mirrored or turned, or the channels are in the order of its mirror image: check which "
            "way is front, and that left is positive.",
        )


# The wiring, as `qkgcc locate` checks it


def measure_wiring(part: Excerpt, channels: list[int], setup: Setup) -> Miswiring | None:
    """The wiring that fits all sound better than the given one, not clear delays alone; None where there is none."""
    geometry = setup.geometry
    if geometry is None or not WiringCheck.applies(geometry):
        return None
    frame, hop = round(FRAME * part.rate), round(FRAME / 2 * part.rate)
    check = WiringCheck(
        geometry, geometry.pairs, setup.speed_of_sound, rate=part.rate, highest=part.rate / 2, frame=frame, hop=hop
    )
    samples = np.zeros_like(part.samples)
    samples[channels] = part.samples[channels]
    for frames in cut_frames(iter([samples]), frame, hop):
        for one in frames[frames.std(axis=(1, 2)) >= SILENCE]:
            check.add(one)
    return check.found


def find_miswiring(wiring: Miswiring | None) -> Iterator[Finding]:
    """Inverted or exchanged channels by all directions together."""
    if wiring is None:
        return
    if wiring.inverted:
        names = channel_names(wiring.inverted)
        yield inverted_polarity(
            wiring.inverted,
            f"For all directions the pairs agree better if {names} {'is' if len(wiring.inverted) == 1 else 'are'} "
            "inverted.",
            names,
        )
        return
    yield Finding(
        "swapped-channels",
        wiring.exchanged,
        "No direction explains the delays of all pairs in the given order. They fit better with "
        f"{channel_names(wiring.exchanged)} {'exchanged' if len(wiring.exchanged) == 2 else 'in another order'} (or "
        "the mirror image of that).",
        REORDER,
    )


# Two exchanged microphones among many that are metres apart


@dataclass(frozen=True)
class Exchange:
    """The exchange of two channels that fits best, compared with the given order."""

    better: float
    """Times the sum of the given order that the best exchange has."""
    share: float
    """Of the blocks in which it is better."""
    given: float
    """Times the sum of a middling exchange that the given order has."""
    channels: tuple[int, int]

    @property
    def wrong(self) -> bool:
        """Whether the exchange fits clearly better."""
        return self.better >= EXCHANGE.better and self.share >= EXCHANGE.share

    @property
    def decisive(self) -> bool:
        """Whether an exchange would have been found."""
        return self.wrong or self.given >= EXCHANGE.known


def measure_exchange(part: Excerpt, channels: list[int], geometry: Geometry, speed_of_sound: float) -> Exchange | None:
    """The exchange of two channels that fits best; None for small arrays or those that this cannot check.

    It takes four to ten channels, and three seconds of sound.

    Metres apart in a room, no single pair may have a clear delay, but all pairs together agree on a place (steered
    response power): the height of each pair's correlation is read at the delay that a place would have, and the largest
    sum is searched for. With two microphones exchanged, no place is as good as with both where they belong. This is
    tried for every two of them.
    """
    count = len(channels)
    too_short = part.seconds < (EXCHANGE.min_blocks + 1) / 2 * EXCHANGE.block
    if geometry.aperture <= WIDE or not 4 <= count <= EXCHANGE.max_microphones or too_short:
        return None
    power = _SteeredResponsePower(part, channels, geometry.microphones[channels], speed_of_sound)
    order = tuple(range(count))
    given = power.largest(order)
    tried = [(power.largest(_swap(order, i, j)), (channels[i], channels[j])) for i, j in combinations(order, 2)]
    best, exchanged = max(tried, key=lambda one: float(one[0].mean()))
    level = max(float(given.mean()), 1e-9)
    middling = float(np.median([sums.mean() for sums, _ in tried]))
    return Exchange(float(best.mean()) / level, float((best > given).mean()), level / max(middling, 1e-9), exchanged)


class _SteeredResponsePower:
    """Correlations of all pairs in some blocks, and the places that are compared with them."""

    def __init__(self, part: Excerpt, channels: list[int], microphones: Floats, speed_of_sound: float) -> None:
        self._microphones, self._samples_per_metre = microphones, part.rate / speed_of_sound
        low, high = microphones.min(axis=0) - EXCHANGE.margin, microphones.max(axis=0) + EXCHANGE.margin
        self._step = float((np.prod(high - low) / EXCHANGE.grid_points) ** (1 / 3))
        self._grid = _grid(low, high, self._step)
        self._pairs = list(combinations(range(len(channels)), 2))
        widest = max(float(np.linalg.norm(microphones[i] - microphones[j])) for i, j in self._pairs)
        self._reach = int(widest * self._samples_per_metre) + 8
        length = round(EXCHANGE.block * part.rate)
        total = part.samples.shape[1]
        starts = np.linspace(0, total - length, min(EXCHANGE.max_blocks, 2 * total // length - 1)).astype(int)
        curves = [
            [phat(part, (channels[i], channels[j]), int(start), length, self._reach) for i, j in self._pairs]
            for start in starts
        ]
        heights = np.clip(np.array(curves), 0, EXCHANGE.max_height).astype(np.float32)
        # A peak as wide as the grid is coarse, so that none falls between its points.
        width = 2 * max(1, round(self._step * self._samples_per_metre * 0.75)) + 1
        self._coarse = scipy.ndimage.maximum_filter1d(heights, width, axis=-1)
        self._fine = scipy.ndimage.maximum_filter1d(heights, 3, axis=-1)

    def largest(self, order: Permutation) -> Floats:
        """Of each block, the largest sum of any place, with channel i at microphone order[i]. Shape: (B,)"""
        microphones = self._microphones[list(order)]
        samples = np.linalg.norm(self._grid[:, None] - microphones, axis=-1) * self._samples_per_metre
        around = _grid(np.full(3, -self._step / 2), np.full(3, self._step / 2), EXCHANGE.fine_step)
        largest = []
        for coarse, fine in zip(self._coarse, self._fine, strict=True):
            best = self._grid[int(self._sum(coarse, samples).argmax())]
            near = np.linalg.norm((best + around)[:, None] - microphones, axis=-1) * self._samples_per_metre
            largest.append(float(self._sum(fine, near).max()))
        return np.array(largest)

    def _sum(self, curves: Floats32, samples: Floats) -> Floats32:
        """Heights of all pairs at the delays of places. Shape: (P, lags), (N, M) samples of path -> (N,)"""
        total = np.zeros(len(samples), np.float32)
        for curve, (i, j) in zip(curves, self._pairs, strict=True):
            total += curve[np.rint(samples[:, i] - samples[:, j]).astype(np.int64) + self._reach]
        return total


def _grid(low: Floats, high: Floats, step: float) -> Floats:
    axes = [np.arange(a, b + step, step) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


def find_exchange(exchange: Exchange | None) -> Iterator[Finding]:
    """Two exchanged microphones, metres apart."""
    if exchange is None or not exchange.wrong:
        return
    first, second = exchange.channels
    yield Finding(
        "swapped-channels",
        exchange.channels,
        f"All pairs together fit a source {100 * (exchange.better - 1):.0f} % better, and in "
        f"{100 * exchange.share:.0f} % of the seconds, if channels {first} and {second} are exchanged.",
        REORDER,
    )
