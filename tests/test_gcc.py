import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkgcc import InputError
from qkgcc.dsp import gcc
from qkgcc.dsp.peaks import INTERPOLATIONS
from signals import delayed_noise, grid

pytestmark = pytest.mark.numeric

RATES = (8000, 16000, 44100, 48000)
SYMMETRIC = [w for w in gcc.WEIGHTINGS if w != "roth"]
whole_delay = st.integers(-23, 23)


def frame_length(sample_rate: int) -> int:
    return round(0.128 * sample_rate)


@pytest.mark.parametrize("sample_rate", RATES)
@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_every_delay_of_the_grid_is_found_in_white_noise(weighting: str, sample_rate: int) -> None:
    delays = grid(sample_rate)
    frames = delayed_noise(delays, frame_length(sample_rate), seed=sample_rate)
    for interpolation, tolerance in zip(INTERPOLATIONS, (0.05, 0.15, 0.5), strict=True):
        found = gcc.delays(frames, weighting, max_lag=delays[-1], interpolation=interpolation)
        assert np.abs(found - delays).max() <= tolerance, interpolation


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_delays_between_the_samples_are_found_too(weighting: str) -> None:
    delays = np.random.default_rng(1).uniform(-23, 23, 100)
    frames = delayed_noise(delays, 2048)
    for interpolation, tolerance in zip(INTERPOLATIONS, (0.05, 0.15, 0.51), strict=True):
        found = gcc.delays(frames, weighting, max_lag=23, interpolation=interpolation)
        assert np.abs(found - delays).max() <= tolerance, interpolation


@settings(deadline=None, max_examples=25)
@given(delay=whole_delay, seed=st.integers(0, 1000), weighting=st.sampled_from(SYMMETRIC))
def test_swapping_channels_flips_the_sign(delay: int, seed: int, weighting: str) -> None:
    frames = delayed_noise(delay, 2048, seed=seed)
    forward = gcc.delays(frames, weighting, max_lag=24)
    backward = gcc.delays(frames[:, ::-1], weighting, max_lag=24)
    np.testing.assert_allclose(forward, -backward, atol=1e-6)


