"""Recordings that come with the package, and their truth: synthetic talkers in a simulated reverberant room.

`talkers-2ch` is a pair of microphones 0.5 m apart with six talkers one after the other, `talkers-4ch` a small irregular
array of four in the same room with two of them. `tools/make_samples.py` made both. Delays are positive when the first
microphone of the pair hears the source later.
"""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkgcc.core.checks import short_repr
from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats

NAMES = ("talkers-2ch", "talkers-4ch")


def path(name: str) -> Path:
    """Where the audio of a bundled recording lies.

    >>> path("talkers-2ch").name
    'talkers-2ch.flac'
    """
    return _file(name, "flac")


def truth(name: str) -> dict[str, Any]:
    """The truth of a bundled recording: room, microphones, and who speaks when, where and with which delay.

    >>> [segment["voice"] for segment in truth("talkers-4ch")["segments"]]
    ['en-gb-scotland+m3', 'en-us+f2']
    """
    content: dict[str, Any] = json.loads(_file(name, "json").read_text(encoding="utf-8"))
    return content


def truth_at(times: ArrayLike, name: str) -> Floats:
    """True delay in samples between channels 0 and 1 at the given times in seconds, NaN where nobody speaks.

    Shape: the shape of `times`.

    >>> truth_at([0.0, 1.0], "talkers-2ch").round(1)
    array([ nan, 16.3])
    """
    when = np.asarray(times, dtype=np.float64)
    delays = np.full(when.shape, np.nan)
    for segment in truth(name)["segments"]:
        delays[(when >= segment["start"]) & (when < segment["end"])] = segment["delay_samples"]
    return delays


def _file(name: str, kind: str) -> Path:
    if not isinstance(name, str) or name not in NAMES:
        raise InputError(f"no bundled recording is called {short_repr(name)}; there are {' and '.join(NAMES)}")
    return Path(str(files(__name__).joinpath(f"{name}.{kind}")))
