"""Time delay between two microphones: every classical weighting and QK-GCC behind one estimator.

>>> from qkgcc import DelayEstimator, samples
>>> answer = DelayEstimator("phat")(samples.path("talkers-2ch"), start=0.3, end=2.0)
>>> abs(answer.summary.delay_samples - 16.3) < 0.5
True
"""

from importlib import import_module

from qkgcc.core.lazy import lazy_names

TYPE_CHECKING = False  # as type checkers know it: importing `typing` takes time in which Ctrl-C is a traceback
if TYPE_CHECKING:
    from typing import Any

    from qkgcc import samples
    from qkgcc.audio.recording import Recording, open_audio
    from qkgcc.core.errors import InputError, MissingExtraError
    from qkgcc.delay.estimator import DelayEstimator
    from qkgcc.delay.result import DelayEstimate, DelaySummary
    from qkgcc.delay.stream import DelayStream
    from qkgcc.network.registry import METHODS

    __version__: str

__all__ = [
    "METHODS",
    "DelayEstimate",
    "DelayEstimator",
    "DelayStream",
    "DelaySummary",
    "InputError",
    "MissingExtraError",
    "Recording",
    "open_audio",
    "samples",
]

_load, _names = lazy_names(
    globals(),
    {
        "METHODS": "qkgcc.network.registry",
        "DelayEstimate": "qkgcc.delay.result",
        "DelayEstimator": "qkgcc.delay.estimator",
        "DelayStream": "qkgcc.delay.stream",
        "DelaySummary": "qkgcc.delay.result",
        "InputError": "qkgcc.core.errors",
        "MissingExtraError": "qkgcc.core.errors",
        "Recording": "qkgcc.audio.recording",
        "open_audio": "qkgcc.audio.recording",
        "samples": "qkgcc.samples",
    },
)


def __getattr__(name: str) -> "Any":
    """Names are imported when they are asked for: the command line has to catch Ctrl-C before NumPy is imported."""
    return import_module("importlib.metadata").version("qkgcc") if name == "__version__" else _load(name)


def __dir__() -> list[str]:
    return [*_names(), "__version__"]
