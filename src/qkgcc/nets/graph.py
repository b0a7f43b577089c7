"""ONNX graphs written node by node, and the files that hold them. No torch here.

A file has its SHA-256 in its metadata, with zeros in the digest's place while it was computed.
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

OPSET = 20
"""The first that has GELU."""
NO_DIGEST = 64 * "0"
"""What stands in the digest's place while the SHA-256 of a file is computed."""
_IR = 9  # of that opset: what runtimes of 2024 read


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
