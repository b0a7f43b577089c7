"""Networks that run without torch, against torch: compiled and in NumPy."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from networks import OPTIONS, VARIANTS, as_trained, steered_card
from qkgcc import samples
from qkgcc.audio.recording import open_audio
from qkgcc.core.errors import InputError
from qkgcc.nets import checkpoint
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
from qkgcc.nets.steered import Steered, SteeredOptions
from qkgcc.network import files, kernel
from qkgcc.network.card import Card
from qkgcc.network.published import PublishedModel
from qkgcc.network.registry import PRETRAINED, WEIGHTS
from qkgcc.network.shape import Shape
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs.frontend import at_unit_level
from rounding import assert_rounded

pytestmark = pytest.mark.numeric

RUNNERS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])


def speech(frame: int, hop: int, scaling: str = "frame") -> np.ndarray:
    """Frames of the bundled recording, at the level that a card's scaling asks for."""
    audio = np.concatenate(list(open_audio(samples.path("talkers-2ch")).blocks()), axis=1)
    frames = np.stack([audio[:, i : i + frame] for i in range(0, audio.shape[1] - frame, hop)])
    level = audio[0].std(dtype=np.float64).astype(np.float32)
    return (at_unit_level(frames) if scaling == "frame" else frames / level).astype(np.float32)


MORE = {
    "surroundings of short windows": {"window": 32, "dft": 64, "blocks": 1, "block_channels": 13},
    "surroundings of whole frames": {"blocks": 3, "block_channels": 7},
    "one kernel": {"kernel": 1, "delay_kernel": 1, "logit_kernel": 1},
}


NOT_COMPILED = {
    "a longer kernel": {"kernel": 7},
}


def saved(options: SteeredOptions, folder: Path) -> tuple[Steered, Path]:
    model, path = as_trained(options), folder / "a.safetensors"
    card = steered_card(options=dataclasses.asdict(options), dft=options.dft, delays=options.delays)
    checkpoint.save(model, path, card)
    return model, path


@RUNNERS
@pytest.mark.parametrize("changes", (VARIANTS | MORE).values(), ids=VARIANTS | MORE)
def test_logits_and_reliability_are_those_of_torch(changes: dict[str, Any], compiled: bool, tmp_path: Path) -> None:
    model, path = saved(replace(OPTIONS, **changes), tmp_path)
    check_against(model, SteeredModel.load(path, compiled=compiled))


@pytest.mark.parametrize("changes", NOT_COMPILED.values(), ids=NOT_COMPILED)
def test_what_the_kernel_does_not_have_numpy_computes(changes: dict[str, Any], tmp_path: Path) -> None:
    model, path = saved(replace(OPTIONS, **changes), tmp_path)
    check_against(model, SteeredModel.load(path))
    with pytest.raises(InputError, match="the compiled kernel has no room"):
        SteeredModel.load(path, compiled=True)


