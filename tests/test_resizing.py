"""A trained network whose gate gets another size."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from networks import steered_card
from qkgcc.core.errors import InputError
from qkgcc.lab.study import resizing
from qkgcc.nets import checkpoint
from qkgcc.nets.steered import Steered, SteeredOptions

pytestmark = [pytest.mark.numeric, pytest.mark.usefixtures("float64")]

OPTIONS = SteeredOptions(
    frame=512, dft=128, window=128, max_delay=8, positions=9, width=16, channels=6, maps=4, delay_channels=5, blocks=1,
    block_channels=7,
)  # fmt: skip
BARE = replace(OPTIONS, blocks=0)


def network(options: SteeredOptions) -> Steered:
    torch.manual_seed(0)
    return Steered(options).eval()


def frames(count: int) -> torch.Tensor:
    return torch.randn(count, 2, OPTIONS.frame, generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("options", [OPTIONS, BARE])
def test_a_kernel_that_suffices_is_found(options: SteeredOptions) -> None:
    """Where the outer columns are nothing, the smaller kernel is the same network."""
    model = network(options)
    with torch.no_grad():
        for layer in (model.head.local[0], model.head.gate):
            if layer.weight.shape[-1] == 5:
                layer.weight[..., [0, -1]] = 0
    slim, unexplained = resizing.resize_gate(model, frames(60), kernel=3)
    assert slim.options == replace(options, kernel=3)
    assert unexplained < 1e-6
    torch.testing.assert_close(slim(frames(7)), model(frames(7)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("options", [OPTIONS, BARE])
def test_what_the_outer_columns_did_is_made_up_for_where_possible(options: SteeredOptions) -> None:
    model = network(options)
    slim, unexplained = resizing.resize_gate(model, frames(60), kernel=3)
    assert 0.001 < unexplained < 0.95
    cropped = Steered(slim.options).eval()
    values = model.state_dict()
    for name, value in cropped.state_dict().items():
        if values[name].shape != value.shape:
            values[name] = values[name][..., 1:-1]
    cropped.load_state_dict(values)
    fresh = frames(40)
    with torch.no_grad():
        whole = model(fresh)
        assert (slim(fresh) - whole).square().mean() < (cropped(fresh) - whole).square().mean()


def test_a_wider_network_begins_as_the_one_before() -> None:
    model = network(BARE)
    wide, unexplained = resizing.resize_gate(model, frames(60), channels=9, maps=6)
    assert wide.options == replace(BARE, channels=9, maps=6)
    assert unexplained < 1e-6
    fresh = frames(7)
    torch.testing.assert_close(wide(fresh), model(fresh), rtol=1e-3, atol=1e-3)
    # What is new can learn: every number of it has a gradient once the new maps are read a little.
    with torch.no_grad():
        wide.head.delays[1].weight[:, 4:] = 0.1
    wide.train()(fresh).square().sum().backward()
    for weight in (wide.head.local[0].weight[6:], wide.head.gate.weight[4:], wide.head.evidence.weight[8:]):
        assert torch.isfinite(weight).all()
    assert (wide.head.local[0].weight.grad[6:].abs() > 0).all()
    assert (wide.head.evidence.weight.grad[8:].abs() > 0).all()


def test_wider_channels_help_a_smaller_kernel() -> None:
    model = network(BARE)
    (_, narrow), (_, wide) = (resizing.resize_gate(model, frames(60), kernel=3, channels=n) for n in (6, 24))
    assert wide < narrow


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="channels and maps can only grow; expected at least 6"):
        resizing.resize_gate(network(BARE), frames(4), channels=3, maps=2)
    with pytest.raises(InputError, match="the surroundings read the gate's channels"):
        resizing.resize_gate(network(OPTIONS), frames(4), channels=8)


def test_the_command_writes_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_default_dtype(torch.float32)  # what a checkpoint holds
    large = network(replace(OPTIONS, frame=2048))
    card = steered_card(options=vars(large.options), frame=2048, dft=128, delays=large.options.delays)
    checkpoint.save(large, tmp_path / "large.safetensors", card)
    monkeypatch.setattr(resizing, "SCENES", 4)
    out = tmp_path / "runs" / "start.safetensors"
    resizing.main([str(tmp_path / "large.safetensors"), "--kernel", "3", "--maps", "5", "--out", str(out)])
    new, about = checkpoint.load(out)
    assert new.options == replace(large.options, kernel=3, maps=5)
    assert about.metrics == {"start": card.name}


def test_the_command_says_what_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: .*nowhere"):
        resizing.main(["nowhere.safetensors", "--kernel", "3", "--out", str(tmp_path / "new.safetensors")])
