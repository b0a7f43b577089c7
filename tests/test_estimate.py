import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkgcc import DelayEstimator, DelayStream, InputError, open_audio, samples
from qkgcc.network.registry import CLASSICAL
from signals import delayed_noise

pytestmark = pytest.mark.numeric


def recording(delay: float, seconds: float = 1.0, rate: int = 16000, **options: float) -> np.ndarray:
    return 0.1 * delayed_noise(delay, round(seconds * rate), **options)[0]


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
@pytest.mark.parametrize("method", CLASSICAL)
def test_a_delay_is_found_at_any_rate_in_samples_of_that_rate(method: str, rate: int) -> None:
    delay = 0.9e-3 * rate
    answer = DelayEstimator(method)(recording(delay, rate=rate), rate)
    np.testing.assert_allclose(answer.delay_samples, delay, atol=0.1)
    np.testing.assert_allclose(answer.delay_seconds, 0.9e-3, atol=0.1 / rate)
    assert answer.summary.delay_samples == pytest.approx(delay, abs=0.05)
    assert answer.summary.confidence > 0.9
    assert (answer.confidence > 0.9).all()
    assert answer.sample_rate == rate
    assert answer.times[0] == pytest.approx(0.064, abs=1 / rate)
    np.testing.assert_allclose(np.diff(answer.times), 0.064, atol=1 / rate)


def test_arrays_and_files_give_the_same_answer(tmp_path: Path) -> None:
    x = recording(-6.3).astype(np.float32)
    soundfile.write(tmp_path / "x.wav", x.T, 16000, subtype="FLOAT")
    estimator = DelayEstimator("phat")
    from_array, from_file = estimator(x, 16000), estimator(tmp_path / "x.wav")
    np.testing.assert_array_equal(from_array.delay_samples, from_file.delay_samples)
    np.testing.assert_array_equal(from_array.curve, from_file.curve)
    swapped = estimator(tmp_path / "x.wav", channels=(1, 0))
    np.testing.assert_allclose(swapped.delay_samples, -from_file.delay_samples, atol=1e-4)
    assert swapped.channels == (1, 0)


def test_the_angle_follows_from_the_spacing() -> None:
    answer = DelayEstimator("phat", spacing=0.2, speed_of_sound=340)(recording(4.0), 16000)
    expected = np.degrees(np.arcsin(4 / 16000 * 340 / 0.2))
    assert answer.summary.angle == pytest.approx(expected, abs=0.5)
    assert answer.angle == pytest.approx(expected, abs=1)
    assert DelayEstimator("phat")(recording(4.0), 16000).angle is None


def test_the_spacing_limits_the_lags() -> None:
    answer = DelayEstimator("phat", spacing=0.1)(recording(15.0), 16000)
    assert answer.lags[-1] == 5
    assert np.abs(answer.delay_samples).max() <= 0.1 / 343 * 16000 + 0.5  # a spacing is seldom measured so well
    assert DelayEstimator("phat", max_delay=0.002)(recording(1.0), 16000).lags[-1] == 32


@pytest.mark.parametrize("method", CLASSICAL)
def test_no_answer_exceeds_a_largest_delay_that_was_asked_for(method: str) -> None:
    answer = DelayEstimator(method, max_delay=4.6 / 16000)(recording(5.2), 16000)
    assert np.abs(answer.delay_samples).max() <= 4.6 + 1e-6
    tiny = DelayEstimator(method, max_delay=0.1 / 16000)(recording(0.0), 16000)
    assert np.abs(tiny.delay_samples).max() <= 0.1 + 1e-6


@pytest.mark.parametrize("method", CLASSICAL)
@pytest.mark.parametrize(("delay", "rate"), [(7.0, 16000), (-3.4, 8000), (27.0, 48000)])
def test_classical_methods_notice_a_spacing_that_is_too_small(method: str, delay: float, rate: int) -> None:
    sound = recording(delay, seconds=2.0, rate=rate)
    right, wrong = (DelayEstimator(method, spacing=spacing)(sound, rate) for spacing in (0.2, 0.05))
    assert right.warnings == ()
    (warning,) = wrong.warnings
    (said,) = re.findall(r"longer \(([+-][0-9.]+) ms\)", warning)
    assert float(said) == pytest.approx(1000 * delay / rate, abs=0.03)
    assert wrong.confidence.max() < 0.1 < 0.9 < right.confidence.min()
    assert wrong.summary.confidence < 0.1 < 0.9 < right.summary.confidence


