"""`qkgcc simulate`: scenes of a distribution as recordings with their truth, or one of them as a picture."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import track

from qkgcc.cli.options import Overwrite, check_replaceable
from qkgcc.cli.tables import console
from qkgcc.core.errors import InputError, quantity

if TYPE_CHECKING:
    from qkgcc.lab.corpora.banks import Bank
    from qkgcc.lab.scenes.scenes import Scene
    from qkgcc.lab.scenes.signals import Catalog

_LAST = 2**48  # of the numbers of scenes: what is drawn counts with 64 bits, and takes up to 64 numbers a scene


class Distribution(StrEnum):
    paper = "paper"
    general = "general"


class Engine(StrEnum):
    reference = "reference"
    cpu = "cpu"
    gpu = "gpu"


_SCALES = {Distribution.paper: 1 / 32, Distribution.general: 1.0}
"""What a recording is multiplied by in its file. Unit variance becomes -30 dB of full scale, as in the benchmark; the
general distribution draws its levels in dB of full scale. Louder ones are halved until they fit."""


def simulate(
    distribution: Annotated[Distribution, typer.Option(help="Which scenes to draw.")] = Distribution.paper,
    count: Annotated[int, typer.Option(min=1, max=10**6, help="How many scenes: numbers 0, 1, ... of the seed.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the set.")] = 0,
    split: Annotated[str, typer.Option(help="train, validation or test: which speakers and clips.")] = "train",
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1, max=60, help="Length of each recording, up to what the banks keep of an utterance (speech: 3 s)."
        ),
    ] = 2.0,
    bank: Annotated[
        list[Path] | None, typer.Option(help="Banks of the sources (`qkgcc data bank`); may be given several times.")
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="Engine that renders the rooms (default: the fastest that this machine has).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the recordings and truth.csv.")] = None,
    show: Annotated[
        int | None,
        typer.Option(min=0, max=_LAST, metavar="N", help="Draw scene number N of --seed as a picture instead."),
    ] = None,
    plot: Annotated[Path, typer.Option(help="The picture that --show writes (.png, .svg or .pdf).")] = Path(
        "scene.png"
    ),
    overwrite: Overwrite = False,
) -> None:
    """Render simulated rooms: audio and truth.csv, or a picture of one.

    Distribution, seed and number define a scene. An existing folder is completed; its settings must be the same
    (settings.json), but the count may grow. T60 is the nominal value given to Sabine's formula; rooms measure about
    30 % longer.

    truth.csv has a row for every recording. Its delays are those of the first source in samples, positive = channel 0
    later: delay_samples in the middle of the recording, delay_first and delay_last at its ends. Where moving is 1,
    delays has one every 64 ms. x, y, z (m) is the starting point of the source; spacing (m) is the true distance of the
    microphones, nominal_spacing the assumed one; clipped is a share of the samples, band in Hz, level in dB of full
    scale. The samples in the file are multiplied by scale.

    Examples:

    * `qkgcc simulate --distribution paper --count 1000 --bank banks/test-clean --out rooms`

    * `qkgcc simulate --distribution general --bank banks/dev-clean --bank banks/noise --out rooms`

    * `qkgcc simulate --seed 0 --show 7 --plot scene.png`
    """
    from qkgcc.lab.corpora.banks import Bank
    from qkgcc.lab.scenes.engines import best_engine, check_engine
    from qkgcc.lab.scenes.signals import Catalog
    from qkgcc.plots import check_plotting

    if show is not None:
        check_plotting(plot)  # before the work, not after it
    chosen = engine.value if engine else best_engine()
    check_engine(chosen)
    if show is None and out is None:
        raise InputError("say where the recordings go: --out FOLDER (or --show NUMBER for a picture of one scene)")
    banks = [Bank.load(path) for path in bank or []]
    catalog = Catalog.from_banks(banks, split)
    if banks and distribution is Distribution.paper and not catalog.speech:
        raise InputError(f"the banks hold no speech of the split {split!r}, which the paper's distribution needs")
    if show is not None:
        check_replaceable(plot, overwrite)
        _draw(_scene(distribution, seed, show, catalog), plot, chosen, picture_title(distribution, seed, show, banks))
    elif out is not None:
        _record(distribution, count, seed, split, seconds, banks, catalog, chosen, out)


def _scene(distribution: Distribution, seed: int, index: int, catalog: "Catalog") -> "Scene":
    from qkgcc.lab.scenes.general import general_scene
    from qkgcc.lab.scenes.paper import training_scene

    if distribution is Distribution.paper:
        return training_scene(seed, index, catalog.speech or ("speech",))
    return general_scene(seed, index, catalog)


def _draw(scene: "Scene", plot: Path, engine: str, title: str) -> None:
    from qkgcc.lab.scenes.engines import responses
    from qkgcc.plots import plot_scene

    plot_scene(scene, responses(scene, engine)[0][0], plot, title=title)
    typer.echo(f"picture: {plot}")


def picture_title(distribution: Distribution, seed: int, index: int, banks: "list[Bank]") -> str:
    """Of the picture of a scene. Without banks its signals are not those that a rendering with banks has."""
    note = "" if banks else "\n(no bank given: signals are synthetic)"
    return f"{distribution.value}, seed {seed}, scene {index}{note}"


def _record(
    distribution: Distribution,
    count: int,
    seed: int,
    split: str,
    seconds: float,
    banks: "list[Bank]",
    catalog: "Catalog",
    engine: str,
    out: Path,
) -> None:
    from qkgcc.lab.scenes.recordings import Recordings
    from qkgcc.lab.scenes.render import render
    from qkgcc.lab.scenes.signals import check_length, lookup, whole_utterances

    if not banks:
        raise InputError(
            "no sources: give a bank with --bank (make one with `qkgcc data bank --set test-clean --out FILE`)"
        )
    check_length(banks, split, seconds)
    settings = {
        "distribution": distribution.value,
        "seed": seed,
        "split": split,
        "seconds": seconds,
        "engine": engine,
        "banks": [bank.hash for bank in banks],
        "scale": _SCALES[distribution],
    }
    recordings = Recordings(out, settings)
    missing = [i for i in range(count) if i not in recordings]
    signals = lookup(banks, seconds)
    # The protocol sets the level by the whole utterance; the general distribution, by what is recorded.
    whole = whole_utterances(banks) if distribution is Distribution.paper else None
    screen = console(error=True)
    with recordings.growing():
        for i in track(
            missing, description=f"{engine} engine", console=screen, transient=True, disable=not screen.is_terminal
        ):
            scene = _scene(distribution, seed, i, catalog)
            recordings.add(i, scene, render(scene, signals, seconds, engine=engine, whole=whole))
    typer.echo(f"{quantity(len(missing), 'recording')} rendered, {count - len(missing)} were there already: {out}")
