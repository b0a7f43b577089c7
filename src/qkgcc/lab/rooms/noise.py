"""Noise of any colour, of each microphone alone or of a diffuse field. Batched, for NumPy arrays and torch tensors.

A diffuse field is made of waves from every direction alike, as in a reverberant hall full of people. Between two places
d apart its coherence is real,

    gamma(f) = sin(2 pi f d / c) / (2 pi f d / c),

so low frequencies are nearly the same at both microphones: a false delay of 0 that white noise never shows. It is made
from independent noises, mixed at every frequency by the Cholesky factor of the matrix of these coherences, over one
long transform: its bins do not depend on each other, so there are no frames to overlap.

R. K. Cook et al., "Measurement of correlation coefficients in reverberant sound fields", JASA 27, 1955.
E. A. P. Habets, I. Cohen, S. Gannot, "Generating nonstationary multisensor signals under a spatial coherence
constraint", JASA 124, 2008.
"""

import math
from typing import Any

from array_api_compat import array_namespace, device

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.rooms.draws import normal, stream

NOISES = ("independent", "diffuse")
FLAT_BELOW = 50.0
"""Hz: a slope starts here. A line of -6 dB per octave from 0 Hz would put all of its power where nobody hears it."""

INDEPENDENT_SHARE = 1e-6
"""Of the noise: without it the matrix is singular at 0 Hz, where all microphones agree."""


def keys(seed: int, microphones: int) -> list[int]:
    """The streams that the noise of a scene's microphones is drawn from."""
    return [stream(f"noise/{m}", seed) for m in range(microphones)]


def white(keys: Any, first: Any, samples: int) -> Any:
    """White noise of unit variance, a pure function of each stream's key and the number of the sample.

    Shape: keys (..., M), first (...) -> (..., M, samples) float32
    """
    xp = array_namespace(keys)
    counters = first[..., None] + xp.arange(samples, device=device(keys))
    return normal(keys[..., None], xp.broadcast_to(counters[..., None, :], (*keys.shape, samples)))


def coloured(noise: Any, slope: Any, sample_rate: float) -> Any:
    """Give white noise a power that changes by `slope` dB per octave, and keep its variance.

    0 is white, -3 pink, -6 brown, +3 blue. Shape: (..., M, n), (...) -> (..., M, n)
    """
    xp = array_namespace(noise)
    samples = noise.shape[-1]
    frequencies = _frequencies(noise, sample_rate)
    octaves = xp.log2(xp.where(frequencies > FLAT_BELOW, frequencies / FLAT_BELOW, xp.ones_like(frequencies)))
    power = 10 ** (slope[..., None] * octaves / 10)
    # Every bin but the first and, at an even length, the last stands for two.
    total = 2 * xp.sum(power, axis=-1) - power[..., 0] - (power[..., -1] if samples % 2 == 0 else 0)
    gain = xp.sqrt(power * (samples / total)[..., None])[..., None, :]
    return xp.fft.irfft(xp.fft.rfft(noise) * gain, n=samples)


def diffuse(noise: Any, microphones: Any, sample_rate: float, speed_of_sound: float = SPEED_OF_SOUND) -> Any:
    """Turn independent noises of equal spectra into those of a diffuse field at the microphones.

    Shape: (..., M, n), (..., M, 3) -> (..., M, n)
    """
    xp = array_namespace(noise)
    if microphones.shape[-2] != noise.shape[-2]:
        raise InputError(f"{microphones.shape[-2]} microphones cannot hear {noise.shape[-2]} channels of noise")
    between = diffuse_coherence(_frequencies(microphones, sample_rate, noise.shape[-1]), microphones, speed_of_sound)
    one = xp.eye(between.shape[-1], dtype=between.dtype, device=device(between))
    factor = xp.astype(xp.linalg.cholesky((1 - INDEPENDENT_SHARE) * between + INDEPENDENT_SHARE * one), noise.dtype)
    spectra = xp.matrix_transpose(xp.fft.rfft(noise))
    mixed = xp.sum(factor * spectra[..., None, :], axis=-1)
    return xp.fft.irfft(xp.matrix_transpose(mixed), n=noise.shape[-1])


def diffuse_coherence(frequencies: Any, microphones: Any, speed_of_sound: float = SPEED_OF_SOUND) -> Any:
    """sinc(2 f d / c) between every two microphones. Shape: (F,), (..., M, 3) -> (..., F, M, M).

    >>> import numpy as np
    >>> diffuse_coherence(np.array([0.0, 857.5, 1715.0]), np.array([[0.0, 0, 0], [0.1, 0, 0]]))[:, 0, 1].round(4)
    array([1.    , 0.6366, 0.    ])
    """
    xp = array_namespace(frequencies, microphones)
    apart = microphones[..., :, None, :] - microphones[..., None, :, :]
    distance = xp.sqrt(xp.sum(apart**2, axis=-1))
    angle = 2 * math.pi / speed_of_sound * frequencies[:, None, None] * distance[..., None, :, :]
    safe = xp.where(angle > 0, angle, xp.ones_like(angle))
    return xp.where(angle > 0, xp.sin(safe) / safe, xp.ones_like(angle))


def _frequencies(like: Any, sample_rate: float, samples: int | None = None) -> Any:
    """Frequencies of the bins of a transform, of the type of an array and on its device."""
    xp = array_namespace(like)
    samples = samples or like.shape[-1]
    return xp.arange(samples // 2 + 1, dtype=like.dtype, device=device(like)) * (sample_rate / samples)
