"""What a network is to say: the class of the true delay, or a narrow Gaussian around it.

A class is what the paper trains on. With a Gaussian of a fixed width the logits learn to be a parabola around the true
delay, wherever between two candidates it lies, so that its top can be read between them (`decoding`).

Most frames of a reverberant recording allow several delays, of which the truth is but one: a larger network's posterior
(`teacher`) says how likely each was, and a small one learns more from it than from the truth alone.

Delays that the microphones' spacing rules out take no part: whoever uses the network leaves them out, too.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_NEVER = -1e4  # a logit: no probability, and no infinity to spoil a gradient


def cross_entropy(
    logits: Tensor,
    grid: Tensor,
    delays: Tensor,
    *,
    width: float = 0.0,
    limits: Tensor | None = None,
    taught: Tensor | None = None,
    teacher_weight: float = 0.0,
) -> Tensor:
    """Mean cross-entropy of logits over a grid of delays with the true ones.

    Args:
        grid: the candidate delays in samples, evenly spaced.
        width: standard deviation of the Gaussian in samples; 0: the nearest candidate.
        limits: the largest delay that each pair's microphones allow, in samples; None: all candidates.
        taught: a teacher's logits, (batch, L): `teacher_weight` of the loss is the cross-entropy with its posterior.
    Shape: (batch, L), (L,), (batch,), (batch,) -> ()

    >>> grid = torch.arange(-2.0, 3.0)
    >>> even = torch.zeros(1, 5)
    >>> round(float(cross_entropy(even, grid, torch.tensor([0.4]), limits=torch.tensor([1.0]))), 4)  # log 3
    1.0986
    """
    logits = masked(logits, grid, limits)
    if width == 0:
        step = grid[1] - grid[0]
        nearest = ((delays - grid[0]) / step).round().clamp(0, len(grid) - 1).long()
        loss = F.cross_entropy(logits, nearest)
    else:
        target = masked(-(((grid - delays[:, None]) / width) ** 2) / 2, grid, limits)
        loss = F.cross_entropy(logits, F.softmax(target, dim=-1))
    if taught is None:
        return loss
    posterior = F.softmax(masked(taught, grid, limits), dim=-1)
    return (1 - teacher_weight) * loss + teacher_weight * F.cross_entropy(logits, posterior)


def masked(logits: Tensor, grid: Tensor, limits: Tensor | None) -> Tensor:
    """Logits without the candidates beyond the limits. Shape: (batch, L), (L,), (batch,) -> (batch, L)"""
    if limits is None:
        return logits
    return torch.where(grid.abs() <= limits[:, None] + 1e-6, logits, _NEVER)
