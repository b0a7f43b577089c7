"""The doctor finds every fault in a recording that has it, and nothing in one that has none."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import soxr
from typer.testing import CliRunner

import faults
from faults import RATE, Array, Fault
from qkgcc import DelayEstimator, samples
from qkgcc.arrays import Geometry
from qkgcc.arrays import array as named_array
from qkgcc.audio.recording import open_audio
from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.doctor import CODES, Diagnosis, channels, diagnose

RESPEAKER = Geometry(0.02285 * np.array([[1, 1, 0], [-1, 1, 0], [-1, -1, 0], [1, -1, 0]]))


def examine(x: Array, recorded_at: int = RATE, **options: object) -> Diagnosis:
    return diagnose(open_audio(x, recorded_at), **options)


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


@pytest.fixture(scope="module")
def talkers() -> Array:
    """Six talkers one after the other in a simulated room, 0.5 m between the microphones."""
    return faults.talkers()


@pytest.fixture(scope="module")
def noise() -> Array:
    """Bursts of noise from one place in a room."""
    return faults.room(faults.bursts())


@pytest.fixture(scope="module")
def speech() -> Array:
    """47 s of speech from one place in a room."""
    return faults.room(faults.long_speech())


@pytest.fixture
def sources(talkers: Array, noise: Array) -> dict[str, Array]:
    return {"talkers": talkers[:, : 9 * RATE], "noise": noise}


@pytest.fixture(scope="session")
def corpora() -> Path:
    """Recordings that are not part of the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("QKGCC_DATA", beside))
    if not (folder / "real").is_dir():
        pytest.skip(f"no real recordings in {folder} (set QKGCC_DATA)")
    return folder


# Every fault is found, as what it is, and nothing else is.

FAULTS: dict[str, tuple[str, Fault]] = {
    "a copy": ("identical-channels", faults.copied()),
    "a copy at a tenth of the level": ("identical-channels", faults.copied(-20)),
    "a copy with the sign turned": ("identical-channels", faults.copied(sign=-1)),
    "digital silence": ("dead-channel", faults.silent()),
    "noise 60 dB below": ("dead-channel", faults.silent(-60)),
    "noise 35 dB below": ("dead-channel", faults.silent(-35)),
    "turned sign": ("inverted-polarity", faults.inverted()),
    "0.1 % clipped": ("clipping", faults.clipped(0.001)),
    "3 % clipped": ("clipping", faults.clipped(0.03)),
    "1 % flat tops at -12 dBFS": ("clipping", faults.clipped(0.01, top=0.25)),
    "1 % of offset": ("dc-offset", faults.lifted(0.01)),
    "-20 % of offset": ("dc-offset", faults.lifted(-0.2)),
    "8 dB of gain": ("gain-mismatch", faults.amplified(8)),
    "-8 dB of gain": ("gain-mismatch", faults.amplified(-8)),
    "-15 dB of gain": ("gain-mismatch", faults.amplified(-15)),
    "10 ms late": ("constant-offset", faults.started_later(0.010)),
    "40 ms early": ("constant-offset", faults.started_later(-0.040)),
    "0.7 s late": ("constant-offset", faults.started_later(0.7)),
    "2.5 s early": ("constant-offset", faults.started_later(-2.5)),
    "50 Hz hum at -30 dB": ("hum", faults.humming(-30, 50)),
    "60 Hz hum at -30 dB": ("hum", faults.humming(-30, 60, (1.0,))),
    "-62 dBFS": ("low-level", faults.quiet(-62)),
}


@pytest.mark.parametrize("source", ["talkers", "noise"])
@pytest.mark.parametrize(("code", "fault"), FAULTS.values(), ids=list(FAULTS))
def test_a_fault_is_found_and_nothing_else(code: str, fault: Fault, source: str, sources: dict[str, Array]) -> None:
    diagnosis = examine(fault(sources[source]))
    assert codes(diagnosis) == [code], diagnosis


@pytest.mark.parametrize("ppm", [20, -50, 200])
@pytest.mark.parametrize("offset", [0.0, 2.0, -4.0])
def test_drift_is_found_with_and_without_an_offset(ppm: float, offset: float, speech: Array) -> None:
    fault = faults.both(faults.drifting(ppm), faults.started_later(offset)) if offset else faults.drifting(ppm)
    diagnosis = examine(fault(speech))
    assert codes(diagnosis) == (["constant-offset"] if offset else []) + ["clock-drift"], diagnosis
    assert diagnosis.measured["pairs"][0]["drift_ppm"] == pytest.approx(ppm, abs=1)


