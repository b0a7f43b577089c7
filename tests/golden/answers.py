"""The ten recordings and what is answered to each, as arrays by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.signal

from qkgcc import DelayEstimate, DelayEstimator, DelayStream, open_audio, samples
from qkgcc.arrays import DirectionEstimator, DirectionStream, Geometry, PositionEstimator, array
from qkgcc.core.types import Floats, Floats32
from qkgcc.doctor import CODES, diagnose
from qkgcc.sync import synchronise

Answer = Mapping[str, npt.ArrayLike]

PAPER = Path(__file__).parents[2] / "checkpoints" / "qkgcc-0.safetensors"
GEOMETRY = Geometry(np.array(samples.truth("talkers-4ch")["microphones"]), "bundled")
CORNERS = Geometry(
    np.array([[0.3, 0.4, 1.0], [4.6, 0.5, 2.1], [4.4, 3.5, 0.7], [0.5, 3.6, 1.9], [2.4, 0.3, 0.6], [2.6, 3.7, 2.2]]),
    "corners",
)
RATE = 16000
C = 343.0


def voice(seconds: float) -> Floats:
    """The first microphone of the bundled recording, at 16 kHz."""
    recording = open_audio(samples.path("talkers-2ch"))
    assert recording.sample_rate == RATE
    return np.asarray(recording.read()[0, : round(seconds * RATE)], np.float64)


def shifted(x: Floats, seconds: float) -> Floats:
    """Later by so much, between the samples as well."""
    spectrum = np.fft.rfft(x, 2 * len(x))
    angle = -2j * np.pi * np.fft.rfftfreq(2 * len(x), 1 / RATE) * seconds
    return np.asarray(np.fft.irfft(spectrum * np.exp(angle))[: len(x)])


def heard(x: Floats, geometry: Geometry, place: npt.ArrayLike, noise: float = 0.02) -> Floats32:
    """A source at a place, as microphones in the open hear it."""
    distance = np.linalg.norm(geometry.microphones - np.asarray(place), axis=1)
    clean = np.stack([shifted(x, d / C) / d for d in distance])
    sound = clean + noise * clean.std() * np.random.default_rng(0).standard_normal(clean.shape)
    return np.asarray(sound, np.float32)


def delays(answer: DelayEstimate) -> Answer:
    return {
        "times": answer.times,
        "delay": answer.delay_samples,
        "confidence": answer.confidence,
        "summary": [answer.summary.delay_samples, answer.summary.confidence],
    }


def bundled_pair() -> Answer:
    return delays(DelayEstimator(spacing=0.5, threads=1)(samples.path("talkers-2ch")))


def pair_by_phat_at_another_rate() -> Answer:
    pair = Geometry(np.array([[0.0, 0, 0], [0.5, 0, 0]]))
    sound = scipy.signal.resample_poly(heard(voice(4.0), pair, [1.0, 0.6, 0.0]), 441, 160, axis=1)
    return delays(DelayEstimator("phat", spacing=0.5)(sound, 44100))


def band_of_a_small_network() -> Answer:
    estimator = DelayEstimator("general-small", spacing=0.5, band=(300, 5000), decoder="coarse", threads=1)
    return delays(estimator(samples.path("talkers-2ch"), end=6.0))


def published_network() -> Answer:
    return delays(DelayEstimator(PAPER, threads=1)(samples.path("talkers-2ch"), end=4.0))


def live_pair() -> Answer:
    stream = DelayStream(DelayEstimator("general-small", spacing=0.5, threads=1), sample_rate=48000, lookahead=0.5)
    sound = np.stack([voice(4.0), shifted(voice(4.0), 3e-4)]).repeat(3, axis=1)
    parts = [stream.push(sound[:, at : at + 5000]) for at in range(0, sound.shape[1], 5000)]
    parts.append(stream.flush())
    return {name: np.concatenate([np.atleast_1d(delays(part)[name]) for part in parts]) for name in delays(parts[0])}


def smoothed_pair() -> Answer:
    return delays(DelayEstimator("general-small", spacing=0.5, smoothing=0.25, threads=1)(samples.path("talkers-2ch")))


def directions_and_tracks() -> Answer:
    answer = DirectionEstimator(GEOMETRY, sources="auto", threads=1)(samples.path("talkers-4ch"), track=True)
    assert answer.tracks is not None
    return {
        "azimuth": answer.azimuth,
        "confidence": answer.confidence,
        "found": [[one.azimuth, one.confidence] for one in answer.directions],
        "blocks": [one.azimuth for block in answer.blocks for one in block.directions],
        "tracks": [[one.time, *one.state.direction, one.probability] for track in answer.tracks for one in track],
    }


def live_directions() -> Answer:
    stream = DirectionStream(DirectionEstimator("respeaker4", "phat"), sample_rate=RATE)
    sound = heard(voice(3.0), array("respeaker4"), [1.0, 1.5, 0.4])
    parts = [stream.push(sound[:, at : at + 3000]) for at in range(0, sound.shape[1], 3000)]
    return {"azimuth": np.concatenate([part.azimuth for part in parts])}


def positions() -> Answer:
    estimator = PositionEstimator(CORNERS, "general-small", volume=[[0, 5], [0, 4], [0, 2.5]], threads=1)
    answer = estimator(heard(voice(3.0), CORNERS, [1.7, 2.6, 1.4]), RATE)
    return {
        "place": [one.place for one in answer.positions],
        "confidence": [one.confidence for one in answer.positions],
    }


def offsets_and_faults() -> Answer:
    sound = voice(20.0)
    late = np.concatenate([1e-4 * np.random.default_rng(1).standard_normal(RATE // 2), sound])
    clock = synchronise([open_audio(sound[None], RATE), open_audio(late[None], RATE)]).clocks[1]
    pair = np.stack([sound, -shifted(sound, 2e-4)])
    found = [
        *diagnose(open_audio(pair, RATE), spacing=0.5).findings,
        *diagnose(open_audio(samples.path("talkers-4ch")), geometry=GEOMETRY).findings,
    ]
    return {"offset": [clock.offset], "codes": [CODES.index(one.code) for one in found]}


RECORDINGS: tuple[Callable[[], Answer], ...] = (
    bundled_pair,
    pair_by_phat_at_another_rate,
    band_of_a_small_network,
    published_network,
    live_pair,
    smoothed_pair,
    directions_and_tracks,
    live_directions,
    positions,
    offsets_and_faults,
)


def answers() -> dict[str, Floats]:
    """All of them: `recording/what` -> numbers."""
    return {
        f"{recording.__name__}/{what}": np.asarray(values, np.float64)
        for recording in RECORDINGS
        for what, values in recording().items()
    }


def write(path: Path, found: Mapping[str, Floats]) -> None:
    """As JSON: what Python writes of a float is read back as the same one."""
    lines = [f"{json.dumps(name)}: {json.dumps(values.tolist())}" for name, values in found.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> dict[str, Floats]:
    return {name: np.asarray(values, np.float64) for name, values in json.loads(path.read_text()).items()}
