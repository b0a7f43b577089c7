"""Sources that move, each with an id."""

from qkgcc.tracks.motion import Motion
from qkgcc.tracks.paths import find_tracks
from qkgcc.tracks.smoothing import Trajectory, smooth
from qkgcc.tracks.tracker import Track, Tracker

__all__ = ["Motion", "Track", "Tracker", "Trajectory", "find_tracks", "smooth"]
