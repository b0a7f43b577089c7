"""All checks of a recording, one after the other, each only where the ones before it left something to check."""

from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.arrays import Geometry
from qkgcc.arrays.evidence import wrong_channels
from qkgcc.audio import Recording, open_audio
from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.doctor.clipping import clipped_share, clipping
from qkgcc.doctor.copies import identical_channels
from qkgcc.doctor.exchange import measure_exchange
from qkgcc.doctor.findings import CODES, Diagnosis, Finding
from qkgcc.doctor.gain import band_levels, gain_mismatch
from qkgcc.doctor.hum import hum, measure_hum
from qkgcc.doctor.levels import active_level, dc_offsets, dead_channels, low_levels
from qkgcc.doctor.order import WIDE, measure_order
from qkgcc.doctor.pairs import in_step, offset_and_drift, study_pairs
from qkgcc.doctor.setup import Setup
from qkgcc.doctor.size import measure_waves, mirrored, wrong_size
from qkgcc.doctor.survey import decibels, excerpt, survey
from qkgcc.doctor.wiring import (
    clear_delays,
    exchanged,
    inverted_polarity,
    outside_spacing,
    surplus,
    wrong_order,
    wrong_side,
)
from qkgcc.errors import InputError
from qkgcc.lags import Excerpt, Floats

NOT_CHECKED = (
    "Order of the microphones not checked: too few clear delays. Let one person talk near to them, from several places."
)


