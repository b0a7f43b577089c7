"""`make test-processors`: what did not run is said, and is no success where nobody reads it."""

import importlib.util
import sys
from pathlib import Path

import pytest

from qkgcc.network import kernel

TOOL = Path(__file__).parents[1] / "tools" / "processors.py"


@pytest.mark.needs("torch")
@pytest.mark.skipif(kernel.loaded() is None, reason="there is no compiled kernel")
@pytest.mark.parametrize(("ci", "status"), [("true", 1), ("", 0)])
def test_arm_tests_that_did_not_run_are_a_failure_in_ci_and_are_said_elsewhere(
    ci: str, status: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("processors", TOOL)
    assert spec is not None
    assert spec.loader is not None
    processors = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(processors)
    nothing = [sys.executable, "-c", ""]
    monkeypatch.setattr(processors, "NUMERIC", nothing)
    monkeypatch.setattr(processors, "ARM", nothing)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(processors, "PROCESSORS", {"plain instructions": processors.PROCESSORS["plain instructions"]})
    monkeypatch.setattr(processors, "missing_for_arm", lambda: "it takes a cross compiler")
    assert processors.main() == status
    assert capfd.readouterr().out.splitlines()[-1] == "64-bit ARM: NOT RUN: it takes a cross compiler"
    monkeypatch.setattr(processors, "missing_for_arm", lambda: None)
    assert processors.main() == 0
    assert capfd.readouterr().out.splitlines()[-1] == "64-bit ARM: passed (emulated)"
