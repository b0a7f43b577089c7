import numpy as np
import pytest

from qkgcc import DelayEstimator
from qkgcc.dsp import rumble
from qkgcc.dsp.rumble import without_rumble
from qkgcc.network.registry import PRETRAINED
from qkgcc.pairs.evidence import prepare_frames
from qkgcc.pairs.frontend import at_unit_level
from signals import delayed_noise

pytestmark = pytest.mark.numeric

RATE, FRAME = 16000, 2048


def lines(frequencies: list[float], samples: int, seed: int = 0) -> np.ndarray:
    """The same in both channels, of unit power."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    sound = sum(np.sin(2 * np.pi * f * time + rng.uniform(0, 6)) / (i + 1) for i, f in enumerate(frequencies))
    return np.asarray(sound / np.std(sound))


def noise(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 2, FRAME))


def test_frames_that_are_not_drowned_are_left_alone_to_the_bit() -> None:
    frames = noise(3) + 0.5 * lines([50, 100], FRAME)
    assert without_rumble(frames, RATE) is frames
    frames[1] += 10 * lines([50, 100], FRAME)
    cleared = without_rumble(frames, RATE)
    np.testing.assert_array_equal(cleared[[0, 2]], frames[[0, 2]])
    assert cleared[1].std() < 0.2 * frames[1].std()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("level", [1e-3, 1.0, 1e6])
def test_what_is_left_is_the_rest(dtype: type, level: float) -> None:
    rest = noise(4)
    hum = 10 * lines([50, 100, 150], FRAME)
    cleared = without_rumble((level * (rest + hum)).astype(dtype), RATE)
    assert cleared.dtype == dtype
    far = np.abs(np.fft.rfft(cleared / level - rest))[..., round(400 / RATE * FRAME) :]
    assert far.max() < 0.05 * np.abs(np.fft.rfft(hum)).max()
    assert np.abs(far).mean() < 0.1 * np.abs(np.fft.rfft(rest)).mean()


def test_a_constant_offset_is_no_rumble_and_stays() -> None:
    frames = noise(2) + 100.0
    assert without_rumble(frames, RATE) is frames
    frames += 10 * lines([60, 120], FRAME)
    cleared = without_rumble(frames, RATE)
    assert cleared.std() < 0.2 * frames.std()
    np.testing.assert_allclose(cleared.mean(axis=-1), frames.mean(axis=-1))


@pytest.mark.parametrize("frequency", [40, 100, 200, 240])
@pytest.mark.parametrize("decibels", [54, 66, 80])
def test_where_there_is_next_to_nothing_else_the_rumble_is_what_is_heard(frequency: float, decibels: float) -> None:
    tone = np.stack(2 * [lines([frequency], FRAME)])[None] + 10 ** (-decibels / 20) * noise(8)
    assert without_rumble(tone, RATE) is tone


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_band_keeps_what_it_is_asked_to_hold_and_no_more(name: str) -> None:
    hum = lines([100, 150, 200], RATE)
    heard = delayed_noise(5.3, RATE, snr=20)[0] + 10 * hum
    low = np.stack([np.roll(hum, 5), hum]) + 0.1 * np.random.default_rng(0).standard_normal((2, RATE))
    estimator = DelayEstimator(name, spacing=0.3, band=(300, 8000))
    assert (np.abs(estimator(heard, RATE).delay_samples - 5.3) < 0.5).mean() > 0.9
    kept = DelayEstimator(name, spacing=0.3, band=(20, 8000))
    assert kept.method_at(RATE).rumble == 20
    frames = np.lib.stride_tricks.sliding_window_view(low, FRAME, axis=1)[:, ::2000].swapaxes(0, 1)
    np.testing.assert_array_equal(prepare_frames(kept.method_at(RATE), frames)[0], at_unit_level(frames))


def test_a_frame_has_the_same_answer_whichever_are_with_it() -> None:
    frames = noise(7) + 5 * lines([50, 150, 250], FRAME)
    whole = without_rumble(frames, RATE)
    for i in range(7):
        np.testing.assert_array_equal(without_rumble(frames[i : i + 1], RATE)[0], whole[i])


@pytest.mark.parametrize("rate", [8000, 44100])
def test_the_cosines_go_up_to_the_same_frequency_at_any_rate(rate: int) -> None:
    assert rumble.count_cosines(round(0.128 * rate), rate) == pytest.approx(rumble.count_cosines(FRAME, RATE), abs=1)


@pytest.mark.parametrize("name", PRETRAINED)
@pytest.mark.parametrize("decibels", [10, 20, 35])
def test_a_source_beside_a_hum_is_answered_with_confidence(name: str, decibels: float) -> None:
    x = delayed_noise(5.3, RATE, snr=20)[0]
    heard = x + x.std() * 10 ** (decibels / 20) * lines([50, 100, 150, 200, 250], RATE)
    answer = DelayEstimator(name, spacing=0.3)(heard, RATE)
    assert answer.calibrated
    assert (np.abs(answer.delay_samples - 5.3) < 0.5).mean() > 0.9
    assert answer.confidence.mean() > 0.9


@pytest.mark.parametrize("name", PRETRAINED)
@pytest.mark.parametrize(("decibels", "at_most"), [(10, 0.25), (20, 0.4)])
def test_an_empty_room_with_a_hum_is_answered_with_little_confidence(
    name: str, decibels: float, at_most: float
) -> None:
    hum = np.stack(2 * [lines([50, 100, 150, 250], 2 * RATE)])
    own = 10 ** (-decibels / 20) * hum.std() * np.random.default_rng(1).standard_normal(hum.shape)
    answer = DelayEstimator(name, spacing=0.3)(0.1 * (hum + own), RATE)
    assert answer.confidence.mean() < at_most


def test_one_microphone_twice_is_noticed_under_a_hum() -> None:
    sound = 0.03 * delayed_noise(0, 4 * RATE, snr=100)[0, 0]
    sound += sound.std() * 10**0.5 * lines([50, 100, 150], len(sound))
    copy = np.round(32768 * np.stack([sound, 0.8 * sound])) / 32768
    answer = DelayEstimator(spacing=0.3)(copy, RATE)
    assert answer.confidence.max() == 0
    assert "the same signal" in " ".join(answer.warnings)
