"""A steered network as a method: any spacing, rate and frame, and it says what it cannot do."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.numpy import save_file
from typer.testing import CliRunner

from qkgcc import DelayEstimator, InputError
from qkgcc.cli import app
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.network import files
from qkgcc.network.steering import steering_matrix
from qkgcc.pairs.calibration import KEY, Calibration, Context, Curves
from qkgcc.pairs.neural import SLACK, Network, TorchModel
from rounding import assert_close_posteriors, assert_rounded, exact_networks
from signals import C, delayed_noise
from tiny import ALONE, RATE, TINY, tiny_with
from tiny import FRAME as SAMPLES

pytestmark = pytest.mark.numeric

FRAME = SAMPLES / RATE


@pytest.fixture
def path() -> Path:
    return TINY


def recording(delay: float, rate: int = RATE, seconds: float = 0.5, snr: float = 20.0) -> np.ndarray:
    """The delay is in samples of the recording."""
    return 0.1 * delayed_noise(delay, round(seconds * rate), snr=snr, seed=5)[0]


@pytest.mark.parametrize("delay", [-7.0, 0.0, 3.4])
def test_delays_between_the_samples(path: Path, delay: float) -> None:
    answer = DelayEstimator(path, spacing=0.2, hop=FRAME)(recording(delay), RATE)
    assert answer.kind == "posterior"
    assert np.median(np.abs(answer.delay_samples - delay)) < 0.15
    assert abs(answer.summary.delay_samples - delay) < 0.15
    np.testing.assert_allclose(answer.curve.sum(axis=1), 1, rtol=1e-5)
    assert answer.warnings == ()


@pytest.mark.parametrize("frame", [None, 0.01])
def test_torch_gives_the_same_answers(path: Path, frame: float | None) -> None:
    pytest.importorskip("torch")
    from qkgcc.nets import checkpoint

    with exact_networks():
        loaded = [Network.load(path)]
    loaded += [Network.load(path), Network.of(TorchModel(*checkpoint.load(path)))]
    methods = [network.limited(RATE, 0.2 / C, frame) for network in loaded]
    frames = delayed_noise([2.3, -4.0], methods[0].frame, snr=0)
    exact, *others = (method.decode(method.evidence(frames)) for method in methods)
    for found in others:
        assert_close_posteriors(found.curve, exact.curve, 2 * methods[0].frame)
        np.testing.assert_allclose(found.delay, exact.delay, atol=1e-3)
        np.testing.assert_allclose(found.confidence, exact.confidence, atol=1e-3)


@pytest.mark.parametrize("rate", [8000, 16000, 32000, 44100, 48000])
def test_rates_are_resampled_and_delays_scaled_back(path: Path, rate: int) -> None:
    delay = 5.0 * rate / RATE
    answer = DelayEstimator(path, spacing=0.2, hop=FRAME)(recording(delay, rate), rate)
    assert abs(answer.summary.delay_samples - delay) < 0.25 * max(1, rate / RATE)
    assert answer.summary.delay_seconds == pytest.approx(answer.summary.delay_samples / rate)
    assert answer.calibrated == (rate >= RATE)


@pytest.mark.parametrize("spacing", [0.03, 0.1, 0.4])
def test_no_answer_beyond_what_the_spacing_allows(path: Path, spacing: float) -> None:
    limit = spacing / C * RATE
    true = 0.6 * min(limit, 12)
    answer = DelayEstimator(path, spacing=spacing, hop=FRAME)(recording(true), RATE)
    assert np.abs(answer.delay_samples).max() <= limit + 1e-9
    assert np.abs(answer.lags).max() <= limit + 2
    assert abs(answer.summary.delay_samples - true) < 0.2


@pytest.mark.parametrize(
    ("spacing", "true", "most"),
    [(0.08, 9.0, 0.05), (0.03, 10.4, 0.05), (0.03, -10.4, 0.05), (0.05, 3.5, 0.4)],  # the last is off by a sample only
)
def test_a_wrong_spacing_is_noticed(path: Path, spacing: float, true: float, most: float) -> None:
    right = DelayEstimator(path, spacing=0.26)(recording(true), RATE)
    wrong = DelayEstimator(path, spacing=spacing)(recording(true), RATE)
    assert right.warnings == ()
    assert len(wrong.warnings) == 1
    (said,) = re.findall(r"looks longer \(([+-][0-9.]+) ms\) than your spacing allows", wrong.warnings[0])
    assert float(said) == pytest.approx(1000 * true / RATE, abs=0.02)
    assert np.median(wrong.confidence) < most
    assert np.median(right.confidence) > 0.6
    assert json.loads(wrong.to_json())["warnings"] == list(wrong.warnings)


def test_a_delay_beyond_the_largest_that_was_given_is_noticed(path: Path) -> None:
    (said,) = DelayEstimator(path, max_delay=0.0002)(recording(9.0), RATE).warnings
    assert "than the largest delay that you allow (0.20 ms): this limit is probably too small" in said


@pytest.mark.parametrize("true", [13.5, 14.0, -15.0])
def test_a_delay_just_beyond_the_trained_ones_is_noticed_without_a_spacing(path: Path, true: float) -> None:
    answer = DelayEstimator(path)(recording(true), RATE)
    assert "give the spacing of the microphones" in answer.warnings[0]
    assert np.median(answer.confidence) < 0.25


@pytest.mark.parametrize("decoder", ["argmax", "quadratic"])
def test_symmetric_answers_are_the_opposite_for_swapped_channels(path: Path, decoder: str) -> None:
    x = recording(3.3, snr=0.0)
    estimator = DelayEstimator(path, spacing=0.2, decoder=decoder, symmetric=True)
    one, other = estimator(x, RATE), estimator(x[::-1], RATE)
    np.testing.assert_allclose(one.delay_samples, -other.delay_samples, atol=1e-4)
    assert not one.calibrated
    with pytest.raises(InputError, match="symmetric is for networks"):
        DelayEstimator("phat", symmetric=True)


def test_half_a_recording_beyond_the_spacing_is_noticed(path: Path) -> None:
    both = np.concatenate([recording(2.0), recording(11.0)], axis=1)
    (warning,) = DelayEstimator(path, spacing=0.1)(both, RATE).warnings
    assert "+0.69 ms" in warning


@pytest.mark.parametrize("spacing", [0.02, 0.1, 0.2])
def test_noise_speaks_for_no_delay(path: Path, spacing: float) -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal((2, 2 * RATE))
    answer = DelayEstimator(path, spacing=spacing)(noise, RATE)
    assert answer.warnings == ()


def test_a_spacing_and_a_larger_delay_contradict_each_other(path: Path) -> None:
    answer = DelayEstimator(path, spacing=0.05, max_delay=0.0007)(recording(9.0), RATE)
    assert "longer than a spacing of 0.05 m allows; they have no angle" in answer.warnings[0]
    assert answer.angle is not None
    assert np.isnan(answer.angle).all()
    assert json.loads(answer.to_json())["angle"][0] is None


def test_one_microphone_twice_has_no_confidence(path: Path) -> None:
    one = recording(3.0)[0]
    answer = DelayEstimator(path, spacing=0.2)(np.stack([one, 0.3 * one]), RATE)
    assert "both channels hold the same signal" in answer.warnings[0]
    assert (answer.confidence == 0).all()
    assert answer.summary.confidence == 0


def test_a_spacing_beyond_the_trained_range_is_answered_with_a_warning(path: Path) -> None:
    answer = DelayEstimator(path, spacing=0.5)(recording(18.0), RATE)
    assert abs(answer.summary.delay_samples - 18) < 0.5
    assert "was trained on delays up to 0.8 ms" in answer.warnings[0]
    assert not answer.calibrated
    assert answer.confidence.max() <= 0.5


def test_confidence_is_the_calibrated_probability_of_being_near(path: Path) -> None:
    network = Network.load(path).limited(RATE, 0.2 / C, None)
    frames = delayed_noise([1.0, 4.4], SAMPLES, snr=3)
    frames /= np.sqrt(np.mean(frames**2, axis=(1, 2), keepdims=True))
    evidence = network.evidence(frames)
    posterior, delay, confidence, _ = network.decode(evidence)
    possible = np.exp(evidence[0][:, np.isin(network.candidates, network.lags)])
    np.testing.assert_allclose(posterior, possible / possible.sum(axis=1, keepdims=True))
    for row, found, stated in zip(posterior, delay, confidence, strict=True):
        overlap = np.clip(1.5 - np.abs(network.lags - found), 0, 1)
        assert stated == pytest.approx(np.interp(row @ overlap, [0, 0.5, 1], [0, 0.4, 0.95]))
    assert network.calibrated


def test_frames_around_support_a_delay(path: Path, tmp_path: Path) -> None:
    context = Context((0.0, 0.5, 8.0, 8.0), Calibration((0.0, 1.0), (0.0, 1.0)))
    pooled = tiny_with({KEY: [Curves(RATE, ALONE, context).to_card()]}, tmp_path)
    steady = recording(4.0, seconds=1.0)
    astray = np.concatenate([steady[:, : RATE // 2], recording(-8.0, seconds=0.05), steady[:, RATE // 2 :]], axis=1)
    alone = DelayEstimator(path, spacing=0.26, hop=FRAME)(astray, RATE)
    together = DelayEstimator(pooled, spacing=0.26, hop=FRAME)(astray, RATE)
    np.testing.assert_array_equal(alone.delay_samples, together.delay_samples)
    other = np.abs(alone.delay_samples + 8) < 1
    assert 1 <= other.sum() <= 4
    assert together.confidence[other].max() < 0.3 < alone.confidence[other].max()
    assert np.median(together.confidence[~other]) > 0.8
    one = DelayEstimator(pooled, spacing=0.26)(steady[:, :SAMPLES], RATE)
    assert one.confidence[0] == pytest.approx(alone.confidence[0])  # nobody around: its own calibration


def test_a_constant_offset_changes_nothing(path: Path) -> None:
    estimator = DelayEstimator(path, spacing=0.2, hop=FRAME)
    plain, offset = (estimator(recording(4.7) + level, RATE) for level in (0.0, 0.5))
    np.testing.assert_allclose(plain.delay_samples, offset.delay_samples, atol=0.01)


def test_loud_and_soft_clear_and_noisy(path: Path) -> None:
    estimator = DelayEstimator(path, spacing=0.2, hop=FRAME)
    clear, soft = (estimator(gain * recording(3.0), RATE) for gain in (1.0, 1e-3))
    np.testing.assert_allclose(clear.confidence, soft.confidence, atol=1e-5)
    unrelated = np.random.default_rng(0).standard_normal((2, RATE // 2))
    assert np.mean(estimator(unrelated, RATE).confidence) < 0.6 * np.mean(clear.confidence)
    silence = estimator(np.zeros((2, RATE // 2)), RATE)
    assert silence.summary.answered == 0
    assert (silence.confidence == 0).all()


@pytest.mark.parametrize("decoder", ["argmax", "mean", "quadratic", "balanced", "coarse"])
def test_the_decoder_is_a_choice(path: Path, decoder: str) -> None:
    answer = DelayEstimator(path, spacing=0.2, decoder=decoder)(recording(3.4), RATE)
    assert answer.calibrated == (decoder == "quadratic")  # which the curve was made with
    whole = np.allclose(answer.delay_samples, np.round(answer.delay_samples))
    assert whole == (decoder == "argmax")


def test_several_sources(path: Path) -> None:
    both = recording(-6.0) + 1.0 * delayed_noise(5.0, RATE // 2, seed=9)[0] * 0.1
    answer = DelayEstimator(path, spacing=0.3, max_sources=2, hop=FRAME)(both, RATE)
    assert answer.source_delays is not None
    assert answer.source_weights is not None
    assert answer.source_delays.shape == answer.source_weights.shape == (len(answer.times), 2)
    found = np.sort(answer.source_delays, axis=1)
    two = (np.abs(found - [-6, 5]) < 1).all(axis=1)
    assert two.mean() > 0.4
    assert (answer.source_weights[:, 0] >= answer.source_weights[:, 1]).mean() > 0.9
    np.testing.assert_array_equal(answer.source_delays[:, 0], answer.delay_samples)
    many = DelayEstimator(path, spacing=0.3, max_sources=1000, hop=FRAME)(both, RATE)
    assert many.source_weights is not None
    assert many.source_delays is not None
    assert (np.isnan(many.source_delays) == (many.source_weights == 0)).all()
    assert many.source_weights[many.source_weights > 0].min() >= 1e-3


def test_sources_are_possible_and_each_is_one_of_the_peaks(path: Path) -> None:
    """Some decoders may answer between two peaks: the sources are the peaks all the same, and none is there twice."""
    quiet = recording(-6.0) + 0.3 * np.random.default_rng(3).standard_normal((2, RATE // 2)) * 0.1
    both = quiet + delayed_noise(5.0, RATE // 2, seed=9)[0] * 0.1
    found = {}
    for decoder in ("quadratic", "balanced", "coarse"):
        answer = DelayEstimator(path, spacing=0.12, max_sources=4, decoder=decoder, hop=FRAME)(both, RATE)
        assert answer.source_delays is not None
        found[decoder] = answer.source_delays
        known = np.isfinite(answer.source_delays)
        assert known[:, 1].any()
        assert np.abs(answer.source_delays[known]).max() <= 0.12 / SPEED_OF_SOUND * RATE + SLACK + 1e-9
        apart = np.diff(np.sort(answer.source_delays, axis=1), axis=1)
        assert np.nanmin(apart) > 0.4  # two samples, but for what the spacing clips
    for decoder in ("balanced", "coarse"):
        assert np.isclose(found["quadratic"], found[decoder], equal_nan=True, atol=0.51).all()


@pytest.mark.parametrize(("rate", "known"), [(8000, False), (11025, True), (12000, True), (16000, True)])
def test_a_card_has_curves_for_lower_rates(path: Path, tmp_path: Path, rate: int, known: bool) -> None:
    curves = [Curves(RATE, Calibration((0.0, 1.0), (0.9, 0.9))), Curves(11025, Calibration((0.0, 1.0), (0.3, 0.3)))]
    known_at = tiny_with({KEY: [one.to_card() for one in curves]}, tmp_path)
    answer = DelayEstimator(known_at, spacing=0.2)(recording(2.0, rate=rate), rate)
    assert answer.calibrated == known
    np.testing.assert_allclose(answer.confidence, 0.9 if rate == 16000 else 0.3)


@pytest.mark.parametrize("seconds", [128 / RATE, 384 / RATE, 512 / RATE])
def test_other_frames_work_and_are_not_called_calibrated(path: Path, seconds: float) -> None:
    answer = DelayEstimator(path, spacing=0.2, frame=seconds)(recording(4.0), RATE)
    assert abs(answer.summary.delay_samples - 4) < 0.3
    assert not answer.calibrated


def test_explain_shows_where_the_sound_is(path: Path) -> None:
    sound = recording(3.0, seconds=1.0)
    spectrum = np.fft.rfft(sound)
    spectrum[:, int(0.3 * spectrum.shape[1]) :] *= 1e-4  # nothing above 2.4 kHz but a little noise of its own
    rng = np.random.default_rng(0)
    band = np.fft.irfft(spectrum) + 1e-3 * rng.standard_normal(sound.shape)
    explanation = DelayEstimator(path).explain(band, RATE)
    assert explanation.weight.shape == (len(explanation.times), len(explanation.frequencies))
    low = explanation.frequencies < 2000
    high = explanation.frequencies > 3000
    assert explanation.mean[low].mean() > explanation.mean[high].mean()
    assert explanation.frequencies[-1] == RATE / 2
    # A bin at 0 or at half the rate has no phase, and one near 0 hardly any for the possible delays.
    assert explanation.mean[0] == explanation.mean[-1] == 0
    assert explanation.mean[1] < 0.1
    narrow = DelayEstimator(path).explain(recording(3.0, 8000), 8000)
    assert narrow.frequencies[-1] == 4000


def test_explain_of_pauses_and_of_long_recordings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pause = np.concatenate([recording(3.0), np.zeros((2, 3 * RATE)), recording(3.0)], axis=1)
    whole = DelayEstimator(path, hop=FRAME).explain(pause, RATE)
    assert np.isnan(whole.weight).all(axis=1).mean() > 0.6
    assert np.isfinite(whole.mean).all()
    monkeypatch.setattr("qkgcc.delay.estimator.MOST_COLUMNS", 50)
    short = DelayEstimator(path, hop=FRAME).explain(pause, RATE)
    assert len(short.times) <= 50
    np.testing.assert_allclose(np.nanmean(short.weight), np.nanmean(whole.weight), rtol=0.1)
    with pytest.raises(InputError, match="there is nothing to explain"):
        DelayEstimator(path).explain(np.zeros((2, RATE)), RATE)


@pytest.mark.needs("matplotlib")
def test_explain_is_a_picture(path: Path, tmp_path: Path) -> None:
    DelayEstimator(path).explain(recording(3.0), RATE).plot(tmp_path / "weights.png")
    assert (tmp_path / "weights.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("changes", "rate", "message"),
    [
        ({}, 3000, "3000 Hz is too low for tiny"),
        ({"frame": 1.0}, RATE, r"takes frames of 0\.002 to 0\.032 s, not 1; it was trained on 0\.016"),
        ({"spacing": 5.0}, RATE, "delays up to 14.6 ms are more than tiny can look for"),
        ({"decoder": "best"}, RATE, "unknown decoder 'best'; known are argmax"),
        ({"band": (1000, 100)}, RATE, "the first frequency must be below the second"),
        ({"band": (9000, 9500)}, RATE, "holds frequencies up to 8000 Hz"),
        ({"band": (7, 8)}, RATE, "band of 7 to 8 Hz leaves too little: it needs 125 Hz"),
        ({"interpolation": "none"}, RATE, "an interpolation is for the classical methods"),
        ({"beta": 0.5}, RATE, "beta is for the classical methods"),
        ({"max_sources": 0}, RATE, "max_sources is 0"),
        ({"max_sources": 2.5}, RATE, "max_sources is 2.5"),
    ],
)
def test_what_cannot_be_is_said(path: Path, changes: dict[str, object], rate: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        DelayEstimator(path, **changes)(recording(1.0, rate), rate)  # type: ignore[arg-type]


def test_classical_methods_have_no_posterior_to_decode() -> None:
    with pytest.raises(InputError, match="need the posterior of a network; phat has a correlation"):
        DelayEstimator("phat", max_sources=2)
    with pytest.raises(InputError, match="no learned weights"):
        DelayEstimator("phat").explain(recording(1.0), RATE)


def test_damaged_files_are_said(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    bad = tmp_path / "bad.safetensors"
    for cut in (content[: len(content) // 2], b""):
        bad.write_bytes(cut)
        with pytest.raises(InputError, match="is not a safetensors file, or is damaged or cut short"):
            DelayEstimator(bad)
    with pytest.raises(InputError, match="is a folder"):
        DelayEstimator(tmp_path)
    for place in np.random.default_rng(0).integers(len(content), size=20).tolist():
        changed = bytearray(content)
        changed[place] ^= 1
        bad.write_bytes(changed)
        with pytest.raises(InputError, match=r"damaged|checksum|card"):
            DelayEstimator(bad)


def test_files_of_other_versions_are_said(path: Path, tmp_path: Path) -> None:
    card, arrays = files.read(path)
    bad, text = tmp_path / "bad.safetensors", card.to_json()
    for metadata, message in (
        ({"qkgcc": text.replace('"dft": 512', '"dft": 1024', 1)}, "not the one that its card describes"),
        ({"qkgcc": text.replace('"format": 1', '"format": 9')}, "format is 9"),
        ({}, "but no card"),
    ):
        save_file(arrays, bad, metadata=metadata)
        with pytest.raises(InputError, match=message):
            DelayEstimator(bad)


@pytest.mark.needs("matplotlib")
def test_the_command_line_says_warnings_and_explains(path: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", recording(9.0).T, RATE)
    runner = CliRunner()
    result = runner.invoke(app, ["estimate", str(tmp_path / "a.wav"), "-m", str(path), "--spacing", "0.08"])
    assert result.exit_code == 0
    assert "warning: " in result.stderr
    assert "than your spacing allows (0.23 ms): the spacing is probably too small" in result.stderr
    picture = tmp_path / "weights.svg"
    result = runner.invoke(app, ["explain", str(tmp_path / "a.wav"), "-m", str(path), "--plot", str(picture)])
    assert result.exit_code == 0
    assert re.search(r"25 % of the weight is below \d+ Hz, 50 % below \d+ Hz, 75 % below \d+ Hz", result.stdout)
    assert picture.read_text().startswith("<?xml")


def test_steering_is_that_of_the_network() -> None:
    torch = pytest.importorskip("torch")
    from qkgcc.nets.steered import _grid_table

    for dft, center, step, count in ((512, 0.0, 1.0, 41), (510, 2.5, 0.5, 8)):
        table = _grid_table(dft, center, step, count, dtype=torch.float64, device=torch.device("cpu"))
        assert_rounded(steering_matrix(dft, center, step, count, 100), table / 10, 1)
