"""The training loop: every network, one way. A run is a folder, and goes on where it was cut off.

    config.json           what is trained
    metrics.jsonl         a line an epoch: losses, validation, seconds
    best.safetensors      the epoch with the lowest cross-entropy on the validation speakers
    last.safetensors      the end
    state.pt              everything that going on needs: weights, moments, random numbers, step

The order of the pairs and the swaps of an epoch are a pure function of (seed, epoch), so a run that was killed and
resumed ends at the same weights as one that was not: bit for bit on the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc import metrics
from qkgcc.card import Card
from qkgcc.data.banks import Bank
from qkgcc.errors import InputError
from qkgcc.files import write_whole
from qkgcc.models import checkpoint
from qkgcc.simulate import paper
from qkgcc.train import distributed
from qkgcc.train.config import Config
from qkgcc.train.data import PairSet, make_sets
from qkgcc.train.step import GraphedStep, Step, autocast, cosine, fitting_batch, make_optimizer, matrix_precision

CONFIG, METRICS, BEST, LAST, STATE = (
    "config.json",
    "metrics.jsonl",
    "best.safetensors",
    "last.safetensors",
    "state.pt",
)
SAVE_EVERY = 300.0
"""Seconds between two savings of the state within an epoch; it is always saved at an epoch's end."""

_LOOK_EVERY = 50  # steps between two looks at the clock


