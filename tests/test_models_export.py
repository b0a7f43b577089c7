"""An exported network gives the logits of the one it came from, for any delays, any mask and any of its options."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from networks import OPTIONS, steered_card
from qkgcc.errors import InputError
from qkgcc.models.export import export
from qkgcc.models.qkgcc import QKGCC
from qkgcc.models.steered import Steered, SteeredOptions
from qkgcc.neural import TorchModel
from qkgcc.runtime import OnnxModel

VARIANTS = {
    "plain": {},
    "pooled": {"pool": 3, "projection": 5},
    "raw offsets": {"split": False, "radius": 3},
    "no neighbours": {"radius": 0},
    "no magnitude": {"magnitude": False},
    "half steps": {"step": 0.5},
    "wide": {"radius": 40, "dft": 600},
    "windows": {"window": 64, "dft": 64},
    "surroundings": {"window": 64, "dft": 64, "blocks": 2, "block_channels": 6, "coarse": 4},
    "surroundings, pooled": {"pool": 3, "projection": 5, "blocks": 1, "block_channels": 4, "coarse": 3},
    "windows, pooled": {"window": 32, "dft": 64, "pool": 3, "projection": 5},
}


def network(options: SteeredOptions) -> Steered:
    """As after a training: no parameter and no statistic at its initial value."""
    torch.manual_seed(0)
    model = Steered(options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.running_mean.normal_()  # type: ignore[union-attr, operator]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    return model


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_reliability_are_those_of_the_network(changes: dict[str, object], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    model = network(options)
    card = steered_card(options=vars(options), dft=options.dft, delays=options.delays)
    export(model, card, tmp_path / "a.onnx")
    exported = OnnxModel(tmp_path / "a.onnx", threads=1)
    assert exported.card == card
    frames = torch.randn(19, 2, options.frame)  # more than one batch
    frames[3, 0] = 0  # a channel without a single phase
    half = np.arange(options.bins) <= options.bins // 2
    for bins in (None, half):
        mask = None if bins is None else torch.from_numpy(bins)
        for grid in (options.grid(12), options.grid(30), options.grid(1)):
            with torch.no_grad():
                expected = model(frames, mask, delays=grid).numpy()
            found = exported.logits(frames.numpy(), bins, np.array(grid))
            np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
        expected = model.reliability(frames, mask).numpy()
        found = exported.reliability(frames.numpy(), bins)
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("frame", [40, 200, 256, 610])
def test_frames_of_any_length_are_cut_into_windows(frame: int, tmp_path: Path) -> None:
    options = replace(OPTIONS, window=64, dft=64)
    model = network(options)
    card = steered_card(options=vars(options), dft=options.dft, delays=options.delays)
    export(model, card, tmp_path / "a.onnx")
    frames = torch.randn(3, 2, frame)
    expected = TorchModel(model, card)
    for found in (OnnxModel(tmp_path / "a.onnx", threads=1), expected):
        logits = found.logits(frames.numpy(), None, np.array(options.delays))
        same = expected.logits(frames.numpy(), None, np.array(options.delays))
        np.testing.assert_allclose(logits, same, atol=3e-6 * np.abs(same).max())
        assert logits.shape == (3, 25)


def test_the_same_network_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        export(network(OPTIONS), steered_card(), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_file_has_standard_operators_only(tmp_path: Path) -> None:
    export(network(OPTIONS), steered_card(), tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    assert {node.domain for node in proto.graph.node} == {""}
    assert [(item.domain, item.version) for item in proto.opset_import] == [("", 20)]


def test_other_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a QKGCC is no steered QK-GCC"):
        export(QKGCC(), steered_card(), tmp_path / "a.onnx")  # type: ignore[arg-type]