def test_roth_alone_is_not_symmetric_in_its_channels() -> None:
    rng = np.random.default_rng(0)
    frames = delayed_noise(5, 2048) * (1 + 3 * np.abs(np.sin(np.linspace(0, 9, 2048))) * [[1], [0]])
    frames[:, 0] += 3 * np.convolve(rng.standard_normal(2048), [1, 1, 1, 1], "same")
    forward, backward = gcc.gcc(frames, "roth", max_lag=23), gcc.gcc(frames[:, ::-1], "roth", max_lag=23)
    assert np.abs(forward - backward[:, ::-1]).max() > 0.01
    for weighting in SYMMETRIC:
        forward, backward = gcc.gcc(frames, weighting, max_lag=23), gcc.gcc(frames[:, ::-1], weighting, max_lag=23)
        np.testing.assert_allclose(forward, backward[:, ::-1], atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(
    gains=st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_scaling_either_channel_changes_nothing_for_phat(gains: tuple[float, float], seed: int, dtype: type) -> None:
    frames = delayed_noise(7, 2048, seed=seed, snr=0, dtype=dtype)
    scaled = frames * np.asarray(gains, dtype=dtype)[:, None]
    np.testing.assert_allclose(
        gcc.gcc(frames, "phat", max_lag=23),
        gcc.gcc(scaled, "phat", max_lag=23),
        atol=1e-4 if dtype == np.float32 else 1e-9,
    )


@settings(deadline=None, max_examples=25)
@given(first=st.integers(-11, 11), shift=st.integers(-11, 11), weighting=st.sampled_from(gcc.WEIGHTINGS))
def test_shifting_one_channel_moves_the_estimate_by_that_shift(first: int, shift: int, weighting: str) -> None:
    both = delayed_noise(first, 2200, seed=99)[0]
    still = both[:, 50:2098]
    moved = np.stack([both[0, 50 - shift : 2098 - shift], both[1, 50:2098]])
    before, after = (gcc.delays(x, weighting, max_lag=23) for x in (still, moved))
    assert after - before == pytest.approx(shift, abs=0.05)


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_torch_and_numpy_give_the_same_curve(weighting: str) -> None:
    torch = pytest.importorskip("torch")
    frames = delayed_noise(np.linspace(-20, 20, 40), 2048, snr=5)
    tensor = torch.from_numpy(frames)
    options = {"max_lag": 23, "band": (300.0, 6000.0), "sample_rate": 16000}
    np.testing.assert_allclose(
        gcc.gcc(tensor, weighting, **options).numpy(), gcc.gcc(frames, weighting, **options), atol=1e-9
    )
    for interpolation in INTERPOLATIONS:
        np.testing.assert_allclose(
            gcc.delays(tensor, weighting, max_lag=23, interpolation=interpolation).numpy(),
            gcc.delays(frames, weighting, max_lag=23, interpolation=interpolation),
            atol=1e-6,
        )


def test_a_curve_of_torch_tensors_has_a_gradient() -> None:
    torch = pytest.importorskip("torch")
    frames = torch.from_numpy(delayed_noise(3, 512)).requires_grad_()
    gcc.gcc(frames, "phat", max_lag=10)[0, 13].backward()
    assert frames.grad is not None
    assert torch.isfinite(frames.grad).all()
    assert frames.grad.abs().max() > 0


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_silence_and_a_dead_channel_give_a_curve_of_zeros(weighting: str, dtype: type) -> None:
    silent = np.zeros((1, 2, 2048), dtype=dtype)
    half_dead = silent.copy()
    half_dead[0, 0] = np.random.default_rng(0).standard_normal(2048)
    for frames in (silent, half_dead):
        assert not gcc.gcc(frames, weighting, max_lag=23).any()
        assert not gcc.delays(frames, weighting, max_lag=23).any()


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_curves_lie_between_minus_one_and_one_and_reach_one_for_a_clean_copy(weighting: str) -> None:
    x = np.random.default_rng(3).standard_normal((1, 1, 2048))
    curve = gcc.gcc(np.concatenate([x, x], axis=1), weighting, max_lag=23)
    assert curve[0, 23] == pytest.approx(1, abs=1e-3)
    noisy = gcc.gcc(delayed_noise(4, 2048, snr=-10), weighting, max_lag=23)
    assert np.abs(noisy).max() < 1


@pytest.mark.parametrize("weighting", ["phat", "scot", "ml"])
def test_a_silent_frame_does_not_spoil_the_gradient_of_a_batch(weighting: str) -> None:
    torch = pytest.importorskip("torch")
    frames = torch.from_numpy(delayed_noise([3, 3], 512))
    frames[1] = 0
    frames.requires_grad_()
    gcc.gcc(frames, weighting, max_lag=10).sum().backward()
    assert frames.grad is not None
    assert torch.isfinite(frames.grad).all()


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_audio_with_an_empty_part_of_the_band_is_no_trap(weighting: str) -> None:
    """Telephone speech or a low-passed file: whitening must not raise the empty bins to the level of the others."""
    frames = delayed_noise(np.full(20, 10), 2048, snr=60)
    spectrum = np.fft.rfft(frames)
    frequency = np.fft.rfftfreq(2048, 1 / 16000)
    spectrum[..., (frequency < 300) | (frequency > 3400)] = 0
    narrow = np.fft.irfft(spectrum)
    narrow += 0.01 * narrow.std() * np.random.default_rng(0).standard_normal(narrow.shape)
    np.testing.assert_allclose(gcc.delays(narrow, weighting, max_lag=23), 10, atol=1)


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_a_band_limit_ignores_an_interferer_outside_it(weighting: str) -> None:
    """A tone complex below 1 kHz at another delay, 20 dB louder than the noise above it."""
    n, rate = 2048, 16000
    frames = delayed_noise(6, n, snr=30)
    spectrum = np.fft.rfft(frames)
    spectrum[..., : round(1500 / rate * n)] = 0
    time = np.arange(n) / rate
    hum = sum(np.sin(2 * np.pi * f * (time[None] - np.array([[-12], [0]]) / rate) + f) for f in range(110, 1000, 37))
    mixed = np.fft.irfft(spectrum) + 10 * hum
    assert abs(gcc.delays(mixed, "cc", max_lag=23)[0] - 6) > 1
    found = gcc.delays(mixed, weighting, max_lag=23, band=(2000.0, 7000.0), sample_rate=rate)
    assert found[0] == pytest.approx(6, abs=0.3)


def test_smoothing_tells_scot_and_ml_from_phat() -> None:
    """On one raw periodogram SCOT would equal PHAT; with averaged spectra a noisy half of the band counts less."""
    rng = np.random.default_rng(0)
    frames = delayed_noise(9, 2048, snr=40)
    spectrum = np.fft.rfft(frames)
    spectrum[..., 512:] = np.fft.rfft(rng.standard_normal(frames.shape))[..., 512:]
    half_noise = np.fft.irfft(spectrum)
    peak = {w: gcc.gcc(half_noise, w, max_lag=23)[0, 32] for w in ("phat", "scot", "ml")}
    assert peak["phat"] < peak["scot"] < peak["ml"]
    assert peak["ml"] > 0.9


def test_single_frames_and_any_leading_shape_work() -> None:
    frames = delayed_noise(np.arange(6), 1024)
    flat = gcc.gcc(frames, max_lag=10)
    np.testing.assert_allclose(gcc.gcc(frames.reshape(2, 3, 2, 1024), max_lag=10), flat.reshape(2, 3, 21))
    np.testing.assert_allclose(gcc.gcc(frames[4], max_lag=10), flat[4])


def test_a_large_batch_equals_its_frames_one_by_one() -> None:
    frames = delayed_noise(np.linspace(-9, 9, 70), 512)
    one_by_one = np.stack([gcc.gcc(frame, max_lag=10) for frame in frames])
    np.testing.assert_allclose(gcc.gcc(frames, max_lag=10), one_by_one, atol=1e-12)


def test_float32_stays_float32() -> None:
    frames = delayed_noise(3, 512, dtype=np.float32)
    assert gcc.gcc(frames, "scot", max_lag=10).dtype == np.float32
    assert gcc.delays(frames, "phat", max_lag=10).dtype == np.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: gcc.gcc(x, "pahat", max_lag=5), "unknown weighting 'pahat'; known are cc, phat"),
        (lambda x: gcc.gcc(x[:, :1], max_lag=5), r"shape \(..., 2, samples\)"),
        (lambda x: gcc.gcc(x, max_lag=512), "do not fit"),
        (lambda x: gcc.delays(x, max_lag=300), "do not fit"),
        (lambda x: gcc.gcc(x, max_lag=0), "expected 1 to half a frame"),
        (lambda x: gcc.gcc(x, "scot", max_lag=100), "at least 800 samples"),
        (lambda x: gcc.gcc(x, max_lag=5, band=(1.0, 2.0)), "needs the sample rate"),
        (lambda x: gcc.gcc(x, max_lag=5, band=(500.0, 200.0), sample_rate=16000), "must be below"),
        (lambda x: gcc.gcc(x, max_lag=5, band=(9000.0, 9500.0), sample_rate=16000), "holds no frequency"),
        (lambda x: gcc.delays(x, max_lag=5, interpolation="cubic"), "unknown interpolation"),
    ],
)
def test_bad_arguments_are_one_clear_sentence(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call(np.ones((1, 2, 512)))


@pytest.mark.parametrize("weighting", gcc.WEIGHTINGS)
def test_how_frames_lie_in_memory_changes_nothing(weighting: str) -> None:
    frames = delayed_noise([3, -4, 7], 2048).astype(np.float32)
    spread = np.repeat(frames, 2, axis=-1)[..., ::2]
    crosswise = np.asfortranarray(frames)
    expected = gcc.gcc(frames, weighting, max_lag=23)
    for same in (spread, crosswise, frames[:, ::-1].copy()[:, ::-1]):
        np.testing.assert_array_equal(gcc.gcc(same, weighting, max_lag=23), expected)
