"""Shared fixtures."""

import os
from pathlib import Path

import pytest
import torch

# Two test processes on two cores: with more threads each, torch's small products wait for one another.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of the corpora: $QKGCC_DATA, or shared/data beside the repository; the test is skipped without it."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("QKGCC_DATA", beside))
    if not root.is_dir():
        pytest.skip(f"no corpora: QKGCC_DATA is not set, and {beside} does not exist")
    return root
