"""Positions between microphones metres apart, in simulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from scipy.signal import fftconvolve
from typer.testing import CliRunner

import faults
from faults import RATE, Array
from qkgcc.arrays import Geometry, Position, PositionEstimator
from qkgcc.arrays.geometry import write_geometry
from qkgcc.arrays.positions import probability
from qkgcc.arrays.steering import near_delays
from qkgcc.arrays.trilateration import closed_form, fit_position, position_from_fit
from qkgcc.audio.frames import warp
from qkgcc.cli import app
from qkgcc.core.errors import InputError
from qkgcc.lab.study.scoring import errors, space_distances

pytestmark = pytest.mark.numeric

C = 343.0
ROOM = np.array([[0.0, 5.0], [0.0, 4.0], [0.0, 2.5]])
SIX = Geometry(
    np.array([[0.3, 0.4, 1.0], [4.6, 0.5, 2.1], [4.4, 3.5, 0.7], [0.5, 3.6, 1.9], [2.4, 0.3, 0.6], [2.6, 3.7, 2.2]]),
    "six",
)
TALKER = np.array([1.7, 2.6, 1.4])


def heard(dry: Array, geometry: Geometry, place: Array, *, snr: float = 20.0, tail: float = 0.0) -> Array:
    """What the microphones hear of a source, with reverberation of noise (so much of the direct sound's power)."""
    rng = np.random.default_rng(0)
    distance = np.linalg.norm(geometry.microphones - place, axis=1)
    x = np.stack([warp(dry, 1.0, -d / C * RATE, len(dry)) / d for d in distance])
    if tail:
        n = int(0.4 * RATE)
        decay = rng.standard_normal((len(geometry), n)) * 10 ** (-3 * np.arange(n) / n) * (np.arange(n) > 100)
        decay *= np.sqrt(tail / (decay**2).sum(axis=1, keepdims=True)) / distance.mean()
        x = x + np.stack([fftconvolve(dry, one)[: len(dry)] for one in decay])
    return (x + 10 ** (-snr / 20) * x.std() * rng.standard_normal(x.shape)).astype(np.float32)


@pytest.fixture(scope="module")
def speech() -> Array:
    return faults.talkers()[0][: 3 * RATE]


def test_a_talker_is_found_between_the_microphones(speech: Array, tmp_path: Path) -> None:
    answer = PositionEstimator(SIX, "phat", volume=ROOM)(heard(speech, SIX, TALKER), RATE)
    (found,) = answer.positions
    np.testing.assert_allclose(found.place, TALKER, atol=0.02)
    assert found.solved
    assert found.remark is None
    assert len(answer.blocks) == 3
    for block in answer.blocks:
        np.testing.assert_allclose(block.positions[0].place, TALKER, atol=0.1)
    record = json.loads(answer.to_json(tmp_path / "place.json"))
    assert record["positions"][0]["solved"]
    assert len(record["positions"][0]["residuals"]) == len(record["pairs"]) == 15
    assert json.loads((tmp_path / "place.json").read_text()) == record


def test_the_network_finds_a_talker_in_reverberation_and_says_where_it_is_phat(speech: Array) -> None:
    x = heard(speech[: 2 * RATE], SIX, TALKER, snr=10, tail=2.0)
    answer = PositionEstimator(SIX, volume=ROOM, threads=1)(x, RATE)
    np.testing.assert_allclose(answer.positions[0].place, TALKER, atol=0.1)
    assert "wider apart" in answer.warnings[0]
    assert "PHAT there" in answer.warnings[0]


def test_at_a_known_height_three_microphones_will_do(speech: Array) -> None:
    three = Geometry(SIX.microphones[:3])
    estimator = PositionEstimator(three, "phat", volume=ROOM, height=TALKER[2])
    answer = estimator(heard(speech, three, TALKER), RATE)
    assert answer.positions[0].place[2] == TALKER[2]
    np.testing.assert_allclose(answer.positions[0].place, TALKER, atol=0.05)


def test_silent_blocks_have_no_position(speech: Array) -> None:
    x = heard(speech, SIX, TALKER, snr=60)
    x[:, RATE : 2 * RATE] = 0
    answer = PositionEstimator(SIX, "phat", volume=ROOM)(x, RATE)
    assert [block.frames > 10 for block in answer.blocks] == [True, False, True]
    silent = PositionEstimator(SIX, "phat", volume=ROOM)(0 * x, RATE)
    assert silent.positions == ()
    assert json.loads(silent.to_json())["blocks"][0]["positions"] == []


# Several sources

OTHER = np.array([3.8, 1.2, 1.2])


@pytest.fixture(scope="module")
def conversation() -> Array:
    """Two talkers at once."""
    first, second = (talker[: 3 * RATE] for talker in faults.talkers()[:2])
    return heard(first, SIX, TALKER, tail=0.5) + heard(second, SIX, OTHER, tail=0.5)


def assert_found(positions: tuple[Position, ...], truth: list[Array], within: float) -> None:
    """Each of them by another."""
    off = space_distances(np.array(truth), np.array([one.place for one in positions]))
    assert errors(off).max() < within


@pytest.mark.parametrize("method", ["general-small", "phat"])
def test_two_talkers_at_once_are_both_found(conversation: Array, method: str) -> None:
    answer = PositionEstimator(SIX, method, sources=2, volume=ROOM, threads=1)(conversation, RATE)
    assert len(answer.positions) == 2
    assert_found(answer.positions, [TALKER, OTHER], 0.1)
    for block in answer.blocks:
        assert len(block.positions) == 2
        assert_found(block.positions, [TALKER, OTHER], 0.2)
    assert len(answer.to_csv().splitlines()) == 1 + 2 * 3
    record = json.loads(answer.to_json())
    assert [len(block["positions"]) for block in record["blocks"]] == [2, 2, 2]


def test_the_first_of_two_is_the_one_alone(conversation: Array) -> None:
    one, two = (
        PositionEstimator(SIX, "phat", sources=count, volume=ROOM)(conversation, RATE).positions for count in (1, 2)
    )
    np.testing.assert_array_equal(one[0].place, two[0].place)
    assert np.linalg.norm(two[0].place - two[1].place) > 1


def test_talkers_are_counted(speech: Array, conversation: Array) -> None:
    estimator = PositionEstimator(SIX, "general-small", sources="auto", volume=ROOM, threads=1)
    assert_found(estimator(heard(speech, SIX, TALKER, tail=0.5), RATE).positions, [TALKER], 0.1)
    assert len(estimator(heard(speech, SIX, TALKER, tail=0.5), RATE).positions) == 1
    assert len(estimator(conversation, RATE).positions) == 2
    noise = 0.1 * np.random.default_rng(0).standard_normal((6, 2 * RATE)).astype(np.float32)
    assert estimator(noise, RATE).positions == ()


def test_a_place_that_few_pairs_speak_for_is_less_sure_than_one_of_many() -> None:
    assert probability(0.4, 0.7) > 0.8 > 0.4 > probability(0.4, 0.3)
    assert probability(0.4, 0.5) > probability(0.4, 0.5, further=True)  # most of what is left over is nobody
    of_few = [probability(0.4, 0.7, spare=spare) for spare in range(4)]
    assert of_few[0] < of_few[1] < of_few[2] == of_few[3] == probability(0.4, 0.7)


def test_nobody_is_found_in_what_one_talker_leaves_in_any_block(speech: Array) -> None:
    estimator = PositionEstimator(SIX, "general-small", sources="auto", volume=ROOM, threads=1)
    for tail in (0.5, 2.0):
        answer = estimator(heard(speech, SIX, TALKER, tail=tail, snr=10.0), RATE)
        assert [len(block.positions) for block in answer.blocks] == [1, 1, 1]


def test_exchanged_microphones_are_not_sure_of_a_place(speech: Array) -> None:
    x = heard(speech, SIX, TALKER, tail=0.2)
    estimator = PositionEstimator(SIX, "general-small", volume=ROOM, threads=1)
    right, exchanged = (estimator(one, RATE) for one in (x, x[[0, 1, 2, 4, 3, 5]]))
    assert right.positions[0].confidence > 0.95
    assert right.positions[0].remark is None
    assert not any("exchanged" in warning for warning in right.warnings)
    assert exchanged.positions[0].confidence < 0.3
    assert exchanged.positions[0].remark is not None
    assert "microphones 3 and 4 are probably exchanged" in exchanged.warnings[0]


def test_a_place_of_few_delays_asks_for_the_order_of_the_microphones() -> None:
    fit = fit_position(SIX, SIX.pairs, delays_of(TALKER), None, TALKER)
    few = fit._replace(used=np.arange(15) < 7)
    assert position_from_fit(fit, SIX, SIX.pairs, ROOM, None, 0.9, True).remark is None
    assert "only 7 of 15 delays agree" in str(position_from_fit(few, SIX, SIX.pairs, ROOM, None, 0.9, True).remark)
    assert position_from_fit(few, SIX, SIX.pairs, ROOM, None, 0.9, True, alone=False).remark is None


@pytest.mark.parametrize("method", ["general-small", "phat"])
def test_no_place_is_outside_a_volume_that_was_given(speech: Array, method: str) -> None:
    volume = np.array([[10.0, 11.9], [10.0, 12.0], [0.0, 1.0]])  # nobody is there
    answer = PositionEstimator(SIX, method, sources=2, volume=volume, threads=1)(heard(speech, SIX, TALKER), RATE)
    for found in [*answer.positions, *(one for block in answer.blocks for one in block.positions)]:
        assert ((found.place >= volume[:, 0]) & (found.place <= volume[:, 1])).all()
        assert not found.solved


def test_one_microphone_alone_hears_no_place(speech: Array) -> None:
    x = heard(speech, SIX, TALKER)
    x[1:] = 0
    with pytest.raises(InputError, match="nearly all of its channels are silent"):
        PositionEstimator(SIX, "phat", volume=ROOM)(x, RATE)


def test_a_talker_that_is_not_there_has_little_confidence(speech: Array) -> None:
    x = heard(speech, SIX, TALKER, tail=0.5)
    answer = PositionEstimator(SIX, "general-small", sources=2, volume=ROOM, threads=1)(x, RATE)
    there, not_there = answer.positions
    assert there.confidence > 0.9 > 0.5 > not_there.confidence
    assert there.solved
    assert not not_there.solved
    assert "hardly anything speaks for one place" in str(not_there.remark)


def test_where_there_is_no_room_for_another_source_fewer_are_found(speech: Array) -> None:
    """Two places are 0.4 m apart at least: a volume of that size holds one."""
    small = np.stack([TALKER - 0.15, TALKER + 0.15], axis=1)
    answer = PositionEstimator(SIX, "phat", sources=16, volume=small)(heard(speech, SIX, TALKER), RATE)
    assert len(answer.positions) == 1
    np.testing.assert_allclose(answer.positions[0].place, TALKER, atol=0.02)
    assert [w for w in answer.warnings if "sources" in w] == [
        "fewer sources than the 16 asked for are found: 1 in the whole recording"
    ]


@pytest.mark.parametrize("method", ["general-small", "phat"])
def test_a_dead_microphone_is_left_out_and_said_once(conversation: Array, method: str) -> None:
    x = conversation.copy()
    x[3] = 0
    answer = PositionEstimator(SIX, method, sources=2, volume=ROOM, threads=1)(x, RATE)
    assert_found(answer.positions, [TALKER, OTHER], 0.15)
    assert [w for w in answer.warnings if "microphone" in w] == [
        f"microphone 3 is silent in {n} of {n} frames: it is left out there"
        for n in [sum(b.frames for b in answer.blocks)]
    ]
    of_the_dead = np.array([3 in pair for pair in answer.pairs])
    assert not answer.positions[0].used[of_the_dead].any()
    living = [0, 1, 2, 4, 5]
    five = PositionEstimator(Geometry(SIX.microphones[living]), method, sources=2, volume=ROOM, threads=1)
    without_it = five(x[living], RATE)
    for one, other in zip(answer.positions, without_it.positions, strict=True):
        np.testing.assert_allclose(one.place, other.place, atol=1e-3)
        assert one.confidence == pytest.approx(other.confidence, abs=1e-3)


def test_too_many_dead_microphones_leave_no_position(speech: Array) -> None:
    x = heard(speech, SIX, TALKER)
    x[[0, 2, 4]] = 0
    (found,) = PositionEstimator(SIX, "phat", volume=ROOM)(x, RATE).positions
    assert not found.solved


def test_coincident_microphones_are_named() -> None:
    with pytest.raises(InputError, match="microphones 2 and 5 are 0 m apart"):
        PositionEstimator(Geometry(SIX.microphones[[0, 1, 2, 3, 4, 2]]), "phat")


@pytest.mark.parametrize("sources", [0, 17, 1.5, "two"])
def test_numbers_of_sources_that_cannot_be_are_refused(sources: Any) -> None:
    with pytest.raises(InputError, match="expected a whole number, 1 to 16, or auto"):
        PositionEstimator(SIX, "phat", sources=sources)


def test_correlations_do_not_count() -> None:
    with pytest.raises(InputError, match="phat cannot tell how many sources there are"):
        PositionEstimator(SIX, "phat", sources="auto")


# Delays to a position


def delays_of(place: Array, geometry: Geometry = SIX, noise: float = 0.0, seed: int = 0) -> Array:
    late = noise * np.random.default_rng(seed).standard_normal(len(geometry))
    exact = near_delays(geometry, geometry.pairs, place[None])[:, 0]
    return exact + np.array([late[i] - late[j] for i, j in geometry.pairs])


def test_exact_delays_give_the_exact_position_in_closed_form_and_by_the_fit() -> None:
    np.testing.assert_allclose(closed_form(SIX, SIX.pairs, delays_of(TALKER)), TALKER, atol=1e-6)
    np.testing.assert_allclose(fit_position(SIX, SIX.pairs, delays_of(TALKER)).place, TALKER, atol=1e-6)


def test_wrong_delays_are_rejected_and_named() -> None:
    delays = delays_of(TALKER, noise=1e-5)
    wrong = [1, 6, 11]
    delays[wrong] += [2e-3, -3e-3, 1.5e-3]
    start = TALKER + np.array([0.2, -0.2, 0.1])
    fit = fit_position(SIX, SIX.pairs, delays, start=start)
    assert np.linalg.norm(fit.place - TALKER) < 0.02
    assert np.flatnonzero(~fit.used).tolist() == wrong
    position = position_from_fit(fit, SIX, SIX.pairs, ROOM, None)
    assert position.solved
    np.testing.assert_allclose(position.residuals[wrong], [2e-3, -3e-3, 1.5e-3], atol=1e-4)
    plain = fit_position(SIX, SIX.pairs, delays, start=start, robust=False)
    assert np.linalg.norm(plain.place - TALKER) > 0.1  # which is what the weights are for


def test_weights_make_delays_count_less() -> None:
    delays = delays_of(TALKER)
    delays[:4] += 1e-3
    weights = np.where(np.arange(15) < 4, 1e-3, 1.0)
    assert np.linalg.norm(fit_position(SIX, SIX.pairs, delays, weights, robust=False).place - TALKER) < 0.01
    assert np.linalg.norm(fit_position(SIX, SIX.pairs, delays, robust=False).place - TALKER) > 0.05


def test_the_ellipse_holds_the_errors_and_shows_their_direction() -> None:
    outside = np.array([2.5, 7.5, 1.4])  # 3.5 m from the nearest microphones: uncertain along that way
    off, radii, first = [], [], []
    for seed in range(40):
        fit = fit_position(SIX, SIX.pairs, delays_of(outside, noise=3e-5, seed=seed), start=outside)
        position = position_from_fit(fit, SIX, SIX.pairs, ROOM + np.array([[-9, 9]]), None)
        off.append(position.axes @ (position.place - outside))
        radii.append(position.radii)
        first.append(abs(position.axes[0][1]))
    spread, told = np.sqrt((np.array(off) ** 2).mean(axis=0)), np.sqrt((np.array(radii) ** 2).mean(axis=0))
    assert (spread < 1.5 * told).all()
    assert (spread > 0.3 * told).all()
    assert np.median(first) > 0.9
    assert told[0] > 3 * told[1]


# What cannot be told


def test_too_far_outside_only_a_direction_is_known() -> None:
    far = np.array([60.0, 30.0, 2.0])
    fit = fit_position(SIX, SIX.pairs, delays_of(far, noise=3e-5), start=np.array([30.0, 15.0, 2.0]))
    position = position_from_fit(fit, SIX, SIX.pairs, np.array([[-99.0, 99.0]] * 3), None)
    assert not position.solved
    assert position.remark is not None
    assert "only the direction is known (azimuth 26" in position.remark


def test_pairs_that_do_not_agree_are_no_position() -> None:
    rng = np.random.default_rng(1)
    delays = rng.uniform(-1, 1, 15) * np.array([SIX.spacing(*pair) for pair in SIX.pairs]) / C
    position = position_from_fit(fit_position(SIX, SIX.pairs, delays), SIX, SIX.pairs, ROOM, None)
    assert not position.solved
    assert "do not agree on one place" in str(position.remark)


def test_microphones_in_one_plane_leave_a_mirror_image() -> None:
    flat = Geometry(SIX.microphones * [1, 1, 0] + [0, 0, 1])
    fit = fit_position(flat, flat.pairs, delays_of(TALKER, flat), start=TALKER)
    position = position_from_fit(fit, flat, flat.pairs, ROOM, None)
    assert position.solved
    assert "(1.70, 2.60, 0.60) behind it sounds the same" in str(position.remark)


@pytest.mark.parametrize(
    ("microphones", "options", "message"),
    [
        (SIX.microphones[:3], {}, "3 microphones; a position in space needs 4 or more: give the height"),
        (SIX.microphones[:2], {"height": 1.0}, "2 microphones; a position at a known height needs 3"),
        (np.outer(np.arange(5), [1.0, 0.5, 0]), {}, "on a line, around which all places sound the same"),
        (SIX.microphones, {"volume": [[0, 1], [0, 1]]}, "the volume is not understood"),
        (SIX.microphones, {"volume": [[0, 1], [1, 0], [0, 1]]}, "the volume is not understood"),
        (SIX.microphones, {"volume": [[0, 500], [0, 1], [0, 1]]}, "are the units right"),
        (SIX.microphones, {"block": 0.0}, "block"),
        (SIX.microphones, {"height": float("nan")}, "the height is nan m"),
        (SIX.microphones, {"height": float("inf")}, "the height is inf m"),
    ],
)
def test_what_cannot_be_solved_is_said_before_anything_is_heard(
    microphones: Array, options: dict, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        PositionEstimator(Geometry(microphones), "phat", **options)


def test_other_channels_than_microphones_are_explained(speech: Array) -> None:
    with pytest.raises(InputError, match="has 2 channels; six has 6 microphones"):
        PositionEstimator(SIX, "phat")(np.stack([speech, speech]), RATE)
    with pytest.raises(InputError, match="needs 3 delays with one microphone"):
        closed_form(SIX, [(0, 1), (2, 3)], np.zeros(2))


# The command


@pytest.fixture(scope="module")
def folder(speech: Array, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording, and the file of its microphones."""
    made = tmp_path_factory.mktemp("room")
    soundfile.write(made / "room.wav", 0.3 * heard(speech, SIX, TALKER).T, RATE)
    write_geometry(SIX, made / "six.toml")
    return made


def locate(folder: Path, *options: str) -> tuple[str, BaseException | None]:
    given = ["locate", str(folder / "room.wav"), "--array", str(folder / "six.toml"), "-m", "phat", *options]
    result = CliRunner().invoke(app, given)
    return result.stdout, result.exception


@pytest.mark.needs("matplotlib")
def test_the_command_shows_places(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "room.png"
    shown, fault = locate(folder, "--position", "--plot", str(picture))
    assert fault is None
    assert "1.70 to the front, 2.60 to the left, 1.40 up" in " ".join(shown.split())
    assert picture.stat().st_size > 10_000


@pytest.mark.needs("matplotlib")
def test_the_command_shows_several_places(folder: Path, conversation: Array, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "two.wav", 0.3 * conversation.T, RATE)
    command = ["locate", str(tmp_path / "two.wav"), "--array", str(folder / "six.toml"), "--position"]
    command += ["-m", "general-small", "--volume", "0,5,0,4,0,2.5", "--plot", str(tmp_path / "two.png")]
    for sources in ("2", "auto"):
        result = CliRunner().invoke(app, [*command, "--sources", sources])
        assert result.exception is None
        shown = " ".join(result.stdout.split())
        assert "if the sources stay" in shown
        assert shown.count("to the front") == 2
    assert (tmp_path / "two.png").stat().st_size > 10_000
    result = CliRunner().invoke(app, [*command, "--sources", "2", "--format", "csv"])
    rows = [line.split(",") for line in result.stdout.splitlines() if "two.wav" in line]
    assert [row[1] for row in rows] == ["0.000", "0.000", "1.000", "1.000", "2.000", "2.000"]


def test_the_command_writes_places(folder: Path) -> None:
    lines = locate(folder, "--position", "--format", "csv")[0].splitlines()
    assert lines[0].startswith("source,start,end,front,left,up")
    assert len(lines) == 4
    np.testing.assert_allclose([float(x) for x in lines[2].split(",")[3:6]], TALKER, atol=0.1)
    record = json.loads(locate(folder, "--position", "--height", "1.4", "--format", "json")[0])
    np.testing.assert_allclose(record["positions"][0]["place"], TALKER, atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--position", "--track"), "--track is for directions"),
        (("--position", "--context", "0"), "--context is for directions"),
        (("--position", "--sources", "two"), "expected a number such as 2, or auto"),
        (("--position", "--volume", "0,5,0,4"), "expected six numbers"),
        (("--position", "--volume", "0,5,0,4,0,inf"), "--volume 0,5,0,4,0,inf: expected numbers"),
        (("--position", "--height", "nan"), "the height is nan m"),
        (("--volume", "0,5,0,4,0,2.5"), "give --position as well"),
        (("--height", "1.4"), "give --position as well"),
    ],
)
def test_options_that_do_not_go_together_are_explained(folder: Path, options: tuple[str, ...], message: str) -> None:
    _, fault = locate(folder, *options)
    assert isinstance(fault, InputError)
    assert message in str(fault)
