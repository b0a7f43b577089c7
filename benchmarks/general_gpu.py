"""Fresh scenes and frames of the general distribution per second on one GPU, where the time goes, how exact they are.

    python -m benchmarks.general_gpu [--scenes 4096] [--frames 4] [--bank FILE]...

A scene is a room of its own with up to three sources, some on their way, noise and a recorder's degradations. Wanted:
5,000 frames a second on one H200. Without banks the recorded signals are synthetic ones, which changes nothing in the
cost. Frames of a few scenes at rest are compared with `render`'s, with the CPU engine where numba is, else with NumPy.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import qkgcc.lab.rooms
from benchmarks import plain_images
from benchmarks.timing import write
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.shoebox import count_images, response_length
from qkgcc.lab.scenes import bulk_rooms, general_frames
from qkgcc.lab.scenes.bulk_rooms import SAMPLES, GeneralSources
from qkgcc.lab.scenes.general import GENERAL, Law, Scenes, general_scenes
from qkgcc.lab.scenes.render import delay_at, render

POOL = 128
COMPARED = 8
STEPS = {
    "responses": (bulk_rooms, "responses"),
    "convolution": (bulk_rooms, "convolve_pairs"),
    "direct sound of those who walk": (bulk_rooms, "direct_sound"),
    "signals": (GeneralSources, "parts"),
    "levels": (general_frames, "mix"),
    "noise": (general_frames, "noises"),
    "degradations": (general_frames, "degrade"),
}


def draw(seed: int, count: int, sources: GeneralSources, law: Law = GENERAL) -> Scenes:
    return general_scenes(seed, np.arange(count), sources.catalog, law=law)


def make(scenes: Scenes, sources: GeneralSources, frames: int) -> tuple[general_frames.Frames, float]:
    """Frames and the seconds that they took."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    made = general_frames.general_frames(scenes, sources, frames_per_scene=frames)
    torch.cuda.synchronize()
    return made, time.perf_counter() - start


@contextlib.contextmanager
def timed(seconds: dict[str, float]) -> Iterator[None]:
    """Within it every step waits for the GPU before and after, and its time is added up."""
    originals = {name: getattr(*place) for name, place in STEPS.items()}

    def watched(name: str) -> Any:
        def step(*args: Any, **options: Any) -> Any:
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = originals[name](*args, **options)
            torch.cuda.synchronize()
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        return step

    for name, (owner, attribute) in STEPS.items():
        setattr(owner, attribute, watched(name))
    try:
        yield
    finally:
        for name, (owner, attribute) in STEPS.items():
            setattr(owner, attribute, originals[name])


def without_numba() -> None:
    """Put the images in plain NumPy where `render` looks for the CPU engine."""

    def responses(
        room: Any,
        reflection: float,
        order: int,
        sources: Any,
        microphones: Any,
        *,
        samples: int,
        sample_rate: int,
        speed_of_sound: float,
        jobs: int | None = None,
    ) -> Any:
        whole = max(samples, response_length(room, order, sample_rate, speed_of_sound))  # it needs room for all images
        common = {"samples": whole, "sample_rate": sample_rate, "speed_of_sound": speed_of_sound}

        def one(source: Any, microphone: Any) -> Any:
            all_of_it = plain_images.responses(room, reflection, order, source[None], microphone[None], **common)
            return all_of_it[0, 0, :samples]

        return np.stack([[one(source, microphone) for microphone in microphones] for source in sources])

    module = types.ModuleType("qkgcc.lab.rooms.cpu")
    module.responses = responses  # type: ignore[attr-defined]
    sys.modules["qkgcc.lab.rooms.cpu"] = module
    qkgcc.lab.rooms.cpu = module  # type: ignore[attr-defined]


