"""The steered QK-GCC has GCC-PHAT as one setting, and one set of weights for any range of delays and DFT length."""

import copy
import dataclasses
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.checkpoint import load, save
from qkgcc.nets.cost import honest_flops, parameters
from qkgcc.nets.matching import center_symmetric_antisymmetric
from qkgcc.nets.qkgcc import QKGCC, at_bins, tokens
from qkgcc.nets.steered import Separable, Steered, SteeredOptions, Steering, shifted_sum, steering_table
from qkgcc.network.card import Card
from rounding import assert_rounded

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

SMALL = SteeredOptions(
    frame=64,
    dft=128,
    max_delay=3,
    width=12,
    heads=3,
    radius=2,
    positions=65,
    channels=6,
    maps=4,
    kernel=3,
    delay_channels=5,
    delay_kernel=3,
    logit_kernel=3,
)
WINDOWS = replace(SMALL, window=32, positions=9)
AROUND = replace(WINDOWS, blocks=2, block_channels=7)
VARIANTS = pytest.mark.parametrize("options", [SMALL, WINDOWS, AROUND], ids=["plain", "windows", "surroundings"])


def network(options: SteeredOptions = SMALL, dtype: torch.dtype = torch.float64) -> Steered:
    """A network in eval mode, as it is after training: no parameter and no statistic at its initial value."""
    torch.manual_seed(0)
    model = Steered(options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model.to(dtype).eval()


def frames_of(options: SteeredOptions = SMALL, batch: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, 2, options.frame, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(
        dtype
    )


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.detach().abs().max()))


# Size


def test_default_network_has_322677_parameters_and_47_delays() -> None:
    model = Steered()
    assert parameters(model) == 322_677
    assert model.options.delays == tuple(range(-23, 24))
    with torch.no_grad():
        assert model.eval()(torch.randn(1, 2, 2048)).shape == (1, 47)


def test_the_front_end_is_that_of_the_published_network() -> None:
    theirs, ours = (
        {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if not name.startswith("head")}
        for model in (QKGCC(), Steered())
    )
    assert ours == theirs
    assert list(theirs) == [
        "position",
        "embed.weight",
        "embed.bias",
        "norm.weight",
        "norm.bias",
        "query.weight",
        "key.weight",
        "correlation.log_scale",
    ]


@pytest.mark.parametrize(
    ("changes", "most_parameters", "most_macs"),
    [
        ({}, 323_000, 42e6),
        ({"positions": 65, "dft": 512, "window": 512, "radius": 2, "kernel": 3}, 65_000, 22e6),
    ],
)
def test_cost_of_a_folded_network(changes: dict[str, Any], most_parameters: int, most_macs: float) -> None:
    model = Steered(SteeredOptions(**changes))
    model.folded = True
    assert parameters(model) <= most_parameters
    assert 0.8 * most_macs < honest_flops(model) / 2 <= most_macs


def test_steering_and_the_folded_matching_are_counted() -> None:
    o = SMALL
    lags = len(o.delays) + 2 * o.spare
    bins, inputs = o.bins, o.features
    convs = bins * (inputs * o.channels * 3 + o.channels * o.maps * 3 + inputs * 2 * o.maps)
    convs += (lags - 2) * o.maps * o.delay_channels * 3 + (lags - 4) * o.delay_channels**2 * 3
    convs += len(o.delays) * o.delay_channels * 3
    steering = o.maps * lags * 2 * bins
    matching = bins * (2 * 3 * 5 + 3 * 4 * 6 + inputs * 10)
    model = Steered(o)
    model.folded = True
    assert honest_flops(model) == 2 * (convs + steering + matching)
    model.symmetric = True
    assert honest_flops(model) == 4 * (convs + steering + matching)


# Steering


@pytest.mark.parametrize("true", [0, 3, -17, 4.5, -7.25])
def test_the_phase_of_a_delay_is_steered_to_it(true: float) -> None:
    """Channel 1 later by tau: X1 conj(X2) turns by exp(-j 2 pi f tau)."""
    steering = Steering(dft=512, step=0.25)
    frequencies = torch.arange(257, dtype=torch.float64) / 512
    angle = -2 * torch.pi * frequencies * true
    curve = steering(torch.cat([angle.cos(), angle.sin()])[None, None], 0.0, 161)[0, 0]
    assert (int(curve.argmax()) - 80) * 0.25 == true
    assert curve.max() == pytest.approx(257)


