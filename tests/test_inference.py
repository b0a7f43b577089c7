"""Networks without torch: folded in NumPy, run by the compiled kernel or by NumPy.

What `test_inference_torch.py` finds to be exact in float64 is the reference here.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.network import files, kernel
from qkgcc.network.registry import PRETRAINED, WEIGHTS
from qkgcc.network.steered import SteeredModel
from rounding import assert_rounded
from tiny import TINY

pytestmark = pytest.mark.numeric

RUNNERS = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])


def test_the_kernel_is_compiled_where_these_tests_run() -> None:
    assert kernel.loaded() is not None, "a C compiler is missing, or steered.c changed: pip install -e . again"


@pytest.mark.parametrize("entry", [*kernel.entries(), None])
@pytest.mark.parametrize("name", ["tiny", *PRETRAINED])
def test_logits_and_reliability_are_exact(name: str, entry: str | None) -> None:
    """None: NumPy."""
    path = TINY if name == "tiny" else WEIGHTS / f"{name}.safetensors"
    exact, light = SteeredModel.load(path, dtype=np.float64), SteeredModel.load(path, compiled=entry is not None)
    if entry:
        light._kernel = kernel.Kernel(light._shape, light._folded, entry)
    frame = light.card.frame
    frames = np.random.default_rng(0).standard_normal((3, 2, frame)).astype(np.float32)
    frames[1, 0] = 0  # a channel without a single phase
    half = np.arange(light._shape.bins) <= light._shape.bins // 2
    for bins, grid in ((None, np.arange(-12, 13.0)), (half, 3.3 + np.arange(9.0))):
        assert_rounded(light.logits(frames, bins, grid), exact.logits(frames, bins, grid), 2 * frame)
    assert_rounded(light.reliability(frames, half), exact.reliability(frames, half), 2 * frame)


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


def test_a_changed_bit_is_found(tmp_path: Path) -> None:
    path, content = tmp_path / "a.safetensors", bytearray(TINY.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="checksum mismatch"):
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
        {"pool": 2},
        {"projection": 5},
        {"coarse": True},
        {"coarse": 3},
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
        with pytest.raises(InputError, match="holds NaN, infinite or impossibly large numbers"):
            SteeredModel.load(resaved(tmp_path, **{name: broken}))


def test_what_it_cannot_be_asked_is_refused() -> None:
    model, grid = SteeredModel.load(WEIGHTS / "general-small.safetensors"), np.arange(-5, 6.0)
    frames = np.zeros((1, 2, 2048), np.float32)
    for given, message in (
        ((frames[:, :1], None, grid), "frames have the shape"),
        ((frames[0], None, grid), "frames have the shape"),
        ((frames, np.ones(10, dtype=bool), grid), "bins have the shape"),
        ((frames, None, np.array([-12.0, 0, 7])), r"in steps of 1 \(samples\)"),
        ((frames, None, grid[::-1]), r"in steps of 1 \(samples\)"),
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
    exact = SteeredModel.load(WEIGHTS / "general-small.safetensors", dtype=np.float64)
    assert_rounded(light.logits(frames, None, grid), exact.logits(frames, None, grid), 4096)


def test_compiled_code_without_its_source_is_used_and_that_of_another_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel, "SOURCE", tmp_path / "steered.c")
    assert kernel.loaded.__wrapped__() is not None
    (tmp_path / "steered.c").write_text("another")
    assert kernel.loaded.__wrapped__() is None


@pytest.mark.skipif(kernel.FORCED in os.environ, reason="what this processor can run is hidden by what is forced")
class TestForcedInstructions:
    """By a process of its own: which code runs is found out once."""

    def run(self, forced: str) -> subprocess.CompletedProcess[str]:
        code = "from qkgcc.network import kernel; print(kernel.loaded()[1], *kernel.entries())"
        environment = os.environ | {kernel.FORCED: forced}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)

    @pytest.mark.parametrize("forced", kernel.FORCIBLE)
    def test_those_that_are_asked_for_run_or_are_refused(self, forced: str) -> None:
        entry, done = kernel.FORCIBLE[forced], self.run(forced)
        if entry in kernel.entries():
            assert done.stdout.split() == [entry, *kernel.ENTRIES[kernel.ENTRIES.index(entry) :]]
        else:
            assert f"QKGCC_INSTRUCTIONS is {forced!r}; this processor can run " in done.stderr

    def test_others_are_refused(self) -> None:
        assert "QKGCC_INSTRUCTIONS is 'mmx'; this processor can run " in self.run("mmx").stderr


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
        assert "Here general, general-medium, general-small and qk-gcc are run by NumPy, slowly (the" in shown
