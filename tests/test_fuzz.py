"""The fuzzers: what failed once does not fail again, a short run of all of them, and that they notice what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.needs("torch", "onnx"),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it"),
]

TESTS = Path(__file__).parent
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")} | {
    "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
}
"""Without coverage: time and memory are measured."""


def fuzz(
    *arguments: object, code: str = "import fuzz.__main__; from fuzz import campaign; raise SystemExit(campaign.main())"
):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "targets",
    [
        ["sound", "header", "pipe", "api"],
        ["card", "checkpoint", "geometry", "truth", "bank", "training", "option"],
        ["command", "process"],
    ],
    ids=lambda targets: targets[0],
)
def test_what_failed_once_and_a_few_hundred_others_end_in_an_answer_or_an_input_error(targets: list[str]) -> None:
    done = fuzz("--only", *targets, "--first", 0, "--batches", 1, "--size", 150, "--jobs", 1)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert all(f"| {target} | " in done.stdout for target in targets)


BAD = """
import fuzz.__main__
import ctypes, sys, time, warnings
from hypothesis import strategies as st
from fuzz import campaign, engine
from qkgcc import InputError

engine.SECONDS, engine._HANGS = 0.1, 1.5

def error(x):
    if x > 100: raise ValueError(x)
def crash(x):
    if x > 100: ctypes.string_at(0)
def hang(x):
    if x > 100: time.sleep(60)
def slow(x):
    begun = time.process_time()
    while x > 100 and time.process_time() < begun + 0.15: pass
def memory(x):
    if x > 100: bytearray(600_000_000)
def warning(x):
    if x > 100: warnings.warn("x", RuntimeWarning)
def silent(x):
    if x > 100: raise InputError(" ")
def well(x):
    if x > 100: raise InputError("too large")

made = {}
for run in (error, crash, hang, slow, memory, warning, silent, well):
    numbers = st.integers(100, 101) if run in (hang, slow) else st.integers(0, 1000)
    made[run.__name__] = engine.Target(run.__name__, numbers, run, 1.0)
campaign.TARGETS = made
campaign._FOUND = campaign.Path(sys.argv.pop(1))
raise SystemExit(campaign.main())
"""


def test_faults_are_found_and_made_as_small_as_they_can_be(tmp_path: Path) -> None:
    done = fuzz(tmp_path / "found", "--first", 0, "--batches", 1, "--size", 100, "--jobs", 1, code=BAD)
    assert done.returncode == 1, done.stdout + done.stderr
    faults = {
        "error": "ValueError: 101",
        "crash": "the process ended with -11",
        "hang": "no end after",
        "slow": "TooMuch: 0.",
        "memory": "MemoryError",
        "warning": "RuntimeWarning: x",
        "silent": "a message of 1 characters",
    }
    for name, said in faults.items():
        report = done.stdout.partition(f"FAILED {name}: ")[2].partition("again: ")
        assert said in report[0], name
        assert report[2].startswith(f"PYTHONPATH=tests python -m fuzz --replay {name} '101'")
        assert (tmp_path / "found" / f"{name}.txt").read_text().splitlines()[-1] == "101"
    assert {path.stem for path in (tmp_path / "found").iterdir()} == set(faults)  # an `InputError` is no fault
