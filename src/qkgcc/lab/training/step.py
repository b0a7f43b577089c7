"""One step of training: gather a batch, swap channels, cross-entropy, gradient, Adam.

On a GPU the network is compiled and the whole step, from the gathering to the update, is recorded once as a CUDA graph
and replayed: at batch 32 the work is so little that launching it kernel by kernel would take longer than doing it.

The target is the class of the true delay, as in the paper, or a narrow Gaussian around it. With a Gaussian of a fixed
width the logits learn to be a parabola around the true delay, wherever between two candidates it lies, so that its top
can be read between them (`decoding`). Most frames of a reverberant recording allow several delays, of which the truth
is but one: a teacher's posterior says how likely each was, and a small network learns more from it than from the truth
alone. Delays that the microphones' spacing rules out take no part: whoever uses the network leaves them out, too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.lab.training.config import Config
from qkgcc.lab.training.data import PairSet

_WARM_UP_STEPS = 3  # steps before recording, for compilers and libraries to settle
_LOSS_TOLERANCE = 0.05  # share by which compiled losses may differ: rounding to TF32 and bf16 is below a hundredth
_IMPOSSIBLE = -1e4  # a logit: no probability, and no infinity to spoil a gradient


class Step:
    """Plain: for the CPU, for several processes, and where nothing is compiled."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: PairSet, config: Config) -> None:
        self.model, self.optimizer, self.data, self.config = model, optimizer, data, config
        options: Any = getattr(model, "module", model).options  # of the network itself, behind DDP
        self.grid = torch.tensor(options.delays, dtype=torch.float32, device=data.frames.device)
        self.total = torch.zeros((), device=data.frames.device)
        """Sum of the losses since it was last set to 0."""

    def __call__(self, rows: Tensor, swap: Tensor, learning_rate: float) -> None:
        """Learn from some rows of the data, the channels swapped where `swap` is true. Shape: (batch,), (batch,)"""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._learn(rows, swap)

    def check(self) -> None:
        """Raise where what is trained is not the network that will be used; here it is the same code."""

    def _learn(self, rows: Tensor, swap: Tensor) -> None:
        loss = self._loss(rows, swap)
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.total += loss.detach()

    def _loss(self, rows: Tensor, swap: Tensor) -> Tensor:
        frames, delays = self.data.frames[rows], self.data.delays[rows]
        frames = torch.where(swap[:, None, None], frames.flip(1), frames)
        with autocast(self.config, frames.device):
            logits = self.model(frames)
        limits = None if self.data.limits is None else self.data.limits[rows]
        delays = torch.where(swap, -delays, delays)
        teacher_logits = None
        if self.config.teacher and self.data.teacher_logits is not None:
            answers = self.data.teacher_logits[rows].float()
            teacher_logits = torch.where(swap[:, None], answers.flip(-1), answers)  # the grid is even around 0
        return cross_entropy(
            logits.float(),
            self.grid,
            delays,
            width=self.config.target_width,
            limits=limits,
            teacher_logits=teacher_logits,
            teacher_weight=self.config.teacher_weight,
        )


class GraphedStep(Step):
    """The same, compiled and replayed."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, data: PairSet, config: Config) -> None:
        super().__init__(model, optimizer, data, config)
        device = data.frames.device
        self._rows = torch.arange(config.batch, device=device)
        self._swap = torch.zeros(config.batch, dtype=torch.bool, device=device)
        self._compiled = torch.compile(super()._loss, dynamic=False)
        before = _snapshot(model, optimizer)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                self._learn(self._rows, self._swap)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self._graph):
            self._learn(self._rows, self._swap)
        # Warming up was no training: everything is put back to where it was.
        _restore(model, optimizer, before)
        self.total.zero_()

    def __call__(self, rows: Tensor, swap: Tensor, learning_rate: float) -> None:
        self._rows.copy_(rows, non_blocking=True)
        self._swap.copy_(swap, non_blocking=True)
        for group in self.optimizer.param_groups:
            group["lr"].fill_(learning_rate)
        self._graph.replay()

    def check(self) -> None:
        rows, swap = self._rows.clone(), self._swap.clone()
        compare_losses(self.model, lambda: super(GraphedStep, self)._loss(rows, swap), lambda: self._loss(rows, swap))

    def _loss(self, rows: Tensor, swap: Tensor) -> Tensor:
        loss: Tensor = self._compiled(rows, swap)
        return loss


def compare_losses(model: nn.Module, plain: Callable[[], Tensor], compiled: Callable[[], Tensor]) -> None:
    """Raise if the compiled loss of a batch is not the plain one. Statistics of the network stay as they were.

    Compilers err: networks have been seen whose training loss fell as it should and whose answers were nonsense. At the
    first step it need not show, for what begins as 0 hides what comes before it. Gradients are left on: without them,
    another function would be compiled.
    """
    before = [buffer.clone() for buffer in model.buffers()]
    was_training = model.training
    model.train()
    expected, found = float(plain().detach()), float(compiled().detach())
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.copy_(old)
    model.train(was_training)
    if not abs(found - expected) <= _LOSS_TOLERANCE * abs(expected):
        raise InputError(
            f"compiled, the network has a loss of {found:.4f} on a batch; as it is written, {expected:.4f}: the "
            "compiler made another function of it. Train it with compile = false"
        )


def make_optimizer(model: nn.Module, config: Config, graphed: bool) -> torch.optim.Optimizer:
    device = next(model.parameters()).device
    rate = torch.tensor(config.learning_rate, device=device) if graphed else config.learning_rate
    return torch.optim.Adam(
        model.parameters(), lr=rate, weight_decay=config.weight_decay, fused=device.type == "cuda", capturable=graphed
    )


def cosine(config: Config, step: int) -> float:
    """Learning rate of a step: half a cosine from its highest down to 0.

    >>> config = Config(name="x", architecture="qkgcc", pairs=64, batch=32, epochs=5)
    >>> [round(cosine(config, step), 5) for step in (0, 5, 10)]
    [0.001, 0.0005, 0.0]
    """
    return config.learning_rate * (0.5 + 0.5 * math.cos(math.pi * step / config.steps))


@contextlib.contextmanager
def matrix_precision(config: Config) -> Iterator[None]:
    """TF32 for matrix products and convolutions, or not, and the fastest of cuDNN's algorithms, while this lasts."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    fast = config.precision != "float32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]


