"""Many sources in rooms of their own, heard at two microphones each: responses and convolution in blocks of points.

A source at rest is one point. A source that walks is several, each with its hat over time, and its direct sound apart:

    y(t) = s(e(t)) / d(e(t)) + sum_p (h_p - direct) * (w_p s),   w_p the hat over the time at point p.

A source on a straight line at a steady pace is, at the time e, at the distance

    d(e) = |p + v e - m|

from a microphone at m, and what arrives at the time t was made at e = t - d(e) / c. So its direct sound is
s(e(t)) / d(e(t)), exactly, for the price of a few passes over the recording: no responses, no points of a path. The
signal is read between its samples with the spline that spreads image sources in `shoebox`, and has passed the same
high-pass and fade. (What the high-pass puts before the sound is kept here and cut off there: a difference at the lowest
frequencies.) A source at rest is one with v = 0.

On a GPU blocks come in few sizes, filled up with silent points in the open: every new shape costs the planning of its
transforms.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.fft
import torch
from torch import Tensor

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Bools, Floats, Floats32
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.corpora.sets import SPLITS
from qkgcc.lab.rooms import noise
from qkgcc.lab.rooms.mixing import convolve
from qkgcc.lab.rooms.shoebox import OVERSAMPLING, TAPS, band_shape, response_lengths, sabine_many, transform_length
from qkgcc.lab.scenes.engines import batch_responses
from qkgcc.lab.scenes.general import SECONDS, Scenes
from qkgcc.lab.scenes.signals import SYNTHESES, Catalog, is_synthetic, synthetic

SAMPLE_RATE = 16000
SAMPLES = round(SECONDS * SAMPLE_RATE)
"""Of a recording of a scene."""
POOL = 2048
"""Synthetic signals of each kind: 70 s of one core to make, 0.8 GB."""
LONGEST_SIGNAL = 30.0
"""Seconds that are held of a recorded signal; banks for training keep 3 to 10."""
REFLECTION_STEP = 0.2
"""Metres, at most, between the points of a path at which reflections are computed."""

_TRAVEL_TIME_ROUNDS = 4  # of e = t - d(e) / c: each leaves v / c of the error, and nobody walks faster than 1 m/s
_BLOCK_POINTS = 512  # points, of two responses each: a few GB
_BLOCK_MULTIPLE = {"cuda": 128, "cpu": 1}  # blocks are filled up to a multiple of these
_WALKING_MULTIPLE = {"cuda": 64, "cpu": 1}  # and sources that walk to a multiple of these
_LENGTH_STEP = 4096  # samples: responses come in few lengths, for the same reason

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GeneralSources:
    """R signals on a device, one behind the other, found by their ids.

    Recorded ones are those of banks. Synthetic ones come from a pool: a scene draws one of 2^31 numbers of a kind, and
    making a million of them one by one would take hours, so `kind:number` stands for the pool's signal `number % pool`.
    (`general-test` and `qkgcc simulate` make the very signal of every number: see `signals.lookup`.)
    """

    samples: Tensor
    """(N,) all of them, one behind the other."""
    offset: Integers
    """(R,) where each begins; those of the banks first, then the pool."""
    length: Integers
    """(R,) samples of each."""
    rows: dict[str, int]
    """Of recorded signals by id, and of the first of each kind in the pool by `kind:`."""
    pool: int
    catalog: Catalog
    """What scenes for these sources are drawn from."""

    @classmethod
    def of(
        cls,
        banks: Iterable[Bank],
        split: str,
        device: torch.device | str,
        *,
        pool: int = POOL,
        jobs: int | None = None,
    ) -> "GeneralSources":
        """The recorded signals of a split of some banks, or of none, and a pool of synthetic ones of that split.

        The pools of the splits are different ones.
        """
        banks = list(banks)
        catalog = Catalog.from_banks(banks, split)
        most = round(LONGEST_SIGNAL * SAMPLE_RATE)
        recorded = [(bank, number) for bank in banks for number in bank.select(split=split).tolist()]
        first = SPLITS.index(split) * pool
        made = [f"{kind}:{first + number}" for kind in SYNTHESES for number in range(pool)]
        with ThreadPoolExecutor(jobs or os.cpu_count()) as workers:
            signals = list(workers.map(lambda at: at[0].audio(at[1], most), recorded))
            signals += workers.map(lambda id: synthetic(id, SAMPLES, SAMPLE_RATE), made)
        rows = {bank.ids[number]: row for row, (bank, number) in enumerate(recorded)}
        rows |= {f"{kind}:": len(recorded) + k * pool for k, kind in enumerate(SYNTHESES)}
        length = np.array([len(signal) for signal in signals], dtype=np.int64)
        return cls(
            torch.as_tensor(np.concatenate(signals), device=device),
            np.cumsum(length) - length,
            length,
            rows,
            pool,
            catalog,
        )

    def find(self, ids: Sequence[str]) -> Integers:
        """Rows of signals by id. Shape: (B,)"""
        return np.array([self._row(id) for id in ids], dtype=np.int64)

    def signal(self, id: str) -> Floats32:
        """The samples of one signal, as `render` asks for them (a `signals.Lookup`). Shape: (n,)"""
        row = self._row(id)
        part = self.samples[self.offset[row] : self.offset[row] + self.length[row]]
        return np.asarray(part.cpu().numpy(), dtype=np.float32)

    def parts(self, rows: Integers, start: Floats) -> tuple[Tensor, Tensor]:
        """Two seconds of signals, from where scenes begin them, and how many samples of it they sound for.

        Shape: (B,), (B,) in [0, 1] -> (B, 32000), (B,) int64
        """
        spare = np.maximum(0, self.length[rows] - SAMPLES)
        first = (start * spare).astype(np.int64)
        sounding = np.minimum(SAMPLES, self.length[rows] - first)
        at, last = (
            torch.as_tensor(x, device=self.samples.device)[:, None] for x in (self.offset[rows] + first, sounding)
        )
        now = torch.arange(SAMPLES, device=self.samples.device)
        part = self.samples[torch.minimum(at + now, at + last - 1)]
        return torch.where(now < last, part, 0.0), last[:, 0]

    def _row(self, id: str) -> int:
        row = self.rows.get(id)
        if row is not None:
            return row
        if not is_synthetic(id):
            raise InputError(f"the sources hold no signal {id!r}: draw the scenes from the catalog of these sources")
        kind, _, number = id.partition(":")
        return self.rows[f"{kind}:"] + int(number) % self.pool


def count_path_points(first: Floats, last: Floats) -> npt.NDArray[np.int64]:
    """How many points of each path reflections are computed at: one for a source at rest. Shape: (S, 3) each -> (S,)"""
    return np.asarray(1 + np.ceil(np.linalg.norm(last - first, axis=-1) / REFLECTION_STEP), dtype=np.int64)


def delays_at(first: Floats, last: Floats, microphones: Floats, times: Tensor) -> Tensor:
    """True delays in samples of what arrives at some times, in seconds, positive = microphone 1 later.

    The law of `render.delay_at`: the delay of the place where the sound that arrives then, on the mean of both ways,
    was made.
    Shape: (S, 3), (S, 3), (S, 2, 3), (S, T) -> (S, T) float64
    """
    way = _Way(first, last, microphones, times.device)
    now = times.to(torch.float64)[:, None]
    made = now
    for _ in range(_TRAVEL_TIME_ROUNDS):
        paths = way.length(made.clamp(0, SECONDS))
        made = now - paths.mean(dim=1, keepdim=True) / SPEED_OF_SOUND
    paths = way.length(made.clamp(0, SECONDS))
    return (paths[:, 0] - paths[:, 1]) * (SAMPLE_RATE / SPEED_OF_SOUND)


def direct_sound(signals: Tensor, first: Floats, last: Floats, microphones: Floats) -> Tensor:
    """What arrives without a reflection, as long as the signals.

    Shape: (S, n), (S, 3), (S, 3), (S, M, 3) -> (S, M, n)
    """
    samples = signals.shape[-1]
    length = transform_length(samples, SAMPLE_RATE)
    # Over the spline, one cell early: the four cells that an image at cell + f is spread over begin with `cell`.
    shape = torch.as_tensor(band_shape(length, SAMPLE_RATE), dtype=torch.complex64, device=signals.device)
    spectra = torch.fft.rfft(signals, n=length) * shape
    fine = torch.fft.irfft(spectra, n=OVERSAMPLING * length) * OVERSAMPLING
    way = _Way(first, last, microphones, signals.device)
    now = torch.arange(samples, dtype=torch.float64, device=signals.device) / SAMPLE_RATE
    made = now
    for _ in range(_TRAVEL_TIME_ROUNDS):
        made = now - way.length(made) / SPEED_OF_SOUND
    time = made * (OVERSAMPLING * SAMPLE_RATE)
    cell = time.floor().long()
    f = (time - cell).float()
    g = 1 - f
    weights = (g**3, 4 - f * f * (6 - 3 * f), 4 - g * g * (6 - 3 * g), f**3)
    heard = torch.zeros_like(f)
    for tap, weight in enumerate(weights):
        # Circular: before the signal begins there is the ringing of the high-pass, at the end of the transform.
        at = (cell + (tap - TAPS // 2)) % fine.shape[-1]
        heard += weight * fine.gather(-1, at.flatten(1)).reshape(at.shape)
    return heard / (6 * way.length(made)).float()


class _Way:
    """The way to the microphones from a place that moves: its length at any time. Shape of times: (S, 1 or M, T)."""

    def __init__(self, first: Floats, last: Floats, microphones: Floats, device: Any) -> None:
        apart = first[:, None] - microphones
        velocity = ((last - first) / SECONDS)[:, None]
        squares = (apart**2).sum(axis=-1), 2 * (apart * velocity).sum(axis=-1), (velocity**2).sum(axis=-1)
        self.terms = tuple(torch.as_tensor(x, dtype=torch.float64, device=device)[..., None] for x in squares)

    def length(self, made: Tensor) -> Tensor:
        """Metres. Shape: (S, 1 or M, T) -> (S, M, T)"""
        constant, linear, square = self.terms
        return torch.sqrt(constant + made * (linear + made * square))


class Rooms(NamedTuple):
    """One for each scene, or for each source or point in them: then a room is there several times. Shape: B rooms."""

    sides: Floats
    """(B, 3) metres."""
    microphones: Floats
    """(B, 2, 3) metres."""
    reflection: Floats
    """(B,) of the pressure, at each bounce."""
    order: Integers
    """(B,) of the images."""
    reach: Integers
    """(B,) samples of a response, at most those of a recording."""

    @classmethod
    def of(cls, scenes: Scenes) -> "Rooms":
        absorption, order = sabine_many(scenes.t60, scenes.room)
        reach = response_lengths(scenes.room, order, SAMPLE_RATE)
        return cls(scenes.room, scenes.microphones, np.sqrt(1 - absorption), order, np.minimum(reach, SAMPLES))

    def take(self, rows: Integers) -> "Rooms":
        return Rooms(
            self.sides[rows], self.microphones[rows], self.reflection[rows], self.order[rows], self.reach[rows]
        )


@dataclass(frozen=True)
class _Points:
    """N points of the paths of sources."""

    source: Integers
    """(N,) whose they are."""
    place: Floats
    """(N, 3) metres."""
    number: Integers
    """(N,) of the point in its path."""
    count: Integers
    """(N,) points of that path."""
    silent: Bools
    """(N,) there only to fill up a block."""


def hear_sources(signals: Tensor, first: Floats, last: Floats, rooms: Rooms) -> Tensor:
    """What the microphones hear of sources that are at one place when they begin, at another after two seconds.

    Shape: (S, n), (S, 3), (S, 3) -> (S, 2, n)
    """
    device = signals.device
    result = torch.zeros(len(signals), 2, signals.shape[-1], device=device)
    for points in _point_blocks(first, last, _BLOCK_MULTIPLE[device.type]):
        source = torch.as_tensor(points.source, device=device)
        result.index_add_(
            0,
            source,
            convolve_pairs(signals[source] * _point_weights(points, signals), responses(points, rooms, device)),
        )
    walks = np.flatnonzero((first != last).any(axis=-1))
    if len(walks):
        rows = np.pad(walks, (0, -len(walks) % _WALKING_MULTIPLE[device.type]), mode="edge")
        where = torch.as_tensor(rows, device=device)
        direct = direct_sound(signals[where], first[rows], last[rows], rooms.microphones[rows])
        result[where[: len(walks)]] += direct[: len(walks)]
    return result


def responses(points: _Points, rooms: Rooms, device: torch.device) -> Tensor:
    """Responses at points, those of paths without the direct sound. Shape: N points -> (N, 2, samples)"""
    here = rooms.take(points.source)
    samples = min(-(-int(here.reach.max()) // _LENGTH_STEP) * _LENGTH_STEP, SAMPLES)
    here = here._replace(order=np.where(points.silent, 0, here.order))
    result = _room_responses(here, points.place, samples, device)
    walks = points.count > 1
    if walks.any():
        # The direct sound arrives early, and the high-pass has ceased to ring by then.
        short = min(_LENGTH_STEP, samples)
        direct = _room_responses(here._replace(order=np.zeros_like(here.order)), points.place, short, device)
        result[..., :short] -= direct * torch.as_tensor(walks, device=device)[:, None, None]
    reach = torch.as_tensor(here.reach, device=device)  # each one's own, not the block's: no scene depends on others
    return torch.where(torch.arange(samples, device=device) < reach[:, None, None], result, 0.0)


def convolve_pairs(signals: Tensor, responses: Tensor) -> Tensor:
    """As long as the signals. Shape: (N, n), (N, 2, r) -> (N, 2, n)"""
    samples = signals.shape[-1]
    length = int(scipy.fft.next_fast_len(samples + responses.shape[-1] - 1, real=True))
    whole: Tensor = convolve(signals[:, None], responses, length)
    return whole[..., :samples]


def diffuse_pairs(drawn: Tensor, spacing: Tensor) -> Tensor:
    """`noise.diffuse` for two microphones, whose Cholesky factor can be written down: (1, 0), (g, sqrt(1 - g^2)).

    A solver would take longer for millions of such matrices than for all the rest of the noise.
    Shape: (B, 2, n), (B,) metres -> (B, 2, n)
    """
    samples = drawn.shape[-1]
    frequencies = torch.arange(samples // 2 + 1, device=drawn.device) * (SAMPLE_RATE / samples)
    coherence = (1 - noise.INDEPENDENT_SHARE) * torch.sinc(2 / SPEED_OF_SOUND * spacing[:, None] * frequencies)
    one, other = torch.fft.rfft(drawn).unbind(1)
    mixed = coherence * one + torch.sqrt(1 - coherence**2) * other
    return torch.stack([drawn[:, 0], torch.fft.irfft(mixed, n=samples)], dim=1)


def _point_blocks(first: Floats, last: Floats, fill: int) -> Iterator[_Points]:
    """The points of all paths, a block at a time."""
    counts = count_path_points(first, last)
    source = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    for begin in range(0, len(source), _BLOCK_POINTS):
        block = np.arange(begin, min(begin + _BLOCK_POINTS, len(source)))
        silent = np.arange(len(block) + -len(block) % fill) >= len(block)
        block = np.pad(block, (0, int(silent.sum())), mode="edge")
        whose, count = source[block], counts[source[block]]
        share = number[block] / np.maximum(count - 1, 1)
        place = first[whose] + (last - first)[whose] * share[:, None]
        yield _Points(whose, place, number[block], count, silent)


def _point_weights(points: _Points, signals: Tensor) -> Tensor:
    """How loud each point sounds at each time: linearly up from the point before it and down to the next.

    Shape: N points, (S, n) -> (N, n)
    """
    samples, device = signals.shape[-1], signals.device
    now = torch.arange(samples, device=device) / samples
    last, number = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (points.count - 1, points.number))
    hats = (1 - (now * last[:, None] - number[:, None]).abs()).clamp(min=0)
    return torch.where(torch.as_tensor(points.silent, device=device)[:, None], 0.0, hats)


def _room_responses(rooms: Rooms, place: Floats, samples: int, device: torch.device) -> Tensor:
    """Responses of one place in each room at both microphones. Shape: B rooms, (B, 3) -> (B, 2, samples)"""
    sides, microphones, reflection, order, _ = rooms
    return batch_responses(
        sides, reflection, order, place, microphones, device, samples=samples, sample_rate=SAMPLE_RATE
    )
