"""Fourier transforms of real signals as networks need them: spectra in real numbers, and few lags of the inverse.

Real and imaginary parts stay apart, because torch.compile makes kernels for real numbers and none for complex ones.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def spectrum(signal: Tensor, dft: int) -> Tensor:
    """The spectrum of a signal padded with zeros to `dft` samples, at least in float32.

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
