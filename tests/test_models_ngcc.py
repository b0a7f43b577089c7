"""NGCC-PHAT: the sinc bank is a circular convolution, the published weights fit, and delays keep their sign."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.checkpoint import load, save
from qkgcc.nets.cost import honest_flops, paper_flops, parameters
from qkgcc.nets.ngcc import NGCC, PUBLISHED_NAMES, NGCCOptions, SincBank, load_published
from qkgcc.network.card import Card
from rounding import assert_rounded
from signals import delayed_noise

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

SMALL = NGCCOptions(frame=64, dft=128, max_delay=6, channels=6, taps=31)


def network(options: NGCCOptions = SMALL, seed: int = 0) -> NGCC:
    """A network whose normalizations have seen data."""
    torch.manual_seed(seed)
    model = NGCC(options).train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(16, 2, options.frame))
    return model.eval()


def frames_of(options: NGCCOptions = SMALL, batch: int = 3) -> Tensor:
    return torch.randn(batch, 2, options.frame, generator=torch.Generator().manual_seed(1))


# The sinc bank


def sinc_filters(bank: SincBank) -> Tensor:
    """The filters as the difference of two low-pass filters over twice the band, n = -(taps // 2) first."""
    low = 50 + bank.low.abs()
    high = (low + 50 + bank.band.abs()).clamp(max=bank.sample_rate / 2)
    n = torch.arange(1, bank.taps // 2 + 1, dtype=low.dtype) / bank.sample_rate
    right = (torch.sin(2 * math.pi * high * n) - torch.sin(2 * math.pi * low * n)) / (math.pi * n)
    whole = torch.cat([right.flip(-1), 2 * (high - low), right], -1) / (2 * (high - low))
    return whole * torch.from_numpy(np.hamming(bank.taps))


@pytest.mark.parametrize(("taps", "frame"), [(1023, 2048), (31, 64), (31, 65), (33, 33), (1, 16)])
def test_the_bank_is_a_circular_convolution(taps: int, frame: int) -> None:
    bank = SincBank(5, taps, frame, 16000).double()
    with torch.no_grad():
        bank.low.add_(100 * torch.randn_like(bank.low))
        bank.band.mul_(-1.5)  # the sign does not matter
    x = torch.randn(2, 3, frame, dtype=torch.float64)
    padded = nn.functional.pad(x.reshape(6, 1, frame), (taps // 2, taps // 2), mode="circular")
    direct = nn.functional.conv1d(padded, sinc_filters(bank)[:, None]).reshape(2, 3, 5, frame)
    torch.testing.assert_close(bank(x), direct, rtol=1e-6, atol=1e-6)


def test_single_precision_is_precise_enough() -> None:
    bank = NGCC().backbone.bank
    x = torch.randn(1, 2048)
    exact = bank(x)
    largest = torch.pi * 511  # the angle of Nyquist, 511 samples from the middle: its rounding is that of its sine
    assert_rounded(bank.float()(x.float()), exact, 1, scale=largest * float(exact.detach().abs().max()))


def test_the_bank_begins_mel_spaced() -> None:
    low, high = NGCC().backbone.bank.edges()
    mel = 2595 * torch.log10(1 + (low - 50) / 700)
    torch.testing.assert_close(mel.diff(dim=0), torch.full((127, 1), mel.diff(dim=0).mean().item()), rtol=1e-3, atol=0)
    assert low[0].item() == pytest.approx(80)
    assert high[-1].item() == pytest.approx(8000)  # 7900 + 100, which is Nyquist
    torch.testing.assert_close(high[:-1] - 50, low[1:])


def test_an_edge_beyond_nyquist_stays_finite() -> None:
    bank = SincBank(2, 31, 64, 16000)
    with torch.no_grad():
        bank.low.copy_(torch.tensor([[7950.0], [9000.0]]))  # no band at all, and a band upside down
    bank(torch.randn(1, 64)).square().sum().backward()
    assert bank.low.grad is not None
    assert bank.low.grad.isfinite().all()


# The correlations


@pytest.mark.parametrize("delay", [-23, -4, 0, 11])
def test_the_mean_correlation_of_an_untrained_network_peaks_at_the_delay(delay: int) -> None:
    torch.manual_seed(0)
    frames = torch.from_numpy(delayed_noise([delay], 2048, dtype=np.float32))
    with torch.no_grad():
        found = NGCC().eval().correlations(frames)
    assert found.shape == (1, 128, 47)
    assert found.mean(1).argmax().item() - 23 == delay


def test_swapping_channels_mirrors_the_correlations() -> None:
    model, frames = network(), frames_of()
    mirrored = model.correlations(frames.flip(1)).flip(-1)
    torch.testing.assert_close(mirrored, model.correlations(frames), rtol=1e-3, atol=1e-5)


def test_network_equals_its_description() -> None:
    model = network().double()
    frames = frames_of().double()
    signals = []
    for channel in range(2):
        padded = nn.functional.pad(frames[:, channel, None], (15, 15), mode="circular")
        x = nn.functional.conv1d(padded, sinc_filters(model.backbone.bank)[:, None])
        x = model.backbone.layers[0](x)
        for i, kernel in enumerate((11, 9, 7)):
            conv, norm = model.backbone.layers[3 * i + 2], model.backbone.layers[3 * i + 3]
            x = nn.functional.pad(nn.functional.leaky_relu(x, 0.2), (kernel // 2, kernel // 2), mode="circular")
            x = norm(nn.functional.conv1d(x, conv.weight, conv.bias))
        signals.append(torch.fft.fft(x, n=128))
    spectrum = signals[0] * signals[1].conj()
    lags = torch.fft.ifft(spectrum / (spectrum.abs() + 1e-3)).real
    x = torch.stack([lags[..., tau % 128] for tau in range(-6, 7)], -1)
    torch.testing.assert_close(model.correlations(frames), x, rtol=1e-5, atol=1e-6)
    for i, kernel in enumerate((11, 9, 7)):
        conv, norm = model.head[4 * i], model.head[4 * i + 1]
        x = norm(nn.functional.conv1d(x, conv.weight, conv.bias, padding=kernel // 2))
        x = nn.functional.leaky_relu(x, 0.2)
    x = nn.functional.conv1d(x, model.head[12].weight, model.head[12].bias, padding=2)
    torch.testing.assert_close(model(frames), x[:, 0], rtol=1e-5, atol=1e-6)


def test_in_training_each_channel_is_normalized_by_its_own_statistics() -> None:
    model = network().train()
    first, second = model.backbone(torch.stack([frames_of()[:, 0], 50 * frames_of()[:, 1]]))
    torch.testing.assert_close(first.std(), second.std(), rtol=0.01, atol=0)


def test_silence_gives_finite_logits_and_gradients() -> None:
    frames = torch.zeros(2, 2, 64, requires_grad=True)
    model = network()
    model(frames).sum().backward()
    assert frames.grad is not None
    assert frames.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_half_precision_around_it_leaves_the_transforms_in_float32() -> None:
    model, frames = network().float(), frames_of().float()
    with torch.autocast("cpu", torch.bfloat16):
        signals, found, logits = model.backbone.bank(frames), model.correlations(frames), model(frames)
    assert torch.equal(signals, model.backbone.bank(frames))
    assert found.dtype == torch.float32
    assert logits.dtype == torch.bfloat16  # the convolutions did take it
    torch.testing.assert_close(found, model.correlations(frames), rtol=0, atol=0.05)


# The network


def test_default_network_has_888193_parameters_and_47_logits() -> None:
    model = NGCC().eval()
    assert parameters(model) == 888_193
    with torch.no_grad():
        assert model(torch.randn(1, 2, 2048)).shape == (1, 47)


def test_default_network_costs_4738_mflop_and_3682_as_the_paper_counts() -> None:
    model = NGCC()
    bank = 128 * 1023 * 2048 * 2  # for both channels
    backbone = 128 * 128 * (11 + 9 + 7) * 2048 * 2
    lags = 128 * 128 * (11 + 9 + 7) * 47 + 128 * 5 * 47
    normalized = 4 * 128 * 2048 * 2 + 3 * 128 * 47
    assert honest_flops(model) == 2 * (bank + backbone + lags) == 4_738_214_656
    assert paper_flops(model) == 2 * (backbone + lags + 4 * normalized) == 3_682_443_008  # the paper: 3682 M
    assert honest_flops(model, fft=True) - honest_flops(model) == (2 * 128 + 128) * 5 * 4096 * 12


def test_every_parameter_has_a_gradient() -> None:
    model = network()
    model(frames_of()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_dropout_of_the_lag_convolutions_is_one_half() -> None:
    assert [module.p for module in NGCC(SMALL).modules() if isinstance(module, nn.Dropout)] == [0.5] * 3


def card(options: NGCCOptions, sample_rate: int = 16000) -> Card:
    sizes = {"sample_rate": sample_rate, "frame": options.frame, "dft": options.dft, "delays": options.delays}
    return Card(name="n", architecture="ngcc", options=dataclasses.asdict(options), scaling="frame", **sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_checkpoint_gives_the_same_logits(tmp_path: Path, dtype: torch.dtype) -> None:
    model, path = network(), tmp_path / "ngcc.safetensors"
    save(model, path, card(SMALL), dtype)
    reloaded, _ = load(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype))
        assert torch.equal(reloaded(frames_of()), model(frames_of()))


def test_a_card_of_another_sample_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="card says sample_rate 8000, but its options give 16000"):
        save(network(), tmp_path / "ngcc.safetensors", card(SMALL, 8000))


# The published weights


def published_state() -> dict[str, Tensor]:
    """A state dict under the authors' names, of the shapes that their code makes."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    def norm(name: str) -> dict[str, Tensor]:
        numbers = {f"{name}.{end}": 0.5 + draw(128) for end in ("weight", "bias", "running_mean", "running_var")}
        return numbers | {f"{name}.num_batches_tracked": torch.tensor(7)}

    state = {"backbone.conv.0.low_hz_": 7000 * draw(128, 1), "backbone.conv.0.band_hz_": 100 * draw(128, 1)}
    for i, kernel in enumerate((11, 9, 7)):
        for name in (f"backbone.conv.{i + 1}", f"mlp.{i}.0"):
            state |= {f"{name}.weight": draw(128, 128, kernel), f"{name}.bias": draw(128)}
        state |= norm(f"mlp.{i}.1")
    for i in range(4):
        state |= norm(f"backbone.bn.{i}")
    return state | {"final_conv.weight": draw(1, 128, 5), "final_conv.bias": draw(1)}


def test_published_weights_are_loaded_under_our_names() -> None:
    state = published_state()
    model = load_published(state)
    assert not model.training
    own = model.state_dict()
    assert {published: own[name].tolist() for published, name in PUBLISHED_NAMES.items()} == {
        name: tensor.tolist() for name, tensor in state.items()
    }
    assert sorted(PUBLISHED_NAMES.values()) == sorted(own)


def test_published_names_keep_each_layer_in_its_place() -> None:
    modules = dict(load_published(published_state()).named_modules())
    for i, kernel in enumerate((11, 9, 7)):
        assert modules[PUBLISHED_NAMES[f"backbone.conv.{i + 1}.weight"].removesuffix(".weight")].kernel_size == (
            kernel,
        )
        assert modules[PUBLISHED_NAMES[f"mlp.{i}.0.weight"].removesuffix(".weight")].kernel_size == (kernel,)
    assert all(
        modules[PUBLISHED_NAMES[f"backbone.bn.{i}.bias"].removesuffix(".bias")].momentum == 0.05 for i in range(4)
    )
    assert all(modules[PUBLISHED_NAMES[f"mlp.{i}.1.bias"].removesuffix(".bias")].momentum == 0.1 for i in range(3))


def test_other_weights_are_refused() -> None:
    state = published_state()
    with pytest.raises(
        InputError, match=r"published weights of NGCC-PHAT: final_conv.bias is missing, expected \(1,\)"
    ):
        load_published({name: tensor for name, tensor in state.items() if name != "final_conv.bias"})
    with pytest.raises(InputError, match=r"mlp.0.0.weight is \(128, 128, 3\), expected \(128, 128, 11\)"):
        load_published(state | {"mlp.0.0.weight": torch.zeros(128, 128, 3)})
    with pytest.raises(InputError, match=r"reg.2.weight is \(1, 47\), expected no such tensor"):
        load_published(state | {"reg.2.weight": torch.zeros(1, 47)})  # the authors' regression head
    with pytest.raises(InputError, match="expected tensors by name"):
        load_published({"state_dict": state})  # type: ignore[dict-item]


def test_loading_does_not_move_the_random_numbers() -> None:
    before = torch.random.get_rng_state()
    load_published(published_state())
    assert torch.equal(torch.random.get_rng_state(), before)


# Masked bins


def test_a_mask_of_all_true_changes_nothing() -> None:
    model = network()
    assert torch.equal(model(frames_of(), torch.ones(65, dtype=torch.bool)), model(frames_of()))


def test_masked_bins_do_not_enter_the_correlations() -> None:
    model, frames = network(), frames_of()
    bins = torch.zeros(65, dtype=torch.bool)
    bins[10] = True
    wave = model.correlations(frames, bins)  # a single cosine of 10 turns in 128 samples, at most 2 / 128 high
    turned = torch.cos(torch.tensor(2 * torch.pi * 10 / 128))
    torch.testing.assert_close(wave[..., 2:] + wave[..., :-2], 2 * turned * wave[..., 1:-1], rtol=0, atol=1e-6)
    assert 0.01 < wave.abs().max() <= 2 / 128 + 1e-6
    assert (model.correlations(frames, torch.zeros(65, dtype=torch.bool)) == 0).all()


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"taps": 30}, "NGCC option taps is 30; an odd length"),
        ({"taps": 65}, "taps is 65, longer than the frame of 64 samples"),
        ({"frame": 8, "taps": 5}, "frame is 8; expected a whole number >= 11"),
        ({"dft": 32}, "shorter than the frame"),
        ({"max_delay": 64}, "max_delay is 64; a transform of 128 has no such lags"),
        ({"sample_rate": 100}, "sample_rate is 100"),
        ({"channels": True}, "channels is True"),
        ({"kernel": 3}, "NGCC has no option kernel; it knows frame, dft, max_delay, sample_rate, channels, taps"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NGCC.from_options(dataclasses.asdict(SMALL) | change)


def test_options_are_plain_json() -> None:
    assert NGCC.from_options(json.loads(json.dumps(dataclasses.asdict(SMALL)))).options == SMALL


def test_frames_and_masks_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(1, 2, 63\).*\(batch, 2, 64\)"):
        network()(torch.zeros(1, 2, 63))
    with pytest.raises(InputError, match=r"bins are torch\.float32"):
        network()(frames_of(), torch.ones(65, dtype=torch.float32))
