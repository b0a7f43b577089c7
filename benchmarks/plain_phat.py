"""GCC-PHAT as in a textbook, which the benchmarks measure everything against: what one writes in a notebook."""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

NAME = "GCC-PHAT, plain"
DFT = 4096
MEANS = f"`{NAME}`: two FFTs of {DFT}, their phases, an inverse FFT, and the largest of the possible lags"


def curve(frames: npt.NDArray[Any], max_lag: int) -> npt.NDArray[Any]:
    """Shape: (batch, 2, n) -> (batch, 2 * max_lag + 1)"""
    spectra = scipy.fft.rfft(frames, n=DFT)
    cross = spectra[:, 0] * np.conj(spectra[:, 1])
    cross /= np.abs(cross) + 1e-12
    circular = scipy.fft.irfft(cross, n=DFT)
    return np.concatenate([circular[:, -max_lag:], circular[:, : max_lag + 1]], axis=1)


def delays(frames: npt.NDArray[Any], max_lag: int) -> npt.NDArray[Any]:
    """Whole samples. Shape: (batch, 2, n) -> (batch,)"""
    return np.asarray(curve(frames, max_lag).argmax(axis=1) - max_lag)