def accuracy(sources: GeneralSources) -> list[dict[str, str]]:
    """Scenes at rest against `render` in double precision; the delays of scenes on their way against its truth."""
    law = dataclasses.replace(GENERAL, t60=(0.0, 0.8), moving=0.0, one_interferer=0.3, two_interferers=0.1)
    scenes = draw(11, COMPARED, sources, law)
    made = general_frames.general_frames(scenes, sources)
    starts = general_frames.frame_starts(scenes, general_frames.FRAME, 1)[:, 0]
    off = []
    for i, first in enumerate(starts.tolist()):
        recording = render(scenes.scene(i), sources.signal, 2.0, engine="cpu").audio
        exact = recording[:, first : first + general_frames.FRAME]
        # Against the whole recording's level: a frame may be a pause.
        usual = np.linalg.norm(recording) * np.sqrt(general_frames.FRAME / SAMPLES)
        off.append(float(np.linalg.norm(made.frames[i].cpu().numpy() - exact) / usual))
    walks = draw(12, 256, sources, dataclasses.replace(GENERAL, dry=1.0, moving=1.0))
    delays = general_frames.general_frames(walks, sources).delays.cpu().numpy()
    centres = (general_frames.frame_starts(walks, general_frames.FRAME, 1) + general_frames.FRAME / 2) / 16000
    strayed = max(abs(delays[i] - delay_at(walks.scene(i), centres[i])[0]) for i in range(len(walks)))
    return [
        row(f"frames of {COMPARED} scenes at rest, median difference to render's", f"{np.median(off):.1e}"),
        row(f"frames of {COMPARED} scenes at rest, largest difference to render's", f"{max(off):.1e}", "below 1e-3"),
        row("delays of 256 walks, largest difference to render's", f"{strayed:.1e} samples", "below 1e-3"),
    ]


def row(what: str, value: str, wanted: str = "") -> dict[str, str]:
    return {"what": what, "value": value, "wanted": wanted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=4096)
    parser.add_argument("--frames", type=int, default=4)
    parser.add_argument("--bank", type=Path, action="append", default=[])
    options = parser.parse_args()
    if importlib.util.find_spec("numba") is None:
        without_numba()
    start = time.perf_counter()
    sources = GeneralSources.of([Bank.load(path) for path in options.bank], "train", "cuda", pool=POOL)
    seconds_of_sources = time.perf_counter() - start
    start = time.perf_counter()
    scenes = [draw(seed, options.scenes, sources) for seed in range(4)]
    drawing = len(scenes) * options.scenes / (time.perf_counter() - start)

    make(scenes[3], sources, options.frames)  # compile, plan the transforms
    torch.cuda.reset_peak_memory_stats()
    took = []
    for one in scenes[:3]:
        made, seconds = make(one, sources, options.frames)
        took.append(seconds)
        assert torch.isfinite(made.frames).all()
        assert torch.isfinite(made.delays).all()
    memory = torch.cuda.max_memory_allocated() / 2**30
    rate = options.scenes / float(np.median(took))
    met = "met" if rate * options.frames >= 5000 else "MISSED"
    steps: dict[str, float] = {}
    with timed(steps):
        _, whole = make(scenes[0], sources, options.frames)

    rooms = bulk_rooms.Rooms.of(scenes[0])
    there = scenes[0].signal != ""
    points = np.where(there, bulk_rooms.count_path_points(scenes[0].first, scenes[0].last), 0).sum(axis=1)
    images = 2 * float(np.mean(points * [count_images(order) for order in rooms.order.tolist()]))
    rows = [
        row("scenes a second", f"{rate:.0f}"),
        row(f"frames a second, {options.frames} of each scene", f"{rate * options.frames:.0f}", f"5000: {met}"),
        row("scenes drawn a second (NumPy, beforehand)", f"{drawing:.0f}"),
        row("images a scene", f"{images / 1e6:.1f} million"),
        row("images a second, if all of them were added", f"{images * rate / 1e9:.0f} billion"),
        row("largest memory", f"{memory:.1f} GiB"),
        row(f"sources with {POOL} synthetic signals of each kind", f"{seconds_of_sources:.1f} s"),
        *(row(f"time: {name}", f"{100 * steps.get(name, 0.0) / whole:.0f} %") for name in STEPS),
        row("time: all else, host included", f"{100 * (1 - sum(steps.values()) / whole):.0f} %"),
        *accuracy(sources),
    ]
    notes = [
        f"{torch.cuda.get_device_name()}; {options.scenes} scenes of the general distribution, median of three runs.",
        "Shares of the time with a wait for the GPU after every step.",
    ]
    command = "python -m benchmarks.general_gpu"
    write("general_gpu", "General frames on the GPU", command, ["what", "value", "wanted"], rows, notes)


if __name__ == "__main__":
    main()
