"""Networks without torch: folded in NumPy, run by the compiled kernel or by NumPy, say what torch says."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from networks import OPTIONS, VARIANTS, as_trained, steered_card
from qkgcc import samples
from qkgcc.audio import open_audio
from qkgcc.card import Card
from qkgcc.cli import app
from qkgcc.errors import InputError
from qkgcc.evidence import at_unit_level
from qkgcc.inference import files, kernel, plain
from qkgcc.inference.folding import fold
from qkgcc.inference.model import SteeredModel
from qkgcc.inference.published import PublishedModel
from qkgcc.inference.shape import Shape
from qkgcc.methods import PRETRAINED, WEIGHTS
from qkgcc.models import checkpoint
from qkgcc.models.qkgcc import QKGCC, QKGCCOptions
from qkgcc.models.steered import Steered, SteeredOptions, steering_table

MORE = {
    "surroundings, pooled": {"pool": 3, "projection": 5, "blocks": 1, "block_channels": 4},
    "surroundings, windows pooled": {
        "window": 32,
        "dft": 64,
        "pool": 3,
        "blocks": 1,
        "block_channels": 13,
    },
    "surroundings of whole frames": {"blocks": 3, "block_channels": 7},
    "one kernel": {"kernel": 1, "delay_kernel": 1, "logit_kernel": 1},
}
NOT_COMPILED = {
    "coarser surroundings": VARIANTS["surroundings, pooled"],
    "finer surroundings, pooled": {"pool": 2, "blocks": 1, "block_channels": 7, "coarse": 2},
    "a longer kernel": {"kernel": 7},
}
RUNNERS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])


def saved(options: SteeredOptions, folder: Path) -> tuple[Steered, Path]:
    model, path = as_trained(options), folder / "a.safetensors"
    card = steered_card(options=dataclasses.asdict(options), dft=options.dft, delays=options.delays)
    checkpoint.save(model, path, card)
    return model, path


def test_the_kernel_is_compiled_where_these_tests_run() -> None:
    assert kernel.loaded() is not None, "a C compiler is missing, or steered.c changed: pip install -e . again"


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
    options = model.options
    frames = torch.randn(19, 2, options.frame, generator=torch.Generator().manual_seed(1))  # more than one batch
    frames[3, 0] = 0  # a channel without a single phase
    for bins in (None, np.arange(options.bins) <= options.bins // 2, np.zeros(options.bins, dtype=bool)):
        mask = None if bins is None else torch.from_numpy(bins)
        around, aside = options.grid(12), tuple(3.3 + options.step * i for i in range(9))
        for grid in (around, options.grid(0), options.grid(30), aside, around[1:], around):
            with torch.no_grad():
                expected = model(frames, mask, delays=grid).numpy()
            found = light.logits(frames.numpy(), bins, np.array(grid))
            np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
        expected = model.reliability(frames, mask).numpy()
        found = light.reliability(frames.numpy(), bins)
        np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, np.abs(expected).max()))


@RUNNERS
@pytest.mark.parametrize("frame", [40, 200, 256, 610])
def test_frames_of_any_length_are_cut_into_windows(frame: int, compiled: bool, tmp_path: Path) -> None:
    options = replace(OPTIONS, window=64, dft=64, blocks=1, block_channels=5)
    model, path = saved(options, tmp_path)
    light, frames = SteeredModel.load(path, compiled=compiled), torch.randn(3, 2, frame)
    grid = options.grid(9)
    with torch.no_grad():
        expected = model.resized(frame=frame, dft=64)(frames, delays=grid).numpy()
    for _ in range(2):  # the second call finds the first one's memory
        found = light.logits(frames.numpy(), None, np.array(grid))
        np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


@RUNNERS
@pytest.mark.parametrize("name", PRETRAINED)
def test_what_ships_says_what_torch_says(name: str, compiled: bool) -> None:
    path = WEIGHTS / f"{name}.safetensors"
    model, card = checkpoint.load(path)
    frames = torch.randn(5, 2, card.frame, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(frames).numpy()
    found = SteeredModel.load(path, compiled=compiled).logits(frames.numpy(), None, np.asarray(card.delays))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("entry", kernel.entries())
@pytest.mark.parametrize("changes", (VARIANTS | MORE).values(), ids=VARIANTS | MORE)
def test_every_instruction_set_says_the_same(changes: dict[str, Any], entry: str, tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    _, path = saved(options, tmp_path)
    model = SteeredModel.load(path, compiled=True)
    frames = np.random.default_rng(0).standard_normal((3, 2, options.frame)).astype(np.float32)
    half = np.arange(options.bins) <= options.bins // 2
    expected = [model.logits(frames, half, np.array(options.grid(7))), model.reliability(frames, half)]
    model._kernel = kernel.Kernel(model._shape, model._folded, entry)
    found = [model.logits(frames, half, np.array(options.grid(7))), model.reliability(frames, half)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())


@RUNNERS
def test_threads_change_nothing(compiled: bool) -> None:
    path, frames = WEIGHTS / "general-small.safetensors", np.random.default_rng(0).standard_normal((40, 2, 2048))
    one, many = (SteeredModel.load(path, threads=n, compiled=compiled) for n in (1, 3))
    grid = np.arange(-20, 21.0)
    np.testing.assert_array_equal(*(model.logits(frames.astype(np.float32), None, grid) for model in (one, many)))


def test_a_batch_is_its_frames_one_by_one() -> None:
    model = SteeredModel.load(WEIGHTS / "general.safetensors", threads=1)
    frames = np.random.default_rng(0).standard_normal((4, 2, 2048)).astype(np.float32)
    grid = np.arange(-20, 21.0)
    each = np.concatenate([model.logits(frame[None], None, grid) for frame in frames])
    np.testing.assert_array_equal(model.logits(frames, None, grid), each)


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
        expected = model(frames).numpy()
    found = light.logits(frames.numpy(), None, np.array(options.delays))
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_a_changed_bit_is_found(tmp_path: Path) -> None:
    _, path = saved(OPTIONS, tmp_path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="its checksum is another"):
        files.read(path)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is not a safetensors file"), (b"x" * 40, "is not a safetensors file")]
)
def test_other_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=message):
        SteeredModel.load(tmp_path / "a.safetensors")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        SteeredModel.load(tmp_path / "none.safetensors")


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


def resaved(folder: Path, options: dict[str, Any] | None = None, **changed: np.ndarray) -> Path:
    """`general-small` as another tool would write it, without a checksum: with other options, or other tensors."""
    from safetensors.numpy import save_file

    card, arrays = files.read(WEIGHTS / "general-small.safetensors")
    assert all(card.options.get(name) != value for name, value in (options or {}).items()), "that is no other option"
    card = dataclasses.replace(card, options=card.options | (options or {}))
    save_file(arrays | changed, folder / "a.safetensors", metadata={"qkgcc": card.to_json()})
    return folder / "a.safetensors"


@pytest.mark.parametrize(
    "change",
    [
        {"delay_channels": 4000},
        {"magnitude": False},
        {"logit_kernel": 3},
        {"channels": 64},
        {"kernel": 5},
        {"kernel": 4},
        {"kernel": "5"},
        {"pool": 0},
        {"heads": 0},
        {"heads": 3},
        {"radius": 1},
        {"maps": 6},
        {"positions": 33},
        {"width": True},
        {"step": -1.0},
        {"of_tomorrow": True},
    ],
    ids=str,
)
def test_options_that_the_weights_do_not_fit_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError):
        SteeredModel.load(resaved(tmp_path, change))


def test_weights_that_are_cut_or_no_numbers_are_refused(tmp_path: Path) -> None:
    _, arrays = files.read(WEIGHTS / "general-small.safetensors")
    for name, cut in (("head.gate.weight", np.s_[:6]), ("head.delays.4.weight", np.s_[:, :4]), ("position", np.s_[:1])):
        with pytest.raises(InputError, match="do not fit the network of their card"):
            SteeredModel.load(resaved(tmp_path, **{name: np.ascontiguousarray(arrays[name][cut])}))
    for name in ("head.gate.bias", "head.local.1.running_var", "query.weight"):
        broken = arrays[name].copy()
        broken.flat[0] = -1.0 if "var" in name else np.nan
        with pytest.raises(InputError, match="holds what are no numbers"):
            SteeredModel.load(resaved(tmp_path, **{name: broken}))


def test_what_it_cannot_be_asked_is_refused() -> None:
    model, grid = SteeredModel.load(WEIGHTS / "general-small.safetensors"), np.arange(-5, 6.0)
    frames = np.zeros((1, 2, 2048), np.float32)
    for given, message in (
        ((frames[:, :1], None, grid), "frames have the shape"),
        ((frames[0], None, grid), "frames have the shape"),
        ((frames, np.ones(10, dtype=bool), grid), "bins have the shape"),
        ((frames, None, np.array([-12.0, 0, 7])), "1 samples apart"),
        ((frames, None, grid[::-1]), "1 samples apart"),
        ((frames, None, grid[:0]), "expected at least one"),
        ((frames, None, np.array([np.nan])), "expected at least one"),
        ((frames, None, np.array([np.inf])), "expected at least one"),
    ):
        with pytest.raises(InputError, match=message):
            model.logits(*given)
    assert model.logits(frames[:0], None, grid).shape == (0, 11)


def test_models_can_be_sent_to_other_processes() -> None:
    model = SteeredModel.load(WEIGHTS / "general-small.safetensors", threads=2)
    frames = np.random.default_rng(0).standard_normal((40, 2, 2048)).astype(np.float32)
    grid = np.arange(-5, 6.0)
    expected = model.logits(frames, None, grid)
    for same in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(same.logits(frames, None, grid), expected)


def test_a_model_from_another_machine_is_run_by_what_there_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    model = SteeredModel.load(WEIGHTS / "general-small.safetensors", compiled=True)
    sent = pickle.dumps(model)
    assert b"qkgcc_steered" not in sent  # the entry of this processor
    monkeypatch.setattr(kernel, "loaded", lambda: None)
    light = pickle.loads(sent)
    frames, grid = np.random.default_rng(0).standard_normal((2, 2, 2048)).astype(np.float32), np.arange(-5, 6.0)
    assert light.runner.startswith("NumPy, slowly (")
    np.testing.assert_allclose(light.logits(frames, None, grid), model.logits(frames, None, grid), atol=1e-4)


def speech(frame: int, hop: int, scaling: str = "frame") -> np.ndarray:
    """Frames of the bundled recording, at the level that a card's scaling asks for."""
    audio = np.concatenate(list(open_audio(samples.path("talkers-2ch")).blocks()), axis=1)
    frames = np.stack([audio[:, i : i + frame] for i in range(0, audio.shape[1] - frame, hop)])
    level = audio[0].std(dtype=np.float64).astype(np.float32)
    return (at_unit_level(frames) if scaling == "frame" else frames / level).astype(np.float32)


