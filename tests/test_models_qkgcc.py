"""QK-GCC computes what the paper prints, at the size the paper prints, and learns delays of the right sign."""

import dataclasses
import json

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.matching import (
    TILE,
    LocalCorrelation,
    center_symmetric_antisymmetric,
    local_correlation,
    norm_product_and_cosine,
)
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions, tokens

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

SMALL = QKGCCOptions(frame=32, dft=64, max_delay=3, width=8, heads=2, radius=2, channels=6, kernel=3, hidden=10)


def naive_correlation(queries: Tensor, keys: Tensor, radius: int) -> Tensor:
    bins = queries.shape[-2]
    result = queries.new_zeros(*queries.shape[:-2], 2 * radius + 1, bins)
    for offset in range(-radius, radius + 1):
        for k in range(bins):
            if 0 <= k + offset < bins:
                result[..., offset + radius, k] = (queries[..., k, :] * keys[..., k + offset, :]).sum(-1)
    return result


def network(options: QKGCCOptions = SMALL, seed: int = 0) -> QKGCC:
    """A network whose scales, normalizations and embeddings are all away from their trivial initial values."""
    torch.manual_seed(seed)
    model = QKGCC(options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
    return model.eval()


def frames_of(options: QKGCCOptions = SMALL, batch: int = 2) -> Tensor:
    return torch.randn(batch, 2, options.frame, generator=torch.Generator().manual_seed(1))


# The local correlation


@pytest.mark.parametrize("radius", [0, 1, 3, 8, 40])
@pytest.mark.parametrize("bins", [1, 7, TILE - 1, TILE, TILE + 1, 2 * TILE, 3 * TILE + 5])
def test_local_correlation_equals_a_plain_loop(radius: int, bins: int) -> None:
    generator = torch.Generator().manual_seed(bins)
    queries, keys = torch.randn(2, 2, 3, bins, 5, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(local_correlation(queries, keys, radius), naive_correlation(queries, keys, radius))


def test_local_correlation_takes_heads_in_any_memory_layout() -> None:
    queries, keys = torch.randn(2, 3, 41, 4, 5, dtype=torch.float64)
    heads = (queries.transpose(1, 2), keys.transpose(1, 2))
    torch.testing.assert_close(local_correlation(*heads, 2), naive_correlation(*heads, 2))


@pytest.mark.parametrize(("radius", "bins"), [(0, 3), (2, 5), (1, TILE + 2)])
def test_local_correlation_has_the_right_gradients(radius: int, bins: int) -> None:
    queries, keys = (torch.randn(2, bins, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda q, k: local_correlation(q, k, radius), (queries, keys))


def test_keys_outside_the_band_are_zero() -> None:
    correlation = local_correlation(torch.ones(9, 1), torch.ones(9, 1), radius=2)
    assert correlation[0].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1]  # offset -2 has no key below bin 2
    assert correlation[2].tolist() == [1] * 9
    assert correlation[4].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0]


def test_every_head_has_its_own_positive_scale() -> None:
    matching = LocalCorrelation(width=8, heads=2, radius=1)
    torch.testing.assert_close(matching.scale, torch.full((2,), 4**-0.5))  # exp(0) / sqrt(d_h)
    with torch.no_grad():
        matching.log_scale.copy_(torch.tensor([-5.0, 2.0]))
    assert (matching.scale > 0).all()
    queries, keys = torch.randn(2, 3, 6, 8)
    plain = naive_correlation(queries[..., 4:], keys[..., 4:], 1)  # the second head
    torch.testing.assert_close(matching(queries, keys)[:, 1], torch.e**2 / 2 * plain)


def test_center_symmetric_and_antisymmetric_parts_are_as_defined() -> None:
    correlation = torch.randn(3, 7, 11)  # radius 3
    parts = center_symmetric_antisymmetric(correlation)
    torch.testing.assert_close(parts[:, 0], correlation[:, 3])
    for delta in (1, 2, 3):
        above, below = correlation[:, 3 + delta], correlation[:, 3 - delta]
        torch.testing.assert_close(parts[:, delta], (above + below) / 2)
        torch.testing.assert_close(parts[:, 3 + delta], (above - below) / 2)


# Tokens


def test_tokens_are_log_magnitude_cosine_and_sine() -> None:
    frames = torch.randn(2, 2, 32, dtype=torch.float64)
    spectra = torch.fft.rfft(frames, n=64)
    expected = torch.stack([torch.log1p(spectra.abs()), spectra.angle().cos(), spectra.angle().sin()], dim=-1)
    torch.testing.assert_close(tokens(frames, 64), expected)
    torch.testing.assert_close(tokens(frames, 64, magnitude=False), expected[..., 1:])


def test_silence_gives_finite_tokens_and_gradients() -> None:
    frames = torch.zeros(1, 2, 32, requires_grad=True)
    assert tokens(frames, 64)[0, 0, 5].tolist() == pytest.approx([0, 1, 0])
    network()(frames).sum().backward()
    assert frames.grad is not None
    assert frames.grad.isfinite().all()


# The network


def test_default_network_has_322291_parameters() -> None:
    assert sum(p.numel() for p in QKGCC().parameters()) == 322_291


def test_default_network_maps_two_frames_to_47_logits() -> None:
    with torch.no_grad():
        assert QKGCC().eval()(torch.randn(1, 2, 2048)).shape == (1, 47)


def test_network_equals_the_published_equations() -> None:
    model, o = network().double(), SMALL
    frames = frames_of().double()
    z = tokens(frames, o.dft)
    h = nn.functional.layer_norm(
        z @ model.embed.weight.T + model.embed.bias + model.position, (o.width,), model.norm.weight, model.norm.bias
    )
    q, k = h[:, 0] @ model.query.weight.T, h[:, 1] @ model.key.weight.T
    channels = []
    for head in range(o.heads):
        rows = slice(head * 4, head * 4 + 4)
        c = naive_correlation(q[..., rows], k[..., rows], 2) * model.correlation.log_scale[head].exp() / 4**0.5
        channels += [c[:, 2], (c[:, 3] + c[:, 1]) / 2, (c[:, 4] + c[:, 0]) / 2]
        channels += [(c[:, 3] - c[:, 1]) / 2, (c[:, 4] - c[:, 0]) / 2]
    x = torch.stack(channels, 1)
    for conv, norm, _ in model.head.blocks:
        x = nn.functional.gelu(norm(nn.functional.conv1d(x, conv.weight, conv.bias, padding=1)))
    torch.testing.assert_close(model(frames), model.head.mlp(x.mean(-1)))


def test_options_are_plain_json() -> None:
    assert QKGCC.from_options(json.loads(json.dumps(dataclasses.asdict(SMALL)))).options == SMALL


@pytest.mark.parametrize(("radius", "channels"), [(0, 4), (8, 68), (16, 132), (32, 260)])
@pytest.mark.parametrize("split", [True, False])
def test_the_head_sees_every_offset_of_every_head(radius: int, channels: int, split: bool) -> None:
    options = QKGCCOptions(frame=32, dft=64, radius=radius, split=split)
    model = QKGCC(options).eval()
    assert model.head.blocks[0][0].in_channels == channels
    assert model(frames_of(options)).shape == (2, 47)


def test_without_magnitude_the_level_does_not_matter() -> None:
    with_magnitude, without = network(), network(dataclasses.replace(SMALL, magnitude=False))
    assert (with_magnitude.embed.in_features, without.embed.in_features) == (3, 2)
    frames = frames_of()
    torch.testing.assert_close(without(frames), without(100 * frames))
    assert not torch.allclose(with_magnitude(frames), with_magnitude(100 * frames))


def test_without_the_split_the_head_sees_the_raw_offsets() -> None:
    split, raw = network(), network(dataclasses.replace(SMALL, split=False))
    raw.load_state_dict(split.state_dict())
    seen = {}
    for name, model in (("split", split), ("raw", raw)):
        model.head.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
        model(frames_of())
    correlation = split.explain(frames_of()).correlation
    torch.testing.assert_close(seen["raw"], correlation.flatten(1, 2))
    torch.testing.assert_close(seen["split"], center_symmetric_antisymmetric(correlation).flatten(1, 2))


def test_the_delay_grid_follows_max_delay() -> None:
    assert QKGCCOptions().delays == tuple(range(-23, 24))
    assert network()(frames_of()).shape[-1] == len(SMALL.delays) == 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "3 heads do not divide"),
        ({"dft": 16}, "shorter than the frame"),
        ({"kernel": 4}, "odd"),
        ({"radius": -1}, "radius is -1"),
        ({"width": 8.0}, "width is 8.0"),
        ({"split": 1}, "split is 1; expected true or false"),
    ],
)
def test_impossible_options_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        QKGCC.from_options(dataclasses.asdict(SMALL) | change)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(InputError, match="no option raduis; it knows frame, dft"):
        QKGCC.from_options({"raduis": 4})


