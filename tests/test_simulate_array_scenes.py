"""Scenes of talkers around arrays: what is drawn keeps the law, and what is heard comes from where the truth says."""

import dataclasses
import itertools

import numpy as np
import pytest

from qkgcc import InputError
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.dsp.gcc import delays
from qkgcc.lab.scenes.array_scenes import (
    BLOCKS,
    KINDS,
    LAW,
    SAMPLE_RATE,
    SECONDS,
    array_scene,
    directions,
    join_utterances,
    parts_of_chain,
    spoken_shares,
)
from qkgcc.lab.scenes.render import render

UTTERANCES = {f"{speaker}-0-{n:04d}": 30000 + 7000 * n for speaker in (5, 6, 7) for n in range(9)}


def test_a_scene_is_a_function_of_seed_and_index() -> None:
    one, same, other = (array_scene(seed, 5, UTTERANCES) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.truth, same.truth)
    assert one.scene.sources[2].signal == same.scene.sources[2].signal
    assert abs(one.scene.snr - other.scene.snr) > 1e-6


def test_every_kind_takes_its_turn() -> None:
    assert len(set(KINDS)) == 18
    for index, kind in enumerate(KINDS):
        drawn = array_scene(1, index, UTTERANCES)
        assert drawn.kind == kind
        assert len(drawn.scene.sources) == kind.talkers
        assert all(source.moving == kind.moving for source in drawn.scene.sources)
        assert len(drawn.geometry) == {"respeaker4": 4, "circular:8:0.1": 8, "distributed": 6}[kind.array]


def test_talkers_keep_their_distances_all_the_time() -> None:
    for index in (*range(2, 12), *range(20, 30), 17, 35):
        drawn = array_scene(1, index, UTTERANCES)
        scene, kind = drawn.scene, drawn.kind
        times = np.linspace(0, SECONDS, 300)
        ways = np.array(
            [[np.interp(times, s.times, s.path[:, axis]) for axis in range(3)] for s in scene.sources]
        ).transpose(0, 2, 1)
        for s, source in enumerate(scene.sources):
            if kind.moving:
                pace = np.linalg.norm(np.diff(source.path, axis=0), axis=1) / np.diff(source.times)
                assert LAW.speed[0] * 0.999 < pace.min() <= pace.max() < LAW.speed[1] * 1.001
            for other in range(s):
                if kind.compact:
                    one, two = (directions(ways[i] - drawn.centre)[0] for i in (s, other))
                    assert np.abs((one - two + 180) % 360 - 180).min() > LAW.apart - 2
                else:
                    assert np.linalg.norm(ways[s] - ways[other], axis=1).min() > LAW.aside - 0.05


def test_t60_and_snr_are_spread_in_any_part_of_a_set() -> None:
    scenes = [array_scene(1, 18 * repeat, UTTERANCES).scene for repeat in range(8)]
    for values, (low, high) in (([s.walls[1] for s in scenes], LAW.t60), ([s.snr for s in scenes], LAW.snr)):
        quarters = np.floor(4 * (np.array(values) - low) / (high - low))
        assert set(quarters) == {0, 1, 2, 3}


def test_the_truth_is_where_a_talker_is_seen_from_the_array() -> None:
    """Against the geometry alone: microphones in the room are those of the preset, turned and moved."""
    drawn = array_scene(1, 6 + 18, UTTERANCES)
    place = drawn.truth[0, 0]
    from_array = np.linalg.norm(place - drawn.geometry.microphones, axis=1)
    in_room = np.linalg.norm(drawn.scene.sources[0].path[0] - drawn.scene.microphones, axis=1)
    np.testing.assert_allclose(from_array, in_room, atol=1e-9)
    walking = array_scene(1, 1, UTTERANCES)
    azimuth = directions(walking.truth)[0][0]
    assert np.ptp(np.unwrap(azimuth, period=360)) > 5
    assert walking.truth.shape == (1, BLOCKS, 3)


def test_a_talker_speaks_when_the_chain_says() -> None:
    chain = "8000:5-0-0000+60000:5-0-0001"
    assert parts_of_chain(chain) == [(8000, "5-0-0000"), (60000, "5-0-0001")]
    np.testing.assert_allclose(spoken_shares(chain, UTTERANCES)[:4], [0.5, 1, 6000 / 16000, 4000 / 16000])
    signal = join_utterances(chain, lambda id: np.ones(UTTERANCES[id]))
    np.testing.assert_allclose((signal != 0).reshape(BLOCKS, -1).mean(axis=1), spoken_shares(chain, UTTERANCES))
    for source in array_scene(1, 16, UTTERANCES).scene.sources:
        starts = parts_of_chain(source.signal)
        assert len({id.split("-")[0] for _, id in starts}) == 1
        for (first, id), (following, _) in itertools.pairwise(starts):
            assert LAW.pause[0] - 0.001 <= (following - first - UTTERANCES[id]) / SAMPLE_RATE <= LAW.pause[1] + 0.001
    speakers = [s.signal.split(":")[1].split("-")[0] for s in array_scene(1, 16, UTTERANCES).scene.sources]
    assert len(set(speakers)) == 3


@pytest.mark.parametrize("index", [0, 6, 12, 7])
@pytest.mark.needs("numba")
def test_what_is_heard_comes_from_the_true_place(index: int) -> None:
    """Delays of all pairs with the first microphone, in a dry room, against those that the truth gives."""
    drawn = array_scene(2, index, UTTERANCES)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(round(SECONDS * SAMPLE_RATE))
    dry = dataclasses.replace(drawn.scene, t60=0.0, snr=40.0, noise="independent", noise_slope=0.0)
    audio = render(dry, lambda _: noise, SECONDS, jobs=1, early=0.05, late_step=0.5).audio.astype(np.float64)
    block = 4
    middle = round((block + 0.5) * SAMPLE_RATE)
    frames = audio[:, middle - 1024 : middle + 1024]
    paths = np.linalg.norm(drawn.truth[0, block] - drawn.geometry.microphones, axis=1)
    for other in range(1, len(audio)):
        true = (paths[0] - paths[other]) * SAMPLE_RATE / SPEED_OF_SOUND
        found = delays(frames[None, [0, other]], "phat", max_lag=400)
        assert float(found[0]) == pytest.approx(true, abs=0.2)


def test_more_talkers_than_speakers_is_an_error() -> None:
    with pytest.raises(InputError, match="3 talkers need as many speakers; there are 1"):
        array_scene(1, 4, {"5-0-0000": 40000})


def test_places_and_speech_are_known_at_any_time() -> None:
    drawn = array_scene(1, 3, UTTERANCES)
    times = np.arange(0, SECONDS, 0.032) + 0.016
    places, speaking = drawn.places(times), drawn.speaking(times, UTTERANCES)
    assert places.shape == (2, len(times), 3)
    pace = np.linalg.norm(np.diff(places, axis=1), axis=-1) / 0.032
    assert LAW.speed[0] * 0.98 < np.median(pace) < LAW.speed[1] * 1.02
    np.testing.assert_array_equal(drawn.places(np.arange(BLOCKS) + 0.5), drawn.truth)
    for source, heard in zip(drawn.scene.sources, speaking, strict=True):
        first = parts_of_chain(source.signal)[0][0] / SAMPLE_RATE
        begun = times[heard.argmax()]
        assert 0 <= begun - first < 0.032 + 4 / SPEED_OF_SOUND  # it has to arrive, too
        assert heard.mean() == pytest.approx(spoken_shares(source.signal, UTTERANCES).mean(), abs=0.02)
