"""`qkgcc listen`: what is heard is what the recording holds; what goes wrong is said, and the rest goes on."""

import contextlib
import csv
import dataclasses
import io
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import soundfile
from rich.console import Console

from qkgcc import DelayEstimator, DelayStream, InputError, MissingExtraError
from qkgcc.arrays import array
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.grids import unit_vectors
from qkgcc.arrays.steering import far_delays
from qkgcc.arrays.stream import DirectionStream, frames_csv
from qkgcc.audio.recording import open_audio
from qkgcc.cli import main
from qkgcc.cli.listen_view import View, delay_picture, direction_picture
from qkgcc.cli.options import picked_channels
from qkgcc.delay.result import delays_csv
from qkgcc.live import capture, recorder
from qkgcc.live import session as listening
from qkgcc.live.capture import Block, Replay, SoundCard, Source
from qkgcc.live.recorder import Recorder
from qkgcc.live.session import Session
from signals import delayed_noise

RATE = 16000
# A shell that runs tests in the background lets them ignore Ctrl-C.
PYTHON = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from qkgcc.cli import main; main()"


def sound(seconds: float = 1.0, rate: int = RATE, channels: int = 2) -> np.ndarray:
    """The delay of the first two channels is 4 samples; a third and fourth hold noise."""
    x = 0.1 * delayed_noise(4, round(seconds * rate), snr=6)[0]
    more = 0.1 * np.random.default_rng(9).standard_normal((channels - 2, x.shape[1]))
    return np.concatenate([x, more]).astype(np.float32)


def from_left(seconds: float = 1.0, rate: int = RATE) -> np.ndarray:
    """White noise at respeaker4 from 90 degrees."""
    geometry, count = array("respeaker4"), round(seconds * rate)
    later = far_delays(geometry, [(i, 0) for i in range(1, 4)], unit_vectors(np.array([90.0])))[:, 0]
    spectrum = np.fft.rfft(np.random.default_rng(3).standard_normal(2 * count))
    turn = np.exp(-2j * np.pi * np.fft.rfftfreq(2 * count, 1 / rate) * np.array([0.0, *later])[:, None])
    return (0.1 * np.fft.irfft(spectrum * turn)[:, :count]).astype(np.float32)


def written(folder: Path, x: np.ndarray, rate: int = RATE) -> Path:
    path = folder / "sound.wav"
    soundfile.write(path, x.T, rate, subtype="FLOAT")
    return path


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, error: str) -> None:
        self.code, self.out, self.error = code, out, error


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["qkgcc", "listen", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Said(code, *capsys.readouterr())

    return run


class Given(Source):
    """Blocks that wait all at once, then the end."""

    def __init__(self, blocks: list[Block], speed: float = 1.0, rate: int = RATE) -> None:
        super().__init__("given", rate, len(blocks[0].samples), 0.01, speed)
        self._blocks = blocks

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self, timeout: float) -> list[Block] | None:
        blocks, self._blocks = self._blocks, []
        return blocks or None


class OneByOne(Given):
    """Blocks that come one after the other, or some at once."""

    def take(self, timeout: float) -> list[Block] | None:
        if not self._blocks:
            return None
        first = self._blocks.pop(0)
        return first if isinstance(first, list) else [first]


class Meanwhile(Given):
    """Blocks that come when they are due, by a clock that goes on only while somebody works or waits."""

    now = 0.0

    def take(self, timeout: float) -> list[Block] | None:
        if self._blocks and self._blocks[0].at <= self.now + timeout:
            self.now = max(self.now, self._blocks[0].at)
        while self._blocks and self._blocks[0].at <= self.now:
            block = self._blocks.pop(0)
            self.inbox.put(block.samples, block.at)
        if not self._blocks:
            self.inbox.end()
        return self.inbox.take(0)


class Delays(DelayStream):
    """An analysis as the command line has it."""

    notices: ClassVar[dict[str, str]] = {}


