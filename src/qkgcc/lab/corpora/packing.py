"""Making a bank: read, take the silence out, keep the beginning or all of it, encode, write.

Training utterances are kept as their first seconds in Opus, the test split whole and lossless; music and noise, of
which there is little, lossless throughout. A codec on the source changes the sound a little, and never the delay.
"""

import hashlib
import io
import itertools
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.lab.corpora import corpora, librispeech, silence, splits
from qkgcc.lab.corpora.banks import FORMAT, Bank, bank_files
from qkgcc.lab.corpora.ogg import with_fixed_serial
from qkgcc.lab.corpora.utterances import FULL_SCALE, SAMPLE_RATE, Utterance, read_samples
from qkgcc.lab.rooms import spectra

LONGER_THAN = 2 * SAMPLE_RATE
"""Samples: an utterance is kept when it has more than these after silence removal."""
_OPUS_LEVEL = 0.928  # libsndfile counts from 256 kbit/s at 0 to 6 kbit/s at 1: 24 kbit/s


@dataclass(frozen=True)
class Recipe:
    """What is kept of an utterance."""

    seconds: float | None
    """Of an utterance outside the whole split; None: all of it."""
    whole_split: str | None
    """The split that is kept whole and lossless."""
    lossy: bool
    """Whether the other splits are Opus."""

    def kept(self, split: str, samples: NDArray[np.int16]) -> tuple[str, NDArray[np.int16]]:
        """Codec and samples to store."""
        if split == self.whole_split:
            return "flac", samples
        last = None if self.seconds is None else round(self.seconds * SAMPLE_RATE)
        return "opus" if self.lossy else "flac", samples[:last]


@dataclass(frozen=True)
class _Packed:
    row: dict[str, Any]
    audio: bytes
    spectrum: NDArray[np.float32] | None
    """None: the utterance is left out, and `row` says why."""


class _Hashed:
    """A file that is only appended to, with its size and hash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0
        self.digest = hashlib.sha256()

    def append(self, data: bytes) -> int:
        """Where the data begins."""
        self._file.write(data)
        self.digest.update(data)
        self.bytes += len(data)
        return self.bytes - len(data)


def recipe_for(set_name: str, seconds: float | None = None, whole_split: str | None = "test") -> Recipe:
    """The recipe of a set: speech 3 s of Opus and the test split whole, music and noise whole, all where not given."""
    corpora.check_set(set_name)
    if whole_split is not None and whole_split not in splits.SPLITS:
        raise InputError(f"there is no split {whole_split!r}; there are {', '.join(splits.SPLITS)}, or none")
    if seconds is not None and not (math.isfinite(seconds) and seconds >= LONGER_THAN / SAMPLE_RATE):
        raise InputError(f"a bank of {seconds:g} s: the benchmark takes its frames from the first 2 s; give 2 or more")
    speech = set_name in librispeech.SUBSETS
    return Recipe(3.0 if speech and seconds is None else seconds, whole_split, lossy=speech)


def build(
    set_name: str,
    root: Path,
    path: str | Path,
    recipe: Recipe | None = None,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Bank:
    """Pack a set into `path`.audio and `path`.json; both appear at the end, or neither."""
    recipe = recipe or recipe_for(set_name)
    utterances = corpora.utterances(set_name, root)
    assigned = splits.assign(set_name, utterances)
    audio_path, index_path = bank_files(path)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    powers: list[NDArray[np.float32]] = []

    def write_audio(temporary: Path) -> None:
        with temporary.open("wb") as file:
            audio = _Hashed(file)
            packed = _in_order(lambda pair: _pack(*pair, recipe), list(zip(utterances, assigned, strict=True)), jobs)
            for done, one in enumerate(packed, 1):
                if one.spectrum is None:
                    left_out.append(one.row)
                else:
                    rows.append(one.row | {"offset": audio.append(one.audio), "bytes": len(one.audio)})
                    powers.append(one.spectrum)
                progress(done, len(utterances))
            if not rows:
                raise InputError(f"nothing of {set_name} in {root} is longer than 2 s without silence: no bank is made")
            splits.check_counts(set_name, utterances, [row["split"] for row in rows])
            block = np.stack(powers).astype("<f4").tobytes()
            spectra_place = {"offset": audio.append(block), "bytes": len(block), "bins": spectra.BINS, "type": "<f4"}
        index = {
            "format": FORMAT,
            "set": set_name,
            "sample_rate": SAMPLE_RATE,
            "recipe": asdict(recipe) | _fixed_recipe(),
            "audio": {"bytes": audio.bytes, "sha256": audio.digest.hexdigest()},
            "spectra": spectra_place,
            "left_out": left_out,
            "utterances": rows,
        }
        # Inside, so that a full disk is found before either file is replaced. Should the machine stop between the two
        # replacements, the sizes differ and `Bank.load` says so.
        write_whole(index_path, lambda file: file.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8"))

    write_whole(audio_path, write_audio)
    return Bank.load(audio_path)


def _pack(utterance: Utterance, split: str, recipe: Recipe) -> _Packed:
    whole = silence.remove_silence(read_samples(utterance))
    about = {"id": utterance.id, "group": utterance.group, "split": split}
    if len(whole) <= LONGER_THAN or not whole.any():
        reason = "silent" if not whole.any() else "not longer than 2 s without silence"
        return _Packed(about | {"reason": reason, "whole_samples": len(whole)}, b"", None)
    codec, kept = recipe.kept(split, whole)
    row = about | {
        "kind": utterance.kind,
        "licence": utterance.licence,
        "codec": codec,
        "samples": len(kept),
        "whole_samples": len(whole),
        "sha256": hashlib.sha256(whole.astype("<i2").tobytes()).hexdigest(),
    }
    return _Packed(row, _encode(kept, codec), spectra.power_spectrum(whole / FULL_SCALE))


def _encode(samples: NDArray[np.int16], codec: str) -> bytes:
    import soundfile

    stream = io.BytesIO()
    if codec == "flac":
        soundfile.write(stream, samples, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
        return stream.getvalue()
    soundfile.write(stream, samples, SAMPLE_RATE, format="OGG", subtype="OPUS", compression_level=_OPUS_LEVEL)
    return with_fixed_serial(stream.getvalue())


def _fixed_recipe() -> dict[str, Any]:
    """What the recipe does not leave open, written down with it."""
    import soundfile

    return {
        "top_db": silence.TOP_DB,
        "frame": silence.FRAME,
        "hop": silence.HOP,
        "longer_than": LONGER_THAN,
        "opus_level": _OPUS_LEVEL,
        "libsndfile": soundfile.__libsndfile_version__,
    }


def _in_order(
    work: Callable[[tuple[Utterance, str]], _Packed], items: Sequence[tuple[Utterance, str]], jobs: int | None
) -> Iterator[_Packed]:
    """Results in the order of the items, from threads that run only a little ahead: long clips do not pile up."""
    threads = jobs or os.cpu_count() or 1
    waiting: deque[Future[_Packed]] = deque()
    upcoming = iter(items)
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in itertools.islice(upcoming, 4 * threads):
                waiting.append(pool.submit(work, item))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(work, item) for item in itertools.islice(upcoming, 1))
        finally:
            for future in waiting:
                future.cancel()
