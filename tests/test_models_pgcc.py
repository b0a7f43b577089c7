"""PGCC-PHAT: the image is that of the paper, at the published size, and the delay has the right sign."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.checkpoint import load, save
from qkgcc.nets.cost import honest_flops, paper_flops, parameters
from qkgcc.nets.pgcc import PGCC, PGCCOptions, correlation_image
from qkgcc.network.card import Card
from signals import delayed_noise

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

SMALL = PGCCOptions(frame=64, dft=128, max_delay=6, channels=2, hidden=12)


def network(options: PGCCOptions = SMALL, seed: int = 0) -> PGCC:
    """A network whose normalizations have seen data."""
    torch.manual_seed(seed)
    model = PGCC(options).train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 2, options.frame))
    return model.eval()


def frames_of(options: PGCCOptions = SMALL, batch: int = 3) -> Tensor:
    return torch.randn(batch, 2, options.frame, generator=torch.Generator().manual_seed(1))


def noise(delays: list[int], samples: int) -> Tensor:
    return torch.from_numpy(delayed_noise(delays, samples, dtype=np.float32))


# The image


def test_the_image_is_eleven_weighted_correlations() -> None:
    frames = frames_of().double()
    x1, x2 = torch.fft.fft(frames, n=128).unbind(1)
    spectrum = x1 * x2.conj()
    rows = []
    for i in range(11):
        lags = torch.fft.ifft(spectrum * (spectrum.abs() + 1e-3) ** (-i / 10)).real
        rows.append(torch.stack([lags[:, tau % 128] for tau in range(-6, 7)], -1))
    torch.testing.assert_close(correlation_image(frames, 128, 6), torch.stack(rows, 1))


@pytest.mark.parametrize("delay", [-23, -7, 0, 1, 23])
def test_the_phat_row_peaks_at_a_pure_delay_with_its_sign(delay: int) -> None:
    image = correlation_image(noise([delay], 2048), 4096, 23)
    assert image.shape == (1, 11, 47)
    assert image[0, -1].argmax().item() - 23 == delay  # beta = 1


def test_swapping_channels_mirrors_the_image() -> None:
    frames = frames_of()
    mirrored = correlation_image(frames.flip(1), 128, 6).flip(-1)
    torch.testing.assert_close(mirrored, correlation_image(frames, 128, 6), rtol=1e-4, atol=1e-5)


def test_the_phat_row_hardly_depends_on_the_level_and_the_plain_one_is_its_square() -> None:
    frames = 10 * frames_of()
    soft, loud = correlation_image(frames, 128, 6), correlation_image(4 * frames, 128, 6)
    torch.testing.assert_close(loud[:, 0], 16 * soft[:, 0])
    torch.testing.assert_close(loud[:, -1], soft[:, -1], rtol=0, atol=1e-3)


def test_silence_gives_finite_logits_and_gradients() -> None:
    frames = torch.zeros(2, 2, 64, requires_grad=True)
    network()(frames).sum().backward()
    assert frames.grad is not None
    assert frames.grad.isfinite().all()


def test_half_precision_around_it_leaves_the_image_in_float32() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        image = correlation_image(frames_of().float(), 128, 6)
        logits = network().float()(frames_of().float())
    assert torch.equal(image, correlation_image(frames_of().float(), 128, 6))
    assert logits.dtype == torch.bfloat16  # the layers did take it


# The network


def test_default_network_has_11558639_parameters_and_47_logits() -> None:
    model = PGCC().eval()
    assert parameters(model) == 11_558_639
    with torch.no_grad():
        assert model(torch.randn(1, 2, 2048)).shape == (1, 47)


def test_default_network_costs_218_mflop_and_219_as_the_paper_counts() -> None:
    model = PGCC()
    maps = [(32, 9 * 45), (64, 7 * 43), (128, 5 * 41), (256, 3 * 39), (512, 1 * 37)]  # channels, positions
    inputs = [1, 32, 64, 128, 256]
    macs = sum(c * p * 9 * i for (c, p), i in zip(maps, inputs, strict=True))
    macs += 512 * 37 * 512 + 512 * 512 + 512 * 47
    normalized = sum(c * p for c, p in maps) + 2 * 512
    assert honest_flops(model) == 2 * macs == 217_832_256
    assert paper_flops(model) == 2 * (macs + 4 * normalized) == 218_699_328  # the paper: 219 M
    assert honest_flops(model, fft=True) == 2 * macs + (2 + 11) * 5 * 4096 * 12


def test_every_parameter_has_a_gradient() -> None:
    model = network()
    model(frames_of()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_dropout_acts_in_training_only() -> None:
    model = network()
    assert torch.equal(model(frames_of()), model(frames_of()))
    for module in model.modules():
        module.train(isinstance(module, nn.Dropout))
    assert not torch.equal(model(frames_of()), model(frames_of()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_checkpoint_gives_the_same_logits(tmp_path: Path, dtype: torch.dtype) -> None:
    model, path = network(), tmp_path / "pgcc.safetensors"
    sizes = {"sample_rate": 16000, "frame": 64, "dft": 128, "delays": SMALL.delays}
    card = Card(name="p", architecture="pgcc", options=dataclasses.asdict(SMALL), scaling="frame", **sizes)
    save(model, path, card, dtype)
    reloaded, _ = load(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
        assert torch.equal(reloaded(frames_of()), model(frames_of()))


def test_a_small_network_learns_the_delays_of_white_noise() -> None:
    torch.manual_seed(0)
    options = dataclasses.replace(SMALL, max_delay=5, channels=4)
    model = PGCC(options).float()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    rng = np.random.default_rng(0)
    for step in range(60):
        delays = rng.integers(-5, 6, 64)
        frames = torch.from_numpy(delayed_noise(delays, 64, seed=step, dtype=np.float32))
        loss = nn.functional.cross_entropy(model(frames), torch.from_numpy(delays + 5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = model.eval()(noise([-5, -2, 0, 3, 4], 64)).argmax(-1) - 5
    assert found.tolist() == [-5, -2, 0, 3, 4]


# Masked bins


def test_a_mask_of_all_true_changes_nothing() -> None:
    model = network()
    assert torch.equal(model(frames_of(), torch.ones(65, dtype=torch.bool)), model(frames_of()))


def test_what_masked_bins_hold_does_not_matter() -> None:
    time = torch.arange(128)
    bins = torch.arange(65) < 40
    tone = 5 * torch.cos(2 * torch.pi * 50 / 128 * time)  # all of it in bin 50, as the frame fills the transform
    options = dataclasses.replace(SMALL, frame=128)
    model, frames = network(options), frames_of(options)
    torch.testing.assert_close(model(frames + tone, bins), model(frames, bins), rtol=1e-3, atol=1e-4)
    assert not torch.allclose(model(frames + tone), model(frames), atol=1e-2)


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_delay": 4}, "PGCC option max_delay is 4; expected a whole number >= 5"),
        ({"dft": 32}, "shorter than the frame"),
        ({"max_delay": 64}, "max_delay is 64; a transform of 128 has no such lags"),
        ({"channels": 0}, "channels is 0"),
        ({"hidden": 2.5}, "hidden is 2.5"),
        ({"width": 3}, "PGCC has no option width; it knows frame, dft, max_delay, channels, hidden"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PGCC.from_options(dataclasses.asdict(SMALL) | change)


def test_options_are_plain_json() -> None:
    assert PGCC.from_options(json.loads(json.dumps(dataclasses.asdict(SMALL)))).options == SMALL


def test_frames_and_masks_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(1, 3, 64\).*\(batch, 2, 64\)"):
        network()(torch.zeros(1, 3, 64))
    with pytest.raises(InputError, match=r"shape \(64,\).*shape \(65,\)"):
        network()(frames_of(), torch.ones(64, dtype=torch.bool))
