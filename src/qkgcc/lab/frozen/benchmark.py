"""The frozen benchmark of the paper's protocol: a set *is* its manifest, and any engine renders it.

A manifest in the repository says which utterances (with their hashes), which source positions, which levels and which
noise; its SHA-256 names the set. There is one source position an utterance and T60, shared by the SNRs. Beside it stand
the fingerprints of every cell as the CPU engine renders it (`fingerprints`).

    clean = benchmark.clean(bank, t60)                 # (utterances, 2, 30720), unit variance over the whole utterance
    frames = benchmark.frames(clean, snr, t60)         # int16 (utterances * 15, 2, 2048)
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, to_device

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.draws import stream, uniform
from qkgcc.lab.rooms.mixing import add_white_noise, convolve
from qkgcc.lab.rooms.shoebox import response_length, sabine
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.engines import best_engine, responses
from qkgcc.lab.scenes.scenes import Scene, Source

NAMES = ("paper-test", "paper-music", "paper-noise")
SNRS = (0, 6, 12, 18, 24, 30)
T60S = (0.2, 0.4, 0.6, 0.8, 1.0)
FRAMES = 15
SCALE = 1024
"""int16 steps of 1: a signal of unit variance keeps 71 dB over the rounding, and 30 dB up to clipping."""
_SAMPLES = FRAMES * paper.FRAME

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Benchmark:
    name: str
    manifest: dict[str, Any]
    hash: str
    """SHA-256 of the manifest: the name that results carry."""

    @classmethod
    def named(cls, name: str) -> "Benchmark":
        if name not in NAMES:
            raise InputError(f"there is no benchmark {name!r}; there are {', '.join(NAMES)}")
        text = (resources.files("qkgcc.lab.frozen") / "benchmarks" / f"{name}.json").read_bytes()
        return cls(name, json.loads(text), hashlib.sha256(text).hexdigest())

    @cached_property
    def ids(self) -> list[str]:
        return [source["id"] for source in self.manifest["sources"]]

    @cached_property
    def positions(self) -> Floats:
        """(utterances, T60s, 3) metres."""
        return np.array([source["positions"] for source in self.manifest["sources"]])

    @cached_property
    def levels(self) -> Floats:
        """(utterances, T60s) what the convolved signals are divided by."""
        return np.array([source["levels"] for source in self.manifest["sources"]])

    def delays(self, t60: float, rows: Sequence[int] | None = None) -> Floats:
        """True delays in samples, one a frame, positive = microphone 1 later. Shape: (rows * 15,)."""
        places = self.positions[self._rows(rows), T60S.index(t60)]
        return np.repeat(paper.true_delay(places, paper.TEST_MICROPHONES), FRAMES)

    def clean(
        self,
        bank: Bank,
        t60: float,
        rows: Sequence[int] | None = None,
        *,
        engine: str | None = None,
        progress: Callable[[], object] | None = None,
    ) -> Any:
        """The first 15 frames of every utterance as both microphones hear them, without noise.

        Shape: (rows, 2, 30720), float32: an array, or with the gpu engine a tensor on the GPU. `progress` is called
        once an utterance.
        """
        check_sources(self, bank, self._rows(rows))
        engine = engine or best_engine()
        if engine == "gpu":
            return self._clean_on_gpu(bank, t60, self._rows(rows), progress)
        out = np.empty((len(self._rows(rows)), 2, _SAMPLES), dtype=np.float32)
        for i, row in enumerate(self._rows(rows)):
            (response,) = responses(scene_with_source_at(self.positions[row, T60S.index(t60)], t60), engine)
            signal = bank.audio(bank.index(self.ids[row]), _SAMPLES).astype(np.float64)
            # Later parts of the response reach no sample of these frames.
            heard = convolve(signal, response[0, :, :_SAMPLES], 2 * _SAMPLES)[:, :_SAMPLES]
            out[i] = heard / self.levels[row, T60S.index(t60)]
            if progress is not None:
                progress()
        return out

    def _clean_on_gpu(
        self, bank: Bank, t60: float, rows: Sequence[int], progress: Callable[[], object] | None, device: str = "cuda"
    ) -> Any:
        """All rooms of a T60 at once."""
        import torch

        from qkgcc.lab.rooms import gpu

        absorption, order = sabine(t60, paper.TEST_ROOM)
        places = self.positions[list(rows), T60S.index(t60)]
        heard_at = len(paper.TEST_MICROPHONES) * len(places)
        response = gpu.responses(
            np.broadcast_to(paper.TEST_ROOM, (heard_at, 3)),
            np.full(heard_at, np.sqrt(1 - absorption)),
            np.full(heard_at, order),
            np.repeat(places, len(paper.TEST_MICROPHONES), axis=0),
            np.tile(paper.TEST_MICROPHONES, (len(places), 1)),
            samples=response_length(paper.TEST_ROOM, order, paper.SAMPLE_RATE),
            sample_rate=paper.SAMPLE_RATE,
            speed_of_sound=SPEED_OF_SOUND,
            device=device,
        ).reshape(len(places), len(paper.TEST_MICROPHONES), -1)[..., :_SAMPLES]
        signals = torch.as_tensor(bank.stack([bank.index(self.ids[row]) for row in rows], _SAMPLES), device=device)
        levels = torch.as_tensor(self.levels[list(rows), T60S.index(t60)], dtype=torch.float32, device=device)
        heard = convolve(signals[:, None], response, 2 * _SAMPLES)[..., :_SAMPLES] / levels[:, None, None]
        for _ in rows:
            if progress is not None:
                progress()
        return heard

    def frames(self, clean: Any, snr: float, t60: float, rows: Sequence[int] | None = None) -> npt.NDArray[np.int16]:
        """A cell: noise added, cut into frames, rounded. Shape: (rows, 2, 30720) -> (rows * 15, 2, 2048)."""
        numbers = np.asarray(self._rows(rows), dtype=np.int64)
        cell = len(T60S) * SNRS.index(int(snr)) + T60S.index(t60)
        streams = 2 * (numbers[:, None] + len(self.ids) * cell) + np.arange(2)
        keys = stream(f"{self.name}/noise", self.manifest["seed"]) + (streams << 20)
        out = np.empty((len(numbers), FRAMES, 2, paper.FRAME), dtype=np.int16)
        xp = array_namespace(clean)
        for i in range(len(numbers)):  # one by one: the noise of a whole cell would take gigabytes on the way
            one = slice(i, i + 1)
            level, key, first = (
                xp.asarray(x, device=device(clean)) for x in (np.array([float(snr)]), keys[one], np.zeros(1, np.int64))
            )
            noisy = xp.round(add_white_noise(clean[one], level, key, first)[0] * SCALE)
            whole = to_device(xp.astype(xp.clip(noisy, -32768, 32767), xp.int16), "cpu")
            out[i] = np.asarray(whole).reshape(2, FRAMES, paper.FRAME).transpose(1, 0, 2)
        return out.reshape(-1, 2, paper.FRAME)

    def _rows(self, rows: Sequence[int] | None) -> Sequence[int]:
        return range(len(self.ids)) if rows is None else rows


def scene_with_source_at(position: Floats, t60: float) -> Scene:
    """The paper's test room with a source at `position`."""
    return Scene(paper.TEST_ROOM, t60, paper.TEST_MICROPHONES, (Source("", position),), snr=0.0)


