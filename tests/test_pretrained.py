"""The networks that come with the package: what they are, and how they answer on what every user has."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter

from qkgcc import METHODS, DelayEstimator, DelayStream, InputError, samples
from qkgcc.arrays import DirectionEstimator
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.network import files
from qkgcc.network.card import DIGEST_KEY
from qkgcc.network.registry import DEFAULT, PRETRAINED, WEIGHTS, pretrained
from qkgcc.pairs.calibration import expected_calibration_error
from signals import delayed_noise

pytestmark = pytest.mark.numeric

NAMES = pytest.mark.parametrize("name", PRETRAINED)


def talk(delay: float, rate: int = 16000, seconds: float = 1.0, seed: int = 0) -> np.ndarray:
    """Noise with the slope of a voice."""
    x = delayed_noise(delay, round(seconds * rate), snr=30, seed=seed)[0]
    return np.asarray(0.05 * lfilter([1.0], [1.0, -0.9], x, axis=-1))


def test_general_is_the_default() -> None:
    assert DEFAULT == "general"
    assert DelayEstimator().method == "general"
    assert {path.name for path in WEIGHTS.iterdir()} == {
        "README.md",
        *(f"{name}{suffix}" for name in PRETRAINED for suffix in (".safetensors", ".onnx")),
        "qk-gcc.safetensors",
    }


class TestThePapersNetwork:
    def test_it_is_the_kept_checkpoint_of_seed_0_and_its_card_says_what_for(self) -> None:
        card, weights = files.read(pretrained("qk-gcc"))
        kept, same = files.read(Path(__file__).parents[1] / "checkpoints" / "qkgcc-0.safetensors")
        assert weights.keys() == same.keys()
        assert all(np.array_equal(weights[name], same[name]) for name in same)
        trained_for = card.metrics["trained_for"]
        assert card == dataclasses.replace(
            kept, name="qk-gcc", metrics={"trained_for": trained_for} | dict(kept.metrics)
        )
        assert trained_for.startswith("the paper's simulated room (7 x 5 x 3 m")
        assert "0.5 m between the microphones" in trained_for
        assert "the paper's network" in METHODS["qk-gcc"].line
        assert "0.5 m" in METHODS["qk-gcc"].line

    @pytest.mark.parametrize("delay", [-12.0, 0.0, 5.0, 19.0])
    def test_it_finds_the_delays_that_it_was_trained_for(self, delay: float) -> None:
        answer = DelayEstimator("qk-gcc", spacing=0.5)(talk(delay), 16000)
        assert answer.summary.delay_samples == pytest.approx(delay, abs=1.5)  # whole samples, of noise for speech
        assert not answer.calibrated

    def test_it_answers_on_the_bundled_recording_without_torch(self) -> None:
        code = (
            "import sys; sys.modules['torch'] = None; from qkgcc import DelayEstimator, samples\n"
            "print(DelayEstimator('qk-gcc', spacing=0.5)(samples.path('talkers-2ch'), end=2.0).summary.delay_samples)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert float(done.stdout) == pytest.approx(16.3, abs=0.7)

    def test_what_it_was_not_made_for_is_said(self) -> None:
        with pytest.raises(
            InputError, match=r"qk-gcc knows delays up to 1\.44 ms, not 5\.83 ms: give the spacing it was"
        ):
            DelayEstimator("qk-gcc", spacing=2.0)(talk(0.0), 16000)
        with pytest.raises(InputError, match="qk-gcc is scaled by the level of a whole recording"):
            DelayStream(DelayEstimator("qk-gcc", spacing=0.5), 16000)
        with pytest.raises(InputError, match="qk-gcc cannot be asked for the pairs of an array"):
            DirectionEstimator("respeaker4", method="qk-gcc")


@NAMES
def test_the_file_is_the_network_within_its_budget(name: str) -> None:
    pytest.importorskip("torch")
    from qkgcc.nets import checkpoint, cost
    from qkgcc.nets.steered import Steered

    model, card = checkpoint.load(pretrained(name))
    assert card.name == name
    # As their README says.
    assert cost.parameters(model) == {"general": 119_181, "general-medium": 74_657, "general-small": 29_765}[name]
    assert isinstance(model, Steered)
    near = Steered(dataclasses.replace(model.options, max_delay=24))
    near.folded = True
    million = {"general": 36, "general-medium": 24, "general-small": 12}[name]
    assert cost.honest_flops(near) / 2e6 == pytest.approx(million, abs=0.5)


@NAMES
def test_the_onnx_file_beside_it_is_what_the_network_is_exported_as(name: str, tmp_path: Path) -> None:
    """So that both are of the same weights and of this code. Sums are rounded in another order on other processors."""
    onnx = pytest.importorskip("onnx")
    from qkgcc.network import onnx_export

    onnx_export.export(*files.read(pretrained(name)), tmp_path / "fresh.onnx")
    fresh, shipped = onnx.load(tmp_path / "fresh.onnx"), onnx.load(WEIGHTS / f"{name}.onnx")
    numbers = [{one.name: onnx.numpy_helper.to_array(one) for one in of.graph.initializer} for of in (shipped, fresh)]
    assert list(numbers[0]) == list(numbers[1])
    for constant, expected in numbers[1].items():
        size = np.abs(expected).max(initial=0)
        np.testing.assert_allclose(numbers[0][constant], expected, rtol=0, atol=1e-6 * size, err_msg=constant)
    for one in (shipped, fresh):
        one.graph.ClearField("initializer")
    assert shipped.graph == fresh.graph
    said = [
        {entry.key: entry.value for entry in one.metadata_props if entry.key != DIGEST_KEY} for one in (shipped, fresh)
    ]
    assert said[0] == said[1]


@NAMES
@pytest.mark.parametrize(("apart", "given"), [(0.03, 0.02), (0.02, 0.01), (0.05, 0.04), (0.1, 0.09)])
def test_a_spacing_that_is_a_little_too_small_does_not_clip_the_answer(name: str, apart: float, given: float) -> None:
    true = apart / SPEED_OF_SOUND * 16000
    answer = DelayEstimator(name, spacing=given)(talk(true), 16000)
    np.testing.assert_allclose(answer.summary.delay_samples, true, atol=0.15)
    assert any("longer than a spacing" in said or "too small" in said for said in answer.warnings)


@NAMES
@pytest.mark.parametrize("spacing", [0.0211, 0.0219, 0.0337, 0.05, 0.0973])
def test_whatever_is_answered_beyond_the_spacing_has_an_angle(name: str, spacing: float) -> None:
    answer = DelayEstimator(name, spacing=spacing)(talk(spacing / SPEED_OF_SOUND * 16000 + 0.6), 16000)
    assert answer.angle is not None
    np.testing.assert_allclose(answer.angle, 90)
    assert answer.summary.angle == 90


@NAMES
@pytest.mark.parametrize("most", [1e-6, 1e-4, 5 / 16000])
def test_no_answer_is_larger_than_a_largest_delay_that_was_asked_for(name: str, most: float) -> None:
    for spacing in (None, 0.3):
        estimator = DelayEstimator(name, spacing=spacing, max_delay=most, max_sources=3)
        answer = estimator(talk(16000 * most + 0.4), 16000)
        assert np.abs(answer.delay_seconds).max() <= most * (1 + 1e-9)
        assert np.nanmax(np.abs(answer.source_delays)) <= 16000 * most * (1 + 1e-9)


@NAMES
def test_noise_does_not_doubt_the_spacing(name: str) -> None:
    for spacing in (0.005, 0.01, 0.02, 0.1):
        for seed in range(3):
            noise = 0.05 * np.random.default_rng(seed).standard_normal((2, 5 * 16000))
            assert DelayEstimator(name, spacing=spacing)(noise, 16000).warnings == ()


@NAMES
def test_a_source_in_line_with_the_microphones_is_no_reason_to_doubt_the_spacing(name: str) -> None:
    for spacing in (0.02, 0.05, 0.3):
        answer = DelayEstimator(name, spacing=spacing)(talk(spacing / SPEED_OF_SOUND * 16000), 16000)
        assert answer.warnings == ()


@NAMES
@pytest.mark.parametrize("rate", [8000, 16000, 32000, 44100, 48000])
def test_any_rate(name: str, rate: int) -> None:
    delay = 0.3e-3 * rate
    answer = DelayEstimator(name, spacing=0.2)(talk(delay, rate), rate)
    np.testing.assert_allclose(answer.delay_samples / rate, 0.3e-3, atol=15e-6)
    assert answer.calibrated
    assert answer.kind == "posterior"


@NAMES
@pytest.mark.parametrize("spacing", [0.03, 0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("share", [-0.8, 0.0, 0.55])
def test_any_spacing(name: str, spacing: float, share: float) -> None:
    true = share * spacing / 343 * 16000
    answer = DelayEstimator(name, spacing=spacing)(talk(true), 16000)
    # At exactly 0 without any reverberation both read up to 0.3 sample off: see their README.
    np.testing.assert_allclose(answer.delay_samples, true, atol=0.35 if share == 0 else 0.2)
    assert np.median(answer.confidence) > 0.85


@NAMES
def test_errors_are_rarer_than_those_of_phat_and_known(name: str) -> None:
    """The bundled recording: a room, six talkers, pauses."""
    wrong = {}
    for method in (name, "phat"):
        answer = DelayEstimator(method)(samples.path("talkers-2ch"))
        truth = samples.truth_at(answer.times, "talkers-2ch")
        spoken = np.isfinite(truth) & np.isfinite(answer.delay_samples)
        errors = np.abs(answer.delay_samples - truth)[spoken] > 1
        wrong[method] = errors.mean()
        if method == name:
            sure = answer.confidence[spoken] >= 0.8
            assert sure.mean() > 0.3
            assert errors[sure].mean() < 0.1
    assert wrong[name] < wrong["phat"]


@NAMES
@pytest.mark.parametrize("seconds", [0.1, 0.2, 0.4, 0.8])
def test_a_short_sound_between_pauses_is_known_as_well(name: str, seconds: float) -> None:
    """Each microphone has its own noise in the pauses."""
    stated = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        sound = 0.01 * rng.standard_normal((2, 32000))
        begin = 12000 + int(rng.integers(0, 1024))
        burst = talk(4.8, seconds=seconds, seed=seed)
        sound[:, begin : begin + burst.shape[1]] += 0.3 * burst / burst.std()
        answer = DelayEstimator(name, spacing=0.2)(sound, 16000)
        inside = np.abs(answer.times - begin / 16000 - seconds / 2) < seconds / 2 - 0.03
        np.testing.assert_allclose(answer.delay_samples[inside], 4.8, atol=1)
        stated += answer.confidence[inside].tolist()
    assert np.mean(stated) > 0.88


@NAMES
def test_confidence_holds_on_the_bundled_recording(name: str) -> None:
    answer = DelayEstimator(name, spacing=0.5)(samples.path("talkers-2ch"))
    truth = samples.truth_at(answer.times, "talkers-2ch")
    spoken = np.isfinite(truth) & np.isfinite(answer.delay_samples)
    right = np.abs(answer.delay_samples - truth)[spoken] <= 1
    assert expected_calibration_error(answer.confidence[spoken], right) < 0.05


@NAMES
def test_what_has_no_delay_has_no_confidence(name: str) -> None:
    estimator = DelayEstimator(name, spacing=0.3)
    silence = estimator(np.zeros((2, 16000)), 16000)
    assert np.isnan(silence.delay_samples).all()
    assert (silence.confidence == 0).all()
    rng = np.random.default_rng(0)
    noise = estimator(0.1 * rng.standard_normal((2, 32000)), 16000)
    assert np.median(noise.confidence) < 0.3
    one = 0.1 * rng.standard_normal(32000)
    assert (estimator(np.stack([one, 0.5 * one]), 16000).confidence == 0).all()
    dead = estimator(np.stack([one, np.zeros_like(one)]), 16000)
    assert np.isnan(dead.delay_samples).all()
    assert (dead.confidence == 0).all()


@NAMES
def test_a_delay_beyond_the_trained_ones_is_noticed_without_a_spacing(name: str) -> None:
    for true in (98.0, 99.5, -102.0):
        answer = DelayEstimator(name)(talk(true, seconds=2.0), 16000)
        assert "give the spacing of the microphones" in answer.warnings[0]
        assert np.median(answer.confidence) < 0.2


@NAMES
def test_explain_shows_the_band_that_was_heard(name: str) -> None:
    explanation = DelayEstimator(name, spacing=0.5).explain(samples.path("talkers-2ch"), end=4.0)
    assert explanation.frequencies[-1] == 8000
    assert 150 < explanation.frequencies[explanation.mean.argmax()] < 7000


@NAMES
def test_a_spacing_beyond_the_trained_one_is_answered_with_a_warning(name: str) -> None:
    true = 110.0
    answer = DelayEstimator(name, spacing=3.0)(talk(true, seconds=2.0), 16000)
    assert "was trained on delays up to 6.0 ms" in answer.warnings[0]
    np.testing.assert_allclose(np.median(answer.delay_samples), true, atol=0.5)
    assert not answer.calibrated
    assert answer.confidence.max() < 0.6


def test_no_torch_is_needed() -> None:
    code = """
