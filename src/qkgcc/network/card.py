"""The card of a model: what it is, what it expects, where it came from. JSON that travels inside its weights.

A checkpoint (safetensors) and an exported network (ONNX) carry the card in their metadata under the key ``qkgcc``, so
that a file of weights describes itself. No torch here: using a model needs its card too.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qkgcc.core.errors import InputError
from qkgcc.core.tables import excerpt, json_text, parse_json

KEY = "qkgcc"
"""The metadata key under which files of weights hold the card."""
DIGEST_KEY = "qkgcc-sha256"
"""The metadata key of a file's SHA-256: of tensors and card (safetensors), or of the file (ONNX)."""
FORMAT = 1
"""The version of the card that this package reads and writes."""
LONGEST = 1_000_000
"""Characters of a card: those of the networks that ship have up to 10,000."""
LARGEST_NUMBER = 1 << 20
"""Of a sample rate, and of the samples of a frame or transform."""
SCALINGS = ("frame", "utterance")
"""What both channels are divided by: the frame's joint RMS, or the paper's one number for the whole utterance."""
ARCHITECTURES = ("ngcc", "pgcc", "qkgcc", "steered", "transformer")
"""What a checkpoint can hold; `qkgcc.nets.checkpoint` builds them."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The description of one trained model.

    >>> sizes = dict(sample_rate=16000, frame=2048, dft=4096, delays=[-1, 0, 1])
    >>> card = Card(name="demo", architecture="qkgcc", options={"max_delay": 1}, scaling="frame", **sizes)
    >>> Card.from_json(card.to_json()) == card
    True
    """

    format: int = FORMAT
    name: str
    architecture: str
    """The network's name in the registry, such as ``qkgcc``."""
    options: dict[str, Any]
    """What the architecture is built with."""
    sample_rate: int
    """Hz. Input is resampled to it."""
    frame: int
    """Samples of a frame at `sample_rate`."""
    dft: int
    """Length of the zero-padded transform, of a frame or of each window of it."""
    delays: Sequence[float]
    """The delay of each class in samples at `sample_rate`, rising; positive = channel 1 hears later. A tuple."""
    scaling: str
    """'frame' or 'utterance', see `SCALINGS`."""
    data_hash: str | None = None
    """Names the data it was trained on; None when there is none to name."""
    seed: int | None = None
    git: str | None = None
    """The commit that trained it."""
    torch: str | None = None
    """The version of torch that trained it."""
    metrics: dict[str, Any] = field(default_factory=dict)
    licence: str = "MIT"

    def __post_init__(self) -> None:
        _validate(self)
        object.__setattr__(self, "delays", tuple(self.delays))  # a list from JSON equals the tuple it came from

    def to_json(self) -> str:
        """One JSON object."""
        return json_text(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read what `to_json` wrote. Every field must be there; unknown ones are an error, not a silent loss."""
        if len(text) > LONGEST:
            raise InputError(f"the card has {len(text)} characters; expected at most {LONGEST}")
        fields = parse_json(text, "the card")
        if not isinstance(fields, dict):
            raise InputError(f"the card is a JSON {type(fields).__name__}; expected an object")
        if "format" in fields:  # first: in another format other fields may well be missing or unknown
            _check_format(fields["format"])
        known = {f.name for f in dataclasses.fields(cls)}
        if missing := sorted(known - set(fields)):
            raise InputError(f"the card lacks {', '.join(missing)}")
        if unknown := sorted(set(fields) - known):
            raise InputError(f"the card has unknown fields {excerpt(unknown)}; format {FORMAT} has none of that name")
        return cls(**fields)


FORMER_OPTIONS = {"pool": 1, "projection": 0, "coarse": 4}
"""Options of steered networks that cards may still name, with the one value that is left of each."""


def current_options(architecture: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A card's options without those that no network has any more; an `InputError` for other values of these.

    >>> current_options("steered", {"width": 128, "pool": 1})
    {'width': 128}
    """
    if architecture != "steered":
        return dict(options)
    for name, value in FORMER_OPTIONS.items():
        given = options.get(name, value)
        if isinstance(given, bool) or given != value:
            raise InputError(f"the card's option {name} is {given!r:.60}; this version runs networks with {value} only")
    return {name: value for name, value in options.items() if name not in FORMER_OPTIONS}


_NUMBERS = ("kernel", "max_delay", "radius", "step", "window")
"""Options that say what a network can be asked, whatever runs it."""


def _is_whole(value: object, least: int, most: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_small(value: object) -> bool:
    """Whether it is a number of a size that delays have; JSON's numbers may have thousands of digits."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def _expect(ok: bool, name: str, value: object, expected: str) -> None:
    if not ok:
        raise InputError(f"the card's {name} is {value!r:.80}; expected {expected}")


def _check_format(version: object) -> None:
    hint = "a newer qkgcc may know it"
    _expect(version == FORMAT and _is_whole(version, 1), "format", version, f"{FORMAT}, the only one known ({hint})")


def _validate(card: Card) -> None:
    _check_format(card.format)
    for name in ("name", "architecture", "licence"):
        value = getattr(card, name)
        _expect(isinstance(value, str) and value != "" and value.isprintable(), name, value, "a text of one line")
    for name in ("data_hash", "git", "torch"):
        value = getattr(card, name)
        _expect(value is None or isinstance(value, str), name, value, "a text or null")
    for name in ("sample_rate", "frame", "dft"):
        value = getattr(card, name)
        _expect(_is_whole(value, 1, LARGEST_NUMBER), name, value, f"a whole number from 1 to {LARGEST_NUMBER}")
    _expect(card.seed is None or _is_whole(card.seed, 0), "seed", card.seed, "a whole number >= 0 or null")
    _expect(card.scaling in SCALINGS, "scaling", card.scaling, " or ".join(repr(s) for s in SCALINGS))
    numbers = isinstance(card.delays, (list, tuple)) and len(card.delays) > 0 and all(map(_is_small, card.delays))
    rising = numbers and all(a < b for a, b in itertools.pairwise(card.delays))
    _expect(rising, "delays", card.delays, "a list of rising numbers, the delay of each class in samples")
    for name in ("options", "metrics"):
        value = getattr(card, name)
        _expect(isinstance(value, dict), name, value, "an object")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"the card's {name} cannot be written as JSON: {error}") from None
    for name in _NUMBERS:
        value = card.options.get(name, 0)
        _expect(_is_small(value), f"option {name}", value, "a number")
    # A network that cuts its frames into windows transforms those.
    transformed = card.options.get("window") or card.frame
    fits = _is_whole(transformed, 1) and card.dft >= transformed
    _expect(fits, "dft", card.dft, f"at least the {transformed!r:.20} samples that are transformed")
