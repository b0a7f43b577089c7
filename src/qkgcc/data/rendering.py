"""A frozen benchmark on disk: cells rendered once, checked against their fingerprints, kept in the user's cache."""

import json
import os
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.data.banks import Bank
from qkgcc.data.benchmark import SNRS, T60S, Benchmark
from qkgcc.data.fingerprints import check
from qkgcc.data.general_benchmark import GeneralBenchmark, chunks
from qkgcc.errors import InputError
from qkgcc.files import write_whole

CACHE_VARIABLE = "QKGCC_CACHE"


def cache_folder() -> Path:
    """$QKGCC_CACHE, or `qkgcc` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "qkgcc"


def benchmark_folder(benchmark: Benchmark | GeneralBenchmark, engine: str, cache: Path | None = None) -> Path:
    return (cache or cache_folder()) / "benchmarks" / f"{benchmark.name}-{benchmark.hash[:12]}-{engine}"


def cell_path(folder: Path, snr: int, t60: float) -> Path:
    return folder / f"snr{snr:02d}-t60_{t60:.1f}.npy"


def fingerprints(benchmark: Benchmark | GeneralBenchmark) -> dict[str, dict[str, str]]:
    """Fingerprint of each cell ("snr/t60") or chunk (its first scene), as the CPU engine rendered it."""
    text = (resources.files("qkgcc.data") / "benchmarks" / f"{benchmark.name}.fingerprints.json").read_text()
    record = json.loads(text)
    if record["manifest"] != benchmark.hash:
        raise InputError(f"the fingerprints of {benchmark.name} belong to another manifest: make both again")
    cells: dict[str, dict[str, str]] = record["cells"]
    return cells


def render(
    benchmark: Benchmark,
    bank: Bank,
    engine: str,
    *,
    cache: Path | None = None,
    progress: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Render the missing cells; how far each is from its fingerprint, by "snr/t60", 0 for bit-equal.

    A cell is written whole or not at all, so an interrupted run goes on where it stopped.
    """
    folder = benchmark_folder(benchmark, engine, cache)
    folder.mkdir(parents=True, exist_ok=True)
    expected = fingerprints(benchmark)
    off: dict[str, float] = {}
    for t60 in T60S:
        missing = [snr for snr in SNRS if not cell_path(folder, snr, t60).exists()]
        if not missing:
            for _ in benchmark.ids:
                _tell(progress)
            continue
        clean = benchmark.clean(bank, t60, engine=engine, progress=progress)
        for snr in missing:
            frames = benchmark.frames(clean, snr, t60)
            off[f"{snr}/{t60}"] = check(frames, expected[f"{snr}/{t60}"], f"{benchmark.name}, SNR {snr}, T60 {t60}")
            write_whole(cell_path(folder, snr, t60), partial(_save, frames))
    return off


def render_general(
    benchmark: GeneralBenchmark,
    banks: list[Bank],
    engine: str,
    *,
    cache: Path | None = None,
    progress: Callable[[], object] | None = None,
) -> dict[str, float]:
    """The same for `general-test`, in chunks of a hundred scenes; `progress` is called once a chunk."""
    folder = benchmark_folder(benchmark, engine, cache)
    folder.mkdir(parents=True, exist_ok=True)
    expected = fingerprints(benchmark)
    off: dict[str, float] = {}
    for first, last in chunks(len(benchmark.manifest["digests"])):
        path = folder / f"scenes-{first:04d}.npy"
        if not path.exists():
            frames = benchmark.frames(banks, first, last, engine=engine)
            off[str(first)] = check(frames, expected[str(first)], f"{benchmark.name}, scenes {first} to {last - 1}")
            write_whole(path, partial(_save, frames))
        _tell(progress)
    return off


def load_general(benchmark: GeneralBenchmark, engine: str, cache: Path | None = None) -> npt.NDArray[np.int16]:
    """All frames of a rendered `general-test`. Shape: (scenes, 5, 2, 2048)."""
    folder = benchmark_folder(benchmark, engine, cache)
    count = len(benchmark.manifest["digests"])
    paths = [folder / f"scenes-{first:04d}.npy" for first, _ in chunks(count)]
    for path in paths:
        if not path.exists():
            raise InputError(
                f"{path} does not exist: render it with `qkgcc data benchmark {benchmark.name} --bank ...`"
            )
    frames = np.concatenate([np.load(path) for path in paths])
    return np.asarray(frames.reshape(count, -1, *frames.shape[1:]))


def load_cell(
    benchmark: Benchmark, engine: str, snr: int, t60: float, cache: Path | None = None
) -> npt.NDArray[np.int16]:
    """Frames of a rendered cell, mapped from the disk. Shape: (utterances * 15, 2, 2048)."""
    path = cell_path(benchmark_folder(benchmark, engine, cache), snr, t60)
    if not path.exists():
        raise InputError(f"{path} does not exist: render it with `qkgcc data benchmark {benchmark.name} --bank FILE`")
    frames: npt.NDArray[np.int16] = np.load(path, mmap_mode="r")
    return frames


def _save(frames: npt.NDArray[np.int16], target: Path) -> None:
    with target.open("wb") as file:
        np.save(file, frames)


def _tell(progress: Callable[[], object] | None) -> None:
    if progress is not None:
        progress()
