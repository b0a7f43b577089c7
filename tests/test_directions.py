"""Directions: plane waves, near sources, rooms; what an array cannot tell; microphones that are dead; streams."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rich.console import Console
from typer.testing import CliRunner

from qkgcc import plots
from qkgcc.arrays import Geometry, array
from qkgcc.arrays.context import CONTEXT, Context
from qkgcc.arrays.directions import DirectionEstimator
from qkgcc.arrays.evidence import ArrayEvidence, ArrayFrames, frames_of
from qkgcc.arrays.grids import Grid, angle_between, azimuth_elevation, unit_vectors
from qkgcc.arrays.maps import DirectionHistogram, FrameMaps
from qkgcc.arrays.result import DirectionEstimate, describe_direction
from qkgcc.arrays.steering import Steering, far_delays, near_delays
from qkgcc.arrays.stream import DirectionStream
from qkgcc.audio.recording import open_audio
from qkgcc.cli import app, main
from qkgcc.cli.tables import direction_table
from qkgcc.core.errors import InputError
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.scenes import Scene, Source

pytestmark = pytest.mark.numeric

C = 343.0
NETWORK = "general-small"
Place = tuple[float, ...]
"""Azimuth, elevation and, if it is near, metres."""


def sound(
    geometry: Geometry,
    places: list[Place],
    seconds: float = 1.0,
    rate: int = 16000,
    *,
    snr: float = 20.0,
    seed: int = 0,
) -> np.ndarray:
    """Noise from each place, in bursts where there are several, each microphone with its exact fractional delay."""
    rng = np.random.default_rng(seed)
    n = int(seconds * rate)
    heard = np.zeros((len(geometry), n))
    frequencies = np.fft.rfftfreq(2 * n, 1 / rate)
    middle = geometry.microphones.mean(axis=0)
    for azimuth, elevation, *near in places:
        signal = np.zeros(2 * n)
        signal[n // 2 : n // 2 + n] = rng.standard_normal(n)
        if len(places) > 1:
            on = np.repeat(rng.random(n // (rate // 10) + 1) < 0.6, rate // 10)[:n]
            signal[n // 2 : n // 2 + n] *= on
        direction = unit_vectors(azimuth, elevation)
        if near:
            late = np.linalg.norm(middle + near[0] * direction - geometry.microphones, axis=1) / C
        else:
            late = -geometry.microphones @ direction / C
        turned = np.fft.rfft(signal) * np.exp(-2j * np.pi * frequencies * late[:, None])
        heard += np.fft.irfft(turned, 2 * n)[:, n // 2 : n // 2 + n]
    return 0.1 * (heard + 10 ** (-snr / 20) * rng.standard_normal(heard.shape))


def turn(first: float, second: float) -> float:
    return abs((first - second + 180) % 360 - 180)


def estimate(name: str | Geometry, x: np.ndarray, rate: int = 16000, **options: object) -> DirectionEstimate:
    geometry = array(name) if isinstance(name, str) else name
    return DirectionEstimator(geometry, **({"method": NETWORK, "threads": 1} | options))(x, rate)  # type: ignore[arg-type]


# Delays


def test_delays_of_far_and_very_distant_sources_agree() -> None:
    geometry, directions = array("tetrahedral:0.2"), unit_vectors([0.0, 70.0, -160.0], [0.0, 40.0, -70.0])
    far = far_delays(geometry, geometry.pairs, directions)
    near = near_delays(geometry, geometry.pairs, 1e5 * directions)
    np.testing.assert_allclose(near, far, atol=1e-9)
    assert far[0, 0] == pytest.approx((geometry.microphones[1] - geometry.microphones[0]) @ directions[0] / C)


def test_steering_reads_curves_between_their_lags_and_adds_them() -> None:
    lags = [np.arange(-4, 5) / 16000, np.arange(-12, 13) / 64000]
    curves = np.concatenate([2 * lags[0] + 1, lags[1] ** 2])[None]
    delays = np.array([[1e-5, -7e-5], [2e-5, 3e-5]])
    expected = 2 * delays[0] + 1 + delays[1] ** 2
    np.testing.assert_allclose(Steering(lags, delays)(curves)[0], expected, rtol=1e-9)


# One source


@pytest.mark.parametrize("method", [NETWORK, "phat"])
@pytest.mark.parametrize("azimuth", [0.0, 37.3, 178.9, -101.6])
def test_a_plane_wave_is_found_by_a_flat_array(method: str, azimuth: float) -> None:
    answer = estimate("respeaker4", sound(array("respeaker4"), [(azimuth, 20.0)]), method=method)
    (found,) = answer.directions
    assert turn(found.azimuth, azimuth) < 1.5
    assert found.elevation == pytest.approx(20, abs=8)
    ((mirrored, below),) = found.also  # the same from below
    assert (mirrored, below) == pytest.approx((found.azimuth, -found.elevation))
    assert "mirror image" in str(answer.cannot_tell)
    assert np.median([turn(one, azimuth) for one in answer.azimuth]) < 4  # of the frames
    assert all(turn(block.directions[0].azimuth, azimuth) < 1.5 for block in answer.blocks)


@pytest.mark.parametrize("method", [NETWORK, "phat"])
@pytest.mark.parametrize("place", [(25.0, 50.0), (-140.0, -35.0), (90.0, 5.0)])
def test_an_array_in_space_finds_elevations_with_their_sign(method: str, place: Place) -> None:
    answer = estimate("tetrahedral:0.1", sound(array("tetrahedral:0.1"), [place]), method=method)
    (found,) = answer.directions
    assert angle_between(unit_vectors(found.azimuth, found.elevation), unit_vectors(*place)) < 3
    assert found.also == ()
    assert answer.cannot_tell is None
    assert answer.grid == "sphere"


@pytest.mark.parametrize("method", [NETWORK, "phat"])
@pytest.mark.parametrize("azimuth", [0.0, 50.0, -80.0, 130.0])
def test_a_line_answers_a_cone_and_both_azimuths(method: str, azimuth: float) -> None:
    answer = estimate("linear:4:0.05", sound(array("linear:4:0.05"), [(azimuth, 0.0)]), method=method)
    (found,) = answer.directions
    cone = float(angle_between(unit_vectors(azimuth), np.array([0.0, 1.0, 0.0])))
    assert found.cone == pytest.approx(cone, abs=3)
    assert found.elevation is None
    ((other, _),) = found.also
    assert min(turn(found.azimuth, azimuth), turn(other, azimuth)) < 3.5
    assert abs(found.azimuth) <= 90 <= abs(other)  # the front first
    assert "cone" in str(answer.cannot_tell)
    assert " or " in describe_direction(found)


def test_a_flat_array_on_a_wall_names_the_azimuth_behind_it() -> None:
    square = array("circular:4:0.05").microphones
    upright = Geometry(np.stack([0 * square[:, 0], square[:, 0], square[:, 1]], axis=1), "wall")
    answer = estimate(upright, sound(upright, [(-30.0, 20.0)]))
    (found,) = answer.directions
    assert (found.azimuth, found.elevation) == pytest.approx((-30, 20), abs=3)
    ((behind, height),) = found.also
    assert (behind, height) == pytest.approx((-150, 20), abs=3)
    assert "or azimuth -1" in describe_direction(found)


def test_turning_the_array_turns_the_answer() -> None:
    geometry = array("circular:5:0.06")
    x = sound(geometry, [(10.0, 0.0)])
    angle = np.radians(73)
    spin = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    turned = Geometry(geometry.microphones @ spin.T + [1, 2, 3])
    first, second = estimate(geometry, x).directions[0], estimate(turned, x).directions[0]
    assert turn(second.azimuth - first.azimuth, 73) < 0.2


@pytest.mark.parametrize("rate", [8000, 44100, 48000])
@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_other_sample_rates_give_the_same_direction(rate: int, method: str) -> None:
    answer = estimate("circular:4:0.08", sound(array("circular:4:0.08"), [(64.0, 0.0)], rate=rate), rate, method=method)
    assert turn(answer.directions[0].azimuth, 64) < 2
    assert answer.sample_rate == rate


@pytest.mark.needs("numba")
def test_a_source_in_a_small_room_is_found() -> None:
    geometry, centre = array("circular:6:0.08"), np.array([2.0, 1.7, 1.2])
    rng = np.random.default_rng(3)
    place = centre + 1.3 * unit_vectors(-56.0, 15.0)
    scene = Scene(np.array([4.5, 3.6, 2.6]), 0.5, geometry.microphones + centre, (Source("noise", place[None]),), 15.0)
    on = np.repeat(rng.random(16) < 0.7, 1600)
    x = render(scene, lambda _: on * rng.standard_normal(len(on)), 1.5, jobs=1).audio
    assert turn(estimate("circular:6:0.08", 0.05 * x).directions[0].azimuth, -56) < 4


@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_a_near_source_is_found_at_its_distance(method: str) -> None:
    geometry = array("circular:6:0.15")
    x = sound(geometry, [(20.0, 0.0, 0.25)])
    far, near = estimate(geometry, x, method=method), estimate(geometry, x, method=method, distance=[0.25, 0.6, 2.0])
    assert near.directions[0].distance == 0.25
    assert turn(near.directions[0].azimuth, 20) < 2
    assert far.directions[0].distance is None
    assert near.directions[0].share > far.directions[0].share


# Several sources


@pytest.mark.parametrize("name", ["respeaker4", "circular:8:0.1"])
def test_two_sources_are_found_and_counted(name: str) -> None:
    x = sound(array(name), [(40.0, 10.0), (-75.0, 10.0)], 3.0)
    for sources in (2, "auto"):
        found = sorted(one.azimuth for one in estimate(name, x, sources=sources).directions)
        assert found == pytest.approx([-75, 40], abs=4)
    assert len(estimate(name, x, sources=1).directions) == 1


def test_sources_that_are_asked_for_and_not_found_are_said_once() -> None:
    x = sound(array("respeaker4"), [(60.0, 0.0), (-70.0, 0.0)], 2.0)
    answer = estimate("respeaker4", x, sources=16)
    found = len(answer.directions)
    assert answer.warnings == (f"fewer sources than the 16 asked for are found: {found} in the whole recording",)
    assert estimate("respeaker4", x, sources=2).warnings == ()
    assert estimate("respeaker4", 0 * x, sources=2).warnings == ()  # silence says it by itself
    assert DirectionEstimator(array("respeaker4"), NETWORK, sources=16, threads=1)(x, 16000, track=True).warnings == ()


def test_one_source_is_counted_as_one() -> None:
    assert len(estimate("respeaker4", sound(array("respeaker4"), [(40.0, 0.0)]), sources="auto").directions) == 1


def test_sources_around_a_line_and_in_space_are_told_apart() -> None:
    line = estimate("linear:4:0.06", sound(array("linear:4:0.06"), [(60.0, 0.0), (-30.0, 0.0)], 3.0), sources=2)
    assert sorted(one.cone for one in line.directions if one.cone) == pytest.approx([30, 120], abs=4)
    places = [(60.0, 50.0), (60.0, -30.0)]  # one azimuth
    space = estimate("tetrahedral:0.12", sound(array("tetrahedral:0.12"), places, 3.0), sources=2)
    assert sorted(one.elevation for one in space.directions if one.elevation) == pytest.approx([-30, 50], abs=5)


def test_a_clear_source_has_more_confidence_than_noise() -> None:
    geometry = array("respeaker4")
    clear = estimate(geometry, sound(geometry, [(40.0, 0.0)])).directions[0]
    noise = estimate(geometry, 0.1 * np.random.default_rng(0).standard_normal((4, 16000))).directions[0]
    assert clear.confidence > 0.9
    assert noise.confidence < 0.6


# Blocks and the seconds around them


def said(angles: np.ndarray, weights: np.ndarray | float = 1.0, *, name: str = "circular:8:0.1") -> Context:
    """Frames every 32 ms, each of which says one angle, to a few degrees, and something of everywhere."""
    grid = Grid.of(array(name))
    away = np.abs(grid.angles - np.asarray(angles)[:, None])
    away = np.minimum(away, 360 - away) if grid.kind == "circle" else away
    cells = np.exp(-0.5 * (away / 4) ** 2) + 0.002
    cells /= cells.sum(axis=1, keepdims=True)
    context = Context(grid, CONTEXT)
    context.add(0.032 * np.arange(len(cells)), FrameMaps(cells, cells, np.broadcast_to(weights, len(cells))))
    return context


TIMES = 0.032 * np.arange(157)  # five seconds


def test_who_walks_is_found_where_he_is_in_the_middle_of_the_block() -> None:
    (line,) = said(-60 + 32 * TIMES).lines(2.0, 3.0, 1)
    assert 2 * line.cell % 360 == pytest.approx(20, abs=1)
    assert line.rate == 32
    assert line.share > 0.9


def test_a_talker_heard_little_in_a_block_is_known_from_the_seconds_around_it() -> None:
    turns = np.where(np.arange(len(TIMES)) % 2 == 0, 40.0, 100.0)
    inside = (TIMES >= 2) & (TIMES < 3)
    loud = np.where(inside & (np.arange(len(TIMES)) % 7 > 0), 250.0, 40.0)  # 250: a reflection, in most of the block
    angles = np.where(inside, loud, turns)
    found = sorted(2 * line.cell % 360 for line in said(angles).lines(2.0, 3.0, 3))
    assert found == pytest.approx([40, 100, 250], abs=2)
    assert len(said(angles[inside]).lines(0.0, 1.0, 3)) == 3  # of the block alone, the third is anywhere
    alone = sorted(2 * line.cell % 360 for line in said(angles[inside]).lines(0.0, 1.0, 3))
    assert min(turn(one, 100) for one in alone) > 10


def test_a_line_across_two_talkers_is_no_talker() -> None:
    angles = np.where(TIMES < 2.5, 40.0, 100.0)  # one after the other: 24 degrees a second would touch both
    found = sorted((2 * line.cell % 360, line.rate) for line in said(angles).lines(2.0, 3.0, 2))
    assert [one for one, _ in found] == pytest.approx([40, 100], abs=2)
    assert [rate for _, rate in found] == [0, 0]


def test_who_speaks_in_one_block_alone_is_the_source_of_that_block() -> None:
    angles = np.where((TIMES >= 2) & (TIMES < 3), 200.0, 80.0)
    for first, azimuth in ((1.0, 80), (2.0, 200), (3.0, 80)):
        (line,) = said(angles).lines(first, first + 1, 1)
        assert 2 * line.cell % 360 == pytest.approx(azimuth, abs=2)


def test_after_the_last_word_a_line_does_not_go_on_to_where_nobody_was_heard() -> None:
    spoken = TIMES < 4  # from 250 to 186 degrees in the last two seconds, then a pause that says anything
    angles = np.where(spoken, 250 - 32 * (TIMES - 2), np.random.default_rng(0).uniform(0, 360, len(TIMES)))
    context = said(angles, np.where(spoken, 1.0, 0.02))
    (gone,), (stays,) = context.lines(4.0, 5.0, 1), context.lines(4.0, 5.0, 1, may_drift=False)
    assert (2 * gone.cell, gone.rate) == (pytest.approx(170, abs=2), -32)  # held by nothing after it
    assert stays.rate == 0
    assert 186 <= 2 * stays.cell <= 250
    (walks,) = said(-60 + 32 * TIMES).lines(4.0, 5.0, 1, may_drift=False)  # who is heard in the block may move
    assert walks.rate == 32


def test_in_the_pause_at_the_end_of_a_real_conversation_nobody_new_is_heard(corpora: Path) -> None:
    for path in sorted((corpora / "real/respeaker/a180e20_a225e35_a270e50/150cm").glob("*.flac")):
        last = DirectionEstimator(array("respeaker4"), sources="auto", threads=1)(path).blocks[-1]
        for one in last.directions:
            assert min(turn(one.azimuth, azimuth) for azimuth in (180, 225, 270)) < 10


def test_lines_end_at_the_ends_of_a_line_of_microphones() -> None:
    for angle in (0.0, 180.0):
        (line,) = said(np.full(len(TIMES), angle), name="linear:4:0.05").lines(2.0, 3.0, 1)
        assert (line.cell, line.rate) == (angle, 0)
    (line,) = said(60 - 24 * TIMES, name="linear:4:0.05").lines(2.0, 3.0, 1)
    assert line.cell == pytest.approx(0, abs=2)


def test_silence_in_a_block_has_no_lines_however_much_is_heard_around_it() -> None:
    weights = np.where((TIMES >= 2) & (TIMES < 3), 0.0, 1.0)
    context = said(np.full(len(TIMES), 40.0), weights)
    assert context.lines(2.0, 3.0, 1) == []
    assert len(context.lines(3.0, 4.0, 1)) == 1


def test_sources_are_counted_in_the_block_itself() -> None:
    geometry = array("circular:8:0.1")
    x = np.concatenate([sound(geometry, [(40.0, 0.0)], 2.0), sound(geometry, [(-75.0, 0.0)], 2.0, seed=1)], axis=1)
    blocks = estimate(geometry, x, sources="auto").blocks
    assert [len(block.directions) for block in blocks] == [1, 1, 1, 1]
    assert [block.directions[0].azimuth for block in blocks] == pytest.approx([40, 40, -75, -75], abs=3)


def test_frames_that_are_sure_of_nothing_count_one_source_at_most() -> None:
    geometry = array("circular:8:0.1")
    estimator = DirectionEstimator(geometry, NETWORK, sources="auto", threads=1)
    evidence = estimator.evidence(16000)
    maps, frames = estimator.maps(evidence), evidence.push(sound(geometry, [(40.0, 0.0), (-75.0, 0.0)], 2.0))
    found = maps(frames)
    for sureness, count in ((1.0, 2), (0.01, 1)):
        summed = DirectionHistogram(maps)
        summed.add(frames, found._replace(weights=sureness * found.weights))
        assert len(estimator.peaks(summed)) == count


@pytest.mark.parametrize("folder", ["50cm", "150cm"])
def test_in_the_pause_at_the_end_of_a_real_recording_nobody_is_counted_beside_the_talker(
    folder: str, corpora: Path
) -> None:
    for path in sorted((corpora / "real/respeaker/a180e20" / folder).glob("*.flac")):
        answer = DirectionEstimator(array("respeaker4"), sources="auto", threads=1)(path)
        assert [len(block.directions) for block in answer.blocks] == [1] * len(answer.blocks)


def test_context_reaches_as_far_as_it_says() -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(40.0, 0.0)], 5.0, snr=0.0)
    other = x.copy()
    other[:, 36000:] = sound(geometry, [(-120.0, 0.0)], 5.0, snr=0.0, seed=1)[:, 36000:]  # from 2.25 s on
    for context, same in ((0.0, True), (1.0, True), (2.0, False)):
        first, second = (estimate(geometry, one, context=context).blocks[0] for one in (x, other))
        assert (first == second) is same
    assert estimate(geometry, x, context=0.0, block=3.0).blocks == estimate(geometry, x, block=3.0).blocks
    assert DirectionEstimator(array("tetrahedral:0.1"), NETWORK).context == 0
    assert DirectionEstimator(geometry, "phat").context == 0


def test_one_who_walks_past_is_followed_by_the_blocks() -> None:
    geometry = array("respeaker4")
    steps = [sound(geometry, [(azimuth, 0.0)], 0.2, seed=3) for azimuth in 6.0 * np.arange(20)]  # 30 degrees a second
    blocks = estimate(geometry, np.concatenate(steps, axis=1)).blocks
    assert [block.directions[0].azimuth for block in blocks] == pytest.approx([12, 42, 72, 102], abs=4)
    *_, last = estimate(geometry, np.concatenate(steps[:17], axis=1)).blocks
    assert (last.start, last.end) == (3.0, pytest.approx(3.4))
    assert last.directions[0].azimuth == pytest.approx(93, abs=4)  # the middle of what there is of it


# Microphones and channels


@pytest.mark.parametrize("level", [0.0, 0.25])
@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_a_dead_microphone_is_left_out_and_said_once(level: float, method: str) -> None:
    geometry = array("circular:6:0.06")
    x = sound(geometry, [(110.0, 0.0)])
    x[2] = level
    answer = estimate(geometry, x, method=method)
    assert turn(answer.directions[0].azimuth, 110) < 2
    (warning,) = answer.warnings
    assert warning.startswith("microphone 2 is silent in ")
    without = Geometry(np.delete(geometry.microphones, 2, axis=0))
    same = estimate(without, np.delete(x, 2, axis=0), method=method)
    assert turn(answer.directions[0].azimuth, same.directions[0].azimuth) < 0.3


def test_a_microphone_that_dies_on_the_way_counts_until_then() -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(110.0, 0.0)], 2.0)
    whole = estimate(geometry, x)
    x[1, 16000:] = 0
    answer = estimate(geometry, x)
    early = answer.times < 0.9
    np.testing.assert_array_equal(answer.azimuth[early], whole.azimuth[early])
    assert "microphone 1" in answer.warnings[0]
    assert turn(answer.blocks[1].directions[0].azimuth, 110) < 3


def test_a_triangle_with_a_dead_microphone_is_a_line() -> None:
    geometry = array("circular:3:0.05")
    x = sound(geometry, [(110.0, 0.0)])
    x[0] = 0
    assert "cone" in str(estimate(geometry, x).cannot_tell)


@pytest.mark.parametrize("sources", [1, 2])
def test_a_square_of_which_two_are_dead_answers_as_the_line_of_the_others(sources: int) -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(110.0, 0.0)], 2.0)
    x[1:3] = 0
    answer = estimate(geometry, x, sources=sources)
    alone = estimate(Geometry(geometry.microphones[[0, 3]]), x[[0, 3]], sources=sources)
    assert answer.grid == "line"
    assert sum("is silent" in warning for warning in answer.warnings) == 2
    for ours, theirs in zip([answer, *answer.blocks], [alone, *alone.blocks], strict=True):
        for one, other in zip(ours.directions, theirs.directions, strict=True):
            assert (one.azimuth, one.cone, one.also) == (other.azimuth, other.cone, other.also)
            assert one.confidence <= 0.5
    first = answer.directions[0]
    assert min(turn(azimuth, 110) for azimuth in (first.azimuth, first.also[0][0])) < 6  # nearly along the line
    assert turn(first.azimuth, first.also[0][0]) > 30
    row = answer.to_csv().splitlines()[1].split(",")
    assert float(row[6]) == pytest.approx(answer.blocks[0].directions[0].cone, abs=1e-3)


@pytest.mark.needs("matplotlib")
def test_blocks_in_which_two_of_a_square_are_dead_name_both_directions() -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(110.0, 0.0)], 4.0)
    x[1:3, 32000:] = 0
    answer = DirectionEstimator(geometry, NETWORK, sources=2, context=0.0, threads=1)(x, 16000, keep_maps=True)
    assert answer.grid == "circle"
    assert all(one.cone is None for one in answer.blocks[0].directions)
    for block in answer.blocks[2:]:
        first = block.directions[0]
        assert min(turn(azimuth, 110) for azimuth in (first.azimuth, first.also[0][0])) < 5
        assert first.confidence <= 0.5
        for other in block.directions[1:]:  # the mirror image is no second source
            assert turn(other.azimuth, first.also[0][0]) >= 10
    assert turn(answer.directions[0].azimuth, 110) < 3
    shown = [line.get_ydata()[0] for line in answer.plot().axes[0].lines]
    every = [one.azimuth for block in answer.blocks for one in block.directions]
    assert set(every) <= {float(one) for one in shown}  # azimuths, as the axis has them
    console = Console(width=120, file=io.StringIO())
    console.print(direction_table(answer))
    assert " or " in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_tetrahedron_with_a_dead_microphone_names_the_mirror_image() -> None:
    geometry = array("tetrahedral:0.1")
    x = sound(geometry, [(110.0, 30.0)])
    x[3] = 0
    one = estimate(geometry, x).directions[0]
    assert len(one.also) == 1
    assert one.confidence <= 0.5
    assert (
        min(
            float(angle_between(unit_vectors(*at), unit_vectors(110.0, 30.0)))
            for at in ((one.azimuth, one.elevation), one.also[0])
        )
        < 8
    )


@pytest.mark.parametrize("name", ["respeaker4", "tetrahedral:0.1"])
def test_one_microphone_alone_hears_no_direction(name: str) -> None:
    x = sound(array(name), [(110.0, 0.0)])
    x[1:] = 0
    with pytest.raises(InputError, match="nearly all of its channels are silent: there is no direction to find"):
        estimate(name, x)


def test_silence_has_no_direction() -> None:
    answer = estimate("respeaker4", np.zeros((4, 16000)))
    assert answer.directions == ()
    assert [block.directions for block in answer.blocks] == [()]
    assert np.isnan(answer.azimuth).all()
    assert json.loads(answer.to_json())["azimuth"][0] is None


@pytest.mark.parametrize(
    ("channels", "hint"), [(3, ": record all of them, or give an array of these 3"), (6, ": pick those")]
)
def test_other_numbers_of_channels_are_explained(channels: int, hint: str) -> None:
    x = np.random.default_rng(0).standard_normal((channels, 4000))
    with pytest.raises(InputError, match=f"has {channels} channels; respeaker4 has 4 microphones{hint}"):
        estimate("respeaker4", x)
    with pytest.raises(InputError, match="a stream takes 4 channels"):
        ArrayEvidence(array("respeaker4"), "phat", sample_rate=16000).push(x)


def test_channels_can_be_picked() -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(-60.0, 0.0)])
    six = np.stack([np.zeros(x.shape[1]), x[3], x[2], x[1], x[0], np.ones(x.shape[1])])
    answer = DirectionEstimator(geometry, "phat")(six, 16000, channels=[4, 3, 2, 1])
    assert turn(answer.directions[0].azimuth, -60) < 1.5


def test_wide_pairs_fall_back_to_phat_and_say_so() -> None:
    geometry = Geometry(np.array([[0, 0, 0], [0, 3.0, 0], [0.1, 0, 0]]))
    evidence = ArrayEvidence(geometry, NETWORK, sample_rate=16000, threads=1)
    assert evidence.learned.tolist() == [False, True, False]
    assert evidence.kind == "posterior"
    assert "pairs 0-1, 1-2 are wider apart than the 2.1 m" in evidence.warnings[0]
    frames = evidence.push(sound(geometry, [(50.0, 0.0)]))
    for pair in range(3):  # every curve is a log-posterior, with its peak at the true delay
        curve = evidence.curve(frames, pair)
        np.testing.assert_allclose(np.exp(curve).sum(axis=1), 1, rtol=1e-4)
        true = far_delays(geometry, [evidence.pairs[pair]], unit_vectors([50.0]))[0, 0]
        assert np.median(evidence.lags[pair][curve.argmax(axis=1)]) == pytest.approx(true, abs=1 / 16000)
    with pytest.raises(InputError, match="give a longer frame"):
        ArrayEvidence(geometry, NETWORK, sample_rate=16000, frame=0.016)


def test_chosen_pairs_alone_count() -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(-60.0, 0.0)])
    spoiled = x.copy()
    spoiled[3] = np.random.default_rng(1).standard_normal(x.shape[1])
    some = {"pairs": [(0, 1), (0, 2), (1, 2)], "method": "phat"}
    assert turn(estimate(geometry, x, **some).directions[0].azimuth, -60) < 2
    np.testing.assert_allclose(
        estimate(geometry, spoiled, **some).azimuth, estimate(geometry, x, **some).azimuth, atol=1e-3
    )


@pytest.mark.parametrize("pairs", [[(0, 3)], [(0, 3), (1, 2)]])  # one, or two that are parallel
def test_pairs_of_a_square_along_one_line_answer_as_a_line(pairs: list[tuple[int, int]]) -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(110.0, 0.0)], 2.0)
    answer = estimate(geometry, x, pairs=pairs)
    assert answer.grid == "line"
    assert "cone" in str(answer.cannot_tell)
    for one in (answer.directions[0], *(block.directions[0] for block in answer.blocks)):
        assert one.elevation is None
        assert one.cone == pytest.approx(160, abs=6)  # microphone 3 is to the right of 0
        assert sorted((one.azimuth, one.also[0][0])) == pytest.approx([70, 110], abs=6)
        assert one.confidence <= 0.5
    assert answer.confidence.max() <= 0.5  # of frames
    live = DirectionStream(DirectionEstimator(geometry, NETWORK, pairs=pairs, threads=1), 16000).push(x)
    assert (live.cone == answer.cone[: len(live.times)]).all()
    assert (live.confidence == answer.confidence[: len(live.times)]).all()


def test_pairs_of_a_tetrahedron_in_one_plane_name_the_mirror_image() -> None:
    geometry = array("tetrahedral:0.1")
    x = sound(geometry, [(110.0, 30.0)])
    answer = estimate(geometry, x, pairs=[(0, 1), (0, 2), (1, 2)])  # on the floor
    (one,) = answer.directions
    assert "behind the plane of the pairs that count" in str(answer.cannot_tell)
    assert turn(one.azimuth, 110) < 4
    assert one.elevation > 0
    assert one.also[0] == pytest.approx((one.azimuth, -one.elevation))
    assert one.confidence <= 0.5
    in_space = estimate(geometry, x, pairs=[(0, 1), (0, 2), (0, 3)])
    assert in_space.cannot_tell is None
    assert in_space.directions[0].also == ()


def test_pairs_that_span_what_the_array_does_are_as_sure_as_it_is() -> None:
    geometry = array("respeaker4")
    (one,) = estimate(geometry, sound(geometry, [(110.0, 0.0)]), pairs=[(0, 1), (0, 3)]).directions
    assert one.cone is None
    assert one.confidence > 0.5


def test_a_dead_microphone_leaves_a_line_of_the_pairs_that_count() -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(110.0, 0.0)])
    x[1] = 0
    (one,) = estimate(geometry, x, pairs=[(0, 1), (0, 3)]).directions  # the other three would be a plane
    assert min(turn(azimuth, 110) for azimuth in (one.azimuth, one.also[0][0])) < 6
    assert one.cone is not None
    assert one.confidence <= 0.5


# Blocks as they come


@pytest.mark.parametrize("rate", [16000, 44100])
@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_blocks_of_any_size_give_the_frames_of_the_recording_to_the_bit(method: str, rate: int) -> None:
    geometry = array("respeaker4")
    x = sound(geometry, [(-60.0, 0.0)], rate=rate)
    x[:, rate // 3 : rate // 2] = 0
    x[2, 2 * rate // 3 :] = 0
    make = {"sample_rate": rate, "threads": 1, "start": 5.0}
    whole = ArrayFrames.joined(frames_of(ArrayEvidence(geometry, method, **make), open_audio(x, rate)))  # type: ignore[arg-type]
    evidence = ArrayEvidence(geometry, method, **make)  # type: ignore[arg-type]
    rng, i, parts = np.random.default_rng(0), 0, []
    while i < x.shape[1]:
        n = int(rng.choice([0, 1, 700, 5000]))
        other = evidence.copy()
        other.push(rng.standard_normal((4, 3000)))  # goes its own way
        parts.append(evidence.push(x[:, i : i + n]))
        i += n
    streamed = ArrayFrames.joined([*parts, evidence.flush()])
    for one, same, name in zip(streamed, whole, ArrayFrames._fields, strict=True):
        np.testing.assert_array_equal(one, same, err_msg=name)
    assert whole.times[0] == pytest.approx(5.032)
    assert whole.dead[-1].tolist() == [False, False, True, False]
    estimator = DirectionEstimator(geometry, method, threads=1)
    maps = estimator.maps(evidence)
    alone = np.concatenate([maps(whole.part(slice(i, i + 1))).cells for i in range(len(whole.times))])
    np.testing.assert_array_equal(alone, maps(whole).cells)


def test_the_frames_of_a_pair_are_those_of_its_own_network_answer() -> None:
    from qkgcc import DelayEstimator

    geometry = array("linear:2:0.1")
    x = sound(geometry, [(30.0, 0.0)])
    evidence = ArrayEvidence(geometry, NETWORK, sample_rate=16000, frame=0.128, hop=0.064, threads=1)
    frames = evidence.push(x)
    delays = evidence.lags[0][evidence.curve(frames, 0).argmax(axis=1)]
    alone = DelayEstimator(NETWORK, spacing=0.1, decoder="argmax", threads=1)(x, 16000)
    np.testing.assert_allclose(delays, alone.delay_seconds, atol=1e-9)


# Grids


@pytest.mark.parametrize("name", ["linear:3:0.1", "circular:4:0.1", "tetrahedral:0.1"])
def test_mirror_images_have_the_same_delays(name: str) -> None:
    geometry = array(name)
    grid = Grid.of(geometry)
    directions = unit_vectors([0.0, 50.0, -120.0], [10.0, 60.0, 20.0])
    for direction in directions:
        for mirror in [*grid.mirrors(direction), grid.fold(direction)]:
            pair = far_delays(geometry, geometry.pairs, np.stack([direction, mirror]))
            np.testing.assert_allclose(pair[:, 0], pair[:, 1], atol=1e-12)
    assert len(grid.mirrors(directions[0])) == (0 if geometry.dimensions == 3 else 1)


def test_angles_go_there_and_back() -> None:
    azimuth, elevation = azimuth_elevation(unit_vectors([10.0, -170.0], [-80.0, 45.0]))
    np.testing.assert_allclose([azimuth, elevation], [[10, -170], [-80, 45]])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("respeaker4", {"method": "general-tiny"}, "unknown method"),
        ("respeaker4", {"grid": "cube"}, "unknown grid 'cube'"),
        ("respeaker4", {"grid": "line"}, "is no line"),
        ("linear:4:0.05", {"grid": "circle"}, "is a line"),
        ("respeaker4", {"grid": "circle", "pairs": [(0, 1)]}, "is a line with the pairs that were chosen"),
        ("respeaker4", {"distance": 0.01}, "lies within the array"),
        ("respeaker4", {"distance": [1.0, -1.0]}, "lies within the array"),
        ("respeaker4", {"distance": [0.5, float("inf")]}, "expected numbers up to"),
        ("respeaker4", {"distance": 1e308}, "expected numbers up to"),
        ("respeaker4", {"sources": 0}, "expected a whole number, 1 to 16, or auto"),
        ("respeaker4", {"sources": "many"}, "or auto"),
        ("respeaker4", {"sources": "auto", "method": "phat"}, "cannot tell how many"),
        ("respeaker4", {"block": 0.0}, "the block is 0 s"),
        ("respeaker4", {"context": -1.0}, "the context is -1 s"),
        ("respeaker4", {"pairs": [(0, 4)]}, "no pair 0-4 of respeaker4"),
        ("respeaker4", {"pairs": []}, "at least one"),
        ("respeaker4", {"pairs": [(0, 1), (1, 0)]}, "none of them twice"),
    ],
)
def test_bad_options_are_explained(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimate(name, np.zeros((4, 16000)), **options)


def test_a_recording_shorter_than_a_frame_is_explained() -> None:
    with pytest.raises(InputError, match="less than a frame"):
        estimate("respeaker4", np.ones((4, 500)))


# Writing it down, and the command


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("located") / "talk.wav"
    soundfile.write(path, sound(array("respeaker4"), [(40.0, 10.0), (-75.0, 10.0)], 2.0).T, 16000)
    return path


def test_json_and_csv_hold_all_that_sounds_the_same(recording: Path, tmp_path: Path) -> None:
    answer = DirectionEstimator(array("respeaker4"), NETWORK, sources=2, threads=1)(recording)
    record = json.loads(answer.to_json(tmp_path / "a.json"))
    assert json.loads((tmp_path / "a.json").read_text()) == record
    assert "mirror image" in record["cannot_tell"]
    first = record["directions"][0]
    assert first["also"][0] == {"azimuth": first["azimuth"], "elevation": -first["elevation"]}
    assert len(record["times"]) == len(record["azimuth"]) == len(answer.times)
    assert "times" not in json.loads(answer.to_json(frames=False))
    lines = answer.to_csv(tmp_path / "a.csv").splitlines()
    assert lines[0].startswith("source,start,end,rank,azimuth,elevation,cone")
    assert len(lines) == 1 + sum(len(block.directions) for block in answer.blocks)
    assert str(answer).startswith(f"{recording}: azimuth ")


@pytest.mark.parametrize("name", ["respeaker4", "linear:4:0.05", "tetrahedral:0.08"])
@pytest.mark.parametrize("method", [NETWORK, "phat"])
@pytest.mark.needs("matplotlib")
def test_pictures_are_drawn_of_every_grid(name: str, method: str, tmp_path: Path) -> None:
    x = sound(array(name), [(-50.0, 0.0)], 0.5)
    answer = DirectionEstimator(array(name), method, threads=1)(x, 16000, keep_maps=True)
    figure = answer.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    shown = figure.axes[1].lines[0].get_xdata()[0]
    expected = answer.directions[0].azimuth if answer.directions[0].cone is None else answer.directions[0].cone
    assert np.degrees(shown) == pytest.approx(expected)
    with pytest.raises(InputError, match="keep_maps"):
        plots.plot_directions(estimate(name, x, method="phat"))


@pytest.mark.needs("matplotlib")
def test_the_command_shows_directions_and_what_the_array_cannot_tell(recording: Path, tmp_path: Path) -> None:
    options = ["locate", str(recording), "--array", "respeaker4", "-m", NETWORK, "--sources", "2"]
    shown = CliRunner().invoke(app, [*options, "--plot", str(tmp_path / "a.png")])
    assert shown.exit_code == 0, shown.output
    text = " ".join(shown.output.split())
    assert "cannot tell a direction from its mirror image" in text
    azimuths = [float(one) for one in re.findall(r"azimuth (-?[\d.]+)°, elevation ±", text)]
    assert sorted(azimuths) == pytest.approx([-75, 40], abs=4)
    assert (tmp_path / "a.png").exists()
    record = json.loads(CliRunner().invoke(app, [*options, "--format", "json", "--no-frames"]).output)
    assert [round(one["azimuth"], 1) for one in record["directions"]] == azimuths
    table = CliRunner().invoke(app, [*options, "--format", "csv", "--block", "0.5"]).output
    assert [line.split(",")[1] for line in table.splitlines()[1::2]] == ["0.000", "0.500", "1.000", "1.500"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--array", "respeaker5"], "there is no array 'respeaker5'"),
        (["--array", "respeaker6"], "has 4 channels; respeaker6 has 6 microphones"),
        (["--array", "respeaker4", "--sources", "two"], "expected a number such as 2, or auto"),
        (["--array", "respeaker4", "--distance", "near"], "--distance near: expected numbers"),
        (["--array", "respeaker4", "--channels", "0,1,2,9"], "has channels 0 to 3, not 9"),
        (["--array", "respeaker4", "--channels", "0,1,2,2.5"], "expected whole numbers"),
        (["--array", "respeaker4", "--channels", "inf,1,2,3"], "expected whole numbers"),
        (["--array", "respeaker4", "--channels", "0,1,2,nan"], "expected whole numbers"),
        (["--array", "respeaker4", "--distance", "0.5,inf"], "--distance 0.5,inf: expected numbers"),
        (["--array", "respeaker4", "--distance", "nan"], "--distance nan: expected numbers"),
        (["--array", "respeaker4", "--speed-of-sound", "nan"], "the speed of sound is nan m/s"),
        (["--array", ""], "the array is ''; expected the name of a preset"),
        (["--array", "respeaker4", "--plot", "a.txt"], "the suffix says the kind of picture"),
        (["--array", "respeaker4", "--pairs", "0:1"], "expected `all`, or pairs"),
    ],
)
@pytest.mark.needs("matplotlib")
def test_the_command_explains_what_is_wrong(
    options: list[str],
    message: str,
    recording: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["qkgcc", "locate", str(recording), "-m", "phat", *options])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_one_bad_recording_of_several_stops_nothing(recording: Path, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "mono.wav", np.zeros(16000), 16000)
    soundfile.write(tmp_path / "talk.wav", *soundfile.read(recording))
    shown = CliRunner().invoke(app, ["locate", str(tmp_path), "--array", "respeaker4", "-m", "phat", "--format", "csv"])
    assert shown.exit_code == 1
    assert "mono.wav has 1 channel; respeaker4 has 4 microphones" in shown.output
    assert "talk.wav,0.000" in shown.output
    assert "1 of 2 recordings failed" in shown.output


# Real recordings


@pytest.mark.parametrize(
    ("folder", "tolerance"), [("a180e20", 3), ("a180e20_a225e35", 10), ("a180e20_a225e35_a270e50", 10)]
)
def test_real_recordings_have_their_directions(folder: str, tolerance: float, corpora: Path) -> None:
    files = sorted((corpora / "real" / "respeaker" / folder).rglob("*.flac"))
    if not files:
        pytest.skip("no ReSpeaker recordings in the corpora")
    truth = [float(one) for one in re.findall(r"a(\d+)e", folder)]
    estimator = DirectionEstimator(array("respeaker4"), NETWORK, sources=len(truth), threads=1)
    for file in files:
        found = sorted(one.azimuth % 360 for one in estimator(file).directions)
        assert found == pytest.approx(truth, abs=tolerance), file.name
