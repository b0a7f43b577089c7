"""Checkpoints that describe themselves: safetensors with the model's card in the metadata.

`load` needs nothing but the file: the card names the architecture and its options, the network is built from them.

>>> import dataclasses, tempfile
>>> from qkgcc.nets.qkgcc import QKGCCOptions
>>> options = QKGCCOptions(frame=8, dft=16, max_delay=1, width=4, heads=2, radius=1)
>>> sizes = dict(sample_rate=16000, frame=8, dft=16, delays=options.delays)
>>> card = Card(name="tiny", architecture="qkgcc", options=dataclasses.asdict(options), scaling="frame", **sizes)
>>> with tempfile.TemporaryDirectory() as folder:
...     save(QKGCC(options), Path(folder) / "tiny.safetensors", card)
...     model, same = load(Path(folder) / "tiny.safetensors")
>>> same == card
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.nets.ngcc import NGCC
from qkgcc.nets.options import check_weights
from qkgcc.nets.pgcc import PGCC
from qkgcc.nets.qkgcc import QKGCC
from qkgcc.nets.steered import Steered
from qkgcc.nets.transformer import Transformer
from qkgcc.network import files
from qkgcc.network.card import DIGEST_KEY, KEY, Card

ARCHITECTURES: dict[str, Callable[[Mapping[str, Any]], nn.Module]] = {
    "ngcc": NGCC.from_options,
    "pgcc": PGCC.from_options,
    "qkgcc": QKGCC.from_options,
    "steered": Steered.from_options,
    "transformer": Transformer.from_options,
}
"""Every network that a card can name, and how it is built from the card's options."""


def build(architecture: str, options: Mapping[str, Any]) -> nn.Module:
    """A network with fresh weights, from its name in `ARCHITECTURES` and its options."""
    if architecture not in ARCHITECTURES:
        raise InputError(f"unknown architecture {architecture!r}; known: {', '.join(sorted(ARCHITECTURES))}")
    return ARCHITECTURES[architecture](options)


def save(model: nn.Module, path: str | Path, card: Card, dtype: torch.dtype = torch.float32) -> None:
    """Write weights and card to `path` at once or not at all; a folder that is not there is made.

    `dtype` (such as ``torch.float16``) rounds the trained parameters. Buffers, the statistics of batch normalization
    among them, stay as they are: a variance beyond 65,504 would silently become infinite in half precision.
    """
    path = Path(path)
    state = model.state_dict()
    with torch.device("meta"):  # shapes only: a checkpoint that could not be read again is not written
        expected = build(card.architecture, card.options).state_dict()
    check_weights(expected, state, f"the model to save as {path.name} is not what its card says")
    _check_sizes(model, card, path)
    trained = {name for name, _ in model.named_parameters()}
    tensors = {}
    for name, tensor in state.items():
        tensors[name] = tensor.detach().cpu().contiguous()
        if name in trained:
            tensors[name] = tensors[name].to(dtype)
            if bool(tensors[name].isinf().any()) and not bool(tensor.isinf().any()):
                raise InputError(
                    f"{name} does not fit into {dtype} (largest {tensor.abs().max():.3g}); save as float32"
                )
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    metadata = {KEY: card.to_json(), DIGEST_KEY: files.digest(arrays, card.to_json())}
    content = safetensors.torch.save(tensors, metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda target: target.write_bytes(content))


def load(path: str | Path, device: str | torch.device = "cpu") -> tuple[nn.Module, Card]:
    """The network in `path`, in float32 and eval mode on `device`, and its card."""
    path = Path(path)
    card, arrays = files.read(path)
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        with torch.device("meta"):  # shapes only: a card may name a network that no memory holds
            expected = build(card.architecture, card.options).state_dict()
        check_weights(expected, state, "the weights do not fit the network of its card")
        with torch.random.fork_rng(devices=[]):  # loading must not move the random numbers of a training
            model = build(card.architecture, card.options)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _check_sizes(model, card, path)
    model.load_state_dict(state)
    return model.to(device).eval(), card


def _check_sizes(model: nn.Module, card: Card, path: Path) -> None:
    """What the card tells the outside world must be what its options build."""
    for name in ("sample_rate", "frame", "dft", "delays"):
        stated = getattr(card, name)
        built = getattr(getattr(model, "options", card), name, stated)  # most networks have no rate of their own
        if stated != built:
            raise InputError(f"{path}: the card says {name} {stated}, but its options give {built}")


def checked_device(name: str | None) -> str:
    """The device of that name; None: a GPU where there is one.

    >>> checked_device("tpu")
    Traceback (most recent call last):
    ...
    qkgcc.core.errors.InputError: there is no device 'tpu' here: give cpu or cuda, or leave it out
    """
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError):  # the latter where torch was built without CUDA
        raise InputError(f"there is no device {name!r} here: give cpu or cuda, or leave it out") from None
    return name


def in_batches(network: Callable[[Tensor], Tensor], frames: Tensor, batch: int) -> Tensor:
    """Outputs for many frames, `batch` at a time, or fewer where the memory does not hold as many."""
    parts: list[Tensor] = []
    first = 0
    while first < len(frames):
        try:
            parts.append(network(frames[first : first + batch]))
        except torch.OutOfMemoryError:
            if batch == 1:
                raise
            batch //= 2
        else:
            first += batch
    return torch.cat(parts)
