"""One function over three engines that give the same responses: pyroomacoustics, a compiled CPU kernel, a GPU kernel.

Time 0 is the moment the source sounds: the direct path arrives at d / c, without any hidden delay.
"""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from os import cpu_count
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.types import SPEED_OF_SOUND, Floats, Samples
from qkgcc.lab.rooms.shoebox import response_length
from qkgcc.lab.scenes.scenes import Scene

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ENGINES = ("reference", "cpu", "gpu")

Integers = npt.NDArray[np.int64]
Responses = Samples


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
        import torch

        reflection = np.sqrt(1 - absorption)
        place = scene.room, reflection, order, points, scene.microphones
        every = batch_responses(*place, torch.device("cuda"), **common).cpu().numpy()
    splits = np.cumsum([len(source.path) for source in scene.sources])[:-1]
    return np.split(every, splits)


def batch_responses(
    rooms: Floats,
    reflections: npt.ArrayLike,
    orders: npt.ArrayLike,
    sources: Floats,
    microphones: Floats,
    device: "torch.device",
    *,
    samples: int,
    sample_rate: int,
    speed_of_sound: float = SPEED_OF_SOUND,
) -> "Tensor":
    """Responses of one source in each of many rooms, by the engine of a device. Images after `samples` are left out.

    Shape: rooms (B, 3) or (3,), (B,) or (), the same, sources (B, 3), microphones (B, M, 3) or (M, 3)
    -> (B, M, samples) float32
    """
    count = len(sources)
    batch = (
        np.broadcast_to(rooms, (count, 3)),
        np.broadcast_to(reflections, count),
        np.broadcast_to(orders, count),
        sources,
        np.broadcast_to(microphones, (count, *microphones.shape[-2:])),
    )
    engine = _batch_on_gpu if device.type == "cuda" else _batch_on_cpu
    return engine(*batch, device, samples=samples, sample_rate=sample_rate, speed_of_sound=speed_of_sound)


def _batch_on_gpu(
    rooms: Floats,
    reflections: Floats,
    orders: Integers,
    sources: Floats,
    microphones: Floats,
    device: "torch.device",
    **common: Any,
) -> "Tensor":
    from qkgcc.lab.rooms import gpu

    each = microphones.shape[1]
    flat = gpu.responses(
        np.repeat(rooms, each, axis=0),
        np.repeat(reflections, each),
        np.repeat(orders, each),
        np.repeat(sources, each, axis=0),
        microphones.reshape(-1, 3),
        **common,
        device=device,
    )
    return flat.reshape(len(sources), each, -1)


def _batch_on_cpu(
    rooms: Floats,
    reflections: Floats,
    orders: Integers,
    sources: Floats,
    microphones: Floats,
    device: "torch.device",
    **common: Any,
) -> "Tensor":
    import torch

    from qkgcc.lab.rooms import cpu

    def render_room(i: int) -> Floats:
        place = rooms[i], float(reflections[i]), int(orders[i]), sources[i : i + 1], microphones[i]
        response: Floats = cpu.responses(*place, **common, jobs=1)[0]
        return response

    with ThreadPoolExecutor(cpu_count()) as pool:
        each = list(pool.map(render_room, range(len(sources))))
    return torch.as_tensor(np.stack(each), dtype=torch.float32, device=device)


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
