"""Frames of a source heard in a room: convolution, level, noise. Batched, for NumPy arrays and torch tensors alike.

As the protocol says, the convolved signal is scaled to unit variance at microphone 1 over the WHOLE convolved
utterance, of which only the beginning may be at hand: its variance follows from the utterance's power spectrum and the
response. White noise of variance 10^(-SNR / 10) is then added to each microphone.

The variance of a convolved utterance follows from 513 numbers. A bank keeps only the first seconds of most utterances,
and the power spectrum P of the whole. The power behind a response h is sum_k P_k G_k, with G_k the response's squared
magnitude around bin k. Taking |H| at the 513 frequencies alone is not enough, for a long response rises and falls
between them (1 dB off at a T60 of 1 s). Computed from its autocorrelation, G is exact for every lag that the spectrum
resolves.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import scipy.fft
from array_api_compat import array_namespace, device, is_numpy_array

from qkgcc.core.types import Floats, Floats32, Samples
from qkgcc.lab.rooms.draws import normal


def heard_frames(signals: Any, responses: Any, starts: Any, frame: int) -> Any:
    """What each microphone hears in the samples start ... start + frame of a signal that begins at sample 0.

    Only the part of the signal that reaches into the frame is convolved.
    Shape: signals (B, n), responses (B, M, r), starts (B,) -> (B, M, frame)
    """
    xp = array_namespace(responses)
    reach = responses.shape[-1]
    length = int(scipy.fft.next_fast_len(reach + frame - 1, real=True))
    index = starts[:, None] + (frame - length) + xp.arange(length, device=device(responses))
    last = signals.shape[-1] - 1
    part = xp.take_along_axis(signals, xp.clip(index, 0, last), axis=-1)
    part = xp.where((index >= 0) & (index <= last), part, xp.zeros_like(part))
    return convolve(part[:, None, :], responses, length)[..., length - frame :]


def convolve(signals: Any, responses: Any, length: int) -> Any:
    """Circular convolution over `length` samples. Shape: (..., n), (..., r) -> (..., length)."""
    xp = array_namespace(signals)
    fft = scipy.fft if is_numpy_array(signals) else xp.fft
    return fft.irfft(fft.rfft(signals, n=length) * fft.rfft(responses, n=length), n=length)


def level_of_convolved(power: Any, samples: Any, response: Any, reach: Any = None) -> Any:
    """Standard deviation of a whole utterance heard through a response, over the samples of both.

    Args:
        power: the utterance's power spectrum, which sums to its mean square.
        samples: the utterance's whole length.
        reach: samples of each response, where they are padded to a common length.
    Shape: (B, 513), (B,), (B, r), (B,) -> (B,)
    """
    xp = array_namespace(response)
    mean_square = xp.sum(power * response_gains(response), axis=-1)
    reach = response.shape[-1] if reach is None else reach
    return xp.sqrt(mean_square * (samples / (samples + (reach - 1))))


def add_white_noise(clean: Any, snr: Any, keys: Any, first: Any) -> Any:
    """Add noise of variance 10^(-SNR / 10), a pure function of each key and the number of the sample.

    Args:
        keys: (B, M) int64, a stream of `draws` for each microphone of each scene.
        first: (B,) int64, the number of the first sample.
    Shape: (B, M, n), (B,), (B, M), (B,) -> (B, M, n)
    """
    xp = array_namespace(clean)
    counters = first[:, None] + xp.arange(clean.shape[-1], device=device(clean))
    noise = normal(keys[..., None], xp.broadcast_to(counters[:, None, :], clean.shape))
    return clean + xp.astype(10 ** (-snr / 20), clean.dtype)[:, None, None] * noise


SEGMENT = 1024
BINS = SEGMENT // 2 + 1
_BLOCK = 1024  # segments at a time: a long piece of music needs no more memory than half a minute of it


def power_spectrum(signal: Samples) -> Floats32:
    """Welch's one-sided power spectrum (Hann segments of 1024, half overlapping); its sum is the signal's mean square.

    Zeros before and after let the first and last half segment count as much as the others.
    Shape: (samples,) -> (513,)
    """
    hop = SEGMENT // 2
    segments = math.ceil(len(signal) / hop) + 1
    padded = np.zeros((segments + 1) * hop)
    padded[hop : hop + len(signal)] = signal
    frames = np.lib.stride_tricks.sliding_window_view(padded, SEGMENT)[::hop]
    power = np.zeros(BINS)
    for first in range(0, segments, _BLOCK):
        power += np.square(np.abs(np.fft.rfft(frames[first : first + _BLOCK] * _hann()))).sum(axis=0)
    power[1:-1] *= 2
    total = power.sum()
    mean_square = np.mean(np.square(signal, dtype=np.float64))
    return np.asarray(power * (mean_square / total) if total > 0 else power, dtype=np.float32)


def response_gains(response: Any) -> Any:
    """G: the squared magnitude of a response around each of the 513 frequencies, for NumPy arrays and torch tensors.

    `spectrum @ response_gains(response)` is the energy of the convolved signal divided by the samples of the dry one;
    over the whole convolved length, n + len(response) - 1, its mean square is n / (n + len(response) - 1) of that.
    Shape: (..., length) -> (..., 513)
    """
    xp = array_namespace(response)
    fft = scipy.fft if is_numpy_array(response) else xp.fft
    # Long enough that no lag up to 512 wraps around.
    length = 2 * scipy.fft.next_fast_len(max(response.shape[-1] // 2 + SEGMENT // 2, SEGMENT), real=True)
    spectrum = fft.rfft(response, n=length)
    autocorrelation = fft.irfft(xp.real(spectrum) ** 2 + xp.imag(spectrum) ** 2, n=length)
    lags = SEGMENT // 2
    # Lags 0..512, then -511..-1: the order in which a DFT of 1024 expects them.
    wrapped = xp.concat([autocorrelation[..., : lags + 1], autocorrelation[..., -lags + 1 :]], axis=-1)
    weights = xp.asarray(_lag_weights(), dtype=wrapped.dtype, device=device(wrapped))
    return xp.real(fft.rfft(wrapped * weights))


@cache
def _hann() -> Floats:
    return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(SEGMENT) / SEGMENT))


@cache
def _lag_weights() -> Floats:
    """The window shrinks the spectrum's autocorrelation at long lags; this undoes it, where that is less than 1/0.3.

    Shape: (1024,), symmetric like the lags 0..512, -511..-1.
    """
    window = _hann()
    shrunk = np.fft.irfft(np.square(np.abs(np.fft.rfft(window, 2 * SEGMENT))))[: SEGMENT // 2 + 1]
    half = 1 / np.maximum(shrunk / shrunk[0], 0.3)
    return np.concatenate([half, half[-2:0:-1]])
