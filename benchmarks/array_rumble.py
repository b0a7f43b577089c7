"""Arrays beside hum and rumble, with and without `qkgcc.dsp.rumble`: azimuths of frames, and talkers counted.

    python -m benchmarks.array_rumble                          # azimuths in the bundled recording: seconds
    python -m benchmarks.array_rumble --bank banks/dev-clean   # and talkers counted in simulated rooms: minutes

Rooms, voices and talkers are those of `benchmarks.directions`, for arrays that no training has seen; hum and rumble are
those of `benchmarks.rumble`. The same frames are prepared in three ways: as they are ("before"), with one decision for
all channels of a frame ("joint", what ships), and with a decision for each microphone ("each").
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.directions import NEAR, RATE, Case, rooms
from benchmarks.timing import machine, write
from qkgcc import samples
from qkgcc.arrays import DirectionEstimator, Geometry, array
from qkgcc.audio.recording import open_audio
from qkgcc.core.types import SPEED_OF_SOUND, Samples
from qkgcc.dsp.rumble import without_rumble
from qkgcc.network.registry import ARRAY_DEFAULT
from qkgcc.pairs import frontend

LEVELS = (10, 20, 30)
"""dB above the recording as it is."""
TALKERS = (1, 2)

Frames = Samples
Clear = Callable[..., Frames]


def hum(geometry: Geometry, samples: int) -> Frames:
    """50 Hz and its multiples to 350 Hz, in all channels alike. Shape: (M, samples)"""
    rng = np.random.default_rng(0)
    time = np.arange(samples) / RATE
    lines = [
        rng.uniform(0.2, 1) / k * np.sin(2 * np.pi * 50 * k * time + rng.uniform(0, 2 * np.pi)) for k in range(1, 8)
    ]
    return np.tile(np.sum(lines, axis=0), (len(geometry), 1))


def rumble(geometry: Geometry, samples: int, corner: float = 40.0) -> Frames:
    """Noise from all around, 12 dB less per octave above `corner`. Shape: (M, samples)"""
    rng = np.random.default_rng(1)
    frequencies = np.fft.rfftfreq(samples, 1 / RATE)
    size = np.where(frequencies > 15, 1 / (1 + (frequencies / corner) ** 2), 0.0)
    white = rng.standard_normal((len(frequencies), len(geometry), 2)).view(complex)[..., 0]
    apart = np.linalg.norm(geometry.microphones[:, None] - geometry.microphones, axis=-1)
    coherence = np.sinc(2 * frequencies[:, None, None] * apart / SPEED_OF_SOUND)
    values, vectors = np.linalg.eigh(coherence)
    mixed = (vectors * np.sqrt(np.maximum(0.0, values))[:, None]) @ white[..., None]
    return np.fft.irfft(size * mixed[..., 0].T, samples)


SOUNDS = {"hum in all channels alike": hum, "diffuse rumble": rumble}


def as_it_is(frames: Frames, sample_rate: float, **_: Any) -> Frames:
    return frames


def by_microphone(frames: Frames, sample_rate: float, **options: Any) -> Frames:
    """Each channel by itself. Shape: (T, M, n) -> same"""
    alone = frames.reshape(-1, 1, frames.shape[-1])
    return without_rumble(alone, sample_rate, **options).reshape(frames.shape)


WAYS: dict[str, Clear] = {"before": as_it_is, "joint": without_rumble, "each": by_microphone}


@contextmanager
def cleared_by(clear: Clear) -> Iterator[None]:
    """Arrays prepare their frames by it meanwhile."""
    shipped = frontend.without_rumble
    frontend.without_rumble = clear  # type: ignore[assignment]
    try:
        yield
    finally:
        frontend.without_rumble = shipped


def counted_right(
    cases: list[Case], sound: Callable[..., Frames] | None, decibels: float | None, clear: Clear
) -> float:
    """Percent of the recordings in which as many talkers are found as there are."""
    right = 0
    for case in cases:
        geometry = array(case.array)
        samples = np.asarray(case.samples, np.float64)
        if sound is not None and decibels is not None:
            other = sound(geometry, samples.shape[1])
            samples = samples + samples.std() / other.std() * 10 ** (decibels / 20) * other
        with cleared_by(clear):
            answer = DirectionEstimator(geometry, sources="auto", threads=1)(samples, RATE)
        right += len(answer.directions) == len(case.azimuths)
    return 100 * right / len(cases)


def with_means(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The table, and the mean over all that is beside the talkers: of one, of two, of both."""
    beside = [row for row in table if row["dB"]]
    means = []
    for talkers in (*TALKERS, "1 and 2"):
        rows = [row for row in beside if talkers in (row["talkers"], "1 and 2")]
        shares = {way: f"{np.mean([float(row[way]) for row in rows]):.0f}" for way in WAYS}
        means.append({"talkers": talkers, "beside them": "all of hum and rumble", "dB": ""} | shares)
    return [*table, *means]


