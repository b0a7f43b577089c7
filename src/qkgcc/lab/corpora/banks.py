"""Banks: the utterances of a set without their silence, encoded one after the other in one file, with an index.

`NAME.audio` holds an Ogg Opus or FLAC stream per utterance and, behind them, the power spectra as little-endian float32
of shape (utterances, 513). `NAME.json` says where each lies and holds the hash of the audio file, so that the hash of
the index names the whole bank. `packing.py` writes banks; reading one needs NumPy and soundfile.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkgcc.core.errors import InputError
from qkgcc.core.interrupts import interrupts_wait
from qkgcc.core.tables import parse_json
from qkgcc.core.types import Floats32
from qkgcc.lab.corpora.sets import SAMPLE_RATE, SPLITS
from qkgcc.lab.rooms.mixing import BINS

FORMAT = 1
_AGAIN = "build or copy the bank again"
_PLACE: dict[str, type] = {"offset": int, "bytes": int}
_AUDIO: dict[str, type] = {"bytes": int, "sha256": str}
_KEYS: dict[str, type] = {
    "set": str,
    "sample_rate": int,
    "recipe": dict,
    "audio": dict,
    "spectra": dict,
    "left_out": list,
    "utterances": list,
}
_ROW: dict[str, type] = {
    **_PLACE,
    "id": str,
    "group": str,
    "split": str,
    "kind": str,
    "licence": str,
    "samples": int,
    "whole_samples": int,
    "sha256": str,
}


class Bank:
    """Utterances of one set, decoded when asked for.

    Attributes: `name` of the set; `ids`; `splits`, `groups` and `kinds`, arrays of text; `samples` as stored and
    `whole_samples` of the whole utterance without silence; `content_hashes`, SHA-256 of the whole one's 16-bit samples;
    `power_spectrum` of the whole one, shape (utterances, 513), which sums to its mean square (see `rooms.mixing`);
    `licences`; `recipe`; `left_out`, rows with id, group, split and reason; `hash` of the whole bank.
    """

    def __init__(self, path: Path, index: dict[str, Any], hash: str, power_spectrum: Floats32) -> None:
        rows: list[dict[str, Any]] = index["utterances"]
        self.path = path
        self.name: str = index["set"]
        self.sample_rate: int = index["sample_rate"]
        self.recipe: dict[str, Any] = index["recipe"]
        self.left_out: list[dict[str, Any]] = index["left_out"]
        self.hash = hash
        self.power_spectrum = power_spectrum
        self.ids: list[str] = [row["id"] for row in rows]
        self.licences: list[str] = [row["licence"] for row in rows]
        self.content_hashes: list[str] = [row["sha256"] for row in rows]
        self.groups = np.array([row["group"] for row in rows])
        self.splits = np.array([row["split"] for row in rows])
        self.kinds = np.array([row["kind"] for row in rows])
        self.samples = np.array([row["samples"] for row in rows], dtype=np.int64)
        self.whole_samples = np.array([row["whole_samples"] for row in rows], dtype=np.int64)
        self._places = [(row["offset"], row["bytes"]) for row in rows]
        self._number = {id: number for number, id in enumerate(self.ids)}

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> "Bank":
        """A bank by its name, with or without suffix. The index and the sizes are always checked.

        Args:
            verify: check the audio's hash, too: 0.1 s for test-clean.
        """
        audio, index = bank_files(path)
        for wanted, partner in ((index, audio), (audio, index)):
            if not wanted.is_file():
                state = f"{partner.name} is there without it: the bank is incomplete, build it again or copy both files"
                hint = "build it with: qkgcc data bank"
                raise InputError(f"{wanted} does not exist; {state if partner.is_file() else hint}")
        text = index.read_bytes()
        content = _checked_index(index, text)
        _check_audio(audio, content["audio"], verify)
        place = content["spectra"]
        with audio.open("rb") as file:
            file.seek(place["offset"])
            spectra = np.frombuffer(file.read(place["bytes"]), dtype="<f4").reshape(-1, BINS)
        if not (np.isfinite(spectra) & (spectra >= 0)).all():
            raise InputError(f"{audio} holds power spectra that are negative or no numbers: {_AGAIN}")
        return cls(audio, content, hashlib.sha256(text).hexdigest(), spectra.astype(np.float32))

    def __len__(self) -> int:
        return len(self.ids)

    def index(self, id: str) -> int:
        """The number of an utterance."""
        if id not in self._number:
            raise InputError(f"the bank {self.name} ({self.path.stem}) holds no utterance {id!r}")
        return self._number[id]

    def select(self, *, split: str) -> NDArray[np.int64]:
        """The numbers of the utterances of a split, in order."""
        if split not in SPLITS:
            raise InputError(f"there is no split {split!r}; there are {', '.join(SPLITS)}")
        return np.flatnonzero(self.splits == split)

    def audio(self, i: int, samples: int | None = None) -> Floats32:
        """The stored samples of an utterance, or the first `samples` of them. Full scale is 1. Shape: (n,)"""
        import soundfile

        offset, size = self._places[i]
        with self.path.open("rb") as file:
            file.seek(offset)
            stream = io.BytesIO(file.read(size))
        wanted = int(self.samples[i]) if samples is None else min(samples, int(self.samples[i]))
        try:
            with interrupts_wait():
                signal, _ = soundfile.read(stream, frames=wanted, dtype="float32")
        except (soundfile.SoundFileError, RuntimeError):
            signal = np.empty(0, dtype=np.float32)
        if signal.shape != (wanted,):
            raise InputError(f"{self.path}: {self.ids[i]} cannot be decoded, the bank is damaged: {_AGAIN}")
        return np.asarray(signal, dtype=np.float32)

    def stack(self, indices: ArrayLike, samples: int, jobs: int | None = None) -> Floats32:
        """The first `samples` of several utterances, zeros behind those that are shorter. Shape: (N, samples)"""
        numbers: Sequence[int] = np.asarray(indices, dtype=np.int64).tolist()
        rows = np.zeros((len(numbers), samples), dtype=np.float32)

        def fill(row: int) -> None:
            signal = self.audio(numbers[row], samples)
            rows[row, : len(signal)] = signal

        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            for _ in pool.map(fill, range(len(numbers))):
                pass
        return rows


def bank_files(path: str | Path) -> tuple[Path, Path]:
    """The audio file and the index of a bank.

    >>> [file.name for file in bank_files("banks/test-clean.json")]
    ['test-clean.audio', 'test-clean.json']
    """
    path = Path(path)
    if not path.name:  # such as "." or "": there is no name to put another ending to
        raise InputError(f"{str(path)!r} names no bank: give the file that `qkgcc data bank` wrote")
    name = path.stem if path.suffix in (".audio", ".json") else path.name
    return path.with_name(f"{name}.audio"), path.with_name(f"{name}.json")


def _checked_index(path: Path, text: bytes) -> dict[str, Any]:
    damaged = f"{path} is no index of a bank, or a damaged one"
    try:
        content = parse_json(text, str(path))
    except InputError:
        content = None
    if not isinstance(content, dict) or "format" not in content:
        raise InputError(f"{damaged}: {_AGAIN}")
    if content["format"] != FORMAT:
        raise InputError(
            f"{path} is a bank of format {content['format']}; this qkgcc reads format {FORMAT}: "
            "build it again with this version"
        )
    fault = _fault(content)
    if fault:
        raise InputError(f"{damaged} ({fault}): {_AGAIN}")
    return content


def _fault(content: dict[str, Any]) -> str | None:
    """What is wrong with an index, if anything: everything that is read of it later is there and fits together."""
    fault = _mistyped(content, _KEYS) or _mistyped(content["audio"], _AUDIO) or _mistyped(content["spectra"], _PLACE)
    if fault:
        return fault
    rows, size = content["utterances"], content["audio"]["bytes"]
    for number, row in enumerate(rows):
        fault = _mistyped(row, _ROW)
        if fault:
            return f"utterance {number}: {fault}"
        if row["split"] not in SPLITS:
            return f"utterance {number}: there is no split {row['split']!r}"
        if not 0 < row["samples"] <= row["whole_samples"]:
            return f"utterance {number} keeps {row['samples']} of {row['whole_samples']} samples"
    if len({row["id"] for row in rows}) < len(rows):
        return "an id is there twice"
    if not all(isinstance(row, dict) for row in content["left_out"]):
        return "left_out is no list of rows"
    if content["sample_rate"] != SAMPLE_RATE:
        return f"a sample rate of {content['sample_rate']} Hz; banks have {SAMPLE_RATE}"
    if content["spectra"]["bytes"] != len(rows) * BINS * 4:
        return f"the spectra are not {BINS} numbers for each of {len(rows)} utterances"
    places = [(place["offset"], place["bytes"]) for place in (content["spectra"], *rows)]
    if any(offset < 0 or length <= 0 or offset + length > size for offset, length in places):
        return "a place outside the audio file"
    return None


def _mistyped(values: Any, types: dict[str, type]) -> str | None:
    """Which key is missing or of another type."""
    for key, kind in types.items():
        if not isinstance(values, dict) or key not in values:
            return f"{key} is missing"
        if type(values[key]) is not kind:
            return f"{key} is {values[key]!r:.40}"
    return None


def _check_audio(path: Path, expected: dict[str, Any], verify: bool) -> None:
    size = path.stat().st_size
    if size != expected["bytes"]:
        raise InputError(
            f"{path} holds {size} bytes, its index says {expected['bytes']}: the bank is half-written or the two files "
            "are of different banks; build it again or copy both files"
        )
    if verify:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected["sha256"]:
            raise InputError(f"{path} is damaged: its SHA-256 is not that of its index; {_AGAIN}")
