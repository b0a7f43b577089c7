"""Time delay between two microphones: every classical weighting and QK-GCC behind one estimator.

>>> from qkgcc import DelayEstimator, samples
>>> answer = DelayEstimator("phat")(samples.path("talkers-2ch"), start=0.3, end=2.0)
>>> abs(answer.summary.delay_samples - 16.3) < 0.5
True
"""

from importlib import import_module

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

_MODULES = {
    "METHODS": "network.registry",
    "DelayEstimate": "delay.result",
    "DelayEstimator": "delay.estimator",
    "DelayStream": "delay.stream",
    "DelaySummary": "delay.result",
    "InputError": "core.errors",
    "MissingExtraError": "core.errors",
    "Recording": "audio.recording",
    "open_audio": "audio.recording",
}


def __getattr__(name: str) -> "Any":
    """Names are imported when they are asked for: the command line has to catch Ctrl-C before NumPy is imported."""
    if name in _MODULES:
        value = getattr(import_module(f"qkgcc.{_MODULES[name]}"), name)
    elif name == "samples":
        value = import_module("qkgcc.samples")
    elif name == "__version__":
        value = import_module("importlib.metadata").version("qkgcc")
    else:
        raise AttributeError(f"module 'qkgcc' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
