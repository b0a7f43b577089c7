import numpy as np
import pytest

pytest.importorskip("torch")

import soundfile
import torch

from qkgcc import samples
from qkgcc.lab.rooms import cpu
from qkgcc.lab.rooms.mixing import add_white_noise, convolve, heard_frames, level_of_convolved
from qkgcc.lab.rooms.shoebox import response_length, sabine
from qkgcc.lab.scenes import paper

pytestmark = pytest.mark.numeric


def test_heard_frames_are_cut_out_of_the_whole_convolution() -> None:
    rng = np.random.default_rng(0)
    signals, responses = rng.standard_normal((4, 9000)), rng.standard_normal((4, 2, 700))
    starts = np.array([0, 300, 5000, 8500])
    frames = heard_frames(signals, responses, starts, 512)
    for i, start in enumerate(starts):
        for m in range(2):
            whole = np.convolve(signals[i], responses[i, m])
            np.testing.assert_allclose(frames[i, m], whole[start : start + 512], atol=1e-9)
    on_torch = heard_frames(*(torch.from_numpy(x) for x in (signals, responses, starts)), 512)
    np.testing.assert_allclose(on_torch.numpy(), frames, atol=1e-9)


def welch_power(x: np.ndarray) -> np.ndarray:
    """513 bins that sum to the mean square, from Hann segments that cover every sample alike."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    padded = np.pad(x, 1024)
    starts = np.arange(0, len(padded) - 1023, 512)
    power = (np.abs(np.fft.rfft(padded[starts[:, None] + np.arange(1024)] * window)) ** 2).sum(axis=0)
    power[1:-1] *= 2
    return power / power.sum() * np.mean(x**2)


@pytest.mark.parametrize("t60", [0.2, 0.6, 1.0])
def test_the_level_of_the_whole_utterance_follows_from_its_spectrum(t60: float) -> None:
    """Within half a decibel, where its plain power may miss by more than one."""
    speech, rate = soundfile.read(samples.path("talkers-2ch"))
    speech = speech[:, 0]
    absorption, order = sabine(t60, paper.TEST_ROOM)
    length = response_length(paper.TEST_ROOM, order, rate)
    places = np.random.default_rng(1).uniform(0.2, 0.8, (3, 3)) * paper.TEST_ROOM
    responses = cpu.responses(
        paper.TEST_ROOM,
        np.sqrt(1 - absorption),
        order,
        places,
        paper.TEST_MICROPHONES[:1],
        samples=length,
        sample_rate=rate,
        speed_of_sound=343.0,
    )[:, 0]
    total = len(speech) + length - 1
    true = convolve(speech[None], responses, 2 * ((total + 1) // 2))[:, :total].std(axis=-1)
    power = np.broadcast_to(welch_power(speech), (3, 513))
    predicted = level_of_convolved(power, np.full(3, len(speech)), responses)
    assert np.abs(20 * np.log10(predicted / true)).max() < 0.5
    on_torch = level_of_convolved(*(torch.from_numpy(np.array(x)) for x in (power, np.full(3, len(speech)), responses)))
    np.testing.assert_allclose(on_torch.numpy(), predicted, rtol=1e-6)


def test_noise_has_the_level_of_the_snr_and_is_a_function_of_key_and_sample() -> None:
    clean = np.zeros((3, 2, 20_000), dtype=np.float32)
    keys = np.arange(6).reshape(3, 2) << 20
    noisy = add_white_noise(clean, np.array([0.0, 10.0, 30.0]), keys, np.zeros(3, dtype=np.int64))
    np.testing.assert_allclose(20 * np.log10(noisy.std(axis=-1)), -np.array([[0] * 2, [10] * 2, [30] * 2]), atol=0.1)
    assert abs(np.corrcoef(noisy[0])[0, 1]) < 0.03
    later = add_white_noise(clean[:, :, :100], np.array([0.0, 10.0, 30.0]), keys, np.array([50, 60, 70]))
    np.testing.assert_array_equal(later[1], noisy[1, :, 60:160])


class TestPaperPairs:
    def test_pairs_are_a_pure_function_of_seed_and_index(self) -> None:
        many, one = paper.training_pairs(5, np.arange(100), 1872), paper.training_pairs(5, [42], 1872)
        for name in ("source", "t60", "snr", "utterance", "start", "noise"):
            np.testing.assert_array_equal(getattr(many, name)[42], getattr(one, name)[0])
        assert not (paper.training_pairs(6, [42], 1872).source == one.source).any()

    def test_pairs_fill_the_ranges_of_the_protocol(self) -> None:
        pairs = paper.training_pairs(0, np.arange(20_000), 1872)
        for values, low, high in (
            (pairs.t60, 0.2, 1.0),
            (pairs.snr, 0, 30),
            (pairs.utterance, 0, 1872),
            (pairs.start, 0, 29953),
            *((pairs.source[:, i], 0, paper.TRAIN_ROOM[i]) for i in range(3)),
        ):
            assert low <= values.min() < low + 0.01 * (high - low)
            assert high - 0.01 * (high - low) < values.max() <= high
            assert values.mean() == pytest.approx((low + high) / 2, rel=0.03)
        assert np.abs(pairs.delay()).max() <= 0.5 / 343 * 16000
        assert len(np.unique(pairs.noise)) == pairs.noise.size

    def test_a_source_nearer_to_microphone_2_has_a_positive_delay(self) -> None:
        assert paper.true_delay(np.array([3.5, 4.0, 1.5]), paper.TRAIN_MICROPHONES) > 20
