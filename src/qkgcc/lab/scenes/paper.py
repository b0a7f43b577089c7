"""The paper's distribution of training pairs and of test positions, drawn in arrays.

Every number is a pure function of (seed, index), so a batch can hold any indices in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qkgcc.core.types import SPEED_OF_SOUND, Floats
from qkgcc.lab.rooms import noise
from qkgcc.lab.rooms.degradations import frozen
from qkgcc.lab.rooms.draws import stream, uniform
from qkgcc.lab.scenes.scenes import Scene, Source

SAMPLE_RATE = 16000
FRAME = 2048
SECONDS = 2.0
"""Frames come from the first two seconds of an utterance."""
T60 = (0.2, 1.0)
SNR = (0.0, 30.0)

# Read-only: a scene, or whoever reads one, must not be able to change the protocol.
TRAIN_ROOM = frozen([7.0, 5.0, 3.0], 1)
TRAIN_MICROPHONES = frozen([[3.5, 2.25, 1.5], [3.5, 2.75, 1.5]], 2)
TEST_ROOM = frozen([6.0, 4.0, 2.5], 1)
TEST_MICROPHONES = frozen([[3.0, 1.75, 1.25], [3.0, 2.25, 1.25]], 2)


@dataclass(frozen=True)
class Pairs:
    """A batch of training pairs: one source, two microphones, one frame each. Shape: B pairs."""

    index: npt.NDArray[np.int64]
    source: Floats
    """(B, 3) metres."""
    t60: Floats
    snr: Floats
    utterance: npt.NDArray[np.int64]
    """(B,) number of the utterance in the bank's training split."""
    start: npt.NDArray[np.int64]
    """(B,) first sample of the frame."""
    noise: npt.NDArray[np.int64]
    """(B, 2) keys of the noise streams."""
    room: Floats = field(default_factory=lambda: TRAIN_ROOM)
    """(3,) metres."""
    microphones: Floats = field(default_factory=lambda: TRAIN_MICROPHONES)
    """(2, 3) metres."""

    def delay(self) -> Floats:
        """True delay in samples, positive = microphone 1 later."""
        return true_delay(self.source, self.microphones)


def training_pairs(
    seed: int,
    index: npt.ArrayLike,
    utterances: int,
    *,
    t60: tuple[float, float] = T60,
    snr: tuple[float, float] = SNR,
    room: Floats = TRAIN_ROOM,
    microphones: Floats = TRAIN_MICROPHONES,
) -> Pairs:
    """The pairs of the given indices: source uniform in the room, T60 (s) and SNR (dB) uniform in their ranges."""
    number = np.atleast_1d(np.asarray(index, dtype=np.int64))

    def draw(name: str) -> Floats:
        values: Floats = uniform(f"paper/{name}", seed, number)
        return values

    frames_fit = round(SECONDS * SAMPLE_RATE) - FRAME + 1
    return Pairs(
        index=number,
        source=np.stack([draw(f"source-{axis}") for axis in "xyz"], axis=1) * room,
        t60=t60[0] + (t60[1] - t60[0]) * draw("t60"),
        snr=snr[0] + (snr[1] - snr[0]) * draw("snr"),
        utterance=(draw("utterance") * utterances).astype(np.int64),
        start=(draw("start") * frames_fit).astype(np.int64),
        noise=np.array([noise.keys(noise_seed(seed, i), 2) for i in number.tolist()]),
        room=room,
        microphones=microphones,
    )


def training_scene(seed: int, index: int, ids: Sequence[str]) -> Scene:
    """One training pair as a scene, with its utterance from `ids`."""
    pair = training_pairs(seed, index, len(ids))
    source = Source(ids[int(pair.utterance[0])], pair.source[0])
    return Scene(
        TRAIN_ROOM, float(pair.t60[0]), TRAIN_MICROPHONES, (source,), float(pair.snr[0]), seed=noise_seed(seed, index)
    )


def noise_seed(seed: int, index: int) -> int:
    """Of the noise of a training pair."""
    return stream(f"paper/noise-seed/{index}", seed)


def true_delay(source: Floats, microphones: Floats) -> Floats:
    """Delay in samples between two microphones. Shape: (..., 3), (2, 3) -> (...)."""
    paths = np.linalg.norm(source[..., None, :] - microphones, axis=-1)
    return np.asarray((paths[..., 0] - paths[..., 1]) * SAMPLE_RATE / SPEED_OF_SOUND)
