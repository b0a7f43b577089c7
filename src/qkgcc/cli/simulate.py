"""`qkgcc simulate`: scenes of a distribution as recordings with their truth, or one of them as a picture."""

import csv
import io
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
import typer
from rich.progress import track

from qkgcc.cli.tables import console
from qkgcc.errors import InputError
from qkgcc.files import write_whole

if TYPE_CHECKING:
    from qkgcc.simulate.scenes import Scene


class Distribution(StrEnum):
    paper = "paper"
    general = "general"


class Engine(StrEnum):
    reference = "reference"
    cpu = "cpu"
    gpu = "gpu"


def simulate(
    distribution: Annotated[Distribution, typer.Option(help="Which scenes to draw.")] = Distribution.paper,
    count: Annotated[int, typer.Option(min=1, help="How many scenes.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the set.")] = 0,
    split: Annotated[str, typer.Option(help="train, validation or test: which speakers and clips.")] = "train",
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="Length of each recording.")] = 2.0,
    bank: Annotated[
        list[Path] | None, typer.Option(help="Banks of the sources (`qkgcc data bank`); may be given several times.")
    ] = None,
    engine: Annotated[
        Engine | None, typer.Option(help="What renders the rooms; by default what the machine has.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the recordings and truth.csv.")] = None,
    show: Annotated[int | None, typer.Option(min=0, help="Draw the scene of this number as a picture instead.")] = None,
    plot: Annotated[Path, typer.Option(help="The picture that --show writes.")] = Path("scene.png"),
) -> None:
    """Render simulated rooms: audio and truth.csv, or a picture of one.

    A folder that is partly there already is completed. T60 is what Sabine's formula is asked for; the image method then
    reverberates longer (1.0 s asked is about 1.3 s measured).

    Examples:

    * `qkgcc simulate --distribution paper --count 1000 --bank banks/test-clean --out rooms`

    * `qkgcc simulate --distribution general --bank banks/dev-clean --bank banks/noise --out rooms`

    * `qkgcc simulate --show 7 --plot scene.png`
    """
    from qkgcc.data.banks import Bank
    from qkgcc.simulate.catalog import Catalog, lookup
    from qkgcc.simulate.engines import best_engine, responses
    from qkgcc.simulate.general import general_scene
    from qkgcc.simulate.paper import training_scene
    from qkgcc.simulate.render import render

    banks = [Bank.load(path) for path in bank or []]
    catalog = Catalog.from_banks(banks, split)
    chosen = engine.value if engine else best_engine()

    def scene_of(index: int) -> "Scene":
        if distribution is Distribution.paper:
            return training_scene(seed, index, catalog.speech or ("speech",))
        return general_scene(seed, index, catalog)

    if show is not None:
        from qkgcc.plots import plot_scene

        here = scene_of(show)
        plot_scene(here, responses(here, chosen)[0][0], plot, title=f"{distribution.value}, seed {seed}, scene {show}")
        typer.echo(f"picture: {plot}")
        return
    if out is None:
        raise InputError("say where the recordings go: --out FOLDER (or --show NUMBER for a picture of one scene)")
    if not banks:
        raise InputError(
            "no sources: give a bank with --bank (make one with `qkgcc data bank --set test-clean --out FILE`)"
        )
    if distribution is Distribution.paper and not catalog.speech:
        raise InputError(f"the banks hold no speech of the split {split!r}, which the paper's distribution needs")
    out.mkdir(parents=True, exist_ok=True)
    scenes = [scene_of(index) for index in range(count)]
    write_whole(out / "truth.csv", lambda target: target.write_text(_truth(scenes, seed, distribution), newline=""))
    missing = [i for i in range(count) if not (out / _name(i)).exists()]
    signals = lookup(banks, seconds)
    screen = console(error=True)
    for i in track(
        missing, description=f"{chosen} engine", console=screen, transient=True, disable=not screen.is_terminal
    ):
        _write_audio(out / _name(i), render(scenes[i], signals, seconds, engine=chosen).audio, scenes[i].sample_rate)
    typer.echo(f"{len(missing)} recordings rendered, {count - len(missing)} were there already: {out}")


def _name(index: int) -> str:
    return f"{index:06d}.flac"


def _write_audio(path: Path, audio: npt.NDArray[np.float32], sample_rate: int) -> None:
    """16-bit FLAC; a recording of unit variance is brought to where speech peaks below full scale."""
    import soundfile

    peak = float(np.abs(audio).max())
    scale = 1.0 if peak <= 1 else 0.9 / peak
    write_whole(path, lambda target: soundfile.write(target, (audio * scale).T, sample_rate, subtype="PCM_16"))


def _truth(scenes: list["Scene"], seed: int, distribution: Distribution) -> str:
    """One row a scene: delay in samples of the first source, positive = channel 0 later."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow("file distribution seed index delay_samples t60 snr spacing distance signal x y z".split())  # noqa: SIM905
    for index, scene in enumerate(scenes):
        place = scene.sources[0].path[0]
        centre = scene.microphones[:2].mean(axis=0)
        writer.writerow(
            [
                _name(index),
                distribution.value,
                seed,
                index,
                f"{scene.delay()[0]:.4f}",
                f"{scene.t60:.4f}",
                f"{scene.snr:.2f}",
                f"{np.linalg.norm(scene.microphones[0] - scene.microphones[1]):.4f}",
                f"{np.linalg.norm(place - centre):.4f}",
                scene.sources[0].signal,
                *(f"{x:.4f}" for x in place),
            ]
        )
    return text.getvalue()
