"""The sets that banks are made of: LibriSpeech's speech, MUSAN's music and noise, and the splits of each.

LibriSpeech unpacks as `LibriSpeech/<subset>/<speaker>/<chapter>/<speaker>-<chapter>-<number>.flac`, MUSAN as
`music/<source>/*.wav` and `noise/<source>/*.wav`. A source folder of MUSAN says the licences of its clips in a file
LICENSE: blocks between lines of `=`, each beginning with a clip's name, or one statement for the whole folder. Folders
of the same layout may hold an `index.csv` instead, with the columns `file` and `licence` and, where clips have a class,
`category` (or `debian_package`, the game a piece of music comes from).

Who trains, who validates and who tests is listed in the package: by speaker for speech (`splits.toml`), by clip for
music and noise (`clips.toml`). A rule assigns the clips that are not listed.

V. Panayotov et al., "LibriSpeech: an ASR corpus based on public domain audio books", ICASSP 2015 (openslr.org/12).
D. Snyder, G. Chen, D. Povey, "MUSAN: A Music, Speech, and Noise Corpus", 2015 (openslr.org/17).
"""

import csv
import itertools
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkgcc.audio.frames import resample
from qkgcc.audio.recording import open_audio
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
    blocks = resample(recording.blocks(), recording.sample_rate, SAMPLE_RATE)
    samples = np.concatenate(list(blocks), axis=1)[0]
    scaled = np.clip(np.rint(samples * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1)
    return np.asarray(scaled, dtype=np.int16)


LIBRISPEECH_SUBSETS = ("test-clean", "dev-clean")
LIBRISPEECH_LICENCE = "CC BY 4.0"


@dataclass(frozen=True)
class Speaker:
    """A line of SPEAKERS.TXT."""

    id: str
    sex: str
    subset: str
    name: str


def librispeech_utterances(root: Path, subset: str) -> list[Utterance]:
    """Every utterance of a subset, sorted by id; its group is the speaker."""
    corpus = find_librispeech(root, subset)
    known = speakers(corpus)
    found = []
    for path in sound_files(corpus / subset):
        speaker = path.relative_to(corpus / subset).parts[0]
        if speaker not in known:
            raise InputError(
                f"{path} belongs to speaker {speaker!r}, whom {corpus / 'SPEAKERS.TXT'} does not know; "
                f"expected {subset}/<speaker>/<chapter>/<id>.flac"
            )
        found.append(Utterance(path.stem, path, speaker, "speech", LIBRISPEECH_LICENCE))
    if not found:
        raise InputError(f"{corpus / subset} holds no utterances (.flac, .opus or .wav): unpack {subset} again")
    return in_order(found)


def find_librispeech(root: Path, subset: str) -> Path:
    """The `LibriSpeech` folder with a subset in it, whether `root` is that folder, its parent, or the data root."""
    places = [root / "librispeech" / "LibriSpeech", root / "LibriSpeech", root]
    for place in places:
        if (place / subset).is_dir():
            return place
    raise InputError(
        f"there is no LibriSpeech {subset}: looked for {', '.join(str(place / subset) for place in places)}; "
        f"download it with `qkgcc data download --set {subset} --out {root}`"
    )


def speakers(corpus: Path) -> dict[str, Speaker]:
    """The readers of the whole corpus by id, from SPEAKERS.TXT."""
    path = corpus / "SPEAKERS.TXT"
    if not path.is_file():
        raise InputError(f"{path} is missing; it comes with every LibriSpeech archive: copy it there from one")
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if line.startswith(";") or not line.strip():
            continue
        # At most five fields: one reader is called "|CBW|Simon".
        fields = [field.strip() for field in line.split("|", 4)]
        if len(fields) != 5:
            raise InputError(f"{path}, line {number}: expected ID | SEX | SUBSET | MINUTES | NAME, got {line!r}")
        found[fields[0]] = Speaker(fields[0], fields[1], fields[2], fields[4])
    return found


MUSAN_KINDS = ("music", "noise")
MUSAN_LICENCE = "CC BY 4.0 (MUSAN as a whole)"
_CLASS_COLUMNS = ("category", "debian_package")


def musan_clips(root: Path, kind: str) -> list[Utterance]:
    """Every clip of music or noise, sorted by id; its group is its class, or its source folder where none is given."""
    corpus = find_musan(root, kind)
    found = []
    for source in sorted(path for path in (corpus / kind).iterdir() if path.is_dir()):
        index = _index(source)
        licences = _licences(source)
        for path in sound_files(source):
            row = index.get(path.name, {})
            group = next((row[column] for column in _CLASS_COLUMNS if row.get(column)), source.name)
            licence = row.get("licence") or licences.get(path.stem) or licences.get("", MUSAN_LICENCE)
            found.append(Utterance(path.stem, path, group, kind, licence))
    if not found:
        raise InputError(f"{corpus / kind} holds no clips; expected {kind}/<source>/*.wav (or .flac, .opus)")
    return in_order(found)


def find_musan(root: Path, kind: str) -> Path:
    """The `musan` folder, whether `root` is that folder or holds it."""
    places = [root / "musan", root]
    for place in places:
        if (place / kind).is_dir():
            return place
    raise InputError(
        f"there is no MUSAN {kind}: looked for {', '.join(str(place / kind) for place in places)}; "
        f"download it with `qkgcc data download --set {kind} --out {root}`"
    )


def _index(source: Path) -> dict[str, dict[str, str]]:
    path = source / "index.csv"
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = csv.DictReader(file)
        missing = {"file", "licence"} - set(rows.fieldnames or ())
        if missing:
            raise InputError(f"{path} has no column {' and no column '.join(sorted(missing))}")
        return {row["file"]: row for row in rows}


def _licences(source: Path) -> dict[str, str]:
    """Licence by clip id; the empty id stands for the whole folder."""
    path = source / "LICENSE"
    if not path.is_file():
        return {}
    found = {}
    for block in re.split(r"^={3,}\s*$", path.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE):
        lines = [line.strip() for line in block.splitlines() if line.strip()]
        named = bool(lines) and lines[0].startswith(("music-", "noise-"))
        text = _licence_line(lines[1:] if named else lines)
        if text:
            found[lines[0].removesuffix(".wav") if named else ""] = text
    return found


def _licence_line(lines: list[str]) -> str | None:
    """The line that names the licence, among titles, performers and addresses.

    >>> _licence_line(["Title: Rain", "License: Attribution 3.0", "http://soundbible.com/1"])
    'Attribution 3.0'
    """
    for line in lines:
        if re.search(r"\bCC\b|\bCC0\b|creative commons|attribution|public domain|licen[cs]e", line, re.IGNORECASE):
            return re.sub(r"^licen[cs]e:\s*", "", line, flags=re.IGNORECASE)
    return None


SETS = (*LIBRISPEECH_SUBSETS, *MUSAN_KINDS)
VARIABLE = "QKGCC_DATA"


def data_root(given: Path | None = None) -> Path:
    """The folder of the corpora: the one given (`--data`), else the one that $QKGCC_DATA names."""
    named = os.environ.get(VARIABLE)
    if given is None and not named:
        raise InputError(
            f"where are the corpora? Give their folder, or set the variable {VARIABLE} to it; "
            "to get them: `qkgcc data download --set test-clean --out FOLDER`"
        )
    root = Path(named or "") if given is None else given
    if not root.is_dir():
        origin = f" (${VARIABLE})" if given is None else ""
        raise InputError(
            f"the folder {root}{origin} does not exist; give the folder of the corpora, "
            f"or fill it: `qkgcc data download --set test-clean --out {root}`"
        )
    return root


def utterances(set_name: str, root: Path) -> list[Utterance]:
    """Every utterance or clip of a set, sorted by id."""
    check_set(set_name)
    if set_name in LIBRISPEECH_SUBSETS:
        return librispeech_utterances(root, set_name)
    return musan_clips(root, set_name)


def check_set(set_name: str) -> None:
    if set_name not in SETS:
        raise InputError(f"there is no set {set_name!r}; there are {', '.join(SETS)}")


SPLITS = ("train", "validation", "test")
LOSSY_SHARE = 0.02
"""Share of the utterances that a lossy codec may move across the line of 2 s."""


def assign_splits(set_name: str, utterances: Sequence[Utterance]) -> list[str]:
    """The split of each utterance of a set."""
    speakers = _table("splits.toml").get(set_name)
    if speakers is not None:
        split_of = {speaker: split for split, named in speakers.items() for speaker in named}
        return [split_of.get(utterance.group, "train") for utterance in utterances]
    listed = {id: split for split, named in _table("clips.toml")[set_name].items() for id in named}
    others = [utterance for utterance in utterances if utterance.id not in listed]
    split_of = listed | alternate_splits(others)
    return [split_of[utterance.id] for utterance in utterances]


def check_split_counts(set_name: str, utterances: Sequence[Utterance], kept: Sequence[str]) -> None:
    """An `InputError` unless a complete set leaves as many utterances in each split as the paper counted.

    Exactly, where all files of a split are the original FLAC; of lossy copies nearly. Parts of a set
    and sets that nobody has counted are not checked.

    Args:
        kept: the split of every utterance that is kept.
    """
    counts = _table("splits.toml")["counts"].get(set_name)
    if counts is None or len(utterances) != counts["utterances"]:
        return
    lossy = {
        split
        for split, utterance in zip(assign_splits(set_name, utterances), utterances, strict=True)
        if utterance.path.suffix.lower() != ".flac"
    }
    for split in SPLITS:
        expected, found = counts[split], kept.count(split)
        if abs(found - expected) > (LOSSY_SHARE * expected if split in lossy else 0):
            raise InputError(
                f"silence removal leaves {found} {split} utterances of {set_name}; the paper counts {expected}: the "
                "files are not those of the corpus, so get it again (qkgcc data download)"
            )


def alternate_splits(clips: Sequence[Utterance]) -> dict[str, str]:
    """Split by id: by sorted id the first trains, the second tests, and so on; noise so within each of its classes.

    >>> from pathlib import Path
    >>> rain = [Utterance(f"rain-{i}", Path(), "rain", "noise", "CC0") for i in (1, 2)]
    >>> alternate_splits([Utterance("bell-1", Path(), "bell", "noise", "CC0"), *rain])
    {'bell-1': 'train', 'rain-1': 'train', 'rain-2': 'test'}
    """
    seen: dict[str, int] = {}
    split_of = {}
    for clip in sorted(clips, key=lambda clip: clip.id):
        row = clip.group if clip.kind == "noise" else ""
        seen[row] = seen.get(row, 0) + 1
        split_of[clip.id] = "train" if seen[row] % 2 else "test"
    return split_of


@cache
def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))
