"""Each degradation does to a recording what was drawn, and nothing else."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.core.errors import InputError
from qkgcc.lab.rooms.degradations import Degradations, apply, clip, limit_band, microphone_response, respond, set_level
from rounding import assert_rounded

pytestmark = pytest.mark.numeric

RATE = 16000


def noise(channels: int = 2, samples: int = 16000, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((channels, samples))


def test_no_degradations_leave_the_audio_as_it_is() -> None:
    audio = noise()
    np.testing.assert_allclose(apply(audio, Degradations(), RATE), audio, atol=1e-12)


def test_gains_can_be_read_from_the_recording() -> None:
    audio, gain = noise(3), np.array([-5.5, 0.0, 3.25])
    recorded = apply(audio, Degradations(gain=gain), RATE)
    np.testing.assert_allclose(20 * np.log10(recorded.std(axis=1) / audio.std(axis=1)), gain, atol=1e-6)


def test_a_response_is_tilted_from_the_lowest_to_the_highest_frequencies() -> None:
    frequencies = np.array([1.0, 1000.0, 7999.0])
    zero, some = np.zeros(1), np.ones(1)
    level = 20 * np.log10(np.abs(microphone_response(frequencies, zero, 3 * some, zero, some, RATE)))
    np.testing.assert_allclose(level[0], [-1.5, 0.0, 1.5], atol=1e-3)


def test_a_response_has_its_peak_where_it_was_drawn() -> None:
    frequencies = np.linspace(50, 8000, 800)
    shape = np.array([[0.0], [0.0], [-2.5], [1700.0]])
    level = 20 * np.log10(np.abs(microphone_response(frequencies, *shape, RATE)))[0]
    assert abs(frequencies[level.argmin()] - 1700) < 20
    assert abs(level.min() + 2.5) < 0.01
    assert abs(level[0]) < 0.1


def test_a_response_shapes_the_recording_and_comes_after_the_sound() -> None:
    impulse = np.zeros((2, 4096))
    impulse[:, 1000] = 1
    shape = np.array([[1.0, -2.0], [3.0, -2.0], [-3.0, 3.0], [300.0, 4000.0]])
    recorded = respond(impulse, *shape, RATE)
    frequencies = np.fft.rfftfreq(4096, 1 / RATE)
    spectrum = np.fft.rfft(recorded) * np.exp(2j * np.pi * frequencies * 1000 / RATE)
    np.testing.assert_allclose(spectrum, microphone_response(frequencies, *shape, RATE), atol=1e-6)
    assert np.abs(recorded[:, :1000]).max() < 1e-6


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.3])
def test_the_share_of_clipped_samples_is_as_drawn(share: float) -> None:
    audio = noise() * np.array([[1.0], [0.5]])
    recorded = clip(audio, np.asarray(share))
    ceiling = np.abs(recorded).max()
    assert (np.abs(recorded) == ceiling).mean() == pytest.approx(share, abs=1 / audio.size)
    below = np.abs(audio) < ceiling
    np.testing.assert_array_equal(recorded[below], audio[below])


def test_without_a_share_nothing_is_clipped() -> None:
    audio = noise()
    np.testing.assert_array_equal(clip(audio, np.asarray(0.0)), audio)


@pytest.mark.parametrize(("low", "high"), [(300.0, 3400.0), (0.0, 3800.0), (120.0, math.inf)])
def test_nothing_is_left_outside_the_band(low: float, high: float) -> None:
    audio = noise()
    recorded = limit_band(audio, np.asarray(low), np.asarray(high), RATE)
    before, after = np.fft.rfft(audio), np.fft.rfft(recorded)
    frequencies = np.fft.rfftfreq(audio.shape[-1], 1 / RATE)
    inside = (frequencies >= low) & (frequencies <= high)
    assert inside.any()
    assert (~inside).any()
    np.testing.assert_allclose(after[:, inside], before[:, inside], atol=1e-9)
    assert np.abs(after[:, ~inside]).max() < 1e-9


def test_the_recording_has_the_level_that_was_drawn_whatever_came_before() -> None:
    spoiled = Degradations(gain=[3, -3], tilt=[2, -1], clipped=0.02, band=(300, 3400), level=-33.0)
    audio = noise()
    recorded = apply(audio, spoiled, RATE)
    assert 20 * math.log10(math.sqrt((recorded**2).mean())) == pytest.approx(-33)
    np.testing.assert_allclose(apply(1000 * audio, spoiled, RATE), recorded, atol=1e-12)


def test_torch_takes_the_numbers_of_a_scene() -> None:
    """They are read-only, of which torch would warn."""
    audio = noise()
    recorded = apply(torch.from_numpy(audio), Degradations(gain=[3, -3], level=-20.0), RATE)
    np.testing.assert_allclose(recorded.numpy(), apply(audio, Degradations(gain=[3, -3], level=-20.0), RATE), atol=1e-9)


def test_silence_has_no_level() -> None:
    np.testing.assert_array_equal(set_level(np.zeros((2, 10)), np.asarray(-20.0)), np.zeros((2, 10)))


def test_a_deaf_microphone_keeps_its_own_noise() -> None:
    own = noise(seed=1)
    recorded = apply(noise(), Degradations(gain=[0, -60]), RATE, own)
    np.testing.assert_allclose(recorded[1], own[1], atol=0.01)


def test_flat_tops_are_smoothed_by_a_band_limit_that_comes_after() -> None:
    recorded = apply(noise(), Degradations(clipped=0.05, band=(300.0, 3400.0)), RATE)
    assert (np.abs(recorded) > 0.999 * np.abs(recorded).max()).mean() < 0.001


def test_a_batch_is_spoiled_row_by_row_and_alike_in_torch() -> None:
    audio = np.stack([noise(seed=s) for s in range(3)])
    rng = np.random.default_rng(0)
    shape = [rng.uniform(-3, 3, (3, 2)) for _ in range(3)]
    shape.append(rng.uniform(200, 4000, (3, 2)))
    share, low, high, level = (
        np.array(v) for v in ([0, 0.1, 0.01], [0, 300, 50], [math.inf, 3400, 5000], [-20, -30, -40])
    )

    def spoil(audio, shape, share, low, high, level):  # type: ignore[no-untyped-def]
        clipped = clip(respond(audio, *shape, RATE), share)
        return set_level(limit_band(clipped, low, high, RATE), level)

    together = spoil(audio, shape, share, low, high, level)
    for b in range(3):
        names = dict(zip(("gain", "tilt", "peak", "peak_frequency"), (row[b] for row in shape), strict=True))
        one = Degradations(**names, clipped=float(share[b]), band=(low[b], high[b]), level=level[b])
        np.testing.assert_allclose(together[b], apply(audio[b], one, RATE), atol=1e-12)
    tensors = [torch.from_numpy(values).float() for values in (share, low, high, level)]
    in_torch = spoil(torch.from_numpy(audio).float(), [torch.from_numpy(row).float() for row in shape], *tensors)
    assert_rounded(in_torch, together, audio.shape[-1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"clipped": 1.0}, "cannot be clipped"),
        ({"band": (4000.0, 300.0)}, "lets nothing pass"),
        ({"peak_frequency": [0.0]}, "expected more than 0"),
        ({"gain": [0.0, math.nan]}, "the gain of microphones"),
        ({"tilt": math.inf}, "the tilt of microphones"),
        ({"position_error": [[0.0, math.nan, 0.0]]}, "the position error of microphones"),
        ({"level": math.nan}, "the level of a recording is nan dB"),
    ],
)
def test_impossible_degradations_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Degradations(**wrong)
