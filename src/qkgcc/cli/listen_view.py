"""What a terminal shows while `qkgcc listen` listens: levels, a picture of delays or directions, the answer, how it
keeps up."""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable
from types import TracebackType
from typing import Generic, NamedTuple, Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from qkgcc.arrays.stream import DirectionFrames, active_tracks
from qkgcc.cli.tables import bar, number
from qkgcc.core.errors import quantity
from qkgcc.core.types import Floats
from qkgcc.delay.result import DelayEstimate
from qkgcc.live.session import A, Session
from qkgcc.tracks.tracker import Track

OFTEN, SELDOM = 0.05, 0.15
"""Seconds from one picture to the next, at least: when a frame is answered, and when only levels have changed. What is
drawn is drawn at once, and frames in between are not."""
QUIET = -60.0
"""dB of full scale at which a meter begins."""

_HEIGHT = 4  # lines of a picture
_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*##"
_LARGEST = 120  # columns
_SMALLEST = 5  # steps to the smallest view: the answer, and how it keeps up
_NEAR = 10.0  # degrees around the highest of what is said of directions that are its direction


class Picture(NamedTuple):
    """An answer as it is drawn."""

    headline: str
    bars: Floats
    """(N,) from 0, evenly over the axis from left to right."""
    axis: tuple[str, ...]
    """What stands below, evenly from left to right."""


