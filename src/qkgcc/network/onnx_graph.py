"""ONNX graphs: their nodes, the part that is the network, from spectra to logits, and the files that hold them.

    spectra   (batch, windows, 2, 2, bins)  real and imaginary parts of both channels' spectra, of each window
    evidence  (batch, maps, 2 bins)         to be steered to each candidate delay, as `qkgcc.network.steering` does
    ->  logits (batch, lags)

Evidence is computed once; any number of grids of delays can be steered to from it. `qkgcc.network.onnx_export` writes
what stands before and behind. The weights are folded (`qkgcc.network.folding`), so what is left here is what depends on
the frame. Every bin is taken to hold sound: a graph cannot know the rate that a recording had before it was resampled.
The nodes are standard ones of opset 20.

The graph is written node by node rather than traced: a dozen lines more, and what runs is what stands here. A file has
its SHA-256 in its metadata, with zeros in the digest's place while it was computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qkgcc.core.errors import InputError
from qkgcc.core.files import display_name, write_whole
from qkgcc.network.card import DIGEST_KEY
from qkgcc.network.folding import Convolution, Folded, Front, Published
from qkgcc.network.shape import COARSE, Shape

OPSET = 20
"""The first that has GELU."""
NO_DIGEST = 64 * "0"
"""What stands in the digest's place while the SHA-256 of a file is computed."""
_IR = 9  # of that opset: what runtimes of 2024 read

_FEW = 2  # offsets to each side, up to which a product for each is quicker than a product of tiles
_TILE = 32  # bins


class Graph:
    """Nodes and constants; every method adds one node and returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._shared: dict[tuple[str, bytes, tuple[int, ...]], str] = {}

    def constant(self, value: Any) -> str:
        """A constant of the graph, float32 unless it is of whole numbers; equal ones are one."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._shared:
            self._shared[key] = f"c{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(array.copy(order="C"), self._shared[key]))
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

    def to_proto(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, inputs, outputs, initializer=self.constants)


