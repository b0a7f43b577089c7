"""A folded network in NumPy, layer by layer as it is defined."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special

from qkgcc.core.types import Floats32
from qkgcc.network.folding import Convolution, Folded, Front, Published
from qkgcc.network.shape import COARSE, Shape

Array = npt.NDArray[Any]


def evidence(shape: Shape, net: Folded, spectra: Array, usable: Floats32) -> Floats32:
    """Weighted, summed over the windows. Shape: (batch, windows, 2, bins), (bins,) -> (batch, maps, 2, rows)"""
    x = correlation(shape, net, spectra, usable).swapaxes(1, 2)
    seen = gelu(_convolved(x, net.local)) * usable
    if shape.blocks:
        assert net.mix is not None
        seen = gelu(_convolved(seen, net.mix) + _surroundings(net, seen, usable))
    gate = np.logaddexp(0, _convolved(seen, net.gate))
    weighted = _convolved(x, net.evidence).reshape(len(x), shape.maps, 2, *x.shape[2:]) * gate[:, :, None]
    total: Floats32 = weighted.sum(-2)
    return total


def logits(net: Folded, found: Floats32, steering: Floats32) -> Floats32:
    """Shape: (batch, maps, 2, rows), (2 * rows, lags + 2 * spare) -> (batch, lags)"""
    steered = found.reshape(*found.shape[:2], -1) @ steering
    inner = gelu(_valid(gelu(_valid(steered, net.first)), net.second))
    return np.asarray(_valid(inner, net.last)[:, 0])


def published_means(shape: Shape, net: Published, spectra: Array, usable: Floats32) -> Floats32:
    """Over the usable bins, after both convolutions. Shape: (batch, 1, 2, bins), (bins,) -> (batch, channels)"""
    x: Array = correlation(shape, net, spectra, usable).swapaxes(1, 2)
    for layer in net.convolutions:
        x = gelu(_convolved(x, layer)) * usable
    return np.asarray(x.sum(axis=(-2, -1)) / max(1.0, float(usable.sum())))


def classes(net: Published, means: Floats32) -> Floats32:
    """The MLP. Shape: (channels,) -> (classes,)"""
    hidden = gelu(net.hidden.weight @ means + net.hidden.bias)
    return np.asarray(net.classes.weight @ hidden + net.classes.bias)


def correlation(shape: Shape, net: Front, spectra: Array, usable: Floats32) -> Floats32:
    """C at the raw offsets. Shape: (batch, windows, 2, bins) -> (batch, windows, features, bins)"""
    y = np.einsum("ij,...jk->...ik", net.turn, _tokens(spectra, shape.magnitude)) + net.shift
    inverse = usable / np.sqrt(np.square(y).sum(-2) + net.floor)  # (batch, windows, 2, bins)
    rows = np.concatenate(
        [y * inverse[..., None, :], np.broadcast_to(usable, (*y.shape[:-2], 1, y.shape[-1]))], axis=-2
    )
    (a, b), (s, t) = np.moveaxis(rows, 2, 0), np.moveaxis(inverse, 2, 0)
    u = np.einsum("hji,...jk->...hik", net.plain, a) + s[..., None, None, :] * net.by_query
    v = t[..., None, None, :] * net.by_key
    bins, radius = shape.bins, shape.radius
    b, v, t = (np.pad(z, [(0, 0)] * (z.ndim - 1) + [(radius, radius)]) for z in (b, v, t))
    found = []
    for i in range(2 * radius + 1):
        here = slice(i, i + bins)
        terms = (u * b[..., None, :, here] + a[..., None, :, :] * v[..., here]).sum(-2)
        found.append(terms + (s * t[..., here])[..., None, :] * net.by_both[:, i])
    result: Floats32 = np.stack(found, axis=3).reshape(*spectra.shape[:2], -1, bins)
    return result


def _tokens(spectra: Array, magnitude: bool) -> Array:
    """Shape: (..., bins) -> (..., numbers, bins)"""
    tiny = np.finfo(np.float32).tiny
    power = np.square(spectra.real) + np.square(spectra.imag)
    size = np.sqrt(np.maximum(power, tiny))
    cosine, sine = np.where(power < tiny, 1, spectra.real / size), np.where(power < tiny, 0, spectra.imag / size)
    return np.stack([np.log1p(size), cosine, sine] if magnitude else [cosine, sine], axis=-2)


def _surroundings(net: Folded, x: Array, mask: Array) -> Array:
    assert net.down is not None
    assert net.up is not None
    bins = x.shape[-1]
    spare = -bins % COARSE
    mask = np.pad(mask, (0, spare)).reshape(-1, COARSE).max(-1)
    parts = np.pad(x, [(0, 0)] * 3 + [(0, spare)]).reshape(*x.shape[:3], -1, COARSE)
    y = np.einsum("bcwrk,ock->bowr", parts, net.down.weight[:, :, 0], optimize=True)
    y = gelu(y + net.down.bias[:, None, None]) * mask
    for block in net.blocks:
        y = (y + gelu(_convolved(_depthwise(y, block.along), block.across))) * mask
    return np.repeat(_convolved(y, net.up), COARSE, axis=-1)[..., :bins]


def _taps(x: Array, kernel: tuple[int, ...]) -> Array:
    """What each place sees. Shape: (batch, channels, windows, rows) -> (batch, channels, windows, rows, kernel...)"""
    around = [(n // 2, n // 2) for n in kernel]
    return np.lib.stride_tricks.sliding_window_view(np.pad(x, [(0, 0), (0, 0), *around]), kernel, axis=(2, 3))


def _convolved(x: Array, layer: Convolution) -> Array:
    """Shape: (batch, inputs, windows, rows) -> (batch, outputs, windows, rows)"""
    sums = np.tensordot(_taps(x, layer.weight.shape[2:]), layer.weight, axes=((1, 4, 5), (1, 2, 3)))
    return np.moveaxis(sums + layer.bias, -1, 1)


def _depthwise(x: Array, layer: Convolution) -> Array:
    sums = np.einsum("bcwrij,cij->bcwr", _taps(x, layer.weight.shape[2:]), layer.weight[:, 0])
    return np.asarray(sums + layer.bias[:, None, None])


def _valid(x: Array, layer: Convolution) -> Array:
    """Without padding. Shape: (batch, inputs, n) -> (batch, outputs, n - kernel + 1)"""
    taps = np.lib.stride_tricks.sliding_window_view(x, layer.weight.shape[-1], axis=-1)
    return np.moveaxis(np.tensordot(taps, layer.weight[:, :, 0], axes=((1, 3), (1, 2))) + layer.bias, -1, 1)


def gelu(x: Array) -> Array:
    return np.asarray(x * scipy.special.ndtr(x))
