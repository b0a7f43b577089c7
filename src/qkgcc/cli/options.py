"""Options that several commands share, what follows from them, and which files a command may replace."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkgcc.core.errors import InputError
from qkgcc.network.registry import ARRAY_DEFAULT, DEFAULT

if TYPE_CHECKING:
    from qkgcc.audio.recording import Recording

ADVANCED = "Advanced options"
"""Heading in `--help` of what most users leave as it is."""


DEFAULT_HOP = 0.064
"""Seconds from one frame to the next, of two channels."""


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


class Report(StrEnum):
    table = "table"
    json = "json"


Files = Annotated[
    list[Path], typer.Argument(help="Recordings; - reads a WAV file from standard input.", readable=False)
]
FilesOrFolders = Annotated[
    list[Path],
    typer.Argument(help="Recordings, or folders of them; - reads a WAV file from standard input.", readable=False),
]
Method = Annotated[str, typer.Option("--method", "-m", help="One of `qkgcc methods`, or the checkpoint of a network.")]
MethodIfGiven = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help=f"One of `qkgcc methods`, or the checkpoint of a network. Default: {DEFAULT}; of arrays: {ARRAY_DEFAULT}.",
    ),
]
Channels = Annotated[tuple[int, int], typer.Option(help="The two channels, counted from 0.")]
Pairs = Annotated[
    str | None, typer.Option(help="`all` pairs of channels, or some of them: 0-1,0-3 (default: --channels).")
]
Spacing = Annotated[
    float | None,
    typer.Option(
        help="Distance between the microphones in metres: limits the delays and gives angles. `general`: up to 5.4."
    ),
]
MaxDelay = Annotated[float | None, typer.Option(help="Largest delay in seconds, instead of a spacing.")]
Other = Annotated[
    Path | None, typer.Option("--with", help="A second mono recording as the second channel (two recorders).")
]
Band = Annotated[
    tuple[float, float] | None, typer.Option(help="Use only frequencies between these two, in Hz: 300 8000.")
]
Start = Annotated[float | None, typer.Option(help="Start at this second of the recording.")]
End = Annotated[float | None, typer.Option(help="Stop at this second of the recording.")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads per recording (default: one per core).", rich_help_panel=ADVANCED),
]
Array = Annotated[
    str, typer.Option("--array", help="A preset such as respeaker4 or circular:8:0.1, or a TOML or CSV file.")
]
ArrayChannels = Annotated[
    str | None,
    typer.Option("--channels", help="Channels to use as microphones, in array order: 1,2,3,4 (default: all)."),
]
SpeedOfSound = Annotated[
    float | None, typer.Option(help="Speed of sound in m/s (default: 343).", rich_help_panel=ADVANCED)
]
Temperature = Annotated[
    float | None,
    typer.Option(help="Air temperature in degrees Celsius, instead of --speed-of-sound.", rich_help_panel=ADVANCED),
]
Printed = Annotated[Format, typer.Option(help="What to print.")]
Reported = Annotated[Report, typer.Option(help="What to print.")]
Plot = Annotated[
    Path | None,
    typer.Option(help="Write a picture (.png, .svg, .pdf); several inputs give OUT-NAME.png each."),
]
Picture = Annotated[Path | None, typer.Option(help="Write a picture (.png, .svg, .pdf).")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace existing files, even if qkgcc did not make them.")
]


def estimator_options(
    method: MethodIfGiven = None,
    spacing: Spacing = None,
    max_delay: MaxDelay = None,
    band: Band = None,
    decoder: Annotated[
        str | None,
        typer.Option(
            help="How a network's delay is read: balanced, coarse, quadratic, argmax or mean (default: its own).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    smoothing: Annotated[
        float | None,
        typer.Option(
            help="Smooth over time, looking this many seconds ahead (0: none).",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    symmetric: Annotated[
        bool,
        typer.Option(
            "--symmetric",
            help="Give exactly the opposite delay for swapped channels; takes twice the time.",
            rich_help_panel=ADVANCED,
        ),
    ] = False,
    max_sources: Annotated[
        int,
        typer.Option(
            help="Peaks of a network's posterior in JSON, CSV and picture, for several sources.",
            min=1,
            rich_help_panel=ADVANCED,
        ),
    ] = 1,
    interpolation: Annotated[
        str | None,
        typer.Option(
            help="Between the samples of a correlation: band-limited (default), parabolic or none.",
            rich_help_panel=ADVANCED,
        ),
    ] = None,
    beta: Annotated[
        float | None, typer.Option(help="Exponent of phat-beta (default: 0.8).", rich_help_panel=ADVANCED)
    ] = None,
    frame: Annotated[
        float | None, typer.Option(help="Frame length in seconds (default: 0.128).", rich_help_panel=ADVANCED)
    ] = None,
    hop: Annotated[
        float | None,
        typer.Option(help="Seconds from one frame to the next (default: 0.064).", rich_help_panel=ADVANCED),
    ] = None,
    threads: Threads = None,
    speed_of_sound: SpeedOfSound = None,
    temperature: Temperature = None,
) -> dict[str, Any]:
    """What was given for a `DelayEstimator`, None for the rest; see `delay_options`."""
    return {
        "method": method,
        "spacing": spacing,
        "max_delay": max_delay,
        "frame": frame,
        "hop": hop,
        "band": band,
        "interpolation": interpolation,
        "decoder": decoder,
        "beta": beta,
        "max_sources": max_sources,
        "symmetric": symmetric,
        "smoothing": smoothing,
        "threads": threads,
        "speed_of_sound": sound_speed(speed_of_sound, temperature),
    }


def delay_options(options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `DelayEstimator`, with the defaults of the command line."""
    return options | {
        "method": options["method"] or DEFAULT,
        "hop": DEFAULT_HOP if options["hop"] is None else options["hop"],
    }


