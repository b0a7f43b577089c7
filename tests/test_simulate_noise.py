"""Noise has the colour and the coherence that it is asked for."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.core.errors import InputError
from qkgcc.lab.rooms.draws import stream
from qkgcc.lab.rooms.noise import coloured, diffuse, diffuse_coherence, white
from rounding import assert_rounded

pytestmark = pytest.mark.numeric

RATE = 16000
SEGMENT = 512


def drawn(batch: int, channels: int, samples: int, name: str = "test") -> np.ndarray:
    keys = np.array([[stream(f"{name}/{b}/{m}", 1) for m in range(channels)] for b in range(batch)])
    return white(keys, np.zeros(batch, dtype=np.int64), samples)


def welch(noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies and cross-spectra over half-overlapping Hann segments. Shape: (B, M, n) -> (F,), (F, M, M)."""
    window = np.hanning(SEGMENT)
    starts = range(0, noise.shape[-1] - SEGMENT + 1, SEGMENT // 2)
    spectra = np.concatenate([np.fft.rfft(noise[..., i : i + SEGMENT] * window) for i in starts])
    return np.fft.rfftfreq(SEGMENT, 1 / RATE), np.einsum("bif,bjf->fij", spectra, spectra.conj()) / len(spectra)


def coherence(noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    frequencies, cross = welch(noise)
    power = np.einsum("fii->fi", cross).real
    return frequencies, cross / np.sqrt(power[:, :, None] * power[:, None, :])


def measured_slope(power: np.ndarray, frequencies: np.ndarray) -> float:
    """dB per octave of a line through the spectrum from 100 Hz to 7 kHz."""
    band = (frequencies >= 100) & (frequencies <= 7000)
    return float(np.polyfit(np.log2(frequencies[band]), 10 * np.log10(power[band]), 1)[0])


def test_white_noise_is_a_function_of_the_sample_number() -> None:
    keys = np.array([stream("a", 1), stream("b", 1)])
    whole = white(keys, np.int64(0), 500)
    np.testing.assert_array_equal(white(keys, np.int64(100), 400), whole[:, 100:])
    assert abs(np.corrcoef(whole)[0, 1]) < 0.2


MICROPHONES = np.array([[0.0, 0.0, 0.0], [0.03, 0.0, 0.0], [0.3, -0.2, 0.2]])


@pytest.mark.parametrize("slope", [0.0, -6.0])
def test_diffuse_coherence_follows_the_sinc(slope: float) -> None:
    noise = diffuse(coloured(drawn(160, 3, 16384), np.full(160, slope), RATE), MICROPHONES, RATE)
    frequencies, measured = coherence(noise)
    assert np.abs(measured - diffuse_coherence(frequencies, MICROPHONES)).max() < 0.05


def test_independent_noises_are_not_coherent() -> None:
    _, measured = coherence(drawn(80, 3, 16384))
    assert np.abs(measured - np.eye(3)).max() < 0.05


def test_a_diffuse_field_is_equally_loud_everywhere() -> None:
    noise = diffuse(coloured(drawn(20, 3, 16384), np.full(20, -3.0), RATE), MICROPHONES, RATE)
    np.testing.assert_allclose(noise.std(axis=-1).mean(axis=0), 1, atol=0.05)


@pytest.mark.parametrize("slope", [-6.0, -3.0, 0.0, 3.0, 1.7])
def test_noise_has_the_slope_it_was_asked_for(slope: float) -> None:
    noise = coloured(drawn(20, 1, 16384), np.full(20, slope), RATE)
    frequencies, cross = welch(noise)
    assert abs(measured_slope(cross[:, 0, 0].real, frequencies) - slope) < 0.3
    assert abs(noise.var() - 1) < 0.05


@pytest.mark.parametrize("samples", [2048, 2047])
def test_colour_keeps_the_variance_at_any_length(samples: int) -> None:
    noise = coloured(drawn(200, 2, samples), np.full(200, -4.0), RATE)
    assert abs(noise.var() - 1) < 0.05


def test_a_batch_has_slopes_and_positions_of_its_own() -> None:
    noise = drawn(2, 3, 1024)
    slopes = np.array([-6.0, 1.0])
    positions = np.random.default_rng(0).uniform(0, 2, (2, 3, 3))
    together = diffuse(coloured(noise, slopes, RATE), positions, RATE)
    for b in range(2):
        alone = diffuse(coloured(noise[b], slopes[b], RATE), positions[b], RATE)
        np.testing.assert_allclose(together[b], alone, atol=1e-5)


def test_torch_makes_the_same_noise() -> None:
    keys = np.array([[stream(f"{b}/{m}", 1) for m in range(2)] for b in range(3)])
    positions = np.random.default_rng(0).uniform(0, 2, (3, 2, 3))
    first, slopes = np.arange(3), np.array([-6.0, 0.0, 3.0])
    expected = diffuse(coloured(white(keys, first, 2048).astype(np.float64), slopes, RATE), positions, RATE)
    tensor = torch.from_numpy
    noise = coloured(white(tensor(keys), tensor(first), 2048), tensor(slopes).float(), RATE)
    result = diffuse(noise, tensor(positions), RATE)
    assert_rounded(result, expected, 2048)


def test_sixteen_microphones_in_one_place_hear_one_noise() -> None:
    noise = diffuse(drawn(1, 16, 2048)[0], np.ones((16, 3)), RATE)
    np.testing.assert_allclose(noise, np.broadcast_to(noise[0], noise.shape), atol=0.02)


def test_a_field_needs_a_noise_for_each_microphone() -> None:
    with pytest.raises(InputError, match="3 microphones cannot hear 2 channels"):
        diffuse(drawn(1, 2, 100)[0], MICROPHONES, RATE)
