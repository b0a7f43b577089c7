"""Transforms of real signals give what torch's do, gradients too."""

import pytest

pytest.importorskip("torch")

import torch

from qkgcc.nets.pgcc import inverse_at_lags, spectrum

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize(("length", "dft"), [(16, 16), (16, 32), (15, 15), (9, 21)])
def test_the_spectrum_and_its_gradient_are_those_of_rfft(length: int, dft: int) -> None:
    signal = torch.randn(3, 2, length, dtype=torch.float64, requires_grad=True)
    expected = torch.view_as_real(torch.fft.rfft(signal, n=dft))
    torch.testing.assert_close(spectrum(signal, dft), expected)
    weight = torch.randn_like(expected)
    (ours,) = torch.autograd.grad((spectrum(signal, dft) * weight).sum(), signal)
    (theirs,) = torch.autograd.grad((expected * weight).sum(), signal)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dft", [64, 63])
def test_few_lags_are_those_of_irfft(dft: int) -> None:
    values = torch.randn(4, dft // 2 + 1, 2, dtype=torch.float64, requires_grad=True)
    whole = torch.fft.irfft(torch.view_as_complex(values), n=dft)
    expected = torch.cat([whole[..., -5:], whole[..., :6]], dim=-1)
    torch.testing.assert_close(inverse_at_lags(values, dft, 5), expected)
    (ours,) = torch.autograd.grad(inverse_at_lags(values, dft, 5).square().sum(), values)
    (theirs,) = torch.autograd.grad(expected.square().sum(), values)
    torch.testing.assert_close(ours, theirs)


def test_half_precision_signals_have_spectra_in_full() -> None:
    assert spectrum(torch.randn(8).to(torch.bfloat16), 16).dtype == torch.float32
    assert spectrum(torch.randn(8, dtype=torch.float64), 16).dtype == torch.float64


def test_long_transforms_keep_their_accuracy_in_float32() -> None:
    values = torch.randn(50, 2049, 2, generator=torch.Generator().manual_seed(0))
    exact = inverse_at_lags(values.double(), 4096, 23)
    error = (inverse_at_lags(values, 4096, 23) - exact).norm() / exact.norm()
    assert error < 1e-6
