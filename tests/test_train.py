"""Training learns, goes on where it stopped, and says what is wrong. All on the CPU, in seconds."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from qkgcc.core.errors import InputError
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.general import PLAIN, general_scenes
from qkgcc.lab.scenes.paper_frames import paper_frames
from qkgcc.lab.scenes.signals import Catalog
from qkgcc.lab.training import config as configs
from qkgcc.lab.training import step
from qkgcc.lab.training.config import Config
from qkgcc.lab.training.data import PairSet, _synthetic_sources, draw_scenes, make_sets, set_hash
from qkgcc.lab.training.loop import BEST, LAST, METRICS, STATE, Trainer, predict
from qkgcc.lab.training.step import cross_entropy
from qkgcc.nets import checkpoint
from qkgcc.nets.qkgcc import QKGCCOptions

TINY = configs.load("tiny")
SIZES = {"frame": TINY.options["frame"]}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # small work: two threads would only wait for each other


@pytest.fixture(scope="module")
def quick() -> Config:
    """A few steps of the tiny training."""
    return dataclasses.replace(TINY, pairs=96, validation_pairs=32, epochs=3, batch=8)


@pytest.fixture(scope="module")
def sets(quick: Config) -> tuple:
    return make_sets(quick, [], "cpu", **SIZES)


LEARNING = dataclasses.replace(TINY, pairs=1500, validation_pairs=100, epochs=13, batch=32, learning_rate=1e-2)
"""As much of the tiny training as it takes to see it learn."""


@pytest.fixture(scope="module")
def learning_sets() -> tuple:
    return make_sets(LEARNING, [], "cpu", **SIZES)


@pytest.fixture(scope="module")
def unseen() -> PairSet:
    fresh = dataclasses.replace(LEARNING, data_seed=99, pairs=400, validation_pairs=1)
    return make_sets(fresh, [], "cpu", **SIZES)[0]


# Learning


def class_accuracy(trainer: Trainer, data: object) -> float:
    found = predict(trainer.model, data.frames).argmax(dim=-1)
    return float((found - 23 == data.delays.round()).float().mean())


def learns(config: Config, sets: tuple, unseen: PairSet, folder: Path) -> tuple[bool, str]:
    """Whether cross-entropy falls by a quarter and unseen draws reach three times chance."""
    trainer = Trainer(config, folder, sets=sets)
    before = trainer.validate()["loss"]
    trainer.run()
    after = min(row["loss"] for row in trainer.history)
    share = class_accuracy(trainer, unseen)
    return after <= 0.75 * before and share >= 3 / 47, f"loss {before:.2f} -> {after:.2f}, unseen {share:.1%}"


@pytest.mark.slow
def test_the_tiny_training_learns(tmp_path: Path, learning_sets: tuple, unseen: PairSet) -> None:
    learned, said = learns(LEARNING, learning_sets, unseen, tmp_path)
    assert learned, said


@pytest.mark.slow
def test_shuffled_labels_are_not_learnt(tmp_path: Path, learning_sets: tuple, unseen: PairSet) -> None:
    control, (real, validation) = dataclasses.replace(LEARNING, shuffled_labels=True), learning_sets
    order = torch.randperm(len(real), generator=torch.Generator().manual_seed(0))
    wrong = dataclasses.replace(real, delays=real.delays[order])
    learned, said = learns(control, (wrong, validation), unseen, tmp_path)
    assert not learned, said


def test_shuffled_labels_are_the_same_labels_in_another_order(quick: Config) -> None:
    small = dataclasses.replace(quick, pairs=40, validation_pairs=8)
    real, _ = make_sets(small, [], "cpu", **SIZES)
    shuffled, _ = make_sets(dataclasses.replace(small, shuffled_labels=True), [], "cpu", **SIZES)
    assert torch.equal(real.frames, shuffled.frames)
    assert torch.equal(real.delays.sort().values, shuffled.delays.sort().values)
    assert not torch.equal(real.delays, shuffled.delays)
    assert real.hash != shuffled.hash


@pytest.mark.parametrize("architecture", ["pgcc", "ngcc", "transformer", "qkgcc"])
def test_every_network_trains_in_the_same_loop(tmp_path: Path, architecture: str, quick: Config) -> None:
    options = {
        "pgcc": {"frame": 256, "dft": 256},
        "ngcc": {"frame": 256, "dft": 256, "channels": 8, "taps": 63},
        "transformer": {"frame": 256, "dft": 256, "width": 16, "heads": 2},
        "qkgcc": TINY.options,
    }[architecture]
    config = dataclasses.replace(quick, architecture=architecture, options=options, epochs=1, pairs=32)
    data = make_sets(config, [], "cpu", frame=256)
    best = Trainer(config, tmp_path, sets=data).run()
    assert best is not None
    assert np.isfinite(best["train_loss"])
    _, card = checkpoint.load(tmp_path / BEST)
    assert card.architecture == architecture
    assert card.data_hash == data[0].hash


# Data


def test_frames_of_pairs_are_those_of_their_scenes_whatever_the_batch() -> None:
    sources = _synthetic_sources("train", "cpu")
    together = paper.training_pairs(3, np.arange(40), 96, t60=(0.2, 0.3))
    frames, delays = paper_frames(together, sources, frame=512)
    alone, delay = paper_frames(paper.training_pairs(3, [17], 96, t60=(0.2, 0.3)), sources, frame=512)
    torch.testing.assert_close(frames[17], alone[0], atol=1e-4, rtol=1e-3)
    assert delays[17] == delay[0]


def test_validation_pairs_are_other_utterances_and_other_places(sets: tuple) -> None:
    train, validation = sets
    assert not set(train.delays.tolist()) & set(validation.delays.tolist())
    assert train.delays.abs().max() < 23.4
    assert train.limits is None


def test_swapping_gives_the_mirrored_class(sets: tuple, quick: Config) -> None:
    seen = {}

    class Spy(torch.nn.Module):
        def forward(self, frames: torch.Tensor) -> torch.Tensor:
            seen["frames"] = frames
            return torch.zeros(len(frames), 47, requires_grad=True)

    spy = Spy()
    spy.options = QKGCCOptions()
    spy.weight = torch.nn.Parameter(torch.zeros(1))
    taken = step.Step(spy, torch.optim.SGD(spy.parameters(), lr=0.1), sets[0], quick)
    rows = torch.arange(4)
    swap = torch.tensor([True, False, True, False])
    logits = torch.zeros(4, 47)
    classes = sets[0].delays[rows].round().long() + 23
    expected = torch.where(swap, 46 - classes, classes)
    logits[torch.arange(4), expected] = 50.0
    spy.forward = lambda frames: (seen.update(frames=frames), logits)[1]
    assert float(taken._loss(rows, swap)) < 1e-6
    assert torch.equal(seen["frames"][0], sets[0].frames[0].flip(0))
    assert torch.equal(seen["frames"][1], sets[0].frames[1])


def test_a_compiled_network_that_computes_something_else_is_found() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    model.eval()
    given = torch.randn(16, 4)
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def plain() -> torch.Tensor:
        return (model(given) ** 2 + model(given)).abs().mean()

    step.compare_losses(model, plain, lambda: plain() * 1.001)
    for wrong in (lambda: plain() * 1.2, lambda: plain() * float("nan")):
        with pytest.raises(InputError, match="compile = false"):
            step.compare_losses(model, plain, wrong)
    assert not model.training
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in model.named_buffers())


# Targets


def test_the_class_of_a_delay_is_the_nearest_candidate() -> None:
    grid = torch.arange(-23.0, 24.0)
    delays = torch.tensor([-23.3, -22.6, 0.4, 7.5001, 23.3])
    logits = torch.zeros(5, 47)
    logits[torch.arange(5), torch.tensor([0, 0, 23, 31, 46])] = 60.0
    assert float(cross_entropy(logits, grid, delays)) < 1e-6


def test_a_gaussian_target_makes_the_logits_a_parabola_around_the_true_delay() -> None:
    grid = torch.arange(-6.0, 7.0)
    delay = torch.tensor([1.3])
    logits = torch.zeros(1, 13, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.1)
    for _ in range(600):
        optimizer.zero_grad()
        cross_entropy(logits, grid, delay, width=0.6).backward()
        optimizer.step()
    left, middle, right = logits.detach()[0, 6:9].tolist()  # of the delays 0, 1, 2
    assert 1 + 0.5 * (left - right) / (left - 2 * middle + right) == pytest.approx(1.3, abs=0.01)


def test_delays_that_the_spacing_rules_out_take_no_part() -> None:
    grid, delay, limit = torch.arange(-6.0, 7.0), torch.tensor([0.8]), torch.tensor([2.0])
    logits = torch.randn(1, 13, generator=torch.Generator().manual_seed(0))
    wild = logits.clone()
    wild[0, [0, 1, 2, 3, 9, 10, 11, 12]] = 40.0
    for width in (0.0, 0.5):
        same = [cross_entropy(x, grid, delay, width=width, limits=limit) for x in (logits, wild)]
        assert torch.equal(*same)
        assert cross_entropy(wild, grid, delay, width=width) > 20


def test_the_general_law_trains_in_the_same_loop(tmp_path: Path) -> None:
    config = dataclasses.replace(
        TINY,
        name="any-pair",
        architecture="steered",
        distribution="general",
        target_width=0.5,
        options={"frame": 256, "dft": 256, "max_delay": 94, "width": 8, "heads": 2, "radius": 1, "positions": 33},
        pairs=10,
        validation_pairs=5,
        frames_per_scene=2,
        synthetic_pool=4,
        epochs=1,
        batch=4,
    )
    trainer = Trainer(config, tmp_path)
    assert trainer.data.frames.shape == (10, 2, 256)
    torch.testing.assert_close(trainer.data.frames.square().mean(dim=(1, 2)), torch.ones(10))
    assert (trainer.data.delays.abs() <= trainer.data.limits).all()
    assert trainer.data.limits.max() <= 95
    best = trainer.run()
    assert best is not None
    assert np.isfinite(best["loss"])
    assert checkpoint.load(tmp_path / BEST)[1].scaling == "frame"


def test_some_scenes_are_plain_ones() -> None:
    catalog, numbers = Catalog(speech=("a", "b"), music=("c",)), np.arange(2000)
    config = dataclasses.replace(TINY, distribution="general", plain=0.4)
    mixed = draw_scenes(config, numbers, catalog)
    plain = general_scenes(config.data_seed, numbers, catalog, law=PLAIN)
    general = general_scenes(config.data_seed, numbers, catalog)
    is_plain = (mixed.snr == plain.snr) & (mixed.t60 == plain.t60) & (mixed.t60 != general.t60)
    assert 0.36 < is_plain.mean() < 0.44
    assert set(mixed.signal[is_plain, 0]) == {"a", "b"}
    assert (mixed.signal[is_plain, 1:] == "").all()
    np.testing.assert_array_equal(mixed.first[~is_plain], general.first[~is_plain])
    hashes = {set_hash(dataclasses.replace(config, plain=share), [], "train", 256) for share in (0.0, 0.2, 0.4)}
    assert len(hashes) == 3
    with pytest.raises(InputError, match="the setting plain is"):
        dataclasses.replace(config, plain=1.5)


def test_a_training_goes_on_from_trained_weights(tmp_path: Path, quick: Config) -> None:
    Trainer(quick, tmp_path / "first").run()
    path = tmp_path / "first" / BEST
    further = Trainer(dataclasses.replace(quick, seed=quick.seed + 1, start=str(path)), tmp_path / "second")
    trained, _ = checkpoint.load(path)
    frames = further.validation.frames[:8]
    torch.testing.assert_close(predict(further.model, frames), predict(trained, frames), atol=1e-4, rtol=1e-4)
    further.run()
    assert checkpoint.load(tmp_path / "second" / BEST)[1].metrics["start"] == "tiny-0"
    wider = dataclasses.replace(quick, start=str(path), options=quick.options | {"radius": 3})
    with pytest.raises(InputError, match="its weights do not fit"):
        Trainer(wider, tmp_path / "third")
    with pytest.raises(InputError, match="which is not there: set start to its path"):
        Trainer(dataclasses.replace(quick, start="nowhere.safetensors"), tmp_path / "fourth")


# A teacher


def test_a_teacher_is_learnt_besides_the_truth() -> None:
    grid, delay = torch.arange(-3.0, 4.0), torch.tensor([1.0])
    logits = torch.randn(1, 7, generator=torch.Generator().manual_seed(0))
    taught = torch.full((1, 7), -30.0)
    taught[0, 5] = 0.0  # sure of the delay 2
    alone = cross_entropy(logits, grid, delay)
    other = cross_entropy(logits, grid, torch.tensor([2.0]))
    mixed = cross_entropy(logits, grid, delay, teacher_logits=taught, teacher_weight=0.25)
    torch.testing.assert_close(mixed, 0.75 * alone + 0.25 * other)
    # What the spacing rules out, a teacher does not teach.
    limits = torch.tensor([1.0])
    rest = [
        cross_entropy(logits, grid, delay, limits=limits, teacher_logits=x, teacher_weight=1.0)
        for x in (taught, 0 * taught)
    ]
    torch.testing.assert_close(*rest)


def test_a_network_is_taught_by_a_trained_one(tmp_path: Path, quick: Config) -> None:
    steered = dataclasses.replace(
        quick,
        architecture="steered",
        options={"frame": 256, "dft": 256, "width": 8, "heads": 2, "radius": 1, "positions": 33},
    )
    Trainer(steered, tmp_path / "teacher").run()
    path = tmp_path / "teacher" / BEST
    taught = dataclasses.replace(steered, name="pupil", teacher=str(path), teacher_weight=1.0, epochs=1)
    trainer = Trainer(taught, tmp_path / "pupil")
    network, card = checkpoint.load(path)
    network.symmetric = True
    with torch.no_grad():
        expected = network(trainer.data.frames[:16])
    torch.testing.assert_close(trainer.data.teacher_logits[:16].float(), expected, atol=0.02, rtol=0.01)
    # Swapped channels are taught the mirrored answer: the step's loss is the same function of both.
    rows, swap = torch.arange(16), torch.arange(16) % 2 == 0
    trainer.model.eval()
    frames = torch.where(swap[:, None, None], trainer.data.frames[rows].flip(1), trainer.data.frames[rows])
    with torch.no_grad():
        answers = torch.where(swap[:, None], expected.flip(-1), expected).softmax(-1)
        by_hand = torch.nn.functional.cross_entropy(trainer.model(frames), answers)
        torch.testing.assert_close(trainer._step._loss(rows, swap), by_hand, atol=2e-3, rtol=1e-3)
    assert trainer.run() is not None
    assert checkpoint.load(tmp_path / "pupil" / BEST)[1].metrics["teacher"] == {"name": card.name, "weight": 1.0}
    with pytest.raises(InputError, match="cannot teach"):
        Trainer(dataclasses.replace(taught, options={**steered.options, "max_delay": 5}), tmp_path / "other")
    with pytest.raises(InputError, match="which is not there: set teacher to its path"):
        Trainer(dataclasses.replace(taught, teacher=str(tmp_path / "nobody")), tmp_path / "nobodys")


# Going on


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.load(folder / LAST)[0].state_dict()


def test_a_run_that_was_cut_off_ends_at_the_same_bits(tmp_path: Path, sets: tuple, quick: Config) -> None:
    config = dataclasses.replace(
        quick, architecture="ngcc", options={"frame": 256, "dft": 256, "channels": 8, "taps": 63}
    )  # with dropout: its random numbers go on, too
    Trainer(config, tmp_path / "whole", sets=sets).run()
    runs = 0
    while Trainer(config, tmp_path / "parts", sets=sets).run(stop_after=0.0) is None:
        runs += 1
    assert runs > 20  # in the middle of epochs, too
    whole, parts = final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts")
    for name, tensor in whole.items():
        assert torch.equal(tensor, parts[name]), name
    rows = [
        [json.loads(line) for line in (tmp_path / run / METRICS).read_text().splitlines()] for run in ("whole", "parts")
    ]
    for one, other in zip(*rows, strict=True):
        assert one["loss"] == other["loss"]
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-5)


def test_a_killed_process_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qkgcc", "train", "tiny", "--out", str(tmp_path / "run"), "--device", "cpu"]
    command += ["--set", "pairs=64", "--set", "validation_pairs=16", "--set", "batch=4", "--set", "epochs=2000"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (tmp_path / "run" / STATE).exists():  # an epoch's last file: before it a run begins anew
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "run" / BEST).exists()
    assert not (tmp_path / "run" / LAST).exists()
    before = len((tmp_path / "run" / METRICS).read_text().splitlines())
    done = subprocess.run([*command, "--stop-after", "1"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "stopped after" in done.stdout or "best.safetensors" in done.stdout
    assert len((tmp_path / "run" / METRICS).read_text().splitlines()) >= before


def test_a_stop_is_asked_for_between_steps_and_ends_at_the_same_bits(
    tmp_path: Path, sets: tuple, quick: Config
) -> None:
    Trainer(quick, tmp_path / "whole", sets=sets).run()
    asked = iter([False] * 7 + [True])
    assert Trainer(quick, tmp_path / "parts", sets=sets).run(stop=lambda: next(asked)) is None
    rest = Trainer(quick, tmp_path / "parts", sets=sets)
    assert rest.step == 8
    rest.run()
    whole, parts = final_weights(tmp_path / "whole"), final_weights(tmp_path / "parts")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())


@pytest.mark.parametrize("where", ["_loss", "validate"])
def test_an_interrupt_in_the_middle_of_anything_leaves_a_state_to_go_on_from(
    tmp_path: Path, sets: tuple, quick: Config, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trainer(quick, tmp_path / "whole", sets=sets).run()
    cut = Trainer(quick, tmp_path / "cut", sets=sets)
    owner = cut._step if where == "_loss" else cut
    real, calls = getattr(owner, where), []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        answer = real(*arguments)  # batch normalization has moved already
        if len(calls) == (17 if where == "_loss" else 2):
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(owner, where, interrupted)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    rest = Trainer(quick, tmp_path / "cut", sets=sets)
    assert rest.step == 12  # the end of the first epoch
    rest.run()
    whole, parts = final_weights(tmp_path / "whole"), final_weights(tmp_path / "cut")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    assert len(rest.history) == quick.epochs


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_is_told_to_end_saves_its_state(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "qkgcc", "train", "tiny", "--out", str(tmp_path / "run"), "--device", "cpu"]
    command += ["--set", "pairs=64", "--set", "validation_pairs=16", "--set", "batch=4", "--set", "epochs=5000"]
    process = subprocess.Popen(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not (tmp_path / "run" / BEST).exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert "the same command goes on" in out
    assert "interrupted" in err
    assert (tmp_path / "run" / STATE).exists()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2])
def test_several_processes_train_together(tmp_path: Path, processes: int) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--master-port", str(port)]
    command += ["-m", "qkgcc", "train", "tiny", "--out", str(tmp_path / "run"), "--device", "cpu"]
    command += ["--set", "pairs=64", "--set", "validation_pairs=16", "--set", "batch=8", "--set", "epochs=2"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2]
    assert done.stdout.count("checkpoints:") == 1  # one process speaks for all
    checkpoint.load(tmp_path / "run" / LAST)


# What can be wrong


def test_a_folder_of_another_training_is_refused(tmp_path: Path, sets: tuple, quick: Config) -> None:
    Trainer(quick, tmp_path, sets=sets)
    with pytest.raises(InputError, match="another epochs, seed"):
        Trainer(dataclasses.replace(quick, seed=1, epochs=9), tmp_path, sets=sets)


def test_other_data_and_a_damaged_state_are_refused(tmp_path: Path, sets: tuple, quick: Config) -> None:
    Trainer(quick, tmp_path, sets=sets).run()
    with pytest.raises(InputError, match="trained on other data"):
        Trainer(quick, tmp_path, sets=(dataclasses.replace(sets[0], hash="f" * 64), sets[1]))
    (tmp_path / STATE).write_bytes(b"PK not a state")
    with pytest.raises(InputError, match=r"state\.pt is damaged .* delete it"):
        Trainer(quick, tmp_path, sets=sets)


def test_a_loss_that_is_no_number_stops_the_training(tmp_path: Path, sets: tuple, quick: Config) -> None:
    broken = dataclasses.replace(sets[0], frames=sets[0].frames * float("nan"))
    with pytest.raises(InputError, match="no longer finite in epoch 1"):
        Trainer(quick, tmp_path, sets=(broken, sets[1])).run()


def test_too_large_a_batch_says_which_fits(
    tmp_path: Path, sets: tuple, quick: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(dataclasses.replace(quick, batch=32), tmp_path, sets=sets)
    real = type(trainer.model).forward

    def forward(self: torch.nn.Module, frames: torch.Tensor, bins: None = None) -> torch.Tensor:
        if len(frames) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, frames, bins)

    monkeypatch.setattr(type(trainer.model), "forward", forward)
    with pytest.raises(InputError, match="a batch of 32 is too large for the memory of cpu; 8 fits: set batch=8"):
        trainer.run()


def test_validation_takes_no_more_at_once_than_fits(
    tmp_path: Path, sets: tuple, quick: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that trains must not fail in its epoch's validation, which takes more frames at once."""
    trainer = Trainer(quick, tmp_path, sets=sets)
    expected = trainer.validate()
    real = type(trainer.model).forward
    sizes = []

    def forward(self: torch.nn.Module, frames: torch.Tensor, bins: None = None) -> torch.Tensor:
        if len(frames) > quick.batch:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(frames))
        return real(self, frames, bins)

    monkeypatch.setattr(type(trainer.model), "forward", forward)
    assert trainer.validate()["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert sum(sizes) == len(sets[1])


def test_what_is_wrong_is_said_before_rooms_are_made(
    tmp_path: Path, quick: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qkgcc.lab.training.loop.make_sets", lambda *_, **__: pytest.fail("rooms were made"))
    with pytest.raises(InputError, match=r"give one .`qkgcc data bank` makes it"):
        Trainer(dataclasses.replace(quick, sources="bank"), tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make the folder"):
        Trainer(quick, tmp_path / "file" / "run")
    (tmp_path / "b").mkdir()
    for content in ("[]", "{", '{"name": "other"}'):
        (tmp_path / "b" / "config.json").write_text(content)
        with pytest.raises(InputError, match=r"is damaged|with another"):
            Trainer(quick, tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text(quick.to_json())
    torch.save({"weights": 1}, tmp_path / "c" / STATE)
    with pytest.raises(InputError, match=r"state\.pt is damaged"):
        Trainer(quick, tmp_path / "c")


def test_a_bank_is_asked_for(quick: Config) -> None:
    with pytest.raises(InputError, match="needs a bank of utterances, one: give one"):
        make_sets(dataclasses.replace(quick, sources="bank"), [], "cpu", **SIZES)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_said(tmp_path: Path, quick: Config) -> None:
    with pytest.raises(InputError, match="there is no device"):
        Trainer(quick, tmp_path, device="cuda")


# Settings


def test_every_training_that_ships_can_be_built() -> None:
    for name in configs.names():
        config = configs.load(name)
        assert config.name == name
        with torch.device("meta"):
            checkpoint.build(config.architecture, config.options)


def test_rows_of_tables_differ_from_the_paper_only_where_they_should() -> None:
    base = configs.load("qkgcc")
    assert (base.pairs, base.batch, base.epochs, base.learning_rate, base.swap) == (110_000, 32, 30, 1e-3, True)
    for name in configs.names():
        config = configs.load(name)
        if name == "tiny" or config.distribution == "general":
            continue
        same = ("pairs", "batch", "epochs", "learning_rate", "swap", "data_seed", "t60", "snr", "sources")
        assert all(getattr(config, field) == getattr(base, field) for field in same), name


def test_settings_can_be_changed_and_based_on_others(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('base = "qkgcc-b16"\nname = "mine"\nepochs = 2\noptions = { heads = 2 }\n')
    config = configs.load(tmp_path / "mine.toml", ["options.width=64", "precision=bf16", "snr=[0, 10]"])
    assert config.options == {"radius": 16, "heads": 2, "width": 64}
    assert (config.epochs, config.precision, config.snr) == (2, "bf16", (0, 10))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epoch=3", "there is no setting epoch; there are"),
        ("epochs=three", "epochs is 'three'; expected a whole number"),
        ("epochs=0", "epochs is 0; expected at least 1"),
        ("epochs=true", "expected a whole number"),
        ("batch=200000", "do not fill one batch"),
        ("precision=fp8", "known are float32, tf32, bf16"),
        ("t60=[1.0, 0.5]", "expected a rising pair"),
        ("learning_rate=-1", "positive"),
        ("epochs", "is no change of a setting"),
        ("t60=0.3", "t60 is 0.3; expected a pair of numbers"),
        ("options=5", "options is 5; expected a table of options"),
    ],
)
def test_bad_settings_are_one_sentence(change: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        configs.load("qkgcc", [change])


def test_bad_files_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no training 'nothing'; there are general"):
        configs.load("nothing")
    path = tmp_path / "a.toml"
    path.write_text("name = ")
    with pytest.raises(InputError, match="no TOML file"):
        configs.load(path)
    path.write_text('base = "a.toml"\nname = "a"\n')
    with pytest.raises(InputError, match="based on itself"):
        configs.load(path)