@pytest.mark.parametrize("method", ["phat", "scot", "cc", "general-small"])
@pytest.mark.parametrize("spacing", [0.095, 0.1])
def test_a_delay_that_the_limit_cuts_off_loses_its_confidence(method: str, spacing: float) -> None:
    """Too little beyond the limit to be an impossible delay: by 0.33 samples."""
    sound = recording(spacing / 343 * 16000 + 0.33, seconds=2.0)
    right, wrong = (DelayEstimator(method, spacing=given)(sound, 16000) for given in (0.2, spacing))
    assert right.warnings == ()
    assert np.median(wrong.confidence) < 0.5 < 0.85 < np.median(right.confidence)
    assert wrong.summary.confidence < 0.5 < 0.85 < right.summary.confidence
    assert wrong.summary.angle == 90
    assert any("longer than a spacing" in warning for warning in wrong.warnings)


@pytest.mark.parametrize("method", ["phat", "scot", "cc", "general-small"])
@pytest.mark.parametrize("spacing", [0.05, 0.2, 0.5])
def test_a_source_in_line_with_the_microphones_keeps_its_confidence(method: str, spacing: float) -> None:
    """As far as noise allows: 10 dB of it."""
    sound = recording(spacing / 343 * 16000, seconds=2.0, snr=10)
    right, wide = (DelayEstimator(method, spacing=given)(sound, 16000) for given in (spacing, 1.2 * spacing))
    assert right.warnings == ()
    assert right.confidence.mean() > 0.93 * wide.confidence.mean()
    assert right.summary.confidence > 0.93 * wide.summary.confidence
    np.testing.assert_allclose(right.angle, 90, atol=20)


@pytest.mark.parametrize("method", CLASSICAL)
@pytest.mark.parametrize("spacing", [0.02, 0.1, 0.5])
def test_noise_speaks_for_no_delay_beyond_the_spacing(method: str, spacing: float) -> None:
    noise = 0.05 * np.random.default_rng(0).standard_normal((2, 5 * 16000))
    assert DelayEstimator(method, spacing=spacing)(noise, 16000).warnings == ()


@pytest.mark.parametrize("method", ["phat", "general-small"])
def test_impossible_delays_that_agree_on_nothing_do_not_doubt_the_spacing(method: str) -> None:
    """A talker, and between the words short sounds from elsewhere: each has another delay."""
    parts = [recording(2.0, seconds=0.3, seed=i) for i in range(30)]
    beyond = [recording(float(delay), seconds=0.1, seed=i) for i, delay in enumerate(range(8, 38))]
    mixed = np.concatenate([part for both in zip(parts, beyond, strict=True) for part in both], axis=1)
    assert DelayEstimator(method, spacing=0.1)(mixed, 16000).warnings == ()


def test_a_stream_notices_a_spacing_that_is_too_small_as_a_recording_does() -> None:
    sound, estimator = recording(7.0, seconds=2.0), DelayEstimator("phat", spacing=0.05)
    whole, stream = estimator(sound, 16000), DelayStream(estimator, 16000)
    parts = [stream.push(part) for part in np.array_split(sound, 7, axis=1)]
    np.testing.assert_array_equal(np.concatenate([part.confidence for part in parts]), whole.confidence)
    assert parts[-1].summary.confidence == whole.summary.confidence
    assert parts[-1].warnings == whole.warnings != ()


