"""Options that several commands share, and what follows from them."""

import math
from pathlib import Path
from typing import Annotated

import typer

from qkgcc.audio.recording import Recording
from qkgcc.core.checks import check_speed
from qkgcc.core.errors import InputError
from qkgcc.core.types import SPEED_OF_SOUND

Spacing = Annotated[
    float | None,
    typer.Option(help="Metres between the microphones; limits the delays and gives angles. `general`: up to 5.4."),
]
MaxDelay = Annotated[float | None, typer.Option(help="Largest delay in seconds, instead of a spacing.")]
Other = Annotated[
    Path | None, typer.Option("--with", help="A second mono recording, the second channel (two recorders).")
]
Band = Annotated[tuple[float, float] | None, typer.Option(help="Lowest and highest frequency in Hz that may count.")]
ArrayChannels = Annotated[
    str | None,
    typer.Option("--channels", help="Those that are the microphones, in their order: 1,2,3,4 (default: all)."),
]
SpeedOfSound = Annotated[float | None, typer.Option(help="Metres per second (343 when not given).")]
Temperature = Annotated[
    float | None, typer.Option(help="Air temperature in degrees Celsius, instead of the speed of sound.")
]


def sound_speed(speed: float | None, temperature: float | None) -> float:
    """Speed of sound in m/s from either option.

    >>> round(sound_speed(None, 20.0), 1)
    343.2
    """
    if temperature is None:
        return SPEED_OF_SOUND if speed is None else check_speed(speed)
    if speed is not None:
        raise InputError("give --speed-of-sound or --temperature, not both")
    if not -80 <= temperature <= 80:
        raise InputError(f"the temperature is {temperature:g} degrees Celsius; expected -80 to 80")
    return 331.3 * math.sqrt(1 + temperature / 273.15)


def with_channels(recording: Recording, text: str | None, count: int | None) -> Recording:
    """The channels that `--channels 1,2,3,4` names, of which there have to be so many."""
    chosen = channel_numbers(text, count)
    return recording if chosen is None else recording.pick(chosen)


def channel_numbers(text: str | None, count: int | None = None) -> list[int] | None:
    """What `--channels 1,2,3,4` says; None: nothing.

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
        raise InputError(f"--channels {text} names {len(chosen)}; {count} are needed, in their order")
    if len(set(chosen)) < count:
        raise InputError(f"--channels {text}: every channel once")
    return [number for number in chosen if number is not None]


def whole_number(text: str) -> int | None:
    """A number from 0 on, of at most nine digits; None: it is none. (Python refuses those of thousands of digits.)

    >>> whole_number("12"), whole_number("-1"), whole_number(5000 * "9")
    (12, None, None)
    """
    return int(text) if text.isdecimal() and len(text) < 10 else None


def numbers(option: str, text: str | None) -> list[float] | None:
    """What an option with several numbers says, all of them finite.

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
    """What `--sources` says: a number, or auto.

    >>> source_count("2"), source_count("auto")
    (2, 'auto')
    """
    count = text if text == "auto" else whole_number(text)
    if count is None:
        raise InputError(f"--sources {text}: expected a number such as 2, or auto")
    return count
