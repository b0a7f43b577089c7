"""Microphones on their places: `measure_moments` takes delays of a walk around an array, `refine` fits the places."""

from qkgcc.selfcal.observability import Unsolved
from qkgcc.selfcal.places import Moments, Refined, measure_moments, refine

__all__ = ["Moments", "Refined", "Unsolved", "measure_moments", "refine"]
