"""The folded front end is the same function of the same parameters, and its GPU kernels compute it."""

import copy
import os
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from qkgcc.core.errors import InputError
from qkgcc.nets.folding import fold, folded_correlation
from qkgcc.nets.matching import center_symmetric_antisymmetric
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions, tokens
from rounding import assert_rounded

pytestmark = pytest.mark.numeric

SMALL = QKGCCOptions(frame=64, dft=128, max_delay=3, width=12, heads=3, radius=2, channels=6, kernel=3, hidden=10)


def network(options: QKGCCOptions, dtype: torch.dtype = torch.float64) -> QKGCC:
    """A network as it is in training: every parameter away from its initial value."""
    torch.manual_seed(0)
    model = QKGCC(options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.to(dtype)


def folded_copy(model: QKGCC) -> QKGCC:
    twin = copy.deepcopy(model)
    twin.folded = True
    return twin


def frames_of(options: QKGCCOptions, batch: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    """Spectra that fall from low to high frequencies, as speech does, at levels from very soft to very loud."""
    generator = torch.Generator().manual_seed(1)
    spectra = torch.fft.rfft(torch.randn(batch, 2, options.frame, generator=generator, dtype=torch.float64))
    place = torch.linspace(0, 1, spectra.shape[-1], dtype=torch.float64)
    frames = torch.fft.irfft(spectra / (0.02 + place) ** 2, n=options.frame)
    frames = frames / frames.abs().amax((1, 2), keepdim=True)
    return (frames * 10.0 ** torch.linspace(-3, 2, batch, dtype=torch.float64)[:, None, None]).to(dtype)


def masked(options: QKGCCOptions) -> Tensor:
    """The top of the band, the bottom, and a hole."""
    bins = torch.arange(options.bins)
    return (bins > 1) & (bins < options.bins - 9) & (bins // 7 != 2)


def assert_equal(found: Tensor | None, expected: Tensor | None, tolerance: float, name: str = "") -> None:
    """The largest difference, relative to the largest value."""
    assert found is not None
    assert expected is not None
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= tolerance * expected.abs().max(), name


# The function


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("magnitude", [False, True])
@pytest.mark.parametrize("radius", [0, 1, 8])
def test_logits_and_all_gradients_are_those_of_the_unfolded_network(
    radius: int, magnitude: bool, split: bool, mask: bool
) -> None:
    options = replace(SMALL, radius=radius, magnitude=magnitude, split=split)
    plain = network(options)
    folded = folded_copy(plain)
    bins = masked(options) if mask else None
    inputs = [frames_of(options).requires_grad_() for _ in range(2)]
    logits = [model(frames, bins) for model, frames in zip((folded, plain), inputs, strict=True)]
    assert_equal(*logits, tolerance=1e-10)
    weights = torch.randn_like(logits[0])
    for result in logits:
        (result * weights).sum().backward()
    assert_equal(inputs[0].grad, inputs[1].grad, tolerance=1e-10)
    for (name, found), expected in zip(folded.named_parameters(), plain.parameters(), strict=True):
        if name.endswith("0.bias") and "blocks" in name:
            continue  # batch normalization follows: the gradient of this bias is zero but for rounding
        assert_equal(found.grad, expected.grad, 1e-10, name)


@pytest.mark.parametrize("split", [False, True])
def test_the_correlation_itself_is_equal_and_zero_outside_the_band(split: bool) -> None:
    model, bins = network(replace(SMALL, radius=8)), masked(SMALL)
    parts = model.embed, model.position, model.norm, model.query, model.key, model.correlation
    given = tokens(frames_of(SMALL), SMALL.dft)
    expected = model.correlation(*model.queries_and_keys(frames_of(SMALL), bins))
    found = folded_correlation(given, fold(*parts), bins, split=split)
    assert_equal(found, center_symmetric_antisymmetric(expected) if split else expected, 1e-12)
    assert (found[..., ~bins] == 0).all()
    if not split:
        assert (found[..., 0, : 8 + 2] == 0).all()  # offset -8 meets its first key at bin 8, the first unmasked at 10
        assert (found[..., 0, 8 + 2] != 0).all()


def test_the_result_comes_in_the_type_asked_for() -> None:
    model = network(SMALL)
    folded = fold(model.embed, model.position, model.norm, model.query, model.key, model.correlation)
    given = tokens(frames_of(SMALL), SMALL.dft)
    exact = folded_correlation(given, folded)
    rounded = folded_correlation(given, folded, dtype=torch.bfloat16)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded, exact.to(torch.bfloat16))


def test_silence_has_finite_gradients() -> None:
    model = folded_copy(network(SMALL))
    frames = torch.zeros(2, 2, SMALL.frame, dtype=torch.float64, requires_grad=True)
    model(frames).sum().backward()
    assert frames.grad is not None
    assert frames.grad.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_front_end_too_narrow_to_fold_is_said() -> None:
    model = folded_copy(network(replace(SMALL, width=3)))
    with pytest.raises(InputError, match="width 3 cannot be folded; it takes more than 3"):
        model(frames_of(SMALL))


# Precision


@pytest.mark.parametrize("bias", ["random", "opposite"])
def test_float32_keeps_its_digits_from_soft_to_loud(bias: str) -> None:
    """At the paper's size. An opposite bias all but cancels tokens of about 55: sigma must not suffer."""
    options = QKGCCOptions()
    exact = network(options)
    if bias == "opposite":
        with torch.no_grad():
            exact.position.mul_(0.05)
            exact.embed.bias.copy_(-4 * exact.embed.weight[:, 0])
    exact.eval()
    frames = frames_of(options, batch=6, dtype=torch.float32)
    magnitudes = torch.fft.rfft(frames, n=options.dft).abs()
    assert magnitudes.min() < 1e-3
    assert magnitudes.max() > 1e4
    with torch.no_grad():
        expected = exact(frames.double())
        found = folded_copy(exact).float()(frames)
    assert_rounded(found, expected, 4096)
    # As the centre of the distribution matters for a softmax, not its size: the differences between classes too.
    apart = expected - expected.mean(-1, keepdim=True)
    assert_rounded(found - found.mean(-1, keepdim=True), apart, 4096)


def test_float32_gradients_are_those_of_float64() -> None:
    exact = folded_copy(network(SMALL))
    single = copy.deepcopy(exact).float()
    frames = frames_of(SMALL)
    for model, given in ((exact, frames), (single, frames.float())):
        model(given).square().mean().backward()
    for (name, found), expected in zip(single.named_parameters(), exact.parameters(), strict=True):
        if not (name.endswith("0.bias") and "blocks" in name):
            assert found.grad is not None
            assert_equal(found.grad.double(), expected.grad, 1e-3, name)


def test_autocast_rounds_only_what_the_head_reads() -> None:
    model = folded_copy(network(SMALL, torch.float32)).eval()
    seen = []
    model.head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    frames = frames_of(SMALL, dtype=torch.float32)
    with torch.no_grad():
        model(frames)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            model(frames)
    assert [x.dtype for x in seen] == [torch.float32, torch.bfloat16]
    torch.testing.assert_close(seen[1], seen[0].to(torch.bfloat16))


# Compiled, and the kernels


def test_the_folded_network_is_one_graph() -> None:
    model = folded_copy(network(SMALL))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    frames, bins = frames_of(SMALL), masked(SMALL)
    gradients = []
    for function in (compiled, model):
        model.zero_grad()
        function(frames, bins).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 0
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def interpret(script: str) -> list[list[float]]:
    """What `script` prints, a list of numbers for each line, with the kernels in Triton's interpreter."""
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return [[float(word) for word in line.split()] for line in run.stdout.splitlines()]


@pytest.mark.slow
def test_the_kernels_agree_with_torch_in_the_interpreter() -> None:
    """Both orders, both sizes of token, blocks that do not divide the bins, frames that do not fill their block."""
    script = """
import torch
from qkgcc.nets import folding_gpu
from qkgcc.nets.folding import banded_product, plain_banded_product
folding_gpu._BINS, folding_gpu._FRAMES = 16, 2
torch.manual_seed(0)

def off(found, exact):
    return float((found.double() - exact.double()).norm() / exact.double().norm())

for (batch, heads, bins), terms, radius, split, dtype in [
    ((3, 2, 37), 4, 0, False, torch.float32),
    ((3, 2, 37), 4, 1, True, torch.float32),
    ((3, 1, 37), 3, 2, False, torch.float32),
    ((2, 1, 37), 3, 3, True, torch.bfloat16),
    ((1, 1, 37), 4, 8, False, torch.float32),
    ((1, 1, 20), 4, 18, True, torch.float32),  # further than a block, and nearly than the band
]:
    factors, rows = [(batch, heads, terms, bins)] * 2, (batch, 2, terms, bins)
    shapes = [*factors, rows, (batch, 2, bins), (heads, 2 * radius + 1, bins)]
    exact = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    single = [x.detach().float().requires_grad_() for x in exact]
    expected = plain_banded_product(*exact, split, torch.float64)
    found = banded_product(*single, split, dtype)
    assert found.dtype == dtype
    gradient = torch.randn_like(expected).to(dtype)
    pairs = zip(torch.autograd.grad(found, single, gradient), torch.autograd.grad(expected, exact, gradient.double()))
    print(dtype.itemsize, off(found, expected), *(off(*pair) for pair in pairs))
"""
    rows = interpret(script)
    assert len(rows) == 6
    for size, value, *gradients in rows:
        assert value < (2e-7 if size == 4 else 6e-3)  # the interpreter cuts bfloat16 off, where the GPU rounds it
        assert len(gradients) == 5
        assert max(gradients) < 3e-7


@pytest.mark.slow
def test_the_operator_is_what_torch_is_told_of_it() -> None:
    """Shapes, types and gradients, in the interpreter."""
    script = """
import torch
from qkgcc.nets.folding import banded_product
torch.manual_seed(0)
shapes = (2, 2, 3, 7), (2, 2, 3, 7), (2, 2, 3, 7), (2, 2, 7), (2, 5, 7)
args = [torch.randn(shape, requires_grad=True) for shape in shapes]
print(*(float(x == "SUCCESS") for x in torch.library.opcheck(banded_product, (*args, True, torch.float32)).values()))
"""
    (results,) = interpret(script)
    assert len(results) == 4
    assert all(results)


@pytest.mark.slow
def test_the_network_through_the_kernels_is_one_graph_and_equal() -> None:
    """The path of a GPU, from frames to gradients, in the interpreter."""
    script = """
import copy, sys
import torch
from qkgcc.nets import folding
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
folding.plain_banded_product = folding.banded_product  # this machine has no GPU, so the CPU's path is turned
torch.manual_seed(0)
exact = QKGCC(QKGCCOptions(frame=32, dft=64, max_delay=3, width=12, heads=2, radius=2, channels=6, hidden=10)).double()
frames = torch.randn(3, 2, 32)
bins = torch.arange(33) < 29
expected = exact(frames.double(), bins)
expected.square().mean().backward()
folded = copy.deepcopy(exact).float()
folded.zero_grad()
folded.folded = True
found = torch.compile(folded, fullgraph=True, backend="aot_eager")(frames, bins)
found.square().mean().backward()
assert "qkgcc.nets.folding_gpu" in sys.modules

def off(found, exact):
    return float((found.double() - exact).norm() / exact.norm())

pairs = zip(folded.named_parameters(), exact.parameters())
print(off(found, expected), *(off(a.grad, b.grad) for (n, a), b in pairs if "blocks" not in n or "bias" not in n))
"""
    (errors,) = interpret(script)
    assert len(errors) > 10
    assert max(errors) < 1e-4


def test_without_a_gpu_the_kernels_are_not_imported() -> None:
    script = """
import sys
import torch
from qkgcc.nets.qkgcc import QKGCC
model = QKGCC()
model.folded = True
model(torch.randn(2, 2, 2048)).sum().backward()
print(float("qkgcc.nets.folding_gpu" in sys.modules))
"""
    assert interpret(script) == [[0.0]]
