"""MUSAN's music and noise as they unpack: `music/<source>/*.wav`, `noise/<source>/*.wav`.

D. Snyder, G. Chen, D. Povey, "MUSAN: A Music, Speech, and Noise Corpus", 2015 (openslr.org/17). A source folder says
the licences of its clips in a file LICENSE: blocks between lines of `=`, each beginning with a clip's name, or one
statement for the whole folder. Folders made in the same layout may hold an `index.csv` instead, with the columns `file`
and `licence` and, where clips have a class, `category` (or `debian_package`, the game a piece of music comes from).
"""

import csv
import re
from pathlib import Path

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.utterances import Utterance, in_order, sound_files

KINDS = ("music", "noise")
LICENCE = "CC BY 4.0 (MUSAN as a whole)"
_CLASS_COLUMNS = ("category", "debian_package")


def utterances(root: Path, kind: str) -> list[Utterance]:
    """Every clip of music or noise, sorted by id; its group is its class, or its source folder where none is given."""
    corpus = find(root, kind)
    found = []
    for source in sorted(path for path in (corpus / kind).iterdir() if path.is_dir()):
        index = _index(source)
        licences = _licences(source)
        for path in sound_files(source):
            row = index.get(path.name, {})
            group = next((row[column] for column in _CLASS_COLUMNS if row.get(column)), source.name)
            licence = row.get("licence") or licences.get(path.stem) or licences.get("", LICENCE)
            found.append(Utterance(path.stem, path, group, kind, licence))
    if not found:
        raise InputError(f"{corpus / kind} holds no clips; expected {kind}/<source>/*.wav (or .flac, .opus)")
    return in_order(found)


def find(root: Path, kind: str) -> Path:
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
