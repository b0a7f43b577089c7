"""Fingerprints of rendered frames: bit-equality by hash, and the size of a difference by random projections.

The mean square of a random +-1 projection is the squared norm of what is projected. So four numbers a row (an utterance
or a scene) tell how far another rendering is off, without the frames themselves.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.lab.rooms.draws import uniform

TOLERANCE = 1e-3
"""Largest difference of another machine's rendering, relative to the level, before it is another benchmark."""

_PROJECTIONS = 4

Floats = npt.NDArray[np.float64]


def fingerprint(frames: npt.NDArray[np.int16], rows: int) -> dict[str, str]:
    """SHA-256 of frames that belong to `rows` rows, and their projections in base64."""
    return {
        "sha256": sha256(frames),
        "projections": base64.b64encode(_project(frames, rows).astype("<f4").tobytes()).decode(),
    }


def sha256(frames: npt.NDArray[np.int16]) -> str:
    """Of the samples, whatever the machine's order of bytes."""
    return hashlib.sha256(np.ascontiguousarray(frames, dtype="<i2").data).hexdigest()


def difference(frames: npt.NDArray[np.int16], expected: dict[str, str], rows: Sequence[int] | None = None) -> float:
    """Level of the difference to what was fingerprinted, relative to the frames' own, of the worst row.

    An estimate from four projections: right within a factor of two, nearly always.

    Args:
        rows: which rows of the fingerprint these frames are; None: all of them.
    """
    then = np.frombuffer(base64.b64decode(expected["projections"]), dtype="<f4").reshape(-1, _PROJECTIONS)
    then = then if rows is None else then[list(rows)]
    off = np.sqrt(np.mean((_project(frames, len(then)) - then) ** 2, axis=1))
    level = np.linalg.norm(frames.reshape(len(then), -1).astype(np.float64), axis=1)
    return float((off / np.maximum(level, 1)).max())


def check(frames: npt.NDArray[np.int16], expected: dict[str, str], name: str, rows: Any = None) -> float:
    """0 if the frames are bit for bit those fingerprinted, else how far off they are; too far is an `InputError`."""
    if rows is None and sha256(frames) == expected["sha256"]:
        return 0.0
    off = difference(frames, expected, rows)
    if off > TOLERANCE:
        raise InputError(
            f"{name}: rendered here, it differs from the benchmark by {off:.1e} of its level (allowed: {TOLERANCE:g}); "
            "results on it could not be compared. Please report this with your versions of numpy, scipy and numba"
        )
    return off


def _project(frames: npt.NDArray[np.int16], rows: int) -> Floats:
    """Random +-1 projections of each row's frames. Shape: (frames, 2, n) -> (rows, 4)."""
    flat = frames.reshape(rows, -1)
    signs = _signs(flat.shape[1])
    return np.concatenate([row.astype(np.float64)[None] @ signs for row in flat])


@lru_cache(maxsize=4)
def _signs(size: int) -> Floats:
    drawn = uniform("benchmark/projection", 0, np.arange(size * _PROJECTIONS))
    return np.where(drawn < 0.5, -1.0, 1.0).reshape(size, _PROJECTIONS)
