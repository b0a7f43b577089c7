"""Sources that walk, in bulk: where they are when what is heard was made, and how their direct sound arrives.

A source on a straight line at a steady pace is, at the time e, at the distance

    d(e) = |p + v e - m|

from a microphone at m, and what arrives at the time t was made at e = t - d(e) / c. So its direct sound is
s(e(t)) / d(e(t)), exactly, for the price of a few passes over the recording: no responses, no points of a path. The
signal is read between its samples with the spline that spreads image sources in `shoebox`, and has passed the same
high-pass and fade. (What the high-pass puts before the sound is kept here and cut off there: a difference at the lowest
frequencies.) A source at rest is one with v = 0.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.rooms.shoebox import OVERSAMPLING, TAPS, band_shape, transform_length
from qkgcc.lab.scenes.general_sources import SAMPLE_RATE
from qkgcc.lab.scenes.sources import SECONDS

REFLECTION_STEP = 0.2
"""Metres, at most, between the points of a path at which reflections are computed."""

_ROUNDS = 4  # of e = t - d(e) / c: each leaves v / c of the error, and nobody walks faster than 1 m/s

Floats = npt.NDArray[np.float64]


def points(first: Floats, last: Floats) -> npt.NDArray[np.int64]:
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
    for _ in range(_ROUNDS):
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
    for _ in range(_ROUNDS):
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
