"""The compiled kernel: `steered.c`, built with the package (`build_kernel.py`) for each instruction set that pays.

It may not be there: a package built without a compiler, or on Windows, works too, slower (`qkgcc.network.reference`).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.types import Floats, Floats32
from qkgcc.network.folding import FRONT, Folded, Front, Published
from qkgcc.network.shape import BLOCK_KERNEL, Shape

SOURCE, LIBRARY = (Path(__file__).with_name(name) for name in ("steered.c", "_kernel.so"))
SLACK = 64
"""Floats that vectors may read beyond the end of an array."""
INSTRUCTIONS = {"qkgcc_steered_v4": "AVX-512", "qkgcc_steered_v3": "AVX2", "qkgcc_steered": "plain instructions"}
"""What each entry is compiled for; AVX2 is with fused multiply-adds, plain ones every processor of its kind has."""
ENTRIES = list(INSTRUCTIONS)
"""The best first."""
FORCED = "QKGCC_INSTRUCTIONS"
"""Environment variable: one of `FORCIBLE`, where the best is not to be taken; for tests of all on one processor."""
FORCIBLE = dict(zip(("avx512", "avx2", "plain"), ENTRIES, strict=True))
_MOST_POINTERS = 1 << 16
_PHASES, _TAPS = 4, (3, 5)  # of the compiled convolutions along frequency
_MOST_TAPS = 64  # of a convolution channel by channel


_NUMBERS = [
    "windows", "bins", "numbers", "heads", "radius", "channels", "window_kernel", "kernel", "maps",
    "blocks", "block_channels", "block_kernel", "delay_channels", "delay_kernel", "logit_kernel",
]  # fmt: skip
_ARRAYS = [
    "turn", "shift", "floor", "plain", "by_query", "by_key", "by_both", "local", "local_bias", "evidence", "mix",
    "mix_bias", "gate", "gate_bias", "down", "down_bias", "along", "along_bias", "across", "across_bias", "up",
    "up_bias", "first", "first_bias", "second", "second_bias", "last", "last_bias", "read",
]  # fmt: skip


def _winograd(taps: int) -> Floats:
    """What turns the taps of a convolution into products at the points of `steered.c`. Shape: (points, taps)"""
    points, scale = {
        3: ([0, 1, -1, 2, -2], [1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24]),
        5: ([0, 1, -1, 2, -2, 1 / 2, -1 / 2], [1, -2 / 9, -2 / 9, 1 / 90, 1 / 90, 32 / 45, 32 / 45]),
    }[taps]
    powers = np.array(points)[:, None] ** np.arange(taps)
    return np.vstack([np.array(scale)[:, None] * powers, np.eye(taps)[-1]])


def _taps(kernel: int) -> int:
    """Of the compiled convolution that a kernel is padded to."""
    return next(taps for taps in _TAPS if kernel <= taps)


class _Network(ctypes.Structure):
    """As in `steered.c`."""

    _fields_ = [*((name, ctypes.c_int32) for name in _NUMBERS), *((name, ctypes.c_void_p) for name in _ARRAYS)]


@cache
def loaded() -> tuple[ctypes.CDLL, str] | None:
    """The compiled code and the name of the entry for this processor; None where there is none."""
    found = _found()
    return None if isinstance(found, str) else found


def _found() -> tuple[ctypes.CDLL, str] | str:
    """As `loaded`, or why there is none. Code that was compiled from another source is not taken."""
    if not LIBRARY.exists():
        return "there is no compiled kernel: the package was installed without a C compiler, or on Windows"
    try:
        found = ctypes.CDLL(str(LIBRARY))
        made_from = ctypes.c_char_p.in_dll(found, "qkgcc_source").value
        entry = ctypes.cast(found.qkgcc_entry, ctypes.CFUNCTYPE(ctypes.c_char_p))()
    except (OSError, AttributeError, ValueError) as error:
        return f"the compiled kernel cannot be loaded ({error})"
    # Where the source was left out of an installation, there is nothing else that the code could be of.
    same = not SOURCE.exists() or made_from == hashlib.sha256(SOURCE.read_bytes()).hexdigest().encode()
    if entry is None or not same:
        return f"the compiled kernel was made from another {SOURCE.name}: install the package again"
    return found, _chosen(entry.decode())


def _chosen(best: str) -> str:
    """The entry that runs networks, of those that this processor can run."""
    forced = os.environ.get(FORCED)
    can = [name for name, entry in FORCIBLE.items() if ENTRIES.index(entry) >= ENTRIES.index(best)]
    if forced and forced not in can:
        raise InputError(f"{FORCED} is {forced!r}; this processor can run {', '.join(can)}")
    return FORCIBLE[forced] if forced else best


def fits(shape: Shape) -> bool:
    """Whether the compiled code has what a network needs, and room for its products."""
    points = _PHASES + _TAPS[-1] - 1
    convolved = max(shape.features, shape.channels) * shape.local_kernel[0] * points
    along_delays = max(shape.maps, shape.delay_channels) * max(shape.delay_kernel, shape.logit_kernel)
    widest = max(convolved, shape.block_channels, along_delays, 2 * (shape.bins + _PHASES))
    taps = shape.local_kernel[0] * BLOCK_KERNEL
    return shape.local_kernel[1] <= _TAPS[-1] and widest <= _MOST_POINTERS and taps <= _MOST_TAPS


def fits_published(shape: Shape, net: Published) -> bool:
    """The same of a published network."""
    inputs = max(shape.features, *(len(layer.bias) for layer in net.convolutions))
    taps = max(layer.weight.shape[-1] for layer in net.convolutions)
    return taps <= _TAPS[-1] and inputs * (_PHASES + _TAPS[-1] - 1) <= _MOST_POINTERS


def reason_against(fits: bool, compiled: bool | None, path: Path) -> str | None:
    """Why the compiled code does not run a network; None: it does. An `InputError` where it cannot, but should.

    Args:
        compiled: as was asked for; None: if it can.
    """
    if compiled is False:
        return "it was asked for"
    room = None if fits else "the compiled kernel has no room for a network of this shape"
    reason = str(_found()) if loaded() is None else room
    if compiled and reason is not None:
        raise InputError(f"{path} cannot be run by compiled code: {reason}")
    return reason


def entries() -> list[str]:
    """All that this processor can run, the best first."""
    found = loaded()
    return [] if found is None else ENTRIES[ENTRIES.index(found[1]) :]


class _Compiled:
    """A network in the compiled code's layout. Threads may share it."""

    def __init__(self, shape: Shape, front: Front, entry: str | None) -> None:
        """Args:
        entry: one of `entries`; None: the best.
        """
        found = loaded()
        assert found is not None
        self._code, best = found
        self._entry = entry or best
        self.instructions = INSTRUCTIONS[self._entry]
        self._made_of = shape, front, entry
        self._memory = getattr(self._code, f"{self._entry}_memory")
        self._memory.restype = ctypes.c_ssize_t
        self._outputs = int(getattr(self._code, f"{self._entry}_outputs")())
        self._shape = shape
        around = {"by_key": shape.radius}  # keys beyond the band are read with those in it
        self._arrays = {name: _with_slack(array, around.get(name, 0)) for name, array in self._packed(front).items()}
        self._numbers = dict.fromkeys(_NUMBERS, 1) | self._sizes()
        self._place = threading.local()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _again, (type(self), *self._made_of)

    def _sizes(self) -> dict[str, int]:
        shape = self._shape
        front = {name: getattr(shape, name) for name in ("bins", "numbers", "heads", "radius")}
        return front | {"blocks": 0}

    def _packed(self, front: Any) -> dict[str, Any]:
        return {name: getattr(front, name) for name in FRONT}

    def _points(self, weight: Floats32, kernel: int) -> Floats32:
        """At Winograd's points. Shape: (outputs, inputs, windows, taps) -> (points, groups, inputs * windows, each)"""
        spare = (kernel - weight.shape[-1]) // 2
        taps = np.pad(weight.astype(np.float64), [(0, 0)] * 3 + [(spare, spare)])
        return np.stack([self._groups(at.astype(np.float32)) for at in np.moveaxis(taps @ _winograd(kernel).T, -1, 0)])

    def _groups(self, weight: Floats32) -> Floats32:
        """In the order that a block of outputs reads them. Shape: (outputs, ...) -> (groups, inputs, each)"""
        rows = weight.reshape(len(weight), -1)
        padded = np.pad(rows, ((0, -len(rows) % self._outputs), (0, 0)))
        return np.ascontiguousarray(padded.reshape(-1, self._outputs, rows.shape[1]).swapaxes(1, 2))

    def _workplace(self, windows: int, channels: int, lags: int) -> tuple[_Network, Floats32, Any]:
        """Memory of this thread, which stays as long as the sizes do: asking for it anew takes longer than a frame."""
        place = self._place
        if getattr(place, "sizes", None) != (windows, channels, lags):
            arrays = {name: array.ctypes.data for name, array in self._arrays.items()}
            place.network = _Network(**(self._numbers | {"windows": windows}), **arrays)
            place.memory = np.zeros(self._memory(ctypes.byref(place.network), channels, lags), np.float32)
            place.pointers = (ctypes.c_void_p * _MOST_POINTERS)()
            place.sizes, place.steering = (windows, channels, lags), None
        return place.network, place.memory, place.pointers


