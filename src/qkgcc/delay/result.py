"""What an estimator answers, and how it is written down.

No estimate is NaN in arrays, `null` in JSON and empty in CSV.
"""

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.checks import check_flag
from qkgcc.core.tables import cell, json_array_pieces, json_text, none_if_nan, save_text, write_csv
from qkgcc.core.types import Floats, Floats32

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DelaySummary:
    """One delay for the whole recording, from the evidence of all its frames added up."""

    delay_samples: float
    delay_seconds: float
    angle: float | None
    confidence: float
    """Of the mean evidence of all frames. It ranks recordings; it was never calibrated, unlike that of the frames."""
    frames: int
    answered: int
    """Frames with an estimate: the others were silent."""
    calibrated: bool = False
    """Never, unlike `DelayEstimate.calibrated`, which is of the frames: here for who reads the JSON alone."""


@dataclass(frozen=True, eq=False)
class DelayEstimate:
    """Delays of one pair of channels over time, positive when the first channel hears the source later.

    Shape: T frames, L lags.
    """

    source: str
    method: str
    channels: tuple[int, int]
    sample_rate: int
    times: Floats
    """(T,) frame centres in seconds."""
    delay_samples: Floats
    """(T,) in samples of `sample_rate`, the input's own rate."""
    delay_seconds: Floats
    angle: Floats | None
    """(T,) degrees from broadside, positive towards the second microphone (to the right, if the first channel is the
    left microphone); None when the spacing is not known."""
    confidence: Floats
    """(T,) probability that the error is at most 62.5 microseconds; 0 without an estimate."""
    calibrated: bool
    """Whether that probability was measured. Where it was not it ranks, and does not count: of classical methods, in a
    stream that does not look a second ahead, with smoothing, and where a network is used in another way than it was
    measured in (`neural.Network.calibrated`)."""
    lags: Floats
    """(L,) in samples of `sample_rate`."""
    curve: Floats32
    """(T, L) a correlation, or a posterior whose rows sum to 1. (T, 0) where none was to be kept."""
    kind: str
    """'correlation' or 'posterior'."""
    summary: DelaySummary
    source_delays: Floats | None = None
    """(T, S) the most probable delays of several sources, in samples of `sample_rate`, NaN where there are fewer; None
    where one source was asked for."""
    source_weights: Floats | None = None
    """(T, S) the probability of each; not how loud it is: a second source 6 dB down may have next to none."""
    warnings: tuple[str, ...] = ()
    """What to know before trusting these delays, one sentence each."""

    def to_json(self, path: str | Path | None = None, *, curve: bool = True) -> str:
        """One JSON object on one line, also written to `path` if given. `curve=False` leaves out lags and curve."""
        return save_text("".join(self.json_pieces(curve=check_flag("curve", curve))), path)

    def json_pieces(self, *, curve: bool = True) -> Iterator[str]:
        """The same in pieces: as text, the curves of an hour would take ten times the memory that they have here."""
        head: dict[str, Any] = {
            "source": self.source,
            "method": self.method,
            "channels": list(self.channels),
            "sample_rate": self.sample_rate,
            "kind": self.kind,
            "calibrated": self.calibrated,
            "positive_side": None if self.angle is None else POSITIVE_SIDE,
            "summary": {name: none_if_nan(value) for name, value in asdict(self.summary).items()},
        }
        yield json_text(head)[:-1]
        digits = {"times": 6, "delay_samples": 4, "delay_seconds": 9, "angle": 3, "confidence": 4}
        for name, places in (digits | {"source_delays": 4, "source_weights": 4}).items():
            yield f', "{name}": '
            yield from json_array_pieces(getattr(self, name), places)
        yield f', "warnings": {json_text(self.warnings)}'
        if curve:
            yield ', "lags": '
            yield from json_array_pieces(self.lags, 6)
            yield ', "curve": '
            yield from json_array_pieces(self.curve, 5)
        yield "}"

    def to_csv(self, path: str | Path | None = None) -> str:
        """One line a frame, also written to `path` if given."""
        return save_text(delays_csv([self]), path)

    def plot(self, path: str | Path | None = None, *, truth: npt.ArrayLike | None = None) -> "Figure":
        """A picture of the curve, the delay and its confidence over time; `truth` in samples, one a frame."""
        from qkgcc.plots import plot_delays

        return plot_delays(self, path, truth=truth)

    def __str__(self) -> str:
        best = self.summary
        where = "" if best.angle is None else f", {best.angle:.1f} degrees"
        return (
            f"{self.source}: {best.delay_samples:.2f} samples ({best.delay_seconds * 1e6:.0f} us{where}), "
            f"confidence {best.confidence:.2f}, by {self.method} over {best.answered} of {best.frames} frames"
        )


