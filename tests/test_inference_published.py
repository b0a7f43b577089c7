"""The published network without torch: compiled and in NumPy, against torch."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from networks import steered_card
from qkgcc import DelayEstimator
from qkgcc.core.errors import InputError
from qkgcc.nets import checkpoint
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
from qkgcc.network import files, kernel
from qkgcc.network.published import PublishedModel
from qkgcc.network.registry import WEIGHTS
from rounding import assert_rounded

pytestmark = pytest.mark.numeric

OPTIONS = QKGCCOptions(frame=64, dft=128, max_delay=3, width=12, heads=3, radius=2, channels=7, hidden=10)
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "raw offsets": {"split": False},
    "no magnitude": {"magnitude": False},
    "no neighbours": {"radius": 0},
    "few positions": {"positions": 9},
    "short kernels": {"kernel": 3, "first_channels": 13, "first_kernel": 1},
    "no multiple of four": {"dft": 90},
}
RUNNERS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
FRAMES = np.random.default_rng(0).standard_normal((19, 2, 64)).astype(np.float32)
FRAMES[3, 0] = 0  # a channel without a single phase


def saved(options: QKGCCOptions, folder: Path) -> tuple[QKGCC, Path]:
    torch.manual_seed(0)
    model = QKGCC(options).eval()
    with torch.no_grad():  # as after a training
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()  # type: ignore[union-attr, operator]
                module.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]
    sizes = {"frame": options.frame, "dft": options.dft, "delays": options.delays}
    card = steered_card(architecture="qkgcc", options=dataclasses.asdict(options), scaling="utterance", **sizes)
    checkpoint.save(model, folder / "a.safetensors", card)
    return model, folder / "a.safetensors"


@RUNNERS
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_torch(changes: dict[str, Any], compiled: bool, tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    model, path = saved(options, tmp_path)
    exact, light = copy.deepcopy(model).double(), PublishedModel.load(path, compiled=compiled)
    for bins in (None, np.arange(options.bins) <= options.bins // 2, np.zeros(options.bins, dtype=bool)):
        with torch.no_grad():
            expected = exact(torch.from_numpy(FRAMES).double(), None if bins is None else torch.from_numpy(bins))
        assert_rounded(light.logits(FRAMES, bins, np.array(options.delays)), expected, 128)
    some = light.logits(FRAMES, None, np.array([-1.0, 0, 1]))
    np.testing.assert_array_equal(some, light.logits(FRAMES, None, np.array(options.delays))[:, 2:5])


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_numpy_in_float64_is_the_unfolded_network_in_float64(changes: dict[str, Any], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    model, path = saved(options, tmp_path)
    with torch.no_grad():
        expected = model.double()(torch.from_numpy(FRAMES).double()).numpy()
    found = PublishedModel.load(path, dtype=np.float64).logits(FRAMES, None, np.array(options.delays))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("entry", kernel.entries())
def test_every_instruction_set_is_exact(entry: str, tmp_path: Path) -> None:
    _, path = saved(OPTIONS, tmp_path)
    model, delays = PublishedModel.load(path, compiled=True), np.array(OPTIONS.delays)
    model._kernel = kernel.PublishedKernel(model._shape, model._folded, entry)
    expected = PublishedModel.load(path, dtype=np.float64).logits(FRAMES, None, delays)
    assert_rounded(model.logits(FRAMES, None, delays), expected, 128)


@RUNNERS
def test_batches_threads_and_copies_change_nothing(compiled: bool, tmp_path: Path) -> None:
    _, path = saved(OPTIONS, tmp_path)
    model, delays = PublishedModel.load(path, threads=1, compiled=compiled), np.array(OPTIONS.delays)
    expected = model.logits(FRAMES, None, delays)
    others = [PublishedModel.load(path, threads=3, compiled=compiled), pickle.loads(pickle.dumps(model))]
    for same in (*others, copy.deepcopy(model)):
        np.testing.assert_array_equal(same.logits(FRAMES, None, delays), expected)
    each = np.concatenate([model.logits(frame[None], None, delays) for frame in FRAMES])
    np.testing.assert_array_equal(each, expected)
    assert model.logits(FRAMES[:0], None, delays).shape == (0, 7)


def test_longer_kernels_are_left_to_numpy(tmp_path: Path) -> None:
    options = replace(OPTIONS, kernel=7)
    model, path = saved(options, tmp_path)
    with torch.no_grad():
        expected = model.double()(torch.from_numpy(FRAMES).double())
    assert_rounded(PublishedModel.load(path).logits(FRAMES, None, np.array(options.delays)), expected, 128)
    with pytest.raises(InputError, match="the compiled kernel has no room"):
        PublishedModel.load(path, compiled=True)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds a steered network; expected qkgcc"):
        PublishedModel.load(WEIGHTS / "general-small.safetensors")
    _, path = saved(OPTIONS, tmp_path)
    model, delays = PublishedModel.load(path), np.array(OPTIONS.delays)
    for frames in (FRAMES[:, :1], FRAMES[..., :60], FRAMES[0]):
        with pytest.raises(InputError, match="frames have the shape"):
            model.logits(frames, None, delays)
    with pytest.raises(InputError, match="bins have the shape"):
        model.logits(FRAMES, np.ones(3, dtype=bool), delays)
    with pytest.raises(InputError, match="does not weigh frequencies"):
        model.reliability(FRAMES, None)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    _, path = saved(OPTIONS, tmp_path)
    card, arrays = files.read(path)
    cuts = {"head.blocks.1.0.weight": np.s_[:, :3], "head.mlp.0.weight": np.s_[:, :4], "head.mlp.2.bias": np.s_[:5]}
    for name, cut in cuts.items():
        changed = {name: np.ascontiguousarray(arrays[name][cut])}
        save_file(arrays | changed, path, metadata={"qkgcc": card.to_json()})
        with pytest.raises(InputError, match="fit"):
            PublishedModel.load(path)


def test_the_estimator_takes_a_published_checkpoint_without_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, path = saved(replace(OPTIONS, frame=256, dft=512, max_delay=8), tmp_path)
    monkeypatch.setattr("qkgcc.pairs.neural._by_torch", lambda path: pytest.fail("torch was asked"))
    noise = np.random.default_rng(1).standard_normal((2, 4000))
    found = DelayEstimator(path, max_delay=8 / 16000)(noise, 16000)
    assert np.isfinite(found.delay_samples).any()
