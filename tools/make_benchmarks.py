"""Draw the frozen benchmarks: manifests and fingerprints in src/qkgcc/lab/frozen/benchmarks.

    python tools/make_benchmarks.py --banks FOLDER     (FOLDER/test-clean, music, noise: `qkgcc data bank`)

Done once. Running it again gives the same manifests; a change of one makes a new benchmark, under a new hash.
`array-test` takes half an hour on one core, and goes on where it stopped.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import Progress, track

from qkgcc.core.files import write_whole
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen import array_benchmark, array_rendering, general_benchmark, rendering
from qkgcc.lab.frozen.benchmark import NAMES, SNRS, T60S, Benchmark, make_manifest
from qkgcc.lab.frozen.fingerprints import fingerprint

FOLDER = Path(__file__).parents[1] / "src" / "qkgcc" / "data" / "benchmarks"
SETS = {"paper-test": "test-clean", "paper-music": "music", "paper-noise": "noise"}
SEED = 2026


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--banks", type=Path, required=True)
    parser.add_argument(
        "--only", choices=[*NAMES, general_benchmark.NAME, array_benchmark.NAME], help="one of the sets"
    )
    parser.add_argument("--cache", type=Path, help="where array-test is rendered to (default: the user's cache folder)")
    parser.add_argument("--jobs", type=int, help="threads that render array-test (default: one a core)")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if arguments.only in (None, general_benchmark.NAME):
        make_general([Bank.load(arguments.banks / name, verify=True) for name in SETS.values()])
    if arguments.only in (None, array_benchmark.NAME):
        make_arrays(Bank.load(arguments.banks / "test-clean", verify=True), arguments.cache, arguments.jobs)
    for name in NAMES:
        if arguments.only not in (None, name):
            continue
        bank = Bank.load(arguments.banks / SETS[name], verify=True)
        with Progress() as progress:
            rooms = len(bank.select(split="test")) * len(T60S)
            task = progress.add_task(f"{name}: levels", total=rooms)
            manifest = make_manifest(name, bank, SEED, lambda task=task: progress.advance(task))
            (FOLDER / f"{name}.json").write_text(json.dumps(manifest, indent=None, separators=(",", ":")) + "\n")
            benchmark = Benchmark.named(name)
            task = progress.add_task(f"{name}: cells", total=rooms)

            def cells_of(
                t60: float, bank: Bank = bank, benchmark: Benchmark = benchmark, task=task
            ) -> dict[str, dict[str, str]]:
                clean = benchmark.clean(bank, t60, engine="cpu", progress=lambda: progress.advance(task))
                return {
                    f"{snr}/{t60}": fingerprint(benchmark.frames(clean, snr, t60), len(benchmark.ids)) for snr in SNRS
                }

            with ThreadPoolExecutor(2) as pool:
                cells = {cell: print_ for found in pool.map(cells_of, T60S) for cell, print_ in found.items()}
        record = {"manifest": benchmark.hash, "engine": "cpu", "cells": cells}
        (FOLDER / f"{name}.fingerprints.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {benchmark.hash}, {len(benchmark.ids)} sources")


def make_general(banks: list[Bank]) -> None:
    manifest = general_benchmark.make_manifest(banks, SEED)
    name = general_benchmark.NAME
    (FOLDER / f"{name}.json").write_text(json.dumps(manifest, separators=(",", ":")) + "\n")
    made = general_benchmark.GeneralBenchmark.load()
    cells = {}
    for first, last in track(list(general_benchmark.chunks(len(manifest["digests"]))), description=name):
        cells[str(first)] = fingerprint(made.frames(banks, first, last, engine="cpu"), last - first)
    record = {"manifest": made.hash, "engine": "cpu", "cells": cells}
    (FOLDER / f"{name}.fingerprints.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{name}: {made.hash}, {len(manifest['digests'])} scenes")


def make_arrays(bank: Bank, cache: Path | None, jobs: int | None) -> None:
    """Scene by scene, each with its fingerprint: an hour's work is not lost."""
    name = array_benchmark.NAME
    manifest = array_benchmark.make_manifest(bank, SEED)
    (FOLDER / f"{name}.json").write_text(json.dumps(manifest, separators=(",", ":")) + "\n")
    made = array_benchmark.ArrayBenchmark.load()
    path = FOLDER / f"{name}.fingerprints.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("manifest") != made.hash:
        record = {"manifest": made.hash, "engine": "cpu", "cells": {}}

    def keep(target: Path) -> None:
        target.write_text(json.dumps(record, indent=1) + "\n")

    write_whole(path, keep)
    for index in track(range(len(made)), description=name):
        if str(index) in record["cells"]:
            continue
        array_rendering.render(made, bank, [index], cache=cache, jobs=jobs)
        audio = rendering.loaded(made, *array_rendering.whereabouts(made, index, "cpu", cache))
        record["cells"][str(index)] = fingerprint(audio, 1)
        write_whole(path, keep)
    print(f"{name}: {made.hash}, {len(made)} scenes")


if __name__ == "__main__":
    main()
