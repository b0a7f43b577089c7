"""What a line of microphones hears of a talker in a room: not one angle, but a ridge from there towards broadside.

A line hears x = cos(cone). What walls, floor and ceiling throw back comes from everywhere: directions evenly over the
sphere, and thus, by Archimedes, an x' evenly from -1 to 1. A frame holds both the talker at c and what is thrown back,
and a pair of microphones answers with something between them, x = c + u (x' - c). With u evenly from 0 to 1, that is

    p(x | c) = 1/2 log((1 + c) / (c - x)) below c,    1/2 log((1 - c) / (x - c)) above it:

highest at the talker, and of one near the end of the line, where c is nearly 1, all of it on one side. Histograms of
frames look like that, without a number that was fitted. Rooms are no spheres, however: between floor and ceiling, and
between walls along the line, sound goes to and fro at right angles to it, and what is left of it when the talker pauses
comes from broadside. That is a part of it, too (`BROADSIDE`).

Whoever takes such a ridge for a bell around the talker answers too near to broadside, and finds further talkers along
the ridge. Azimuths of a circle have none of that: what is thrown back comes evenly from all of them.
"""

from __future__ import annotations

import functools

import numpy as np

from qkgcc.core.types import Floats

REFLECTED = 0.8
"""How much of what frames say is spread so, the rest being a bell around the talker: among the best of 0.3 to 0.95 in
rooms with a T60 of 0.3 and 0.8 s and voices of dev-clean."""

BROADSIDE, AROUND = 0.2, 7.0
"""Of what is reflected, the share that comes from broadside, and degrees around it: floor, ceiling, walls along the
line."""
WIDTH = 2.0
"""Degrees: standard deviation of that bell."""
SHARPNESS = 8.0
"""Exponent of what frames say, see `sharpen`: with less, talkers in the open near the end of a line are answered at
the very end."""

_ROUNDS = 30  # of `deconvolve_ridges`: more of them find peaks in noise


@functools.lru_cache(maxsize=4)
def reflected(count: int) -> Floats:
    """How probable each angle is for talkers at each: columns that sum to 1. Shape: -> (count angles, count talkers)

    Args:
        count: of angles to the line, evenly from 0 to 180 degrees.

    >>> near_the_end = reflected(181)[:, 20]
    >>> [round(float(part.sum()), 2) for part in np.split(near_the_end, [20, 80, 100])]
    [0.02, 0.61, 0.27, 0.1]
    """
    step = 180 / (count - 1)
    edges = np.cos(np.radians(np.clip(step * (np.arange(count + 1) - 0.5), 0, 180)))[:, None]
    talker = np.cos(np.radians(step * np.arange(count)))
    below = 1 + talker - _left(np.clip(talker - edges, 0, None), 1 + talker)
    above = _left(np.clip(edges - talker, 0, None), 1 - talker)
    inside = -np.diff((below + above) / 2, axis=0)
    bell = np.exp(-0.5 * ((step * np.arange(count) - 90) / AROUND) ** 2)[:, None]
    made: Floats = (1 - BROADSIDE) * inside / inside.sum(axis=0) + BROADSIDE * bell / bell.sum()
    made.flags.writeable = False
    return made


def _left(reach: Floats, most: Floats) -> Floats:
    """The integral of log(most / r) over r from 0 to `reach`."""
    return np.asarray(reach * (1 + np.log(np.maximum(most, 1e-12) / np.maximum(reach, 1e-12))))


@functools.lru_cache(maxsize=4)
def ridges(count: int) -> Floats:
    """What the frames of talkers at each angle say, the talker's own among them. Shape: -> (angles, talkers)"""
    made: Floats = (1 - REFLECTED) * _bells(count) + REFLECTED * reflected(count)
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=4)
def _bells(count: int) -> Floats:
    angles = np.linspace(0, 180, count)
    bells = np.exp(-0.5 * ((angles[:, None] - angles) / WIDTH) ** 2)
    return np.asarray(bells / bells.sum(axis=0))


def sharpen(frames: Floats) -> Floats:
    """Frames that say little more than where their peak is: a frame is wider towards the ends of a line, where a delay
    changes little with the angle, and would be taken for the ridge of a talker at the very end. Shape: (T, C) -> same
    """
    sharp = (frames / np.maximum(frames.max(axis=-1, keepdims=True), 1e-300)) ** SHARPNESS
    return np.asarray(sharp / sharp.sum(axis=-1, keepdims=True))


def deconvolve_ridges(histogram: Floats) -> Floats:
    """Talkers at each angle whose ridges, added up, are most like a histogram of sharpened frames: Richardson's and
    Lucy's iteration, some rounds of it, smeared again. Shape: (count,) -> same

    W. H. Richardson, "Bayesian-based iterative method of image restoration", J. Opt. Soc. Am. 62(1), 1972.
    """
    made = ridges(len(histogram))
    talkers = np.full(len(histogram), 1 / len(histogram))
    for _ in range(_ROUNDS):
        talkers = talkers * (made.T @ (histogram / np.maximum(made @ talkers, 1e-12)))
    return np.asarray(_bells(len(histogram)) @ talkers)
