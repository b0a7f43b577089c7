"""From blocks of samples to curves over delay, one for each pair of an array and frame: input of directions and tracks.

    block (M, n) -> (resample) -> frames -> curves of all pairs over their lags

    evidence = ArrayEvidence(array("respeaker4"), sample_rate=48000)
    for block in microphones:                  # (4, any number of samples)
        frames = evidence.push(block)          # `ArrayFrames` that this block completed, perhaps none
        ...
    frames = evidence.flush()
    evidence.warnings                          # about all frames until now, such as a dead microphone

A curve is the log-posterior of a network over the lags that the spacing of the pair allows, or a correlation in [-1, 1]
(`kind`). Pairs that are wider apart than the network was trained for get a log-posterior made of PHAT. A `Steering`
adds the curves up for directions or places: `evidence.steering(far_delays(geometry, evidence.pairs, directions))`.

Recordings go block by block through the same code (`frames_of`), so their frames are the same to the bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.presets import array
from qkgcc.arrays.steering import Pairs, Steering
from qkgcc.arrays.wiring import Miswiring, WiringCheck
from qkgcc.audio.recording import (
    Recording,
    as_floats,
    check_long_enough,
    check_rate,
    check_samples,
    open_audio,
    read_block,
)
from qkgcc.core.checks import (
    check_band,
    check_band_in_recording,
    check_count,
    check_frame,
    check_hop,
    check_method,
    check_number,
    check_pairs,
    check_speed,
    check_threads,
)
from qkgcc.core.errors import InputError, quantity
from qkgcc.core.types import SILENCE, SPEED_OF_SOUND, Bools, Floats, Floats32, Indices, Samples
from qkgcc.delay.estimator import NOTABLE, load_network
from qkgcc.dsp import gcc
from qkgcc.network.registry import ARRAY_DEFAULT, CLASSICAL
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs.classical import taper
from qkgcc.pairs.confidence import narrow_band_warning
from qkgcc.pairs.frontend import FrameBatch, FrontEnd, frame_levels, normalise_frames
from qkgcc.pairs.neural import Network

RATE = 16000
"""Hz that classical methods work at: what is above 8 kHz is seldom coherent between microphones."""
FRAME = 0.064
"""Seconds."""
MARGIN = 2
"""Lags on either side beyond what the spacing of a pair allows: a curve is interpolated, and spacings are inexact."""
SHARPNESS = 1.25
"""What a PHAT correlation is multiplied by, times the root of a frame's samples, to be the logarithm of a probability
where it stands in for a network: the noise of a correlation falls with that root. The likeliest for talkers in 16
simulated rooms, with pairs more than 2 m apart (40 for frames of 1024 samples; 57 for 2048, where 60 was best)."""

MOST_PAIRS = 2016
"""Of an array: all those of 64 microphones. What is computed and kept grows with them: hundreds of megabytes there."""

_FINER = 4  # lags in a sample, of a correlation: a cubic through its samples alone would miss its peaks
_CURVES = 1 << 24  # numbers of the curves that are answered at once


class ArrayFrames(NamedTuple):
    """Frames of an array, and a curve for each pair. Shape: T frames, M microphones, K lags of all pairs."""

    times: Floats
    """(T,) centres in seconds."""
    level: Floats
    """(T,) RMS over the live microphones (full scale = 1)."""
    heard: Bools
    """(T,) whether at least two microphones live and hear more than silence. Curves of other frames are flat."""
    trust: Floats
    """(T,) factor of confidences: 1, or less for a narrow band and where microphones seem to be wired otherwise."""
    dead: Bools
    """(T, M) dead microphones; the curves of their pairs are flat, too."""
    curves: Floats32
    """(T, K) of the pairs one after the other; `ArrayEvidence.curve` finds one."""

    @staticmethod
    def joined(parts: Iterable[ArrayFrames]) -> ArrayFrames:
        return ArrayFrames._make(np.concatenate(column) for column in zip(*parts, strict=True))

    def part(self, frames: slice | Bools) -> ArrayFrames:
        return ArrayFrames._make(column[frames] for column in self)


class ArrayEvidence:
    """Turns blocks of samples into `ArrayFrames`.

    Args:
        geometry: a `Geometry`, or what `qkgcc.arrays.array` takes.
        method: a name out of `qkgcc.METHODS`, the file of a steered network, or one that is loaded already
            (`array_network`).
        sample_rate: of the blocks.
        frame, hop: seconds.
        pairs: those that count; by default all.
        band: lowest and highest frequency in Hz that may count. Confidences are not calibrated then.
        start: seconds of the first sample.
        threads: that share the frames of a batch; by default one for each core.
    """

    def __init__(  # noqa: PLR0913 - what users may set
        self,
        geometry: Geometry | str | Path,
        method: str | Path | Network = ARRAY_DEFAULT,
        *,
        sample_rate: int,
        frame: float = FRAME,
        hop: float | None = None,
        pairs: Pairs | None = None,
        band: tuple[float, float] | None = None,
        start: float = 0.0,
        threads: int | None = None,
        speed_of_sound: float = SPEED_OF_SOUND,
    ) -> None:
        speed_of_sound = check_speed(speed_of_sound)
        frame = check_frame(frame)
        if hop is not None:
            hop = check_hop(hop)
        if threads is not None:
            threads = check_threads(threads)
        self.geometry = geometry = array(geometry)
        self.start = check_number("start", start, 0, 1e9, "s")
        self.method = method.card.name if isinstance(method, Network) else check_method(method)
        self.sample_rate = check_rate(sample_rate)
        self.band = check_band(band)
        check_band_in_recording(self.band, self.sample_rate)
        self.pairs = checked_pairs(geometry, pairs)
        self._speed = speed_of_sound
        self._limits = np.array([geometry.spacing(*pair) for pair in self.pairs]) / speed_of_sound
        self._network: Network | None = None
        self._weighting = self.method
        learned: Bools = np.zeros(len(self.pairs), np.bool_)
        if isinstance(method, Network) or self.method not in CLASSICAL:
            network = method if isinstance(method, Network) else array_network(method, threads)
            network = network.limited(self.sample_rate, None, frame)
            self._network = network = network if self.band is None else network.within(*self.band)
            learned = self._limits <= (float(np.max(network.card.delays)) + 1) / network.sample_rate
            self._weighting = "phat"
        self.learned = learned
        """(P,) which pairs the network answers for."""
        self.kind = "correlation" if self._network is None else "posterior"
        self.rate = RATE if self._network is None else self._network.sample_rate
        """Hz that frames have."""
        self.frame = round(frame * self.rate)
        """Samples at that rate, and so is the hop."""
        self.hop = max(1, round(frame / 2 * self.rate if hop is None else hop * self.rate))
        self._check_room()
        self.lags = [self._lags_of(limit, own) for limit, own in zip(self._limits, self.learned, strict=True)]
        """(L,) of each pair, in seconds."""
        self._starts = np.cumsum([0, *(len(one) for one in self.lags)])
        self._front = FrontEnd(self.sample_rate, self.rate, self.frame, self.hop, start=self.start)
        self._samples = 0
        self._heard, self._dead = 0, np.zeros(len(geometry), np.int64)
        self._single_mic_frames = 0  # in which one microphone alone is audible
        self._wiring: WiringCheck | None = None
        if WiringCheck.applies(geometry):
            self._wiring = WiringCheck(
                geometry,
                self.pairs,
                speed_of_sound,
                rate=self.rate,
                highest=min(self.rate, self.sample_rate) / 2,
                frame=self.frame,
                hop=self.hop,
            )
        self.latency = self._front.latency
        """Seconds after the last sample of a frame until it is answered, at most; the frame itself comes on top."""

    def push(self, block: Samples) -> ArrayFrames:
        """The frames that are complete by now. Shape: (M, n) -> T frames"""
        samples = as_floats(read_block(block, len(self.geometry)))
        at = self.start + self._samples / self.sample_rate
        check_samples(samples, "the stream", range(len(samples)), self.sample_rate, at)
        self._samples += samples.shape[1]
        return self._answer(self._front.push(samples))

    def flush(self) -> ArrayFrames:
        """The rest, at the end; an incomplete frame is left out."""
        return self._answer(self._front.flush())

    def copy(self) -> ArrayEvidence:
        """Another one that goes on from the same samples by itself."""
        twin = copy.copy(self)
        twin._front = self._front.copy()
        twin._dead = self._dead.copy()
        twin._wiring = None if self._wiring is None else self._wiring.copy()
        return twin

    @property
    def count(self) -> int:
        """Frames until now."""
        return self._front.count

    def curve(self, frames: ArrayFrames, pair: int) -> Floats32:
        """The curves of a pair, by its place in `pairs`, over its `lags`. Shape: (T, L)"""
        return frames.curves[:, self._starts[pair] : self._starts[pair + 1]]

    def split(self, row: Floats) -> list[Floats]:
        """Views of the curves of the pairs in a row of them. Shape: (K,) -> (L,) of each"""
        return np.split(row, self._starts[1:-1])

    def steering(self, delays: Floats) -> Steering:
        """What adds the curves up at delays in seconds. Shape: (pairs, D)"""
        return Steering(self.lags, delays)

    @property
    def largest_block(self) -> int:
        """Samples whose frames are answered at once: the curves of many pairs take much memory."""
        frames = max(1, _CURVES // int(self._starts[-1]))
        return max(1, frames * self.hop * self.sample_rate // self.rate)

    def empty(self) -> ArrayFrames:
        """No frames."""
        return ArrayFrames(
            np.empty(0),
            np.empty(0),
            np.empty(0, np.bool_),
            np.empty(0),
            np.empty((0, len(self.geometry)), np.bool_),
            np.empty((0, int(self._starts[-1])), np.float32),
        )

    @property
    def dead(self) -> list[int]:
        """Microphones that were dead in nearly all frames until now."""
        return mostly_dead(self._dead, self._heard)

    def check_heard(self, name: str) -> None:
        """Raises InputError where only one microphone ever hears anything: then there is no direction to find.

        (What is silence for all of them is an answer, and no error.)

        Args:
            name: of what was heard.
        """
        if self._single_mic_frames and not self._heard:
            raise InputError(all_silent(name))

    @property
    def miswired(self) -> Miswiring | None:
        """How the microphones seem to be wired, where that is not as the geometry says; None of wide arrays."""
        return None if self._wiring is None else self._wiring.found

    @property
    def trust(self) -> float:
        """Factor of the confidences of all frames until now."""
        return self.band_trust * (1.0 if self._wiring is None else self._wiring.trust)

    @property
    def band_trust(self) -> float:
        """The part of `trust` due to a narrow band."""
        return 1.0 if self._network is None else self._network.confidence_scale

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about all frames until now, one sentence each."""
        found = [] if self.miswired is None else [self.miswired.sentence]
        if self.band is not None:
            low, high = self.band
            narrow = narrow_band_warning(low, min(high, self.sample_rate / 2, self.rate / 2))
            found += [] if narrow is None else [narrow]
        if self._network is not None and not self.learned.all():
            wide = [f"{i}-{j}" for (i, j), own in zip(self.pairs, self.learned, strict=True) if not own]
            shown = ", ".join(wide) if len(wide) <= 6 else f"{', '.join(wide[:5])} and {len(wide) - 5} more"
            name = self._network.card.name
            trained = float(np.max(self._network.card.delays)) * self._speed / self._network.sample_rate
            found.append(
                f"the pairs {shown} are wider apart than the {trained:.1f} m {name} was trained on: PHAT there"
            )
        for microphone in np.flatnonzero(self._dead > NOTABLE * self._heard):
            found.append(dead_microphone_warning(int(microphone), int(self._dead[microphone]), self._heard))
        return tuple(found)

    def _check_room(self) -> None:
        """Both channels of a frame must hold the same sound."""
        longest = float(self._limits.max()) * self.rate + MARGIN
        if longest > self.frame / 2:
            raise InputError(
                f"microphones {self._limits.max() * self._speed:.1f} m apart need frames of at least "
                f"{2 * longest / self.rate:.3f} s; these have {self.frame / self.rate:.3f} s: give a longer frame"
            )

    def _lags_of(self, limit: float, learned: bool) -> Floats:
        # The stand-in for a network has the steps of a correlation, too: only the network is asked for whole samples.
        step = self._network.model.step if learned and self._network is not None else 1 / _FINER
        reach = math.ceil(limit * self.rate / step) + MARGIN
        return np.asarray(step * np.arange(-reach, reach + 1) / self.rate)

    def _answer(self, batches: Iterator[FrameBatch]) -> ArrayFrames:
        return ArrayFrames.joined([self.empty(), *(self._answer_batch(batch) for batch in batches)])

    def _answer_batch(self, batch: FrameBatch) -> ArrayFrames:
        count, microphones = batch.power.shape
        rms, dead, live, heard = frame_levels(batch.power)
        curves, trust = np.tile(self._flat_curves, (count, 1)), np.full(count, self.trust)
        if heard.any():
            # One number for all channels of a frame, and what is dead takes no part in it.
            kept = np.where(dead[heard, :, None], 0, batch.samples[heard]).astype(batch.samples.dtype)
            kept = normalise_frames(kept, self.rate, 0.0 if self._network is None else self._network.rumble)
            trust = self._trust_by_wiring(kept, heard)
            kept *= np.sqrt(live[heard] / microphones)[:, None, None].astype(kept.dtype)
            curves[heard] = self._curves(kept, dead[heard])
        self._heard += int(heard.sum())
        self._single_mic_frames += int(((rms >= SILENCE) & (live == 1)).sum())
        self._dead = self._dead + dead[heard].sum(axis=0)
        return ArrayFrames(batch.times, rms, heard, trust, dead, curves)

    def _trust_by_wiring(self, kept: Samples, heard: Bools) -> Floats:
        """See `ArrayFrames.trust`, after each frame. Shape: (heard, M, n), (T,) -> (T,)"""
        trust = np.empty(len(heard))
        frames = iter(kept)
        for number, counts in enumerate(heard):
            if counts and self._wiring is not None:
                self._wiring.add(next(frames))
            trust[number] = self.trust
        return trust

    def _curves(self, frames: Samples, dead: Bools) -> Floats32:
        """Of frames at unit level. Shape: (T, M, n), (T, M) -> (T, K)"""
        curves = np.tile(self._flat_curves, (len(frames), 1))
        gone = np.array([dead[:, i] | dead[:, j] for i, j in self.pairs])  # (P, T)
        useful = ~gone.all(axis=1)
        for of_network in (True, False):
            numbers = np.flatnonzero(useful & (self.learned == of_network))
            if not len(numbers):
                continue
            answers = (self._network_curves if of_network else self._correlation_curves)(frames, numbers)
            for number, answer in zip(numbers, answers, strict=True):
                answer = np.where(gone[number][:, None], self._flat_curve(number), answer)
                curves[:, self._starts[number] : self._starts[number + 1]] = answer
        return curves

    def _network_curves(self, frames: Samples, numbers: Indices) -> Iterator[Floats32]:
        """Log-posteriors by the network. Shape: (T, M, n) -> (T, L) of each pair"""
        network = self._network
        assert network is not None
        assert isinstance(network.model, SteeredModel)
        widest = max((self.lags[number] for number in numbers), key=len)
        chosen = [self.pairs[number] for number in numbers]
        logits = network.model.logits_of_pairs(
            np.asarray(frames, np.float32), chosen, network.bins, np.round(widest * self.rate / network.model.step)
        )
        if not np.isfinite(logits).all():
            raise InputError(f"{network.card.name} answers with what are no numbers: its file is damaged, get it again")
        for place, number in enumerate(numbers):
            spare = (len(widest) - len(self.lags[number])) // 2
            yield _log_softmax(logits[:, place, spare : spare + len(self.lags[number])])

    def _correlation_curves(self, frames: Samples, numbers: Indices) -> Iterator[Floats32]:
        """Correlations, or log-posteriors made of them. Shape: (T, M, n) -> (T, L) of each pair"""
        band = self.band
        if self.sample_rate < self.rate:  # resampling leaves nothing but rounding noise above
            low, high = self.band or (0.0, math.inf)
            band = low, min(high, self.sample_rate / 2)
        centred = frames - frames.mean(axis=-1, keepdims=True)  # a constant would be a source of its own, at delay 0
        tapered = centred * taper(frames.shape[-1])
        for number in numbers:
            pair, reach = list(self.pairs[number]), len(self.lags[number]) // 2
            spectrum = gcc.weighted_spectrum(
                tapered[:, pair],
                self._weighting,
                max_lag=math.ceil(reach / _FINER),
                band=band,
                sample_rate=self.rate if band else None,
            )
            padded = np.zeros((len(spectrum), _FINER * (spectrum.shape[-1] - 1) + 1), spectrum.dtype)
            padded[:, : spectrum.shape[-1]] = spectrum
            curve = (_FINER * gcc.curve(gcc.correlation(padded), reach)).astype(np.float32)
            yield curve if self._network is None else _log_softmax(SHARPNESS * math.sqrt(self.frame) * curve)

    @cached_property
    def _flat_curves(self) -> Floats32:
        """Curves that favour no lag. Shape: (K,)"""
        return np.concatenate([self._flat_curve(number) for number in range(len(self.pairs))])

    def _flat_curve(self, pair: int | np.intp) -> Floats32:
        count = len(self.lags[pair])
        return np.full(count, -math.log(count) if self.kind == "posterior" else 0.0, np.float32)


