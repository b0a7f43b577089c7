"""Training frames of the general distribution in bulk are cut out of recordings as `render` makes them of scenes."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.core.errors import InputError
from qkgcc.dsp.gcc import gcc
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.rooms import noise
from qkgcc.lab.scenes import bulk_rooms, general_frames
from qkgcc.lab.scenes.bulk_rooms import SAMPLE_RATE, SAMPLES, GeneralSources, Rooms
from qkgcc.lab.scenes.general import GENERAL, Scenes, general_scenes
from qkgcc.lab.scenes.render import _cut_signal, delay_at, render
from qkgcc.lab.scenes.signals import Catalog
from test_data_corpora import make_librispeech

pytestmark = pytest.mark.numeric

POOL = 6
FRAME = 2048
SHORT = dataclasses.replace(GENERAL, t60=(0.0, 0.25))
AT_REST = dataclasses.replace(
    SHORT, dry=0.3, moving=0.0, one_interferer=0.3, two_interferers=0.2, clipping=0.4, telephone=0.2, narrow=0.2
)
WALKING = dataclasses.replace(  # steady noise in the open, loud and clear
    SHORT,
    noise=1.0,
    clicks=0.0,
    tones=0.0,
    dry=1.0,
    moving=1.0,
    one_interferer=0.0,
    two_interferers=0.0,
    snr=(40.0, 40.0),
    spacing=(0.1, 0.5),
    unequal_responses=0.0,
    clipping=0.0,
    telephone=0.0,
    resampled=0.0,
    narrow=0.0,
)


@pytest.fixture(scope="module")
def sources() -> GeneralSources:
    return GeneralSources.of([], "train", "cpu", pool=POOL, jobs=1)


@pytest.fixture(scope="module")
def at_rest() -> Scenes:
    return general_scenes(5, np.arange(12), Catalog(), law=AT_REST)


@pytest.fixture(scope="module")
def recordings(at_rest: Scenes, sources: GeneralSources) -> np.ndarray:
    """(B, 2, 32000) as `render` makes them."""
    return np.stack([render(at_rest.scene(i), sources.signal, 2.0, jobs=1).audio for i in range(len(at_rest))])


def centres(scenes: Scenes, count: int) -> np.ndarray:
    return (general_frames.frame_starts(scenes, FRAME, count) + FRAME / 2) / SAMPLE_RATE


# Sources at rest


def test_frames_are_cut_out_of_the_recordings_that_render_makes(
    at_rest: Scenes, sources: GeneralSources, recordings: np.ndarray
) -> None:
    crowd = (at_rest.signal != "").sum(axis=1)
    assert {1, 2, 3} == set(crowd.tolist())
    for drawn in (at_rest.t60 == 0, at_rest.clipped > 0, at_rest.diffuse, np.isfinite(at_rest.band[:, 1])):
        assert 0 < drawn.sum() < len(at_rest)  # every way that a scene can take is taken
    frames, _, _ = general_frames.general_frames(at_rest, sources, frames_per_scene=2)
    assert frames.shape == (24, 2, FRAME)
    assert frames.dtype == torch.float32
    for i, starts in enumerate(general_frames.frame_starts(at_rest, FRAME, 2)):
        for k, first in enumerate(starts):
            part = recordings[i][:, first : first + FRAME]
            found = frames[2 * i + k].numpy()
            assert np.linalg.norm(found - part) < 1e-3 * np.linalg.norm(recordings[i]) * np.sqrt(FRAME / SAMPLES)


def test_delays_are_those_of_every_source_and_none_where_there_is_none(
    at_rest: Scenes, sources: GeneralSources
) -> None:
    _, delays, weaker = general_frames.general_frames(at_rest, sources)
    for i in range(len(at_rest)):
        scene = at_rest.scene(i)
        expected = [float(scene.delay(s)[0]) for s in range(len(scene.sources))]
        found = [float(delays[i]), *weaker[i].tolist()]
        np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-4)
        assert np.isnan(found[len(expected) :]).all()


def test_recordings_have_the_level_and_the_clipping_that_were_drawn(sources: GeneralSources) -> None:
    law = dataclasses.replace(AT_REST, dry=1.0, clipping=1.0, telephone=0.0, resampled=0.0, narrow=0.0)
    drawn = general_scenes(2, np.arange(6), Catalog(), law=law)
    audio = general_frames.recordings(drawn, Rooms.of(drawn), sources).numpy().astype(np.float64)
    np.testing.assert_allclose(10 * np.log10((audio**2).mean(axis=(1, 2))), drawn.level, atol=1e-3)
    top = np.abs(audio).max(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose((np.abs(audio) > (1 - 1e-4) * top).mean(axis=(1, 2)), drawn.clipped, rtol=0.05)


def test_noise_has_its_snr_and_is_of_the_field_or_of_the_microphones(at_rest: Scenes) -> None:
    field, own = general_frames.noises(at_rest, torch.device("cpu"))
    for i in range(len(at_rest)):
        silence, sound = (own[i], field[i]) if at_rest.diffuse[i] else (field[i], own[i])
        assert not silence.any()
        level = 10 * np.log10((sound.double() ** 2).mean(dim=-1).numpy())
        np.testing.assert_allclose(level, -at_rest.snr[i], atol=0.7)  # brown noise varies


def test_diffuse_noise_of_pairs_is_that_of_arrays() -> None:
    drawn = np.random.default_rng(0).standard_normal((3, 2, 4000))
    places = np.random.default_rng(1).uniform(0, 1, (3, 2, 3))
    expected = noise.diffuse(drawn, places, SAMPLE_RATE)
    spacing = torch.as_tensor(np.linalg.norm(places[:, 0] - places[:, 1], axis=-1))
    found = bulk_rooms.diffuse_pairs(torch.as_tensor(drawn), spacing)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)


# Frames


def test_a_scene_gives_the_same_frames_whatever_stands_beside_it(
    at_rest: Scenes, sources: GeneralSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = dataclasses.replace(SHORT, moving=0.4, one_interferer=0.5)
    drawn = general_scenes(8, np.arange(6), Catalog(), law=law)
    done: list[int] = []
    together = general_frames.general_frames(drawn, sources, progress=done.append)
    assert done == [6]
    alone = general_frames.general_frames(general_scenes(8, [4], Catalog(), law=law), sources)
    monkeypatch.setitem(general_frames._CHUNK, "cpu", 4)
    monkeypatch.setattr(bulk_rooms, "_BLOCK_POINTS", 3)
    monkeypatch.setitem(bulk_rooms._BLOCK_MULTIPLE, "cpu", 3)  # blocks of one shape, as on a GPU
    monkeypatch.setitem(bulk_rooms._WALKING_MULTIPLE, "cpu", 4)
    apart = general_frames.general_frames(drawn, sources)
    scale = together.frames.square().mean(dim=(1, 2), keepdim=True).sqrt()
    assert ((together.frames - apart.frames).abs() / scale).max() < 1e-3
    assert ((together.frames[4] - alone.frames[0]).abs() / scale[4]).max() < 1e-3
    torch.testing.assert_close(together.delays, apart.delays)
    torch.testing.assert_close(together.weaker, apart.weaker, equal_nan=True)


def test_more_frames_of_a_scene_begin_with_the_one(at_rest: Scenes, sources: GeneralSources) -> None:
    some = general_scenes(5, [1, 3], Catalog(), law=AT_REST)
    one = general_frames.general_frames(some, sources, frame=512)
    four = general_frames.general_frames(some, sources, frame=512, frames_per_scene=4)
    assert four.frames.shape == (8, 2, 512)
    assert four.weaker.shape == (8, 2)
    torch.testing.assert_close(four.frames[::4], one.frames)
    torch.testing.assert_close(four.delays[::4], one.delays)


def test_frames_lie_anywhere_in_the_two_seconds() -> None:
    drawn = general_scenes(0, np.arange(500), Catalog())
    starts = general_frames.frame_starts(drawn, FRAME, 4)
    assert starts.min() >= 0
    assert starts.max() <= SAMPLES - FRAME
    assert np.histogram(starts, 10, (0, SAMPLES - FRAME))[0].min() > 140
    assert np.abs(np.corrcoef(starts.T) - np.eye(4)).max() < 0.15
    again = general_scenes(0, [77], Catalog())
    np.testing.assert_array_equal(general_frames.frame_starts(again, FRAME, 2)[0], starts[77, :2])


# Sources that walk


def test_the_delay_of_a_walking_source_is_the_true_one_and_can_be_heard(sources: GeneralSources) -> None:
    drawn = general_scenes(3, np.arange(8), Catalog(), law=WALKING)
    frames, delays, weaker = general_frames.general_frames(drawn, sources, frames_per_scene=3)
    assert torch.isnan(weaker).all()
    expected = np.concatenate([delay_at(drawn.scene(i), times) for i, times in enumerate(centres(drawn, 3))])
    np.testing.assert_allclose(delays.numpy(), expected, atol=1e-3)
    assert np.ptp(delays.numpy().reshape(8, 3), axis=1).max() > 2  # they do walk
    found = np.argmax(gcc(frames.numpy(), max_lag=40), axis=-1) - 40
    assert np.abs(found - expected).max() < 0.8


def test_the_direct_sound_of_a_source_at_rest_is_that_of_its_response() -> None:
    rng = np.random.default_rng(0)
    signals = torch.as_tensor(rng.standard_normal((2, 8000)), dtype=torch.float32)
    places, microphones = rng.uniform(0.5, 2.4, (2, 3)), rng.uniform(0.5, 2.4, (2, 2, 3))
    rooms = Rooms(np.full((2, 3), 3.0), microphones, np.zeros(2), np.zeros(2, int), np.full(2, 4096))
    direct = bulk_rooms.direct_sound(signals, places, places, microphones)
    heard = bulk_rooms.hear_sources(signals, places, places, rooms)
    spectra = np.fft.rfft(np.stack([direct, heard]) * np.hanning(8000))[..., 500:3500]  # 1 to 7 kHz
    assert np.linalg.norm(spectra[0] - spectra[1]) < 5e-3 * np.linalg.norm(spectra[1])  # what is cut off before time 0


def test_a_walk_in_the_open_is_recorded_as_render_does_it(sources: GeneralSources) -> None:
    """But for the lowest frequencies, and 0.5 dB of the highest that its cross-fades comb out."""
    drawn = general_scenes(6, np.arange(3), Catalog(), law=WALKING)
    bulk = general_frames.recordings(drawn, Rooms.of(drawn), sources).numpy()
    for i in range(3):
        exact = render(drawn.scene(i), sources.signal, 2.0, jobs=1).audio
        found, expected = np.fft.rfft([bulk[i], exact])[..., 1000:14000]  # 500 Hz to 7 kHz
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_the_reflections_of_a_walking_source_are_about_as_loud_as_render_has_them(sources: GeneralSources) -> None:
    law = dataclasses.replace(WALKING, dry=0.0, unequal_gains=0.0, speed=(0.4, 0.6))
    drawn = general_scenes(6, np.arange(4), Catalog(), law=law)
    differences = []
    for i in range(4):
        scene = drawn.scene(i)
        separate = render(scene, sources.signal, 2.0, jobs=1, separate=True).sources
        assert separate is not None
        signal = torch.as_tensor(sources.signal(scene.sources[0].signal))[None]
        one = np.array([i])
        way = drawn.first[one, 0], drawn.last[one, 0]
        heard = bulk_rooms.hear_sources(signal, *way, Rooms.of(drawn).take(one))[0]
        direct = bulk_rooms.direct_sound(signal, *way, drawn.microphones[one])[0]
        heard, direct, exact = (np.fft.rfft(x)[:, 1000:] for x in (heard, direct, separate[0]))  # from 500 Hz
        scale = np.vdot(direct, exact).real / np.vdot(direct, direct).real  # the reflections are like nothing in it
        levels = [20 * np.log10(np.linalg.norm(x - direct)) for x in (heard, exact / scale)]
        differences.append(levels[0] - levels[1])
    assert np.abs(differences).max() < 2.5
    assert abs(np.mean(differences)) < 1.5


def test_a_path_has_as_many_points_as_its_length_needs() -> None:
    first = np.zeros((3, 3))
    last = np.array([[0.0, 0, 0], [0.1, 0, 0], [0, 0.9, 0]])
    assert bulk_rooms.count_path_points(first, last).tolist() == [1, 2, 6]


# Signals


def test_synthetic_ids_are_mapped_onto_the_pool_and_the_splits_have_their_own(sources: GeneralSources) -> None:
    np.testing.assert_array_equal(sources.signal("tones:8"), sources.signal("tones:2"))
    assert np.abs(sources.signal("tones:8") - sources.signal("tones:3")).max() > 0.1
    other = GeneralSources.of([], "validation", "cpu", pool=1, jobs=1)
    train = GeneralSources.of([], "train", "cpu", pool=1, jobs=1)
    assert np.abs(other.signal("clicks:0") - train.signal("clicks:0")).max() > 0.1


def test_recorded_signals_begin_where_a_scene_begins_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("corpora")
    make_librispeech(root, {"1089": [4.0, 6.5], "61": [3.0]})
    bank = build("test-clean", root, root / "bank", jobs=1)
    held = GeneralSources.of([bank], "train", "cpu", pool=1, jobs=1)
    assert len(held.catalog.speech) == 2
    law = dataclasses.replace(AT_REST, speech=1.0, music=0.0, noise=0.0, clicks=0.0, tones=0.0, dry=1.0)
    drawn = general_scenes(1, np.arange(4), held.catalog, law=law)
    rows = held.find(drawn.signal[:, 0].tolist())
    parts, sounding = held.parts(rows, drawn.start[:, 0])
    for i in range(4):
        scene = drawn.scene(i)
        np.testing.assert_array_equal(held.signal(scene.sources[0].signal), bank.audio(bank.index(drawn.signal[i, 0])))
        expected = _cut_signal(held.signal(scene.sources[0].signal), scene.sources[0], SAMPLES)
        np.testing.assert_array_equal(parts[i, : len(expected)].numpy(), expected)
        assert int(sounding[i]) == len(expected)
        assert not parts[i, len(expected) :].any()


def test_a_short_signal_ends_in_silence_and_is_no_louder_for_it(sources: GeneralSources) -> None:
    short = dataclasses.replace(sources, length=np.full_like(sources.length, 20000))
    drawn = general_scenes(5, np.arange(3), Catalog(), law=AT_REST)
    audio = general_frames.recordings(drawn, Rooms.of(drawn), short).numpy()
    for i in range(3):
        exact = render(drawn.scene(i), short.signal, 2.0, jobs=1).audio
        assert np.linalg.norm(audio[i] - exact) < 1e-3 * np.linalg.norm(exact)


# What cannot be made is said


def test_what_cannot_be_made_is_said(at_rest: Scenes, sources: GeneralSources) -> None:
    make = general_frames.general_frames
    with pytest.raises(InputError, match="scenes of 3 microphones"):
        make(general_scenes(0, [0], Catalog(), microphones=3), sources)
    with pytest.raises(InputError, match="frames of 40000 samples"):
        make(at_rest, sources, frame=40000)
    with pytest.raises(InputError, match="17 frames of each scene; expected 1 to 16"):
        make(at_rest, sources, frames_per_scene=17)
    with pytest.raises(InputError, match="hold no signal 'missing'"):
        make(general_scenes(0, [0], Catalog(speech=("missing",), music=("missing",)), law=SHORT), sources)
    silent = dataclasses.replace(sources, samples=torch.zeros_like(sources.samples))
    with pytest.raises(InputError, match=r":\d+ is silent at microphone 1"):
        make(at_rest, silent)


# The kernel of the GPU


@pytest.mark.slow
def test_the_gpu_kernel_gives_the_same_frames_in_the_interpreter() -> None:
    """One scene with a walk through a small room of few images, one at rest in the open, in one filled block."""
    script = """
