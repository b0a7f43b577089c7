"""From a scene to a recording of it and its true delays, on the CPU.

    signals -> responses -> levels -> + diffuse noise -> microphones -> + own noise -> clipping, band, level

A source on its way is cross-faded between the points of its path, linearly, when it sounds and not when it is heard:
what was said at a place keeps arriving from there until its reverberation has died away,

    y(t) = sum_p h_p * (w_p s),   w_p the hat over the time at point p,   sum_p w_p = 1.

So the truth at a time is the delay of the place where the sound that arrives directly then was made.

Direct sound and early reflections follow the path in its own, fine steps. The reverberation behind them comes from so
many places that nobody hears where along a hand's breadth it was excited: it is computed in steps of `LATE_STEP` only.
That is most of the work, for late images are by far the most. (Cross-fading what is no longer quite alike costs it 1.1
dB of its level.) Walks of many metres can take longer steps for it; what lies half a metre apart is not alike at all
any more, so there the powers add up to 1 and not the weights.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy.fft

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats, Floats32
from qkgcc.lab.rooms import degradations, noise
from qkgcc.lab.rooms.mixing import convolve, level_of_convolved
from qkgcc.lab.scenes import engines
from qkgcc.lab.scenes.scenes import Scene, Source
from qkgcc.lab.scenes.signals import Lookup, Whole

EARLY = 0.1
"""Seconds after the sound was made: what arrives until then follows the path closely."""
LATE_STEP = 0.1
"""Metres between the points of a path at which late reverberation is computed."""

_COHERENT_STEP = 0.2  # metres between points beyond which late reverberation is cross-faded as noises are
_POINTS_AT_ONCE = 256  # early responses that are computed together: all of a long walk would fill the memory
_TRUTH_STEP = 0.01  # seconds between the places along a path that the truth is computed at


@dataclass(frozen=True, eq=False)
class Rendered:
    """A recording and the truth about it."""

    audio: Floats32
    """(M, n)"""
    delays: Floats32
    """(S, n) delay in samples of each source between the first two microphones, positive = microphone 1 later."""
    sources: Floats32 | None = None
    """(S, M, n) what of each source is in the air at the microphones, the first with unit variance at microphone 1."""


def render(
    scene: Scene,
    signals: Lookup,
    seconds: float,
    *,
    engine: str = "cpu",
    whole: Whole | None = None,
    separate: bool = False,
    jobs: int | None = None,
    early: float = EARLY,
    late_step: float = LATE_STEP,
) -> Rendered:
    """Record a scene: the first `seconds` from the moment that its sources begin.

    The first source is scaled to unit variance at microphone 1, the others to their levels against it over all
    microphones, and the noise to the SNR. Levels are taken while a source sounds: one that ends before the recording
    does is not made louder for the silence behind it.

    Args:
        signals: from the id of a signal to its samples; `signals.lookup` reads banks and makes synthetic ones.
        whole: from an id to power spectrum and length of the whole utterance (`signals.whole_utterances`). The variance
            of the first source is then that over the whole convolved utterance, as the paper's protocol says, and not
            that over the part of it that is recorded.
        separate: keep the sources apart, too.
        early: seconds after the sound was made until which what arrives follows the path closely.
        late_step: metres between the points of a path at which late reverberation is computed.
    """
    samples = round(seconds * scene.sample_rate)
    parts = [_cut_signal(signals(source.signal), source, samples) for source in scene.sources]
    heard, level = _hear_sources(scene, parts, samples, engine, jobs, whole, early, late_step)
    heard = _scale_to_levels(heard, [len(part) for part in parts], level, scene)
    field, own = _draw_noises(scene, samples)
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
        made = np.linspace(made[0], made[-1], 2 + int((made[-1] - made[0]) / _TRUTH_STEP))
    place = np.stack([np.interp(made, moving.times, moving.path[:, axis]) for axis in range(3)], axis=-1)
    paths = np.linalg.norm(place[:, None] - scene.microphones[list(pair)], axis=-1)
    arrival = made + paths.mean(axis=1) / scene.speed_of_sound
    delays = (paths[:, 0] - paths[:, 1]) * scene.sample_rate / scene.speed_of_sound
    return np.asarray(np.interp(np.asarray(times, dtype=np.float64), arrival, delays))


def _cut_signal(signal: npt.NDArray[np.floating], source: Source, samples: int) -> Floats:
    """The part of a signal that is played: as long as the recording, or shorter if there is no more of it."""
    first = int(source.start * max(0, len(signal) - samples))
    return np.asarray(signal[first : first + samples], dtype=np.float64)


def _hear_sources(
    scene: Scene,
    parts: list[Floats],
    samples: int,
    engine: str,
    jobs: int | None,
    utterances: Whole | None,
    early: float,
    late_step: float,
) -> tuple[Floats, float | None]:
    """What each microphone hears of each source, and the level of the first one's whole utterance if that is known.

    Shape: S x (up to n,) -> (S, M, n)
    """
    seconds = samples / scene.sample_rate
    signals = [np.pad(part, (0, samples - len(part))) for part in parts]
    coarse = dataclasses.replace(scene, sources=tuple(_thin_path(source, late_step) for source in scene.sources))
    # What arrives after the recording is not in it, but is in the power of a whole utterance.
    whole = engines.responses(coarse, engine, seconds=seconds if utterances is None else None, jobs=jobs)
    level = None if utterances is None else _whole_level(*utterances(scene.sources[0].signal), whole[0][:, 0])
    cut = round(early * scene.sample_rate)
    heard = []
    for source, few, signal, response in zip(scene.sources, coarse.sources, signals, whole, strict=True):
        if len(few.path) < len(source.path):
            response = response.copy()
            response[..., :cut] = 0
            # Twice as much as is kept: what comes later rings forth, through the 10 Hz high-pass, a little into it.
            first = _early_responses(scene, source, engine, jobs, min(2 * early, seconds))
            close = _hear_path(source, signal, (one[..., :cut] for one in first), scene)
            heard.append(close + _hear_path(few, signal, response, scene, alike=late_step <= _COHERENT_STEP))
        else:
            heard.append(_hear_path(few, signal, response, scene))
    return np.stack(heard), level


def _early_responses(
    scene: Scene, source: Source, engine: str, jobs: int | None, seconds: float
) -> Iterator[npt.NDArray[np.floating]]:
    """The first `seconds` of the responses of each point of a path, (M, n) each."""
    for first in range(0, len(source.path), _POINTS_AT_ONCE):
        part = slice(first, first + _POINTS_AT_ONCE)
        few = dataclasses.replace(source, path=source.path[part], times=source.times[part])
        (some,) = engines.responses(dataclasses.replace(scene, sources=(few,)), engine, seconds=seconds, jobs=jobs)
        yield from some


def _whole_level(power: npt.NDArray[np.floating], samples: int, responses: npt.NDArray[np.floating]) -> float:
    """Standard deviation of a whole utterance behind responses, on average over a path. Shape: (513,), (P, r) -> ()."""
    each = level_of_convolved(power.astype(np.float64), samples, responses.astype(np.float64))
    return float(np.sqrt(np.mean(each**2)))


def _thin_path(source: Source, step: float = LATE_STEP) -> Source:
    """The same way, at the same pace, in steps of at most `step` metres where the given ones are shorter."""
    path, times = source.path, source.times
    kept = [0]
    for p in range(2, len(path)):
        first = kept[-1]
        straight = np.array([np.interp(times[first:p], times[[first, p]], path[[first, p], axis]) for axis in range(3)])
        strayed = np.linalg.norm(path[first:p] - straight.T, axis=1).max()
        if np.linalg.norm(path[p] - path[first]) > 1.001 * step or strayed > step / 10:
            kept.append(p - 1)
    if len(path) > 1:
        kept.append(len(path) - 1)
    return dataclasses.replace(source, path=path[kept], times=times[kept])


def _hear_path(
    source: Source, signal: Floats, responses: Iterable[npt.NDArray[np.floating]], scene: Scene, alike: bool = True
) -> Floats:
    """A signal through the responses along a path, P of (M, r), cross-faded as what is alike or as noises are.

    Shape: (n,) -> (M, n)
    """
    samples = len(signal)
    heard = np.zeros((len(scene.microphones), samples))
    times = source.times * scene.sample_rate
    # The moments at which a point begins and ceases to sound: when the source leaves the one before, reaches the next.
    edges = np.concatenate([[-np.inf], times, [np.inf]])
    for p, response in enumerate(responses):
        first, last = (int(np.clip(np.ceil(edge), 0, samples)) for edge in (edges[p], edges[p + 2]))
        if first >= last:
            continue
        now = np.arange(first, last)
        hat = np.interp(now, times, np.arange(len(times)) == p)
        hat = hat if alike else np.sqrt(hat)
        reach = min(response.shape[-1], samples - first)
        length = int(scipy.fft.next_fast_len(last - first + reach - 1, real=True))
        part = convolve((hat * signal[first:last])[None], response[:, :reach], length)
        heard[:, first : first + length] += part[:, : samples - first]
    return heard


def _scale_to_levels(heard: Floats, sounding: list[int], level: float | None, scene: Scene) -> Floats:
    """Sources at their levels, given how many samples each sounds for and the first one's level, or None: as recorded.

    Shape: (S, M, n) -> the same
    """
    power = np.stack([one[:, : max(1, last)].var(axis=-1) for one, last in zip(heard, sounding, strict=True)])
    variance = power[0, 0] if level is None else level**2
    if not variance > 0:
        raise InputError(
            f"{scene.sources[0].signal} is silent at microphone 1, so there is nothing to set its level by"
        )
    loudness = power.mean(axis=-1)
    levels = np.array([source.level for source in scene.sources])
    # An interferer that is silent in this part of its signal stays so.
    relative = loudness[0] / np.where(loudness > 0, loudness, np.inf) * 10 ** (levels / 10)
    relative[0] = 1.0
    scale = np.sqrt(relative / variance)
    return np.asarray(heard * scale[:, None, None])


def _draw_noises(scene: Scene, samples: int) -> tuple[Floats, Floats]:
    """Noise of the field, which the microphones colour, and noise of their own; one of the two is silence."""
    keys = noise.keys(scene.seed, len(scene.microphones))
    drawn = noise.white(np.array(keys), np.zeros((), dtype=np.int64), samples).astype(np.float64)
    drawn = noise.coloured(drawn, np.asarray(scene.noise_slope), scene.sample_rate) * 10 ** (-scene.snr / 20)
    silence = np.zeros_like(drawn)
    if scene.noise == "diffuse":
        return noise.diffuse(drawn, scene.microphones, scene.sample_rate, scene.speed_of_sound), silence
    return silence, drawn