def test_drift_is_found_under_talkers_who_take_turns(talkers: Array) -> None:
    rng = np.random.default_rng(0)
    three_times = np.tile(talkers, 3)  # it repeats after 14 s, and lags are searched to 6 s
    three_times += 0.001 * rng.standard_normal(three_times.shape)
    assert codes(examine(three_times)) == []
    assert codes(examine(faults.drifting(60)(three_times))) == ["clock-drift"]


def test_five_seconds_of_offset_are_found(speech: Array) -> None:
    diagnosis = examine(faults.started_later(5.0)(speech))
    assert codes(diagnosis) == ["constant-offset"]
    assert "Channel 0 hears everything 4999.5 ms (79993 samples) later" in diagnosis.findings[0].seen


def test_what_the_advice_says_against_offset_and_drift_helps(speech: Array) -> None:
    broken = faults.both(faults.drifting(80), faults.started_later(1.0))(speech)
    drift = next(finding for finding in examine(broken).findings if finding.code == "clock-drift")
    factor = float(drift.advice.split("factor of ")[1].split(",")[0])
    assert factor == pytest.approx(1 + 80e-6, abs=2e-6)
    repaired = soxr.resample(broken[1], 1.0, factor, quality="VHQ")
    count = min(len(repaired), broken.shape[1])
    resampled = np.stack([broken[0, :count], repaired[:count]])
    (offset,) = examine(resampled).findings
    assert offset.code == "constant-offset"
    cut = round(float(offset.advice.split("first ")[1].split(" s")[0]) * RATE)
    assert codes(examine(np.stack([resampled[0, cut:], resampled[1, : count - cut]]))) == []


def test_an_inverted_pair_may_be_offset_too(speech: Array) -> None:
    both = faults.both(faults.inverted(), faults.started_later(0.3))
    assert codes(examine(both(speech))) == ["inverted-polarity", "constant-offset"]


def test_a_buzz_without_its_fundamental_is_found(talkers: Array) -> None:
    assert codes(examine(faults.humming(-20, 50, (0.0, 1.0, 0.0, 0.7))(talkers))) == ["hum"]


@pytest.mark.parametrize("fault", ["turned sign", "0.7 s late", "8 dB of gain"])
def test_reverberation_and_noise_do_not_hide_a_fault(fault: str) -> None:
    code, make = FAULTS[fault]
    hard = faults.room(faults.long_speech()[: 15 * RATE], t60=0.6, snr=6.0)
    assert codes(examine(hard)) == []
    assert codes(examine(make(hard))) == [code]


@pytest.mark.parametrize("rate", [8000, 44100, 48000])
@pytest.mark.parametrize("fault", ["turned sign", "0.7 s late", "8 dB of gain", "50 Hz hum at -30 dB"])
def test_faults_are_found_at_other_rates(fault: str, rate: int, talkers: Array) -> None:
    code, make = FAULTS[fault]
    assert codes(examine(soxr.resample(make(talkers[:, : 9 * RATE]).T, RATE, rate).T, rate)) == [code]


def test_the_rate_that_was_meant_can_be_checked(talkers: Array) -> None:
    assert codes(examine(talkers, rate=16000)) == []
    (finding,) = examine(talkers, rate=48000).findings
    assert finding.code == "rate-mismatch"
    assert "16000 Hz, not 48000 Hz" in finding.seen


# Which channels, which side, which spacing.


def test_the_side_of_the_source_shows_swapped_channels(talkers: Array) -> None:
    right, left = talkers[:, : int(2.2 * RATE)], talkers[:, int(2.3 * RATE) : int(4.4 * RATE)]
    middle = talkers[:, int(4.5 * RATE) : int(6.7 * RATE)]  # 1.2 samples off
    assert codes(examine(left, expect="left")) == codes(examine(right, expect="right")) == []
    assert codes(examine(left, expect="right")) == codes(examine(left[::-1], expect="left")) == ["swapped-channels"]
    assert codes(examine(right, expect="left")) == codes(examine(right[::-1], expect="right")) == ["swapped-channels"]
    assert codes(examine(middle, expect="left")) == codes(examine(middle, expect="right")) == []
    assert codes(examine(talkers, expect="left")) == codes(examine(talkers, expect="right")) == []  # from both sides