def test_frames_and_times_follow_frame_and_hop() -> None:
    answer = DelayEstimator("phat", frame=0.05, hop=0.1)(recording(1.0, seconds=1.02), 16000)
    np.testing.assert_allclose(answer.times, np.arange(10) * 0.1 + 0.025)
    later = DelayEstimator("phat", frame=0.05, hop=0.1)(recording(1.0), 16000, start=0.5)
    assert later.times[0] == pytest.approx(0.525)


def test_a_moving_source_is_followed() -> None:
    parts = [recording(d, 0.5, seed=i) for i, d in enumerate((-10, 0, 12))]
    answer = DelayEstimator("scot")(np.concatenate(parts, axis=1), 16000)
    for at, delay in ((0.25, -10), (0.75, 0), (1.25, 12)):
        assert answer.delay_samples[np.argmin(abs(answer.times - at))] == pytest.approx(delay, abs=0.1)


def test_the_summary_is_surer_than_its_frames() -> None:
    """In loud noise most single frames are wrong; the sum of their curves is right."""
    answer = DelayEstimator("phat")(recording(7.0, 20.0, snr=-14), 16000)
    assert np.mean(np.abs(answer.delay_samples - 7) < 1) < 0.5
    assert answer.summary.delay_samples == pytest.approx(7, abs=0.2)


@pytest.mark.parametrize("method", CLASSICAL)
def test_a_constant_offset_does_not_pull_the_delay_to_zero(method: str) -> None:
    answer = DelayEstimator(method)(recording(9.0) + 0.5, 16000)
    np.testing.assert_allclose(answer.delay_samples, 9, atol=0.1)


class TestSilence:
    @pytest.mark.parametrize("method", CLASSICAL)
    def test_silence_has_no_delay_and_no_confidence(self, method: str) -> None:
        answer = DelayEstimator(method, spacing=0.2)(np.zeros((2, 8000)), 16000)
        assert np.isnan(answer.delay_samples).all()
        assert np.isnan(answer.delay_seconds).all()
        assert np.isnan(answer.angle).all()
        assert not answer.confidence.any()
        assert np.isnan(answer.summary.delay_samples)
        assert answer.summary.confidence == 0
        assert answer.summary.answered == 0

    def test_a_dead_channel_has_none_either(self) -> None:
        x = recording(3.0)
        x[1] = 0
        answer = DelayEstimator("phat")(x, 16000)
        assert np.isnan(answer.delay_samples).all()

    @pytest.mark.parametrize("method", CLASSICAL)
    def test_a_constant_offset_is_silence(self, method: str) -> None:
        offset = np.full((2, 16000), 0.5)
        assert DelayEstimator(method)(offset, 16000).summary.answered == 0
        dead = np.stack([recording(0.0)[0], np.full(16000, 0.1)])
        assert DelayEstimator(method)(dead, 16000).summary.answered == 0

    def test_below_the_threshold_is_silence_and_above_it_is_not(self) -> None:
        x = recording(3.0)
        x /= np.sqrt(np.mean(x**2))
        assert DelayEstimator("phat")(x * 0.8e-5, 16000).summary.answered == 0
        assert DelayEstimator("phat")(x * 1.3e-5, 16000).summary.delay_samples == pytest.approx(3, abs=0.1)

    def test_silent_parts_of_a_recording_are_left_out(self) -> None:
        x = recording(3.0, 2.0)
        x[:, 16000:] = 0
        answer = DelayEstimator("phat")(x, 16000)
        silent = answer.times > 1.07
        assert np.isnan(answer.delay_samples[silent]).all()
        assert np.isfinite(answer.delay_samples[answer.times < 1]).all()
        assert answer.summary.delay_samples == pytest.approx(3, abs=0.05)
        assert answer.summary.answered == np.isfinite(answer.delay_samples).sum() < answer.summary.frames


