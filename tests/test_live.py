"""`qkgcc listen - --raw`: however the bytes come through the pipe, frames are those of the recording."""

import dataclasses
import io
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from qkgcc import DelayEstimate, DelayEstimator, InputError
from qkgcc.audio import pcm
from qkgcc.cli import main
from qkgcc.delay.result import delays_csv
from signals import delayed_noise

RATE = 48000
SUBTYPES = {
    "u8": "PCM_U8",
    "s16le": "PCM_16",
    "s24le": "PCM_24",
    "s32le": "PCM_32",
    "f32le": "FLOAT",
    "f64le": "DOUBLE",
}
# A shell that runs tests in the background lets them ignore Ctrl-C.
PYTHON = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from qkgcc.cli import main; main()"


def sound(seconds: float = 2.0, rate: int = RATE) -> np.ndarray:
    x = 0.1 * delayed_noise(4, int(seconds * rate), snr=3)[0]
    x[:, rate // 2 : rate] = 0
    return x


def written(x: np.ndarray, folder: Path, format: str = "s16le", rate: int = RATE) -> tuple[Path, bytes]:
    """The same samples as a WAV file and raw."""
    path = folder / "sound.wav"
    soundfile.write(path, x.T, rate, subtype=SUBTYPES[format])
    raw = io.BytesIO()
    raw.name = "sound.raw"
    soundfile.write(raw, x.T, rate, subtype=SUBTYPES[format], format="RAW", endian="LITTLE")
    return path, raw.getvalue()


def process(*arguments: object) -> Any:
    command = [sys.executable, "-c", PYTHON, "listen", "-", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def piped(data: bytes, *arguments: object, seed: int | None = None) -> tuple[int, str, str]:
    """Exit code and what was said, with the input written at once or in pieces of all sizes."""
    run, i = process(*arguments), 0
    rng = np.random.default_rng(seed)
    while seed is not None and i < len(data):
        n = int(rng.choice([1, 3, int(rng.integers(4, 1000)), int(rng.integers(1000, 50000))]))
        run.stdin.write(data[i : i + n])
        i += n
    out, said = run.communicate(data[i:], timeout=300)
    return run.returncode, out.decode(), said.decode()


def as_printed(answer: DelayEstimate) -> str:
    return delays_csv([dataclasses.replace(answer, source="standard input")])


class TestSamples:
    @pytest.mark.parametrize("format", pcm.FORMATS)
    def test_every_format_is_that_of_a_wav_file(self, format: str, tmp_path: Path) -> None:
        x = np.random.default_rng(0).uniform(-1, 1, (3, 1000))
        x[:, :2] = [[-1, 1]] * 3
        path, raw = written(x, tmp_path, format)
        expected = soundfile.read(path, dtype="float32")[0].T
        np.testing.assert_array_equal(pcm.decode(raw, format, 3), expected)
        for size in (1, 7, 999, 5000):
            parts = list(pcm.blocks(io.BytesIO(raw), format, 3, size))
            assert {part.shape[1] for part in parts[:-1]} <= {size}
            np.testing.assert_array_equal(np.concatenate(parts, axis=1), expected)

    def test_what_does_not_fit_float32_is_not_taken_for_sound(self) -> None:
        assert np.isinf(pcm.decode(np.array([1e300, 0.0]).tobytes(), "f64le", 2)).any()

    def test_signalling_nans_are_nans(self) -> None:
        """Converting them raises a flag of the processor, which NumPy warns of."""
        signalling = b"\1\0\0\0\0\0\xf0\x7f"
        assert np.isnan(pcm.decode(2 * signalling, "f64le", 2)).all()
        half = np.frombuffer(b"\1\x7c" * 20_000, "<f2").reshape(2, -1)
        with pytest.raises(InputError, match="channel 0 holds nan at"):
            DelayEstimator("phat")(half, RATE)

    def test_what_cannot_be_read_is_said(self) -> None:
        class Broken(io.BytesIO):
            def read1(self, size: int | None = -1) -> bytes:
                raise OSError(21, "Is a directory")

        with pytest.raises(InputError, match="the raw sound cannot be read: Is a directory"):
            list(pcm.blocks(Broken(), "s16le", 2, 10))


class TestLikeTheRecording:
    @pytest.mark.parametrize("method", ["phat", "general-small"])
    def test_csv(self, method: str, tmp_path: Path) -> None:
        path, raw = written(sound(), tmp_path)
        expected = as_printed(DelayEstimator(method, spacing=0.2)(path))
        options = ("--raw", "s16le", "--sample-rate", RATE, "--spacing", 0.2, "-m", method, "--format", "csv")
        for seed in (None, 1, 2):
            assert piped(raw, *options, "--lookahead", 1, seed=seed) == (0, expected, "")
        _, at_once, _ = piped(raw, *options, seed=3)
        assert [line.split(",")[:7] for line in at_once.splitlines()] == [
            line.split(",")[:7] for line in expected.splitlines()
        ]

    def test_json_is_an_object_a_line(self, tmp_path: Path) -> None:
        path, raw = written(sound(), tmp_path, "f32le")
        options = ("--raw", "f32le", "--sample-rate", RATE, "-m", "general-small", "--format", "json", "--no-curve")
        code, out, said = piped(raw, *options, "--lookahead", 1, seed=0)
        assert (code, said) == (0, "")
        assert piped(raw, *options, "--lookahead", 1, seed=1)[1] == out
        lines = [json.loads(line) for line in out.splitlines()]
        whole = json.loads(DelayEstimator("general-small")(path).to_json(curve=False))
        for name in ("times", "delay_samples", "confidence"):
            assert [value for line in lines for value in line[name]] == whole[name]
        assert lines[-1]["summary"] == whole["summary"]
        assert all(line["calibrated"] for line in lines)
        assert not any(json.loads(line)["calibrated"] for line in piped(raw, *options)[1].splitlines())

    def test_two_channels_of_four(self, tmp_path: Path) -> None:
        x = np.concatenate([0.1 * np.random.default_rng(5).standard_normal((2, 2 * RATE)), sound()])
        path, raw = written(x, tmp_path, "s24le")
        expected = as_printed(DelayEstimator("phat")(path, channels=(3, 2)))
        options = ("--raw", "s24le", "--sample-rate", RATE, "--raw-channels", 4, "--channels", "3,2", "-m", "phat")
        assert piped(raw, *options, "--format", "csv", seed=0) == (0, expected, "")

    def test_the_table_has_a_line_for_each_frame_and_the_summary(self, tmp_path: Path) -> None:
        path, raw = written(sound(), tmp_path)
        code, out, said = piped(raw, "--raw", "s16le", "--sample-rate", RATE, "--spacing", 0.2, "-m", "phat")
        answer = DelayEstimator("phat", spacing=0.2)(path)
        lines = out.splitlines()
        assert (code, said) == (0, "")
        assert lines[0].split() == ["time", "(s)", "delay", "(samples)", "delay", "(µs)", "angle", "(°)", "confidence"]
        assert len(lines) == 2 + len(answer.times)
        assert lines[1].split()[:2] == [f"{answer.times[0]:.2f}", f"{answer.delay_samples[0]:+.2f}"]
        assert lines[-1].startswith(f"whole recording: {answer.summary.delay_samples:.2f} samples")


class TestLive:
    OPTIONS = ("--raw", "s16le", "--sample-rate", RATE, "-m", "phat", "--format", "csv")

    def test_frames_are_printed_while_the_sound_goes_on(self, tmp_path: Path) -> None:
        path, raw = written(sound(), tmp_path)
        expected = as_printed(DelayEstimator("phat")(path)).splitlines(keepends=True)
        run = process(*self.OPTIONS)
        try:
            run.stdin.write(raw[: 4 * RATE // 2])  # half a second: six frames
            heard = b"".join(run.stdout.readline() for _ in range(7)).decode()
            assert heard == "".join(expected[:7])
            rest, said = run.communicate(raw[4 * RATE // 2 :], timeout=300)
        finally:
            run.kill()
        assert (run.returncode, rest.decode(), said) == (0, "".join(expected[7:]), b"")

    @pytest.mark.parametrize("format", ["csv", "table"])
    def test_an_interrupt_leaves_what_is_done(self, format: str, tmp_path: Path) -> None:
        """At any moment: the lines are the first ones of the recording, none is missing."""
        path, raw = written(sound(rate=16000), tmp_path, rate=16000)
        options = ("--raw", "s16le", "--sample-rate", 16000, "-m", "general-small", "--format", format)
        run = process(*options, "--lookahead", 0.3)
        try:
            run.stdin.write(raw[: 4 * 16000])  # a second
            first = run.stdout.readline() + run.stdout.readline()
            run.send_signal(signal.SIGINT)
            rest, said = run.communicate(timeout=300)
        finally:
            run.kill()
        assert (run.returncode, said) == (130, b"interrupted\n")
        lines = (first + rest).decode().splitlines()
        if format == "table":
            assert lines[-1].startswith("whole recording: ")
        else:
            expected = as_printed(DelayEstimator("general-small")(path)).splitlines()
            assert [line.split(",")[:7] for line in lines] == [line.split(",")[:7] for line in expected[: len(lines)]]

    def test_an_interrupt_before_any_sound(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Waiting(io.BytesIO):
            def read1(self, size: int | None = -1) -> bytes:
                raise KeyboardInterrupt

        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Waiting()))
        monkeypatch.setattr(sys, "argv", ["qkgcc", "listen", "-", *map(str, self.OPTIONS)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 130
        assert capsys.readouterr() == ("", "interrupted\n")


class TestBadInput:
    def check(self, data: bytes, *arguments: object, code: int = 2, rate: object = 16000) -> str:
        found, _, said = piped(data, *arguments, *(() if rate is None else ("--sample-rate", rate)), "-m", "phat")
        assert found == code
        assert said.startswith("error: ")
        assert said.count("\n") == 1
        return said

    def test_input(self) -> None:
        noise = (3000 * np.random.default_rng(0).standard_normal(16000)).astype("<i2").tobytes()
        assert "standard input is empty (0 bytes)" in self.check(b"", "--raw", "s16le")
        assert "has 250 samples (0.01562 s), less than a frame" in self.check(noise[:1000], "--raw", "s16le")
        assert "3 bytes left, and 2 channels in s16le take 4" in self.check(noise[:-1], "--raw", "s16le", code=1)
        assert "3 bytes left, and 2 channels in s16le take 4" in self.check(noise[:3], "--raw", "s16le")
        assert "channels 0 and 1 are silent" in self.check(bytes(20000), "--raw", "s16le")
        broken = np.frombuffer(noise, "<i2").astype("<f4") / 32768
        broken[14000] = np.nan
        assert "channel 0 holds nan at 0.4" in self.check(broken.tobytes(), "--raw", "f32le", code=1)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--raw", "S16_LE"), "unknown raw format 'S16_LE'; known are u8, s16le, s24le, s32le, f32le, f64le"),
            (("--raw", "s16le", "--raw-channels", 1), "has 1 channel; a delay needs 2"),
            (("--raw", "s16le", "--channels", "0,2"), "has channels 0 to 1, not 2"),
            (("--raw", "s16le", "--array", "respeaker4"), "leave out --array, --track"),
            (("--raw", "s16le", "--from", "other.wav"), "leave out --device and --from"),
            (("--raw", "s16le", "--lookahead", 2), "the lookahead is 2 s"),
            (("--lookahead", 1), "give their format with --raw, such as --raw s16le"),
        ],
    )
    def test_options(self, arguments: tuple[object, ...], message: str) -> None:
        assert message in self.check(b"", *arguments)

    def test_the_rate_is_needed(self) -> None:
        assert "give --sample-rate as well" in self.check(b"", "--raw", "s16le", rate=None)
        assert "a sample rate of 12 Hz is not usable" in self.check(b"", "--raw", "s16le", rate=12)
