"""Random numbers that are a pure function of (what is drawn, seed, index), the same in NumPy and torch.

Every quantity has a stream of its own, named by a text, so that a new one never moves the others, and any scene of a
set can be drawn without drawing those before it. The generator is splitmix64 over a counter: 64-bit integer arithmetic,
identical on every machine and device.

>>> uniform("t60", seed=7, index=[3, 4]).round(6)
array([0.169187, 0.425284])
>>> uniform("t60", seed=7, index=4).round(6)
np.float64(0.425284)
"""

import hashlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from array_api_compat import array_namespace

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def stream(name: str, seed: int) -> int:
    """The key of a stream: 63 bits of a hash of its name and seed."""
    digest = hashlib.sha256(f"{name}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def uniform(name: str, seed: int, index: npt.ArrayLike) -> Any:
    """Numbers in [0, 1), one for each index. Shape: any -> the same."""
    counter = np.asarray(index, dtype=np.int64)
    return _fraction(np, _mix(np.atleast_1d(counter) + np.int64(stream(name, seed)))).reshape(counter.shape)[()]


def normal(key: int, counters: Any) -> Any:
    """Standard normal numbers in float32, one for each counter of the stream `key`; NumPy or torch.

    Box-Muller on two halves of one 64-bit number, so that a sample costs one hash.
    Shape: int64 of any shape -> float32 of the same
    """
    xp = array_namespace(counters)
    bits = _mix(counters + key)
    radius = xp.astype((bits >> 32) & 0xFFFFFFFF, xp.float64) + 0.5
    angle = xp.astype(bits & 0xFFFFFFFF, xp.float64)
    size = xp.sqrt(-2 * xp.log(radius / 2**32))
    return xp.astype(size * xp.cos(angle * (2 * math.pi / 2**32)), xp.float32)


def _mix(x: Any) -> Any:
    """splitmix64 of each counter, in wrapping signed arithmetic."""
    x = x * _GOLDEN
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def _shift(x: Any, bits: int) -> Any:
    """Logical shift to the right of signed numbers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _fraction(xp: Any, x: Any) -> Any:
    return xp.astype(_shift(x, 11), xp.float64) / 2**53
