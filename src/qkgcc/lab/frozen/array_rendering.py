"""`array-test` on disk: a file for each scene, rendered once, checked against its fingerprint, kept in the cache.

As with the other sets (`rendering`), a scene is written whole or not at all, so an interrupted run goes on where it
stopped, and what lies in the cache is not trusted because it is there.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen import rendering
from qkgcc.lab.frozen.array_benchmark import SCALE, ArrayBenchmark, check_bank
from qkgcc.lab.frozen.fingerprints import check
from qkgcc.lab.scenes.array_scenes import SAMPLE_RATE, SECONDS


def render(
    benchmark: ArrayBenchmark,
    bank: Bank | None,
    scenes: Iterable[int],
    engine: str = "cpu",
    *,
    cache: Path | None = None,
    jobs: int | None = None,
    progress: Callable[[], object] | None = None,
) -> dict[int, float]:
    """Render the missing and the damaged of some scenes; how far each is from its fingerprint, 0 for bit-equal.

    Args:
        bank: of test-clean; None where all of them are there.
    """
    rendering.check_engine_of(benchmark, engine)
    if bank is not None:
        check_bank(benchmark, bank)
    off: dict[int, float] = {}
    for index in scenes:
        path, printed, shape = whereabouts(benchmark, index, engine, cache)
        if not rendering.is_whole(path, printed, shape):
            if bank is None:
                raise InputError(f"{path} does not exist: give the bank of test-clean to render it")
            audio = benchmark.audio(index, bank, engine=engine, jobs=jobs)
            if printed["sha256"]:
                off[index] = check(audio, printed, f"{benchmark.name}, scene {index}")
            rendering.save(path, audio)
        if progress is not None:
            progress()
    return off


def load(
    benchmark: ArrayBenchmark, index: int, engine: str = "cpu", cache: Path | None = None
) -> npt.NDArray[np.float64]:
    """A rendered scene, full scale is 1. Shape: (M, 160000)"""
    audio = rendering.loaded(benchmark, *whereabouts(benchmark, index, engine, cache))
    return np.asarray(audio, dtype=np.float64) / SCALE


def whereabouts(
    benchmark: ArrayBenchmark, index: int, engine: str, cache: Path | None = None
) -> tuple[Path, dict[str, str], tuple[int, int]]:
    """File, fingerprint (an empty one for a scene without) and shape of a scene."""
    path = rendering.benchmark_folder(benchmark, engine, cache) / f"scene-{index:03d}.npy"
    printed = rendering.fingerprints(benchmark).get(str(index), {"sha256": ""})
    microphones = len(benchmark.manifest["scenes"][index]["microphones"])
    return path, printed, (microphones, round(SECONDS * SAMPLE_RATE))
