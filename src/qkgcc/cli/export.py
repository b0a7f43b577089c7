"""`qkgcc export`: a network as one ONNX file, for programs in other languages or for this one without torch."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkgcc.errors import InputError, MissingExtraError
from qkgcc.methods import PRETRAINED, pretrained_graph
from qkgcc.neural import ONNX

if TYPE_CHECKING:
    import onnx

    from qkgcc.card import Card


class Form(StrEnum):
    standalone = "standalone"
    runtime = "runtime"


def export(
    network: Annotated[
        str,
        typer.Argument(
            help="general, general-small, a checkpoint (.safetensors; needs torch), or an ONNX file of form runtime."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The ONNX file (default: NAME.onnx here, or beside the checkpoint).")
    ] = None,
    max_delay: Annotated[
        float | None, typer.Option(help="Seconds: freeze the delays, from minus to plus this; no input `delays`.")
    ] = None,
    step: Annotated[
        float | None, typer.Option(help="Seconds between frozen delays; there is one to choose, the network's own.")
    ] = None,
    form: Annotated[
        Form, typer.Option(help="standalone: samples in, logits out. runtime: what `--method` of this package runs.")
    ] = Form.standalone,
) -> None:
    """Write a network as ONNX: `frames` (batch, 2, n) and `delays` (L,) in seconds in, `logits` (batch, L) out.

    Levels, windows, Fourier transforms and steering are inside: raw samples at the network's rate are all it takes, in
    any language that has an ONNX runtime. The metadata say the sample rate, the delays, their unit and their sign
    (positive: channel 0 hears the source later). docs/onnx.md has programs for Python and JavaScript.

    `--form runtime` leaves transforms and steering to this package, which then takes other frame lengths and recordings
    at lower rates, and explains; `qkgcc estimate --method FILE.onnx` takes both forms.

    Examples:

    * `qkgcc export general --out model.onnx`

    * `qkgcc export general-small --out small.onnx --max-delay 0.00146`  (0.5 m between the microphones)

    * `qkgcc export checkpoints/qkgcc-0.safetensors --out paper.onnx`

    * `qkgcc export runs/steered-0/best.safetensors --form runtime --out mine.onnx`
    """
    source = pretrained_graph(network) if network in PRETRAINED else Path(network)
    path = out or (Path(f"{network}.onnx") if network in PRETRAINED else source.with_suffix(ONNX))
    if path.suffix != ONNX:
        raise InputError(f"--out {path}: its suffix is to be .onnx, by which it is told from a checkpoint")
    if path.resolve() == source.resolve():
        raise InputError(f"{source} would be overwritten by its own export: give another --out")
    if not source.is_file():
        raise InputError(f"there is no network {network!r}: give {', '.join(PRETRAINED)}, or the path of a file")
    if step is not None and max_delay is None:
        raise InputError("--step is of frozen delays: give --max-delay, too")
    if form is Form.runtime:
        if max_delay is not None:
            raise InputError("--max-delay freezes the delays of the form standalone; the form runtime takes any")
        _write_runtime(source, path)
    else:
        graph, card = _read(source)
        from qkgcc.models import standalone

        delays = None if max_delay is None else standalone.frozen_delays(card, max_delay, step)
        standalone.export(graph, card, path, delays)
    typer.echo(f"written: {path} ({path.stat().st_size / 1e6:.2f} MB)")


def _read(source: Path) -> tuple[onnx.GraphProto, Card]:
    if source.suffix.lower() == ONNX:
        try:
            from qkgcc.models import standalone
        except ImportError:
            raise MissingExtraError("exporting needs onnx: pip install 'qkgcc[export]'") from None
        return standalone.read_network(source)
    try:
        from qkgcc.models import checkpoint
        from qkgcc.models.export import network_graph
        from qkgcc.models.qkgcc import QKGCC
        from qkgcc.models.steered import Steered
    except ImportError:
        raise MissingExtraError("exporting a checkpoint needs torch and onnx: pip install 'qkgcc[train]'") from None
    model, card = checkpoint.load(source)
    if not isinstance(model, (QKGCC, Steered)):
        raise InputError(f"{source} holds a {card.architecture}; only QK-GCC is exported, published or steered")
    return network_graph(model), card


def _write_runtime(source: Path, path: Path) -> None:
    if source.suffix.lower() == ONNX:
        raise InputError(f"{source} is an ONNX file already: copy it, or leave --form out for the standalone one")
    try:
        from qkgcc.models import checkpoint
        from qkgcc.models.export import export as write
        from qkgcc.models.steered import Steered
    except ImportError:
        raise MissingExtraError("exporting a checkpoint needs torch and onnx: pip install 'qkgcc[train]'") from None
    model, card = checkpoint.load(source)
    if not isinstance(model, Steered):
        raise InputError(f"{source} holds a {card.architecture}; the form runtime is for steered networks")
    write(model, card, path)
