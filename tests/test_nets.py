"""The networks in torch are public, and one file each."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import qkgcc.nets
from qkgcc.nets import NGCC, PGCC, QKGCC, Steered, Transformer


def test_what_is_public_is_the_networks() -> None:
    public = {getattr(qkgcc.nets, name) for name in qkgcc.nets.__all__}
    assert {NGCC, PGCC, QKGCC, Steered, Transformer, qkgcc.nets.checkpoint} == public


@pytest.mark.parametrize("network", [PGCC, QKGCC, Steered, Transformer])
def test_each_answers_two_frames_with_a_logit_for_each_delay(network: type[nn.Module]) -> None:
    with torch.inference_mode():
        assert network().eval()(torch.randn(1, 2, 2048)).shape == (1, 47)
