"""Generalised cross-correlation with every classical weighting, for NumPy arrays and torch tensors alike.

    R[tau] = sum_k psi[k] X1[k] conj(X2[k]) exp(j 2 pi k tau / K)

The one sign convention of this package: **a delay is positive when channel 1 (index 0) hears the source later**.
With X1 conj(X2), as above, the correlation peaks at that positive delay.

A curve is scaled by the sum of its weights, so it lies in [-1, 1] for every weighting: 1 means that all bins agree on
that delay, a silent frame gives 0 everywhere.

| weighting   | psi                                | spectra                                                      |
|-------------|------------------------------------|--------------------------------------------------------------|
| `cc`        | 1                                  | of the whole frame                                           |
| `phat`      | 1 / abs(G12)                       | of the whole frame                                           |
| `phat-beta` | 1 / abs(G12)^beta                  | of the whole frame                                           |
| `roth`      | 1 / G11                            | averaged over segments (Welch)                               |
| `scot`      | 1 / sqrt(G11 G22)                  | averaged over segments                                       |
| `ml`        | C / (abs(G12) (1 - C)), C = abs(gamma)^2 | averaged over segments                                 |

The last three need averaged spectra: on one periodogram the coherence gamma is 1 everywhere, SCOT equals PHAT and ML is
undefined. The cross-spectrum is averaged too, as Knapp and Carter have it.

C. H. Knapp, G. C. Carter, "The generalized correlation method for estimation of time delay", IEEE Trans. ASSP 24(4),
1976.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.fft
from array_api_compat import device

from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats
from qkgcc.dsp.peaks import INTERPOLATIONS, find_peak, namespace

Array: TypeAlias = Any
"""A NumPy array or a torch tensor."""

WEIGHTINGS = ("cc", "phat", "phat-beta", "roth", "scot", "ml")
AVERAGED = ("roth", "scot", "ml")
BETA = 0.8
"""Default exponent of PHAT-beta."""

_FLOOR = 1e-6  # of the mean power: far below any bin that matters, and relative, so that gain changes nothing
_PHAT_FLOOR = 1e-3  # whitening would raise empty bins (a telephone band, a low-passed file) to the level of the others
_COHERENCE_LIMIT = 0.9999  # ML's weight has a pole at 1
_FRAMES_AT_ONCE = 32  # their spectra stay in a core's cache


def lag_range(max_delay: float, sample_rate: float) -> int:
    """Largest integer lag for a largest delay in seconds: the whole sample nearest to it, at least 1.

    >>> lag_range(0.5 / 343, 16000)
    23
    """
    return max(1, round(max_delay * sample_rate))


def gcc(frames: Array, weighting: str = "phat", *, max_lag: int, **options: Any) -> Array:
    """Correlation curves over the lags -max_lag ... max_lag.

    Shape: (..., 2, n) -> (..., 2 * max_lag + 1). `options` are those of `weighted_spectrum`.

    >>> x = np.random.default_rng(0).standard_normal(2053)
    >>> later_by_5, reference = x[:-5], x[5:]
    >>> int(np.argmax(gcc(np.stack([later_by_5, reference]), max_lag=23))) - 23
    5
    """

    def curves(part: Array) -> Array:
        return curve(correlation(weighted_spectrum(part, weighting, max_lag=max_lag, **options)), max_lag)

    return _in_chunks(curves, frames)


def delays(
    frames: Array, weighting: str = "phat", *, max_lag: int, interpolation: str = INTERPOLATIONS[0], **options: Any
) -> Array:
    """Delay in samples, positive = channel 1 later; 0 for a silent frame. Shape: (..., 2, n) -> (...,)."""

    def peaks(part: Array) -> Array:
        spectrum = weighted_spectrum(part, weighting, max_lag=max_lag, **options)
        return find_peak(correlation(spectrum), max_lag, interpolation)

    return _in_chunks(peaks, frames)


def weighted_spectrum(
    frames: Array,
    weighting: str = "phat",
    *,
    max_lag: int,
    beta: float = BETA,
    band: tuple[float, float] | None = None,
    sample_rate: float | None = None,
    segment: int | None = None,
) -> Array:
    """Weighted cross-spectrum psi G12 of each frame, scaled so that its correlation lies in [-1, 1].

    These spectra may be averaged over frames: the correlation of the mean is the mean of the correlations.

    Args:
        band: lowest and highest frequency in Hz; bins outside it get no weight. Needs `sample_rate`. (A band-pass
            before PHAT would not do: the whitening would bring the stop band back.)
        segment: samples in a Welch segment of roth, scot and ml; by default `segment_length` chooses it.
    Shape: (..., 2, n) -> (..., F), F = K / 2 + 1
    """
    if not 1 <= max_lag <= frames.shape[-1] // 2:
        raise InputError(
            f"lags up to {max_lag} samples do not fit frames of {frames.shape[-1]}: expected 1 to half a frame "
            "(use longer frames or a smaller spacing)"
        )
    if weighting not in WEIGHTINGS:
        raise InputError(f"unknown weighting {weighting!r}; known are {', '.join(WEIGHTINGS)}")
    if weighting in AVERAGED:
        both = averaged_spectra(frames, segment or segment_length(frames.shape[-1], max_lag))
    else:
        both = whole_spectra(frames)
    return weighted_cross(both.channel(0), both.channel(1), weighting, beta=beta, band=band, sample_rate=sample_rate)


class Spectra(NamedTuple):
    """What channels need alone, whatever pairs they are in. The axis of the channels is not there after `channel`."""

    bins: Array
    """(..., channels, F) of whole frames, or (..., channels, segments, F)"""
    power: Array
    """(..., channels, F) averaged over the segments; None of whole frames"""

    def channel(self, number: int) -> "Spectra":
        if self.power is None:
            return Spectra(self.bins[..., number, :], None)
        return Spectra(self.bins[..., number, :, :], self.power[..., number, :])

    def of_frames(self, chosen: Array) -> "Spectra":
        return Spectra(self.bins[chosen], None if self.power is None else self.power[chosen])

    @staticmethod
    def joined(parts: "Sequence[Spectra]") -> "Spectra":
        """Of several batches of frames, of NumPy."""
        power = None if parts[0].power is None else np.concatenate([one.power for one in parts])
        return Spectra(np.concatenate([one.bins for one in parts]), power)


def whole_spectra(frames: Array) -> Spectra:
    """For the weightings that are not `AVERAGED`. Shape: (..., channels, n)"""
    length = 2 * scipy.fft.next_fast_len(frames.shape[-1], real=True)
    return Spectra(_rfft(namespace(frames), frames, length), None)


def averaged_spectra(frames: Array, segment: int) -> Spectra:
    """Welch: Hann segments, three quarters overlapped. Shape: (..., channels, n)"""
    hop, length = max(1, segment // 4), 2 * scipy.fft.next_fast_len(segment, real=True)
    if isinstance(frames, np.ndarray):
        return _averaged_by_numpy(frames, segment, hop, length)
    xp = namespace(frames)
    starts = np.arange(0, frames.shape[-1] - segment + 1, hop)
    index = xp.asarray(starts[:, None] + np.arange(segment), device=device(frames))
    window = xp.asarray(_hann(segment), dtype=frames.dtype, device=device(frames))
    bins = _rfft(xp, frames[..., index] * window, length)
    return Spectra(bins, xp.mean(xp.real(bins) ** 2 + xp.imag(bins) ** 2, axis=-2))


def _averaged_by_numpy(frames: Array, segment: int, hop: int, length: int) -> Spectra:
    """The same to the bit as if it were written as above, but sooner: segments are windowed straight into their
    padding, and real and imaginary parts lie apart, each contiguous, while they are squared."""
    count = (frames.shape[-1] - segment) // hop + 1
    frames = np.ascontiguousarray(frames)
    *outer, step = frames.strides
    # A view; NumPy's own functions for that take longer than the windowing.
    cut = np.ndarray((*frames.shape[:-1], count, segment), frames.dtype, frames, 0, (*outer, hop * step, step))
    padded = np.zeros((*frames.shape[:-1], count, length), dtype=frames.dtype)
    np.multiply(cut, _hann_of(segment, frames.dtype), out=padded[..., :segment])
    bins = scipy.fft.rfft(padded)
    power, imaginary = bins.real.copy(), bins.imag.copy()
    power *= power
    imaginary *= imaginary
    power += imaginary
    return Spectra(bins, power.sum(axis=-2) / count)


def weighted_cross(
    first: Spectra,
    second: Spectra,
    weighting: str,
    *,
    beta: float = BETA,
    band: tuple[float, float] | None = None,
    sample_rate: float | None = None,
) -> Array:
    """`weighted_spectrum` of two channels, which may have gains of their own. Shape: (..., F)"""
    xp = namespace(first.bins)
    g11, g22 = first.power, second.power
    cross = _cross(xp, first.bins, second.bins) if g11 is None else _mean_cross(xp, first.bins, second.bins)
    magnitude = xp.abs(cross)
    if weighting == "cc":
        weight = xp.ones_like(magnitude)
    elif weighting == "phat":
        weight = 1 / _floored(xp, magnitude, _PHAT_FLOOR)
    elif weighting == "phat-beta":
        weight = _floored(xp, magnitude, _PHAT_FLOOR) ** -beta
    elif weighting == "roth":
        weight = 1 / _floored(xp, g11)
    else:
        tiny = xp.finfo(g11.dtype).tiny  # so that a silent frame has a gradient
        weight = 1 / _floored(xp, xp.sqrt(g11 * g22 + tiny))
        if weighting == "ml":
            coherence = magnitude * weight
            squared = xp.clip(coherence * coherence, None, _COHERENCE_LIMIT)
            # |gamma|^2 / (|G12| (1 - |gamma|^2)), with |G12| cancelled so that an empty bin is 0, not 0/0
            weight = weight * coherence / (1 - squared)

    length = 2 * (magnitude.shape[-1] - 1)
    inside = _band_mask(magnitude.shape[-1], band, sample_rate)
    if inside is not None:
        weight = weight * xp.asarray(inside, dtype=magnitude.dtype, device=device(magnitude))
    total = _two_sided_sum(xp, magnitude * weight)
    # A silent frame has no weights to scale by; its spectrum stays 0.
    return _weighted(cross, weight * (length / (total + (total <= 0))))


def segment_length(frame: int, max_lag: int) -> int:
    """Samples in a Welch segment: a quarter frame, or longer where the largest lag asks for it.

    Its two channels must hold the same sound, so it is at least four times the lag; five segments at least, of half
    a frame each, keep the coherence below 1.
    """
    segment = max(frame // 4, 4 * max_lag)
    if segment > frame // 2 or segment < 8:
        raise InputError(
            f"roth, scot and ml need frames of at least {max(32, 8 * max_lag)} samples for lags up to {max_lag}; "
            f"these have {frame}: use longer frames, a smaller spacing, or phat"
        )
    return segment


def correlation(spectrum: Array) -> Array:
    """Circular correlation of a weighted spectrum; negative lags stand at the end. Shape: (..., F) -> (..., K)."""
    xp = namespace(spectrum)
    n = 2 * (spectrum.shape[-1] - 1)
    return scipy.fft.irfft(spectrum, n=n) if isinstance(spectrum, np.ndarray) else xp.fft.irfft(spectrum, n=n)


def curve(circular: Array, max_lag: int) -> Array:
    """The lags -max_lag ... max_lag of a circular correlation, in that order.

    Shape: (..., K) -> (..., 2 * max_lag + 1)
    """
    xp = namespace(circular)
    return xp.concat([circular[..., -max_lag:], circular[..., : max_lag + 1]], axis=-1)


def _rfft(xp: Any, x: Array, n: int) -> Array:
    # scipy.fft keeps float32 and is faster than numpy.fft.
    return scipy.fft.rfft(x, n=n) if isinstance(x, np.ndarray) else xp.fft.rfft(x, n=n)


# NumPy's product of complex numbers rounds the last ones of an array in another way than the others. In real numbers,
# a frame has the same spectrum to the bit whichever frames stand beside it.


def _cross(xp: Any, first: Array, second: Array) -> Array:
    """first conj(second)"""
    if not isinstance(first, np.ndarray):
        return first * xp.conj(second)
    product = np.empty_like(first)
    product.real = first.real * second.real + first.imag * second.imag
    product.imag = first.imag * second.real - first.real * second.imag
    return product


def _mean_cross(xp: Any, first: Array, second: Array) -> Array:
    """The mean of first conj(second) over the segments. Shape: (..., segments, F) -> (..., F)"""
    if not isinstance(first, np.ndarray):
        return xp.mean(_cross(xp, first, second), axis=-2)
    (r1, i1), (r2, i2) = ((x.real.copy(), x.imag.copy()) for x in (first, second))  # contiguous, each
    mean = np.empty((*first.shape[:-2], first.shape[-1]), dtype=first.dtype)
    share = 1 / first.shape[-2]
    products = r1 * r2
    products += i1 * i2
    # In float64, as NumPy's mean of complex numbers divides.
    mean.real = np.multiply(products.sum(axis=-2), share, dtype=np.float64)
    np.multiply(i1, r2, out=products)
    products -= r1 * i2
    mean.imag = np.multiply(products.sum(axis=-2), share, dtype=np.float64)
    return mean


def _weighted(spectrum: Array, weight: Array) -> Array:
    """A complex spectrum times real weights."""
    if not isinstance(spectrum, np.ndarray):
        return spectrum * weight
    product = np.empty_like(spectrum)
    np.multiply(spectrum.real, weight, out=product.real)
    np.multiply(spectrum.imag, weight, out=product.imag)
    return product


def _floored(xp: Any, power: Array, floor: float = _FLOOR) -> Array:
    """Raised a little, in proportion to its mean over the bins, so that it can be divided by."""
    level = _sum(xp, power) / power.shape[-1]
    return power + floor * (level + (level <= 0))


def _two_sided_sum(xp: Any, half: Array) -> Array:
    """Sum over all K bins of a spectrum whose F bins from 0 to Nyquist are given."""
    return 2 * _sum(xp, half[..., 1:-1]) + half[..., :1] + half[..., -1:]


def _sum(xp: Any, x: Array) -> Array:
    """Over the last axis, which stays."""
    # The ufunc itself: for a single frame, the function around it takes twice as long as the sum.
    return np.add.reduce(x, axis=-1, keepdims=True) if isinstance(x, np.ndarray) else xp.sum(x, axis=-1, keepdims=True)


@lru_cache(maxsize=32)
def _hann(n: int) -> Floats:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)


@lru_cache(maxsize=32)
def _hann_of(n: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    return _hann(n).astype(kind)


@lru_cache(maxsize=32)
def _band_mask(bins: int, band: tuple[float, float] | None, sample_rate: float | None) -> Bools | None:
    """Which bins count; None: all of them."""
    if band is None:
        return None
    if sample_rate is None:
        raise InputError("a band in Hz needs the sample rate too")
    low, high = band
    if not 0 <= low < high:
        raise InputError(f"band {low:g} to {high:g} Hz: the first frequency must be below the second, and not negative")
    frequencies = np.linspace(0, sample_rate / 2, bins)
    inside = (frequencies >= low) & (frequencies <= high)
    if inside.sum() < 2:
        raise InputError(f"band {low:g} to {high:g} Hz holds no frequency of a {sample_rate:g} Hz recording")
    return None if inside.all() else inside


def _in_chunks(function: Callable[[Array], Array], frames: Array) -> Array:
    """Apply to a few frames at a time on the CPU; a torch tensor goes as a whole (its device wants large batches)."""
    if frames.ndim < 2 or frames.shape[-2] != 2:
        raise InputError(f"frames of two channels have shape (..., 2, samples); these have {tuple(frames.shape)}")
    if not isinstance(frames, np.ndarray) or frames.ndim != 3 or frames.shape[0] <= _FRAMES_AT_ONCE:
        return function(frames)
    starts = range(0, frames.shape[0], _FRAMES_AT_ONCE)
    return np.concatenate([function(frames[i : i + _FRAMES_AT_ONCE]) for i in starts])
