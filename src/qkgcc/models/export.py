"""A steered QK-GCC as ONNX: the same logits from NumPy and onnxruntime, without torch.

    spectra   (batch, windows, 2, 2, bins)  real and imaginary parts of both channels' spectra, of each window
    bins      (bins,)                       1, or 0 for frequencies that the recording cannot hold
    steering  (2 rows, lags + 2 spare)      what steers evidence to each candidate delay, `qkgcc.steering`
    ->  logits (batch, lags), and on demand reliability (batch, rows): the size of each frequency's weighted evidence

Transforms stay outside: NumPy has them, ONNX runtimes are slow at them. So do the candidate delays: any number of them,
anywhere. All that depends on weights only is computed here once: the front end is folded (`qkgcc.models.folding`),
batch normalizations are part of the convolutions beside them, and so is the split of the correlation into symmetric
and antisymmetric offsets, a linear map before linear maps. The nodes are standard ones of opset 20.

The graph is written node by node rather than traced: a dozen lines more, and what runs is what stands here.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from qkgcc.card import KEY, Card
from qkgcc.errors import InputError
from qkgcc.files import write_whole
from qkgcc.models.folding import fold
from qkgcc.models.matching import TILE, center_symmetric_antisymmetric
from qkgcc.models.steered import Steered
from qkgcc.models.surroundings import Surroundings
from qkgcc.runtime import DIGEST_KEY, NO_DIGEST, PROBE_KEY, probe_frames

OPSET = 20
"""The first that has GELU."""
_FEW = 2  # offsets to each side, up to which a product for each is quicker than a product of tiles
_IR = 9  # of that opset: what runtimes of 2024 read

Floats = npt.NDArray[np.float32]


def export(model: Steered, card: Card, path: Path) -> None:
    """Write the network of a card as ONNX, with the card in its metadata."""
    graph = network_graph(model)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)
    proto.producer_name = "qkgcc"
    with torch.no_grad():
        known = model.cpu()(torch.from_numpy(probe_frames(1, card.frame)))[0]
    properties = {KEY: card.to_json(), PROBE_KEY: json.dumps(known.tolist()), DIGEST_KEY: NO_DIGEST}
    helper.set_model_props(proto, properties)
    onnx.checker.check_model(proto, full_check=True)
    content = proto.SerializeToString(deterministic=True)
    content = content.replace(NO_DIGEST.encode(), hashlib.sha256(content).hexdigest().encode())
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda target: target.write_bytes(content))


def network_graph(model: Steered) -> onnx.GraphProto:
    """The network as it answers in eval mode, in float32."""
    if not isinstance(model, Steered):
        raise InputError(f"a {type(model).__name__} is no steered QK-GCC: only that one is exported")
    o = model.options
    rows = -(-o.bins // o.pool)
    build = _Graph()
    with torch.no_grad():
        correlation = _correlation(build, model)
        _head(build, model, correlation, rows)
    return helper.make_graph(
        build.nodes,
        "steered",
        [
            _value("spectra", ["batch", "windows" if o.window else 1, 2, 2, o.bins]),
            _value("bins", [o.bins]),
            _value("steering", [2 * rows, "steered"]),
        ],
        [_value("logits", ["batch", "lags"]), _value("reliability", ["batch", rows])],
        initializer=build.constants,
    )


class _Graph:
    """Nodes and constants; every method adds one node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._shared: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def constant(self, value: Any) -> str:
        """A constant of the graph, float32 unless it is of whole numbers; equal ones are one."""
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._shared:
            self._shared[key] = f"c{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), self._shared[key]))
        return self._shared[key]

    def add(self, operator: str, *inputs: Any, output: str | None = None, **attributes: Any) -> str:
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        name = output or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [name], **attributes))
        return name

    def part(self, value: str, axis: int, first: int, end: int) -> str:
        """``value[first:end]`` along an axis."""
        return self.add("Slice", value, [first], [end], [axis])

    def reshape(self, value: str, *shape: int) -> str:
        """0 keeps a length, -1 is what remains."""
        return self.add("Reshape", value, list(shape))

    def order(self, value: str, *axes: int) -> str:
        return self.add("Transpose", value, perm=list(axes))

    def pad(self, value: str, axes: int, before: int, after: int) -> str:
        """Zeros before and after the last of `axes` axes."""
        none = [0] * (axes - 1)
        return self.add("Pad", value, [*none, before, *none, after])


def _value(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _correlation(build: _Graph, model: Steered) -> str:
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


def _tokens(build: _Graph, bins: int, magnitude: bool) -> str:
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


def _banded(build: _Graph, left: str, right: str, bins: int, radius: int) -> str:
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


def _head(build: _Graph, model: Steered, correlation: str, rows: int) -> None:
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


def _surroundings(build: _Graph, around: Surroundings, x: str, mask: str, rows: int) -> str:
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


def _softplus(build: _Graph, x: str) -> str:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + exp(-|x|))``: the operator Softplus took six times as long."""
    small = build.add("Exp", build.add("Neg", build.add("Abs", x)))
    return build.add("Add", build.add("Relu", x), build.add("Log", build.add("Add", small, 1.0)))


def _pooled(build: _Graph, x: str, bins: str, pool: int, count: int, rows: int) -> tuple[str, str]:
    """Means of `pool` adjacent bins, and whether any of them is usable."""
    if pool == 1:
        return x, bins
    spare = rows * pool - count
    means = build.reshape(build.pad(x, 4, 0, spare), 0, 0, -1, rows, pool)
    usable = build.reshape(build.pad(bins, 1, 0, spare), rows, pool)
    return build.add("ReduceMean", means, [4], keepdims=0), build.add("ReduceMax", usable, [1], keepdims=0)


def _from_raw_offsets(model: Steered) -> Tensor:
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
