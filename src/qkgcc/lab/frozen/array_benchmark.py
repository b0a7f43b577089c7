"""`array-test`: 720 scenes of ten seconds, 1 to 3 test talkers that stand or walk around three arrays.

The manifest holds the seed, the law, the utterances with their hashes and lengths, and of every scene its digest, its
room, T60, SNR and microphones, who says what and when, how much of each block of a second that is, and where each
talker is at the middle of each block. A change of the code that would draw another scene changes its digest, and is
found before anything is rendered. Scores are computed from the manifest alone.
"""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.arrays import Geometry, array
from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.general_benchmark import digest
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

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Truth:
    """What there is to find in a scene."""

    kind: Kind
    t60: float
    snr: float
    geometry: Geometry
    places: Floats
    """(talkers, blocks, 3) metres, in the axes of the geometry."""
    active: npt.NDArray[np.bool_]
    """(talkers, blocks) who is to be found when."""

    @property
    def talkers(self) -> list[int]:
        """How many in each block."""
        counts: list[int] = self.active.sum(axis=0).tolist()
        return counts


@dataclass(frozen=True, eq=False)
class ArrayBenchmark:
    manifest: dict[str, Any]
    hash: str
    """SHA-256 of the manifest: the name that results carry."""
    name: str = NAME

    @classmethod
    def load(cls) -> "ArrayBenchmark":
        text = (resources.files("qkgcc.lab.frozen") / "benchmarks" / f"{NAME}.json").read_bytes()
        return cls(json.loads(text), hashlib.sha256(text).hexdigest())

    def __len__(self) -> int:
        return len(self.manifest["scenes"])

    @cached_property
    def utterances(self) -> dict[str, int]:
        """Samples by id."""
        return {id: about["samples"] for id, about in self.manifest["signals"].items()}

    def truth(self, index: int) -> Truth:
        about, kind = self.manifest["scenes"][index], KINDS[index % len(KINDS)]
        places = np.array([talker["places"] for talker in about["talkers"]], dtype=np.float64)
        return Truth(
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
        if digest(drawn.scene) != self.manifest["scenes"][index]["digest"]:
            raise InputError(
                f"{NAME}: scene {index} is drawn differently by this version of qkgcc; use the one it was made with"
            )
        return drawn

    def audio(self, index: int, bank: Bank, *, engine: str = "cpu", jobs: int | None = None) -> npt.NDArray[np.int16]:
        """A scene as it is heard. Shape: (M, 160000)"""
        return recorded(self.scene(index), bank, engine=engine, jobs=jobs)


def recorded(drawn: ArrayScene, bank: Bank, *, engine: str = "cpu", jobs: int | None = None) -> npt.NDArray[np.int16]:
    """A scene as 16-bit samples. Shape: (M, 160000)"""
    signals = lookup([bank], SECONDS)
    heard = render(
        drawn.scene,
        lambda chain: array_scenes.chained(chain, signals),
        SECONDS,
        engine=engine,
        jobs=jobs,
        early=EARLY,
        late_step=LATE_STEP,
    )
    return np.clip(np.rint(heard.audio * SCALE), -SCALE, SCALE - 1).astype(np.int16)


def check_bank(benchmark: ArrayBenchmark, bank: Bank) -> None:
    """An `InputError` unless the bank holds the very samples that the manifest names, all of them."""
    held = {id: (sha, int(n)) for id, sha, n in zip(bank.ids, bank.content_hashes, bank.samples, strict=True)}
    for id, about in benchmark.manifest["signals"].items():
        if id not in held:
            raise InputError(f"{NAME} needs {id}, which is not in the bank {bank.name}: give that of test-clean")
        if held[id] != (about["sha256"], about["samples"]):
            raise InputError(
                f"{NAME} needs {id}, which has other samples in the bank {bank.name}: build it from the original "
                "files, with whole test utterances"
            )


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
                "level": _rounded(source.level),
                "speaks": _rounded(array_scenes.spoken(source.signal, utterances), 2),
                "places": _rounded(places if source.moving else places[:1]),
            }
        )
    placed = {"centre": _rounded(drawn.centre), "yaw": _rounded(drawn.yaw)} if drawn.kind.compact else {}
    return {
        "digest": digest(scene),
        "room": _rounded(scene.room),
        "t60": _rounded(scene.walls[1]),
        "snr": _rounded(scene.snr),
        "noise": scene.noise,
        **placed,
        "microphones": _rounded(scene.microphones),
        "talkers": talkers,
    }


def _rounded(values: Any, digits: int = 4) -> Any:
    return (np.round(values, digits) + 0.0).tolist()
