"""From a network's weights to what is left to compute for a frame, in NumPy.

The front end folds as `qkgcc.nets.folding` derives. Batch normalizations become part of the convolutions beside them,
and so does the split of the correlation into symmetric and antisymmetric offsets, a linear map before linear maps. All
in float64, rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats32
from qkgcc.network.shape import BLOCK_KERNEL, COARSE, Shape

Array = npt.NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Convolution:
    """Shape: weight (outputs, inputs, window kernel, kernel), bias (outputs,)"""

    weight: Floats32
    bias: Floats32


@dataclass(frozen=True)
class Block:
    """A separable one: along windows and frequency channel by channel, then across the channels."""

    along: Convolution
    across: Convolution


@dataclass(frozen=True)
class Front:
    """The tables of the front end. The letters are those of `qkgcc.nets.folding`; n numbers in a token."""

    turn: Floats32
    """R. Shape: (n, n)"""
    shift: Floats32
    """r. Shape: (n, bins)"""
    floor: Floats32
    """Shape: (bins,)"""
    plain: Floats32
    """M. Shape: (heads, n + 1, n + 1)"""
    by_query: Floats32
    """L. Shape: (heads, n + 1, bins)"""
    by_key: Floats32
    """N. Shape: (heads, n + 1, bins)"""
    by_both: Floats32
    """T. Shape: (heads, 2 * radius + 1, bins)"""


@dataclass(frozen=True)
class Folded(Front):
    """A steered network."""

    local: Convolution
    gate: Convolution
    evidence: Convolution
    first: Convolution
    second: Convolution
    last: Convolution
    mix: Convolution | None = None
    down: Convolution | None = None
    up: Convolution | None = None
    blocks: tuple[Block, ...] = ()

    @property
    def read(self) -> Floats32:
        """How strongly the first convolution along the delays reads each map. Shape: (maps,)"""
        return np.asarray(np.sqrt(np.square(self.first.weight).sum(axis=(0, 2, 3))))


@dataclass(frozen=True)
class Linear:
    """Shape: weight (outputs, inputs), bias (outputs,)"""

    weight: Floats32
    bias: Floats32


@dataclass(frozen=True)
class Published(Front):
    """QK-GCC as published."""

    convolutions: tuple[Convolution, ...]
    hidden: Linear
    classes: Linear


LARGEST_WEIGHT = 1e18
"""Of a folded network: the product of two is a number in float32, too."""

FRONT = tuple(field.name for field in fields(Front))


def fold(shape: Shape, weights: Mapping[str, Array], dtype: type[np.floating[Any]] = np.float32) -> Folded:
    """Of a checkpoint's tensors, by their names there: computed in float64, rounded at the end."""
    folded = _fitting(lambda w: Folded(**_front(shape, w), **_head(shape, w)), weights)
    _check_front(shape, folded)
    s, inner = shape, shape.block_channels
    layers: dict[str, tuple[Convolution | None, tuple[int, ...]]] = {
        "local": (folded.local, (s.channels, s.features, *s.local_kernel)),
        "gate": (folded.gate, (s.maps, s.channels, *s.gate_kernel)),
        "evidence": (folded.evidence, (2 * s.maps, s.features, 1, 1)),
        "first": (folded.first, (s.delay_channels, s.maps, 1, s.delay_kernel)),
        "second": (folded.second, (s.delay_channels, s.delay_channels, 1, s.delay_kernel)),
        "last": (folded.last, (1, s.delay_channels, 1, s.logit_kernel)),
    }
    if shape.blocks:
        layers |= {
            "mix": (folded.mix, (s.channels, s.channels, 1, 1)),
            "down": (folded.down, (inner, s.channels, 1, COARSE)),
            "up": (folded.up, (s.channels, inner, 1, 1)),
        }
    for i, block in enumerate(folded.blocks):
        layers[f"along {i}"] = block.along, (inner, 1, s.local_kernel[0], BLOCK_KERNEL)
        layers[f"across {i}"] = block.across, (inner, inner, 1, 1)
    for name, (layer, expected) in layers.items():
        assert layer is not None
        _check(name, layer.weight, expected)
        _check(name, layer.bias, expected[:1])
    return _rounded(folded, dtype)