class Trainer:
    """One run. `Trainer(config, folder, bank, device).run()` trains it, or what is left of it, to the end."""

    def __init__(
        self,
        config: Config,
        folder: str | Path,
        bank: Bank | None = None,
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
        self.config, self.folder, self.device = config, Path(folder), torch.device(device)
        _check_device(self.device)
        self.model = _fresh_model(config).to(self.device)
        if self.device.type == "cuda" and hasattr(self.model, "folded"):
            # The same function of the same parameters, in less than two thirds of the time.
            setattr(self.model, "folded", True)  # noqa: B010 - to mypy, every attribute is a module
        options: Any = self.model.options
        self.delays = np.asarray(options.delays, dtype=np.float64)
        self.data, self.validation = sets or make_sets(
            config, bank, self.device, frame=options.frame, max_delay=(len(self.delays) - 1) // 2, progress=progress
        )
        self.step, self.history, self.seconds = 0, list[dict[str, Any]](), 0.0
        self._loss_so_far = 0.0  # of an epoch that was cut off
        self._open_folder()
        graphed = self.device.type == "cuda" and config.compile and not distributed.active()
        self.optimizer = make_optimizer(self.model, config, graphed)
        self._resume()
        trained = distributed.wrap(self.model)
        with matrix_precision(config), self._memory_explained():
            self._step = (GraphedStep if graphed else Step)(trained, self.optimizer, self.data, config)

    def run(
        self, *, progress: Callable[[int], object] | None = None, stop_after: float | None = None
    ) -> dict[str, Any] | None:
        """Train to the end; the metrics of the best epoch, or None where `stop_after` seconds came first.

        `progress` is called with the number of steps that are done. An interrupt saves the state.
        """
        begun = saved = time.monotonic()
        already = self.seconds
        with matrix_precision(self.config), self._memory_explained():
            try:
                while self.step < self.config.steps:
                    epoch, within = divmod(self.step, self.config.steps_per_epoch)
                    rows, swaps = self._order(epoch)
                    self.model.train()
                    for i in range(within, self.config.steps_per_epoch):
                        self._step(*distributed.share(rows[i], swaps[i]), cosine(self.config, self.step))
                        self.step += 1
                        if self.step % _LOOK_EVERY or self.step % self.config.steps_per_epoch == 0:
                            continue
                        now = time.monotonic()
                        self.seconds = already + now - begun
                        if progress is not None:
                            progress(self.step)
                        if distributed.any_of(stop_after is not None and now - begun > stop_after):
                            self._save_state()
                            return None
                        if now - saved > SAVE_EVERY:
                            self._save_state()
                            saved = now
                    self._end_epoch(epoch, lambda: already + time.monotonic() - begun)
                    saved = time.monotonic()
                    if progress is not None:
                        progress(self.step)
                    over = stop_after is not None and saved - begun > stop_after
                    if distributed.any_of(over) and self.step < self.config.steps:
                        return None
            except KeyboardInterrupt:
                self.seconds = already + time.monotonic() - begun
                self._save_state()
                raise
        return self.best()

    def best(self) -> dict[str, Any]:
        """Of the epochs so far, by the cross-entropy: Acc@10cm of a few thousand pairs is too noisy to choose by."""
        return min(self.history, key=lambda row: row["loss"])

    def validate(self) -> dict[str, float]:
        """Cross-entropy and the paper's metrics on the validation pairs."""
        logits = predict(self.model, self.validation.frames, self.config)
        loss = F.cross_entropy(logits, self.validation.classes)
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
            scaling="utterance",
            data_hash=self.data.hash,
            seed=self.config.seed,
            git=commit(),
            torch=torch.__version__,
            metrics={"validation": row},
        )
        checkpoint.save(self.model, path, card, dtype)

    @contextlib.contextmanager
    def _memory_explained(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            fits = fitting_batch(self.model, self.data, self.config)
            hint = f"{fits} fits: --set batch={fits}" if fits else "even 2 is: take a smaller network or set of pairs"
            raise InputError(
                f"a batch of {self.config.batch} is too large for the memory of {self.device}; {hint}"
            ) from None

    # The folder and the state in it

    def _open_folder(self) -> None:
        path = self.folder / CONFIG
        if path.exists():
            try:
                old = json.loads(path.read_text())
            except ValueError:
                raise InputError(f"{path} is damaged: delete the folder, or give another") from None
            new = json.loads(self.config.to_json())
            if changed := sorted(key for key in {*old, *new} if old.get(key) != new.get(key)):
                raise InputError(
                    f"{self.folder} holds a training with another {', '.join(changed)}: give another folder, or the "
                    "same settings to go on with it"
                )
        elif distributed.first():
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(f"cannot make the folder {self.folder}: {error.strerror or error}") from None
            write_whole(path, lambda target: target.write_text(self.config.to_json() + "\n"))

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

    def _resume(self) -> None:
        path = self.folder / STATE
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # torch raises whatever its unpickler meets
            raise InputError(f"{path} is damaged ({type(error).__name__}): delete it to train from the start") from None
        if state["data"] != self.data.hash:
            raise InputError(
                f"{self.folder} was trained on other data (hash {state['data'][:12]}, now {self.data.hash[:12]}): give "
                "the same bank, or another folder"
            )
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
        write_whole(self.folder / METRICS, lambda target: target.write_text(text))


def predict(model: nn.Module, frames: Tensor, config: Config | None = None, batch: int = 512) -> Tensor:
    """Logits of many frames, in eval mode. Shape: (N, 2, frame) -> (N, classes), float32"""
    training = model.training
    model.eval()
    parts = []
    with torch.no_grad():
        for part in torch.split(frames, batch):
            if config is None:
                parts.append(model(part).float())
            else:
                with autocast(config, part.device):
                    parts.append(model(part).float())
    model.train(training)
    return torch.cat(parts)


def _fresh_model(config: Config) -> nn.Module:
    torch.manual_seed(config.seed)
    return checkpoint.build(config.architecture, config.options)


def _check_device(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("there is no CUDA device here: leave --device out, or give cpu")


def commit() -> str | None:
    """The commit of this checkout, with a mark when files differ from it; None where there is no checkout.

    $QKGCC_COMMIT says it on a machine that has the source without its repository.
    """
    if given := os.environ.get("QKGCC_COMMIT"):
        return given
    try:
        out = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() or None if out.returncode == 0 else None
