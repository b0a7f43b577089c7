"""Recorders on one clock, and microphones refined by a walk: simulated, with the truth known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from typer.testing import CliRunner

import faults
from faults import RATE, Array
from qkgcc.arrays import Geometry, array, read_geometry
from qkgcc.arrays.geometry import write_geometry
from qkgcc.arrays.steering import across, arrivals, derivatives
from qkgcc.audio.frames import warp
from qkgcc.audio.recording import Recording, open_audio
from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.doctor import diagnose
from qkgcc.selfcal import Moments, Refined, measure_moments, refine
from qkgcc.selfcal.fit import WavefrontFit
from qkgcc.sync import Clock, synchronise, write_aligned
from qkgcc.sync.clock_fit import fit_clock

pytestmark = pytest.mark.numeric

C = 343.0


@pytest.fixture(scope="module")
def speech() -> Array:
    """47 s."""
    return faults.long_speech()


def recorder(
    world: Array, started: float, ppm: float = 0.0, seconds: float | None = None, *, snr: float = 20.0, rate: int = RATE
) -> Array:
    """What a recorder hears of the world's sound that was started so late, and whose clock is so much slower."""
    step = RATE / rate / (1 - 1e-6 * ppm)
    last = len(world) / RATE if seconds is None else started + seconds
    count = int((last - started) * RATE / step)
    heard = warp(world, step, started * RATE, count)
    noise = np.random.default_rng(int(1000 * started) + 1).standard_normal(count)
    return heard + 10 ** (-snr / 20) * world.std() * noise


def opened(*channels: Array, rate: int = RATE) -> list[Recording]:
    return [open_audio(channel[None], rate) for channel in channels]


def clock_of(first: Array, second: Array) -> Clock:
    return synchronise(opened(first, second)).clocks[1]


# Offsets and drift


@pytest.mark.parametrize(
    ("started", "ppm"), [(0.0, 0.0), (0.7312345, 20.0), (-3.25, -87.3), (11.0, 150.0), (-14.2, 3.0)]
)
def test_offset_and_drift_are_found_from_speech(started: float, ppm: float, speech: Array) -> None:
    first = recorder(speech, max(0, -started), seconds=30)
    second = recorder(speech, max(0, started), ppm, seconds=30)
    clock = clock_of(first, second)
    # t_2 = (1 - ppm) (t_1 + a - b), where a and b are when the two were started
    assert clock.offset * RATE == pytest.approx(started * (1 - 1e-6 * ppm) * RATE, abs=0.3)
    assert clock.drift is not None
    assert 1e6 * clock.drift == pytest.approx(ppm, abs=0.5)
    assert clock.drift_sd is not None
    assert clock.offset_sd * RATE < 0.5
    assert abs(1e6 * clock.drift - ppm) < 5e6 * clock.drift_sd


def test_minutes_of_offset_are_found(speech: Array) -> None:
    rng = np.random.default_rng(0)
    long = np.concatenate([0.2 * speech.std() * rng.standard_normal(100 * RATE), speech[: 20 * RATE]])
    clock = clock_of(recorder(long, 0.0), recorder(long, 99.5))
    assert clock.offset * RATE == pytest.approx(99.5 * RATE, abs=0.3)


def clap(at: Sequence[float], seconds: float) -> Array:
    rng = np.random.default_rng(5)
    world = np.zeros(int(seconds * RATE))
    for second in at:
        n = int(0.08 * RATE)
        burst = rng.standard_normal(n) * np.exp(-np.arange(n) / (0.01 * RATE))
        world[int(second * RATE) : int(second * RATE) + n] += burst
    return world


def test_one_clap_gives_the_offset_and_no_drift() -> None:
    world = clap([9.0], 20)
    clock = clock_of(recorder(world, 0.0, snr=10), recorder(world, 4.321, snr=10))
    assert clock.offset * RATE == pytest.approx(4.321 * RATE, abs=0.5)
    assert clock.drift is None


def test_claps_at_both_ends_give_the_drift() -> None:
    world = clap([5.0, 55.0], 65)
    clock = clock_of(recorder(world, 0.0, snr=10), recorder(world, 2.0, 40.0, snr=10))
    assert clock.offset * RATE == pytest.approx(2.0 * (1 - 40e-6) * RATE, abs=0.5)
    assert clock.drift is not None
    assert 1e6 * clock.drift == pytest.approx(40, abs=1)


