"""Recordings that no training has seen, to calibrate a network on: scenes of the general law with validation voices.

Confidence in a recording depends on what is around a frame. So half of the recordings are scenes as they are; in a
quarter the scene is heard for a moment only, with each microphone's own noise before and after; in a quarter another
source comes before and after: the same with the channels swapped, whose delay is the opposite one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.draws import uniform
from qkgcc.lab.scenes.bulk_rooms import SAMPLES, GeneralSources, Rooms
from qkgcc.lab.scenes.general import Scenes, general_scenes
from qkgcc.lab.scenes.general_frames import delays_at, recordings, take
from qkgcc.lab.study.framesets import FRAME, RATE, FrameSet

HOP = FRAME // 2
"""Samples from a frame to the next."""
SHORTEST, LONGEST = 0.1, 1.0
"""Seconds that a scene is heard, where it is for a moment only."""
PAUSE = 0.03
"""Standard deviation of the noise in a pause, of the scene's."""
POOL = 256
"""Synthetic signals of each kind."""
_FIRST = 1 << 41  # index of the first scene: neither a training nor its validation has that many
_CHUNK = 32  # scenes at a time


def unseen_recordings(
    banks: Sequence[Bank], scenes: int, *, progress: Callable[[int], object] | None = None
) -> FrameSet:
    """Frames of recordings of two seconds; a pause has no true delay (NaN), nor have two sources in one frame.

    Recordings 2k and 2k + 1 are of one kind, so that the even and the odd ones are alike. `progress` counts scenes.
    """
    sources = GeneralSources.of(banks, "validation", "cpu", pool=POOL)
    drawn = general_scenes(0, _FIRST + np.arange(scenes), sources.catalog)
    parts = []
    for first in range(0, scenes, _CHUNK):
        numbers = range(first, min(first + _CHUNK, scenes))
        here = take(drawn, np.array(numbers))
        audio = recordings(here, Rooms.of(here), sources).numpy()
        parts += [_recording(i, audio[i - first], take(drawn, np.array([i]))) for i in numbers]
        if progress is not None:
            progress(len(numbers))
    return FrameSet("unseen", *(np.concatenate(column) for column in zip(*(p.columns for p in parts), strict=True)))


def _recording(number: int, audio: npt.NDArray[np.float32], scene: Scenes) -> FrameSet:
    length, place = uniform("unseen/moment", 0, 2 * number + np.arange(2))
    heard = round((SHORTEST + (LONGEST - SHORTEST) * length) * RATE)
    begin = round(place * (SAMPLES - heard))
    on = (np.arange(SAMPLES) >= begin) & (np.arange(SAMPLES) < begin + heard)
    starts = np.arange(0, SAMPLES - FRAME + 1, HOP)
    centres = starts + FRAME // 2
    true = delays_at(scene, torch.as_tensor(centres[None] / RATE))[0, :, 0].numpy().astype(np.float64)
    match number // 2 % 4:
        case 1:
            noise = np.random.default_rng(number).standard_normal(audio.shape)
            audio = np.where(on, audio, PAUSE * audio.std() * noise).astype(np.float32)
            true = np.where(on[centres], true, np.nan)
        case 3:
            audio, true = np.where(on, audio, audio[::-1]), np.where(on[centres], true, -true)
            share = np.array([on[start : start + FRAME].mean() for start in starts])
            true[(share > 0) & (share < 1)] = np.nan
    frames = np.stack([audio[:, start : start + FRAME] for start in starts])
    limit = float(np.linalg.norm(scene.nominal[0, 0] - scene.nominal[0, 1])) * RATE / SPEED_OF_SOUND
    one, which = np.ones(len(frames)), np.full(len(frames), number)
    return FrameSet("", frames, true, limit * one, one, which, which, centres / RATE)
