"""NGCC-PHAT (Berg, O'Connor, Astrom and Oskarsson, Interspeech 2022): correlations of learned, filtered signals.

    y = backbone(x), for both channels                     sinc filters, then convolutions, all circular in time
    R_c[tau] = PHAT correlation of y1_c and y2_c           one for each of 128 filters c, `qkgcc.nets.pgcc`
    logits[tau] = convolutions along tau of R              128 maps to one, zero padded

A filter that both channels share, and that commutes with time shifts, leaves their delay as it is. The delay is
positive when channel 1 hears the source later; logit i stands for a delay of ``i - max_delay`` samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.options import NetworkOptions, check_weights
from qkgcc.nets.pgcc import EPSILON, cross_spectrum, inverse_at_lags, magnitude, spectrum

KERNELS = (11, 9, 7)
"""Lengths of the convolutions of the backbone, in samples, and of those along the lags."""
LAST_KERNEL = 5
"""Length of the convolution that makes the logits, in lags."""
LEAST_HZ = 50.0
"""No filter of the bank begins lower or is narrower."""


@dataclass(frozen=True)
class NGCCOptions(NetworkOptions):
    """Everything that shapes the network; the defaults are the published ones (888,193 parameters)."""

    LEAST: ClassVar[Mapping[str, int]] = {"max_delay": 0, "frame": max(KERNELS), "sample_rate": 300}

    sample_rate: int = 16000  # Hz; the bank's edges are frequencies
    channels: int = 128  # filters of the bank and of every convolution
    taps: int = 1023  # length of the bank's filters in samples, odd

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(2 * self.max_delay < self.dft, "max_delay", f"; a transform of {self.dft} has no such lags")
        self.expect(self.taps % 2 == 1, "taps", "; an odd length keeps the filters without delay")
        self.expect(self.taps <= self.frame, "taps", f", longer than the frame of {self.frame} samples")


class SincBank(nn.Module):
    """Band-pass filters whose two edges are learned, applied to a frame as if it repeated for ever.

    The filter of the band from f1 to f2 is the mean of ``cos(2 pi f n / fs)`` over f1 <= f <= f2, which is
    ``cos(2 pi (f1 + f2) / 2 n / fs) sinc((f2 - f1) n / fs)``, times a Hamming window. Its value at n = 0 is 1.
    Circular convolution is the product of spectra: exact, and a fraction of the work of sums over 1023 taps.

    Shape: (..., frame) -> (..., filters, frame)
    """

    window: Tensor
    time: Tensor

    def __init__(self, filters: int, taps: int, frame: int, sample_rate: int) -> None:
        super().__init__()
        self.taps, self.sample_rate = taps, sample_rate
        low, high = (2595 * math.log10(1 + hz / 700) for hz in (30, sample_rate / 2 - 2 * LEAST_HZ))
        mel = torch.linspace(low, high, filters + 1, dtype=torch.float64)
        edges = (700 * (10 ** (mel / 2595) - 1)).to(torch.get_default_dtype())
        self.low = nn.Parameter(edges[:-1, None].clone())  # Hz above the least, like the next
        self.band = nn.Parameter(edges.diff()[:, None])
        # Both of the filter's halves in the order of a circle: n = 0, 1 .. taps // 2, nothing, -(taps // 2) .. -1.
        half = torch.hamming_window(taps, periodic=False)[taps // 2 :]
        gap = torch.zeros(frame - taps)
        time = torch.arange(frame, dtype=half.dtype)
        self.register_buffer("window", torch.cat([half, gap, half[1:].flip(0)]), persistent=False)
        self.register_buffer("time", torch.where(time > frame // 2, time - frame, time), persistent=False)

    def edges(self) -> tuple[Tensor, Tensor]:
        """The lower and the upper edge of each filter, Hz. Shape: (filters, 1), (filters, 1)"""
        low = LEAST_HZ + self.low.abs()
        return low, (low + LEAST_HZ + self.band.abs()).clamp_max(self.sample_rate / 2)

    def filters(self) -> Tensor:
        """The filters around the circle of a frame, n = 0 first. Shape: (filters, frame)"""
        low, high = self.edges()
        seconds = self.time / self.sample_rate
        return self.window * torch.cos(math.pi * (low + high) * seconds) * torch.sinc((high - low) * seconds)

    def forward(self, frames: Tensor) -> Tensor:
        frame = len(self.time)
        response = spectrum(self.filters(), frame)[..., 0]  # real: the filters are even
        spectra = spectrum(frames, frame)
        filtered = torch.view_as_complex(spectra[..., None, :, :] * response[..., None])
        signals: Tensor = torch.fft.irfft(filtered, n=frame)
        return signals

    def macs(self, output: Tensor) -> int:
        """Multiply-accumulates of the convolution, as `qkgcc.nets.cost` asks of modules that torch does not know."""
        return output.numel() * self.taps


class Backbone(nn.Module):
    """The sinc bank and three convolutions, all circular, each normalized; no activation after the last.

    Shape: (2, batch, frame) -> (batch, channels, frame) for each of both
    """

    def __init__(self, options: NGCCOptions) -> None:
        super().__init__()
        o = options
        self.bank = SincBank(o.channels, o.taps, o.frame, o.sample_rate)
        layers: list[nn.Module] = [nn.BatchNorm1d(o.channels, momentum=0.05)]
        for kernel in KERNELS:
            conv = nn.Conv1d(o.channels, o.channels, kernel, padding=kernel // 2, padding_mode="circular")
            layers += [nn.LeakyReLU(0.2), conv, nn.BatchNorm1d(o.channels, momentum=0.05)]
        self.layers = nn.Sequential(*layers)

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.bank(frames)
        # One channel after the other, as published: in training each is normalized by its own statistics.
        return self.layers(first), self.layers(second)


class NGCC(nn.Module):
    """The network. `frames` are both channels divided by one number, as the card's `scaling` says.

    Shape: (batch, 2, frame) -> (batch, 2 * max_delay + 1)

    >>> sum(p.numel() for p in NGCC().parameters())
    888193
    """

    def __init__(self, options: NGCCOptions | None = None) -> None:
        super().__init__()
        self.options = o = NGCCOptions() if options is None else options
        self.backbone = Backbone(o)
        layers: list[nn.Module] = []
        for kernel in KERNELS:
            conv = nn.Conv1d(o.channels, o.channels, kernel, padding=kernel // 2)
            layers += [conv, nn.BatchNorm1d(o.channels), nn.LeakyReLU(0.2), nn.Dropout(0.5)]
        self.head = nn.Sequential(*layers, nn.Conv1d(o.channels, 1, LAST_KERNEL, padding=LAST_KERNEL // 2))
        self.transforms = 3 * o.channels  # of length `dft` for a pair of frames, see `cost.honest_flops`

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the JSON object of a card; options left out keep their defaults."""
        return cls(NGCCOptions.read(options))

    def correlations(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """The PHAT correlation of both channels behind each filter; swapped channels mirror it.

        Shape: (batch, 2, frame) -> (batch, channels, 2 * max_delay + 1)
        """
        o = self.options
        o.check_input(frames, bins)
        first, second = self.backbone(frames.transpose(0, 1))
        cross = cross_spectrum(first, second, o.dft, bins)
        with torch.autocast(frames.device.type, enabled=False):
            return inverse_at_lags(cross / (magnitude(cross) + EPSILON)[..., None], o.dft, o.max_delay)

    def forward(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """Logits over the delays. `bins`, shape (bins,), is False for frequencies that are to be left out."""
        logits: Tensor = self.head(self.correlations(frames, bins))
        return logits[:, 0]


def _published_names() -> dict[str, str]:
    learned, normalized = ["weight", "bias"], ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    names = {"backbone.conv.0.low_hz_": "backbone.bank.low", "backbone.conv.0.band_hz_": "backbone.bank.band"}
    for i in range(len(KERNELS) + 1):
        names |= {f"backbone.bn.{i}.{end}": f"backbone.layers.{3 * i}.{end}" for end in normalized}
    for i in range(len(KERNELS)):
        names |= {f"backbone.conv.{i + 1}.{end}": f"backbone.layers.{3 * i + 2}.{end}" for end in learned}
        names |= {f"mlp.{i}.0.{end}": f"head.{4 * i}.{end}" for end in learned}
        names |= {f"mlp.{i}.1.{end}": f"head.{4 * i + 1}.{end}" for end in normalized}
    return names | {f"final_conv.{end}": f"head.{4 * len(KERNELS)}.{end}" for end in learned}


PUBLISHED_NAMES: dict[str, str] = _published_names()
"""The name of each tensor in the authors' weights (github.com/axeber01/ngcc), and its name here."""


def load_published(state: Mapping[str, Tensor]) -> NGCC:
    """The network with the weights that its authors published, in eval mode.

    `state` is what ``torch.load("model.pth", weights_only=True)`` reads. The published convention of the delay's sign
    is the one here.
    """
    with torch.random.fork_rng(devices=[]):
        model = NGCC()
    own = model.state_dict()
    expected = {published: own[name] for published, name in PUBLISHED_NAMES.items()}
    if not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise InputError("these are not the published weights of NGCC-PHAT: expected tensors by name, a state dict")
    check_weights(expected, state, "these are not the published weights of NGCC-PHAT")
    model.load_state_dict({PUBLISHED_NAMES[published]: tensor for published, tensor in state.items()})
    return model.eval()
