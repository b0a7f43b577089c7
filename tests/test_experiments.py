"""The paper's tables: bookkeeping that loses nothing, documents that match the results, checkpoints that are kept."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.core.errors import InputError
from qkgcc.delay import metrics
from qkgcc.lab.corpora import sets
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.frozen.paper_sets import PaperBenchmark
from qkgcc.lab.study import figures, paper_tables, report, reproduce, results
from qkgcc.lab.training import config as configs
from qkgcc.nets import checkpoint
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
from qkgcc.network.card import Card

ROOT = Path(__file__).parents[1]
KEPT = sorted((ROOT / "checkpoints").glob("*.safetensors"))
OF_THE_PAPER = [path for path in KEPT if not path.stem.startswith("general")]
"""Those that were trained and are scored on frames scaled as the paper's."""


# Results files


def row(method: str = "qkgcc", seeds: int = 2, base: float = 70.0) -> results.Row:
    each = [
        {"seed": s, "rmse": 8.0 + s, "mae": 4.0, "acc10cm": base + s, "by_source": {"all": [base + s] * 30}}
        for s in range(seeds)
    ]
    return results.with_mean_and_std(
        {"method": method, "benchmark": "paper-test", "params": 1, "flops": 2, "stored": False, "seeds": each}
    )


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    results.write(tmp_path / "a.json", "table1", [row()], {"engine": "cpu"})
    content = results.read(tmp_path / "a.json")
    assert content is not None
    assert content["rows"] == [row()]
    assert content["schema"] == 1
    assert row()["mean"]["acc10cm"] == 70.5
    assert row()["std"]["rmse"] == pytest.approx(np.std([8, 9], ddof=1))
    assert results.read(tmp_path / "none.json") is None


def test_a_figure_typed_by_hand_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    results.write(path, "table1", [row()], {})
    path.write_text(path.read_text().replace("70.5", "80.5"))
    with pytest.raises(InputError, match="was changed by hand"):
        results.read(path)
    results.write(path, "table1", [row()], {"git": "abc"})
    path.write_text(path.read_text().replace('"abc"', '"def"'))
    with pytest.raises(InputError, match="was changed by hand"):
        results.read(path)
    path.write_text("{")
    with pytest.raises(InputError, match="no results file, or a damaged one"):
        results.read(path)


def test_results_take_little_room_in_the_repository() -> None:
    sizes = {path.name: path.stat().st_size for path in (ROOT / "results").iterdir()}
    assert max(sizes.values()) < 1_000_000, sizes


def test_the_paired_interval_covers_the_difference_of_utterances() -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(60, 20, 216)  # utterances differ far more than methods
    first, second = row("a", 1), row("b", 1)
    first["seeds"][0]["by_source"]["all"] = (hard + rng.normal(3, 5, 216)).tolist()
    second["seeds"][0]["by_source"]["all"] = hard.tolist()
    mean, low, high = results.interval(results.by_source(first) - results.by_source(second))
    assert low < mean < high
    assert low == pytest.approx(mean - 1.96 * 5 / 216**0.5, abs=0.15)
    assert low > 0  # unpaired, it would not be


# Tables


def test_every_row_has_its_training_and_the_papers_figures() -> None:
    for table in paper_tables.TABLES.values():
        for method in table.methods:
            for benchmark in table.benchmarks:
                figures_there = paper_tables.published(table.name, benchmark, method.name)
                if table.name != "variants" and method.name != "steered":  # which the paper does not compare
                    assert figures_there is not None, (table.name, benchmark, method.name)
                    assert set(results.METRICS) <= set(figures_there)
            if method.trained:
                assert configs.load(method.name).name == method.name


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> results.ReproductionRun:
    """A run whose benchmark is twelve frames: everything but the scoring is real."""
    calls: list[str] = []
    rng = np.random.default_rng(0)
    frames = rng.integers(-2000, 2000, (12, 2, 2048)).astype(np.int16)

    def score(delays_of: reproduce.Delays, name: str, seed: int | None, run: results.ReproductionRun) -> dict:
        calls.append(f"{name}:{seed}")
        error = float(np.abs(delays_of(frames)).mean())
        scores = {"seed": seed, "rmse": error, "mae": error, "acc10cm": 50.0, "cells": [], "seconds": 1.0}
        return scores | {"engine": "cpu", "device": "x"}

    monkeypatch.setattr(reproduce, "_score", score)
    made = results.ReproductionRun(
        results=tmp_path / "results", checkpoints=tmp_path / "kept", runs=tmp_path / "runs", say=lambda text: None
    )
    made.calls = calls
    return made


