"""Draw the frozen benchmarks: manifests and fingerprints in src/qkgcc/lab/frozen/benchmarks.

    python tools/make_benchmarks.py --banks FOLDER     (FOLDER/test-clean, music, noise: `qkgcc data bank`)

Done once. Running it again gives the same manifests; a change of one makes a new benchmark, under a new hash.
`array-test` takes half an hour on one core. A run that was interrupted goes on at the first part without a fingerprint.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.progress import Progress

from qkgcc.core.files import write_whole
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.frozen import array_set, general_set, paper_sets
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.frozen.benchmark import FrozenBenchmark, fingerprint
from qkgcc.lab.frozen.general_set import GeneralBenchmark
from qkgcc.lab.frozen.paper_sets import PaperBenchmark

FOLDER = Path(__file__).parents[1] / "src" / "qkgcc" / "lab" / "frozen" / "benchmarks"
BANKS = ("test-clean", "music", "noise")
SEED = 2026
KINDS: dict[str, type[FrozenBenchmark]] = {
    name: kind for kind in (PaperBenchmark, GeneralBenchmark, ArrayBenchmark) for name in kind.NAMES
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--banks", type=Path, required=True)
    parser.add_argument("--only", choices=KINDS, help="one of the sets")
    parser.add_argument("--jobs", type=int, help="threads that render a scene of array-test (default: one a core)")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    banks = {name: Bank.load(arguments.banks / name, verify=True) for name in BANKS}
    for name in [arguments.only] if arguments.only else KINDS:
        with Progress() as progress:
            manifest = make_manifest(name, banks, progress)
            text = json.dumps(manifest, separators=(",", ":")) + "\n"
            write_whole(FOLDER / f"{name}.json", lambda target, text=text: target.write_text(text))
            benchmark = KINDS[name].load(name)
            make_fingerprints(benchmark, [banks[each] for each in benchmark.bank_names], arguments.jobs, progress)
        print(f"{name}: {benchmark.hash}, {len(benchmark.fingerprints)} parts")


def make_manifest(name: str, banks: dict[str, Bank], progress: Progress) -> dict[str, Any]:
    if name == array_set.NAME:
        return array_set.make_manifest(banks["test-clean"], SEED)
    if name == general_set.NAME:
        return general_set.make_manifest(list(banks.values()), SEED)
    bank = banks[paper_sets.BANKS[name]]
    task = progress.add_task(f"{name}: levels", total=len(bank.select(split="test")) * len(paper_sets.T60S))
    return paper_sets.make_manifest(name, bank, SEED, lambda: progress.advance(task))


def make_fingerprints(benchmark: FrozenBenchmark, banks: list[Bank], jobs: int | None, progress: Progress) -> None:
    """Render part after part, each with its fingerprint: an hour's work is not lost."""
    path = FOLDER / f"{benchmark.name}.fingerprints.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    if record.get("manifest") != benchmark.hash:
        record = {"manifest": benchmark.hash, "engine": "cpu", "cells": {}}
    task = progress.add_task(benchmark.name, total=benchmark.steps)
    for keys in benchmark.groups():
        missing = [key for key in keys if key not in record["cells"]]
        if missing:
            for key, samples in benchmark.render_parts(missing, banks, "cpu", jobs, lambda: progress.advance(task)):
                record["cells"][key] = fingerprint(samples, benchmark.rows(key))
            write_whole(path, lambda target: target.write_text(json.dumps(record, indent=1) + "\n"))


if __name__ == "__main__":
    main()
