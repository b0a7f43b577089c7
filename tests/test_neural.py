"""A checkpoint is a method like any other. The network here is small and really trained, on white noise."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import safetensors.torch
import soundfile
import torch

from networks import steered_card
from qkgcc import DelayEstimator, InputError
from qkgcc.nets import checkpoint
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
from qkgcc.network.card import KEY, Card
from qkgcc.pairs.neural import Network
from rounding import assert_close_posteriors, exact_networks
from signals import delayed_noise

pytestmark = pytest.mark.numeric

OPTIONS = QKGCCOptions(frame=128, dft=256, max_delay=3, width=16, heads=2, radius=2, channels=16, hidden=32)
RATE = 8000


def card(scaling: str = "frame") -> Card:
    return Card(
        name="tiny",
        architecture="qkgcc",
        options=dataclasses.asdict(OPTIONS),
        sample_rate=RATE,
        frame=OPTIONS.frame,
        dft=OPTIONS.dft,
        delays=OPTIONS.delays,
        scaling=scaling,
    )


@pytest.fixture(scope="module")
def model() -> QKGCC:
    """Trained for a few seconds: the delays -3 ... 3 of white noise, frames of unit level."""
    torch.manual_seed(0)
    model = QKGCC(OPTIONS)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    rng = np.random.default_rng(0)
    for step in range(120):
        delays = rng.integers(-3, 4, 64)
        frames = delayed_noise(delays, OPTIONS.frame, seed=step + 1000, dtype=np.float32)
        frames /= np.sqrt(np.mean(frames**2, axis=(1, 2), keepdims=True))
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(frames)), torch.from_numpy(delays + 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def path(model: QKGCC, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "tiny.safetensors"
    checkpoint.save(model, path, card())
    return path


def noise(delay: float, seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    return 0.1 * delayed_noise(delay, round(seconds * rate), seed=5)[0]


@pytest.mark.parametrize("delay", [-3, -1, 0, 2])
def test_a_checkpoint_finds_delays_with_the_sign_of_every_other_method(path: Path, delay: int) -> None:
    answer = DelayEstimator(path)(noise(delay), RATE)
    assert answer.summary.delay_samples == delay
    assert np.mean(answer.delay_samples == delay) > 0.8
    assert DelayEstimator("phat")(noise(delay), RATE).summary.delay_samples == pytest.approx(delay, abs=0.1)


def test_its_curve_is_the_posterior_of_the_network(path: Path, model: QKGCC) -> None:
    x = noise(1).astype(np.float32)
    answer = DelayEstimator(path, hop=0.016)(x, RATE)
    frames = np.stack([x[:, i : i + 128] for i in range(0, RATE - 127, 128)]).astype(np.float64)
    mean, spread = frames.mean(axis=-1, keepdims=True), frames.std(axis=-1, keepdims=True)
    frames -= np.where(np.abs(mean) > 0.1 * spread, 0.99 * mean, 0)
    frames /= np.sqrt(np.mean(frames**2, axis=(1, 2), keepdims=True))
    with torch.no_grad():
        expected = torch.softmax(copy.deepcopy(model).double()(torch.from_numpy(frames)), dim=-1)
    assert_close_posteriors(answer.curve, expected, 2 * OPTIONS.frame)
    np.testing.assert_allclose(answer.curve.sum(axis=1), 1, atol=1e-5)
    assert answer.kind == "posterior"
    assert answer.times[0] == pytest.approx(0.008)
    # At 8 kHz only the class itself lies within 62.5 microseconds.
    np.testing.assert_allclose(answer.confidence, answer.curve.max(axis=1), atol=1e-6)


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
def test_other_rates_are_resampled_and_delays_scaled_back(path: Path, rate: int) -> None:
    x = noise(2 * rate / RATE, rate=rate)
    answer = DelayEstimator(path)(x, rate)
    assert answer.summary.delay_samples == pytest.approx(2 * rate / RATE)
    assert answer.summary.delay_seconds == pytest.approx(2 / RATE)
    assert answer.lags[-1] == pytest.approx(3 * rate / RATE)
    assert answer.sample_rate == rate


def test_bins_above_the_nyquist_frequency_of_the_input_are_masked(path: Path, model: QKGCC) -> None:
    """A 4 kHz recording has nothing above 2 kHz: the network must not look at the resampler's rounding noise there."""
    x = noise(1, rate=4000)
    answer = DelayEstimator(path, hop=0.016)(x, 4000)
    estimator = DelayEstimator(path, hop=0.016)
    network = estimator.method_at(4000)
    assert network.bins.sum() == 65
    assert estimator.method_at(8000).bins is None
    assert np.isfinite(answer.delay_samples).all()


