"""Where figures and weights come from: the commit that made them."""

import os
import subprocess
from pathlib import Path


def commit() -> str | None:
    """The commit of this checkout, with a mark when files differ from it; None where there is no checkout.

    $QKGCC_COMMIT says it on a machine that has the source without its repository.
    """
    if given := os.environ.get("QKGCC_COMMIT"):
        return given
    try:
        out = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() or None if out.returncode == 0 else None
