"""Writing whole files or none, and what is left of processes that were killed."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qkgcc.core import files
from qkgcc.core.files import check_writable, temporary_folder, write_whole

WRITER = """
import sys
from pathlib import Path
from qkgcc.core.files import temporary_folder, write_whole

def wait(path):
    target = path / "part" if path.is_dir() else path
    target.write_text("half of it")
    print("writing", flush=True)
    sys.stdin.read()

folder = Path(sys.argv[1])
if sys.argv[2] == "folder":
    with temporary_folder(folder) as made:
        wait(made)
else:
    write_whole(folder / "delays.csv", wait)
"""


@contextmanager
def a_writer(folder: Path, kind: str = "file") -> Iterator[subprocess.Popen[bytes]]:
    """A process in the middle of writing into a folder."""
    command = [sys.executable, "-c", WRITER, str(folder), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process looks into each folder once."""
    monkeypatch.setattr(files, "_cleaned", set())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="there are no locks that end with their process")
class TestKilledProcesses:
    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_the_next_writer_removes_what_a_killed_one_left(self, tmp_path: Path, kind: str) -> None:
        with a_writer(tmp_path, kind):
            pass
        (left,) = names(tmp_path)
        assert left.startswith(".qkgcc-")
        write_whole(tmp_path / "delays.csv", lambda target: target.write_text("all of it"))
        assert names(tmp_path) == ["delays.csv"]

    def test_looking_whether_a_folder_can_be_written_removes_it_too(self, tmp_path: Path) -> None:
        with a_writer(tmp_path):
            pass
        check_writable(tmp_path)
        assert names(tmp_path) == []

    @pytest.mark.parametrize("kind", ["file", "folder"])
    def test_what_a_living_process_writes_is_left_alone(self, tmp_path: Path, kind: str) -> None:
        with a_writer(tmp_path, kind) as writer:
            (theirs,) = names(tmp_path)
            write_whole(tmp_path / "other.csv", lambda target: target.write_text("ours"))
            assert names(tmp_path) == [theirs, "other.csv"]
            writer.communicate()
            assert writer.returncode == 0
        done = ["other.csv"] if kind == "folder" else ["delays.csv", "other.csv"]
        assert names(tmp_path) == done

    def test_files_of_other_names_are_left_alone(self, tmp_path: Path) -> None:
        others = [".qkgcc-csv", ".qkgcc-json", ".qkgcc", "qkgcc-abcdefgh.flac", "truth.csv"]
        for name in others:
            (tmp_path / name).touch()
        check_writable(tmp_path)
        assert names(tmp_path) == sorted(others)

    def test_a_file_that_was_taken_for_abandoned_before_it_was_locked_is_made_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock, taken = files._lock, list[Path]()

        def lock_late(path: Path, *, wait: bool) -> int | None:
            if not taken:
                taken.append(path)
                path.unlink()
            return lock(path, wait=wait)

        monkeypatch.setattr(files, "_lock", lock_late)
        write_whole(tmp_path / "delays.csv", lambda target: target.write_text("all of it"))
        assert taken
        assert names(tmp_path) == ["delays.csv"]

    def test_without_locks_files_are_written_and_nothing_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".qkgcc-abcdefgh.csv").touch()

        def no_locks(handle: int, operation: int) -> None:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr("fcntl.flock", no_locks)
        write_whole(tmp_path / "delays.csv", lambda target: target.write_text("all of it"))
        assert names(tmp_path) == [".qkgcc-abcdefgh.csv", "delays.csv"]


def test_a_temporary_folder_is_gone_after_a_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), temporary_folder(tmp_path) as made:
        (made / "part").write_text((made / "nowhere").read_text())
    assert names(tmp_path) == []
