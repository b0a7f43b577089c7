"""Windows of a frame in NumPy, for networks that run without torch."""

import numpy as np
import pytest

from qkgcc.network.steering import count_windows, cut_windows

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize(("frame", "expected"), [(64, 3), (63, 3), (49, 3), (48, 2), (33, 2), (32, 1), (5, 1)])
def test_as_many_windows_as_cover_the_frame(frame: int, expected: int) -> None:
    assert count_windows(frame, 32) == expected
    assert cut_windows(np.ones((2, frame)), 32).shape == (2, expected, 32)


def test_windows_sum_to_the_frame_where_two_overlap() -> None:
    frame = np.random.default_rng(0).standard_normal(64)
    parts = cut_windows(frame, 32)
    whole = np.zeros(64)
    for i, part in enumerate(parts):
        whole[16 * i : 16 * i + 32] += part
    np.testing.assert_allclose(whole[16:48], frame[16:48], atol=1e-6)


def test_zeros_follow_a_frame_that_they_do_not_fill() -> None:
    parts = cut_windows(np.ones(40), 32)
    assert len(parts) == 2
    np.testing.assert_array_equal(parts[1, 24:], 0)
    assert parts[1, 23] > 0
