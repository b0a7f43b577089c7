"""The corpora from openslr.org: fetched with resume, checked, unpacked.

An archive arrives as `NAME.part`, which a further run goes on with; it is unpacked only when its MD5 is right, beside
its place and then moved there, so that a corpus is there as a whole or not at all.
"""

import hashlib
import http.client
import tarfile
import tomllib
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from qkgcc.core.errors import InputError
from qkgcc.core.files import temporary_folder
from qkgcc.lab.corpora.sets import check_set

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes done and the bytes there are."""

_CHUNK = 1 << 18
_TIMEOUT = 60.0  # seconds without a byte


@dataclass(frozen=True)
class Archive:
    """An archive as a server offers it."""

    urls: tuple[str, ...]
    bytes: int
    md5: str
    into: str
    holds: str
    licence: str

    @property
    def file(self) -> str:
        return self.urls[0].rsplit("/", 1)[-1]


class _Broken(Exception):
    """A server did not answer, or stopped in the middle."""


def archive_of(set_name: str) -> Archive:
    """The archive that holds a set.

    >>> archive_of("noise").file
    'musan.tar.gz'
    """
    check_set(set_name)
    table = tomllib.loads(files(__package__).joinpath("archives.toml").read_text(encoding="utf-8"))
    entry = next(entry for entry in table.values() if set_name in entry.pop("sets"))
    return Archive(urls=tuple(entry.pop("urls")), **entry)


def download(archive: Archive, root: Path, progress: Progress = lambda stage, done, total: None) -> Path:
    """Fetch, check and unpack an archive under `root`, unless its folder is there already; that folder."""
    into = root / archive.into
    place = into / archive.holds
    if place.is_dir():
        return place
    try:
        into.mkdir(parents=True, exist_ok=True)
        file = fetch(archive, into, progress)
        unpack(file, into, lambda done, total: progress("unpacking", done, total))
        if not place.is_dir():
            raise InputError(f"{file} was unpacked into {into}, but held no {archive.holds}: look there for what it is")
        file.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write under {into}: {error.strerror or error}. The download needs about "
            f"{2 * archive.bytes / 1e9:.1f} GB in all; what has arrived is kept, run the command again to go on"
        ) from None
    return place


def fetch(archive: Archive, folder: Path, progress: Progress) -> Path:
    """The archive in a folder, whole and with the right checksum."""
    target = folder / archive.file
    if target.exists():  # of an earlier run that could not unpack it, or brought here by hand
        if _md5(target, progress) != archive.md5:
            raise InputError(f"{target} has another MD5 than {archive.md5}: it is not the archive; remove it")
        return target
    part = folder / f"{archive.file}.part"
    _receive(archive, part, progress)
    found = _md5(part, progress)
    if found != archive.md5:
        part.unlink()
        raise InputError(
            f"{archive.file} arrived damaged: its MD5 is {found}, expected {archive.md5}; it was removed, "
            "run the command again"
        )
    return part.replace(target)


def _receive(archive: Archive, part: Path, progress: Progress) -> None:
    """Bytes from any of the servers until none is missing. Gives up when a whole round of servers brings none."""
    most = -1
    fault = ""
    while most < _size(part) < archive.bytes:
        most = _size(part)
        for url in archive.urls:
            try:
                _append(url, part, archive.bytes, progress)
                break
            except _Broken as error:
                fault = f"{url}: {error}"
    if _size(part) < archive.bytes:
        kept = f"{_size(part)} of {archive.bytes} bytes are kept" if _size(part) else "nothing has arrived"
        raise InputError(f"cannot download {archive.file} ({fault}); {kept}, run the command again to go on")


def _append(url: str, part: Path, total: int, progress: Progress) -> None:
    """Go on where `part` ends, or from the beginning where the server cannot."""
    response, done = _open(url, _size(part), total)
    # Faults of the network become _Broken in _open and _read; what is left here is the disk's.
    with response, part.open("ab" if done else "wb") as file:
        while chunk := _read(response):
            file.write(chunk)
            done += len(chunk)
            progress("downloading", done, total)
    if done < total:
        raise _Broken(f"the connection ended after {done} of {total} bytes")


def _open(url: str, have: int, total: int) -> tuple[http.client.HTTPResponse, int]:
    """The server's answer, and the byte it begins at: `have`, or 0 from a server that cannot resume."""
    request = urllib.request.Request(
        url, headers={"User-Agent": "qkgcc"} | ({"Range": f"bytes={have}-"} if have else {})
    )
    try:
        response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        raise _Broken(f"the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(str(getattr(error, "reason", error)) or type(error).__name__) from None
    begin = have if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
    offered = begin + (response.length or 0)
    if offered != total:  # an error page, or another file: found out before gigabytes of it arrive
        response.close()
        raise _Broken(f"the server offers {offered} bytes, the archive has {total}")
    return response, begin


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)  # not read: a stalled server would take what has arrived of a chunk with it
    except http.client.IncompleteRead as error:
        return error.partial
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(str(error) or type(error).__name__) from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path, progress: Progress) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    total = _size(path)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            progress("checking", file.tell(), total)
    return digest.hexdigest()


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