def test_the_level_does_not_matter_when_frames_are_scaled(path: Path) -> None:
    x = noise(1)
    with exact_networks():
        exact = DelayEstimator(path)(x, RATE).curve
    for gain in (1.0, 1e-3):
        assert_close_posteriors(DelayEstimator(path)(x * gain, RATE).curve, exact, 2 * OPTIONS.frame)


def test_utterance_scaling_divides_by_the_level_of_channel_1_over_the_recording(model: QKGCC, tmp_path: Path) -> None:
    path = tmp_path / "utterance.safetensors"
    checkpoint.save(model, path, card("utterance"))
    x = noise(1).astype(np.float32)
    x[:, : RATE // 2] *= 0.1
    soundfile.write(tmp_path / "x.wav", x.T, RATE, subtype="FLOAT")
    answer = DelayEstimator(path, hop=0.016)(tmp_path / "x.wav")
    exact = x.astype(np.float64)
    frames = np.stack([exact[:, i : i + 128] for i in range(0, RATE - 127, 128)]) / exact[0].std()
    with torch.no_grad():
        expected = torch.softmax(copy.deepcopy(model).double()(torch.from_numpy(frames)), dim=-1)
    assert_close_posteriors(answer.curve, expected, 2 * OPTIONS.frame)


def test_a_spacing_leaves_only_the_delays_it_allows(path: Path) -> None:
    answer = DelayEstimator(path, spacing=0.05)(noise(1), RATE)
    np.testing.assert_array_equal(answer.lags, [-1, 0, 1])
    np.testing.assert_allclose(answer.curve.sum(axis=1), 1, atol=1e-5)
    assert answer.summary.angle is not None


def test_silence_has_no_delay_and_a_flat_posterior(path: Path) -> None:
    answer = DelayEstimator(path)(np.zeros((2, RATE)), RATE)
    assert np.isnan(answer.delay_samples).all()
    assert not answer.confidence.any()
    np.testing.assert_allclose(answer.curve, 1 / 7)


def test_what_does_not_fit_the_network_is_said(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"tiny knows delays up to 0\.38 ms, not 2\.92 ms"):
        DelayEstimator(path, spacing=1.0)(noise(0), RATE)
    with pytest.raises(InputError, match=r"tiny takes frames of 0\.016 s, not 0\.5"):
        DelayEstimator(path, frame=0.5)(noise(0), RATE)
    with pytest.raises(InputError, match="no such file"):
        DelayEstimator(tmp_path / "none.safetensors")
    with pytest.raises(InputError, match="tiny cannot leave frequencies out"):
        DelayEstimator(path, band=(300, 6000))(noise(0), RATE)
    model, described = checkpoint.load(path)
    unknown = dataclasses.replace(described, architecture="foo").to_json()
    safetensors.torch.save_file(model.state_dict(), tmp_path / "foo.safetensors", {KEY: unknown})
    with pytest.raises(InputError, match="holds a 'foo', which this qkgcc does not know; known: ngcc, pgcc, qkgcc"):
        DelayEstimator(tmp_path / "foo.safetensors")
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="damaged"):
        DelayEstimator(damaged)


def test_threads_are_those_of_torch_while_it_is_asked(tmp_path: Path) -> None:
    network: Any = checkpoint.build("ngcc", {"frame": 512, "dft": 512, "channels": 8, "taps": 63})
    sizes = {"frame": 512, "dft": 512, "delays": network.options.delays}
    card = steered_card(architecture="ngcc", options=vars(network.options), **sizes)
    checkpoint.save(network, tmp_path / "torch.safetensors", card)
    before = torch.get_num_threads()
    loaded = Network.load(tmp_path / "torch.safetensors", threads=before + 1)
    seen: list[int] = []
    loaded.model.network.register_forward_hook(lambda *_: seen.append(torch.get_num_threads()))  # type: ignore[attr-defined]
    loaded.evidence(np.ones((1, 2, 512), np.float32))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before
