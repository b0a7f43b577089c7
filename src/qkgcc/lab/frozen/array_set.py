"""`array-test`: 720 scenes of ten seconds, 1 to 3 test talkers that stand or walk around three arrays.

The manifest holds the seed, the law, the utterances with their hashes and lengths, and of every scene its digest, its
room, T60, SNR and microphones, who says what and when, how much of each block of a second that is, and where each
talker is at the middle of each block. A change of the code that would draw another scene changes its digest, and is
found before anything is rendered. Scores are computed from the manifest alone.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.arrays import Geometry, array
from qkgcc.core.errors import InputError
from qkgcc.core.types import Bools, Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.benchmark import FrozenBenchmark, check_digest, scene_digest, to_digits
from qkgcc.lab.scenes import array_scenes
from qkgcc.lab.scenes.array_scenes import BLOCKS, KINDS, LAW, SECONDS, ArrayScene, Kind, array_scene
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.signals import lookup

NAME = "array-test"
EACH = 40
"""Scenes of each kind."""
SCENES = EACH * len(KINDS)
SCALE = 32768
"""int16 steps of full scale."""
EARLY = 0.05
"""Seconds: direct sound and reflections until then follow a walk in steps of a centimetre."""
LATE_STEP = 0.5
"""Metres between the points of a walk at which the reverberation behind them is computed."""
ACTIVE = 0.5
"""Share of a block that a talker has to speak in it to be looked for there."""


@dataclass(frozen=True, eq=False)
class ArrayTruth:
    """What there is to find in a scene."""

    kind: Kind
    t60: float
    snr: float
    geometry: Geometry
    places: Floats
    """(talkers, blocks, 3) metres, in the axes of the geometry."""
    active: Bools
    """(talkers, blocks) who is to be found when."""

    @property
    def talkers(self) -> list[int]:
        """How many in each block."""
        counts: list[int] = self.active.sum(axis=0).tolist()
        return counts


class ArrayBenchmark(FrozenBenchmark):
    """The set. A part is a scene, called by its number; not every one has a fingerprint."""

    NAMES = (NAME,)
    bank_names = ("test-clean",)

    def __len__(self) -> int:
        return len(self.manifest["scenes"])

    @cached_property
    def signals(self) -> dict[str, tuple[str, int | None]]:
        return {id: (about["sha256"], about["samples"]) for id, about in self.manifest["signals"].items()}

    @cached_property
    def utterances(self) -> dict[str, int]:
        """Samples by id."""
        return {id: about["samples"] for id, about in self.manifest["signals"].items()}

    def groups(self) -> list[list[str]]:
        return [[str(index)] for index in range(len(self))]

    def file_name(self, key: str) -> str:
        return f"scene-{int(key):03d}"

    def shape(self, key: str) -> tuple[int, ...]:
        return len(self.manifest["scenes"][int(key)]["microphones"]), round(SECONDS * array_scenes.SAMPLE_RATE)

    def rows(self, key: str) -> int:
        return 1

    def render_parts(
        self, keys: Sequence[str], banks: Sequence[Bank], engine: str, jobs: int | None, progress: Callable[[], object]
    ) -> Iterator[tuple[str, npt.NDArray[np.int16]]]:
        for key in keys:
            yield key, self.audio(int(key), banks[0], engine=engine, jobs=jobs)
            progress()

    def load_scene(self, index: int, engine: str = "cpu", cache: Path | None = None) -> Floats:
        """A rendered scene, full scale is 1. Shape: (M, 160000)"""
        return np.asarray(self.load_part(str(index), engine, cache), dtype=np.float64) / SCALE

    def truth(self, index: int) -> ArrayTruth:
        about, kind = self.manifest["scenes"][index], KINDS[index % len(KINDS)]
        places = np.array([talker["places"] for talker in about["talkers"]], dtype=np.float64)
        return ArrayTruth(
            kind,
            about["t60"],
            about["snr"],
            array(kind.array) if kind.compact else Geometry(np.array(about["microphones"]), kind.array),
            np.broadcast_to(places, (len(places), BLOCKS, 3)),
            np.array([talker["speaks"] for talker in about["talkers"]]) >= ACTIVE,
        )

    def scene(self, index: int) -> ArrayScene:
        """A scene, drawn anew and checked against the manifest."""
        drawn = array_scene(self.manifest["seed"], index, self.utterances)
        check_digest(NAME, index, drawn.scene, self.manifest["scenes"][index]["digest"])
        return drawn

    def audio(self, index: int, bank: Bank, *, engine: str = "cpu", jobs: int | None = None) -> npt.NDArray[np.int16]:
        """A scene as it is heard. Shape: (M, 160000)"""
        return record_scene(self.scene(index), bank, engine=engine, jobs=jobs)


def record_scene(
    drawn: ArrayScene, bank: Bank, *, engine: str = "cpu", jobs: int | None = None
) -> npt.NDArray[np.int16]:
    """A scene as 16-bit samples. Shape: (M, 160000)"""
    signals = lookup([bank], SECONDS)
    heard = render(
        drawn.scene,
        lambda chain: array_scenes.join_utterances(chain, signals),
        SECONDS,
        engine=engine,
        jobs=jobs,
        early=EARLY,
        late_step=LATE_STEP,
    )
    return np.clip(np.rint(heard.audio * SCALE), -SCALE, SCALE - 1).astype(np.int16)


def make_manifest(bank: Bank, seed: int, scenes: int = SCENES) -> dict[str, Any]:
    """Draw the set from the test utterances of a bank that keeps them whole."""
    numbers = bank.select(split="test")
    if (bank.samples[numbers] < bank.whole_samples[numbers]).any():
        raise InputError(f"the bank {bank.name} keeps only a part of its test utterances: build it with whole ones")
    signals = {
        bank.ids[n]: {"sha256": bank.content_hashes[n], "samples": int(bank.samples[n])} for n in numbers.tolist()
    }
    utterances = {id: about["samples"] for id, about in signals.items()}
    return {
        "format": 1,
        "name": NAME,
        "seed": seed,
        "sample_rate": array_scenes.SAMPLE_RATE,
        "seconds": SECONDS,
        "blocks": BLOCKS,
        "active": ACTIVE,
        "scale": SCALE,
        "early": EARLY,
        "late_step": LATE_STEP,
        "kinds": [dataclasses.asdict(kind) for kind in KINDS],
        "law": dataclasses.asdict(LAW),
        "signals": signals,
        "scenes": [_described(array_scene(seed, index, utterances), utterances) for index in range(scenes)],
    }


def _described(drawn: ArrayScene, utterances: dict[str, int]) -> dict[str, Any]:
    scene = drawn.scene
    talkers = []
    for source, places in zip(scene.sources, drawn.truth, strict=True):
        talkers.append(
            {
                "says": source.signal,
                "level": to_digits(source.level),
                "speaks": to_digits(array_scenes.spoken_shares(source.signal, utterances), 2),
                "places": to_digits(places if source.moving else places[:1]),
            }
        )
    placed = {"centre": to_digits(drawn.centre), "yaw": to_digits(drawn.yaw)} if drawn.kind.compact else {}
    return {
        "digest": scene_digest(scene),
        "room": to_digits(scene.room),
        "t60": to_digits(scene.walls[1]),
        "snr": to_digits(scene.snr),
        "noise": scene.noise,
        **placed,
        "microphones": to_digits(scene.microphones),
        "talkers": talkers,
    }
