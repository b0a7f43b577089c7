"""Documents lead somewhere."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qkgcc import samples

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


# What the README shows is what is printed

SHOWN = re.compile(r"```\n\$ qkgcc (.*)\n((?:.+\n)+)```")
NUMBER = re.compile(r"[+-]?\d+\.?\d*")
COLUMNS = "104"


@pytest.mark.parametrize(
    ("command", "shown"), SHOWN.findall((ROOT / "README.md").read_text(encoding="utf-8")), ids=lambda text: text[:8]
)
def test_the_readme_shows_what_a_command_prints(command: str, shown: str, tmp_path: Path) -> None:
    shutil.copy(samples.path("talkers-2ch"), tmp_path / "talk.flac")
    done = subprocess.run(
        [sys.executable, "-m", "qkgcc", *command.split()],
        cwd=tmp_path, env=os.environ | {"COLUMNS": COLUMNS}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"
    assert NUMBER.sub("0", printed) == NUMBER.sub("0", shown)
    for found, expected in zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True):
        last_digit = 10.0 ** -len(expected.partition(".")[2])  # it may be another one on another processor
        assert float(found) == pytest.approx(float(expected), abs=1.01 * last_digit)


# Public names

SOURCE = ROOT / "src" / "qkgcc"


def exported() -> dict[str, list[str]]:
    """`__all__` of every package, read without importing it: the torch half is not everywhere."""
    found = {}
    for path in sorted(SOURCE.rglob("__init__.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                package = ".".join(path.parent.relative_to(SOURCE.parent).parts)
                found[package] = ast.literal_eval(node.value)
    return found


def test_the_page_of_public_names_has_them_all_and_no_others() -> None:
    text = (ROOT / "docs" / "guide" / "api.md").read_text(encoding="utf-8")
    listed = {
        part.partition("\n")[0].strip("`"): sorted(re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE))
        for part in text.split("\n## ")[1:]
    }
    assert listed == {package: sorted(names) for package, names in exported().items()}


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda path: path.stem
)
def test_no_page_sends_users_into_private_modules(path: Path) -> None:
    public = exported()
    text = path.read_text(encoding="utf-8")
    for package, names in re.findall(r"from (qkgcc[\w.]*) import ([\w, ]+)", text):
        assert {name.strip() for name in names.split(",")} <= set(public.get(package, [])), package
    for mention in re.findall(r"(?<![/\w])(qkgcc(?:\.\w+)+)", text):
        package, _, name = mention.rpartition(".")
        assert mention in public or name in public.get(package, []) or mention.startswith("qkgcc.lab."), mention
