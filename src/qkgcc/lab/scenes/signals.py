"""Signals by id: recorded ones of banks, and synthetic ones, each a pure function of an id such as `clicks:123`.

Synthetic signals are transients, tones and steady noise. A longer one begins with the shorter one, so an id names one
sound whatever length is asked for. Levels are left as they come: whoever mixes a scene scales its sources. A `Catalog`
lists the recorded signals that a distribution may draw from, by kind.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats, Floats32
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.draws import normal, stream, uniform
from qkgcc.lab.rooms.noise import coloured

SYNTHETIC_NUMBERS = 2**31
"""Numbers of each kind: an id is `kind:number` with a number from 0 up to here."""

_NOISE_PERIOD = 1 << 17  # samples after which steady noise repeats, without a seam: 8 s at 16 kHz
_HIGHEST_PARTIAL = 0.45  # of the sample rate: no partial above
_MAX_PARTIALS = 40

Lookup = Callable[[str], npt.NDArray[np.floating]]
"""From the id of a signal to its samples. Shape: (n,)"""
Whole = Callable[[str], tuple[npt.NDArray[np.floating], int]]
"""From the id of an utterance to the power spectrum of the whole of it, shape (513,), and its samples."""


def is_synthetic(id: str) -> bool:
    """Whether an id names a sound of this module.

    >>> is_synthetic("clicks:7"), is_synthetic("61-70968-0000")
    (True, False)
    """
    kind, colon, number = id.partition(":")
    return kind in SYNTHESES and bool(colon) and number.isascii() and number.isdigit()


def synthetic(id: str, samples: int, sample_rate: int) -> Floats32:
    """The first samples of a synthetic sound. Shape: (samples,)"""
    if not is_synthetic(id):
        known = ", ".join(f"{kind}:123" for kind in SYNTHESES)
        raise InputError(f"{id!r} is no synthetic signal; one is called like {known}")
    kind, _, number = id.partition(":")
    return SYNTHESES[kind](int(number), samples, sample_rate).astype(np.float32)


def clicks(number: int, samples: int, sample_rate: int) -> Floats:
    """Transients at irregular times, 5 to 25 a second: clicks, claps (decaying noise) or knocks (decaying tones)."""
    style, rate_draw, decay_draw, slope_draw, pitch_draw, wait = _draw_numbers("clicks", number, 6)
    rate = 5 * 5**rate_draw
    # Gaps of 0.3 to 1.7 times the mean: as many of the shortest as fit are enough.
    count = math.ceil(samples / sample_rate * rate / 0.3) + 1
    event = np.arange(count)
    gaps = (0.3 + 1.4 * uniform("signals/clicks/gap", number, event)) / rate
    onsets = np.rint((np.cumsum(gaps) - gaps[0] * wait) * sample_rate).astype(np.int64)
    sizes = 10 ** (12 * (uniform("signals/clicks/size", number, event) - 0.5) / 20)  # +-6 dB
    click, knock = style < 1 / 3, style >= 2 / 3
    decay = 1e-4 * 10**decay_draw if click else 2e-3 * 7.5**decay_draw  # seconds: 0.1 to 1 ms, or 2 to 15 ms
    length = max(8, math.ceil(math.log(1000) * decay * sample_rate))  # down to -60 dB
    time = np.arange(length) / sample_rate
    envelope = np.exp(-time / decay)
    result = np.zeros(samples + length)
    key = stream("signals/clicks/burst", number)
    for i in np.flatnonzero(onsets < samples):
        if knock:
            burst = np.sin(2 * np.pi * 200 * 15**pitch_draw * time)
        else:
            noise = normal(key, i * (1 << 20) + np.arange(length)).astype(np.float64)
            burst = coloured(noise[None], np.asarray(-6 * slope_draw), sample_rate)[0]
        result[onsets[i] : onsets[i] + length] += sizes[i] * envelope * burst
    return result[:samples]


def tones(number: int, samples: int, sample_rate: int) -> Floats:
    """A single tone, a harmonic complex with a little vibrato, or slow sweeps up and down."""
    style, pitch, depth_draw, rate_draw, roll_off, phase = _draw_numbers("tones", number, 6)
    if style < 0.2:
        fundamental, most, depth, rate = 100 * 40**pitch, 1, 0.0, 0.0
    elif style < 0.7:
        fundamental, most, depth, rate = 80 * 10**pitch, _MAX_PARTIALS, 0.02 * depth_draw, 3 + 4 * rate_draw
    else:
        fundamental, most, depth, rate = 200 * 10**pitch, 3, 0.5 + depth_draw, 0.1 * 5**rate_draw
    time = np.arange(samples) / sample_rate
    frequency = fundamental * 2 ** (depth * np.sin(2 * np.pi * (rate * time + phase)))  # depth in octaves
    angle = 2 * np.pi * np.cumsum(frequency) / sample_rate
    partials = max(1, min(most, int(_HIGHEST_PARTIAL * sample_rate / (fundamental * 2**depth))))
    phases = uniform("signals/tones/phase", number, np.arange(partials))
    result = np.zeros(samples)
    for n in range(1, partials + 1):
        result += n ** (-0.5 - roll_off) * np.sin(n * angle + 2 * np.pi * phases[n - 1])
    return result


def steady_noise(number: int, samples: int, sample_rate: int) -> Floats:
    """Noise as of a fan or a tap: -6 to +3 dB per octave, swelling slowly by up to 6 dB."""
    slope, depth, rate, phase = _draw_numbers("noise", number, 4)
    noise = normal(stream("signals/noise", number), np.arange(_NOISE_PERIOD))
    period = coloured(noise[None].astype(np.float64), np.asarray(-6 + 9 * slope), sample_rate)[0]
    swell = 3 * depth * np.sin(2 * np.pi * (0.2 * 10**rate * np.arange(samples) / sample_rate + phase))
    return np.resize(period, samples) * 10 ** (swell / 20)


SYNTHESES: dict[str, Callable[[int, int, int], Floats]] = {"clicks": clicks, "tones": tones, "noise": steady_noise}


def _draw_numbers(kind: str, number: int, count: int) -> list[float]:
    drawn: list[float] = uniform(f"signals/{kind}", number, np.arange(count)).tolist()
    return drawn


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
    find = _find_in_banks(banks)

    def samples(id: str) -> npt.NDArray[np.floating]:
        if is_synthetic(id):
            return synthetic(id, round(seconds * sample_rate), sample_rate)
        bank, number = find(id)
        return bank.audio(number)

    return samples


def whole_utterances(banks: Iterable[Bank]) -> Whole:
    """Power spectra and lengths of whole utterances, of which a bank may keep the beginning only."""
    find = _find_in_banks(banks)

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


def _find_in_banks(banks: Iterable[Bank]) -> Callable[[str], tuple[Bank, int]]:
    where = {id: (bank, number) for bank in banks for number, id in enumerate(bank.ids)}

    def find(id: str) -> tuple[Bank, int]:
        if id not in where:
            raise InputError(f"none of the banks holds the signal {id!r}")
        return where[id]

    return find
