"""An exported file gives torch's logits from raw samples, in any program that has an ONNX runtime."""

import copy
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("torch")

import onnx
import onnx.reference
import onnxruntime
import soundfile
import torch
from torch import nn
from typer.testing import CliRunner

from networks import OPTIONS, RATE, VARIANTS, as_trained, save_steered, steered_card
from qkgcc import DelayEstimator, InputError, samples
from qkgcc.audio.frames import Resampler
from qkgcc.audio.recording import open_audio
from qkgcc.cli import app
from qkgcc.dsp.rumble import count_cosines, without_rumble
from qkgcc.nets import checkpoint
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
from qkgcc.nets.steered import Steered, SteeredOptions
from qkgcc.network import files, onnx_export
from qkgcc.network.card import DIGEST_KEY, KEY, Card
from qkgcc.network.onnx_graph import NO_DIGEST
from qkgcc.network.registry import PRETRAINED, pretrained
from qkgcc.pairs.decoding import DECODERS, posterior
from qkgcc.pairs.frontend import at_unit_level
from rounding import assert_rounded

pytestmark = pytest.mark.numeric

PAPER = QKGCCOptions(frame=256, dft=512, max_delay=12, width=16, heads=2, radius=2, channels=8, hidden=16)


def plain_session(path: Path) -> onnxruntime.InferenceSession:
    """As any other program opens a file; a warning would be on its screen, too."""
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(path: Path, frames: np.ndarray, delays: object = None) -> np.ndarray:
    """Delays in samples."""
    given = {} if delays is None else {"delays": (np.asarray(delays) / RATE).astype(np.float32)}
    (logits,) = plain_session(path).run(None, {"frames": frames, **given})
    return np.asarray(logits)


def expected(model: nn.Module, frames: np.ndarray, delays: object = None) -> np.ndarray:
    """In float64."""
    given = {} if delays is None else {"delays": delays}
    cleared = at_unit_level(without_rumble(frames.astype(np.float64), RATE))
    with torch.no_grad():
        return np.asarray(copy.deepcopy(model).double()(torch.from_numpy(cleared), **given))


def hum(count: int, frame: int, decibels: float) -> np.ndarray:
    """Noise, and so much above it a hum that is the same in both channels."""
    frames = noise(count, frame)
    rng = np.random.default_rng(1)
    frequencies, phases = rng.uniform(40, 250, (count, 1, 1)), rng.uniform(0, 6, (count, 1, 1))
    tone = np.sqrt(2) * np.sin(2 * np.pi * frequencies * np.arange(frame) / RATE + phases)
    frames += 10 ** (decibels / 20) * frames.std(axis=-1).mean(axis=-1)[:, None, None] * tone
    assert without_rumble(frames, RATE) is not frames
    return frames.astype(np.float32)


def noise(count: int, frame: int) -> np.ndarray:
    """At the levels and with the offsets that recorders have."""
    rng = np.random.default_rng(0)
    frames = 10.0 ** rng.uniform(-4, 4, (count, 1, 1)) * rng.standard_normal((count, 2, frame))
    frames[0, 1] += 3 * frames[0, 1].std()
    return frames.astype(np.float32)


def speech(count: int, frame: int) -> np.ndarray:
    sound, _ = soundfile.read(samples.path("talkers-2ch"), dtype="float32")
    return np.stack([sound[i * frame : (i + 1) * frame, :2].T for i in range(count)])


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def saved(options: SteeredOptions, path: Path, delays: object = None) -> Steered:
    model = as_trained(options)
    card = steered_card(options=vars(options), dft=options.dft, delays=options.delays)
    onnx_export.export(card, weights(model), path, delays)  # type: ignore[arg-type]
    return model


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_those_of_the_network(changes: dict[str, object], tmp_path: Path) -> None:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    free, frozen = tmp_path / "free.onnx", tmp_path / "frozen.onnx"
    model = saved(options, free)
    saved(options, frozen, options.grid(9))
    for frames in (noise(5, options.frame), speech(3, options.frame)):
        for grid in (options.grid(12), [3.25], [2.6 + options.step * i for i in range(40)]):
            assert_rounded(run(free, frames, grid), expected(model, frames, grid), 2 * options.frame)
        assert_rounded(run(frozen, frames), expected(model, frames, options.grid(9)), 2 * options.frame)


def test_uneven_delays_are_not_frozen(tmp_path: Path) -> None:
    for delays in ([0.0, 0.5], [0.0, 2.0], [0.0, 1.0, 4.0], [1.0, 0.0], []):
        with pytest.raises(InputError, match=r"delays are .* expected at least one, rising in steps of 1 "):
            saved(OPTIONS, tmp_path / "a.onnx", delays)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", PRETRAINED)
