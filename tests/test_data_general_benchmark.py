"""`general-test` draws and renders what its manifest says."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from qkgcc import InputError
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.frozen import benchmark
from qkgcc.lab.frozen.benchmark import difference, scene_digest
from qkgcc.lab.frozen.general_set import CHUNK, SCENES, GeneralBenchmark, render_frames
from rounding import ROUNDED_SAMPLES

pytestmark = [pytest.mark.numeric, pytest.mark.needs("numba")]

BENCHMARK = GeneralBenchmark.load()


def test_the_set_has_4000_scenes_of_five_frames() -> None:
    manifest = BENCHMARK.manifest
    assert len(manifest["digests"]) == len(set(manifest["digests"])) == SCENES
    assert BENCHMARK.delays.shape == (SCENES, 5)
    spacing = np.array(manifest["spacing"])
    assert 0.02 < spacing.min() < 0.05
    assert 1.5 < spacing.max() < 2.1
    assert (np.abs(BENCHMARK.delays) <= spacing[:, None] / 343 * 16000 + 0.01).all()  # positions are rounded
    assert len(BENCHMARK.fingerprints) == SCENES // CHUNK


def test_the_manifest_says_what_is_where() -> None:
    """Ids, positions to a tenth of a millimetre and levels, so that the set can be made without this code."""
    manifest = BENCHMARK.manifest
    moving = 0
    for i, scene in zip(range(40), BENCHMARK.scenes(0, 40), strict=True):
        assert manifest["sources"][i] == [source.signal for source in scene.sources]
        np.testing.assert_allclose(manifest["microphones"][i], scene.microphones, atol=1e-4)
        ends = scene.sources[0].path[[0, -1]] if scene.sources[0].moving else scene.sources[0].path
        np.testing.assert_allclose(manifest["positions"][i], ends, atol=1e-4)
        assert manifest["level"][i] == pytest.approx(scene.degradations.level, abs=1e-4)
        moving += scene.sources[0].moving
    assert moving
    assert manifest["scale"] == 32768
    size = (Path(benchmark.__file__).parent / "benchmarks" / "general-test.json").stat().st_size
    assert size < 1_500_000


def test_a_chunk_that_was_altered_is_never_read(tmp_path: Path) -> None:
    folder = BENCHMARK.folder("cpu", tmp_path)
    folder.mkdir(parents=True)
    with pytest.raises(InputError, match=r"scenes-0000\.npy does not exist: render it"):
        BENCHMARK.load_frames("cpu", tmp_path)
    np.save(folder / "scenes-0000.npy", np.zeros((CHUNK * 5, 2, 2048), dtype=np.int16))
    with pytest.raises(InputError, match=r"scenes-0000\.npy is damaged, or not what was rendered"):
        BENCHMARK.load_frames("cpu", tmp_path)


def test_the_scenes_are_drawn_as_they_were() -> None:
    for first in (0, 1900, 3990):
        scenes = BENCHMARK.scenes(first, first + 5)
        assert [scene_digest(scene) for scene in scenes] == BENCHMARK.manifest["digests"][first : first + 5]


def test_a_scene_that_is_drawn_differently_is_an_error() -> None:
    changed = dataclasses.replace(BENCHMARK, manifest={**BENCHMARK.manifest, "seed": 1})
    with pytest.raises(InputError, match="scene 7 is drawn differently by this version"):
        changed.scenes(7, 8)


def test_only_test_speakers_and_test_clips_are_in_it() -> None:
    speech = BENCHMARK.catalog().speech
    assert {id.split("-")[0] for id in speech} == {"61", "121", "237"}
    assert len(speech) == 216


def test_scenes_come_back_as_they_were_rendered(corpora: Path, tmp_path: Path) -> None:
    """Two at rest and one that moves of the first hundred, without speech, whose bank would take minutes to build."""
    banks = [build(name, corpora, tmp_path / name) for name in ("music", "noise")]
    speech = set(BENCHMARK.catalog().speech)
    scenes = BENCHMARK.scenes(0, CHUNK)
    quick = [
        i
        for i, scene in enumerate(scenes)
        if scene.walls[1] < 0.9 and all(source.signal not in speech for source in scene.sources)
    ]
    moving = [any(source.moving for source in scenes[i].sources) for i in quick]
    still = [i for i, moves in zip(quick, moving, strict=True) if not moves]
    rows = [*still[:2], quick[moving.index(True)]]
    frames = render_frames([scenes[i] for i in rows], banks, "cpu")
    assert frames.shape == (15, 2, 2048)
    assert difference(frames, BENCHMARK.fingerprints["0"], rows) < ROUNDED_SAMPLES
    with pytest.raises(InputError, match=r"general-test needs .*, which is not in the banks"):
        BENCHMARK.check_banks(banks)