def with_estimator_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all options of `estimator_options`; it receives them as the one argument `options`."""
    shared = inspect.signature(estimator_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = estimator_options(**{name: given.pop(name) for name in shared})
        command(options=options, **given)

    arguments = [one for one in own if one.default is one.empty and one.name != "options"]
    parameters = [*arguments, *shared.values(), *(one for one in own if one.default is not one.empty)]
    keywords = [one.replace(kind=one.KEYWORD_ONLY) for one in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in keywords}
    return run


def sound_speed(speed: float | None, temperature: float | None) -> float:
    """Speed of sound in m/s from either option.

    >>> round(sound_speed(None, 20.0), 1)
    343.2
    """
    from qkgcc.core.checks import check_speed
    from qkgcc.core.types import SPEED_OF_SOUND

    if temperature is None:
        return SPEED_OF_SOUND if speed is None else check_speed(speed)
    if speed is not None:
        raise InputError("give --speed-of-sound or --temperature, not both")
    if not -80 <= temperature <= 80:
        raise InputError(f"the temperature is {temperature:g} degrees Celsius; expected -80 to 80")
    return 331.3 * math.sqrt(1 + temperature / 273.15)


def select_pairs(recording: Recording, channels: tuple[int, int], pairs: str | None) -> list[tuple[int, int]]:
    """The channel pairs that `--channels` or `--pairs` ask for.

    >>> import numpy as np
    >>> from qkgcc import open_audio
    >>> select_pairs(open_audio(np.zeros((3, 9)), 8000), (0, 1), "all")
    [(0, 1), (0, 2), (1, 2)]
    """
    if pairs is None:
        return [channels]
    if pairs == "all":
        if len(recording.channels) == 1:
            raise InputError(f"{recording.name} has 1 channel; a delay needs 2")
        return list(itertools.combinations(range(len(recording.channels)), 2))
    return read_pairs(pairs)


def read_pairs(text: str) -> list[tuple[int, int]]:
    """Channel pairs from their text.

    >>> read_pairs("0-1, 0-3")
    [(0, 1), (0, 3)]
    """
    chosen = []
    for part in text.split(","):
        first, second = (whole_number(channel) for channel in part.strip().partition("-")[::2])
        if first is None or second is None:
            raise InputError(f"--pairs {text}: expected `all`, or pairs of channels such as 0-1,0-3")
        chosen.append((first, second))
    return chosen


def with_channels(recording: Recording, text: str | None, count: int | None) -> Recording:
    """The recording with the channels that `--channels 1,2,3,4` names; `count`: how many there must be."""
    chosen = channel_numbers(text, count)
    return recording if chosen is None else recording.pick(chosen)


def channel_numbers(text: str | None, count: int | None = None) -> list[int] | None:
    """The channels that `--channels 1,2,3,4` names; None without it.

    >>> channel_numbers("3, 2")
    [3, 2]
    """
    if text is None:
        return None
    return picked_channels(text, len(text.replace(",", " ").split()) if count is None else count)


def picked_channels(text: str | None, count: int) -> list[int]:
    """The channels that `--channels 1,2,3,4` names; without it the first ones.

    >>> picked_channels("3, 2", 2), picked_channels(None, 4)
    ([3, 2], [0, 1, 2, 3])
    """
    if text is None:
        return list(range(count))
    chosen = [whole_number(part) for part in text.replace(",", " ").split()]
    if not chosen or None in chosen:
        raise InputError(f"--channels {text}: expected whole numbers from 0 on, such as 0,1")
    if len(chosen) != count:
        raise InputError(f"--channels {text} names {len(chosen)}; give {count}, in the order of the microphones")
    if len(set(chosen)) < count:
        raise InputError(f"--channels {text}: a channel is named twice; give each one once")
    return [number for number in chosen if number is not None]


def whole_number(text: str) -> int | None:
    """A number from 0 on, of at most nine digits; None for any other text. (Python refuses thousands of digits.)

    >>> whole_number("12"), whole_number("-1"), whole_number(5000 * "9")
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) < 10 else None


