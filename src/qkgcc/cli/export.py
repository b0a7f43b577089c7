"""`qkgcc export`: a trained steered network as ONNX, for machines without torch."""

from pathlib import Path
from typing import Annotated

import typer

from qkgcc.errors import InputError, MissingExtraError


def export(
    checkpoint: Annotated[Path, typer.Argument(help="A steered network, as `qkgcc train` writes it.", readable=False)],
    out: Annotated[
        Path | None, typer.Option(help="The ONNX file (default: beside the checkpoint, under its name).")
    ] = None,
) -> None:
    """Write a steered network as ONNX. The file describes itself: `qkgcc estimate --method FILE.onnx` is all it takes.

    Examples:

    * `qkgcc export runs/steered-0/best.safetensors`

    * `qkgcc export runs/steered-0/best.safetensors --out mine.onnx`
    """
    try:
        from qkgcc.models import checkpoint as checkpoints
        from qkgcc.models.export import export as write
        from qkgcc.models.steered import Steered
    except ImportError:
        raise MissingExtraError("exporting needs torch and onnx: pip install 'qkgcc[train]'") from None
    path = out or checkpoint.with_suffix(".onnx")
    if path.suffix != ".onnx":
        raise InputError(f"--out {path}: its suffix is to be .onnx, by which it is told from a checkpoint")
    model, card = checkpoints.load(checkpoint)
    if not isinstance(model, Steered):
        raise InputError(f"{checkpoint} holds a {card.architecture}; only steered networks are exported")
    write(model, card, path)
    typer.echo(f"written: {path} ({path.stat().st_size / 1e6:.2f} MB)")
