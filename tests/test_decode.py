"""Sound files that are cut, and streams: whole, endless, or of something else."""

import io
import os
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from qkgcc import InputError, open_audio
from qkgcc.audio import decode
from qkgcc.audio.decode import missing_bytes

SOUND = (0.1 * np.random.default_rng(0).standard_normal((20_000, 2))).astype(np.float32)
LONG = bytes(300_000)


def written(format: str, **options: str) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, SOUND, 16000, format=format, **options)
    return stream.getvalue()


def with_chunk(data: bytes, at: int, header: bytes) -> bytes:
    """A file with one more chunk, of 300,000 bytes, at a place where another one begins."""
    return data[:at] + header + LONG + data[at:]


def riff(order: str) -> bytes:
    return with_chunk(
        written("WAV", endian="LITTLE" if order == "<" else "BIG"), 12, struct.pack(f"{order}4sI", b"LIST", len(LONG))
    )


def rf64() -> bytes:
    data = written("RF64")
    return with_chunk(data, 12 + 8 + struct.unpack_from("<I", data, 16)[0], struct.pack("<4sI", b"LIST", len(LONG)))


def w64() -> bytes:
    guid = b"junk" + bytes.fromhex("f3acd3118cd100c04f8edb8a")
    return with_chunk(written("W64"), 40, struct.pack("<16sQ", guid, 24 + len(LONG)))


def aiff(of_unknown_length: bool) -> bytes:
    data = with_chunk(written("AIFF"), 12, struct.pack(">4sI", b"APPL", len(LONG)))
    return data[:4] + struct.pack(">I", 0x7FFFFFFF if of_unknown_length else len(data) - 8) + data[8:]


