"""LibriSpeech as it unpacks: `LibriSpeech/<subset>/<speaker>/<chapter>/<speaker>-<chapter>-<number>.flac`.

V. Panayotov et al., "LibriSpeech: an ASR corpus based on public domain audio books", ICASSP 2015 (openslr.org/12).
"""

from dataclasses import dataclass
from pathlib import Path

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.utterances import Utterance, in_order, sound_files

SUBSETS = ("test-clean", "dev-clean")
LICENCE = "CC BY 4.0"


@dataclass(frozen=True)
class Speaker:
    """A line of SPEAKERS.TXT."""

    id: str
    sex: str
    subset: str
    name: str


def utterances(root: Path, subset: str) -> list[Utterance]:
    """Every utterance of a subset, sorted by id; its group is the speaker."""
    corpus = find(root, subset)
    known = speakers(corpus)
    found = []
    for path in sound_files(corpus / subset):
        speaker = path.relative_to(corpus / subset).parts[0]
        if speaker not in known:
            raise InputError(
                f"{path} belongs to speaker {speaker!r}, whom {corpus / 'SPEAKERS.TXT'} does not know; "
                f"expected {subset}/<speaker>/<chapter>/<id>.flac"
            )
        found.append(Utterance(path.stem, path, speaker, "speech", LICENCE))
    if not found:
        raise InputError(f"{corpus / subset} holds no utterances (.flac, .opus or .wav): unpack {subset} again")
    return in_order(found)


def find(root: Path, subset: str) -> Path:
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
