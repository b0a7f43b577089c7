"""Directions that sound the same to some microphones.

| microphones | what sounds the same                                                                  |
|-------------|---------------------------------------------------------------------------------------|
| on a line   | a cone around it; the one of it on the other side, as high, stands for all of them    |
| in a plane  | the mirror image behind the plane                                                     |
| in space    | nothing                                                                               |

The microphones that count are those that live: a square of which two are dead is a line. And of these, the pairs that
were chosen: delays tell a far direction along the baselines of pairs only, so that one pair of a square is a line, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qkgcc.arrays.geometry import Geometry, indistinguishable, spanned_dimensions
from qkgcc.arrays.steering import Pairs
from qkgcc.core.types import Floats
from qkgcc.tracks.motion import azimuth_elevation
from qkgcc.tracks.segments import Angles

MAX_AMBIGUOUS_CONFIDENCE = 0.5
"""Of each of two directions that nothing tells apart."""


@dataclass(frozen=True, eq=False)
class Ambiguity:
    """Which directions some microphones cannot tell apart."""

    dimensions: int
    """1: they are on a line, 2: in a plane, 3: in space."""
    axis: Floats | None
    """(3,) along a line, from its first microphone on; across a plane, upwards or else to the front; None in space."""
    max_confidence: float = 1.0
    """`MAX_AMBIGUOUS_CONFIDENCE` where the whole array would tell two directions apart that these do not."""
    subject: str = "the microphones"
    """What lies on a line, or in a plane."""

    @classmethod
    def of(cls, geometry: Geometry, pairs: Pairs | None = None) -> Ambiguity:
        """Of all microphones, or of the baselines of some pairs; a line of these leads as their first pair does."""
        places, all_of_them = geometry.microphones, geometry.dimensions
        whole = cls(all_of_them, _axis(places - places.mean(axis=0), all_of_them, places[-1] - places[0]))
        if pairs is None:
            return whole
        lower, higher = np.sort(np.array(pairs), axis=1).T
        baselines = places[higher] - places[lower]
        dimensions = spanned_dimensions(baselines)
        if dimensions >= all_of_them:
            return whole
        return cls(
            dimensions, _axis(baselines, dimensions, baselines[0]), MAX_AMBIGUOUS_CONFIDENCE, "the pairs that count"
        )

    @property
    def cannot_tell(self) -> str | None:
        """Which directions sound the same; None: all differ."""
        return indistinguishable(self.dimensions, self.subject)

    def mirrors(self, direction: Floats) -> list[Floats]:
        """Other directions that sound the same: one behind the plane, or of a line the one on the other side of it.

        (A line's are a whole cone; that one is as high as the one given.)
        """
        if self.axis is None:
            return []
        along = (direction @ self.axis) * self.axis
        return [2 * along - direction if self.dimensions == 1 else direction - 2 * along]

    def cone(self, direction: Floats) -> float | None:
        """Degrees between a direction and the line of the microphones; None of others."""
        if self.dimensions > 1 or self.axis is None:
            return None
        across = np.linalg.norm(np.cross(direction, self.axis))
        return float(np.degrees(np.arctan2(across, direction @ self.axis)))

    def front_representative(self, direction: Floats) -> Floats:
        """Of a line: the direction on the cone that is as far to the front as can be, on the same side of the line."""
        assert self.axis is not None
        along = float(direction @ self.axis)
        across = np.sqrt(max(0.0, 1 - along**2)) * front_perpendicular(self.axis)
        return np.asarray(along * self.axis + (across if direction @ across >= 0 else -across))

    def angles(self, direction: Floats, *, rising: bool) -> Angles:
        """Of a direction that is followed.

        Args:
            rising: whether its elevation is followed, too.
        """
        azimuth, up = map(float, azimuth_elevation(direction))
        elevation = up if rising and self.dimensions > 1 else None
        for mirror in self.mirrors(direction):
            other, lower = map(float, azimuth_elevation(mirror))
            # Of a level array the mirror image of what is followed in its plane is itself.
            if elevation is not None or abs((other - azimuth + 180) % 360 - 180) > 1e-3:
                return Angles(azimuth, elevation, self.cone(direction), other, None if elevation is None else lower)
        return Angles(azimuth, elevation, self.cone(direction))


IN_SPACE = Ambiguity(3, None)


def front_perpendicular(axis: Floats) -> Floats:
    """A unit vector across a line: towards the front, or to the left of a line that leads to the front."""
    across = np.eye(3)[0] if abs(axis[0]) < 0.9 else np.eye(3)[1]
    across = across - (across @ axis) * axis
    return np.asarray(across / np.linalg.norm(across))


def _axis(vectors: Floats, dimensions: int, leading: Floats) -> Floats | None:
    """Along a line, to where one of its vectors leads; across a plane, upwards or else to the front; None in space."""
    if dimensions == 3:
        return None
    _, _, axes = np.linalg.svd(vectors)
    if dimensions == 1:
        return np.asarray(axes[0] if leading @ axes[0] > 0 else -axes[0])
    axis = np.where(np.abs(axes[2]) < 1e-9, 0.0, axes[2])
    upwards = axis[2] if abs(axis[2]) > 0.1 else axis[0] if abs(axis[0]) > 0.1 else axis[1]
    return np.asarray(axis if upwards > 0 else -axis)