def autocast(config: Config, device: torch.device) -> Any:
    wanted = config.precision == "bf16" and device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=wanted, cache_enabled=False)


def fitting_batch(model: nn.Module, data: PairSet, config: Config) -> int:
    """The largest half, quarter, ... of a batch that was too large for the memory which fits; 0 when none does."""
    batch = config.batch // 2
    while batch >= 2:
        try:
            rows = torch.arange(batch, device=data.frames.device) % len(data)
            with matrix_precision(config), autocast(config, data.frames.device):
                torch.autograd.backward(model(data.frames[rows]).float().sum())
        except torch.OutOfMemoryError:
            batch //= 2
        else:
            return batch
        finally:
            model.zero_grad(set_to_none=True)
            if data.frames.device.type == "cuda":
                torch.cuda.empty_cache()
    return 0


def _snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    moments = [
        {name: tensor.clone() for name, tensor in optimizer.state.get(p, {}).items()} for p in model.parameters()
    ]
    return weights, moments, torch.get_rng_state(), torch.cuda.get_rng_state()


def _restore(model: nn.Module, optimizer: torch.optim.Optimizer, before: Any) -> None:
    weights, moments, rng, cuda_rng = before
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights[name])
        for p, old in zip(model.parameters(), moments, strict=True):
            for name, tensor in optimizer.state[p].items():
                if name in old:
                    tensor.copy_(old[name])
                else:
                    tensor.zero_()
    torch.set_rng_state(rng)
    torch.cuda.set_rng_state(cuda_rng)


def cross_entropy(
    logits: Tensor,
    grid: Tensor,
    delays: Tensor,
    *,
    width: float = 0.0,
    limits: Tensor | None = None,
    teacher_logits: Tensor | None = None,
    teacher_weight: float = 0.0,
) -> Tensor:
    """Mean cross-entropy of logits over a grid of delays with the true ones.

    Args:
        grid: the candidate delays in samples, evenly spaced.
        width: standard deviation of the Gaussian in samples; 0: the nearest candidate.
        limits: the largest delay that each pair's microphones allow, in samples; None: all candidates.
        teacher_logits: (batch, L): `teacher_weight` of the loss is the cross-entropy with its posterior.
    Shape: (batch, L), (L,), (batch,), (batch,) -> ()

    >>> grid = torch.arange(-2.0, 3.0)
    >>> even = torch.zeros(1, 5)
    >>> round(float(cross_entropy(even, grid, torch.tensor([0.4]), limits=torch.tensor([1.0]))), 4)  # log 3
    1.0986
    """
    logits = mask_impossible_delays(logits, grid, limits)
    if width == 0:
        step = grid[1] - grid[0]
        nearest = ((delays - grid[0]) / step).round().clamp(0, len(grid) - 1).long()
        loss = F.cross_entropy(logits, nearest)
    else:
        target = mask_impossible_delays(-(((grid - delays[:, None]) / width) ** 2) / 2, grid, limits)
        loss = F.cross_entropy(logits, F.softmax(target, dim=-1))
    if teacher_logits is None:
        return loss
    posterior = F.softmax(mask_impossible_delays(teacher_logits, grid, limits), dim=-1)
    return (1 - teacher_weight) * loss + teacher_weight * F.cross_entropy(logits, posterior)


def mask_impossible_delays(logits: Tensor, grid: Tensor, limits: Tensor | None) -> Tensor:
    """Logits with no probability for the candidates beyond the limits.

    Shape: (batch, L), (L,), (batch,) -> (batch, L)
    """
    if limits is None:
        return logits
    return torch.where(grid.abs() <= limits[:, None] + 1e-6, logits, _IMPOSSIBLE)
