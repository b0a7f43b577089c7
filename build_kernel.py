"""Compiles `src/qkgcc/inference/steered.c` while the package is built. Without a compiler it is built all the same."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent / "src" / "qkgcc" / "inference"
SOURCE, DISPATCH, LIBRARY = FOLDER / "steered.c", FOLDER / "dispatch.c", FOLDER / "_kernel.so"
# Sums may be rearranged into fused multiply-adds, but nothing else: rounding is used as such.
FLAGS = ["-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=default"]
PLAIN = ["-DLANES=4", "-DVECTORS=2", "-DENTRY=qkgcc_steered"]
TARGETS = {
    "x86_64": [
        [*PLAIN],
        ["-march=x86-64-v3", "-DLANES=8", "-DVECTORS=2", "-DENTRY=qkgcc_steered_v3"],
        ["-march=x86-64-v4", "-mprefer-vector-width=512", "-DLANES=16", "-DVECTORS=4", "-DENTRY=qkgcc_steered_v4"],
    ],
}
"""By machine: what the source is compiled with, once for each instruction set."""


def compiled(target: Path = LIBRARY) -> bool:
    """Compile into `target`; False where there is no compiler that can."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.system() == "Windows":
        return False
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        jobs = [[*flags, str(SOURCE)] for flags in TARGETS.get(platform.machine().replace("AMD64", "x86_64"), [PLAIN])]
        for i, job in enumerate([*jobs, [f'-DSOURCE_DIGEST="{digest}"', str(DISPATCH)]]):
            objects.append(str(Path(folder) / f"{i}.o"))
            if subprocess.run([*compiler.split(), *FLAGS, *job, "-c", "-o", objects[-1]], check=False).returncode:
                return False
        # Beside its place first, and then at once: another process may be running the old one.
        made = target.with_name(f"{target.name}.{os.getpid()}")
        if subprocess.run([*compiler.split(), "-shared", *objects, "-o", str(made), "-lm"], check=False).returncode:
            return False
        made.replace(target)
    return True


class Kernel(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if compiled():
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(str(LIBRARY.relative_to(Path(self.root))))
        else:
            self.app.display_warning("no C compiler: built without the compiled kernel, networks will be slower")
