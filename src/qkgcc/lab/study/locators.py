"""Whatever finds talkers with an array, behind one call: ours, those of pyroomacoustics, and least squares.

    locator.locate(audio, sample_rate, geometry, talkers, block)

`talkers` says how many are to be found in each block of `block` samples, for the peers have to be told. Of each block
an array of shape (up to that many, 3) comes back, best first: unit vectors, or positions in metres where microphones
are distributed, in the axes of the geometry. An elevation that a method does not search for is 0.

    follower.follow(audio, sample_rate, geometry)

follows sources in a recording: with the whole of it at hand, and online, frame by frame.

- R. Scheibler, E. Bezzam, I. Dokmanić, "Pyroomacoustics", ICASSP 2018: SRP-PHAT, MUSIC, NormMUSIC.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import scipy.fft
import scipy.optimize

from qkgcc.arrays import DirectionEstimator, Geometry, PositionEstimator
from qkgcc.arrays.context import CONTEXT
from qkgcc.arrays.evidence import ArrayFrames, frames_of
from qkgcc.arrays.positions import SEARCH_MARGIN
from qkgcc.arrays.stream import DirectionStream
from qkgcc.audio.recording import open_audio
from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.network.registry import ARRAY_DEFAULT, CLASSICAL, WEIGHTS
from qkgcc.tracks.paths import find_tracks
from qkgcc.tracks.tracker import Track, Trajectory

PUSH_BLOCK = 1024
"""Samples that come at once where sources are followed online."""

History = list[tuple[float, list[Track]]]
"""The times of all frames, and the tracks at each."""

ELEVATIONS = tuple(np.arange(0.0, 61.0, 10.0).tolist())
"""Degrees up, where a peer searches them."""


class Locator(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on: rows of other settings are measured anew."""
        ...

    @property
    def positions(self) -> bool:
        """Whether it finds positions among distributed microphones, and not directions."""
        ...

    @property
    def real_only(self) -> bool:
        """Whether it is measured on the real recordings alone."""
        ...

    def locate(
        self, audio: Floats, sample_rate: int, geometry: Geometry, talkers: Sequence[int], block: int
    ) -> list[Floats]: ...