def test_talkers_at_several_places_have_one_drift(speech: Array) -> None:
    first = recorder(speech, 0.0, seconds=40)
    turns = np.where(np.arange(len(speech)) // (4 * RATE) % 2, 12.0, -9.0)  # samples, a turn is 4 s
    world = np.where(turns > 0, np.roll(speech, 12), np.roll(speech, -9))
    clock = clock_of(first, recorder(world, 0.0, 30.0, seconds=40))
    assert clock.drift is not None
    assert 1e6 * clock.drift == pytest.approx(30, abs=1)
    assert clock.places == 2
    assert clock.spread * RATE == pytest.approx(21, abs=1)


def test_a_walk_makes_the_drift_uncertain_and_says_so(speech: Array) -> None:
    time = np.arange(len(speech))
    path = 30 * np.sin(2 * np.pi * time / (17.0 * RATE))  # samples to and fro
    both = faults.shifted(speech, path)
    answer = synchronise(opened(both[0], both[1]))
    clock = answer.clocks[1]
    assert clock.walked
    assert clock.drift is not None
    assert clock.drift_sd is not None
    assert abs(clock.drift) < 4 * clock.drift_sd
    assert 1e6 * clock.drift_sd > 1
    assert any("seems to have moved" in remark for remark in answer.remarks)


def test_recorders_may_have_other_rates_channels_and_polarity(speech: Array) -> None:
    first = recorder(speech, 0.0, seconds=25)
    second = -recorder(speech, 1.5, 10.0, seconds=25, rate=44100)
    both = open_audio(np.stack([0 * second, second]), 44100)  # its first channel is dead
    clock = synchronise([open_audio(first[None], RATE), both]).clocks[1]
    assert clock.offset * RATE == pytest.approx(1.5 * (1 - 10e-6) * RATE, abs=0.3)
    assert clock.inverted


def test_known_distances_are_taken_out_and_unknown_ones_said() -> None:
    world = clap([5.0], 12)
    late = np.pad(world, (160, 0))  # 10 ms: 3.43 m farther from the clap
    recordings = opened(recorder(world, 0.0), recorder(late, 1.0))
    plain = synchronise(recordings)
    assert plain.clocks[1].offset == pytest.approx(0.99, abs=1e-4)
    assert "the sound's travel time" in plain.remarks[0]
    known = synchronise(recordings, distances=[1.0, 1.0 + 0.01 * C])
    assert known.clocks[1].offset == pytest.approx(1.0, abs=1e-4)
    assert not any("the sound's travel time" in remark for remark in known.remarks)


def test_what_cannot_be_synchronised_is_explained(speech: Array) -> None:
    noise = np.random.default_rng(1).standard_normal((2, 20 * RATE))
    with pytest.raises(InputError, match="no sound of the array is found in the array"):
        clock_of(noise[0], noise[1])
    with pytest.raises(InputError, match="is silent"):
        clock_of(speech, 0 * speech)
    with pytest.raises(InputError, match="need 2 or more"):
        synchronise(opened(speech))
    with pytest.raises(InputError, match="expected 2, of 0 to 1000 m"):
        synchronise(opened(speech, speech), distances=[1.0])


# Aligned files


def test_a_sine_is_read_between_its_samples() -> None:
    place = 100.3 + 0.9999 * np.arange(500)
    sine = np.sin(2 * np.pi * 0.4 * np.arange(1000))
    np.testing.assert_allclose(warp(sine, 0.9999, 100.3, 500), np.sin(2 * np.pi * 0.4 * place), atol=1e-4)
    np.testing.assert_allclose(warp(sine, 1.0, 990, 50)[20:], 0, atol=0.02)  # nothing there


def test_written_files_are_in_step(speech: Array, tmp_path: Path) -> None:
    first = recorder(speech, 2.0, seconds=30, snr=30)
    second = recorder(speech, 0.0, 120.0, seconds=30, snr=30)
    for name, x in (("a", first), ("b", second)):
        sf.write(tmp_path / f"{name}.wav", x / 20, RATE, subtype="FLOAT")
    shown = CliRunner().invoke(
        app,
        ["calibrate", "offsets", str(tmp_path / "a.wav"), str(tmp_path / "b.wav"), "--write", str(tmp_path / "out")],
    )
    assert shown.exit_code == 0, shown.output
    assert "+119.9" in shown.output or "+120.0" in shown.output
    x, y = (sf.read(tmp_path / "out" / f"{name}.wav")[0] for name in "ab")
    assert len(x) == len(y) == pytest.approx(28 * RATE, abs=100)
    again = clock_of(x, y)
    assert again.offset * RATE == pytest.approx(0, abs=0.3)
    assert 1e6 * (again.drift or 0) == pytest.approx(0, abs=0.3)
    np.testing.assert_array_equal(x.astype(np.float32), (first / 20).astype(np.float32)[: len(x)])  # the first is kept


def test_recordings_are_never_written_over(speech: Array, tmp_path: Path) -> None:
    for name in "ab":
        sf.write(tmp_path / f"{name}.wav", speech[: 12 * RATE] / 20, RATE)
    kept = (tmp_path / "a.wav").read_bytes()
    files = [tmp_path / "a.wav", tmp_path / "b.wav"]
    recordings = [open_audio(file) for file in files]
    answer = synchronise(recordings)
    with pytest.raises(InputError, match="is one of the recordings"):
        write_aligned(answer, recordings, tmp_path, ["a", "b"], sources=files)
    with pytest.raises(InputError, match="to one file"):
        write_aligned(answer, recordings, tmp_path / "out", ["a", "a"])
    assert (tmp_path / "a.wav").read_bytes() == kept


def test_channels_of_one_file_are_recorders(speech: Array, tmp_path: Path) -> None:
    both = np.stack([recorder(speech, 0.0, seconds=20), recorder(speech, 0.5, seconds=20)])
    sf.write(tmp_path / "two.wav", both.T / 20, RATE)
    shown = CliRunner().invoke(app, ["calibrate", "offsets", str(tmp_path / "two.wav"), "--format", "json"])
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.output)["recorders"]
    assert [row["file"] for row in rows] == ["two-0", "two-1"]
    assert rows[1]["offset_samples"] == pytest.approx(0.5 * RATE, abs=0.3)


