"""Documents lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "benchmarks/results", "src/qkgcc/weights")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def heading_links(path: Path) -> set[str]:
    """As GitHub names the headings of a document."""
    lines = [line.lstrip("#").strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {"#" + re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(path: Path) -> None:
    for target, heading in LINK.findall(path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        there = path.parent / target if target else path
        assert there.exists(), target
        assert not heading or there.suffix != ".md" or heading in heading_links(there), target + heading
