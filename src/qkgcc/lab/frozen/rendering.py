"""A frozen benchmark on disk: cells rendered once, checked against their fingerprints, kept in the user's cache.

What lies in the cache is never trusted because it is there. The frames of a cell have the SHA-256 of the fingerprint
or, where an engine is not bit-equal, that of a small file beside the cell, written when it was rendered and checked.
"""

import json
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.files import make_folder, write_whole
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen import general_benchmark
from qkgcc.lab.frozen.array_benchmark import ArrayBenchmark
from qkgcc.lab.frozen.benchmark import FRAMES, SNRS, T60S, Benchmark, check_sources
from qkgcc.lab.frozen.fingerprints import check, sha256
from qkgcc.lab.frozen.general_benchmark import GeneralBenchmark, check_signals, chunks
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.engines import check_engine

CACHE_VARIABLE = "QKGCC_CACHE"

AnyBenchmark = Benchmark | GeneralBenchmark | ArrayBenchmark

_found_whole: set[tuple[Path, int, int]] = set()  # path, time and size of what this process has checked already


def cache_folder() -> Path:
    """$QKGCC_CACHE, or `qkgcc` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "qkgcc"


def benchmark_folder(benchmark: AnyBenchmark, engine: str, cache: Path | None = None) -> Path:
    return (cache or cache_folder()) / "benchmarks" / f"{benchmark.name}-{benchmark.hash[:12]}-{engine}"


def cell_path(folder: Path, snr: int, t60: float) -> Path:
    return folder / f"snr{snr:02d}-t60_{t60:.1f}.npy"


def fingerprints(benchmark: AnyBenchmark) -> dict[str, dict[str, str]]:
    """Fingerprint of each cell ("snr/t60"), chunk (its first scene) or scene, as the CPU engine rendered it."""
    text = (resources.files("qkgcc.lab.frozen") / "benchmarks" / f"{benchmark.name}.fingerprints.json").read_text()
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
    """Render the missing and the damaged cells; how far each is from its fingerprint, by "snr/t60", 0 for bit-equal.

    A cell is written whole or not at all, so an interrupted run goes on where it stopped.
    """
    check_engine_of(benchmark, engine)
    check_sources(benchmark, bank, range(len(benchmark.ids)))
    folder = benchmark_folder(benchmark, engine, cache)
    expected = fingerprints(benchmark)
    off: dict[str, float] = {}
    for t60 in T60S:
        paths = {snr: cell_path(folder, snr, t60) for snr in SNRS}
        missing = [snr for snr in SNRS if not is_whole(paths[snr], expected[f"{snr}/{t60}"], _shape(benchmark))]
        if not missing:
            for _ in benchmark.ids:
                _tell(progress)
            continue
        clean = benchmark.clean(bank, t60, engine=engine, progress=progress)
        for snr in missing:
            cell = f"{snr}/{t60}"
            frames = benchmark.frames(clean, snr, t60)
            off[cell] = check(frames, expected[cell], f"{benchmark.name}, SNR {snr}, T60 {t60}")
            save(paths[snr], frames)
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
    check_engine_of(benchmark, engine)
    check_signals(benchmark, banks)
    folder = benchmark_folder(benchmark, engine, cache)
    expected = fingerprints(benchmark)
    off: dict[str, float] = {}
    for first, last in chunks(len(benchmark.manifest["digests"])):
        path = _chunk_path(folder, first)
        if not is_whole(path, expected[str(first)], _chunk_shape(first, last)):
            frames = benchmark.frames(banks, first, last, engine=engine)
            off[str(first)] = check(frames, expected[str(first)], f"{benchmark.name}, scenes {first} to {last - 1}")
            save(path, frames)
        _tell(progress)
    return off


def load_general(benchmark: GeneralBenchmark, engine: str, cache: Path | None = None) -> npt.NDArray[np.int16]:
    """All frames of a rendered `general-test`. Shape: (scenes, 5, 2, 2048)."""
    folder = benchmark_folder(benchmark, engine, cache)
    expected, count = fingerprints(benchmark), len(benchmark.manifest["digests"])
    parts = [
        loaded(benchmark, _chunk_path(folder, first), expected[str(first)], _chunk_shape(first, last))
        for first, last in chunks(count)
    ]
    frames = np.concatenate(parts)
    return np.asarray(frames.reshape(count, -1, *frames.shape[1:]))


def load_cell(
    benchmark: Benchmark, engine: str, snr: int, t60: float, cache: Path | None = None
) -> npt.NDArray[np.int16]:
    """Frames of a rendered cell, mapped from the disk. Shape: (utterances * 15, 2, 2048)."""
    path = cell_path(benchmark_folder(benchmark, engine, cache), snr, t60)
    return loaded(benchmark, path, fingerprints(benchmark)[f"{snr}/{t60}"], _shape(benchmark))


def check_engine_of(benchmark: AnyBenchmark, engine: str) -> None:
    """Before anything is made: pyroomacoustics' filters differ above 7 kHz, by more than a benchmark allows."""
    if engine == "reference":
        raise InputError(
            f"{benchmark.name} is rendered by the cpu engine (pip install 'qkgcc[train]' brings it) or the gpu engine; "
            "the reference engine differs from them by more than the benchmark allows"
        )
    check_engine(engine)


def loaded(
    benchmark: AnyBenchmark, path: Path, expected: dict[str, str], shape: tuple[int, ...]
) -> npt.NDArray[np.int16]:
    again = f"`qkgcc data benchmark {benchmark.name} --bank ...`"
    if not path.exists():
        raise InputError(f"{path} does not exist: render it with {again}")
    if not is_whole(path, expected, shape):
        raise InputError(f"{path} is damaged, or not what was rendered: render it again with {again}")
    frames: npt.NDArray[np.int16] = np.load(path, mmap_mode="r")
    return frames


def is_whole(path: Path, expected: dict[str, str], shape: tuple[int, ...]) -> bool:
    """Whether a file holds the frames that were rendered into it."""
    if not path.is_file():
        return False
    state = path.stat()
    name = (path.resolve(), state.st_mtime_ns, state.st_size)
    if name in _found_whole:
        return True
    try:
        frames = np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):
        return False
    if frames.shape != shape or frames.dtype != np.int16:
        return False
    beside = _hash_path(path)
    known = {expected["sha256"], beside.read_text().strip() if beside.is_file() else ""}
    if sha256(frames) not in known:
        return False
    _found_whole.add(name)
    return True


def _shape(benchmark: Benchmark) -> tuple[int, ...]:
    return len(benchmark.ids) * FRAMES, 2, paper.FRAME


def _chunk_shape(first: int, last: int) -> tuple[int, ...]:
    return (last - first) * len(general_benchmark.FRAMES), 2, general_benchmark.FRAME


def _chunk_path(folder: Path, first: int) -> Path:
    return folder / f"scenes-{first:04d}.npy"


def _hash_path(path: Path) -> Path:
    return path.with_suffix(".sha256")


def save(path: Path, frames: npt.NDArray[np.int16]) -> None:
    """Write frames, and their hash for when they are not those of the fingerprint to the bit."""

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.save(file, frames)

    make_folder(path.parent)
    write_whole(_hash_path(path), lambda target: target.write_text(sha256(frames) + "\n"))
    write_whole(path, write)


def _tell(progress: Callable[[], object] | None) -> None:
    if progress is not None:
        progress()
