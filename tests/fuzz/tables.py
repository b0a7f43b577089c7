"""Text that people write: geometries, true delays, indices of banks, numbers in options."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import soundfile
from hypothesis import strategies as st

from fuzz.edits import byte_edits, edited, edited_json, json_edits
from fuzz.workplace import workplace
from qkgcc.arrays import array
from qkgcc.arrays.presets import SHAPES
from qkgcc.cli.options import channel_numbers, numbers, read_pairs, source_count
from qkgcc.delay.truth import Truth
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.training.config import load

_MANY = "⁂"
"""Stands for a number of 5000 digits, so that inputs stay short."""
_CELLS = st.one_of(
    st.sampled_from(
        ["0", "1", "-1", "0.05", "1e9", "1e400", "nan", "inf", "", " ", "1,5", "a", "0x1", "1_0", '"', _MANY]
    ),
    st.integers(-1000, 1000).map(lambda x: f"{x / 1000:.3f}"),
)


def _spelt(text: str) -> str:
    return text.replace(_MANY, "9" * 5000) if text.count(_MANY) < 100 else text


# Geometries

_TOML = """units = "cm"
axes = ["right", "front", "up"]
microphones = [[0, 0, 0], [14, -3, 1], [-3, 11, 4], [5, 4, 12]]
"""
_CSV = "right_cm,front_cm,up_cm\n0,0,0\n14,-3,1\n-3,11,4\n5,4,12\n"
_TEXTS = {"toml": _TOML, "csv": _CSV}
_numbers_toml = st.sampled_from(
    ["0", "1", "-5", "1.5", "nan", "inf", "1e308", _MANY, '"a"', "[]", "[1]", "true", "{a=1}", "1979-05-27", "0x10"]
)

geometries = st.one_of(
    st.tuples(st.sampled_from(["toml", "csv"]), byte_edits),
    st.tuples(
        st.just("table"),
        st.tuples(
            st.sampled_from(["front_m,left_m,up_m", "right_mm,back_mm,down_mm", "a,b,c", "front_m,left_cm,up_m", ""]),
            st.lists(st.lists(_CELLS, max_size=4), max_size=5),
            st.sampled_from([1, 1, 1, 100, 20_000]),
        ),
    ),
    st.tuples(
        st.just("toml values"),
        st.tuples(
            st.sampled_from(['"m"', '"cm"', '"mm"', "1", "[]", '"km"', "[[" * 300]),
            st.sampled_from(['["front", "left", "up"]', '["up", "up", "up"]', "3", '["front"]', "[[]]", '"front"']),
            st.lists(st.lists(_numbers_toml, max_size=4), max_size=5),
            st.sampled_from(["", "[[", "[" * 2000, "a.b" * 500 + "=1", "\0", '"""', "x = {" * 300]),
        ),
    ),
    st.tuples(
        st.just("name"),
        st.one_of(
            st.tuples(st.sampled_from([*SHAPES, "respeaker4", "", "x"]), st.lists(_CELLS, max_size=4)),
            st.tuples(st.text(max_size=8), st.just([])),
        ),
    ),
)


def read_array(given: tuple[str, Any]) -> None:
    kind, what = given
    if kind == "name":
        geometry = array(_spelt(":".join([what[0], *what[1]])))
    elif kind in _TEXTS:
        path = workplace() / f"given.{kind}"
        path.write_bytes(edited(_TEXTS[kind].encode(), what))
        geometry = array(path)
    elif kind == "table":
        heading, rows, times = what
        path = workplace() / "given.csv"
        path.write_text(_spelt("\n".join([heading, *(",".join(row) for row in rows)] * times)))
        geometry = array(path)
    else:
        units, axes, rows, more = what
        path = workplace() / "given.toml"
        listed = ", ".join("[" + ", ".join(row) + "]" for row in rows)
        path.write_text(_spelt(f"units = {units}\naxes = {axes}\nmicrophones = [{listed}]\n{more}"))
        geometry = array(path)
    assert len(geometry) >= 2
    assert math.isfinite(geometry.aperture)
    assert geometry.dimensions in (1, 2, 3)


# True delays

