"""Sound files: edits of valid ones in every format, headers whose fields say anything, and raw sound in pipes."""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import soundfile
from hypothesis import strategies as st

from fuzz.edits import NUMBERS, Edit, byte_edits, edited
from fuzz.workplace import workplace
from qkgcc import DelayEstimator, open_audio
from qkgcc.audio import pcm
from qkgcc.delay.stream import DelayStream
from qkgcc.lab.corpora.packing import with_fixed_serial

RATE = 8000
FORMATS = {
    "wav": ("WAV", "PCM_16"),
    "wav-u8": ("WAV", "PCM_U8"),
    "wav-24": ("WAV", "PCM_24"),
    "wav-float": ("WAV", "FLOAT"),
    "wav-double": ("WAV", "DOUBLE"),
    "wav-ulaw": ("WAV", "ULAW"),
    "wav-ima": ("WAV", "IMA_ADPCM"),
    "wav-ms": ("WAV", "MS_ADPCM"),
    "wavex": ("WAVEX", "PCM_16"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "aiff-float": ("AIFF", "FLOAT"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "caf-alac": ("CAF", "ALAC_16"),
    "flac": ("FLAC", "PCM_16"),
    "flac-24": ("FLAC", "PCM_24"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "nist": ("NIST", "PCM_16"),
    "voc": ("VOC", "PCM_16"),
    "svx": ("SVX", "PCM_16"),
    "ircam": ("IRCAM", "PCM_16"),
    "mat4": ("MAT4", "PCM_16"),
    "mat5": ("MAT5", "PCM_16"),
    "paf": ("PAF", "PCM_16"),
    "sds": ("SDS", "PCM_16"),
    "xi": ("XI", "DPCM_16"),
    "htk": ("HTK", "PCM_16"),
    "avr": ("AVR", "PCM_16"),
    "pvf": ("PVF", "PCM_16"),
    "mpc2k": ("MPC2K", "PCM_16"),
    "wve": ("WVE", "ALAW"),
}
_MONO = ("svx", "sds", "xi", "htk", "wve")


@cache
def whole(name: str) -> bytes:
    """A valid file of a tenth of a second."""
    kind, subtype = FORMATS[name]
    sound = 0.2 * np.random.default_rng(1).standard_normal((1200, 1 if name in _MONO else 2))
    stream = io.BytesIO()
    rate = 44100 if name == "xi" else RATE
    with contextlib.redirect_stderr(io.StringIO()):
        soundfile.write(stream, sound.clip(-1, 1), rate, format=kind, subtype=subtype)
    return with_fixed_serial(stream.getvalue()) if kind == "OGG" else stream.getvalue()


files = st.tuples(
    st.sampled_from(list(FORMATS)), st.sampled_from(["path", "stream", "pipe", "part", "delay"]), byte_edits
)


def read_file(given: tuple[str, str, Sequence[Edit]]) -> None:
    name, way, edits = given
    _read(edited(whole(name), edits), way, name.partition("-")[0])


def _read(content: bytes, way: str, suffix: str) -> None:
    if way in ("stream", "pipe"):
        stream = io.BytesIO(content)
        with contextlib.suppress(AttributeError):
            stream.name = "given.wav" if way == "pipe" else 3  # type: ignore[attr-defined]
        source: Any = stream
    else:
        source = workplace() / f"given.{suffix}"
        source.write_bytes(content)
    if way == "delay":
        DelayEstimator("phat", max_delay=0.001)(source)
        return
    recording = open_audio(source, start=0.01, end=0.1) if way == "part" else open_audio(source)
    seen = sum(block.shape[1] for block in recording.blocks())
    assert seen == recording.samples, f"{seen} of {recording.samples} samples"


# Headers: every field may say anything

_numbers = st.sampled_from(NUMBERS)
_usual = st.sampled_from([0, 1, 2, 3, 4, 8, 16, 24, 32, 64, 255, 1000, 8000, 48000, 768000, 65535])
_field = st.one_of(st.none(), _usual, _numbers)
_count = st.sampled_from([None, 0, 1, 3, 100, 140_000])

headers = st.fixed_dictionaries(
    {"kind": st.sampled_from(["RIFF", "RF64", "riff", "FORM", "FORM-C", ".snd", "fLaC"])},
    optional={
        "tag": st.sampled_from([0, 1, 2, 3, 6, 7, 17, 49, 85, 0xFFFE, 0xFFFF]),
        "channels": _field,
        "rate": _field,
        "bits": _field,
        "align": _field,
        "whole": _field,
        "data": _field,
        "frames": _field,
        "before": _count,
        "body": _count,
        "cut": st.integers(0, 120),
        "twice": st.booleans(),
        "no format": st.booleans(),
    },
)


def read_header(given: dict[str, Any]) -> None:
    kind = given["kind"]
    content = {"RIFF": _riff, "RF64": _riff, "riff": _w64, ".snd": _au, "fLaC": _flac}.get(kind, _aiff)(given)
    _read(content[: given.get("cut")], "delay", {"riff": "w64", ".snd": "au", "fLaC": "flac"}.get(kind, "wav"))


def _get(given: dict[str, Any], name: str, default: int, bits: int) -> int:
    value = given.get(name)
    return int(default if value is None else value) % (1 << bits)


def _body(given: dict[str, Any]) -> bytes:
    return bytes(range(1, 256)) * (_get(given, "body", 8000, 30) // 255 + 1)


def _format(given: dict[str, Any]) -> bytes:
    channels, bits = _get(given, "channels", 2, 16), _get(given, "bits", 16, 16)
    rate, align = _get(given, "rate", RATE, 32), _get(given, "align", channels * bits // 8, 16)
    tag = _get(given, "tag", 1, 16)
    form = struct.pack("<HHIIHH", tag, channels, rate, rate * align % (1 << 32), align, bits)
    if tag != 1:
        form += struct.pack("<HHI", 22, bits, 0) + bytes.fromhex("0100000000001000800000aa00389b71")
    return form


def _riff(given: dict[str, Any]) -> bytes:
    body, form = _body(given), _format(given)
    before = bytes(_get(given, "before", 0, 20))
    long = given["kind"] == "RF64"
    data = _get(given, "data", len(body), 32)
    chunks = b"ds64" + struct.pack("<IQQQI", 28, 0, _get(given, "data", len(body), 64), 0, 0) if long else b""
    if "before" in given:
        chunks += b"JUNK" + struct.pack("<I", len(before)) + before
    if not given.get("no format"):
        chunks += (b"fmt " + struct.pack("<I", len(form)) + form) * (1 + bool(given.get("twice")))
    chunks += b"data" + struct.pack("<I", 0xFFFFFFFF if long else data) + body
    whole = _get(given, "whole", len(chunks) + 4, 32)
    return given["kind"].encode() + struct.pack("<I", whole) + b"WAVE" + chunks


def _w64(given: dict[str, Any]) -> bytes:
    body, form = _body(given), _format(given)
    guid = bytes.fromhex("f3acd3118cd100c04f8edb8a")
    chunks = b"" if given.get("no format") else b"fmt " + guid + struct.pack("<Q", 24 + len(form)) + form
    chunks += b"data" + guid + struct.pack("<Q", _get(given, "data", 24 + len(body), 64)) + body
    whole = _get(given, "whole", 40 + len(chunks), 64)
    return b"riff" + bytes.fromhex("2e91cf11a5d628db04c10000") + struct.pack("<Q", whole) + b"wave" + guid + chunks


def _aiff(given: dict[str, Any]) -> bytes:
    body = _body(given)
    channels, bits, frames = (
        _get(given, "channels", 2, 16),
        _get(given, "bits", 16, 16),
        _get(given, "frames", 1000, 32),
    )
    rate = struct.pack(">HQ", 16398 if given.get("rate") is None else _get(given, "rate", 0, 16), 0xFA00 << 48)
    form = struct.pack(">HIH", channels, frames, bits) + rate
    compressed = given["kind"] == "FORM-C"
    if compressed:
        form += (b"NONE", b"sowt", b"fl32", b"ulaw", b"ima4")[_get(given, "tag", 0, 16) % 5] + b"\0\0"
    chunks = b"" if given.get("no format") else b"COMM" + struct.pack(">I", len(form)) + form
    chunks += b"SSND" + struct.pack(">III", _get(given, "data", 8 + len(body), 32), 0, 0) + body
    whole = _get(given, "whole", 4 + len(chunks), 32)
    return b"FORM" + struct.pack(">I", whole) + (b"AIFC" if compressed else b"AIFF") + chunks


def _au(given: dict[str, Any]) -> bytes:
    body = _body(given)
    fields = (
        _get(given, "whole", 24, 32),
        _get(given, "data", len(body), 32),
        _get(given, "tag", 3, 32),
        _get(given, "rate", RATE, 32),
        _get(given, "channels", 2, 32),
    )
    return b".snd" + struct.pack(">5I", *fields) + body


def _flac(given: dict[str, Any]) -> bytes:
    """The frames of a valid file under another STREAMINFO."""
    content = bytearray(whole("flac"))
    packed = _get(given, "rate", RATE, 20) << 44 | (_get(given, "channels", 2, 32) - 1) % 8 << 41
    packed |= (_get(given, "bits", 16, 32) - 1) % 32 << 36 | _get(given, "frames", 1200, 36)
    content[18:26] = packed.to_bytes(8)
    return bytes(content)


# Raw sound in pipes

pipes = st.fixed_dictionaries(
    {
        "format": st.sampled_from(pcm.FORMATS),
        "bytes": st.binary(max_size=40),
        "repeats": st.sampled_from([0, 1, 7, 300]),
    },
    optional={
        "channels": st.sampled_from([1, 2, 3, 64]),
        "size": st.sampled_from([1, 80, 100_000]),
        "reads": st.sampled_from([1, 3, 1000]),
        "stream": st.booleans(),
    },
)


class _Pipe(io.BytesIO):
    """Gives a few bytes at a time, as pipes do."""

    most = 1 << 16

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.read(self.most)


def read_pipe(given: dict[str, Any]) -> None:
    content = given["bytes"] * given["repeats"]
    source, channels = _Pipe(content), given.get("channels", 2)
    source.most = given.get("reads", 1 << 16) if len(content) < 2000 else 1 << 16
    blocks = pcm.blocks(source, given["format"], channels, given.get("size", 80))
    if not given.get("stream"):
        whole = pcm.sample_bytes(given["format"]) * channels
        seen = sum(block.shape[1] for block in blocks)
        assert seen == len(content) // whole, f"{seen} samples of {len(content)} bytes"
        return
    stream = DelayStream(DelayEstimator("phat", max_delay=0.001), RATE)
    for block in blocks:
        stream.push(block[:2])
    stream.flush()
