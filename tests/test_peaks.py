import numpy as np
import pytest

from qkgcc.dsp.peaks import find_peak

pytestmark = pytest.mark.numeric


def sinc_correlation(delay: float, length: int = 4096) -> np.ndarray:
    """A correlation that is exactly known between its samples: a white spectrum with one delay."""
    bins = np.arange(length // 2 + 1)
    spectrum = np.exp(-2j * np.pi * bins * delay / length)
    spectrum[-1] = spectrum[-1].real
    return np.fft.irfft(spectrum, length)


@pytest.mark.parametrize("delay", [-22.7, -3.0, -0.49, 0.0, 0.31, 0.5, 7.77, 23.2])
def test_band_limited_peaks_are_exact_to_a_thousandth(delay: float) -> None:
    assert find_peak(sinc_correlation(delay), 23, limit=23.3) == pytest.approx(delay, abs=0.001)


def test_parabolic_peaks_are_off_by_no_more_than_an_eighth_of_a_sample() -> None:
    delays = np.linspace(-5, 5, 101)
    found = np.array([find_peak(sinc_correlation(d), 23, "parabolic") for d in delays])
    error = np.abs(found - delays)
    assert 0.05 < error.max() < 0.125


@pytest.mark.parametrize("interpolation", ["band-limited", "parabolic", "none"])
def test_no_lag_lies_beyond_the_limit(interpolation: str) -> None:
    for delay in (30.0, 23.4, -23.4, -24.0):
        assert abs(find_peak(sinc_correlation(delay), 23, interpolation)) <= 23
        assert abs(find_peak(sinc_correlation(delay), 23, interpolation, limit=0.1)) <= 0.1


def test_a_flat_correlation_gives_zero() -> None:
    for interpolation in ("band-limited", "parabolic", "none"):
        assert not find_peak(np.zeros((2, 64)), 10, interpolation).any()


def test_short_correlations_work() -> None:
    assert find_peak(sinc_correlation(1.4, 64), 5) == pytest.approx(1.4, abs=0.02)
