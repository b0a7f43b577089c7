"""Which signals a distribution may draw from, by kind, and where their samples come from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from qkgcc.data.banks import Bank
from qkgcc.errors import InputError
from qkgcc.simulate.signals import is_synthetic, synthetic

Lookup = Callable[[str], npt.NDArray[np.floating]]
"""From the id of a signal to its samples. Shape: (n,)"""


@dataclass(frozen=True)
class Catalog:
    """Ids of the recorded signals of one split. Transients and tones are synthetic, and there without being listed."""

    speech: tuple[str, ...] = ()
    music: tuple[str, ...] = ()
    noise: tuple[str, ...] = ()

    @classmethod
    def from_banks(cls, banks: Iterable[Bank], split: str) -> "Catalog":
        """Everything that the banks hold of a split."""
        ids: dict[str, list[str]] = {field.name: [] for field in fields(cls)}
        for bank in banks:
            for number in bank.select(split=split).tolist():
                kind = str(bank.kinds[number])
                if kind not in ids:
                    raise InputError(f"{bank.path}: {bank.ids[number]} is of kind {kind!r}; known are {', '.join(ids)}")
                ids[kind].append(bank.ids[number])
        every = [id for listed in ids.values() for id in listed]
        if len(set(every)) < len(every):
            raise InputError("the banks share ids, so an id does not name one signal: leave one of the banks out")
        return cls(**{kind: tuple(listed) for kind, listed in ids.items()})


def lookup(banks: Iterable[Bank], seconds: float, sample_rate: int = 16000) -> Lookup:
    """Samples by id: those of the banks, whole, and `seconds` of synthetic ones."""
    where = {id: (bank, number) for bank in banks for number, id in enumerate(bank.ids)}

    def samples(id: str) -> npt.NDArray[np.floating]:
        if is_synthetic(id):
            return synthetic(id, round(seconds * sample_rate), sample_rate)
        if id not in where:
            raise InputError(f"none of the banks holds the signal {id!r}")
        bank, number = where[id]
        return bank.audio(number)

    return samples
