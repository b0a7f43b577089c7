"""The bundled recordings are small, sound, and agree with their truth."""

from itertools import combinations

import numpy as np
import pytest
import soundfile as sf

from qkgcc import samples
from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats

Array = Floats
both = pytest.mark.parametrize("name", samples.NAMES)


def pairs(name: str) -> list[tuple[int, int]]:
    return list(combinations(range(samples.truth(name)["channels"]), 2))


def true_delay(segment: dict, first: int, second: int) -> float:
    """In samples; a recording of two channels has one pair and no table of pairs."""
    return segment.get("pair_delay_samples", {"0-1": segment["delay_samples"]})[f"{first}-{second}"]


def phat_peak(x: Array, y: Array, spacing: float, truth: dict) -> int:
    """Lag in samples where bare GCC-PHAT is largest, among those that the spacing allows."""
    size = 2 * len(x)
    cross = np.fft.rfft(x, size) * np.conj(np.fft.rfft(y, size))
    correlation = np.fft.irfft(cross / (np.abs(cross) + 1e-12), size)
    reach = int(np.ceil(spacing * truth["sample_rate"] / truth["speed_of_sound"]))
    lags = np.arange(-reach, reach + 1)
    return int(lags[np.argmax(correlation[lags])])


def test_all_recordings_together_stay_under_one_megabyte() -> None:
    folder = samples.path("talkers-2ch").parent
    assert sum(file.stat().st_size for file in folder.iterdir() if file.suffix in {".flac", ".json"}) < 1_000_000


@both
def test_audio_is_as_the_truth_describes_it(name: str) -> None:
    truth, info = samples.truth(name), sf.info(samples.path(name))
    assert (info.samplerate, info.channels, info.subtype) == (truth["sample_rate"], truth["channels"], "PCM_16")
    assert info.frames / info.samplerate == truth["duration"]
    assert truth["channels"] == len(truth["microphones"])


@both
def test_talkers_follow_one_another_with_short_gaps(name: str) -> None:
    truth = samples.truth(name)
    bounds = np.array([[segment["start"], segment["end"]] for segment in truth["segments"]])
    lengths, gaps = bounds[:, 1] - bounds[:, 0], bounds[1:, 0] - bounds[:-1, 1]
    assert np.all((lengths > 1.9) & (lengths < 3.0))
    assert np.all((gaps > 0.2) & (gaps < 0.4))
    assert bounds[0, 0] > 0
    assert bounds[-1, 1] < truth["duration"]


@both
def test_true_delays_follow_from_the_geometry(name: str) -> None:
    truth = samples.truth(name)
    microphones = np.array(truth["microphones"])
    for segment in truth["segments"]:
        travel = np.linalg.norm(microphones - segment["position"], axis=1) / truth["speed_of_sound"]
        for first, second in pairs(name):
            expected = (travel[first] - travel[second]) * truth["sample_rate"]
            assert true_delay(segment, first, second) == pytest.approx(expected, abs=1e-4)
        assert segment["delay_samples"] == true_delay(segment, 0, 1)
        assert segment["delay_seconds"] == pytest.approx(travel[0] - travel[1], abs=1e-8)


def test_the_pair_is_half_a_metre_wide() -> None:
    truth = samples.truth("talkers-2ch")
    assert truth["spacing"] == 0.5
    assert np.linalg.norm(np.diff(truth["microphones"], axis=0)) == pytest.approx(0.5)


def test_delays_of_the_pair_are_positive_negative_and_near_zero() -> None:
    delays = np.array([segment["delay_samples"] for segment in samples.truth("talkers-2ch")["segments"]])
    assert delays.max() > 10
    assert delays.min() < -10
    assert np.abs(delays).min() < 2


def test_the_array_of_four_is_not_flat() -> None:
    microphones = np.array(samples.truth("talkers-4ch")["microphones"])
    assert np.linalg.svd(microphones - microphones.mean(axis=0))[1].min() > 0.03


@both
def test_plain_gcc_phat_of_each_segment_finds_the_true_delay(name: str) -> None:
    truth, microphones = samples.truth(name), np.array(samples.truth(name)["microphones"])
    audio, rate = sf.read(samples.path(name))
    for segment in truth["segments"]:
        heard = audio[round(segment["start"] * rate) : round(segment["end"] * rate)]
        for first, second in pairs(name):
            spacing = float(np.linalg.norm(microphones[first] - microphones[second]))
            peak = phat_peak(heard[:, first], heard[:, second], spacing, truth)
            assert abs(peak - true_delay(segment, first, second)) <= 1, (segment["voice"], first, second)


def test_single_frames_of_the_pair_are_neither_trivial_nor_hopeless() -> None:
    truth = samples.truth("talkers-2ch")
    audio, rate = sf.read(samples.path("talkers-2ch"))
    right = []
    for segment in truth["segments"]:
        for start in range(round(segment["start"] * rate), round(segment["end"] * rate) - 2047, 1024):
            frame = audio[start : start + 2048]
            peak = phat_peak(frame[:, 0], frame[:, 1], truth["spacing"], truth)
            right.append(abs(peak - segment["delay_samples"]) <= 1)
    assert 0.65 < np.mean(right) < 0.85


@both
def test_audio_has_a_healthy_level_and_no_clipping_or_offset(name: str) -> None:
    audio, _ = sf.read(samples.path(name))
    level = 20 * np.log10(np.sqrt(np.mean(audio**2, axis=0)))
    assert np.abs(audio).max() < 10 ** (-3 / 20)
    assert np.all(level > -34)
    assert np.ptp(level) < 1.5
    assert np.abs(audio.mean(axis=0)).max() < 1e-4


@both
def test_noise_fills_the_pauses_too(name: str) -> None:
    truth = samples.truth(name)
    audio, rate = sf.read(samples.path(name))
    before = audio[: round((truth["segments"][0]["start"] - 0.02) * rate)]
    spoken = np.concatenate([audio[round(s["start"] * rate) : round(s["end"] * rate)] for s in truth["segments"]])
    ratio = 10 * np.log10(np.mean(spoken[:, 0] ** 2) / np.mean(before**2, axis=0))
    assert np.all(np.abs(ratio - truth["snr_db"]) < 1)


@both
def test_there_is_no_hum(name: str) -> None:
    """A mains line would stand out of the band below the voices, where there is only noise."""
    audio, rate = sf.read(samples.path(name))
    size = rate  # 1 Hz bins
    blocks = np.array([audio[i : i + size] for i in range(0, len(audio) - size + 1, size // 2)])
    power = np.mean(np.abs(np.fft.rfft(blocks * np.hanning(size)[:, None], axis=1)) ** 2, axis=(0, 2))
    for line in (50, 60):
        assert power[line] < 4 * np.median(power[line - 15 : line + 10])


def test_truth_at_gives_the_delay_of_the_talker_and_nan_in_between() -> None:
    first, second = samples.truth("talkers-2ch")["segments"][:2]
    times = [0.0, first["start"], (first["end"] + second["start"]) / 2, (second["start"] + second["end"]) / 2, 99.0]
    nan = float("nan")
    expected = [nan, first["delay_samples"], nan, second["delay_samples"], nan]
    np.testing.assert_array_equal(samples.truth_at(times, "talkers-2ch"), expected)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="talkers-2ch and talkers-4ch"):
        samples.path("nobody")
