"""Making a bank: read, take the silence out, keep the beginning or all of it, encode, write.

Training utterances are kept as their first seconds in Opus, the test split whole and lossless; music and noise, of
which there is little, lossless throughout. A codec on the source changes the sound a little, and never the delay.

Silence removal follows the protocol: frames of 2048 samples every 512 are centred on their time, with zeros beyond both
ends. A frame is kept when its RMS is less than 20 dB below that of the loudest frame; a run of kept frames t1..t2 keeps
the samples 512 t1 to 512 (t2 + 1), as `librosa.effects.split(y, top_db=20)` does.

Ogg streams carry a serial number that encoders draw at random, so the same samples would give different bytes each
time. With one stream per utterance the number has no use: it is set to 1 in every page (RFC 3533, section 6), and each
page's checksum is computed again.
"""

import hashlib
import io
import itertools
import math
import os
import zlib
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
from qkgcc.core.tables import json_text, save_text
from qkgcc.core.types import Floats32, Samples
from qkgcc.lab.corpora import sets
from qkgcc.lab.corpora.banks import FORMAT, Bank, bank_files
from qkgcc.lab.corpora.sets import FULL_SCALE, SAMPLE_RATE, Utterance, read_samples
from qkgcc.lab.rooms import mixing

LONGER_THAN = 2 * SAMPLE_RATE
"""Samples: an utterance is kept when it has more than these after silence removal."""
_OPUS_LEVEL = 0.928  # libsndfile counts from 256 kbit/s at 0 to 6 kbit/s at 1: 24 kbit/s
SILENCE_DB = 20.0
"""Below the RMS of the loudest frame: what is silent."""
SILENCE_FRAME, SILENCE_HOP = 2048, 512
"""Samples of a frame whose RMS is compared, and between the beginnings of two."""
_SILENCE_FLOOR = 1e-10  # mean square that counts as 0 (RMS 1e-5 of full scale), as in librosa
_OGG_HEADER = 27  # bytes of a page before its segment table
_OGG_SERIAL = slice(14, 18)  # bytes of a page
_OGG_CHECKSUM = slice(22, 26)
_REVERSED_BYTES = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


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
    spectrum: Floats32 | None
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
    sets.check_set(set_name)
    if whole_split is not None and whole_split not in sets.SPLITS:
        raise InputError(f"there is no split {whole_split!r}; there are {', '.join(sets.SPLITS)}, or none")
    if seconds is not None and not (math.isfinite(seconds) and seconds >= LONGER_THAN / SAMPLE_RATE):
        raise InputError(f"a bank of {seconds:g} s: the benchmark takes its frames from the first 2 s; give 2 or more")
    speech = set_name in sets.LIBRISPEECH_SUBSETS
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
    utterances = sets.utterances(set_name, root)
    assigned = sets.assign_splits(set_name, utterances)
    audio_path, index_path = bank_files(path)
    rows: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    powers: list[Floats32] = []

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
            sets.check_split_counts(set_name, utterances, [row["split"] for row in rows])
            block = np.stack(powers).astype("<f4").tobytes()
            spectra_place = {"offset": audio.append(block), "bytes": len(block), "bins": mixing.BINS, "type": "<f4"}
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
        save_text(json_text(index, indent=1), index_path)

    write_whole(audio_path, write_audio)
    return Bank.load(audio_path)


def _pack(utterance: Utterance, split: str, recipe: Recipe) -> _Packed:
    whole = remove_silence(read_samples(utterance))
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
    return _Packed(row, _encode(kept, codec), mixing.power_spectrum(whole / FULL_SCALE))


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
        "top_db": SILENCE_DB,
        "frame": SILENCE_FRAME,
        "hop": SILENCE_HOP,
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


def loud_intervals(signal: Samples) -> NDArray[np.int64]:
    """First and last-plus-one sample of every part that is not silent; full scale is 1.

    Shape: (samples,) -> (parts, 2)

    >>> loud_intervals(np.concatenate([np.zeros(8000), np.ones(2000), np.zeros(6000)])).tolist()
    [[7168, 11264]]
    """
    frames = 1 + len(signal) // SILENCE_HOP
    # A frame is four hops: the energy of each hop is summed once, and a frame adds up four of them.
    padded = np.zeros((frames + SILENCE_FRAME // SILENCE_HOP) * SILENCE_HOP)
    padded[SILENCE_FRAME // 2 : SILENCE_FRAME // 2 + len(signal)] = signal
    hops = np.square(padded).reshape(-1, SILENCE_HOP).sum(axis=1)
    power = np.convolve(hops, np.ones(SILENCE_FRAME // SILENCE_HOP), "valid")[:frames] / SILENCE_FRAME
    decibels = 10 * np.log10(np.maximum(power, _SILENCE_FLOOR))
    loud = decibels > decibels.max() - SILENCE_DB
    edges = np.flatnonzero(np.diff(loud, prepend=False, append=False)) * SILENCE_HOP
    return np.minimum(edges, len(signal)).reshape(-1, 2)


def remove_silence(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    """The parts that are not silent, one after the other. Shape: (samples,) -> (fewer samples,)"""
    parts = loud_intervals(samples / FULL_SCALE)
    return np.concatenate([samples[first:last] for first, last in parts])


def with_fixed_serial(stream: bytes, serial: int = 1) -> bytes:
    """The same Ogg stream under another serial number."""
    pages = bytearray(stream)
    start = 0
    while start < len(pages):
        if pages[start : start + 4] != b"OggS":
            raise InputError(f"an Ogg page should begin at byte {start}: this is no Ogg stream")
        segments = pages[start + 26]
        table = start + _OGG_HEADER
        end = table + segments + sum(pages[table : table + segments])
        page = pages[start:end]
        page[_OGG_SERIAL] = serial.to_bytes(4, "little")
        page[_OGG_CHECKSUM] = bytes(4)
        page[_OGG_CHECKSUM] = ogg_checksum(bytes(page)).to_bytes(4, "little")
        pages[start:end] = page
        start = end
    return bytes(pages)


def ogg_checksum(page: bytes) -> int:
    """Ogg's CRC: zlib's polynomial with the bits in the other order, beginning at 0 instead of at all ones.

    >>> hex(ogg_checksum(b"123456789"))
    '0x89a1897f'
    """
    value = zlib.crc32(page.translate(_REVERSED_BYTES), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{value:032b}"[::-1], 2)
