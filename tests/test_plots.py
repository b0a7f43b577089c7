from pathlib import Path

import numpy as np
import pytest

from qkgcc import DelayEstimator, InputError, samples

pytestmark = pytest.mark.needs("matplotlib")


def test_the_picture_shows_delay_truth_and_confidence(tmp_path: Path) -> None:
    name = "talkers-2ch"
    answer = DelayEstimator("phat")(samples.path(name))
    figure = answer.plot(tmp_path / "a.png", truth=samples.truth_at(answer.times, name))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    main, trust, *_ = figure.axes
    assert [t.get_text() for t in main.get_legend().get_texts()] == ["truth", "estimate"]
    np.testing.assert_allclose(main.collections[-1].get_offsets()[:, 1], answer.delay_samples)
    np.testing.assert_allclose(trust.collections[0].get_offsets()[:, 1], answer.confidence)


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_other_formats_by_their_ending(tmp_path: Path, suffix: str) -> None:
    answer = DelayEstimator("phat")(samples.path("talkers-2ch"), end=1.0)
    answer.plot(tmp_path / f"a{suffix}")
    assert (tmp_path / f"a{suffix}").stat().st_size > 1000


def test_one_frame_and_pure_silence_can_be_drawn() -> None:
    DelayEstimator("phat")(samples.path("talkers-2ch"), end=0.13).plot()
    DelayEstimator("phat")(np.zeros((2, 9000)), 16000).plot()


def test_an_unwritable_place_is_said(tmp_path: Path) -> None:
    answer = DelayEstimator("phat")(samples.path("talkers-2ch"), end=1.0)
    with pytest.raises(InputError, match="does not exist"):
        answer.plot(tmp_path / "no" / "a.png")
    with pytest.raises(InputError, match=r"cannot write .*xxx\.png: File name too long"):
        answer.plot(tmp_path / f"{300 * 'x'}.png")


def test_the_panel_at_the_side_has_its_peak_at_the_delay_of_the_whole() -> None:
    answer = DelayEstimator("general-small", spacing=0.5, max_sources=2)(samples.path("talkers-2ch"), end=4.0)
    main, _, side, *_ = answer.plot().axes
    curve = side.lines[-1]
    assert abs(curve.get_ydata()[np.argmax(curve.get_xdata())] - answer.summary.delay_samples) <= 1
    assert "other sources, by weight" in [t.get_text() for t in main.get_legend().get_texts()]