KEPT = [f"{name}-{seed}" for name in ("steered", "qkgcc") for seed in range(3)]


@cache
def unfolded(name: str) -> tuple[Path, Card, np.ndarray, np.ndarray, np.ndarray]:
    """A network's file and card, frames at the scaling that it asks for, and its logits in float32 and in float64."""
    path = WEIGHTS / f"{name}.safetensors"
    path = path if path.exists() else Path(__file__).parents[1] / "checkpoints" / path.name
    network, card = checkpoint.load(path)
    network.folded = False
    # The part of the recording in which transforms in float32 were farthest off.
    frames = speech(card.frame, 1024, card.scaling)[150:210]
    with torch.no_grad():
        single = network(torch.from_numpy(frames)).numpy()
        double = network.double()(torch.from_numpy(frames.astype(np.float64))).numpy()
    return path, card, frames, single, double


@RUNNERS
@pytest.mark.parametrize("name", [*PRETRAINED, *KEPT])
def test_real_frames_have_the_logits_of_the_unfolded_network(name: str, compiled: bool) -> None:
    path, card, frames, single, double = unfolded(name)
    kind = SteeredModel if card.architecture == "steered" else PublishedModel
    light = kind.load(path, threads=1, compiled=compiled)
    found = light.logits(frames, None, np.asarray(card.delays))
    np.testing.assert_allclose(found, double, rtol=0, atol=1e-4)
    if name in PRETRAINED:
        np.testing.assert_allclose(found, single, rtol=0, atol=1e-4)