# Positions


def walk(kind: str, distance: float, count: int = 150) -> Array:
    rng = np.random.default_rng(1)
    around = np.linspace(0, 4 * np.pi, count)
    flat = distance * (1 + 0.3 * np.sin(3 * around))
    height = {"space": flat * rng.uniform(-1.5, 1.5, count), "level": 0 * flat}[kind]
    return np.stack([flat * np.cos(around), flat * np.sin(around), height], axis=1)


def moments_of(true: Array, sources: Array, *, noise: float = 5e-6, wrong: float = 0.05, late: Array | None = None):
    """Delays with noise in each channel, and some that are wrong altogether."""
    rng = np.random.default_rng(0)
    pairs = tuple((i, j) for i in range(len(true)) for j in range(i + 1, len(true)))
    heard = np.linalg.norm(sources[:, None] - true, axis=-1) / C
    heard = heard + noise * rng.standard_normal(heard.shape) + (0 if late is None else late)
    delays = np.stack([heard[:, i] - heard[:, j] for i, j in pairs], axis=1)
    limit = np.abs(delays).max()
    delays = np.where(rng.random(delays.shape) < wrong, rng.uniform(-limit, limit, delays.shape), delays)
    return Moments(np.arange(len(delays)) / 5, pairs, delays, np.ones_like(delays))


def displaced(true: Array, size: float = 0.02, axes: Sequence[float] = (1, 1, 1)) -> Geometry:
    return Geometry(true + size * np.random.default_rng(5).standard_normal(true.shape) * np.array(axes))


def error(found: Refined, true: Array) -> Array:
    """Metres by which each microphone is off, the array as a whole moved and turned to lie best."""
    x, y = found.geometry.microphones, true
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    left, _, right = np.linalg.svd(x.T @ y)
    return np.linalg.norm(x @ left @ right - y, axis=1)


CUBE = np.array([[x, y, z] for x in (-0.15, 0.15) for y in (-0.15, 0.15) for z in (-0.15, 0.15)])
SCATTERED = np.random.default_rng(3).uniform(-1, 1, (6, 3))


@pytest.mark.parametrize(
    ("true", "distance", "options"),
    [
        (CUBE, 1.5, {}),
        (CUBE, 30.0, {}),
        (SCATTERED, 2.0, {}),
        (array("tetrahedral:0.2").microphones, 2.0, {"nearest": 1.0}),
    ],
    ids=["near", "far", "scattered", "four"],
)
def test_a_walk_on_all_sides_gives_places_within_a_centimetre(true: Array, distance: float, options: dict) -> None:
    found = refine(displaced(true), moments_of(true, walk("space", distance)), **options)
    assert error(found, true).max() < 0.003
    assert found.unsolved == ()
    assert found.sd.max() < 0.003
    assert found.residual < found.before / 5


def test_the_standard_deviations_are_those_of_the_errors() -> None:
    errors = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        clean = moments_of(CUBE, walk("space", 1.5), noise=0.0, wrong=0.0)
        late = 1e-5 * rng.standard_normal((len(clean.times), len(CUBE)))
        noisy = clean.delays + np.stack([late[:, i] - late[:, j] for i, j in clean.pairs], axis=1)
        found = refine(displaced(CUBE), Moments(clean.times, clean.pairs, noisy, clean.weights))
        errors.append(np.sqrt((error(found, CUBE) ** 2).mean()) / np.sqrt((found.sd**2).sum(axis=1).mean()))
    assert 0.6 < np.mean(errors) < 1.6


