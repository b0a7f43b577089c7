"""Fill a table of the paper: what is there is kept, what has a checkpoint is evaluated, the rest is trained first.

Figures are always those of the half-precision checkpoint that is kept, never of the network in memory. A kept card
remembers the logits of one probe frame, so that weights that were swapped, damaged or read in another way are found
out; results remember the hash of the weights that they are of.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.core.interrupts import stop_requests
from qkgcc.core.types import Bools, Floats, Floats32
from qkgcc.delay import metrics
from qkgcc.dsp import gcc
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.paper_sets import FRAMES, SCALE, SNRS, T60S, PaperBenchmark
from qkgcc.lab.provenance import commit
from qkgcc.lab.rooms.draws import normal, stream
from qkgcc.lab.scenes.engines import best_engine
from qkgcc.lab.study import paper_tables, results
from qkgcc.lab.study.results import ReproductionRun
from qkgcc.lab.training import config as configs
from qkgcc.lab.training.data import set_hash
from qkgcc.lab.training.loop import BEST, LAST, Trainer, device_name
from qkgcc.nets import checkpoint, cost
from qkgcc.nets.checkpoint import in_batches
from qkgcc.network.card import Card

BANKS = {"paper-test": "test-clean", "paper-noise": "noise", "paper-music": "music"}

MAX_KEPT_BYTES = 5_000_000
"""Larger checkpoints stay in the folder of their run, and their rows are marked `stored`."""

_PROBE_FRAMES = 64  # on which half precision is compared with what was trained

Delays = Callable[[npt.NDArray[np.int16]], Floats]
"""From frames of a benchmark to delays in samples. Shape: (N, 2, 2048) -> (N,)"""


def fill(table: paper_tables.Table, run: ReproductionRun) -> list[results.Row]:
    """Fill what can be filled of a table, write it after every new figure, and return its rows."""
    _check_choice(run)
    path = run.results / f"{table.name}.json"
    known_rows = results.read_rows(run.results, table.name)
    rows = [results.find(known_rows, b, m.name) or _new_row(b, m) for b in table.benchmarks for m in table.methods]
    for row in rows:
        method = next(m for m in table.methods if m.name == row["method"])
        if run.methods and method.name not in run.methods:
            continue
        for seed in method.seeds:
            if run.seeds and seed is not None and seed not in run.seeds:
                continue
            known = results.find_seed(row, seed)
            found = _figures_of_seed(row, method, seed, run)
            if found is None or found == known:
                continue
            row["seeds"] = sorted(
                [one for one in row["seeds"] if one["seed"] != seed] + [found], key=lambda one: one["seed"] or 0
            )
            row.update(results.with_mean_and_std(row))
            results.write(path, table.name, rows, _about(table, rows))
    return rows


def _check_choice(run: ReproductionRun) -> None:
    methods = {method.name for table in paper_tables.TABLES.values() for method in table.methods}
    if unknown := sorted(set(run.methods) - methods):
        raise InputError(f"there is no method {', '.join(unknown)}; there are {', '.join(sorted(methods))}")
    if unknown_seeds := sorted(set(run.seeds) - set(paper_tables.SEEDS)):
        raise InputError(f"there is no seed {unknown_seeds}; there are {', '.join(map(str, paper_tables.SEEDS))}")


def _figures_of_seed(
    row: results.Row, method: paper_tables.Method, seed: int | None, run: ReproductionRun
) -> dict[str, Any] | None:
    """Figures of one seed: those that are known, or new ones where there is something to compute."""
    known = results.find_seed(row, seed) or _find_in_other_tables(row, seed, run)
    path = _checkpoint(method.name, seed, run) if method.trained else None
    digest = None if path is None else weights_hash(path)
    stale = known is not None and digest is not None and known["checkpoint"] != digest
    if (known is not None and not stale and not run.from_checkpoints) or run.seconds_left() <= 0:
        return known
    if not method.trained:
        return _score(gcc_phat, row["benchmark"], seed, run)
    if path is None and not run.from_checkpoints:
        path = _train(method.name, seed or 0, run)
    if path is None:
        if known is None:
            run.say(f"there is no checkpoint {method.name}-{seed}.safetensors in {run.checkpoints} or {run.runs}")
        return known
    model, card = checkpoint.load(path)
    check_card(path, card, method.name, seed, run.bank("test-clean"))
    row["params"], row["flops"] = cost.parameters(model), cost.honest_flops(model)
    row["stored"] = path.stat().st_size > MAX_KEPT_BYTES
    scored = _score(network_delays(model, card, run.device), row["benchmark"], seed, run)
    same = known is not None and known["checkpoint"] == digest
    validation = card.metrics["validation"]
    return scored | {
        "checkpoint": weights_hash(path),
        "last": known["last"] if known and same else _last_epoch(row, method.name, seed, run),
        "training": {
            "epoch": validation["epoch"],
            "acc10cm": validation["acc10cm"],
            "loss": validation["loss"],
            "seconds": card.metrics["seconds"],
            "device": card.metrics["device"],
        },
    }


def _last_epoch(row: results.Row, method: str, seed: int | None, run: ReproductionRun) -> dict[str, float] | None:
    """Figures of the last epoch's weights, beside those of the best epoch's, where the run is still at hand."""
    path = run.runs / f"{method}-{seed}" / LAST
    if not path.exists():
        return None
    scored = _score(network_delays(*checkpoint.load(path), run.device), row["benchmark"], seed, run)
    return {key: scored[key] for key in results.METRICS}


def _find_in_other_tables(row: results.Row, seed: int | None, run: ReproductionRun) -> dict[str, Any] | None:
    """The same figures in another table, whose row has the costs, too."""
    for name in paper_tables.TABLES:
        other = results.find(results.read_rows(run.results, name), row["benchmark"], row["method"])
        found = results.find_seed(other, seed)
        if other is not None and found is not None:
            row.update({key: other[key] for key in ("params", "flops", "stored")})
            return found
    return None


def _checkpoint(method: str, seed: int | None, run: ReproductionRun) -> Path | None:
    for folder in (run.checkpoints, run.runs / f"{method}-{seed}"):
        path = folder / f"{method}-{seed}.safetensors"
        if path.exists():
            return path
    return None


def _train(method: str, seed: int, run: ReproductionRun) -> Path | None:
    """Train, or go on training; the half-precision checkpoint, or None where the time was not enough."""
    config = configs.load(method, [f"seed={seed}"])
    bank = run.bank("test-clean")
    if bank is None:
        raise InputError(f"training {method} needs the bank of test-clean: give it, or evaluate the kept checkpoints")
    folder = run.runs / f"{method}-{seed}"
    run.say(f"training {method}, seed {seed}")
    trainer = Trainer(config, folder, [bank], run.device, sets=run.sets)
    run.sets = trainer.data, trainer.validation
    bar = run.track(f"{method}-{seed}", config.steps)
    # A training that is told to end saves its state first; everything else may be cut off anywhere.
    with stop_requests() as stop:
        best = trainer.run(stop_after=max(1.0, run.seconds_left()), stop=stop, progress=bar)
        asked = stop()
    if best is None:
        run.say(
            f"{method}, seed {seed}: stopped at epoch {len(trainer.history)} of {config.epochs}; run again to go on"
        )
    if asked:
        raise KeyboardInterrupt
    if best is None:
        return None
    run.say(
        f"{method}, seed {seed}: {trainer.seconds:.0f} s, {1000 * trainer.seconds / config.steps:.2f} ms a step, "
        f"validation Acc@10cm {best['acc10cm']:.2f} (epoch {best['epoch']})"
    )
    return keep_checkpoint(folder / BEST, f"{method}-{seed}", run.checkpoints, trainer.seconds)


def _score(delays_of: Delays, name: str, seed: int | None, run: ReproductionRun) -> dict[str, Any]:
    benchmark = PaperBenchmark.load(name)
    engine = run.engine or best_engine()
    render(benchmark, engine, run)
    cells = run.track(f"evaluating on {name}", len(SNRS) * len(T60S))
    begun = time.monotonic()
    scores = score_benchmark(delays_of, benchmark, engine, cache=run.cache, progress=cells)
    run.say(
        f"  {name}, seed {seed}: RMSE {scores['rmse']:.2f}, MAE {scores['mae']:.2f}, Acc@10cm {scores['acc10cm']:.2f}"
    )
    about = {"engine": engine, "device": device_name(torch.device(run.device)), "git": commit()}
    return {"seed": seed, **scores, **about, "seconds": round(time.monotonic() - begun, 1)}


def render(benchmark: PaperBenchmark, engine: str, run: ReproductionRun) -> None:
    """Render a benchmark if it is not yet."""
    if benchmark.is_rendered(engine, run.cache):
        return
    wanted = BANKS[benchmark.name]
    bank = run.bank(wanted)
    if bank is None:
        raise InputError(f"{benchmark.name} is not rendered yet: give the bank of {wanted}, from which it is made")
    run.say(f"rendering {benchmark.name}, {engine} engine")
    rooms = run.track(f"rendering {benchmark.name}", benchmark.steps)
    done = itertools.count(1)
    benchmark.render([bank], engine, cache=run.cache, progress=lambda: rooms(next(done)))


def _new_row(benchmark: str, method: paper_tables.Method) -> results.Row:
    fixed = {"params": 0, "flops": 3 * 5 * 4096 * 12} if not method.trained else {"params": None, "flops": None}
    return {
        "method": method.name,
        "benchmark": benchmark,
        **fixed,
        "stored": False,
        "seeds": [],
        "mean": None,
        "std": None,
    }


def _about(table: paper_tables.Table, rows: list[results.Row]) -> dict[str, Any]:
    """What the figures are of, by whom and in how long: training and evaluation together."""
    seeds = [one for row in rows for one in row["seeds"]]
    trained = {one["checkpoint"]: one["training"]["seconds"] for one in seeds if one.get("training")}  # each once
    seconds = sum(one["seconds"] for one in seeds) + sum(trained.values())
    return {
        "benchmark": {name: PaperBenchmark.load(name).hash for name in table.benchmarks},
        "engine": ", ".join(sorted({one["engine"] for one in seeds})),
        "command": f"qkgcc reproduce {table.name}",
        "git": commit(),
        "device": ", ".join(sorted({one["device"] for one in seeds})),
        "seconds": round(seconds, 1),
    }


def gcc_phat(frames: npt.NDArray[np.int16]) -> Floats:
    """GCC-PHAT on the grid of the networks: the highest of 47 whole lags, of frames as they are cut."""
    parts = [
        gcc.delays(part.astype(np.float32), "phat", max_lag=23, interpolation="none")
        for part in np.array_split(frames, max(1, len(frames) // 500))
    ]
    return np.concatenate(parts)


def network_delays(model: nn.Module, card: Card, device: str | torch.device) -> Delays:
    """The most likely delay by a network."""
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

    def estimate(frames: npt.NDArray[np.int16]) -> Floats:
        # In full float32: a GPU's faster ways are for training.
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            best = in_batches(
                lambda part: model(part.to(device, torch.float32) / SCALE).argmax(dim=-1).cpu(),
                torch.from_numpy(frames),
                batch,
            )
        return np.asarray(delays[best.numpy()])

    return estimate


def score_benchmark(
    delays_of: Delays,
    benchmark: PaperBenchmark,
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
            found.append(delays_of(benchmark.load_cell(engine, snr, t60, cache)))
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


def _by_source(right: Bools) -> dict[str, Any]:
    """Acc@10cm of each source. Shape: (T60s, SNRs, sources, frames)"""
    share = 100 * right.mean(axis=-1)
    return {
        "all": share.mean(axis=(0, 1)).round(2).tolist(),
        "snr": {f"{snr:g}": share[:, i].mean(axis=0).round(1).tolist() for i, snr in enumerate(SNRS)},
        "t60": {f"{t60:g}": share[i].mean(axis=0).round(1).tolist() for i, t60 in enumerate(T60S)},
    }


def keep_checkpoint(path: Path, name: str, folder: Path, seconds: float) -> Path:
    """A trained checkpoint in half precision: in `folder`, or beside the trained one if it is large."""
    model, card = checkpoint.load(path)
    before = _probe_logits(model, _PROBE_FRAMES, card.frame)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    after = _probe_logits(model, _PROBE_FRAMES, card.frame)
    measured: dict[str, Any] = {
        "seconds": round(seconds, 1),
        "probe": after[0].tolist(),
        "half_precision": {
            "largest_difference": float((after - before).abs().max()),
            "same_delay": float((after.argmax(dim=1) == before.argmax(dim=1)).float().mean()),
        },
    }
    card = dataclasses.replace(card, metrics=card.metrics | measured)
    half = path.with_name(f"{name}.safetensors")
    checkpoint.save(model, half, card, torch.float16)
    if half.stat().st_size > MAX_KEPT_BYTES:
        return half
    folder.mkdir(parents=True, exist_ok=True)
    return half.replace(folder / half.name)


def probe_error(model: nn.Module, card: Card) -> float:
    """How far the logits of the probe are from those that the card remembers, relative to their size."""
    then = torch.tensor(card.metrics["probe"])
    now = _probe_logits(model, 1, card.frame)[0]
    return float((now - then).abs().max() / then.abs().max())


def weights_hash(path: Path) -> str:
    """Names the weights in a file, whatever its card says."""
    digest = hashlib.sha256()
    try:
        with safe_open(path, framework="np") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                digest.update(f"{name}:{tensor.dtype}:{tensor.shape}".encode())
                digest.update(np.ascontiguousarray(tensor).tobytes())
    except SafetensorError as error:
        raise InputError(f"{path} is not a safetensors file, or is damaged or cut short ({error})") from None
    return digest.hexdigest()[:16]


def check_card(path: Path, card: Card, method: str, seed: int | None, bank: Bank | None) -> None:
    """An `InputError` unless a checkpoint is the training of a method: its network, its grid, its data."""
    config = configs.load(method)
    with torch.device("meta"):
        options: Any = checkpoint.build(config.architecture, config.options).options
    expected: dict[str, Any] = {
        "name": f"{method}-{seed}",
        "architecture": config.architecture,
        "seed": seed,
        "options": dataclasses.asdict(options),
        "delays": tuple(options.delays),
    }
    if bank is not None:
        expected["data_hash"] = set_hash(config, [bank], "train", options.frame)
    for name, wanted in expected.items():
        if name == "options":  # those that are younger than the checkpoint have their defaults
            card = dataclasses.replace(card, options=dataclasses.asdict(type(options).read(card.options)))
        if (found := getattr(card, name)) != wanted:
            raise InputError(f"{path} is not {method}-{seed}: its {name} is {found!r}, expected {wanted!r}")


def probe_frames(count: int, frame: int) -> Floats32:
    """Noise that channel 1 hears 5 samples later, the same on every machine. Shape: (count, 2, frame)"""
    noise = normal(stream("probe", 0), np.arange(count * (frame + 5), dtype=np.int64)).reshape(count, frame + 5)
    return np.stack([noise[:, :-5], noise[:, 5:]], axis=1)


def _probe_logits(model: nn.Module, count: int, frame: int) -> Tensor:
    """Of the first `count` probe frames."""
    frames = torch.from_numpy(probe_frames(count, frame))
    with torch.inference_mode():
        logits: Tensor = model(frames.to(next(model.parameters()).device)).float().cpu()
    return logits
