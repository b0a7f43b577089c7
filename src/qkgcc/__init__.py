"""Time delay between two microphones: every classical weighting and QK-GCC behind one estimator.

>>> from qkgcc import DelayEstimator, samples
>>> answer = DelayEstimator("phat")(samples.path("talkers-2ch"), start=0.3, end=2.0)
>>> abs(answer.summary.delay_samples - 16.3) < 0.5
True
"""

from importlib.metadata import version

from qkgcc import samples
from qkgcc.audio import Recording, open_audio
from qkgcc.errors import InputError, MissingExtraError
from qkgcc.estimate import DelayEstimator
from qkgcc.methods import METHODS
from qkgcc.results import DelayEstimate, DelaySummary
from qkgcc.stream import DelayStream

__version__ = version("qkgcc")

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