def frames_of(
    evidence: ArrayEvidence, recording: Recording, progress: Callable[[float], object] | None = None
) -> Iterator[ArrayFrames]:
    """The frames of a recording, a few at a time.

    Args:
        progress: called with the share that is done, from 0 to 1.
    """
    check_microphones(recording, evidence.geometry)
    check_long_enough(recording, evidence.frame, evidence.rate)
    done, size = 0, evidence.largest_block
    for block in recording.blocks():
        for first in range(0, block.shape[1], size):
            yield evidence.push(block[:, first : first + size])
        done += block.shape[1]
        if progress is not None:
            progress(done / recording.samples)
    yield evidence.flush()


def opened(
    source: Any, sample_rate: int | None, channels: Sequence[int] | None, start: float | None, end: float | None
) -> Recording:
    """The recording that the arguments of an estimator's call name."""
    if isinstance(source, Recording):
        if (sample_rate, channels, start, end) != (None, None, None, None):
            raise InputError("a Recording has its channels and times already: choose them in open_audio and pick")
        return source
    recording = open_audio(source, sample_rate, start=start, end=end)
    return recording if channels is None else recording.pick(channels)


def array_network(method: str | Path, threads: int | None = None) -> Network:
    """A network that answers for all pairs of an array at once."""
    network = load_network(method, threads=threads)
    if not isinstance(network.model, SteeredModel) or network.scaling != "frame":
        raise InputError(
            f"{method} cannot be asked for the pairs of an array: take a steered network such as {ARRAY_DEFAULT}, or "
            "phat"
        )
    return network


