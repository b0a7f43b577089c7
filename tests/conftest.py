"""Shared fixtures."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two test processes on two cores: with more threads each, torch's small products wait for one another. torch reads this
# when a test imports it, and not every environment that is tested has it.
os.environ["OMP_NUM_THREADS"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-least", type=int, default=0, help="fail where fewer tests pass: too many were skipped")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what is marked with `needs` where a package is not installed."""
    for mark in item.iter_markers("needs"):
        for package in mark.args:
            pytest.importorskip(package)


def pytest_sessionfinish(session: pytest.Session) -> None:
    least = session.config.getoption("--at-least")
    passed = session.testscollected and len(_passed(session))
    if passed < least and session.exitstatus == pytest.ExitCode.OK:
        print(f"\nonly {passed} tests passed; expected at least {least}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _passed(session: pytest.Session) -> list[object]:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    return list(reporter.stats.get("passed", [])) if reporter else []


@pytest.fixture(scope="session")
def corpora() -> Path:
    """The folder of the corpora: $QKGCC_DATA, or shared/data beside the repository; the test is skipped without it."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("QKGCC_DATA", beside))
    if not root.is_dir():
        pytest.skip(f"no corpora: QKGCC_DATA is not set, and {beside} does not exist")
    return root


@pytest.fixture
def float64() -> Iterator[None]:
    """What a test makes with torch is in float64: two ways to compute one thing then agree on every processor."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