def test_constant_offsets_of_channels_can_be_solved_too() -> None:
    late = 1e-4 * np.array([0, 3, -2, 1, 0, 0, -1, -1])
    moments = moments_of(CUBE, walk("space", 1.5), late=late)
    found = refine(displaced(CUBE), moments, offsets=True)
    assert found.offsets is not None
    np.testing.assert_allclose(found.offsets, late - late.mean(), atol=5e-6)
    assert error(found, CUBE).max() < 0.004
    assert error(refine(displaced(CUBE), moments), CUBE).max() > 0.01  # which is why they are asked for


def test_heights_are_named_after_a_level_walk_around_a_flat_array() -> None:
    true = array("circular:8:0.1").microphones
    found = refine(displaced(true, axes=(1, 1, 0)), moments_of(true, walk("level", 2.0)), height=0.0)
    assert error(found, true).max() < 0.003  # in the plane all is well,
    (lost,) = found.unsolved
    assert lost.what == "where the microphones lie along up"
    assert len(lost.shifts) == 8 - 3
    assert "walk above and below" in lost.advice
    assert found.sd[:, 2].min() > 0.02
    assert found.sd[:, :2].max() < 0.003
    crooked = displaced(true)
    kept = refine(crooked, moments_of(true, walk("level", 2.0)), height=0.0)
    bent = kept.geometry.microphones[:, 2] - crooked.microphones[:, 2]
    tilt = np.linalg.lstsq(np.column_stack([true[:, :2], np.ones(8)]), bent, rcond=None)
    assert np.sqrt(tilt[1][0] / 8) < 0.003  # and what cannot be seen stays as it was given


def test_the_size_of_a_flat_array_is_named_where_the_height_of_the_walk_is_unknown() -> None:
    true = array("circular:8:0.1").microphones
    found = refine(displaced(true, axes=(1, 1, 0)), moments_of(true, walk("level", 2.0)))
    assert any("the size of the array along" in lost.what for lost in found.unsolved)
    assert any("give the height" in lost.advice for lost in found.unsolved)


