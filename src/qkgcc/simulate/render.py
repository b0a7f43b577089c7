"""From a scene to a recording of it and its true delays, on the CPU.

    signals -> responses -> levels -> + diffuse noise -> microphones -> + own noise -> clipping, band, level

A source on its way is cross-faded between the points of its path, linearly, when it sounds and not when it is heard:
what was said at a place keeps arriving from there until its reverberation has died away,

    y(t) = sum_p h_p * (w_p s),   w_p the hat over the time at point p,   sum_p w_p = 1.

So the truth at a time is the delay of the place where the sound that arrives directly then was made.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.errors import InputError
from qkgcc.simulate import degradations, engines, noise
from qkgcc.simulate.catalog import Lookup
from qkgcc.simulate.draws import stream
from qkgcc.simulate.mixing import convolve
from qkgcc.simulate.scenes import Scene, Source

_MOMENT = 0.01  # seconds between the places along a path that the truth is computed at

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rendered:
    """A recording and the truth about it."""

    audio: npt.NDArray[np.float32]
    """(M, n)"""
    delays: npt.NDArray[np.float32]
    """(S, n) delay in samples of each source between the first two microphones, positive = microphone 1 later."""
    sources: npt.NDArray[np.float32] | None = None
    """(S, M, n) what of each source is in the air at the microphones, the first with unit variance at microphone 1."""


def render(
    scene: Scene,
    signals: Lookup,
    seconds: float,
    *,
    engine: str = "cpu",
    separate: bool = False,
    jobs: int | None = None,
) -> Rendered:
    """Record a scene: the first `seconds` from the moment that its sources begin.

    The first source is scaled to unit variance at microphone 1 over the whole, the others to their levels against it
    over all microphones, and the noise to the SNR.

    Args:
        signals: from the id of a signal to its samples; `catalog.lookup` reads banks and makes synthetic ones.
        separate: keep the sources apart, too.
    """
    samples = round(seconds * scene.sample_rate)
    heard = np.stack(
        [
            _heard(source, _cut(signals(source.signal), source, samples), responses, scene.sample_rate)
            for source, responses in zip(scene.sources, engines.responses(scene, engine, jobs=jobs), strict=True)
        ]
    )
    heard = _levelled(heard, scene)
    field, own = _noises(scene, samples)
    audio = degradations.apply(heard.sum(axis=0) + field, scene.degradations, scene.sample_rate, own)
    times = np.arange(samples) / scene.sample_rate
    pairs = len(scene.microphones) > 1
    delays = [delay_at(scene, times, source) for source in range(len(scene.sources))] if pairs else []
    return Rendered(
        audio=audio.astype(np.float32),
        delays=np.array(delays, dtype=np.float32).reshape(-1, samples),
        sources=heard.astype(np.float32) if separate else None,
    )


def delay_at(scene: Scene, times: npt.ArrayLike, source: int = 0, pair: tuple[int, int] = (0, 1)) -> Floats:
    """True delays in samples of what arrives at some times, in seconds, such as the centres of frames.

    Shape: (T,) -> (T,)
    """
    moving = scene.sources[source]
    made = moving.times
    if len(made) > 1:
        made = np.linspace(made[0], made[-1], 2 + int((made[-1] - made[0]) / _MOMENT))
    place = np.stack([np.interp(made, moving.times, moving.path[:, axis]) for axis in range(3)], axis=-1)
    paths = np.linalg.norm(place[:, None] - scene.microphones[list(pair)], axis=-1)
    arrival = made + paths.mean(axis=1) / scene.speed_of_sound
    delays = (paths[:, 0] - paths[:, 1]) * scene.sample_rate / scene.speed_of_sound
    return np.asarray(np.interp(np.asarray(times, dtype=np.float64), arrival, delays))


def _cut(signal: npt.NDArray[np.floating], source: Source, samples: int) -> Floats:
    """The part of a signal that is played, with silence behind one that is too short."""
    first = int(source.start * max(0, len(signal) - samples))
    part = np.zeros(samples)
    taken = signal[first : first + samples]
    part[: len(taken)] = taken
    return part


def _heard(source: Source, signal: Floats, responses: npt.NDArray[np.floating], sample_rate: int) -> Floats:
    """What each microphone hears of a source. Shape: (n,), (P, M, r) -> (M, n)."""
    samples = len(signal)
    heard = np.zeros((responses.shape[1], samples))
    # The moments at which a point begins and ceases to sound: when the source leaves the one before, reaches the next.
    edges = np.concatenate([[-np.inf], source.times, [np.inf]]) * sample_rate
    for p, response in enumerate(responses):
        first, last = (int(np.clip(np.ceil(edge), 0, samples)) for edge in (edges[p], edges[p + 2]))
        if first >= last:
            continue
        now = np.arange(first, last)
        hat = np.interp(now, source.times * sample_rate, np.arange(len(source.times)) == p)
        reach = min(response.shape[-1], samples - first)
        length = int(scipy.fft.next_fast_len(last - first + reach - 1, real=True))
        part = convolve((hat * signal[first:last])[None], response[:, :reach], length)
        heard[:, first : first + length] += part[:, : samples - first]
    return heard


def _levelled(heard: Floats, scene: Scene) -> Floats:
    """Sources at their levels. Shape: (S, M, n) -> the same."""
    power = heard.var(axis=-1)
    if not power[0, 0] > 0:
        raise InputError(
            f"{scene.sources[0].signal} is silent at microphone 1, so there is nothing to set its level by"
        )
    loudness = power.mean(axis=-1)
    levels = np.array([source.level for source in scene.sources])
    # An interferer that is silent in this part of its signal stays so.
    relative = loudness[0] / np.where(loudness > 0, loudness, np.inf) * 10 ** (levels / 10)
    relative[0] = 1.0
    scale = np.sqrt(relative / power[0, 0])
    return np.asarray(heard * scale[:, None, None])


def _noises(scene: Scene, samples: int) -> tuple[Floats, Floats]:
    """Noise of the field, which the microphones colour, and noise of their own; one of the two is silence."""
    keys = np.array([stream(f"noise/{m}", scene.seed) for m in range(len(scene.microphones))])
    drawn = noise.white(keys, np.zeros((), dtype=np.int64), samples).astype(np.float64)
    drawn = noise.coloured(drawn, np.asarray(scene.noise_slope), scene.sample_rate) * 10 ** (-scene.snr / 20)
    silence = np.zeros_like(drawn)
    if scene.noise == "diffuse":
        return noise.diffuse(drawn, scene.microphones, scene.sample_rate, scene.speed_of_sound), silence
    return silence, drawn