@pytest.mark.parametrize("spacing", [0.05, 0.1, 0.2])
def test_a_spacing_that_is_too_small_is_found(spacing: float, talkers: Array) -> None:
    (finding,) = examine(talkers, spacing=spacing).findings
    assert finding.code == "outside-spacing"
    needed = float(finding.advice.split("at least ")[1].split(" m")[0])
    assert 0.3 < needed < 0.5


@pytest.mark.parametrize("seconds", [0.004, -0.3])
def test_with_a_spacing_smaller_offsets_are_found(seconds: float, noise: Array) -> None:
    diagnosis = examine(faults.started_later(seconds)(noise), spacing=0.2)
    assert codes(diagnosis) == ["constant-offset"], diagnosis


@pytest.mark.parametrize(
    ("code", "faulty", "what"),
    [
        ("inverted-polarity", 2, lambda y: -y),
        ("inverted-polarity", 0, lambda y: -y),
        ("dead-channel", 3, lambda y: 0 * y),
        ("gain-mismatch", 1, lambda y: 0.3 * y),
        ("constant-offset", 1, lambda y: np.roll(y, 4000)),
        ("constant-offset", 0, lambda y: np.roll(y, 4000)),
        ("dc-offset", 2, lambda y: y + 0.05),
    ],
)
def test_among_four_channels_the_faulty_one_is_named(code: str, faulty: int, what: Callable[[Array], Array]) -> None:
    (finding,) = examine(faults.change(faulty, what)(faults.talkers("talkers-4ch"))).findings
    assert finding.code == code
    assert faulty in finding.channels
    assert len(finding.channels) <= 2  # alone, or with the one it is compared with


def test_copies_among_four_channels_are_one_finding() -> None:
    x = faults.talkers("talkers-4ch")
    (finding,) = examine(np.stack([x[0], x[1], x[0], 0.5 * x[0]])).findings
    assert (finding.code, finding.channels) == ("identical-channels", (0, 2, 3))


# The order of the channels of an array.


def array_of_four() -> tuple[Array, Geometry]:
    return faults.talkers("talkers-4ch"), Geometry(np.array(samples.truth("talkers-4ch")["microphones"]))


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 3, 2, 1), (2, 1, 0, 3), (1, 2, 0, 3)])
def test_the_geometry_shows_a_wrong_order(order: tuple[int, ...]) -> None:
    x, geometry = array_of_four()
    assert codes(examine(x, geometry=geometry)) == []
    diagnosis = examine(x[list(order)], geometry=geometry)
    assert codes(diagnosis) == ["swapped-channels"], diagnosis
    for channel, microphone in enumerate(order):
        assert (f"channel {channel} is microphone {microphone}" in diagnosis.findings[0].seen) == (
            channel != microphone
        )


