"""A network as one ONNX file for programs in other languages: samples in, logits out. No torch here.

    frames  (batch, 2, frame)  both channels at the network's sample rate, as recorded
    delays  (L,)               candidate delays in seconds, the network's step apart; not there if they are frozen
    ->  logits (batch, L)      their softmax is the posterior over the delays

Before the network (`qkgcc.network.onnx_graph`) stands what NumPy does for this package:

- Level. The estimator's own rule: rumble that drowns the rest and a large constant offset go, both channels are divided
  by their joint RMS. The table of cosines is computed from their numbers, which a runtime does once, when it loads the
  file: with it in the file, the small network's would be three times as large. What the estimator calls silence has
  logits of 0, a posterior that is the same for every delay. A frame with a NaN, an infinity or samples whose squares
  overflow has NaN for all: it is not silence, and no answer.
- Windows, and their spectra. ``n = N2 n1 + n2`` and ``k = k1 + N1 k2`` make a transform of length N = N1 N2 a product
  with a matrix of N1 columns, a turn of each number, and a product with one of N2 columns (Cooley and Tukey). The
  operator DFT takes longer (benchmarks/results/standalone_transform.md), and GPUs in browsers have none.
- Steering. The delays are `step` apart, as the network's convolutions along them want it, and so are the spare ones
  that are added at both ends. Of what is given, only the middle between the first and the last delay and their number
  count: a graph cannot refuse uneven ones. The tables of cosines and sines are those of delays around 0, and the
  evidence is turned to the middle instead, so that a runtime computes these, too, once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from qkgcc.core.errors import InputError
from qkgcc.core.types import DEAD, SILENCE
from qkgcc.dsp import rumble
from qkgcc.network.card import KEY, Card
from qkgcc.network.files import Arrays
from qkgcc.network.folding import fold, fold_published
from qkgcc.network.onnx_graph import Graph, evidence, published, save, steered, value
from qkgcc.network.shape import Shape
from qkgcc.network.steering import check_delays, steering_matrix, taper

ARCHITECTURES = ("steered", "qkgcc")
"""Those that are exported."""
SIGN = "positive: channel 0 of the frames hears the source later"
_LEVELS = {
    "frame": "as recorded (full scale 1, or any other): their level is removed inside",
    "utterance": "divided by the standard deviation of channel 0 over the whole recording",
}


def read_shape(card: Card) -> Shape:
    """An `InputError` for networks that are not exported."""
    if card.architecture not in ARCHITECTURES:
        raise InputError(f"{card.name} is a {card.architecture}; only QK-GCC is exported, published or steered")
    return Shape.of_card(card)


def frozen_delays(card: Card, max_delay: float) -> tuple[float, ...]:
    """Delays in samples, the network's step apart and evenly to both sides, up to the first that is not below
    `max_delay` in seconds."""
    shape, rate = read_shape(card), card.sample_rate
    most = math.ceil((shape.window or shape.frame) / 2 / shape.step) - 1
    furthest = most * shape.step / rate
    if not 0 <= max_delay <= furthest:
        raise InputError(f"the largest delay is {max_delay:g} s; {card.name} can look for 0 to {furthest:g} s")
    count = math.ceil(max_delay * rate / shape.step - 1e-6)
    return tuple(i * shape.step for i in range(-count, count + 1))


def export(card: Card, weights: Arrays, path: Path, delays: Sequence[float] | None = None) -> None:
    """Write a network as a file.

    Args:
        weights: by their names in a checkpoint, from which `qkgcc.network.files.read` has both.
        delays: in samples, at least one, the network's step apart, to freeze; None leaves them an input, where the
            network can be asked for any.
    """
    graph = full_graph(card, weights, delays)
    free = any(one.name == "delays" for one in graph.input)
    seconds = [delay / card.sample_rate for delay in (card.delays if delays is None else delays)]
    metadata = {
        KEY: card.to_json(),
        "sample_rate": str(card.sample_rate),
        "frame": str(card.frame),
        "unit": "seconds",
        "sign": SIGN,
        "step": repr(read_shape(card).step / card.sample_rate),
        "delays_are": "any, a step apart; those that the network was trained on are listed" if free else "fixed",
        "delays": json.dumps(seconds),
        "frames": f"(batch, 2, {card.frame}) float32 at {card.sample_rate} Hz, {_LEVELS[card.scaling]}",
        "logits": f"(batch, delays) float32; softmax gives probabilities; all 0: silence, joint RMS below {SILENCE:g}; "
        "all NaN: a sample is NaN, infinite or too large to be squared",
        "band": f"0 to {card.sample_rate // 2} Hz, all of which is taken to hold sound; resample lower rates up",
    }
    save(graph, metadata, path)


def full_graph(card: Card, weights: Arrays, delays: Sequence[float] | None = None) -> onnx.GraphProto:
    """From frames to logits."""
    build, shape = Graph(), read_shape(card)
    any_delay = card.architecture == "steered"
    if delays is not None and not any_delay:
        raise InputError(f"{card.name} knows its {len(card.delays)} delays and no others: they cannot be chosen")
    level, audible, unknown = _level(build, "frames", card)
    spectra = transform(build, _windows(build, level, shape), shape.window or shape.frame, shape.dft)
    inputs = [value("frames", ["batch", 2, card.frame], f"{card.sample_rate} Hz, {_LEVELS[card.scaling]}")]
    lags: int | str = len(card.delays) if delays is None else len(delays)
    if not any_delay:
        classes = fold_published(shape, weights)
        if len(classes.classes.bias) != lags:
            raise InputError(f"{card.name} has {len(classes.classes.bias)} classes, but its card {lags} delays")
        logits = published(build, shape, classes, spectra)
    else:
        net = fold(shape, weights)
        known = evidence(build, shape, net, spectra)
        if delays is None:
            logits, lags = steered(build, net, _steered(build, shape, known, card.sample_rate)), "lags"
            inputs.append(value("delays", ["lags"], f"seconds, a step apart; {SIGN}"))
        else:
            check_delays(np.asarray(delays, dtype=np.float64), shape.step)
            table = _table(shape, (delays[0] + delays[-1]) / 2, len(delays))
            logits = steered(build, net, build.add("MatMul", known, table))
    build.add("Add", build.add("Where", audible, logits, 0.0), unknown, output="logits")
    return build.to_proto(card.name, inputs, [value("logits", ["batch", lags], "softmax: probabilities of delays")])


def _level(build: Graph, frames: str, card: Card) -> tuple[str, str, str]:
    """Frames at the level that the network wants, whether they are more than silence, as `pairs.evidence` has it, and 0
    or, for those whose level is no finite number, NaN: activations may lose one on the way.

    Shape: (batch, 2, frame) -> (batch, 2, frame), (batch, 1), (batch, 1)
    """
    mean = build.add("ReduceMean", frames, [2], keepdims=1)
    around = build.add("Sub", frames, mean)
    power = build.add("ReduceMean", _square(build, around), [2], keepdims=1)
    spread = build.add("Sqrt", power)  # (batch, 2, 1)
    joint = build.add("Sqrt", build.add("ReduceMean", power, [1], keepdims=0))
    weaker = build.add("ReduceMin", spread, [1], keepdims=0)
    loud, both = build.add("GreaterOrEqual", joint, SILENCE), build.add("GreaterOrEqual", weaker, DEAD)
    audible = build.add("And", loud, both)
    unknown = build.add("Mul", joint, 0.0)
    if card.scaling != "frame":
        return frames, audible, unknown
    cleared = _without_rumble(build, frames, around, card)
    rest = build.add("ReduceMean", _square(build, build.add("Sub", cleared, mean)), [2], keepdims=1)
    large = build.add("Greater", build.add("Abs", mean), build.add("Mul", build.add("Sqrt", rest), 0.1))
    centred = build.add("Sub", cleared, build.add("Where", large, build.add("Mul", mean, 0.99), 0.0))
    rms = build.add("Sqrt", build.add("ReduceMean", _square(build, centred), [1, 2], keepdims=1))
    return build.add("Div", centred, build.add("Max", rms, SILENCE / 2)), audible, unknown


def _without_rumble(build: Graph, frames: str, around: str, card: Card) -> str:
    """`qkgcc.dsp.rumble`, of frames whose samples around their mean are known.

    Shape: (batch, 2, frame), same -> (batch, 2, frame)
    """
    length = card.frame
    numbers = np.arange(float(rumble.count_cosines(length, card.sample_rate)))
    # Whole turns are taken off before the cosine, for float32's sake.
    turns = build.add("Mul", (np.arange(length)[:, None] + 0.5) / (2 * length), numbers)
    turns = build.add("Sub", turns, build.add("Floor", turns))
    sizes = np.where(numbers, math.sqrt(2), 1.0) / length
    table = build.add("Mul", build.add("Cos", build.add("Mul", turns, 2 * np.pi)), sizes)
    faded = build.add("Mul", around, rumble.fade(length))
    of_both = build.add("MatMul", build.add("Concat", around, faded, axis=1), table)  # the table is read once
    cosines, judged = build.part(of_both, 1, 0, 2), build.part(of_both, 1, 2, 4)
    low = build.add("ReduceSum", _square(build, judged), [1, 2], keepdims=1)  # of the power
    whole = build.add("ReduceMean", _square(build, faded), [2], keepdims=1)
    rest = build.add("Sub", build.add("ReduceSum", whole, [1], keepdims=1), low)
    drowned = build.add("Greater", low, build.add("Mul", rest, rumble.MIN_RUMBLE_TO_REST))
    drowned = build.add("And", drowned, build.add("Less", low, build.add("Mul", rest, rumble.MAX_RUMBLE_TO_REST)))
    kept = build.add("Where", drowned, build.add("Mul", cosines, float(length)), 0.0)
    return build.add("Sub", frames, build.add("MatMul", kept, build.order(table, 1, 0)))


def _square(build: Graph, x: str) -> str:
    return build.add("Mul", x, x)


def _windows(build: Graph, frames: str, shape: Shape) -> str:
    """As `steering.cut_windows`. Shape: (batch, 2, frame) -> (batch, windows, 2, window)"""
    window = shape.window
    if not window:
        return build.add("Unsqueeze", frames, [1])
    count, hop = shape.windows(shape.frame), window // 2
    padded = build.pad(frames, 3, 0, (count + 1) * hop - shape.frame)
    halves = build.order(build.reshape(padded, 0, 2, count + 1, hop), 0, 2, 1, 3)
    both = build.add("Concat", build.part(halves, 1, 0, count), build.part(halves, 1, 1, count + 1), axis=3)
    return build.add("Mul", both, taper(window))


def transform(build: Graph, x: str, length: int, dft: int, output: str | None = None) -> str:
    """Real and imaginary parts of spectra of `length` samples, zero padded to `dft`.

    Shape: (batch, windows, 2, length) -> (batch, windows, 2, 2, bins)
    """
    first, second = factors(dft)
    used = -(-length // second)  # rows that are not all padding
    bins = dft // 2 + 1
    kept = (bins - 1) // first + 1  # values of k2: the others are mirrored
    x = build.reshape(build.pad(x, 4, 0, used * second - length), 0, 0, 0, used, second)
    x = build.order(x, 0, 1, 2, 4, 3)  # (..., n2, n1)
    real, imag = (build.add("MatMul", x, part) for part in _turns(np.arange(used), np.arange(first), first))
    cos, sin = _turns(np.arange(second), np.arange(first), dft)
    turned = [
        build.add("Sub", build.add("Mul", real, cos), build.add("Mul", imag, sin)),
        build.add("Add", build.add("Mul", imag, cos), build.add("Mul", real, sin)),
    ]
    cos, sin = _turns(np.arange(kept), np.arange(second), second)
    both = build.add("Concat", *turned, axis=3)  # (..., 2 n2, k1)
    spectra = build.add("MatMul", np.block([[cos, -sin], [sin, cos]]), both)  # (..., 2 k2, k1)
    spectra = build.reshape(spectra, 0, 0, 2, 2, kept * first)
    return build.add("Slice", spectra, [0], [bins], [4], output=output)


def factors(dft: int) -> tuple[int, int]:
    """The most even split of a transform's length.

    >>> factors(512), factors(4096), factors(600)
    ((16, 32), (64, 64), (24, 25))
    """
    first = max(n for n in range(1, math.isqrt(dft) + 1) if dft % n == 0)
    if first == 1:
        raise InputError(f"a DFT of {dft} samples has no factors, and is not exported: take an even length")
    return first, dft // first


def _turns(rows: Any, columns: Any, period: int) -> tuple[Any, Any]:
    """``exp(-j 2 pi r c / period)``, real and imaginary part; whole turns are left out in whole numbers."""
    angle = np.outer(rows, columns) % period * (2 * np.pi / period)
    return np.cos(angle), -np.sin(angle)


def _table(shape: Shape, center: float, count: int) -> Any:
    """The steering matrix of `count` delays and the spare ones."""
    return steering_matrix(shape.dft, center, shape.step, count + 2 * shape.spare, _terms(shape))


def _terms(shape: Shape) -> int:
    """Bins of all windows of a frame."""
    return shape.windows(shape.frame) * shape.bins


def _steered(build: Graph, shape: Shape, known: str, rate: int) -> str:
    """Evidence steered to the delays that are given, and to the spare ones, as `steering.steering_matrix` does.

    It is turned to the delay in their middle first. From there, one as far behind as another is before has the same
    cosines and the opposite sines: half of a table will do, and that knows nothing of the delays but their number.

    Shape: (batch, maps, 2 bins), (L,) -> (batch, maps, L + 2 spare)
    """
    bins, step = shape.bins, shape.step
    frequencies = np.arange(bins) / shape.dft
    count = build.add("Add", build.add("Shape", "delays"), [2 * shape.spare])
    before = build.add("Div", build.add("Sub", count, [1]), [2])
    behind = build.add("Sub", build.add("Sub", count, [1]), before)  # one more, of an even number
    ends = build.add("Add", build.part("delays", 0, 0, 1), build.part("delays", 0, -1, 2**31))
    uneven = build.add("Cast", build.add("Sub", behind, before), to=onnx.TensorProto.FLOAT)
    middle = build.add("Sub", build.add("Mul", ends, rate / 2), build.add("Mul", uneven, step / 2))
    cos, sin = _of_turns(build, build.add("Mul", frequencies, middle))
    real, imag = build.part(known, 2, 0, bins), build.part(known, 2, bins, 2 * bins)
    turned = [
        build.add("Sub", build.add("Mul", real, cos), build.add("Mul", imag, sin)),
        build.add("Add", build.add("Mul", real, sin), build.add("Mul", imag, cos)),
    ]
    # More than half of a window apart, nothing can be told: for that many delays to both sides, and as many again. A
    # runtime computes the tables when it loads the file.
    most = math.ceil((shape.window or shape.frame) / step) + shape.spare
    tables = _of_turns(build, build.add("Mul", frequencies, step * np.arange(most + 1)[:, None]))
    size, until = 1 / math.sqrt(_terms(shape)), build.add("Add", behind, [1])
    alike, opposite = (
        build.add("MatMul", part, build.order(build.add("Slice", build.add("Mul", table, size), [0], until, [0]), 1, 0))
        for part, table in zip(turned, tables, strict=True)
    )
    mirrored = build.add("Slice", build.add("Add", alike, opposite), before, [0], [2], [-1])
    return build.add("Concat", mirrored, build.add("Sub", alike, opposite), axis=2)


def _of_turns(build: Graph, cycles: str) -> tuple[str, str]:
    """Cosine and sine; whole turns are taken off before, for float32's sake."""
    angle = build.add("Mul", build.add("Sub", cycles, build.add("Floor", cycles)), 2 * np.pi)
    return build.add("Cos", angle), build.add("Sin", angle)
