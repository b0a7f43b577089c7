"""Killed at any moment (kill -9) and completed by the same command: the same bytes as undisturbed, nothing left.

`make test-kill` kills each job ten times, `make test` twice. The moments are random over the time that the undisturbed
job took, and whichever they are, the test must pass; the seed that it prints (QKGCC_KILL_SEED) draws the same again.

Jobs run in forks of one process that has imported everything, so that kills fall into the work and not into imports.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from qkgcc.audio.recording import open_audio
from qkgcc.lab.corpora.packing import build
from qkgcc.lab.frozen.benchmark import fingerprint
from qkgcc.lab.frozen.paper_sets import make_manifest
from qkgcc.network import files
from signals import delayed_noise
from test_data_corpora import make_clips, make_librispeech

pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="jobs are forks of one process"),
]

KILLS = int(os.environ.get("QKGCC_KILLS", "2"))
SEED = int(os.environ.get("QKGCC_KILL_SEED", random.SystemRandom().randrange(10**6)))
RATE = 16000

_HOST = """
import json, os, signal, sys
import numpy, scipy.fft, scipy.signal, soundfile, soxr
import qkgcc.cli, qkgcc.batch.archives, qkgcc.network.published, qkgcc.lab.scenes.render, qkgcc.lab.rooms.cpu
import torch._dynamo  # which the first optimizer imports
import qkgcc.lab.corpora.packing, qkgcc.lab.frozen.paper_sets, qkgcc.lab.training.loop
import qkgcc.cli.batch, qkgcc.cli.listen
from qkgcc.lab.frozen import benchmark, paper_sets
from qkgcc.lab.frozen.paper_sets import PaperBenchmark