def test_every_fault_of_the_wiring_that_locate_warns_of_is_a_finding() -> None:
    x, geometry = array_of_four()
    for order in ((0, 2, 1, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        assert codes(examine(x[list(order)], geometry=geometry)) == ["swapped-channels"]
    for faulty in range(4):
        (finding,) = examine(faults.change(faulty, lambda y: -y)(x), geometry=geometry).findings
        assert (finding.code, finding.channels) == ("inverted-polarity", (faulty,))


def test_orders_that_no_delay_can_tell_apart_are_no_finding(noise: Array) -> None:
    rng = np.random.default_rng(0)
    angle = 2 * np.pi * np.arange(4) / 4
    square = Geometry(0.1 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1))
    x = plane_wave(noise[0], square, np.array([0.8, 0.5, 0.3])) + 1e-3 * rng.standard_normal((4, noise.shape[1]))
    for turned in ([0, 1, 2, 3], [1, 2, 3, 0], [3, 2, 1, 0]):
        assert codes(examine(x[turned], geometry=square)) == []
    assert codes(examine(x[[1, 0, 2, 3]], geometry=square)) == ["swapped-channels"]


def test_of_many_microphones_two_that_were_exchanged_are_found(noise: Array) -> None:
    rng = np.random.default_rng(1)
    many = Geometry(rng.uniform(-0.15, 0.15, (7, 3)))
    x = plane_wave(noise[0, : 4 * RATE], many, np.array([0.2, -0.7, 0.4])) + 1e-3 * rng.standard_normal((7, 4 * RATE))
    assert codes(examine(x, geometry=many)) == []
    (finding,) = examine(x[[3, 1, 2, 0, 4, 5, 6]], geometry=many).findings
    assert (finding.code, finding.channels) == ("swapped-channels", (0, 3))


@pytest.mark.parametrize("order", [(2, 0, 1, 3, 4, 5, 6, 7), (7, 2, 5, 0, 1, 6, 3, 4), (0, 1, 2, 4, 5, 6, 7, 3)])
def test_any_order_of_eight_microphones_is_found(order: tuple[int, ...], noise: Array) -> None:
    rng = np.random.default_rng(2)
    eight = Geometry(rng.uniform(-0.15, 0.15, (8, 3)))
    parts = np.split(noise[0, : 6 * RATE], 3)
    ways = np.array([[0.2, -0.7, 0.4], [0.9, 0.3, -0.1], [-0.3, 0.5, 0.8]])
    x = np.concatenate([plane_wave(part, eight, way) for part, way in zip(parts, ways, strict=True)], axis=1)
    x += 1e-3 * rng.standard_normal(x.shape)
    (finding,) = examine(x[list(order)], geometry=eight).findings
    assert finding.code == "swapped-channels"
    for channel, microphone in enumerate(order):
        said = f"channel {channel} is microphone {microphone}" in finding.seen
        assert said == (channel != microphone)


def test_positions_that_are_too_close_together_are_found() -> None:
    x, geometry = array_of_four()
    assert "outside-spacing" in codes(examine(x, geometry=Geometry(geometry.microphones / 3)))


def heard_by(name: str, noise: Array) -> tuple[Array, Geometry]:
    """Three far sources one after the other, on the left."""
    geometry = named_array(name)
    ways = np.array([[0.2, 0.9, 0.1], [0.6, 0.7, 0.3], [-0.4, 0.9, -0.1]])
    parts = [plane_wave(part, geometry, way) for part, way in zip(np.split(noise[0, : 6 * RATE], 3), ways, strict=True)]
    x = np.concatenate(parts, axis=1)
    return x + 0.05 * x.std() * np.random.default_rng(0).standard_normal(x.shape), geometry


@pytest.mark.parametrize("name", ["respeaker4", "linear:4:0.05", "circular:8:0.1", "tetrahedral:0.1"])
def test_a_geometry_half_as_large_as_the_array_is_found(name: str, noise: Array) -> None:
    x, geometry = heard_by(name, noise)
    assert codes(examine(x, geometry=geometry)) == []
    (finding,) = examine(x, geometry=Geometry(geometry.microphones / 2)).findings
    assert finding.code == "outside-spacing"
    assert finding.channels == tuple(range(len(geometry)))


def test_a_geometry_too_large_is_found_of_microphones_in_space_only(noise: Array) -> None:
    x, geometry = heard_by("tetrahedral:0.1", noise)
    (finding,) = examine(x, geometry=Geometry(2 * geometry.microphones)).findings
    assert (finding.code, "0.5 times as large" in finding.seen) == ("wrong-geometry", True)
    x, geometry = heard_by("respeaker4", noise)  # sources above a flat array have such delays
    assert codes(examine(x, geometry=Geometry(2 * geometry.microphones))) == []


@pytest.mark.parametrize(("name", "times"), [("tetrahedral:0.1", 10), ("tetrahedral:0.1", 100), ("respeaker4", 100)])
def test_wrong_units_are_found(name: str, times: int, noise: Array) -> None:
    x, geometry = heard_by(name, noise)
    (finding,) = examine(x, geometry=Geometry(times * geometry.microphones)).findings
    assert finding.code == "wrong-geometry"
    assert f"{times} times too large" in finding.seen
    assert "units" in finding.advice


@pytest.fixture(scope="module")
def distributed() -> tuple[Array, Geometry]:
    """A talker among six microphones that hang metres apart in a room: few delays are clear."""
    pytest.importorskip("numba")
    from qkgcc.lab.scenes.render import render
    from qkgcc.lab.scenes.scenes import Scene, Source

    places = np.array([[0.5, 0.5, 1], [5.5, 0.6, 2], [5.4, 4.4, 1.2], [0.6, 4.5, 1.8], [3, 0.5, 0.6], [3, 4.4, 2.2]])
    said = faults.long_speech()[: 6 * RATE]
    talker = Source("talker", np.array([[2.0, 1.5, 1.4]]), np.zeros(1))
    scene = Scene(np.array([6.0, 5.0, 2.8]), 0.4, places, (talker,), 25.0)
    return 0.1 * render(scene, lambda _: said, 6.0, jobs=1, early=0.05).audio.astype(np.float64), Geometry(places)


@pytest.mark.parametrize("exchanged", [(0, 1), (2, 5)])
def test_exchanged_microphones_metres_apart_are_found(
    exchanged: tuple[int, int], distributed: tuple[Array, Geometry]
) -> None:
    x, geometry = distributed
    assert codes(examine(x, geometry=geometry)) == []
    order = list(range(6))
    order[exchanged[0]], order[exchanged[1]] = exchanged[::-1]
    (finding,) = examine(x[order], geometry=geometry).findings
    assert (finding.code, finding.channels) == ("swapped-channels", exchanged)


def test_it_is_said_where_the_order_cannot_be_checked(distributed: tuple[Array, Geometry]) -> None:
    x, geometry = distributed
    assert examine(x, geometry=geometry).notes == ()
    noise = np.random.default_rng(0).standard_normal(x.shape)
    unclear = examine(0.02 * (x / x.std() + 2 * noise), geometry=geometry)
    assert codes(unclear) == []
    (note,) = unclear.notes
    assert "not checked: too few clear delays" in note
    assert note in json.loads(unclear.to_json())["notes"]
    assert note in str(unclear)


@pytest.mark.parametrize("name", ["respeaker4", "linear:4:0.05", "circular:8:0.1", "tetrahedral:0.1"])
def test_a_mirror_image_is_found_by_the_side_of_the_source(name: str, noise: Array) -> None:
    x, geometry = heard_by(name, noise)
    mirror = Geometry(geometry.microphones * np.array([1, -1, 1]))
    assert codes(examine(x, geometry=mirror)) == []  # it has all the distances of the array
    assert codes(examine(x, geometry=mirror, expect="left")) == ["wrong-geometry"]
    assert codes(examine(x, geometry=geometry, expect="left")) == []


def test_a_dead_microphone_leaves_the_rest_of_the_geometry_checked(noise: Array) -> None:
    x, geometry = heard_by("circular:8:0.1", noise)
    x[5] = 0
    assert codes(examine(x, geometry=geometry)) == ["dead-channel"]
    assert codes(examine(x[[1, 0, 2, 3, 4, 5, 6, 7]], geometry=geometry)) == ["dead-channel", "swapped-channels"]


def plane_wave(dry: Array, geometry: Geometry, direction: Array) -> Array:
    """What the microphones hear of a far source."""
    late = -geometry.microphones @ (direction / np.linalg.norm(direction)) * RATE / 343
    frequencies = np.fft.rfftfreq(dry.shape[-1])
    return np.fft.irfft(np.fft.rfft(dry) * np.exp(-2j * np.pi * frequencies * late[:, None]), dry.shape[-1])


# Clean recordings raise nothing.


@pytest.mark.parametrize("name", samples.NAMES)
def test_the_bundled_recordings_are_clean(name: str) -> None:
    assert codes(diagnose(samples.path(name))) == []
    assert codes(diagnose(samples.path(name), spacing=0.5, rate=16000)) == []


@pytest.mark.parametrize("rate", [8000, 11025, 44100, 48000, 96000])
def test_the_rate_makes_no_fault(rate: int, talkers: Array) -> None:
    assert codes(examine(soxr.resample(talkers.T, RATE, rate).T, rate, spacing=0.5)) == []


@pytest.mark.parametrize("t60", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("snr", [0.0, 10.0, None])
def test_rooms_and_noise_are_no_fault(t60: float, snr: float | None) -> None:
    assert codes(examine(faults.room(faults.long_speech()[: 6 * RATE], 5.5, t60=t60, snr=snr), spacing=0.2)) == []


def test_a_talker_near_one_microphone_is_no_wrong_gain() -> None:
    near = faults.room(faults.long_speech()[: 14 * RATE], -20.0, snr=None)
    near[1] *= 0.2
    background = 0.002 * np.random.default_rng(5).standard_normal(near.shape)
    assert codes(examine(near + background)) == []
    assert codes(examine(faults.gated(near))) == []


def test_a_wrong_gain_is_found_where_pauses_are_digitally_silent(talkers: Array) -> None:
    quiet = faults.gated(talkers)
    assert (np.abs(quiet).max(axis=0) == 0).mean() > 0.05
    assert codes(examine(quiet)) == []
    assert codes(examine(faults.amplified(-10)(quiet))) == ["gain-mismatch"]


def test_the_shadow_of_a_head_is_no_wrong_gain() -> None:
    shadowed = faults.shadowed(faults.room(faults.long_speech()[: 14 * RATE], -10.0, snr=None))
    levels = shadowed.std(axis=1)
    assert levels[0] > 1.5 * levels[1]
    assert codes(examine(shadowed)) == []
    assert codes(examine(shadowed + 0.002 * np.random.default_rng(6).standard_normal(shadowed.shape))) == []


@pytest.mark.parametrize("path", ["up and down", "circle", "across"])
def test_a_source_that_moves_is_no_drift(path: str) -> None:
    dry = faults.long_speech()[: 32 * RATE]
    time = np.arange(len(dry)) / RATE
    x = {
        "up and down": 2.5 * np.sin(2 * np.pi * time / 12),
        "circle": 2 * np.cos(2 * np.pi * time / 24),
        "across": 0.25 * (time - 16),
    }[path]
    y = 2 * np.sin(2 * np.pi * time / 24) if path == "circle" else np.full_like(x, 1.5)
    delays = (np.hypot(x + 0.25, y) - np.hypot(x - 0.25, y)) * RATE / 343
    assert np.ptp(delays) > 30
    assert codes(examine(faults.shifted(dry, delays), spacing=0.5)) == []


def test_a_voice_that_passes_the_mains_frequencies_is_no_hum() -> None:
    rng = np.random.default_rng(7)
    time = np.arange(8 * RATE) / RATE
    pitch = 120 + 30 * np.sin(2 * np.pi * time / 2.5)  # harmonics sweep over 100 ... 450 Hz
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(2 * np.pi * time / 1.3) > -0.7)
    x = faults.room(voice + 0.01 * rng.standard_normal(len(time)))
    assert codes(examine(x)) == []


@pytest.mark.parametrize("count", [2048, 4000, 20000])
def test_a_short_recording_is_no_fault(count: int, noise: Array) -> None:
    assert codes(examine(noise[:, RATE : RATE + count])) == []


@pytest.mark.parametrize("count", [2, 100, 800, 2047])
def test_a_recording_that_estimate_refuses_as_too_short_is_a_finding(count: int, noise: Array) -> None:
    short = noise[:, RATE : RATE + count]
    with pytest.raises(InputError, match="less than a frame"):
        DelayEstimator("phat")(short, RATE)
    (finding,) = (finding for finding in examine(short).findings if finding.code == "too-short")
    assert f"lasts {1000 * count / RATE:.0f} ms" in finding.seen
    assert finding.channels == (0, 1)


# Channels that share no sound.


def several_talkers(count: int) -> Array:
    """Each in a channel: what they say at one moment, and at what pitch, differs everywhere."""
    dry = faults.long_speech()[: int(13.8 * RATE)]
    parts = [dry, dry[int(6.5 * RATE) :], soxr.resample(dry, 5, 4)[2 * RATE :], soxr.resample(dry[::-1], 8, 5)]
    x = np.stack([part[: 6 * RATE] for part in parts[:count]])
    return x + 0.01 * x.std() * np.random.default_rng(5).standard_normal(x.shape)


@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_channels_that_share_nothing_are_a_finding(rate: int) -> None:
    hiss = 0.05 * np.random.default_rng(6).standard_normal((2, 6 * rate))
    talkers = soxr.resample(several_talkers(2).T, RATE, rate).T
    for unrelated in (hiss, talkers, np.stack([hiss[0], talkers[1]])):
        (finding,) = (one for one in examine(unrelated, rate).findings if one.code != "dead-channel")
        assert (finding.code, finding.channels) == ("unrelated-channels", (0, 1)), finding
        assert "standard deviations; a shared sound gives 4.5 or more)" in finding.seen


def test_four_channels_that_share_nothing_are_one_finding_with_an_array() -> None:
    hiss = 0.05 * np.random.default_rng(7).standard_normal((4, 6 * RATE))
    for unrelated in (hiss, several_talkers(4)):
        diagnosis = examine(unrelated, geometry=RESPEAKER)
        (finding,) = diagnosis.findings
        assert (finding.code, finding.channels) == ("unrelated-channels", (0, 1, 2, 3))
        assert diagnosis.notes == ()


def test_a_channel_that_shares_nothing_with_the_others_is_named() -> None:
    x = np.tile(faults.talkers("talkers-4ch"), 2)
    x[2] = x.std() * np.random.default_rng(8).standard_normal(x.shape[1])
    (finding,) = (one for one in examine(x).findings if one.code != "gain-mismatch")
    assert (finding.code, finding.channels) == ("unrelated-channels", (2,))
    assert "Channel 2 shares no sound with channels 0, 1 and 3" in finding.seen


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_reverberation_do_not_make_channels_unrelated(seed: int) -> None:
    """Noise as loud as the talker, a T60 of 1 s."""
    x = faults.room(faults.long_speech()[seed * 5 * RATE : (seed * 5 + 6) * RATE], t60=1.0, snr=0.0, seed=seed)
    assert codes(examine(x)) == []


def test_recorders_that_were_started_apart_share_a_sound(speech: Array) -> None:
    apart = faults.both(faults.drifting(100), faults.started_later(2.0))(speech)
    assert "unrelated-channels" not in codes(examine(apart))


def test_of_a_few_seconds_it_is_not_known_whether_channels_share_a_sound(noise: Array) -> None:
    hiss = 0.05 * np.random.default_rng(9).standard_normal((2, 2 * RATE))
    (finding,) = examine(hiss).findings
    assert (finding.code, finding.channels) == ("too-little-sound", (0, 1))
    assert "2.0 s of sound are too little to tell whether channels 0 and 1 share any" in finding.seen
    assert examine(noise[:, : 2 * RATE]).findings == ()
    four = 0.05 * np.random.default_rng(9).standard_normal((4, 4 * RATE))
    (finding,) = examine(four, geometry=RESPEAKER).findings
    assert (finding.code, finding.channels) == ("too-little-sound", (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("first", "second", "seconds"), [(3.2, 2.14, 2.5), (7.65, 2.33, 2.5), (7.44, 2.32, 3.5), (3.99, 3.15, 1.5)]
)
def test_different_talkers_who_are_alike_by_chance_have_no_offset(first: float, second: float, seconds: float) -> None:
    dry = faults.long_speech()[: int(13.8 * RATE)]
    other = soxr.resample(dry[::-1], 9, 8)
    count = round(seconds * RATE)
    x = np.stack([dry[round(first * RATE) :][:count], other[round(second * RATE) :][:count]])
    x *= 0.05 / x.std(axis=1, keepdims=True)
    diagnosis = examine(x + 0.0005 * np.random.default_rng(0).standard_normal(x.shape))
    assert codes(diagnosis) == ["too-little-sound"]


@pytest.mark.parametrize("seconds", [1, 2])
def test_offsets_of_short_recordings_are_found(seconds: int, speech: Array) -> None:
    assert codes(examine(faults.started_later(0.3)(speech)[:, : seconds * RATE])) == ["constant-offset"]


def test_silence_is_one_finding_about_all_channels() -> None:
    (finding,) = examine(np.zeros((3, RATE))).findings
    assert (finding.code, finding.channels) == ("dead-channel", (0, 1, 2))


# Real recordings.


def test_real_recordings_of_an_array_are_clean(corpora: Path) -> None:
    paths = sorted((corpora / "real" / "respeaker").rglob("*.flac"))
    assert len(paths) >= 12
    assert {path.name: codes(diagnose(path, geometry=RESPEAKER)) for path in paths} == {path.name: [] for path in paths}


def test_exchanged_channels_of_a_real_array_are_found_unless_it_is_a_mirror_image(corpora: Path) -> None:
    for path in sorted((corpora / "real" / "respeaker").glob("a180e20/*/*.flac")):
        exchanged = diagnose(open_audio(path).pick([0, 1, 3, 2]), geometry=RESPEAKER)
        assert [(finding.code, finding.channels) for finding in exchanged.findings] == [("swapped-channels", (2, 3))]
        assert codes(diagnose(open_audio(path).pick([2, 1, 0, 3]), geometry=RESPEAKER)) == []


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"2.5 s early"}))
def test_faults_are_found_in_a_real_recording(fault: str, corpora: Path) -> None:
    code, make = FAULTS[fault]
    path = sorted((corpora / "real" / "respeaker").glob("a180e20/150cm/*.flac"))[0]
    x = sf.read(path)[0].T[[0, 2]]
    assert codes(examine(make(0.5 * x))) == [code]


