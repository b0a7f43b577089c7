import io
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from qkgcc import InputError, open_audio
from qkgcc.audio.frames import cut_frames, resample


def noise(channels: int, samples: int, seed: int = 0) -> np.ndarray:
    return (0.1 * np.random.default_rng(seed).standard_normal((channels, samples))).astype(np.float32)


def cut(x: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """`x` in consecutive blocks of the given sizes, over and over."""
    blocks, at, i = [], 0, 0
    while at < x.shape[1]:
        blocks.append(x[:, at : at + sizes[i % len(sizes)]])
        at += sizes[i % len(sizes)]
        i += 1
    return blocks


@pytest.mark.parametrize(("suffix", "tolerance"), [(".wav", 1e-4), (".flac", 1e-4), (".aiff", 1e-4), (".ogg", 0.4)])
def test_files_of_any_format_are_read_as_channels_by_samples(tmp_path: Path, suffix: str, tolerance: float) -> None:
    x = noise(2, 9000)
    soundfile.write(tmp_path / f"a{suffix}", x.T, 16000)
    recording = open_audio(tmp_path / f"a{suffix}")
    assert (recording.sample_rate, recording.channels, recording.samples) == (16000, (0, 1), 9000)
    np.testing.assert_allclose(recording.read(), x, atol=tolerance)


def test_channels_are_picked_in_the_order_given(tmp_path: Path) -> None:
    x = noise(4, 500)
    soundfile.write(tmp_path / "a.wav", x.T, 8000, subtype="FLOAT")
    picked = open_audio(tmp_path / "a.wav").pick((3, 1))
    np.testing.assert_array_equal(picked.read(), x[[3, 1]])
    assert picked.channels == (3, 1)
    assert picked.pick((1,)).channels == (1,)


def test_start_and_end_keep_that_part(tmp_path: Path) -> None:
    x = noise(2, 16000)
    soundfile.write(tmp_path / "a.wav", x.T, 16000, subtype="FLOAT")
    for source, rate in ((tmp_path / "a.wav", None), (x, 16000)):
        part = open_audio(source, rate, start=0.25, end=0.5)
        np.testing.assert_array_equal(part.read(), x[:, 4000:8000])
        assert part.start == 0.25


def test_long_files_come_in_blocks_that_join_without_a_seam(tmp_path: Path) -> None:
    x = noise(2, 8000 * 25)
    soundfile.write(tmp_path / "a.flac", x.T, 8000, subtype="PCM_24")
    recording = open_audio(tmp_path / "a.flac")
    assert [b.shape[1] for b in recording.blocks()] == [80000, 80000, 40000]
    np.testing.assert_allclose(recording.read(), x, atol=1e-6)


def test_a_recording_can_be_read_twice() -> None:
    data = io.BytesIO()
    soundfile.write(data, noise(2, 100).T, 8000, format="WAV")
    data.seek(0)
    recording = open_audio(data)
    np.testing.assert_array_equal(recording.read(), recording.read())


@pytest.mark.parametrize(("dtype", "full"), [(np.int16, 32768), (np.int32, 2**31), (np.uint8, 128)])
def test_whole_numbers_are_scaled_to_full_scale_one(dtype: type, full: int) -> None:
    floats = np.array([[0, 0.5, -0.5, -1], [0, 0.25, 0, 0]])
    offset = 128 if dtype is np.uint8 else 0
    whole = (floats * full + offset).astype(dtype)
    np.testing.assert_allclose(open_audio(whole, 16000).read(), floats)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=5),
    frame=st.integers(1, 120),
    hop=st.integers(1, 200),
    batch=st.integers(1, 9),
)
def test_frames_do_not_depend_on_the_blocks(sizes: list[int], frame: int, hop: int, batch: int) -> None:
    x = noise(2, 1000)
    frames = np.concatenate(list(cut_frames(iter(cut(x, sizes)), frame, hop, batch)))
    expected = [x[:, i : i + frame] for i in range(0, 1000 - frame + 1, hop)]
    np.testing.assert_array_equal(frames, expected)


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=4))
def test_resampling_does_not_depend_on_the_blocks(sizes: list[int]) -> None:
    x = noise(2, 8000)
    whole = np.concatenate(list(resample(iter([x]), 48000, 16000)), axis=1)
    pieces = np.concatenate(list(resample(iter(cut(x, sizes)), 48000, 16000)), axis=1)
    np.testing.assert_allclose(pieces, whole, atol=1e-6)