def small_benchmark(manifest):
    # The made-up benchmark beside the bank instead of the paper's: two cells of each of two rooms.
    content = json.loads(open(manifest).read())
    small = PaperBenchmark("paper-noise", content["manifest"], "0" * 64)
    PaperBenchmark.load = classmethod(lambda *_: small)
    PaperBenchmark.groups = lambda _: [[f"{snr}/{t60}" for snr in paper_sets.SNRS[:2]] for t60 in paper_sets.T60S[:2]]
    PaperBenchmark.fingerprints = content["cells"]
    benchmark.check = lambda *_: 0.0

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        out = os.open(job["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(out, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(job["folder"])
        if job["manifest"]:
            small_benchmark(job["manifest"])
        sys.argv = ["qkgcc", *job["words"]]
        code = 0
        try:
            qkgcc.cli.main()
        except SystemExit as stop:
            code = stop.code or 0
        finally:
            sys.stdout.flush()
            with open(job["out"] + ".code", "w") as file:
                file.write(str(code))
            os._exit(code)
    os.setpgid(child, child)  # here, too: whoever is told of it may kill it at once
    print(child, flush=True)
"""


class Job:
    """A command at work in a process group of its own."""

    def __init__(self, process: int, out: Path) -> None:
        self.process, self._out = process, out

    def alive(self) -> bool:
        """Whether any process of the group is: its workers end after it."""
        try:
            os.killpg(self.process, 0)
        except ProcessLookupError:
            return False
        return True

    def wait(self) -> int:
        """Until all have ended; the exit code, -9 where it was killed."""
        while self.alive():
            time.sleep(0.002)
        code = Path(f"{self._out}.code")
        said = code.read_text() if code.exists() else ""  # it may have been killed when it was about to write it
        return int(said or -9)

    def kill(self, *, workers: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if workers else os.kill)(self.process, signal.SIGKILL)

    @property
    def said(self) -> str:
        return self._out.read_text(errors="replace")


class Host:
    """Starts jobs."""

    def __init__(self, folder: Path) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "QKGCC_CACHE": str(folder / "cache")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HOST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._folder, self._count = folder, itertools.count()

    def start(self, folder: Path, words: list[str], manifest: Path | None = None) -> Job:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        out = self._folder / f"{next(self._count)}.said"
        out.touch()
        job = {"folder": str(folder), "words": words, "out": str(out), "manifest": manifest and str(manifest)}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Job(int(self._process.stdout.readline()), out)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    made = Host(tmp_path_factory.mktemp("host"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, made-up corpora, banks of them and a benchmark of one."""
    root = tmp_path_factory.mktemp("corpus")
    (root / "in" / "may").mkdir(parents=True)
    for i in range(12):
        sound = 0.1 * delayed_noise(i % 5, 2 * RATE, seed=i)[0].T
        soundfile.write(root / "in" / ("may" if i % 3 else "") / f"{i}.wav", sound, RATE)
    make_librispeech(root, {"1089": [3.0, 2.5], "61": [3.0, 2.6, 2.4], "260": [2.5, 3.5]})
    make_clips(root / "musan" / "noise" / "made", {f"{name}.wav": 3.0 for name in "abcdef"})
    build("test-clean", root, root / "speech")
    bank = build("noise", root, root / "noise")
    manifest = make_manifest("paper-noise", bank, 0)
    frames = np.zeros((15 * len(manifest["sources"]), 2, 2048), np.int16)
    mark = fingerprint(frames, len(manifest["sources"]))
    cells = {f"{snr}/{t60}": mark for snr in manifest["snr"] for t60 in manifest["t60"]}
    (root / "manifest.json").write_text(json.dumps({"manifest": manifest, "cells": cells}))
    return root


def contents(folder: Path) -> dict[str, bytes]:
    """Every file by its path, with its bytes."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_times(folder: Path) -> dict[str, Any]:
    """Of a training: how many seconds it took stands in its files."""
    import torch

    found: dict[str, Any] = contents(folder)
    for name in found:
        if name.endswith(".safetensors"):
            card, arrays = files.read(folder / name)
            del card.metrics["validation"]["seconds"]
            found[name] = card.to_json(), {key: array.tobytes() for key, array in arrays.items()}
        elif name.endswith(".jsonl"):
            rows = [json.loads(line) for line in found[name].splitlines()]
            found[name] = [{key: value for key, value in row.items() if key != "seconds"} for row in rows]
        elif name.endswith(".pt"):
            state = torch.load(folder / name, weights_only=True)
            found[name] = state["step"], {key: tensor.tolist() for key, tensor in state["model"].items()}
    return found


def check_kills(
    host: Host,
    folder: Path,
    words: Callable[[int], list[str]],
    *,
    seen: Callable[[Path], Mapping[str, Any]] = contents,
    manifest: Path | None = None,
) -> None:
    """Run a command undisturbed, then kill and complete it in new folders.

    Args:
        words: the command of each run, from 0 on: it may have another number of workers.
        seen: what has to be the same in the end.
    """
    drawn = random.Random(SEED)
    (folder / "whole").mkdir()
    begun = time.monotonic()
    job = host.start(folder / "whole", words(0), manifest)
    assert job.wait() == 0, f"seed {SEED}: {job.said}"
    seconds, expected = time.monotonic() - begun, seen(folder / "whole")
    for kill in range(KILLS):
        ended = 0
        while ended != -9:
            moment, workers = drawn.uniform(0, seconds), drawn.random() < 0.5
            about = f"seed {SEED}, kill {kill}, after {moment:.3f} of {seconds:.3f} s, workers too: {workers}"
            print(about)
            place = folder / f"{kill} after {moment:.6f}"
            place.mkdir()
            begun = time.monotonic()
            job = host.start(place, words(kill + 1), manifest)
            time.sleep(moment)
            job.kill(workers=workers)
            ended = job.wait()
            if ended != -9:  # it was faster this time
                seconds = min(seconds, time.monotonic() - begun)
        job = host.start(place, words(kill + 1), manifest)
        assert job.wait() == 0, f"{about}: {job.said}"
        found = seen(place)
        assert sorted(found) == sorted(expected), about
        for name, content in expected.items():
            assert found[name] == content, f"{about}: {name}"


def test_archives_completed_after_a_kill_are_as_undisturbed(host: Host, corpus: Path, tmp_path: Path) -> None:
    def words(run: int) -> list[str]:
        options = ["--out", "out", "--skip-existing", "-m", "phat", "--format", "json", "--curve"]
        return ["batch", str(corpus / "in"), *options, "--jobs", str(1 + (run > 2 and run % 3 == 0))]

    check_kills(host, tmp_path, words)


def test_simulate_completed_after_a_kill_is_as_undisturbed(host: Host, corpus: Path, tmp_path: Path) -> None:
    words = ["simulate", "--count", "12", "--seconds", "0.2", "--engine", "cpu", "--out", "rooms"]
    check_kills(host, tmp_path, lambda _: [*words, "--bank", str(corpus / "speech")])


def test_data_bank_completed_after_a_kill_is_as_undisturbed(host: Host, corpus: Path, tmp_path: Path) -> None:
    words = ["data", "bank", "--set", "test-clean", "--out", "banks/speech", "--jobs", "1"]
    check_kills(host, tmp_path, lambda _: [*words, "--data", str(corpus)])


def test_data_benchmark_completed_after_a_kill_is_as_undisturbed(host: Host, corpus: Path, tmp_path: Path) -> None:
    words = ["data", "benchmark", "paper-noise", "--engine", "cpu", "--cache", "cache"]
    check_kills(host, tmp_path, lambda _: [*words, "--bank", str(corpus / "noise")], manifest=corpus / "manifest.json")


def test_train_completed_after_a_kill_is_as_undisturbed(host: Host, tmp_path: Path) -> None:
    words = ["train", "tiny", "--out", "run", "--device", "cpu"]
    for change in ("pairs=24", "validation_pairs=8", "batch=4", "epochs=4"):
        words += ["--set", change]
    check_kills(host, tmp_path, lambda _: words, seen=without_times)


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_listen_leaves_a_recording_that_lacks_a_second_at_most(host: Host, tmp_path: Path, suffix: str) -> None:
    """Killed when it has answered so many seconds of a recording that is replayed as fast as can be."""
    drawn = random.Random(SEED)
    sound = np.round(2.0**15 * np.float32(0.1 * delayed_noise(3.0, 40 * RATE, seed=0)[0])) / np.float32(2**15)
    soundfile.write(tmp_path / "talk.wav", sound.T, RATE, subtype="FLOAT")
    words = ["listen", "--from", "../talk.wav", "-m", "phat", "--hop", "0.064", "--format", "csv", "--speed", "0"]
    for kill in range(KILLS):
        ended = 0
        while ended != -9:  # it ended before this process saw the moment: again, with another
            moment = drawn.uniform(1, 20)
            about = f"seed {SEED}, kill {kill}, after {moment:.3f} s of sound"
            print(about)
            place = tmp_path / f"{kill} after {moment:.6f}"
            place.mkdir()
            job = host.start(place, [*words, "--record", f"record{suffix}"])
            while job.alive() and answered(job) < moment:
                time.sleep(0.005)
            job.kill(workers=True)
            ended = job.wait()
            assert ended in (-9, 0), f"{about}: {job.said}"
        left = open_audio(place / f"record{suffix}").read()
        assert left.shape[1] >= (answered(job) - 1) * RATE, about
        np.testing.assert_array_equal(left, sound[:, : left.shape[1]], err_msg=about)


def answered(job: Job) -> float:
    """Seconds of sound up to the end of the last frame that was printed."""
    rows = [line.split(",") for line in job.said.splitlines(keepends=True) if line.endswith("\n")]
    return float(rows[-1][3]) + 0.064 if len(rows) > 1 else 0.0
