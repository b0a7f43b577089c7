"""Files that `qkgcc export` wrote, as methods: within their limits, and none that is damaged."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from qkgcc import DelayEstimator, InputError, samples
from qkgcc.audio.recording import Resampler, open_audio
from qkgcc.nets import standalone
from qkgcc.network.card import KEY
from qkgcc.network.files import read
from qkgcc.network.onnx_files import StandaloneModel
from qkgcc.network.registry import pretrained
from qkgcc.pairs.neural import SLACK
from rounding import assert_close_posteriors, exact_networks

pytestmark = pytest.mark.numeric

OLDER = ("spectra", "steering"), ("logits", "reliability")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("methods")
    card, arrays = read(pretrained("general-small"))
    standalone.export(card, arrays, folder / "free.onnx")
    standalone.export(card, arrays, folder / "frozen.onnx", standalone.frozen_delays(card, 0.002))
    return folder / "free.onnx", folder / "frozen.onnx"


class TestAsAMethod:
    def answers(self, *methods: Path | str, **options: object) -> list[np.ndarray]:
        sound = samples.path("talkers-2ch")
        return [DelayEstimator(one, **options)(sound, end=4.0).curve for one in methods]  # type: ignore[arg-type]

    def test_answers_are_those_of_the_network(self, files: tuple[Path, Path]) -> None:
        with exact_networks():
            (exact,) = self.answers("general-small", spacing=0.5)
        for found in self.answers("general-small", files[0], spacing=0.5):
            assert_close_posteriors(found, exact, 4096)

    def test_frozen_delays_answer_up_to_where_they_end(self, files: tuple[Path, Path]) -> None:
        model = StandaloneModel(files[1])
        assert model.card.delays == tuple(range(-32, 33))
        for max_delay, count in ((0.001, 35), (0.00198, 65)):  # a step more than is possible, where the file has it
            (curve,) = self.answers(files[1], max_delay=max_delay)
            assert curve.shape[1] == count
        with pytest.raises(InputError, match=r"was exported for delays up to 2\.00 ms, not 3\.00 ms: export it again"):
            self.answers(files[1], max_delay=0.003)

    def test_frozen_delays_beyond_the_spacing_are_noticed_as_by_name(
        self, files: tuple[Path, Path], tmp_path: Path
    ) -> None:
        card, arrays = read(pretrained("general-small"))
        standalone.export(card, arrays, tmp_path / "whole.onnx", standalone.frozen_delays(card, 0.006))
        with exact_networks():
            by_name = DelayEstimator("general-small", spacing=0.3)(samples.path("talkers-2ch"))
        whole, fewer = (
            DelayEstimator(method, spacing=0.3)(samples.path("talkers-2ch"))
            for method in (tmp_path / "whole.onnx", files[1])
        )
        said = r"in \d+ of 214 frames the delay looks longer \(.* ms\) than your spacing allows \(0\.87 ms\)"
        assert any(re.match(said, line) for line in by_name.warnings)
        assert whole.warnings == by_name.warnings
        np.testing.assert_allclose(whole.confidence, by_name.confidence, atol=1e-3)
        assert any(re.match(said, line) for line in fewer.warnings)
        for answer in (whole, fewer):
            assert np.abs(answer.delay_samples).max() <= 16000 * 0.3 / 343 + SLACK

    @pytest.mark.parametrize(
        ("frozen", "max_delay", "calibrated"),
        [
            (96, 0.0015, True),  # all that the network looks at
            (95, 0.0015, False),
            (24, 0.0015, False),
            (255, None, True),  # without a spacing that is more
            (254, None, False),
        ],
    )
    def test_what_lacks_delays_that_would_be_looked_at_is_not_calibrated(
        self, tmp_path: Path, frozen: int, max_delay: float | None, calibrated: bool
    ) -> None:
        card, arrays = read(pretrained("general-small"))
        standalone.export(card, arrays, tmp_path / "one.onnx", range(-frozen, frozen + 1))
        answer = DelayEstimator(tmp_path / "one.onnx", max_delay=max_delay)(samples.path("talkers-2ch"), end=1.0)
        assert answer.calibrated is calibrated
        said = f"was exported with delays up to {frozen / 16:.2f} ms: one beyond them goes unnoticed"
        assert any(said in line for line in answer.warnings) is not calibrated

    def test_delays_beyond_the_trained_ones_are_a_guess_from_a_file_too(self, tmp_path: Path) -> None:
        card, arrays = read(pretrained("general-small"))
        standalone.export(card, arrays, tmp_path / "far.onnx", range(-150, 151))
        with exact_networks():
            exact = DelayEstimator("general-small", max_delay=0.0085)(samples.path("talkers-2ch"), end=1.0)
        found = DelayEstimator(tmp_path / "far.onnx", max_delay=0.0085)(samples.path("talkers-2ch"), end=1.0)
        for answer in (exact, found):
            assert any("was trained on delays up to 6.0 ms" in line for line in answer.warnings)
        np.testing.assert_allclose(found.confidence, exact.confidence, atol=1e-3)

    def test_frozen_delays_may_lie_to_one_side(self, tmp_path: Path) -> None:
        card, arrays = read(pretrained("general-small"))
        standalone.export(card, arrays, tmp_path / "side.onnx", range(4, 33))
        answer = DelayEstimator(tmp_path / "side.onnx", max_delay=0.0015)(samples.path("talkers-2ch"), end=1.0)
        assert answer.lags.tolist() == list(range(4, 26))
        with pytest.raises(InputError, match=r"was exported without any delay up to 0\.06 ms"):
            DelayEstimator(tmp_path / "side.onnx", max_delay=1 / 16000)(samples.path("talkers-2ch"), end=1.0)

    def test_a_finer_step_answers_as_the_network_does_but_is_not_calibrated(self, tmp_path: Path) -> None:
        card, arrays = read(pretrained("general-small"))
        own, fine, one = (tmp_path / f"{name}.onnx" for name in ("own", "fine", "one"))
        standalone.export(card, arrays, own, standalone.frozen_delays(card, 0.006))
        standalone.export(card, arrays, fine, standalone.frozen_delays(card, 0.006, 1 / 48000))
        sound = samples.path("talkers-2ch")
        known, found = (DelayEstimator(path, max_delay=0.0015)(sound, end=4.0) for path in (own, fine))
        assert known.calibrated
        assert not found.calibrated
        sure = known.confidence > 0.8
        assert sure.sum() > 20
        np.testing.assert_allclose(found.delay_samples[sure], known.delay_samples[sure], atol=1)
        assert abs(np.median(found.delay_samples[sure] - known.delay_samples[sure])) < 0.1
        standalone.export(card, arrays, one, standalone.frozen_delays(card, 0))
        with pytest.raises(InputError, match=r"was exported for delays up to 0\.00 ms, not 1\.50 ms"):
            DelayEstimator(one, max_delay=0.0015)(sound, end=1.0)

    def test_a_finer_step_is_not_more_exact(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        card, arrays = read(pretrained("general-small"))
        standalone.export(card, arrays, tmp_path / "half.onnx", standalone.frozen_delays(card, 0.002, 1 / 32000))
        rng, count = np.random.default_rng(0), 8 * 16000
        sound = rng.standard_normal(count)
        later = np.fft.irfft(np.fft.rfft(sound) * np.exp(-2j * np.pi * np.fft.rfftfreq(count) * 7.37), count)
        both = 0.1 * np.stack([later, sound]) + 0.01 * rng.standard_normal((2, count))
        own, half = (
            np.sqrt(np.mean((DelayEstimator(path, max_delay=0.0015)(both, 16000).delay_samples - 7.37) ** 2))
            for path in (files[1], tmp_path / "half.onnx")
        )
        assert own < 0.06
        assert half > 1.5 * own

    def test_what_a_file_cannot_do_is_said(self, files: tuple[Path, Path]) -> None:
        sound = 0.1 * np.random.default_rng(0).standard_normal((2, 8000))
        with pytest.raises(InputError, match="recordings of at least 16000 Hz: use the network's name"):
            DelayEstimator(files[0])(sound, 8000)
        with pytest.raises(InputError, match=r"takes frames of 0\.128 s, not 0\.2"):
            DelayEstimator(files[0], frame=0.2)(sound, 16000)
        with pytest.raises(InputError, match="has logits only"):
            DelayEstimator(files[0]).explain(sound, 16000)

    @pytest.mark.parametrize("which", [0, 1])
    @pytest.mark.parametrize("delays", [[3, 2, 1], [-4, 0, 4], [1, 1], [0, np.nan], []])
    def test_delays_that_a_graph_would_misread_are_refused(
        self, files: tuple[Path, Path], which: int, delays: list[float]
    ) -> None:
        model, frames = StandaloneModel(files[which]), np.ones((1, 2, 2048), np.float32)
        with pytest.raises(InputError, match="expected at least one, 1 samples apart, rising"):
            model.logits(frames, None, np.array(delays, dtype=np.float64))
        assert model.logits(frames, None, np.array([3.0, 4.0])).shape == (1, 2)

    def test_there_is_a_delay_to_freeze(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there are no delays to freeze; expected at least one"):
            standalone.export(*read(pretrained("general-small")), tmp_path / "none.onnx", [])
        assert not list(tmp_path.iterdir())

    def test_frozen_delays_are_all_there_are(self, files: tuple[Path, Path]) -> None:
        with pytest.raises(
            InputError, match=r"was exported for delays from -32 to 32 samples, not for \[32\.0, 33\.0\]"
        ):
            StandaloneModel(files[1]).logits(np.ones((1, 2, 2048), np.float32), None, np.array([32.0, 33.0]))

    def test_frames_without_numbers_have_none(self, files: tuple[Path, Path]) -> None:
        frames = np.ones((2, 2, 2048), np.float32)
        frames[1, 0, 5] = np.nan
        for file in files:
            logits = StandaloneModel(file).logits(frames, None, np.arange(-3, 4.0))
            np.testing.assert_array_equal(np.isnan(logits).all(axis=1), [False, True])

    def test_a_lower_rate_may_be_resampled_up(self, files: tuple[Path, Path]) -> None:
        """Frames as right as those of the package, which leaves the empty bins out: what docs/guide/onnx.md says."""
        recording = open_audio(samples.path("talkers-2ch"))
        low, up = (Resampler(*rates) for rates in ((16000, 8000), (8000, 16000)))
        at_8k = np.concatenate([low.push(recording.read()), low.flush()], axis=1)
        at_16k = np.concatenate([up.push(at_8k), up.flush()], axis=1)
        right = []
        for method, sound, rate in (("general-small", at_8k, 8000), (files[0], at_16k, 16000)):
            answer = DelayEstimator(method, spacing=0.5)(sound, rate)
            wrong = np.abs(answer.delay_samples * 16000 / rate - samples.truth_at(answer.times, "talkers-2ch"))
            right.append(np.mean(wrong[np.isfinite(wrong)] <= 1))
        assert right[1] == pytest.approx(right[0], abs=0.03)


class TestBadFiles:
    def test_what_is_cut_short(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        content, bad = files[0].read_bytes(), tmp_path / "bad.onnx"
        for cut in (content[: len(content) // 2], b""):
            bad.write_bytes(cut)
            with pytest.raises(InputError, match="is no ONNX file, or is damaged or cut short"):
                DelayEstimator(bad)

    @pytest.mark.parametrize("damage", [b"\xff", b"\x00"])
    def test_a_damaged_part(self, files: tuple[Path, Path], tmp_path: Path, damage: bytes) -> None:
        content, bad = bytearray(files[0].read_bytes()), tmp_path / "bad.onnx"
        content[len(content) // 2 : len(content) // 2 + 4000] = 4000 * damage
        bad.write_bytes(content)
        with pytest.raises(InputError, match="damaged"):
            DelayEstimator(bad)

    def test_a_changed_bit_anywhere(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        content, bad = files[0].read_bytes(), tmp_path / "bad.onnx"
        places = np.random.default_rng(0).integers(len(content), size=20).tolist()
        for place in (content.index(b"full scale 1"), *places):
            changed = bytearray(content)
            changed[place] ^= 1
            bad.write_bytes(changed)
            with pytest.raises(InputError, match=r"damaged|checksum|card|network|format"):
                DelayEstimator(bad)

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('"frame": 2048, "dft"', '"frame": 4096, "dft"', "not the one that its card describes"),
            ('"format": 1', '"format": 9', "format is 9"),
            ('"architecture": "steered"', '"architecture": "other"', "holds a other; only QK-GCC is run from ONNX"),
        ],
    )
    def test_other_versions(self, files: tuple[Path, Path], tmp_path: Path, old: str, new: str, message: str) -> None:
        proto = onnx.load(files[0])
        said = {one.key: one.value for one in proto.metadata_props if not one.key.endswith("sha256")}
        for key, value in said.items():
            if key == KEY:
                assert old in value
                said[key] = value.replace(old, new)
        self.write(proto, said, tmp_path / "bad.onnx")
        with pytest.raises(InputError, match=message):
            DelayEstimator(tmp_path / "bad.onnx")

    def test_what_does_not_describe_itself(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        proto = onnx.load(files[0])
        card = {one.key: one.value for one in proto.metadata_props if one.key == KEY}
        for metadata, message in ((card, "not the one that its card describes"), ({}, "but no card")):
            self.write(proto, metadata, tmp_path / "bad.onnx")
            with pytest.raises(InputError, match=message):
                DelayEstimator(tmp_path / "bad.onnx")

    def test_the_form_that_older_versions_wrote(self, files: tuple[Path, Path], tmp_path: Path) -> None:
        """Spectra and a steering matrix in, two outputs."""
        shape = ["batch", 3]
        names = [[onnx.helper.make_tensor_value_info(name, 1, shape) for name in both] for both in OLDER]
        nodes = [onnx.helper.make_node("Add", list(OLDER[0]), [name]) for name in OLDER[1]]
        graph = onnx.helper.make_graph(nodes, "steered", *names)
        opset = [onnx.helper.make_opsetid("", 20)]
        older = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
        card = {one.key: one.value for one in onnx.load(files[0]).metadata_props if one.key == KEY}
        self.write(older, card, tmp_path / "older.onnx")
        with pytest.raises(InputError, match="another version of qkgcc"):
            DelayEstimator(tmp_path / "older.onnx")

    def write(self, proto: onnx.ModelProto, metadata: dict[str, str], path: Path) -> None:
        del proto.metadata_props[:]
        onnx.helper.set_model_props(proto, metadata)
        onnx.save(proto, path)


def test_onnxruntime_is_an_extra(files: tuple[Path, Path]) -> None:
    code = """
import sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from qkgcc import DelayEstimator, samples
print(DelayEstimator(sys.argv[1])(samples.path("talkers-2ch"), end=2.0).summary.delay_samples)
"""
    command = [sys.executable, "-c", code, str(files[0])]
    done = subprocess.run([*command, "torch", "onnx"], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(16.3, abs=0.5)
    done = subprocess.run([*command, "onnxruntime"], capture_output=True, text=True)
    assert "free.onnx needs onnxruntime: pip install 'qkgcc[onnx]'" in done.stderr
