"""Command lines: through `main` in this process, and some of them as processes of their own.

What would take long or leave the folder is not begun: `data download`, `train`, `reproduce` and rendering get to where
their work begins. All paths lie in a folder that is made anew for every command line.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
from hypothesis import strategies as st

from fuzz import sounds
from fuzz.workplace import workplace
from qkgcc import cli
from qkgcc.core.errors import InputError

_VALUES = (
    *(
        "0",
        "1",
        "2",
        "-1",
        "0.2",
        "1e-9",
        "1e9",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "0x1",
        "1_0",
        "٣",
        "9" * 400,
        "",
        " ",
        "a",
    ),
    *("phat", "scot", "general", "tiny.safetensors", "tiny.onnx", "none", "all", "auto", "mean", "circle", "sphere"),
    *("respeaker4", "circular:8:0.1", "linear:2:0.1", "circular:8:0", "linear:9999999:1", "tetrahedral:", "array.toml"),
    *("0-1", "0-1,1-0", "1-1", "0,1", "1,0", "0,1,2,3", "0-", "0 1", "table", "csv", "json", "rttm", "left", "right"),
    *(
        "a.wav",
        "b.flac",
        "four.wav",
        "mono.wav",
        "cut.wav",
        "text.wav",
        "nothing.wav",
        "[bold].wav",
        "loop.wav",
        "empty",
    ),
    *(
        "folder",
        ".",
        "-",
        "--",
        "truth.csv",
        "deep/er/out",
        "out",
        "out.png",
        "out.txt",
        "out.wav",
        "out.flac",
        "out.toml",
    ),
    *("/dev/null", "x" * 300, "a\u0301.wav", "\ud800.wav", "s16le", "f32le", "u8", "test-clean", "train", "paper"),
    *("0,5,0,4,0,2.5", "0.3,0.5", "1,nan", "paper-test", "table1", "pairs=2", "pairs=", "cpu", "reference", "bank"),
)

_NEVER = ("--install-completion", "--show-completion", "--jobs", "-j")
_RIGHT: dict[str, tuple[str, ...]] = {
    "estimate": ("a.wav", "-m", "phat"),
    "batch": ("folder", "--out", "out", "-m", "phat"),
    "listen": ("--from", "a.wav", "--speed", "0", "-m", "phat", "--format", "csv"),
    "evaluate": ("a.wav", "--truth", "truth.csv", "-m", "phat"),
    "explain": ("a.wav", "-m", "tiny.safetensors"),
    "doctor": ("a.wav",),
    "locate": ("four.wav", "--array", "respeaker4", "-m", "phat"),
    "array": ("respeaker4",),
    "calibrate offsets": ("mono.wav", "mono.wav"),
    "calibrate positions": ("four.wav", "--array", "respeaker4"),
    "methods": (),
    "demo": (),
    "simulate": ("--count", "1", "--seconds", "0.1", "--bank", "bank", "--out", "out"),
    "train": ("tiny", "--out", "out"),
    "export": ("tiny.safetensors", "--out", "out.onnx"),
    "reproduce": ("table1",),
    "data bank": ("--set", "test-clean", "--out", "bank"),
    "data benchmark": ("paper-test", "--bank", "bank"),
    "data download": ("--set", "test-clean", "--out", "out"),
}
"""Commands, each with arguments that are right or nearly so."""
_WORK = ("train", "reproduce", "simulate", "data bank", "data download", "data benchmark")
"""Those whose work cannot be kept from beginning in another process."""


@functools.cache
def _options() -> dict[str, list[str]]:
    """The options of each command, as it declares them."""
    found: dict[str, list[str]] = {}

    def collect(command: Any, name: str) -> None:
        if hasattr(command, "commands"):
            for part, one in command.commands.items():
                collect(one, f"{name} {part}".strip())
            return
        texts = [text for one in command.params for text in (*one.opts, *one.secondary_opts) if text.startswith("-")]
        found[name] = [text for text in texts if text not in _NEVER]

    collect(typer.main.get_command(cli.app), "")
    return found


def _tokens(command: str) -> st.SearchStrategy[list[str]]:
    options = st.sampled_from(_options()[command] or ["--help"])
    value = st.sampled_from(_VALUES)
    token = st.one_of(st.tuples(options, value), st.tuples(options), st.tuples(value))
    return st.lists(token, max_size=3).map(lambda groups: [word for group in groups for word in group])


def _lines(names: Iterable[str]) -> st.SearchStrategy[Any]:
    right, piped = st.sampled_from([True, True, True, False]), st.sampled_from(["", "", "", "wav", "noise"])
    return st.one_of([st.tuples(st.just(name), right, _tokens(name), piped) for name in names])


lines = _lines(name for name in _RIGHT if name != "demo")  # which takes seconds
"""Command, whether its right arguments are there, more arguments, and what comes through standard input."""
processes = _lines(name for name in _RIGHT if name not in _WORK)


def _folder() -> Path:
    """As it is at the beginning of every command line."""
    folder = workplace() / "commands"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    networks = Path(__file__).parent / "networks"
    for name, kind in (("a.wav", "wav"), ("b.flac", "flac"), ("mono.wav", "wav-u8"), ("[bold].wav", "wav-float")):
        (folder / name).write_bytes(sounds.whole(kind))
    (folder / "four.wav").write_bytes(_four())
    (folder / "cut.wav").write_bytes(sounds.whole("wav")[:2000])
    (folder / "text.wav").write_text("no sound in here")
    (folder / "empty").touch()
    (folder / "loop.wav").symlink_to("loop.wav")
    (folder / "folder").mkdir()
    (folder / "folder" / "a.wav").write_bytes(sounds.whole("wav"))
    (folder / "tiny.safetensors").symlink_to(networks / "steered.safetensors")
    (folder / "tiny.onnx").write_text("of another program")
    (folder / "truth.csv").write_text("file,delay_samples\na.wav,3\n")
    (folder / "array.toml").write_text(
        'units = "m"\naxes = ["front", "left", "up"]\nmicrophones = [[0,0,0], [0,0.1,0]]\n'
    )
    return folder


@functools.cache
def _four() -> bytes:
    import numpy as np
    import soundfile

    stream = io.BytesIO()
    soundfile.write(stream, 0.1 * np.random.default_rng(0).standard_normal((1600, 4)), 8000, format="WAV")
    return stream.getvalue()


class _Begun(InputError):
    """The command line was fine, and the work would begin now."""


def _begins(*_: object, **__: object) -> Any:
    raise _Begun("the work begins")


_LONG = (
    "qkgcc.lab.corpora.download.download",
    "qkgcc.lab.corpora.packing.build",
    "qkgcc.lab.scenes.render.render",
    "qkgcc.lab.scenes.engines.responses",
)


@contextlib.contextmanager
def _streams(given: str) -> Iterator[io.BytesIO]:
    """What `main` reads and writes, and the folder it works in; all is as before afterwards."""
    content = {"": b"", "wav": sounds.whole("wav"), "noise": bytes(range(256)) * 20}[given]
    out = io.BytesIO()
    streams = io.TextIOWrapper(io.BytesIO(content)), io.TextIOWrapper(out, write_through=True)
    before = sys.stdin, sys.stdout, sys.stderr, sys.argv, Path.cwd()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    sys.stdin, sys.stdout = streams
    sys.stderr = io.TextIOWrapper(out, errors="backslashreplace", write_through=True)
    try:
        yield out
    finally:
        sys.stdin, sys.stdout, sys.stderr, sys.argv = before[:4]
        os.chdir(before[4])
        for number, handler in handlers.items():
            signal.signal(number, handler)


def run_line(given: tuple[str, bool, list[str], str]) -> None:
    command, right, more, piped = given
    folder = _folder()
    words = [*command.split(), *(_RIGHT[command] if right else ()), *more]
    with _streams(piped) as out, contextlib.ExitStack() as patches:
        os.chdir(folder)
        for name in _LONG:
            with contextlib.suppress(AttributeError, ImportError):
                patches.enter_context(mock.patch(name, _begins))
        sys.argv = ["qkgcc", *words]
        try:
            cli.main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
        said = out.getvalue().decode(errors="replace")
    _check(code, said)


def _check(code: Any, said: str) -> None:
    assert code in (0, None, 1, 2), f"exit code {code}: {said[-500:]}"
    assert "Traceback" not in said, said[-3000:]
    if code == 2:
        raise InputError(said[-1000:] or "?")


def run_process(given: tuple[str, bool, list[str], str]) -> None:
    """The same as a process, which has the real streams."""
    command, right, more, piped = given
    folder = _folder()
    words = [*command.split(), *(_RIGHT[command] if right else ()), *more]
    content = {"": b"", "wav": sounds.whole("wav"), "noise": bytes(range(256)) * 20}[piped]
    if any("\0" in word for word in words):
        raise InputError("no process can be given that")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from qkgcc.cli import main; main()",
            *(os.fsencode(word) if word.isascii() else word.encode(errors="surrogatepass") for word in words),
        ],
        cwd=folder,
        input=content,
        capture_output=True,
    )
    _check(done.returncode, (done.stdout + done.stderr).decode(errors="replace"))
