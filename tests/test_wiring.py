"""Arrays that are wired otherwise than their geometry says: noticed in recordings, positions and live."""

from __future__ import annotations

import csv
import io
import json
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from qkgcc import samples
from qkgcc.arrays import DirectionEstimator, Geometry, array
from qkgcc.arrays.stream import DirectionStream, frames_csv, frames_json
from qkgcc.arrays.wiring import MISWIRED_TRUST, same_shape
from qkgcc.audio.recording import open_audio
from qkgcc.cli import app

C, RATE = 343.0, 16000
NETWORK = "general-small"
SQUARE = array("respeaker4")


def talker(
    geometry: Geometry, azimuth: float, seconds: float = 4.0, seed: int = 0, distance: float = 100.0
) -> np.ndarray:
    """Noise from one place, and each microphone's own 20 dB below it."""
    rng = np.random.default_rng(seed)
    n = int(seconds * RATE)
    towards = np.array([np.cos(np.radians(azimuth)), np.sin(np.radians(azimuth)), 0.0])
    spectrum = np.fft.rfft(rng.standard_normal(n))
    early = (distance - np.linalg.norm(distance * towards - geometry.microphones, axis=1)) / C
    heard = np.fft.irfft(spectrum * np.exp(2j * np.pi * np.fft.rfftfreq(n, 1 / RATE) * early[:, None]), n)
    return 0.1 * (heard + 0.1 * rng.standard_normal(heard.shape))


def bundled() -> tuple[np.ndarray, Geometry]:
    geometry = Geometry(np.array(samples.truth("talkers-4ch")["microphones"]), "bundled")
    return open_audio(samples.path("talkers-4ch")).read(), geometry


def inverted(x: np.ndarray, microphone: int) -> np.ndarray:
    turned = x.copy()
    turned[microphone] *= -1
    return turned


@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_exchanged_and_inverted_microphones_lower_the_confidence_and_are_said(method: str) -> None:
    x, estimator = talker(SQUARE, 40), DirectionEstimator(SQUARE, method)
    right = estimator(x, RATE)
    assert not right.warnings
    # In a square 2 and 3 exchanged are the mirror image of 0 and 1 exchanged.
    cases = {"microphones 2 and 3 are probably exchanged": x[[1, 0, 2, 3]]}
    cases["microphone 3 is probably inverted"] = inverted(x, 3)
    for said, wrong in cases.items():
        answer = estimator(wrong, RATE)
        assert said in answer.warnings[0]
        assert "qkgcc doctor --array" in answer.warnings[0]
        assert answer.confidence.max() <= MISWIRED_TRUST
        assert max(one.confidence for block in answer.blocks for one in block.directions) <= MISWIRED_TRUST
        assert answer.directions[0].confidence <= MISWIRED_TRUST < right.directions[0].confidence


def test_every_wrong_order_and_inversion_of_the_bundled_recording_is_noticed() -> None:
    x, geometry = bundled()
    estimator = DirectionEstimator(geometry, "phat")
    nearly_mirrored = (3, 1, 2, 0)
    orders = [order for order in permutations(range(4)) if order not in ((0, 1, 2, 3), nearly_mirrored)]
    for right in (x, x[list(nearly_mirrored)]):
        assert not estimator(right, RATE).warnings
    for wrong in [x[list(order)] for order in orders] + [inverted(x, i) for i in range(4)]:
        assert "probably" in estimator(wrong, RATE).warnings[0]


def test_an_array_that_is_turned_or_mirrored_is_no_finding() -> None:
    same = [order for order in permutations(range(4)) if same_shape(SQUARE, order)]
    assert len(same) == 8  # four turns, and their mirror images
    x, estimator = talker(SQUARE, 40), DirectionEstimator(SQUARE, "phat")
    assert not any(estimator(x[list(order)], RATE).warnings for order in same)


def test_noise_says_nothing_of_the_wiring() -> None:
    own = 0.1 * np.random.default_rng(0).standard_normal((4, 4 * RATE))
    assert not DirectionEstimator(SQUARE, "phat")(own, RATE).warnings


