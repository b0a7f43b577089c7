"""Arguments of the Python API, of any type and size.

A call begins with arguments that are right; a few of them are replaced by values of a pool.
"""

from __future__ import annotations

import decimal
import fractions
import io
import struct
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuzz import sounds
from fuzz.edits import in_bytes
from fuzz.workplace import workplace
from qkgcc import DelayEstimator, DelayStream, open_audio, samples
from qkgcc.arrays import (
    DirectionEstimator,
    DirectionStream,
    Geometry,
    Motion,
    PositionEstimator,
    Tracker,
    array,
    read_geometry,
    smooth,
)
from qkgcc.doctor import diagnose
from qkgcc.selfcal import measure_moments, refine
from qkgcc.sync import synchronise

RATE = 16000
_NETWORKS = Path(__file__).parent / "networks"


def noise(channels: int, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The same noise on all channels, each a sample later than the one before, and some of their own."""
    drawn = np.random.default_rng(channels).standard_normal(count + channels)
    later = np.stack([drawn[i : i + count] for i in range(channels)])
    return 0.1 * (later + 0.1 * np.random.default_rng(0).standard_normal(later.shape))


class _Tensor:
    """Refuses to be an array, as tensors do that require gradients (RuntimeError) or are bfloat16 (TypeError)."""

    shape, dtype, ndim = (2, 4000), "bfloat16", 2

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __array__(self, *_: object, **__: object) -> Any:
        raise self._error("Can't call numpy() on this tensor")

    def __len__(self) -> int:
        return 2


class _Reader:
    """A source that can be read, in some way."""

    def __init__(self, gives: Any) -> None:
        self._gives = gives

    def read(self, *_: object) -> Any:
        if isinstance(self._gives, Exception):
            raise self._gives
        return self._gives


def _nested(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


def _itself() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def _file(name: str) -> Path:
    path = workplace() / f"whole.{name}"
    if not path.exists():
        path.write_bytes(sounds.whole(name))
    return path


def _closed() -> io.BytesIO:
    stream = io.BytesIO(sounds.whole("wav"))
    stream.close()
    return stream


def _with(value: float, count: int = 4000) -> Any:
    made = noise(2, count)
    made[1, count // 2] = value
    return made


POOL: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "2": lambda: 2,
    "3": lambda: 3,
    "-1": lambda: -1,
    "16000": lambda: 16000,
    "8000": lambda: 8000,
    "768000": lambda: 768_000,
    "1000": lambda: 1000,
    "10**9": lambda: 10**9,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "0.0": lambda: 0.0,
    "-0.0": lambda: -0.0,
    "0.001": lambda: 0.001,
    "0.02": lambda: 0.02,
    "0.2": lambda: 0.2,
    "0.5": lambda: 0.5,
    "1.0": lambda: 1.0,
    "10.0": lambda: 10.0,
    "60.0": lambda: 60.0,
    "100.0": lambda: 100.0,
    "3600.0": lambda: 3600.0,
    "-0.5": lambda: -0.5,
    "1e-4": lambda: 1e-4,
    "1e-6": lambda: 1e-6,
    "1e-320": lambda: 1e-320,
    "1e308": lambda: 1e308,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-inf": lambda: float("-inf"),
    "complex": lambda: 1j,
    "decimal": lambda: decimal.Decimal("0.2"),
    "decimal nan": lambda: decimal.Decimal("sNaN"),
    "fraction": lambda: fractions.Fraction(1, 5),
    "empty text": lambda: "",
    "text": lambda: "x",
    "number text": lambda: "1",
    "channels text": lambda: "01",
    "no": lambda: "no",
    "nul": lambda: "a\0b",
    "half a letter": lambda: "\ud800",
    "long text": lambda: "x" * 100_000,
    "long path": lambda: "/x" * 5000,
    "bytes": lambda: b"phat",
    "bytearray": lambda: bytearray(100),
    "dash and dot": lambda: "./-",
    "phat": lambda: "phat",
    "scot": lambda: "scot",
    "phat-beta": lambda: "phat-beta",
    "general": lambda: "general",
    "PHAT": lambda: "PHAT",
    "auto": lambda: "auto",
    "circle": lambda: "circle",
    "sphere": lambda: "sphere",
    "parabolic": lambda: "parabolic",
    "mean": lambda: "mean",
    "coarse": lambda: "coarse",
    "left": lambda: "left",
    "respeaker4": lambda: "respeaker4",
    "linear:2:0.1": lambda: "linear:2:0.1",
    "circular:256:1": lambda: "circular:256:1",
    "steered": lambda: str(_NETWORKS / "steered.safetensors"),
    "qkgcc": lambda: _NETWORKS / "qkgcc.safetensors",
    "onnx": lambda: workplace() / "steered.onnx",
    "no file": lambda: workplace() / "nothing",
    "folder": workplace,
    "wav": lambda: _file("wav"),
    "wav text": lambda: str(_file("wav")),
    "flac": lambda: _file("flac"),
    "mp3": lambda: _file("mp3"),
    "mono": lambda: _file("svx"),
    "stream": lambda: io.BytesIO(sounds.whole("wav")),
    "text stream": lambda: io.StringIO("x"),
    "closed stream": _closed,
    "reads text": lambda: _Reader("x"),
    "reads nothing": lambda: _Reader(None),
    "reads a number": lambda: _Reader(7),
    "cannot be read": lambda: _Reader(OSError(5, "Input/output error")),
    "reads an error": lambda: _Reader(ValueError("x")),
    "empty list": list,
    "empty tuple": tuple,
    "empty object": dict,
    "empty set": set,
    "object": lambda: {"a": 1},
    "set": lambda: {0, 1},
    "frozenset": lambda: frozenset({1, 0}),
    "range": lambda: range(2),
    "iterator": lambda: iter([0, 1]),
    "generator": lambda: (i for i in (0, 1)),
    "[0, 1]": lambda: [0, 1],
    "[1, 0]": lambda: [1, 0],
    "[0, 0]": lambda: [0, 0],
    "[-1, 0]": lambda: [-1, 0],
    "[0.5, 1]": lambda: [0.5, 1],
    "[True, False]": lambda: [True, False],
    "[nan, nan]": lambda: [float("nan")] * 2,
    "[none, none]": lambda: [None, None],
    "[10**400, 1]": lambda: [10**400, 1],
    "[text, text]": lambda: ["a", "b"],
    "[0, 1, 2]": lambda: [0, 1, 2],
    "[0, 1, 2, 3]": lambda: [0, 1, 2, 3],
    "[100, 4000]": lambda: (100, 4000),
    "[4000, 100]": lambda: (4000, 100),
    "[0, 9e9]": lambda: (0, 9e9),
    "pairs": lambda: [(0, 1), (0, 2)],
    "a pair twice": lambda: [(0, 1), (1, 0)],
    "pairs of one": lambda: [(0,), (1,)],
    "pair of itself": lambda: [(1, 1)],
    "box": lambda: [(-1, 1), (-1, 1), (0, 2)],
    "flat box": lambda: [(0, 0), (0, 0), (0, 0)],
    "huge box": lambda: [(-1e4, 1e4)] * 3,
    "inverted box": lambda: [(1, -1)] * 3,
    "rows": lambda: [[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0]],
    "rows of text": lambda: [["a", "b", "c"]],
    "ragged": lambda: [[0, 1, 2], [0, 1]],
    "nested": lambda: _nested(100),
    "too deeply nested": lambda: _nested(5000),
    "itself": _itself,
    "float32": lambda: np.float32(0.2),
    "float16": lambda: np.float16(0.2),
    "long double": lambda: np.longdouble(0.2),
    "int64": lambda: np.int64(2),
    "uint8": lambda: np.uint8(1),
    "numpy bool": lambda: np.bool_(True),
    "numpy text": lambda: np.str_("phat"),
    "numpy time": lambda: np.datetime64("2026-01-01"),
    "array of none": lambda: np.array(0.2),
    "array of one": lambda: np.array([0.2]),
    "array of two": lambda: np.array([0, 1]),
    "empty array": lambda: np.array([]),
    "objects": lambda: np.array([[object()] * 3] * 2, dtype=object),
    "texts": lambda: np.array([["a", "b"], ["c", "d"]]),
    "records": lambda: np.zeros((2, 10), dtype=[("a", "f4"), ("b", "i2")]),
    "sound": lambda: noise(2, 4000),
    "float32 sound": lambda: noise(2, 4000).astype(np.float32),
    "half floats": lambda: noise(2, 4000).astype(np.float16),
    "long doubles": lambda: noise(2, 4000).astype(np.longdouble),
    "big-endian sound": lambda: noise(2, 4000).astype(">f4"),
    "16 bits": lambda: (noise(2, 4000) * 3e4).astype(np.int16),
    "8 bits": lambda: (noise(2, 4000) * 100 + 128).astype(np.uint8),
    "64 bits": lambda: (noise(2, 4000) * 3e4).astype(np.int64),
    "bools": lambda: noise(2, 4000) > 0,
    "complex sound": lambda: noise(2, 4000).astype(complex),
    "list of sound": lambda: noise(2, 300).tolist(),
    "three channels": lambda: noise(3, 4000),
    "four channels": lambda: noise(4, 4000),
    "mono array": lambda: noise(1, 4000),
    "one axis": lambda: noise(1, 4000)[0],
    "three axes": lambda: np.zeros((2, 3, 400)),
    "transposed": lambda: noise(2, 4000).T,
    "reversed": lambda: noise(2, 4000)[:, ::-1],
    "every second": lambda: noise(2, 8000)[:, ::2],
    "read-only": lambda: np.broadcast_to(noise(1, 4000), (2, 4000)),
    "masked": lambda: np.ma.masked_array(noise(2, 4000), mask=noise(2, 4000) > 0.2),
    "matrix of one": lambda: np.zeros((1, 1)),
    "no samples": lambda: np.zeros((2, 0)),
    "no channels": lambda: np.zeros((0, 2)),
    "one sample": lambda: np.zeros((2, 1)),
    "few samples": lambda: noise(2, 90),
    "silence": lambda: np.zeros((2, 4000)),
    "silent channel": lambda: noise(2, 4000) * np.array([[1.0], [0.0]]),
    "constant": lambda: np.ones((2, 4000)),
    "same twice": lambda: np.vstack([noise(1, 4000)] * 2),
    "tiny sound": lambda: 1e-310 * noise(2, 4000),
    "loud sound": lambda: 1e11 * noise(2, 4000),
    "too loud": lambda: 1e300 * noise(2, 4000),
    "a nan": lambda: _with(np.nan),
    "an infinity": lambda: _with(np.inf),
    "a click": lambda: _with(1e12),
    "without end": lambda: np.broadcast_to(0.0, 10**12),
    "tensor with gradients": lambda: _Tensor(RuntimeError),
    "bfloat16 tensor": lambda: _Tensor(TypeError),
    "geometry": lambda: array("linear:2:0.1"),
    "square": lambda: array("respeaker4"),
    "tetrahedron": lambda: array("tetrahedral:0.1"),
    "large square": lambda: array("circular:4:2"),
    "microphones far apart": lambda: array("linear:2:90"),
    "recording": lambda: open_audio(noise(2, 4000), RATE),
    "recordings": lambda: [open_audio(noise(2, 4000), RATE)] * 2,
    "estimator": lambda: DelayEstimator("phat"),
    "motion": Motion,
    "grid": lambda: array("circular:8:1").microphones,
    "weights": lambda: np.ones(8) / 8,
    "function": lambda: len,
    "class": lambda: int,
    "module": lambda: types,
    "exception": lambda: ValueError("x"),
    "ellipsis": lambda: ...,
    "slice": lambda: slice(0, 2),
    "memory": lambda: memoryview(struct.pack("<8f", *range(8))),
    "nothing": object,
}
"""By name: an input stays a literal. A factory each, for what is used up or changed."""


def _split(given: dict[str, Any], *names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of the names, and the others."""
    return {k: v for k, v in given.items() if k in names}, {k: v for k, v in given.items() if k not in names}


_CALLED = ("source", "sample_rate", "channels", "start", "end", "other", "curve", "track", "keep_maps")


def _delay(**given: Any) -> object:
    called, made = _split(given, *_CALLED)
    source = called.pop("source")
    return DelayEstimator(made.pop("method"), **made)(source, **called)


def _stream(**given: Any) -> object:
    pushed, made = _split(given, "block", "rate", "rest")
    stream = DelayStream(made.pop("estimator"), made.pop("sample_rate"), **made)
    stream.push(pushed["block"], pushed["rate"])
    stream.copy().push(pushed["rest"])
    return stream.flush()


def _directions(**given: Any) -> object:
    called, made = _split(given, *_CALLED)
    source = called.pop("source")
    return DirectionEstimator(made.pop("geometry"), made.pop("method"), **made)(source, **called)


def _direction_stream(**given: Any) -> object:
    pushed, made = _split(given, "block", "track", "sample_rate")
    estimator = DirectionEstimator(made.pop("geometry"), made.pop("method"), **made)
    stream = DirectionStream(estimator, pushed["sample_rate"], track=pushed["track"])
    stream.push(pushed["block"])
    return stream.flush()


def _positions(**given: Any) -> object:
    called, made = _split(given, *_CALLED)
    source = called.pop("source")
    return PositionEstimator(made.pop("geometry"), made.pop("method"), **made)(source, **called)


def _audio(**given: Any) -> object:
    recording = open_audio(given.pop("source"), given.pop("sample_rate"), **given)
    return sum(block.size for block in recording.blocks())


def _pick(**given: Any) -> object:
    return open_audio(noise(4, 4000), RATE).pick(given["channels"]).read()


def _tracker(**given: Any) -> object:
    updated, made = _split(given, "time", "weights", "reliability")
    tracker = Tracker(made.pop("grid"), made.pop("seconds"), **made)
    return smooth([(0.0, tracker.update(**updated))], made["motion"])


def _synchronise(**given: Any) -> object:
    return synchronise(given.pop("recordings"), **given)


def _refine(**given: Any) -> object:
    measured, fitted = _split(given, "latest", "method")
    geometry = fitted.pop("geometry")
    recording = open_audio(noise(4, 4000), RATE)
    shared = {name: fitted[name] for name in ("tolerance", "speed_of_sound")}
    return refine(geometry, measure_moments(recording, geometry, **measured, **shared), **fitted)


_SOUND = {"source": "sound", "sample_rate": "16000", "start": "none", "end": "none"}
_SPEED = {"speed_of_sound": "1000"}
_DELAY = {
    **{"method": "phat", "spacing": "0.2", "max_delay": "none", "frame": "none", "hop": "0.02", "band": "none"},
    **{"interpolation": "none", "decoder": "none", "beta": "none", "max_sources": "1", "symmetric": "false"},
    **{"smoothing": "none", "threads": "1", "channels": "[0, 1]", "other": "none", "curve": "true"},
}
_ARRAY = {
    "geometry": "square",
    "method": "phat",
    "frame": "0.02",
    "hop": "none",
    "threads": "1",
    "source": "four channels",
}

CALLS: dict[str, tuple[Callable[..., object], dict[str, str]]] = {
    "delay": (_delay, _SOUND | _DELAY | _SPEED),
    "network": (_delay, _SOUND | _DELAY | _SPEED | {"method": "steered"}),
    "stream": (
        _stream,
        {
            **{"estimator": "estimator", "sample_rate": "16000", "lookahead": "0"},
            **{"block": "sound", "rate": "16000", "rest": "sound"},
        },
    ),
    "directions": (
        _directions,
        _SOUND
        | _ARRAY
        | {**{"sources": "none", "grid": "none", "distance": "none", "block": "1.0", "context": "0"}, "pairs": "none"}
        | {"channels": "none", "track": "false", "keep_maps": "false"}
        | _SPEED,
    ),
    "direction stream": (
        _direction_stream,
        {key: value for key, value in _ARRAY.items() if key != "source"}
        | {"sample_rate": "16000", "track": "false", "block": "four channels", "sources": "none"},
    ),
    "positions": (
        _positions,
        _SOUND
        | _ARRAY
        | {
            "sources": "1",
            "height": "0.5",
            "volume": "box",
            "block": "1.0",
            "channels": "none",
            "geometry": "large square",
        }
        | _SPEED,
    ),
    "audio": (_audio, _SOUND | {"other": "none"}),
    "pick": (_pick, {"channels": "[0, 1]"}),
    "array": (lambda name: array(name), {"name": "respeaker4"}),
    "read geometry": (lambda path: read_geometry(path), {"path": "no file"}),
    "geometry": (lambda microphones, name: Geometry(microphones, name), {"microphones": "rows", "name": "text"}),
    "tracker": (
        _tracker,
        {
            **{
                "grid": "grid",
                "seconds": "0.02",
                "frame_seconds": "0.2",
                "error": "3",
                "sharpness": "1",
                "motion": "motion",
            }
        }
        | {"most": "none", "line": "false", "time": "0.2", "weights": "weights", "reliability": "1.0"},
    ),
    "synchronise": (_synchronise, {"recordings": "recordings", "distances": "none"} | _SPEED),
    "refine": (
        _refine,
        {
            **{
                "geometry": "square",
                "method": "phat",
                "tolerance": "0.02",
                "latest": "0.0",
                "height": "none",
                "nearest": "0.5",
            }
        }
        | {"offsets": "false"}
        | _SPEED,
    ),
    "diagnose": (
        lambda recording, **given: diagnose(recording, **given),
        {"recording": "wav", "spacing": "none", "expect": "none", "rate": "none", "geometry": "none"} | _SPEED,
    ),
    "samples": (lambda name: samples.path(name), {"name": "text"}),
}
"""What is called, and the names of arguments that are right."""

_LIKELY = (
    *("none", "true", "false", "0", "1", "2", "16000", "0.0", "0.02", "0.2", "0.5", "1.0", "float32", "int64"),
    *("phat", "scot", "general", "steered", "qkgcc", "onnx", "parabolic", "coarse", "auto", "circle", "sphere"),
    *("sound", "float32 sound", "16 bits", "four channels", "few samples", "silence", "silent channel", "wav", "flac"),
    *("stream", "[0, 1]", "[1, 0]", "[0, 1, 2, 3]", "[100, 4000]", "pairs", "box", "square", "tetrahedron"),
)
_ANY = tuple(POOL)


def _changes(call: str) -> st.SearchStrategy[tuple[str, list[tuple[str, str]]]]:
    names = list(CALLS[call][1])

    def change(drawn: bytes) -> tuple[str, str]:
        values = _LIKELY if drawn[1] % 2 else _ANY
        return names[drawn[0] % len(names)], values[drawn[2] % len(values)]

    return in_bytes(3, 2, change).map(lambda changes: (call, changes))


calls = st.one_of([_changes(call) for call in CALLS])


def call_with(given: tuple[str, list[tuple[str, str]]]) -> None:
    call, changes = given
    function, right = CALLS[call]
    names = right | dict(changes)
    function(**{name: POOL[value]() for name, value in names.items()})
