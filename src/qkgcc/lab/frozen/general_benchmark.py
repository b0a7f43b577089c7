"""`general-test`: 4000 scenes of the general distribution, five frames each, test speakers and test clips only.

The manifest holds the seed, the law, the signals with their hashes, and of every scene its digest, the ids of its
sources, where its microphones and its first source are, its level in dB of full scale, what it is sorted by (spacing,
distance, T60) and the true delays of its frames. A change of the code that would draw another scene changes its digest,
and is found before anything is rendered.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.general import GENERAL, general_scenes
from qkgcc.lab.scenes.render import delay_at, render
from qkgcc.lab.scenes.scenes import Scene
from qkgcc.lab.scenes.signals import Catalog, lookup

NAME = "general-test"
SCENES = 4000
SECONDS = 2.0
FRAME = 2048
FRAMES = (1, 4, 7, 10, 13)
"""Which of the back-to-back frames of the two seconds are kept."""
SCALE = 32768
"""int16 steps of full scale."""
CHUNK = 100
"""Scenes that are rendered, fingerprinted and cached together."""


@dataclass(frozen=True, eq=False)
class GeneralBenchmark:
    manifest: dict[str, Any]
    hash: str
    """SHA-256 of the manifest: the name that results carry."""
    name: str = NAME

    @classmethod
    def load(cls) -> "GeneralBenchmark":
        text = (resources.files("qkgcc.lab.frozen") / "benchmarks" / f"{NAME}.json").read_bytes()
        return cls(json.loads(text), hashlib.sha256(text).hexdigest())

    @cached_property
    def delays(self) -> npt.NDArray[np.float64]:
        """(scenes, 5) true delays in samples, positive = microphone 1 later."""
        return np.array(self.manifest["delays"])

    def catalog(self) -> Catalog:
        return Catalog(**{kind: tuple(hashes) for kind, hashes in self.manifest["signals"].items()})

    def scenes(self, first: int, last: int) -> list[Scene]:
        """Scenes `first` up to `last`, drawn anew and checked against the manifest."""
        drawn = _draw(self.manifest["seed"], range(first, last), self.catalog())
        for index, scene in zip(range(first, last), drawn, strict=True):
            if digest(scene) != self.manifest["digests"][index]:
                raise InputError(
                    f"{NAME}: scene {index} is drawn differently by this version of qkgcc; use the one it was made with"
                )
        return drawn

    def frames(self, banks: Iterable[Bank], first: int, last: int, *, engine: str = "cpu") -> npt.NDArray[np.int16]:
        """Frames of some scenes. Shape: ((last - first) * 5, 2, 2048)."""
        banks = list(banks)
        check_signals(self, banks)
        return render_frames(self.scenes(first, last), banks, engine)


def render_frames(scenes: list[Scene], banks: list[Bank], engine: str) -> npt.NDArray[np.int16]:
    """The kept frames of each scene as 16-bit samples. Shape: (scenes * 5, 2, 2048)."""
    signals = lookup(banks, SECONDS)

    def one(scene: Scene) -> npt.NDArray[np.int16]:
        audio = render(scene, signals, SECONDS, engine=engine, jobs=1).audio
        whole = np.clip(np.rint(audio * SCALE), -SCALE, SCALE - 1).astype(np.int16)
        return np.stack([whole[:, k * FRAME : (k + 1) * FRAME] for k in FRAMES])

    with ThreadPoolExecutor(1 if engine == "gpu" else os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(one, scenes)))


def digest(scene: Scene) -> str:
    """Twelve hex digits of a hash of everything in a scene, positions rounded to a nanometre."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, (tuple, list)):
            return [plain(item) for item in value]
        if isinstance(value, np.ndarray):
            return (np.round(value, 9) + 0.0).tolist()
        return round(float(value), 9) + 0.0 if isinstance(value, (float, np.floating)) else value

    text = json.dumps(plain(scene), sort_keys=True, default=int)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_signals(benchmark: GeneralBenchmark, banks: list[Bank]) -> None:
    """An `InputError` unless the banks hold the very samples that the manifest names."""
    held = {id: hash for bank in banks for id, hash in zip(bank.ids, bank.content_hashes, strict=True)}
    for hashes in benchmark.manifest["signals"].values():
        for id, hash in hashes.items():
            if held.get(id) != hash:
                problem = "is not in the banks" if id not in held else "has other samples in the banks"
                raise InputError(f"{NAME} needs {id}, which {problem}: give those of test-clean, music and noise")


def make_manifest(banks: list[Bank], seed: int, scenes: int = SCENES) -> dict[str, Any]:
    """Draw the set."""
    catalog = Catalog.from_banks(banks, "test")
    hashes = {id: hash for bank in banks for id, hash in zip(bank.ids, bank.content_hashes, strict=True)}
    drawn = _draw(seed, range(scenes), catalog)
    centres = (np.array(FRAMES) + 0.5) * FRAME / 16000
    return {
        "format": 1,
        "name": NAME,
        "seed": seed,
        "sample_rate": 16000,
        "frame": FRAME,
        "frames": list(FRAMES),
        "law": dataclasses.asdict(GENERAL),
        "signals": {
            field.name: {id: hashes[id] for id in getattr(catalog, field.name)} for field in dataclasses.fields(catalog)
        },
        "digests": [digest(scene) for scene in drawn],
        "scale": SCALE,
        "sources": [[source.signal for source in scene.sources] for scene in drawn],
        "microphones": [_rounded(scene.microphones) for scene in drawn],
        # Where the first source is, or begins and ends.
        "positions": [_rounded(s.path[[0, -1]] if s.moving else s.path) for s, *_ in (x.sources for x in drawn)],
        "level": [_rounded(scene.degradations.level) for scene in drawn],
        "t60": [_rounded(scene.walls[1]) for scene in drawn],
        "spacing": [_rounded(np.linalg.norm(np.diff(scene.microphones, axis=0))) for scene in drawn],
        "distance": [
            _rounded(np.linalg.norm(scene.sources[0].path[0] - scene.microphones.mean(axis=0))) for scene in drawn
        ],
        "delays": [_rounded(delay_at(scene, centres)) for scene in drawn],
    }


def _rounded(values: Any) -> Any:
    """As the manifest has them: to four decimals."""
    return np.round(values, 4).tolist()


def chunks(scenes: int) -> Iterator[tuple[int, int]]:
    for first in range(0, scenes, CHUNK):
        yield first, min(first + CHUNK, scenes)


def _draw(seed: int, indices: range, catalog: Catalog) -> list[Scene]:
    rows = general_scenes(seed, np.array(indices), catalog)
    return [rows.scene(i) for i in range(len(indices))]
