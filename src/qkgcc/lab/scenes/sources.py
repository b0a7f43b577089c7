"""What sounds in the scenes of the general distribution, and where: a first source, and interferers quieter than it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.lab.scenes.catalog import Catalog
from qkgcc.lab.scenes.law import KINDS, Law, between, log_between
from qkgcc.lab.scenes.placement import place_sources
from qkgcc.lab.scenes.scenes import MAX_SOURCES
from qkgcc.lab.scenes.signals import NUMBERS

SECONDS = 2.0
"""How long a source moves; then it rests."""

Floats = npt.NDArray[np.float64]
Draw = Callable[..., Floats]
"""From the name of a stream and, where not all, the rows to the numbers of its columns. Shape: (rows, columns)"""


def draw_sources(law: Law, catalog: Catalog, room: Floats, microphones: Floats, draw: Draw) -> dict[str, Any]:
    """The columns signal, start, interference, first and last of `general.Scenes`."""
    scenes = len(room)
    signal = np.full((scenes, MAX_SOURCES), "", dtype=object)
    start, interference = np.zeros((2, scenes, MAX_SOURCES))
    first, last = np.zeros((2, scenes, MAX_SOURCES, 3))
    crowd = draw("crowd")[:, 0]
    for s in range(MAX_SOURCES):
        share = (1.0, law.one_interferer + law.two_interferers, law.two_interferers)[s]
        rows = np.flatnonzero(crowd < share)
        if not len(rows):
            break
        numbers = draw(f"source/{s}", rows)
        talks = (numbers[:, 0] < law.talker) & (s > 0)
        signal[rows, s] = _signals(law, catalog, talks, numbers[:, 1:4])
        start[rows, s] = numbers[:, 4]
        interference[rows, s] = between(law.interference, numbers[:, 5]) if s else 0.0
        near, distance = numbers[:, 6] < law.near, log_between(law.distance, numbers[:, 7])
        travel = np.where(numbers[:, 8] < law.moving, SECONDS * between(law.speed, numbers[:, 9]), 0.0)

        def place(attempt: int, left: npt.NDArray[np.int64], s: int = s, rows: Any = rows) -> Floats:
            return draw(f"place/{s}/{attempt}", rows[left])

        first[rows, s], last[rows, s] = place_sources(room[rows], microphones[rows], near, distance, travel, place)
    return {"signal": signal, "start": start, "interference": interference, "first": first, "last": last}


def _signals(law: Law, catalog: Catalog, talks: npt.NDArray[np.bool_], numbers: Floats) -> npt.NDArray[np.object_]:
    """Ids: of a kind, then of its list, or synthetic. Shape: (B,), (B, 3) -> (B,)."""
    recorded = {"speech": catalog.speech, "music": catalog.music, "noise": catalog.noise}
    there = [kind not in ("speech", "music") or bool(recorded[kind]) for kind in KINDS]
    shares = np.where(there, [getattr(law, kind) for kind in KINDS], 0.0)
    if not shares.sum() > 0:
        raise InputError("the catalog holds no signal of the kinds that the law asks for")
    kinds = np.searchsorted(np.cumsum(shares / shares.sum())[:-1], numbers[:, 0], side="right")
    if catalog.speech:
        kinds = np.where(talks, KINDS.index("speech"), kinds)
    steady = numbers[:, 2] < law.steady
    ids = np.empty(len(numbers), dtype=object)
    for i, (kind, number) in enumerate(zip(kinds.tolist(), numbers[:, 1].tolist(), strict=True)):
        name = KINDS[kind]
        signals = recorded.get(name, ())
        if signals and not (name == "noise" and steady[i]):
            ids[i] = signals[int(number * len(signals))]
        else:
            ids[i] = f"{name}:{int(number * NUMBERS)}"
    return ids