def check_sources(benchmark: Benchmark, bank: Bank, rows: Sequence[int]) -> None:
    """An `InputError` unless the bank holds the very samples that the manifest names."""
    for row in rows:
        source = benchmark.manifest["sources"][row]
        number = bank.index(source["id"])
        if bank.content_hashes[number] != source["sha256"]:
            raise InputError(
                f"{source['id']} in {bank.path.name} is not what {benchmark.name} was made of: another copy of the "
                "corpus or another recipe; build the bank from the original files"
            )


def make_manifest(name: str, bank: Bank, seed: int, progress: Callable[[], object] | None = None) -> dict[str, Any]:
    """Draw a set: positions uniform in the test room, levels from the whole convolved utterances (CPU engine)."""
    numbers = bank.select(split="test")
    draws = [uniform(f"{name}/source-{axis}", seed, np.arange(len(numbers) * len(T60S))) for axis in "xyz"]
    positions = (np.stack(draws, axis=-1) * paper.TEST_ROOM).round(4).reshape(len(numbers), len(T60S), 3)
    sources = []
    for row, number in enumerate(numbers):
        utterance = bank.audio(int(number)).astype(np.float64)
        levels = []
        for i, t60 in enumerate(T60S):
            (response,) = responses(scene_with_source_at(positions[row, i], t60), "cpu")
            total = len(utterance) + response.shape[-1] - 1
            heard = convolve(utterance, response[0, 0], total + total % 2)[:total]
            levels.append(float(f"{heard.std():.9g}"))
            if progress is not None:
                progress()
        sources.append(
            {
                "id": bank.ids[number],
                "sha256": bank.content_hashes[number],
                "positions": positions[row].tolist(),
                "levels": levels,
            }
        )
    return {
        "format": 1,
        "name": name,
        "seed": seed,
        "sample_rate": paper.SAMPLE_RATE,
        "frame": paper.FRAME,
        "frames": FRAMES,
        "room": paper.TEST_ROOM.tolist(),
        "microphones": paper.TEST_MICROPHONES.tolist(),
        "snr": list(SNRS),
        "t60": list(T60S),
        "scale": SCALE,
        "left_out": len([clip for clip in bank.left_out if clip.get("split") == "test"]),
        "sources": sources,
    }
