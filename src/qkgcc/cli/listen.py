"""`qkgcc listen`: live from a sound card, or from a file in real time."""

from pathlib import Path
from typing import Annotated, Any

import typer

from qkgcc.cli.estimate import Format
from qkgcc.cli.options import Spacing, SpeedOfSound, Temperature, sound_speed, source_count
from qkgcc.core.errors import InputError
from qkgcc.core.files import display_name, exists
from qkgcc.network.registry import ARRAY_DEFAULT, DEFAULT


def listen(
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="Number of a sound card, or a part of its name.")
    ] = None,
    list_devices: Annotated[bool, typer.Option("--devices", help="List the sound cards and stop.")] = False,
    file: Annotated[
        Path | None, typer.Option("--from", help="Replay this recording in real time instead of listening.")
    ] = None,
    speed: Annotated[
        float | None, typer.Option(help="With --from: times as fast (1); 0: as fast as can be, nothing is lost.")
    ] = None,
    array: Annotated[
        str | None, typer.Option(help="Directions by an array: a preset such as respeaker4, or a TOML or CSV file.")
    ] = None,
    track: Annotated[bool, typer.Option("--track", help="With --array: follow sources, each with an id.")] = False,
    sources: Annotated[
        str | None, typer.Option(help="With --track: how many are followed at any moment, at most (all).")
    ] = None,
    channels: Annotated[
        str | None, typer.Option(help="The microphones' channels in their order, from 0: 1,2,3,4 (default: the first).")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", "-m", help="One of `qkgcc methods`, or the checkpoint of a network.")
    ] = None,
    spacing: Spacing = None,
    max_delay: Annotated[float | None, typer.Option(help="Largest delay in seconds, instead of a spacing.")] = None,
    frame: Annotated[float | None, typer.Option(help="Seconds in a frame (0.128; of arrays 0.064).")] = None,
    hop: Annotated[float | None, typer.Option(help="Seconds from one frame to the next (half a frame).")] = None,
    lookahead: Annotated[
        float | None,
        typer.Option(help="Seconds that a delay's confidence waits (0; with 1 it is a recording's, calibrated)."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="For a network (default: one for each core).")] = None,
    sample_rate: Annotated[int | None, typer.Option(help="Of the sound card, in Hz (default: its own).")] = None,
    record: Annotated[Path | None, typer.Option(help="Record all channels that are heard: .wav or .flac.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so many seconds of sound.")] = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
    format: Annotated[Format, typer.Option(help="What to print; in a terminal, table is a live view.")] = Format.table,
    curve: Annotated[bool, typer.Option(help="Whether JSON holds the curves or maps too.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Let --record replace a file that is there.")] = False,
) -> None:
    """Delay or direction of what is heard now, until Ctrl-C.

    In a terminal: levels, what is known of the delay or direction, and how the machine keeps up. In a pipe, or with
    --format csv or json: a line for each frame.

    Examples:

    * `qkgcc listen --devices`

    * `qkgcc listen --spacing 0.2`

    * `qkgcc listen --device ReSpeaker --array respeaker4 --channels 1,2,3,4 --record talk.wav`

    * `qkgcc listen --array respeaker4 --track --format csv > tracks.csv`

    * `qkgcc listen --from talk.wav --spacing 0.2` (no sound card is needed)
    """
    from qkgcc import arrays
    from qkgcc.cli import listening

    if list_devices:
        listening.print_devices()
        return
    if file is None and speed is not None:
        raise InputError("--speed is for a recording that is replayed: give --from FILE, too")
    if file is not None and (device is not None or sample_rate is not None):
        raise InputError("--from replays a recording, which has its own rate: give no --device and no --sample-rate")
    if seconds is not None and not 0 < seconds < 1e9:
        raise InputError(f"--seconds {seconds:g}: expected more than 0")
    if record is not None and file is not None and exists(file) and exists(record) and record.samefile(file):
        raise InputError(f"--record {record} is the recording that is replayed: give another name")
    if record is not None and exists(record) and not overwrite:
        raise InputError(
            f"--record {display_name(record)} is there already: give another name, or --overwrite to replace what it "
            "holds"
        )

    geometry = None if array is None else arrays.array(array)
    heard = listening.Heard(file, speed, device, sample_rate, channels, record, seconds, format, curve)
    shared: dict[str, Any] = {"threads": threads, "speed_of_sound": sound_speed(speed_of_sound, temperature)}
    shared |= {name: value for name, value in (("frame", frame), ("hop", hop)) if value is not None}
    if geometry is None:
        if track:
            raise InputError("--track follows directions: give --array, too")
        if sources is not None:
            raise InputError("--sources is for directions that are followed: give --array and --track, too")
        listening.delays(heard, lookahead or 0.0, method or DEFAULT, spacing=spacing, max_delay=max_delay, **shared)
        return
    if sources is not None:
        if not track:
            raise InputError("--sources is how many are followed: give --track, too")
        shared["sources"] = source_count(sources)
    if any(one is not None for one in (spacing, max_delay, lookahead)):
        raise InputError("--spacing, --max-delay and --lookahead are for two microphones: an --array knows its own")
    listening.directions(heard, geometry, track, method or ARRAY_DEFAULT, **shared)
