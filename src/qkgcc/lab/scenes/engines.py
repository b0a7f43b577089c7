"""One function over three engines that give the same responses: pyroomacoustics, a compiled CPU kernel, a GPU kernel.

Time 0 is the moment the source sounds: the direct path arrives at d / c, without any hidden delay.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.lab.rooms.shoebox import response_length
from qkgcc.lab.scenes.scenes import Scene

ENGINES = ("reference", "cpu", "gpu")

Floats = npt.NDArray[np.float64]
Responses = npt.NDArray[np.floating[Any]]


def best_engine() -> str:
    """The fastest engine of this machine."""
    if find_spec("torch") and find_spec("triton"):
        import torch

        if torch.cuda.is_available():
            return "gpu"
    return "cpu" if find_spec("numba") else "reference"


def check_engine(engine: str) -> None:
    """An error now, before anything is made, if an engine is unknown or this machine has no GPU for it."""
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}; known are {', '.join(ENGINES)}")
    if engine != "gpu":
        return
    if not (find_spec("torch") and find_spec("triton")):
        raise MissingExtraError("the gpu engine needs torch and triton: pip install 'qkgcc[train]'")
    import torch

    if not torch.cuda.is_available():
        raise InputError("the gpu engine needs a GPU, and torch finds none on this machine: use the cpu engine")


def responses(
    scene: Scene, engine: str | None = None, *, seconds: float | None = None, jobs: int | None = None
) -> list[Responses]:
    """Responses of every point of every source's path, a list over sources. Shape of each: (P, M, n).

    Args:
        seconds: leave out what arrives later than this.
    """
    engine = engine or best_engine()
    check_engine(engine)
    absorption, _, order = scene.walls
    samples = response_length(scene.room, order, scene.sample_rate, scene.speed_of_sound)
    if seconds is not None:
        samples = min(samples, round(seconds * scene.sample_rate))
    points = np.concatenate([source.path for source in scene.sources])
    common: dict[str, Any] = {
        "samples": samples,
        "sample_rate": scene.sample_rate,
        "speed_of_sound": scene.speed_of_sound,
    }
    every: Responses
    if engine == "reference":
        every = _by_pyroomacoustics(scene, points, **common)
    elif engine == "cpu":
        try:
            from qkgcc.lab.rooms import cpu
        except ImportError:
            raise MissingExtraError("the cpu engine needs numba: pip install 'qkgcc[train]'") from None
        reflection = np.sqrt(1 - absorption)
        every = cpu.responses(scene.room, reflection, order, points, scene.microphones, **common, jobs=jobs)
    else:
        every = _on_gpu(scene, points, common)
    splits = np.cumsum([len(source.path) for source in scene.sources])[:-1]
    return np.split(every, splits)


def _on_gpu(scene: Scene, points: Floats, common: dict[str, Any]) -> Responses:
    from qkgcc.lab.rooms import gpu

    count, microphones = len(points) * len(scene.microphones), len(scene.microphones)
    absorption, _, order = scene.walls
    flat = gpu.responses(
        np.broadcast_to(scene.room, (count, 3)),
        np.full(count, np.sqrt(1 - absorption)),
        np.full(count, order),
        np.repeat(points, microphones, axis=0),
        np.tile(scene.microphones, (len(points), 1)),
        **common,
    )
    result: Responses = flat.reshape(len(points), microphones, -1).cpu().numpy()
    return result


def _by_pyroomacoustics(
    scene: Scene, points: Floats, *, samples: int, sample_rate: int, speed_of_sound: float
) -> Responses:
    """The reference engine, with its hidden delay of half a fractional-delay filter taken off."""
    try:
        import pyroomacoustics as pra
    except ImportError:
        raise MissingExtraError("the reference engine needs pyroomacoustics: pip install 'qkgcc[train]'") from None
    absorption, _, order = scene.walls
    old_speed = pra.constants.get("c")
    pra.constants.set("c", speed_of_sound)
    try:
        box = pra.ShoeBox(scene.room, fs=sample_rate, materials=pra.Material(absorption), max_order=order)
        for point in points:
            box.add_source(point)
        box.add_microphone_array(scene.microphones.T)
        box.compute_rir()
    finally:
        pra.constants.set("c", old_speed)
    hidden = pra.constants.get("frac_delay_length") // 2
    result = np.zeros((len(points), len(scene.microphones), samples))
    for s, m in np.ndindex(result.shape[:2]):
        response = box.rir[m][s][hidden : hidden + samples]
        result[s, m, : len(response)] = response
    return result
