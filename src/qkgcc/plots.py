"""Every picture. Figures are made without pyplot, so no window opens and no global state is left behind."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.checks import check_array, check_name
from qkgcc.core.errors import InputError, MissingExtraError
from qkgcc.core.files import MARK, display_name, is_folder, write_whole
from qkgcc.core.types import Bools, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from qkgcc.arrays import Geometry
    from qkgcc.arrays.result import Direction, DirectionEstimate, Position, PositionEstimate
    from qkgcc.delay.result import DelayEstimate, Explanation
    from qkgcc.lab.scenes.scenes import Scene


KINDS = (".png", ".svg", ".pdf")
"""Of pictures, by their suffixes."""


def plot_delays(
    estimate: "DelayEstimate", path: str | Path | None = None, *, truth: npt.ArrayLike | None = None
) -> "Figure":
    """Curve over time with the delay on it, the confidence below, and the summed curve at the side.

    Args:
        path: where to write it too (.png, .svg or .pdf).
        truth: the true delay of each frame in samples, NaN where there is none.
    """
    if estimate.curve.shape[1] != len(estimate.lags):
        raise InputError(f"{estimate.source} cannot be drawn, its curves were not kept: estimate it with curve=True")
    figure = new_figure((11, 5.6), path)
    if truth is not None:
        truth = check_array("truth", truth, "the delay of each frame in samples")
        if truth.shape != estimate.times.shape:
            raise InputError(
                f"the truth has shape {truth.shape}; expected a delay for each of {len(estimate.times)} frames"
            )
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
    if estimate.source_delays is not None:
        others = np.where(np.isclose(estimate.source_delays, delay[:, None]), np.nan, estimate.source_delays)
        assert estimate.source_weights is not None
        main.scatter(
            np.repeat(times, others.shape[1]),
            others,
            s=60 * estimate.source_weights,
            facecolors="none",
            edgecolors="#0077b6",
            linewidths=0.8,
            label="other sources, by weight",
            zorder=2,
        )
    best = estimate.summary
    if np.isfinite(best.delay_samples):
        side.axhline(best.delay_samples, color="#b5179e", linewidth=1)
    first = estimate.channels[0]
    positive = "" if estimate.angle is None else f":\nright, if channel {first} is the left microphone"
    main.set_ylabel(f"delay in samples\n(positive: channel {first} later{positive})")
    main.legend(loc="upper right", framealpha=0.9)
    pair = f"channels {estimate.channels[0]} and {estimate.channels[1]}"
    main.set_title(as_text(f"{Path(estimate.source).name}, {pair}: {estimate.method}"), loc="left")
    main.tick_params(labelbottom=False)
    side.plot(_of_all(estimate), estimate.lags, color="black", linewidth=1)
    side.set_title(f"whole recording\n{best.delay_samples:.2f} samples", fontsize="medium")
    side.set_xlabel("joint posterior" if estimate.kind == "posterior" else f"mean {estimate.kind}")
    side.tick_params(labelleft=False)
    trust.scatter(times, confidence, c=confidence, cmap="plasma_r", vmin=0, vmax=1, s=8)
    trust.set(ylim=(-0.05, 1.05), ylabel="confidence", xlabel="time in s")
    figure.colorbar(dots, ax=(side, trust), label="confidence", fraction=0.03, pad=0.02)
    return saved(figure, path)


def _of_all(estimate: "DelayEstimate") -> Floats:
    """The curve of all frames, from which the one delay is read: of posteriors, the geometric mean. Shape: (L,)"""
    curve = estimate.curve[np.isfinite(estimate.delay_samples)].astype(np.float64)
    if not len(curve):
        return np.full(len(estimate.lags), np.nan)
    if estimate.kind != "posterior":
        return np.asarray(curve.mean(axis=0))
    together = np.log(np.maximum(curve, 1e-30)).mean(axis=0)
    together = np.exp(together - together.max())
    return np.asarray(together / together.sum())


def plot_explanation(explanation: "Explanation", path: str | Path | None = None) -> "Figure":
    """The weight of each frequency over time, and its mean at the side.

    Args:
        path: where to write it too (.png, .svg or .pdf).
    """
    figure = new_figure((11, 5), path)
    grid = figure.add_gridspec(1, 2, width_ratios=(5, 1))
    main = figure.add_subplot(grid[0])
    side = figure.add_subplot(grid[1], sharey=main)
    frequencies = explanation.frequencies / 1000
    largest = float(np.nanpercentile(explanation.weight, 99.5)) if np.isfinite(explanation.weight).any() else 1.0
    image = main.pcolormesh(
        *_edges(explanation.times, frequencies),
        explanation.weight.T / max(largest, 1e-300),
        cmap="magma",
        vmin=0,
        vmax=1,
        rasterized=True,
    )
    main.set(xlabel="time in s", ylabel="frequency in kHz")
    main.set_title(
        as_text(f"{Path(explanation.source).name}: what {Path(explanation.method).stem} listens to"), loc="left"
    )
    side.plot(explanation.mean, frequencies, color="black", linewidth=1)
    side.set(xlabel="mean weight", xlim=(0, 1.05))
    side.tick_params(labelleft=False)
    figure.colorbar(image, ax=side, label="weight (silent frames are white)", fraction=0.15, pad=0.05)
    return saved(figure, path)


def plot_scene(
    scene: "Scene", responses: npt.NDArray[Any], path: str | Path | None = None, *, title: str = ""
) -> "Figure":
    """The room from above, the responses of the first source, and their energy decay with asked and measured T60.

    Shape: responses (M, n)
    """
    from qkgcc.lab.rooms.shoebox import energy_decay, measured_t60

    figure = new_figure((12, 6), path)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 1.5))
    above, early, decay = (figure.add_subplot(grid[place]) for place in ((slice(None), 0), (0, 1), (1, 1)))
    above.add_patch(_rectangle(scene.room[:2]))
    above.plot(*scene.microphones[:, :2].T, "^", color="black", markersize=8, label="microphones")
    for i, microphone in enumerate(scene.microphones):
        above.annotate(str(i), microphone[:2], xytext=(6, 4), textcoords="offset points")
    for i, source in enumerate(scene.sources):
        above.plot(*source.path[:, :2].T, ".-", color=f"C{i}", markersize=4)
        above.plot(*source.path[0, :2], "o", color=f"C{i}", markersize=9, label=as_text(f"source {i}: {source.signal}"))
    above.set(
        xlim=(-0.2, scene.room[0] + 0.2),
        ylim=(-0.2, scene.room[1] + 0.2),
        aspect="equal",
        xlabel="x in m",
        ylabel="y in m",
    )
    above.set_title(as_text(title), loc="left")
    above.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12))
    seconds = np.arange(responses.shape[-1]) / scene.sample_rate
    first = int(np.argmax(np.abs(responses[0]) > 0.2 * np.abs(responses[0]).max()))
    shown = slice(max(0, first - 60), first + round(0.05 * scene.sample_rate))
    for i, response in enumerate(responses[:2]):
        early.plot(1000 * seconds[shown], response[shown], linewidth=0.8, label=f"at microphone {i}")
        measured = measured_t60(response, scene.sample_rate)
        decay.plot(seconds, energy_decay(response), label=f"microphone {i}: T60 {measured:.2f} s measured")
    early.set(xlabel="time in ms", ylabel="response")
    early.set_title(f"delay {float(scene.delay()[0]):+.2f} samples (positive: microphone 0 later)", loc="left")
    early.legend()
    _, t60, _ = scene.walls
    if t60:
        decay.plot([0, t60], [0, -60], "--", color="black", label=f"T60 {t60:.2f} s asked (Sabine)")
    decay.set(ylim=(-70, 3), xlabel="time in s", ylabel="energy decay in dB")
    decay.legend()
    return saved(figure, path)


def plot_array(geometry: "Geometry", path: str | Path | None = None) -> "Figure":
    """The microphones from above, the front at the top, and from behind, each with its channel."""
    figure = new_figure((10, 5.2), path)
    above, behind = figure.subplots(1, 2)
    front, left, up = 100 * geometry.microphones.T
    reach = 1.25 * max(np.ptp(front), np.ptp(left), np.ptp(up)) / 2
    for ax, title, across, upwards, label in (
        (above, f"{geometry.name}, from above", -left, front, "front in cm"),
        (behind, "from behind", -left, up, "up in cm"),
    ):
        ax.scatter(across, upwards, s=60, color="#3a6ea5")
        together: dict[tuple[float, float], list[int]] = {}
        for channel, at in enumerate(zip(across.round(3), upwards.round(3), strict=True)):
            together.setdefault(at, []).append(channel)
        for at, channels in together.items():  # those behind one another share a label
            ax.annotate(" ".join(map(str, channels)), at, xytext=(7, 5), textcoords="offset points")
        middle = (across.max() + across.min()) / 2, (upwards.max() + upwards.min()) / 2
        ax.set(
            title=as_text(title),
            xlabel="right in cm",
            ylabel=label,
            xlim=(middle[0] - reach, middle[0] + reach),
            ylim=(middle[1] - reach, middle[1] + reach),
            aspect="equal",
        )
        ax.grid(alpha=0.3)
    return saved(figure, path)


def plot_directions(estimate: "DirectionEstimate", path: str | Path | None = None) -> "Figure":
    """What the frames say over time with the directions of the blocks on it, and all of it around the array.

    Args:
        path: where to write it too (.png, .svg or .pdf).
    """
    if estimate.maps is None:
        raise InputError(f"{estimate.source} cannot be drawn, its maps were not kept: estimate it with keep_maps=True")
    line = estimate.grid == "line"
    low, high = (0, 180) if line else (-180, 180)
    width = 1.0 if line else 2.0 if estimate.grid == "circle" else 6.0  # degrees: a sphere's cells share some
    centres = np.arange(low, high + width / 2, width) if line else np.arange(low, high, width)
    columns = np.round((estimate.angles - low) / width).astype(int) % len(centres)
    heard: Bools = np.asarray(np.isfinite(estimate.maps).all(axis=1))
    image = np.zeros((len(estimate.times), len(centres)))
    together = np.add if estimate.kind == "posterior" else np.maximum
    together.at(image.T, columns, np.where(heard[:, None], estimate.maps, 0).T)
    figure = new_figure((12, 5), path)
    grid = figure.add_gridspec(1, 2, width_ratios=(2, 1))
    over_time = figure.add_subplot(grid[0])
    around: Any = figure.add_subplot(grid[1], projection="polar")
    top = float(np.percentile(image, 99.5)) if image.size else 1.0
    mesh = over_time.pcolormesh(
        *_edges(estimate.times, centres), image.T, cmap="Greys", vmin=0, vmax=max(top, 1e-6), rasterized=True
    )
    if estimate.tracks is None:
        _plot_blocks(over_time, estimate)
    else:
        span = (float(estimate.times[0]), float(estimate.times[-1])) if len(estimate.times) else (0.0, 1.0)
        _plot_tracks(over_time, around, estimate, span)
    what = (
        "degrees from the line of the microphones (0: the end of the last)"
        if line
        else "azimuth in degrees (positive: left)"
    )
    over_time.set(xlabel="time in s", ylabel=what, ylim=(low, high))
    over_time.set_yticks(range(low, high + 1, 30 if line else 45))
    title = f"{Path(estimate.source).name}, {estimate.array}: {Path(estimate.method).stem}"
    over_time.set_title(as_text(title), loc="left")
    figure.colorbar(mesh, ax=over_time, label=f"{estimate.kind} of each frame", fraction=0.04, pad=0.02)
    mean = image[heard].mean(axis=0) if heard.any() else np.zeros(len(centres))
    around.set_theta_zero_location("N")  # the front is at the top, the left at the left
    angles = np.radians(centres)
    shown = np.maximum(mean, 0) / max(float(mean.max()), 1e-12)
    if line:
        around.set(thetamin=0, thetamax=180)
    else:
        around.set_thetagrids(range(0, 360, 45), [f"{a if a <= 180 else a - 360}°" for a in range(0, 360, 45)])
    around.fill(angles, shown, color="#3a6ea5", alpha=0.4)
    for one in estimate.directions if estimate.tracks is None else ():
        angle = np.radians(_on_axis(one, estimate))
        around.plot([angle, angle], [0, 1.1], color="#b5179e", linewidth=2)
        if not line:
            for azimuth, _ in one.also:
                around.plot([np.radians(azimuth)] * 2, [0, 1.1], color="#b5179e", linewidth=1, linestyle=":")
    around.set(rticks=[])
    where = "angle to the line" if line else "front at the top"
    goes = "" if estimate.tracks is None else ", time outwards"
    around.set_title(f"whole recording, {where}{goes}", fontsize="medium")
    return saved(figure, path)


def plot_positions(estimate: "PositionEstimate", path: str | Path | None = None) -> "Figure":
    """Microphones and places from above and from behind, with their 95 % ellipses; what is less sure is paler.

    Args:
        path: where to write it too (.png, .svg or .pdf).
    """
    figure = new_figure((11, 5.2), path)
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    found = [(block.start, one) for block in estimate.blocks for one in block.positions if one.solved]
    places = np.array([one.place for _, one in found]).reshape(-1, 3)
    whole = np.array([one.place for one in estimate.positions if one.solved]).reshape(-1, 3)
    sure = [max(0.25, one.confidence) if estimate.kind == "posterior" else 1.0 for _, one in found]
    first, last = (estimate.blocks[0].start, estimate.blocks[-1].end) if estimate.blocks else (0.0, 1.0)
    clock = ScalarMappable(Normalize(first, last), "viridis")
    colours = clock.to_rgba(np.array([start for start, _ in found]))
    colours[:, 3] = sure
    views = ((1, 0, "from above"), (1, 2, "from behind"))
    for ax, (across, up, title) in zip(figure.subplots(1, 2, sharex=True), views, strict=True):
        ax.plot(*estimate.microphones[:, [across, up]].T, "^", color="#444444", markersize=8, label="microphones")
        for number, place in enumerate(estimate.microphones):
            ax.annotate(str(number), place[[across, up]], (6, 4), textcoords="offset points", fontsize="small")
        for (_, one), alpha in zip(found, sure, strict=True):
            _plot_ellipse(ax, one, (across, up), 0.25 * alpha)
        ax.scatter(*places[:, [across, up]].T, s=30, color=colours, zorder=3)
        ring: dict[str, Any] = {"color": "#b5179e", "fillstyle": "none", "markersize": 17, "markeredgewidth": 1.5}
        ax.plot(*whole[:, [across, up]].T, "o", label="whole recording", zorder=4, **ring)
        ax.set(aspect="equal", xlabel="left in m", ylabel=("front in m", "", "up in m")[up], title=as_text(title))
        ax.grid(alpha=0.3)
    ax.invert_xaxis()  # the left is at the left
    figure.legend(*ax.get_legend_handles_labels(), fontsize="small", loc="upper right", ncols=2, frameon=False)
    figure.colorbar(clock, ax=figure.axes, label="time in s", fraction=0.03, pad=0.02)
    figure.suptitle(f"{Path(estimate.source).name}, {estimate.array}: {Path(estimate.method).stem}", x=0.01, ha="left")
    return saved(figure, path)


def _plot_ellipse(ax: "Axes", position: "Position", axes: tuple[int, int], alpha: float) -> None:
    """The region of a plane that holds 95 % of what the ellipsoid says."""
    from matplotlib.patches import Ellipse

    if not np.isfinite(position.radii).all():
        return
    shape = (position.axes.T * position.radii**2) @ position.axes
    values, vectors = np.linalg.eigh(shape[np.ix_(axes, axes)])
    angle = float(np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1])))
    width, height = 2 * np.sqrt(5.99 * np.maximum(values[::-1], 0))  # 95 % of chi-squared with 2 degrees of freedom
    centre = (float(position.place[axes[0]]), float(position.place[axes[1]]))
    ax.add_patch(Ellipse(centre, float(width), float(height), angle=angle, color="#3a6ea5", alpha=alpha))


def _on_axis(one: "Direction", estimate: "DirectionEstimate") -> float:
    """Degrees as the picture has them. (A square of which two die on the way has cones, too, but azimuths drawn.)"""
    return one.cone if estimate.grid == "line" and one.cone is not None else one.azimuth


def _plot_blocks(ax: "Axes", estimate: "DirectionEstimate") -> None:
    for block in estimate.blocks:
        for one in block.directions:
            angle = _on_axis(one, estimate)
            shade = max(0.15, one.confidence)
            ax.plot([block.start, block.end], [angle] * 2, color="#b5179e", linewidth=3, alpha=shade)


def _plot_tracks(ax: "Axes", around: Any, estimate: "DirectionEstimate", span: tuple[float, float]) -> None:
    """A colour for each source: thick where it speaks, the paler the less surely, thin where it is silent, in a band of
    two standard deviations. Around the array, time goes outwards."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    handles = []
    for number, track in enumerate(estimate.tracks or ()):
        times = np.array([moment.time for moment in track])
        directions = np.array([moment.direction for moment in track])
        angle = np.degrees(np.arctan2(directions[:, 1], directions[:, 0]))
        if estimate.axis is not None:
            angle = np.degrees(np.arccos(np.clip(directions @ estimate.axis, -1, 1)))
        wide = 2 * np.array([moment.spread for moment in track])
        # Behind the array it goes from one edge of the picture to the other: it is drawn unwrapped, once for each turn.
        open_angle = angle if estimate.axis is not None else np.unwrap(angle, period=360)
        active = np.array([moment.active for moment in track])
        sure = np.array([moment.speaking for moment in track])
        shades = np.where(active, np.clip(2 * sure - 1, 0.15, 1.0), 0.0)[1:]
        colour = f"C{number % 10}"
        turns = range(int(np.floor((open_angle.min() + 180) / 360)), int(np.floor((open_angle.max() + 180) / 360)) + 1)
        for turn in turns if estimate.axis is None else (0,):
            shown = open_angle - 360 * turn
            ax.fill_between(times, shown - wide, shown + wide, color=colour, alpha=0.18, linewidth=0)
            ax.plot(times, shown, color=colour, linewidth=1)
            points = np.stack([times, shown], axis=1)
            pieces = np.stack([points[:-1], points[1:]], axis=1)
            ax.add_collection(LineCollection(list(pieces), colors=colour, linewidths=4.0, alpha=shades))
        radius = (times - span[0]) / max(span[1] - span[0], 1e-9)
        around.plot(np.radians(angle), radius, color=colour, linewidth=1)
        around.plot(np.radians(angle), np.where(active, radius, np.nan), color=colour, linewidth=3)
        handles.append(Line2D([], [], color=colour, linewidth=4, label=f"track {track[0].id}"))
    if handles:
        handles += [
            Line2D([], [], color="#444444", linewidth=4, label="speaks"),
            Line2D([], [], color="#444444", linewidth=1, label="silent"),
        ]
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=8, frameon=False)


