"""The folded QK-GCC on one GPU: whether its kernels are right, and what a training step gains by them.

    PYTHONPATH=src python -m benchmarks.folding_gpu [--batch 32] [--radius 8]

Needs torch, triton and numpy, and of qkgcc only the source: a machine lent for its GPU may have nothing more.
A step is the forward and the backward pass, compiled and replayed as a CUDA graph, without the optimizer.
"""

import argparse
import copy
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    import qkgcc  # noqa: F401
except ImportError:  # not installed, or without what reading audio needs: its torch half stands alone
    sys.modules["qkgcc"] = ModuleType("qkgcc")
    sys.modules["qkgcc"].__path__ = [str(Path(__file__).parents[1] / "src" / "qkgcc")]

from qkgcc.nets.folding import banded_product, plain_banded_product
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions

HEADS, BINS = 4, 2049


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--radius", type=int, default=8)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, batch {arguments.batch}\n")
    kernel_accuracy(arguments.batch)
    network_accuracy(QKGCCOptions(radius=arguments.radius))
    kernel_times(arguments.batch, arguments.radius)
    step_times(arguments.batch, QKGCCOptions(radius=arguments.radius))


def relative(found: Tensor, exact: Tensor) -> float:
    """||found - exact|| / ||exact||"""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def factors(batch: int, radius: int, terms: int = 4) -> list[Tensor]:
    """Fresh random factors of the banded product, float32."""
    both, rows = [(batch, HEADS, terms, BINS)] * 2, (batch, 2, terms, BINS)
    shapes = [*both, rows, (batch, 2, BINS), (HEADS, 2 * radius + 1, BINS)]
    return [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]


def kernel_accuracy(batch: int) -> None:
    """Against torch in float64; and twice, for the same bits."""
    print("kernels, relative difference to float64 (bfloat16: 2e-3 is its rounding)")
    print(f"{'radius':>6} {'terms':>5} {'split':>5} {'result':>8} {'value':>8} {'worst gradient':>14} same bits twice")
    cases = [(radius, 4, True, torch.float32) for radius in (0, 1, 8, 16, 32)]
    cases += [(8, 4, False, torch.float32), (8, 3, True, torch.float32), (8, 4, True, torch.bfloat16)]
    for radius, terms, split, dtype in cases:
        single = factors(batch, radius, terms)
        exact = [x.detach().double().requires_grad_() for x in single]
        expected = plain_banded_product(*exact, split, torch.float64)
        gradient = torch.randn_like(expected).to(dtype)
        expected_gradients = torch.autograd.grad(expected, exact, gradient.double())
        runs = []
        for _ in range(2):
            found = banded_product(*single, split, dtype)
            runs.append((found, *torch.autograd.grad(found, single, gradient)))
        worst = max(relative(*pair) for pair in zip(runs[0][1:], expected_gradients, strict=True))
        same = all(torch.equal(*pair) for pair in zip(*runs, strict=True))
        name = str(dtype).removeprefix("torch.")
        value = relative(runs[0][0], expected)
        print(f"{radius:>6} {terms:>5} {split!s:>5} {name:>8} {value:>8.1e} {worst:>14.1e} {'yes' if same else 'NO'}")
    print()


def network_accuracy(options: QKGCCOptions) -> None:
    """Logits and gradients of the whole network, folded and compiled, against the unfolded one in float64."""
    torch.manual_seed(0)
    frames = torch.randn(8, 2, options.frame, device="cuda") * torch.logspace(-3, 1, 8, device="cuda")[:, None, None]
    exact = QKGCC(options).cuda().double()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    expected = exact(frames.double())
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    print("network, folded and compiled: relative difference to the unfolded one in float64")
    for name, tf32 in (("float32", False), ("TF32", True)):
        set_tf32(tf32)
        model = copy.deepcopy(exact).float()
        model.zero_grad()
        model.folded = True
        logits = torch.compile(model, fullgraph=True)(frames)
        (logits * weights.float()).sum().backward()
        pairs = zip(model.named_parameters(), exact.parameters(), strict=True)
        # A bias before batch normalization has no gradient but rounding.
        off = {n: relative(p.grad, q.grad) for (n, p), q in pairs if not ("blocks" in n and n.endswith("0.bias"))}
        worst = max(off, key=lambda n: off[n])
        print(f"{name:>8}: logits {relative(logits, expected):.1e}, worst gradient {off[worst]:.1e} ({worst})")
    torch.compiler.reset()
    print()


def set_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def replayed(function: Callable[[], object]) -> float:
    """Microseconds of one replay of `function`'s CUDA graph: the median of 20 means over 50 replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    means = []
    for _ in range(21):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(50):
            graph.replay()
        end.record()
        end.synchronize()
        means.append(1000 * start.elapsed_time(end) / 50)
    return statistics.median(means[1:])


def kernel_times(batch: int, radius: int) -> None:
    """Repeated runs over one buffer: smaller inputs come from the cache, as they do within a step."""
    print("kernels alone, microseconds (the result's bytes over its time)")
    given = [x.detach() for x in factors(batch, radius)]
    for dtype in (torch.float32, torch.bfloat16):
        result = banded_product(*given, True, dtype)
        gradient = torch.randn_like(result)
        backward = partial(torch.ops.qkgcc.banded_product_backward, gradient, *given, True)
        for name, function in (("forward", partial(banded_product, *given, True, dtype)), ("backward", backward)):
            time, size = replayed(function), result.numel() * result.element_size()
            print(f"{str(dtype).removeprefix('torch.'):>8} {name:<8} {time:8.1f} ({size / time / 1e6:.2f} TB/s)")
    print()


def step_times(batch: int, options: QKGCCOptions) -> None:
    set_tf32(True)
    torch.manual_seed(0)
    frames = torch.randn(batch, 2, options.frame, device="cuda")
    shape = batch, options.heads * (2 * options.radius + 1), options.bins
    print("forward and backward, compiled, replayed: microseconds a step (frames a second)")
    times: list[float] = []
    for half in (False, True):
        for what in ("unfolded", "folded", "head alone"):
            model = QKGCC(options).cuda()
            model.folded = what == "folded"
            if (
                what == "head alone"
            ):  # what is left if all before it cost nothing; in the network its input has a gradient
                features = torch.randn(shape, device="cuda", dtype=torch.bfloat16 if half else torch.float32)
                times.append(step_time(model.head, features.requires_grad_(), half))
            else:
                times.append(step_time(model, frames, half))
            name = f"{what}, {'bfloat16 autocast' if half else 'TF32'}"
            rate, gain = 1e6 * batch / times[-1], times[0] / times[-1]
            print(f"{name:<32} {times[-1]:8.1f} ({rate:9.0f}), {gain:5.2f} x the first", flush=True)


def step_time(network: nn.Module, given: Tensor, half: bool) -> float:
    classes = torch.randint(47, (len(given),), device="cuda")

    def loss() -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            logits = network(given)
        return F.cross_entropy(logits.float(), classes)

    compiled = torch.compile(loss, fullgraph=True, dynamic=False)

    def step() -> None:
        network.zero_grad()
        given.grad = None
        compiled().backward()

    time = replayed(step)
    torch.compiler.reset()
    return time


if __name__ == "__main__":
    main()
