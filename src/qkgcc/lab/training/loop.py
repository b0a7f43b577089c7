"""The training loop: every network, one way. A run is a folder, and goes on where it was cut off.

    config.json           what is trained
    metrics.jsonl         a line an epoch: losses, validation, seconds
    best.safetensors      the epoch with the lowest cross-entropy on the validation speakers
    last.safetensors      the end
    state.pt              everything that going on needs: weights, moments, random numbers, step

The order of the pairs and the swaps of an epoch are a pure function of (seed, epoch), so a run that was killed and
resumed ends at the same weights as one that was not: bit for bit on the CPU.

A training may have a teacher, a larger network that is trained already. What it says of every pair of the set is
computed once, before the training: in the mean with the mirrored answer of the swapped pair, where the network can do
that, so that it holds for both orders of the channels.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.core.files import make_folder, write_whole
from qkgcc.core.tables import parse_json, read_text, save_text
from qkgcc.delay import metrics
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes import paper
from qkgcc.lab.training import distributed
from qkgcc.lab.training.config import Config
from qkgcc.lab.training.data import PairSet, make_sets, set_hash
from qkgcc.lab.training.step import (
    GraphedStep,
    Step,
    autocast,
    cosine,
    cross_entropy,
    fitting_batch,
    make_optimizer,
    mask_impossible_delays,
    matrix_precision,
)
from qkgcc.nets import checkpoint
from qkgcc.nets.checkpoint import checked_device, in_batches
from qkgcc.network import files
from qkgcc.network.card import Card
from qkgcc.network.steered import SteeredModel

CONFIG, METRICS, BEST, LAST, STATE = (
    "config.json",
    "metrics.jsonl",
    "best.safetensors",
    "last.safetensors",
    "state.pt",
)
SAVE_EVERY = 300.0
"""Seconds between two savings of the state within an epoch; it is always saved at an epoch's end."""

_AGREE_EVERY = 20  # steps after which several processes agree whether to stop
_TEACHER_BATCH = 512  # pairs that a teacher answers at once


