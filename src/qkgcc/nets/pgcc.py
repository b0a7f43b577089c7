"""PGCC-PHAT (Salvati, Drioli and Foresti, Interspeech 2021) as a classifier: a CNN that reads a stack of correlations.

    G = X1 conj(X2),   R_beta[tau] = sum_k G[k] (|G[k]| + eps)^-beta e^{j 2 pi k tau / K},   beta = 0, 0.1 .. 1
    logits = MLP(five convolutions of the image R)                              11 rows (beta) x 47 columns (tau)

beta = 0 is the plain cross-correlation, beta = 1 the phase transform; what lies between trusts loud bins more or less.
The delay is positive when channel 1 hears the source later; class i stands for a delay of ``i - max_delay`` samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from qkgcc.nets.options import NetworkOptions


def spectrum(signal: Tensor, dft: int) -> Tensor:
    """The spectrum of a signal padded with zeros to `dft` samples, at least in float32.

    Real and imaginary parts stay apart, because torch.compile makes kernels for real numbers and none for complex ones.

    Under autocast a spectrum must not be made from, or end in, half precision.
    Shape: (..., n) -> (..., dft // 2 + 1, 2)
    """
    full = signal.to(torch.promote_types(signal.dtype, torch.float32))
    result: Tensor = _RealTransform.apply(full, dft)  # type: ignore[no-untyped-call]
    return result


class _RealTransform(torch.autograd.Function):
    """`torch.fft.rfft`, whose own gradient takes a complex transform of the full length; a real one does."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, dft: int) -> Tensor:
        ctx.length, ctx.dft = signal.shape[-1], dft
        return torch.view_as_real(torch.fft.rfft(signal, n=dft))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # d/dx_t of sum_k <g_k, X_k> is sum_k Re(g_k e^{j 2 pi k t / K}) over the one side that there is. The inverse
        # transform counts every bin twice but the first and, at an even length, the last, and divides by K.
        (gradient,) = gradients
        bins = gradient.shape[-2]
        k = torch.arange(bins, device=gradient.device)
        once = (k == 0) | (2 * k == ctx.dft)
        weight = torch.where(once, float(ctx.dft), ctx.dft / 2).to(gradient.dtype)
        weighted = torch.view_as_complex((gradient * weight[:, None]).contiguous())
        return torch.fft.irfft(weighted, n=ctx.dft)[..., : ctx.length], None


def inverse_at_lags(spectrum: Tensor, dft: int, max_lag: int) -> Tensor:
    """The inverse transform at the lags ``-max_lag..max_lag`` only, as one matrix product.

    For few lags that moves far less through memory than a transform of the whole length, there and back.
    Shape: (..., dft // 2 + 1, 2) -> (..., 2 * max_lag + 1)

    >>> impulse = torch.fft.rfft(torch.eye(8)[6])  # at -2
    >>> inverse_at_lags(torch.view_as_real(impulse), 8, 3).round().abs()
    tensor([0., 1., 0., 0., 0., 0., 0.])
    """
    bins = torch.arange(dft // 2 + 1, device=spectrum.device)
    lags = torch.arange(-max_lag, max_lag + 1, device=spectrum.device)
    # The angle by whole turns in whole numbers: exact however large k times lag is.
    angle = (bins[:, None] * lags % dft).to(torch.float64) * (2 * torch.pi / dft)
    twice = torch.where((bins == 0) | (2 * bins == dft), 1.0, 2.0)[:, None] / dft
    table = torch.stack([torch.cos(angle) * twice, -torch.sin(angle) * twice], dim=1)
    return spectrum.flatten(-2) @ table.flatten(0, 1).to(spectrum.dtype)


BETAS = 11
"""Rows of the image: beta = 0, 0.1 .. 1."""
LAYERS = 5
"""Convolutions of 3 x 3 without padding; the last one leaves a single row."""
EPSILON = 1e-3
"""Added to ``|G|``, so that an empty bin has a weight."""


@dataclass(frozen=True)
class PGCCOptions(NetworkOptions):
    """Everything that shapes the network; the defaults are the published ones (11,558,639 parameters)."""

    LEAST: ClassVar[Mapping[str, int]] = {"max_delay": LAYERS}

    channels: int = 32  # of the first convolution; each further one has twice as many
    hidden: int = 512  # of both hidden layers of the MLP

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(2 * self.max_delay < self.dft, "max_delay", f"; a transform of {self.dft} has no such lags")


def cross_spectrum(first: Tensor, second: Tensor, dft: int, bins: Tensor | None = None) -> Tensor:
    """``X1 conj(X2)`` as real and imaginary parts, zero in masked bins.

    Shape: (..., frame), (..., frame) -> (..., dft // 2 + 1, 2)

    >>> one, other = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    >>> inverse_at_lags(cross_spectrum(one, other, dft=8), 8, 2).round().abs()  # channel 1 hears it a sample later
    tensor([0., 0., 0., 1., 0.])
    """
    a, b = spectrum(first, dft), spectrum(second, dft)
    product = torch.stack([(a * b).sum(-1), a[..., 1] * b[..., 0] - a[..., 0] * b[..., 1]], dim=-1)
    return product if bins is None else product * bins[:, None]


def magnitude(spectrum: Tensor) -> Tensor:
    """``|G|``, with a gradient of 0 where G is 0. Shape: (..., bins, 2) -> (..., bins)"""
    return spectrum.square().sum(-1).clamp_min(torch.finfo(spectrum.dtype).tiny).sqrt()


def correlation_image(frames: Tensor, dft: int, max_delay: int, bins: Tensor | None = None) -> Tensor:
    """The correlations of both channels, a row for each beta from 0 to 1. Swapped channels mirror it left to right.

    Shape: (batch, 2, frame) -> (batch, 11, 2 * max_delay + 1)
    """
    cross = cross_spectrum(frames[:, 0], frames[:, 1], dft, bins)[:, None]
    betas = torch.arange(BETAS, dtype=cross.dtype, device=cross.device) / (BETAS - 1)
    weights = torch.exp(-betas[:, None] * torch.log(magnitude(cross) + EPSILON))
    # Outside autocast, whose 8 bits would drown the small peaks; in TF32 (11 bits) where a training allows it.
    with torch.autocast(frames.device.type, enabled=False):
        return inverse_at_lags(cross * weights[..., None], dft, max_delay)


class PGCC(nn.Module):
    """The network. `frames` are both channels divided by one number, as the card's `scaling` says.

    Shape: (batch, 2, frame) -> (batch, 2 * max_delay + 1)

    >>> sum(p.numel() for p in PGCC().parameters())
    11558639
    """

    def __init__(self, options: PGCCOptions | None = None) -> None:
        super().__init__()
        self.options = o = PGCCOptions() if options is None else options
        widths = [1, *(o.channels * 2**i for i in range(LAYERS))]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(inputs, outputs, 3), nn.BatchNorm2d(outputs), nn.ReLU())
                for inputs, outputs in itertools.pairwise(widths)
            )
        )

        def hidden(inputs: int) -> list[nn.Module]:
            return [nn.Linear(inputs, o.hidden), nn.BatchNorm1d(o.hidden), nn.ReLU(), nn.Dropout(0.2)]

        classes = len(o.delays)
        columns = classes - 2 * LAYERS
        self.mlp = nn.Sequential(*hidden(widths[-1] * columns), *hidden(o.hidden), nn.Linear(o.hidden, classes))
        self.transforms = 2 + BETAS  # of length `dft` for a pair of frames, see `cost.honest_flops`

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the JSON object of a card; options left out keep their defaults."""
        return cls(PGCCOptions.read(options))

    def forward(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """Logits over the delays. `bins`, shape (bins,), is False for frequencies that are to be left out."""
        o = self.options
        o.check_input(frames, bins)
        image = correlation_image(frames, o.dft, o.max_delay, bins)
        logits: Tensor = self.mlp(self.blocks(image[:, None]).flatten(1))
        return logits