@dataclass(frozen=True, eq=False)
class Explanation:
    """How much each frequency counted to a network, frame by frame. Shape: T frames, F frequencies."""

    source: str
    method: str
    times: Floats
    """(T,) frame centres in seconds; of long recordings, the means of neighbouring ones."""
    frequencies: Floats
    """(F,) Hz, up to what the recording holds."""
    weight: Floats32
    """(T, F) size of the weighted evidence, as far as it varies over the possible delays; NaN in silent frames."""

    @property
    def mean(self) -> Floats:
        """(F,) over all frames that are not silent, the largest 1."""
        heard = ~np.isnan(self.weight).any(axis=1)
        if not heard.any():
            return np.full(len(self.frequencies), np.nan)
        mean = self.weight[heard].mean(axis=0, dtype=np.float64)
        return np.asarray(mean / max(mean.max(), 1e-300))

    def plot(self, path: str | Path | None = None) -> "Figure":
        """A picture: the weight over time and frequency, and its mean."""
        from qkgcc.plots import plot_explanation

        return plot_explanation(self, path)


POSITIVE_SIDE = "right"
"""Of a pair's angles, if the first channel is the left microphone: they are positive towards the second."""

CSV_COLUMNS = (
    "source",
    "channel_1",
    "channel_2",
    "time",
    "delay_samples",
    "delay_seconds",
    "angle",
    "confidence",
    "positive_side",
)


def delays_csv(estimates: list[DelayEstimate], *, header: bool = True) -> str:
    """Frames of several estimates under one header."""
    out = io.StringIO()
    for number, estimate in enumerate(estimates):
        write_delays_csv(out, estimate, header=header and not number)
    return out.getvalue()


def write_delays_csv(out: IO[str], estimate: DelayEstimate, *, header: bool = True) -> None:
    """Frame by frame; where several sources were asked for, the delay and the weight of each follow."""
    none = np.empty((len(estimate.times), 0))
    delays, weights = (none if x is None else x for x in (estimate.source_delays, estimate.source_weights))
    of_sources = [f"source_{n}_{what}" for n in range(1, delays.shape[1] + 1) for what in ("samples", "weight")]
    frames = zip(
        estimate.times,
        estimate.delay_samples,
        estimate.delay_seconds,
        np.full(len(estimate.times), np.nan) if estimate.angle is None else estimate.angle,
        estimate.confidence,
        *np.stack([delays, weights], axis=-1).reshape(len(delays), 2 * delays.shape[1]).T,
        strict=True,
    )
    rows = (
        [
            estimate.source,
            *estimate.channels,
            f"{time:.6f}",
            cell(samples, 4),
            cell(seconds, 9),
            cell(angle, 3),
            f"{confidence:.4f}",
            "" if estimate.angle is None else POSITIVE_SIDE,
            *(cell(value, 4) for value in sources),
        ]
        for time, samples, seconds, angle, confidence, *sources in frames
    )
    write_csv(out, [*CSV_COLUMNS, *of_sources], rows, header=header)