@dataclass(frozen=True)
class Pyroom:
    """A method of pyroomacoustics on 360 azimuths of the horizon, or of several elevations, blocks cut into
    half-overlapping frames."""

    name: str
    algorithm: str
    """The name of its class."""
    nfft: int = 512
    band: tuple[float, float] = (500.0, 4000.0)
    """Hz; pyroomacoustics' own default."""
    context: float = 0.0
    """Seconds before and after a block that are heard with it, as if they were of it."""
    elevations: tuple[float, ...] = (0.0,)
    """Degrees up that are searched at every azimuth."""
    real_only: bool = False
    positions: ClassVar[bool] = False

    @property
    def settings(self) -> dict[str, Any]:
        about = {"nfft": self.nfft, "hop": self.nfft // 2, "window": "hann", "band": list(self.band), "grid": 360}
        about |= {"context": self.context} if self.context else {}
        return about | ({"elevations": list(self.elevations)} if self.elevations != (0.0,) else {})

    def locate(
        self, audio: Floats, sample_rate: int, geometry: Geometry, talkers: Sequence[int], block: int
    ) -> list[Floats]:
        method = _method_of_pyroomacoustics(
            self.algorithm, geometry.microphones.tobytes(), sample_rate, self.nfft, self.elevations
        )
        found = []
        for part, count in blocks(audio, talkers, block, round(self.context * sample_rate)):
            if not count:
                found.append(np.empty((0, 3)))
                continue
            method.locate_sources(_spectra(part, self.nfft), num_src=count, freq_range=list(self.band))
            if self.elevations != (0.0,):
                found.append(_highest(method.grid, count))
                continue
            azimuth = method.azimuth_recon[::-1]  # the highest peak comes last
            found.append(np.stack([np.cos(azimuth), np.sin(azimuth), 0 * azimuth], axis=1))
        return found


@dataclass(frozen=True)
class LeastSquares:
    """Positions from the delays of all pairs: the highest peaks of GCC-PHAT over a block, then least squares.

    The squares are summed up at points of a lattice around the microphones, and the best is refined. A further talker
    is sought in the same correlations, with the peaks that were taken cut out.
    """

    name: str = "gcc-phat-ls"
    lattice: float = 0.4
    """Metres between its points."""
    margin: float = 1.0
    """Metres that it reaches beyond the outermost microphones: they hang in a room."""
    width: float = 0.0005
    """Seconds to either side of a taken peak that are cut out."""
    positions: ClassVar[bool] = True
    real_only: ClassVar[bool] = False

    @property
    def settings(self) -> dict[str, Any]:
        return {"lattice": self.lattice, "margin": self.margin, "width": self.width}

    def locate(
        self, audio: Floats, sample_rate: int, geometry: Geometry, talkers: Sequence[int], block: int
    ) -> list[Floats]:
        pairs = np.array(geometry.pairs)
        low, high = geometry.microphones.min(axis=0) - self.margin, geometry.microphones.max(axis=0) + self.margin
        axes = [np.arange(a, b + self.lattice, self.lattice) for a, b in zip(low, high, strict=True)]
        points = np.array(list(itertools.product(*axes)))
        expected = _delays(points, geometry, pairs)
        limits = np.linalg.norm(np.diff(geometry.microphones[pairs], axis=1)[:, 0], axis=1) / SPEED_OF_SOUND
        found = []
        for part, count in blocks(audio, talkers, block):
            places = []
            lags, correlations = _correlations(part, pairs, sample_rate, limits)
            for _ in range(count):
                delays = np.array([lag[c.argmax()] for lag, c in zip(lags, correlations, strict=True)])
                start = points[((expected - delays) ** 2).sum(axis=1).argmin()]
                places.append(self._refine(np.clip(start, low, high), delays, geometry, pairs, (low, high)))
                for lag, correlation, delay in zip(lags, correlations, delays, strict=True):
                    correlation[np.abs(lag - delay) <= self.width] = -np.inf
            found.append(np.array(places).reshape(-1, 3))
        return found

    def _refine(
        self, start: Floats, delays: Floats, geometry: Geometry, pairs: npt.NDArray[Any], box: tuple[Floats, Floats]
    ) -> Floats:
        def off(place: Floats) -> Floats:
            return np.asarray((_delays(place[None], geometry, pairs)[0] - delays) * SPEED_OF_SOUND)

        return np.asarray(scipy.optimize.least_squares(off, start, bounds=box).x)


@dataclass(frozen=True)
class Directions:
    """This package's directions of far sources. The strongest of the most that any block has are those of a block."""

    name: str
    method: str
    """As of `DirectionEstimator`: a network or a weighting."""
    context: float = CONTEXT
    """Seconds; of networks."""
    positions: ClassVar[bool] = False
    real_only: ClassVar[bool] = False

    @property
    def settings(self) -> dict[str, Any]:
        context = {} if self.method in CLASSICAL else {"context": self.context}
        return {"method": self.method, "weights": _weights_of(self.method), **context}

    def locate(
        self, audio: Floats, sample_rate: int, geometry: Geometry, talkers: Sequence[int], block: int
    ) -> list[Floats]:
        estimator = DirectionEstimator(
            geometry,
            self.method,
            sources=max(1, *talkers),
            block=block / sample_rate,
            context=self.context,
            threads=1,
        )
        answers = estimator(audio[:, : block * len(talkers)], sample_rate).blocks
        found = []
        for number, count in enumerate(talkers):
            some = answers[number].directions[:count] if number < len(answers) else ()
            angles = np.radians([(one.azimuth, one.elevation or 0.0) for one in some]).reshape(-1, 2)
            flat = np.stack([np.cos(angles[:, 0]), np.sin(angles[:, 0])], axis=1) * np.cos(angles[:, 1:])
            found.append(np.concatenate([flat, np.sin(angles[:, 1:])], axis=1))
        return found


@dataclass(frozen=True)
class Positions:
    """This package's positions among distributed microphones, in the volume that least squares has by default, too."""

    name: str
    method: str
    """As of `PositionEstimator`: a network or a weighting."""
    positions: ClassVar[bool] = True
    real_only: ClassVar[bool] = False

    @property
    def settings(self) -> dict[str, Any]:
        return {"method": self.method, "weights": _weights_of(self.method), "margin": SEARCH_MARGIN}

    def locate(
        self, audio: Floats, sample_rate: int, geometry: Geometry, talkers: Sequence[int], block: int
    ) -> list[Floats]:
        estimator = PositionEstimator(
            geometry, self.method, sources=max(1, *talkers), block=block / sample_rate, threads=1
        )
        answers = estimator(audio[:, : block * len(talkers)], sample_rate).blocks
        return [
            np.array([one.place for one in answer.positions[:count]]).reshape(-1, 3)
            for answer, count in zip(answers, talkers, strict=True)
        ]


def ours() -> list[Locator]:
    """Those of this package: networks, one with every block for itself, and SRP-PHAT as this package has it.

    Directions and positions of the same name are the same method.
    """
    methods = {"qkgcc": ARRAY_DEFAULT, "qkgcc-small": "general-small", "qkgcc-phat": "phat"}
    return [
        *(Directions(name, method) for name, method in methods.items()),
        Directions("qkgcc-alone", ARRAY_DEFAULT, context=0.0),
        *(Positions(name, method) for name, method in methods.items()),
    ]


def peers() -> list[Locator]:
    """What ours is compared with.

    Methods of pyroomacoustics come twice: in its default band, and in nearly the whole one, which halves the errors of
    SRP-PHAT with a small array. Two come a third time: they hear the seconds around a block, as many as ours does. One
    searches elevations, too, as ours does, on the real recordings, whose sources are 20 to 50 degrees up. The sizes of
    the frames are the best of 256, 512 and 1024 for each, tried on the first three scenes of each kind.
    """
    wide = (500.0, 7000.0)
    return [
        Pyroom("srp-phat", "SRP"),
        Pyroom("music", "MUSIC"),
        Pyroom("normmusic", "NormMUSIC"),
        Pyroom("srp-phat-wide", "SRP", band=wide),
        Pyroom("music-wide", "MUSIC", 1024, wide),
        Pyroom("normmusic-wide", "NormMUSIC", band=wide),
        Pyroom("srp-phat-5s", "SRP", band=wide, context=CONTEXT),
        Pyroom("normmusic-5s", "NormMUSIC", band=wide, context=CONTEXT),
        Pyroom("normmusic-elevations", "NormMUSIC", band=wide, elevations=ELEVATIONS, real_only=True),
        LeastSquares(),
    ]


class Followed(NamedTuple):
    """The same recording, followed in both ways."""

    whole: History
    online: History


class Follower(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> dict[str, Any]:
        """What results depend on: rows of other settings are measured anew."""
        ...

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed: ...


@dataclass(frozen=True)
class Tracks:
    """This package's tracks, as users get them."""

    name: str
    method: str = ARRAY_DEFAULT

    @property
    def settings(self) -> dict[str, Any]:
        return {"method": self.method, "weights": _weights_of(self.method)}

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed:
        estimator = DirectionEstimator(geometry, self.method, threads=1)
        answer = estimator(audio, sample_rate, track=True)
        stream = DirectionStream(estimator, sample_rate, track=True)
        online: History = []
        for first in range(0, audio.shape[1], PUSH_BLOCK):
            frames = stream.push(audio[:, first : first + PUSH_BLOCK])
            online += zip(frames.times.tolist(), frames.tracks or (), strict=True)
        return Followed(by_time(answer.tracks or (), answer.times.tolist()), online)


@dataclass(frozen=True)
class PhatTracks:
    """The same on SRP-PHAT: exp(`sharpness` * mean correlation of the pairs) are the weights of a frame."""

    name: str = "phat"
    sharpness: float = 150.0
    """The best for whole recordings of 10, 20, 30, 50, 100, 150, 200 and 300, on scenes of dev-clean."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"sharpness": self.sharpness}

    def follow(self, audio: Floats, sample_rate: int, geometry: Geometry) -> Followed:
        estimator = DirectionEstimator(geometry, "phat")
        evidence = estimator.evidence(sample_rate)
        maps = estimator.maps(evidence)
        network = DirectionEstimator(geometry, threads=1)
        tracker = network.tracker(network.evidence(sample_rate))
        frames = ArrayFrames.joined(frames_of(evidence, open_audio(audio, sample_rate)))
        mean = maps(frames).cells
        weights = np.exp(self.sharpness * (mean - mean.max(axis=1, keepdims=True)))
        paths = find_tracks(frames.times, weights, frames.heard, estimator.grid.cells)
        times = frames.times.tolist()
        rows = zip(times, weights, frames.heard, strict=True)
        online = [(time, tracker.update(time, row, reliability=1.0 if heard else 0.0)) for time, row, heard in rows]
        return Followed(by_time(paths, times), online)


def followers() -> list[Follower]:
    return [Tracks("qkgcc"), PhatTracks()]


def by_time(tracks: Sequence[Trajectory], times: Sequence[float]) -> History:
    """Trajectories as what there is at each of the times of the frames."""
    moments: dict[float, list[Track]] = {time: [] for time in times}
    for moment in itertools.chain.from_iterable(tracks):
        moments[moment.time].append(moment)
    return list(moments.items())


def _weights_of(method: str) -> str | None:
    """The hash of a network's file; a weighting has none."""
    path = WEIGHTS / f"{method}.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else None


def blocks(audio: Floats, talkers: Sequence[int], block: int, beside: int = 0) -> Iterator[tuple[Floats, int]]:
    """Back-to-back parts of a recording, with the samples beside them, and how many talkers there are in each."""
    if audio.shape[-1] < block * len(talkers):
        raise InputError(f"{len(talkers)} blocks of {block} samples were asked for; there are {audio.shape[-1]} in all")
    for number, count in enumerate(talkers):
        yield audio[:, max(0, number * block - beside) : (number + 1) * block + beside], count


@lru_cache(maxsize=8)
def _method_of_pyroomacoustics(
    algorithm: str, microphones: bytes, sample_rate: int, nfft: int, elevations: tuple[float, ...] = (0.0,)
) -> Any:
    """One of its objects: the steering vectors in it are the same for all blocks."""
    try:
        from pyroomacoustics import doa
    except ImportError:
        raise MissingExtraError("the peers need pyroomacoustics: pip install 'qkgcc[train]'") from None
    places = np.frombuffer(microphones).reshape(-1, 3)
    if elevations == (0.0,):
        return doa.algorithms[algorithm](places[:, :2].T, sample_rate, nfft, c=SPEED_OF_SOUND, n_grid=360)
    azimuth, down = np.radians(np.arange(360.0)), np.radians(90 - np.array(elevations))
    return doa.algorithms[algorithm](
        places.T, sample_rate, nfft, c=SPEED_OF_SOUND, dim=3, azimuth=azimuth, colatitude=down
    )


def _highest(grid: Any, count: int) -> Floats:
    """The highest peaks of a sphere's grid over its azimuths, each at its best elevation. Shape: (up to count, 3)

    Peaks are sought along the azimuths, as on the horizon: over both, every elevation beside a peak would be one.
    """
    # The grid has its own order of elevations, each with all azimuths.
    table, azimuth, down = (np.asarray(one).reshape(-1, 360) for one in (grid.values, grid.azimuth, grid.colatitude))
    best, top = table.argmax(axis=0), table.max(axis=0)
    peaks = np.flatnonzero((top > np.roll(top, 1)) & (top >= np.roll(top, -1)))
    chosen = peaks[np.argsort(-top[peaks])][:count]
    around, up = azimuth[0, chosen], np.pi / 2 - down[best[chosen], 0]
    return np.stack([np.cos(up) * np.cos(around), np.cos(up) * np.sin(around), np.sin(up)], axis=1)


def _spectra(part: Floats, nfft: int) -> npt.NDArray[np.complex128]:
    """Shape: (M, n) -> (M, nfft / 2 + 1, frames)"""
    frames = np.lib.stride_tricks.sliding_window_view(part, nfft, axis=-1)[:, :: nfft // 2]
    window = np.hanning(nfft + 1)[:-1]
    return np.asarray(scipy.fft.rfft(frames * window, axis=-1).transpose(0, 2, 1))


def _delays(points: Floats, geometry: Geometry, pairs: npt.NDArray[Any]) -> Floats:
    """Seconds, positive = the first of a pair hears it later. Shape: (P, 3) -> (P, pairs)"""
    times = np.linalg.norm(points[:, None] - geometry.microphones, axis=-1) / SPEED_OF_SOUND
    return np.asarray(times[:, pairs[:, 0]] - times[:, pairs[:, 1]])


def _correlations(
    part: Floats, pairs: npt.NDArray[Any], sample_rate: int, limits: Floats
) -> tuple[list[Floats], list[Floats]]:
    """GCC-PHAT of each pair over a whole block, four values a sample, at the delays that are possible: lags, values."""
    finer = 4
    length = int(scipy.fft.next_fast_len(2 * part.shape[-1], real=True))
    spectra = scipy.fft.rfft(part, length)
    spectra /= np.maximum(np.abs(spectra), 1e-12)
    lags, values = [], []
    for (a, b), limit in zip(pairs, limits, strict=True):
        # Channel a later by d: its spectrum is that of b turned by exp(-i w d), so this peaks at +d.
        circular = scipy.fft.irfft(spectra[a] * spectra[b].conj(), finer * length)
        reach = int(np.ceil(limit * finer * sample_rate))
        lag = np.arange(-reach, reach + 1)
        lags.append(lag / (finer * sample_rate))
        values.append(circular[lag])
    return lags, values