def numbers(option: str, text: str | None) -> list[float] | None:
    """The finite numbers of an option that takes several.

    >>> numbers("--distance", "0.3, 1")
    [0.3, 1.0]
    """
    try:
        found = None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if found is not None and not all(map(math.isfinite, found)):
        raise InputError(f"{option} {text}: expected numbers with commas between them, such as 1.2,0.8")
    return found


def source_count(text: str) -> int | str:
    """The value of `--sources`: a number, or auto.

    >>> source_count("2"), source_count("auto")
    (2, 'auto')
    """
    count = text if text == "auto" else whole_number(text)
    if count is None:
        raise InputError(f"--sources {text}: expected a number such as 2, or auto")
    return count


_SEARCHED_BYTES = 1 << 16
"""Bytes at either end of a file that are searched for qkgcc's mark."""


def check_replaceable(path: Path, overwrite: bool, begins: Callable[[bytes], object] = lambda head: False) -> None:
    """Raise an `InputError` if a command would replace a file that qkgcc did not make.

    Args:
        overwrite: whether all files may be replaced.
        begins: recognises files of qkgcc that carry no mark by their first bytes.
    """
    from qkgcc.core.files import MARK, display_name, is_file
    from qkgcc.network.card import DIGEST_KEY

    if overwrite or not is_file(path):
        return
    try:
        with path.open("rb") as file:
            head = file.read(_SEARCHED_BYTES)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _SEARCHED_BYTES))
            ends = (head, file.read())
    except OSError as error:
        raise InputError(f"cannot write {display_name(path)}: {error.strerror or error}") from None
    marks = (MARK.encode(), DIGEST_KEY.encode())  # the latter in networks
    if head and not begins(head) and not any(mark in end for mark in marks for end in ends):
        raise InputError(
            f"{display_name(path)} exists already, and qkgcc did not make it: give another name, or "
            "--overwrite to replace it"
        )
