"""What the package takes besides time for frames: seconds to the first answer, memory for an hour, megabytes to fetch.

    python -m benchmarks.footprint

Every figure is of processes of their own, one thread each. Where a figure cannot be had (no network to ask for the
sizes of wheels), the row says so.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from benchmarks import asked
from benchmarks.timing import write

ROOT = Path(__file__).parents[1]
STARTS = 15
RATE = 16000
HOP = 1024
GIVEN = ("numpy", "scipy")
"""Packages that whoever works with sound has already."""

_START = """
import numpy as np
from qkgcc import DelayEstimator
sound = np.random.default_rng(0).standard_normal((2, 16000))
assert abs(DelayEstimator(spacing=0.5, threads=1)(sound, 16000).times[0] - 0.064) < 1e-9
"""
_LIBRARIES = "import numpy, scipy.fft"
# The most that the process held at any time since it began, so what its parent held does not count (it would in
# getrusage, where a forked process begins with its parent's).
_ESTIMATE = """
import sys
from pathlib import Path
from qkgcc.cli import main
try:
    main()
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(line for line in lines if line.startswith("VmHWM")))
"""


def alone(*arguments: str) -> str:
    """What a process of one thread prints."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | threads, check=True, capture_output=True, text=True
    )
    return done.stdout


def starts(rounds: int = STARTS) -> dict[str, float]:
    """Seconds from the start of a process to its end, medians, in turns: an estimate, and its two libraries alone."""
    codes = {"estimate": _START, "libraries": _LIBRARIES}
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    for i in range(rounds + 1):
        for name, code in codes.items():
            begun = time.perf_counter()
            alone("-c", code)
            if i:  # the first one may read from disk, and write compiled files
                seconds[name].append(time.perf_counter() - begun)
    return {name: float(np.median(each)) for name, each in seconds.items()}


def recording(path: Path, minutes: int) -> None:
    """Stereo noise that reaches the second microphone first, written minute by minute."""
    rng = np.random.default_rng(0)
    with soundfile.SoundFile(path, "w", RATE, 2, "PCM_16") as file:
        for _ in range(minutes):
            sound = 0.1 * rng.standard_normal(60 * RATE + 5)
            file.write(np.stack([sound[:-5], sound[5:]], axis=1) + 0.03 * rng.standard_normal((60 * RATE, 2)))


def peak_memory(minutes: int, *options: str, ending: str = "csv") -> float:
    """MB that `qkgcc batch` has in memory at most for a recording, without a spacing: all 193 delays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.wav"
        recording(path, minutes)
        general = ["--out", str(Path(folder) / "out"), "--hop", str(HOP / RATE), "--threads", "1", "--format", ending]
        said = alone("-c", _ESTIMATE, "batch", str(path), *general, *options)
        text = (Path(folder) / "out" / f"recording.wav.{ending}").read_text()
        frames = len(text.splitlines()) - 1 if ending == "csv" else len(json.loads(text)["times"])
    assert frames == (60 * minutes * RATE - 2048) // HOP + 1
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", said)[0]) / 1e6


def downloads() -> tuple[float, dict[str, float] | None]:
    """MB of this package's wheel, and of every other one that it needs; None where they cannot be fetched."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own"
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(own), str(ROOT)], check=True)
        (wheel,) = own.glob("*.whl")
        others = Path(folder) / "others"
        command = [*pip, "download", "--only-binary", ":all:", "--dest", str(others), str(wheel)]
        fetched = subprocess.run(command, check=False, capture_output=True).returncode == 0
        return megabytes(wheel), {package(path): megabytes(path) for path in others.iterdir()} if fetched else None


def megabytes(path: Path) -> float:
    return path.stat().st_size / 1e6


def package(wheel: Path) -> str:
    """Of a wheel's file name.

    >>> package(Path("array_api_compat-1.12.0-py3-none-any.whl"))
    'array-api-compat'
    """
    return wheel.name.split("-")[0].lower().replace("_", "-")


def download_rows() -> tuple[list[dict[str, Any]], float | None]:
    """Lines of the table, and MB of the light install over NumPy and SciPy; None where it is not known."""
    own, others = downloads()
    rows = [row("download: this package's wheel", "MB", own)]
    what = "download: the light install over NumPy and SciPy, this package with it"
    if others is None:
        return [*rows, row(f"{what} (the other wheels could not be fetched)", "MB", None)], None
    light = {name: size for name, size in others.items() if name not in (*GIVEN, "qkgcc")}
    largest = sorted(light, key=lambda name: -light[name])[:3]
    named = ", ".join(f"{name} {light[name]:.2f} MB" for name in largest)
    total = own + sum(light.values())
    rows.append(row(f"download: {len(light)} other packages ({named})", "MB", sum(light.values())))
    rows.append(row(what, "MB", total))
    rows.append(row("download: NumPy and SciPy", "MB", sum(others[name] for name in GIVEN)))
    return rows, total


def row(what: str, unit: str, measured: float | None) -> dict[str, Any]:
    return {"what": what, "unit": unit, "measured": measured}


@dataclass(frozen=True)
class Footprint:
    rows: list[dict[str, Any]]
    asked: list[dict[str, Any]]
    """Lines of `benchmarks.asked`."""


def measured(minutes: int = 60, rounds: int = STARTS) -> Footprint:
    """Args:
    minutes: of the recording that memory is measured with.
    rounds: how often the start is.
    """
    seconds, memory, as_json = starts(rounds), peak_memory(minutes), peak_memory(minutes, ending="json")
    fetched, light = download_rows()
    length = "an hour" if minutes == 60 else f"{minutes} min"
    rows = [
        row("a process that imports, loads and estimates 1 s of stereo", "s", seconds["estimate"]),
        row("of that: Python, NumPy and scipy.fft alone", "s", seconds["libraries"]),
        row(f"peak memory, {length} of stereo at 16 kHz, hop {HOP}", "MB", memory),
        row("the same as JSON", "MB", as_json),
        row("the same as JSON with --curve", "MB", peak_memory(minutes, "--curve", ending="json")),
        *fetched,
    ]
    return Footprint(
        rows,
        [
            asked.line("import, load and first estimate", "s", seconds["estimate"], 1.0, 0.5),
            asked.line(f"peak memory, {length} of stereo", "MB", memory, 300.0, 200.0),
            asked.line(f"peak memory, {length} of stereo, as JSON", "MB", as_json, 300.0, 200.0),
            asked.line("light install over NumPy and SciPy", "MB", light, 40.0, 33.0),
        ],
    )


def write_table(found: Footprint, here: dict[str, str] | None = None) -> None:
    """Args:
    here: see `timing.write`.
    """
    notes = [
        f"`general`, one thread. Start: median of {STARTS} processes, from their start to their end. Memory: the most "
        "that `qkgcc batch hour.wav --out FOLDER` has resident, from the file to the CSV or JSON, without a spacing "
        "(193 delays). Download: sizes of wheels as pip fetches them for this machine. `python -m benchmarks.runtime` "
        "measures all this in its run, and writes this table, too."
    ]
    command = "python -m benchmarks.footprint"
    title = "What the package takes"
    write("footprint", title, command, list(found.rows[0]), found.rows, notes, asked=found.asked, here=here)


def main() -> None:
    write_table(measured())


if __name__ == "__main__":
    main()