class TestConfidence:
    @pytest.mark.parametrize("name", samples.NAMES)
    @pytest.mark.parametrize("method", CLASSICAL)
    def test_the_confident_half_of_the_bundled_recording_errs_at_most_half_as_often(
        self, method: str, name: str
    ) -> None:
        answer = DelayEstimator(method)(samples.path(name))
        truth = samples.truth_at(answer.times, name)
        spoken = np.isfinite(truth)
        wrong = np.abs(answer.delay_samples - truth)[spoken] > 1
        order = np.argsort(-answer.confidence[spoken], kind="stable")
        confident, other = np.array_split(wrong[order], 2)
        assert other.mean() > 0, "nothing to tell apart"
        assert confident.mean() <= 0.5 * other.mean()

    @pytest.mark.parametrize("method", CLASSICAL)
    def test_independent_noise_in_the_channels_gets_little(self, method: str) -> None:
        noise = 0.1 * np.random.default_rng(0).standard_normal((2, 32000))
        answer = DelayEstimator(method)(noise, 16000)
        assert np.median(answer.confidence) < 0.3
        assert answer.summary.confidence < 0.3

    @pytest.mark.parametrize("method", CLASSICAL)
    def test_a_tone_fits_several_delays_and_gets_little(self, method: str) -> None:
        time = np.arange(16000) / 16000
        tone = 0.1 * np.sin(2 * np.pi * 1000 * (time - np.array([[20], [0]]) / 16000))
        noise = 0.001 * np.random.default_rng(0).standard_normal((2, 16000))
        answer = DelayEstimator(method)(tone + noise, 16000)
        assert answer.summary.confidence < 0.5
        assert np.median(answer.confidence) < 0.5

    def test_a_narrow_band_is_little_evidence(self) -> None:
        answer = DelayEstimator("phat", band=(1000, 1020))(recording(5.0), 16000)
        assert answer.summary.confidence < 0.5

    @pytest.mark.parametrize(("rate", "band"), [(48000, (7900, 20000)), (8000, (3900, 20000)), (16000, (1000, 1100))])
    def test_a_network_refuses_a_band_of_which_it_hears_next_to_nothing(
        self, rate: int, band: tuple[float, float]
    ) -> None:
        noise = np.random.default_rng(0).standard_normal((2, rate))
        with pytest.raises(InputError, match="leaves too little: it needs 125 Hz, take a wider band"):
            DelayEstimator("general-small", band=band)(noise, rate)

    @pytest.mark.parametrize("method", ["general-small", "phat"])
    def test_a_narrow_band_is_warned_of(self, method: str) -> None:
        noise = np.random.default_rng(0).standard_normal((2, 16000))
        answer = DelayEstimator(method, band=(7500, 20000))(noise, 16000)
        assert "only 7500 to 8000 Hz are used" in answer.warnings[0]
        assert not any("are used" in one for one in DelayEstimator(method, band=(300, 3400))(noise, 16000).warnings)

    def test_a_narrow_band_lowers_the_confidence_of_a_network(self) -> None:
        sound = recording(5.0)
        wide, narrow = (
            DelayEstimator("general-small", band=band)(sound, 16000).confidence for band in ((300, 8000), (300, 550))
        )
        assert np.median(wide) > 0.5
        assert narrow.max() <= 0.25  # of the 1000 Hz that it should have

    def test_short_frames_of_noise_are_not_trusted(self) -> None:
        noise = 0.1 * np.random.default_rng(0).standard_normal((2, 32000))
        answer = DelayEstimator("phat", frame=0.02, spacing=0.05)(noise, 16000)
        assert answer.confidence.mean() < 0.35

    def test_classical_methods_do_not_claim_to_be_calibrated(self) -> None:
        assert not DelayEstimator("phat")(recording(0.0), 16000).calibrated

    def test_lags_too_long_for_smoothing_still_get_a_confidence(self) -> None:
        answer = DelayEstimator("phat", max_delay=0.03)(recording(100.0), 16000)
        np.testing.assert_allclose(answer.delay_samples, 100, atol=0.1)
        assert np.median(answer.confidence) > 0.5


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "phatt"}, "unknown method 'phatt'; known are .*, phat,"),
            ({"method": "none.safetensors"}, "none.safetensors"),
            ({"spacing": -0.2}, r"the spacing is -0\.2 m; expected 0\.001 to 100 m"),
            ({"spacing": 0.0}, "the spacing is 0 m"),
            ({"spacing": float("nan")}, "the spacing is nan m"),
            ({"spacing": 5000}, "the spacing is 5000 m"),
            ({"max_delay": -1}, "the largest delay is -1 s"),
            ({"frame": 0}, "the frame is 0 s"),
            ({"hop": 0}, "the hop is 0 s"),
            ({"speed_of_sound": 3}, "the speed of sound is 3 m/s"),
            ({"beta": 2}, "beta is 2"),
            ({"interpolation": "magic"}, "unknown interpolation 'magic'"),
            ({"spacing": "wide"}, "the spacing is 'wide'; expected a number"),
            ({"band": (300,)}, "a lowest and a highest frequency"),
        ],
    )
    def test_options(self, options: dict[str, float], message: str) -> None:
        with pytest.raises(InputError, match=message):
            DelayEstimator(**options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "phat", "spacing": 50}, "use a longer frame or a smaller spacing"),
            ({"method": "scot", "max_delay": 0.02}, "need frames of at least 2560 samples"),
            (
                {"method": "phat", "band": (9000, 10000)},
                "up to 8000 Hz, and the band begins at 9000 Hz",
            ),
            ({"method": "phat", "band": (500, 100)}, "must be below"),
            ({"method": "phat", "frame": 1.5}, r"has 16000 samples, less than a frame \(24000 samples, 1\.5 s\)"),
        ],
    )
    def test_options_that_do_not_fit_the_recording(self, options: dict[str, float], message: str) -> None:
        with pytest.raises(InputError, match=message):
            DelayEstimator(**options)(recording(0.0), 16000)

    def test_options_that_a_recording_has_already(self) -> None:
        ready = open_audio(recording(0.0), 16000)
        with pytest.raises(InputError, match="has its channels and times already"):
            DelayEstimator()(ready, start=0.5)

    def test_a_recording_of_other_than_two_channels(self) -> None:
        with pytest.raises(InputError, match="between 2 channels; the Recording holds 3"):
            DelayEstimator()(open_audio(np.zeros((3, 9000)), 16000))
        with pytest.raises(InputError, match="between 2 channels, not 1"):
            DelayEstimator()(np.zeros((2, 9000)), 16000, channels=(0,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [*CLASSICAL, "general-small"])
def test_samples_that_nobody_has_scaled_are_heard_as_they_are(method: str, dtype: type) -> None:
    """32-bit numbers as floats, and more: nothing overflows."""
    x = recording(5.3).astype(dtype)
    estimator = DelayEstimator(method)
    expected = estimator(x, 16000)
    for gain in (2.0**31, 1e11):
        found = estimator(x * dtype(gain), 16000)
        np.testing.assert_allclose(found.delay_samples, expected.delay_samples, atol=1e-3)
        np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-3)
        assert found.summary.confidence == pytest.approx(expected.summary.confidence, abs=1e-3)


