"""Arrays of microphones.

Where they are: `geometry`, from files that say so (`files`) or by name (`presets`). What their pairs hear: `evidence`,
over lags, and `delays`, of places. Where sources are: `grids` of directions, `maps` over them, `directions` found.
"""

from qkgcc.arrays.files import read_geometry
from qkgcc.arrays.geometry import Geometry
from qkgcc.arrays.presets import array

__all__ = ["Geometry", "array", "read_geometry"]
