"""Frames of a source heard in a room: convolution, level, noise. Batched, for NumPy arrays and torch tensors alike.

As the protocol says, the convolved signal is scaled to unit variance at microphone 1 over the WHOLE convolved
utterance, of which only the beginning may be at hand: its variance follows from the utterance's power spectrum and the
response. White noise of variance 10^(-SNR / 10) is then added to each microphone.
"""

from typing import Any

import scipy.fft
from array_api_compat import array_namespace, device, is_numpy_array

from qkgcc.lab.rooms.draws import normal
from qkgcc.lab.rooms.spectra import response_gains


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
