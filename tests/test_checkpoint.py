"""A checkpoint gives back the same network, whole or not at all, and half precision does not lie."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import safetensors.torch
import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.nets.checkpoint import build, load, save
from qkgcc.nets.qkgcc import QKGCC, QKGCCOptions
from qkgcc.network.card import Card

OPTIONS = QKGCCOptions(frame=32, dft=64, max_delay=3, width=8, heads=2, radius=2, channels=6, kernel=3, hidden=10)
FRAMES = torch.randn(4, 2, 32, generator=torch.Generator().manual_seed(0))


def card(**changes: Any) -> Card:
    fields: dict[str, Any] = {
        "name": "small",
        "architecture": "qkgcc",
        "options": dataclasses.asdict(OPTIONS),
        "sample_rate": 16000,
        "frame": 32,
        "dft": 64,
        "delays": OPTIONS.delays,
        "scaling": "frame",
        "seed": 3,
        "metrics": {"rmse": 1.5},
    }
    return Card(**fields | changes)


@pytest.fixture
def model() -> QKGCC:
    """A network that has seen data, one batch normalization with variances that half precision cannot hold."""
    torch.manual_seed(0)
    model = QKGCC(OPTIONS)
    with torch.no_grad():
        for _ in range(3):
            model(10 * torch.randn(8, 2, 32))
        norm = model.head.blocks[0][1]
        norm.running_var.mul_(1e6)
        norm.weight.mul_(1e3)
    assert norm.running_var.max() > 65504
    return model.eval()


@pytest.fixture
def path(tmp_path: Path, model: QKGCC) -> Path:
    """A checkpoint that is in order."""
    path = tmp_path / "runs" / "model.safetensors"
    save(model, path, card())
    return path


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        result: Tensor = model(FRAMES)
    return result


def test_a_reloaded_network_gives_the_same_logits_to_the_bit(model: QKGCC, path: Path) -> None:
    reloaded, same_card = load(path)
    assert not reloaded.training
    assert same_card == card()
    assert torch.equal(logits(reloaded), logits(model))


def test_half_precision_rounds_the_weights_and_nothing_else(model: QKGCC, tmp_path: Path) -> None:
    save(model, tmp_path / "half.safetensors", card(), dtype=torch.float16)
    save(model, tmp_path / "full.safetensors", card())
    reloaded, _ = load(tmp_path / "half.safetensors")
    assert all(parameter.dtype == torch.float32 for parameter in reloaded.parameters())
    assert torch.equal(reloaded.head.blocks[0][1].running_var, model.head.blocks[0][1].running_var)
    sizes = [(tmp_path / name).stat().st_size for name in ("half.safetensors", "full.safetensors")]
    assert sizes[0] < 0.75 * sizes[1]
    exact = logits(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    assert torch.equal(logits(reloaded), logits(model))
    torch.testing.assert_close(logits(reloaded), exact, rtol=0.02, atol=0.02)


def test_a_weight_that_half_precision_cannot_hold_is_refused(model: QKGCC, tmp_path: Path) -> None:
    with torch.no_grad():
        model.norm.weight[0] = 1e5
    with pytest.raises(InputError, match=r"norm.weight does not fit into torch.float16 \(largest 1e\+05\)"):
        save(model, tmp_path / "half.safetensors", card(), dtype=torch.float16)
    assert not list(tmp_path.iterdir())


def test_a_save_that_fails_leaves_the_old_checkpoint(model: QKGCC, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(InputError, match=r"cannot write .*: No space left"):
        save(model, path, card(name="new"))
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]


def test_saving_again_replaces_the_checkpoint(model: QKGCC, path: Path) -> None:
    save(model, str(path), card(name="new"))
    assert load(str(path))[1].name == "new"
    assert list(path.parent.iterdir()) == [path]


def test_loading_does_not_move_the_random_numbers(path: Path) -> None:
    before = torch.random.get_rng_state()
    load(path)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_network_is_built_by_its_name() -> None:
    assert isinstance(build("qkgcc", {"radius": 0}), QKGCC)
    with pytest.raises(InputError, match=r"unknown architecture 'resnet'; known: .*qkgcc"):
        build("resnet", {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere.safetensors: there is no such file"):
        load(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("kept", [0, 5, 400, -1])
def test_a_truncated_file_is_refused(path: Path, kept: int) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match="not a safetensors file, or is damaged or cut short"):
        load(path)


@pytest.mark.parametrize("place", [-1, -500, -3000])
def test_a_single_changed_bit_is_found(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(bytes(content))
    with pytest.raises(InputError, match="checksum mismatch"):
        load(path)


def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    path.write_text("these are not weights, however long the text may be")
    with pytest.raises(InputError, match="not a safetensors file"):
        load(path)


def rewrite(path: Path, text: str | None) -> None:
    """The same weights with another card."""
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, metadata=None if text is None else {"qkgcc": text})


def test_weights_without_a_card_are_refused(path: Path) -> None:
    rewrite(path, None)
    with pytest.raises(InputError, match="no card"):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 9}, "model.safetensors: the card's format is 9"),
        ({"architecture": "resnet"}, "model.safetensors: unknown architecture 'resnet'"),
        ({"options": {"raduis": 1}}, "model.safetensors: QKGCC has no option raduis"),
        ({"frame": 16}, "card says frame 16, but its options give 32"),
        ({"delays": [0, 1]}, r"card says delays \(0, 1\), but its options give \(-3, "),
    ],
)
def test_a_card_that_cannot_be_followed_is_refused(path: Path, change: dict[str, Any], message: str) -> None:
    rewrite(path, json.dumps(json.loads(card().to_json()) | change))
    with pytest.raises(InputError, match=message):
        load(path)


def test_weights_of_another_shape_are_refused(path: Path) -> None:
    options = dataclasses.asdict(OPTIONS) | {"hidden": 12}
    rewrite(path, card(options=options).to_json())
    with pytest.raises(InputError, match=r"head.mlp.0.weight is \(10, 6\), expected \(12, 6\)"):
        load(path)


def test_a_checkpoint_that_could_not_be_read_again_is_not_written(model: QKGCC, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match=r"not what its card says: position is \(33, 8\), expected \(129, 8\)"):
        save(model, path, card(options=dataclasses.asdict(OPTIONS) | {"dft": 256}))
    with pytest.raises(InputError, match="card says dft 128, but its options give 64"):
        save(model, path, card(dft=128))
    wrapped = nn.Sequential(model)
    with pytest.raises(InputError, match="position is missing"):
        save(wrapped, path, card())
    assert not path.exists()
