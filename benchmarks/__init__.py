"""Speed tables, measured and written by code: `make bench`."""

import os

# One thread, set before NumPy, SciPy and torch start theirs: comparisons are of work, not of schedulers.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"
