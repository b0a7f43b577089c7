"""Low noise beside talkers, and bands of frequencies, for arrays."""

import numpy as np
import pytest

from faults import RATE, Array
from qkgcc import samples
from qkgcc.arrays import DirectionEstimator, Geometry, PositionEstimator
from qkgcc.arrays.evidence import ArrayEvidence
from qkgcc.audio.frames import warp
from qkgcc.audio.recording import open_audio
from qkgcc.core.errors import InputError

pytestmark = pytest.mark.numeric

BUNDLED = Geometry(np.array(samples.truth("talkers-4ch")["microphones"]), "bundled")
NETWORK = "general-small"


@pytest.fixture(scope="module")
def talkers() -> Array:
    return open_audio(samples.path("talkers-4ch")).read().astype(np.float64)


def with_hum(sound: Array, decibels: float) -> Array:
    """With 50 Hz and its multiples to 250 Hz in all channels, so much above the rest."""
    time = np.arange(sound.shape[1]) / RATE
    hum = sum(np.sin(2 * np.pi * 50 * k * time) / k for k in range(1, 6))
    return np.asarray(sound + sound.std() / np.std(hum) * 10 ** (decibels / 20) * hum)


@pytest.mark.parametrize(("decibels", "share"), [(10, 0.88), (20, 0.83), (30, 0.77)])
def test_frames_keep_their_azimuth_beside_a_hum(talkers: Array, decibels: float, share: float) -> None:
    estimator = DirectionEstimator(BUNDLED, threads=1)
    without, beside = (estimator(sound, RATE).azimuth for sound in (talkers, with_hum(talkers, decibels)))
    turn = np.abs((beside - without + 180) % 360 - 180)
    assert (turn[np.isfinite(without)] <= 10).mean() >= share


def test_hum_is_taken_out_beside_a_dead_microphone(talkers: Array) -> None:
    talkers = with_hum(talkers, 20)
    talkers[1] = 0
    (found,) = DirectionEstimator(BUNDLED, NETWORK, threads=1)(talkers, RATE, end=2.2).directions
    front, left, _ = np.array(samples.truth("talkers-4ch")["segments"][0]["position"]) - BUNDLED.microphones[0]
    assert abs((found.azimuth - np.degrees(np.arctan2(left, front)) + 180) % 360 - 180) < 10


@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_a_band_leaves_another_source_out(method: str) -> None:
    """One sound below 2 kHz from the left, another one above 3 kHz and louder from the right."""
    rng = np.random.default_rng(0)
    frequencies = np.fft.rfftfreq(2 * RATE, 1 / RATE)
    low, high = (
        np.fft.irfft(np.fft.rfft(rng.standard_normal(2 * RATE)) * ((first <= frequencies) & (frequencies <= last)))
        for first, last in ((200, 2000), (3000, 8000))
    )
    geometry = DirectionEstimator("respeaker4", "phat").geometry
    heard = np.zeros((len(geometry), 2 * RATE))
    for source, azimuth, gain in ((low, 90.0, 1.0), (high, -90.0, 2.0)):
        place = geometry.microphones.mean(axis=0) + 3 * np.array([0.0, np.sign(azimuth), 0.0])
        away = np.linalg.norm(geometry.microphones - place, axis=1)
        heard += gain * np.stack([warp(source, 1.0, -d / 343.0 * RATE, source.shape[0]) for d in away])
    heard += 0.01 * rng.standard_normal(heard.shape)
    for band, azimuth in (((200, 2000), 90.0), ((3000, 8000), -90.0)):
        (found,) = DirectionEstimator(geometry, method, band=band)(heard, RATE).directions
        assert abs(found.azimuth - azimuth) < 5


@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_a_band_is_of_positions_too(method: str) -> None:
    corners = Geometry(np.array([[0, 0, 1.0], [3, 0, 2.0], [3, 2.5, 1.0], [0, 2.5, 2.0], [1.5, 1.2, 0.5]]), "corners")
    place, rng = np.array([1.0, 1.8, 1.4]), np.random.default_rng(0)
    away = np.linalg.norm(corners.microphones - place, axis=1)
    dry = rng.standard_normal(RATE)
    heard = np.stack([warp(dry, 1.0, -d / 343.0 * RATE, RATE) / d for d in away])
    tone = np.sin(2 * np.pi * 900 * np.arange(RATE) / RATE)
    estimator = PositionEstimator(corners, method, band=(1500, 7000))
    assert estimator.evidence(RATE).band == (1500, 7000)
    (found,) = estimator(heard + 3 * heard.std() * tone, RATE).positions
    assert np.linalg.norm(found.place - place) < 0.1


@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_a_band_is_checked_as_for_a_pair_of_microphones(method: str) -> None:
    for band, sentence in (
        (300, "a band is a lowest and a highest frequency in Hz; got 300"),
        ((500, 100), "must be below"),
        (("low", "high"), "edge of the band is 'low'"),
    ):
        for make in (DirectionEstimator, PositionEstimator):
            with pytest.raises(InputError, match=sentence):
                make(BUNDLED, method, band=band)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="up to 4000 Hz, and the band begins at 5000 Hz: lower the band"):
        ArrayEvidence(BUNDLED, method, sample_rate=8000, band=(5000, 7000))


def test_a_network_refuses_a_band_of_next_to_nothing() -> None:
    with pytest.raises(InputError, match="leaves too little: it needs 125 Hz, take a wider band"):
        ArrayEvidence(BUNDLED, NETWORK, sample_rate=16000, band=(1000, 1100))


@pytest.mark.parametrize("method", [NETWORK, "phat"])
def test_a_narrow_band_is_warned_of_and_lowers_the_confidence_of_a_network(method: str, talkers: Array) -> None:
    wide = DirectionEstimator(BUNDLED, method, band=(300, 3400))(talkers, RATE)
    narrow = DirectionEstimator(BUNDLED, method, band=(300, 550))(talkers, RATE)
    assert not any("are used" in one for one in wide.warnings)
    assert sum("only 300 to 550 Hz are used" in one for one in narrow.warnings) == 1
    if method == NETWORK:
        assert narrow.confidence.max() <= 0.25 < wide.confidence.max()
        assert max(one.confidence for one in narrow.directions) <= 0.25


def test_a_band_that_begins_below_the_hum_keeps_it(talkers: Array) -> None:
    sound = with_hum(talkers, 20)
    kept, gone = (
        ArrayEvidence(BUNDLED, NETWORK, sample_rate=16000, band=band).push(sound).curves
        for band in ((20, 8000), (300, 8000))
    )
    without = ArrayEvidence(BUNDLED, NETWORK, sample_rate=16000, band=(300, 8000)).push(talkers).curves
    assert np.abs(gone - without).mean() < 0.5 * np.abs(kept - without).mean()
