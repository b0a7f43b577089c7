"""Compiles `src/qkgcc/network/steered.c` while the package is built. Without a compiler, and on Windows,
the package is built all the same."""

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

FOLDER = Path(__file__).parent / "src" / "qkgcc" / "network"
SOURCE, DISPATCH, LIBRARY = FOLDER / "steered.c", FOLDER / "dispatch.c", FOLDER / "_kernel.so"
# Sums may be rearranged into fused multiply-adds, but nothing else: rounding is used as such.
FLAGS = ["-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fvisibility=default"]
TARGETS = {
    "": ["-DLANES=4", "-DVECTORS=2", "-DENTRY=qkgcc_steered"],
    "V3": ["-march=x86-64-v3", "-DLANES=8", "-DVECTORS=2", "-DENTRY=qkgcc_steered_v3"],
    "V4": [
        "-march=x86-64-v4",
        "-mprefer-vector-width=512",
        "-DLANES=16",
        "-DVECTORS=4",
        "-DENTRY=qkgcc_steered_v4",
    ],
}
"""What the source is compiled with, once for each instruction set. An older compiler may not know the higher ones."""


def compiled(target: Path = LIBRARY) -> bool:
    """Compile into `target`; False where there is no compiler that can, and on Windows: it takes other flags there."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.system() == "Windows":
        return False

    def ran(*arguments: str) -> bool:
        try:
            return subprocess.run([*compiler.split(), *arguments], check=False).returncode == 0
        except OSError:  # a name in CC that is nowhere
            return False

    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    sets = [name for name in TARGETS if not name or platform.machine() == "x86_64"]
    with tempfile.TemporaryDirectory() as folder:
        objects = {name: str(Path(folder) / f"steered{name}.o") for name in sets}
        made = [name for name in sets if ran(*FLAGS, *TARGETS[name], str(SOURCE), "-c", "-o", objects[name])]
        dispatch = str(Path(folder) / "dispatch.o")
        have = [f"-DHAVE_{name}" for name in made if name]
        if "" not in made or not ran(*FLAGS, f'-DSOURCE_DIGEST="{digest}"', *have, str(DISPATCH), "-c", "-o", dispatch):
            return False
        # Beside its place first, and then at once: another process may be running the old one.
        beside = target.with_name(f"{target.name}.{os.getpid()}")
        if not ran("-shared", *(objects[name] for name in made), dispatch, "-o", str(beside), "-lm"):
            return False
        beside.replace(target)
    return True


class Kernel(BuildHookInterface):  # type: ignore[misc]
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if compiled():
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(str(LIBRARY.relative_to(Path(self.root))))
        else:
            self.app.display_warning(
                "no C compiler, or Windows: built without the compiled kernel, networks will be slower"
            )
