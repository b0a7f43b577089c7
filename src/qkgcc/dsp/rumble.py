"""Hum and rumble that drown a frame are taken out of it before a network hears it.

Recorders pick up the mains, fans, traffic and wind: sound below the voices, in both channels about alike, and often
louder than all the rest. Networks are trained at a level that counts everything, so that what is left of a talker is
too quiet for them, and the hum, which says nothing of the talker, is what they answer. GCC-PHAT does not mind: it
counts every frequency alike.

A frame's lowest cosines, up to `MAX_RUMBLE_HZ`, are taken out where they hold more than `MIN_RUMBLE_TO_REST` times the
power of the rest of it, and less than `MAX_RUMBLE_TO_REST` times: where there is next to nothing else, they are what is
to be heard. Cosines (a DCT) go on evenly beyond the ends of a frame: a Fourier series would have an edge there, and
spread it over all frequencies. What they hold is judged with the frame's ends faded out: a tone that is cut off there
would be much else as well.

A motor or a bass that is itself what is listened for, in a noise that is weaker by 5 to 50 dB, is taken for rumble too:
a `band` that begins below it keeps it. The other way round, a hum 35 dB louder than a talker, kept, would be answered
in the talker's place (`tests/test_rumble.py`).

What it gives, and how the numbers were chosen, on validation scenes: benchmarks/results/rumble.md.
"""

import math
from functools import lru_cache

import numpy as np
import scipy.fft

from qkgcc.core.types import Bools, Floats, Samples

MAX_RUMBLE_HZ = 280.0
"""Hz: the first harmonics of 50 and 60 Hz, below most of a voice."""
MIN_RUMBLE_TO_REST = 3.0
"""Power of the rumble over that of the rest from which on it drowns a frame."""
MAX_RUMBLE_TO_REST = 100_000.0
"""Power of the rumble over that of the rest from which on it is all that there is to hear."""
_FRAMES_AT_ONCE = 8  # more would not stay in the cache


def count_cosines(length: int, sample_rate: float, highest: float = MAX_RUMBLE_HZ) -> int:
    """Cosines up to a frequency in a frame of so many samples, the constant among them.

    >>> count_cosines(2048, 16000)
    72
    """
    return min(length, math.ceil(2 * length * highest / sample_rate))


@lru_cache(maxsize=8)
def fade(length: int) -> Floats:
    """In and out, a Hann window, by which a frame is judged.

    >>> fade(4).round(3).tolist()
    [0.146, 0.854, 0.854, 0.146]
    """
    return np.square(np.sin(np.pi * (np.arange(length) + 0.5) / length))


def without_rumble(
    frames: Samples, sample_rate: float, *, highest: float = MAX_RUMBLE_HZ, drowns: float = MIN_RUMBLE_TO_REST
) -> Samples:
    """Samples, of which those that are drowned have lost their rumble, in all channels. Shape: (batch, M, n) -> same

    A constant offset is none, and stays.
    """
    lowest = count_cosines(frames.shape[-1], sample_rate, highest)
    if lowest < 2:
        return frames
    parts = [frames[first : first + _FRAMES_AT_ONCE] for first in range(0, len(frames), _FRAMES_AT_ONCE)]
    drowned = np.concatenate([np.zeros(0, np.bool_), *(_drowned(part, lowest, drowns) for part in parts)])
    if not drowned.any():
        return frames
    rumble = scipy.fft.dct(frames[drowned].astype(np.float64), norm="ortho")
    rumble[..., 0], rumble[..., lowest:] = 0, 0
    cleared = frames.copy()
    cleared[drowned] = frames[drowned] - scipy.fft.idct(rumble, norm="ortho")
    return cleared


def _drowned(frames: Samples, lowest: int, drowns: float) -> Bools:
    """Whether frames are. Shape: (batch, M, n) -> (batch,)"""
    around = frames - frames.mean(axis=-1, keepdims=True, dtype=np.float64).astype(frames.dtype)
    cosines = scipy.fft.dct(around * fade(frames.shape[-1]).astype(frames.dtype), norm="ortho")
    low, rest = (
        np.einsum("bmk,bmk->b", part, part, dtype=np.float64) for part in (cosines[..., :lowest], cosines[..., lowest:])
    )
    return np.asarray((low > drowns * rest) & (low < MAX_RUMBLE_TO_REST * rest))