def fold_published(shape: Shape, weights: Mapping[str, Array], dtype: type[np.floating[Any]] = np.float32) -> Published:
    """The same of the published network."""
    folded = _fitting(lambda w: Published(**_front(shape, w), **_published_head(shape, w)), weights)
    _check_front(shape, folded)
    inputs = shape.features
    for i, layer in enumerate(folded.convolutions):
        outputs, _, _, kernel = layer.weight.shape
        _check(f"convolution {i}", layer.weight, (outputs, inputs, 1, kernel))
        _check(f"convolution {i}", layer.bias, (outputs,))
        inputs = outputs
    for name, linear in (("hidden", folded.hidden), ("classes", folded.classes)):
        _check(name, linear.weight, (len(linear.bias), inputs))
        _check(name, linear.bias, (len(linear.bias),))
        inputs = len(linear.bias)
    return _rounded(folded, dtype)


def _rounded(part: T, dtype: type[np.floating[Any]]) -> T:
    """All arrays of a network, or of a part of it, in another precision."""
    if isinstance(part, np.ndarray):
        return part.astype(dtype)  # type: ignore[return-value]
    if isinstance(part, tuple):
        return tuple(_rounded(one, dtype) for one in part)  # type: ignore[return-value]
    if not is_dataclass(part):
        return part
    return replace(part, **{field.name: _rounded(getattr(part, field.name), dtype) for field in fields(part)})  # type: ignore[type-var]


def _check_front(shape: Shape, front: Front) -> None:
    heads, terms, bins = shape.heads, shape.numbers + 1, shape.bins
    _check("turn", front.turn, (shape.numbers, shape.numbers))
    _check("shift", front.shift, (shape.numbers, bins))
    _check("floor", front.floor, (bins,))
    _check("plain", front.plain, (heads, terms, terms))
    _check("by_query", front.by_query, (heads, terms, bins))
    _check("by_key", front.by_key, (heads, terms, bins))
    _check("by_both", front.by_both, (heads, 2 * shape.radius + 1, bins))


def _check(name: str, array: Array, expected: tuple[int, ...]) -> None:
    """Compiled code trusts what it is given."""
    if array.shape != expected:
        raise InputError(
            f"the weights do not fit the network of their card ({name} has the shape {array.shape}, not {expected})"
        )
    if not (np.abs(array) <= LARGEST_WEIGHT).all():
        raise InputError(f"the weights are damaged: {name} holds NaN, infinite or impossibly large numbers")


def _fitting(make: Callable[[Mapping[str, Array]], T], weights: Mapping[str, Array]) -> T:
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            return make({name: np.asarray(array, dtype=np.float64) for name, array in weights.items()})
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"the weights do not fit the network of their card ({error})") from None


