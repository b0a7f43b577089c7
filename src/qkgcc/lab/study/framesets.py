"""Frames whose true delay is known, from anywhere: benchmarks, a ReSpeaker array or a head in a room, unseen scenes.

    frames, true delays, the largest delay that the microphones allow, and which frames belong together

Real sets are read from `real/` in the folder of the corpora.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Floats, Floats32
from qkgcc.dsp import gcc
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.general_set import SCALE, GeneralBenchmark
from qkgcc.lab.frozen.paper_sets import FRAMES, PaperBenchmark
from qkgcc.lab.frozen.paper_sets import SCALE as SCALE_OF_PAPER
from qkgcc.lab.rooms import noise
from qkgcc.lab.rooms.draws import stream, uniform
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.bulk_rooms import SAMPLES, GeneralSources, Rooms
from qkgcc.lab.scenes.general import Scenes, general_scenes
from qkgcc.lab.scenes.general_frames import delays_at, recordings
from qkgcc.lab.scenes.paper_frames import Sources, paper_frames
from qkgcc.lab.scenes.render import delay_at

RATE = 16000
FRAME = 2048

RESPEAKER = 0.02285 * np.array([[1.0, 1, 0], [-1, 1, 0], [-1, -1, 0], [1, -1, 0]])
"""(4, 3) metres."""
HEAD_LIMIT = 1e-3
"""Seconds: no sound takes longer around a head."""
SURREY_UTTERANCES = 4
"""Of each direction."""
_DRY_SEED = 2020  # of pairs that no training has
UNSEEN_HOP = FRAME // 2
"""Samples from a frame to the next."""
MOMENT = 0.1, 1.0
"""Seconds: the shortest and the longest time that a scene is heard, where it is heard for a moment only."""
PAUSE_NOISE = 0.03
"""Standard deviation of the noise in a pause, as a share of the scene's."""
UNSEEN_POOL = 256
"""Synthetic signals of each kind."""
_FIRST_UNSEEN = 1 << 41  # index of the first scene: neither a training nor its validation has that many
_SCENES_AT_A_TIME = 32


@dataclass(frozen=True, eq=False)
class FrameSet:
    """N frames at 16 kHz."""

    name: str
    frames: Floats32
    """(N, 2, 2048) full scale is 1."""
    delays: Floats
    """(N,) true, in samples, positive = channel 1 later."""
    limits: Floats
    """(N,) the largest that is possible, in samples."""
    levels: Floats
    """(N,) standard deviation of channel 1 over the recording, as far as it is known: the paper's scaling."""
    groups: npt.NDArray[np.int64]
    """(N,) the scene or file: frames of one are alike."""
    sequences: npt.NDArray[np.int64]
    """(N,) the pair of channels of one recording: frames of one are in order, and may support each other."""
    times: Floats
    """(N,) of the frames in their recordings, in seconds."""

    def __len__(self) -> int:
        return len(self.delays)

    def take(self, rows: npt.NDArray[Any], name: str | None = None) -> FrameSet:
        """Some of the frames."""
        return FrameSet(self.name if name is None else name, *(column[rows] for column in self.columns))

    @property
    def columns(self) -> tuple[Any, ...]:
        """All arrays, in the order of the fields."""
        return self.frames, self.delays, self.limits, self.levels, self.groups, self.sequences, self.times


def general_test(engine: str, cache: Path | None = None) -> FrameSet:
    """All 20,000 frames of `general-test`, once they are rendered."""
    benchmark = GeneralBenchmark.load()
    frames: Floats32 = benchmark.load_frames(engine, cache).astype(np.float32)
    frames /= SCALE
    scenes, each = frames.shape[:2]
    level = frames[:, :, 0].std(axis=(1, 2), dtype=np.float64)
    limits = np.array(benchmark.manifest["spacing"]) * RATE / SPEED_OF_SOUND
    return FrameSet(
        "general-test",
        frames.reshape(-1, *frames.shape[2:]),
        benchmark.delays.ravel(),
        np.repeat(limits, each),
        np.repeat(np.maximum(level, 1e-5), each),
        np.repeat(np.arange(scenes), each),
        np.repeat(np.arange(scenes), each),
        np.tile((np.array(benchmark.manifest["frames"]) + 0.5) * FRAME / RATE, scenes),
    )


def two_sources(engine: str, cache: Path | None = None) -> tuple[FrameSet, Floats]:
    """Frames of `general-test` with one interferer that can be heard, and its delays.

    It is at most 10 dB quieter than the first source, and 3 samples or more away from it.
    """
    benchmark = GeneralBenchmark.load()
    whole = general_test(engine, cache)
    centres = (np.array(benchmark.manifest["frames"]) + 0.5) * FRAME / RATE
    second = np.full((len(benchmark.manifest["digests"]), len(centres)), np.nan)
    for number, scene in enumerate(benchmark.scenes(0, len(second))):
        if len(scene.sources) == 2 and scene.sources[1].level >= -10:
            second[number] = delay_at(scene, centres, source=1)
    apart = np.abs(second.ravel() - whole.delays) >= 3  # never so where there is none
    rows = np.flatnonzero(apart)
    return whole.take(rows, "two sources"), second.ravel()[rows]


