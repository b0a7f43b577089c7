"""Several pairs of one recording: read once, and each answered as if it were asked for alone."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qkgcc import DelayEstimate, DelayEstimator, InputError
from qkgcc.audio.decode import SoundFile
from qkgcc.audio.recording import Recording, open_audio
from qkgcc.delay import estimator as estimating

pytestmark = pytest.mark.numeric

PUBLISHED = Path(__file__).parents[1] / "checkpoints" / "qkgcc-0.safetensors"
ALL = list(itertools.combinations(range(4), 2))


def sound(rate: int, seconds: float = 2.0) -> np.ndarray:
    """Four microphones of unequal gains, one of them silent for a while and one with an offset."""
    rng = np.random.default_rng(rate)
    source = rng.standard_normal(int(seconds * rate) + 60)
    count = int(seconds * rate)
    heard = [gain * source[8 * i :][:count] for i, gain in enumerate((0.2, 0.07, 0.3, 0.011))]
    given = np.stack(heard) + 0.02 * rng.standard_normal((4, count))
    given[2, : count // 2] = 0
    given[1] += 0.3
    return given.astype(np.float32)


def recording(path: Path, rate: int) -> Recording:
    soundfile.write(path / "four.wav", sound(rate).T, rate, "FLOAT")
    return open_audio(path / "four.wav")


def assert_same(one: DelayEstimate, two: DelayEstimate) -> None:
    """To the bit."""
    assert (one.channels, one.summary, one.warnings) == (two.channels, two.summary, two.warnings)
    for name in ("times", "delay_samples", "confidence", "curve", "lags"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)
    if one.source_delays is not None:
        np.testing.assert_array_equal(one.source_delays, two.source_delays)


class TestEachPairIsAnsweredAsIfAlone:
    @pytest.mark.parametrize("rate", [16000, 48000])
    @pytest.mark.parametrize("method", ["general", "general-small", "phat", "phat-beta", "roth", "scot", "ml"])
    def test_to_the_bit(self, method: str, rate: int, tmp_path: Path) -> None:
        estimator, given = DelayEstimator(method, spacing=0.3), recording(tmp_path, rate)
        pairs = [*ALL, (3, 1)]
        together = list(estimator.of_pairs(given, pairs))
        assert [answer.channels for answer in together] == pairs
        for pair, answer in zip(pairs, together, strict=True):
            assert_same(answer, estimator(tmp_path / "four.wav", channels=pair))

    @pytest.mark.parametrize("options", [{"smoothing": 0.2}, {"max_sources": 2}, {"symmetric": True}])
    def test_with_options(self, options: dict[str, object], tmp_path: Path) -> None:
        estimator, given = DelayEstimator("general-small", **options), recording(tmp_path, 16000)  # type: ignore[arg-type]
        for pair, answer in zip(ALL, estimator.of_pairs(given, ALL), strict=True):
            assert_same(answer, estimator(given.pick(pair)))

    def test_by_the_level_of_its_own_first_channel(self, tmp_path: Path) -> None:
        estimator, given = DelayEstimator(PUBLISHED), recording(tmp_path, 16000)
        assert estimator.method_at(16000).scaling == "utterance"
        for pair, answer in zip(ALL, estimator.of_pairs(given, ALL), strict=True):
            assert_same(answer, estimator(given.pick(pair)))


@pytest.mark.parametrize("method", ["phat", "general-small"])
def test_a_file_is_read_once_for_all_pairs(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, reads = recording(tmp_path, 16000), []
    blocks = SoundFile.blocks
    monkeypatch.setattr(SoundFile, "blocks", lambda file, *part: reads.append(part) or blocks(file, *part))
    assert len(list(DelayEstimator(method).of_pairs(given, ALL))) == 6
    assert len(reads) == 1


def test_so_many_curves_at_a_time_as_memory_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, reads, shares = recording(tmp_path, 16000), [], []
    estimator = DelayEstimator("phat")
    expected = list(estimator.of_pairs(given, ALL))
    blocks = SoundFile.blocks
    monkeypatch.setattr(SoundFile, "blocks", lambda file, *part: reads.append(part) or blocks(file, *part))
    monkeypatch.setattr(estimating, "MOST_CURVES", 2.5 * expected[0].curve.size)
    for answer, other in zip(estimator.of_pairs(given, ALL, progress=shares.append), expected, strict=True):
        assert_same(answer, other)
    assert len(reads) == 3
    assert shares == sorted(shares)
    assert shares[-1] == 1
    reads.clear()
    list(estimator.of_pairs(given, ALL, curve=False))  # what has no curves has room
    assert len(reads) == 1


def test_a_pair_that_is_not_there_is_said_before_the_work(tmp_path: Path) -> None:
    given = recording(tmp_path, 16000)
    with pytest.raises(InputError, match="has channels 0 to 3, not 7"):
        next(DelayEstimator("phat").of_pairs(given, [(0, 1), (0, 7)]))
    with pytest.raises(InputError, match="every channel once"):
        next(DelayEstimator("phat").of_pairs(given, [(1, 1)]))
