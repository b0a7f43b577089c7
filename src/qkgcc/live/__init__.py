"""Live sound: a `SoundCard`, or a file in real time (`Replay`), answered and recorded by a `Session`."""

from qkgcc.core.lazy import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from qkgcc.live.capture import Replay, SoundCard, devices
    from qkgcc.live.recorder import Recorder
    from qkgcc.live.session import Session

__all__ = ["Recorder", "Replay", "Session", "SoundCard", "devices"]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "Recorder": "qkgcc.live.recorder",
        "Replay": "qkgcc.live.capture",
        "Session": "qkgcc.live.session",
        "SoundCard": "qkgcc.live.capture",
        "devices": "qkgcc.live.capture",
    },
)
