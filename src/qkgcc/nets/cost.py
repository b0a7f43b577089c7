"""What a network costs: parameters, and floating-point operations per pair of frames, counted two ways.

- `paper_flops` counts as the papers of this field do, with the tool thop: linear layers and convolutions by their
  multiply-accumulates, layer and batch normalization at 4 per element, all times 2. Fourier transforms, correlations
  and everything else that is not a layer of torch are free.
- `honest_flops` counts 2 per multiply-accumulate of linear layers, convolutions and the modules that tell their own
  (a method ``macs(output) -> int``, such as `LocalCorrelation`'s), and leaves the normalizations out: they fold away.

Both watch a real forward pass with hooks, so a layer used twice counts twice and a new architecture needs no entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def parameters(model: nn.Module) -> int:
    """Number of trainable numbers."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def paper_flops(model: nn.Module, frames: Tensor | None = None) -> int:
    """Operations for one pair of frames as thop counts them.

    QK-GCC 208.3 M, NGCC-PHAT 3682 M and PGCC-PHAT 219 M, as the paper prints them; the Transformer 278 M.
    """
    return 2 * _watch(model, frames, lambda module, output: _layer_macs(module, output) + _norm_macs(module, output))


def honest_flops(model: nn.Module, fft: bool = False, frames: Tensor | None = None) -> int:
    """Operations for one pair of frames, the matching of QK-GCC, the bank of NGCC and attention among them.

    QK-GCC 211.9 M, NGCC-PHAT 4738 M, PGCC-PHAT 217.8 M, the Transformer 2690 M. `fft` adds the Fourier transforms at
    5 K log2 K each, K being the model's ``options.dft``: as many as its ``transforms`` says, or one for each channel.
    """
    count = 2 * _watch(model, frames, lambda module, output: _layer_macs(module, output) + _own_macs(module, output))
    if fft:
        length = _option(model, "dft")
        count += getattr(model, "transforms", 2) * round(5 * length * math.log2(length))
    return count


def _layer_macs(module: nn.Module, output: Tensor) -> int:
    match module:
        case nn.Linear():
            return output.numel() * module.in_features
        case nn.Conv1d() | nn.Conv2d():
            return output.numel() * module.in_channels // module.groups * math.prod(module.kernel_size)
    return 0


def _norm_macs(module: nn.Module, output: Tensor) -> int:
    return 4 * output.numel() if isinstance(module, (nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)) else 0


def _own_macs(module: nn.Module, output: Tensor) -> int:
    macs = getattr(module, "macs", None)
    return int(macs(output)) if callable(macs) else 0


def _option(model: nn.Module, name: str) -> int:
    return int(getattr(getattr(model, "options", None), name))


def _watch(model: nn.Module, frames: Tensor | None, count: Callable[[nn.Module, Tensor], int]) -> int:
    """The sum of `count` over every module call in one eval-mode pass over `frames`, by default one silent pair."""
    if frames is None:
        like = next(model.parameters())
        frames = torch.zeros(1, 2, _option(model, "frame"), dtype=like.dtype, device=like.device)
    total = 0

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += count(module, output)

    handles = [module.register_forward_hook(hook) for module in model.modules()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()  # batch normalization must neither refuse a batch of one nor learn from it
        with torch.no_grad():
            model(frames)
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes:
            module.training = training
    return total // len(frames)
