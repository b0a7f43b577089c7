"""The images of one room in plain NumPy, for machines without numba: the same sum as `qkgcc.lab.rooms.cpu`, slowly."""

from typing import Any

import numpy as np

from qkgcc.lab.rooms.shoebox import OVERSAMPLING, TAPS, from_histogram, transform_length


def responses(
    room: np.ndarray,
    reflection: float,
    order: int,
    sources: np.ndarray,
    microphones: np.ndarray,
    *,
    samples: int,
    sample_rate: int,
    speed_of_sound: float,
) -> Any:
    """Shape: (1, 3), (1, 3) -> (1, 1, samples)."""
    number = np.arange(-order, order + 1)
    places = number[:, None] * room + np.where(number[:, None] % 2 == 0, sources[0], room - sources[0])
    squares = (places - microphones[0]) ** 2
    histogram = np.zeros(OVERSAMPLING * transform_length(samples, sample_rate) + TAPS)
    for i in range(len(number)):
        bounces = abs(number[i]) + np.abs(number)[:, None] + np.abs(number)
        inside = bounces <= order
        path = np.sqrt(squares[i, 0] + squares[:, 1][:, None] + squares[:, 2])[inside]
        amplitude = reflection ** bounces[inside] / (6 * path)
        time = path * (OVERSAMPLING * sample_rate / speed_of_sound)
        cell = time.astype(np.int64)
        f = time - cell
        g = 1 - f
        for tap, weight in enumerate((g**3, 4 - f * f * (6 - 3 * f), 4 - g * g * (6 - 3 * g), f**3)):
            histogram += np.bincount(cell + tap, amplitude * weight, minlength=len(histogram))
    return from_histogram(histogram[:-TAPS], samples, sample_rate)[None, None]
