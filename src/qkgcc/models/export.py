"""A steered QK-GCC as ONNX: the same logits from NumPy and onnxruntime, without torch.

    spectra   (batch, windows, 2, 2, bins)  real and imaginary parts of both channels' spectra, of each window
    bins      (bins,)                       1, or 0 for frequencies that the recording cannot hold
    steering  (2 rows, lags + 2 spare)      what steers evidence to each candidate delay, `qkgcc.steering`
    ->  logits (batch, lags), and on demand reliability (batch, rows): the size of each frequency's weighted evidence

This is the form that the package runs. Transforms stay outside: NumPy has quick ones. So do the candidate delays: any
number of them, anywhere. `qkgcc.models.standalone` puts both inside, for programs in other languages. All that depends
on weights only is computed here once: the front end is folded (`qkgcc.models.folding`), batch normalizations are part
of the convolutions beside them, and so is the split of the correlation into symmetric and antisymmetric offsets, a
linear map before linear maps. The nodes are standard ones of opset 20.

The graph is written node by node rather than traced: a dozen lines more, and what runs is what stands here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from qkgcc.card import KEY, Card
from qkgcc.errors import InputError
from qkgcc.models.folding import fold
from qkgcc.models.graph import Graph, save, value
from qkgcc.models.matching import TILE, center_symmetric_antisymmetric
from qkgcc.models.qkgcc import QKGCC
from qkgcc.models.steered import Steered
from qkgcc.models.surroundings import Surroundings
from qkgcc.runtime import PROBE_KEY, probe_frames

_FEW = 2  # offsets to each side, up to which a product for each is quicker than a product of tiles


def export(model: Steered, card: Card, path: Path) -> None:
    """Write the network of a card as ONNX, in the form that this package runs, with the card in its metadata."""
    if not isinstance(model, Steered):
        raise InputError(f"a {type(model).__name__} is no steered QK-GCC: only that one is exported")
    with torch.no_grad():
        known = model.cpu()(torch.from_numpy(probe_frames(1, card.frame)))[0]
    save(network_graph(model), {KEY: card.to_json(), PROBE_KEY: json.dumps(known.tolist())}, path)


def network_graph(model: Steered | QKGCC) -> onnx.GraphProto:
    """The network as it answers in eval mode, in float32. A published one has no input `steering`."""
    o = model.options
    build = Graph()
    inputs = [value("spectra", ["batch", "windows" if _cut(model) else 1, 2, 2, o.bins]), value("bins", [o.bins])]
    with torch.no_grad():
        correlation = _correlation(build, model)
        if isinstance(model, QKGCC):
            _published_head(build, model, correlation)
            return build.to_proto("published", inputs, [value("logits", ["batch", len(o.delays)])])
        rows = -(-o.bins // model.options.pool)
        _head(build, model, correlation, rows)
    inputs.append(value("steering", [2 * rows, "steered"]))
    return build.to_proto(
        "steered", inputs, [value("logits", ["batch", "lags"]), value("reliability", ["batch", rows])]
    )


def _cut(model: Steered | QKGCC) -> bool:
    """Whether frames are cut into windows."""
    return isinstance(model, Steered) and model.options.window > 0


def _correlation(build: Graph, model: Steered | QKGCC) -> str:
    """C at the raw offsets. Shape: (batch, heads * (2 * radius + 1), windows, bins)

    Up to its last lines, "batch" is that of all windows.
    """
    o = model.options
    folded = fold(model.embed, model.positions(), model.norm, model.query, model.key, model.correlation)
    tokens = _tokens(build, o.bins, o.magnitude)  # (batch, 2, n, bins)
    y = build.add("Add", build.add("MatMul", folded.turn, tokens), folded.shift)
    variance = build.add("ReduceSum", build.add("Mul", y, y), [2], keepdims=1)
    sigma = build.add("Sqrt", build.add("Add", variance, folded.floor))
    inverse = build.add("Div", "bins", sigma)  # (batch, 2, 1, bins), zero where masked
    ones = build.add("Mul", inverse, sigma)  # the mask, in the shape of the batch
    rows = build.add("Concat", build.add("Mul", y, inverse), ones, axis=2)  # (batch, 2, n + 1, bins)
    (a, b), (s, t) = ([build.part(x, 1, channel, channel + 1) for channel in (0, 1)] for x in (rows, inverse))
    u = build.add("Add", build.add("MatMul", folded.plain.mT, a), build.add("Mul", s, folded.by_query))
    v = build.add("Mul", t, folded.by_key)  # both (batch, heads, n + 1, bins)
    shape = [1, o.heads, folded.plain.shape[-1], 1]
    left = build.add("Concat", u, build.add("Expand", a, shape), axis=2)
    right = build.add("Concat", build.add("Expand", b, shape), v, axis=2)
    products = _banded(build, left, right, o.bins, o.radius)  # (batch, heads, 2 * radius + 1, bins)
    both = build.add("Mul", _banded(build, s, t, o.bins, o.radius), folded.by_both)
    frames = build.add("Shape", "spectra", start=0, end=2)
    shape_of_windows = build.add("Concat", frames, [o.features, o.bins], axis=0)
    by_window = build.add("Reshape", build.add("Add", products, both), shape_of_windows)
    return build.order(by_window, 0, 2, 1, 3)


def _tokens(build: Graph, bins: int, magnitude: bool) -> str:
    tiny = float(np.finfo(np.float32).tiny)
    spectra = build.add("Reshape", "spectra", [-1, 2, 2, bins])
    power = build.add("ReduceSumSquare", spectra, [2], keepdims=1)  # (batch, 2, 1, bins)
    size = build.add("Sqrt", build.add("Max", power, tiny))
    phase = build.add("Div", spectra, size)
    # An empty bin has the phase of +0.
    empty = build.add("Less", power, tiny)
    phase = build.add("Where", empty, np.array([1.0, 0.0], dtype=np.float32)[:, None], phase)
    if not magnitude:
        return phase
    return build.add("Concat", build.add("Log", build.add("Add", size, 1.0)), phase, axis=2)


def _banded(build: Graph, left: str, right: str, bins: int, radius: int) -> str:
    """Inner products of bins at most `radius` apart, as `qkgcc.models.matching.local_correlation` computes them.

    Shape: (batch, heads, terms, bins) twice -> (batch, heads, 2 * radius + 1, bins)
    """
    if radius <= _FEW:
        padded = build.pad(right, 4, radius, radius) if radius else right
        shifted = [build.part(padded, 3, i, i + bins) for i in range(2 * radius + 1)] if radius else [right]
        sums = [build.add("ReduceSum", build.add("Mul", left, one), [2], keepdims=1) for one in shifted]
        return build.add("Concat", *sums, axis=2)
    tile = max(TILE, radius)
    tiles = -(-bins // tile)
    spare, window = tiles * tile - bins, tile + 2 * radius
    q = build.reshape(build.pad(left, 4, 0, spare), 0, 0, 0, tiles, tile)
    k = build.reshape(build.pad(right, 4, tile, tile + spare), 0, 0, 0, tiles + 2, tile)
    before = build.part(build.part(k, 3, 0, tiles), 4, tile - radius, tile)
    inside = build.part(k, 3, 1, tiles + 1)
    after = build.part(build.part(k, 3, 2, tiles + 2), 4, 0, radius)
    k = build.add("Concat", before, inside, after, axis=4)
    products = build.add("MatMul", build.order(q, 0, 1, 3, 4, 2), build.order(k, 0, 1, 3, 2, 4))
    # Query t and offset o stand in column t + o: rows one longer than they are put every offset in one column.
    flat = build.pad(build.reshape(products, 0, 0, tiles, tile * window), 4, 0, tile)
    band = build.part(build.reshape(flat, 0, 0, tiles, tile, window + 1), 4, 0, 2 * radius + 1)
    band = build.reshape(build.order(band, 0, 1, 4, 2, 3), 0, 0, 0, tiles * tile)
    return build.part(band, 3, 0, bins)


def _head(build: Graph, model: Steered, correlation: str, rows: int) -> None:
    o, head = model.options, model.head
    layers: list[Any] = [*head.local, *head.delays]  # to mypy, a part of a Sequential is any module
    conv, norm, _, before, first, between, _, second, behind, _, last = layers
    x, mask = _pooled(build, correlation, "bins", o.pool, o.bins, rows)
    raw = _from_raw_offsets(model)
    evidence_weight = head.evidence.weight.squeeze((-2, -1))
    local_weight, local_bias = _then_norm(conv.weight, conv.bias, norm)
    if isinstance(head.project, nn.Conv2d):
        x = build.add("Conv", x, (head.project.weight.squeeze((-2, -1)) @ raw)[..., None, None])
    else:
        evidence_weight = evidence_weight @ raw
        local_weight = torch.einsum("oiwk,ij->ojwk", local_weight, raw)
    same = 2 * [n // 2 for n in local_weight.shape[2:]]
    local = build.add("Gelu", build.add("Conv", x, local_weight, local_bias, pads=same))
    local = build.add("Mul", local, mask)
    if o.blocks:
        own = build.add("Conv", local, head.mix.weight, head.mix.bias)
        local = build.add("Gelu", build.add("Add", own, _surroundings(build, head.around, local, mask, rows)))
    pads = 2 * [n // 2 for n in head.gate.weight.shape[2:]]
    gate = build.add("Conv", local, head.gate.weight, head.gate.bias, pads=pads)
    gate = build.add("Unsqueeze", _softplus(build, gate), [2])
    evidence = build.add("Conv", x, evidence_weight[..., None, None])
    evidence = build.reshape(evidence, 0, o.maps, 2, -1, rows)  # real and imaginary parts of each map
    weighted = build.add("ReduceSum", build.add("Mul", evidence, gate), [3], keepdims=0)
    build.add("ReduceL2", weighted, [1, 2], keepdims=0, output="reliability")
    steered = build.add("MatMul", build.reshape(weighted, 0, o.maps, 2 * rows), "steering")
    weights = _then_norm(*_after_norm(before, first.weight, first.bias), between)
    steered = build.add("Gelu", build.add("Conv", steered, *weights))
    steered = build.add("Gelu", build.add("Conv", steered, *_then_norm(second.weight, second.bias, behind)))
    logits = build.add("Conv", steered, last.weight, last.bias)
    build.add("Squeeze", logits, [1], output="logits")


def _published_head(build: Graph, model: QKGCC, correlation: str) -> None:
    x = build.add("Squeeze", correlation, [2])
    blocks: list[Any] = [*model.head.blocks]
    for i, (conv, norm, _) in enumerate(blocks):
        weight, bias = _then_norm(conv.weight, conv.bias, norm)
        if i == 0:
            weight = torch.einsum("oik,ij->ojk", weight, _from_raw_offsets(model))
        x = build.add("Gelu", build.add("Conv", x, weight, bias, pads=2 * [weight.shape[-1] // 2]))
        x = build.add("Mul", x, "bins")
    usable = build.add("Max", build.add("ReduceSum", "bins", keepdims=1), 1.0)
    pooled = build.add("Div", build.add("ReduceSum", x, [2], keepdims=0), usable)
    layers: list[Any] = [*model.head.mlp]
    first, _, last = layers
    hidden = build.add("Gelu", build.add("Gemm", pooled, first.weight, first.bias, transB=1))
    build.add("Gemm", hidden, last.weight, last.bias, transB=1, output="logits")


def _surroundings(build: Graph, around: Surroundings, x: str, mask: str, rows: int) -> str:
    down: list[Any] = [*around.down]
    blocks: list[Any] = [*around.blocks]
    (conv, norm, _), coarse = down, around.coarse
    coarse_rows = -(-rows // coarse)
    spare = coarse_rows * coarse - rows
    mask = build.add("ReduceMax", build.reshape(build.pad(mask, 1, 0, spare), coarse_rows, coarse), [1], keepdims=0)
    weights = _then_norm(conv.weight, conv.bias, norm)
    y = build.add("Conv", x, *weights, strides=[1, coarse], pads=[0, 0, 0, spare])
    y = build.add("Mul", build.add("Gelu", y), mask)
    for block in blocks:
        along, across = block.along, block.across
        weight, bias = _then_norm(along.weight, torch.zeros(len(along.weight)), block.norm)
        pads = 2 * [n // 2 for n in weight.shape[2:]]
        inside = build.add("Conv", y, weight, bias, pads=pads, group=along.groups)
        inside = build.add("Gelu", build.add("Conv", inside, across.weight, across.bias))
        y = build.add("Mul", build.add("Add", y, inside), mask)
    # A product with zeros and ones: the operators that repeat took six times as long.
    repeat = np.repeat(np.eye(coarse_rows, dtype=np.float32), coarse, axis=1)[:, :rows]
    return build.add("MatMul", build.add("Conv", y, around.up.weight, around.up.bias), repeat)


def _softplus(build: Graph, x: str) -> str:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + exp(-|x|))``: the operator Softplus took six times as long."""
    small = build.add("Exp", build.add("Neg", build.add("Abs", x)))
    return build.add("Add", build.add("Relu", x), build.add("Log", build.add("Add", small, 1.0)))