def _front(shape: Shape, w: Mapping[str, Array]) -> dict[str, Any]:
    width, heads = shape.width, shape.heads
    columns = w["embed.weight"].T
    columns = columns - columns.mean(-1, keepdims=True)  # W
    if len(w["position"]) != (shape.positions or shape.bins):
        raise ValueError(f"{len(w['position'])} rows of positions, not {shape.positions or shape.bins}")
    offsets = w["embed.bias"] + _at_bins(w["position"], shape.dft)
    offsets = offsets - offsets.mean(-1, keepdims=True)  # c
    basis = np.linalg.qr(columns.T)[0].T
    shift = basis @ offsets.T
    rest = offsets - shift.T @ basis
    root = np.sqrt(width)
    gain = w["norm.weight"]
    rows = np.concatenate([root * basis * gain, w["norm.bias"][None], rest * gain])
    scale = np.exp(w["correlation.log_scale"]) / np.sqrt(width // heads)
    queries = _by_head(rows @ w["query.weight"].T, heads) * scale[:, None, None]
    keys = _by_head(rows @ w["key.weight"].T, heads)
    terms = len(basis) + 1
    (a, e), (b, g) = ((x[:, :terms], x[:, terms:]) for x in (queries, keys))
    tables = {
        "turn": basis @ columns.T / root,
        "shift": shift / root,
        "floor": np.square(rest).mean(-1) + 1e-5,
        "plain": a @ b.swapaxes(1, 2),
        "by_query": b @ e.swapaxes(1, 2),
        "by_key": a @ g.swapaxes(1, 2),
        "by_both": _banded(e, g, shape.radius),
    }
    return {name: np.ascontiguousarray(table) for name, table in tables.items()}


def _at_bins(table: Array, dft: int) -> Array:
    """A table over the frequencies from 0 to half the sample rate, at the bins. Shape: (positions, w) -> (bins, w)"""
    place = 2 * (len(table) - 1) * np.arange(dft // 2 + 1)
    below, weight = place // dft, (place % dft)[:, None] / dft
    above = np.minimum(below + 1, len(table) - 1)
    return np.asarray(table[below] + weight * (table[above] - table[below]))


def _by_head(rows: Array, heads: int) -> Array:
    """Shape: (rows, width) -> (heads, rows, width / heads)"""
    return rows.reshape(len(rows), heads, -1).swapaxes(0, 1)


def _banded(e: Array, g: Array, radius: int) -> Array:
    """Shape: (heads, bins, width) twice -> (heads, 2 * radius + 1, bins), zero outside the band"""
    padded = np.pad(g, ((0, 0), (radius, radius), (0, 0)))
    bins = e.shape[1]
    return np.stack([(e * padded[:, i : i + bins]).sum(-1) for i in range(2 * radius + 1)], axis=1)


def _head(shape: Shape, w: Mapping[str, Array]) -> dict[str, Any]:
    raw = _from_raw_offsets(shape)
    weight, bias = _normed(w, "head.local.0", "head.local.1")
    parts: dict[str, Any] = {
        "local": _convolution(np.einsum("oiwk,ij->ojwk", weight, raw), bias),
        "evidence": _convolution(np.einsum("oiwk,ij->ojwk", w["head.evidence.weight"], raw)),
        "gate": _convolution(w["head.gate.weight"], w["head.gate.bias"]),
    }
    if shape.blocks:
        around = "head.around."
        parts["mix"] = _convolution(w["head.mix.weight"], w["head.mix.bias"])
        parts["down"] = _convolution(*_normed(w, f"{around}down.0", f"{around}down.1"))
        parts["up"] = _convolution(w[f"{around}up.weight"], w[f"{around}up.bias"])
        parts["blocks"] = tuple(
            Block(
                _convolution(*_normed(w, f"{around}blocks.{i}.along", f"{around}blocks.{i}.norm")),
                _convolution(w[f"{around}blocks.{i}.across.weight"], w[f"{around}blocks.{i}.across.bias"]),
            )
            for i in range(shape.blocks)
        )
    # The first convolution along the delays stands between two normalizations; it sees no padding.
    scale, shift = _scale_and_shift(w, "head.delays.0")
    weight, bias = w["head.delays.1.weight"], w["head.delays.1.bias"]
    inner = {"c.weight": weight * scale[:, None], "c.bias": bias + np.einsum("oik,i->o", weight, shift), **w}
    parts["first"] = _in_one_row(*_normed(inner, "c", "head.delays.2"))
    parts["second"] = _in_one_row(*_normed(w, "head.delays.4", "head.delays.5"))
    parts["last"] = _in_one_row(w["head.delays.7.weight"], w["head.delays.7.bias"])
    return parts


def _published_head(shape: Shape, w: Mapping[str, Array]) -> dict[str, Any]:
    (weight, bias), second = (_normed(w, f"head.blocks.{i}.0", f"head.blocks.{i}.1") for i in (0, 1))
    first = np.einsum("oik,ij->ojk", weight, _from_raw_offsets(shape)), bias
    layers = {"hidden": "head.mlp.0", "classes": "head.mlp.2"}
    linear = {name: Linear(*(w[f"{layer}.{part}"] for part in ("weight", "bias"))) for name, layer in layers.items()}
    return {"convolutions": (_in_one_row(*first), _in_one_row(*second)), **linear}


def _from_raw_offsets(shape: Shape) -> Array:
    """From C's raw offsets to what the head was trained to read: center, symmetric, antisymmetric terms."""
    offsets = np.eye(2 * shape.radius + 1)
    if shape.split:
        below, above = offsets[: shape.radius][::-1], offsets[shape.radius + 1 :]
        offsets = np.concatenate([offsets[shape.radius : shape.radius + 1], (above + below) / 2, (above - below) / 2])
    return np.kron(np.eye(shape.heads), offsets)


def _convolution(weight: Array, bias: Array | None = None) -> Convolution:
    bias = np.zeros(len(weight)) if bias is None else bias
    return Convolution(np.ascontiguousarray(weight), np.ascontiguousarray(bias))


def _in_one_row(weight: Array, bias: Array) -> Convolution:
    """A convolution along one axis."""
    return _convolution(weight[:, :, None], bias)


def _scale_and_shift(w: Mapping[str, Array], norm: str) -> tuple[Array, Array]:
    scale = w[f"{norm}.weight"] / np.sqrt(w[f"{norm}.running_var"] + 1e-5)
    return scale, w[f"{norm}.bias"] - w[f"{norm}.running_mean"] * scale


def _normed(w: Mapping[str, Array], layer: str, norm: str) -> tuple[Array, Array]:
    """A convolution's weight and bias, as if the normalization after it were part of them."""
    scale, shift = _scale_and_shift(w, norm)
    weight, bias = w[f"{layer}.weight"], w.get(f"{layer}.bias", 0.0)
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), bias * scale + shift
