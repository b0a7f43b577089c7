"""Which signals a distribution may draw from, by kind, and where their samples come from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.scenes.signals import is_synthetic, synthetic

Lookup = Callable[[str], npt.NDArray[np.floating]]
"""From the id of a signal to its samples. Shape: (n,)"""
Whole = Callable[[str], tuple[npt.NDArray[np.floating], int]]
"""From the id of an utterance to the power spectrum of the whole of it, shape (513,), and its samples."""


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
    find = _finder(banks)

    def samples(id: str) -> npt.NDArray[np.floating]:
        if is_synthetic(id):
            return synthetic(id, round(seconds * sample_rate), sample_rate)
        bank, number = find(id)
        return bank.audio(number)

    return samples


def whole_utterances(banks: Iterable[Bank]) -> Whole:
    """Power spectra and lengths of whole utterances, of which a bank may keep the beginning only."""
    find = _finder(banks)

    def whole(id: str) -> tuple[npt.NDArray[np.floating], int]:
        bank, number = find(id)
        return bank.power_spectrum[number], int(bank.whole_samples[number])

    return whole


def check_length(banks: Iterable[Bank], split: str, seconds: float) -> None:
    """An `InputError` if a bank keeps less of an utterance than recordings of this length need, though there was more.

    What is missing would be silence in the middle of a sentence.
    """
    for bank in banks:
        numbers = bank.select(split=split)
        kept, wanted = bank.samples[numbers], np.minimum(bank.whole_samples[numbers], seconds * bank.sample_rate)
        if (kept < wanted).any():
            most = kept[kept < wanted].min() / bank.sample_rate
            raise InputError(
                f"recordings of {seconds:g} s were asked for, and the bank {bank.path.stem} keeps {most:g} s of an "
                f"utterance of its split {split}: ask for at most {most:g} s, or build a bank that "
                f"keeps {seconds:g} s"
            )


def _finder(banks: Iterable[Bank]) -> Callable[[str], tuple[Bank, int]]:
    where = {id: (bank, number) for bank in banks for number, id in enumerate(bank.ids)}

    def find(id: str) -> tuple[Bank, int]:
        if id not in where:
            raise InputError(f"none of the banks holds the signal {id!r}")
        return where[id]

    return find