def test_the_documented_module_has_the_weights_of_the_runtime() -> None:
    text = (Path(__file__).parents[1] / "docs" / "inference.md").read_text(encoding="utf-8")
    (example,) = (part for part in text.split("```python\n") if "checkpoint.load" in part)
    frames = speech(2048, 1024)[:3]
    names: dict[str, Any] = {"torch": torch, "frames": frames}
    exec(example.split("```")[0], names)
    assert isinstance(names["network"], torch.nn.Module)
    assert names["logits"].shape == (3, 193)
    light = SteeredModel.load(WEIGHTS / "general.safetensors", threads=1)
    expected = light.logits(frames, None, np.asarray(names["card"].delays))
    np.testing.assert_allclose(names["logits"].detach().numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("changes", (VARIANTS | MORE | NOT_COMPILED).values(), ids=VARIANTS | MORE | NOT_COMPILED)
def test_the_tables_are_exact(changes: dict[str, Any], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)
    model, path = saved(options, tmp_path)
    model.folded = False
    card, arrays = files.read(path)
    shape = Shape.of_card(card)
    frames = torch.randn(2, 2, options.frame, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    half = np.arange(options.bins) <= options.bins // 2
    count = len(options.delays) + 2 * options.spare
    with torch.no_grad():
        expected = model.double()(frames, torch.from_numpy(half)).numpy()
        windows = model._transformed(frames).unflatten(0, (2, -1)).numpy()
        rows = torch.arange(shape.rows, dtype=torch.float64)
        delays = options.step * (torch.arange(count, dtype=torch.float64) - (count - 1) / 2)
        frequencies = (options.pool * rows + (options.pool - 1) / 2) / options.dft
        table = options.pool * steering_table(frequencies, delays).numpy() / np.sqrt(half.sum() * options.windows)
    spectra = np.fft.rfft(windows, n=options.dft)
    folded = fold(shape, arrays, np.float64)
    evidence = plain.evidence(shape, folded, spectra, half.astype(np.float64))
    found = plain.logits(folded, evidence, table)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * max(1, np.abs(expected).max()))


def test_compiled_code_without_its_source_is_used_and_that_of_another_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel, "SOURCE", tmp_path / "steered.c")
    assert kernel.loaded.__wrapped__() is not None
    (tmp_path / "steered.c").write_text("another")
    assert kernel.loaded.__wrapped__() is None


