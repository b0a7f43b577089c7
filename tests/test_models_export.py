"""An exported network gives the logits of the one it came from, for any delays, any mask and any of its options."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from networks import OPTIONS, VARIANTS, as_trained, steered_card
from qkgcc.errors import InputError
from qkgcc.models.export import export
from qkgcc.models.qkgcc import QKGCC
from qkgcc.neural import TorchModel
from qkgcc.runtime import OnnxModel


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_reliability_are_those_of_the_network(changes: dict[str, object], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    model = as_trained(options)
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
    model = as_trained(options)
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
        export(as_trained(OPTIONS), steered_card(), tmp_path / name)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_file_has_standard_operators_only(tmp_path: Path) -> None:
    export(as_trained(OPTIONS), steered_card(), tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    assert {node.domain for node in proto.graph.node} == {""}
    assert [(item.domain, item.version) for item in proto.opset_import] == [("", 20)]


def test_other_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a QKGCC is no steered QK-GCC"):
        export(QKGCC(), steered_card(), tmp_path / "a.onnx")  # type: ignore[arg-type]