class View(Generic[A]):
    """Draws a session; within a `with` it owns the terminal."""

    def __init__(self, session: Session[A], picture: Callable[[A], Picture], screen: Console) -> None:
        self._session, self._picture = session, picture
        self._live = Live(console=screen, auto_refresh=False, vertical_overflow="crop")
        self._screen = screen
        self._newest: A | None = None
        self._drawn = -math.inf
        self._said: list[str] = []

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._draw()
        self._live.stop()

    def show(self, answer: A) -> None:
        self._newest = answer
        self._draw_after(OFTEN)

    def say(self, text: str) -> None:
        self._said.append(text)

    def tick(self) -> None:
        self._draw_after(SELDOM)

    def _draw_after(self, seconds: float) -> None:
        if time.monotonic() - self._drawn >= seconds:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        self._live.update(self._group(), refresh=True)
        self._session.mark_displayed()

    def _group(self) -> Group:
        width, height = min(self._screen.width, _LARGEST), self._screen.height
        warnings = [Text(f"warning: {text}") for text in self._said]
        taken = sum(-(-len(text.plain) // max(1, width)) for text in warnings)
        for small in range(_SMALLEST + 1):
            lines = self._lines(width, small)
            if len(lines) + taken <= height:
                break
        return Group(*(Text(line, no_wrap=True, overflow="crop") for line in lines), *warnings)

    def _lines(self, width: int, small: int) -> list[str]:
        """What is drawn. The answer is always whole; `small` is how much of the rest a low terminal does without."""
        session = self._session
        ramp = _ASCII if self._screen.options.ascii_only else _BLOCKS
        levels = session.levels.tolist()
        lines = [f"{session.source.name}, {session.source.sample_rate} Hz"] if small < 4 else []
        if small < 3:
            lines += [
                meter(f"channel {channel}", level, width, ramp)
                for channel, level in zip(session.channels, levels, strict=True)
            ]
        elif small < _SMALLEST:
            lines.append(f"levels {' '.join(_decibels(level).strip() for level in levels)} dB")
        space = [""] if small < 1 else []
        if self._newest is None:
            lines.append("waiting for the first frame")
        else:
            picture = self._picture(self._newest)
            if small < _SMALLEST:
                lines += [*space, *columns(picture.bars, width, _HEIGHT if small < 2 else 2, ramp)]
                lines.append(spread(picture.axis, width))
            lines += textwrap.wrap(picture.headline, width, subsequent_indent="  ", break_on_hyphens=False) or [""]
        return [*lines, *space, status_line(session)]


def delay_picture(answer: DelayEstimate) -> Picture:
    """The curve over the lags of the last frame, and its delay."""
    delay, seconds = float(answer.delay_samples[-1]), float(answer.delay_seconds[-1])
    headline = f"{answer.times[-1]:8.2f} s   silence"
    if not math.isnan(delay):
        angle = "" if answer.angle is None else f"   angle {number(float(answer.angle[-1]), 1)}° (positive: right)"
        headline = (
            f"{answer.times[-1]:8.2f} s   delay {number(delay, 2)} samples = {number(seconds * 1e6, 0)} µs{angle}   "
            f"confidence {bar(float(answer.confidence[-1]))}"
        )
    curve = np.maximum(np.nan_to_num(np.asarray(answer.curve[-1], np.float64)), 0)
    furthest = float(answer.lags[-1])
    first, second = answer.channels
    ends = f"{-furthest:+.1f} ({first} earlier)", "0 samples", f"({first} later than {second}) {furthest:+.1f}"
    return Picture(headline, curve, ends)


def direction_picture(angles: Floats, kind: str) -> Callable[[DirectionFrames], Picture]:
    """What draws frames.

    Args:
        angles: (C,) degrees of the grid's cells: azimuths, or of a line its angles.
        kind: of the grid.
    """
    line = kind == "line"
    width = 2.0 if line else 4.0  # degrees of a bar
    count = round((180 if line else 360) / width)
    places = np.clip((np.asarray(angles) + (0 if line else 180)) // width, 0, None).astype(int) % count
    axis = (
        ("along the line: 0°", "90°", "180°") if line else ("-180° back", "-90° right", "0° front", "90° left", "180°")
    )

    def picture(frames: DirectionFrames) -> Picture:
        bars = np.bincount(places, frames.now, count).astype(np.float64)
        headline = f"{frames.times[-1]:8.2f} s   silence"
        if frames.tracks is not None:
            followed = [followed_text(frames, one) for one in active_tracks(frames, len(frames.times) - 1)]
            headline = f"{frames.times[-1]:8.2f} s   " + ("   ".join(followed) or "nobody speaks")
        elif not math.isnan(frames.azimuth[-1]):
            angle, share = prevailing(angles, frames.now, wraps=not line)
            where = f"{angle:.0f}° from the line" if line else f"azimuth {angle:+.0f}°"
            headline = f"{frames.times[-1]:8.2f} s   {where}   confidence {bar(share)}"
        return Picture(headline, bars, axis)

    return picture


def prevailing(angles: Floats, now: Floats, *, wraps: bool) -> tuple[float, float]:
    """The angle that the last half second speaks for, in degrees, and the share of it that does.

    >>> angle, share = prevailing(np.array([-178.0, 0.0, 178.0]), np.array([0.4, 0.2, 0.4]), wraps=True)
    >>> round(abs(angle)), round(share, 2)
    (180, 0.8)
    """
    apart = np.asarray(angles) - angles[int(now.argmax())]
    if wraps:
        apart = (apart + 180) % 360 - 180
    said = np.where(np.abs(apart) <= _NEAR, now, 0.0)
    angle = angles[int(now.argmax())] + float(apart @ said) / max(float(said.sum()), 1e-12)
    share = float(said.sum()) / max(float(now.sum()), 1e-12)
    return float((angle + 180) % 360 - 180 if wraps else angle), share


def followed_text(frames: DirectionFrames, track: Track) -> str:
    """Where a source is, by its id, on the axis of the picture: of a line, the angle to it."""
    azimuth, _, cone, *_ = frames.angles_of(track)
    return (
        f"{track.id}: {azimuth:+.0f}° ±{track.spread:.0f}"
        if cone is None
        else f"{track.id}: {cone:.0f}° ±{track.spread:.0f} from the line"
    )


def direction_heading(frames: DirectionFrames) -> str:
    """What stands above `direction_lines`."""
    if frames.tracks is not None:
        return _aligned(["time (s)", "level (dB)", "azimuth (°) of each who speaks, by id"])
    angles = ["azimuth (°)", "line (°)" if frames.elevation is None else "elevation (°)"]
    return _aligned(["time (s)", "level (dB)", *angles, "confidence"])


def direction_lines(frames: DirectionFrames) -> list[str]:
    """A line for each frame."""
    lines = []
    for row, seconds in enumerate(frames.times):
        level = frames.level[row]
        begin = [f"{seconds:.2f}", number(20 * math.log10(level), 1) if level > 1e-10 else "-"]
        if frames.tracks is not None:
            speakers = [frames.angles_of(one) for one in active_tracks(frames, row)]
            ids = [one.id for one in active_tracks(frames, row)]
            shown = (
                f"{id}: {one.azimuth:+.1f}" + ("" if one.also_azimuth is None else f" or {one.also_azimuth:+.1f}")
                for id, one in zip(ids, speakers, strict=True)
            )
            lines.append(_aligned([*begin, "   ".join(shown)]))
            continue
        second = frames.cone if frames.elevation is None else frames.elevation
        angles = [number(frames.azimuth[row], 1), "-" if second is None else number(second[row], 1)]
        lines.append(_aligned([*begin, *angles, bar(float(frames.confidence[row]))]))
    return lines


def _aligned(cells: list[str]) -> str:
    return "  ".join([*(f"{cell:>13}" for cell in cells[:-1]), cells[-1]])


def meter(name: str, level: float, width: int, ramp: str) -> str:
    """A level in dB of full scale.

    >>> meter("channel 0", 0.001, 30, " -#")
    'channel 0  -60.0 dB           '
    >>> meter("channel 0", 1.0, 30, " -#")
    'channel 0    0.0 dB ##########'
    """
    decibels = 20 * math.log10(level) if level > 1e-10 else -200.0
    shown = f"{_decibels(level)} dB"
    room = max(0, width - len(name) - len(shown) - 3)
    filled = round(room * min(1.0, max(0.0, 1 - decibels / QUIET)))
    return f"{name}  {shown} {(ramp[-1] * filled).ljust(room)}"


def _decibels(level: float) -> str:
    return f"{20 * math.log10(level):5.1f}" if level > 1e-10 else "    -"


def columns(bars: Floats, width: int, height: int, ramp: str) -> list[str]:
    """Bars as lines of text, the highest as high as all lines. What shares a column shows its highest.

    >>> columns(np.array([0.0, 1.0, 0.5]), 6, 2, " -#")
    ['  ##  ', '  ####']
    """
    edges = np.arange(width + 1) * len(bars) / width
    first, last = np.floor(edges[:-1]).astype(int), np.ceil(edges[1:]).astype(int)
    tall = np.array([bars[a : max(b, a + 1)].max() if len(bars) else 0.0 for a, b in zip(first, last, strict=True)])
    steps = len(ramp) - 1
    eighths = np.round(tall / max(float(tall.max(initial=0.0)), 1e-12) * height * steps).astype(int)
    rows = range(height - 1, -1, -1)
    return ["".join(ramp[int(np.clip(value - row * steps, 0, steps))] for value in eighths) for row in rows]


def spread(labels: tuple[str, ...], width: int) -> str:
    """Labels in one line: the first at its beginning, the last at its end, others centred where they belong.

    >>> spread(("-1", "0", "+1"), 11)
    '-1   0   +1'
    """
    line = [" "] * width
    for place, label in enumerate(labels):
        share = place / max(1, len(labels) - 1)
        at = round(share * width - (len(label) if share == 1 else 0 if share == 0 else len(label) / 2))
        for offset, letter in enumerate(label):
            if 0 <= at + offset < width:
                line[at + offset] = letter
    return "".join(line).rstrip()


def status_line(session: Session[A]) -> str:
    """How it keeps up."""
    parts = [f"heard {session.seconds:.1f} s", quantity(session.frames, "frame"), overruns_text(session)]
    if session.latencies:
        recent = list(session.latencies)[-15:]
        parts.append(f"latency {1000 * float(np.mean(recent)):.0f} ms")
    if session.source.live:
        parts.append(load_text(session.load))
    if session.recorder is not None and session.recorder.fault is None:
        parts.append(f"recording {session.recorder.seconds:.1f} s")
    return ", ".join(parts)


def load_text(load: float, digits: int = 0) -> str:
    """
    >>> load_text(0.25), load_text(4.476)
    ('load 25 %', 'needs 4.5 s for a second of sound')
    """
    return f"load {100 * load:.{digits}f} %" if load <= 1 else f"needs {load:.1f} s for a second of sound"


def overruns_text(session: Session[A]) -> str:
    count = session.overruns
    return "no overruns" if not count else f"{count} overrun{'s' if count != 1 else ''}"