def cut(x: np.ndarray, size: int = RATE // 100) -> list[np.ndarray]:
    return [x[:, i : i + size] for i in range(0, x.shape[1], size)]


def run(session: Session[Any]) -> tuple[list[Any], list[str]]:
    """Answers and sentences."""
    answers: list[Any] = []
    said: list[str] = []

    def show(answer: Any) -> None:
        answers.append(answer)
        session.mark_displayed()

    session.run(lambda: False, show, lambda: None, said.append)
    return answers, said


class TestLikeTheRecording:
    @pytest.mark.parametrize("method", ["phat", "general-small"])
    @pytest.mark.parametrize("rate", [16000, 44100])
    def test_delays(self, method: str, rate: int, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, sound(rate=rate), rate)
        expected = delays_csv([DelayEstimator(method, spacing=0.2)(path)])
        options = ("--from", path, "--speed", 0, "--spacing", 0.2, "-m", method, "--lookahead", 1, "--hop", 0.064)
        said = listen(*options, "--format", "csv")
        assert (said.code, said.out) == (0, expected)
        assert said.error.startswith("heard 1.0 s, 14 frames, no overruns; load ")

    def test_two_channels_of_four_in_their_order(self, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, sound(channels=4)[[2, 0, 3, 1]])
        expected = delays_csv([DelayEstimator("phat")(path, channels=(3, 1))])
        options = ("--from", path, "--speed", 0, "-m", "phat", "--hop", 0.064, "--format", "csv")
        assert listen(*options, "--channels", "3,1").out == expected

    def test_seconds_end_it_to_the_sample(self, tmp_path: Path, listen: Any) -> None:
        path, record = written(tmp_path, sound()), tmp_path / "record.wav"
        expected = delays_csv([DelayEstimator("phat")(path, end=0.4567)])
        options = ("--from", path, "--speed", 0, "-m", "phat", "--hop", 0.064, "--format", "csv")
        assert listen(*options, "--seconds", 0.4567, "--record", record).out == expected
        assert soundfile.info(record).frames == round(0.4567 * RATE)

    def test_lines_are_those_of_raw_sound(self, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, sound())
        said = listen("--from", path, "--speed", 0, "--spacing", 0.2, "-m", "phat", "--hop", 0.064)
        lines = said.out.splitlines()
        assert lines[0].split() == ["time", "(s)", "delay", "(samples)", "delay", "(µs)", "angle", "(°)", "confidence"]
        assert len(lines) == 2 + 14
        assert lines[-1].startswith("whole recording: 4.0")
        said = listen("--from", path, "--speed", 0, "-m", "phat", "--hop", 0.064, "--format", "json", "--no-curve")
        assert len([time for line in said.out.splitlines() for time in json.loads(line)["times"]]) == 14

    @pytest.mark.parametrize("method", ["phat", "general-small"])
    def test_directions(self, method: str, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, from_left())
        whole = DirectionEstimator(array("respeaker4"), method)(path)
        said = listen("--from", path, "--speed", 0, "--array", "respeaker4", "-m", method, "--format", "csv")
        assert said.code == 0
        rows = list(csv.DictReader(io.StringIO(said.out)))
        assert [row["time"] for row in rows] == [f"{value:.6f}" for value in whole.times]
        assert [row["azimuth"] for row in rows] == [f"{value:.3f}" for value in whole.azimuth]
        assert [row["confidence"] for row in rows] == [f"{value:.4f}" for value in whole.confidence]
        assert np.median(np.abs(whole.azimuth - 90)) < 3
        assert "respeaker4 cannot tell a direction from its mirror image" in said.error

    def test_directions_are_the_same_however_blocks_are_cut(self) -> None:
        x, estimator = from_left(rate=48000), DirectionEstimator(array("respeaker4"), "phat")
        found = []
        for seed in (0, 1):
            stream, rng, at = DirectionStream(estimator, 48000), np.random.default_rng(seed), 0
            text = []
            while at < x.shape[1]:
                size = int(rng.integers(1, 5000))
                text.append(frames_csv(stream.push(x[:, at : at + size]), header=False))
                at += size
            found.append("".join(text) + frames_csv(stream.flush(), header=False))
        assert found[0] == found[1]
        assert found[0].count("\n") == 30

    def test_a_dead_microphone_is_left_out_and_said_once(self, tmp_path: Path, listen: Any) -> None:
        x = from_left(2.0)
        x[2] = 0
        path = written(tmp_path, x)
        options = ("--from", path, "--speed", 0, "--array", "respeaker4", "-m", "general-small", "--format", "csv")
        said = listen(*options)
        rows = list(csv.DictReader(io.StringIO(said.out)))
        assert abs(np.median([float(row["azimuth"]) for row in rows]) - 90) < 5
        assert said.error.count("microphone 2 is silent in") == said.error.count("warning") == 1
        assert listen(*options, "--seconds", 0.3).error.count("microphone 2 is silent in") == 1

    def test_tracks_have_ids(self, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, from_left())
        options = ("--from", path, "--speed", 0, "--array", "respeaker4", "-m", "general-small", "--track")
        rows = list(csv.DictReader(io.StringIO(listen(*options, "--format", "csv").out)))
        assert {row["track"] for row in rows} == {"1"}
        assert abs(float(rows[-1]["azimuth"]) - 90) < 3
        lines = [json.loads(line) for line in listen(*options, "--format", "json").out.splitlines()]
        assert lines[-1]["tracks"][0][0]["id"] == 1
        assert sum(lines[-1]["now"]) == pytest.approx(1, abs=1e-3)
        assert listen(*options).out.splitlines()[-1].split()[2] == "1:"


class TestRealTime:
    class Clock:
        """Goes on only while somebody waits."""

        now = 100.0

        def monotonic(self) -> float:
            return self.now

        def wait(self, seconds: float) -> bool:
            self.now += seconds
            return False

        def set(self) -> None:
            """The source is closed."""

    def played(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, speed: float = 1.0
    ) -> tuple[list[Block], list[float], float]:
        """The blocks of a recording, when each came, and how long all of it took."""
        clock, came = self.Clock(), []
        monkeypatch.setattr(capture, "time", SimpleNamespace(monotonic=clock.monotonic))
        source = Replay(path, speed=speed)
        source._stopped = clock  # type: ignore[assignment]
        put = source.inbox.put
        monkeypatch.setattr(source.inbox, "put", lambda *given, **how: (came.append(clock.now), put(*given, **how)))
        with source:
            blocks = [block for taken in iter(lambda: source.take(1), None) for block in taken]
        return blocks, came, clock.now - 100

    def test_blocks_come_when_they_are_due(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        x = sound(0.4)
        blocks, came, seconds = self.played(written(tmp_path, x), monkeypatch)
        np.testing.assert_array_equal(np.concatenate([block.samples for block in blocks], axis=1), x)
        stamps = [block.at for block in blocks]
        np.testing.assert_allclose(stamps, 100 + 0.01 * np.arange(1, 41), atol=1e-6)
        np.testing.assert_allclose(came, stamps, atol=1e-6)
        assert seconds == pytest.approx(0.4)

    def test_faster(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _, _, seconds = self.played(written(tmp_path, sound(2.0)), monkeypatch, speed=8)
        assert seconds == pytest.approx(0.25)

    def test_as_fast_as_it_is_taken_nothing_is_lost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(capture, "MAX_WAITING_SECONDS", 0.1)
        x = sound()
        with Replay(written(tmp_path, x), speed=0) as source:
            time.sleep(0.05)
            parts = [block for blocks in iter(lambda: source.take(1), None) for block in blocks]
        np.testing.assert_array_equal(np.concatenate([block.samples for block in parts], axis=1), x)
        assert not source.overruns

    def test_a_source_can_be_left_early(self, tmp_path: Path) -> None:
        for speed in (0.01, 0):
            with Replay(written(tmp_path, sound()), speed=speed) as source:
                source.take(0.01)
        assert not [thread for thread in threading.enumerate() if thread.name == "replay"]

    @pytest.mark.parametrize("rate", [16000, 44100, 48000])
    @pytest.mark.parametrize("of_array", [False, True])
    def test_latency(self, rate: int, of_array: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the last sample of a frame to its answer: at most 20 ms and what the resampler says of itself. Time is
        that of the blocks, each of which is answered at once."""
        x = from_left(0.5, rate) if of_array else sound(0.5, rate)
        analysis: Any = (
            DirectionStream(DirectionEstimator(array("respeaker4"), "general-small"), rate, track=True)
            if of_array
            else Delays(DelayEstimator("general-small"), rate)
        )
        blocks = [Block(part, 100 + 0.01 * (i + 1), 0) for i, part in enumerate(cut(x, rate // 100))]
        now = 0.0
        monkeypatch.setattr(listening, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=time.perf_counter))
        session = Session(OneByOne(blocks, rate=rate), analysis, range(len(x)))
        answered: list[float] = []

        def show(answer: Any) -> None:
            nonlocal now
            now = 100 + session.seconds
            ends = answer.times + analysis.frame / 2
            answered.extend(session.seconds - ends)
            session.mark_displayed()

        session.run(lambda: False, show, lambda: None, pytest.fail)
        assert session.latencies
        assert max(session.latencies) <= 0.02 + analysis.latency
        assert max(answered) <= 0.01 + analysis.latency + 1e-9  # all of them, also where a block completes several
        assert (analysis.latency == 0) == (rate == 16000)


class TestOverruns:
    def test_what_finds_no_room_is_lost_and_counted_and_times_stay_right(self) -> None:
        inbox = capture.Inbox(room=3)
        x = sound(0.1)
        parts = cut(x)
        for part in parts[:5]:
            inbox.put(part, 0.0)
        first = inbox.take(0)
        inbox.put(parts[5], 0.0)
        second = inbox.take(0)
        assert inbox.full == 2
        assert first is not None
        assert second is not None
        assert [block.lost for block in first + second] == [0, 0, 0, 320]
        session = Session(Given(first + second), Delays(DelayEstimator("phat"), RATE), (0, 1))
        run(session)
        assert session.samples == 6 * 160

    def test_lost_sound_is_silence_in_the_recording(self, tmp_path: Path) -> None:
        x = sound(0.5)
        parts = cut(x)
        blocks = [Block(part, 0.0, 0) for part in parts[:10]] + [Block(part, 0.0, 1600) for part in parts[20:21]]
        path = tmp_path / "record.wav"
        run(Session(Given(blocks), Delays(DelayEstimator("phat"), RATE), (0, 1), record=path))
        expected = x[:, :3360].copy()
        expected[:, 1600:3200] = 0
        np.testing.assert_array_equal(open_audio(path).read(), expected)

    def test_an_analysis_that_is_too_slow_skips_what_waits(self, tmp_path: Path) -> None:
        """It is silence to it; the recording has it, and what comes then is answered as always."""
        x, path = sound(3.0), tmp_path / "record.wav"
        blocks = [Block(part, 0.0, 0) for part in cut(x)]
        session = Session(
            OneByOne([*blocks[:50], blocks[50:150], *blocks[150:]]),  # type: ignore[list-item]
            Delays(DelayEstimator("phat"), RATE),
            (0, 1),
            record=path,
        )
        answers, said = run(session)
        assert session.behind == session.overruns == 100
        assert len(said) == 1
        assert "answers fell behind after 1.5 s" in said[0]
        np.testing.assert_array_equal(open_audio(path).read(), x)
        times = np.concatenate([answer.times for answer in answers])
        delays = np.concatenate([answer.delay_samples for answer in answers])
        whole = DelayEstimator("phat")(x, RATE)
        np.testing.assert_array_equal(times, whole.times)
        answered = (times < 0.5 - 0.064) | (times > 1.5 + 0.064)
        np.testing.assert_array_equal(delays[answered], whole.delay_samples[answered])
        assert np.isnan(delays[(times > 0.5 + 0.064) & (times < 1.5 - 0.064)]).all()

    def test_what_comes_while_an_analysis_is_slow_is_recorded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There is room for a tenth of a second, and the analysis takes three times as long as the sound."""
        monkeypatch.setattr(capture, "MAX_WAITING_SECONDS", 0.1)
        monkeypatch.setattr(listening, "MAX_BEHIND_SECONDS", 0.1)
        x, path = sound(0.6), tmp_path / "record.wav"
        source = Meanwhile([Block(part, 0.01 * (i + 1), 0) for i, part in enumerate(cut(x))])

        class Slow(Delays):
            def push(self, block: Any, sample_rate: int | None = None) -> Any:
                source.now += 0.03 if block.any() else 0
                return super().push(block)

        session = Session(source, Slow(DelayEstimator("phat"), RATE), (0, 1), record=path)
        _, said = run(session)
        assert session.behind > 10
        assert "answers fell behind" in said[0]
        assert session.frames == 8
        assert not source.overruns
        np.testing.assert_array_equal(open_audio(path).read(), x)

    def test_without_a_clock_nothing_is_skipped(self) -> None:
        blocks = [Block(part, 0.0, 0) for part in cut(sound(2.0))]
        session = Session(Given(blocks, speed=0), Delays(DelayEstimator("phat"), RATE), (0, 1))
        run(session)
        assert (session.overruns, session.frames) == (0, 30)
        assert not session.latencies

    def test_what_are_no_samples_are_silence(self) -> None:
        parts = cut(sound(1.0))
        parts[50] = parts[50] * np.float32(np.nan)
        blocks = [Block(part, 0.0, 0) for part in parts]
        session = Session(Given(blocks, speed=0), Delays(DelayEstimator("phat"), RATE), (0, 1))
        answers, said = run(session)
        assert session.broken == 1
        assert "given gives NaN, or numbers beyond 1e+12, after" in said[0]
        assert sum(np.isfinite(answer.delay_samples).sum() for answer in answers) == 14


class TestRecorder:
    @pytest.mark.parametrize(("suffix", "error"), [(".wav", 0), (".flac", 2.0**-24), (".WAV", 0)])
    def test_what_was_heard(self, suffix: str, error: float, tmp_path: Path, listen: Any) -> None:
        x, record = sound(channels=3), tmp_path / f"record{suffix}"
        path = written(tmp_path, x)
        said = listen("--from", path, "--speed", 0, "-m", "phat", "--record", record)
        assert f"recording: {record} (1.0 s)" in said.error
        found = open_audio(record)
        assert found.sample_rate == RATE
        np.testing.assert_allclose(found.read(), x, rtol=0, atol=error)

    @pytest.mark.parametrize("suffix", [".wav", ".flac"])
    def test_it_is_valid_at_every_moment(self, suffix: str, tmp_path: Path) -> None:
        """A lost battery: nobody closes it. What the last second added may be missing, not more."""
        x, path = sound(2.5), tmp_path / f"record{suffix}"
        recording = Recorder(path, RATE, 2)
        for part in cut(x):
            recording.write(part)
        left = open_audio(path).read()
        np.testing.assert_allclose(left, x[:, : left.shape[1]], rtol=0, atol=0 if suffix == ".wav" else 2.0**-24)
        assert left.shape[1] >= 1.5 * RATE
        recording.close()
        assert open_audio(path).samples == 2.5 * RATE

    def test_beyond_what_a_wav_file_can_count(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorder, "_MAX_WAV_BYTES", 20_000)
        x, path = sound(), tmp_path / "record.wav"
        recording = Recorder(path, RATE, 2)
        recording.write(x)
        recording.close()
        assert path.read_bytes()[:4] == b"RF64"
        assert soundfile.info(path).format == "RF64"
        np.testing.assert_array_equal(open_audio(path).read(), x)

    @pytest.mark.parametrize("suffix", [".wav", ".flac"])
    def test_a_full_disk_ends_the_recording_and_not_the_listening(
        self, suffix: str, tmp_path: Path, listen: Any
    ) -> None:
        x, record = sound(2.0), tmp_path / f"record{suffix}"
        path = written(tmp_path, x)
        with largest_file(60_001):
            said = listen(
                "--from", path, "--speed", 0, "-m", "phat", "--hop", 0.064, "--format", "csv", "--record", record
            )
        assert said.code == 0
        assert said.out == delays_csv([DelayEstimator("phat")(path)])
        assert f"warning: the recording {record} ends after" in said.error
        assert "listening goes on without it" in said.error
        left = open_audio(record).read()
        assert 0.2 * RATE < left.shape[1] < 0.6 * RATE
        np.testing.assert_allclose(left, x[:, : left.shape[1]], rtol=0, atol=2.0**-24)

    @pytest.mark.parametrize("last", [signal.SIGINT, signal.SIGTERM])
    def test_an_interrupt(self, last: signal.Signals, tmp_path: Path) -> None:
        """What was heard is answered, recorded and summed up."""
        x, record = sound(20.0), tmp_path / "record.wav"
        path = written(tmp_path, x)
        options = ("--from", path, "-m", "phat", "--hop", 0.064, "--format", "csv", "--record", record)
        process = subprocess.Popen(
            [sys.executable, "-c", PYTHON, "listen", *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            first = "".join(process.stdout.readline() for _ in range(4))
            process.send_signal(last)
            rest, error = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 130
        lines = (first + rest).splitlines()
        expected = delays_csv([DelayEstimator("phat")(path)]).splitlines()
        assert lines == expected[: len(lines)]
        left = open_audio(record).read()
        np.testing.assert_array_equal(left, x[:, : left.shape[1]])
        assert len(lines) - 1 == (left.shape[1] - 2048) // 1024 + 1
        assert error.splitlines()[-1] == "interrupted"
        assert f"heard {left.shape[1] / RATE:.1f} s, {len(lines) - 1} frames, no overruns; latency " in error


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Files cannot grow beyond, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class PortAudioError(Exception):
    pass


class FakeStream:
    """Plays blocks into the callback, as PortAudio's thread does, then goes on in silence, stops, or says nothing."""

    def __init__(self, library: "FakePortAudio", **options: Any) -> None:
        if options["samplerate"] not in library.rates:
            raise PortAudioError("Error opening InputStream: Invalid sample rate [PaErrorCode -9997]", -9997)
        self.library, self.options, self.active = library, options, False
        self._thread = threading.Thread(target=self._play)

    def start(self) -> None:
        self.active = True
        self._thread.start()

    def _play(self) -> None:
        library, size = self.library, self.options["blocksize"]
        for number, first in enumerate(range(0, library.sound.shape[1], size)):
            part = library.sound[: self.options["channels"], first : first + size].T.copy()
            clock = SimpleNamespace(currentTime=1.0, inputBufferAdcTime=1.0 - len(part) / RATE)
            self.options["callback"](
                part, len(part), clock, SimpleNamespace(input_overflow=number in library.overflows)
            )
            part[:] = np.nan  # the buffer is PortAudio's again
        if library.then == "unplugged":
            self.active = False
            if library.tells:
                self.options["finished_callback"]()

    def abort(self, ignore_errors: bool = True) -> None:
        self.active = False

    def close(self, ignore_errors: bool = True) -> None:
        self._thread.join()
        self.library.closed += 1


class FakePortAudio(ModuleType):
    """The module `sounddevice`, as far as it is asked."""

    PortAudioError = PortAudioError

    def __init__(self) -> None:
        super().__init__("sounddevice")
        self.cards = [
            {"name": "Loudspeaker", "max_input_channels": 0, "default_samplerate": 48000.0},
            {"name": "Stereo mic", "max_input_channels": 2, "default_samplerate": 16000.0},
            {"name": "ReSpeaker 4", "max_input_channels": 6, "default_samplerate": 16000.0},
        ]
        self.rates, self.overflows, self.then, self.tells, self.closed = {16000, 48000}, set[int](), "silent", True, 0
        self.sound = sound(1.0, channels=6)

    def query_devices(self, device: Any = None, kind: str | None = None) -> Any:
        if kind is None:
            return self.cards
        inputs = [number for number, card in enumerate(self.cards) if card["max_input_channels"]]
        if isinstance(device, str):
            found = [number for number in inputs if device.lower() in str(self.cards[number]["name"]).lower()]
            if len(found) != 1:
                raise ValueError(f"{'Multiple' if found else 'No'} input devices found for {device!r}")
            device = found[0]
        device = (inputs or [-1])[0] if device is None else device
        if device not in range(len(self.cards)):
            raise PortAudioError(f"Error querying device {device}")
        return self.cards[device] | {"index": device}

    def InputStream(self, **options: Any) -> FakeStream:
        return FakeStream(self, **options)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakePortAudio:
    fake = FakePortAudio()
    monkeypatch.setattr(listening, "MAX_BEHIND_SECONDS", 10)  # it plays faster than real time
    monkeypatch.setitem(sys.modules, "sounddevice", fake)
    return fake


class TestSoundCard:
    OPTIONS = ("-m", "phat", "--hop", 0.064, "--format", "csv")

    def test_it_is_heard_as_a_recording_is(self, library: FakePortAudio, listen: Any) -> None:
        said = listen(*self.OPTIONS, "--seconds", 1)
        name = "the sound card Stereo mic"
        expected = dataclasses.replace(DelayEstimator("phat")(library.sound[:2], RATE), source=name)
        assert (said.code, said.out) == (0, delays_csv([expected]))
        assert "heard 1.0 s, 14 frames, no overruns; latency" in said.error
        assert library.closed == 1

    def test_channels_of_an_array(self, library: FakePortAudio, listen: Any) -> None:
        library.sound[1:5] = from_left()
        options = ("--device", "respeaker", "--array", "respeaker4", "--channels", "1,2,3,4", "--seconds", 1)
        rows = list(csv.DictReader(io.StringIO(listen(*options, *self.OPTIONS).out)))
        assert abs(np.median([float(row["azimuth"]) for row in rows]) - 90) < 3

    def test_overflows_are_counted_and_shown(self, library: FakePortAudio, listen: Any) -> None:
        library.overflows = {3, 70}
        said = listen(*self.OPTIONS, "--seconds", 1)
        assert said.code == 0
        assert "heard 1.0 s, 14 frames, 2 overruns" in said.error
        assert "warning: sound is lost after" in said.error

    def test_a_callback_never_waits(self, library: FakePortAudio, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nobody takes blocks: it goes on, and what finds no room is counted."""
        monkeypatch.setattr(capture, "MAX_WAITING_SECONDS", 0.2)
        with SoundCard() as source:
            assert isinstance(source, SoundCard)
            source._stream._thread.join(5)
            assert not source._stream._thread.is_alive()
            blocks = source.take(0)
        assert blocks is not None
        assert len(blocks) == 20
        assert source.overruns == 80

    @pytest.mark.parametrize("tells", [True, False])
    def test_unplugged(self, tells: bool, library: FakePortAudio, listen: Any, tmp_path: Path) -> None:
        """All that was heard is answered and recorded, and the sentence says what happened."""
        library.then, library.tells = "unplugged", tells
        record = tmp_path / "record.wav"
        said = listen(*self.OPTIONS, "--record", record)
        assert said.code == 1
        assert len(said.out.splitlines()) == 1 + 14
        assert said.error.splitlines()[-1] == (
            "error: the sound card Stereo mic has stopped (it was unplugged, or another program took it): plug it in "
            "again and start anew"
        )
        np.testing.assert_array_equal(open_audio(record).read(), library.sound[:2])
        assert library.closed == 1

    def test_nothing_comes_any_more(self, library: FakePortAudio, listen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(capture, "GONE_SECONDS", 0.3)
        said = listen(*self.OPTIONS)
        assert said.code == 1
        assert len(said.out.splitlines()) == 1 + 14
        assert "has stopped (no sound has come for 0.3 s)" in said.error

    def test_devices(self, library: FakePortAudio, listen: Any) -> None:
        out = listen("--devices").out
        assert "Loudspeaker" not in out
        assert "│ 1*     │ Stereo mic  │ 2        │ 16000     │" in out
        assert "│ 2      │ ReSpeaker 4 │ 6        │ 16000     │" in out

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--device", "Focusrite"), "no sound card is called 'Focusrite': give its number"),
            (("--device", "e"), "several sound cards are called 'e': give its number"),
            (("--device", 7), "there is no sound card 7: `qkgcc listen --devices` lists them"),
            (("--array", "respeaker4"), "the sound card Stereo mic has 2 input channels, and 4 are needed"),
            (("--channels", "0,5"), "the sound card Stereo mic has 2 input channels, and 6 are needed"),
            (("--sample-rate", 22050), "cannot be opened with 2 channels at 22050 Hz (Invalid sample rate"),
            (("--record", "here.mp3"), "the ending says the format, one of .wav .flac"),
            (("--record", "/nowhere/here.wav"), "cannot record to /nowhere/here.wav: No such file"),
        ],
    )
    def test_what_cannot_be_opened(
        self, arguments: tuple[object, ...], message: str, library: FakePortAudio, listen: Any
    ) -> None:
        said = listen(*arguments)
        assert said.code == 2
        assert message in said.error.splitlines()[-1]

    def test_an_old_recording_survives_a_card_that_cannot_be_opened(
        self, library: FakePortAudio, listen: Any, tmp_path: Path
    ) -> None:
        record = tmp_path / "old.wav"
        record.write_bytes(b"old")
        assert listen("--sample-rate", 22050, "--record", record).code == 2
        assert record.read_bytes() == b"old"

    @pytest.mark.parametrize("arguments", [(), ("--device", "mic"), ("--device", 0), ("--devices",)])
    def test_no_sound_card(self, arguments: tuple[object, ...], library: FakePortAudio, listen: Any) -> None:
        library.cards = []
        said = listen(*arguments)
        assert said.code == 2
        assert said.error.startswith("error: there is no sound card to listen to: plug one in, or replay a recording")

    def test_without_sounddevice(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setitem(sys.modules, "sounddevice", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'qkgcc\[live\]'"):
            SoundCard()
        monkeypatch.delitem(sys.modules, "sounddevice")
        (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(MissingExtraError, match=r"PortAudio library not found\): install PortAudio"):
            SoundCard()


class TestView:
    def drawn(
        self, session: Session[Any], picture: Any, encoding: str = "utf-8", size: tuple[int, int] = (80, 30)
    ) -> str:
        raw = io.BytesIO()
        screen = Console(
            file=io.TextIOWrapper(raw, encoding, "replace"),
            force_terminal=True,
            width=size[0],
            height=size[1],
            legacy_windows=False,
        )
        with View(session, picture, screen) as view:
            session.run(lambda: False, view.show, view.tick, view.say)
        screen.file.flush()
        return raw.getvalue().decode(encoding).rpartition("given, ")[2]

    def test_delays(self) -> None:
        x = sound(0.5)
        x[1] *= 0.1
        session = Session(
            Given([Block(part, time.monotonic(), 0) for part in cut(x)]),
            Delays(DelayEstimator("phat", spacing=0.2), RATE),
            (0, 1),
        )
        text = self.drawn(session, delay_picture)
        lines = text.splitlines()
        assert "channel 0  -19" in text
        assert "channel 1  -39" in text
        assert "delay +4.0" in text
        assert "angle +25" in text
        assert "heard 0.5 s, 6 frames, no overruns" in text
        top = lines[4]  # the highest line of the picture: only the peak reaches it
        assert 40 < top.index("█") < 60 < 80
        assert len(session.latencies) >= 1

    def test_directions_and_warnings_without_letters(self) -> None:
        x = from_left(0.5)
        x[1, 1000] = np.inf
        blocks = [Block(part, time.monotonic(), 0) for part in cut(x)]
        estimator = DirectionEstimator(array("respeaker4"), "general-small")
        stream = DirectionStream(estimator, RATE)
        session = Session(Given(blocks), stream, range(4))
        text = self.drawn(session, direction_picture(estimator.grid.angles, estimator.grid.kind), "ascii")
        lines = text.splitlines()
        assert "#" in lines[6]
        assert 56 <= lines[6].index("#") <= 62  # 90 degrees: at three quarters of the way from -180 to 180
        assert "azimuth +" in text
        assert "warning: given gives NaN, or numbers beyond 1e+12" in text

    @pytest.mark.parametrize("height", [3, 6, 8, 10, 14])
    @pytest.mark.parametrize("track", [False, True])
    def test_the_answer_is_whole_in_a_small_terminal(self, height: int, track: bool) -> None:
        blocks = [Block(part, time.monotonic(), 0) for part in cut(from_left(0.3))]
        estimator = DirectionEstimator(array("respeaker4"), "general-small")
        stream = DirectionStream(estimator, RATE, track=track)
        stream.push(from_left(1.0))  # long enough to follow somebody
        session = Session(Given(blocks), stream, range(4))
        picture = direction_picture(estimator.grid.angles, estimator.grid.kind)
        text = self.drawn(session, picture, size=(40, height)).rpartition("\x1b[2K")[2]
        assert ("1: +9" if track else "azimuth +9") in text
        assert "heard 0.3 s" in text
        assert len(text.replace("\x1b[?25h", "").strip().splitlines()) <= height

    def test_the_answer_is_that_of_the_picture_and_not_of_the_last_frame(self) -> None:
        estimator = DirectionEstimator(array("respeaker4"), "general-small")
        frames = DirectionStream(estimator, RATE).push(from_left(1.0))
        astray = frames._replace(azimuth=np.where(np.arange(len(frames.times)) < len(frames.times) - 1, 90.0, -30.0))
        drawn = direction_picture(estimator.grid.angles, "circle")(astray)
        angle = float(drawn.headline.split("azimuth ")[1].split("°")[0])
        assert angle == pytest.approx(90, abs=3)

    def test_tracks_of_a_line_are_on_the_axis_of_the_picture(self) -> None:
        estimator = DirectionEstimator(array("linear:4:0.05"), "general-small")
        stream = DirectionStream(estimator, RATE, track=True)
        x = np.repeat(sound(1.0, channels=2)[:1], 4, axis=0)  # from the front: 90 degrees from the line
        x = x + 0.001 * np.random.default_rng(0).standard_normal(x.shape)
        drawn = direction_picture(estimator.grid.angles, "line")(stream.push(x.astype(np.float32)))
        assert drawn.axis[0].startswith("along the line")
        assert re.search(r"1: (89|90|91)° ±\d+ from the line", drawn.headline)

    def test_a_terminal_gets_it_and_the_last_of_it_stays(self, tmp_path: Path) -> None:
        pty = pytest.importorskip("pty")
        path = written(tmp_path, sound(0.6))
        process, handle = pty.fork()
        if not process:
            os.environ |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
            os.execv(sys.executable, [sys.executable, "-c", PYTHON, "listen", "--from", str(path), "-m", "phat"])
        shown = b""
        with contextlib.suppress(OSError):  # which is how the other end of a terminal is closed
            while part := os.read(handle, 65536):
                shown += part
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        text = shown.decode()
        assert text.count("channel 0  ") > 3
        assert "heard 0.6 s" in text.rpartition("channel 0  ")[2]
        assert "whole recording: 4.0" in text.rpartition("channel 0  ")[2]


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--speed", 2), "--speed is for replaying a recording: give --from FILE as well"),
            (("--from", "FILE", "--device", 1), "leave out --device and --sample-rate"),
            (("--from", "FILE", "--speed", -1), "the speed is -1; expected 1 (real time)"),
            (("--from", "FILE", "--seconds", 0), "--seconds 0: expected more than 0"),
            (("--from", "FILE", "--record", "FILE"), "is the recording that is replayed: give another name"),
            (("--from", "FILE", "--track"), "--track follows directions: give --array as well"),
            (
                ("--from", "FILE", "--array", "respeaker4", "--spacing", 1),
                "--spacing is for two microphones: leave it out with --array",
            ),
            (("--from", "FILE", "--array", "respeaker4"), "sound.wav has 3 channels; respeaker4 has 4 microphones"),
            (("--from", "FILE", "--array", "linear:2:0.1"), "has 3 channels; linear:2:0.1 has 2 microphones: pick"),
            (("--from", "FILE", "--array", "respeaker5"), "respeaker5"),
            (("--from", "FILE", "--array", "circular:3:0.1", "-m", "phat", "--track"), "tracks need a network"),
            (("--from", "FILE", "--channels", "0,7"), "sound.wav has channels 0 to 2, not 7"),
            (("--from", "FILE", "--channels", "0"), "--channels 0 names 1; give 2, in the order"),
            (("--from", "FILE", "--channels", "1,1"), "--channels 1,1: a channel is named twice"),
            (("--from", "FILE", "--channels", "left,right"), "expected whole numbers from 0 on, such as 0,1"),
            (("--from", "nowhere.wav"), "nowhere.wav does not exist"),
            (("--from", "FILE", "--seconds", 0.05, "--speed", 0), "less than a frame"),
        ],
    )
    def test_options(self, arguments: tuple[object, ...], message: str, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, sound(0.2, channels=3))
        said = listen(*(path if one == "FILE" else one for one in arguments))
        assert said.code == 2
        assert message in said.error
        assert soundfile.info(path).frames == 3200

    def test_a_file_that_breaks_off(self, tmp_path: Path, listen: Any) -> None:
        """What comes before is answered."""
        x = sound(12.0)
        x[1, -5] = np.nan
        said = listen("--from", written(tmp_path, x), "--speed", 0, "-m", "phat", "--format", "csv", "--hop", 0.064)
        assert said.code == 1
        assert len(said.out.splitlines()) > 100
        assert "sound.wav: channel 1 holds nan at 12.000 s" in said.error

    def test_silence(self, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, np.zeros((4, 8000), np.float32))
        assert "are silent" in listen("--from", path, "--speed", 0, "-m", "phat").error

    def test_silence_of_an_array_is_an_answer_and_one_microphone_alone_a_fault(
        self, tmp_path: Path, listen: Any
    ) -> None:
        path = written(tmp_path, np.zeros((4, 8000), np.float32))
        said = listen("--from", path, "--speed", 0, "--array", "respeaker4", "-m", "phat")
        assert said.code == 0  # as `locate` has it
        assert said.error.count("silence, there is no direction to find") == 1
        alone = np.zeros((4, 8000), np.float32)
        alone[2] = sound(0.5)[0]
        said = listen("--from", written(tmp_path, alone), "--speed", 0, "--array", "respeaker4", "-m", "phat")
        assert said.code == 2
        assert "nearly all of its channels are silent" in said.error

    def test_advice_is_what_can_be_done_here(self, tmp_path: Path, listen: Any) -> None:
        path = written(tmp_path, sound(0.5)[:1])
        assert "has 1 channel; a delay needs 2 (two mono recordings: join them" in listen("--from", path).error
        assert "--with" not in listen("--from", path).error
        assert "a direction needs at least 2" in listen("--from", path, "--array", "respeaker4").error

    def test_picked_channels(self) -> None:
        for text in ("", "0,-1", "0;1"):
            with pytest.raises(InputError, match="--channels"):
                picked_channels(text, 2)
        assert all(picked_channels(a + b, 2) == [0, 3] for a, b in itertools.product(["0,", "0 "], ["3"]))