class TestWhatRunsIt:
    path = WEIGHTS / "general-small.safetensors"

    def test_the_instruction_set_is_named(self) -> None:
        runner = SteeredModel.load(self.path).runner
        assert runner in [f"the compiled kernel ({name})" for name in ("AVX-512", "AVX2", "plain instructions")]
        assert SteeredModel.load(self.path, compiled=False).runner == "NumPy, slowly (it was asked for)"

    @pytest.mark.parametrize(
        ("library", "source", "message"),
        [
            (None, None, "there is no compiled kernel: the package was installed without a C compiler, or on Windows"),
            (b"no library", None, r"the compiled kernel cannot be loaded \(.*steered.*\)"),
            ("own", b"another", "the compiled kernel was made from another steered.c: install the package again"),
        ],
    )
    def test_numpy_says_why(
        self,
        library: bytes | str | None,
        source: bytes | None,
        message: str,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        if library != "own":
            monkeypatch.setattr(kernel, "LIBRARY", tmp_path / "steered.so")
        if isinstance(library, bytes):
            (tmp_path / "steered.so").write_bytes(library)
        if source is not None:
            monkeypatch.setattr(kernel, "SOURCE", tmp_path / "steered.c")
            (tmp_path / "steered.c").write_bytes(source)
        monkeypatch.setattr(kernel, "loaded", kernel.loaded.__wrapped__)
        assert re.fullmatch(rf"NumPy, slowly \({message}\)", SteeredModel.load(self.path).runner)
        with pytest.raises(InputError, match=f"cannot be run by compiled code: {message}"):
            SteeredModel.load(self.path, compiled=True)
        shown = " ".join(CliRunner().invoke(app, ["methods"]).stdout.split())
        assert "Here general, general-medium and general-small are run by NumPy, slowly (the" in shown