def runner(compiled: _Compiled | None, without: str | None) -> str:
    """What runs a network, and why where that is not the compiled code (`reason_against`)."""
    if compiled is not None:
        return f"the compiled kernel ({compiled.instructions})"
    return f"NumPy, slowly ({without or _found()})"  # a network from another machine had no reason there


def _again(kind: type[_Compiled], shape: Shape, front: Any, entry: str | None) -> _Compiled | None:
    """What was sent from another machine: by what this one can run, None where it has no compiled code."""
    return None if loaded() is None else kind(shape, front, entry if entry in entries() else None)


class Kernel(_Compiled):
    """A steered network."""

    def __init__(self, shape: Shape, net: Folded, entry: str | None = None) -> None:
        super().__init__(shape, net, entry)
        self._run = getattr(self._code, self._entry)

    def _sizes(self) -> dict[str, int]:
        shape = self._shape
        names = ("channels", "maps", "blocks", "block_channels", "delay_channels", "delay_kernel", "logit_kernel")
        window_kernel, kernel = shape.local_kernel
        kernels = {"window_kernel": window_kernel, "kernel": _taps(kernel), "block_kernel": BLOCK_KERNEL}
        return super()._sizes() | {name: getattr(shape, name) for name in names} | kernels

    def _packed(self, net: Folded) -> dict[str, Any]:
        packed, kernel = super()._packed(net), _taps(self._shape.local_kernel[1])
        for name in ("local", "evidence", "mix", "gate", "down", "up", "first", "second", "last"):
            layer = getattr(net, name)
            if layer is not None:
                convolved = name == "local" or (name == "gate" and not self._shape.blocks)
                packed[name] = self._points(layer.weight, kernel) if convolved else self._groups(layer.weight)
                packed[f"{name}_bias"] = layer.bias
        del packed["evidence_bias"]  # it is zero
        packed["read"] = net.read
        if net.blocks:
            packed["along"] = np.stack([block.along.weight for block in net.blocks])
            packed["along_bias"] = np.stack([block.along.bias for block in net.blocks])
            packed["across"] = np.stack([self._groups(block.across.weight) for block in net.blocks])
            packed["across_bias"] = np.stack([block.across.bias for block in net.blocks])
        return packed

    def __call__(
        self,
        spectra: npt.NDArray[np.complex64],
        usable: Floats32,
        steering: Floats32,
        pairs: npt.NDArray[np.int32],
        what: str = "logits",
    ) -> Floats32:
        """`logits` of each pair of channels, or the `reliability` of each bin.

        Shape: (batch, windows, channels, bins), (bins,), (2 * bins, lags + 2 * spare), (pairs, 2)
            -> (batch, pairs, lags) or (batch, pairs, bins)
        """
        batch, windows, channels = spectra.shape[:3]
        lags = steering.shape[1] - 2 * self._shape.spare
        network, memory, pointers = self._workplace(windows, channels, lags)
        result = np.empty((batch, len(pairs), lags if what == "logits" else self._shape.bins), np.float32)
        if self._place.steering is not steering:  # the same table, frame after frame
            half = _upper_half(steering)
            self._place.steering, self._place.columns, self._place.padded = steering, half.shape[1], _with_slack(half)
        parts, given = _parts(spectra), [_with_slack(usable), self._place.padded]
        self._run(
            ctypes.byref(network),
            batch,
            channels,
            len(pairs),
            _pointer(pairs),
            _pointer(parts),
            *map(_pointer, given),
            self._place.columns,
            lags,
            _pointer(result) if what == "logits" else None,
            None if what == "logits" else _pointer(result),
            _pointer(memory),
            pointers,
        )
        return result


