"""A rendered scene sounds as the scene says: delays, levels, noise, degradations, and sources that move."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.signal import hilbert

from qkgcc.core.errors import InputError
from qkgcc.dsp.gcc import gcc, lag_range
from qkgcc.lab.rooms.degradations import Degradations
from qkgcc.lab.scenes.general import GENERAL, STEP, general_scenes
from qkgcc.lab.scenes.render import EARLY, LATE_STEP, _hear_path, _thin_path, delay_at, render
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.lab.scenes.signals import Catalog, lookup

pytestmark = [pytest.mark.numeric, pytest.mark.needs("numba")]

RATE = 16000
SAMPLES = 2 * RATE
SECONDS = 2.0
MICROPHONES = np.array([[3.0, 2.0, 1.5], [3.0, 2.2, 1.5]])
TIMES = np.arange(SAMPLES) / RATE
QUIET = 300.0  # dB of SNR


def sound(id: str) -> np.ndarray:
    """`white-SEED` or `tone-HZ`, or `early`: noise that stops after half a second."""
    kind, _, number = id.partition("-")
    if kind == "tone":
        return np.sin(2 * np.pi * float(number) * TIMES)
    noise = np.random.default_rng(int(number or 0)).standard_normal(SAMPLES)
    return np.where(TIMES < 0.5, noise, 0.0) if kind == "early" else noise


def scene(*sources: Source, **changes: object) -> Scene:
    sources = sources or (Source("white-1", np.array([1.2, 3.0, 1.4])),)
    usual = {"room": [6.0, 5.0, 3.0], "t60": 0.0, "microphones": MICROPHONES, "sources": sources, "snr": QUIET}
    return Scene(**(usual | changes))


def walk(signal: str, speed: float = 0.8, step: float = STEP) -> Source:
    """Two seconds past the microphones."""
    first = np.array([1.5, 1.2, 1.5])
    last = first + np.array([0.0, SECONDS * speed, 0.0])
    points = 1 + math.ceil(SECONDS * speed / step)
    return Source(signal, np.linspace(first, last, points), np.linspace(0, SECONDS, points))


def measured_delay(audio: np.ndarray) -> float:
    """Slope of the phase between the channels up to 6 kHz, in samples; the delay must be below one period there."""
    spectra = np.fft.rfft(audio * np.hanning(audio.shape[-1]))
    cross = spectra[0] * spectra[1].conj()
    omega = np.fft.rfftfreq(audio.shape[-1]) * 2 * np.pi
    guess = np.argmax(np.fft.irfft(cross / np.abs(cross)))
    guess = guess - audio.shape[-1] if guess > audio.shape[-1] // 2 else guess
    used = slice(int(0.01 * len(omega)), int(0.75 * len(omega)))
    rest = np.angle(cross * np.exp(1j * omega * guess))[used]
    weight = np.abs(cross[used])
    return float(guess - (weight * omega[used] * rest).sum() / (weight * omega[used] ** 2).sum())


# At rest


@pytest.mark.parametrize("place", [(1.2, 3.0, 1.4), (4.0, 0.5, 2.0), (3.0, 4.5, 1.5), (1.0, 2.1, 1.5)])
def test_the_recording_has_the_true_delay(place: tuple[float, float, float]) -> None:
    drawn = scene(Source("white-1", np.array(place)))
    rendered = render(drawn, sound, SECONDS)
    assert rendered.audio.shape == (2, SAMPLES)
    assert rendered.audio.dtype == np.float32
    np.testing.assert_allclose(rendered.delays, drawn.delay()[0], atol=1e-5)
    assert abs(measured_delay(rendered.audio) - drawn.delay()[0]) < 0.02


def test_the_delay_survives_a_room() -> None:
    drawn = scene(t60=0.4, snr=20.0)
    rendered = render(drawn, sound, SECONDS)
    # qkgcc's own estimator finds it, sign and all.
    lags = lag_range(0.2 / 343, RATE)
    curve = gcc(rendered.audio[:, 4096:8192], max_lag=lags)
    assert abs(np.argmax(curve) - lags - drawn.delay()[0]) < 1


def test_the_first_source_has_unit_variance_at_microphone_1_and_the_noise_its_snr() -> None:
    drawn = scene(t60=0.3, snr=7.0)
    rendered = render(drawn, sound, SECONDS, separate=True)
    assert rendered.sources is not None
    assert rendered.sources[0, 0].var() == pytest.approx(1, rel=1e-4)
    noise = rendered.audio - rendered.sources.sum(axis=0)
    np.testing.assert_allclose(10 * np.log10(noise.var(axis=1)), -7, atol=0.2)
    assert abs(np.corrcoef(noise)[0, 1]) < 0.05


def test_an_interferer_has_its_level_over_all_microphones() -> None:
    other = Source("white-2", np.array([3.0, 2.6, 1.5]), level=-9.0)  # nearer to microphone 2
    drawn = scene(*scene().sources, other)
    rendered = render(drawn, sound, SECONDS, separate=True)
    assert rendered.sources is not None
    power = rendered.sources.var(axis=-1)
    assert 10 * math.log10(power[1].mean() / power[0].mean()) == pytest.approx(-9, abs=1e-3)
    assert power[1, 1] > power[1, 0]
    np.testing.assert_allclose(rendered.audio, rendered.sources.sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(rendered.delays[:, 0], [drawn.delay(0)[0], drawn.delay(1)[0]], atol=1e-5)


def test_rendering_is_a_pure_function_of_the_scene() -> None:
    once, again = (render(scene(t60=0.2, snr=3.0, seed=8), sound, SECONDS).audio for _ in range(2))
    np.testing.assert_array_equal(once, again)
    other = render(scene(t60=0.2, snr=3.0, seed=9), sound, SECONDS).audio
    assert np.abs(once - other).max() > 0.1


def test_a_source_begins_where_it_is_told_to_and_ends_in_silence() -> None:
    signal = np.random.default_rng(0).standard_normal(3 * RATE)
    place = scene().sources[0].path
    late = render(scene(Source("x", place, start=0.5)), lambda id: signal, 1.0).audio
    same = render(scene(Source("x", place)), lambda id: signal[RATE:], 1.0).audio
    np.testing.assert_allclose(late, same, atol=1e-6)
    short = render(scene(Source("x", place, start=0.5)), lambda id: signal[:4000], 1.0).audio
    assert np.abs(short[:, :4000]).max() > 1
    assert np.abs(short[:, 6000:]).max() < 0.05  # what is left is the ringing of the 10 Hz high-pass


def test_the_silence_behind_a_short_signal_does_not_make_it_louder() -> None:
    signal = np.random.default_rng(0).standard_normal(RATE)
    place = scene().sources[0].path
    long, short = (
        render(scene(Source("x", place)), lambda id: signal, seconds).audio[0, :RATE] for seconds in (1.0, 3.0)
    )
    np.testing.assert_allclose(long, short, atol=1e-4)


def test_a_silent_first_source_is_an_error_and_a_silent_interferer_is_not() -> None:
    rest = scene().sources[0].path
    with pytest.raises(InputError, match="none-0 is silent"):
        render(scene(Source("none-0", rest)), lambda id: np.zeros(100), 0.1)
    both = scene(Source("white-1", rest), Source("none", rest + 0.5, level=-3.0))
    audio = render(both, lambda id: sound(id) if id == "white-1" else np.zeros(100), 0.1).audio
    assert np.isfinite(audio).all()


# Noise and microphones


def test_microphones_colour_the_field_but_not_their_own_noise() -> None:
    deaf = Degradations(gain=[0.0, -40.0])
    levels = {}
    for kind in ("diffuse", "independent"):
        loud = scene(snr=0.0, noise=kind, degradations=deaf)
        quiet = scene(degradations=deaf)
        noise = render(loud, sound, SECONDS).audio - render(quiet, sound, SECONDS).audio
        levels[kind] = 20 * np.log10(noise.std(axis=1))
    np.testing.assert_allclose(levels["diffuse"], [0, -40], atol=0.3)
    np.testing.assert_allclose(levels["independent"], [0, 0], atol=0.3)


def test_diffuse_noise_is_alike_at_close_microphones() -> None:
    close = np.array([[3.0, 2.0, 1.5], [3.0, 2.03, 1.5]])
    noise = [
        render(scene(snr=0.0, noise=kind, noise_slope=-6.0, microphones=close), sound, SECONDS).audio
        - render(scene(microphones=close), sound, SECONDS).audio
        for kind in ("diffuse", "independent")
    ]
    assert np.corrcoef(noise[0])[0, 1] > 0.95
    assert abs(np.corrcoef(noise[1])[0, 1]) < 0.3


def test_position_errors_can_be_read_from_the_recording() -> None:
    """Sources on the three axes give the error along each: the delay is true for true positions, not nominal ones."""
    rng = np.random.default_rng(3)
    error = 0.002 * rng.standard_normal((2, 3))
    nominal = np.array([[3.0, 2.5, 1.5], [3.1, 2.6, 1.6]])
    found = []
    for axis in range(3):
        place = nominal.mean(axis=0)
        place[axis] -= 1.3
        drawn = scene(
            Source("white-1", place),
            microphones=nominal + error,
            degradations=Degradations(position_error=error),
        )
        believed = np.linalg.norm(drawn.nominal_microphones - place, axis=1)
        excess = measured_delay(render(drawn, sound, SECONDS).audio) * 343 / RATE - (believed[0] - believed[1])
        found.append(excess)
    np.testing.assert_allclose(found, error[0] - error[1], atol=5e-4)
    assert np.abs(error[0] - error[1]).max() > 0.002


def test_gains_can_be_read_from_the_recording() -> None:
    gain = np.array([4.0, -3.5])
    flat, spoiled = (
        render(scene(t60=0.2, degradations=Degradations(gain=g)), sound, SECONDS).audio for g in (np.zeros(2), gain)
    )
    np.testing.assert_allclose(20 * np.log10(spoiled.std(axis=1) / flat.std(axis=1)), gain, atol=1e-3)


# On the way


@pytest.mark.parametrize(("frequency", "ripple"), [(500.0, 0.03), (2000.0, 0.03), (7000.0, 0.06)])
def test_a_walking_tone_has_the_true_delay_and_level_at_every_moment_and_no_clicks(
    frequency: float, ripple: float
) -> None:
    """Up to 7 kHz its level stays within half a decibel: the points of the path are close enough not to comb it."""
    drawn = scene(walk(f"tone-{frequency}"))
    rendered = render(drawn, sound, SECONDS)
    phasor = hilbert(rendered.audio.astype(np.float64))
    calm = slice(1600, -1600)  # away from the ends, where the analytic signal is no good
    expected = np.exp(-2j * np.pi * frequency * rendered.delays[0] / RATE)
    error = np.angle(phasor[0] * phasor[1].conj() / expected)[calm] / (2 * np.pi * frequency) * RATE
    assert np.abs(error).max() < 0.06
    source = drawn.sources[0]
    distance = np.linalg.norm(source.path - MICROPHONES[0], axis=1)
    then = np.interp(TIMES, source.times + distance / 343, distance)
    level = (np.abs(phasor[0]) * then)[calm]
    assert np.abs(level / np.median(level) - 1).max() < ripple
    # A click is a broad spectrum: nothing but the tone is left, to 50 dB (and the ripple's lines beside it, to 30).
    power = np.abs(np.fft.rfft(rendered.audio[0] * np.hanning(SAMPLES))) ** 2
    away = np.abs(np.fft.rfftfreq(SAMPLES, 1 / RATE) - frequency) > 150
    assert power[away].sum() < (1e-5 if frequency < 4000 else 1e-3) * power.sum()


def test_a_tone_that_comes_closer_is_not_combed_either() -> None:
    """Straight towards the microphones, where the path's steps make the most of a delay."""
    first, last = np.array([3.0, 4.2, 1.5]), np.array([3.0, 2.6, 1.5])
    points = 1 + math.ceil(1.6 / STEP)
    source = Source("tone-7000", np.linspace(first, last, points), np.linspace(0, SECONDS, points))
    audio = render(scene(source, microphones=MICROPHONES[:1]), sound, SECONDS).audio[0]
    distance = np.linalg.norm(source.path - MICROPHONES[0], axis=1)
    then = np.interp(TIMES, source.times + distance / 343, distance)
    level = 20 * np.log10(np.abs(hilbert(audio.astype(np.float64))) * then)[1600:-1600]
    assert level.max() - level.min() < 0.6


