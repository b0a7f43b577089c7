"""The pairs of a recording: on which line each channel is found in the first one, and the tracks around these lines."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from qkgcc.doctor.findings import Finding
from qkgcc.doctor.setup import PLAUSIBLE, Setup
from qkgcc.doctor.wiring import clear_delays, is_inverted
from qkgcc.dsp.long_lags import Drift, Excerpt, Line, Track, find_line, measure_drift, track


@dataclass(frozen=True, eq=False)
class Pairs:
    reference: int
    inverted: dict[int, bool]
    """Of every other channel: is it the inverse of the reference?"""
    lines: dict[int, Line]
    """Delay of the reference against every channel, where that is an offset or a drift; a zero line otherwise."""
    drifts: dict[int, Drift | None]
    tracks: dict[tuple[int, int], Track]

    def column(self, first: int, second: int) -> int:
        """Which column of a track holds the delays: 1 if just one of the channels is inverted."""
        return int(self.inverted.get(first, False) != self.inverted.get(second, False))


def study_pairs(part: Excerpt, channels: list[int], setup: Setup) -> Pairs | None:
    """None when there is nothing to compare."""
    if len(channels) < 2 or part.seconds < 0.1:
        return None
    reference, others = channels[0], channels[1:]
    reach = setup.reach()
    count = len(channels) * (len(channels) - 1) // 2
    found = {channel: find_line(part, reference, channel, reach) for channel in others}
    tracks = {(reference, channel): track(part, reference, channel, reach, found[channel], count) for channel in others}
    inverted = {channel: is_inverted(tracks[reference, channel]) for channel in others}
    drifts = {channel: measure_drift(tracks[reference, channel], int(inverted[channel])) for channel in others}
    lines = {reference: Line()}
    for channel in others:
        lines[channel] = _line(
            tracks[reference, channel],
            int(inverted[channel]),
            found[channel],
            drifts[channel],
            setup,
            (reference, channel),
        )
    for first, second in combinations(others, 2):
        tracks[first, second] = track(part, first, second, reach, lines[second] - lines[first], count)
    return Pairs(reference, inverted, lines, drifts, tracks)


def _line(
    followed: Track, column: int, found: Line | None, drift: Drift | None, setup: Setup, pair: tuple[int, int]
) -> Line:
    """The line of a pair: its drift, or its constant offset, or none."""
    if drift is not None and drift.steady:
        offset = drift.line.offset if abs(drift.line.offset) > setup.offset_limit(*pair) else 0.0
        return Line(offset, drift.line.slope)
    delays = clear_delays(followed, column)
    if found is not None:
        return Line(float(np.median(delays))) if delays is not None else found
    if delays is None:
        return Line()
    apart, middle = setup.apart(*pair), float(np.median(delays))
    together = np.subtract(*np.quantile(delays, [0.9, 0.1])) <= 2 * (apart or PLAUSIBLE) / setup.speed_of_sound
    return Line(middle) if abs(middle) > setup.offset_limit(*pair) and together else Line()


def offset_and_drift(pairs: Pairs, setup: Setup, sample_rate: int, start: float) -> list[Finding]:
    """Findings of the channels that are out of step with the greater number of the others."""
    findings = []
    base = in_step(pairs, setup)
    for channel in sorted(pairs.lines):
        if channel in base:
            continue
        line = pairs.lines[channel] - pairs.lines[base[0]]
        offset = line.offset - line.slope * start
        pair = (min(base[0], channel), max(base[0], channel))
        if abs(line.offset) > setup.offset_limit(*pair):
            late, early = (base[0], channel) if offset > 0 else (channel, base[0])
            findings.append(
                Finding(
                    "constant-offset",
                    pair,
                    f"Channel {late} hears everything {1000 * abs(offset):.1f} ms "
                    f"({abs(offset) * sample_rate:.0f} samples) later than channel {early}"
                    + (" (at the beginning)" if line.slope else "")
                    + ", more than any distance explains.",
                    f"Cut the first {abs(offset):.4f} s off channel {late} (the recorders were started apart), "
                    "or record both with one device.",
                )
            )
        if line.slope:
            ppm = 1e6 * line.slope
            findings.append(
                Finding(
                    "clock-drift",
                    pair,
                    f"The clock of channel {channel} is {abs(ppm):.1f} ppm {'slower' if ppm > 0 else 'faster'} than "
                    f"that of channel {base[0]}: the delay moves steadily, by {abs(ppm) * sample_rate * 6e-5:.1f} "
                    "samples a minute.",
                    f"Resample channel {channel} by a factor of {1 + line.slope:.7f}, or record both with one clock.",
                )
            )
    return findings


def in_step(pairs: Pairs, setup: Setup) -> list[int]:
    """The largest group of channels with the same line, the earliest of equals."""
    groups: list[list[int]] = []
    for channel, line in sorted(pairs.lines.items()):
        for group in groups:
            apart = line - pairs.lines[group[0]]
            if abs(apart.offset) <= setup.offset_limit(group[0], channel) and abs(apart.slope) < 5e-6:
                group.append(channel)
                break
        else:
            groups.append([channel])
    return max(groups, key=len)