class PublishedKernel(_Compiled):
    """The published network, up to its MLP."""

    def __init__(self, shape: Shape, net: Published, entry: str | None = None) -> None:
        self._layers = net.convolutions
        self._kernel = _taps(max(layer.weight.shape[-1] for layer in net.convolutions))
        super().__init__(shape, net, entry)
        self._run = getattr(self._code, f"{self._entry}_published")

    def _sizes(self) -> dict[str, int]:
        first, second = (len(layer.bias) for layer in self._layers)
        sizes = {"kernel": self._kernel, "channels": first, "maps": second, "block_channels": 0, "delay_channels": 0}
        return super()._sizes() | sizes

    def _packed(self, net: Published) -> dict[str, Any]:
        packed = super()._packed(net)
        for name, layer in zip(("local", "gate"), net.convolutions, strict=True):
            packed |= {name: self._points(layer.weight, self._kernel), f"{name}_bias": layer.bias}
        return packed

    def __call__(self, spectra: npt.NDArray[np.complex64], usable: Floats32) -> Floats32:
        """Means over frequency. Shape: (batch, 1, 2, bins), (bins,) -> (batch, channels)"""
        network, memory, pointers = self._workplace(1, 2, 0)
        result = np.empty((len(spectra), self._numbers["maps"]), np.float32)
        parts, given = _parts(spectra), _with_slack(usable)
        self._run(
            ctypes.byref(network),
            len(spectra),
            *map(_pointer, (parts, given, result, memory)),
            pointers,
        )
        return result


