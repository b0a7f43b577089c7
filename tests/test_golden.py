"""The same ten recordings have the answers that they have had since `tests/golden/answers.json` was written."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from golden.answers import RECORDINGS, Answer, read

WRITTEN = Path(__file__).parent / "golden" / "answers.json"
TOLERANCE = {"delay": 1e-3, "summary": 1e-3, "azimuth": 0.01, "found": 0.01, "blocks": 0.01, "tracks": 0.01}
"""Samples, degrees, and shares; what is not named here, 2e-3: float32 is rounded otherwise on other processors."""


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda one: one.__name__)
def test_answers_are_those_of_before(recording: Callable[[], Answer]) -> None:
    found = recording()
    before = read(WRITTEN)
    assert {f"{recording.__name__}/{what}" for what in found} <= set(before)
    for what, values in found.items():
        expected = before[f"{recording.__name__}/{what}"]
        assert np.isfinite(expected).any()
        if what in ("delay", "azimuth") and "confidence" in found:  # in noise, rounding decides
            sure = before[f"{recording.__name__}/confidence"] > 0.5
            assert sure.any()
            values, expected = np.asarray(values)[sure], expected[sure]
        np.testing.assert_allclose(values, expected, atol=TOLERANCE.get(what, 2e-3), err_msg=what)
