"""Shoebox rooms: what a reverberation time means for the walls, and how many image sources that takes.

Sabine's formula with the image method overshoots: a room asked for T60 = 1.0 s measures about 1.3 s. It is kept,
because the published benchmark is made that way; `qkgcc simulate --show` draws the asked and the measured decay.
"""

import itertools
import math

import numpy as np
import numpy.typing as npt

from qkgcc.constants import SPEED_OF_SOUND
from qkgcc.errors import InputError


def sabine(t60: float, room: npt.ArrayLike, speed_of_sound: float = SPEED_OF_SOUND) -> tuple[float, int]:
    """Energy absorption of the walls and order of the images for a reverberation time, by Sabine's formula.

    The order is the smallest whose images fill a ball of radius c T60 around the room. A T60 of 0 is an open field:
    all energy absorbed, no images but the source itself.

    >>> absorption, order = sabine(0.6, (7, 5, 3))
    >>> round(absorption, 3), order
    (0.199, 80)
    """
    sides = np.asarray(room, dtype=np.float64)
    if sides.shape != (3,) or not (sides > 0).all():
        raise InputError(f"a room has three sides in metres, all positive; got {sides}")
    if t60 == 0:
        return 1.0, 0
    if not t60 > 0:
        raise InputError(f"T60 is {t60:g} s; expected 0 or more")
    pairs = list(itertools.combinations(sides.tolist(), 2))
    surface = 2 * sum(a * b for a, b in pairs)
    absorption = 24 * math.log(10) * float(np.prod(sides)) / (speed_of_sound * surface * t60)
    if absorption > 1:
        raise InputError(
            f"a room of {' x '.join(f'{s:g}' for s in sides)} m cannot have a T60 of {t60:g} s: its walls would absorb "
            f"{absorption:.2f} of the energy; the shortest it can have is {absorption * t60:.2f} s"
        )
    thinnest = min(a * b / math.hypot(a, b) for a, b in pairs)
    return absorption, math.ceil(speed_of_sound * t60 / thinnest - 1)


def count_images(order: int) -> int:
    """Images with |nx| + |ny| + |nz| <= order.

    >>> count_images(1)
    7
    """
    return (4 * order**3 + 6 * order**2 + 8 * order + 3) // 3


def response_length(room: npt.ArrayLike, order: int, sample_rate: int, speed_of_sound: float = SPEED_OF_SOUND) -> int:
    """Samples that hold every image of a source anywhere in the room, heard anywhere in it."""
    sides = np.asarray(room, dtype=np.float64)
    furthest = order * float(sides.max()) + float(np.linalg.norm(sides))
    return math.ceil(furthest / speed_of_sound * sample_rate) + 1
