"""The power of a whole utterance behind a room response, from 513 numbers.

The protocol scales a convolved utterance by its variance over its WHOLE length. A bank keeps only the first seconds of
most utterances, so it keeps the whole one's power spectrum P too: the power behind a response h is sum_k P_k G_k, with
G_k the response's squared magnitude around bin k. Taking |H| at the 513 frequencies alone is not enough: a long
response rises and falls between them (1 dB off at a T60 of 1 s). By its autocorrelation, G is exact for every lag that
the spectrum resolves.
"""

import math
from functools import cache
from typing import Any

import numpy as np
import scipy.fft
from array_api_compat import array_namespace, device, is_numpy_array
from numpy.typing import NDArray

SEGMENT = 1024
BINS = SEGMENT // 2 + 1
_BLOCK = 1024  # segments at a time: a long piece of music needs no more memory than half a minute of it


def power_spectrum(signal: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
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
def _hann() -> NDArray[np.float64]:
    return np.asarray(0.5 - 0.5 * np.cos(2 * np.pi * np.arange(SEGMENT) / SEGMENT))


@cache
def _lag_weights() -> NDArray[np.float64]:
    """The window shrinks the spectrum's autocorrelation at long lags; this undoes it, where that is less than 1/0.3.

    Shape: (1024,), symmetric like the lags 0..512, -511..-1.
    """
    window = _hann()
    shrunk = np.fft.irfft(np.square(np.abs(np.fft.rfft(window, 2 * SEGMENT))))[: SEGMENT // 2 + 1]
    half = 1 / np.maximum(shrunk / shrunk[0], 0.3)
    return np.concatenate([half, half[-2:0:-1]])
