"""Training frames in bulk are cut out of the very recordings that scenes of the same (seed, index) give."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.paper_frames import Sources, paper_frames
from qkgcc.lab.scenes.render import render
from qkgcc.lab.scenes.signals import Catalog, lookup, whole_utterances
from test_data_corpora import make_librispeech

pytestmark = pytest.mark.numeric

SEED = 4
INDICES = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """Utterances of 3 to 7 s, of which 3 s are kept: what their level is cannot be seen from those alone."""
    root = tmp_path_factory.mktemp("corpora")
    make_librispeech(root, {"1089": [8.0, 6.5, 4.2], "61": [3.0]})
    return build("test-clean", root, root / "bank", jobs=1)


def test_a_recording_of_the_paper_holds_the_training_frame_of_its_index(bank: Bank) -> None:
    ids = Catalog.from_banks([bank], "train").speech
    pairs = paper.training_pairs(SEED, INDICES, len(ids))
    frames, delays = paper_frames(pairs, Sources.of(bank, "train", "cpu"))
    for row, index in enumerate(INDICES):
        scene = paper.training_scene(SEED, index, ids)
        recording = render(scene, lookup([bank], 2.0), 2.0, whole=whole_utterances([bank]))
        first = int(pairs.start[row])
        part = recording.audio[:, first : first + paper.FRAME]
        np.testing.assert_allclose(part, frames[row].numpy(), atol=1e-3 * float(frames[row].std()))
        assert float(delays[row]) == pytest.approx(float(scene.delay()[0]), abs=1e-4)


def test_the_recorded_part_alone_would_have_another_level(bank: Bank) -> None:
    """By decibels: what the test above would miss if the level came from two seconds."""
    ids = Catalog.from_banks([bank], "train").speech
    scene = paper.training_scene(SEED, 0, ids)
    levels = [
        float(np.std(render(scene, lookup([bank], 2.0), 2.0, whole=whole, separate=True).sources))
        for whole in (None, whole_utterances([bank]))
    ]
    assert abs(20 * np.log10(levels[1] / levels[0])) > 0.3


def test_a_pair_does_not_depend_on_the_others_of_its_batch(bank: Bank) -> None:
    sources = Sources.of(bank, "train", "cpu")
    done: list[int] = []
    together, _ = paper_frames(paper.training_pairs(SEED, INDICES, 3), sources, frame=512, progress=done.append)
    alone, _ = paper_frames(paper.training_pairs(SEED, INDICES[2], 3), sources, frame=512)
    assert sum(done) == len(INDICES)
    assert together.dtype == torch.float32
    torch.testing.assert_close(together[2], alone[0], atol=1e-4, rtol=0)
