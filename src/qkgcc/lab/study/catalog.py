"""Which methods stand in which table of the paper, in its order, and what the paper says of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from qkgcc.core.errors import InputError

SEEDS = (0, 1, 2)
REPRESENTATIVE = 0
"""The seed of everything that is trained only once."""


@dataclass(frozen=True)
class Method:
    """A row. Its name is that of its training, too; GCC-PHAT has none."""

    name: str
    label: str
    seeds: tuple[int | None, ...] = SEEDS

    @property
    def trained(self) -> bool:
        return self.seeds != (None,)


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    benchmarks: tuple[str, ...]
    methods: tuple[Method, ...]


GCC_PHAT = Method("gcc-phat", "GCC-PHAT", (None,))
_COMPARED = (
    GCC_PHAT,
    Method("pgcc", "PGCC-PHAT"),
    Method("ngcc", "NGCC-PHAT"),
    Method("qkgcc", "QK-GCC"),
    Method("steered", "steered QK-GCC (ours)"),
)


def _once(name: str, label: str) -> Method:
    return Method(name, label, (REPRESENTATIVE,))


TABLES = {
    table.name: table
    for table in (
        Table("table1", "Speech", ("paper-test",), _COMPARED),
        Table("table2", "Zero-shot: noise and music", ("paper-noise", "paper-music"), _COMPARED),
        Table(
            "table3",
            "Ablations",
            ("paper-test",),
            (
                GCC_PHAT,
                _once("pgcc", "PGCC-PHAT"),
                _once("ngcc", "NGCC-PHAT"),
                _once("transformer", "Transformer"),
                _once("qkgcc-raw-offsets", "QK-GCC without sym / asym"),
                _once("qkgcc-no-magnitude", "QK-GCC without magnitude"),
                _once("qkgcc-b0", "QK-GCC, b = 0"),
                _once("qkgcc", "QK-GCC, b = 8 (default)"),
                _once("qkgcc-b16", "QK-GCC, b = 16"),
                _once("qkgcc-b32", "QK-GCC, b = 32"),
                _once("steered", "steered QK-GCC (ours)"),
            ),
        ),
        # Not in the paper. It does not print the widths of the head: two fit what it counts. And a network that cannot
        # learn the modes of the training room bin by bin.
        Table(
            "variants",
            "Other heads and positions",
            ("paper-test",),
            (
                _once("qkgcc", "68 -> 32 (5 bins) -> 32 (5 bins), as above"),
                _once("qkgcc-head96", "68 -> 96 (1 bin) -> 32 (3 bins)"),
                _once("qkgcc-smooth", "as above, positions from 65 rows"),
            ),
        ),
    )
}


def table(name: str) -> Table:
    if name not in TABLES:
        raise InputError(f"there is no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name]


@cache
def _published() -> dict[str, Any]:
    return tomllib.loads((resources.files("qkgcc.lab.study") / "published.toml").read_text())


def published(table: str, benchmark: str, method: str) -> dict[str, Any] | None:
    """The paper's figures of a row.

    >>> published("table1", "paper-test", "qkgcc")["acc10cm"]
    66.69
    """
    row: dict[str, Any] | None = _published().get(table, {}).get(benchmark, {}).get(method)
    return row


def published_flops(method: str) -> float | None:
    """Millions of operations a frame that the paper prints."""
    count: float | None = _published()["flops"].get(method)
    return count
