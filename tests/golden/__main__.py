"""Write all answers, or compare them with written ones to the bit."""

import argparse
import sys
from pathlib import Path

import numpy as np

from golden.answers import answers, read, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", type=Path)
    what.add_argument("--compare", type=Path)
    asked = parser.parse_args()
    found = answers()
    if asked.write:
        write(asked.write, found)
        print(f"{len(found)} answers, {sum(one.size for one in found.values())} numbers: {asked.write}")
        return 0
    before = read(asked.compare)
    wrong = [
        name
        for name in sorted({*before, *found})
        if name not in found or name not in before or not np.array_equal(before[name], found[name], equal_nan=True)
    ]
    print(*(f"differs: {name}" for name in wrong), f"{len(found) - len(wrong)} of {len(found)} the same", sep="\n")
    return min(1, len(wrong))


if __name__ == "__main__":
    sys.exit(main())