def keep_fresh(run: results.ReproductionRun, method: str, seed: int) -> Path:
    """A network with fresh weights among the kept checkpoints."""
    config = configs.load(method)
    model = checkpoint.build(config.architecture, config.options)
    options = model.options
    card = Card(
        name=f"{method}-{seed}",
        architecture=config.architecture,
        options=dataclasses.asdict(options),
        sample_rate=16000,
        frame=options.frame,
        dft=options.dft,
        delays=options.delays,
        scaling="utterance",
        seed=seed,
        metrics={"validation": {"epoch": 1, "acc10cm": 1.0, "loss": 3.0}, "device": "x"},
    )
    folder = run.runs / f"{method}-{seed}"
    checkpoint.save(model, folder / "best.safetensors", card)
    return reproduce.keep_checkpoint(folder / "best.safetensors", f"{method}-{seed}", run.checkpoints, 1.0)


def test_a_table_grows_row_by_row_and_keeps_what_is_there(run: results.ReproductionRun) -> None:
    table = paper_tables.TABLES["table1"]
    keep_fresh(run, "qkgcc", 0)
    run.from_checkpoints = True
    reproduce.fill(table, run)
    assert run.calls == ["paper-test:None", "paper-test:0"]
    lines = paper_tables.table_lines(table, results.read_rows(run.results, "table1"))
    cells = {line[0]: line for line in lines}
    assert cells["NGCC-PHAT"][4:7] == ["-"] * 3
    assert cells["QK-GCC"][2] == "322,291"
    run.from_checkpoints = False
    run.methods = ["gcc-phat", "qkgcc"]
    run.seeds = [0]
    reproduce.fill(table, run)
    assert len(run.calls) == 2  # nothing was computed again
    keep_fresh(run, "qkgcc", 1)
    run.seeds = []
    run.stop_after = 0.0
    reproduce.fill(table, run)
    assert len(run.calls) == 2  # no time left
    run.stop_after = None
    run.seeds = [1]
    reproduce.fill(table, run)
    assert run.calls[2:] == ["paper-test:1"]
    found = results.find(results.read_rows(run.results, "table1"), "paper-test", "qkgcc")
    assert [one["seed"] for one in found["seeds"]] == [0, 1]


def test_tables_share_what_they_have_in_common(run: results.ReproductionRun) -> None:
    keep_fresh(run, "qkgcc", 0)
    run.methods, run.seeds = ["qkgcc"], [0]
    reproduce.fill(paper_tables.TABLES["table1"], run)
    reproduce.fill(paper_tables.TABLES["table3"], run)
    assert run.calls == ["paper-test:0"]
    copied = results.find(results.read_rows(run.results, "table3"), "paper-test", "qkgcc")
    assert copied["params"] == 322_291