@pytest.mark.parametrize("size", [1e13, 1e154, 1e300])
@pytest.mark.parametrize("method", ["phat", "general-small"])
def test_samples_whose_squares_may_overflow_are_refused(method: str, size: float) -> None:
    x = recording(5.3)
    x[1, 8000] = -size
    estimator = DelayEstimator(method)
    message = re.escape(f"channel 1 holds {-size:g} at 0.500 s; a delay needs samples up to 1e+12")
    with pytest.raises(InputError, match=message):
        estimator(x, 16000)
    stream = DelayStream(estimator, 16000)
    with pytest.raises(InputError, match=message):
        stream.push(x)
    assert len(stream.push(recording(5.3)).times)


def test_wide_floats_keep_their_size() -> None:
    x = recording(5.3)
    expected = DelayEstimator("phat")(x, 16000)
    for given in (x.astype(np.longdouble), x.astype(">f8")):
        np.testing.assert_array_equal(DelayEstimator("phat")(given, 16000).delay_samples, expected.delay_samples)
    with pytest.raises(InputError, match=r"channel 0 holds 1e\+200"):
        DelayEstimator("phat")(x.astype(np.longdouble) + np.longdouble("1e200"), 16000)
    if np.finfo(np.longdouble).maxexp > np.finfo(np.float64).maxexp:
        with pytest.raises(InputError, match="channel 0 holds inf"):
            DelayEstimator("phat")(x + np.longdouble("1e4000"), 16000)