@pytest.mark.parametrize(
    "make",
    [lambda: riff("<"), lambda: riff(">"), rf64, w64, lambda: aiff(False), lambda: aiff(True)],
    ids=["RIFF", "RIFX", "RF64", "W64", "AIFF", "streamed AIFF"],
)
@pytest.mark.parametrize("lost", ["some samples", "half the file", "all but the header"])
def test_samples_far_from_the_header_are_missed(make: Callable[[], bytes], lost: str, tmp_path: Path) -> None:
    data = make()
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    np.testing.assert_allclose(open_audio(path).read(), SOUND.T, atol=1e-4)
    cut = data[: {"some samples": len(data) - 1000, "half the file": len(data) // 2, "all but the header": 400}[lost]]
    path.write_bytes(cut)
    for source in (path, io.BytesIO(cut)):
        with pytest.raises(InputError, match=r"is truncated: it lacks \d+ bytes or more"):
            open_audio(source)


@pytest.mark.parametrize(
    "data",
    [
        *(written(format) for format in ("WAV", "RF64", "W64", "AIFF", "AU", "OGG", "FLAC", "CAF", "MP3")),
        written("WAV", endian="BIG"),
        written("AU", endian="LITTLE"),
    ],
    ids=lambda data: str(data[:4]),
)
def test_headers_that_are_cut_short_are_one_sentence(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    for length in [*range(1, 110), 150, 300]:
        path.write_bytes(data[:length])
        with pytest.raises(
            InputError, match=r"a\.wav (is truncated|cannot be read as audio|holds no samples|is damaged)"
        ):
            open_audio(path).read()


def test_a_file_of_nothing_but_chunks_is_not_searched_to_its_end(tmp_path: Path) -> None:
    class Counted(io.BytesIO):
        reads = 0

        def read(self, size: int | None = -1) -> bytes:
            self.reads += 1
            return super().read(size)

    file = Counted(b"RIFF\0\0\0\0WAVE" + 100_000 * (b"JUNK" + bytes(4)))
    assert missing_bytes(file) == 0
    assert file.reads < 20_000


@pytest.mark.parametrize("length", [0, 0x7FFFF000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
@pytest.mark.parametrize("before", [b"", struct.pack("<4sI", b"LIST", len(LONG)) + LONG])
def test_a_streamed_wav_has_the_length_of_what_came(length: int, before: bytes) -> None:
    data = written("WAV")
    data = data[:4] + struct.pack("<I", length) + data[8:36] + before + b"data" + struct.pack("<I", length) + data[44:]
    np.testing.assert_allclose(open_audio(io.BytesIO(data)).read(), SOUND.T, atol=1e-4)


@pytest.mark.parametrize("length", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_streamed_au_and_aiff_are_not_called_truncated(length: int) -> None:
    au, aiff = written("AU"), written("AIFF")
    sound = aiff.index(b"SSND") + 4
    count = struct.pack(">I", length)
    streamed = aiff[:4] + count + aiff[8:sound] + count + aiff[sound + 4 :]
    for data in (au[:8] + struct.pack(">I", 0xFFFFFFFF) + au[12:], streamed):
        assert missing_bytes(io.BytesIO(data)) == 0
    assert open_audio(io.BytesIO(au[:8] + struct.pack(">I", 0xFFFFFFFF) + au[12:])).samples == len(SOUND)


class Endless(io.RawIOBase):
    """Some bytes, and then one over and over."""

    name = "endless"

    def __init__(self, begin: bytes = b"", then: bytes = b"\0") -> None:
        self.begin, self.then, self.given = begin, then, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part, self.begin = self.begin[: len(buffer)], self.begin[len(buffer) :]
        buffer[:] = part + (len(buffer) - len(part)) * self.then
        self.given += len(buffer)
        return len(buffer)


class TestStreams:
    @pytest.mark.parametrize("letter", [b"\0", b"y", b"\xfe"])
    def test_an_endless_stream_of_no_sound_is_refused_by_its_first_block(self, letter: bytes) -> None:
        stream = Endless(then=letter)
        with pytest.raises(InputError, match="endless cannot be read as audio"):
            open_audio(stream)
        assert stream.given < 100_000

    @pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no such device")
    def test_a_device_is_refused_by_its_first_block(self) -> None:
        with pytest.raises(InputError, match="/dev/zero cannot be read as audio"):
            open_audio("/dev/zero")

    @pytest.mark.parametrize("format", ["WAV", "FLAC", "MP3"])
    def test_endless_sound_is_read_up_to_a_bound(
        self, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decode, "MAX_STREAM_BYTES", 1_000_000)
        monkeypatch.setattr(decode, "_MAX_MEMORY_BYTES", 100_000)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        stream = Endless(written(format))
        with pytest.raises(InputError, match=r"endless does not end: 1\.0e\+06 bytes of a stream are read at most"):
            open_audio(stream)
        assert stream.given <= 1_100_000
        assert list(tmp_path.iterdir()) == []

    def test_a_long_stream_lies_in_a_file_without_a_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decode, "_MAX_MEMORY_BYTES", 10_000)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        recording = open_audio(io.BytesIO(written("WAV", subtype="FLOAT")))
        np.testing.assert_array_equal(recording.read(), SOUND.T)
        if os.name == "posix":
            assert list(tmp_path.iterdir()) == []
        del recording
        assert list(tmp_path.iterdir()) == []

    def test_two_readers_do_not_disturb_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decode, "_MAX_BLOCK_SAMPLES", 4000)
        recording = open_audio(io.BytesIO(written("WAV", subtype="FLOAT")))
        pairs = list(zip(recording.blocks(), recording.blocks(), strict=True))
        assert len(pairs) == 10
        for one, other in pairs:
            np.testing.assert_array_equal(one, other)

    def test_a_full_disk_is_one_sentence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Full(tempfile.SpooledTemporaryFile[bytes]):
            def write(self, data: object) -> int:
                raise OSError(28, "No space left on device")

        monkeypatch.setattr(tempfile, "SpooledTemporaryFile", Full)
        with pytest.raises(InputError, match=r"cannot be kept in .*: No space left on device; save it to a file"):
            open_audio(io.BytesIO(written("WAV")))

    def test_a_file_that_is_open_as_text_is_one_sentence(self, tmp_path: Path) -> None:
        for name, content in (("a.wav", written("WAV")), ("a.txt", b"text")):
            (tmp_path / name).write_bytes(content)
            with (tmp_path / name).open(encoding="utf-8") as file, pytest.raises(InputError, match="in binary mode"):
                open_audio(file)

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
    def test_an_endless_pipe_with_a_name_ends_its_writer(self, tmp_path: Path) -> None:
        pipe, broken = tmp_path / "pipe", threading.Event()
        os.mkfifo(pipe)

        def write() -> None:
            try:
                with pipe.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(10_000))
            except BrokenPipeError:
                broken.set()

        writer = threading.Thread(target=write)
        writer.start()
        with pytest.raises(InputError, match="pipe cannot be read as audio"):
            open_audio(pipe)
        writer.join()
        assert broken.is_set()


def test_blocks_of_many_channels_have_fewer_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_MAX_BLOCK_SAMPLES", 8000)
    soundfile.write(tmp_path / "a.wav", SOUND, 16000, subtype="FLOAT")
    recording = open_audio(tmp_path / "a.wav")
    assert {block.shape for block in recording.blocks()} == {(2, 4000)}
    np.testing.assert_array_equal(recording.read(), SOUND.T)
