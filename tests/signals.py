"""Test signals with an exactly known delay."""

import numpy as np
import numpy.typing as npt

C = 343.0


def delayed_noise(
    delays: npt.ArrayLike, samples: int, *, snr: float = 20.0, seed: int = 0, dtype: type = np.float64
) -> np.ndarray:
    """White noise whose first channel hears it later by each of `delays` samples (fractions too), plus sensor noise.

    The noise is delayed as a whole and cut out of the middle, so that no sample wraps around.
    Shape: (D,) -> (D, 2, samples)
    """
    delays = np.atleast_1d(np.asarray(delays, dtype=np.float64))
    rng = np.random.default_rng(seed)
    length = 2 * samples
    spectrum = np.fft.rfft(rng.standard_normal((len(delays), length)))
    turn = np.exp(-2j * np.pi * np.arange(length // 2 + 1) * delays[:, None] / length)
    both = np.fft.irfft(np.stack([spectrum * turn, spectrum], axis=1), length)
    cut = both[..., samples // 2 : samples // 2 + samples]
    return (cut + 10 ** (-snr / 20) * rng.standard_normal(cut.shape)).astype(dtype)


def grid(sample_rate: int) -> np.ndarray:
    """Every whole delay that microphones 0.5 m apart allow."""
    furthest = int(0.5 / C * sample_rate)
    return np.arange(-furthest, furthest + 1)
