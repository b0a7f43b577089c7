"""How far a float32 result may be from the exact one: the one tolerance of all numeric tests.

Two float32 programs, or one program on two processors, add the same numbers in another order, and round otherwise.
Neither is the truth. So a float32 result is compared with a float64 reference, never with another float32 program.

A float32 operation is wrong by at most EPSILON times its result. Over a sum of n terms these errors add up like a
random walk, to EPSILON * sqrt(n) * scale, where the scale is the size of what is summed. A network has a few such sums
in a row, and its worst number is some standard deviations out, for which GROWTH allows:

    tolerance = GROWTH * EPSILON * sqrt(terms) * scale

Programs here stay below a quarter of it. One float16 on the way, a coarser function or one wrong bin are beyond it: see
`test_rounding.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from qkgcc.network.published import PublishedModel
from qkgcc.network.steered import SteeredModel
from qkgcc.pairs import neural

EPSILON = 2.0**-24
"""Half the distance from 1 to the next float32."""
GROWTH = 8.0
ROUNDED_SAMPLES = 1e-4
"""Of recordings stored with 16 bits: a sample in a thousand rounded to its other neighbour, relative to a level of
327, or -40 dB."""


def tolerance(reference: Any, terms: int, scale: float | None = None) -> float:
    """Args:
    terms: of the longest sum. A network's logit sums as many numbers as a frame's two channels have samples.
    scale: size of what is summed; None: the largest number of the reference. Give it where sums cancel.
    """
    size = np.abs(reference).max(initial=0) if scale is None else scale
    return float(GROWTH * EPSILON * np.sqrt(terms) * size)


def assert_rounded(found: Any, reference: Any, terms: int, scale: float | None = None) -> None:
    """Found is the reference, up to float32's rounding. NumPy arrays or torch tensors, a sequence of those, too."""
    found, reference = _array(found), _array(reference)
    assert found.dtype in (np.float32, np.complex64), f"{found.dtype} is compared; expected a float32 result"
    assert reference.dtype in (np.float64, np.complex128), f"a {reference.dtype} reference; expected float64"
    np.testing.assert_allclose(found, reference, rtol=0, atol=tolerance(reference, terms, scale))


def assert_close_posteriors(found: Any, reference: Any, terms: int) -> None:
    """The same of probabilities from logits, which lie around 10 and are known to `tolerance` of that: where all logits
    move by d, no probability moves by more than 2 d p."""
    np.testing.assert_allclose(found, reference, rtol=0, atol=2 * tolerance(reference, terms, scale=10.0))


@contextmanager
def exact_networks() -> Iterator[None]:
    """Estimators that are made meanwhile run their network in float64, wherever the package runs it itself."""

    class Steered(SteeredModel):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options, dtype=np.float64)

    class Published(PublishedModel):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options, dtype=np.float64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neural, "SteeredModel", Steered)
        patch.setattr(neural, "PublishedModel", Published)
        yield


def _array(given: Any) -> np.ndarray:
    return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
