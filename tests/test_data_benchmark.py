"""The frozen benchmark is what its manifest says."""

import copy
import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from qkgcc import InputError
from qkgcc.delay import metrics
from qkgcc.dsp import gcc
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.frozen import benchmark as frozen
from qkgcc.lab.frozen.benchmark import check, difference, fingerprint
from qkgcc.lab.frozen.paper_sets import FRAMES, NAMES, SCALE, PaperBenchmark
from qkgcc.lab.scenes import paper
from rounding import ROUNDED_SAMPLES

pytestmark = [pytest.mark.numeric, pytest.mark.needs("numba")]

COUNTS = {"paper-test": 216, "paper-music": 28, "paper-noise": 48}


@pytest.fixture(scope="module")
def bank(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """The noise clips, packed for real."""
    return build("noise", corpora, tmp_path_factory.mktemp("bank") / "noise")


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_named_by_the_hash_of_its_manifest(name: str) -> None:
    benchmark = PaperBenchmark.load(name)
    folder = Path(frozen.__file__).parent / "benchmarks"
    assert benchmark.hash == hashlib.sha256((folder / f"{name}.json").read_bytes()).hexdigest()
    assert len(benchmark.ids) == len(set(benchmark.ids)) == COUNTS[name]
    assert len(benchmark.fingerprints) == 30


@pytest.mark.parametrize("name", NAMES)
def test_sources_lie_in_the_test_room_one_place_an_utterance_and_t60(name: str) -> None:
    benchmark = PaperBenchmark.load(name)
    places = benchmark.positions
    assert places.shape == (COUNTS[name], 5, 3)
    assert ((places > 0) & (places < paper.TEST_ROOM)).all()
    assert len(np.unique(places.reshape(-1, 3), axis=0)) == 5 * COUNTS[name]
    assert np.abs(benchmark.delays(0.6)).max() <= 0.5 / 343 * 16000
    assert len(benchmark.delays(0.2)) == COUNTS[name] * FRAMES


def test_the_test_speakers_are_the_papers() -> None:
    assert {id.split("-")[0] for id in PaperBenchmark.load("paper-test").ids} == {"61", "121", "237"}


def test_a_whole_cell_comes_back(bank: Bank) -> None:
    """Bit for bit where it was rendered first; elsewhere a sample of 16 bits may be rounded to its other neighbour."""
    benchmark = PaperBenchmark.load("paper-noise")
    frames = benchmark.frames(benchmark.clean(bank, 0.2, engine="cpu"), 12, 0.2)
    assert frames.shape == (48 * FRAMES, 2, 2048)
    assert check(frames, benchmark.fingerprints["12/0.2"], "here") < ROUNDED_SAMPLES


def test_a_slice_equals_its_part_of_the_cell(bank: Bank) -> None:
    benchmark, rows = PaperBenchmark.load("paper-noise"), [3, 40]
    frames = benchmark.frames(benchmark.clean(bank, 0.6, rows, engine="cpu"), 30, 0.6, rows)
    assert difference(frames, benchmark.fingerprints["30/0.6"], rows) < ROUNDED_SAMPLES


def test_the_level_is_one_and_the_noise_has_its_snr(bank: Bank) -> None:
    benchmark, rows = PaperBenchmark.load("paper-noise"), range(12)
    clean = benchmark.clean(bank, 0.2, rows, engine="cpu")
    noisy = benchmark.frames(clean, 6, 0.2, rows).reshape(12, FRAMES, 2, 2048).transpose(0, 2, 1, 3).reshape(12, 2, -1)
    noise = noisy / SCALE - clean
    np.testing.assert_allclose(10 * np.log10(noise.var(axis=-1)), -6, atol=0.2)
    # Of the whole clip: the first two seconds alone scatter around it.
    assert 0.2 < np.median(clean[:, 0].std(axis=-1)) < 5


def test_gcc_phat_finds_delays_in_it_with_the_sign_of_the_truth(bank: Bank) -> None:
    benchmark, rows = PaperBenchmark.load("paper-noise"), range(48)
    frames = benchmark.frames(benchmark.clean(bank, 0.2, rows, engine="cpu"), 30, 0.2, rows)
    found = gcc.delays(frames.astype(np.float32), "phat", max_lag=23)
    assert metrics.accuracy(found, benchmark.delays(0.2)) > 60
    assert metrics.accuracy(-found, benchmark.delays(0.2)) < 40


def test_the_reference_engine_is_close_and_the_difference_is_told(bank: Bank) -> None:
    """Not close enough to be the benchmark (its filters differ above 7 kHz), and the estimate of how far is right."""
    benchmark, rows = PaperBenchmark.load("paper-noise"), [7]
    clean = {engine: benchmark.clean(bank, 0.2, rows, engine=engine) for engine in ("cpu", "reference")}
    frames = {engine: benchmark.frames(x, 30, 0.2, rows) for engine, x in clean.items()}
    true = np.linalg.norm(frames["cpu"].astype(float) - frames["reference"]) / np.linalg.norm(
        frames["cpu"].astype(float)
    )
    told = difference(frames["reference"], benchmark.fingerprints["30/0.2"], rows)
    assert 0.4 < told / true < 2.5
    with pytest.raises(InputError, match="differs from the benchmark by"):
        check(frames["reference"] + 100, benchmark.fingerprints["30/0.2"], "here", rows)


class TestOnDisk:
    @pytest.fixture
    def small(self, monkeypatch: pytest.MonkeyPatch) -> PaperBenchmark:
        """The benchmark with its shortest rooms only, so that rendering it all takes seconds."""
        monkeypatch.setattr(PaperBenchmark, "groups", lambda _: [["0/0.2", "6/0.2"]])
        return PaperBenchmark.load("paper-noise")

    def test_an_interrupted_run_goes_on_where_it_stopped(
        self, small: PaperBenchmark, bank: Bank, tmp_path: Path
    ) -> None:
        off = small.render([bank], "cpu", cache=tmp_path)
        assert off == {"0/0.2": 0.0, "6/0.2": 0.0}
        folder = small.folder("cpu", tmp_path)
        assert sorted(path.name for path in folder.glob("*.npy")) == ["snr00-t60_0.2.npy", "snr06-t60_0.2.npy"]
        small.path("6/0.2", "cpu", tmp_path).unlink()
        assert list(small.render([bank], "cpu", cache=tmp_path)) == ["6/0.2"]
        assert small.render([bank], "cpu", cache=tmp_path) == {}
        frames = small.load_cell("cpu", 6, 0.2, tmp_path)
        assert fingerprint(np.asarray(frames), 48)["sha256"] == small.fingerprints["6/0.2"]["sha256"]

    @pytest.mark.parametrize("damage", ["truncated", "altered", "empty", "another array", "no array"])
    def test_a_damaged_cell_is_never_read_and_rendered_again(
        self, small: PaperBenchmark, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
    ) -> None:
        monkeypatch.setattr(PaperBenchmark, "groups", lambda _: [["0/0.2"]])
        made = [small.frames(small.clean(bank, 0.2, engine="cpu"), 0, 0.2)]
        monkeypatch.setattr(PaperBenchmark, "clean", lambda *_, **__: None)
        monkeypatch.setattr(PaperBenchmark, "frames", lambda *_: made[0])
        small.render([bank], "cpu", cache=tmp_path)
        path = small.path("0/0.2", "cpu", tmp_path)
        content = path.read_bytes()
        middle = len(content) // 2
        wrong = {
            "truncated": content[:middle],
            "altered": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "empty": b"",
            "another array": b"",
            "no array": b"\x80\x04K\x01.",  # a pickle
        }
        path.write_bytes(wrong[damage])
        if damage == "another array":
            np.save(path, made[0][:5])
        with pytest.raises(InputError, match=r"is damaged, or not what was rendered: render it again with `qkgcc data"):
            small.load_cell("cpu", 0, 0.2, tmp_path)
        assert list(small.render([bank], "cpu", cache=tmp_path)) == ["0/0.2"]
        assert path.read_bytes() == content
        assert np.array_equal(small.load_cell("cpu", 0, 0.2, tmp_path), made[0])

    def test_cells_that_are_not_bit_equal_are_known_by_their_own_hash(
        self, small: PaperBenchmark, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a GPU renders them: near enough, and different every time."""
        monkeypatch.setattr(PaperBenchmark, "groups", lambda _: [["0/0.2"]])
        frames = small.frames(small.clean(bank, 0.2, engine="cpu"), 0, 0.2)
        frames[0, 0, 0] += 1
        monkeypatch.setattr(PaperBenchmark, "clean", lambda *_, **__: None)
        monkeypatch.setattr(PaperBenchmark, "frames", lambda *_: frames)
        assert 0 < small.render([bank], "cpu", cache=tmp_path)["0/0.2"] < 1e-3
        assert small.render([bank], "cpu", cache=tmp_path) == {}
        assert np.array_equal(small.load_cell("cpu", 0, 0.2, tmp_path), frames)
        path = small.path("0/0.2", "cpu", tmp_path)
        path.with_suffix(".sha256").unlink()
        monkeypatch.setattr(frozen, "_found_whole", set())  # as another process sees it
        assert list(small.render([bank], "cpu", cache=tmp_path)) == ["0/0.2"]

    def test_the_bank_is_checked_even_when_every_cell_is_there(
        self, small: PaperBenchmark, bank: Bank, tmp_path: Path
    ) -> None:
        small.render([bank], "cpu", cache=tmp_path)
        other = copy.copy(bank)
        other.content_hashes = ["0" * 64] * len(bank)
        with pytest.raises(InputError, match="which has other samples in the bank noise"):
            small.render([other], "cpu", cache=tmp_path)

    def test_a_cell_that_is_not_there_says_how_to_get_it(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="render it with `qkgcc data benchmark paper-test"):
            PaperBenchmark.load("paper-test").load_cell("cpu", 0, 0.2, tmp_path)


class TestBadInput:
    def test_an_unknown_name(self) -> None:
        with pytest.raises(InputError, match="there is no benchmark 'paper'; there are paper-test"):
            PaperBenchmark.load("paper")

    def test_a_bank_of_another_set(self, bank: Bank) -> None:
        with pytest.raises(InputError, match="is not in the bank noise: give the complete bank of test-clean"):
            PaperBenchmark.load("paper-test").clean(bank, 0.2, [0])

    def test_a_bank_of_other_samples(self, bank: Bank) -> None:
        benchmark = PaperBenchmark.load("paper-noise")
        changed = json.loads(json.dumps(benchmark.manifest))
        changed["sources"][0]["sha256"] = "0" * 64
        with pytest.raises(InputError, match="which has other samples in the bank noise"):
            dataclasses.replace(benchmark, manifest=changed).clean(bank, 0.2, [0])
