"""Silence removal and the power spectrum: the two computations behind a bank."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from qkgcc.core.types import Floats
from qkgcc.lab.corpora import sets
from qkgcc.lab.corpora.packing import LONGER_THAN, SILENCE_FRAME, SILENCE_HOP, loud_intervals, remove_silence
from qkgcc.lab.corpora.sets import FULL_SCALE, Utterance, read_samples
from qkgcc.lab.rooms.mixing import BINS, power_spectrum, response_gains


def intervals_by_the_book(signal: Floats) -> list[list[int]]:
    """Frame by frame, as librosa's documentation describes `effects.split`."""
    padded = np.pad(signal, SILENCE_FRAME // 2)
    rms = [
        np.sqrt(np.mean(padded[i : i + SILENCE_FRAME] ** 2))
        for i in range(0, len(padded) - SILENCE_FRAME + 1, SILENCE_HOP)
    ]
    level = 20 * np.log10(np.maximum(rms, 1e-5))
    parts: list[list[int]] = []
    for frame, loud in enumerate(level - level.max() > -20):
        first, last = frame * SILENCE_HOP, min((frame + 1) * SILENCE_HOP, len(signal))
        if loud and parts and parts[-1][1] == first:
            parts[-1][1] = last
        elif loud:
            parts.append([first, last])
    return parts


@pytest.mark.parametrize("length", [1, 511, 512, 513, 2048, 5000, 40960, 50001])
def test_parts_are_those_of_the_frame_by_frame_definition(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(10):
        levels = np.repeat(10 ** rng.uniform(-3, 0, length // 900 + 1), 900)[:length]
        signal = levels * rng.standard_normal(length)
        assert loud_intervals(signal).tolist() == intervals_by_the_book(signal)


def test_digital_silence_is_kept_whole_as_librosa_does() -> None:
    assert loud_intervals(np.zeros(5000)).tolist() == [[0, 5000]]


def test_a_pause_goes_and_the_sound_around_it_stays() -> None:
    rng = np.random.default_rng(0)
    sound = (3000 * rng.standard_normal(16000)).astype(np.int16)
    with_pause = np.concatenate([sound, np.zeros(32000, dtype=np.int16), sound])
    without = remove_silence(with_pause)
    assert without.dtype == np.int16
    assert 32000 <= len(without) <= 32000 + 2 * SILENCE_FRAME
    assert np.array_equal(without[:16000], sound)
    assert np.array_equal(without[-16000:], sound)


def test_the_known_counts_of_the_papers_test_and_validation_speakers_come_out(corpora: Path) -> None:
    # The originals give 188 in validation; the Opus copies of those speakers give 186. Test speakers are originals.
    found = sets.librispeech_utterances(corpora, "test-clean")
    assigned = sets.assign_splits("test-clean", found)

    def kept(one: Utterance) -> bool:
        return len(remove_silence(read_samples(one))) > LONGER_THAN

    with ThreadPoolExecutor(2) as pool:
        for split, expected in (("test", 216), ("validation", (186, 188))):
            chosen = [one for one, where in zip(found, assigned, strict=True) if where == split]
            count = sum(pool.map(kept, chosen))
            assert count == expected if isinstance(expected, int) else count in expected


def test_the_spectrum_sums_to_the_mean_square() -> None:
    rng = np.random.default_rng(1)
    for length in (1, 700, 1024, 40000, 40001):
        signal = rng.standard_normal(length) + 0.3
        spectrum = power_spectrum(signal)
        assert spectrum.shape == (BINS,)
        assert spectrum.dtype == np.float32
        assert spectrum.sum(dtype=np.float64) == pytest.approx(np.mean(signal**2), rel=1e-6)
    assert not power_spectrum(np.zeros(3000)).any()


def test_the_spectrum_of_a_tone_lies_at_its_frequency_and_of_noise_everywhere() -> None:
    tone = power_spectrum(np.sqrt(2) * np.sin(2 * np.pi * 100 / 1024 * np.arange(32000)))
    assert tone[98:103].sum() == pytest.approx(1, abs=3e-3)
    noise = power_spectrum(np.random.default_rng(2).standard_normal(800_000))
    assert noise[1:-1] == pytest.approx(np.full(BINS - 2, 2 / 1024), rel=0.15)
    assert noise[[0, -1]] == pytest.approx(np.full(2, 1 / 1024), rel=0.15)


def test_gains_of_a_short_response_are_its_squared_magnitude_where_the_window_resolves_it() -> None:
    delayed = np.zeros(900)
    delayed[850] = -0.5
    assert response_gains(delayed) == pytest.approx(np.full(BINS, 0.25))
    pair = np.array([[1.0, 0.4], [1.0, -0.4]])
    expected = np.square(np.abs(np.fft.rfft(pair, 1024)))
    assert response_gains(pair) == pytest.approx(expected, abs=1e-5)


def room(rng: np.random.Generator, t60: float) -> Floats:
    """Decaying noise without its lowest frequencies: coloured as rooms are, so that the plain power is wrong."""
    decay = 10 ** (-3 * np.arange(round(t60 * 16000)) / (t60 * 16000))
    return np.convolve(rng.standard_normal(len(decay)) * decay, [1, -0.9])


def test_the_power_of_a_convolved_utterance_follows_from_its_spectrum(corpora: Path) -> None:
    from scipy.signal import fftconvolve

    chosen = [one for one in sets.librispeech_utterances(corpora, "test-clean") if one.group in ("61", "121", "237")][
        ::16
    ]
    rng = np.random.default_rng(3)
    errors, plain_errors, sampled_errors = [], [], []
    for number, one in enumerate(chosen):
        signal = remove_silence(read_samples(one)) / FULL_SCALE
        if len(signal) <= LONGER_THAN:
            continue
        response = room(rng, t60=(0.2, 0.4, 0.6)[number % 3])
        convolved = fftconvolve(signal, response)
        true = np.var(convolved)
        spectrum, shorter = power_spectrum(signal), len(signal) / len(convolved)
        sampled = np.square(np.abs(np.fft.rfft(response, 16384))[:: 16384 // 1024])
        errors.append(10 * np.log10(spectrum @ response_gains(response) * shorter / true))
        sampled_errors.append(10 * np.log10(spectrum @ sampled * shorter / true))
        plain_errors.append(10 * np.log10(np.var(signal) * np.sum(response**2) * shorter / true))
    assert len(errors) >= 12
    assert np.max(np.abs(errors)) < 0.3
    assert np.max(np.abs(sampled_errors)) > 0.3
    assert np.median(np.abs(plain_errors)) > 2
