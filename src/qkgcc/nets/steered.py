"""The steered QK-GCC: query-key matching as published, then accumulated over frequency for each candidate delay.

    C = local frequency correlation of two frames                           `qkgcc.nets.qkgcc`
    gate = softplus(conv(GELU(BN(conv(C)))))                                P maps along frequency, positive;
                                                                            or with `Surroundings`
    E = gate * (C W_E), summed over the windows of the frame                P complex maps: evidence, weighted
    r_p[tau] = sum_k Re(E_p[k] exp(j 2 pi f_k tau)) / sqrt(F)               steered to the delay tau
    logits = conv(GELU(BN(conv(GELU(BN(conv(BN(r))))))))                    along tau

E plays the part of the weighted cross-spectrum X1 conj(X2) in the generalized cross-correlation, and r that of the
correlation: GCC-PHAT is one setting of the weights (`tests/test_models_steered.py`). A mean over frequency forgets
where in the spectrum a phase was seen; this sum uses it.

A frame is one window, or cut into several short ones (`window`), each matched on its own; the gate then looks along
time as well, and can take a sound's beginning, which comes straight from the source, before its reverberation.

Nothing is tied to a maximum delay: tau is whatever is asked for. The convolutions along tau do belong to their `step`.
They get spare lags at both ends, computed as all others, so that a delay's logit does not depend on where the asked
range ends. Nothing is tied to a DFT length either: the positional table is one over frequency, from 0 to half the
sample rate, and the bins' rows are interpolated in it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.qkgcc import FrontEnd, FrontEndOptions
from qkgcc.network.card import current_options
from qkgcc.network.shape import BLOCK_KERNEL, COARSE
from qkgcc.network.steering import count_windows


class Surroundings(nn.Module):
    """What surrounds a bin in time and frequency, seen coarsely: from which the gate tells speech, onsets and noise.

        down    some adjacent bins become one                                    conv, BN, GELU
        blocks  x + GELU(conv 1x1(BN(conv channel by channel(x))))               along windows and frequency
        up      back to the bins, the same for all that were one

    How far to trust a bin changes slowly along frequency: a quarter of the rows has room for three times the channels
    at a third of the cost. The blocks are residual and separable, as in networks for small devices.

    Shape: (batch, channels, windows, rows), (rows,) or None -> (batch, channels, windows, rows)"""

    def __init__(self, channels: int, inside: int, blocks: int, window_kernel: int) -> None:
        super().__init__()
        kernel = (window_kernel, BLOCK_KERNEL)
        self.down = nn.Sequential(
            nn.Conv2d(channels, inside, (1, COARSE), stride=(1, COARSE)), nn.BatchNorm2d(inside), nn.GELU()
        )
        self.blocks = nn.ModuleList(Separable(inside, kernel) for _ in range(blocks))
        self.up = nn.Conv2d(inside, channels, 1)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`x` is zero where the mask is; what is outside the mask counts as outside the band."""
        rows = x.shape[-1]
        spare = -rows % COARSE
        if mask is not None:  # a coarse row is usable where any of its rows is
            mask = torch.unflatten(F.pad(mask, (0, spare)), -1, (-1, COARSE)).amax(-1)
        y: Tensor = _masked(self.down(F.pad(x, (0, spare))), mask)
        for block in self.blocks:
            y = _masked(block(y), mask)
        y = self.up(y)
        return y[..., None].expand(*y.shape, COARSE).flatten(-2)[..., :rows]


