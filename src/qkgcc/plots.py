"""Every picture. Figures are made without pyplot, so no window opens and no global state is left behind."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.errors import MissingExtraError
from qkgcc.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from qkgcc.results import DelayEstimate


def plot_delays(
    estimate: "DelayEstimate", path: str | Path | None = None, *, truth: npt.ArrayLike | None = None
) -> "Figure":
    """Curve over time with the delay on it, the confidence below, and the summed curve at the side.

    Args:
        path: where to write it too (.png, .svg or .pdf).
        truth: the true delay of each frame in samples, NaN where there is none.
    """
    figure = _new_figure((11, 5.6))
    grid = figure.add_gridspec(2, 2, height_ratios=(4, 1), width_ratios=(6, 1))
    main = figure.add_subplot(grid[0, 0])
    trust = figure.add_subplot(grid[1, 0], sharex=main)
    side = figure.add_subplot(grid[0, 1], sharey=main)

    times, delay, confidence = estimate.times, estimate.delay_samples, estimate.confidence
    strongest = np.percentile(estimate.curve, 99.8) if estimate.curve.size else 1.0
    main.pcolormesh(
        *_edges(times, estimate.lags),
        estimate.curve.T,
        cmap="Greys",
        vmin=0,
        vmax=max(float(strongest), 1e-6),
        rasterized=True,
    )
    if truth is not None:
        main.plot(
            times, np.asarray(truth), color="#2a9d3a", linewidth=7, alpha=0.45, label="truth", solid_capstyle="butt"
        )
    dots = main.scatter(
        times,
        delay,
        c=confidence,
        cmap="plasma_r",
        vmin=0,
        vmax=1,
        s=16,
        linewidths=0.3,
        edgecolors="black",
        label="estimate",
        zorder=3,
    )
    best = estimate.summary
    if np.isfinite(best.delay_samples):
        side.axhline(best.delay_samples, color="#b5179e", linewidth=1)
    main.set_ylabel(f"delay in samples\n(positive: channel {estimate.channels[0]} later)")
    main.legend(loc="upper right", framealpha=0.9)
    pair = f"channels {estimate.channels[0]} and {estimate.channels[1]}"
    main.set_title(f"{Path(estimate.source).name}, {pair}: {estimate.method}", loc="left")
    main.tick_params(labelbottom=False)
    side.plot(np.nanmean(estimate.curve, axis=0), estimate.lags, color="black", linewidth=1)
    side.set_title(f"whole recording\n{best.delay_samples:.2f} samples", fontsize="medium")
    side.set_xlabel(f"mean {estimate.kind}")
    side.tick_params(labelleft=False)
    trust.scatter(times, confidence, c=confidence, cmap="plasma_r", vmin=0, vmax=1, s=8)
    trust.set(ylim=(-0.05, 1.05), ylabel="confidence", xlabel="time in s")
    figure.colorbar(dots, ax=(side, trust), label="confidence", fraction=0.03, pad=0.02)
    if path is not None:
        write_whole(path, lambda target: figure.savefig(target, dpi=130))
    return figure


def _new_figure(size: tuple[float, float]) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("pictures need matplotlib: pip install 'qkgcc[plot]'") from None
    return Figure(figsize=size, layout="constrained")


def _edges(times: npt.NDArray[Any], lags: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Cell borders from cell centres."""

    def borders(centres: npt.NDArray[Any]) -> npt.NDArray[Any]:
        step = centres[1] - centres[0] if len(centres) > 1 else 1.0
        return np.append(centres - step / 2, centres[-1] + step / 2)

    return borders(times), borders(lags)