class Trainer:
    """One run. `Trainer(config, folder, banks, device).run()` trains it, or what is left of it, to the end."""

    def __init__(
        self,
        config: Config,
        folder: str | Path,
        banks: Sequence[Bank] = (),
        device: str | torch.device = "cpu",
        *,
        sets: tuple[PairSet, PairSet] | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        """Build the network, make the data, read the state of a run that was cut off.

        Args:
            sets: training and validation pairs that are there already, for several trainings on the same.
            progress: called with the number of pairs made since the last call, while the data is generated.
        """
        self.config, self.folder, self.device = config, Path(folder), torch.device(checked_device(str(device)))
        self.model = _first_model(config).to(self.device)
        if hasattr(self.model, "folded"):
            # The same function of the same parameters, in less than two thirds of the time; less on a CPU, too.
            setattr(self.model, "folded", True)  # noqa: B010 - to mypy, every attribute is a module
        options: Any = self.model.options
        self.delays = np.asarray(options.delays, dtype=np.float64)
        # What can be wrong is found before the rooms are made: on a CPU that may take an hour.
        self._learnt_from = check_teacher(config, options) if config.teacher else {}
        if config.start:
            self._learnt_from["start"] = checkpoint.load(config.start)[1].name
        self._open_folder()
        state = self._read_state(sets[0].hash if sets else set_hash(config, banks, "train", options.frame))
        with self._explain_memory():
            self.data, self.validation = sets or make_sets(
                config, banks, self.device, frame=options.frame, progress=progress
            )
            if config.teacher and self.data.teacher_logits is None:
                logits = teacher_logits(config, self.data.frames)
                self.data = dataclasses.replace(self.data, teacher_logits=logits)
        self.step, self.history, self.seconds = 0, list[dict[str, Any]](), 0.0
        self._loss_so_far = 0.0  # of an epoch that was cut off
        graphed = self.device.type == "cuda" and config.compile and not distributed.active()
        self.optimizer = make_optimizer(self.model, config, graphed)
        if state is not None:
            self._resume(state)
        wrapped = distributed.wrap(self.model)
        with matrix_precision(config), self._explain_memory():
            self._step = (GraphedStep if graphed else Step)(wrapped, self.optimizer, self.data, config)

    def run(
        self,
        *,
        progress: Callable[[int], object] | None = None,
        stop_after: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any] | None:
        """Train to the end; the metrics of the best epoch, or None where it was told to stop before.

        Args:
            progress: called with the number of steps that are done.
            stop_after: seconds after which to save the state and stop.
            stop: asked between steps whether to save the state and stop (`interrupts.stop_requests`). An exception in
                the middle of a step saves nothing: half a step is no state to go on from.
        """
        begun = saved = time.monotonic()
        already = self.seconds
        with matrix_precision(self.config), self._explain_memory():
            while self.step < self.config.steps:
                epoch, within = divmod(self.step, self.config.steps_per_epoch)
                rows, swaps = self._order(epoch)
                self.model.train()
                for i in range(within, self.config.steps_per_epoch):
                    self._step(*distributed.share(rows[i], swaps[i]), cosine(self.config, self.step))
                    self.step += 1
                    if self.step % self.config.steps_per_epoch == 0 or not self._is_time_to_look():
                        continue
                    now = time.monotonic()
                    self.seconds = already + now - begun
                    if progress is not None:
                        progress(self.step)
                    if distributed.any_of(stop() or (stop_after is not None and now - begun > stop_after)):
                        self._save_state()
                        return None
                    if distributed.any_of(now - saved > SAVE_EVERY):
                        self._save_state()
                        saved = now
                self._end_epoch(epoch, lambda: already + time.monotonic() - begun)
                saved = time.monotonic()
                if progress is not None:
                    progress(self.step)
                over = stop() or (stop_after is not None and saved - begun > stop_after)
                if distributed.any_of(over) and self.step < self.config.steps:
                    return None
        return self.best()

    def _is_time_to_look(self) -> bool:
        """Whether to look at the clock; seldom where that takes the agreement of several processes."""
        return not distributed.active() or self.step % _AGREE_EVERY == 0

    def best(self) -> dict[str, Any]:
        """Of the epochs so far, by the cross-entropy: Acc@10cm of a few thousand pairs is too noisy to choose by."""
        return min(self.history, key=lambda row: row["loss"])

    def validate(self) -> dict[str, float]:
        """Cross-entropy and the paper's metrics on the validation pairs."""
        logits = predict(self.model, self.validation.frames, self.config)
        grid = torch.as_tensor(self.delays, dtype=torch.float32, device=logits.device)
        limits = self.validation.limits
        loss = cross_entropy(logits, grid, self.validation.delays, width=self.config.target_width, limits=limits)
        logits = mask_impossible_delays(logits, grid, limits)
        found = self.delays[logits.argmax(dim=-1).cpu().numpy()]
        return {"loss": float(loss)} | metrics.evaluate(found, self.validation.delays.cpu().numpy())

    def _order(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Rows and swaps of each step of an epoch. Shape: (steps, batch) both"""
        generator = torch.Generator().manual_seed((self.config.seed << 32) + epoch)
        shape = self.config.steps_per_epoch, self.config.batch
        order = torch.randperm(len(self.data), generator=generator)[: shape[0] * shape[1]].reshape(shape)
        swaps = torch.rand(shape, generator=generator) < (0.5 if self.config.swap else 0.0)
        return order.to(self.device), swaps.to(self.device)

    def _end_epoch(self, epoch: int, clock: Callable[[], float]) -> None:
        total = self._loss_so_far + distributed.mean(self._step.total)
        self._step.total.zero_()
        self._loss_so_far = 0.0
        if not np.isfinite(total):
            raise InputError(
                f"the loss is no longer finite in epoch {epoch + 1}: lower learning_rate, or use precision float32"
            )
        self._step.check()
        scores = self.validate()
        self.seconds = clock()
        row = {
            "epoch": epoch + 1,
            "step": self.step,
            "train_loss": total / self.config.steps_per_epoch,
            **scores,
            "seconds": round(self.seconds, 2),
        }
        self.history.append(row)
        if distributed.first():
            self._write_metrics()
            if self.best() is row:
                self.save(self.folder / BEST, row)
            if self.step == self.config.steps:
                self.save(self.folder / LAST, row)
        self._save_state()

    def save(self, path: Path, row: dict[str, Any], dtype: torch.dtype = torch.float32) -> None:
        """A checkpoint with its card."""
        options: Any = self.model.options
        card = Card(
            name=f"{self.config.name}-{self.config.seed}",
            architecture=self.config.architecture,
            options=dataclasses.asdict(options),
            sample_rate=paper.SAMPLE_RATE,
            frame=options.frame,
            dft=options.dft,
            delays=options.delays,
            scaling="utterance" if self.config.distribution == "paper" else "frame",
            data_hash=self.data.hash,
            seed=self.config.seed,
            git=commit(),
            torch=torch.__version__,
            metrics={"validation": row, "device": device_name(self.device)} | self._learnt_from,
        )
        checkpoint.save(self.model, path, card, dtype)

    @contextlib.contextmanager
    def _explain_memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            if not hasattr(self, "data"):
                raise InputError(
                    f"{self.config.pairs} pairs do not fit into the memory of {self.device}: set fewer pairs"
                ) from None
            fits = fitting_batch(self.model, self.data, self.config)
            hint = f"{fits} fits: set batch={fits}" if fits else "even 2 is: take a smaller network or set of pairs"
            raise InputError(
                f"a batch of {self.config.batch} is too large for the memory of {self.device}; {hint}"
            ) from None

    # The folder and the state in it

    def _open_folder(self) -> None:
        path = self.folder / CONFIG
        if path.exists():
            try:
                old = dict(parse_json(read_text(path), str(path)))
            except (ValueError, TypeError):
                raise InputError(f"{path} is damaged: delete the folder, or give another") from None
            new = json.loads(self.config.to_json())
            if changed := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
                raise InputError(
                    f"{self.folder} holds a training with another {', '.join(changed)}: give another folder, or the "
                    "same settings to go on with it"
                )
        elif distributed.first():
            if others := [name for name in (METRICS, BEST, LAST, STATE) if (self.folder / name).exists()]:
                raise InputError(
                    f"{self.folder} holds {', '.join(others)} without the {CONFIG} of a training: give another folder"
                )
            make_folder(self.folder)
            save_text(self.config.to_json(), path)

    def _save_state(self) -> None:
        loss = self._loss_so_far + distributed.mean(self._step.total)
        if not distributed.first():
            return
        state = {
            "data": self.data.hash,
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
            "loss": loss,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state() if self.device.type == "cuda" else None,
        }
        write_whole(self.folder / STATE, lambda target: torch.save(state, target))

    def _read_state(self, data: str) -> dict[str, Any] | None:
        """What a run that was cut off has left, if it is of the same data."""
        path = self.folder / STATE
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
            found = state["data"]
        except Exception as error:  # torch raises whatever its unpickler meets
            raise InputError(f"{path} is damaged ({type(error).__name__}): delete it to train from the start") from None
        if found != data:
            raise InputError(
                f"{self.folder} was trained on other data (hash {found[:12]}, now {data[:12]}): give the same bank, or "
                "another folder"
            )
        return state

    def _resume(self, state: dict[str, Any]) -> None:
        self.step, self.history, self.seconds = state["step"], state["history"], state["seconds"]
        self._loss_so_far = state["loss"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"].cpu())
        if self.device.type == "cuda" and state["cuda_random"] is not None:
            torch.cuda.set_rng_state(state["cuda_random"].cpu())
        if distributed.first():
            self._write_metrics()

    def _write_metrics(self) -> None:
        text = "".join(json.dumps(row) + "\n" for row in self.history)
        save_text(text, self.folder / METRICS)


def predict(model: nn.Module, frames: Tensor, config: Config | None = None, batch: int = 512) -> Tensor:
    """Logits of many frames, in eval mode. Shape: (N, 2, frame) -> (N, classes), float32"""
    training = model.training
    model.eval()
    mixed = contextlib.nullcontext() if config is None else autocast(config, frames.device)
    with torch.no_grad(), mixed:
        logits = in_batches(lambda part: model(part).float(), frames, batch)
    model.train(training)
    return logits


def _first_model(config: Config) -> nn.Module:
    torch.manual_seed(config.seed)
    model = checkpoint.build(config.architecture, config.options)
    if config.start:
        if not Path(config.start).is_file():
            raise InputError(
                f"{config.name} goes on from the weights of {config.start}, which is not there: set start to its path, "
                "or to nothing to begin with random ones"
            )
        start, card = checkpoint.load(config.start)
        options: Any = model.options
        if card.architecture != config.architecture or start.options != options:
            raise InputError(f"{config.start} is another network than {config.name}: its weights do not fit")
        model.load_state_dict(start.state_dict())
    return model


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, torch {torch.__version__}, {sys.platform}"


def check_teacher(config: Config, options: Any) -> dict[str, Any]:
    """What a card remembers of its network's teacher; an `InputError` where it cannot teach this network."""
    if not Path(config.teacher).is_file():
        raise InputError(
            f"{config.name} learns from the network {config.teacher}, which is not there: set teacher to its "
            "path, or to nothing to learn without"
        )
    _, card = checkpoint.load(config.teacher)
    scaling = "utterance" if config.distribution == "paper" else "frame"
    same = (card.sample_rate, card.frame, card.scaling) == (paper.SAMPLE_RATE, options.frame, scaling)
    if not same or len(card.delays) != len(options.delays) or not np.allclose(card.delays, options.delays):
        raise InputError(
            f"{config.teacher} cannot teach {config.name}: it takes other frames, or answers for other delays"
        )
    return {"teacher": {"name": card.name, "weight": config.teacher_weight}}


def teacher_logits(config: Config, frames: Tensor) -> Tensor:
    """What the teacher says of every pair, in half precision, on its device. Shape: (N, 2, frame) -> (N, classes)"""
    card, weights = files.read(Path(config.teacher))
    if frames.device.type == "cpu" and card.architecture == "steered":
        return _logits_by_kernel(SteeredModel(card, weights, Path(config.teacher)), frames)
    model: Any = checkpoint.load(config.teacher)[0].to(frames.device).eval()
    if hasattr(model, "folded"):
        model.folded = True
    if hasattr(model, "symmetric"):
        model.symmetric = True
    with torch.no_grad(), matrix_precision(config), autocast(config, frames.device):
        return in_batches(lambda part: model(part).half(), frames, _TEACHER_BATCH)


def _logits_by_kernel(model: SteeredModel, frames: Tensor) -> Tensor:
    """Without torch: several times as fast on a CPU."""
    delays = np.asarray(model.card.delays, dtype=np.float64)

    def answer(part: Tensor) -> Tensor:
        given = part.numpy()
        as_is, swapped = (model.logits(one, None, delays) for one in (given, np.ascontiguousarray(given[:, ::-1])))
        return torch.from_numpy((as_is + swapped[:, ::-1]) / 2).half()

    return in_batches(answer, frames, _TEACHER_BATCH)
