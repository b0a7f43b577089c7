"""Unpacking a .tar.gz beside its place, and moving it there when it is whole."""

import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from qkgcc.core.errors import InputError
from qkgcc.core.files import temporary_folder


def unpack(archive: Path, into: Path, progress: Callable[[int, int], None]) -> None:
    """Unpack into a folder that may hold other parts of the same corpus.

    Members that would land elsewhere (absolute names, `..`, links out of the folder, devices) are refused, by the
    `data` filter of PEP 706. `progress` hears the bytes of the archive that are done, and how many there are.
    """
    total = archive.stat().st_size
    with temporary_folder(into) as temporary:
        try:
            with archive.open("rb") as file, tarfile.open(fileobj=file, mode="r:gz") as members:
                for member in members:
                    members.extract(member, temporary, filter="data")
                    progress(file.tell(), total)
        except tarfile.FilterError as error:
            raise InputError(f"{archive} is not unpacked, a member is unsafe: {error}") from None
        except (tarfile.TarError, EOFError, zlib.error) as error:
            raise InputError(f"{archive} cannot be unpacked ({error}): remove it and run the command again") from None
        _move(temporary, into)


def _move(source: Path, target: Path) -> None:
    """Put what lies in `source` into `target`: files first, then whole folders, so that a folder means all is there."""
    for child in sorted(source.iterdir(), key=lambda path: path.is_dir()):
        place = target / child.name
        if child.is_dir() and place.is_dir():
            _move(child, place)
        else:
            child.replace(place)