def paper_cell(benchmark: PaperBenchmark, engine: str, snr: int, t60: float, cache: Path | None = None) -> FrameSet:
    """One cell of `paper-test`, `paper-music` or `paper-noise`, once it is rendered."""
    frames = benchmark.load_cell(engine, snr, t60, cache).astype(np.float32)
    frames /= SCALE_OF_PAPER
    count = len(frames)
    limit = float(np.linalg.norm(np.diff(paper.TEST_MICROPHONES, axis=0))) * RATE / SPEED_OF_SOUND
    groups = np.repeat(np.arange(len(benchmark.ids)), FRAMES)
    # The frames are scaled by their utterances as they are.
    times = np.tile((np.arange(FRAMES) + 0.5) * FRAME / RATE, len(benchmark.ids))
    levels = np.ones(count)
    return FrameSet(benchmark.name, frames, benchmark.delays(t60), np.full(count, limit), levels, groups, groups, times)


def respeaker(root: Path) -> FrameSet:
    """Single sources on a ReSpeaker 4-microphone array: back-to-back frames, loud ones, all six pairs.

    A frame counts whose standard deviation is above half the file's. The source is so far away, against an array of
    6.5 cm, that its direction gives the delays.
    """
    paths = sorted((root / "real" / "respeaker").glob("a*e*/*/*.flac"))
    single = [path for path in paths if re.fullmatch(r"a\d+e\d+", path.parent.parent.name)]
    if not single:
        raise InputError(f"{root}/real/respeaker holds no recordings of single sources, such as a180e20/50cm/x.flac")
    parts: list[FrameSet] = []
    for number, path in enumerate(single):
        azimuth, elevation = (np.radians(float(x)) for x in re.findall(r"\d+", path.parent.parent.name))
        direction = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), 0.0])
        audio = read_respeaker(path)
        frames, times = _loud(audio)
        for a, b in itertools.combinations(range(4), 2):
            true = (RESPEAKER[b] - RESPEAKER[a]) @ direction * RATE / SPEED_OF_SOUND
            limit = float(np.linalg.norm(RESPEAKER[b] - RESPEAKER[a])) * RATE / SPEED_OF_SOUND
            parts.append(_part(frames[:, [a, b]], times, true, limit, float(audio[a].std()), number, len(parts)))
    return _joined("respeaker", parts)


def surrey(root: Path, bank: Bank, snr: float) -> FrameSet:
    """Test speech heard by the head of a simulator in Room A (T60 0.32 s), from 37 directions, in white noise.

    The head stands between its ears: the true delay of a direction is that of its response without a room.
    """
    responses, dry = (_sofa(root / "real" / "surrey" / f"UniS_{name}_BRIR_16k.sofa") for name in ("Room_A", "Anechoic"))
    true = gcc.delays(np.pad(dry, ((0, 0), (0, 0), (0, 1024 - dry.shape[-1]))), "cc", max_lag=20)
    numbers = bank.select(split="test")
    parts = []
    for direction, response in enumerate(responses):
        for repeat in range(SURREY_UTTERANCES):
            turn = direction * SURREY_UTTERANCES + repeat
            speech = bank.audio(int(numbers[turn * 7 % len(numbers)]), 2 * RATE).astype(np.float64)
            length = len(speech) + response.shape[-1]
            heard = np.fft.irfft(np.fft.rfft(speech, length) * np.fft.rfft(response, length), length)
            heard = heard[:, : len(speech)]
            key = np.array(noise.keys(stream(f"surrey/{turn}", round(snr)), 2))
            size = np.sqrt(np.mean(heard**2)) * 10 ** (-snr / 20)
            audio = heard + size * noise.white(key, np.zeros((), dtype=np.int64), heard.shape[-1])
            about = float(true[direction]), HEAD_LIMIT * RATE, float(audio[0].std())
            parts.append(_part(*_loud(audio), *about, direction, turn))
    return _joined(f"surrey, {snr:g} dB", parts)


def dry(bank: Bank, t60: float, pairs: int = 1500) -> FrameSet:
    """Test speech in a dry room (T60 0: in the open) at 20 dB, microphones 0.5 m apart: how fine the delays are."""
    place = {"room": paper.TEST_ROOM, "microphones": paper.TEST_MICROPHONES}
    sources = Sources.of(bank, "test", "cpu")
    drawn = paper.training_pairs(
        _DRY_SEED, np.arange(pairs), len(sources.signals), t60=(t60, t60), snr=(20, 20), **place
    )
    frames, _ = paper_frames(drawn, sources)
    heard = frames.std(dim=(1, 2)).numpy() > 0.5  # of the utterance's level, which is 1
    limit = float(np.linalg.norm(np.diff(paper.TEST_MICROPHONES, axis=0))) * RATE / SPEED_OF_SOUND
    count = int(heard.sum())
    true = drawn.delay()[heard]
    alone = np.arange(count)
    return FrameSet(
        f"dry, T60 {t60:g} s",
        frames.numpy()[heard],
        true,
        np.full(count, limit),
        np.ones(count),
        alone,
        alone,
        np.zeros(count),
    )


