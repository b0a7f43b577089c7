"""File names for messages, checks of paths, and writing a file as a whole or not at all.

A file is written under a temporary name in the same folder, locked by its process. A lock ends with its process, so the
next process that writes into the folder recognises and removes the temporary files of one that was killed.
"""

import errno
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qkgcc.core.checks import check_name
from qkgcc.core.errors import InputError, escape

if sys.platform != "win32":  # where what a killed process leaves stays
    import fcntl

MARK = "made by qkgcc"
"""Stands in the metadata of pictures and recordings and in the comments of texts: such files are qkgcc's to replace."""

_TEMPORARY = ".qkgcc-"
_IS_TEMPORARY = re.compile(r"\.qkgcc-[a-z0-9_]{8}(\..*)?").fullmatch  # as tempfile names them; `.qkgcc-csv` is none

_cleaned: set[Path] = set()  # folders in which this process has looked for what others left: a folder may be large


def display_name(path: str | Path) -> str:
    """A file's name for messages and tables: undecodable bytes and control characters are escaped.

    >>> display_name("talk-" + b"\\xff".decode(errors="surrogateescape"))
    'talk-\\\\xff'
    """
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:  # half a letter, which no name of a file can have
        name = str(path).encode(errors="backslashreplace")
    return escape(name.decode(sys.getfilesystemencoding(), errors="backslashreplace"))


def is_file(path: str | Path) -> bool:
    """Whether a file is there. (`Path.is_file` raises where a name is longer than a name can be.)"""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there, however long its name is."""
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: str | Path) -> bool:
    """Whether anything is there, however long its name is."""
    return os.path.exists(path)  # noqa: PTH110


def broken_link(path: str | Path) -> str | None:
    """What is wrong with a dangling link; None for any other path."""
    if exists(path) or not os.path.islink(path):  # noqa: PTH114
        return None
    try:
        os.stat(path)  # noqa: PTH116
        return None
    except OSError as error:
        why = "leads back to it" if error.errno == errno.ELOOP else "does not exist"
    return f"{display_name(path)} is a link to {display_name(os.readlink(path))}, which {why}"  # noqa: PTH115


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = broken_link(folder) or error.strerror or error
        raise InputError(f"cannot make the folder {display_name(folder)}: {why}") from None


def check_file(path: Path) -> None:
    """Raise an `InputError` unless the path is a regular file, which can be read again and again."""
    if is_file(path):
        return
    name = display_name(path)
    if is_folder(path):
        raise InputError(f"{name} is a folder; expected a file")
    if exists(path):
        raise InputError(f"{name} is a pipe or a device; expected a file: save it to one")
    raise InputError(broken_link(path) or f"{name}: there is no such file")


def check_writable(folder: Path) -> float:
    """Write a probe file into a folder, remove it, and return its time: permissions alone do not tell."""
    try:
        with _temporary_file(folder) as probe:
            return probe.stat().st_mtime
    except OSError as error:
        raise InputError(f"cannot write into the folder {display_name(folder)}: {error.strerror or error}") from None


def write_whole(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then put it in place; a fault leaves the old file as it was."""
    path = Path(check_name("file to write", path, "a path"))
    if not is_folder(path.parent):
        raise InputError(f"cannot write {display_name(path)}: the folder {display_name(path.parent)} does not exist")
    if exists(path) and not is_file(path):
        what = "a folder" if is_folder(path) else "a pipe or a device"
        raise InputError(f"cannot write {display_name(path)}: it is {what}; expected the name of a file")
    try:
        path = path.resolve() if path.is_symlink() else path  # what it leads to is replaced, and the link is kept
        with _temporary_file(path.parent, path.suffix) as temporary:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # on the disk before it takes the old file's place
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {display_name(path)}: {error.strerror or error}") from None
    return path


@contextmanager
def temporary_folder(folder: Path) -> Iterator[Path]:
    """A new folder within a folder, removed at the end."""
    with _temporary(folder, lambda: tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder)) as made:
        yield made


@contextmanager
def _temporary_file(folder: Path, suffix: str = "") -> Iterator[Path]:
    """A new, empty file in a folder, removed at the end unless it was renamed."""

    def make() -> str:
        # A name of its own: one made of the target's would be longer than that, and perhaps than a name may be.
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=suffix, dir=folder)
        os.close(handle)
        return name

    with _temporary(folder, make) as made:
        yield made


@contextmanager
def _temporary(folder: Path, make: Callable[[], str]) -> Iterator[Path]:
    _remove_abandoned(folder)
    made = Path(make())
    lock = _lock(made, wait=True)
    while not made.exists():  # before it was locked, another process took it for abandoned
        _unlock(lock)
        made = Path(make())
        lock = _lock(made, wait=True)
    try:
        yield made
    finally:
        _remove(made)
        _unlock(lock)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary files and folders within a folder whose processes have ended: nobody holds their locks."""
    if (folder := folder.resolve()) in _cleaned:
        return
    _cleaned.add(folder)
    for path in folder.iterdir():
        if _IS_TEMPORARY(path.name) and (lock := _lock(path, wait=False)) is not None:
            with suppress(OSError):
                _remove(path)
            _unlock(lock)


def _lock(path: Path, *, wait: bool) -> int | None:
    """A handle of a file or folder that is locked until it is closed; None where that cannot be had."""
    if sys.platform == "win32":
        return None
    try:
        handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # NFS locks only what can be written
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return handle


def _unlock(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
