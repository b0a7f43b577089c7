"""A folder for each process, for the files that are fuzzed."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path


def workplace() -> Path:
    """This process's own folder."""
    return _of_process(os.getpid())


@cache
def root() -> Path:
    """Where all of them are; who calls this first removes it at its end, also when the others are killed."""
    memory = Path("/dev/shm")  # where there is one: a million files
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if os.access(memory, os.W_OK) else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _of_process(number: int) -> Path:
    folder = root() / str(number)
    folder.mkdir()
    return folder