def test_the_steering_table_takes_any_delays_and_bins() -> None:
    frequencies, delays = torch.tensor([0.0, 0.125, 0.3]), torch.tensor([-1.7, 0.0, 2.0, 90.0])
    evidence = torch.randn(3, dtype=torch.complex128)
    expected = (evidence[:, None] * torch.exp(2j * torch.pi * frequencies[:, None].double() * delays)).sum(0).real
    table = steering_table(frequencies.double(), delays.double())
    torch.testing.assert_close(torch.cat([evidence.real, evidence.imag]) @ table, expected)


def as_gcc_phat(options: SteeredOptions) -> Steered:
    """Weights with which the network is GCC-PHAT: the rows are [c, s, -c, -s], c + js the phase of the bin.

    Their mean is 0 and their norm fixed, so that layer normalization only scales them. Head 0 has the cosine of the
    phase between the channels, head 1 the sine; they are evidence, real and imaginary, as they are.
    """
    model = Steered(options).double().eval()
    phase = torch.tensor([[0.0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    values = {
        "embed.weight": torch.cat([phase, -phase]),
        "query.weight": torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]) * 0.5**0.5,
        "key.weight": torch.tensor([[1.0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, -1, 0, 0]]) * 0.5**0.5,
        "correlation.log_scale": torch.full((2,), 0.5).mul(torch.tensor(2.0).log()),  # over sqrt(d_h)
        "head.gate.bias": torch.tensor([1.0]).exp().sub(1).log(),  # softplus of it is 1
        "head.evidence.weight": torch.eye(2)[..., None],
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values:
                parameter.copy_(values[name].reshape(parameter.shape))
            elif name.startswith("head.delays") and "weight" in name and parameter.ndim == 3:
                parameter.zero_()
                parameter[:, :, parameter.shape[-1] // 2] = 1  # hands its input on
            elif not name.endswith(("norm.weight", "local.1.weight", *(f"delays.{i}.weight" for i in (0, 2, 5)))):
                parameter.zero_()  # all but the scales of normalizations
    return model


@pytest.mark.parametrize("folded", [False, True])
def test_gcc_phat_is_one_setting_of_the_weights(folded: bool) -> None:
    options = SteeredOptions(
        frame=256, dft=512, max_delay=8, width=4, heads=2, radius=0, positions=9, maps=1, channels=1, delay_channels=1
    )
    model, curves = as_gcc_phat(options), []
    model.folded = folded
    model.head.steering.register_forward_hook(lambda _, inputs, output: curves.append(output))
    source = torch.randn(6, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    true = [-8, -3, 0, 1, 5, 8]
    frames = torch.stack([torch.stack([x[20 - d : 276 - d], x[20:276]]) for x, d in zip(source, true, strict=True)])
    logits = model(frames)
    x1, x2 = torch.fft.rfft(frames, n=512).unbind(1)
    phat = x1 * x2.conj() / (x1 * x2.conj()).abs()
    lags = torch.arange(-16, 17)
    turn = torch.exp(2j * torch.pi * torch.arange(257)[:, None].double() * lags / 512)
    close(curves[0][:, 0], (phat @ turn).real, 1e-4)  # layer normalization's epsilon
    assert (logits.argmax(-1) - 8).tolist() == true


def test_the_head_is_the_published_formula() -> None:
    model, o = network(), SMALL
    frames = frames_of()
    c = model.features(frames)
    head = model.head
    conv, norm, _ = head.local
    mixed = nn.functional.conv1d(c, conv.weight[:, :, 0], conv.bias, padding=1)
    inside = nn.functional.gelu(norm(mixed[:, :, None])[:, :, 0])
    gate = nn.functional.softplus(nn.functional.conv1d(inside, head.gate.weight[:, :, 0], head.gate.bias, padding=1))
    parts = torch.einsum("ec,bck->bek", head.evidence.weight[..., 0, 0], c)
    evidence = torch.complex(parts[:, 0::2], parts[:, 1::2]) * gate
    lags = torch.arange(-3 - o.spare, 4 + o.spare)
    turn = torch.exp(2j * torch.pi * torch.arange(65)[:, None].double() * lags / 128)
    torch.testing.assert_close(model(frames), head.delays((evidence @ turn).real / 65**0.5)[:, 0])


def test_windows_are_matched_each_on_its_own_and_summed() -> None:
    """Without a look at its neighbours (a kernel of one), each window adds what it would as a frame of its own."""
    model = network(replace(WINDOWS, window_kernel=1))
    o, frames = model.options, frames_of(WINDOWS)
    assert o.windows == 3
    alone = model.resized(frame=32, dft=128)
    hann = 0.5 - 0.5 * torch.cos(2 * torch.pi * torch.arange(32, dtype=torch.float64) / 32)
    parts = [tokens(frames[..., i : i + 32] * hann, 128) for i in (0, 16, 32)]
    torch.testing.assert_close(model._tokens(frames, None), torch.stack(parts, dim=1).flatten(0, 1))
    found = model.head.weighted_evidence(model.features(frames), None)
    each = [alone.head.weighted_evidence(alone.features(frames[..., i : i + 32]), None) for i in (0, 16, 32)]
    torch.testing.assert_close(found, sum(each[1:], each[0]))


def test_the_gate_of_a_window_looks_at_the_windows_beside_it() -> None:
    model, frames = network(WINDOWS), frames_of(WINDOWS)
    changed = frames.clone()
    changed[..., 48:] *= 3  # in the last of three windows only
    with torch.no_grad():
        x, y = (torch.unflatten(model.features(f), 0, (-1, 3)).transpose(1, 2) for f in (frames, changed))
        before, after = (model.head.gate(model.head.local(one)) for one in (x, y))
    torch.testing.assert_close(x[:, :, :2], y[:, :, :2])
    assert not torch.allclose(before[:, :, 1], after[:, :, 1])


def test_surroundings_are_the_printed_formula() -> None:
    around = network(AROUND).head.around
    x = torch.randn(2, 6, 3, 65, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    conv, norm, _ = around.down
    rows = nn.functional.pad(x, (0, 3)).unflatten(-1, (17, 4))
    y = nn.functional.gelu(norm(torch.einsum("bcwrs,ocs->bowr", rows, conv.weight[:, :, 0]) + conv.bias[:, None, None]))
    for block in around.blocks:
        padded = nn.functional.pad(y, (2, 2, 1, 1))
        taps = [
            block.along.weight[:, 0, i, j, None, None] * padded[:, :, i : i + 3, j : j + 17]
            for i in range(3)
            for j in range(5)
        ]
        across = torch.einsum("bcwr,oc->bowr", block.norm(sum(taps)), block.across.weight[:, :, 0, 0])
        y = y + nn.functional.gelu(across + block.across.bias[:, None, None])
    up = torch.einsum("bcwr,oc->bowr", y, around.up.weight[:, :, 0, 0]) + around.up.bias[:, None, None]
    torch.testing.assert_close(around(x, None), up.repeat_interleave(4, dim=-1)[..., :65])


def test_surroundings_reach_far() -> None:
    """A change in the lowest bins is seen by gates that the plain convolutions do not reach."""
    x = frames_of(AROUND)
    for options, reaches in ((WINDOWS, False), (AROUND, True)):
        model = network(options)
        features = model.features(x)
        changed = features.clone()
        changed[:, :, 0] += 1
        before, after = (model.head.weighted_evidence(f, None)[..., 15] for f in (features, changed))
        assert torch.allclose(before, after) != reaches


def test_a_frame_that_windows_do_not_fill_is_followed_by_zeros() -> None:
    model = network(replace(WINDOWS, frame=57))
    frames = frames_of(replace(WINDOWS, frame=57))
    whole = model.resized(frame=64, dft=128)
    torch.testing.assert_close(model(frames), whole(nn.functional.pad(frames, (0, 7))))


# Any maximum delay


@VARIANTS
@pytest.mark.parametrize("step", [1.0, 0.5, 0.1])
def test_a_logit_does_not_depend_on_how_far_the_delays_reach(options: SteeredOptions, step: float) -> None:
    model, frames = network(replace(options, step=step)), frames_of(options)
    expected = model(frames)
    margin = round(4 / step)
    assert expected.shape[-1] == 2 * round(3 / step) + 1
    close(model(frames, max_delay=7)[:, margin:-margin], expected, 1e-12)
    close(model(frames, max_delay=1), expected[:, round(2 / step) : -round(2 / step)], 1e-12)
    close(model(frames, delays=model.options.delays[2:5]), expected[:, 2:5], 1e-12)


def test_default_network_agrees_over_ranges_in_float32() -> None:
    model = network(SteeredOptions(), torch.float32)
    frames = frames_of(model.options, batch=2, dtype=torch.float32)
    with torch.no_grad():
        close(model(frames, max_delay=93)[:, 70:-70], model(frames), 1e-5)


def test_delays_may_lie_between_the_samples() -> None:
    coarse, frames = network(), frames_of()
    at_halves = coarse(frames, delays=[-1.5, -0.5, 0.5, 1.5])
    assert at_halves.shape == (3, 4)
    assert not torch.allclose(at_halves, coarse(frames)[:, 2:6])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delays": [0, 1, 3]}, "1.0 samples apart"),
        ({"delays": [0, 0.5]}, "1.0 samples apart"),
        ({"delays": []}, "at least one"),
        ({"max_delay": 2.5}, "multiple of the step"),
        ({"max_delay": -1}, "multiple of the step"),
        ({"delays": [0, 1], "max_delay": 1}, "not both"),
    ],
)
def test_delays_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        network()(frames_of(), **given)


# Frequency in Hz


def test_a_table_with_a_row_for_each_bin_is_used_as_it_is() -> None:
    model = network()
    assert model.positions() is model.position


@pytest.mark.parametrize(("positions", "dft"), [(65, 256), (65, 64), (9, 128), (33, 16), (10, 90), (7, 100), (1, 8)])
def test_rows_of_the_table_are_those_of_their_frequency(positions: int, dft: int) -> None:
    table = torch.randn(positions, 3, dtype=torch.float64)
    found = at_bins(table, dft)
    assert found.shape == (dft // 2 + 1, 3)
    for k in range(dft // 2 + 1):
        place = 2 * k / dft * (positions - 1)  # of the frequency k / dft, in rows
        low = min(int(place), max(positions - 2, 0))
        weight = place - low
        torch.testing.assert_close(found[k], table[low] * (1 - weight) + table[min(low + 1, positions - 1)] * weight)


def test_common_frequencies_of_two_dft_lengths_have_the_same_rows_to_the_bit() -> None:
    model = network(AROUND)
    twice = model.resized(frame=128, dft=256)
    assert torch.equal(twice.positions()[::2], model.positions())
    exact = network(SMALL)
    assert torch.equal(exact.resized(frame=64, dft=256).positions()[::2], exact.position)


@VARIANTS
@pytest.mark.parametrize(("frame", "dft"), [(64, 256), (128, 256), (50, 101), (32, 64)])
def test_other_frames_and_dft_lengths_share_the_weights(options: SteeredOptions, frame: int, dft: int) -> None:
    model = network(options)
    other = model.resized(frame=frame, dft=dft)
    assert not other.training
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine is theirs
    logits = other(frames_of(other.options))
    assert logits.shape == (3, 7)
    assert logits.isfinite().all()


def test_tokens_and_queries_of_common_frequencies_agree_between_dft_lengths() -> None:
    model, frames = network(AROUND), frames_of()
    for mine, theirs in zip(
        model.queries_and_keys(frames), model.resized(frame=64, dft=256).queries_and_keys(frames), strict=True
    ):
        close(theirs[:, ::2], mine, 1e-10)


# Folded, symmetric, masked


@VARIANTS
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_folded_logits_and_gradients_are_those_of_the_plain_network(
    options: SteeredOptions, mask: bool, training: bool
) -> None:
    plain = network(options).train(training)
    folded = copy.deepcopy(plain)
    folded.folded = True
    bins = torch.arange(65) < 51 if mask else None
    logits = [model(frames_of(options), bins) for model in (folded, plain)]
    close(*logits, 1e-10)
    weights = torch.randn_like(logits[0])
    for result in logits:
        (result * weights).sum().backward()
    for (name, mine), theirs in zip(folded.named_parameters(), plain.named_parameters(), strict=True):
        assert mine.grad is not None
        assert theirs[1].grad is not None
        scale = max(float(theirs[1].grad.abs().max()), 1.0)  # biases before batch normalization: zero but for rounding
        assert float((mine.grad - theirs[1].grad).abs().max()) <= 1e-9 * scale, name


@VARIANTS
@pytest.mark.parametrize("delays", [None, [-2, -1, 0, 1, 2, 3, 4], [-0.25, 0.75]])
def test_symmetric_networks_mirror_the_answer_of_swapped_channels(
    options: SteeredOptions, delays: list[float] | None
) -> None:
    model, frames = network(options), frames_of(options)
    mirrored = None if delays is None else [-d for d in reversed(delays)]
    assert not torch.allclose(model(frames.flip(1), delays=mirrored).flip(-1), model(frames, delays=delays))
    single = model(frames, delays=delays)
    model.symmetric = True
    found = model(frames, delays=delays)
    close(model(frames.flip(1), delays=mirrored).flip(-1), found, 1e-14)
    model.symmetric = False
    close(found, (single + model(frames.flip(1), delays=mirrored).flip(-1)) / 2, 1e-14)


@pytest.mark.parametrize("options", [SMALL], ids=["plain"])  # a tapered window smears bins
def test_masked_bins_contribute_nothing(options: SteeredOptions) -> None:
    # A DFT as long as the frame, in which whole periods are one bin each: other content in masked bins alone.
    model = network(options).resized(frame=128, dft=128)
    frames = frames_of(model.options)
    bins = (torch.arange(65) > 4) & (torch.arange(65) < 42)
    time = torch.arange(128, dtype=torch.float64)
    other = frames + sum(3 * torch.cos(2 * torch.pi * k * time / 128 + k) for k in (2, 4, 42, 50, 63))
    close(model(other, bins), model(frames, bins), 1e-10)
    assert not torch.allclose(model(other), model(frames))
    torch.testing.assert_close(model(frames, torch.ones(65, dtype=torch.bool)), model(frames))


@VARIANTS
def test_masking_the_top_of_the_band_equals_a_network_that_ends_there(options: SteeredOptions) -> None:
    model, frames = network(options), frames_of(options)
    masked = model(frames, torch.arange(65) < 42)
    queries, keys = model.queries_and_keys(frames)
    correlation = model.correlation(queries[:, :42], keys[:, :42])
    narrow = copy.deepcopy(model.head)
    steer = narrow.steering.forward

    def of_few_rows(evidence: Tensor, center: float, count: int) -> Tensor:
        padded = nn.functional.pad(torch.unflatten(evidence, -1, (2, -1)), (0, 65 - evidence.shape[-1] // 2))
        return steer(padded.flatten(-2), center, count)

    narrow.steering.forward = of_few_rows  # type: ignore[method-assign]
    features = center_symmetric_antisymmetric(correlation).flatten(1, 2)
    close(masked, narrow(features, None, 0.0, 7), 1e-12)


def test_no_usable_bin_gives_finite_logits() -> None:
    assert network()(frames_of(), torch.zeros(65, dtype=torch.bool)).isfinite().all()


# Options and files


def test_options_are_plain_json() -> None:
    o = replace(SMALL, step=0.5)
    assert Steered.from_options(json.loads(json.dumps(dataclasses.asdict(o)))).options == o


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 0}, "step is 0; expected a positive number"),
        ({"step": True}, "step is True"),
        ({"step": 0.7}, "maximum delay is 3; expected a multiple of the step"),
        ({"delay_kernel": 4}, "delay_kernel is 4; an odd"),
        ({"positions": 0}, "positions is 0"),
        ({"stride": 4}, "no option stride"),
        ({"pool": 4}, "option pool is 4; this version runs networks with 1 only"),
        ({"projection": 5}, "option projection is 5; this version runs networks with 0 only"),
        ({"coarse": 3}, "option coarse is 3; this version runs networks with 4 only"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Steered.from_options(dataclasses.asdict(SMALL) | change)


@pytest.mark.parametrize("step", [1.0, 0.5])
def test_a_checkpoint_gives_back_the_same_network(tmp_path: Path, step: float) -> None:
    torch.set_default_dtype(torch.float32)  # what a checkpoint holds
    o = replace(AROUND, step=step)
    model = network(o, torch.float32)
    card = Card(
        name="small",
        architecture="steered",
        options=dataclasses.asdict(o),
        sample_rate=16000,
        frame=o.frame,
        dft=o.dft,
        delays=o.delays,
        scaling="frame",
    )
    save(model, tmp_path / "small.safetensors", card)
    again, same = load(tmp_path / "small.safetensors")
    assert same == card
    assert isinstance(again, Steered)
    frames = frames_of(o, dtype=torch.float32)
    assert torch.equal(again(frames), model(frames))
    assert not any("steering" in name for name in model.state_dict())


def test_options_of_before_are_read_at_the_value_that_is_left() -> None:
    before = {"pool": 1, "projection": 0, "coarse": 4}
    assert Steered.from_options(dataclasses.asdict(SMALL) | before).options == SMALL


def test_explain_shows_the_matching() -> None:
    found = network().explain(frames_of())
    assert found.norm_product.shape == (3, 65)
    assert found.correlation.shape == (3, 3, 5, 65)


# Training


@VARIANTS
@pytest.mark.parametrize("folded", [False, True])
def test_every_parameter_learns(options: SteeredOptions, folded: bool) -> None:
    torch.manual_seed(0)
    model = Steered(options).double()
    model.folded = folded
    nn.functional.cross_entropy(model(frames_of(options, 8)), torch.arange(8) % 7).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Constants along the delays, or along frequency, which the next batch normalization takes away.
        before_norm = name in (
            "head.local.0.bias",
            "head.around.down.0.bias",
            *(f"head.delays.{i}.bias" for i in (0, 1, 4)),
        )
        common = name == "head.delays.7.bias"  # a softmax does not see what all logits have in common
        assert (parameter.grad.abs().max() > 1e-9) != (before_norm or common), name


@VARIANTS
def test_the_network_is_one_graph_with_the_same_gradients(options: SteeredOptions) -> None:
    model = network(options).train()
    model.folded = True
    gradients = []
    for function in (torch.compile(model, fullgraph=True, backend="aot_eager"), model):
        model.zero_grad()
        nn.functional.cross_entropy(function(frames_of(options, 4)), torch.arange(4)).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


# Inductor warns that it leaves the spectrum, which is complex, to torch, and that torch.jit, which it uses, is old.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(
    os.environ.get("ATEN_CPU_CAPABILITY") == "avx2",
    reason="torch's compiler makes NaN of this network in AVX2; a training notices, and asks for compile = false",
)
def test_the_compiled_network_has_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's own folder of caches is shared: a header that another checkout compiled there does not compile here.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model = network(AROUND)
    model.folded = True
    with torch.no_grad():
        exact = model(frames_of(AROUND, 4))
        found = torch.compile(model.float(), fullgraph=True)(frames_of(AROUND, 4, torch.float32))
    assert_rounded(found, exact, 2 * AROUND.frame)


@VARIANTS
@pytest.mark.parametrize("folded", [False, True])
def test_half_precision_keeps_the_steering_and_the_logits_whole(options: SteeredOptions, folded: bool) -> None:
    model = network(options, torch.float32)
    model.folded = folded
    steered = []
    model.head.steering.register_forward_hook(lambda _, inputs, output: steered.append((inputs[0].dtype, output.dtype)))
    frames = frames_of(options, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(frames)
    assert logits.dtype == torch.float32
    assert steered == [(torch.float32, torch.float32)]
    logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    close(logits, model(frames), 0.1)


def test_a_table_made_for_inference_serves_a_training() -> None:
    model = network(replace(SMALL, dft=126), torch.float32)
    with torch.inference_mode():
        model(frames_of(dtype=torch.float32))
    model(frames_of(dtype=torch.float32)).sum().backward()


def test_a_small_network_learns_delays_with_their_sign_and_finds_those_it_never_saw() -> None:
    o = SteeredOptions(
        frame=128, dft=256, max_delay=4, width=16, heads=2, radius=2, positions=17, channels=8, maps=4, delay_channels=8
    )
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)

    def pairs(batch: int, furthest: int) -> tuple[Tensor, Tensor]:
        delays = torch.randint(-furthest, furthest + 1, (batch,), generator=generator)
        source = torch.randn(batch, o.frame + 2 * furthest, generator=generator)
        first = source.gather(1, torch.arange(o.frame) + furthest - delays[:, None])  # x1[n] = s[n - delay]
        return torch.stack([first, source[:, furthest : furthest + o.frame]], 1), delays

    model = Steered(o)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(100):
        frames, delays = pairs(64, 4)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(frames), delays + 4).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for furthest in (4, 8):
            frames, delays = pairs(256, furthest)
            found = model(frames, max_delay=furthest).argmax(-1) - furthest
            assert (found == delays).float().mean() > 0.8


def test_what_a_compiler_gets_is_the_convolution_channel_by_channel() -> None:
    torch.manual_seed(0)
    block = Separable(6, (3, 5)).double()
    x = torch.randn(2, 6, 7, 11, dtype=torch.float64, requires_grad=True)
    wanted, found = block.along(x), shifted_sum(x, block.along.weight)
    torch.testing.assert_close(found, wanted)
    inputs = (x, block.along.weight)
    weights = torch.randn_like(wanted)
    expected = torch.autograd.grad((wanted * weights).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), inputs), expected)
