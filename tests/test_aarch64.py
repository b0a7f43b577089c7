"""The compiled kernel on a 64-bit ARM processor, such as a Raspberry Pi's: its source, cross-compiled, run by qemu.

`make test-processors` installs the two (Debian's gcc-aarch64-linux-gnu and qemu-user).
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qkgcc.network import kernel
from qkgcc.network.published import PublishedModel
from qkgcc.network.registry import PRETRAINED, WEIGHTS
from qkgcc.network.steered import SteeredModel
from rounding import assert_rounded

ROOT = Path(__file__).parents[1]
COMPILER = shutil.which("aarch64-linux-gnu-gcc")
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(COMPILER is None, reason="there is no aarch64-linux-gnu-gcc: make test-processors"),
    pytest.mark.skipif(EMULATOR is None, reason="there is no qemu-aarch64: make test-processors"),
    pytest.mark.skipif(
        kernel.loaded() is None, reason="there is no compiled kernel, whose layout of weights this takes"
    ),
]


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel with a program around it, compiled as the package is where vectors have four lanes."""
    pytest.importorskip("hatchling")  # which the package is built with
    from build_kernel import FLAGS, FOLDER, TARGETS

    program = tmp_path_factory.mktemp("aarch64") / "driver"
    sources = [f"-I{FOLDER}", '-DSOURCE_DIGEST=""', str(ROOT / "tests" / "aarch64" / "driver.c")]
    command = [str(COMPILER), *FLAGS, *TARGETS[""], "-static", *sources, "-o", str(program), "-lm"]
    subprocess.run(command, check=True)
    return program


class OnArm:
    """Stands in for the kernel of a model."""

    def __init__(self, here: kernel.Kernel | kernel.PublishedKernel, driver: Path) -> None:
        self.here, self.driver = here, driver

    def __call__(
        self,
        spectra: np.ndarray,
        usable: np.ndarray,
        steering: np.ndarray | None = None,
        pairs: np.ndarray | None = None,
        what: str = "means",
    ) -> np.ndarray:
        here, (frames, windows, channels) = self.here, spectra.shape[:3]
        shape = here._shape
        each = {"logits": 0, "reliability": shape.bins, "means": here._numbers["maps"]}
        table, lags = np.zeros((0, 0), np.float32), 0
        if steering is not None:
            table, lags = kernel._upper_half(steering), steering.shape[1] - 2 * shape.spare
            each["logits"] = lags
        pairs = np.zeros((1 if what == "means" else 0, 2), np.int32) if pairs is None else pairs
        size = frames * len(pairs) * each[what]
        head = [
            here._outputs, list(each).index(what), frames, channels, len(pairs), table.shape[1], lags, size,
            kernel._MOST_POINTERS, *(here._numbers | {"windows": windows}).values(),
        ]  # fmt: skip
        nothing = np.zeros(0, np.float32)
        arrays = [here._arrays.get(name, nothing) for name in kernel._ARRAYS]
        arrays += [kernel._parts(spectra), kernel._with_slack(usable), kernel._with_slack(table)]
        given, found = self.driver.with_name("given"), self.driver.with_name("found")
        with given.open("wb") as file:
            file.write(np.array(head, "<i4").tobytes())
            for array in arrays:
                file.write(np.array(len(array), "<i4").tobytes() + array.astype("<f4").tobytes())
            file.write(pairs.astype("<i4").tobytes())
        subprocess.run([str(EMULATOR), str(self.driver), str(given), str(found)], check=True)
        shaped = (frames, each[what]) if what == "means" else (frames, len(pairs), each[what])
        return np.fromfile(found, "<f4").reshape(shaped)


def on_arm(path: Path, driver: Path, kind: Any = SteeredModel) -> Any:
    model = kind.load(path, threads=1, compiled=True)
    plain = type(model._kernel)(model._shape, model._folded, "qkgcc_steered")  # packed as it is for four lanes
    model._kernel = OnArm(plain, driver)
    return model


def noise(channels: int, samples: int) -> np.ndarray:
    frames = np.random.default_rng(0).standard_normal((2, channels, samples)).astype(np.float32)
    frames[1, 0] = 0  # a channel without a single phase
    return frames


@pytest.mark.parametrize("name", [*PRETRAINED, "steered-0"])
def test_logits_on_arm_are_exact(name: str, driver: Path) -> None:
    path = WEIGHTS / f"{name}.safetensors"
    path = path if path.exists() else ROOT / "checkpoints" / path.name
    frames, grid = noise(2, 2048), np.arange(-24, 25.0)
    exact = SteeredModel.load(path, dtype=np.float64).logits(frames, None, grid)
    assert_rounded(on_arm(path, driver).logits(frames, None, grid), exact, 4096)


def test_what_ships_on_arm_answers_between_samples_bands_and_pairs(driver: Path) -> None:
    path = WEIGHTS / "general-small.safetensors"
    arm, exact = on_arm(path, driver), SteeredModel.load(path, dtype=np.float64)
    half, aside, pairs = np.arange(257) < 128, 3.3 + np.arange(11.0), [(0, 2), (2, 1)]
    for frames in (noise(3, 2048), noise(3, 1000)):
        found = arm.logits_of_pairs(frames, pairs, half, aside)
        assert_rounded(found, exact.logits_of_pairs(frames, pairs, half, aside), 4096)
    frames = noise(2, 2048)
    assert_rounded(arm.reliability(frames, half), exact.reliability(frames, half), 4096)


def test_the_published_network_on_arm_is_exact(driver: Path) -> None:
    path = ROOT / "checkpoints" / "qkgcc-0.safetensors"
    arm, exact = on_arm(path, driver, PublishedModel), PublishedModel.load(path, dtype=np.float64)
    frames, delays = noise(2, 2048), np.array(exact.card.delays, dtype=np.float64)
    for bins in (None, np.arange(2049) < 1500):
        assert_rounded(arm.logits(frames, bins, delays), exact.logits(frames, bins, delays), 4096)


@pytest.mark.parametrize(
    "name", ["plain", "no neighbours", "no magnitude", "half steps", "wide", "windows", "surroundings"]
)
def test_networks_of_every_shape_on_arm_are_exact(name: str, driver: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from networks import OPTIONS, VARIANTS, as_trained, steered_card
    from qkgcc.nets import checkpoint

    options = replace(OPTIONS, **VARIANTS[name])  # type: ignore[arg-type]
    card = steered_card(options=dataclasses.asdict(options), dft=options.dft, delays=options.delays)
    path = tmp_path / "a.safetensors"
    checkpoint.save(as_trained(options), path, card)
    frames, grid = noise(2, options.frame), np.array(options.grid(7))
    exact, arm = SteeredModel.load(path, dtype=np.float64), on_arm(path, driver)
    assert_rounded(arm.logits(frames, None, grid), exact.logits(frames, None, grid), 2 * options.frame)
    assert_rounded(arm.reliability(frames, None), exact.reliability(frames, None), 2 * options.frame)
