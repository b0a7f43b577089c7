"""What the user said about the microphones, and which delays follow from it."""

from dataclasses import dataclass

from qkgcc.arrays import Geometry

PLAUSIBLE = 3.0
"""Metres that two microphones of one recording are apart at most, when nothing is known."""


@dataclass(frozen=True)
class Setup:
    """What the user said about the microphones."""

    spacing: float | None
    geometry: Geometry | None
    speed_of_sound: float

    def apart(self, first: int, second: int) -> float | None:
        """Metres between two microphones, or None."""
        return self.spacing if self.geometry is None else self.geometry.spacing(first, second)

    def reach(self) -> float:
        """Seconds of delay that are followed."""
        largest = self.spacing or 0.0 if self.geometry is None else self.geometry.aperture
        return max(PLAUSIBLE, 2 * largest) / self.speed_of_sound

    def offset_limit(self, first: int, second: int) -> float:
        """Seconds from which a delay is no matter of distances any more, but of recorders that started apart."""
        apart = self.apart(first, second)
        return PLAUSIBLE / self.speed_of_sound if apart is None else 4 * apart / self.speed_of_sound + 0.001
