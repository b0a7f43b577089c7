"""Arrays of microphones: where they are (`geometry`), from files that say so (`files`) or by name (`presets`)."""

from qkgcc.arrays.files import read_geometry
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.presets import array

__all__ = ["Geometry", "array", "read_geometry"]
