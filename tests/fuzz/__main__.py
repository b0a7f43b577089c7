"""The command line of the fuzzers: see `fuzz/__init__.py`."""

import os
import sys

# One thread for each process: they share the cores as they are. Before NumPy is imported.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
# As in the light install: torch would take half of the memory that an input may have.
sys.modules["torch"] = None  # type: ignore[assignment]

if __name__ == "__main__":
    from fuzz.campaign import main

    sys.exit(main())