def check_against(model: Steered, light: SteeredModel) -> None:
    options, exact = model.options, copy.deepcopy(model).double()
    frames = torch.randn(19, 2, options.frame, generator=torch.Generator().manual_seed(1))  # more than one batch
    frames[3, 0] = 0  # a channel without a single phase
    for bins in (None, np.arange(options.bins) <= options.bins // 2, np.zeros(options.bins, dtype=bool)):
        mask = None if bins is None else torch.from_numpy(bins)
        around, aside = options.grid(12), tuple(3.3 + options.step * i for i in range(9))
        for grid in (around, options.grid(0), options.grid(30), aside, around[1:], around):
            with torch.no_grad():
                expected = exact(frames.double(), mask, delays=grid)
            assert_rounded(light.logits(frames.numpy(), bins, np.array(grid)), expected, 2 * options.frame)
        expected = exact.reliability(frames.double(), mask)
        assert_rounded(light.reliability(frames.numpy(), bins), expected, 2 * options.frame)


@RUNNERS
@pytest.mark.parametrize("frame", [40, 200, 256, 610])
def test_frames_of_any_length_are_cut_into_windows(frame: int, compiled: bool, tmp_path: Path) -> None:
    options = replace(OPTIONS, window=64, dft=64, blocks=1, block_channels=5)
    model, path = saved(options, tmp_path)
    light, frames = SteeredModel.load(path, compiled=compiled), torch.randn(3, 2, frame)
    grid = options.grid(9)
    with torch.no_grad():
        expected = model.double().resized(frame=frame, dft=64)(frames.double(), delays=grid)
    for _ in range(2):  # the second call finds the first one's memory
        assert_rounded(light.logits(frames.numpy(), None, np.array(grid)), expected, 2 * frame)


@RUNNERS
@pytest.mark.parametrize("name", PRETRAINED)
def test_what_ships_says_what_torch_says(name: str, compiled: bool) -> None:
    path = WEIGHTS / f"{name}.safetensors"
    model, card = checkpoint.load(path)
    frames = torch.randn(5, 2, card.frame, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.double()(frames.double())
    found = SteeredModel.load(path, compiled=compiled).logits(frames.numpy(), None, np.asarray(card.delays))
    assert_rounded(found, expected, 2 * card.frame)


@pytest.mark.parametrize("entry", kernel.entries())
@pytest.mark.parametrize("changes", (VARIANTS | MORE).values(), ids=VARIANTS | MORE)
def test_every_instruction_set_is_exact(changes: dict[str, Any], entry: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    _, path = saved(options, tmp_path)
    exact, model = SteeredModel.load(path, dtype=np.float64), SteeredModel.load(path, compiled=True)
    frames = np.random.default_rng(0).standard_normal((3, 2, options.frame)).astype(np.float32)
    half = np.arange(options.bins) <= options.bins // 2
    model._kernel, grid = kernel.Kernel(model._shape, model._folded, entry), np.array(options.grid(7))
    assert_rounded(model.logits(frames, half, grid), exact.logits(frames, half, grid), 2 * options.frame)
    assert_rounded(model.reliability(frames, half), exact.reliability(frames, half), 2 * options.frame)


@RUNNERS
@pytest.mark.parametrize("name", ["windows", "surroundings", "plain"])
def test_pairs_of_an_array_are_as_if_each_were_alone(name: str, compiled: bool, tmp_path: Path) -> None:
    options = replace(OPTIONS, **VARIANTS[name])
    _, path = saved(options, tmp_path)
    model = SteeredModel.load(path, threads=2, compiled=compiled)
    frames = np.random.default_rng(0).standard_normal((21, 4, options.frame)).astype(np.float32)
    pairs, grid = [(0, 1), (0, 3), (2, 1), (3, 2)], np.array(options.grid(7))
    found = model.logits_of_pairs(frames, pairs, None, grid)
    for i, pair in enumerate(pairs):
        np.testing.assert_array_equal(found[:, i], model.logits(frames[:, pair], None, grid))
    for wrong in ([], [(0, 4)], [(-1, 0)], [(1, 1)], [(0, 1, 2), (1, 2, 3)], [(0.5, 1)]):
        with pytest.raises(InputError, match="are none of frames"):
            model.logits_of_pairs(frames, wrong, None, grid)


def test_defaults_are_those_of_the_network() -> None:
    trained = SteeredOptions()
    for field in dataclasses.fields(Shape):
        assert field.default == getattr(trained, field.name), field.name


def test_what_the_kernel_has_no_room_for_is_left_to_numpy(tmp_path: Path) -> None:
    options = replace(OPTIONS, window=32, dft=64, window_kernel=15, blocks=1, block_channels=3)
    model, path = saved(options, tmp_path)
    light, frames = SteeredModel.load(path), torch.randn(2, 2, options.frame)
    assert light.runner == "NumPy, slowly (the compiled kernel has no room for a network of this shape)"
    with torch.no_grad():
        expected = model.double()(frames.double())
    assert_rounded(light.logits(frames.numpy(), None, np.array(options.delays)), expected, 2 * options.frame)


def test_other_networks_are_refused(tmp_path: Path) -> None:
    options = QKGCCOptions(frame=64, dft=64, width=8, heads=2, radius=1)
    card = steered_card(
        architecture="qkgcc", options=dataclasses.asdict(options), frame=64, dft=64, delays=options.delays
    )
    checkpoint.save(QKGCC(options), tmp_path / "a.safetensors", card)
    with pytest.raises(InputError, match="holds a qkgcc network; expected steered"):
        SteeredModel.load(tmp_path / "a.safetensors")


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    _model, path = saved(OPTIONS, tmp_path)
    _, arrays = files.read(path)
    card = steered_card(options=dataclasses.asdict(replace(OPTIONS, blocks=1)), dft=OPTIONS.dft, delays=OPTIONS.delays)
    from safetensors.numpy import save_file

    save_file(arrays, path, metadata={"qkgcc": card.to_json()})
    with pytest.raises(InputError, match="the weights do not fit the network of their card"):
        SteeredModel.load(path)


KEPT = [f"{name}-{seed}" for name in ("steered", "qkgcc") for seed in range(3)]


@cache
def unfolded(name: str) -> tuple[Path, Card, np.ndarray, np.ndarray]:
    """A network's file and card, frames at the scaling that it asks for, and its logits in float64."""
    path = WEIGHTS / f"{name}.safetensors"
    path = path if path.exists() else Path(__file__).parents[1] / "checkpoints" / path.name
    network, card = checkpoint.load(path)
    network.folded = False
    # The part of the recording in which transforms in float32 were farthest off.
    frames = speech(card.frame, 1024, card.scaling)[150:210]
    with torch.no_grad():
        exact = network.double()(torch.from_numpy(frames.astype(np.float64))).numpy()
    return path, card, frames, exact


@RUNNERS
@pytest.mark.parametrize("name", [*PRETRAINED, *KEPT])
def test_real_frames_have_the_logits_of_the_unfolded_network(name: str, compiled: bool) -> None:
    path, card, frames, exact = unfolded(name)
    kind = SteeredModel if card.architecture == "steered" else PublishedModel
    light = kind.load(path, threads=1, compiled=compiled)
    found = light.logits(frames, None, np.asarray(card.delays))
    assert_rounded(found, exact, 2 * card.frame)


def test_the_documented_module_has_the_weights_of_the_runtime() -> None:
    text = (Path(__file__).parents[1] / "docs" / "reports" / "inference.md").read_text(encoding="utf-8")
    (example,) = (part for part in text.split("```python\n") if "checkpoint.load" in part)
    frames = speech(2048, 1024)[:3]
    names: dict[str, Any] = {"torch": torch, "frames": frames}
    exec(example.split("```")[0], names)
    assert isinstance(names["network"], torch.nn.Module)
    assert names["logits"].shape == (3, 193)
    exact = SteeredModel.load(WEIGHTS / "general.safetensors", dtype=np.float64)
    expected = exact.logits(frames, None, np.asarray(names["card"].delays))
    assert_rounded(names["logits"], expected, 4096)


@pytest.mark.parametrize("changes", (VARIANTS | MORE | NOT_COMPILED).values(), ids=VARIANTS | MORE | NOT_COMPILED)
def test_numpy_in_float64_is_the_unfolded_network_in_float64(changes: dict[str, Any], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    model, path = saved(options, tmp_path)
    model.folded = False
    frames = torch.randn(2, 2, options.frame, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    half = np.arange(options.bins) <= options.bins // 2
    with torch.no_grad():
        expected = model.double()(frames, torch.from_numpy(half)).numpy()
    exact = SteeredModel.load(path, dtype=np.float64)
    found = exact.logits(frames.numpy(), half, np.array(options.delays))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * max(1, np.abs(expected).max()))
