"""The sets a bank can be made of, and the folder they lie in."""

import os
from pathlib import Path

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora import librispeech, musan
from qkgcc.lab.corpora.utterances import Utterance

SETS = (*librispeech.SUBSETS, *musan.KINDS)
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
    if set_name in librispeech.SUBSETS:
        return librispeech.utterances(root, set_name)
    return musan.utterances(root, set_name)


def check_set(set_name: str) -> None:
    if set_name not in SETS:
        raise InputError(f"there is no set {set_name!r}; there are {', '.join(SETS)}")