def test_the_answer_does_not_depend_on_how_the_fit_has_turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are laid on the given ones; what is known of them has to come along."""
    moments, nominal = moments_of(CUBE, walk("level", 2.0)), displaced(CUBE)
    plain = refine(nominal, moments)
    converge = WavefrontFit.converge_twice
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((3, 3)))[0]
    turn *= np.linalg.det(turn)

    def turned(fit: WavefrontFit) -> None:
        converge(fit)
        x = fit.unknowns
        fit.unknowns = replace(x, places=x.places @ turn, direction=x.direction @ turn)

    monkeypatch.setattr(WavefrontFit, "converge_twice", turned)
    other = refine(nominal, moments)
    np.testing.assert_allclose(other.geometry.microphones, plain.geometry.microphones, atol=1e-6)
    np.testing.assert_allclose(other.sd, plain.sd, rtol=0.01)
    np.testing.assert_allclose(other.directions, plain.directions, atol=1e-6)
    assert [one.what for one in other.unsolved] == [one.what for one in plain.unsolved]
    assert plain.unsolved


def test_only_the_size_of_a_flat_array_is_lost_where_heights_are_not_known() -> None:
    true = array("circular:8:0.1").microphones
    stretched = Geometry(1.6 * displaced(true, 0.01).microphones)
    found = refine(stretched, moments_of(true, walk("space", 1.5)), nearest=0.8, tolerance=0.04)
    assert all("the size of the array" in lost.what for lost in found.unsolved), [one.what for one in found.unsolved]
    lost = np.concatenate([one.shifts for one in found.unsolved]).reshape(-1, true.size)
    assert len(lost) <= 3
    x = found.geometry.microphones - found.geometry.microphones.mean(axis=0)
    left, _, right = np.linalg.svd(true.T @ x)
    missed = (x - true @ left @ right).ravel()
    missed -= missed @ lost.T @ lost
    assert np.linalg.norm(missed.reshape(-1, 3), axis=1).max() < 0.01


def test_a_source_that_does_not_walk_solves_nothing() -> None:
    still = np.tile([[1.0, 0.5, 0.2]], (60, 1))
    nominal = displaced(CUBE)
    found = refine(nominal, moments_of(CUBE, still, wrong=0.0))
    assert sum(len(lost.shifts) for lost in found.unsolved) >= 3 * 8 - 6 - 7  # 7 delays are all that there is
    assert found.sd.max() > 0.02


def test_too_little_is_explained() -> None:
    moments = moments_of(CUBE, walk("space", 1.5, 10))
    with pytest.raises(InputError, match="only 10 moments"):
        refine(Geometry(CUBE), moments)
    with pytest.raises(InputError, match="needs 3 or more"):
        refine(Geometry(CUBE[:2]), moments_of(CUBE[:2], walk("space", 1.5)))
    with pytest.raises(InputError, match="tolerance is 0 m"):
        refine(Geometry(CUBE), moments, tolerance=0)
    with pytest.raises(InputError, match="tolerance is nan m"):
        measure_moments(open_audio(np.zeros((8, RATE)), RATE), Geometry(CUBE), tolerance=float("nan"))
    for height in (float("nan"), float("inf")):
        with pytest.raises(InputError, match=f"the height is {height} m"):
            refine(Geometry(CUBE), moments_of(CUBE, walk("level", 1.5)), height=height)
    with pytest.raises(InputError, match=r"2 channels; .* 8 microphones"):
        measure_moments(open_audio(np.zeros((2, RATE)), RATE), Geometry(CUBE))


@pytest.mark.parametrize("nearness", [0.0, 0.3, 2.0])
def test_wavefronts_and_their_derivatives(nearness: float) -> None:
    rng = np.random.default_rng(4)
    places, w = rng.uniform(-0.5, 0.5, (5, 3)), np.array([nearness])
    u = rng.standard_normal((1, 3))
    u /= np.linalg.norm(u)
    f, by_place, (by_source, steps) = derivatives(places, u, w)
    if nearness:
        source = u[0] / nearness
        np.testing.assert_allclose(f[0], np.linalg.norm(source - places, axis=1) - 1 / nearness, atol=1e-12)
    else:
        np.testing.assert_allclose(f[0], -places @ u[0])
    h = 1e-6
    for axis in range(3):
        moved = arrivals(places + h * np.eye(3)[axis], u, w)
        np.testing.assert_allclose(by_place[0, :, axis], (moved - f)[0] / h, atol=1e-5)
    for step in range(2):
        turned = u + h * steps[:, step]
        np.testing.assert_allclose(
            by_source[0, :, step], (arrivals(places, turned / np.linalg.norm(turned), w) - f)[0] / h, atol=1e-5
        )
    np.testing.assert_allclose(by_source[0, :, 2], (arrivals(places, u, w + h) - f)[0] / h, atol=1e-5)
    np.testing.assert_allclose(across(u) @ u[0], 0, atol=1e-12)


# The command


def spoken_walk(true: Array, sources: Array, speech: Array, each: float = 0.5) -> Array:
    """A source that stands at each place for half a second, heard in the open with a little noise."""
    size = int(each * RATE)
    parts = []
    for k, source in enumerate(sources):
        dry = speech[k * size : (k + 1) * size]
        distance = np.linalg.norm(source - true, axis=1)
        late = (distance - distance.min()) / C * RATE
        parts.append(np.stack([warp(dry, 1.0, -shift, size) for shift in late]))
    x = np.concatenate(parts, axis=1)
    return x / np.abs(x).max() + 1e-3 * np.random.default_rng(0).standard_normal(x.shape)


def test_the_command_refines_a_spoken_walk(speech: Array, tmp_path: Path) -> None:
    true = CUBE[[0, 3, 5, 6, 7]]
    sf.write(tmp_path / "walk.wav", spoken_walk(true, walk("space", 1.5, 44), speech).T / 2, RATE)
    write_geometry(displaced(true, 0.01), tmp_path / "mine.toml")
    out = tmp_path / "refined.csv"
    command = ["calibrate", "positions", str(tmp_path / "walk.wav"), "--array", str(tmp_path / "mine.toml")]
    shown = CliRunner().invoke(app, [*command, "--out", str(out), "--nearest", "1", "--format", "json"])
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.output)
    assert answer["unsolved"] == []
    refined = read_geometry(out)
    np.testing.assert_allclose(refined.microphones, answer["microphones"], atol=1e-6)
    apart = [refined.spacing(*pair) - Geometry(true).spacing(*pair) for pair in refined.pairs]
    assert np.abs(apart).max() < 0.01
    table = CliRunner().invoke(app, [*command, "--nearest", "1", "--offsets", "--end", "12", "--channels", "0,1,2,3,4"])
    assert "moments; residual of the delays" in table.output


@pytest.fixture
def mute_walk(speech: Array, tmp_path: Path) -> Callable[..., Any]:
    """The command on a walk in which some of six microphones are dead; their geometry is mine.toml."""
    true = CUBE[[0, 1, 3, 5, 6, 7]]
    write_geometry(displaced(true, 0.01), tmp_path / "mine.toml")
    heard = spoken_walk(true, walk("space", 1.5, 44), speech).T / 2

    def run(*dead: int) -> Any:
        heard[:, dead] = 0
        sf.write(tmp_path / "walk.wav", heard, RATE)
        command = ["calibrate", "positions", str(tmp_path / "walk.wav"), "--array", str(tmp_path / "mine.toml")]
        return CliRunner().invoke(app, [*command, "--nearest", "1", "--format", "json"])

    return run


def test_a_dead_microphone_is_said_once_and_the_others_are_refined(mute_walk: Any, tmp_path: Path) -> None:
    shown = mute_walk(1)
    assert shown.exit_code == 1  # something is not determined
    assert shown.stderr.count("microphone 1 is silent") == 1
    answer, given = json.loads(shown.stdout), read_geometry(tmp_path / "mine.toml")
    assert [one["what"] for one in answer["unsolved"]] == ["where microphone 1 lies"]
    np.testing.assert_allclose(answer["microphones"][1], given.microphones[1], atol=1e-6)
    assert answer["moved"][1] == 0
    true, refined = Geometry(CUBE[[0, 3, 5, 6, 7]]), Geometry(np.array(answer["microphones"])[[0, 2, 3, 4, 5]])
    assert max(abs(refined.spacing(*pair) - true.spacing(*pair)) for pair in true.pairs) < 0.01


def test_two_microphones_that_live_are_too_few_for_places(mute_walk: Any) -> None:
    shown = mute_walk(0, 1, 3, 4)
    assert isinstance(shown.exception, InputError)
    assert "4 of the 6 microphones are silent (0, 1, 3, 4)" in str(shown.exception)


def test_what_is_not_determined_is_of_the_microphones_that_live_by_their_numbers() -> None:
    moments = moments_of(CUBE, np.tile([1.0, 1.0, 0.2], (60, 1)), wrong=0.0)  # a source that does not walk
    weights = np.where([0 in pair for pair in moments.pairs], 0.0, moments.weights)
    found = refine(displaced(CUBE), Moments(moments.times, moments.pairs, moments.delays, weights, dead=(0,)))
    named = [re.findall(r"microphones? ([\d, ]*\d)", one.what) for one in found.unsolved]
    assert named[-1] == ["0"]
    assert not any("0" in part.split(", ") for one in named[:-1] for part in one)
    assert all(one.shifts.shape[1:] == (8, 3) for one in found.unsolved)


def test_a_written_geometry_reads_the_same(tmp_path: Path) -> None:
    for name in ("a.toml", "a.csv"):
        np.testing.assert_allclose(read_geometry(write_geometry(Geometry(CUBE), tmp_path / name)).microphones, CUBE)
    with pytest.raises(InputError, match=r"ends in .toml or .csv"):
        write_geometry(Geometry(CUBE), tmp_path / "a.txt")


def test_the_doctor_takes_an_array_by_name(tmp_path: Path) -> None:
    square = array("respeaker4")
    far = np.tile([[3.0, 1.0, 0.5], [-2.0, 2.0, 1.0]], (3, 1))
    x = spoken_walk(square.microphones, far, faults.bursts(), 1.0)
    sf.write(tmp_path / "wrong.wav", x[[1, 0, 2, 3]].T / 2, RATE)
    sf.write(tmp_path / "right.wav", x.T / 2, RATE)
    wrong = CliRunner().invoke(app, ["doctor", str(tmp_path / "wrong.wav"), "--array", "respeaker4"])
    assert (wrong.exit_code, "swapped-channels" in wrong.output) == (1, True), wrong.output
    right = CliRunner().invoke(app, ["doctor", str(tmp_path / "right.wav"), "--array", "respeaker4"])
    assert "swapped-channels" not in right.output, right.output


def test_the_order_of_microphones_metres_apart_is_found_from_sources_among_them() -> None:
    rng = np.random.default_rng(2)
    places = rng.uniform([-2, -1.5, -0.8], [2, 1.5, 0.8], (6, 3))
    sources = np.repeat(rng.uniform([-1.5, -1, -0.5], [1.5, 1, 0.5], (4, 3)), 2, axis=0)
    x = spoken_walk(places, sources, faults.bursts(12.0), 1.5)
    right = diagnose(open_audio(x, RATE), geometry=Geometry(places))
    assert {"swapped-channels", "wrong-geometry"}.isdisjoint(finding.code for finding in right.findings)
    order = [0, 4, 2, 3, 1, 5]
    wrong = diagnose(open_audio(x[order], RATE), geometry=Geometry(places))
    (finding,) = [finding for finding in wrong.findings if finding.code == "swapped-channels"]
    assert finding.channels == (1, 4)


# Rooms, far sources, and what must be refused


def echoing(dry: Array, direct: Sequence[float], seed: int, *, t60: float = 0.6, above: float = 8.0) -> Array:
    """Two recorders far from a source: the direct sound, and reverberation that is louder by so many dB."""
    rng = np.random.default_rng(seed)
    heard = []
    for late in direct:
        response = np.zeros(int(t60 * RATE))
        time = np.arange(len(response)) - late - 40
        tail = rng.standard_normal(len(response)) * 10 ** (-3 * time / len(response)) * (time > 0)
        tail *= rng.random(len(response)) < 0.05 + time / len(response)  # few reflections first, then more and more
        response += tail * 10 ** (above / 20) / np.sqrt((tail**2).sum())
        response[round(late)] += 1
        heard.append(faults.fftconvolve(dry, response)[: len(dry)])
    return np.stack(heard)


def test_claps_far_away_are_found_by_their_leading_edges() -> None:
    world = echoing(clap([4.0, 5.1, 6.7, 51.0, 52.3, 54.0], 60), (900, 700), 1)
    answer = clock_of(recorder(world[0], 0.0, snr=35), recorder(world[1], 2.0, 40.0, snr=35))
    assert answer.offset * RATE == pytest.approx((2.0 * RATE + 200) * (1 - 40e-6), abs=1)
    assert answer.drift is not None
    assert 1e6 * answer.drift == pytest.approx(40, abs=2)


def test_claps_are_not_taken_for_the_seconds_in_which_they_are_heard() -> None:
    """Two each: as speech, six of them would count twice, by their reflections and not by their edges."""
    world = clap([4.0, 6.1, 8.7, 51.0, 53.3, 56.0], 60)
    clock = clock_of(recorder(world, 0.0, snr=20), recorder(world, 2.0, 40.0, snr=20))
    assert clock.offset * RATE == pytest.approx(2.0 * RATE * (1 - 40e-6), abs=0.5)
    assert clock.used == 6


def test_a_clap_at_one_end_and_three_at_the_other_have_one_line() -> None:
    times = np.array([26.95, 270.95, 272.14, 274.05])
    delays = 2.0 + 70e-6 * times + np.array([-5, -8, -5, 0]) * 1e-6
    sure = np.ones(4, dtype=bool)
    clock = fit_clock(times, delays, sure, 0.7 * sure, RATE)
    assert clock is not None
    assert clock.used == 4
    assert clock.offset * RATE == pytest.approx(2.0 * RATE, abs=0.5)
    assert clock.drift_sd is not None
    assert clock.drift_sd < 1e-6


def test_speech_far_away_is_found_where_it_begins_not_where_it_echoes(speech: Array) -> None:
    world = echoing(speech, (900, 850), 3, above=4.0)
    answer = clock_of(recorder(world[0], 0.0, snr=30), recorder(world[1], 1.0, 25.0, snr=30))
    assert answer.offset * RATE == pytest.approx((1.0 * RATE + 50) * (1 - 25e-6), abs=1)
    assert 1e6 * (answer.drift or 0) == pytest.approx(25, abs=2)


@pytest.mark.parametrize("seconds", [5, 8])
@pytest.mark.parametrize("begin", [0, 14, 28])
def test_a_few_seconds_of_speech_in_a_room_give_the_offset(begin: int, seconds: int, speech: Array) -> None:
    world = echoing(speech, (900, 850), 3, t60=0.4, above=0.0)
    part = slice(begin * RATE, (begin + seconds + 1) * RATE)
    first, second = recorder(world[0][part], 0.0, snr=30), recorder(world[1][part], 1.0, 90.0, snr=30)
    clock = clock_of(first, second)
    assert clock.drift is None
    there = (1.0 * RATE + 50) * (1 - 90e-6) + 90e-6 * RATE * clock.at
    assert clock.offset * RATE == pytest.approx(there, abs=1)
    assert abs(clock.offset * RATE - there) < 3 * clock.sd_there * RATE


def test_delays_of_a_few_seconds_that_do_not_agree_are_no_offset() -> None:
    scattered = 0.01 * np.random.default_rng(0).standard_normal(8)
    times, sure = np.arange(8.0), np.ones(8, dtype=bool)
    assert fit_clock(times, scattered, sure, 20.0 * sure, RATE) is None
    agreeing = np.where(np.arange(8) < 6, 0.004 + 80e-6 * times, scattered)
    clock = fit_clock(times, agreeing, sure, 20.0 * sure, RATE)
    assert clock is not None
    assert clock.offset == pytest.approx(0.004 + 80e-6 * clock.at, abs=1e-6)


def test_a_walk_with_stops_gives_the_drift_while_it_stands(speech: Array) -> None:
    rng = np.random.default_rng(4)
    knots, levels = [0.0], [0.0]
    while knots[-1] < 47:  # stands for 6 s, walks for 2
        knots += [knots[-1] + 6, knots[-1] + 8]
        levels += [levels[-1], float(rng.uniform(-60, 60))]
    path = np.interp(np.arange(len(speech)) / RATE, knots, levels)
    both = faults.shifted(speech, path)
    clock = clock_of(both[0], recorder(both[1], 0.0, 60.0, snr=30))
    assert clock.walked
    assert clock.drift is not None
    assert clock.drift_sd is not None
    assert 1e6 * clock.drift == pytest.approx(60, abs=5)
    assert abs(1e6 * clock.drift - 60) < 3e6 * clock.drift_sd


def test_one_clap_says_where_it_holds() -> None:
    world = clap([40.0], 50)
    answer = synchronise(opened(recorder(world, 0.0, snr=10), recorder(world, 1.0, 80.0, snr=10)))
    clock = answer.clocks[1]
    assert clock.drift is None
    assert clock.at == pytest.approx(40, abs=0.1)
    there = 1.0 * (1 - 80e-6) + 80e-6 * clock.at  # at the clap it is right to a sample,
    assert clock.offset * RATE == pytest.approx(there * RATE, abs=1)
    assert clock.sd_there * RATE < 0.5
    assert abs(clock.offset - 1.0) < 2 * clock.offset_sd  # at the beginning as a drift of 50 ppm would have it
    assert any("at 40.0 s" in remark for remark in answer.remarks)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_recordings_that_do_not_overlap_are_refused(seed: int, speech: Array) -> None:
    rng = np.random.default_rng(seed)
    first, second = speech[: 20 * RATE], speech[21 * RATE : 41 * RATE]
    second = second + 0.05 * speech.std() * rng.standard_normal(len(second))
    with pytest.raises(InputError, match="no sound of"):
        clock_of(first + 0.05 * speech.std() * rng.standard_normal(len(first)), second)


def test_the_command_explains_what_it_cannot_use(speech: Array, tmp_path: Path) -> None:
    for name, samples in (("talk", speech[: 12 * RATE] / 20), ("silent", np.zeros(RATE)), ("empty", np.zeros(0))):
        sf.write(tmp_path / f"{name}.wav", samples, RATE)

    def given(*names: str) -> list[str]:
        return [str(tmp_path / f"{name}.wav") if name.isalpha() else name for name in names]

    def said(*names: str) -> str:
        shown = CliRunner().invoke(app, ["calibrate", "offsets", *given(*names)])
        assert shown.exit_code == 1
        assert isinstance(shown.exception, InputError)
        return str(shown.exception)

    assert "has 1 channel; give one file for each of two recorders" in said("talk")
    assert "is silent" in said("talk", "silent")
    assert "holds no samples" in said("talk", "empty")
    assert "does not exist" in said("talk", "missing")
    assert "--distances 1,inf: expected numbers" in said("talk", "talk", "--distances", "1,inf")


def test_noise_is_no_walk() -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal((4, 24 * RATE))
    geometry = array("respeaker4")
    with pytest.raises(InputError, match="fit no source that walks"):
        refine(geometry, measure_moments(open_audio(noise, RATE), geometry))
    with pytest.raises(InputError, match="only 0 moments"):
        refine(geometry, measure_moments(open_audio(0 * noise, RATE), geometry))


def test_of_a_crooked_row_what_lies_beside_it_is_named() -> None:
    true = array("linear:4:0.05").microphones
    found = refine(displaced(true, 0.005), moments_of(true, walk("space", 1.5)))
    lost = np.concatenate([one.shifts for one in found.unsolved])
    assert lost.shape[0] >= 4
    assert any("perpendicular to a row" in one.advice for one in found.unsolved)
    assert found.sd[:, [0, 2]].max() > 0.02


def test_an_exact_row_is_not_thought_to_be_known_exactly() -> None:
    geometry = array("linear:4:0.05")
    found = refine(geometry, moments_of(geometry.microphones, walk("space", 1.5)))
    assert any("size of the array" in one.what for one in found.unsolved)
    assert found.sd[:, [0, 2]].max() > 0.02
    assert found.moved.max() < 0.01  # and so it is left as it is
