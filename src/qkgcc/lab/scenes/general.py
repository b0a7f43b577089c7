"""The general distribution: any room, any pair, any source, and what spoils recordings, as its `Law` says.

Scenes are drawn in arrays, a row each, so that thousands cost little more than one; every row is a pure function of
(law, seed, index). A quantity is one column of one named stream. A new one takes a free column or a new stream, and
moves nothing that was drawn before it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.lab.rooms.degradations import TILT_CENTRE, Degradations
from qkgcc.lab.rooms.draws import normal, stream, uniform
from qkgcc.lab.rooms.shoebox import sabine_many
from qkgcc.lab.scenes import placement
from qkgcc.lab.scenes.catalog import Catalog
from qkgcc.lab.scenes.law import GENERAL, Law, between, log_between
from qkgcc.lab.scenes.scenes import MAX_MICROPHONES, MAX_SOURCES, Scene, Source
from qkgcc.lab.scenes.sources import SECONDS, draw_sources

STEP = 0.005
"""Metres between the points of a path: at most a quarter of a sample of delay at 16 kHz. Half-way between two of them
both sound at once, and coarser steps would comb the high frequencies out: this one costs 0.5 dB at 7 kHz."""
TELEPHONE = (300.0, 3400.0)
RESAMPLED = (0.0, 3800.0)
"""What an 8 kHz recording holds, with the transition band of its filter taken off."""

_COLUMNS = np.arange(16)  # of a stream
_OF_MICROPHONES = np.arange(4 * MAX_MICROPHONES)  # gain, tilt, peak and its frequency of each

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Scenes:
    """B scenes with M microphones and up to 3 sources each, as arrays. The truth is the delay of the first source."""

    seed: int
    index: npt.NDArray[np.int64]
    room: Floats
    """(B, 3) metres."""
    t60: Floats
    """(B,) seconds."""
    nominal: Floats
    """(B, M, 3) metres: where the microphones are believed to be."""
    position_error: Floats
    """(B, M, 3) metres: where they truly are, less that."""
    signal: npt.NDArray[np.object_]
    """(B, 3) ids, empty where there is no further source; so below."""
    start: Floats
    """(B, 3) where in its signal each source begins, 0 to 1."""
    interference: Floats
    """(B, 3) dB against the first source."""
    first: Floats
    """(B, 3, 3) metres: sources, coordinates; where each is at time 0."""
    last: Floats
    """(B, 3, 3) metres: where it is after `SECONDS`."""
    snr: Floats
    diffuse: Bools
    slope: Floats
    """(B,) dB per octave."""
    gain: Floats
    """(B, M) dB, and so the three below."""
    tilt: Floats
    peak: Floats
    peak_frequency: Floats
    clipped: Floats
    """(B,) share."""
    band: Floats
    """(B, 2) Hz."""
    level: Floats
    """(B,) dB of full scale."""

    @property
    def microphones(self) -> Floats:
        """(B, M, 3) metres: where they truly are."""
        return self.nominal + self.position_error

    def __len__(self) -> int:
        return len(self.index)

    def replaced(self, rows: Bools, others: "Scenes") -> "Scenes":
        """With some of the scenes from others of as many. Shape: (B,)"""
        names = [field.name for field in dataclasses.fields(self) if field.name != "seed"]
        columns = {name: getattr(self, name).copy() for name in names}
        for name in names:
            columns[name][rows] = getattr(others, name)[rows]
        return dataclasses.replace(self, **columns)

    def scene(self, i: int) -> Scene:
        """One row as a scene."""
        sources = tuple(self._source(i, s) for s in range(MAX_SOURCES) if self.signal[i, s])
        return Scene(
            room=self.room[i],
            t60=float(self.t60[i]),
            microphones=self.nominal[i] + self.position_error[i],
            sources=sources,
            snr=float(self.snr[i]),
            noise="diffuse" if self.diffuse[i] else "independent",
            noise_slope=float(self.slope[i]),
            degradations=Degradations(
                gain=self.gain[i],
                tilt=self.tilt[i],
                peak=self.peak[i],
                peak_frequency=self.peak_frequency[i],
                position_error=self.position_error[i],
                clipped=float(self.clipped[i]),
                band=(float(self.band[i, 0]), float(self.band[i, 1])),
                level=float(self.level[i]),
            ),
            seed=stream(f"general/noise-seed/{self.index[i]}", self.seed),
        )

    def _source(self, i: int, s: int) -> Source:
        first, last = self.first[i, s], self.last[i, s]
        points = 1 + int(np.ceil(np.linalg.norm(last - first) / STEP))
        return Source(
            signal=self.signal[i, s],
            path=np.linspace(first, last, points),
            times=np.linspace(0, SECONDS, points),
            level=float(self.interference[i, s]),
            start=float(self.start[i, s]),
        )


def general_scene(seed: int, index: int, catalog: Catalog, *, microphones: int = 2, law: Law = GENERAL) -> Scene:
    """One scene of the distribution."""
    return general_scenes(seed, index, catalog, microphones=microphones, law=law).scene(0)


def general_scenes(
    seed: int, index: npt.ArrayLike, catalog: Catalog, *, microphones: int = 2, law: Law = GENERAL
) -> Scenes:
    """The scenes of the given indices, in arrays."""
    if not 2 <= microphones <= MAX_MICROPHONES:
        raise InputError(f"{microphones} microphones; expected 2 to {MAX_MICROPHONES}")
    number = np.atleast_1d(np.asarray(index, dtype=np.int64))

    def draw(name: str, rows: Any = slice(None), columns: npt.NDArray[np.int64] = _COLUMNS) -> Floats:
        values: Floats = uniform(f"general/{name}", seed, number[rows, None] * len(columns) + columns)
        return values

    numbers = draw("room")
    smallest, largest = np.transpose([law.width, law.depth, law.height])
    room = between((smallest, largest), numbers[:, :3])
    array = draw("array")
    spacing = log_between(law.spacing, array[:, 5])
    if microphones == 2:
        nominal = placement.place_pairs(room, spacing, array)
    else:
        others = np.stack([draw(f"microphone/{m}")[:, :3] for m in range(2, microphones)], axis=1)
        nominal = placement.place_arrays(room, spacing, array, others)

    noise = draw("noise")
    coloured = noise[:, 2] < law.coloured
    recorder = draw("recorder")
    unequal = draw("unequal")
    gains, responses, misplaced = (
        unequal[:, i, None] < p for i, p in enumerate((law.unequal_gains, law.unequal_responses, law.misplaced))
    )
    each = draw("microphones", columns=_OF_MICROPHONES).reshape(-1, 4, MAX_MICROPHONES)[..., :microphones]
    errors = normal(
        stream("general/position-error", seed),
        (number[:, None, None] * MAX_MICROPHONES + np.arange(microphones)[:, None]) * 3 + np.arange(3),
    )
    return Scenes(
        seed=seed,
        index=number,
        room=room,
        t60=np.where(numbers[:, 3] < law.dry, 0.0, _possible_t60(law, room, numbers[:, 4])),
        nominal=nominal,
        position_error=np.where(misplaced[..., None], law.position_error * errors.astype(np.float64), 0.0),
        **draw_sources(law, catalog, room, nominal, draw),
        snr=between(law.snr, noise[:, 0]),
        diffuse=noise[:, 1] < law.diffuse,
        slope=np.where(coloured, between(law.slope, noise[:, 3]), 0.0),
        gain=np.where(gains, between(law.gain, each[:, 0]), 0.0),
        tilt=np.where(responses, between(law.tilt, each[:, 1]), 0.0),
        peak=np.where(responses, between(law.peak, each[:, 2]), 0.0),
        peak_frequency=np.where(responses, log_between(law.peak_frequency, each[:, 3]), TILT_CENTRE),
        clipped=np.where(recorder[:, 0] < law.clipping, log_between(law.clipped, recorder[:, 1]), 0.0),
        band=_bands(law, recorder[:, 2:5]),
        level=between(law.level, recorder[:, 5]),
    )


def _possible_t60(law: Law, room: Floats, number: Floats) -> Floats:
    """Uniform over the times that each room can have: what redrawing the impossible ones comes to, in one draw."""
    low, high = law.t60
    # Sabine's absorption goes with 1 / T60, and is 1 at the shortest.
    shortest = sabine_many(np.full(len(room), high), room)[0] * high * (1 + 1e-9)
    times: Floats = between((np.maximum(low, shortest), high), number)
    return times


def _bands(law: Law, numbers: Floats) -> Floats:
    """Lowest and highest frequency. Shape: (B, 3) -> (B, 2)."""
    bands = np.tile([0.0, np.inf], (len(numbers), 1))
    kind = np.searchsorted(np.cumsum([law.telephone, law.resampled, law.narrow]), numbers[:, 0], side="right")
    bands[kind == 0] = TELEPHONE
    bands[kind == 1] = RESAMPLED
    drawn = np.stack([log_between(law.low_cut, numbers[:, 1]), log_between(law.high_cut, numbers[:, 2])], axis=1)
    return np.where((kind == 2)[:, None], drawn, bands)