def unseen_recordings(
    banks: Sequence[Bank], scenes: int, *, progress: Callable[[int], object] | None = None
) -> FrameSet:
    """Recordings that no training has seen, to calibrate a network on: the general law with validation voices.

    Confidence in a recording depends on what is around a frame. So half of the recordings are scenes as they are; in a
    quarter the scene is heard for a moment only, with each microphone's own noise before and after; in a quarter
    another source comes before and after: the same with the channels swapped, whose delay is the opposite one.

    A recording has two seconds; a pause has no true delay (NaN), nor have two sources in one frame.

    Recordings 2k and 2k + 1 are of one kind, so that the even and the odd ones are alike. `progress` counts scenes.
    """
    sources = GeneralSources.of(banks, "validation", "cpu", pool=UNSEEN_POOL)
    drawn = general_scenes(0, _FIRST_UNSEEN + np.arange(scenes), sources.catalog)
    parts = []
    for first in range(0, scenes, _SCENES_AT_A_TIME):
        numbers = range(first, min(first + _SCENES_AT_A_TIME, scenes))
        here = drawn.take(np.array(numbers))
        audio = recordings(here, Rooms.of(here), sources).numpy()
        parts += [_unseen_recording(i, audio[i - first], drawn.take(np.array([i]))) for i in numbers]
        if progress is not None:
            progress(len(numbers))
    return _joined("unseen", parts)


def _unseen_recording(number: int, audio: Floats32, scene: Scenes) -> FrameSet:
    length, place = uniform("unseen/moment", 0, 2 * number + np.arange(2))
    heard = round((MOMENT[0] + (MOMENT[1] - MOMENT[0]) * length) * RATE)
    begin = round(place * (SAMPLES - heard))
    on = (np.arange(SAMPLES) >= begin) & (np.arange(SAMPLES) < begin + heard)
    starts = np.arange(0, SAMPLES - FRAME + 1, UNSEEN_HOP)
    centres = starts + FRAME // 2
    true = delays_at(scene, torch.as_tensor(centres[None] / RATE))[0, :, 0].numpy().astype(np.float64)
    match number // 2 % 4:
        case 1:
            noise = np.random.default_rng(number).standard_normal(audio.shape)
            audio = np.where(on, audio, PAUSE_NOISE * audio.std() * noise).astype(np.float32)
            true = np.where(on[centres], true, np.nan)
        case 3:
            audio, true = np.where(on, audio, audio[::-1]), np.where(on[centres], true, -true)
            share = np.array([on[start : start + FRAME].mean() for start in starts])
            true[(share > 0) & (share < 1)] = np.nan
    frames = np.stack([audio[:, start : start + FRAME] for start in starts])
    limit = float(np.linalg.norm(scene.nominal[0, 0] - scene.nominal[0, 1])) * RATE / SPEED_OF_SOUND
    one, which = np.ones(len(frames)), np.full(len(frames), number)
    return FrameSet("", frames, true, limit * one, one, which, which, centres / RATE)


def _loud(audio: Floats) -> tuple[Floats32, Floats]:
    """Back-to-back frames that are louder than half the recording, and their times.

    Shape: (M, n) -> (frames, M, 2048), (frames,)
    """
    count = audio.shape[-1] // FRAME
    frames = audio[:, : count * FRAME].reshape(len(audio), count, FRAME).transpose(1, 0, 2)
    loud = frames.std(axis=(1, 2)) > 0.5 * audio.std()
    return np.asarray(frames[loud], dtype=np.float32), (np.flatnonzero(loud) + 0.5) * FRAME / RATE


def _part(
    frames: Floats32,
    times: Floats,
    true: float,
    limit: float,
    level: float,
    group: int,
    sequence: int,
) -> FrameSet:
    count = len(frames)
    delays, limits, levels = np.repeat([[true], [limit], [max(level, 1e-5)]], count, axis=1)
    return FrameSet("", frames, delays, limits, levels, np.full(count, group), np.full(count, sequence), times)


def _joined(name: str, parts: list[FrameSet]) -> FrameSet:
    return FrameSet(name, *(np.concatenate(column) for column in zip(*(part.columns for part in parts), strict=True)))


def read_respeaker(path: Path) -> Floats:
    """The four channels of a recording, full scale is 1. Shape: (4, n)"""
    import soundfile

    audio, rate = soundfile.read(path, dtype="float64")
    if rate != RATE or audio.ndim != 2 or audio.shape[1] != 4:
        raise InputError(f"{path} has shape {audio.shape} at {rate} Hz; expected 4 channels at {RATE} Hz")
    return np.ascontiguousarray(audio.T)


def _sofa(path: Path) -> Floats:
    """Impulse responses. Shape: (directions, 2, n)"""
    try:
        import h5py
    except ImportError:
        raise InputError(f"reading {path} needs h5py: pip install h5py") from None
    if not path.is_file():
        raise InputError(f"{path} does not exist; the folder of the corpora holds it under real/surrey")
    with h5py.File(path) as file:
        return np.asarray(file["Data.IR"], dtype=np.float64)
