"""The frozen benchmarks of the paper's protocol: `paper-test`, and the same with sources of music and of noise.

A manifest says which utterances (with their hashes), which source positions, which levels and which noise. There is one
source position an utterance and T60, shared by the SNRs.

    clean = benchmark.clean(bank, t60)                 # (utterances, 2, 30720), unit variance over the whole utterance
    frames = benchmark.frames(clean, snr, t60)         # int16 (utterances * 15, 2, 2048)
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace, device, to_device

from qkgcc.core.types import Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.benchmark import FrozenBenchmark
from qkgcc.lab.rooms.draws import stream, uniform
from qkgcc.lab.rooms.mixing import add_white_noise, convolve
from qkgcc.lab.rooms.shoebox import response_length, sabine
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.engines import batch_responses, best_engine, responses
from qkgcc.lab.scenes.scenes import Scene, Source

NAMES = ("paper-test", "paper-music", "paper-noise")
SNRS = (0, 6, 12, 18, 24, 30)
T60S = (0.2, 0.4, 0.6, 0.8, 1.0)
FRAMES = 15
SCALE = 1024
"""int16 steps of 1: a signal of unit variance keeps 71 dB over the rounding, and 30 dB up to clipping."""
_SAMPLES = FRAMES * paper.FRAME
BANKS = {"paper-test": "test-clean", "paper-music": "music", "paper-noise": "noise"}
"""What each is made of."""


class PaperBenchmark(FrozenBenchmark):
    """One of the paper's sets. A part is a cell, "snr/t60"; those of a T60 share their rooms."""

    NAMES = NAMES

    @property
    def bank_names(self) -> tuple[str, ...]:
        return (BANKS[self.name],)

    @cached_property
    def signals(self) -> dict[str, tuple[str, int | None]]:
        return {source["id"]: (source["sha256"], None) for source in self.manifest["sources"]}

    def groups(self) -> list[list[str]]:
        return [[cell_key(snr, t60) for snr in SNRS] for t60 in T60S]

    def file_name(self, key: str) -> str:
        snr, t60 = key.split("/")
        return f"snr{int(snr):02d}-t60_{float(t60):.1f}"

    def shape(self, key: str) -> tuple[int, ...]:
        return len(self.ids) * FRAMES, 2, paper.FRAME

    def rows(self, key: str) -> int:
        return len(self.ids)

    @property
    def steps_per_group(self) -> int:  # type: ignore[override]
        return len(self.ids)

    def render_parts(
        self, keys: Sequence[str], banks: Sequence[Bank], engine: str, jobs: int | None, progress: Callable[[], object]
    ) -> Iterator[tuple[str, npt.NDArray[np.int16]]]:
        t60 = float(keys[0].split("/")[1])
        clean = self.clean(banks[0], t60, engine=engine, progress=progress)
        for key in keys:
            yield key, self.frames(clean, int(key.split("/")[0]), t60)

    def load_cell(self, engine: str, snr: int, t60: float, cache: Path | None = None) -> npt.NDArray[np.int16]:
        """Frames of a rendered cell, mapped from the disk. Shape: (utterances * 15, 2, 2048)."""
        return self.load_part(cell_key(snr, t60), engine, cache)

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
        progress: Callable[[], object] = lambda: None,
    ) -> Any:
        """The first 15 frames of every utterance as both microphones hear them, without noise.

        Shape: (rows, 2, 30720), float32: an array, or with the gpu engine a tensor on the GPU. `progress` is called
        once an utterance.
        """
        numbers = self._rows(rows)
        self.check_banks([bank], [self.ids[row] for row in numbers])
        engine = engine or best_engine()
        if engine == "gpu":
            return self._clean_on_gpu(bank, t60, numbers, progress)
        out = np.empty((len(numbers), 2, _SAMPLES), dtype=np.float32)
        for i, row in enumerate(numbers):
            (response,) = responses(scene_with_source_at(self.positions[row, T60S.index(t60)], t60), engine)
            signal = bank.audio(bank.index(self.ids[row]), _SAMPLES).astype(np.float64)
            # Later parts of the response reach no sample of these frames.
            heard = convolve(signal, response[0, :, :_SAMPLES], 2 * _SAMPLES)[:, :_SAMPLES]
            out[i] = heard / self.levels[row, T60S.index(t60)]
            progress()
        return out

    def _clean_on_gpu(
        self, bank: Bank, t60: float, rows: Sequence[int], progress: Callable[[], object], device: str = "cuda"
    ) -> Any:
        """All rooms of a T60 at once."""
        import torch

        absorption, order = sabine(t60, paper.TEST_ROOM)
        places = self.positions[list(rows), T60S.index(t60)]
        response = batch_responses(
            paper.TEST_ROOM,
            np.sqrt(1 - absorption),
            order,
            places,
            paper.TEST_MICROPHONES,
            torch.device(device),
            samples=response_length(paper.TEST_ROOM, order, paper.SAMPLE_RATE),
            sample_rate=paper.SAMPLE_RATE,
        )[..., :_SAMPLES]
        signals = torch.as_tensor(bank.stack([bank.index(self.ids[row]) for row in rows], _SAMPLES), device=device)
        levels = torch.as_tensor(self.levels[list(rows), T60S.index(t60)], dtype=torch.float32, device=device)
        heard = convolve(signals[:, None], response, 2 * _SAMPLES)[..., :_SAMPLES] / levels[:, None, None]
        for _ in rows:
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


def cell_key(snr: int, t60: float) -> str:
    """What a cell is called in the fingerprints."""
    return f"{snr}/{t60}"


def make_manifest(name: str, bank: Bank, seed: int, progress: Callable[[], object] = lambda: None) -> dict[str, Any]:
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
