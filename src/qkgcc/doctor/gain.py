"""Unequal gains: a level difference that is there in the loud and in the quiet parts, and the same at every pitch.

A head between the microphones shadows the high frequencies more than the low ones. A talker near one of them is louder
there, but the background in the pauses is not. A wrong gain changes everything alike. So the difference
is measured eight times, in the loud and in the quiet frames of four bands: it counts by the smallest of the eight, and
only if the bands agree on it in the quiet frames.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.fft

from qkgcc.core.types import Floats
from qkgcc.doctor.findings import Finding
from qkgcc.doctor.survey import SILENCE, decibels
from qkgcc.dsp.long_lags import Excerpt

MISMATCH = 5.0
"""dB that all eight must reach. Clean: 3.1 at most where the bands agree; 8 dB of gain: 5 in 95 % of 2 s pieces."""
SPREAD = 5.0
"""dB between the bands in the quiet frames. A head, where all eight reach 4 dB: 8.7 and more; gains in rooms: 4."""

_FRAME = 0.05
_EDGES = (100.0, 300.0, 1000.0, 3000.0, 7000.0)  # Hz
_PART = 0.2  # of the frames: the loudest and the quietest fifth
_PAUSE = 8.0  # dB between them in some band, or there is no quiet part to judge by
_GATED = 0.05  # of the frames that are digital silence: the recording has no background


@dataclass(frozen=True, eq=False)
class BandLevels:
    level: Floats
    """(4 bands x loud and quiet, M) in dB."""
    gated: bool
    """The pauses are digital silence, so that the quiet frames are only the fading of the sounds before them."""


def band_levels(part: Excerpt, channels: list[int]) -> BandLevels | None:
    """None if the recording is too short, or never quiet."""
    size = round(_FRAME * part.rate)
    count = part.samples.shape[1] // size
    frames = part.samples[:, : count * size].reshape(len(part.samples), count, size)
    heard = (frames[channels].std(axis=2) > SILENCE).all(axis=0)
    if heard.sum() < 10:
        return None
    spectra = np.abs(scipy.fft.rfft(frames[:, heard] * np.hanning(size).astype(np.float32))) ** 2
    frequencies = np.fft.rfftfreq(size, 1 / part.rate)
    fifth = max(2, int(_PART * heard.sum()))
    levels, pauses = [], []
    for low, high in pairwise(_EDGES):
        inside = (frequencies >= low) & (frequencies < min(high, 0.45 * part.rate))
        power = spectra[:, :, inside].sum(axis=2, dtype=np.float64)
        mean = power[channels].mean(axis=1, keepdims=True)
        joint = (power[channels] / np.maximum(mean, np.finfo(float).tiny)).mean(axis=0)
        order = np.argsort(joint)
        pauses.append(decibels(joint[order[-fifth:]].mean()) - decibels(joint[order[:fifth]].mean()))
        levels += [decibels(power[:, order[-fifth:]].mean(axis=1)), decibels(power[:, order[:fifth]].mean(axis=1))]
    return BandLevels(np.array(levels), heard.mean() < 1 - _GATED) if max(pauses) >= _PAUSE else None


def differences(levels: BandLevels, channels: list[int]) -> tuple[int, Floats]:
    """The channel of the middle level, and by how much each differs from it.

    Shape: (M,) in dB, the smallest of the eight; 0 where they disagree on the sign, or the bands on the amount
    """
    middle = sorted(channels, key=lambda channel: float(np.median(levels.level[:, channel])))[(len(channels) - 1) // 2]
    apart = levels.level - levels.level[:, [middle]]
    low, high = apart.min(axis=0), apart.max(axis=0)
    smallest = np.where(low > 0, low, np.where(high < 0, high, 0.0))
    quiet = apart[1::2]
    return middle, np.where(np.ptp(quiet, axis=0) <= SPREAD, smallest, 0.0)


def gain_mismatch(
    levels: BandLevels | None, channels: list[int], leads: dict[tuple[int, int], float] | None = None
) -> list[Finding]:
    """`leads`: seconds by which the first channel of a pair clearly hears the source earlier.

    A gated recording has no background, and a talker near the microphone that leads explains a difference.
    """
    if levels is None or len(channels) < 2:
        return []
    middle, smallest = differences(levels, channels)
    findings = []
    for channel in channels:
        if abs(smallest[channel]) < MISMATCH:
            continue
        loud, quiet = (channel, middle) if smallest[channel] > 0 else (middle, channel)
        if levels.gated and leads is not None:
            lead = leads.get((loud, quiet), -leads.get((quiet, loud), 0.0))
            if lead > 62.5e-6:
                continue
        difference = abs(float(np.median(levels.level[:, loud] - levels.level[:, quiet])))
        findings.append(
            Finding(
                "gain-mismatch",
                (min(loud, quiet), max(loud, quiet)),
                f"Channel {loud} is {difference:.1f} dB louder than channel {quiet}, in the loud and the quiet parts "
                "and at all frequencies.",
                "Set both inputs to the same gain, with automatic gain control off.",
            )
        )
    return findings
