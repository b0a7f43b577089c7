"""`general-test`: 4000 scenes of the general distribution, five frames each, test speakers and test clips only.

The manifest holds the seed, the law, the signals with their hashes, and of every scene its digest, the ids of its
sources, where its microphones and its first source are, its level in dB of full scale, what it is sorted by (spacing,
distance, T60) and the true delays of its frames. A change of the code that would draw another scene changes its digest,
and is found before anything is rendered.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.benchmark import FrozenBenchmark, check_digest, scene_digest, to_digits
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


class GeneralBenchmark(FrozenBenchmark):
    """The set. A part is a chunk of scenes, called by the number of its first."""

    NAMES = (NAME,)
    bank_names = ("test-clean", "music", "noise")

    def __len__(self) -> int:
        return len(self.manifest["digests"])

    @cached_property
    def signals(self) -> dict[str, tuple[str, int | None]]:
        return {id: (sha, None) for hashes in self.manifest["signals"].values() for id, sha in hashes.items()}

    def groups(self) -> list[list[str]]:
        return [[str(first)] for first in range(0, len(self), CHUNK)]

    def file_name(self, key: str) -> str:
        return f"scenes-{int(key):04d}"

    def shape(self, key: str) -> tuple[int, ...]:
        return self.rows(key) * len(FRAMES), 2, FRAME

    def rows(self, key: str) -> int:
        return min(CHUNK, len(self) - int(key))

    def render_parts(
        self, keys: Sequence[str], banks: Sequence[Bank], engine: str, jobs: int | None, progress: Callable[[], object]
    ) -> Iterator[tuple[str, npt.NDArray[np.int16]]]:
        for key in keys:
            yield key, self.frames(banks, int(key), int(key) + self.rows(key), engine=engine)
            progress()

    def load_frames(self, engine: str, cache: Path | None = None) -> npt.NDArray[np.int16]:
        """All rendered frames. Shape: (scenes, 5, 2, 2048)."""
        frames = np.concatenate([self.load_part(key, engine, cache) for (key,) in self.groups()])
        return np.asarray(frames.reshape(len(self), -1, *frames.shape[1:]))

    @cached_property
    def delays(self) -> Floats:
        """(scenes, 5) true delays in samples, positive = microphone 1 later."""
        return np.array(self.manifest["delays"])

    def catalog(self) -> Catalog:
        return Catalog(**{kind: tuple(hashes) for kind, hashes in self.manifest["signals"].items()})

    def scenes(self, first: int, last: int) -> list[Scene]:
        """Scenes `first` up to `last`, drawn anew and checked against the manifest."""
        drawn = _draw(self.manifest["seed"], range(first, last), self.catalog())
        for index, scene in zip(range(first, last), drawn, strict=True):
            check_digest(NAME, index, scene, self.manifest["digests"][index])
        return drawn

    def frames(self, banks: Sequence[Bank], first: int, last: int, *, engine: str = "cpu") -> npt.NDArray[np.int16]:
        """Frames of some scenes. Shape: ((last - first) * 5, 2, 2048)."""
        self.check_banks(banks)
        return render_frames(self.scenes(first, last), banks, engine)


def render_frames(scenes: list[Scene], banks: Sequence[Bank], engine: str) -> npt.NDArray[np.int16]:
    """The kept frames of each scene as 16-bit samples. Shape: (scenes * 5, 2, 2048)."""
    signals = lookup(banks, SECONDS)

    def one(scene: Scene) -> npt.NDArray[np.int16]:
        audio = render(scene, signals, SECONDS, engine=engine, jobs=1).audio
        whole = np.clip(np.rint(audio * SCALE), -SCALE, SCALE - 1).astype(np.int16)
        return np.stack([whole[:, k * FRAME : (k + 1) * FRAME] for k in FRAMES])

    with ThreadPoolExecutor(1 if engine == "gpu" else os.cpu_count()) as pool:
        return np.concatenate(list(pool.map(one, scenes)))


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
        "digests": [scene_digest(scene) for scene in drawn],
        "scale": SCALE,
        "sources": [[source.signal for source in scene.sources] for scene in drawn],
        "microphones": [to_digits(scene.microphones) for scene in drawn],
        # Where the first source is, or begins and ends.
        "positions": [to_digits(s.path[[0, -1]] if s.moving else s.path) for s, *_ in (x.sources for x in drawn)],
        "level": [to_digits(scene.degradations.level) for scene in drawn],
        "t60": [to_digits(scene.walls[1]) for scene in drawn],
        "spacing": [to_digits(np.linalg.norm(np.diff(scene.microphones, axis=0))) for scene in drawn],
        "distance": [
            to_digits(np.linalg.norm(scene.sources[0].path[0] - scene.microphones.mean(axis=0))) for scene in drawn
        ],
        "delays": [to_digits(delay_at(scene, centres)) for scene in drawn],
    }


def _draw(seed: int, indices: range, catalog: Catalog) -> list[Scene]:
    rows = general_scenes(seed, np.array(indices), catalog)
    return [rows.scene(i) for i in range(len(indices))]
