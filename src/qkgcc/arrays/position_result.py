"""What a `PositionEstimator` answers."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.tables import json_text, save_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Position:
    """Where a source is, and how well that is known. P pairs."""

    place: Floats
    """(3,) metres to the front, to the left and up."""
    radii: Floats
    """(3,) metres: semi-axes of the error ellipse, one standard deviation, the longest first; infinite: not known."""
    axes: Floats
    """(3, 3) a row of unit length for each of them."""
    residuals: Floats
    """(P,) seconds by which the delays of the pairs miss the place."""
    used: npt.NDArray[np.bool_]
    """(P,) which of the delays the place rests on; the others were outliers."""
    confidence: float
    """Probability that a source is within half a metre of it on the floor; of correlations, how high they are there."""
    solved: bool
    remark: str | None = None
    """What cannot be told, and what is known instead; None: nothing."""

    @property
    def rms(self) -> float:
        """Seconds, of the residuals that count."""
        return float(np.sqrt((self.residuals[self.used] ** 2).mean())) if self.used.any() else float("nan")


@dataclass(frozen=True)
class PositionBlock:
    """The positions within some seconds."""

    start: float
    end: float
    frames: int
    """That are no silence."""
    positions: tuple[Position, ...]
    """The one that most speaks for first; none: silence, or nothing that stands out."""


@dataclass(frozen=True, eq=False)
class PositionEstimate:
    """Positions of sources in the whole recording and in its blocks."""

    source: str
    method: str
    array: str
    microphones: Floats
    """(M, 3) metres."""
    sample_rate: int
    kind: str
    """'posterior' or 'correlation'."""
    pairs: tuple[tuple[int, int], ...]
    positions: tuple[Position, ...]
    """Of the whole recording, of sources that stay at their places."""
    blocks: tuple[PositionBlock, ...]
    warnings: tuple[str, ...] = ()

    def plot(self, path: str | Path | None = None) -> Figure:
        """A picture: the microphones and the places from above and from the side, with their ellipses."""
        from qkgcc.plots import plot_positions

        return plot_positions(self, path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """A line for each position of each block, also written to `path` if given."""
        return save_text(positions_csv([self]), path)

    def doubted(self, trust: float) -> PositionEstimate:
        """The same with all confidences multiplied by a number."""

        def less(found: tuple[Position, ...]) -> tuple[Position, ...]:
            return tuple(replace(one, confidence=trust * one.confidence) for one in found)

        blocks = tuple(replace(block, positions=less(block.positions)) for block in self.blocks)
        return replace(self, positions=less(self.positions), blocks=blocks)

    def to_json(self, path: str | Path | None = None) -> str:
        """One JSON object on one line, also written to `path` if given."""
        record: dict[str, Any] = {
            name: getattr(self, name) for name in ("source", "method", "array", "sample_rate", "kind")
        }
        record["positions"] = [_plain(one) for one in self.positions]
        record["blocks"] = [
            {
                "start": round(block.start, 6),
                "end": round(block.end, 6),
                "frames": block.frames,
                "positions": [_plain(one) for one in block.positions],
            }
            for block in self.blocks
        ]
        record["pairs"] = [list(pair) for pair in self.pairs]
        record["warnings"] = list(self.warnings)
        return save_text(json_text(record), path)


CSV_COLUMNS = ("source", "start", "end", "front", "left", "up", "radius", "confidence", "solved", "remark")


def positions_csv(estimates: list[PositionEstimate], *, header: bool = True) -> str:
    """Blocks of several estimates under one header; a block of silence is a line without a place."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(CSV_COLUMNS)
    for estimate in estimates:
        for block in estimate.blocks:
            begin = [estimate.source, f"{block.start:.3f}", f"{block.end:.3f}"]
            if not block.positions:
                writer.writerow(begin + [""] * (len(CSV_COLUMNS) - len(begin)))
            for found in block.positions:
                place = [f"{x:.4f}" for x in found.place]
                radius = f"{found.radii[0]:.4f}" if np.isfinite(found.radii[0]) else ""
                sure = f"{found.confidence:.4f}"
                writer.writerow([*begin, *place, radius, sure, int(found.solved), found.remark or ""])
    return out.getvalue()


def _plain(position: Position) -> dict[str, Any]:
    return {
        "place": position.place.round(4).tolist(),
        "radii": [round(float(radius), 4) if np.isfinite(radius) else None for radius in position.radii],
        "axes": position.axes.round(4).tolist(),
        "residuals": position.residuals.round(9).tolist(),
        "used": position.used.tolist(),
        "confidence": round(position.confidence, 4),
        "solved": position.solved,
        "remark": position.remark,
    }