def test_the_energy_of_a_walking_noise_does_not_jump() -> None:
    audio = render(scene(walk("white-1")), sound, SECONDS).audio[:, 1600:-1600]
    level = 10 * np.log10((audio.reshape(2, -1, 320).astype(np.float64) ** 2).mean(axis=-1))  # of every 20 ms
    assert np.abs(np.diff(level, axis=1)).max() < 2  # a noise at rest varies by 1.5


def test_the_delay_of_a_walking_source_follows_it() -> None:
    drawn = scene(walk("white-1"))
    rendered = render(drawn, sound, SECONDS)
    delays = rendered.delays[0]
    assert delays[-1] - delays[0] > 8
    assert np.abs(np.diff(delays)).max() < 1e-3
    for first in range(1000, SAMPLES - 2048, 4096):
        part = slice(first, first + 2048)
        assert abs(measured_delay(rendered.audio[:, part].astype(np.float64)) - delays[first + 1024]) < 0.15
    np.testing.assert_allclose(delay_at(drawn, TIMES[[5000, 9000]]), delays[[5000, 9000]], atol=1e-5)
    np.testing.assert_allclose(delay_at(drawn, TIMES[[5000]], pair=(1, 0)), -delays[[5000]], atol=1e-5)


def test_a_walk_on_the_spot_is_a_source_at_rest() -> None:
    place = scene().sources[0].path[0]
    spot = Source("white-1", np.tile(place, (7, 1)), np.linspace(0.1, 1.7, 7))
    still, walked = (render(scene(source, t60=0.25), sound, SECONDS) for source in (scene().sources[0], spot))
    np.testing.assert_allclose(walked.audio, still.audio, atol=1e-4)
    np.testing.assert_allclose(walked.delays, still.delays, atol=1e-5)


