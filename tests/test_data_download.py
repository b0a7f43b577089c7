"""Downloads, against a server on this machine that can be cut, slow of mind, or wrong."""

import errno
import hashlib
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qkgcc.core.errors import InputError
from qkgcc.lab.cli.data import app
from qkgcc.lab.corpora import download as module
from qkgcc.lab.corpora.download import Archive, archive_of, download
from qkgcc.lab.corpora.sets import SETS

CLIP = bytes(range(256)) * 400


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=0) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


ARCHIVE = packed({"LibriSpeech/SPEAKERS.TXT": b"61", "LibriSpeech/test-clean/61/7/61-7-0000.flac": CLIP})


@dataclass
class Server:
    """What it serves, what it does wrong, and what it was asked for."""

    port: int = 0
    content: bytes = ARCHIVE
    cuts: list[int] = field(default_factory=list)
    """Bytes of each answer after which it hangs up; when there are no more, it answers in full."""
    stall: float = 0.0
    """Seconds for which it says nothing before it hangs up."""
    status: int = 200
    resumes: bool = True
    ranges: list[str | None] = field(default_factory=list)

    def archive(self, **changes: Any) -> Archive:
        archive = Archive(
            urls=(f"http://127.0.0.1:{self.port}/test-clean.tar.gz",),
            bytes=len(self.content),
            md5=hashlib.md5(self.content).hexdigest(),
            into="librispeech",
            holds="LibriSpeech/test-clean",
            licence="CC BY 4.0",
        )
        return replace(archive, **changes)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers["Range"]
            state.ranges.append(asked)
            if state.status != 200:
                self.send_error(state.status)
                return
            first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.resumes else 0
            body = state.content[first:]
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = state.cuts.pop(0) if state.cuts else None
            self.wfile.write(body[:cut])
            time.sleep(0.0 if cut is None else state.stall)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(module, "_TIMEOUT", 10.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.port = http.server_port
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


COMPLETE = {"librispeech/LibriSpeech/SPEAKERS.TXT", "librispeech/LibriSpeech/test-clean/61/7/61-7-0000.flac"}


def test_an_archive_is_fetched_checked_and_unpacked_and_nothing_else_stays(server: Server, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    place = download(server.archive(), tmp_path / "new", lambda *what: heard.append(what))
    assert place == tmp_path / "new" / "librispeech" / "LibriSpeech" / "test-clean"
    assert files(tmp_path / "new") == COMPLETE
    assert (place / "61" / "7" / "61-7-0000.flac").read_bytes() == CLIP
    assert ("downloading", len(ARCHIVE), len(ARCHIVE)) in heard
    assert {stage for stage, _, _ in heard} == {"downloading", "checking", "unpacking"}
    assert download(server.archive(), tmp_path / "new") == place
    assert len(server.ranges) == 1, "what is there is not fetched again"


def test_a_cut_connection_is_taken_up_where_it_ended(server: Server, tmp_path: Path) -> None:
    server.cuts = [5000, 30000]
    download(server.archive(), tmp_path)
    assert server.ranges == [None, "bytes=5000-", "bytes=35000-"]
    assert files(tmp_path) == COMPLETE


def test_a_later_run_goes_on_with_the_part_that_is_there(server: Server, tmp_path: Path) -> None:
    server.cuts = [7000, 0]
    with pytest.raises(
        InputError, match=r"ended after 7000 of \d+ bytes\); 7000 of \d+ bytes are kept, run the command"
    ):
        download(server.archive(), tmp_path)
    assert files(tmp_path) == {"librispeech/test-clean.tar.gz.part"}
    download(server.archive(), tmp_path)
    assert server.ranges == [None, "bytes=7000-", "bytes=7000-"]
    assert files(tmp_path) == COMPLETE


def test_a_server_that_cannot_resume_begins_again(server: Server, tmp_path: Path) -> None:
    server.cuts, server.resumes = [5000], False
    download(server.archive(), tmp_path)
    assert server.ranges == [None, "bytes=5000-"]
    assert files(tmp_path) == COMPLETE


def test_a_server_that_falls_silent_is_given_up_and_its_bytes_are_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.1)
    server.cuts, server.stall = [5000, 0], 0.5
    with pytest.raises(InputError, match=r"timed out\).*5000 of \d+ bytes are kept"):
        download(server.archive(), tmp_path)


def test_a_wrong_checksum_removes_what_arrived(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"arrived damaged: its MD5 is [0-9a-f]{32}, expected 0000"):
        download(server.archive(md5="0" * 32), tmp_path)
    assert files(tmp_path) == set()


def test_a_server_error_is_one_sentence(server: Server, tmp_path: Path) -> None:
    server.status = 503
    with pytest.raises(InputError, match=r"the server answers 503 Service Unavailable.*nothing has arrived"):
        download(server.archive(), tmp_path)
    assert files(tmp_path) == set()


def test_the_next_server_is_asked_when_one_is_not_there(server: Server, tmp_path: Path) -> None:
    archive = server.archive()
    download(replace(archive, urls=("http://127.0.0.1:1/test-clean.tar.gz", *archive.urls)), tmp_path)
    assert files(tmp_path) == COMPLETE
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1.*refused"):
        download(replace(archive, urls=("http://127.0.0.1:1/x.tar.gz",)), tmp_path / "other")


def test_another_file_under_the_address_is_refused_before_it_arrives(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the server offers .* bytes, the archive has 99999999999"):
        download(server.archive(bytes=99999999999), tmp_path)
    assert files(tmp_path) == set()


def no_space(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_fills_while_downloading_says_so_and_keeps_the_part(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        write = no_space

    opened = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *mode: Full() if path.suffix == ".part" else opened(path, *mode))
        with pytest.raises(InputError, match=r"cannot write under .*No space left on device.*needs about"):
            download(server.archive(), tmp_path)
    assert not (tmp_path / "librispeech" / "LibriSpeech").exists()
    download(server.archive(), tmp_path)
    assert files(tmp_path) == COMPLETE


def test_a_disk_that_fills_while_unpacking_leaves_no_half_corpus_and_no_second_download(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "makefile", no_space)
        with pytest.raises(InputError, match="No space left on device"):
            download(server.archive(), tmp_path)
    assert files(tmp_path) == {"librispeech/test-clean.tar.gz"}
    download(server.archive(), tmp_path)
    assert len(server.ranges) == 1
    assert files(tmp_path) == COMPLETE


def test_an_archive_brought_by_hand_is_used_if_it_is_the_right_one(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "librispeech" / "test-clean.tar.gz"
    place.parent.mkdir()
    place.write_bytes(b"something else")
    with pytest.raises(InputError, match=r"test-clean\.tar\.gz has another MD5.*remove it"):
        download(server.archive(), tmp_path)
    place.write_bytes(ARCHIVE)
    download(server.archive(), tmp_path)
    assert server.ranges == []
    assert files(tmp_path) == COMPLETE


def test_members_that_would_land_elsewhere_are_refused(server: Server, tmp_path: Path) -> None:
    server.content = packed({"../../evil": b"x"})
    with pytest.raises(InputError, match="a member is unsafe"):
        download(server.archive(), tmp_path / "root")
    assert not list(tmp_path.rglob("evil"))


def test_an_archive_that_is_none_or_holds_something_else_is_one_sentence(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>not an archive</html>"
    with pytest.raises(InputError, match="cannot be unpacked"):
        download(server.archive(), tmp_path / "html")
    server.content = packed({"LibriSpeech/SPEAKERS.TXT": b"61"})
    with pytest.raises(InputError, match="held no LibriSpeech/test-clean"):
        download(server.archive(), tmp_path / "other")


def test_a_second_subset_joins_the_first(server: Server, tmp_path: Path) -> None:
    download(server.archive(), tmp_path)
    server.content = packed({"LibriSpeech/SPEAKERS.TXT": b"61, 62", "LibriSpeech/dev-clean/62/8/62-8-0000.flac": CLIP})
    download(server.archive(holds="LibriSpeech/dev-clean"), tmp_path)
    assert files(tmp_path) == COMPLETE | {"librispeech/LibriSpeech/dev-clean/62/8/62-8-0000.flac"}
    assert (tmp_path / "librispeech" / "LibriSpeech" / "SPEAKERS.TXT").read_bytes() == b"61, 62"


def test_the_command_says_where_the_corpus_is_and_under_which_licence(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "archive_of", lambda set_name: server.archive())
    command = ["download", "--set", "test-clean", "--out", str(tmp_path)]
    printed = CliRunner().invoke(app, command, catch_exceptions=False).output
    assert f"{tmp_path}/librispeech/LibriSpeech/test-clean (licence: CC BY 4.0)" in printed
    assert f"export QKGCC_DATA={tmp_path}" in printed
    assert files(tmp_path) == COMPLETE


@pytest.mark.parametrize("set_name", SETS)
def test_every_set_has_an_archive_at_openslr(set_name: str) -> None:
    archive = archive_of(set_name)
    assert archive.urls[0].startswith("https://www.openslr.org/resources/")
    assert len({url.split("/resources/")[1] for url in archive.urls}) == 1
    assert len(bytes.fromhex(archive.md5)) == 16
    assert archive.bytes > 3e8