def test_progress_rises_to_one() -> None:
    seen: list[float] = []
    DelayEstimator("phat")(recording(1.0, 40.0), 16000, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1, abs=0.01)
    assert len(seen) > 2


def test_the_light_install_needs_no_torch_and_starts_without_scipy_signal() -> None:
    """With torch, onnxruntime, matplotlib and pyroomacoustics hidden, the package still estimates."""
    script = """
import sys
for name in ("torch", "matplotlib", "onnxruntime", "pyroomacoustics"):
    sys.modules[name] = None
import qkgcc, qkgcc.cli
assert "scipy.signal" not in sys.modules
answer = qkgcc.DelayEstimator()(qkgcc.samples.path("talkers-2ch"), end=2.0)
assert "scipy.signal" not in sys.modules
print(answer.to_json(curve=False))
assert qkgcc.DelayEstimator(sys.argv[1])(qkgcc.samples.path("talkers-2ch"), end=2.0).summary.answered
for call in (lambda: answer.plot(), lambda: qkgcc.DelayEstimator(sys.argv[2])):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    kept = [str(Path(__file__).parents[1] / "checkpoints" / f"{name}-0.safetensors") for name in ("qkgcc", "ngcc")]
    run = subprocess.run([sys.executable, "-c", script, *kept], capture_output=True, text=True, check=True)
    answer, plot, network = run.stdout.splitlines()
    assert json.loads(answer)["summary"]["delay_samples"] == pytest.approx(16.3, abs=0.5)
    assert plot == "pictures need matplotlib: pip install 'qkgcc[plot]'"
    assert network.endswith("ngcc-0.safetensors needs torch: pip install 'qkgcc[train]'")


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.2}, {"method": "phat"}, {"max_sources": 2}], ids=str)
def test_an_answer_without_its_curves_is_the_same(options: dict) -> None:
    estimator, source = DelayEstimator(spacing=0.5, **options), samples.path("talkers-2ch")
    whole, light = (estimator(source, end=3.0, curve=curve) for curve in (True, False))
    assert light.to_json(curve=False) == whole.to_json(curve=False)
    kept = len(whole.lags) if "max_sources" in options else 0
    assert light.curve.shape == (len(whole.times), kept)
    if not kept:
        with pytest.raises(InputError, match="its curves were not kept"):
            light.plot()


def test_threads_change_nothing() -> None:
    path = samples.path("talkers-2ch")
    one, many = (DelayEstimator("general-small", spacing=0.5, threads=n)(path, end=4.0) for n in (1, 3))
    np.testing.assert_array_equal(one.curve, many.curve)
    with pytest.raises(InputError, match="threads is 0; expected a whole number, 1 to 1024"):
        DelayEstimator(threads=0)
    with pytest.raises(InputError, match=r"threads is 1\.5; expected a whole number, 1 to 1024"):
        DelayEstimator(threads=1.5)  # type: ignore[arg-type]


def test_at_most_ten_public_names() -> None:
    import qkgcc

    assert len(qkgcc.__all__) <= 10


@pytest.mark.parametrize("samples", [160, 1024])
def test_what_is_shorter_than_a_frame_is_not_explained_either(samples: int) -> None:
    with pytest.raises(InputError, match="less than a frame"):
        DelayEstimator().explain(np.ones((2, samples)), 16000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"band": 300}, "a band is a lowest and a highest frequency in Hz; got 300"),
        ({"band": ("low", "high")}, "edge of the band is 'low'"),
        ({"band": (100, 200, 300)}, "a band is a lowest"),
        ({"spacing": True}, "the spacing is True"),
    ],
)
def test_what_is_no_number_is_said(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DelayEstimator(**options)  # type: ignore[arg-type]
