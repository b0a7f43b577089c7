"""All checks of a recording, each of the channels without the faults that would mislead it."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkgcc.arrays import Geometry, array
from qkgcc.arrays.evidence import check_microphones
from qkgcc.audio.recording import TWO_FILES, Recording, as_recording, check_rate
from qkgcc.core.checks import check_choice, check_spacing, check_speed
from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND
from qkgcc.delay.estimator import DEFAULT_FRAME
from qkgcc.doctor import arrays, channels, pairs
from qkgcc.doctor.findings import CODES, Diagnosis, Finding, Setup
from qkgcc.doctor.pairs import BandLevels, Pairs
from qkgcc.dsp.long_lags import Excerpt

ORDER_NOT_CHECKED = (
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
    setup = _check_setup(recording, spacing, expect, geometry, speed_of_sound)
    findings = [*_find_rate_mismatch(recording, rate), *_find_too_short(recording)]
    notes: list[str] = []

    levels = channels.survey(recording)
    dead = list(channels.find_dead_channels(levels))
    findings += dead
    live = _without(range(len(recording.channels)), dead)
    clipped = channels.clipped_share(recording, levels)
    measured: dict[str, Any] = {
        "level_dbfs": _round_all(channels.decibels(levels.rms**2), 1),
        "dc_offset": _round_all(levels.offset, 5),
        "peak": _round_all(levels.peak, 4),
        "clipped_share": _round_all(clipped, 5),
    }
    if live:
        active = levels.active_level(live)
        part = channels.excerpt(recording, levels, live)
        hum = channels.measure_hum(part)
        measured["active_level_dbfs"] = _round_all(active, 1)
        measured["studied"] = {"start": round(part.start, 3), "seconds": round(part.seconds, 3), "rate": part.rate}
        if hum is not None:
            measured["hum_dbfs"] = [round(float(level), 1) if level > -190 else None for level in hum.level]
        findings += channels.find_low_levels(levels, live)
        findings += channels.find_clipping(clipped, levels, live)
        findings += channels.find_dc_offsets(levels, live)
        findings += channels.find_hum(hum, active, live)
        copies = list(pairs.find_copies(part, live))
        findings += copies
        distinct = [channel for channel in live if not any(channel in copy.channels[1:] for copy in copies)]
        if recording.duration >= DEFAULT_FRAME:
            unrelated = list(pairs.find_unrelated_channels(part, distinct, setup))
            findings += unrelated
            related = _without(distinct, unrelated)
            delays = pairs.measure_pairs(part, related, setup)
            if delays is not None:
                bands = pairs.measure_band_levels(part, related)
                findings += pairs.find_gain_mismatch(bands, related, delays)
                findings += pairs.find_inverted_polarity(delays)
                findings += pairs.find_offset_and_drift(delays, setup, recording.sample_rate, part.start)
                more, notes = _check_positions(delays, part, setup, expect, recording.sample_rate)
                findings += more
                measured["pairs"] = _measured_pairs(delays, bands)
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


def _check_positions(
    delays: Pairs, part: Excerpt, setup: Setup, expect: str | None, rate: int
) -> tuple[list[Finding], list[str]]:
    """Spacing, side and geometry, by the channels with one clock: findings, and notes on what was not checked."""
    together = delays.synchronous_channels(setup)
    findings: list[Finding] = []
    misplaced: list[Finding] = []
    notes: list[str] = []
    waves = None
    inverted = any(delays.inverted.values())
    wiring = None if inverted else arrays.measure_wiring(part, together, setup)
    if wiring is not None and wiring.inverted:
        findings += arrays.find_miswiring(wiring)
    elif setup.geometry is not None and not inverted:
        times = arrays.arrival_times(delays.tracks, together)
        order = arrays.measure_order(times, together, setup.geometry, setup.speed_of_sound)
        waves = arrays.measure_plane_waves(times, together, setup.geometry, setup.speed_of_sound)
        misplaced += arrays.find_wrong_order(order, rate)
        misplaced += arrays.find_wrong_size(waves, order, together, rate)
        if order is None and len(together) >= 3:
            exchange = arrays.measure_exchange(part, together, setup.geometry, setup.speed_of_sound)
            misplaced += arrays.find_exchange(exchange)
            if wiring is None and (exchange is None or not exchange.decisive):
                notes.append(ORDER_NOT_CHECKED)
        misplaced = misplaced or list(arrays.find_miswiring(wiring))
    if misplaced:  # a wrong order or size also puts delays outside the spacings and sources on the wrong side
        return findings + misplaced, notes
    findings += pairs.find_outside_spacing(delays, together, setup, rate)
    if expect is not None and setup.geometry is not None:
        findings += arrays.find_mirror_image(waves, expect)
    elif expect is not None and {0, 1} <= set(together):
        findings += pairs.find_wrong_side(delays.clear_delays((0, 1)), expect, rate)
    return findings, notes


def _measured_pairs(delays: Pairs, bands: BandLevels | None) -> list[dict[str, Any]]:
    """What was measured of each pair, as it stands in JSON."""
    rows = []
    for pair, track in delays.tracks.items():
        first, second = pair
        median = delays.median_delay(pair)
        drift = delays.drifts.get(second) if first == delays.reference else None
        level = None if bands is None else float(np.median(bands.level[:, first] - bands.level[:, second]))
        rows.append(
            {
                "channels": list(pair),
                "delay_seconds": None if median is None else round(median, 9),
                "clear_share": round(float(track.clear[:, delays.column(*pair)].mean()), 3),
                "upright_surplus": round(float(pairs.upright_surplus(track)[0]), 3),
                "drift_ppm": round(1e6 * drift.line.slope, 2) if drift is not None and drift.steady else None,
                "level_difference_db": None if level is None else round(level, 1),
            }
        )
    return rows


def _find_rate_mismatch(recording: Recording, rate: int | None) -> Iterator[Finding]:
    if rate is not None and check_rate(rate) != recording.sample_rate:
        factor = max(rate, recording.sample_rate) / min(rate, recording.sample_rate)
        yield Finding(
            "rate-mismatch",
            tuple(range(len(recording.channels))),
            f"The file says {recording.sample_rate} Hz, not {rate} Hz: times would be wrong by a factor of "
            f"{factor:.3g}.",
            "Find out which of them is true: resample the recording, or correct its header or the expectation.",
        )


def _find_too_short(recording: Recording) -> Iterator[Finding]:
    if recording.duration < DEFAULT_FRAME:
        yield Finding(
            "too-short",
            tuple(range(len(recording.channels))),
            f"The recording lasts {1000 * recording.duration:.0f} ms: a delay is estimated from "
            f"{1000 * DEFAULT_FRAME:.0f} ms or more.",
            "Record a few seconds.",
        )


def _check_setup(
    recording: Recording,
    spacing: float | None,
    expect: str | None,
    geometry: Geometry | str | Path | None,
    speed_of_sound: float,
) -> Setup:
    if len(recording.channels) < 2:
        raise InputError(f"{recording.name} has 1 channel; delays need 2 or more ({TWO_FILES})")
    spacing = None if spacing is None else check_spacing(spacing)
    speed_of_sound = check_speed(speed_of_sound)
    if expect is not None:
        check_choice("side", expect, ("left", "right"))
    if geometry is not None:
        geometry = array(geometry)
        check_microphones(recording, geometry)
    return Setup(spacing, geometry, speed_of_sound)


def _without(channels: Iterable[int], findings: list[Finding]) -> list[int]:
    """The channels that no finding is about."""
    return [channel for channel in channels if not any(channel in finding.channels for finding in findings)]


def _round_all(values: Iterable[float], digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