@pytest.mark.parametrize("rate", [8000, 44100, 48000])
def test_resampling_keeps_a_tone_in_place(rate: int) -> None:
    time, new_time = np.arange(rate) / rate, np.arange(16000) / 16000
    tone, expected = (np.sin(2 * np.pi * 700 * t)[None] for t in (time, new_time))
    out = np.concatenate(list(resample(iter([tone]), rate, 16000)), axis=1)
    assert abs(out.shape[1] - 16000) <= 1
    np.testing.assert_allclose(out[:, 200:-200], expected[:, 200 : out.shape[1] - 200], atol=1e-4)


def test_two_mono_files_become_one_recording(tmp_path: Path) -> None:
    x = noise(2, 3000)
    for i in range(2):
        soundfile.write(tmp_path / f"{i}.wav", x[i], 16000, subtype="FLOAT")
    np.testing.assert_array_equal(open_audio(tmp_path / "0.wav", other=tmp_path / "1.wav").read(), x)


class TestBadInput:
    @pytest.fixture
    def stereo(self, tmp_path: Path) -> Path:
        soundfile.write(tmp_path / "stereo.wav", noise(2, 20000).T, 16000)
        return tmp_path / "stereo.wav"

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="does not exist"):
            open_audio(tmp_path / "none.wav")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="is a folder"):
            open_audio(tmp_path)

    def test_zero_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").touch()
        with pytest.raises(InputError, match="is empty"):
            open_audio(tmp_path / "a.wav")

    def test_header_without_samples(self, tmp_path: Path) -> None:
        soundfile.write(tmp_path / "a.wav", np.zeros((0, 2)), 16000)
        with pytest.raises(InputError, match="holds no samples"):
            open_audio(tmp_path / "a.wav")

    def test_text_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.wav").write_text("this is not sound " * 50)
        with pytest.raises(InputError, match="cannot be read as audio"):
            open_audio(tmp_path / "a.wav")

    @pytest.mark.parametrize("share", [0.2, 0.7, 0.98])
    def test_truncated_wav(self, stereo: Path, share: float) -> None:
        data = stereo.read_bytes()
        stereo.write_bytes(data[: int(share * len(data))])
        with pytest.raises(InputError, match="truncated"):
            open_audio(stereo)

    @pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
    @pytest.mark.parametrize(
        ("suffix", "options"),
        [
            (".aiff", {}),
            (".au", {}),
            (".w64", {}),
            (".rf64", {"format": "RF64"}),
            (".ogg", {}),
            (".opus", {"format": "OGG", "subtype": "OPUS"}),
        ],
    )
    def test_truncated_files_of_other_formats(
        self, tmp_path: Path, suffix: str, options: dict[str, str], share: float
    ) -> None:
        path = tmp_path / f"a{suffix}"
        soundfile.write(path, noise(2, 100_000).T, 16000, **options)
        assert open_audio(path).read().shape == (2, 100_000)
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(InputError, match="truncated"):
            open_audio(path)

    @pytest.mark.parametrize("share", [0.2, 0.7, 0.98])
    def test_truncated_flac(self, tmp_path: Path, share: float) -> None:
        path = tmp_path / "a.flac"
        soundfile.write(path, noise(2, 50000).T, 16000)
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(InputError, match=r"truncated|damaged"):
            open_audio(path).read()

    @pytest.mark.parametrize("share", [0.3, 0.6])
    def test_damage_in_a_flac_is_where_it_is_said_to_be(self, tmp_path: Path, share: float) -> None:
        path = tmp_path / "a.flac"
        soundfile.write(path, noise(2, 250_000).T, 16000)
        data = bytearray(path.read_bytes())
        at = int(share * len(data))
        data[at : at + 3000] = bytes(3000)
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"damaged after \d+ samples") as said:
            open_audio(path).read()
        position = int(re.findall(r"after (\d+) samples", str(said.value))[0])
        assert abs(position - share * 250_000) < 2 * 4096  # blocks of this format
        assert len(soundfile.read(path, frames=position)[0]) == position
        with pytest.raises(InputError, match=rf"damaged( after {position} samples)? \("):
            open_audio(path, start=1.0).read()

    @pytest.mark.parametrize("length", [0, 0x7FFFF000, 0xFFFFFFFF])
    def test_a_wav_of_unknown_length_is_not_truncated(self, stereo: Path, length: int) -> None:
        """Programs that write to a pipe do not know the lengths, and write one of these."""
        data = bytearray(stereo.read_bytes())
        at = data.index(b"data") + 4
        data[4:8] = data[at : at + 4] = length.to_bytes(4, "little")
        assert open_audio(io.BytesIO(bytes(data))).samples == 20000

    def test_a_pipe_is_read_like_a_file(self, stereo: Path, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        writer = threading.Thread(target=lambda: pipe.write_bytes(stereo.read_bytes()))
        writer.start()
        recording = open_audio(pipe)
        writer.join()
        np.testing.assert_array_equal(recording.read(), open_audio(stereo).read())

    def test_a_headerless_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.raw").write_bytes(bytes(1000))
        with pytest.raises(InputError, match="cannot be read as audio"):
            open_audio(tmp_path / "a.raw")

    def test_whole_numbers_of_unknown_full_scale(self) -> None:
        with pytest.raises(InputError, match="int64 have no known full scale"):
            open_audio(np.zeros((2, 100), dtype=np.int64), 16000)

    def test_two_recorders_as_arrays(self) -> None:
        with pytest.raises(InputError, match="stack two arrays"):
            open_audio(np.zeros(100), 16000, other=np.zeros(100))

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_not_finite(self, value: float) -> None:
        x = noise(2, 100)
        x[1, 40] = value
        with pytest.raises(InputError, match=rf"channel 1 holds {value} at 0\.005 s"):
            open_audio(x, 8000).read()

    def test_unequal_lengths(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"unequal lengths \(5, 6 samples\)"):
            open_audio([np.zeros(5), np.zeros(6)], 16000)
        soundfile.write(tmp_path / "a.wav", np.zeros(5000), 16000)
        soundfile.write(tmp_path / "b.wav", np.zeros(6000), 16000)
        with pytest.raises(InputError, match=r"unequal lengths: .*an end at 0\.312 s"):
            open_audio(tmp_path / "a.wav", other=tmp_path / "b.wav")
        assert open_audio(tmp_path / "a.wav", other=tmp_path / "b.wav", end=0.3).samples == 4800

    def test_two_recorders_of_different_rates_or_channels(self, tmp_path: Path, stereo: Path) -> None:
        soundfile.write(tmp_path / "a.wav", np.zeros(5000), 16000)
        soundfile.write(tmp_path / "b.wav", np.zeros(5000), 8000)
        with pytest.raises(InputError, match="resample one of them"):
            open_audio(tmp_path / "a.wav", other=tmp_path / "b.wav")
        with pytest.raises(InputError, match="has 2 channels; two recorders are two mono files"):
            open_audio(tmp_path / "a.wav", other=stereo)

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.zeros(7), "expected an array of shape"),
            (np.zeros((100, 2)), "transpose"),
            (np.zeros((2, 0)), "holds no samples"),
            (np.array([["a", "b"]]), "expected an array of shape"),
        ],
    )
    def test_arrays_of_another_shape(self, array: np.ndarray, message: str) -> None:
        with pytest.raises(InputError, match=message):
            open_audio(array, 16000)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({}, "needs its sample rate"),
            ({"sample_rate": 10}, "not usable"),
            ({"sample_rate": 8000, "start": 3.0}, "start 3 s is past the end of the array"),
            ({"sample_rate": 8000, "start": -1.0}, "the start is -1 s; expected 0 to"),
            ({"sample_rate": 8000, "end": float("nan")}, "the end is nan s"),
            ({"sample_rate": "fast"}, "a sample rate of 'fast' is not usable"),
            ({"sample_rate": 8000, "end": 3.0}, r"end 3 s is past the end of the array \(0\.100 s\)"),
        ],
    )
    def test_rates_and_parts(self, arguments: dict[str, float], message: str) -> None:
        with pytest.raises(InputError, match=message):
            open_audio(noise(2, 800), **arguments)

    def test_channels_that_do_not_exist(self, stereo: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="has channels 0 to 1, not 2"):
            open_audio(stereo).pick((0, 2))
        with pytest.raises(InputError, match="every channel once"):
            open_audio(stereo).pick((1, 1))
        soundfile.write(tmp_path / "mono.wav", np.zeros(100), 16000)
        with pytest.raises(InputError, match=r"has 1 channel; a delay needs 2 .*give both"):
            open_audio(tmp_path / "mono.wav").pick((0, 1))

    def test_a_rate_that_contradicts_the_file(self, stereo: Path) -> None:
        with pytest.raises(InputError, match="recorded at 16000 Hz, not 48000"):
            open_audio(stereo, 48000)
