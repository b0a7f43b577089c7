"""Many sources in rooms of their own, heard at two microphones each: responses and convolution in blocks of points.

A source at rest is one point. A source that walks is several, each with its hat over time, and its direct sound apart:

    y(t) = s(e(t)) / d(e(t)) + sum_p (h_p - direct) * (w_p s),   w_p the hat over the time at point p.

On a GPU blocks come in few sizes, filled up with silent points in the open: every new shape costs the planning of its
transforms.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.fft
import torch
from torch import Tensor

from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.rooms import noise
from qkgcc.lab.rooms.mixing import convolve
from qkgcc.lab.rooms.shoebox import response_lengths, sabine_many
from qkgcc.lab.scenes import walking
from qkgcc.lab.scenes.general import Scenes
from qkgcc.lab.scenes.general_sources import SAMPLE_RATE, SAMPLES

_BLOCK = 512  # points, of two responses each: a few GB
_FILLED = {"cuda": 128, "cpu": 1}  # blocks are filled up to a multiple of these
_WALKING = {"cuda": 64, "cpu": 1}  # and sources that walk to a multiple of these
_STEP = 4096  # samples: responses come in few lengths, for the same reason

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


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
    silent: npt.NDArray[np.bool_]
    """(N,) there only to fill up a block."""


def heard(signals: Tensor, first: Floats, last: Floats, rooms: Rooms) -> Tensor:
    """What the microphones hear of sources that are at one place when they begin, at another after two seconds.

    Shape: (S, n), (S, 3), (S, 3) -> (S, 2, n)
    """
    device = signals.device
    result = torch.zeros(len(signals), 2, signals.shape[-1], device=device)
    for points in _blocks(first, last, _FILLED[device.type]):
        source = torch.as_tensor(points.source, device=device)
        result.index_add_(
            0, source, convolved(signals[source] * _hats(points, signals), responses(points, rooms, device))
        )
    walks = np.flatnonzero((first != last).any(axis=-1))
    if len(walks):
        rows = np.pad(walks, (0, -len(walks) % _WALKING[device.type]), mode="edge")
        where = torch.as_tensor(rows, device=device)
        direct = walking.direct_sound(signals[where], first[rows], last[rows], rooms.microphones[rows])
        result[where[: len(walks)]] += direct[: len(walks)]
    return result


def responses(points: _Points, rooms: Rooms, device: torch.device) -> Tensor:
    """Responses at points, those of paths without the direct sound. Shape: N points -> (N, 2, samples)"""
    here = rooms.take(points.source)
    samples = min(-(-int(here.reach.max()) // _STEP) * _STEP, SAMPLES)
    here = here._replace(order=np.where(points.silent, 0, here.order))
    engine = _ENGINES[device.type]
    result = engine(here, points.place, samples, device)
    walks = points.count > 1
    if walks.any():
        short = min(_STEP, samples)  # the direct sound arrives early, and the high-pass has ceased to ring by then
        direct = engine(here._replace(order=np.zeros_like(here.order)), points.place, short, device)
        result[..., :short] -= direct * torch.as_tensor(walks, device=device)[:, None, None]
    reach = torch.as_tensor(here.reach, device=device)  # each one's own, not the block's: no scene depends on others
    return torch.where(torch.arange(samples, device=device) < reach[:, None, None], result, 0.0)


def convolved(signals: Tensor, responses: Tensor) -> Tensor:
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
    coherence = (1 - noise._LONELY) * torch.sinc(2 / SPEED_OF_SOUND * spacing[:, None] * frequencies)
    one, other = torch.fft.rfft(drawn).unbind(1)
    mixed = coherence * one + torch.sqrt(1 - coherence**2) * other
    return torch.stack([drawn[:, 0], torch.fft.irfft(mixed, n=samples)], dim=1)


def _blocks(first: Floats, last: Floats, fill: int) -> Iterator[_Points]:
    """The points of all paths, a block at a time."""
    counts = walking.points(first, last)
    source = np.repeat(np.arange(len(counts)), counts)
    number = np.arange(len(source)) - np.repeat(np.cumsum(counts) - counts, counts)
    for begin in range(0, len(source), _BLOCK):
        block = np.arange(begin, min(begin + _BLOCK, len(source)))
        silent = np.arange(len(block) + -len(block) % fill) >= len(block)
        block = np.pad(block, (0, int(silent.sum())), mode="edge")
        whose, count = source[block], counts[source[block]]
        share = number[block] / np.maximum(count - 1, 1)
        place = first[whose] + (last - first)[whose] * share[:, None]
        yield _Points(whose, place, number[block], count, silent)


def _hats(points: _Points, signals: Tensor) -> Tensor:
    """How loud each point sounds at each time: linearly up from the point before it and down to the next.

    Shape: N points, (S, n) -> (N, n)
    """
    samples, device = signals.shape[-1], signals.device
    now = torch.arange(samples, device=device) / samples
    last, number = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (points.count - 1, points.number))
    hats = (1 - (now * last[:, None] - number[:, None]).abs()).clamp(min=0)
    return torch.where(torch.as_tensor(points.silent, device=device)[:, None], 0.0, hats)


def _triton(rooms: Rooms, place: Floats, samples: int, device: torch.device) -> Tensor:
    from qkgcc.lab.rooms import gpu

    flat = gpu.responses(
        np.repeat(rooms.sides, 2, axis=0),
        np.repeat(rooms.reflection, 2),
        np.repeat(rooms.order, 2),
        np.repeat(place, 2, axis=0),
        rooms.microphones.reshape(-1, 3),
        samples=samples,
        sample_rate=SAMPLE_RATE,
        speed_of_sound=SPEED_OF_SOUND,
        device=device,
    )
    return flat.reshape(len(place), 2, samples)


def _numba(rooms: Rooms, place: Floats, samples: int, device: torch.device) -> Tensor:
    from qkgcc.lab.rooms import cpu

    each = [
        cpu.responses(
            rooms.sides[i],
            float(rooms.reflection[i]),
            int(rooms.order[i]),
            place[i : i + 1],
            rooms.microphones[i],
            samples=samples,
            sample_rate=SAMPLE_RATE,
            speed_of_sound=SPEED_OF_SOUND,
            jobs=1,
        )
        for i in range(len(place))
    ]
    return torch.as_tensor(np.concatenate(each), dtype=torch.float32, device=device)


_ENGINES: dict[str, Callable[[Rooms, Floats, int, torch.device], Tensor]] = {"cuda": _triton, "cpu": _numba}
"""By the kind of the device: responses of one place in each room at both microphones, (B, 2, samples)."""
