"""Who trains, who validates, who tests: lists in the package, and the rule behind them for clips it has not seen.

Speech is split by speaker (`splits.toml`), music and noise by clip (`clips.toml`).
"""

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.utterances import Utterance

SPLITS = ("train", "validation", "test")
LOST = 0.02
"""Share of the utterances that a lossy codec may move across the line of 2 s."""


def assign(set_name: str, utterances: Sequence[Utterance]) -> list[str]:
    """The split of each utterance of a set."""
    speakers = _table("splits.toml").get(set_name)
    if speakers is not None:
        split_of = {speaker: split for split, named in speakers.items() for speaker in named}
        return [split_of.get(utterance.group, "train") for utterance in utterances]
    listed = {id: split for split, named in _table("clips.toml")[set_name].items() for id in named}
    others = [utterance for utterance in utterances if utterance.id not in listed]
    split_of = listed | alternate(others)
    return [split_of[utterance.id] for utterance in utterances]


def check_counts(set_name: str, utterances: Sequence[Utterance], kept: Sequence[str]) -> None:
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
        for split, utterance in zip(assign(set_name, utterances), utterances, strict=True)
        if utterance.path.suffix.lower() != ".flac"
    }
    for split in SPLITS:
        expected, found = counts[split], kept.count(split)
        if abs(found - expected) > (LOST * expected if split in lossy else 0):
            raise InputError(
                f"silence removal leaves {found} {split} utterances of {set_name}; the paper counts {expected}: the "
                "files are not those of the corpus, so get it again (qkgcc data download)"
            )


def alternate(clips: Sequence[Utterance]) -> dict[str, str]:
    """Split by id: by sorted id the first trains, the second tests, and so on; noise so within each of its classes.

    >>> from pathlib import Path
    >>> rain = [Utterance(f"rain-{i}", Path(), "rain", "noise", "CC0") for i in (1, 2)]
    >>> alternate([Utterance("bell-1", Path(), "bell", "noise", "CC0"), *rain])
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
