"""Timing several functions fairly on a noisy machine, and writing what came out."""

import json
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from qkgcc.provenance import commit

RESULTS = Path(__file__).parent / "results"


def interleaved(functions: Mapping[str, Callable[[], object]], rounds: int, *, warm: int = 0) -> dict[str, np.ndarray]:
    """Seconds of each function in each round; every round runs them all, so that a slow spell hits each of them.

    Args:
        warm: how often to run each before it is measured, so that caches hold its own data, as they do frame after
            frame, not what the function before it has left.
    """
    for function in functions.values():
        function()
    seconds = {name: np.empty(rounds) for name in functions}
    for i in track(range(rounds), description="rounds"):
        for name, function in functions.items():
            for _ in range(warm):
                function()
            start = time.perf_counter()
            function()
            seconds[name][i] = time.perf_counter() - start
    return seconds


def ratio(seconds: np.ndarray, reference: np.ndarray) -> float:
    """Median of the ratios round by round."""
    return float(np.median(seconds / reference))


def machine() -> dict[str, str]:
    packages = ("numpy", "scipy", "torch", "onnxruntime", "pyroomacoustics")
    return {
        "processor": _processor(),
        "python": platform.python_version(),
        "git": commit() or "unknown",
    } | {name: _version(name) for name in packages}


def write(
    name: str, title: str, command: str, headings: list[str], rows: list[dict[str, Any]], notes: list[str]
) -> None:
    """`rows` as results/NAME.json, and as a Markdown table in results/NAME.md. Printed too."""
    RESULTS.mkdir(exist_ok=True)
    about = machine()  # before anything is written: results are files of the checkout, too
    record = {"schema": 1, "name": name, "command": command, "machine": about, "rows": rows}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    lines = [f"# {title}", "", f"Written by `{command}`; do not edit.", ""]
    lines += ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    lines += ["| " + " | ".join(_cell(row[heading]) for heading in headings) + " |" for row in rows]
    lines += ["", *notes, "", ", ".join(f"{key} {value}" for key, value in about.items())]
    text = "\n".join(lines) + "\n"
    (RESULTS / f"{name}.md").write_text(text)
    print(text)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not there"


def _cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor()