def _upper_half(steering: Floats32) -> Floats32:
    """Of a table of delays around 0; any other as it is."""
    cosines, sines = np.split(steering, 2)
    around = np.array_equal(cosines, cosines[:, ::-1]) and np.array_equal(sines, -sines[:, ::-1])
    return steering[:, steering.shape[1] // 2 :] if around else steering


def _parts(spectra: npt.NDArray[np.complex64]) -> Floats32:
    """Real and imaginary parts, one behind the other. Shape: (..., bins) -> (2 * size + SLACK,)"""
    parts = np.zeros((2 * spectra.size + SLACK,), np.float32)
    by_part = parts[:-SLACK].reshape(*spectra.shape[:-1], 2, -1)
    by_part[..., 0, :], by_part[..., 1, :] = spectra.real, spectra.imag
    return parts


def _with_slack(array: npt.NDArray[Any], around: int = 0) -> Floats32:
    """Flat, in memory that goes on: `around` zeros before it, and `SLACK` more than that behind."""
    flat = np.asarray(array, np.float32).ravel()
    padded = np.zeros(around + len(flat) + around + SLACK, np.float32)  # np.pad takes longer than the rest
    padded[around : around + len(flat)] = flat
    return padded[around:]


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.__array_interface__["data"][0])  # array.ctypes takes longer
