"""The house rules: which folder may import which, and how large a file may be. Reads the source, imports nothing."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "qkgcc"
LAYERS = (
    {"core"},
    {"audio", "dsp"},
    {"network"},
    {"pairs"},
    {"delay"},
    {"tracks", "arrays"},
    {"sync", "selfcal", "doctor", "live", "batch", "samples"},
    {"plots"},
    {"__init__"},
    {"cli", "__main__"},
    {"nets"},
    {"lab"},
)
"""From the lowest up: a folder imports folders of lower layers, its own, and those beside it; never one above."""
LAB = ({"provenance"}, {"rooms"}, {"corpora"}, {"scenes"}, {"frozen"}, {"training"}, {"study"}, {"cli"})
ALLOWED = {  # (importing module, imported folder): why. It may shrink and never grow.
    ("delay.result", "plots"): "answer.plot(), imported when it is called",
    ("arrays.result", "plots"): "the same",
    ("pairs.neural", "nets"): "checkpoints that need torch",
    ("plots", "lab"): "pictures of scenes, to be moved to the lab",
    ("cli.__init__", "lab"): "`qkgcc train` and its like",
}
LIMIT = 600  # lines of a module
MODULES = {p.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): p for p in sorted(ROOT.rglob("*.py"))}
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imports(module: str) -> set[str]:
    """Modules of the package that a module names, at its top or within functions."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "qkgcc":
            for alias in node.names:
                full = f"{node.module}.{alias.name}".removeprefix("qkgcc").lstrip(".")
                parent = node.module.removeprefix("qkgcc").lstrip(".")
                for name in (full, f"{full}.__init__", parent, f"{parent}.__init__".lstrip(".")):
                    if name in MODULES:
                        found.add(name)
                        break
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("qkgcc.") for a in node.names if a.name.removeprefix("qkgcc.") in MODULES}
    return found - {module}


GRAPH = {module: imports(module) for module in MODULES}


def test_every_folder_has_a_layer() -> None:
    assert {module.split(".")[0] for module in MODULES} <= set(RANK)


@pytest.mark.parametrize("module", MODULES)
def test_imports_lead_downwards(module: str) -> None:
    here = module.split(".")[0]
    upward = {
        other
        for other in GRAPH[module]
        if RANK[other.split(".")[0]] > RANK[here] and (module, other.split(".")[0]) not in ALLOWED
    }
    assert not upward


def test_the_lab_is_layered_too() -> None:
    rank = {name: i for i, layer in enumerate(LAB) for name in layer}
    wrong = [
        (a, b)
        for a, others in GRAPH.items()
        for b in others
        if a.startswith("lab.")
        and b.startswith("lab.")
        and "__init__" not in (a[4:], b[4:])
        and rank[b.split(".")[1]] > rank[a.split(".")[1]]
    ]
    assert not wrong


def test_no_module_imports_itself_through_others() -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for other in GRAPH[module]:
                if (module, other.split(".")[0]) not in ALLOWED:
                    visit(other, (*way, module))
            done.add(module)

    for module in MODULES:
        visit(module, ())


def test_what_is_allowed_is_still_needed() -> None:
    assert {(m, f) for m, f in ALLOWED if any(o.split(".")[0] == f for o in GRAPH[m])} == set(ALLOWED)


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_too_long(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= LIMIT


def test_nobody_uses_what_begins_with_an_underscore_elsewhere() -> None:
    wrong = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("qkgcc"):
                wrong += [(module, a.name) for a in node.names if a.name.startswith("_")]
    assert not wrong
