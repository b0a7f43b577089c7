"""Streams: whatever the blocks, what comes out is what a whole recording gives, to the bit."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from qkgcc import DelayEstimate, DelayEstimator, DelayStream, InputError, samples
from qkgcc.audio.frames import Resampler
from qkgcc.audio.recording import open_audio
from qkgcc.network.registry import CLASSICAL, PRETRAINED
from signals import delayed_noise
from tiny import CARD, TINY

pytestmark = pytest.mark.numeric

RATES = (8000, 16000, 44100, 48000)


def sound(seconds: float = 3.0, rate: int = 16000, *, seed: int = 0) -> np.ndarray:
    """Noise that jumps from one delay to another, with a pause."""
    n = int(seconds * rate) // 2
    x = np.concatenate([0.1 * delayed_noise(delay, n, snr=3, seed=seed)[0] for delay in (4, -3)], axis=1)
    x[:, n // 2 : n // 2 + rate // 4] = 0
    return x


def cut(x: np.ndarray, seed: int, largest: int = 5000) -> Iterator[np.ndarray]:
    """Blocks of all sizes: none, one sample, a few, several frames."""
    rng, i = np.random.default_rng(seed), 0
    while i < x.shape[1]:
        n = int(rng.choice([0, 1, 1, int(rng.integers(2, 300)), int(rng.integers(300, largest))]))
        yield x[:, i : i + n]
        i += n


def streamed(stream: DelayStream, blocks: Iterator[np.ndarray]) -> DelayEstimate:
    """All answers as one: the frames of each, the summary of the last."""
    parts = [stream.push(block) for block in blocks]
    parts.append(stream.flush())
    last = parts[-1]
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("times", "delay_samples", "delay_seconds", "confidence", "curve")
    }
    return dataclasses.replace(last, **joined)  # type: ignore[arg-type]


def assert_same(one: DelayEstimate, other: DelayEstimate, *, confidence: bool = True) -> None:
    for name in ("times", "delay_samples", "delay_seconds", "lags", "curve"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    assert one.summary == other.summary
    assert one.warnings == other.warnings
    assert one.kind == other.kind
    if confidence:
        np.testing.assert_array_equal(one.confidence, other.confidence)
        assert one.calibrated == other.calibrated


class TestStreamingEqualsOffline:
    @pytest.mark.parametrize("rate", RATES)
    @pytest.mark.parametrize("method", [*CLASSICAL, *PRETRAINED])
    def test_every_method_at_every_rate(self, method: str, rate: int) -> None:
        x = sound(rate=rate)
        estimator = DelayEstimator(method, spacing=0.3)
        whole = estimator(x, rate)
        for seed in range(2):
            assert_same(streamed(DelayStream(estimator, rate, lookahead=1), cut(x, seed)), whole)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
    def test_the_bundled_recording_in_every_type(self, dtype: type) -> None:
        recording = open_audio(samples.path("talkers-2ch"), end=5.0)
        x = recording.read()
        x = (x * 32767).astype(dtype) if dtype is np.int16 else x.astype(dtype)
        estimator = DelayEstimator("general-small")
        stream = DelayStream(estimator, recording.sample_rate, lookahead=1)
        assert_same(streamed(stream, cut(x, 5)), estimator(x, recording.sample_rate))

    @pytest.mark.parametrize("method", ["phat", "general-small"])
    @pytest.mark.parametrize(("subtype", "dtype"), [("PCM_16", np.int16), ("PCM_24", np.int32), ("PCM_32", np.int32)])
    def test_whole_numbers_are_answered_as_the_file_that_holds_them(
        self, method: str, subtype: str, dtype: type, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.wav"
        soundfile.write(path, sound(rate=48000).T, 48000, subtype=subtype)
        x = soundfile.read(path, dtype=np.dtype(dtype).name)[0].T
        estimator = DelayEstimator(method, spacing=0.3)
        assert_same(streamed(DelayStream(estimator, 48000, lookahead=1), cut(x, 1)), estimator(path))

    def test_sample_by_sample_and_at_once(self) -> None:
        x = sound(0.5, 48000)
        estimator = DelayEstimator("general-small")
        stream = DelayStream(estimator, 48000, lookahead=1)
        whole = estimator(x, 48000)
        assert_same(streamed(stream, (x[:, i : i + 1] for i in range(x.shape[1]))), whole)
        stream.reset()
        assert_same(streamed(stream, iter([x])), whole)

    def test_a_network_of_ones_own(self) -> None:
        x = sound()
        estimator = DelayEstimator(TINY, hop=0.01)
        assert_same(streamed(DelayStream(estimator, 16000, lookahead=1), cut(x, 3)), estimator(x, 16000))

    @pytest.mark.parametrize(("frame", "hop"), [(0.064, 0.2), (0.256, 0.05), (0.1, 0.0331)])
    def test_other_frames_and_hops(self, frame: float, hop: float) -> None:
        x = sound(rate=44100)
        for method in ("phat", "general-small"):
            estimator = DelayEstimator(method, frame=frame, hop=hop)
            assert_same(streamed(DelayStream(estimator, 44100, lookahead=1), cut(x, 4)), estimator(x, 44100))

    @pytest.mark.parametrize("ahead", [0.0, 0.3])
    def test_smoothed(self, ahead: float) -> None:
        x = sound()
        estimator = DelayEstimator("general-small", smoothing=ahead, max_sources=2)
        assert_same(streamed(DelayStream(estimator, 16000), cut(x, 6)), estimator(x, 16000))

    @pytest.mark.parametrize("lookahead", [0.0, 0.4])
    def test_without_looking_ahead_all_is_the_same_but_the_confidence(self, lookahead: float) -> None:
        """And that does not depend on the blocks either."""
        x = sound()
        estimator = DelayEstimator("general-small")
        one, other = (streamed(DelayStream(estimator, 16000, lookahead=lookahead), cut(x, seed)) for seed in (0, 1))
        assert_same(one, other)
        assert_same(one, estimator(x, 16000), confidence=False)
        assert not one.calibrated


@pytest.mark.parametrize(
    ("options", "lookahead", "calibrated"),
    [
        ({}, None, True),
        ({}, 1.0, True),
        ({}, 0.99, False),  # the curves are of frames with neighbours on both sides
        ({}, 0.0, False),
        ({"hop": 2.0}, 1.0, True),
        ({"hop": 2.0}, 0.0, False),
        ({"smoothing": 1.0}, None, False),
        ({"smoothing": 1.0}, 1.0, False),
        ({"smoothing": 0.0}, 0.0, False),
        ({"symmetric": True}, None, False),
        ({"decoder": "argmax"}, 1.0, False),
        ({"max_sources": 2, "spacing": 0.2, "threads": 1}, 1.0, True),
        ({"method": "phat"}, 1.0, False),
    ],
)
def test_calibrated_is_said_only_where_the_curves_were_made_for_it(
    options: dict[str, object], lookahead: float | None, calibrated: bool
) -> None:
    estimator = DelayEstimator(**{"method": "general-small"} | options)  # type: ignore[arg-type]
    if lookahead is None:
        answers = [estimator(sound(), 16000)]
    else:
        stream = DelayStream(estimator, 16000, lookahead=lookahead)
        answers = [*(stream.push(block) for block in cut(sound(), 0)), stream.flush()]
    assert {answer.calibrated for answer in answers} == {calibrated}


@pytest.mark.parametrize(
    ("rate", "options", "lookahead"),
    [
        (16000, {"method": "phat"}, 1.0),
        (16000, {"method": "general-small"}, 0.0),
        (48000, {"method": "general-small"}, 0.0),
        (44100, {"method": "general-small"}, 1.0),
        (8000, {"method": "general-small", "smoothing": 0.25}, 0.0),
    ],
)
def test_a_frame_is_answered_within_the_latency_and_what_comes_later_changes_nothing(
    rate: int, options: dict[str, float], lookahead: float
) -> None:
    x, other = sound(rate=rate), sound(rate=rate)
    now = 2 * rate
    other[:, now:] = sound(rate=rate, seed=9)[:, now:]
    stream = DelayStream(DelayEstimator(**options), rate, lookahead=lookahead)  # type: ignore[arg-type]
    heard = [stream.push(x[:, i : i + 160]) for i in range(0, now, 160)]
    given = np.concatenate([answer.times for answer in heard])
    hop, frame = 0.064, 0.128
    due = int((now / rate - stream.latency - 0.02 - frame) / hop) + 1
    assert len(given) >= due
    stream.reset()
    again = [stream.push(other[:, i : i + 160]) for i in range(0, now, 160)]
    for one, two in zip(heard, again, strict=True):
        np.testing.assert_array_equal(one.delay_samples, two.delay_samples)
        np.testing.assert_array_equal(one.confidence, two.confidence)


def test_the_example_of_the_guide_runs() -> None:
    text = (Path(__file__).parents[1] / "docs" / "guide" / "delays.md").read_text(encoding="utf-8")
    (example,) = (
        part for part in text.split("```python\n") if part.startswith("from qkgcc import DelayEstimator, Del")
    )
    found: dict[str, object] = {"blocks": list(cut(sound(rate=48000), 0))}
    exec(example.split("```")[0], found)
    assert isinstance(found["rest"], DelayEstimate)
    assert found["rest"].summary.answered > 20


class TestState:
    def test_copies_go_on_alike_and_apart(self) -> None:
        x, other = sound(rate=48000), sound(rate=48000, seed=7)
        stream = DelayStream(DelayEstimator("general-small"), 48000, lookahead=1)
        before = list(cut(x[:, :70000], 0))
        for block in before:
            stream.push(block)
        twin, stranger = stream.copy(), stream.copy()
        streamed(stranger, cut(other, 1))  # does not touch the others
        rest = [streamed(one, cut(x[:, 70000:], seed)) for one, seed in ((stream, 2), (twin, 3))]
        assert_same(*rest)
        whole = DelayEstimator("general-small")(x, 48000)
        assert rest[0].summary == whole.summary
        np.testing.assert_array_equal(rest[0].curve, whole.curve[-len(rest[0].times) :])

    def test_reset_begins_again(self) -> None:
        x = sound()
        stream = DelayStream(DelayEstimator("phat"), 16000)
        first = streamed(stream, cut(x, 0))
        with pytest.raises(InputError, match="has ended: reset"):
            stream.push(x)
        with pytest.raises(InputError, match="has ended"):
            stream.flush()
        stream.reset()
        assert_same(streamed(stream, cut(x, 1)), first)

    @pytest.mark.parametrize("smoothing", [None, 0.3])
    def test_memory_stays_the_same_however_long_it_runs(self, smoothing: float | None) -> None:
        def held(value: object) -> int:
            if isinstance(value, np.ndarray):
                return (value if value.base is None else value.base).nbytes
            if isinstance(value, (tuple, list)):
                return sum(held(one) for one in value)
            module = type(value).__module__
            if module in (
                "qkgcc.delay.stream",
                "qkgcc.pairs.pipeline",
                "qkgcc.pairs.frontend",
                "qkgcc.audio.frames",
                "qkgcc.pairs.smoothing",
            ):
                return sum(held(one) for one in vars(value).values())
            return 0

        x = sound(2.0, 48000)
        stream = DelayStream(DelayEstimator("general-small", smoothing=smoothing, hop=0.25), 48000, lookahead=1)
        sizes = []
        for _ in range(20):
            stream.push(x)
            sizes.append(held(stream._pipeline))
        assert max(sizes[4:]) <= 1.2 * sizes[3]

    def test_nothing_but_silence_or_too_little(self) -> None:
        stream = DelayStream(DelayEstimator("general-small"), 44100)
        assert len(stream.push(np.zeros((2, 44100))).times) > 0
        assert np.isnan(stream.flush().summary.delay_samples)
        stream.reset()
        assert len(stream.flush().times) == 0
        stream.reset()
        assert len(stream.push(np.ones((2, 10))).times) == 0
        assert stream.flush().to_csv().count("\n") == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("block", "rate", "message"),
        [
            (np.zeros((2, 9)), 48000, "a block at 48000 Hz in a stream at 16000 Hz"),
            (np.zeros((2, 9)), "16000", "a sample rate of '16000' is not usable; expected a whole number"),
            (np.zeros((2, 9)), np.array([16000, 16000]), r"a sample rate of array\(\[16000, 16000\]\) is not usable"),
            (np.zeros((2, 9)), np.inf, "a sample rate of inf Hz is not usable"),
            (np.zeros((3, 9)), None, r"shape \(3, 9\).* a stream takes 2 channels"),
            (np.zeros((1, 9)), None, "takes 2 channels"),
            (np.zeros(9), None, "takes 2 channels"),
            (np.zeros((9, 2)), None, "transpose it"),
            (np.zeros((2, 9), np.int16), None, "a block of int16 in a stream of float64"),
            (np.array([[0.0, 0.0], [0.0, np.nan]]), None, r"channel 1 holds nan at 0\.500 s"),
            (np.array([[0.0, np.inf], [0.0, 0.0]]), None, r"channel 0 holds inf at 0\.500 s"),
            ([[0.0, 1.0], [0.0]], None, "unequal lengths"),
            ([["a"], ["b"]], None, "a block of <U1; a stream takes samples that are whole numbers or floats"),
            (np.zeros((2, 9), np.bool_), None, "a block of bool; a stream takes samples"),
            (np.zeros((2, 9), np.complex64), None, "a block of complex64; a stream takes samples"),
            (np.full((2, 9), None), None, "a block of object; a stream takes samples"),
        ],
    )
    def test_a_bad_block_is_named_and_nothing_is_lost(self, block: object, rate: int | None, message: str) -> None:
        x = sound()
        estimator = DelayEstimator("phat")
        stream = DelayStream(estimator, 16000)
        first = stream.push(x[:, :8000])
        with pytest.raises(InputError, match=message):
            stream.push(block, rate)  # type: ignore[arg-type]
        rest = streamed(stream, iter([x[:, 8000:]]))
        whole = estimator(x, 16000)
        np.testing.assert_array_equal(np.append(first.delay_samples, rest.delay_samples), whole.delay_samples)

    def test_an_empty_block_is_no_mistake(self) -> None:
        stream = DelayStream(DelayEstimator("phat"), 16000)
        for nothing in (np.empty((2, 0)), [[], []], [], np.empty(0, np.int64), np.empty((2, 0), np.bool_)):
            assert len(stream.push(nothing).times) == 0
        with pytest.raises(InputError, match="takes 2 channels"):
            stream.push(np.empty((3, 0)))

    def test_an_interrupt_leaves_the_stream_as_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = sound()
        estimator = DelayEstimator("general-small")
        stream = DelayStream(estimator, 16000, lookahead=1)
        network = type(stream._pipeline.method)
        with monkeypatch.context() as patch:
            patch.setattr(network, "decode", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                stream.push(x)
        assert_same(streamed(stream, cut(x, 0)), estimator(x, 16000))

    def test_an_empty_block_is_of_no_type(self) -> None:
        noise = delayed_noise(5, 6000)[0].astype(np.float32)
        stream = DelayStream(DelayEstimator("general-small", spacing=0.5), 44100)
        whole = stream.copy()
        stream.push([[], []])
        parts = [stream.push(noise[:, :3000]), stream.push(np.empty((2, 0), np.int16))]
        parts.append(stream.push(noise[:, 3000:].astype(">f4")))
        found = np.concatenate([part.delay_samples for part in parts])
        np.testing.assert_array_equal(found, whole.push(noise).delay_samples)
        with pytest.raises(InputError, match="computed in the type they come in, convert it"):
            stream.push(noise.astype(np.float64))
        with pytest.raises(InputError, match="full scales may differ"):
            stream.push(np.ones((2, 9), np.int16))

    def test_numbers_of_numpy_are_numbers(self) -> None:
        estimator = DelayEstimator("general-small", threads=np.int64(1), max_sources=np.int32(2))  # type: ignore[arg-type]
        stream = DelayStream(estimator, np.int32(16000), lookahead=np.float32(0.5))  # type: ignore[arg-type]
        expected = DelayStream(DelayEstimator("general-small", max_sources=2), 16000, lookahead=0.5)
        assert_same(streamed(stream, iter([sound()])), streamed(expected, iter([sound()])))

    def test_what_a_stream_cannot_do(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="a stream takes a DelayEstimator, not 'general'"):
            DelayStream("general", 16000)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"the lookahead is 3 s"):
            DelayStream(DelayEstimator("phat"), 16000, lookahead=3)
        with pytest.raises(InputError, match=r"the lookahead is '1'; expected a number, 0 to 1 s"):
            DelayStream(DelayEstimator("phat"), 16000, lookahead="1")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="a sample rate of 12 Hz"):
            DelayStream(DelayEstimator("phat"), 12)
        with pytest.raises(InputError, match="takes frames of"):
            DelayStream(DelayEstimator("general", frame=5.0), 16000)
        published = Path(__file__).parents[1] / "checkpoints" / "qkgcc-0.safetensors"
        with pytest.raises(InputError, match="level of a whole recording"):
            DelayStream(DelayEstimator(published), 16000)
        with pytest.raises(InputError, match="smoothing need the posterior"):
            DelayEstimator("phat", smoothing=0.0)

    def test_networks_that_torch_runs_have_no_stream(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        from qkgcc.nets import checkpoint

        network: Any = checkpoint.build("ngcc", {"frame": 512, "dft": 512, "channels": 8, "taps": 63})
        options, sizes = vars(network.options), {"frame": 512, "dft": 512, "delays": network.options.delays}
        card = dataclasses.replace(CARD, architecture="ngcc", options=options, **sizes)
        checkpoint.save(network, tmp_path / "torch.safetensors", card)
        with pytest.raises(InputError, match="is run by torch, which rounds a frame by those beside it"):
            DelayStream(DelayEstimator(tmp_path / "torch.safetensors"), 16000)


class TestSmoothing:
    @pytest.mark.parametrize(("ahead", "least"), [(0.0, 0.1), (0.256, 0.15)])
    def test_more_frames_are_right_in_noise(self, ahead: float, least: float) -> None:
        recording = open_audio(samples.path("talkers-2ch"))
        x = recording.read().astype(np.float64)
        x += np.sqrt(np.mean(x**2)) * np.random.default_rng(1).standard_normal(x.shape)  # 0 dB
        right = []
        for smoothing in (None, ahead):
            answer = DelayEstimator("general-small", smoothing=smoothing)(x, recording.sample_rate)
            truth = samples.truth_at(answer.times, "talkers-2ch")
            right.append(np.mean(np.abs(answer.delay_samples - truth)[np.isfinite(truth)] <= 1))
        assert right[1] > right[0] + least

    def test_silence_stays_silence_and_rows_are_posteriors(self) -> None:
        answer = DelayEstimator("general-small", smoothing=0.2)(sound(), 16000)
        silent = np.isnan(DelayEstimator("general-small")(sound(), 16000).delay_samples)
        np.testing.assert_array_equal(np.isnan(answer.delay_samples), silent)
        assert silent.any()
        np.testing.assert_allclose(answer.curve.sum(axis=1), 1, atol=1e-5)
        assert not answer.calibrated


@pytest.mark.parametrize("rate", [4000, 8000, 11025, 44100, 48000, 96000])
def test_resampling_in_segments_is_that_of_the_whole(rate: int) -> None:
    import soxr

    x = np.random.default_rng(0).standard_normal((2, 2 * rate + 777))
    resampler = Resampler(rate, 16000)
    found = np.concatenate([*(resampler.push(block) for block in cut(x, 0)), resampler.flush()], axis=1)
    padded = np.pad(x, ((0, 0), (rate, rate)))  # soxr's own first samples are not quite those of silence before
    expected = soxr.resample(padded.T, rate, 16000, quality="VHQ").T[:, 16000:]
    np.testing.assert_allclose(found, expected[:, : found.shape[1]], atol=1e-12)
    assert found.shape[1] == int(x.shape[1] * 16000 / rate + 0.5)
