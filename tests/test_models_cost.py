"""The two counts of operations: the papers' and an honest one."""

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn

from qkgcc.nets.cost import honest_flops, paper_flops, parameters
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions


def test_default_network_has_322291_parameters() -> None:
    assert parameters(QKGCC()) == 322_291


def test_frozen_parameters_are_not_counted() -> None:
    model = QKGCC()
    model.position.requires_grad_(False)
    assert parameters(model) == 322_291 - 2049 * 128


def test_default_network_costs_208_mflop_as_the_paper_counts() -> None:
    assert paper_flops(QKGCC()) == 208_264_192


def test_default_network_costs_212_mflop_honestly_counted() -> None:
    assert honest_flops(QKGCC()) == 211_936_000
    assert honest_flops(QKGCC(), fft=True) == 211_936_000 + 2 * 5 * 4096 * 12  # 212.4 M


def test_the_correlation_is_counted_honestly_and_left_out_by_the_paper() -> None:
    # Offsets change the correlation and the first convolution and nothing else.
    narrow, wide = (QKGCC(QKGCCOptions(radius=radius)) for radius in (0, 8))
    convolution = 2 * 2049 * 32 * 5 * 4 * 16
    assert paper_flops(wide) - paper_flops(narrow) == convolution
    assert honest_flops(wide) - honest_flops(narrow) == convolution + 2 * 2049 * 4 * 16 * 32


def test_counting_is_per_pair_of_frames_whatever_the_batch() -> None:
    model = QKGCC(QKGCCOptions(frame=32, dft=64))
    assert paper_flops(model, torch.zeros(3, 2, 32)) == paper_flops(model)
    assert honest_flops(model, frames=torch.zeros(3, 2, 32)) == honest_flops(model)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = QKGCC(QKGCCOptions(frame=32, dft=64)).train()
    model.norm.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    honest_flops(model)
    assert model.training
    assert not model.norm.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


class Images(nn.Module):
    """Another architecture: two-dimensional, grouped, with a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, (3, 5), groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.twice = nn.Linear(6, 6)

    def forward(self, images: Tensor) -> Tensor:
        pooled = self.norm(self.conv(images)).mean((-2, -1))
        twice: Tensor = self.twice(self.twice(pooled))
        return twice


def test_other_architectures_are_counted_from_their_own_forward_pass() -> None:
    model, images = Images(), torch.zeros(1, 4, 5, 9)
    maps, macs = 6 * 3 * 5, 6 * 3 * 5 * (4 // 2) * 15 + 2 * 36
    assert honest_flops(model, frames=images) == 2 * macs
    assert paper_flops(model, frames=images) == 2 * (macs + 4 * maps)


def test_hooks_are_removed_when_the_forward_pass_fails() -> None:
    model = QKGCC(QKGCCOptions(frame=32, dft=64))
    with pytest.raises(ValueError, match="expects"):
        paper_flops(model, torch.zeros(1, 2, 31))
    assert not any(module._forward_hooks for module in model.modules())
