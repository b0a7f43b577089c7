"""Tables of directions, tracks and places."""

import math

from rich.table import Table

from qkgcc.arrays.result import DirectionEstimate, Position, PositionEstimate, describe_direction, elevation_text
from qkgcc.cli.tables import ROWS, bar
from qkgcc.tracks.segments import Segment


def direction_table(estimate: DirectionEstimate) -> Table:
    """A row for each direction of each block; at most 24 blocks, of a long recording the most confident of several."""
    group = math.ceil(len(estimate.blocks) / ROWS)
    note = "" if group <= 1 else f"; each row is the most confident of {group} blocks"
    table = Table(
        title=f"{estimate.source}, {estimate.array}, {estimate.method}{note}",
        title_justify="left",
        caption=_directions_caption(estimate),
        caption_justify="left",
    )
    every = [one for block in estimate.blocks for one in block.directions]
    # Both where microphones die on the way, and leave a line.
    rows_of = any(one.cone is not None for one in every) or estimate.grid == "line"
    rising = estimate.grid != "line"
    headings = ["time (s)", *["from the line (°)"] * rows_of, "azimuth (°)", *["elevation (°)"] * rising]
    far = all(one.distance is None for one in every)
    for heading in headings if far else [*headings, "distance (m)"]:
        table.add_column(heading, justify="right")
    table.add_column("confidence")
    for first in range(0, len(estimate.blocks), max(1, group)):
        some = estimate.blocks[first : first + group]
        block = max(some, key=lambda one: max((found.confidence for found in one.directions), default=0.0))
        time = f"{block.start:.1f} - {block.end:.1f}"
        for one in block.directions:
            if one.cone is not None:
                (other, _), *_ = one.also
                where = [f"{one.cone:.1f}", f"{one.azimuth:+.1f} or {other:+.1f}", *["-"] * rising]
            else:
                where = [*["-"] * rows_of, f"{one.azimuth:+.1f}", elevation_text(one).replace("°", "")]
            table.add_row(time, *where, *([] if far else [f"{one.distance:g}"]), bar(one.confidence))
            time = ""
        if not block.directions:
            table.add_row(time, *["-"] * (len(headings) - 1 + (not far)), "-")
    return table


def track_table(estimate: DirectionEstimate) -> Table:
    """A row for each time in which a source speaks."""
    table = Table(
        title=f"{estimate.source}, {estimate.array}, {estimate.method}: who speaks when, and from where",
        title_justify="left",
        caption=_tracks_caption(estimate),
        caption_justify="left",
    )
    line = estimate.grid == "line"
    angles = ["from the line (°)", "azimuth (°)"] if line else ["azimuth (°)", "elevation (°)"]
    for heading in ("time (s)", "track", *angles):
        table.add_column(heading, justify="right")
    for one in estimate.segments:
        span = f"{one.start:.1f} - {one.start + one.duration:.1f}"
        also = "" if one.also_azimuth is None or one.also_elevation is not None else f" or {one.also_azimuth:+.1f}"
        where = f"{one.azimuth:+.1f}{also}"
        up = "-" if one.elevation is None else f"{one.elevation:.1f}{_mirrored(one)}"
        table.add_row(span, str(one.id), *([f"{one.cone:.1f}", where] if line else [where, up]))
    return table


def _mirrored(one: Segment) -> str:
    """What sounds the same as the place of a segment, where elevations are followed."""
    if one.also_azimuth is None or one.also_elevation is None:
        return ""
    return f" (or azimuth {one.also_azimuth:.1f}, elevation {one.also_elevation:.1f})"


def position_table(estimate: PositionEstimate) -> Table:
    """A row for each position of each block."""
    table = Table(
        title=f"{estimate.source}, {estimate.array}, {estimate.method}: metres",
        title_justify="left",
        caption=_position_caption(estimate),
        caption_justify="left",
    )
    for heading in ("time (s)", "front", "left", "up", "±"):
        table.add_column(heading, justify="right")
    table.add_column("confidence")
    table.add_column("")
    for block in estimate.blocks:
        time = f"{block.start:.1f} - {block.end:.1f}"
        for found in block.positions:
            where = (*(f"{x:z.2f}" for x in found.place), f"{found.radii[0]:.2f}") if found.solved else ("-",) * 4
            table.add_row(time, *where, bar(found.confidence), found.remark or "")
            time = ""
        if not block.positions:
            table.add_row(time, *["-"] * 5, "nothing that stands out" if block.frames else "silence")
    return table


def _position_caption(estimate: PositionEstimate) -> str:
    if not any(block.frames for block in estimate.blocks):
        return "silence."
    if not estimate.positions:
        return "whole recording: nothing stands out."
    several = len(estimate.positions) > 1
    whole = "; ".join(_place(found) for found in estimate.positions)
    return (
        f"whole recording, if the source{'s stay' if several else ' stays'}: {whole}. ±: the longest axis of the error "
        "ellipse, one standard deviation."
    )


def _place(found: Position) -> str:
    if not found.solved:
        return str(found.remark)
    front, left, up = found.place
    return (
        f"{front:z.2f} to the front, {left:z.2f} to the left, {up:z.2f} up, from {int(found.used.sum())} of "
        f"{len(found.used)} delays, which miss it by {1e6 * found.rms:.0f} µs"
        + (f" ({found.remark})" if found.remark else "")
    )


def _tracks_caption(estimate: DirectionEstimate) -> str:
    count = len(estimate.tracks or ())
    found = f"{count} source{'s' if count != 1 else ''} followed; azimuths are means, --format csv has every moment."
    unsure = "" if estimate.cannot_tell is None else f" This array cannot tell {estimate.cannot_tell}."
    return f"{found}{unsure} Azimuths: 0 is the front, positive is left."


def _directions_caption(estimate: DirectionEstimate) -> str:
    found = [describe_direction(one) for one in estimate.directions]
    whole = "whole recording: " + ("; ".join(found) if found else "silence, or nothing that stands out") + "."
    unsure = "" if estimate.cannot_tell is None else f" This array cannot tell {estimate.cannot_tell}."
    return f"{whole}{unsure} Azimuths: 0 is the front, positive is left."
