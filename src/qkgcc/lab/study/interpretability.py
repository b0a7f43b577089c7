"""What the network has learned, as Figure 3 of the paper shows it.

(a) |q| |k| over frequency, mean over frames, beside the magnitude-squared coherence between the channels. The coherence
    is Welch's, within each clip: over clips of different delay it would cancel. Then the mean over clips.
(b) energy of C over the offsets, per head, divided by its largest.
(c) shares of center, symmetric and antisymmetric energy, per head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from qkgcc.lab.frozen.benchmark import FRAMES, SCALE
from qkgcc.nets.matching import center_symmetric_antisymmetric
from qkgcc.nets.qkgcc import QKGCC

SEGMENT = 512
"""Samples of a segment of the coherence: 31 Hz, and 119 half-overlapping segments a clip."""


def analyse(
    model: QKGCC,
    cells: Sequence[np.ndarray],
    *,
    device: str = "cpu",
    progress: Callable[[int], object] | None = None,
) -> dict[str, Any]:
    """Curves and shares over cells of a benchmark, each (clips * 15, 2, 2048) in whole clips.

    `progress` is called with the number of clips that are done.
    """
    o = model.options
    model = model.to(device).eval()
    weight, coherence = np.zeros(o.bins), np.zeros(SEGMENT // 2 + 1)
    offsets, parts = np.zeros((o.heads, 2 * o.radius + 1)), np.zeros((o.heads, 3))
    clips = 0
    for cell in cells:
        for clip in cell.reshape(-1, FRAMES, 2, o.frame):
            frames = torch.from_numpy(clip.astype(np.float32) / SCALE).to(device)
            found = model.explain(frames)
            weight += found.norm_product.mean(dim=0).cpu().numpy()
            energy = found.correlation.square().mean(dim=(0, 3))
            offsets += energy.cpu().numpy()
            split = center_symmetric_antisymmetric(found.correlation).square().mean(dim=(0, 3)).cpu().numpy()
            b = o.radius
            parts += np.stack([split[:, 0], split[:, 1 : b + 1].sum(axis=1), split[:, b + 1 :].sum(axis=1)], axis=1)
            coherence += magnitude_squared_coherence(clip.transpose(1, 0, 2).reshape(2, -1) / SCALE)
            clips += 1
            if progress is not None:
                progress(clips)
    frequency = np.linspace(0, 8000, o.bins)
    smooth = np.interp(frequency, np.linspace(0, 8000, SEGMENT // 2 + 1), coherence / clips)
    weight /= clips
    # The coherence has a resolution of SEGMENT; the weight, with a table of positions behind it, jitters bin by bin.
    width = o.dft // SEGMENT
    even = np.convolve(np.pad(weight, width // 2, mode="edge"), np.ones(width) / width, mode="same")[
        width // 2 : width // 2 + o.bins
    ]
    return {
        "clips": clips,
        "frequency": frequency.tolist(),
        "norm_product": weight.tolist(),
        "coherence": smooth.tolist(),
        "pearson": float(np.corrcoef(weight, smooth)[0, 1]),
        "norm_product_smoothed": even.tolist(),
        "pearson_smoothed": float(np.corrcoef(even, smooth)[0, 1]),
        "offset_energy": (offsets / offsets.max(axis=1, keepdims=True)).tolist(),
        "shares": (parts / parts.sum(axis=1, keepdims=True)).tolist(),
    }


def magnitude_squared_coherence(audio: np.ndarray, segment: int = SEGMENT) -> np.ndarray:
    """Welch's, of two channels: Hann segments, half overlapping. Shape: (2, n) -> (segment / 2 + 1,)

    >>> noise = np.random.default_rng(0).standard_normal((3, 16000))
    >>> alike = magnitude_squared_coherence(noise[[0, 0]] + 0.01 * noise[1:])
    >>> bool(alike.min() > 0.99), bool(magnitude_squared_coherence(noise[:2]).mean() < 0.05)
    (True, True)
    """
    windows = np.lib.stride_tricks.sliding_window_view(audio, segment, axis=1)[:, :: segment // 2]
    spectra = np.fft.rfft(windows * np.hanning(segment))
    cross = (spectra[0] * spectra[1].conj()).mean(axis=0)
    power = np.square(np.abs(spectra)).mean(axis=1)
    return np.asarray(np.square(np.abs(cross)) / (power[0] * power[1]))