def _pooled(build: Graph, x: str, bins: str, pool: int, count: int, rows: int) -> tuple[str, str]:
    """Means of `pool` adjacent bins, and whether any of them is usable."""
    if pool == 1:
        return x, bins
    spare = rows * pool - count
    means = build.reshape(build.pad(x, 4, 0, spare), 0, 0, -1, rows, pool)
    usable = build.reshape(build.pad(bins, 1, 0, spare), rows, pool)
    return build.add("ReduceMean", means, [4], keepdims=0), build.add("ReduceMax", usable, [1], keepdims=0)


def _from_raw_offsets(model: Steered | QKGCC) -> Tensor:
    """The linear map from C's raw offsets to what the head was trained to read. Shape: (features, features)"""
    o = model.options
    offsets = torch.eye(2 * o.radius + 1)
    if o.split:
        offsets = center_symmetric_antisymmetric(offsets)
    return torch.kron(torch.eye(o.heads), offsets)  # the same for every head


def _scale_and_shift(norm: Any) -> tuple[Tensor, Tensor]:
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return scale, norm.bias - norm.running_mean * scale


def _then_norm(weight: Tensor, bias: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
    """A convolution's weight and bias, as if the normalization after it were part of them."""
    scale, shift = _scale_and_shift(norm)
    return weight * scale.reshape(-1, *[1] * (weight.ndim - 1)), bias * scale + shift


def _after_norm(norm: nn.BatchNorm1d, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same for the normalization before it; exact, because these convolutions see no padding."""
    scale, shift = _scale_and_shift(norm)
    return weight * scale[:, None], bias + torch.einsum("oik,i->o", weight, shift)