def azimuths_kept() -> list[dict[str, Any]]:
    """Percent of the frames of the bundled recording whose azimuth a hum moves by at most 10 degrees."""
    sound = open_audio(samples.path("talkers-4ch")).read().astype(np.float64)
    geometry = Geometry(np.array(samples.truth("talkers-4ch")["microphones"]), "bundled")
    estimator = DirectionEstimator(geometry, threads=1)
    time = np.arange(sound.shape[1]) / RATE
    without = estimator(sound, RATE).azimuth
    known = np.isfinite(without)
    table = []
    for (low, high), level in itertools.product(((50, 250), (50, 350)), LEVELS):
        lines = sum(np.sin(2 * np.pi * f * time) / (f / 50) for f in range(low, high + 1, 50))
        heard = sound + sound.std() / np.std(lines) * 10 ** (level / 20) * lines
        row = {"a hum of": f"{low} to {high} Hz", "dB": f"{level:+d}"}
        for way, clear in WAYS.items():
            with cleared_by(clear):
                turned = np.abs((estimator(heard, RATE).azimuth - without + 180) % 360 - 180)
            row[way] = f"{100 * (turned[known] <= NEAR).mean():.0f}"
        table.append(row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path)
    parser.add_argument("--scenes", type=int, default=6, help="of each array and number of talkers")
    given = parser.parse_args()
    here = machine()
    kept = azimuths_kept()
    notes = [
        "Percent of the frames of `talkers-4ch` that keep their azimuth within 10 degrees when a hum is added to all "
        "channels alike, so many dB above the rest. before, joint, each: as in array_rumble.md."
    ]
    command = "python -m benchmarks.array_rumble"
    write("array_hum", "Azimuths of frames beside a hum", command, list(kept[0]), kept, notes, here=here)
    if given.bank is None:
        return
    cases = list(rooms(given.bank, given.scenes, TALKERS))
    conditions: list[tuple[str, Any, Any]] = [("nothing", None, None)]
    conditions += [(name, sound, level) for name, sound in SOUNDS.items() for level in LEVELS]
    table = []
    for talkers, (name, sound, level) in itertools.product(TALKERS, conditions):
        chosen = [case for case in cases if len(case.azimuths) == talkers]
        count = partial(counted_right, chosen, sound, level)
        table.append(
            {"talkers": talkers, "beside them": name, "dB": "" if level is None else f"{level:+d}"}
            | {way: f"{count(clear):.0f}" for way, clear in WAYS.items()}
        )
        print(table[-1], flush=True)
    notes = [
        f"Percent of the recordings of 6 s ({2 * given.scenes} for each number of talkers, half of them by "
        f'`respeaker4` and half by `circular:8:0.1`) in which `{ARRAY_DEFAULT}` with `sources="auto"` finds as many '
        "talkers as there are. dB: above the recording with all that is in it already. before: frames as they are "
        "(what arrays did up to commit 4e8c56f); joint: hum and rumble are removed where they drown all channels "
        "together (as shipped); each: where they drown a microphone.",
    ]
    write(
        "array_rumble",
        "Talkers counted beside hum and rumble",
        f"{command} --bank banks/{given.bank.name}",
        list(table[0]),
        with_means(table),
        notes,
        here=here,
    )


if __name__ == "__main__":
    main()
