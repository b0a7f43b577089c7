"""Size and shape of the code before and after a rebuilding: `python tools/house.py --before REV`.

Counts are taken from the syntax tree: a statement is one however its lines are broken, and docstrings are none.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

LAB = {"lab", "nets", "models", "train", "experiments", "simulate", "data"}
LAB_COMMANDS = {"cli/data.py", "cli/simulate.py", "cli/train.py", "cli/reproduce.py"}  # before there was a lab
LONG_FUNCTION, MANY_PARAMETERS, LONG_CLASS = 60, 8, 250
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    path: str
    text: str

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text)))


def modules(revision: str) -> list[Module]:
    """All Python files of a commit."""
    packed = subprocess.run(["git", "archive", revision], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        names = [name for name in archive.getnames() if name.endswith(".py")]
        files = {name: archive.extractfile(name) for name in names}
        return [Module(name, file.read().decode()) for name, file in files.items() if file]


def area(module: Module) -> str:
    top, *rest = PurePosixPath(module.path).parts
    if top == "src":
        inside = "/".join(rest[1:])
        return "lab and nets" if rest[1] in LAB or inside in LAB_COMMANDS else "for users"
    return {"tests": "tests", "benchmarks": "benchmarks and tools", "tools": "benchmarks and tools"}.get(top, "build")


def statements(nodes: list[ast.AST]) -> int:
    texts = {id(n) for n in nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
    return sum(isinstance(n, ast.stmt) and id(n) not in texts for n in nodes)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def constants(module: Module) -> int:
    """Numbers with a name at the top of a module, or within a class."""
    tree = ast.parse(module.text)
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return sum(_is_number(node) for body in bodies for node in body)


def _is_number(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    values = list(ast.walk(node.value))
    return any(isinstance(v, ast.Constant) and type(v.value) in (int, float) for v in values) and not any(
        isinstance(v, ast.Call | ast.Lambda | ast.comprehension) for v in values
    )


def shape(found: list[Module]) -> Iterator[tuple[str, str]]:
    """Rows of the table: what, and how much."""
    for name in ("for users", "lab and nets", "benchmarks and tools", "tests"):
        part = [module for module in found if area(module) == name]
        counted = sum(statements(module.nodes) for module in part)
        yield f"{name}: files / lines / statements", f"{len(part)} / {sum(m.lines for m in part):,} / {counted:,}"
    library = [module for module in found if module.path.startswith("src/")]
    nodes = [node for module in library for node in module.nodes]
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    lengths = np.array([_length(node) for node in functions])
    yield (
        "lines of a function: median / 95 % / longest",
        f"{np.median(lengths):.0f} / {np.percentile(lengths, 95):.0f} / {lengths.max()}",
    )
    yield f"functions of more than {LONG_FUNCTION} lines", str((lengths > LONG_FUNCTION).sum())
    given = np.array([parameters(node) for node in functions])
    yield (
        f"functions of more than {MANY_PARAMETERS} parameters / most",
        f"{(given > MANY_PARAMETERS).sum()} / {given.max()}",
    )
    classes = [_length(node) for node in nodes if isinstance(node, ast.ClassDef)]
    yield (
        f"classes of more than {LONG_CLASS} lines / longest",
        f"{sum(n > LONG_CLASS for n in classes)} / {max(classes)}",
    )
    longest = max(library, key=lambda module: module.lines)
    yield "longest file", f"{longest.lines} ({PurePosixPath(longest.path).name})"
    yield "constants with a number", str(sum(constants(module) for module in library))
    stems = [PurePosixPath(m.path).stem for m in library]
    yield "file names that stand more than once", str(len({s for s in stems if stems.count(s) > 1} - {"__init__"}))
    folders = {PurePosixPath(module.path).parts[2] for module in library if len(PurePosixPath(module.path).parts) > 3}
    yield "floors (folders of the package)", str(len(folders))
    yield "modules that lie flat in the root", str(sum(len(PurePosixPath(m.path).parts) == 3 for m in library))
    aliases = sum(len(re.findall(r"^Floats = ", m.text, re.MULTILINE)) for m in library)
    yield "times that `Floats` is defined", str(aliases)
    exceptions = [m for m in found if m.path == "tests/test_architecture.py"]
    yield "imports against the rule", str(_exceptions(exceptions[0])) if exceptions else "no rule"


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _exceptions(module: Module) -> int:
    for node in ast.parse(module.text).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Dict)
            and ast.unparse(node.targets[0]) == "ALLOWED"
        ):
            return len(node.value.keys)
    raise ValueError(f"{module.path} has no dictionary ALLOWED")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, help="commit")
    parser.add_argument("--after", default="HEAD", help="commit")
    asked = parser.parse_args()
    before, after = (dict(shape(modules(revision))) for revision in (asked.before, asked.after))
    print("# The house\n")
    print(f"`python tools/house.py --before {asked.before}`, which counts statements beside lines.\n")
    print("| | before | after |\n|---|--:|--:|")
    for what, value in after.items():
        print(f"| {what} | {before[what]} | {value} |")


if __name__ == "__main__":
    main()
