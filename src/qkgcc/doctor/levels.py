"""Channels that are dead, too quiet, or carry a constant offset: judged from the survey of the whole recording."""

import numpy as np

from qkgcc.core.types import Floats
from qkgcc.doctor.findings import Finding, each, named
from qkgcc.doctor.survey import SILENCE, Survey, decibels

DEAD = 50.0
"""dB below the loudest channel. Clean: 11 at most (behind a head)."""
DEAF = 25.0
"""dB below the loudest channel, for one that does not get louder when the others do."""
LOW = -55.0
"""dBFS in the loud frames. 16 bits still hold 40 dB of signal there; the quietest clean channel has -39."""
OFFSET = 0.005
"""Of full scale. Clean: 0.0005 at most in real recordings, 0.0024 in thunder; must be found: 0.01."""
OFFSET_SHARE = 0.5
"""Of the RMS of the sound, for an offset that dominates a quiet recording. Clean: 0.05 at most."""

_FEWEST = 10  # frames: the mean of less than half a second is no constant


def active_level(seen: Survey, channels: list[int]) -> Floats:
    """(M,) dBFS in the frames that are loud in the given channels."""
    return (
        decibels(seen.power[seen.loud(channels)].mean(axis=0)) if seen.loud(channels).any() else decibels(seen.rms**2)
    )


def dead_channels(seen: Survey) -> tuple[list[int], list[Finding]]:
    """Channels without a signal. The other checks leave them out."""
    everyone = list(range(len(seen.offset)))
    level = active_level(seen, everyone)
    best = int(level.argmax())
    if level[best] < decibels(SILENCE**2):
        return everyone, [
            Finding(
                "dead-channel",
                tuple(everyone),
                f"No channel holds any sound: the loudest is at {_dbfs(level[best])}.",
                "Check that the recording was armed, and that the right input was chosen.",
            )
        ]
    loud = seen.loud([best])
    level = decibels(seen.power[loud].mean(axis=0))
    rise = level - decibels(np.quantile(seen.power, 0.1, axis=0))
    below = level[best] - level
    silent = level < decibels(SILENCE**2)
    deaf = (below >= DEAF) & (rise < 1.5) & (rise[best] > 8)
    dead = [channel for channel in everyone if silent[channel] or below[channel] >= DEAD or deaf[channel]]
    if not dead:
        return [], []
    one = len(dead) == 1
    levels = each(dead, (_dbfs(level[channel]) for channel in dead))
    still = " and does not rise with it" if one and deaf[dead[0]] and below[dead[0]] < DEAD else ""
    return dead, [
        Finding(
            "dead-channel",
            tuple(dead),
            f"{named(dead).capitalize()} {'holds' if one else 'hold'} no sound: "
            f"{levels}, {_dbfs(level[best])} in channel {best}{still}.",
            "Check the cable, the input and its power, or leave the channel out.",
        )
    ]


def low_levels(seen: Survey, live: list[int]) -> list[Finding]:
    level = active_level(seen, live)
    low = [channel for channel in live if level[channel] < LOW]
    if not low:
        return []
    return [
        Finding(
            "low-level",
            tuple(low),
            f"The loud parts are very quiet: {each(low, (_dbfs(level[channel]) for channel in low))}.",
            f"Raise the input gain until speech reaches about -25 dBFS (at least {LOW:.0f}).",
        )
    ]


def dc_offsets(seen: Survey, live: list[int]) -> list[Finding]:
    scale = np.maximum(1, np.maximum(np.abs(seen.lowest), np.abs(seen.highest)))  # floats may go beyond full scale
    share = np.abs(seen.offset) / scale
    dominant = np.abs(seen.offset) > OFFSET_SHARE * np.maximum(seen.rms, 1e-4)
    offset = [channel for channel in live if share[channel] >= OFFSET or dominant[channel]]
    if not offset or len(seen.power) < _FEWEST:
        return []
    return [
        Finding(
            "dc-offset",
            tuple(offset),
            "The samples do not lie around zero but around "
            f"{each(offset, (f'{100 * seen.offset[channel]:+.2f} % of full scale' for channel in offset))}.",
            "Remove the mean, or high-pass at 20 Hz, before anything else.",
        )
    ]


def _dbfs(level: float) -> str:
    return "digital silence" if level <= -190 else f"{level:.1f} dBFS"
