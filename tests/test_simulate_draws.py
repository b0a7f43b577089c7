import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.lab.rooms.draws import normal, stream, uniform

pytestmark = pytest.mark.numeric


def test_a_draw_depends_on_its_name_seed_and_index_alone() -> None:
    many = uniform("t60", 3, np.arange(1000))
    assert uniform("t60", 3, 777) == many[777]
    np.testing.assert_array_equal(uniform("t60", 3, [5, 4]), many[[5, 4]])
    assert not np.isin(uniform("snr", 3, np.arange(1000)), many).any()
    assert not np.isin(uniform("t60", 4, np.arange(1000)), many).any()


def test_the_generator_is_splitmix64() -> None:
    mask = (1 << 64) - 1

    def reference(counter: int) -> float:
        x = counter * 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return ((x ^ x >> 31) >> 11) / 2**53

    for index in (0, 1, 12345678901):
        assert uniform("x", 1, index) == reference(stream("x", 1) + index)


def test_uniform_numbers_are_uniform_and_independent() -> None:
    u = uniform("u", 0, np.arange(200_000))
    counts, _ = np.histogram(u, bins=50, range=(0, 1))
    assert np.abs(counts / 4000 - 1).max() < 0.1
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(u, uniform("v", 0, np.arange(200_000)))[0, 1]) < 0.01


def test_normal_numbers_are_white_and_gaussian() -> None:
    x = normal(stream("noise", 0), np.arange(200_000)).astype(np.float64)
    assert abs(x.mean()) < 0.01
    assert abs(x.var() - 1) < 0.01
    assert abs((x**4).mean() - 3) < 0.05
    power = np.abs(np.fft.rfft(x[:131072].reshape(64, 2048))) ** 2 / 2048
    assert np.abs(power.mean(axis=0)[1:-1].reshape(31, 33).mean(axis=1) - 1).max() < 0.1
    assert x.dtype == np.float64
    assert normal(1, np.arange(3)).dtype == np.float32


def test_torch_gives_the_same_noise() -> None:
    counters = np.arange(10_000)
    key = stream("noise", 5)
    np.testing.assert_allclose(normal(key, torch.from_numpy(counters)).numpy(), normal(key, counters), atol=1e-6)
