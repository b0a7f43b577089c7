"""Clipping: samples that pile up at a ceiling, be it full scale or below.

The largest samples of an unclipped channel thin out towards its peak. A clipped one has more samples in the last
thousandth of its range than in the twenty thousandths before it; upper and lower ceiling are judged each on its own.
"""

import numpy as np

from qkgcc.audio.recording import Recording
from qkgcc.core.types import Floats
from qkgcc.doctor.findings import Finding, each
from qkgcc.doctor.survey import Survey

SHARE = 0.0004
"""Of the samples, at both ceilings. Clean: 0.00013 at most (3 samples of a short piece); must be found: 0.001."""
PILE = 2.0
"""Samples at a ceiling for one just below it. A sine has 0.3, hard clipping 4 and more."""

_AT, _BELOW, _AWAY = 0.001, 0.02, 0.2  # of the channel's range
_FEWEST = 10  # samples


def ceiling_shares(recording: Recording, seen: Survey) -> Floats:
    """Of the samples: those at the upper and lower ceiling, and those just below each. Shape: (2 ceilings, 2, M)."""
    span = (seen.highest - seen.lowest)[:, None]
    counts = np.zeros((2, 2, len(recording.channels)))
    for block in recording.blocks():
        for side, distance in enumerate((seen.highest[:, None] - block, block - seen.lowest[:, None])):
            at = (distance <= _AT * span).sum(axis=1)
            counts[side, 0] += at
            counts[side, 1] += (distance <= _BELOW * span).sum(axis=1) - at
    return counts / recording.samples


def clipped_share(recording: Recording, seen: Survey) -> Floats:
    """(M,) share of samples at a ceiling where they pile up, 0 for a channel that is not clipped."""
    at, below = ceiling_shares(recording, seen).transpose(1, 0, 2)
    # Silence with a few clicks piles up at zero, which is no ceiling.
    away = np.stack([seen.highest - seen.offset, seen.offset - seen.lowest])
    piled = (at >= PILE * below) & (away >= _AWAY * (seen.highest - seen.lowest))
    clipped = np.where(piled, at, 0).sum(axis=0)
    return np.where(clipped >= max(SHARE, _FEWEST / recording.samples), clipped, 0.0)


def clipping(clipped: Floats, seen: Survey, live: list[int]) -> list[Finding]:
    found = [channel for channel in live if clipped[channel] > 0]
    if not found:
        return []
    top = np.maximum(seen.highest, -seen.lowest)
    return [
        Finding(
            "clipping",
            tuple(found),
            "Samples pile up at a ceiling: "
            + each(found, (f"{100 * clipped[channel]:.2g} % of them at {top[channel]:.3g}" for channel in found))
            + " (1 is full scale).",
            "Lower the input gain and record again: what was cut off cannot be brought back.",
        )
    ]
