"""What is shipped: the source distribution and the wheel that is built from it hold what they should, and work."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")

from qkgcc.network.registry import PRETRAINED

ROOT = Path(__file__).parents[1]
PIP, ALONE = [sys.executable, "-m", "pip"], ["--quiet", "--no-index", "--no-deps"]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdist")
    build = [sys.executable, "-c", f"import hatchling.build; hatchling.build.build_sdist({str(out)!r})"]
    subprocess.run(build, check=True, cwd=ROOT)
    (path,) = out.glob("qkgcc-*.tar.gz")
    return path


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", *ALONE, "--no-build-isolation", "--wheel-dir", str(out), str(sdist)], check=True)
    (path,) = out.glob("qkgcc-*.whl")
    return path


def test_the_source_distribution_holds_the_sources_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as content:
        names = {name.split("/", 1)[1] for name in content.getnames()}
    made = {"pyproject.toml", "PKG-INFO", ".gitignore"}  # what hatchling always adds
    given = {"build_kernel.py", "README.md", "CHANGELOG.md", "LICENSE"}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    ignored = {name for name in sources if "__pycache__" in name or ".egg-info" in name or "_kernel.so" in name}
    assert names == made | given | (sources - ignored)


def test_the_wheel_holds_the_samples_and_the_type_marker_and_stays_small(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"qkgcc/py.typed", "qkgcc/samples/talkers-2ch.flac", "qkgcc/samples/talkers-4ch.json"} <= names
    assert {f"qkgcc/weights/{name}{suffix}" for name in PRETRAINED for suffix in (".safetensors", ".onnx")} <= names
    assert "qkgcc/weights/qk-gcc.safetensors" in names
    assert {"qkgcc/network/_kernel.so", "qkgcc/network/steered.c"} <= names  # compiled for this machine
    assert not wheel.name.endswith("-any.whl")
    assert not any("__pycache__" in name or name.startswith("tests") for name in names)
    assert wheel.stat().st_size < 4_200_000  # 0.6 of it the paper's network: its positions have a row for each bin


def test_the_installed_wheel_estimates(wheel: Path, tmp_path: Path) -> None:
    """From the wheel's files alone, outside the repository."""
    subprocess.run([*PIP, "install", *ALONE, "--target", str(tmp_path), str(wheel)], check=True)
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import qkgcc; assert {str(tmp_path)!r} in qkgcc.__file__;"
        "from qkgcc.network import kernel; assert kernel.loaded() is not None;"
        "print(qkgcc.DelayEstimator()(qkgcc.samples.path('talkers-2ch'), end=2.0).summary.delay_samples)"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(run.stdout) == pytest.approx(16.3, abs=0.5)
