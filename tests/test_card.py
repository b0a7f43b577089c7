"""A card survives the way through JSON, and a wrong one says what is wrong with it."""

import json
import subprocess
import sys
from typing import Any

import pytest

from qkgcc.core.errors import InputError
from qkgcc.network.card import Card

FIELDS: dict[str, Any] = {
    "format": 1,
    "name": "paper-seed0",
    "architecture": "qkgcc",
    "options": {"radius": 8},
    "sample_rate": 16000,
    "frame": 2048,
    "dft": 4096,
    "delays": list(range(-23, 24)),
    "scaling": "utterance",
    "data_hash": "sha256:0123",
    "seed": 0,
    "git": "abc123",
    "torch": "2.13.0",
    "metrics": {"rmse": 8.83},
    "licence": "MIT",
}


def test_a_card_survives_json() -> None:
    card = Card.from_json(json.dumps(FIELDS))
    assert json.loads(card.to_json()) == FIELDS
    assert Card.from_json(card.to_json()) == card
    assert (card.name, card.delays[0], card.delays[-1], card.scaling) == ("paper-seed0", -23, 23, "utterance")


def test_json_keeps_the_fields_in_the_order_of_the_format() -> None:
    assert list(json.loads(Card(**FIELDS).to_json())) == list(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_must_be_there(name: str) -> None:
    with pytest.raises(InputError, match=f"lacks {name}$"):
        Card.from_json(json.dumps({key: value for key, value in FIELDS.items() if key != name}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, r"format is 2; expected 1.*newer qkgcc"),
        ({"format": True}, "format is True"),
        ({"format": 2, "shape": 3}, "format is 2"),  # the version is judged before the fields
        ({"scaling": "loudness"}, "scaling is 'loudness'; expected 'frame' or 'utterance'"),
        ({"scaling": None}, "scaling is None"),
        ({"colour": "red"}, "unknown fields colour"),
        ({"name": ""}, "name is ''"),
        ({"architecture": 3}, "architecture is 3; expected a text"),
        ({"git": 3}, "git is 3; expected a text or null"),
        ({"sample_rate": 0}, "sample_rate is 0; expected a whole number from 1 to 1048576"),
        ({"sample_rate": 16000.5}, "sample_rate is 16000.5"),
        ({"dft": 1024}, "dft is 1024; expected at least the 2048 samples"),
        ({"seed": -1}, "seed is -1"),
        ({"delays": []}, "delays is"),
        ({"delays": 23}, "delays is 23; expected a list"),
        ({"delays": [0, 1, 1]}, "rising"),
        ({"delays": ["0"]}, "delays is"),
        ({"options": []}, "options is .*; expected an object"),
        ({"metrics": None}, "metrics is None"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Card.from_json(json.dumps(FIELDS | change))


@pytest.mark.parametrize("name", ["data_hash", "seed", "git", "torch"])
def test_provenance_may_be_unknown(name: str) -> None:
    assert getattr(Card.from_json(json.dumps(FIELDS | {name: None})), name) is None


@pytest.mark.parametrize(("text", "message"), [("{", "not JSON"), ("[1]", "JSON list; expected an object")])
def test_text_that_is_no_card_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Card.from_json(text)


def test_a_metric_that_json_cannot_hold_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="metrics cannot be written as JSON"):
        Card(**FIELDS | {"metrics": {"rmse": float("nan")}})


def test_fractions_of_a_sample_may_be_classes() -> None:
    assert Card(**FIELDS | {"delays": [-0.5, 0.0, 0.5]}).delays == (-0.5, 0.0, 0.5)


def test_reading_a_card_does_not_import_torch() -> None:
    code = "import sys, qkgcc.network.card; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
