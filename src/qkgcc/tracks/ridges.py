"""Ridges of talkers in rooms: on a line of microphones a talker is a ridge from its angle towards broadside.

A line measures x = cos(cone). Reflections of walls, floor and ceiling come from everywhere: directions evenly over the
sphere, and thus, by Archimedes, an x' evenly from -1 to 1. A frame holds both the talker at c and its reflections, and
a pair of microphones answers with something between them, x = c + u (x' - c). With u evenly from 0 to 1, that is

    p(x | c) = 1/2 log((1 + c) / (c - x)) below c,    1/2 log((1 - c) / (x - c)) above it:

highest at the talker; for a talker near the end of the line, where c is nearly 1, all of it is on one side. Histograms
of frames look like that, without a number that was fitted. Rooms are no spheres, however: between floor and ceiling,
and between walls along the line, sound goes to and fro at right angles to the line, and what remains when the talker
pauses comes from broadside. That is a part of the ridge, too (`Tuning.broadside`).

A method that takes such a ridge for a bell around the talker answers too near to broadside, and finds further talkers
along the ridge. A circle has no ridges: its reflections come evenly from all azimuths.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from qkgcc.core.types import Floats


@dataclass(frozen=True)
class Tuning:
    """Constants of the ridges, for a T60 of 0.3 to 0.8 s and voices of dev-clean."""

    reflected: float = 0.8
    """Share of a talker's frames that is spread as a ridge, the rest being a bell around the talker: among the best of
    0.3 to 0.95."""
    broadside: float = 0.2
    """Share of the reflections that comes from broadside: floor, ceiling, walls along the line."""
    broadside_width: float = 7.0
    """Degrees: standard deviation of that."""
    talker_width: float = 2.0
    """Degrees: standard deviation of the bell around the talker."""
    sharpness: float = 8.0
    """Exponent of frames, see `sharpen`: with less, talkers in the open near the end of a line are found at its end."""
    rounds: int = 30
    """Of `deconvolve_ridges`: more of them find peaks in noise."""


TUNING = Tuning()


@functools.lru_cache(maxsize=4)
def reflection_ridges(count: int) -> Floats:
    """How probable each angle is for talkers at each: columns that sum to 1. Shape: -> (count angles, count talkers)

    Args:
        count: of angles to the line, evenly from 0 to 180 degrees.

    >>> near_the_end = reflection_ridges(181)[:, 20]
    >>> [round(float(part.sum()), 2) for part in np.split(near_the_end, [20, 80, 100])]
    [0.02, 0.61, 0.27, 0.1]
    """
    step = 180 / (count - 1)
    edges = np.cos(np.radians(np.clip(step * (np.arange(count + 1) - 0.5), 0, 180)))[:, None]
    talker = np.cos(np.radians(step * np.arange(count)))
    below = 1 + talker - _log_integral(np.clip(talker - edges, 0, None), 1 + talker)
    above = _log_integral(np.clip(edges - talker, 0, None), 1 - talker)
    inside = -np.diff((below + above) / 2, axis=0)
    bell = np.exp(-0.5 * ((step * np.arange(count) - 90) / TUNING.broadside_width) ** 2)[:, None]
    made: Floats = (1 - TUNING.broadside) * inside / inside.sum(axis=0) + TUNING.broadside * bell / bell.sum()
    made.flags.writeable = False
    return made


def _log_integral(reach: Floats, most: Floats) -> Floats:
    """The integral of log(most / r) over r from 0 to `reach`."""
    return np.asarray(reach * (1 + np.log(np.maximum(most, 1e-12) / np.maximum(reach, 1e-12))))


@functools.lru_cache(maxsize=4)
def talker_ridges(count: int) -> Floats:
    """What the frames of talkers at each angle say, the talker's own among them. Shape: -> (angles, talkers)"""
    made: Floats = (1 - TUNING.reflected) * _bells(count) + TUNING.reflected * reflection_ridges(count)
    made.flags.writeable = False
    return made


@functools.lru_cache(maxsize=4)
def _bells(count: int) -> Floats:
    angles = np.linspace(0, 180, count)
    bells = np.exp(-0.5 * ((angles[:, None] - angles) / TUNING.talker_width) ** 2)
    return np.asarray(bells / bells.sum(axis=0))


def sharpen(frames: Floats) -> Floats:
    """Frames that say little more than where their peak is: a frame is wider towards the ends of a line, where a delay
    changes little with the angle, and would be taken for the ridge of a talker at the very end. Shape: (T, C) -> same
    """
    sharp = (frames / np.maximum(frames.max(axis=-1, keepdims=True), 1e-300)) ** TUNING.sharpness
    return np.asarray(sharp / sharp.sum(axis=-1, keepdims=True))


def deconvolve_ridges(histogram: Floats) -> Floats:
    """Talkers at each angle whose ridges, added up, are most like a histogram of sharpened frames: Richardson's and
    Lucy's iteration, some rounds of it, smeared again. Shape: (count,) -> same

    W. H. Richardson, "Bayesian-based iterative method of image restoration", J. Opt. Soc. Am. 62(1), 1972.
    """
    made = talker_ridges(len(histogram))
    talkers = np.full(len(histogram), 1 / len(histogram))
    for _ in range(TUNING.rounds):
        talkers = talkers * (made.T @ (histogram / np.maximum(made @ talkers, 1e-12)))
    return np.asarray(_bells(len(histogram)) @ talkers)