def value(name: str, shape: Sequence[int | str], meaning: str = "") -> onnx.ValueInfoProto:
    """An input or output of float32; a length with a name is any."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape, doc_string=meaning)


def save(graph: onnx.GraphProto, metadata: Mapping[str, str], path: Path) -> None:
    """Write a graph at once or not at all; a folder that is not there is made."""
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR)
    proto.producer_name = "qkgcc"
    helper.set_model_props(proto, {**metadata, DIGEST_KEY: NO_DIGEST})
    onnx.checker.check_model(proto, full_check=True)
    content = proto.SerializeToString(deterministic=True)
    content = content.replace(NO_DIGEST.encode(), hashlib.sha256(content).hexdigest().encode())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InputError(
            f"cannot write {display_name(path)}: part of {display_name(path.parent)} is no folder but a file"
        ) from None
    except OSError as error:
        raise InputError(f"cannot write {display_name(path)}: {error.strerror or error}") from None
    write_whole(path, lambda target: target.write_bytes(content))


def evidence(build: Graph, shape: Shape, net: Folded, spectra: str) -> str:
    """What a steered network knows before it is asked for any delay. Shape: (batch, maps, 2 bins)"""
    x = _correlation(build, shape, net, spectra)
    local = build.add("Gelu", _convolved(build, x, net.local))
    if shape.blocks:
        assert net.mix is not None
        own = _convolved(build, local, net.mix)
        local = build.add("Gelu", build.add("Add", own, _surroundings(build, shape, net, local)))
    gate = build.add("Unsqueeze", _softplus(build, _convolved(build, local, net.gate)), [2])
    found = build.add("Conv", x, net.evidence.weight)
    found = build.reshape(found, 0, shape.maps, 2, -1, shape.bins)  # real and imaginary parts of each map
    weighted = build.add("ReduceSum", build.add("Mul", found, gate), [3], keepdims=0)
    return build.reshape(weighted, 0, shape.maps, 2 * shape.bins)


def steered(build: Graph, net: Folded, delays: str) -> str:
    """Logits of the delays that evidence was steered to. Shape: (batch, maps, lags + 2 spare) -> (batch, lags)"""
    for layer in (net.first, net.second):
        delays = build.add("Gelu", _along_delays(build, delays, layer))
    return build.add("Squeeze", _along_delays(build, delays, net.last), [1])


def published(build: Graph, shape: Shape, net: Published, spectra: str) -> str:
    """Logits of the published network, of its own delays."""
    x = _correlation(build, shape, net, spectra)
    for layer in net.convolutions:
        x = build.add("Gelu", _convolved(build, x, layer))
    pooled = build.add("ReduceMean", x, [2, 3], keepdims=0)
    hidden = build.add("Gelu", build.add("Gemm", pooled, net.hidden.weight, net.hidden.bias, transB=1))
    return build.add("Gemm", hidden, net.classes.weight, net.classes.bias, transB=1)


def _correlation(build: Graph, shape: Shape, front: Front, spectra: str) -> str:
    """C at the raw offsets. Shape: (batch, features, windows, bins)

    Up to its last lines, "batch" is that of all windows.
    """
    bins, radius = shape.bins, shape.radius
    tokens = _tokens(build, build.reshape(spectra, -1, 2, 2, bins), shape.magnitude)  # (batch, 2, n, bins)
    y = build.add("Add", build.add("MatMul", front.turn, tokens), front.shift)
    variance = build.add("ReduceSum", build.add("Mul", y, y), [2], keepdims=1)
    inverse = build.add("Reciprocal", build.add("Sqrt", build.add("Add", variance, front.floor)))  # (batch, 2, 1, bins)
    # A row of ones behind the others: (batch, 2, n + 1, bins)
    rows = build.add("Pad", build.add("Mul", y, inverse), [0, 0, 0, 0, 0, 0, 1, 0], np.float32(1))
    if radius <= _FEW:
        correlation = _of_few(build, front, rows, inverse, bins, radius)
    else:
        correlation = _of_many(build, shape, front, rows, inverse)
    windows = shape.windows(shape.frame)
    by_window = build.reshape(correlation, -1, windows, shape.features, bins)
    return build.order(by_window, 0, 2, 1, 3)


def _tokens(build: Graph, spectra: str, magnitude: bool) -> str:
    tiny = float(np.finfo(np.float32).tiny)
    power = build.add("ReduceSumSquare", spectra, [2], keepdims=1)  # (batch, 2, 1, bins)
    size = build.add("Sqrt", build.add("Max", power, tiny))
    phase = build.add("Div", spectra, size)
    # An empty bin has the phase of +0.
    empty = build.add("Less", power, tiny)
    phase = build.add("Where", empty, np.array([1.0, 0.0], dtype=np.float32)[:, None], phase)
    if not magnitude:
        return phase
    return build.add("Concat", build.add("Log", build.add("Add", size, 1.0)), phase, axis=2)


def _of_few(build: Graph, front: Front, rows: str, inverse: str, bins: int, radius: int) -> str:
    """C = <u, b> + t (<a, N> + s T), a product for each offset: few rows are moved, and none is repeated for the heads.

    Shape: (batch, 2, n + 1, bins), (batch, 2, 1, bins) -> (batch, heads, 2 * radius + 1, bins)
    """
    heads, terms, offsets = *front.by_query.shape[:2], 2 * radius + 1
    every = build.add("Concat", rows, inverse, axis=2)  # (batch, 2, n + 2, bins)
    own, other = (build.part(every, 1, channel, channel + 1) for channel in (0, 1))
    padded = build.pad(other, 4, radius, radius)
    keys = build.add("Concat", *(build.part(padded, 3, i, i + bins) for i in range(offsets)), axis=1)
    a, s = build.part(own, 2, 0, terms), build.part(own, 2, terms, terms + 1)
    u = build.add("MatMul", front.plain.swapaxes(1, 2), a)
    u = build.add("Add", u, build.add("Mul", s, front.by_query))  # (batch, heads, n + 1, bins)
    b = build.add("Unsqueeze", build.part(keys, 2, 0, terms), [1])  # (batch, 1, offsets, n + 1, bins)
    first = build.add("ReduceSum", build.add("Mul", build.add("Unsqueeze", u, [2]), b), [3], keepdims=0)
    # N at each offset, and T: what meets a and s. Shape: (heads * offsets, n + 2, bins)
    table = np.zeros((heads, offsets, terms + 1, bins), np.float32)
    for i in range(offsets):
        there = slice(max(0, radius - i), bins - max(0, i - radius))
        shifted = slice(there.start + i - radius, there.stop + i - radius)
        table[:, i, :terms, there] = front.by_key[:, :, shifted]
    table[:, :, terms] = front.by_both
    whole = build.add("ReduceSum", build.add("Mul", own, table.reshape(-1, terms + 1, bins)), [2], keepdims=0)
    whole = build.reshape(whole, 0, heads, offsets, bins)
    t = build.order(build.part(keys, 2, terms, terms + 1), 0, 2, 1, 3)  # (batch, 1, offsets, bins)
    return build.add("Add", first, build.add("Mul", t, whole))


def _of_many(build: Graph, shape: Shape, front: Front, rows: str, inverse: str) -> str:
    """The same by products of tiles, where there are many offsets."""
    (a, b), (s, t) = ([build.part(x, 1, channel, channel + 1) for channel in (0, 1)] for x in (rows, inverse))
    u = build.add("MatMul", front.plain.swapaxes(1, 2), a)
    u = build.add("Add", u, build.add("Mul", s, front.by_query))
    v = build.add("Mul", t, front.by_key)  # both (batch, heads, n + 1, bins)
    every = [1, shape.heads, front.plain.shape[-1], 1]
    left = build.add("Concat", u, build.add("Expand", a, every), axis=2)
    right = build.add("Concat", build.add("Expand", b, every), v, axis=2)
    products = _banded(build, left, right, shape.bins, shape.radius)  # (batch, heads, 2 * radius + 1, bins)
    return build.add("Add", products, build.add("Mul", _banded(build, s, t, shape.bins, shape.radius), front.by_both))


def _banded(build: Graph, left: str, right: str, bins: int, radius: int) -> str:
    """Inner products of bins at most `radius` apart.

    Shape: (batch, heads, terms, bins) twice -> (batch, heads, 2 * radius + 1, bins)
    """
    tile = max(_TILE, radius)
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


def _surroundings(build: Graph, shape: Shape, net: Folded, x: str) -> str:
    assert net.down is not None
    assert net.up is not None
    tiles = -(-shape.bins // COARSE)
    pads = [0, 0, 0, tiles * COARSE - shape.bins]
    y = build.add("Conv", x, net.down.weight, net.down.bias, strides=[1, COARSE], pads=pads)
    y = build.add("Gelu", y)
    for block in net.blocks:
        along = _convolved(build, y, block.along, group=len(block.along.weight))
        y = build.add("Add", y, build.add("Gelu", _convolved(build, along, block.across)))
    # A product with zeros and ones: the operators that repeat took six times as long.
    repeat = np.repeat(np.eye(tiles, dtype=np.float32), COARSE, axis=1)[:, : shape.bins]
    return build.add("MatMul", _convolved(build, y, net.up), repeat)


def _softplus(build: Graph, x: str) -> str:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + exp(-|x|))``: the operator Softplus took six times as long."""
    small = build.add("Exp", build.add("Neg", build.add("Abs", x)))
    return build.add("Add", build.add("Relu", x), build.add("Log", build.add("Add", small, 1.0)))


def _convolved(build: Graph, x: str, layer: Convolution, group: int = 1) -> str:
    """As long as it was."""
    pads = 2 * [n // 2 for n in layer.weight.shape[2:]]
    return build.add("Conv", x, layer.weight, layer.bias, pads=pads, group=group)


def _along_delays(build: Graph, x: str, layer: Convolution) -> str:
    """Without padding."""
    return build.add("Conv", x, layer.weight[:, :, 0], layer.bias)
