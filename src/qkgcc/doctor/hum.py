"""Mains hum: lines at 50 or 60 Hz and their multiples that are narrow and never stop.

Of each 1 Hz bin the quiet end over time is taken (its 20th percentile over one-second windows). Voices, whose pitch
moves and pauses, vanish from that floor; a steady line stays and stands out of the bins around it.
"""

from dataclasses import dataclass

import numpy as np
import scipy.fft

from qkgcc.core.types import Floats
from qkgcc.doctor.findings import Finding, each
from qkgcc.doctor.survey import decibels
from qkgcc.dsp.long_lags import Excerpt

PROMINENCE = 15.0
"""dB that a line stands out of the floor around it. With twelve made-up mains frequencies from 45 to 80 Hz, none of 364
recordings of speech has a line; 36 have one at 50 or 60 Hz, the hum with which LibriSpeech's volunteers recorded."""
NARROW = 12.0
"""dB that it falls off within 3 Hz. A room that rings at its own frequencies falls off by 7 at most."""
QUIETEST = -95.0
"""dBFS: less than that is the rounding of 16 bits."""
LEVEL = -38.0
"""dB below the loud parts at which hum is too weak to matter. Must be found: -30."""

_SHORTEST = 2.0  # seconds that are needed to tell a line from a held vowel
_LINES = 7
_SHOULDER = np.array([-4, -3, 3, 4])  # Hz from the line: empty beside a sine, full beside a ringing room
_AROUND = np.concatenate([np.arange(-14, -4), np.arange(5, 15)])  # Hz from the line: its surroundings


@dataclass(frozen=True, eq=False)
class Hum:
    mains: int
    """50 or 60 Hz, whichever shows more."""
    prominence: Floats
    """(M, lines) dB above the surroundings."""
    level: Floats
    """(M,) dBFS of all the lines that stand out, -200 without any."""


def measure_hum(part: Excerpt) -> Hum | None:
    """None for recordings too short to tell."""
    if part.seconds < _SHORTEST:
        return None
    floor = _floor(part)
    best: Hum | None = None
    for mains in (50, 60):
        lines = mains * np.arange(1, _LINES + 1)
        peak = floor[:, lines]
        around = np.stack([np.median(floor[:, line + _AROUND], axis=1) for line in lines], axis=1)
        prominence = decibels(peak) - decibels(around)
        # A line stands in its own bin; a neighbour's that leaks into it does not count.
        shoulder = np.stack([floor[:, line + _SHOULDER].max(axis=1) for line in lines], axis=1)
        summit = np.stack([floor[:, line - 1 : line + 2].argmax(axis=1) == 1 for line in lines], axis=1)
        narrow = summit & (decibels(peak) - decibels(shoulder) >= NARROW)
        clear = narrow & (prominence >= PROMINENCE) & (decibels(peak) > QUIETEST)
        # A held vowel can look like one multiple. The fundamental lies below voices; without it, two are asked for.
        clear &= clear[:, :1] | (clear[:, 1:2] & (clear.sum(axis=1, keepdims=True) >= 2))
        level = decibels(np.where(clear, peak, 0).sum(axis=1))
        if best is None or level.max() > best.level.max():
            best = Hum(mains, prominence, level)
    return best


def hum(measured: Hum | None, active: Floats, live: list[int]) -> list[Finding]:
    """`active` is the level of the loud parts, (M,) in dBFS."""
    if measured is None:
        return []
    found = [channel for channel in live if measured.level[channel] - active[channel] >= LEVEL]
    if not found:
        return []
    return [
        Finding(
            "hum",
            tuple(found),
            f"A steady line at {measured.mains} Hz or its multiples: "
            + each(found, (f"{measured.level[channel]:.0f} dBFS" for channel in found))
            + f", {max(measured.level[c] - active[c] for c in found):.0f} dB against the loud parts.",
            "Look for a ground loop or a cable beside a mains one; a band from 300 Hz upwards leaves most of it out.",
        )
    ]


def _floor(part: Excerpt) -> Floats:
    """Power of a sine in each 1 Hz bin that is there most of the time. Shape: (M, bins)."""
    size = part.rate
    hop = max(size // 8, (part.samples.shape[1] - size) // 150)  # 150 windows are enough for a percentile
    starts = range(0, part.samples.shape[1] - size + 1, hop)
    window = np.hanning(size).astype(np.float32)
    bins = 60 * _LINES + 20
    power = np.empty((len(starts), len(part.samples), bins), dtype=np.float32)
    for i, start in enumerate(starts):
        spectrum = scipy.fft.rfft(part.samples[:, start : start + size] * window)[:, :bins]
        power[i] = 2 * np.abs(spectrum / window.sum()) ** 2
    return np.quantile(power, 0.2, axis=0).astype(np.float64)