class Separable(nn.Module):
    """Channel by channel along windows and frequency, then across the channels, added to what came in."""

    def __init__(self, channels: int, kernel: tuple[int, int]) -> None:
        super().__init__()
        self.along = nn.Conv2d(channels, channels, kernel, padding="same", groups=channels, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.across = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        # Libraries for GPUs take longer for this convolution than for all the rest of a block: a compiler does better.
        written_out = torch.compiler.is_compiling() and x.device.type == "cuda"
        along = shifted_sum(x, self.along.weight) if written_out else self.along(x)
        return x + F.gelu(self.across(self.norm(along)))


def shifted_sum(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution channel by channel, written as the sum of shifted copies, each times its weight.

    Shape: (batch, channels, windows, rows), (channels, 1, height, width) -> (batch, channels, windows, rows)
    """
    height, width = weight.shape[2:]
    windows, rows = x.shape[2:]
    padded = F.pad(x, (width // 2, width // 2, height // 2, height // 2))
    # The product is of the type that convolutions have, which autocast would give them.
    kernel = weight.to(x.dtype)
    total = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            total = total + padded[..., i : i + windows, j : j + rows] * kernel[:, :, i, j, None]
    return total


def _masked(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else x * mask


@dataclass(frozen=True)
class SteeredOptions(FrontEndOptions):
    """Everything that shapes the network; 322,677 parameters by default. Plain JSON values.

    >>> SteeredOptions(max_delay=1, step=0.5).delays
    (-1.0, -0.5, 0.0, 0.5, 1.0)
    """

    LEAST: ClassVar[Mapping[str, int]] = {
        **FrontEndOptions.LEAST,
        "window": 0,
        "positions": 1,
        "blocks": 0,
    }

    window: int = 0  # samples of the half-overlapping windows that a frame is cut into; 0: the frame is the window
    positions: int = 2049  # not a row for each bin: the DFT's length may change
    channels: int = 32  # c1, inside the gate
    blocks: int = 0  # of the coarse look at the surroundings; 0: there is none, and the gate looks around a bin itself
    block_channels: int = 96
    maps: int = 16  # P
    kernel: int = 5  # of the gate along frequency, in bins, odd
    window_kernel: int = 3  # of the gate along the windows, where there are several, odd
    delay_channels: int = 32  # c2, along the delays
    delay_kernel: int = 7  # of the first two convolutions along the delays, in steps, odd
    logit_kernel: int = 5  # of the last one
    step: float = 1.0  # samples between candidate delays

    def __post_init__(self) -> None:
        super().__post_init__()
        self.expect(self.window % 2 == 0, "window", "; expected an even number, windows overlap by half")
        for name in ("kernel", "window_kernel", "delay_kernel", "logit_kernel"):
            self.expect(getattr(self, name) % 2 == 1, name, "; an odd length keeps everything in place")
        self.grid(self.max_delay)

    @property
    def delays(self) -> tuple[float, ...]:
        """The delay of each class, in samples; positive = channel 1 later."""
        return self.grid(self.max_delay)

    @property
    def transformed(self) -> int:
        return self.window or self.frame

    @property
    def windows(self) -> int:
        """Windows of a frame."""
        return count_windows(self.frame, self.window) if self.window else 1

    @property
    def spare(self) -> int:
        """Lags that the convolutions along the delays use up at each end."""
        return 2 * (self.delay_kernel // 2) + self.logit_kernel // 2

    def grid(self, max_delay: float) -> tuple[float, ...]:
        """Candidate delays from ``-max_delay`` to ``max_delay``, in samples."""
        count = round(max_delay / self.step)
        if max_delay < 0 or abs(count * self.step - max_delay) > 1e-6 * self.step:
            raise InputError(
                f"the maximum delay is {max_delay}; expected a multiple of the step of {self.step} samples"
            )
        return tuple(i * self.step for i in range(-count, count + 1))


def steering_table(frequencies: Tensor, delays: Tensor) -> Tensor:
    """What steers evidence ``[Re E, Im E]``: ``Re(E exp(j 2 pi f tau))`` summed over f is its product with this.

    Frequencies in cycles a sample, delays in samples.
    Shape: (bins,), (delays,) -> (2 * bins, delays)
    """
    angle = 2 * torch.pi * frequencies[:, None] * delays
    return torch.cat([torch.cos(angle), -torch.sin(angle)])


class Steering(nn.Module):
    """The sum over frequency, for evenly spaced delays, as one matrix product. It has no weights.

    Shape: (batch, maps, 2 * bins) -> (batch, maps, count)
    """

    def __init__(self, dft: int, step: float) -> None:
        super().__init__()
        self.dft, self.step = dft, step

    def forward(self, evidence: Tensor, center: float, count: int) -> Tensor:
        """Steered to `count` delays around `center`, in samples."""
        # A compiled network computes its table among its kernels; a CPU would take longer for it than for the product.
        table = _grid_table if torch.compiler.is_compiling() else _remembered_grid_table
        grid = (self.dft, center, self.step, count)
        return evidence @ table(*grid, dtype=evidence.dtype, device=evidence.device)

    def macs(self, output: Tensor) -> int:
        """Multiply-accumulates behind `output`, see `qkgcc.nets.cost`."""
        return output.numel() * 2 * (self.dft // 2 + 1)


def _grid_table(
    dft: int, center: float, step: float, count: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    # In float64, and from the middle outwards: the mirrored grid has the mirrored table to the bit.
    bins, steps = (torch.arange(n, dtype=torch.float64, device=device) for n in (dft // 2 + 1, count))
    delays = (steps - (count - 1) / 2) * step + center
    return steering_table(bins / dft, delays).to(dtype)


@lru_cache(maxsize=8)
def _remembered_grid_table(*grid: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # kept for a training too
        return _grid_table(*grid, dtype=dtype, device=torch.device("cpu")).to(device)  # not every GPU has float64


class SteeredHead(nn.Module):
    """Gate, evidence, steering, and the convolutions along the delays.

    Shape: (batch * windows, features, bins) -> (batch, count)
    """

    def __init__(self, options: SteeredOptions) -> None:
        super().__init__()
        self.windows, self.maps, self.spare = options.windows, options.maps, options.spare
        self.blocks = options.blocks
        o = options
        kernel = (o.window_kernel if o.window else 1, o.kernel)
        self.local = nn.Sequential(
            nn.Conv2d(o.features, o.channels, kernel, padding="same"), nn.BatchNorm2d(o.channels), nn.GELU()
        )
        if o.blocks:
            self.around = Surroundings(o.channels, o.block_channels, o.blocks, kernel[0])
            self.mix = nn.Conv2d(o.channels, o.channels, 1)
        self.gate = nn.Conv2d(o.channels, o.maps, 1 if o.blocks else kernel, padding="same")
        # It has no bias: what is zero, as masked bins are, stays zero.
        self.evidence = nn.Conv2d(o.features, 2 * o.maps, 1, bias=False)  # real and imaginary part of each map in turn
        self.steering = Steering(o.dft, o.step)
        self.delays = nn.Sequential(
            nn.BatchNorm1d(o.maps),
            nn.Conv1d(o.maps, o.delay_channels, o.delay_kernel),
            nn.BatchNorm1d(o.delay_channels),
            nn.GELU(),
            nn.Conv1d(o.delay_channels, o.delay_channels, o.delay_kernel),
            nn.BatchNorm1d(o.delay_channels),
            nn.GELU(),
            nn.Conv1d(o.delay_channels, 1, o.logit_kernel),
        )

    def weighted_evidence(self, features: Tensor, bins: Tensor | None) -> Tensor:
        """E, real and imaginary. Shape: (batch * windows, features, bins) -> (batch, maps, 2, bins)"""
        x = torch.unflatten(features, 0, (-1, self.windows)).transpose(1, 2)  # (batch, features, windows, bins)
        local = self.local(x)
        mask = None if bins is None else bins.to(local.dtype)
        if mask is not None:
            local = local * mask
        if self.blocks:
            local = F.gelu(self.mix(local) + self.around(local, mask))
        gate = F.softplus(self.gate(local))
        weighted: Tensor = torch.unflatten(self.evidence(x), 1, (self.maps, 2)) * gate[:, :, None]
        return weighted.sum(-2)

    def read(self) -> Tensor:
        """How strongly the first convolution along the delays reads each map, in eval mode. Shape: (maps,)"""
        first: list[Any] = list(self.delays)[:3]
        norm, convolution, next_norm = first
        before, after = (x.weight / torch.sqrt(x.running_var + x.eps) for x in (norm, next_norm))
        weight: Tensor = after[:, None, None] * convolution.weight * before[:, None]
        strength: Tensor = torch.linalg.vector_norm(weight, dim=(0, 2))
        return strength

    def forward(self, features: Tensor, bins: Tensor | None, center: float, count: int) -> Tensor:
        """Logits of `count` delays around `center`, in samples."""
        evidence = self.weighted_evidence(features, bins)
        # A sum over thousands of bins and the few numbers after it are not for half precision.
        with torch.autocast(features.device.type, enabled=False):
            evidence = evidence.to(torch.promote_types(evidence.dtype, torch.float32))
            steered = self.steering(evidence.flatten(-2), center, count + 2 * self.spare)
            # A sum of noise grows with the root of the number of its terms: divided by it, noise has one size whatever
            # the band, and what is coherent stands out the more, the wider the band and the longer the frame.
            usable = features.shape[-1] if bins is None else bins.sum().clamp_min(1).to(steered.dtype)
            steered = steered / (self.windows * usable) ** 0.5
            logits: Tensor = self.delays(steered)
        return logits.squeeze(1)


class Steered(FrontEnd):
    """The network. `frames` are both channels divided by one number, as the card's `scaling` says.

    Shape: (batch, 2, frame) -> (batch, delays)

    >>> sum(p.numel() for p in Steered().parameters())
    322677
    """

    options: SteeredOptions

    symmetric: bool = False
    """Take the mean with the mirrored logits of the swapped pair: swapping the channels then mirrors the answer
    exactly. The network runs twice. No weight and no option of a card: any trained network can be used so."""

    def __init__(self, options: SteeredOptions | None = None) -> None:
        o = SteeredOptions() if options is None else options
        super().__init__(o)
        self.head = SteeredHead(o)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Build from the JSON object of a card; options left out keep their defaults."""
        return cls(SteeredOptions.read(current_options("steered", options)))

    @property
    def transforms(self) -> int:
        """Of a pair of frames, see `qkgcc.nets.cost`."""
        return 2 * self.options.windows

    def resized(self, *, frame: int, dft: int) -> Self:
        """The network for another frame and DFT length; its parameters are those of this one, not copies.

        Windows keep their length: of another frame there are more or fewer.
        """
        with torch.device("meta"):
            twin = type(self)(dataclasses.replace(self.options, frame=frame, dft=dft))
        twin.load_state_dict(self.state_dict(keep_vars=True), assign=True)
        twin.folded, twin.symmetric = self.folded, self.symmetric
        return twin.train(self.training)

    def forward(
        self,
        frames: Tensor,
        bins: Tensor | None = None,
        delays: Sequence[float] | None = None,
        *,
        max_delay: float | None = None,
    ) -> Tensor:
        """Logits over the delays of the options, or over others.

        Args:
            bins: (bins,), False for frequencies that the recording cannot hold. In eval mode, masking the top of the
                band is the same as a network whose band ends there.
            delays: in samples, `options.step` apart; they may begin and end anywhere, between samples too.
            max_delay: in samples, a multiple of `options.step`: short for ``delays=options.grid(max_delay)``.
        """
        o = self.options
        if delays is None:
            delays = o.grid(o.max_delay if max_delay is None else max_delay)
        elif max_delay is not None:
            raise InputError("give delays or max_delay, not both")
        _check_grid(delays, o.step)
        center, count = (delays[0] + delays[-1]) / 2, len(delays)
        logits: Tensor = self.head(self.features(frames, bins), bins, center, count)
        if self.symmetric:
            swapped = self.head(self.features(frames.flip(1), bins), bins, -center, count)
            logits = (logits + swapped.flip(-1)) / 2
        return logits

    def _transformed(self, frames: Tensor) -> Tensor:
        o = self.options
        if not o.window:
            return frames
        hop = o.window // 2
        padded = F.pad(frames, (0, (o.windows + 1) * hop - o.frame))
        cut = torch.stack([padded[..., i * hop : i * hop + o.window] for i in range(o.windows)], dim=1)
        return (cut * torch.hann_window(o.window, dtype=frames.dtype, device=frames.device)).flatten(0, 1)

    def reliability(self, frames: Tensor, bins: Tensor | None = None) -> Tensor:
        """Size of each frequency's weighted evidence, each map as strongly as it is read: how much it counts.

        Shape: (batch, 2, frame) -> (batch, bins)
        """
        with torch.no_grad():
            evidence = self.head.weighted_evidence(self.features(frames, bins), bins)
            evidence = evidence * self.head.read()[:, None, None]
            size: Tensor = torch.linalg.vector_norm(evidence.flatten(1, 2), dim=1)
            return size

    def macs(self, output: Tensor) -> int:
        """Of the folded matching, see `FrontEnd.macs`."""
        return super().macs(output) * self.options.windows * (2 if self.symmetric else 1)


def _check_grid(delays: Sequence[float], step: float) -> None:
    """The convolutions along the delays know one spacing."""
    uneven = any(not math.isclose(b - a, step, rel_tol=1e-6) for a, b in itertools.pairwise(delays))
    if len(delays) == 0 or uneven:
        raise InputError(f"delays are {list(delays)}; expected at least one, {step} samples apart")