def test_the_logits_of_the_pretrained_networks_are_exact(name: str, tmp_path: Path) -> None:
    model, card = checkpoint.load(pretrained(name))
    arrays = weights(model)
    free, frozen = tmp_path / "free.onnx", tmp_path / "frozen.onnx"
    onnx_export.export(card, arrays, free)
    delays = onnx_export.frozen_delays(card, 0.00146)
    assert delays == tuple(range(-24, 25))
    onnx_export.export(card, arrays, frozen, delays)
    # What is left of a hum that is taken out has the rounding of the hum, in each of the cosines that held it.
    cosines = count_cosines(card.frame, RATE)
    for frames, rounded in (
        (noise(4, card.frame), 1),
        (speech(16, card.frame), 1),
        (hum(4, card.frame, 14), 10 ** (14 / 20) * cosines),
        (hum(4, card.frame, 23), 10 ** (23 / 20) * cosines),
    ):
        same = expected(model, frames, card.delays)
        middle = card.delays.index(0)
        scale = rounded * float(np.abs(same).max())
        assert_rounded(run(free, frames, card.delays), same, 2 * card.frame, scale)
        assert_rounded(run(free, frames, [17.3]), expected(model, frames, [17.3]), 2 * card.frame, scale)
        assert_rounded(run(frozen, frames), same[:, middle - 24 : middle + 25], 2 * card.frame, scale)


@pytest.mark.parametrize("changes", [{}, {"split": False}, {"first_channels": 12, "first_kernel": 1}])
def test_the_published_network_has_its_own_delays(changes: dict[str, object], tmp_path: Path) -> None:
    options = replace(PAPER, **changes)  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = QKGCC(options).eval()
    for block in model.head.blocks:
        norm: Any = block[1]  # type: ignore[index]
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    card = steered_card(
        architecture="qkgcc", options=vars(options), delays=options.delays, scaling="utterance", metrics={}
    )
    path = tmp_path / "a.onnx"
    onnx_export.export(card, weights(model), path)
    frames = np.random.default_rng(0).standard_normal((4, 2, 256)).astype(np.float32)
    with torch.no_grad():
        same = copy.deepcopy(model).double()(torch.from_numpy(frames).double())
    assert_rounded(run(path, frames), same, 512)
    assert [one.name for one in plain_session(path).get_inputs()] == ["frames"]
    assert "divided by the standard deviation" in onnx.load(path).graph.input[0].doc_string
    with pytest.raises(InputError, match="knows its 25 delays and no others"):
        onnx_export.export(card, weights(model), path, [0.0])
    with pytest.raises(InputError, match="has 25 classes, but its card 3 delays"):
        onnx_export.export(replace(card, delays=(-1, 0, 1)), weights(model), path)
    with pytest.raises(InputError, match="do not fit the network of their card"):
        onnx_export.export(card, {}, path)
    with pytest.raises(InputError, match="is a ngcc; only QK-GCC is exported"):
        onnx_export.export(replace(card, architecture="ngcc"), {}, path)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "tiny.onnx"
    saved(OPTIONS, path)
    return path


def test_a_batch_is_its_frames_one_by_one(path: Path) -> None:
    frames = noise(7, OPTIONS.frame)
    same = expected(as_trained(OPTIONS), frames, OPTIONS.delays)
    one_by_one = np.concatenate([run(path, frame[None], OPTIONS.delays) for frame in frames])
    for logits in (run(path, frames, OPTIONS.delays), one_by_one):
        assert_rounded(logits, same, 512)


def test_silence_has_the_same_logit_for_every_delay(path: Path) -> None:
    frames = noise(5, OPTIONS.frame)
    loud = frames[4:] / frames[4:].std()
    frames[0] = 0
    frames[1] = 0.3  # a constant is silence, too
    frames[2, 0] = 0  # one dead channel
    frames[3] = 0.9e-5 * loud[0]
    frames[4] = 1.1e-5 * loud[0]
    logits = run(path, frames, OPTIONS.delays)
    assert (logits[:4] == 0).all()
    assert_rounded(logits[4:], expected(as_trained(OPTIONS), frames[4:], OPTIONS.delays), 512)


@pytest.mark.parametrize("scaling", ["frame", "utterance"])
def test_what_is_no_number_is_no_silence(scaling: str, tmp_path: Path) -> None:
    card = replace(steered_card(options=vars(OPTIONS), dft=OPTIONS.dft, delays=OPTIONS.delays), scaling=scaling)
    onnx_export.export(card, weights(as_trained(OPTIONS)), tmp_path / "a.onnx")
    frames = noise(6, OPTIONS.frame)
    frames[5] = 0
    expected = run(tmp_path / "a.onnx", frames, OPTIONS.delays)
    frames[0, 1, 7] = np.nan
    frames[1, 0, 0] = -np.inf
    frames[2] = np.nan
    frames[3, 1] *= 1e25  # its square is infinite
    logits = run(tmp_path / "a.onnx", frames, OPTIONS.delays)
    assert np.isnan(logits[:4]).all()
    np.testing.assert_array_equal(logits[4:], expected[4:])
    given = {"frames": frames, "delays": (np.array(OPTIONS.delays) / RATE).astype(np.float32)}
    with np.errstate(all="ignore"):
        (elsewhere,) = onnx.reference.ReferenceEvaluator(str(tmp_path / "a.onnx")).run(None, given)
    assert np.isnan(elsewhere[:4]).all()
    assert np.isfinite(elsewhere[4:]).all()


