"""What each part of the steered network is worth: variants of one base, each trained on the same pairs.

    python -m benchmarks.designs --law general --bank banks/test-clean --bank banks/dev-clean ... base radius-0 dft-4096
    python -m benchmarks.designs --law large --epochs 2 --device cuda --bank banks/test-clean ... windows-512 whole
    python -m benchmarks.designs --law paper --epochs 10 --bank banks/test-clean --device cuda base positions-65

`--law general` trains small networks on 20,000 frames of the general distribution, minutes each on two cores; `--law
large` takes the 800,000 frames that `general` is trained on, and a GPU; `--law paper` trains the full networks on the
paper's pairs, on a GPU too, and scores them on `paper-test`, in another room. Short trainings rank designs, they are no
results. Each run adds its rows to results/designs.json.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.timing import RESULTS, figures, into_document, write
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen.benchmark import Benchmark
from qkgcc.lab.study import evaluation
from qkgcc.lab.study.reproduce import Workshop, render
from qkgcc.lab.training import config as configs
from qkgcc.lab.training.data import PairSet
from qkgcc.lab.training.loop import BEST, Trainer, device_name
from qkgcc.nets import checkpoint, cost
from qkgcc.nets.steered import Steered

_LARGE = [
    "distribution=general",
    "pairs=800000",
    "validation_pairs=8000",
    "frames_per_scene=16",
    "target_width=0.7",
    "batch=256",
    "learning_rate=2e-3",
    "options.max_delay=96",
    "options.positions=65",
    "options.radius=2",
    "options.maps=24",
    "options.delay_channels=64",
]
BASES = {
    "paper": [],
    "large": _LARGE,
    "taught": [*_LARGE, "teacher=checkpoints/general-teacher.safetensors"],
    "general": [
        "distribution=general",
        "pairs=20000",
        "validation_pairs=3000",
        "frames_per_scene=10",
        "synthetic_pool=256",
        "target_width=0.7",
        "learning_rate=2e-3",
        "options.max_delay=96",
        "options.dft=2048",
        "options.positions=65",
        "options.width=64",
        "options.radius=2",
        "options.channels=16",
        "options.maps=12",
    ],
}
_SAME = ("law", "variant", "changes", "epochs")
_WINDOWS = ["options.window=512", "options.dft=512"]
_SMALL_WINDOWS = [
    *_WINDOWS,
    "options.radius=1",
    "options.width=64",
    "options.channels=12",
    "options.maps=12",
    "options.delay_channels=32",
]
_AROUND = [*_WINDOWS, "options.channels=28", "options.maps=20", "options.delay_channels=48"]
VARIANTS = {
    "base": [],
    "radius-0": ["options.radius=0"],
    "radius-4": ["options.radius=4"],
    "radius-8": ["options.radius=8"],
    "dft-2048": ["options.dft=2048"],
    "dft-4096": ["options.dft=4096"],
    "pool-2": ["options.pool=2"],
    "projection-32": ["options.projection=32"],
    "positions-17": ["options.positions=17"],
    "positions-65": ["options.positions=65"],
    "positions-257": ["options.positions=257"],
    "heads-8": ["options.heads=8"],
    "channels-64": ["options.channels=64"],
    "maps-24": ["options.maps=24"],
    "maps-32": ["options.maps=32"],
    "delays-64": ["options.delay_channels=64"],
    "no-magnitude": ["options.magnitude=false"],
    "classes": ["target_width=0.0"],
    "width-0.5": ["target_width=0.5"],
    "width-0.7": ["target_width=0.7"],
    "width-1.0": ["target_width=1.0"],
    "wide": [
        "options.positions=65",
        "options.channels=128",
        "options.maps=64",
        "options.kernel=7",
        "options.delay_channels=96",
    ],
    "windows-256": ["options.window=256", "options.dft=256", "options.radius=1"],
    "windows-512": _WINDOWS,
    "windows-512-radius-1": [*_WINDOWS, "options.radius=1"],
    "windows-512-small": _SMALL_WINDOWS,
    "windows-512-small-18": [*_SMALL_WINDOWS, "options.channels=18", "options.delay_channels=36"],
    "windows-512-24": [*_WINDOWS, "options.channels=24", "options.maps=12", "options.delay_channels=48"],
    "surroundings": [*_AROUND, "options.blocks=3", "options.block_channels=96"],
    "surroundings-kernel-3": [*_AROUND, "options.blocks=3", "options.block_channels=96", "options.kernel=3"],
    "surroundings-by-2": [*_AROUND, "options.blocks=3", "options.block_channels=64", "options.coarse=2"],
    "surroundings-by-8": [*_AROUND, "options.blocks=4", "options.block_channels=128", "options.coarse=8"],
    "surroundings-small": [
        *_SMALL_WINDOWS,
        "options.blocks=2",
        "options.block_channels=48",
    ],
    "windows-1024": ["options.window=1024", "options.dft=1024"],
    "whole": ["options.dft=2048", "options.radius=4", "options.channels=48", "options.maps=32"],
    "whole-wide": [
        "options.dft=2048",
        "options.radius=4",
        "options.channels=96",
        "options.maps=64",
        "options.kernel=7",
        "options.delay_channels=96",
    ],
    "middle": ["options.positions=65", "options.channels=64", "options.maps=32", "options.delay_channels=64"],
}


def score(model: Steered, card: Any, device: str, shop: Workshop) -> dict[str, float]:
    """On `paper-test`, as it is and made symmetric."""
    benchmark, engine = Benchmark.named("paper-test"), shop.engine or "cpu"
    render(benchmark, engine, shop)
    found = {}
    for name, symmetric in (("paper-test", False), ("symmetric", True)):
        model.symmetric = symmetric
        scores = evaluation.evaluate(evaluation.network(model, card, device), benchmark, engine, cache=shop.cache)
        found[name] = float(scores["acc10cm"])
    model.symmetric = False
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", nargs="+", choices=VARIANTS)
    parser.add_argument("--law", choices=BASES, required=True)
    parser.add_argument("--bank", type=Path, action="append", required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--set", action="append", default=[], help="change a setting of all of them")
    arguments = parser.parse_args()
    law, device = arguments.law, arguments.device
    banks = [Bank.load(path) for path in arguments.bank]
    engine = "gpu" if device == "cuda" else "cpu"
    shop = Workshop(banks=banks, device=device, engine=engine, cache=arguments.cache)
    old = RESULTS / "designs.json"
    rows = [figures(row) for row in json.loads(old.read_text())["rows"]] if old.exists() else []
    sets: tuple[PairSet, PairSet] | None = None
    for name in arguments.variant:
        changes = ["options={}", *BASES[law], f"epochs={arguments.epochs}", *VARIANTS[name], *arguments.set]
        config = configs.load("steered", changes)
        folder = Path(tempfile.mkdtemp())
        trainer = Trainer(config, folder, banks, device, sets=sets)
        sets = trainer.data, trainer.validation
        with Progress() as progress:
            bar = progress.add_task(name, total=config.steps)
            best = trainer.run(progress=lambda done, bar=bar, progress=progress: progress.update(bar, completed=done))
        assert best is not None
        model, card = checkpoint.load(folder / BEST)
        assert isinstance(model, Steered)
        scored = score(model, card, device, shop) if law == "paper" else {"paper-test": None, "symmetric": None}
        shutil.rmtree(folder)
        model = model.cpu()
        model.folded = True
        row = {
            "law": law,
            "variant": name,
            "changes": " ".join([*VARIANTS[name], *arguments.set]),
            "epochs": arguments.epochs,
            "on": device_name(trainer.device),
            "parameters": cost.parameters(model),
            "MMAC": cost.honest_flops(model) / 2e6,
            "loss": float(best["loss"]),
            "Acc@10cm": float(best["acc10cm"]),
            **scored,
            "ms a step": 1000 * trainer.seconds / config.steps,
        }
        rows = [one for one in rows if any(one[key] != row[key] for key in _SAME)] + [row]
        save(rows)


def save(rows: list[dict[str, Any]]) -> None:
    """Best designs first, law by law; in short in docs/reports/steered.md, too."""
    rows.sort(key=lambda one: (one["law"], one["epochs"], one["loss"]))
    notes = [
        f"General: {BASES['general']}. Large: {BASES['large']}. Taught: the same, by `general-teacher`. "
        "`loss` and `Acc@10cm` are of unseen pairs of the same law, best epoch; losses with another `target_width` are "
        "of other targets, only their Acc@10cm compares. `symmetric` is the mean with the mirrored answer of the "
        "swapped pair."
    ]
    formats = {"MMAC": ".1f", "loss": ".4f"}
    command = "python -m benchmarks.designs"
    write("designs", "Designs of the steered network", command, list(rows[0]), rows, notes, formats=formats)
    into_document("designs", in_short(rows), "reports/steered.md")


def in_short(rows: list[dict[str, Any]]) -> str:
    """A line a design, as Markdown."""
    headings = ["law", "design", "epochs", "parameters", "MMAC", "loss", "Acc@10cm"]
    lines = ["| " + " | ".join(headings) + " |", "| --- | --- |" + " ---: |" * (len(headings) - 2)]
    for row in rows:
        numbers = f"{row['epochs']} | {row['parameters']:,} | {row['MMAC']:.1f} | {row['loss']:.3f}"
        lines.append(f"| {row['law']} | {row['variant']} | {numbers} | {row['Acc@10cm']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