import sys
sys.modules["torch"] = None
from qkgcc import DelayEstimator, samples
from qkgcc.pairs.calibration import expected_calibration_error
answer = DelayEstimator()(samples.path("talkers-2ch"), start=0.3, end=2.0)
assert answer.method == "general" and answer.calibrated
print(answer.summary.delay_samples)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(16.3, abs=0.5)


@NAMES
@pytest.mark.parametrize("decoder", ["balanced", "coarse"])
def test_the_one_delay_of_several_talkers_is_the_highest_peak(name: str, decoder: str) -> None:
    """Not a delay between two of them, where nobody is."""
    one, peak = (
        DelayEstimator(name, spacing=0.5, decoder=by)(samples.path("talkers-2ch")) for by in (decoder, "quadratic")
    )
    assert one.summary == peak.summary


@NAMES
def test_what_hums_below_a_voice_can_be_left_out(name: str) -> None:
    rng = np.random.default_rng(5)
    time = np.arange(16000) / 16000
    hum = sum(np.sin(2 * np.pi * 50 * k * time + rng.uniform(0, 6)) / k for k in (1, 2, 3, 5))
    sound = talk(5.3) + 0.7 * hum / np.std(hum)  # the same in both channels, 23 dB louder
    heard = DelayEstimator(name, spacing=0.3, band=(400, 8000))(sound, 16000)
    assert (np.abs(heard.delay_samples - 5.3) < 0.5).all()
    assert not heard.calibrated