def diagnose(
    recording: Recording | str | Path,
    *,
    spacing: float | None = None,
    expect: str | None = None,
    rate: int | None = None,
    geometry: Geometry | None = None,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> Diagnosis:
    """Look for everything that commonly spoils delays. A sound recording gives no findings.

    Levels and clipping are judged from all of the recording; hum, gains and delays from its most active five minutes.

    Args:
        recording: of two or more channels.
        spacing: metres between the microphones (of more than two: the largest distance).
        expect: "left" or "right", where the source was: of the array, if there is a geometry; else channel 0 is the
            left microphone, 1 the right.
        rate: sample rate in Hz that the recording should have.
        geometry: microphone positions, one for each channel, to check them and the order of the channels.
        speed_of_sound: metres per second.

    >>> from qkgcc import samples
    >>> diagnose(samples.path("talkers-2ch"), spacing=0.5).findings
    ()
    >>> [finding.code for finding in diagnose(samples.path("talkers-2ch"), rate=48000).findings]
    ['rate-mismatch']
    """
    if not isinstance(recording, Recording):
        recording = open_audio(recording)
    setup = _checked(recording, spacing, expect, geometry, speed_of_sound)
    findings = _rate_mismatch(recording, rate)

    seen = survey(recording)
    dead, found = dead_channels(seen)
    findings += found
    live = [channel for channel in range(len(recording.channels)) if channel not in dead]
    clipped = clipped_share(recording, seen)
    notes: list[str] = []
    measured: dict[str, Any] = {
        "level_dbfs": _rounded(decibels(seen.rms**2), 1),
        "dc_offset": _rounded(seen.offset, 5),
        "peak": _rounded(np.maximum(seen.highest, -seen.lowest), 4),
        "clipped_share": _rounded(clipped, 5),
    }
    if live:
        active = active_level(seen, live)
        measured["active_level_dbfs"] = _rounded(active, 1)
        findings += low_levels(seen, live) + clipping(clipped, seen, live) + dc_offsets(seen, live)
        part = excerpt(recording, seen, live)
        measured["studied"] = {"start": round(part.start, 3), "seconds": round(part.seconds, 3), "rate": part.rate}
        lines = measure_hum(part)
        findings += hum(lines, active, live)
        distinct, found = identical_channels(part, live)
        findings += found
        if lines is not None:
            measured["hum_dbfs"] = [round(float(level), 1) if level > -190 else None for level in lines.level]
        more, notes, details = _pair_checks(recording, part, distinct, setup, expect)
        findings += more
        measured |= details
    findings.sort(key=lambda finding: (CODES.index(finding.code), finding.channels))
    return Diagnosis(
        source=recording.name,
        sample_rate=recording.sample_rate,
        channels=len(recording.channels),
        duration=recording.duration,
        findings=tuple(findings),
        notes=tuple(notes),
        measured=measured,
    )


def _pair_checks(
    recording: Recording, part: Excerpt, distinct: list[int], setup: Setup, expect: str | None
) -> tuple[list[Finding], list[str], dict[str, Any]]:
    """Findings, notes, and what was measured."""
    pairs = study_pairs(part, distinct, setup)
    if pairs is None:
        return [], [], {}
    rate = recording.sample_rate
    levels = band_levels(part, distinct)
    middles = {pair: _middle(clear_delays(followed, pairs.column(*pair))) for pair, followed in pairs.tracks.items()}
    findings = gain_mismatch(
        levels, distinct, {pair: -middle for pair, middle in middles.items() if middle is not None}
    )
    findings += inverted_polarity(pairs.inverted, pairs.reference)
    findings += offset_and_drift(pairs, setup, rate, part.start)
    together = in_step(pairs, setup)
    good = {
        pair: (followed, pairs.column(*pair))
        for pair, followed in pairs.tracks.items()
        if pair[0] in together and pair[1] in together
    }
    placed: list[Finding] = []
    notes: list[str] = []
    waves = None
    if setup.geometry is not None and not any(pairs.inverted.values()):
        tracks = {pair: pairs.tracks[pair] for pair in good}
        order = measure_order(tracks, together, setup.geometry, setup.speed_of_sound)
        waves = measure_waves(tracks, together, setup.geometry, setup.speed_of_sound)
        placed = wrong_order(order, rate) or wrong_size(waves, order, together, rate)
        if order is None and len(together) >= 3:
            exchange = None
            if setup.geometry.aperture > WIDE:
                exchange = measure_exchange(part, together, setup.geometry.microphones[together], setup.speed_of_sound)
            placed = exchanged(exchange)
            if exchange is None or not exchange.checked:
                notes.append(NOT_CHECKED)
        findings += placed
    if not placed:  # a wrong order or size of itself puts delays outside the spacings
        findings += outside_spacing(good, setup, rate)
    if expect is not None and setup.geometry is not None:
        findings += [] if placed else mirrored(waves, expect)
    elif expect is not None and (0, 1) in good:
        findings += wrong_side(*good[0, 1], expect, rate)
    measured = []
    for pair, followed in pairs.tracks.items():
        middle = middles[pair]
        drift = pairs.drifts.get(pair[1]) if pair[0] == pairs.reference else None
        measured.append(
            {
                "channels": list(pair),
                "delay_seconds": None if middle is None else round(middle, 9),
                "clear_share": round(float(followed.clear[:, pairs.column(*pair)].mean()), 3),
                "upright_surplus": round(float(surplus(followed)[0]), 3),
                "drift_ppm": None if drift is None or not drift.steady else round(1e6 * drift.line.slope, 2),
                "level_difference_db": None
                if levels is None
                else round(float(np.median(levels.level[:, pair[0]] - levels.level[:, pair[1]])), 1),
            }
        )
    return findings, notes, {"pairs": measured}


def _middle(delays: Floats | None) -> float | None:
    return None if delays is None else float(np.median(delays))


def _rate_mismatch(recording: Recording, rate: int | None) -> list[Finding]:
    if rate is None or rate == recording.sample_rate:
        return []
    return [
        Finding(
            "rate-mismatch",
            tuple(range(len(recording.channels))),
            f"The file says {recording.sample_rate} Hz, not {rate} Hz: times would be wrong by a factor of "
            f"{max(rate, recording.sample_rate) / min(rate, recording.sample_rate):.3g}.",
            "Find out which of them is true: resample the recording, or correct its header or the expectation.",
        )
    ]


def _checked(
    recording: Recording, spacing: float | None, expect: str | None, geometry: Geometry | None, speed_of_sound: float
) -> Setup:
    count = len(recording.channels)
    if count < 2:
        raise InputError(f"{recording.name} has 1 channel; delays need 2 or more (two mono recordings: --with)")
    if spacing is not None and not 0.001 <= spacing <= 100:
        raise InputError(f"the spacing is {spacing:g} m; expected 0.001 to 100 m")
    if not 100 <= speed_of_sound <= 10_000:
        raise InputError(f"the speed of sound is {speed_of_sound:g} m/s; expected 100 to 10000 m/s")
    if expect not in (None, "left", "right"):
        raise InputError(f"expect is {expect!r}; expected 'left' or 'right', the side on which the source was")
    if geometry is not None and len(geometry) != count:
        raise InputError(wrong_channels(recording.name, count, geometry))
    return Setup(spacing, geometry, speed_of_sound)


def _rounded(values: Any, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
