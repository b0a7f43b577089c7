"""Training frames of the general distribution in bulk: every scene in a room of its own, on the GPU or the CPU.

    scenes -> responses (Triton or numba) -> two seconds at two microphones -> levels -> noise -> degradations -> frames

The steps, their order and their numbers are those of `render`; a frame of a scene whose sources rest is cut out of the
very recording that `render` makes of it. All two seconds are made, for levels, clipping and band limits belong to the
whole recording, and because nearly all of the time goes into the responses: several frames of a scene cost little more
than one.

Sources that walk are done more cheaply than there. Their direct sound, which the truth is about, follows the path
exactly (`bulk_rooms`). Reflections come from points of it `REFLECTION_STEP` apart, cross-faded linearly from each to
the next: 20 cm instead of the 5 mm (early) and 10 cm (late) of `render`. Half-way between two points the reflections of
both are heard at half their pressure, which costs them up to 1.8 dB of level on average.

Scenes are taken in order of their reverberation, so that a chunk's responses are about as long as each other. None
depends on the others of its chunk, rounding aside.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats
from qkgcc.lab.rooms import degradations, noise
from qkgcc.lab.rooms.draws import stream, uniform
from qkgcc.lab.scenes import bulk_rooms
from qkgcc.lab.scenes.bulk_rooms import SAMPLE_RATE, SAMPLES, GeneralSources, Rooms
from qkgcc.lab.scenes.general import Scenes
from qkgcc.lab.scenes.scenes import MAX_SOURCES

FRAME = 2048
MAX_FRAMES = 16
"""Frames that can be had of a scene."""

_CHUNK = {"cuda": 1024, "cpu": 32}  # scenes at a time
_MEMORY = 24 << 20  # bytes that one of them needs at its most, responses included


class Frames(NamedTuple):
    """N = scenes x frames of each, those of a scene one behind the other."""

    frames: Tensor
    """(N, 2, frame) float32"""
    delays: Tensor
    """(N,) true delays in samples of the first source at the frames' centres, positive = microphone 1 later."""
    weaker: Tensor
    """(N, 2) those of the other sources, NaN where there is none."""


def general_frames(
    scenes: Scenes,
    sources: GeneralSources,
    *,
    frame: int = FRAME,
    frames_per_scene: int = 1,
    progress: Callable[[int], object] | None = None,
) -> Frames:
    """Frames and true delays of scenes with two microphones, on the sources' device.

    Frame k of a scene is the same however many are asked for. `progress` is called with the number of scenes done in
    each chunk.
    """
    if scenes.nominal.shape[1] != 2:
        raise InputError(f"scenes of {scenes.nominal.shape[1]} microphones; frames are made of scenes of 2")
    if not 0 < frame <= SAMPLES:
        raise InputError(f"frames of {frame} samples; a recording of a scene has {SAMPLES}")
    if not 1 <= frames_per_scene <= MAX_FRAMES:
        raise InputError(f"{frames_per_scene} frames of each scene; expected 1 to {MAX_FRAMES}")
    device = sources.samples.device
    starts = frame_starts(scenes, frame, frames_per_scene)
    rooms = Rooms.of(scenes)
    frames = torch.empty(len(scenes), frames_per_scene, 2, frame, device=device)
    delays = torch.full((len(scenes), frames_per_scene, MAX_SOURCES), torch.nan, device=device)
    by_length = np.argsort(rooms.order, kind="stable")
    size = _chunk_size(device)
    for begin in range(0, len(scenes), size):
        rows = by_length[begin : begin + size]
        here = scenes.take(rows)
        audio = recordings(here, rooms.take(rows), sources)
        where = torch.as_tensor(rows, device=device)
        first = torch.as_tensor(starts[rows], device=device)
        frames[where] = _cut(audio, first, frame)
        delays[where] = delays_at(here, (first + frame / 2) / SAMPLE_RATE)
        if progress is not None:
            progress(len(rows))
    delays = delays.flatten(0, 1)
    return Frames(frames.flatten(0, 1), delays[:, 0], delays[:, 1:])


def frame_starts(scenes: Scenes, frame: int, frames_per_scene: int) -> npt.NDArray[np.int64]:
    """First samples of the frames, anywhere in the two seconds. Shape: (B, frames of a scene)"""
    counters = scenes.index[:, None] * MAX_FRAMES + np.arange(frames_per_scene)
    drawn: Floats = uniform("general/frame-start", scenes.seed, counters)
    return (drawn * (SAMPLES - frame + 1)).astype(np.int64)


def recordings(scenes: Scenes, rooms: Rooms, sources: GeneralSources) -> Tensor:
    """Two seconds of each scene at both microphones. Shape: (B, 2, 32000)"""
    scene, slot = np.nonzero(scenes.signal != "")  # of S sources, those of a scene behind each other
    rows = sources.find(scenes.signal[scene, slot].tolist())
    signals, sounding = sources.parts(rows, scenes.start[scene, slot])
    heard = bulk_rooms.hear_sources(
        signals,
        scenes.first[scene, slot],
        scenes.last[scene, slot],
        rooms.take(scene),
    )
    air = mix(heard, sounding, scenes, scene, slot)
    return degrade(air, *noises(scenes, air.device), scenes)