@NAMES
@pytest.mark.parametrize("delay", [120, 150, 200])
def test_delays_far_beyond_what_is_looked_for_are_noticed(name: str, delay: float) -> None:
    answer = DelayEstimator(name)(talk(delay, seconds=1.5), 16000)
    assert answer.warnings
    assert answer.confidence.max() < 0.5


@NAMES
def test_a_spacing_that_cannot_be_right_costs_the_whole_recording_its_confidence(name: str) -> None:
    sound = talk(15.0, seconds=3.0)
    right, wrong = (DelayEstimator(name, spacing=spacing)(sound, 16000) for spacing in (0.5, 0.02))
    assert wrong.warnings
    assert wrong.summary.confidence < 0.2 < right.summary.confidence


@NAMES
def test_answers_at_the_end_of_what_is_looked_for_are_said(name: str) -> None:
    """A delay of 4.6 samples, where 4.2 were asked for: too little beyond to be noticed as an impossible one."""
    answer = DelayEstimator(name, max_delay=4.2 / 16000)(talk(4.6), 16000)
    assert (answer.delay_samples > 4.19).mean() > 0.5
    assert any("the last delay that is looked for" in said for said in answer.warnings)
    wide = DelayEstimator(name, max_delay=9 / 16000)(talk(4.6), 16000)
    assert not wide.warnings
