"""Silence removal of the protocol: what is more than 20 dB under the loudest frame goes, the rest is joined.

Frames of 2048 samples every 512 are centred on their time, with zeros beyond both ends; a frame counts when its RMS is
above -20 dB of the largest one; a run of such frames t1..t2 keeps the samples 512 t1 to 512 (t2 + 1). This is what
`librosa.effects.split(y, top_db=20)` returns, without librosa.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkgcc.lab.corpora.utterances import FULL_SCALE

TOP_DB = 20.0
FRAME = 2048
HOP = 512
_FLOOR = 1e-10  # mean square that counts as 0 (RMS 1e-5 of full scale), as in librosa


def intervals(signal: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
    """First and last-plus-one sample of every part that is not silent; full scale is 1.

    Shape: (samples,) -> (parts, 2)

    >>> intervals(np.concatenate([np.zeros(8000), np.ones(2000), np.zeros(6000)])).tolist()
    [[7168, 11264]]
    """
    frames = 1 + len(signal) // HOP
    # A frame is four hops: the energy of each hop is summed once, and a frame adds up four of them.
    padded = np.zeros((frames + FRAME // HOP) * HOP)
    padded[FRAME // 2 : FRAME // 2 + len(signal)] = signal
    hops = np.square(padded).reshape(-1, HOP).sum(axis=1)
    power = np.convolve(hops, np.ones(FRAME // HOP), "valid")[:frames] / FRAME
    decibels = 10 * np.log10(np.maximum(power, _FLOOR))
    loud = decibels > decibels.max() - TOP_DB
    edges = np.flatnonzero(np.diff(loud, prepend=False, append=False)) * HOP
    return np.minimum(edges, len(signal)).reshape(-1, 2)


def remove_silence(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    """The parts that are not silent, one after the other. Shape: (samples,) -> (fewer samples,)"""
    parts = intervals(samples / FULL_SCALE)
    return np.concatenate([samples[first:last] for first, last in parts])