def mix(
    heard: Tensor,
    sounding: Tensor,
    scenes: Scenes,
    scene: npt.NDArray[np.int64],
    slot: npt.NDArray[np.int64],
) -> Tensor:
    """The sources of each scene at their levels: the first at unit variance at microphone 1 while it sounds, the others
    against it over both microphones.

    Shape: (S, 2, n), (S,) -> (B, 2, n)
    """
    device = heard.device
    count = sounding[:, None]
    playing = heard * (torch.arange(heard.shape[-1], device=device) < count)[:, None]
    power = (playing**2).sum(-1) / count - (playing.sum(-1) / count) ** 2
    lead = torch.as_tensor(np.flatnonzero(slot == 0)[scene], device=device)  # the row of each one's first source
    variance, loudness = power[lead, 0], power.mean(-1)
    silent = np.flatnonzero(~(variance > 0).cpu().numpy() & (slot == 0))
    if len(silent):
        id = scenes.signal[scene[silent[0]], 0]
        raise InputError(f"{id} is silent at microphone 1, so there is nothing to set its level by")
    asked = 10 ** (_tensor(scenes.interference[scene, slot], device) / 10)
    # An interferer that is silent in this part of its signal stays so.
    relative = loudness[lead] / torch.where(loudness > 0, loudness, torch.inf) * asked
    relative = torch.where(torch.as_tensor(slot == 0, device=device), 1.0, relative)
    scaled = heard * torch.sqrt(relative / variance)[:, None, None]
    whole = torch.zeros(len(scenes), *heard.shape[1:], device=device)
    return whole.index_add_(0, torch.as_tensor(scene, device=device), scaled)


def noises(scenes: Scenes, device: torch.device) -> tuple[Tensor, Tensor]:
    """Noise of the field and noise of the microphones' own; one of the two is silence. Shape: (B, 2, 32000) each"""
    seeds = [stream(f"general/noise-seed/{index}", scenes.seed) for index in scenes.index.tolist()]
    keys = torch.as_tensor(np.array([noise.keys(seed, 2) for seed in seeds]), device=device)
    drawn = noise.white(keys, torch.zeros(len(keys), dtype=torch.int64, device=device), SAMPLES)
    drawn = noise.coloured(drawn, _tensor(scenes.slope, device), SAMPLE_RATE)
    drawn = drawn * (10 ** (-_tensor(scenes.snr, device) / 20))[:, None, None]
    diffuse = torch.as_tensor(scenes.diffuse, device=device)[:, None, None]
    spacing = np.linalg.norm(scenes.microphones[:, 0] - scenes.microphones[:, 1], axis=-1)
    field = bulk_rooms.diffuse_pairs(drawn, _tensor(spacing, device))
    return torch.where(diffuse, field, 0.0), torch.where(diffuse, 0.0, drawn)


def degrade(air: Tensor, field: Tensor, own: Tensor, scenes: Scenes) -> Tensor:
    """What the recorders make of what is in the air, in the order of `degradations`. Shape: (B, 2, n) each"""
    device = air.device
    each = (scenes.gain, scenes.tilt, scenes.peak, scenes.peak_frequency)
    gain, tilt, peak, peak_frequency = (_tensor(x, device) for x in each)
    audio = degradations.respond(air + field, gain, tilt, peak, peak_frequency, SAMPLE_RATE) + own
    clipped = np.flatnonzero(scenes.clipped)  # few, and clipping sorts all of their samples
    if len(clipped):
        rows = torch.as_tensor(clipped, device=device)
        audio[rows] = degradations.clip(audio[rows], _tensor(scenes.clipped[clipped], device))
    low, high = (_tensor(x, device) for x in scenes.band.T)
    audio = degradations.limit_band(audio, low, high, SAMPLE_RATE)
    recorded: Tensor = degradations.set_level(audio, _tensor(scenes.level, device))
    return recorded


def delays_at(scenes: Scenes, times: Tensor) -> Tensor:
    """True delays of every source, NaN where there is none. Shape: (B, F) seconds -> (B, F, 3)"""
    scene, slot = np.nonzero(scenes.signal != "")
    row, column = (torch.as_tensor(x, device=times.device) for x in (scene, slot))
    delays = torch.full((*times.shape, MAX_SOURCES), torch.nan, device=times.device)
    delays[row, :, column] = bulk_rooms.delays_at(
        scenes.first[scene, slot], scenes.last[scene, slot], scenes.microphones[scene], times[row]
    ).float()
    return delays


def _cut(audio: Tensor, first: Tensor, frame: int) -> Tensor:
    """Shape: (B, 2, n), (B, F) -> (B, F, 2, frame)"""
    at = first[..., None, None] + torch.arange(frame, device=audio.device)
    shape = (*first.shape, *audio.shape[1:])
    return audio[:, None].expand(shape).gather(-1, at.expand(*shape[:-1], frame))


def _chunk_size(device: torch.device) -> int:
    """Scenes at a time: enough to fill the GPU, as few as fit in half of the memory that can be had."""
    most = _CHUNK[device.type]
    if device.type == "cpu":
        return most
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return max(1, min(most, (torch.cuda.mem_get_info(device)[0] + kept) // 2 // _MEMORY))


def _tensor(values: Floats, device: torch.device) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32, device=device)
