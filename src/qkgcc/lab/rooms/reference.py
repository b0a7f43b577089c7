"""The reference engine: pyroomacoustics, with its hidden delay of half a fractional-delay filter taken off."""

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import MissingExtraError

Floats = npt.NDArray[np.float64]


def responses(
    room: Floats,
    absorption: float,
    order: int,
    sources: Floats,
    microphones: Floats,
    *,
    samples: int,
    sample_rate: int,
    speed_of_sound: float,
) -> Floats:
    """Responses of every source at every microphone of one room. Shape: (S, 3), (M, 3) -> (S, M, samples)."""
    try:
        import pyroomacoustics as pra
    except ImportError:
        raise MissingExtraError("the reference engine needs pyroomacoustics: pip install 'qkgcc[train]'") from None
    old_speed = pra.constants.get("c")
    pra.constants.set("c", speed_of_sound)
    try:
        box = pra.ShoeBox(room, fs=sample_rate, materials=pra.Material(absorption), max_order=order)
        for source in sources:
            box.add_source(source)
        box.add_microphone_array(microphones.T)
        box.compute_rir()
    finally:
        pra.constants.set("c", old_speed)
    hidden = pra.constants.get("frac_delay_length") // 2
    result = np.zeros((len(sources), len(microphones), samples))
    for s in range(len(sources)):
        for m in range(len(microphones)):
            response = box.rir[m][s][hidden : hidden + samples]
            result[s, m, : len(response)] = response
    return result