def test_of_the_delays_the_middle_and_the_number_count(path: Path) -> None:
    frames = noise(2, OPTIONS.frame)
    np.testing.assert_array_equal(run(path, frames, [-5.0, 0.3, 5.0]), run(path, frames, [-1.0, 0.0, 1.0]))
    same = expected(as_trained(OPTIONS), frames, np.arange(-8, 9.0).tolist())
    assert_rounded(run(path, frames, np.arange(-8, 9.0)), same, 512)
    assert_rounded(run(path, frames, [4.0]), same[:, 12:13], 512, np.abs(same).max())


def test_the_file_describes_itself_with_standard_operators_only(path: Path) -> None:
    proto = onnx.load(path)
    assert {node.domain for node in proto.graph.node} == {""}
    assert [(item.domain, item.version) for item in proto.opset_import] == [("", 20)]
    assert not {node.op_type for node in proto.graph.node} & {"DFT", "STFT"}
    dense = OPTIONS.dft * (OPTIONS.dft // 2 + 1)
    assert all(np.prod(one.dims) < dense for one in proto.graph.initializer)
    session = plain_session(path)
    assert {one.name: one.shape for one in session.get_inputs()} == {"frames": ["batch", 2, 256], "delays": ["lags"]}
    assert {one.name: one.shape for one in session.get_outputs()} == {"logits": ["batch", "lags"]}
    said = session.get_modelmeta().custom_metadata_map
    assert (said["sample_rate"], said["frame"], said["unit"]) == ("16000", "256", "seconds")
    assert float(said["step"]) == 1 / RATE
    assert said["sign"] == "positive: channel 0 of the frames hears the source later"
    np.testing.assert_allclose(np.array(json.loads(said["delays"])) * RATE, OPTIONS.delays)
    assert Card.from_json(said[KEY]).name == "tiny"
    assert said["band"].startswith("0 to 8000 Hz, all of which is taken to hold sound")
    content = path.read_bytes().replace(said[DIGEST_KEY].encode(), NO_DIGEST.encode())
    assert hashlib.sha256(content).hexdigest() == said[DIGEST_KEY]


def test_another_runtime_gives_the_same(path: Path) -> None:
    frames, delays = noise(2, OPTIONS.frame), np.arange(-3, 4) / RATE
    given = {"frames": frames, "delays": delays.astype(np.float32)}
    (logits,) = onnx.reference.ReferenceEvaluator(str(path)).run(None, given)
    assert_rounded(logits, expected(as_trained(OPTIONS), frames, (delays * RATE).tolist()), 512)


def test_a_lower_rate_may_be_resampled_up(tmp_path: Path) -> None:
    """Frames as right as those of the package, which leaves the empty bins out: what docs/guide/onnx.md says."""
    recording = open_audio(samples.path("talkers-2ch"))
    low, up = (Resampler(*rates) for rates in ((16000, 8000), (8000, 16000)))
    at_8k = np.concatenate([low.push(recording.read()), low.flush()], axis=1)
    at_16k = np.concatenate([up.push(at_8k), up.flush()], axis=1).astype(np.float32)
    by_package = DelayEstimator("general-small", spacing=0.5, decoder="quadratic")(at_8k, 8000)
    starts = np.round((by_package.times - 0.064) * RATE).astype(int)
    inside = (starts >= 0) & (starts + 2048 <= at_16k.shape[1]) & ~np.isnan(by_package.delay_samples)
    frames = np.stack([at_16k[:, start : start + 2048] for start in starts[inside]])
    delays = np.arange(-25.0, 26)
    logits = run(pretrained("general-small").with_suffix(".onnx"), frames, delays)
    by_file = DECODERS["quadratic"](posterior(logits.astype(np.float64)), delays)
    truth = samples.truth_at(by_package.times[inside], "talkers-2ch")
    known = np.isfinite(truth)
    right = [
        np.mean(np.abs(answers - truth)[known] <= 1) for answers in (2 * by_package.delay_samples[inside], by_file)
    ]
    assert right[0] > 0.5
    assert right[1] == pytest.approx(right[0], abs=0.03)


def test_it_is_no_method(path: Path) -> None:
    with pytest.raises(
        InputError, match=r"tiny\.onnx is an ONNX file, which is for other programs: give the network's"
    ):
        DelayEstimator(path)


def test_it_is_quiet_when_it_is_opened(path: Path) -> None:
    code = f"import onnxruntime; onnxruntime.InferenceSession({str(path)!r}, providers=['CPUExecutionProvider'])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "tiny" not in done.stderr
    assert "nitializer" not in done.stderr


def test_the_sign_and_the_unit_are_as_the_file_says(tmp_path: Path) -> None:
    card, arrays = files.read(pretrained("general"))
    onnx_export.export(card, arrays, tmp_path / "a.onnx")
    sound = np.random.default_rng(0).standard_normal(card.frame + 5)
    frames = np.stack([sound[:-5], sound[5:]])[None].astype(np.float32)  # channel 0 hears it 5 samples later
    delays = np.arange(-24, 25)
    assert delays[run(tmp_path / "a.onnx", frames, delays).argmax()] == 5


class TestCommandLine:
    def invoke(self, *arguments: object) -> str:
        result = CliRunner().invoke(app, ["export", *map(str, arguments)])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    def test_the_same_network_is_the_same_file(self, tmp_path: Path) -> None:
        source = save_steered(tmp_path, as_trained(OPTIONS))
        outs = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
        for out in outs:
            assert f"written: {out}" in self.invoke(source, "--out", out, "--max-delay", 0.0005)
        assert outs[0].read_bytes() == outs[1].read_bytes()
        assert [one.name for one in plain_session(outs[0]).get_inputs()] == ["frames"]
        assert plain_session(outs[0]).get_outputs()[0].shape == ["batch", 17]
        with pytest.raises(InputError, match="is an ONNX file already"):
            self.invoke(outs[0], "--out", tmp_path / "c.onnx")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--max-delay", 0.009), r"tiny can look for 0 to 0\.0079375 s"),
            (("--max-delay", -1), "the largest delay is -1 s"),
            (("--out", "a.bin"), r"--out a\.bin: the name must end in \.onnx"),
        ],
    )
    def test_what_cannot_be_is_said(self, arguments: tuple[object, ...], message: str, tmp_path: Path) -> None:
        source = save_steered(tmp_path, as_trained(OPTIONS))
        with pytest.raises(InputError, match=message):
            self.invoke(source, *(() if "--out" in arguments else ("--out", tmp_path / "a.onnx")), *arguments)

    def test_a_folder_that_cannot_be_made_is_named(self, tmp_path: Path) -> None:
        source = save_steered(tmp_path, as_trained(OPTIONS))
        (tmp_path / "file").write_text("")
        for inside in ("a.onnx", "deeper/a.onnx"):
            with pytest.raises(InputError, match=f"cannot write .*file/{inside}: part of .*file.* is no folder"):
                self.invoke(source, "--out", tmp_path / "file" / inside)

    def test_other_sources_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no network 'nothing': give general"):
            self.invoke("nothing")
        (tmp_path / "bad.safetensors").write_bytes(b"")
        with pytest.raises(InputError, match="is not a safetensors file"):
            self.invoke(tmp_path / "bad.safetensors")

    def test_a_dft_of_prime_length_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="a DFT of 509 samples has no factors"):
            saved(replace(OPTIONS, dft=509), tmp_path / "a.onnx")

    @pytest.mark.parametrize("source", ["general-small", "checkpoints/qkgcc-0.safetensors"])
    def test_onnx_is_all_it_needs(self, source: str, tmp_path: Path) -> None:
        code = f"""
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from qkgcc.cli import main
sys.argv = ["qkgcc", "export", {source!r}, "--out", {str(tmp_path / "a.onnx")!r}]
main()
"""
        root = Path(__file__).parents[1]
        subprocess.run([sys.executable, "-c", code, "torch onnxruntime"], check=True, cwd=root)
        assert plain_session(tmp_path / "a.onnx").get_inputs()[0].name == "frames"
        done = subprocess.run([sys.executable, "-c", code, "onnx"], capture_output=True, text=True, cwd=root)
        if source in PRETRAINED:  # its file comes with the package
            assert done.returncode == 0
        else:
            assert done.returncode == 2
            assert "making an ONNX file needs onnx: pip install 'qkgcc[export]'" in done.stderr


def test_the_documented_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[1] / "docs" / "guide" / "onnx.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    onnx_export.export(*files.read(pretrained("general")), tmp_path / "model.onnx")
    sound = np.random.default_rng(0).standard_normal(8005)
    soundfile.write(tmp_path / "talk.wav", 0.1 * np.stack([sound[:-5], sound[5:]], axis=1), RATE)
    monkeypatch.chdir(tmp_path)
    names: dict[str, np.ndarray] = {}
    exec(program, names)
    np.testing.assert_allclose(names["seconds"] * RATE, 5, atol=1e-3)
    assert len(names["seconds"]) == 6
