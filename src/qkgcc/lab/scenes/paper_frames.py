"""Training frames of the paper's distribution in bulk: every one from a room of its own, on the GPU or the CPU.

    pairs -> responses (Triton or numba) -> the frame of the convolved utterance -> level -> noise

Pairs are taken in order of their reverberation, so that a chunk's responses are about as long as each other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.mixing import add_white_noise, heard_frames, level_of_convolved
from qkgcc.lab.rooms.shoebox import response_lengths, sabine_many
from qkgcc.lab.scenes import paper
from qkgcc.lab.scenes.engines import batch_responses

_CHUNK = {
    "cuda": 1024,
    "cpu": 32,
}  # pairs at a time: enough to fill the GPU, few enough that their responses differ little in length
_STEP = 4096  # samples: responses come in few lengths, because every new length costs the planning of its transforms


@dataclass(frozen=True)
class Sources:
    """The utterances of a bank's split, on the device. Shape: U utterances."""

    signals: Tensor
    """(U, 32000) the first two seconds."""
    power: Tensor
    """(U, 513) power spectrum of the whole utterance."""
    samples: Tensor
    """(U,) length of the whole utterance."""

    @classmethod
    def of(cls, bank: Bank, split: str, device: torch.device | str) -> "Sources":
        numbers = bank.select(split=split)
        signals = bank.stack(numbers, round(paper.SECONDS * paper.SAMPLE_RATE))
        return cls(
            torch.as_tensor(signals, device=device),
            torch.as_tensor(bank.power_spectrum[numbers], device=device),
            torch.as_tensor(bank.whole_samples[numbers], dtype=torch.float32, device=device),
        )


def paper_frames(
    pairs: paper.Pairs,
    sources: Sources,
    *,
    frame: int = paper.FRAME,
    progress: Callable[[int], object] | None = None,
) -> tuple[Tensor, Tensor]:
    """Frames and true delays (in samples, positive = microphone 1 later) of training pairs, on the sources' device.

    Shape: B pairs -> (B, 2, frame), (B,). `progress` is called with the number of pairs done in each chunk.
    """
    device = sources.signals.device
    absorption, order = sabine_many(pairs.t60, pairs.room)
    reflection = np.sqrt(1 - absorption)
    reach = response_lengths(pairs.room, order, paper.SAMPLE_RATE)
    frames = torch.empty(len(order), 2, frame, device=device)
    by_length = np.argsort(order, kind="stable")
    size = _CHUNK[device.type]
    for first in range(0, len(order), size):
        chunk = by_length[first : first + size]
        samples = -(-int(reach[chunk].max()) // _STEP) * _STEP
        place = pairs.room, reflection[chunk], order[chunk], pairs.source[chunk], pairs.microphones
        responses = batch_responses(*place, device, samples=samples, sample_rate=paper.SAMPLE_RATE)
        utterance = torch.as_tensor(pairs.utterance[chunk], device=device)
        start = torch.as_tensor(pairs.start[chunk], device=device)
        level = level_of_convolved(
            sources.power[utterance],
            sources.samples[utterance],
            responses[:, 0],
            torch.as_tensor(reach[chunk], device=device),  # its own, not the chunk's: no pair depends on the others
        )
        clean = heard_frames(sources.signals[utterance], responses, start, frame) / level[:, None, None]
        snr, keys = (torch.as_tensor(x[chunk], device=device) for x in (pairs.snr, pairs.noise))
        frames[torch.as_tensor(chunk, device=device)] = add_white_noise(clean, snr, keys, start)
        if progress is not None:
            progress(len(chunk))
    return frames, torch.as_tensor(pairs.delay(), dtype=torch.float32, device=device)
