"""`qkgcc array`: what a geometry is, and what it can tell."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qkgcc.cli.options import SpeedOfSound, Temperature, sound_speed
from qkgcc.cli.overwriting import Overwrite, check_replaceable
from qkgcc.cli.tables import console
from qkgcc.core.errors import quantity


def array(
    name: Annotated[str, typer.Argument(help="A preset such as respeaker4 or circular:8:0.1, or a TOML or CSV file.")],
    plot: Annotated[Path | None, typer.Option(help="Draw it, from above and from the side (.png, .svg, .pdf).")] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    overwrite: Overwrite = False,
) -> None:
    """Show an array of microphones: places, spacings, largest delays, and which directions it cannot tell apart.

    Files say their units and axes: `units = "cm"`, `axes = ["right", "front", "up"]` and `microphones = [[0, 0, 0],
    ...]` in TOML, or CSV with columns such as `right_cm,front_cm,up_cm`; one row for each channel of the recording.

    Examples:

    * `qkgcc array respeaker4`

    * `qkgcc array circular:8:0.1 --plot array.png`

    * `qkgcc array mine.toml`
    """
    from qkgcc import arrays, plots

    if plot is not None:
        plots.check_plotting(plot)  # before anything is printed
        check_replaceable(plot, overwrite)
    speed = sound_speed(speed_of_sound, temperature)
    geometry = arrays.array(name)
    table = Table("channel", "front", "left", "up", title=f"{geometry.name}: cm", title_justify="left")
    for channel, place in enumerate(geometry.microphones):
        table.add_row(str(channel), *(f"{100 * x:z.2f}" for x in place))
    spacings = [geometry.spacing(*pair) for pair in geometry.pairs]
    console().print(table)
    console().print(
        f"{quantity(len(spacings), 'pair')}, {100 * min(spacings):.2f} to {100 * max(spacings):.2f} cm apart: delays "
        f"up to {1000 * max(spacings) / speed:.3f} ms"
    )
    unclear = geometry.cannot_tell
    console().print("It can tell all directions apart." if unclear is None else f"It cannot tell {unclear}.")
    if plot is not None:
        plots.plot_array(geometry, plot)
        typer.echo(f"picture: {plot}")