def checked_pairs(geometry: Geometry, pairs: Pairs | None) -> list[tuple[int, int]]:
    chosen = geometry.pairs if pairs is None else check_pairs(pairs)
    if len(chosen) > MOST_PAIRS:
        raise InputError(
            f"{len(chosen)} pairs of {geometry.name} are too many; expected at most {MOST_PAIRS}: say which ones count"
        )
    for i, j in chosen:
        if i == j or not (0 <= i < len(geometry) and 0 <= j < len(geometry)):
            raise InputError(
                f"there is no pair {i}-{j} of {geometry.name}: its microphones are 0 to {len(geometry) - 1}"
            )
    if not chosen or len({frozenset(pair) for pair in chosen}) < len(chosen):
        raise InputError("pairs of microphones: give at least one, and none of them twice")
    return chosen


def check_sources(sources: int | str, method: str | Path) -> int | str:
    if not isinstance(sources, str) or sources != "auto":
        return check_count("sources", sources, 1, 16, ", or auto")
    if check_method(method) in CLASSICAL:
        raise InputError(f"{method} cannot tell how many sources there are: give their number, or take a network")
    return sources


def fewer_found(sources: int | str, whole: int, blocks: Sequence[int]) -> tuple[str, ...]:
    """Warning about sources that were asked for and not found, if any; silent blocks do not count.

    Args:
        whole: how many were found in the whole recording.
        blocks: how many in each block that is no silence.

    >>> fewer_found(3, 2, [3, 2])
    ('fewer sources than the 3 asked for are found: 2 in the whole recording',)
    """
    if sources == "auto" or not blocks:
        return ()
    lacking = sum(found < int(sources) for found in blocks)
    if whole < int(sources):
        return (f"fewer sources than the {sources} asked for are found: {whole} in the whole recording",)
    if lacking:
        return (f"fewer sources than the {sources} asked for are found in {lacking} of {len(blocks)} blocks",)
    return ()