def test_what_was_said_at_a_place_keeps_arriving_from_there() -> None:
    path = np.array([[1.5, 1.2, 1.5], [1.5, 1.2, 1.5], [1.5, 4.0, 1.5]])
    left = Source("early-1", path, np.array([0.0, 0.5, 0.6]))
    stayed = Source("early-1", path[0])
    one, two = (render(scene(source, t60=0.8), sound, SECONDS).audio for source in (left, stayed))
    np.testing.assert_allclose(one, two, atol=1e-5)


# The high-pass at 10 Hz rings 50 ms ahead a little more than 100 ms.
@pytest.mark.parametrize(("early", "step", "ringing"), [(EARLY, LATE_STEP, 0.01), (0.05, 0.5, 0.03)])
def test_coarse_late_reverberation_is_as_loud_and_leaves_the_early_sound_alone(
    early: float, step: float, ringing: float
) -> None:
    microphones = np.array([[2.3, 1.7, 1.1], [3.9, 3.1, 1.7]])  # in no plane of symmetry
    drawn = scene(walk("early-1", speed=0.4), t60=0.5, microphones=microphones)
    recordings = []
    for late_step in (step, 0.0):
        separate = render(drawn, sound, SECONDS, separate=True, early=early, late_step=late_step).sources
        assert separate is not None
        recordings.append(separate[0].astype(np.float64))
    silent = slice(round((0.5 + early + 0.01) * RATE), None)  # the source has ceased: nothing but late reverberation
    coarse, fine = (20 * np.log10(audio[:, silent].std()) for audio in recordings)
    assert coarse == pytest.approx(fine, abs=1.3)
    first = slice(0, round(early * RATE))  # nothing late has arrived yet
    coarse, fine = (audio[:, first] / audio[:, first].std() for audio in recordings)
    np.testing.assert_allclose(coarse, fine, atol=ringing)


