"""One utterance or clip of any corpus, and its samples: 16 kHz, one channel, 16 bits."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qkgcc.audio.recording import open_audio, resampled
from qkgcc.core.errors import InputError

SAMPLE_RATE = 16_000
FULL_SCALE = 32_768
_SUFFIXES = (".flac", ".opus", ".wav")


@dataclass(frozen=True)
class Utterance:
    """A piece of sound in a corpus. `id` is unique within its set."""

    id: str
    path: Path
    group: str
    """The speaker, or the class of a clip: what must not be on both sides of a fair split of speakers."""
    kind: str
    """`speech`, `music` or `noise`."""
    licence: str


def sound_files(folder: Path) -> list[Path]:
    """The sound files anywhere below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())


def in_order(utterances: Iterable[Utterance]) -> list[Utterance]:
    """Utterances sorted by id. One id in two files would make a split ambiguous: an `InputError`."""
    ordered = sorted(utterances, key=lambda utterance: utterance.id)
    for one, two in itertools.pairwise(ordered):
        if one.id == two.id:
            raise InputError(f"{one.id} is there twice, as {one.path} and as {two.path}: remove one of them")
    return ordered


def read_samples(utterance: Utterance) -> NDArray[np.int16]:
    """All samples of an utterance at 16 kHz.

    Lossy codecs decode to beyond full scale now and then, so samples are clipped; 16-bit files come back as they are.
    Shape: (samples,)
    """
    recording = open_audio(utterance.path)
    if len(recording.channels) != 1:
        raise InputError(f"{utterance.path} has {len(recording.channels)} channels; the sounds of a corpus have 1")
    blocks = resampled(recording.blocks(), recording.sample_rate, SAMPLE_RATE)
    samples = np.concatenate(list(blocks), axis=1)[0]
    scaled = np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1)
    return np.asarray(scaled, dtype=np.int16)
