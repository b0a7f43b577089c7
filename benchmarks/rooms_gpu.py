"""Fresh training pairs per second on one GPU, and how far its responses and frames are from the CPU engine's.

    python -m benchmarks.rooms_gpu [--bank FILE]

A pair is a room of its own: two responses, convolution, framing, level, noise. Required: 8,000 a second on one H200 at
the paper's distribution; aim: 20,000. Without a bank the sources are noise, which changes nothing in the cost.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.timing import write
from qkgcc.lab.rooms import gpu
from qkgcc.lab.rooms.mixing import add_white_noise, heard_frames, level_of_convolved
from qkgcc.lab.rooms.shoebox import response_length, sabine
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.paper_frames import Sources, paper_frames

PAIRS = 32768


def sources(bank: Path | None) -> Sources:
    if bank is not None:
        from qkgcc.lab.corpora.banks import Bank

        return Sources.of(Bank.load(bank), "train", "cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    power = torch.full((1872, 513), 1 / 513, device="cuda")
    samples = torch.full((1872,), 160_000.0, device="cuda")
    return Sources(torch.randn(1872, 32000, device="cuda", generator=generator), power, samples)


def exact_response(
    room: np.ndarray, t60: float, source: np.ndarray, microphone: np.ndarray, samples: int
) -> np.ndarray:
    """The same response in double precision: with the CPU engine where numba is, else with NumPy."""
    absorption, order = sabine(t60, room)
    try:
        from qkgcc.lab.rooms.cpu import responses
    except ImportError:
        from benchmarks.plain_images import responses
    return responses(
        room,
        float(np.sqrt(1 - absorption)),
        order,
        source[None],
        microphone[None],
        samples=samples,
        sample_rate=paper.SAMPLE_RATE,
        speed_of_sound=343.0,
    )[0, 0]


def accuracy() -> list[dict[str, object]]:
    rng = np.random.default_rng()  # other rooms every time
    rows = []
    for t60 in (0.2, 0.6, 1.0):
        for room in (paper.TRAIN_ROOM, paper.TEST_ROOM):
            absorption, order = sabine(t60, room)
            samples = response_length(room, order, paper.SAMPLE_RATE)
            source, microphone = (rng.uniform(0.1, 0.9, 3) * room for _ in range(2))
            ours = gpu.responses(
                room[None],
                np.array([np.sqrt(1 - absorption)]),
                np.array([order]),
                source[None],
                microphone[None],
                samples=samples,
                sample_rate=paper.SAMPLE_RATE,
                speed_of_sound=343.0,
            )[0]
            exact = exact_response(room, t60, source, microphone, samples)
            off = np.linalg.norm(ours.cpu().numpy() - exact) / np.linalg.norm(exact)
            name = f"response, T60 {t60} s, {' x '.join(f'{x:g}' for x in room)} m: difference to the CPU engine"
            rows.append({"what": name, "value": f"{off:.1e}", "required": ""})
    return rows


def frame_accuracy(here: Sources) -> dict[str, object]:
    """The same few pairs through NumPy, in double precision."""
    pairs = paper.training_pairs(7, np.arange(4), len(here.signals))
    frames, _ = paper_frames(pairs, here)
    signals, power, samples = (x.cpu().numpy().astype(np.float64) for x in (here.signals, here.power, here.samples))
    off = []
    for i in range(4):
        order = sabine(float(pairs.t60[i]), paper.TRAIN_ROOM)[1]
        length = response_length(paper.TRAIN_ROOM, order, paper.SAMPLE_RATE)
        where = paper.TRAIN_ROOM, float(pairs.t60[i]), pairs.source[i]
        responses = np.stack([exact_response(*where, m, length) for m in paper.TRAIN_MICROPHONES])[None]
        one = slice(i, i + 1)
        u = pairs.utterance[one]
        clean = heard_frames(signals[u], responses, pairs.start[one], paper.FRAME)
        clean = clean / level_of_convolved(power[u], samples[u], responses[:, 0])[:, None, None]
        exact = add_white_noise(clean, pairs.snr[one], pairs.noise[one], pairs.start[one])
        off.append(np.linalg.norm(frames[one].cpu().numpy() - exact) / np.linalg.norm(exact))
    return {"what": "frames, worst of 4: difference to NumPy's", "value": f"{max(off):.1e}", "required": ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path)
    here = sources(parser.parse_args().bank)
    rows = [*accuracy(), frame_accuracy(here)]
    paper_frames(paper.training_pairs(1, np.arange(2048), len(here.signals)), here)  # compile, plan the transforms
    rates = []
    for seed in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        frames, _ = paper_frames(paper.training_pairs(seed, np.arange(PAIRS), len(here.signals)), here)
        torch.cuda.synchronize()
        rates.append(PAIRS / (time.perf_counter() - start))
        assert torch.isfinite(frames).all()
    rate = float(np.median(rates))
    met = "met" if rate >= 8000 else "MISSED"
    rows.append(
        {"what": "fresh pairs a second", "value": f"{rate:.0f}", "required": f"at least 8000: {met}; aim 20000"}
    )
    memory = torch.cuda.max_memory_allocated() / 2**30
    rows.append({"what": "largest memory", "value": f"{memory:.1f} GiB", "required": ""})
    note = f"{torch.cuda.get_device_name()}; {PAIRS} pairs of the paper's distribution, median of three runs."
    write(
        "rooms_gpu", "Rooms on the GPU", "python -m benchmarks.rooms_gpu", ["what", "value", "required"], rows, [note]
    )


if __name__ == "__main__":
    main()