def dead_microphone_warning(microphone: int, frames: int, heard: int) -> str:
    """Warning about a microphone that is dead in some of the audible frames."""
    return f"microphone {microphone} is silent in {frames} of {heard} frames: it is left out there"


def mostly_dead(dead: npt.NDArray[np.int64], heard: int) -> list[int]:
    """Microphones that were dead in nearly all of the audible frames.

    Args:
        dead: in how many of them each was.
    Shape: (M,)
    """
    return [int(i) for i in np.flatnonzero(dead > (1 - NOTABLE) * heard)] if heard else []


def all_silent(name: str) -> str:
    """Message for a recording in which no two microphones hear anything."""
    return f"{name}: nearly all of its channels are silent: there is no direction to find"


def check_microphones(recording: Recording, geometry: Geometry) -> None:
    """Raises InputError where a recording has more or fewer channels than the array has microphones."""
    count = len(recording.channels)
    if count == len(geometry):
        return
    if recording.picked_from is None:
        raise InputError(wrong_channels(recording.name, count, geometry))
    raise InputError(
        f"{count} of the {quantity(recording.picked_from, 'channel')} of {recording.name} "
        f"{'is' if count == 1 else 'are'} chosen; {geometry.name} has {len(geometry)} microphones: choose as many, in "
        "their order"
    )


def wrong_channels(name: str, count: int, geometry: Geometry) -> str:
    """Message for a recording with more or fewer channels than microphones."""
    if count > len(geometry):
        advice = "pick those that are its microphones, in their order"
    elif count > 1:
        advice = f"record all of them, or give an array of these {count} (a TOML or CSV file of their places)"
    else:
        advice = "a direction needs at least 2 in one file; record all of them"
    return f"{name} has {quantity(count, 'channel')}; {geometry.name} has {len(geometry)} microphones: {advice}"


def _log_softmax(logits: Floats32) -> Floats32:
    """Shape: (T, L) -> same"""
    values = np.ascontiguousarray(logits, np.float64)
    values -= values.max(axis=-1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(axis=-1, keepdims=True)), np.float32)
