"""The tolerance of the numeric tests: rounding passes, faults do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qkgcc import samples
from qkgcc.audio.recording import open_audio
from qkgcc.network import reference as plain
from qkgcc.network.registry import WEIGHTS
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs.frontend import at_unit_level
from rounding import EPSILON, assert_rounded, tolerance

pytestmark = pytest.mark.numeric

SMALL = WEIGHTS / "general-small.safetensors"
GRID = np.arange(-48, 49.0)


def frames() -> np.ndarray:
    """Of the bundled recording."""
    audio = np.concatenate(list(open_audio(samples.path("talkers-2ch")).blocks()), axis=1)
    return at_unit_level(np.stack([audio[:, i : i + 2048] for i in range(0, 20480, 2048)])).astype(np.float32)


REFERENCE = SteeredModel.load(SMALL, dtype=np.float64).logits(frames(), None, GRID)


@pytest.mark.parametrize("terms", [1, 100, 10_000, 1_000_000])
def test_sums_in_any_order_are_within_it(terms: int) -> None:
    x = np.random.default_rng(terms).standard_normal(terms).astype(np.float32)
    exact = x.sum(dtype=np.float64)
    for order in (x, x[::-1], np.sort(x)):
        naive = np.cumsum(order, dtype=np.float32)[-1]  # one after the other
        assert_rounded(naive, exact, terms, scale=np.abs(np.cumsum(order, dtype=np.float64)).max())


def test_float16_is_beyond_it() -> None:
    x = np.random.default_rng(0).standard_normal((10, 4096))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_rounded(x.astype(np.float16).astype(np.float32).sum(axis=1), x.sum(axis=1), 4096)


def test_two_float32_programs_are_not_compared() -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(AssertionError, match="a float32 reference; expected float64"):
        assert_rounded(x, x, 1)
    with pytest.raises(AssertionError, match="float64 is compared; expected a float32 result"):
        assert_rounded(x.astype(np.float64), x.astype(np.float64), 1)


def test_the_scale_is_the_size_of_the_numbers() -> None:
    assert tolerance([0.5, -2.0], 4) == 8 * EPSILON * 2 * 2.0
    assert tolerance([0.5, -2.0], 4, scale=10.0) == 8 * EPSILON * 2 * 10.0
    assert tolerance([], 4) == 0


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])
def test_a_network_leaves_most_of_it_for_other_processors(compiled: bool) -> None:
    found = SteeredModel.load(SMALL, compiled=compiled).logits(frames(), None, GRID)
    assert np.abs(found - REFERENCE).max() < tolerance(REFERENCE, 4096) / 4


def coarse(x: Any) -> Any:
    """As if it had been float16 on the way."""
    if np.iscomplexobj(x):
        return (coarse(x.real) + 1j * coarse(x.imag)).astype(x.dtype)
    return x.astype(np.float16).astype(x.dtype)


def coarse_gelu(x: np.ndarray) -> np.ndarray:
    """Its well-known approximation."""
    return (x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))).astype(x.dtype)


FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "float16 phases": ("_tokens", lambda right: lambda *given: coarse(right(*given))),
    "float16 features": ("correlation", lambda right: lambda *given: coarse(right(*given))),
    "float16 evidence": ("evidence", lambda right: lambda *given: coarse(right(*given))),
    "evidence a bin off": ("evidence", lambda right: lambda *given: np.roll(right(*given), 1, axis=-1)),
    "a bin left out": (
        "correlation",
        lambda right: lambda *given: right(*given[:-1], given[-1] * (np.arange(257) != 99)),
    ),
    "a coarse GELU": ("gelu", lambda right: coarse_gelu),
}
"""What of `qkgcc.network.reference` is replaced, by what."""


@pytest.mark.parametrize(("where", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_network_is_beyond_it(
    where: str, fault: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SteeredModel.load(SMALL, compiled=False)
    monkeypatch.setattr(plain, where, fault(getattr(plain, where)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_rounded(model.logits(frames(), None, GRID), REFERENCE, 4096)
