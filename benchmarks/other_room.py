"""Where do networks lose between validation and test: in the room, with the voices, or by the codec of the voices?

    python -m benchmarks.other_room --bank banks/test-clean [--pairs 2000] [--device cpu]

The validation pairs stand in the training room and their voices are Opus copies; `paper-test` stands in another room
and its voices are lossless. Here one thing changes at a time, on fresh pairs of the paper's distribution: the same
draws of position (relative to the room), T60, SNR and noise in every row, heard by the checkpoints of the repository.
"""

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from rich.progress import Progress

from benchmarks.timing import write
from qkgcc.delay import metrics
from qkgcc.dsp import gcc
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.mixing import power_spectrum
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.paper_frames import Sources, paper_frames
from qkgcc.lab.study.results import interval
from qkgcc.nets import checkpoint

CHECKPOINTS = Path(__file__).parent.parent / "checkpoints"
METHODS = ("gcc-phat", "ngcc", "qkgcc", "qkgcc-smooth")
SEED = 7777  # of pairs that no training has
KILOBITS = 24  # of the copies that the training speech was made from
ROOMS = {
    "training": {"room": paper.TRAIN_ROOM, "microphones": paper.TRAIN_MICROPHONES},
    "test": {"room": paper.TEST_ROOM, "microphones": paper.TEST_MICROPHONES},
}


def through_opus(signal: np.ndarray) -> np.ndarray:
    """What Opus at the rate of the training copies makes of a signal. libsndfile counts levels from 256 down to 6."""
    stream = io.BytesIO()
    level = 1 - (KILOBITS - 6) / 250
    soundfile.write(stream, signal, paper.SAMPLE_RATE, format="OGG", subtype="OPUS", compression_level=level)
    stream.seek(0)
    decoded, _ = soundfile.read(stream, frames=len(signal), dtype="float32")
    return np.pad(decoded, (0, len(signal) - len(decoded)))


def coded(bank: Bank, lossless: Sources) -> Sources:
    """The test voices as they would be if they were copies, too."""
    signals = [through_opus(bank.audio(i)) for i in bank.select(split="test").tolist()]
    power = np.stack([power_spectrum(signal) for signal in signals]).astype(np.float32)
    first = np.stack([signal[: lossless.signals.shape[1]] for signal in signals])
    device = lossless.signals.device
    return Sources(torch.as_tensor(first, device=device), torch.as_tensor(power, device=device), lossless.samples)


def hits(path: Path, frames: torch.Tensor, true: np.ndarray) -> np.ndarray:
    model, card = checkpoint.load(path)
    model = model.to(frames.device).eval()
    if hasattr(model, "folded"):
        setattr(model, "folded", True)  # noqa: B010 - to mypy, every attribute is a module
    with torch.inference_mode():
        best = torch.cat([model(part).argmax(dim=-1) for part in frames.split(16 if frames.is_cpu else 512)])
    return metrics.hits(np.asarray(card.delays, dtype=np.float64)[best.cpu().numpy()], true)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    bank = Bank.load(arguments.bank)
    lossless = Sources.of(bank, "test", arguments.device)
    voices = {
        "validation (Opus)": Sources.of(bank, "validation", arguments.device),
        "test, through Opus": coded(bank, lossless),
        "test (lossless)": lossless,
    }
    files = {name: sorted(CHECKPOINTS.glob(f"{name}-[0-9].safetensors")) for name in METHODS}
    rows: list[dict[str, Any]] = []
    with Progress() as progress:
        bar = progress.add_task("sets", total=len(voices) * len(ROOMS) * (1 + sum(map(len, files.values()))))
        for voice, sources in voices.items():
            for room, place in ROOMS.items():
                pairs = paper.training_pairs(SEED, np.arange(arguments.pairs), len(sources.signals), **place)
                frames, _ = paper_frames(pairs, sources)
                true = pairs.delay()
                progress.advance(bar)
                classical = gcc.delays(frames.cpu().numpy(), "phat", max_lag=23, interpolation="none")
                right = {"gcc-phat": metrics.hits(classical, true).astype(np.float64)}
                for name, paths in files.items():
                    if not paths:
                        continue
                    each = []
                    for path in paths:
                        each.append(hits(path, frames, true))
                        progress.advance(bar)
                    right[name] = np.mean(each, axis=0)
                row = {"voices": voice, "room": room} | {n: round(100 * float(right[n].mean()), 1) for n in right}
                middle, low, high = interval(100 * (right["qkgcc"] - right["ngcc"]))
                rows.append(row | {"qkgcc - ngcc": f"{middle:+.1f} ({low:+.1f} to {high:+.1f})"})
    seeds = ", ".join(f"{name} {len(paths)}" for name, paths in files.items() if paths)
    note = f"Acc@10cm in percent of {arguments.pairs} pairs a row, mean over seeds ({seeds}), 95 % interval over pairs."
    headings = ["voices", "room", *METHODS, "qkgcc - ngcc"]
    write(
        "other_room", "Another room, other voices, a codec", "python -m benchmarks.other_room", headings, rows, [note]
    )


if __name__ == "__main__":
    main()
