"""The CPU engine: images added up by a compiled kernel, one response a thread at a time.

No fast-math and one fixed order of summation, so that the same machine gives the same bits whatever the thread count.
"""

from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from typing import Any

import numba
import numpy as np

from qkgcc.core.types import Floats
from qkgcc.lab.rooms.shoebox import OVERSAMPLING, TAPS, from_histogram, transform_length


def responses(
    room: Floats,
    reflection: float,
    order: int,
    sources: Floats,
    microphones: Floats,
    *,
    samples: int,
    sample_rate: int,
    speed_of_sound: float,
    jobs: int | None = None,
) -> Floats:
    """Responses of every source at every microphone of one room; images that arrive after `samples` are left out.

    Shape: sources (S, 3), microphones (M, 3) -> (S, M, samples)
    """
    # Copies: the kernel is compiled once, not once more for every combination of arrays that cannot be written to.
    room, sources, microphones = (np.array(places, dtype=np.float64) for places in (room, sources, microphones))
    length = transform_length(samples, sample_rate)
    cells = OVERSAMPLING * sample_rate / speed_of_sound
    reach = samples * speed_of_sound / sample_rate

    def one(pair: tuple[int, int]) -> Floats:
        histogram = np.zeros(OVERSAMPLING * length + TAPS)
        _add_images(histogram, room, sources[pair[0]], microphones[pair[1]], order, reflection, cells, reach)
        response: Floats = from_histogram(histogram[:-TAPS], samples, sample_rate)
        return response

    pairs = [(s, m) for s in range(len(sources)) for m in range(len(microphones))]
    if jobs == 1:  # whoever renders scenes side by side: a pool of one thread would only cost its start
        result = np.stack([one(pair) for pair in pairs])
    else:
        with ThreadPoolExecutor(jobs or cpu_count()) as pool:
            result = np.stack(list(pool.map(one, pairs)))
    return result.reshape(len(sources), len(microphones), samples)


@numba.njit(nogil=True, cache=True)
def _add_images(
    histogram: Any, room: Any, source: Any, microphone: Any, order: int, reflection: float, cells: float, reach: float
) -> None:
    """Spread every image at most `reach` metres away over four cells; `cells` are cells of time per metre."""
    span = 2 * order + 1
    squares = np.empty((3, span))  # of the path's components, by axis and image number
    # Images lie in a row along each axis, so those within reach of it are a range. An early response of a reverberant
    # room would else pass most of its time on images that it leaves out.
    begin, end = np.full(3, span), np.zeros(3, np.int64)
    for axis in range(3):
        for i in range(span):
            n = i - order
            place = n * room[axis] + (source[axis] if n % 2 == 0 else room[axis] - source[axis])
            squares[axis, i] = (place - microphone[axis]) ** 2
            if squares[axis, i] <= reach * reach:
                begin[axis] = min(begin[axis], i)
                end[axis] = i + 1
    power = np.empty(order + 1)
    power[0] = 1.0
    for n in range(order):
        power[n + 1] = power[n] * reflection
    cell = np.empty(span, np.int64)
    weight = np.empty((TAPS, span))
    for i in range(begin[0], end[0]):
        for j in range(begin[1], end[1]):
            bounces = abs(i - order) + abs(j - order)
            across = squares[0, i] + squares[1, j]
            if bounces > order or across > reach * reach:
                continue
            first, last = max(bounces, begin[2]), min(2 * order - bounces + 1, end[2])
            while first < last and across + squares[2, first] > reach * reach:
                first += 1
            while last > first and across + squares[2, last - 1] > reach * reach:
                last -= 1
            # Two loops: the arithmetic of a row of images is done in vector registers, the additions one by one.
            for k in range(first, last):
                path = np.sqrt(across + squares[2, k])
                amplitude = power[bounces + abs(k - order)] / (6 * path)
                time = path * cells
                cell[k] = np.int64(time)
                f = time - cell[k]
                g = 1 - f
                weight[0, k] = amplitude * g * g * g
                weight[1, k] = amplitude * (4 - f * f * (6 - 3 * f))
                weight[2, k] = amplitude * (4 - g * g * (6 - 3 * g))
                weight[3, k] = amplitude * f * f * f
            for k in range(first, last):
                at = cell[k]
                histogram[at] += weight[0, k]
                histogram[at + 1] += weight[1, k]
                histogram[at + 2] += weight[2, k]
                histogram[at + 3] += weight[3, k]