def test_reverberation_that_is_not_alike_keeps_its_power_between_two_points() -> None:
    """Half-way between responses that have nothing in common, weights of a half each would cost 3 dB."""
    rng = np.random.default_rng(0)
    walked = Source("x", np.array([[1.0, 1, 1], [1.5, 1, 1], [2.0, 1, 1]]), np.array([0.0, 0.5, 1.0]))
    responses = rng.standard_normal((3, 2, 800))
    signal = rng.standard_normal(RATE)
    level = {}
    for alike in (False, True):
        heard = _hear_path(walked, signal, responses, scene(walked), alike=alike)
        power = (heard.reshape(2, 20, -1) ** 2).mean(axis=(0, 2))  # of every 50 ms
        level[alike] = 10 * np.log10(power[4:6].mean() / power[[9, 10]].mean())  # half-way, and at the second point
    assert level[False] == pytest.approx(0, abs=0.8)
    assert level[True] == pytest.approx(-2.8, abs=0.8)


def test_paths_are_thinned_at_their_own_pace() -> None:
    even = walk("white-1", speed=0.5, step=0.02)  # 51 points
    few = _thin_path(even)
    assert len(few.path) == 11
    np.testing.assert_allclose(np.diff(few.path[:, 1]), 0.1, atol=1e-9)
    paused = Source("x", np.array([[1.0, 1, 1], [1.0, 1, 1], [1.1, 1, 1]]), np.array([0.0, 1.0, 1.1]))
    np.testing.assert_array_equal(_thin_path(paused).times, paused.times)
    assert len(_thin_path(Source("x", np.array([1.0, 1, 1]))).path) == 1


