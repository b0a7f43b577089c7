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
from pathlib import Path

import numpy as np
import soundfile

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
    """MB that `qkgcc estimate --out` has in memory at most for a recording, without a spacing: all 193 delays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording.wav"
        recording(path, minutes)
        general = ["--out", str(Path(folder) / "out"), "--hop", str(HOP / RATE), "--threads", "1", "--format", ending]
        said = alone("-c", _ESTIMATE, "estimate", str(path), *general, *options)
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


def row(what: str, measured: str, most: str = "-", aim: str = "-") -> dict[str, str]:
    return {"what": what, "measured": measured, "at most": most, "aim": aim}


def download_rows() -> list[dict[str, str]]:
    own, others = downloads()
    rows = [row("download: this package's wheel", f"{own:.2f} MB")]
    what = "download: the light install over NumPy and SciPy, this package with it"
    if others is None:
        return [*rows, row(what, "not known: the other wheels could not be fetched", "40 MB", "33 MB")]
    light = {name: size for name, size in others.items() if name not in (*GIVEN, "qkgcc")}
    largest = sorted(light, key=lambda name: -light[name])[:3]
    named = ", ".join(f"{name} {light[name]:.2f} MB" for name in largest)
    rows.append(row(f"download: {len(light)} other packages", f"{sum(light.values()):.2f} MB ({named})"))
    rows.append(row(what, f"{own + sum(light.values()):.2f} MB", "40 MB", "33 MB"))
    rows.append(row("download: NumPy and SciPy", f"{sum(others[name] for name in GIVEN):.1f} MB"))
    return rows


def main() -> None:
    seconds = starts()
    rows = [
        row(
            "a process that imports, loads and estimates 1 s of stereo", f"{seconds['estimate']:.2f} s", "1 s", "0.5 s"
        ),
        row("of that: Python, NumPy and scipy.fft alone", f"{seconds['libraries']:.2f} s"),
        row(
            f"peak memory, an hour of stereo at 16 kHz, hop {HOP}",
            f"{peak_memory(60):.0f} MB",
            "300 MB",
            "200 MB",
        ),
        row("the same as JSON", f"{peak_memory(60, ending='json'):.0f} MB", "300 MB", "200 MB"),
        row("the same as JSON with --curve", f"{peak_memory(60, '--curve', ending='json'):.0f} MB", "300 MB"),
        *download_rows(),
    ]
    notes = [
        f"`general`, one thread. Start: median of {STARTS} processes, from their start to their end. Memory: the most "
        "that `qkgcc estimate hour.wav --out FOLDER` has resident, from the file to the CSV or JSON, without a spacing "
        "(193 delays). Download: sizes of wheels as pip fetches them for this machine."
    ]
    write("footprint", "What the package takes", "python -m benchmarks.footprint", list(rows[0]), rows, notes)


if __name__ == "__main__":
    main()