import dataclasses
import numpy as np
from qkgcc.lab.scenes import bulk_rooms, engines
from qkgcc.lab.scenes.bulk_rooms import GeneralSources
from qkgcc.lab.scenes.general import GENERAL, general_scenes
from qkgcc.lab.scenes.general_frames import general_frames
from qkgcc.lab.scenes.signals import Catalog
law = dataclasses.replace(GENERAL, width=(3, 3), depth=(3, 3), height=(2.4, 2.4), t60=(0.075, 0.08), dry=0.5,
                          spacing=(0.1, 0.2), moving=0.5, speed=(0.1, 0.1), one_interferer=0, two_interferers=0)
scenes = general_scenes(28, np.arange(2), Catalog(), law=law)
sources = GeneralSources.of([], "train", "cpu", pool=1, jobs=1)
walks = (scenes.first != scenes.last).any(axis=-1)[:, 0]
print(*walks, *(scenes.t60 > 0))
expected = general_frames(scenes, sources).frames
engines._batch_on_cpu = engines._batch_on_gpu
bulk_rooms._BLOCK_MULTIPLE["cpu"] = 4
found = general_frames(scenes, sources).frames
print(float(((found - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))).max()))
"""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    *kinds, error = run.stdout.split()
    assert kinds == ["True", "False", "True", "False"]
    assert float(error) < 1e-3