def _rectangle(sides: npt.NDArray[Any]) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((0, 0), *sides, fill=False, linewidth=2)


def check_plotting(path: str | Path) -> None:
    """An error now rather than after long work: without matplotlib, the folder of the picture or a suffix it knows."""
    new_figure((1, 1), path)


def new_figure(size: tuple[float, float], path: str | Path | None = None) -> "Figure":
    """An empty figure.

    Args:
        size: in inches.
        path: where it will be written, which is checked before it is drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("pictures need matplotlib: pip install 'qkgcc[plot]'") from None
    if path is not None:
        target = Path(check_name("picture", path, "a path such as picture.png"))
        if target.suffix.lower() not in KINDS:
            raise InputError(
                f"cannot write {display_name(target)}: the suffix says the kind of picture, one of {' '.join(KINDS)}"
            )
        if not is_folder(target.parent):
            raise InputError(
                f"cannot write {display_name(target)}: the folder {display_name(target.parent)} does not exist"
            )
        if is_folder(target):
            raise InputError(f"cannot write {display_name(target)}: it is a folder")
    return Figure(figsize=size, layout="constrained")


def saved(figure: "Figure", path: str | Path | None) -> "Figure":
    """A figure, written to a path that `new_figure` has checked, if there is one."""
    if path is not None:
        kind = Path(path).suffix.lower()
        content = io.BytesIO()  # on a full disk, matplotlib raises whatever it meets
        figure.savefig(content, dpi=130, format=kind[1:], metadata=metadata(kind))
        write_whole(path, lambda target: target.write_bytes(content.getvalue()))
    return figure


def metadata(kind: str) -> dict[str, str]:
    """What says in a picture of a kind that qkgcc made it."""
    return {"Software" if kind == ".png" else "Creator": MARK}


def as_text(text: str) -> str:
    """A name in a picture as it is: matplotlib takes what is between two dollars for a formula."""
    return text.replace("$", r"\$")


def _edges(times: npt.NDArray[Any], lags: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Cell borders from cell centres."""

    def borders(centres: npt.NDArray[Any]) -> npt.NDArray[Any]:
        step = centres[1] - centres[0] if len(centres) > 1 else 1.0
        return np.append(centres - step / 2, centres[-1] + step / 2)

    return borders(times), borders(lags)
