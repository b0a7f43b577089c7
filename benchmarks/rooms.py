"""What a room costs: two microphones, one source, the paper's test room, on the CPU.

    python -m benchmarks.rooms

pyroomacoustics (the reference), our CPU engine and torchrir beside them, in the same run on the same cores. Required of
ours, in rooms per second: at least 8 times pyroomacoustics at T60 0.6 s, 30 times at 1.0 s, never slower.
"""

import os
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.timing import interleaved, ratio, write
from qkgcc.lab.rooms.shoebox import count_images, response_length
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.engines import responses
from qkgcc.lab.scenes.scenes import Scene, Source

REQUIRED = {0.2: 1.0, 0.6: 8.0, 1.0: 30.0}
TORCHRIR_UP_TO = 0.6
"""Seconds of T60; beyond it a single room takes torchrir minutes."""
ROUNDS = {0.2: 40, 0.4: 15, 0.6: 9, 0.8: 5, 1.0: 5}


def torchrir_responses(scene: Scene) -> Callable[[], object]:
    import torchrir
    from torchrir.config import SimulationConfig
    from torchrir.sim import simulate

    absorption, _, order = scene.walls
    beta = [float(np.sqrt(1 - absorption))] * 6
    there = torchrir.StaticScene(
        room=torchrir.Room.shoebox(size=scene.room.tolist(), fs=scene.sample_rate, beta=beta),
        sources=torchrir.Source.from_positions(scene.sources[0].path.tolist()),
        mics=torchrir.MicrophoneArray.from_positions(scene.microphones.tolist()),
    )
    samples = response_length(scene.room, order, scene.sample_rate)
    config = SimulationConfig(max_order=order, nsample=samples)
    return lambda: simulate(there, config)


def difference(ours: np.ndarray, reference: np.ndarray, sample_rate: int) -> float:
    """Relative difference of the spectra between 200 Hz and 7 kHz."""
    frequency = np.fft.rfftfreq(ours.shape[-1], 1 / sample_rate)
    band = (frequency >= 200) & (frequency <= 7000)
    a, b = (np.fft.rfft(response)[..., band] for response in (ours, reference))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def measure(t60: float) -> list[dict[str, object]]:
    scene = Scene(paper.TEST_ROOM, t60, paper.TEST_MICROPHONES, (Source("", [1.3, 2.9, 0.8]),), snr=0)
    functions: dict[str, Callable[[], object]] = {
        "pyroomacoustics": lambda: responses(scene, "reference"),
        "qkgcc, cpu engine": lambda: responses(scene, "cpu"),
    }
    seconds = interleaved(functions, ROUNDS[t60])
    apart = difference(responses(scene, "cpu")[0], responses(scene, "reference")[0], scene.sample_rate)
    if t60 <= TORCHRIR_UP_TO:
        # Once: it takes from seconds to minutes, and would heat up the rounds of the others.
        once = interleaved({"torchrir": torchrir_responses(scene)}, 1)["torchrir"]
        seconds["torchrir"] = np.repeat(once, ROUNDS[t60])
    rows = []
    for name, values in seconds.items():
        times = ratio(seconds["pyroomacoustics"], values)
        limit = REQUIRED.get(t60) if name == "qkgcc, cpu engine" else None
        rows.append(
            {
                "T60 (s)": t60,
                "images": count_images(scene.walls[2]),
                "engine": name,
                "rooms a second": 1 / float(np.median(values)),
                "times pyroomacoustics": times,
                "difference": f"{100 * apart:.2f} %" if name == "qkgcc, cpu engine" else "",
                "required": "" if limit is None else f"at least {limit:g}: {'met' if times >= limit else 'MISSED'}",
            }
        )
    return rows


def main() -> None:
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    rows = [row for t60 in ROUNDS for row in measure(t60)]
    write(
        "rooms",
        "Rooms per second on the CPU",
        "python -m benchmarks.rooms",
        ["T60 (s)", "images", "engine", "rooms a second", "times pyroomacoustics", "difference", "required"],
        rows,
        [
            f"{cores} cores; 6 x 4 x 2.5 m, 2 microphones, 16 kHz. "
            "Both once a round, medians of ratios; torchrir once.",
            "`difference`: of the spectra to pyroomacoustics', 200 Hz to 7 kHz.",
        ],
    )


if __name__ == "__main__":
    main()