def test_a_dead_microphone_does_not_hide_an_inverted_one() -> None:
    x = inverted(talker(SQUARE, 40), 3)
    x[0] = 0
    said = DirectionEstimator(SQUARE, "phat")(x, RATE).warnings
    assert sum("microphone 3 is probably inverted" in one for one in said) == 1
    assert any("microphone 0 is silent" in one for one in said)


def test_a_stream_says_it_as_soon_as_it_knows_however_the_sound_is_cut() -> None:
    x, estimator = talker(SQUARE, 40)[[1, 0, 2, 3]], DirectionEstimator(SQUARE, NETWORK)
    answers = []
    for size in (700, 64000):
        stream = DirectionStream(estimator, RATE)
        parts = [stream.push(x[:, i : i + size]) for i in range(0, x.shape[1], size)]
        assert any("probably exchanged" in one for one in stream.notices.values())
        answers.append(np.concatenate([part.confidence for part in [*parts, stream.flush()]]))
    np.testing.assert_array_equal(*answers)
    assert answers[0][:60].max() > MISWIRED_TRUST >= answers[0][-20:].max()  # from 3 s on


def test_tracks_of_a_stream_are_trusted_less_too() -> None:
    x, estimator = inverted(talker(SQUARE, 40), 2), DirectionEstimator(SQUARE, NETWORK)
    frames = DirectionStream(estimator, RATE, track=True).push(x)
    rows = list(csv.DictReader(io.StringIO(frames_csv(frames))))
    late = [float(row["confidence"]) for row in rows if float(row["time"]) > 3.3]
    assert late
    assert max(late) <= MISWIRED_TRUST
    record = json.loads(frames_json(frames))
    assert max(one["probability"] for row in record["tracks"][-10:] for one in row) <= MISWIRED_TRUST


@pytest.mark.parametrize(("frame", "hop"), [(0.064, 0.2), (0.5, 0.25), (1.0, 1.0)])
def test_frames_and_hops_may_be_long(frame: float, hop: float) -> None:
    x = inverted(talker(SQUARE, 40, seconds=12), 2)
    assert "probably" in DirectionEstimator(SQUARE, "phat", frame=frame, hop=hop)(x, RATE).warnings[0]


@pytest.mark.parametrize("distance", [0.3, 0.5, 1.0, 100.0])
def test_a_talker_right_in_front_of_a_line_is_no_wrong_order(distance: float) -> None:
    line = array("linear:4:0.1")
    for azimuth in (-10.0, 0.0, 25.0):
        x = talker(line, azimuth, distance=distance)
        assert not DirectionEstimator(line, "phat")(x, RATE).warnings
    exchanged = talker(line, 25, distance=distance)[[1, 0, 2, 3]]
    assert "probably" in DirectionEstimator(line, "phat")(exchanged, RATE).warnings[0]


def test_of_six_microphones_every_exchange_of_two_is_noticed() -> None:
    circle = array("respeaker6")
    estimator, x = DirectionEstimator(circle, "phat"), talker(circle, 40)
    assert not estimator(x, RATE).warnings
    for i, j in combinations(range(6), 2):
        order = list(range(6))
        order[i], order[j] = j, i
        assert "probably exchanged" in estimator(x[order], RATE).warnings[0]


def test_a_copy_of_the_evidence_hears_for_itself() -> None:
    x, estimator = talker(SQUARE, 40), DirectionEstimator(SQUARE, "phat")
    evidence = estimator.evidence(RATE)
    evidence.push(x)
    twin = evidence.copy()
    for _ in range(3):
        twin.push(inverted(x, 2))
    assert not evidence.warnings
    assert "microphone 2 is probably inverted" in twin.warnings[0]


def test_locate_prints_it_and_puts_it_into_json(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "wrong.wav", inverted(talker(SQUARE, 40), 1).T, RATE)
    given = ["locate", str(tmp_path / "wrong.wav"), "--array", "respeaker4", "--method", NETWORK]
    shown = CliRunner().invoke(app, given)
    assert "microphone 1 is probably inverted" in " ".join(shown.output.split())
    record = json.loads(CliRunner().invoke(app, [*given, "--format", "json"]).stdout)
    assert any("microphone 1 is probably inverted" in one for one in record["warnings"])
