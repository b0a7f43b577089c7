"""Sources that move, each with an id."""

from qkgcc.core.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qkgcc.tracks.motion import Motion
    from qkgcc.tracks.paths import find_tracks
    from qkgcc.tracks.tracker import Track, Tracker, Trajectory, smooth

__all__ = ["Motion", "Track", "Tracker", "Trajectory", "find_tracks", "smooth"]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "Motion": "qkgcc.tracks.motion",
        "Track": "qkgcc.tracks.tracker",
        "Tracker": "qkgcc.tracks.tracker",
        "Trajectory": "qkgcc.tracks.tracker",
        "find_tracks": "qkgcc.tracks.paths",
        "smooth": "qkgcc.tracks.tracker",
    },
)