def test_a_missing_bank_and_unknown_choices_are_one_sentence(run: results.ReproductionRun) -> None:
    run.methods, run.seeds = ["qkgcc"], [1]
    with pytest.raises(InputError, match="needs the bank of test-clean: give it, or evaluate the kept"):
        reproduce.fill(paper_tables.TABLES["table1"], run)
    run.methods = ["qkgc"]
    with pytest.raises(InputError, match="there is no method qkgc; there are gcc-phat"):
        reproduce.fill(paper_tables.TABLES["table1"], run)
    run.methods, run.seeds = [], [7]
    with pytest.raises(InputError, match=r"there is no seed \[7\]"):
        reproduce.fill(paper_tables.TABLES["table1"], run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "qkgcc-1"),
        ("architecture", "ngcc"),
        ("seed", 1),
        ("options", {"radius": 0}),
        ("delays", (0.0, 1.0)),
        ("data_hash", "0" * 64),
    ],
)
def test_a_checkpoint_of_another_training_is_refused(
    run: results.ReproductionRun, field: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keep_fresh(run, "qkgcc", 0)
    _, card = checkpoint.load(path)
    bank = object() if field == "data_hash" else None
    monkeypatch.setattr(reproduce, "set_hash", lambda *_: "1" * 64)
    right = dataclasses.replace(card, data_hash="1" * 64)
    reproduce.check_card(path, right, "qkgcc", 0, bank)
    wrong = dataclasses.replace(right, **{field: card.options | value if field == "options" else value})
    with pytest.raises(InputError, match=f"is not qkgcc-0: its {field} is"):
        reproduce.check_card(path, wrong, "qkgcc", 0, bank)


def test_a_checkpoint_of_another_network_in_the_place_of_one_is_named(run: results.ReproductionRun) -> None:
    keep_fresh(run, "transformer", 0).replace(run.checkpoints / "qkgcc-0.safetensors")
    run.methods, run.seeds = ["qkgcc"], [0]
    with pytest.raises(InputError, match=r"qkgcc-0\.safetensors is not qkgcc-0: its name is 'transformer-0'"):
        reproduce.fill(paper_tables.TABLES["table1"], run)


def test_a_damaged_checkpoint_is_named(run: results.ReproductionRun) -> None:
    path = keep_fresh(run, "qkgcc", 0)
    path.write_bytes(path.read_bytes()[:-1000])
    run.methods, run.seeds = ["qkgcc"], [0]
    with pytest.raises(InputError, match=r"qkgcc-0\.safetensors is not a safetensors file, or is damaged"):
        reproduce.fill(paper_tables.TABLES["table1"], run)


def test_a_training_that_is_interrupted_ends_everything(
    run: results.ReproductionRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    class Interrupted:
        data = validation = None
        history: ClassVar[list[dict[str, float]]] = []

        def __init__(self, config: configs.Config, *_: object, **__: object) -> None:
            begun.append(f"{config.name}-{config.seed}")

        def run(self, *, stop: Callable[[], bool], **_: object) -> None:
            assert not stop()
            signal.raise_signal(signal.SIGINT)
            assert stop()  # between two steps, the state is saved

    monkeypatch.setattr(reproduce, "Trainer", Interrupted)
    monkeypatch.setattr(run, "bank", lambda name: object())
    run.methods = ["qkgcc"]
    with pytest.raises(KeyboardInterrupt):
        reproduce.fill(paper_tables.TABLES["table1"], run)
    assert begun == ["qkgcc-0"]


def test_what_has_no_checkpoint_is_said(run: results.ReproductionRun) -> None:
    said: list[str] = []
    run.methods, run.seeds, run.from_checkpoints, run.say = ["qkgcc"], [2], True, said.append
    reproduce.fill(paper_tables.TABLES["table1"], run)
    assert said == [f"there is no checkpoint qkgcc-2.safetensors in {run.checkpoints} or {run.runs}"]


def test_figures_of_other_weights_are_computed_again(run: results.ReproductionRun) -> None:
    run.methods, run.seeds = ["qkgcc"], [0]
    keep_fresh(run, "qkgcc", 0)
    reproduce.fill(paper_tables.TABLES["table1"], run)
    before = (run.results / "table1.json").read_text()
    reproduce.fill(paper_tables.TABLES["table1"], run)
    assert (run.results / "table1.json").read_text() == before
    keep_fresh(run, "qkgcc", 0)
    reproduce.fill(paper_tables.TABLES["table1"], run)
    assert run.calls == ["paper-test:0", "paper-test:0"]


def test_half_precision_is_compared_with_what_was_trained(run: results.ReproductionRun) -> None:
    torch.manual_seed(0)  # whatever tests ran before
    path = keep_fresh(run, "qkgcc", 0)
    model, card = checkpoint.load(path)
    assert card.metrics["half_precision"]["largest_difference"] < 0.05
    assert reproduce.probe_error(model, card) < 1e-5
    with torch.no_grad():
        model.query.weight.mul_(1.05)
    assert reproduce.probe_error(model, card) > 1e-3


def test_a_benchmark_that_is_not_rendered_asks_for_its_bank(tmp_path: Path) -> None:
    run = results.ReproductionRun(results=tmp_path, engine="cpu", cache=tmp_path, say=lambda text: None)
    run.methods = ["gcc-phat"]
    with pytest.raises(InputError, match="paper-noise is not rendered yet: give the bank of noise"):
        reproduce.fill(paper_tables.TABLES["table2"], run)


def test_a_network_of_another_grid_is_refused() -> None:
    options = QKGCCOptions(frame=256, dft=256, width=8, heads=2, radius=1)
    sizes = {"sample_rate": 16000, "frame": 256, "dft": 256, "delays": options.delays}
    card = Card(name="x", architecture="qkgcc", options=dataclasses.asdict(options), scaling="frame", **sizes)
    with pytest.raises(InputError, match=r"takes frames of 256 samples .* the paper's benchmark has 2048"):
        reproduce.network_delays(QKGCC(options), card, "cpu")


# Documents


@pytest.mark.parametrize("name", report.FILES)
def test_documents_hold_the_figures_of_the_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "<!-- end -->" in text
    assert report.fill_document(text, ROOT / "results") == text, "run: python -m qkgcc.lab.study.report"


@pytest.mark.parametrize("name", paper_tables.TABLES)
def test_stored_figures_are_those_of_the_kept_checkpoints(name: str) -> None:
    content = results.read(ROOT / "results" / f"{name}.json")
    trained = {one["checkpoint"]: one["training"]["seconds"] for one in _seeds(content) if one.get("training")}
    assert content["seconds"] == pytest.approx(
        sum(trained.values()) + sum(one["seconds"] for one in _seeds(content)), abs=0.1
    )
    for found in content["rows"]:
        for one in found["seeds"]:
            path = ROOT / "checkpoints" / f"{found['method']}-{one['seed']}.safetensors"
            if found["method"] != "gcc-phat" and not found["stored"]:
                assert one["checkpoint"] == reproduce.weights_hash(path), path
            assert len(one["cells"]) == 30
            pooled = np.average([cell["acc10cm"] for cell in one["cells"]], weights=[c["n"] for c in one["cells"]])
            assert one["acc10cm"] == pytest.approx(pooled, abs=0.01)
            assert one["acc10cm"] == pytest.approx(np.mean(one["by_source"]["all"]), abs=0.01)


def _seeds(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for row in content["rows"] for one in row["seeds"]]


def test_drawn_figures_are_those_of_the_tables_and_the_checkpoints() -> None:
    table1, fig2 = (results.read(ROOT / "results" / f"{name}.json") for name in ("table1", "fig2"))
    for line in fig2["rows"]:
        expected = paper_tables.curve(results.find(table1["rows"], "paper-test", line["method"]), line["axis"])
        assert (line["at"], line["mean"]) == (list(expected), list(expected.values()))
    assert len(fig2["rows"]) == 2 * len(paper_tables.TABLES["table1"].methods)
    fig3 = results.read(ROOT / "results" / "fig3.json")
    for row in fig3["rows"]:
        assert row["checkpoint"] == reproduce.weights_hash(ROOT / "checkpoints" / f"{row['method']}-0.safetensors")


# Kept checkpoints


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_kept_checkpoint_gives_the_same_logits_after_reloading(path: Path) -> None:
    assert path.stat().st_size < reproduce.MAX_KEPT_BYTES
    model, card = checkpoint.load(path)
    assert card.name == path.stem
    assert card.git
    # The card remembers the logits of a probe from before the file was written.
    assert reproduce.probe_error(model, card) < 1e-4


@pytest.fixture(scope="module")
def slice_of_paper_test(corpora: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Bank, list[int]]:
    """Every 18th utterance of the set, packed from the corpus itself."""
    rows = list(range(0, 216, 18))
    ids = {PaperBenchmark.load("paper-test").ids[i] for i in rows}
    root = tmp_path_factory.mktemp("corpus")
    corpus = sets.find_librispeech(corpora, "test-clean")
    (root / "LibriSpeech").mkdir()
    (root / "LibriSpeech" / "SPEAKERS.TXT").symlink_to(corpus / "SPEAKERS.TXT")
    for utterance in sets.librispeech_utterances(corpora, "test-clean"):
        if utterance.id in ids:
            copy = root / "LibriSpeech" / utterance.path.relative_to(corpus)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.symlink_to(utterance.path)
    return build("test-clean", root, root / "bank"), rows


@pytest.fixture(scope="module")
def slice_frames(slice_of_paper_test: tuple[Bank, list[int]]) -> tuple[np.ndarray, np.ndarray]:
    bank, rows = slice_of_paper_test
    benchmark = PaperBenchmark.load("paper-test")
    frames, delays = [], []
    for t60, snr in ((0.4, 6), (0.8, 24)):
        frames.append(benchmark.frames(benchmark.clean(bank, t60, rows, engine="cpu"), snr, t60, rows))
        delays.append(benchmark.delays(t60, rows))
    return np.concatenate(frames), np.concatenate(delays)


SLOW = ("ngcc-1", "ngcc-2")  # 5 s each, and the same network as ngcc-0
OF_THE_PAPER_MARKED = [pytest.param(one, marks=[pytest.mark.slow] * (one.stem in SLOW)) for one in OF_THE_PAPER]


@pytest.mark.parametrize("path", OF_THE_PAPER_MARKED, ids=lambda path: path.stem)
def test_a_kept_checkpoint_beats_gcc_phat_on_a_slice_of_the_benchmark(
    path: Path, slice_frames: tuple[np.ndarray, np.ndarray]
) -> None:
    frames, delays = slice_frames
    model, card = checkpoint.load(path)
    if card.architecture in ("ngcc", "transformer"):  # up to 80 ms a frame
        frames, delays = frames[::3], delays[::3]
    ours = metrics.evaluate(reproduce.network_delays(model, card, "cpu")(frames), delays)
    phat = metrics.evaluate(reproduce.gcc_phat(frames), delays)
    assert ours["acc10cm"] > phat["acc10cm"] + 3, (ours, phat)
    assert ours["mae"] < phat["mae"]


# Figures


def test_figures_1_and_2_are_drawn(tmp_path: Path) -> None:
    run = results.ReproductionRun(results=tmp_path / "results")
    shutil.copytree(ROOT / "results", run.results)
    for name in ("fig1", "fig2"):
        png, svg = figures.draw(name, run, tmp_path)
        assert png.stat().st_size > 10_000
        assert "<svg" in svg.read_text()
    with pytest.raises(InputError, match="reproduce table1 makes it"):
        figures.draw("fig2", results.ReproductionRun(results=tmp_path), tmp_path)


def test_figure_3_measures_what_it_says() -> None:
    torch.manual_seed(0)
    model = QKGCC(QKGCCOptions(width=16, heads=2, radius=2, channels=4, hidden=8))
    rng = np.random.default_rng(0)
    cell = (1000 * rng.standard_normal((2 * 15, 2, 2048))).astype(np.int16)
    found = figures.analyse_matching(model, [cell])
    assert found["clips"] == 2
    assert np.asarray(found["offset_energy"]).shape == (2, 5)
    np.testing.assert_allclose(np.max(found["offset_energy"], axis=1), 1)
    np.testing.assert_allclose(np.sum(found["shares"], axis=1), 1)
    explained = model.explain(torch.from_numpy(cell.astype(np.float32) / 1024))
    np.testing.assert_allclose(found["norm_product"], explained.norm_product.mean(dim=0), rtol=1e-4)
    assert -1 <= found["pearson"] <= 1
    assert json.dumps(found)


def test_coherence_is_that_of_scipy() -> None:
    from scipy.signal import coherence

    rng = np.random.default_rng(0)
    audio = rng.standard_normal((2, 30720))
    audio[1] += 0.7 * audio[0]
    window = np.hanning(512)
    _, expected = coherence(*audio, window=window, nperseg=512, noverlap=256, detrend=False)
    np.testing.assert_allclose(figures.magnitude_squared_coherence(audio), expected, atol=1e-9)


def test_figure_3_of_other_numbers_is_not_drawn(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    path = tmp_path / "results" / "fig3.json"
    text = path.read_text()
    path.write_text(text.replace('"pearson":0.', '"pearson":0.9'))
    run = results.ReproductionRun(results=tmp_path / "results", checkpoints=ROOT / "checkpoints")
    with pytest.raises(InputError, match="was changed by hand"):
        figures.draw("fig3", run, tmp_path)
    path.write_text(text)
    assert figures.draw("fig3", run, tmp_path)[0].exists()


def test_the_command_renders_scores_and_writes(corpora: Path, tmp_path: Path) -> None:
    """Everything real: the music clips, their 30 cells, GCC-PHAT on 12,600 frames."""
    bank = build("music", corpora, tmp_path / "music")
    command = [sys.executable, "-m", "qkgcc", "reproduce"]
    places = ["--results", tmp_path / "results", "--cache", tmp_path / "cache", "--figures", tmp_path]
    asked = ["table2", "--method", "gcc-phat", "--bank", bank.path, "--engine", "cpu", *places]
    done = subprocess.run([*map(str, command + asked)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "paper-noise is not rendered yet: give the bank of noise" in done.stderr
    table = dataclasses.replace(paper_tables.TABLES["table2"], benchmarks=("paper-music",))
    run = results.ReproductionRun(
        results=tmp_path / "results", banks=[bank], engine="cpu", cache=tmp_path / "cache", methods=["gcc-phat"]
    )
    rows = reproduce.fill(table, run)
    (one,) = results.find(rows, "paper-music", "gcc-phat")["seeds"]
    assert 45 < one["acc10cm"] < 60
    assert len(one["cells"]) == 30
    assert len(one["by_source"]["snr"]["0"]) == 28
    assert np.mean(one["by_source"]["snr"]["30"]) > np.mean(one["by_source"]["snr"]["0"])
