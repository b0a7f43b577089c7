"""Recordings for the tests of the doctor: clean ones, and each fault as a function that puts it into one.

Shape: everything is (channels, samples) at 16 kHz, full scale 1; delays are positive when channel 0 hears later.
"""

from collections.abc import Callable

import numpy as np
import soundfile as sf
import soxr
from scipy.signal import butter, fftconvolve, sosfilt

from qkgcc import samples
from qkgcc.core.types import Floats

Array = Floats
Fault = Callable[[Array], Array]

RATE = 16000


def talkers(name: str = "talkers-2ch") -> Array:
    """A bundled recording."""
    return sf.read(samples.path(name))[0].T


def long_speech() -> Array:
    """47 s of speech-like sound that never repeats: the bundled talkers forwards, backwards, and at two more speeds.

    A noise gate takes their background away, which would otherwise seem to come out of the talker's mouth.
    """
    dry = gated(talkers())[0]
    return np.concatenate([dry, dry[::-1], soxr.resample(dry, 5, 4), soxr.resample(dry[::-1], 8, 5)])


def bursts(seconds: float = 8.0) -> Array:
    """Pink noise above 80 Hz that comes and goes every 0.6 s: a source without pitch."""
    rng = np.random.default_rng(1)
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(rng.standard_normal(count)) / np.sqrt(np.arange(1, count // 2 + 2))
    spectrum[: int(80 * seconds)] = 0
    steps = np.arange(int(seconds / 0.3) + 1)
    on = np.repeat(rng.uniform(0.1, 1.0, len(steps)) * (steps % 2), int(0.3 * RATE))
    return np.fft.irfft(spectrum, count) * on[:count]


def room(dry: Array, delay: float = -7.3, *, t60: float = 0.3, snr: float | None = 20.0, seed: int = 2) -> Array:
    """A source at rest in a room of noise-like reverberation, heard by two microphones; `snr` None: no background."""
    rng = np.random.default_rng(seed)
    time = np.arange(int(t60 * RATE))
    tails = rng.standard_normal((2, len(time))) * 10 ** (-3 * time / len(time)) * (time > 80)
    tails *= 0.5 / np.sqrt((tails**2).sum(axis=1, keepdims=True))
    taps = np.arange(-40, 40) + 40
    for tail, shift in zip(tails, (40 + delay / 2, 40 - delay / 2), strict=True):
        tail[: len(taps)] += np.sinc(taps - shift) * np.hanning(len(taps))
    heard = np.stack([fftconvolve(dry, tail)[: len(dry)] for tail in tails])
    heard *= 0.08 / heard.std()
    return heard if snr is None else heard + 0.08 * 10 ** (-snr / 20) * rng.standard_normal(heard.shape)


def shifted(dry: Array, delays: Array) -> Array:
    """A moving source in the open: two channels whose delay in samples changes from sample to sample."""
    noise = 0.01 * np.std(dry) * np.random.default_rng(3).standard_normal((2, len(dry)))
    heard = np.zeros((2, len(dry)))
    for channel, half in enumerate((0.5, -0.5)):
        place = np.clip(np.arange(len(dry)) - half * delays, 20, len(dry) - 20)
        whole = np.floor(place).astype(int)
        for tap in range(-7, 9):
            away = tap - (place - whole)
            heard[channel] += dry[whole + tap] * np.sinc(away) * np.cos(np.pi * away / 18) ** 2
    return heard + noise


def sixteen_bits(x: Array) -> Array:
    return np.clip(np.round(x * 32768), -32768, 32767) / 32768


def change(channel: int, what: Callable[[Array], Array]) -> Fault:
    """The fault that changes one channel."""

    def fault(x: Array) -> Array:
        changed = x.copy()
        changed[channel] = what(x[channel])
        return sixteen_bits(changed)

    return fault


def copied(decibels: float = 0.0, sign: int = 1) -> Fault:
    return lambda x: sixteen_bits(np.stack([x[0], sign * 10 ** (decibels / 20) * x[0]]))


def silent(decibels: float | None = None) -> Fault:
    """Channel 1 holds nothing, or only noise so far below channel 0."""
    noise = np.random.default_rng(4)
    return lambda x: change(
        1, lambda y: 0 * y if decibels is None else x[0].std() * 10 ** (decibels / 20) * noise.standard_normal(len(y))
    )(x)


def inverted(channel: int = 1) -> Fault:
    return change(channel, lambda y: -y)


def amplified(decibels: float, channel: int = 1) -> Fault:
    def fault(x: Array) -> Array:
        y = change(channel, lambda y: y)(x)
        y[channel] *= 10 ** (decibels / 20)
        return sixteen_bits(y / max(1, np.abs(y).max()))

    return fault


def clipped(share: float, top: float = 1.0) -> Fault:
    """So large a share of all samples is cut off; `top` is where the flat tops come to lie."""

    def fault(x: Array) -> Array:
        limit = np.quantile(np.abs(x), 1 - share)
        return sixteen_bits(np.clip(x, -limit, limit) * (top / limit))

    return fault


def lifted(offset: float) -> Fault:
    return change(1, lambda y: y + offset)


def started_later(seconds: float) -> Fault:
    """The recorder of channel 1 started so much later than that of channel 0 (earlier, if negative).

    What it hears then stands earlier in its file: the delay grows by `seconds`.
    """
    count = round(abs(seconds) * RATE)

    def fault(x: Array) -> Array:
        late, early = (1, 0) if seconds > 0 else (0, 1)
        y = np.empty((2, x.shape[1] - count))
        y[late], y[early] = x[late, count:], x[early, : x.shape[1] - count]
        return sixteen_bits(y)

    return fault


def drifting(ppm: float) -> Fault:
    """Channel 1's clock is slower, it has fewer samples: the delay grows by `ppm` microseconds a second."""

    def fault(x: Array) -> Array:
        slow = soxr.resample(x[1], 1.0, 1.0 - ppm * 1e-6, quality="VHQ")
        count = min(len(slow), x.shape[1])
        return sixteen_bits(np.stack([x[0, :count], slow[:count]]))

    return fault


def humming(decibels: float, mains: float, lines: tuple[float, ...] = (1.0, 0.5, 0.3)) -> Fault:
    """Hum in both channels, so far below the sound of channel 0."""

    def fault(x: Array) -> Array:
        time = np.arange(x.shape[1]) / RATE
        hum = sum(height * np.sin(2 * np.pi * mains * (k + 1) * time + k) for k, height in enumerate(lines))
        return sixteen_bits(x + hum * (x[0].std() * 10 ** (decibels / 20) / np.std(hum)))

    return fault


def quiet(dbfs: float) -> Fault:
    return lambda x: sixteen_bits(x * (10 ** (dbfs / 20) / x.std()))


def both(*faults: Fault) -> Fault:
    def fault(x: Array) -> Array:
        for one in faults:
            x = one(x)
        return x

    return fault


def gated(x: Array) -> Array:
    """A noise gate: frames of 50 ms that are 25 dB below the loud ones are digital silence."""
    size = RATE // 20
    y = x[:, : x.shape[1] // size * size].copy()
    frames = y.reshape(2, -1, size)
    power = (frames**2).mean(axis=(0, 2))
    frames[:, power < np.quantile(power, 0.95) * 10**-2.5] = 0
    return y


def shadowed(x: Array, hertz: float = 400.0) -> Array:
    """A head before channel 1: it loses its high frequencies in the sound of the source, not in the background."""
    y = x.copy()
    y[1] = sosfilt(butter(1, hertz, fs=RATE, output="sos"), x[1])
    return y