@pytest.mark.parametrize("where", ["Room_A", "Anechoic"])
def test_a_real_head_is_clean_from_all_sides(where: str, corpora: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(corpora / "real" / "surrey" / f"UniS_{where}_BRIR_16k.sofa") as file:
        responses = file["Data.IR"][:]
    # Speakers 121 and 237: the recordings of 61 (and of many others of LibriSpeech) do hum.
    paths = [
        *sorted((corpora / "librispeech").rglob("121-*.flac")),
        *sorted((corpora / "librispeech").rglob("237-*.flac")),
    ]
    long = [path for path in paths if sf.info(path).duration > 4][:: len(responses) // 5]
    for index, response in enumerate(responses):
        dry = sf.read(long[index % len(long)], stop=5 * RATE)[0]
        heard = np.stack([faults.fftconvolve(dry, ear)[: len(dry)] for ear in response])
        diagnosis = examine(0.5 * heard / np.abs(heard).max())
        assert codes(diagnosis) == [], (index, diagnosis)


# The report itself.


def test_a_diagnosis_is_json_and_readable_text(tmp_path: Path, talkers: Array) -> None:
    path = tmp_path / "broken.wav"
    sf.write(path, faults.both(faults.inverted(), faults.humming(-20, 50))(talkers).T, RATE)
    diagnosis = diagnose(path, spacing=0.5)
    record = json.loads(diagnosis.to_json(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text()) == record
    assert [finding["code"] for finding in record["findings"]] == ["hum", "inverted-polarity"]
    assert (record["sample_rate"], record["channels"], record["source"]) == (RATE, 2, str(path))
    assert record["measured"]["pairs"][0]["channels"] == [0, 1]
    assert str(diagnosis).splitlines()[1].startswith("  hum: A steady line at 50 Hz")
    assert "nothing wrong" in str(diagnose(samples.path("talkers-2ch")))


def test_every_finding_has_a_code_numbers_and_advice(sources: dict[str, Array]) -> None:
    seen = set()
    for _, fault in FAULTS.values():
        for finding in examine(fault(sources["noise"])).findings:
            assert finding.code in CODES
            assert any(letter.isdigit() for letter in finding.seen), finding
            assert finding.seen.endswith(".")
            assert finding.advice.endswith(".")
            seen.add(finding.code)
    of_geometry = {"outside-spacing", "swapped-channels", "wrong-geometry"}
    of_short = {"too-short", "too-little-sound"}
    assert set(CODES) - seen == {"rate-mismatch", *of_short, "unrelated-channels", "clock-drift", *of_geometry}


def test_only_the_most_active_part_of_a_long_recording_is_studied(
    talkers: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MAX_EXCERPT", 5.0)
    rng = np.random.default_rng(9)
    x = np.concatenate([1e-3 * rng.standard_normal((2, 12 * RATE)), talkers[:, : 5 * RATE]], axis=1)
    x = np.concatenate([x, 1e-3 * rng.standard_normal((2, 12 * RATE))], axis=1)
    diagnosis = examine(faults.inverted()(x))
    assert codes(diagnosis) == ["inverted-polarity"]
    assert diagnosis.measured["studied"]["seconds"] == 5.0
    assert diagnosis.measured["studied"]["start"] == pytest.approx(12, abs=0.7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spacing": 50_000.0}, "0.001 to 100 m"),
        ({"expect": "behind"}, "known are left, right"),
        ({"speed_of_sound": 0.343}, "100 to 10000 m/s"),
        ({"geometry": RESPEAKER}, "2 channels;.*4 microphones"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, object], message: str, noise: Array) -> None:
    with pytest.raises(InputError, match=message):
        examine(noise, **options)


def test_more_channels_than_microphones_are_picked_from(tmp_path: Path, noise: Array) -> None:
    x, _ = heard_by("respeaker4", noise)
    six = np.concatenate([0.01 * np.random.default_rng(0).standard_normal((1, x.shape[1])), x, x[:1]])
    sf.write(tmp_path / "six.wav", 0.2 * six.T / np.abs(six).max(), RATE)
    command = ["doctor", str(tmp_path / "six.wav"), "--array", "respeaker4"]
    refused = CliRunner().invoke(app, command)
    assert "pick those that are its microphones, in their order" in str(refused.exception)
    picked = CliRunner().invoke(app, [*command, "--channels", "1,2,3,4"])
    assert picked.exit_code == 0, picked.output
    swapped = CliRunner().invoke(app, [*command, "--channels", "2,1,3,4"])
    assert "swapped-channels" in swapped.output


def test_one_channel_cannot_be_examined(noise: Array) -> None:
    with pytest.raises(InputError, match="1 channel"):
        examine(noise[:1])