_TRUTH = "file,start,end,delay_samples\na.wav,0,1,3.5\na.wav,1,2,-4\nb.wav,,,0\n"
_names = st.sampled_from(["a.wav", "b.wav", "../a.wav", "", " ", "/a.wav", "x" * 300, "ä"])
_columns = st.sampled_from(
    [
        *("file,delay_samples", "file,start,end,delay_samples", "file,time,delay_seconds", "file,delays,delay_samples"),
        *("file", "delay_samples,file", "file,file,delay_samples", "file,delay_samples,delay_seconds"),
    ]
)
truths = st.one_of(
    st.tuples(st.just("bytes"), byte_edits),
    st.tuples(
        st.just("rows"),
        st.tuples(
            _columns,
            st.lists(st.tuples(_names, st.lists(_CELLS, max_size=3)), max_size=4),
            st.sampled_from([1, 1, 300]),
        ),
    ),
)


def read_truth(given: tuple[str, Any]) -> None:
    kind, what = given
    path = workplace() / "given-truth.csv"
    if kind == "bytes":
        path.write_bytes(edited(_TRUTH.encode(), what))
    else:
        columns, rows, times = what
        lines = [",".join([name, *cells]) for name, cells in rows]
        path.write_text(_spelt("\n".join([columns, *(lines * times)])), encoding="utf-8")
    truth = Truth.read(path)
    for name in truth.parts:
        assert truth.at(name, np.linspace(-1, 3, 9), 16000).shape == (9,)
    truth.name_of(path.parent / "a.wav")


# Banks


def _flac(samples: int) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, 0.1 * np.random.default_rng(0).standard_normal(samples), 16000, format="FLAC")
    return stream.getvalue()


_INDEX = {
    "format": 1,
    "set": "test-clean",
    "sample_rate": 16000,
    "recipe": {"seconds": 3.0},
    "audio": {"bytes": 4000, "sha256": "a"},
    "spectra": {"offset": 1000, "bytes": 2052, "bins": 513, "type": "<f4"},
    "left_out": [],
    "utterances": [
        {
            **{"id": "61-7-0", "group": "61", "split": "test", "kind": "speech", "licence": "none", "codec": "flac"},
            **{"samples": 300, "whole_samples": 300, "sha256": "b", "offset": 0, "bytes": 900},
        }
    ],
}

_AUDIO = _flac(300)
_AUDIO += bytes(4000 - len(_AUDIO))
banks = st.one_of(st.tuples(st.just("json"), json_edits), st.tuples(st.just("bytes"), byte_edits))


def read_bank(given: tuple[str, Any]) -> None:
    kind, edits = given
    path = workplace() / "given.json"
    if kind == "json":
        path.write_text(json.dumps(edited_json(_INDEX, edits)))
    else:
        path.write_bytes(edited(json.dumps(_INDEX).encode(), edits))
    path.with_suffix(".audio").write_bytes(_AUDIO)
    bank = Bank.load(path, verify=False)
    for i in range(len(bank)):
        bank.audio(i)


# Numbers and names in options

_LISTS: dict[str, Callable[[str], object]] = {
    "channels": channel_numbers,
    "numbers": lambda text: numbers("--distances", text),
    "pairs": read_pairs,
    "sources": source_count,
}
lists = st.tuples(
    st.sampled_from(list(_LISTS)),
    st.one_of(
        st.lists(
            st.sampled_from(["0", "1", "2", "-", ",", "0-1", " ", "٣", "²", "1e9", "nan", "a", _MANY]), max_size=6
        ).map("".join),
        st.text(max_size=10),
    ),
)


def read_list(given: tuple[str, str]) -> None:
    _LISTS[given[0]](_spelt(given[1]))


# Trainings

_TRAINING = """name = "mine"
architecture = "steered"
pairs = 64
epochs = 2
[options]
frame = 256
dft = 256
"""
trainings = st.tuples(
    byte_edits,
    st.lists(
        st.tuples(
            st.sampled_from(
                ["pairs", "epochs", "options.frame", "learning_rate", "precision", "", "x", "options", "t60"]
            ),
            st.sampled_from(["1", "0", "-1", "nan", "1e400", "true", "", "[", "[1, 2]", "x", "{}", _MANY, '"a"']),
        ).map("=".join),
        max_size=2,
    ),
)


def read_training(given: tuple[Any, list[str]]) -> None:
    edits, changes = given
    path = workplace() / "given.toml"
    path.write_bytes(edited(_TRAINING.encode(), edits))
    load(str(path), [_spelt(change) for change in changes])