# Scenes of the general distribution


def test_scenes_of_the_general_distribution_are_recorded_as_drawn() -> None:
    law = dataclasses.replace(GENERAL, t60=(0.0, 0.4), moving=0.0, clipping=0.5)
    drawn = general_scenes(11, np.arange(40), Catalog(), law=law)
    signals = lookup([], 0.5)
    for i in range(len(drawn)):
        rendered = render(drawn.scene(i), signals, 0.5)
        assert np.isfinite(rendered.audio).all()
        level = 20 * math.log10(math.sqrt((rendered.audio.astype(np.float64) ** 2).mean()))
        assert level == pytest.approx(drawn.level[i], abs=1e-3)
        if np.isinf(drawn.band[i, 1]):
            top = np.abs(rendered.audio).max()
            share = (np.abs(rendered.audio) >= (1 - 1e-5) * top).mean()
            assert share == pytest.approx(max(drawn.clipped[i], 1 / rendered.audio.size), abs=3e-4)


def test_an_array_of_sixteen_microphones_can_be_rendered() -> None:
    law = dataclasses.replace(GENERAL, t60=(0.0, 0.3), moving=1.0)
    drawn = general_scenes(1, [0], Catalog(), microphones=16, law=law).scene(0)
    rendered = render(drawn, lookup([], 0.3), 0.3)
    assert rendered.audio.shape == (16, 4800)
    assert rendered.delays.shape == (len(drawn.sources), 4800)


def test_one_microphone_hears_but_has_no_delay() -> None:
    rendered = render(scene(microphones=MICROPHONES[:1]), sound, 0.1)
    assert rendered.audio.shape == (1, 1600)
    assert rendered.delays.shape == (0, 1600)


# What a scene refuses


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise": "hiss"}, "unknown noise 'hiss'"),
        ({"degradations": Degradations(gain=[1.0, 2.0, 3.0])}, "degradations of 3 microphones in a scene of 2"),
    ],
)
def test_scenes_that_make_no_sense_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scene(**wrong)
