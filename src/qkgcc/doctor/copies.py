"""Channels that hold the same signal: one a copy of the other, scaled or not."""

import numpy as np

from qkgcc.core.types import Floats
from qkgcc.doctor.findings import Finding, named
from qkgcc.doctor.survey import decibels
from qkgcc.dsp.long_lags import Excerpt

COPY = -30.0
"""dB: what one channel leaves unexplained of the other. Clean: -20 at least (a head, anechoic, straight on); a 16 bit
copy at a tenth of the level: -34 at most."""


def unexplained(part: Excerpt) -> tuple[Floats, Floats]:
    """1 - r^2 in dB and r of every pair of channels, r the correlation of their differences at lag 0.

    Differences from sample to sample, because low rumble alone is much the same in any two microphones.
    Shape: two of (M, M)
    """
    change = np.diff(part.samples)
    gram = np.zeros((len(change), len(change)))
    step = 1 << 20
    for start in range(0, change.shape[1], step):
        piece = change[:, start : start + step].astype(np.float64)
        gram += piece @ piece.T
    scale = np.sqrt(np.maximum(np.diag(gram), np.finfo(float).tiny))
    correlation = gram / scale[:, None] / scale
    return decibels(1 - correlation**2), correlation


def identical_channels(part: Excerpt, live: list[int]) -> tuple[list[int], list[Finding]]:
    """The channels without the copies, and the finding for each group of copies."""
    left, correlation = unexplained(part)
    findings, distinct, rest = [], [], list(live)
    while rest:
        first = rest[0]
        group = [channel for channel in rest if channel == first or left[first, channel] < COPY]
        rest = [channel for channel in rest if channel not in group]
        distinct.append(first)
        if len(group) > 1:
            worst = max(left[first, channel] for channel in group[1:])
            turned = " (with the sign turned)" if min(correlation[first, channel] for channel in group) < 0 else ""
            who = named(group).capitalize()
            findings.append(
                Finding(
                    "identical-channels",
                    tuple(group),
                    f"{who} hold the same signal{turned}: what differs is {-worst:.0f} dB below it.",
                    "Record each microphone to a channel of its own: this is one signal, as of a mono input.",
                )
            )
    return distinct, findings
