"""Several processes, one training: ``torchrun --nproc-per-node 4 -m qkgcc train ...``. Alone, everything here is idle.

Each process takes its share of every batch; gradients are averaged by torch's DDP. The first process writes the files.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.checkpoint import checked_device


def join(wanted: str | None) -> torch.device:
    """Enter the group that torchrun has set up, if it has; the device of this process."""
    device = checked_device(wanted)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes == 1:
        return torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)


def wait() -> None:
    """For the others to come as far as this: where one ended while another still worked, torch aborted at times."""
    if active():
        dist.barrier()


def leave() -> None:
    if active():
        dist.destroy_process_group()


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def first() -> bool:
    """Whether this process writes files and shows progress."""
    return not active() or dist.get_rank() == 0


def wrap(model: nn.Module) -> nn.Module:
    """The model whose gradients are averaged over the processes."""
    if not active():
        return model
    on_gpu = next(model.parameters()).device.type == "cuda"
    return nn.parallel.DistributedDataParallel(
        # Statistics over the whole batch, not over a process's few: only GPUs can.
        nn.SyncBatchNorm.convert_sync_batchnorm(model) if on_gpu else model  # type: ignore[no-untyped-call]
    )


def share(rows: Tensor, swap: Tensor) -> tuple[Tensor, Tensor]:
    """This process's part of a batch. Shape: (batch,), (batch,) -> (batch / processes,) both"""
    if not active():
        return rows, swap
    processes, mine = dist.get_world_size(), dist.get_rank()
    if len(rows) % processes:
        raise InputError(f"a batch of {len(rows)} cannot be shared by {processes} processes: change the setting batch")
    part = slice(mine * len(rows) // processes, (mine + 1) * len(rows) // processes)
    return rows[part], swap[part]


def mean(value: Tensor) -> float:
    """Mean over the processes of a number that each has."""
    if active():
        value = value.clone()
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value)


def any_of(flag: bool) -> bool:
    """Whether any process says so: they must stop together."""
    if not active():
        return flag
    found = torch.tensor(float(flag), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)
