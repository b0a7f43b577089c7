"""The generic Transformer: torch's own encoder layer, the same in every mode, at the paper's size."""

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.checkpoint import load, save
from qkgcc.nets.cost import honest_flops, paper_flops, parameters
from qkgcc.nets.qkgcc import tokens
from qkgcc.nets.transformer import Transformer, TransformerOptions
from qkgcc.network.card import Card

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

SMALL = TransformerOptions(frame=32, dft=64, max_delay=3, width=8, heads=2, feedforward=12, hidden=10)


def network(options: TransformerOptions = SMALL, seed: int = 0) -> Transformer:
    """A network whose biases and normalizations are away from their trivial initial values."""
    torch.manual_seed(seed)
    model = Transformer(options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def frames_of(options: TransformerOptions = SMALL, batch: int = 2) -> Tensor:
    return torch.randn(batch, 2, options.frame, generator=torch.Generator().manual_seed(1))


# The encoder


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_the_encoder_is_that_of_torch(train: bool, masked: bool) -> None:
    encoder = network().encoder.train(train)
    rows = torch.randn(2, 33, 8)
    bins = torch.arange(33) < 20 if masked else None
    padding = None if bins is None else (~bins).expand(2, -1)
    expected = encoder.layer(rows, src_key_padding_mask=padding)  # with gradients: no path of torch's is cut short
    torch.testing.assert_close(encoder(rows, bins)[:, :20], expected[:, :20])


def test_evaluation_without_gradients_gives_the_same_to_the_bit() -> None:
    model, frames = network(), frames_of()
    for bins in (None, torch.arange(33) < 20):
        expected = model(frames, bins).detach()
        assert torch.equal(model.train()(frames, bins), expected)
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(frames, bins), expected)
        with torch.inference_mode():
            assert torch.equal(model(frames, bins), expected)


# The network


def test_default_network_has_418479_parameters_and_47_logits() -> None:
    model = Transformer().eval()
    assert parameters(model) == 418_479
    with torch.no_grad():
        assert model(torch.randn(1, 2, 2048)).shape == (1, 47)


def test_network_equals_its_description() -> None:
    model, frames = network().double(), frames_of().double()
    z = tokens(frames, 64)
    both = torch.cat([z[:, 0], z[:, 1]], dim=-1)  # channel 1's three numbers first
    rows = both @ model.embed.weight.T + model.embed.bias + model.position
    rows = nn.functional.layer_norm(rows, (8,), model.norm.weight, model.norm.bias)
    torch.testing.assert_close(model(frames), model.mlp(model.encoder.layer(rows).mean(1)))


def test_default_network_costs_2690_mflop_with_its_attention() -> None:
    model, n, d = Transformer(), 2049, 128
    layers = n * 6 * d + 2 * n * d * 256 + d * d + d * 47  # embedding, feed-forward, MLP
    attention = n * d * 3 * d + n * n * d + n * n * d + n * d * d  # in-projection, scores, mixing, out-projection
    assert honest_flops(model) == 2 * (layers + attention) == 2_689_906_432
    # The papers' tool sees no part of nn.MultiheadAttention; the paper prints no figure for this network.
    assert paper_flops(model) == 2 * (layers + 4 * 3 * n * d) == 278_053_120
    assert honest_flops(model, fft=True) == 2 * (layers + attention) + 2 * 5 * 4096 * 12


def test_every_parameter_has_a_gradient() -> None:
    model = network()
    model(frames_of()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_silence_gives_finite_logits_and_gradients() -> None:
    frames = torch.zeros(1, 2, 32, requires_grad=True)
    network()(frames).sum().backward()
    assert frames.grad is not None
    assert frames.grad.isfinite().all()


def test_the_order_of_the_channels_matters() -> None:
    assert not torch.allclose(network()(frames_of()), network()(frames_of().flip(1)), atol=1e-3)


def test_only_the_positions_tell_one_bin_from_another() -> None:
    encoder, rows, order = network().encoder, torch.randn(2, 33, 8), torch.randperm(33)
    torch.testing.assert_close(encoder(rows[:, order]), encoder(rows)[:, order])


def test_half_precision_around_it_is_close() -> None:
    model, frames = network(), frames_of()
    exact = model(frames)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.float()(frames.float())
    torch.testing.assert_close(logits.double(), exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_checkpoint_gives_the_same_logits(tmp_path: Path, dtype: torch.dtype) -> None:
    model, path = network(), tmp_path / "transformer.safetensors"
    sizes = {"sample_rate": 16000, "frame": 32, "dft": 64, "delays": SMALL.delays}
    card = Card(name="t", architecture="transformer", options=dataclasses.asdict(SMALL), scaling="frame", **sizes)
    save(model, path, card, dtype)
    reloaded, _ = load(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
        assert torch.equal(reloaded(frames_of()), model(frames_of()))


# Masked bins


def test_a_mask_of_all_true_changes_nothing() -> None:
    model, frames = network(), frames_of()
    torch.testing.assert_close(model(frames, torch.ones(33, dtype=torch.bool)), model(frames))


def test_masking_the_top_of_the_band_equals_a_network_that_ends_there() -> None:
    model, frames = network(), frames_of()
    both = tokens(frames, 64).transpose(1, 2).flatten(2)[:, :20]
    rows = model.encoder(model.norm(model.embed(both) + model.position[:20]))
    masked = model(frames, torch.arange(33) < 20)
    torch.testing.assert_close(masked, model.mlp(rows.mean(1)))
    assert not torch.allclose(masked, model(frames), atol=1e-3)


def test_a_mask_of_all_false_leaves_no_nan() -> None:
    assert network()(frames_of(), torch.zeros(33, dtype=torch.bool)).isfinite().all()


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "Transformer option width is 8, which 3 heads do not divide"),
        ({"dft": 16}, "shorter than the frame"),
        ({"max_delay": -1}, "max_delay is -1; expected a whole number >= 0"),
        ({"feedforward": "wide"}, "feedforward is 'wide'"),
        ({"radius": 3}, "Transformer has no option radius; it knows frame, dft, max_delay, width, heads"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Transformer.from_options(dataclasses.asdict(SMALL) | change)


def test_options_are_plain_json() -> None:
    assert Transformer.from_options(json.loads(json.dumps(dataclasses.asdict(SMALL)))).options == SMALL


def test_frames_and_masks_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(2, 32\).*\(batch, 2, 32\)"):
        network()(torch.zeros(2, 32))
    with pytest.raises(InputError, match=r"shape \(32,\).*shape \(33,\)"):
        network()(frames_of(), torch.ones(32, dtype=torch.bool))
