"""Fill a table: what is there is kept, what has a checkpoint is evaluated, the rest is trained first.

Figures are always those of the half-precision checkpoint that is kept, never of the network in memory.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from qkgcc.core.errors import InputError
from qkgcc.core.interrupts import stop_requests
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen import rendering
from qkgcc.lab.frozen.benchmark import SNRS, T60S, Benchmark
from qkgcc.lab.provenance import commit
from qkgcc.lab.scenes.engines import best_engine
from qkgcc.lab.study import catalog, evaluation, kept, results
from qkgcc.lab.training import config as configs
from qkgcc.lab.training.data import PairSet
from qkgcc.lab.training.loop import BEST, LAST, Trainer, device_name
from qkgcc.nets import checkpoint, cost

BANKS = {"paper-test": "test-clean", "paper-noise": "noise", "paper-music": "music"}

Say = Callable[[str], object]
Track = Callable[[str, int], Callable[[int], object]]
"""From what is begun and how much it is to a function that is told how much is done."""


@dataclass
class Workshop:
    """Where things are and go, and what is to be done."""

    results: Path = Path("results")
    checkpoints: Path = Path("checkpoints")
    runs: Path = Path("runs")
    banks: Sequence[Bank] = ()
    device: str = "cpu"
    engine: str | None = None
    cache: Path | None = None
    from_checkpoints: bool = False
    """Evaluate every checkpoint anew, train nothing."""
    methods: Sequence[str] = ()
    """Only these; none: all."""
    seeds: Sequence[int] = ()
    """Only these; none: all."""
    stop_after: float | None = None
    """Seconds after which no more is begun, and a training is saved and left for the next time."""
    say: Say = print
    track: Track = lambda what, total: lambda done: None

    begun: float = field(default_factory=time.monotonic)
    sets: tuple[PairSet, PairSet] | None = None
    """The pairs that all methods train on, once they are made."""

    def bank(self, name: str) -> Bank | None:
        """The bank of a set, if it was given."""
        return next((bank for bank in self.banks if bank.name == name), None)

    def left(self) -> float:
        """Seconds that are left."""
        return float("inf") if self.stop_after is None else self.stop_after - (time.monotonic() - self.begun)


def fill(table: catalog.Table, shop: Workshop) -> list[results.Row]:
    """Fill what can be filled of a table, write it after every new figure, and return its rows."""
    _check_choice(shop)
    path = shop.results / f"{table.name}.json"
    content = results.read(path)
    rows = [results.find(content, b, m.name) or _new_row(b, m) for b in table.benchmarks for m in table.methods]
    for row in rows:
        method = next(m for m in table.methods if m.name == row["method"])
        if shop.methods and method.name not in shop.methods:
            continue
        for seed in method.seeds:
            if shop.seeds and seed is not None and seed not in shop.seeds:
                continue
            known = results.find_seed(row, seed)
            found = _figures(row, method, seed, shop)
            if found is None or found == known:
                continue
            row["seeds"] = sorted(
                [one for one in row["seeds"] if one["seed"] != seed] + [found], key=lambda one: one["seed"] or 0
            )
            row.update(results.summed_up(row))
            results.write(path, table.name, rows, _about(table, rows))
    return rows


def _check_choice(shop: Workshop) -> None:
    methods = {method.name for table in catalog.TABLES.values() for method in table.methods}
    if unknown := sorted(set(shop.methods) - methods):
        raise InputError(f"there is no method {', '.join(unknown)}; there are {', '.join(sorted(methods))}")
    if unknown_seeds := sorted(set(shop.seeds) - set(catalog.SEEDS)):
        raise InputError(f"there is no seed {unknown_seeds}; there are {', '.join(map(str, catalog.SEEDS))}")


def _figures(row: results.Row, method: catalog.Method, seed: int | None, shop: Workshop) -> dict[str, Any] | None:
    """Figures of one seed: those that are known, or new ones where there is something to compute."""
    known = results.find_seed(row, seed) or _elsewhere(row, seed, shop)
    path = _checkpoint(method.name, seed, shop) if method.trained else None
    digest = None if path is None else kept.weights_hash(path)
    stale = known is not None and digest is not None and known["checkpoint"] != digest
    if (known is not None and not stale and not shop.from_checkpoints) or shop.left() <= 0:
        return known
    if not method.trained:
        return _score(evaluation.gcc_phat, row["benchmark"], seed, shop)
    if path is None and not shop.from_checkpoints:
        path = _train(method.name, seed or 0, shop)
    if path is None:
        if known is None:
            shop.say(f"there is no checkpoint {method.name}-{seed}.safetensors in {shop.checkpoints} or {shop.runs}")
        return known
    model, card = checkpoint.load(path)
    kept.check_card(path, card, method.name, seed, shop.bank("test-clean"))
    row["params"], row["flops"] = cost.parameters(model), cost.honest_flops(model)
    row["stored"] = path.stat().st_size > kept.LARGEST
    scored = _score(evaluation.network(model, card, shop.device), row["benchmark"], seed, shop)
    same = known is not None and known["checkpoint"] == digest
    validation = card.metrics["validation"]
    return scored | {
        "checkpoint": kept.weights_hash(path),
        "last": known["last"] if known and same else _last_epoch(row, method.name, seed, shop),
        "training": {
            "epoch": validation["epoch"],
            "acc10cm": validation["acc10cm"],
            "loss": validation["loss"],
            "seconds": card.metrics["seconds"],
            "device": card.metrics["device"],
        },
    }


def _last_epoch(row: results.Row, method: str, seed: int | None, shop: Workshop) -> dict[str, float] | None:
    """Figures of the last epoch's weights, beside those of the best epoch's, where the run is still at hand."""
    path = shop.runs / f"{method}-{seed}" / LAST
    if not path.exists():
        return None
    scored = _score(evaluation.network(*checkpoint.load(path), shop.device), row["benchmark"], seed, shop)
    return {key: scored[key] for key in results.METRICS}


def _elsewhere(row: results.Row, seed: int | None, shop: Workshop) -> dict[str, Any] | None:
    """The same figures in another table, whose row has the costs, too."""
    for name in catalog.TABLES:
        other = results.find(results.read(shop.results / f"{name}.json"), row["benchmark"], row["method"])
        found = results.find_seed(other, seed)
        if other is not None and found is not None:
            row.update({key: other[key] for key in ("params", "flops", "stored")})
            return found
    return None


def _checkpoint(method: str, seed: int | None, shop: Workshop) -> Path | None:
    for folder in (shop.checkpoints, shop.runs / f"{method}-{seed}"):
        path = folder / f"{method}-{seed}.safetensors"
        if path.exists():
            return path
    return None


def _train(method: str, seed: int, shop: Workshop) -> Path | None:
    """Train, or go on training; the half-precision checkpoint, or None where the time was not enough."""
    config = configs.load(method, [f"seed={seed}"])
    bank = shop.bank("test-clean")
    if bank is None:
        raise InputError(f"training {method} needs the bank of test-clean: give it, or evaluate the kept checkpoints")
    folder = shop.runs / f"{method}-{seed}"
    shop.say(f"training {method}, seed {seed}")
    trainer = Trainer(config, folder, [bank], shop.device, sets=shop.sets)
    shop.sets = trainer.data, trainer.validation
    bar = shop.track(f"{method}-{seed}", config.steps)
    # A training that is told to end saves its state first; everything else may be cut off anywhere.
    with stop_requests() as stop:
        best = trainer.run(stop_after=max(1.0, shop.left()), stop=stop, progress=bar)
        asked = stop()
    if best is None:
        shop.say(
            f"{method}, seed {seed}: stopped at epoch {len(trainer.history)} of {config.epochs}; run again to go on"
        )
    if asked:
        raise KeyboardInterrupt
    if best is None:
        return None
    shop.say(
        f"{method}, seed {seed}: {trainer.seconds:.0f} s, {1000 * trainer.seconds / config.steps:.2f} ms a step, "
        f"validation Acc@10cm {best['acc10cm']:.2f} (epoch {best['epoch']})"
    )
    return kept.keep(folder / BEST, f"{method}-{seed}", shop.checkpoints, trainer.seconds)


def _score(delays_of: evaluation.Delays, name: str, seed: int | None, shop: Workshop) -> dict[str, Any]:
    benchmark = Benchmark.named(name)
    engine = shop.engine or best_engine()
    render(benchmark, engine, shop)
    cells = shop.track(f"evaluating on {name}", len(SNRS) * len(T60S))
    begun = time.monotonic()
    scores = evaluation.evaluate(delays_of, benchmark, engine, cache=shop.cache, progress=cells)
    shop.say(
        f"  {name}, seed {seed}: RMSE {scores['rmse']:.2f}, MAE {scores['mae']:.2f}, Acc@10cm {scores['acc10cm']:.2f}"
    )
    about = {"engine": engine, "device": device_name(torch.device(shop.device)), "git": commit()}
    return {"seed": seed, **scores, **about, "seconds": round(time.monotonic() - begun, 1)}


def render(benchmark: Benchmark, engine: str, shop: Workshop) -> None:
    """Render a benchmark if it is not yet."""
    folder = rendering.benchmark_folder(benchmark, engine, shop.cache)
    if all(rendering.cell_path(folder, snr, t60).exists() for snr in SNRS for t60 in T60S):
        return
    wanted = BANKS[benchmark.name]
    bank = shop.bank(wanted)
    if bank is None:
        raise InputError(f"{benchmark.name} is not rendered yet: give the bank of {wanted}, from which it is made")
    shop.say(f"rendering {benchmark.name}, {engine} engine")
    rooms = shop.track(f"rendering {benchmark.name}", len(benchmark.ids) * len(T60S))
    done = itertools.count(1)
    rendering.render(benchmark, bank, engine, cache=shop.cache, progress=lambda: rooms(next(done)))


def _new_row(benchmark: str, method: catalog.Method) -> results.Row:
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


def _about(table: catalog.Table, rows: list[results.Row]) -> dict[str, Any]:
    """What the figures are of, by whom and in how long: training and evaluation together."""
    seeds = [one for row in rows for one in row["seeds"]]
    trained = {one["checkpoint"]: one["training"]["seconds"] for one in seeds if one.get("training")}  # each once
    seconds = sum(one["seconds"] for one in seeds) + sum(trained.values())
    return {
        "benchmark": {name: Benchmark.named(name).hash for name in table.benchmarks},
        "engine": ", ".join(sorted({one["engine"] for one in seeds})),
        "command": f"qkgcc reproduce {table.name}",
        "git": commit(),
        "device": ", ".join(sorted({one["device"] for one in seeds})),
        "seconds": round(seconds, 1),
    }
