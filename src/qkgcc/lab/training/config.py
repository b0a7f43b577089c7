"""What a training is: a small typed record, and TOML files that hold only what differs from its defaults.

One file a row of a table lies in `configs/`; `qkgcc train NAME` takes one of those, or the path of another. A file may
build on another with ``base = "qkgcc"``.

>>> load("qkgcc-b0").options, load("qkgcc-b0").epochs
({'radius': 0}, 30)
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from qkgcc.core.errors import InputError
from qkgcc.core.tables import excerpt, parse_toml, read_text

PRECISIONS = ("float32", "tf32", "bf16")
SOURCES = ("bank", "synthetic")
DISTRIBUTIONS = ("paper", "general")


@dataclass(frozen=True, kw_only=True)
class Config:
    """The defaults are the paper's: Adam 1e-3, cosine, batch 32, 30 epochs, 1.1e5 pairs with channel swap."""

    name: str
    architecture: str
    options: dict[str, Any] = field(default_factory=dict)
    """Of the network; what is left out keeps the network's default."""

    distribution: str = "paper"
    """Of the pairs: the paper's room and microphones, or any (`scenes.general.Law`)."""
    frames_per_scene: int = 4
    """Of the general distribution: rooms cost more than frames of them."""
    synthetic_pool: int = 2048
    """Of the general distribution: synthetic signals of each kind."""
    plain: float = 0.0
    """Of the general distribution: share of the scenes that are of `general.PLAIN` instead, speech in a room."""
    target_width: float = 0.0
    """Samples: standard deviation of the Gaussian around the true delay that is learnt; 0 is the nearest class."""
    start: str = ""
    """A trained checkpoint of the same network, whose weights are the first ones; none: random ones."""
    teacher: str = ""
    """A trained checkpoint, whose posteriors are learnt besides the true delays."""
    teacher_weight: float = 0.8
    """Share of the loss that is the teacher's."""
    sources: str = "bank"
    """Where utterances come from: a bank, or synthetic ones (for tests, where no corpus is)."""
    data_seed: int = 0
    """Names the one fixed set of pairs that every method and every seed trains on."""
    pairs: int = 110_000
    validation_pairs: int = 4_000
    t60: tuple[float, float] = (0.2, 1.0)
    """Seconds, uniform: the paper's. Narrower for quick tests. The general distribution has its own."""
    snr: tuple[float, float] = (0.0, 30.0)
    """dB, uniform; likewise."""
    shuffled_labels: bool = False
    """Give every pair another's delay: a control, nothing can be learnt from it."""

    seed: int = 0
    """Of the initial weights, the order of the pairs, the swaps and dropout."""
    epochs: int = 30
    batch: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    swap: bool = True
    """Swap the channels of half of the pairs, another half in every epoch, and change the sign of their delays."""
    precision: str = "tf32"
    """Of matrix products on a GPU; a CPU always works in float32. bf16 is torch's autocast."""
    compile: bool = True
    """Compile the network and replay each step as a CUDA graph, on a GPU."""

    def __post_init__(self) -> None:  # noqa: C901 - one check after the other
        for spread in ("t60", "snr"):
            if isinstance(getattr(self, spread), list):
                object.__setattr__(self, spread, tuple(getattr(self, spread)))
        for row in dataclasses.fields(self):
            _check_type(row.name, getattr(self, row.name), str(row.type))
        least = {"pairs": 1, "validation_pairs": 1, "epochs": 1, "batch": 2, "seed": 0, "data_seed": 0}
        least |= {"frames_per_scene": 1, "synthetic_pool": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise InputError(f"the setting {name} is {getattr(self, name)}; expected at least {low}")
        if self.pairs < self.batch:
            raise InputError(f"{self.pairs} pairs do not fill one batch of {self.batch}: lower the setting batch")
        if not self.learning_rate > 0 or self.weight_decay < 0 or self.target_width < 0:
            raise InputError("learning_rate must be positive, weight_decay and target_width at least 0")
        for name in ("teacher_weight", "plain"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"the setting {name} is {getattr(self, name)}; expected 0 to 1")
        for name, lowest, highest in (("t60", 0.2, 2.0), ("snr", -60.0, 300.0)):
            first, last = getattr(self, name)
            if not lowest <= first <= last <= highest:
                raise InputError(
                    f"the setting {name} is {[first, last]}; expected a rising pair in {lowest:g} to {highest:g}"
                )
        for name, known in (("precision", PRECISIONS), ("sources", SOURCES), ("distribution", DISTRIBUTIONS)):
            if getattr(self, name) not in known:
                raise InputError(f"the setting {name} is {getattr(self, name)!r}; known are {', '.join(known)}")

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches; the rest of a permutation is left out, another rest in every epoch."""
        return self.pairs // self.batch

    @property
    def steps(self) -> int:
        return self.steps_per_epoch * self.epochs

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Config:
        known = {row.name for row in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise InputError(f"there is no setting {excerpt(unknown)}; there are {', '.join(sorted(known))}")
        for needed in ("name", "architecture"):
            if needed not in values:
                raise InputError(f"the setting {needed} is missing")
        return cls(**values)


def names() -> list[str]:
    """The trainings that come with the package."""
    folder = resources.files("qkgcc.lab.training") / "configs"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load(name: str | Path, changes: Sequence[str] = ()) -> Config:
    """A training by its name, or from a TOML file, with changes such as ``epochs=5`` or ``options.radius=4``."""
    values = _read(str(name))
    for change in changes:
        _apply(values, change)
    return Config.from_mapping(values)


def _read(name: str, users: tuple[str, ...] = ()) -> dict[str, Any]:
    if name in users:
        raise InputError(f"{' -> '.join([*users, name])}: a training cannot be based on itself")
    if name.endswith(".toml"):
        text = read_text(name)
    elif name in names():
        text = (resources.files("qkgcc.lab.training") / "configs" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise InputError(
            f"there is no training {name!r}; there are {', '.join(names())}, or give the path of a TOML file"
        )
    values = parse_toml(text, name)
    base = values.pop("base", None)
    if base is None:
        return values
    if str(base).endswith(".toml"):  # beside the file that names it
        base = str(Path(name).parent / base)
    below = _read(str(base), (*users, name))
    return below | values | {"options": _options(below) | _options(values)}


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise InputError(f"{change!r} is no change of a setting; write it as epochs=5 or options.radius=4")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = text  # a bare word is a text
    if key.startswith("options."):
        values["options"] = _options(values) | {key.removeprefix("options."): value}
    else:
        values[key] = value


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    options = values.get("options", {})
    _check_type("options", options, "dict[str, Any]")
    return dict(options)


def _check_type(name: str, value: Any, expected: str) -> None:
    accepted: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "float": (int, float),
        "bool": (bool,),
        "dict[str, Any]": (dict,),
        "tuple[float, float]": (tuple,),
    }
    right = isinstance(value, accepted[expected]) and (expected == "bool" or not isinstance(value, bool))
    if expected.startswith("tuple"):
        right = right and len(value) == 2 and all(isinstance(x, (int, float)) for x in value)
    if not right:
        kind = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}
        kind |= {"dict[str, Any]": "a table of options", "tuple[float, float]": "a pair of numbers"}
        raise InputError(f"the setting {name} is {value!r}; expected {kind.get(expected, expected)}")