def test_frames_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(1, 2, 31\).*\(batch, 2, 32\)"):
        network()(torch.zeros(1, 2, 31))


# Masked bins


def test_a_mask_of_all_true_changes_nothing() -> None:
    model, frames = network(), frames_of()
    torch.testing.assert_close(model(frames, torch.ones(33, dtype=torch.bool)), model(frames))


def test_masked_bins_have_zero_queries_keys_and_correlation() -> None:
    bins = torch.arange(33) < 20
    found = network().explain(frames_of(), bins)
    assert (found.norm_product[:, 20:] == 0).all()
    assert (found.cosine[:, 20:] == 0).all()
    assert (found.correlation[..., 20:] == 0).all()
    assert (found.correlation[:, :, 4, 18:20] == 0).all()  # their keys, two bins up, are masked
    assert (found.norm_product[:, :20] > 0).all()


def test_masking_the_top_of_the_band_equals_a_network_that_ends_there() -> None:
    model, frames = network(), frames_of()
    queries, keys = model.queries_and_keys(frames)
    correlation = model.correlation(queries[:, :20], keys[:, :20])
    narrow = model.head(center_symmetric_antisymmetric(correlation).flatten(1, 2))
    masked = model(frames, torch.arange(33) < 20)
    torch.testing.assert_close(masked, narrow)
    assert not torch.allclose(masked, model(frames), atol=1e-3)


