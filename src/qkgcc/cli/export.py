"""`qkgcc export`: a network as one ONNX file, for programs in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkgcc.cli.options import Overwrite, check_replaceable
from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.network.registry import NETWORKS, PRETRAINED, pretrained

ONNX = ".onnx"


def export(
    network: Annotated[
        str,
        typer.Argument(help="A network such as general or qk-gcc, or a checkpoint of QK-GCC, published or steered."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Output file (default: NAME.onnx here, or beside the checkpoint).")
    ] = None,
    max_delay: Annotated[
        float | None,
        typer.Option(help="Fix the delays, from minus to plus this many seconds: the file has no input `delays` then."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a network as ONNX: `frames` (batch, 2, n) and `delays` (L,) in seconds in, `logits` (batch, L) out.

    Levels, windows, Fourier transforms and steering are inside: raw samples at the network's rate are all it takes, in
    any language that has an ONNX runtime. The metadata say the sample rate, the delays, their unit and their sign
    (positive: channel 0 hears the source later). docs/guide/onnx.md has programs for Python and JavaScript.

    Those of the general networks come with the package; others, and those with fixed delays, need onnx to be made:
    pip install 'qkgcc[export]'.

    Examples:

    * `qkgcc export general --out model.onnx`

    * `qkgcc export general-small --out small.onnx --max-delay 0.00146`  (0.5 m between the microphones)

    * `qkgcc export qk-gcc --out paper.onnx`
    """
    from qkgcc.core.files import display_name, is_file, write_whole

    source = pretrained(network) if network in NETWORKS else Path(network)
    if network not in NETWORKS and not is_file(source):  # before its name gets another suffix: "." has none
        raise InputError(f"there is no network {network!r}: give {', '.join(NETWORKS)}, or the path of a file")
    path = out or (Path(f"{network}.onnx") if network in NETWORKS else source.with_suffix(ONNX))
    if path.suffix != ONNX:
        raise InputError(f"--out {path}: the name must end in .onnx")
    if source.suffix.lower() == ONNX:
        raise InputError(f"{source} is an ONNX file already: export from the network's name or its checkpoint")
    check_replaceable(path, overwrite)
    if network in PRETRAINED and max_delay is None:  # comes with the package
        content = source.with_suffix(ONNX).read_bytes()
        write_whole(path, lambda target: target.write_bytes(content))
    else:
        _write(source, path, max_delay)
    typer.echo(f"written: {display_name(path)} ({path.stat().st_size / 1e6:.2f} MB)")


def _write(source: Path, path: Path, max_delay: float | None) -> None:
    try:
        from qkgcc.network import onnx_export
    except ImportError:
        raise MissingExtraError("making an ONNX file needs onnx: pip install 'qkgcc[export]'") from None
    from qkgcc.network import files

    card, weights = files.read(source)
    delays = None if max_delay is None else onnx_export.frozen_delays(card, max_delay)
    onnx_export.export(card, weights, path, delays)
