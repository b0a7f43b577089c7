"""What a recorder does to what was in the air: unlike microphones, clipping, a narrow band, an arbitrary level.

The order is that of the hardware, and each step is defined so that the next one cannot change what was drawn for it:

1. response and gain of each microphone, on everything in the air: sources and diffuse noise;
2. the sensors' own noise, which arises behind the capsule: a deaf microphone has the worse SNR;
3. clipping at one ceiling for all channels, that of the converter: found from the drawn share of samples, so it does
   not matter how loud the signal is when it gets there;
4. band limit: telephone, codec or resampling work on the file, after the converter, and smooth its flat tops;
5. level, last, so that the file has the RMS that was drawn. Up to here nothing depends on scale, so this one number
   stands for every gain that is common to the channels.

Wrong positions spoil no sample: a scene's microphones stand where they truly are, and the error says how far from where
they are believed to be.

The functions are batched, for NumPy arrays and torch tensors alike.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats

TILT_CENTRE = 1000.0
"""Hz around which a response is tilted."""
PEAK_Q = 1.0
"""Of the bump in a response: about one and a half octaves wide."""

_RINGING = 1024  # samples of zeros in which the responses die away instead of wrapping around
_HIGHEST = 0.45  # of the sample rate: a bump that would lie above lies here


@dataclass(frozen=True, eq=False)
class Degradations:
    """What spoils one scene. Fields of a microphone each have shape (M,), or hold one number for all.

    >>> Degradations(gain=[0, -6]).gain
    array([ 0., -6.])
    """

    gain: Floats = field(default_factory=lambda: np.zeros(1))
    """dB"""
    tilt: Floats = field(default_factory=lambda: np.zeros(1))
    """dB from the lowest to the highest frequencies, half of it on either side of 1 kHz."""
    peak: Floats = field(default_factory=lambda: np.zeros(1))
    """dB of a gentle bump (or dip) in the response."""
    peak_frequency: Floats = field(default_factory=lambda: np.full(1, TILT_CENTRE))
    """Hz"""
    position_error: Floats = field(default_factory=lambda: np.zeros((1, 3)))
    """(M, 3) metres: true minus nominal position of the microphones."""
    clipped: float = 0.0
    """Share of all samples that are at the ceiling."""
    band: tuple[float, float] = (0.0, math.inf)
    """Hz: lowest and highest frequency that pass."""
    level: float | None = None
    """RMS of the recording over all channels in dB of full scale; None leaves it as it is."""

    def __post_init__(self) -> None:
        dimensions = {"gain": 1, "tilt": 1, "peak": 1, "peak_frequency": 1, "position_error": 2}
        for name, dimension in dimensions.items():
            values = frozen(getattr(self, name), dimension)
            if not np.isfinite(values).all():
                raise InputError(f"the {name.replace('_', ' ')} of microphones is {values}; expected finite numbers")
            object.__setattr__(self, name, values)
        if self.level is not None and not math.isfinite(self.level):
            raise InputError(f"the level of a recording is {self.level:g} dB; expected a finite number, or None")
        if not 0 <= self.clipped < 1:
            raise InputError(f"a share of {self.clipped:g} of the samples cannot be clipped; expected 0 to less than 1")
        if not 0 <= self.band[0] < self.band[1]:
            raise InputError(f"a band from {self.band[0]:g} to {self.band[1]:g} Hz lets nothing pass")
        if not (self.peak_frequency > 0).all():
            raise InputError(f"peaks of a response at {self.peak_frequency} Hz; expected more than 0")


def frozen(values: npt.ArrayLike, dimensions: int) -> Floats:
    """A copy in double precision that nobody can write to, of 1 or 2 dimensions: what a frozen dataclass may hold."""
    shaped = np.atleast_1d if dimensions == 1 else np.atleast_2d
    copy: Floats = np.array(shaped(np.asarray(values, dtype=np.float64)))
    copy.setflags(write=False)
    return copy


def apply(audio: Any, degradations: Degradations, sample_rate: float, sensor_noise: Any = 0.0) -> Any:
    """A recording of what arrives at the microphones, in the order above. Shape: (M, n) -> (M, n)."""
    xp = array_namespace(audio)

    def array(values: Any) -> Any:
        # A copy, for torch does not take arrays that cannot be written to.
        return xp.asarray(np.array(values), dtype=audio.dtype, device=device(audio))

    audio = respond(
        audio,
        array(degradations.gain),
        array(degradations.tilt),
        array(degradations.peak),
        array(degradations.peak_frequency),
        sample_rate,
    )
    audio = clip(audio + sensor_noise, array(degradations.clipped))
    audio = limit_band(audio, array(degradations.band[0]), array(degradations.band[1]), sample_rate)
    return audio if degradations.level is None else set_level(audio, array(degradations.level))


def respond(audio: Any, gain: Any, tilt: Any, peak: Any, peak_frequency: Any, sample_rate: float) -> Any:
    """Pass each microphone's signal through its response and gain. Shape: (..., M, n), (..., M) each -> (..., M, n)."""
    xp = array_namespace(audio)
    samples = audio.shape[-1]
    length = samples + _RINGING + samples % 2
    frequencies = xp.arange(length // 2 + 1, device=device(audio), dtype=audio.dtype) * (sample_rate / length)
    shape = microphone_response(frequencies, gain, tilt, peak, peak_frequency, sample_rate)
    return xp.fft.irfft(xp.fft.rfft(audio, n=length) * shape, n=length)[..., :samples]


def microphone_response(
    frequencies: Any, gain: Any, tilt: Any, peak: Any, peak_frequency: Any, sample_rate: float
) -> Any:
    """Complex responses of a gain, a one-pole tilt and a two-pole bump (bilinear, so causal and minimum-phase).

    Like those of a capsule they turn the phase, so unlike microphones shift the delay a little, too.
    Shape: (F,), (..., M) each -> (..., M, F)
    """
    xp = array_namespace(frequencies)
    warped = 1j * xp.tan(frequencies * (math.pi / sample_rate))
    high = 10 ** (tilt[..., None] / 40)  # at the top; its inverse at the bottom
    s = warped / math.tan(math.pi * TILT_CENTRE / sample_rate)
    tilted = (high * s + 1) / (s + high)
    height = 10 ** (peak[..., None] / 40)
    s = warped / xp.tan(xp.clip(peak_frequency, max=_HIGHEST * sample_rate)[..., None] * (math.pi / sample_rate))
    bump = (s**2 + s * height / PEAK_Q + 1) / (s**2 + s / (height * PEAK_Q) + 1)
    return 10 ** (gain[..., None] / 20) * tilted * bump


def clip(audio: Any, share: Any) -> Any:
    """Cut off what exceeds the ceiling that the given share of all samples of all channels reaches.

    Shape: (..., M, n), (...) -> (..., M, n)
    """
    xp = array_namespace(audio)
    batch = audio.shape[:-2]
    flat = xp.sort(xp.reshape(xp.abs(audio), (*batch, -1)), axis=-1)
    count = flat.shape[-1]
    # The smallest of the largest share * count magnitudes; without any share, the largest, which changes nothing.
    rank = xp.clip(count - xp.astype(xp.round(share * count), xp.int64), 0, count - 1)
    ceiling = xp.take_along_axis(flat, xp.broadcast_to(rank, batch)[..., None], axis=-1)[..., None]
    return xp.minimum(xp.maximum(audio, -ceiling), ceiling)


def limit_band(audio: Any, low: Any, high: Any, sample_rate: float) -> Any:
    """Leave only the frequencies from low to high, sharply and in phase.

    Shape: (..., M, n), (...), (...) -> (..., M, n)
    """
    xp = array_namespace(audio)
    samples = audio.shape[-1]
    frequencies = xp.arange(samples // 2 + 1, device=device(audio), dtype=audio.dtype) * (sample_rate / samples)
    passes = (frequencies >= low[..., None]) & (frequencies <= high[..., None])
    mask = xp.astype(passes, audio.dtype)[..., None, :]
    return xp.fft.irfft(xp.fft.rfft(audio) * mask, n=samples)


def set_level(audio: Any, level: Any) -> Any:
    """Scale to an RMS over all channels, in dB of full scale; silence stays silent.

    Shape: (..., M, n), (...) -> (..., M, n)
    """
    xp = array_namespace(audio)
    rms = xp.sqrt(xp.mean(audio**2, axis=(-2, -1)))
    rms = xp.where(rms > 0, rms, xp.ones_like(rms))
    return audio * (10 ** (level / 20) / rms)[..., None, None]