def test_a_mask_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"shape \(32,\).*shape \(33,\)"):
        network()(frames_of(), torch.ones(32, dtype=torch.bool))


# Interpretation


def test_the_inner_product_is_the_norm_product_times_the_cosine() -> None:
    model, frames = network(), frames_of()
    found = model.explain(frames)
    queries, keys = model.queries_and_keys(frames)
    torch.testing.assert_close(found.norm_product * found.cosine, (queries * keys).sum(-1))
    assert (found.cosine.abs() <= 1 + 1e-6).all()
    center = found.scale[:, None] * found.head_norm_product * found.head_cosine
    torch.testing.assert_close(center, found.correlation[:, :, 2])
    assert not found.correlation.requires_grad


def test_the_cosine_is_that_of_the_angle() -> None:
    norms, cosine = norm_product_and_cosine(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 3.0]]))
    assert norms.item() == pytest.approx(2 * 18**0.5)
    assert cosine.item() == pytest.approx(0.5**0.5)


# Learning


def delayed_noise(batch: int, options: QKGCCOptions, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """White noise that channel 1 hears `delay` samples after channel 2, and its class."""
    delays = torch.randint(-options.max_delay, options.max_delay + 1, (batch,), generator=generator)
    source = torch.randn(batch, options.frame + 2 * options.max_delay, generator=generator)
    time = torch.arange(options.frame) + options.max_delay
    first = source.gather(1, time - delays[:, None])  # x1[n] = s[n - delay]
    second = source[:, options.max_delay : options.max_delay + options.frame]
    return torch.stack([first, second], 1), delays + options.max_delay


def test_a_small_network_learns_the_delays_of_white_noise_with_their_sign() -> None:
    options = QKGCCOptions(frame=128, dft=256, max_delay=4, width=16, heads=2, radius=4, channels=16, hidden=32)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = QKGCC(options)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(100):
        frames, classes = delayed_noise(64, options, generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(frames), classes).backward()
        optimizer.step()
    frames, classes = delayed_noise(256, options, generator)
    with torch.no_grad():
        delays = model.eval()(frames).argmax(-1) - options.max_delay
    true = classes - options.max_delay
    # Judge the labels by a method without parameters: X1 conj(X2) peaks at the delay when channel 1 is the later one.
    x1, x2 = torch.fft.rfft(frames, n=256).unbind(1)
    lags = torch.fft.irfft(x1 * x2.conj(), n=256).roll(4, dims=-1)[:, :9].argmax(-1) - 4
    assert (lags == true).float().mean() > 0.99
    assert (delays == true).float().mean() > 0.5  # chance is 0.11


def test_positions_may_come_from_a_coarse_table_over_frequency() -> None:
    coarse, fine = QKGCC(dataclasses.replace(SMALL, positions=9)).eval(), QKGCC(SMALL).eval()
    values = coarse.state_dict()
    values["position"] = coarse.positions().detach()
    fine.load_state_dict(values)
    frames = torch.randn(3, 2, SMALL.frame)
    for folded in (False, True):
        coarse.folded = fine.folded = folded
        torch.testing.assert_close(coarse(frames), fine(frames))
    assert sum(p.numel() for p in QKGCC(QKGCCOptions(positions=65)).parameters()) == 322_291 - (2049 - 65) * 128
