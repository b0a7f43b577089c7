"""How good a method is on a frozen benchmark: its delays of every frame, scored cell by cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.delay import metrics
from qkgcc.dsp import gcc
from qkgcc.lab.frozen.benchmark import FRAMES, SCALE, SNRS, T60S, Benchmark
from qkgcc.lab.frozen.rendering import load_cell
from qkgcc.nets.devices import in_batches

if TYPE_CHECKING:
    import torch
    from torch import nn

    from qkgcc.network.card import Card

Delays = Callable[[npt.NDArray[np.int16]], npt.NDArray[np.float64]]
"""From frames of a benchmark to delays in samples. Shape: (N, 2, 2048) -> (N,)"""


def gcc_phat(frames: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
    """GCC-PHAT on the grid of the networks: the highest of 47 whole lags, of frames as they are cut."""
    parts = [
        gcc.delays(part.astype(np.float32), "phat", max_lag=23, interpolation="none")
        for part in np.array_split(frames, max(1, len(frames) // 500))
    ]
    return np.concatenate(parts)


def network(model: nn.Module, card: Card, device: str | torch.device) -> Delays:
    """The most likely delay by a network."""
    import torch

    if card.frame != 2048 or card.sample_rate != 16000 or card.scaling != "utterance":
        raise InputError(
            f"{card.name} takes frames of {card.frame} samples at {card.sample_rate} Hz scaled by the {card.scaling}; "
            "the paper's benchmark has 2048 at 16000 Hz scaled by the utterance"
        )
    delays = np.asarray(card.delays, dtype=np.float64)
    model = model.to(device).eval()
    if hasattr(model, "folded"):
        setattr(model, "folded", True)  # noqa: B010 - to mypy, every attribute is a module
    # On a CPU what matters is that the maps of a batch stay in its cache.
    batch = 16 if torch.device(device).type == "cpu" else 512

    def estimate(frames: npt.NDArray[np.int16]) -> npt.NDArray[np.float64]:
        # In full float32: a GPU's faster ways are for training.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            best = in_batches(
                lambda part: model(part.to(device, torch.float32) / SCALE).argmax(dim=-1).cpu(),
                torch.from_numpy(frames),
                batch,
            )
        return np.asarray(delays[best.numpy()])

    return estimate


def evaluate(
    delays_of: Delays,
    benchmark: Benchmark,
    engine: str,
    *,
    cache: Path | None = None,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """RMSE, MAE and Acc@10cm over all frames, in each of the 30 cells, and Acc@10cm of each source.

    `progress` is called with the number of cells that are done.
    """
    found, true, snrs, t60s = [], [], [], []
    for t60 in T60S:
        truth = benchmark.delays(t60)
        for snr in SNRS:
            found.append(delays_of(load_cell(benchmark, engine, snr, t60, cache)))
            true.append(truth)
            snrs.append(np.full(len(truth), snr))
            t60s.append(np.full(len(truth), t60))
            if progress is not None:
                progress(len(found))
    estimate, truth = np.concatenate(found), np.concatenate(true)
    right = metrics.hits(estimate, truth).reshape(len(found), len(benchmark.ids), FRAMES)
    keep = ("snr", "t60", "n", "rmse", "mae", "acc10cm")
    cells = metrics.evaluate_cells(estimate, truth, np.concatenate(snrs), np.concatenate(t60s))
    return {
        **{key: value for key, value in metrics.evaluate(estimate, truth).items() if key in keep},
        "cells": [{key: round(cell[key], 4) for key in keep} for cell in cells],
        "by_source": _by_source(right.reshape(len(T60S), len(SNRS), len(benchmark.ids), FRAMES)),
    }


def _by_source(right: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Acc@10cm of each source. Shape: (T60s, SNRs, sources, frames)"""
    share = 100 * right.mean(axis=-1)
    return {
        "all": share.mean(axis=(0, 1)).round(2).tolist(),
        "snr": {f"{snr:g}": share[:, i].mean(axis=0).round(1).tolist() for i, snr in enumerate(SNRS)},
        "t60": {f"{t60:g}": share[i].mean(axis=0).round(1).tolist() for i, t60 in enumerate(T60S)},
    }
