"""A smaller kernel in a trained network's gate."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from networks import steered_card
from qkgcc.errors import InputError
from qkgcc.experiments import slimming
from qkgcc.models import checkpoint
from qkgcc.models.steered import Steered, SteeredOptions

OPTIONS = SteeredOptions(
    frame=512, dft=128, window=128, max_delay=8, positions=9, width=16, channels=6, maps=4, delay_channels=5, blocks=1,
    block_channels=7,
)  # fmt: skip


@pytest.fixture
def model() -> Steered:
    torch.manual_seed(0)
    return Steered(OPTIONS).eval()


def frames(count: int) -> torch.Tensor:
    return torch.randn(count, 2, OPTIONS.frame, generator=torch.Generator().manual_seed(count))


def test_a_kernel_that_suffices_is_found(model: Steered) -> None:
    """Where the outer columns are nothing, the smaller kernel is the same network."""
    first = model.head.local[0]
    with torch.no_grad():
        first.weight[..., [0, -1]] = 0
    slim, unexplained = slimming.slimmed(model, 3, frames(60))
    assert slim.options == replace(OPTIONS, kernel=3)
    assert unexplained < 1e-6
    torch.testing.assert_close(slim(frames(7)), model(frames(7)), rtol=1e-3, atol=1e-3)


def test_what_the_outer_columns_did_is_made_up_for_where_possible(model: Steered) -> None:
    slim, unexplained = slimming.slimmed(model, 3, frames(60))
    assert 0.001 < unexplained < 0.9
    cropped = Steered(slim.options).eval()
    values = model.state_dict()
    values["head.local.0.weight"] = values["head.local.0.weight"][..., 1:-1]
    cropped.load_state_dict(values)
    fresh = frames(40)
    with torch.no_grad():
        whole = model(fresh)
        assert (slim(fresh) - whole).square().mean() < (cropped(fresh) - whole).square().mean()


def test_a_gate_without_surroundings_is_refused() -> None:
    with pytest.raises(InputError, match=r"would change head\.local\.0\.weight, head\.gate\.weight: slim a network"):
        slimming.slimmed(Steered(replace(OPTIONS, blocks=0)), 3, frames(4))


def test_the_command_writes_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = Steered(replace(OPTIONS, frame=2048)).eval()
    card = steered_card(options=vars(large.options), frame=2048, dft=128, delays=large.options.delays)
    checkpoint.save(large, tmp_path / "large.safetensors", card)
    monkeypatch.setattr(slimming, "SCENES", 4)
    out = tmp_path / "slim.safetensors"
    slimming.main([str(tmp_path / "large.safetensors"), "--kernel", "3", "--out", str(out)])
    slim, about = checkpoint.load(out)
    assert slim.options == replace(large.options, kernel=3)
    assert about.metrics == {"start": card.name}
