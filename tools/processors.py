"""The numeric tests, each time as on another processor: `make test-processors`.

This machine plays several: the compiled kernel, torch and OpenBLAS are told which instructions to use. What it does not
have is said and left out. The kernel's tests run once more as compiled for 64-bit ARM, by an emulator. Where that
cannot be installed, they are NOT RUN, which is a failure where CI=true: nobody reads there what it says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

PROCESSORS = {
    "AVX-512": {"QKGCC_INSTRUCTIONS": "avx512", "ATEN_CPU_CAPABILITY": "avx512", "OPENBLAS_CORETYPE": "SkylakeX"},
    "AVX2": {"QKGCC_INSTRUCTIONS": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "OPENBLAS_CORETYPE": "Haswell"},
    "plain instructions": {"QKGCC_INSTRUCTIONS": "plain", "ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Zen"},
}
"""OpenBLAS has nothing as plain as the rest; AMD's Zen is a third way that it adds in."""
ARM_PACKAGES = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"]
NUMERIC = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-n",
    "2",
    "-m",
    "numeric and not slow",
    "--ignore=tests/test_aarch64.py",
]
ARM = [sys.executable, "-m", "pytest", "-q", "-m", "numeric", "tests/test_aarch64.py"]
IN_USE = """
import ctypes
import numpy, scipy.linalg, torch
from qkgcc.network import kernel
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "openblas" in line}
cores = set()
for library in map(ctypes.CDLL, libraries):
    for name in ("openblas_get_corename", "scipy_openblas_get_corename", "scipy_openblas_get_corename64_"):
        if hasattr(library, name):
            core = getattr(library, name)
            core.restype = ctypes.c_char_p
            cores.add(core().decode())
found = kernel.loaded()
runner = kernel.INSTRUCTIONS[found[1]] if found else "none"
print(f"kernel {runner}, torch {torch.backends.cpu.get_cpu_capability()}, OpenBLAS {' '.join(cores) or 'not used'}")
"""


def main() -> int:
    """The exit status: 1 where any run failed."""
    sets = subprocess.run(
        [sys.executable, "-c", "from qkgcc.network import kernel; print(*kernel.entries(), sep=chr(10))"],
        env={name: value for name, value in os.environ.items() if name != "QKGCC_INSTRUCTIONS"},
        check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    if not sets:
        print("there is no compiled kernel: install a C compiler, and the package again")
        return 1
    runs = dict(list(PROCESSORS.items())[-len(sets) :])
    results = dict.fromkeys(PROCESSORS, "left out: this processor does not have it")
    failed = 0
    for name, settings in runs.items():
        environment = os.environ | (settings if len(sets) > 1 else {})  # no OpenBLAS for x86 runs elsewhere
        used = subprocess.run(
            [sys.executable, "-c", IN_USE], env=environment, check=True, capture_output=True, text=True
        )
        print(f"== {name}: {used.stdout.strip()}", flush=True)
        status = subprocess.run(NUMERIC, env=environment).returncode
        results[name] = f"{'failed' if status else 'passed'} ({used.stdout.strip()})"
        failed += status != 0
    missing = missing_for_arm()
    if missing is None:
        print("== 64-bit ARM", flush=True)
        status = subprocess.run(ARM).returncode
        results["64-bit ARM"] = "failed" if status else "passed (emulated)"
        failed += status != 0
    else:
        results["64-bit ARM"] = f"NOT RUN: {missing}"
        failed += os.environ.get("CI") == "true"
    print(*(f"{name}: {result}" for name, result in results.items()), sep="\n")
    return min(failed, 1)


def missing_for_arm() -> str | None:
    """Why the ARM tests cannot run; None: they can. A Debian machine's administrator gets what is missing installed."""

    def there() -> bool:
        emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
        return bool(emulator and shutil.which("aarch64-linux-gnu-gcc"))

    if there():
        return None
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *ARM_PACKAGES]
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"it takes a cross compiler and an emulator; on Debian, as root: {' '.join(install)}"
    unattended = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "--quiet"], install):
        if subprocess.run(command, env=unattended, stdin=subprocess.DEVNULL).returncode:
            return f"{' '.join(command)} failed"
    return None if there() else "the packages are installed, but not their programs"


if __name__ == "__main__":
    sys.exit(main())
