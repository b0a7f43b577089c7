"""What the CPU and the GPU engine share: image sources as a histogram over time, and the way from it to a response.

Every image adds amplitude r^n / d at time d / c. Instead of an 81-tap fractional delay filter, each is spread over four
cells of a time axis at four times the sample rate, with the weights of a cubic B-spline; one transform of the whole
histogram, divided by that of the spline, then gives the spectrum up to the Nyquist frequency. The error of one image
falls with (f / (4 fs - f))^4: 2e-4 at 7 kHz and 16 kHz sampling. (Linear weights at 16 times the rate, two cells an
image, are four times worse and take a transform four times as long.)

The response then passes the reference engine's zero-phase 10 Hz high-pass, and what that puts before time 0 is cut off,
as there: without the cut the two differ most at low frequencies. Towards the Nyquist frequency it fades to zero, as
any fractional delay filter of finite length does: a full band would ring on to the end of the response.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft
from array_api_compat import array_namespace, device, is_numpy_array

OVERSAMPLING = 4
TAPS = 4
HIGH_PASS = 10.0
"""Hz: second-order Butterworth, forwards and backwards."""

FADE = 0.9375
"""Of the Nyquist frequency: where the fade begins, 7.5 kHz at 16 kHz sampling."""

_TAIL = 0.15  # seconds for the high-pass to ring out in, so that the circular transform does not wrap it around


def transform_length(samples: int, sample_rate: int) -> int:
    """Even, fast length of the transform, in samples, for responses of `samples`."""
    return 2 * int(scipy.fft.next_fast_len((samples + round(_TAIL * sample_rate)) // 2 + 1, real=True))


def from_histogram(histogram: Any, samples: int, sample_rate: int) -> Any:
    """Responses from histograms over OVERSAMPLING * length cells, where cell i + 1 is time i / (OVERSAMPLING fs).

    Shape: (..., OVERSAMPLING * length) -> (..., samples), NumPy or torch
    """
    xp = array_namespace(histogram)
    length = histogram.shape[-1] // OVERSAMPLING
    shape = xp.asarray(band_shape(length, sample_rate), device=device(histogram))
    if is_numpy_array(histogram):
        spectrum = scipy.fft.rfft(histogram)[..., : length // 2 + 1] * shape
        return scipy.fft.irfft(spectrum, n=length)[..., :samples]
    complex_type = xp.complex64 if histogram.dtype == xp.float32 else xp.complex128
    spectrum = xp.fft.rfft(histogram)[..., : length // 2 + 1] * xp.astype(shape, complex_type)
    return xp.fft.irfft(spectrum, n=length)[..., :samples]


@lru_cache(maxsize=64)
def band_shape(length: int, sample_rate: int) -> npt.NDArray[np.complex128]:
    """High-pass and fade over spline, and the shift of one cell. Shape: (length / 2 + 1,)."""
    bins = np.arange(length // 2 + 1)
    spline = np.sinc(bins / (OVERSAMPLING * length)) ** TAPS
    warped = np.tan(np.pi * bins[:-1] / length) / np.tan(np.pi * HIGH_PASS / sample_rate)
    gain = np.append(warped**4 / (1 + warped**4), 1.0)
    fading = np.clip((2 * bins / length - FADE) / (1 - FADE), 0, 1)
    gain *= 0.5 + 0.5 * np.cos(np.pi * fading)
    shift = np.exp(2j * np.pi * bins / (OVERSAMPLING * length))
    return np.asarray(gain * shift / spline)
