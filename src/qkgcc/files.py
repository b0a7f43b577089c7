"""Names that can be shown, and writing whole files or none."""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from qkgcc.errors import InputError

_TEMPORARY = ".qkgcc-"  # how names of temporary files begin


def shown(path: str | Path) -> str:
    """A file's name for messages and tables: bytes that are no letters stand there as numbers.

    >>> shown("talk-" + b"\\xff".decode(errors="surrogateescape"))
    'talk-\\\\xff'
    """
    return os.fsencode(path).decode(sys.getfilesystemencoding(), errors="backslashreplace")


def check_writable(folder: Path) -> float:
    """Make a file in a folder and drop it, and give the time there: rights alone do not say whether it can be done."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_TEMPORARY) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError as error:
        raise InputError(f"cannot write into the folder {shown(folder)}: {error.strerror or error}") from None


def write_whole(path: str | Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then put it in place; a fault leaves the old file as it was."""
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {shown(path)}: the folder {shown(path.parent)} does not exist")
    try:
        # A name of its own: one made of the file's would be longer than that, and perhaps than a name may be.
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, suffix=path.suffix, dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())  # on the disk before it takes the old file's place
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {shown(path)}: {error.strerror or error}") from None
    return path


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
