"""What is wrong with files that users give is one sentence, whatever it is: texts, tables, cards, checkpoints."""

import json
import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from qkgcc import DelayEstimator, InputError, open_audio
from qkgcc.arrays import Geometry, array, read_geometry
from qkgcc.core import tables
from qkgcc.core.tables import parse_json, parse_toml, read_text
from qkgcc.delay.truth import Truth
from qkgcc.lab.training import config as configs
from qkgcc.network import files
from qkgcc.network.registry import pretrained

READERS: dict[str, Callable[[Path], object]] = {
    "geometry.toml": read_geometry,
    "geometry.csv": read_geometry,
    "truth.csv": Truth.read,
    "training.toml": configs.load,
}
BEGINNINGS = {
    "geometry.toml": 'units = "m"\naxes = ["front", "left", "up"]\n',
    "geometry.csv": "front_m,left_m,up_m\n",
    "truth.csv": "file,delay_samples\n",
    "training.toml": 'name = "a"\n',
}
TEXTS = {
    "bytes that are no letters": b"\xff\xfe\x00\xd8",
    "zeros": bytes(3_000_000),
    "one endless line": b"y" * 3_000_000,
    "a cell of 200,000 letters": b'"' + b"a" * 200_000 + b'",1\n',
    "an open quote": b'"a,1\n' * 50_000,
    "brackets nested 100,000 deep": b"x = " + b"[" * 100_000,
    "a number of 5000 digits": b"x = " + b"9" * 5000,
    "a number of 24,000 bits": b"microphones = [[0x" + b"f" * 6000 + b", 0, 0], [1, 0, 0]]",
    "a date": b"microphones = [[2020-01-01, 0, 0], [1, 0, 0]]",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("at_once", [True, False], ids=["alone", "behind a right beginning"])
def test_unreadable_texts_are_one_sentence(name: str, text: str, at_once: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((b"" if at_once else BEGINNINGS[name].encode()) + TEXTS[text])
    with pytest.raises(InputError) as said:
        READERS[name](path)
    assert len(str(said.value)) < 600
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("name", ["geometry.toml", "card.json"])
def test_a_number_of_5000_digits_is_called_so(name: str) -> None:
    text, parse = (b"[" + b"9" * 5000 + b"]", parse_json) if name == "card.json" else ("x = " + "9" * 5000, parse_toml)
    with pytest.raises(InputError, match=f"^{name} holds a number of more than 4300 digits; expected fewer$"):
        parse(text, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", READERS)
def test_names_longer_than_a_name_can_be_are_one_sentence(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="File name too long"):
        READERS[name](tmp_path / (300 * "a" + name))
    with pytest.raises(InputError, match="null"):
        READERS[name](tmp_path / f"\0{name}")


def test_names_of_networks_arrays_and_recordings_may_be_too_long() -> None:
    for read in (DelayEstimator, array, open_audio, configs.load):
        for name in (5000 * "a", 5000 * "a/b", "a\0b"):
            with pytest.raises(InputError):
                read(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
class TestPipesAndDevices:
    @pytest.mark.parametrize("name", READERS)
    @pytest.mark.parametrize("more", [b"y\n", b"0,0,0\n", b"# nothing\n", b"\0"])
    def test_an_endless_pipe_ends_its_writer(self, name: str, more: bytes, tmp_path: Path) -> None:
        path, written = tmp_path / name, [0]
        os.mkfifo(path)
        content = more * (100_000 // len(more))

        def write() -> None:
            try:
                with path.open("wb", buffering=0) as file:
                    file.write(BEGINNINGS[name].encode())
                    while True:
                        written[0] += file.write(content)
            except BrokenPipeError:
                pass

        writer = threading.Thread(target=write)
        writer.start()
        with pytest.raises(InputError):
            READERS[name](path)
        writer.join()
        assert written[0] < 20_000_000

    def test_a_geometry_comes_through_a_pipe(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        os.mkfifo(path)
        writer = threading.Thread(target=lambda: path.write_text("front_m,left_m,up_m\n0,0,0\n1,0,0\n"))
        writer.start()
        assert len(read_geometry(path)) == 2
        writer.join()

    def test_a_network_is_not_read_from_a_pipe(self, tmp_path: Path) -> None:
        path = tmp_path / "pipe.safetensors"
        os.mkfifo(path)
        with pytest.raises(InputError, match="is a pipe or a device"):
            DelayEstimator(str(path))
        with pytest.raises(InputError, match="is a pipe or a device; expected a file"):
            files.read(path)


def test_a_table_has_a_largest_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_TABLE_ROWS", 3)
    path = tmp_path / "truth.csv"
    path.write_text("file,delay_samples\na,1\nb,1\nc,1\n")
    assert len(Truth.read(path).parts) == 3
    path.write_text("file,delay_samples\na,1\nb,1\nc,1\nd,1\n")
    with pytest.raises(InputError, match="too many rows: expected at most 3"):
        Truth.read(path)


def test_texts_have_a_largest_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(1000 * (999 * "a" + "\n"))
    assert len(read_text(tmp_path / "a")) == 1_000_000
    (tmp_path / "a").write_text(1000 * (999 * "a" + "\n") + "a")
    with pytest.raises(InputError, match="too long: expected a text of at most 1000000 characters"):
        read_text(tmp_path / "a")


def test_numbers_of_more_than_64_bits_are_refused() -> None:
    assert parse_json(f"[{2**63 - 1}]", "it") == [2**63 - 1]
    for parse, text in ((parse_json, f'{{"a": [[{2**63}]]}}'), (parse_toml, f"a = [[{2**63}]]")):
        with pytest.raises(InputError, match="it holds a whole number of 64 bits; expected at most 63"):
            parse(text, "it")


# Geometries


def test_an_array_has_a_largest_number_of_microphones(tmp_path: Path) -> None:
    rows = "".join(f"{0.01 * i},0,0\n" for i in range(257))
    (tmp_path / "a.csv").write_text("front_m,left_m,up_m\n" + rows)
    with pytest.raises(InputError, match=r"a\.csv: there are 257 microphones; expected at most 256"):
        array(str(tmp_path / "a.csv"))
    with pytest.raises(InputError, match="there are 200000 microphones"):
        Geometry(np.arange(600_000, dtype=float).reshape(-1, 3))
    assert len(array("linear:256:0.01")) == 256


# Networks


def network(change: Callable[[dict[str, Any]], object], **tensors: np.ndarray) -> bytes:
    """A small network with another card, without a checksum."""
    card, weights = files.read(pretrained("general-small"))
    content = json.loads(card.to_json())
    change(content)
    return save(dict(weights) | tensors, {"qkgcc": json.dumps(content)})


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "a number of 4000 digits": lambda card: card.update(sample_rate=10**4000),
    "a delay of 4000 digits": lambda card: card.update(delays=[0, 10**4000]),
    "an option of 4000 digits": lambda card: card["options"].update(width=10**4000),
    "an option that needs 100 GB": lambda card: card["options"].update(width=1 << 20, heads=1 << 10),
    "a radius that needs gigabytes": lambda card: card["options"].update(radius=4000),
    "a window of letters": lambda card: card["options"].update(window="long"),
    "a largest delay that is a list": lambda card: card["options"].update(max_delay=[1]),
    "a confidence of 4000 digits": lambda card: card["metrics"]["confidence"][0].update(rate=10**4000),
    "a name that is no text": lambda card: card.update(name="\ud800"),
    "a name of two lines": lambda card: card.update(name="a\nb"),
    "a licence of two million letters": lambda card: card.update(licence=2_000_000 * "a"),
    "100,000 unknown fields": lambda card: card.update({f"field {i}": 0 for i in range(50_000)}),
}


@pytest.mark.parametrize("what", WRONG)
def test_cards_that_cannot_be_are_one_sentence(what: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(network(WRONG[what]))
    with pytest.raises(InputError) as said:
        DelayEstimator(str(path), spacing=0.2)
    assert len(str(said.value)) < 1000
    assert "\n" not in str(said.value)


def header(content: str) -> bytes:
    return struct.pack("<Q", len(content.encode())) + content.encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a safetensors file"),
        (b"\x02", "not a safetensors file"),
        (struct.pack("<Q", 1 << 40), "a header of 1099511627776 bytes; expected at most 10000000"),
        (header(11_000_000 * " "), "a header of 11000000 bytes; expected at most 10000000"),
        (header("{"), "not a safetensors file"),
        (struct.pack("<Q", 4) + b"\xff\xff\xff\xff", "not a safetensors file"),
        (struct.pack("<Q", 23) + b'{"__metadata__":{"\xff":1}', "not a safetensors file"),
        (header(json.dumps({"__metadata__": {"qkgcc": 100_000 * "["}})), "brackets are nested too deep"),
        (
            header('{"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}') + bytes(4),
            "tensors of a type that NumPy does not have .*: save them as float16 or float32",
        ),
        (
            header('{"a": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}') + bytes(4),
            "tensors of a type that NumPy does not have",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_of_tensors_that_cannot_be_read_are_one_sentence(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        files.read(path)
