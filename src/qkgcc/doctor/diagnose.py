"""All checks of a recording, one after the other, each only where the ones before it left something to check."""

from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.arrays import Geometry, array
from qkgcc.arrays.evidence import check_microphones
from qkgcc.audio.recording import TWO_FILES, Recording, as_recording, check_rate
from qkgcc.core.checks import check_choice, check_spacing, check_speed
from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.delay.estimator import DEFAULT_FRAME
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
from qkgcc.doctor.unrelated import unrelated_channels
from qkgcc.doctor.wiring import (
    check_wiring,
    clear_delays,
    exchanged,
    inverted_polarity,
    miswired,
    outside_spacing,
    surplus,
    wrong_order,
    wrong_side,
)
from qkgcc.dsp.long_lags import Excerpt

NOT_CHECKED = (
    "Order of the microphones not checked: too few clear delays. Let one person talk near to them, from several places."
)


def diagnose(
    recording: Recording | str | Path,
    *,
    spacing: float | None = None,
    expect: str | None = None,
    rate: int | None = None,
    geometry: Geometry | str | Path | None = None,
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
        geometry: microphone positions, one for each channel, to check them and the order of the channels: a
            `Geometry`, or what `qkgcc.arrays.array` takes.
        speed_of_sound: metres per second.

    >>> from qkgcc import samples
    >>> diagnose(samples.path("talkers-2ch"), spacing=0.5).findings
    ()
    >>> [finding.code for finding in diagnose(samples.path("talkers-2ch"), rate=48000).findings]
    ['rate-mismatch']
    """
    recording = as_recording(recording)
    setup = _checked(recording, spacing, expect, geometry, speed_of_sound)
    findings = _rate_mismatch(recording, rate) + _too_short(recording)

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
        long_enough = recording.duration >= DEFAULT_FRAME
        related, found = unrelated_channels(part, distinct, setup) if long_enough else ([], [])
        findings += found
        if lines is not None:
            measured["hum_dbfs"] = [round(float(level), 1) if level > -190 else None for level in lines.level]
        more, notes, details = _pair_checks(recording, part, related, setup, expect)
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
    otherwise = check_wiring(part, together, setup)
    inverted = any(pairs.inverted.values())
    if otherwise is not None and otherwise.inverted and not inverted:
        findings += miswired(otherwise)
        inverted = True
    if setup.geometry is not None and not inverted:
        tracks = {pair: pairs.tracks[pair] for pair in good}
        order = measure_order(tracks, together, setup.geometry, setup.speed_of_sound)
        waves = measure_waves(tracks, together, setup.geometry, setup.speed_of_sound)
        placed = wrong_order(order, rate) or wrong_size(waves, order, together, rate)
        if order is None and len(together) >= 3:
            exchange = None
            if setup.geometry.aperture > WIDE:
                exchange = measure_exchange(part, together, setup.geometry.microphones[together], setup.speed_of_sound)
            placed = exchanged(exchange)
            if otherwise is None and (exchange is None or not exchange.checked):
                notes.append(NOT_CHECKED)
        placed = placed or miswired(otherwise)
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
    if rate is None or check_rate(rate) == recording.sample_rate:
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


def _too_short(recording: Recording) -> list[Finding]:
    if recording.duration >= DEFAULT_FRAME:
        return []
    return [
        Finding(
            "too-short",
            tuple(range(len(recording.channels))),
            f"The recording lasts {1000 * recording.duration:.0f} ms: a delay is estimated from "
            f"{1000 * DEFAULT_FRAME:.0f} ms or more.",
            "Record a few seconds.",
        )
    ]


def _checked(
    recording: Recording,
    spacing: float | None,
    expect: str | None,
    geometry: Geometry | str | Path | None,
    speed_of_sound: float,
) -> Setup:
    count = len(recording.channels)
    if count < 2:
        raise InputError(f"{recording.name} has 1 channel; delays need 2 or more ({TWO_FILES})")
    spacing = None if spacing is None else check_spacing(spacing)
    speed_of_sound = check_speed(speed_of_sound)
    if expect is not None:
        check_choice("side", expect, ("left", "right"))
    if geometry is not None:
        geometry = array(geometry)
        check_microphones(recording, geometry)
    return Setup(spacing, geometry, speed_of_sound)


def _rounded(values: Any, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
