"""Tables of `results/arrays.json` and `results/tracks.json`: methods side by side on each part of `array-test`, and on
the real recordings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qkgcc.core.errors import quantity
from qkgcc.core.types import Bools, Floats
from qkgcc.lab.frozen.array_set import NAME as SET
from qkgcc.lab.frozen.array_set import ArrayBenchmark
from qkgcc.lab.scenes.array_scenes import ARRAYS, DISTRIBUTED, KINDS, TALKERS, Kind
from qkgcc.lab.study import results, scoring
from qkgcc.lab.study.arrays import RESPEAKER, SCORES, errors_by_scene

WITHIN = 10.0
"""Degrees."""
NEAR = 0.5
"""Metres."""
BLOCK_WITHIN = 5.0
"""Degrees, of single real sources in a block."""
LIVELY = 0.6
"""Seconds of T60 from which a room counts as reverberant."""


def parts(benchmark: ArrayBenchmark) -> dict[str, Bools]:
    """Scenes of `array-test` by rooms, talkers, motion and noise: for each part, whether a scene belongs to it."""
    t60, snr = (np.array([scene[key] for scene in benchmark.manifest["scenes"]]) for key in ("t60", "snr"))
    kinds = _kinds(benchmark)
    talkers = np.array([kind.talkers for kind in kinds])
    moving = np.array([kind.moving for kind in kinds])
    return {
        "all": np.ones(len(kinds), dtype=bool),
        f"T60 below {LIVELY} s": t60 < LIVELY,
        f"T60 from {LIVELY} s": t60 >= LIVELY,
        **{quantity(count, "talker"): talkers == count for count in TALKERS},
        "static": ~moving,
        "moving": moving,
        "SNR below 10 dB": snr < 10,
        "SNR 10 to 20 dB": (snr >= 10) & (snr < 20),
        "SNR from 20 dB": snr >= 20,
    }


def finest_parts(benchmark: ArrayBenchmark) -> dict[str, Bools]:
    """Every number of talkers, static and moving, in dry and in reverberant rooms."""
    coarse = parts(benchmark)
    talkers = [quantity(count, "talker") for count in TALKERS]
    rooms = [f"T60 below {LIVELY} s", f"T60 from {LIVELY} s"]
    return {
        ", ".join(names): np.all([coarse[name] for name in names], axis=0)
        for names in itertools.product(talkers, ["static", "moving"], rooms)
    }


def _kinds(benchmark: ArrayBenchmark) -> list[Kind]:
    return [KINDS[index % len(KINDS)] for index in range(len(benchmark))]


def errors_on_part(
    rows: Sequence[results.Row], method: str, array: str, part: Bools, what: str = "errors"
) -> dict[int, Floats]:
    """Errors of a method on the scenes of an array that belong to a part, by scene."""
    found: dict[int, Floats] = {}
    for row in rows:
        if (row["method"], row["set"], row["cell"].get("array")) == (method, SET, array):
            each = zip(row["scenes"], errors_by_scene(row, what), strict=True)
            found |= {index: errors for index, errors in each if part[index]}
    return found


def methods(rows: Sequence[results.Row], array: str) -> list[str]:
    """Those that were measured on an array, in their order."""
    return list(dict.fromkeys(row["method"] for row in rows if row["cell"].get("array") == array))


def part_lines(rows: Sequence[results.Row], array: str) -> list[list[str]]:
    """Each part of an array's scenes: median error and share within 10 degrees (0.5 m) of each method.

    Scenes that not all methods were measured on are left out.
    """
    names = methods(rows, array)
    lines = [["", "scenes", *names]]
    if not names:
        return lines
    for label, part in parts(ArrayBenchmark.load()).items():
        each = _common({name: errors_on_part(rows, name, array, part) for name in names})
        cells = []
        for name, by_scene in each.items():
            if array == DISTRIBUTED:
                summary = scoring.summary(_joined(by_scene), NEAR)
                space = errors_on_part(rows, name, array, part, "heights")
                in_space = scoring.summary(_joined({index: space[index] for index in by_scene}), NEAR)
                medians = f"{summary.median:.2f} / {in_space.median:.2f} m"
                cells.append(f"{medians}, {summary.share:.1f} %")
            else:
                summary = scoring.summary(_joined(by_scene), WITHIN)
                cells.append(f"{summary.median:.1f}°, {summary.share:.1f} %")
        lines.append([label, str(len(each[names[0]])), *cells])
    return lines


def respeaker_lines(rows: Sequence[results.Row]) -> list[list[str]]:
    """Real recordings: one source, then how many of two and three were found."""
    mine = [row for row in rows if row["set"] == RESPEAKER]
    heading = [
        *("", "one source: largest error", f"its blocks within {BLOCK_WITHIN:g}°"),
        *(f"{n} sources: found within {WITHIN:g}°" for n in (2, 3)),
        *(f"{n} sources: in blocks" for n in (2, 3)),
    ]
    lines = [heading]
    for name in dict.fromkeys(row["method"] for row in mine):
        cells: dict[str, list[str]] = {"whole": [], "blocks": []}
        for row in (row for row in mine if row["method"] == name):
            single = row["cell"]["talkers"] == "1"
            whole = np.array([np.inf if e is None else e for file in row["whole"] for e in file])
            blocks = np.concatenate(errors_by_scene(row))
            right = int((whole <= WITHIN).sum())
            cells["whole"].append(f"{whole.max():.1f}°" if single else f"{right} of {len(whole)}")
            limit = BLOCK_WITHIN if single else WITHIN
            cells["blocks"].append(f"{scoring.summary(blocks, limit).share:.0f} % of {len(blocks)}")
        lines.append([name, cells["whole"][0], cells["blocks"][0], *cells["whole"][1:], *cells["blocks"][1:]])
    return lines


def difference_lines(
    rows: Sequence[results.Row], ours: str, parts_of: Callable[[ArrayBenchmark], Mapping[str, Bools]] = parts
) -> list[list[str]]:
    """A method against the best of the others in each part, 95 % intervals by scene.

    The best by the median and the best by the share within the limit need not be the same.
    """
    lines = [["array", "part", "scenes", "lowest median", ours, "ratio", "highest share", ours, "points more"]]
    for array in ARRAYS:
        others = [name for name in methods(rows, array) if not name.startswith(ours)]  # its kin are no others
        if ours not in methods(rows, array) or not others:
            continue
        limit, unit = (NEAR, " m") if array == DISTRIBUTED else (WITHIN, "°")
        for label, part in parts_of(ArrayBenchmark.load()).items():
            each = _common({name: errors_on_part(rows, name, array, part) for name in (ours, *others)})
            summaries = {name: scoring.summary(_joined(of), limit) for name, of in each.items()}
            if not summaries[ours].count:
                continue
            lowest = min(others, key=lambda name: summaries[name].median)
            highest = max(others, key=lambda name: summaries[name].share)
            mine = list(each[ours].values())
            ratio = scoring.compare(mine, list(each[lowest].values()), limit).ratio
            points = scoring.compare(mine, list(each[highest].values()), limit).points
            lines.append(
                [
                    *(array, label, str(len(mine))),
                    *(f"{lowest}: {summaries[lowest].median:.2f}{unit}", f"{summaries[ours].median:.2f}{unit}"),
                    "{:.2f} ({:.2f} to {:.2f})".format(*ratio),
                    *(f"{highest}: {summaries[highest].share:.1f} %", f"{summaries[ours].share:.1f} %"),
                    "{:.1f} ({:.1f} to {:.1f})".format(*points),
                ]
            )
    return lines


def track_lines(rows: Sequence[results.Row]) -> list[list[str]]:
    """Each cell of the compact arrays, each array and all, and all by T60: talker time with a track within 10 degrees,
    changes of id a minute of talker time and seconds of tracks of nobody a minute, of each method in each way.

    Scenes that not all were measured on are left out.
    """
    benchmark = ArrayBenchmark.load()
    kinds, by_room = _kinds(benchmark), parts(benchmark)
    compact = [kind for kind in KINDS if kind.compact]
    groups: dict[str, Bools] = {}
    for kind in compact:
        label = f"{kind.array}, {quantity(kind.talkers, 'talker')}, {'moving' if kind.moving else 'static'}"
        groups[label] = np.array([one == kind for one in kinds])
    for array in dict.fromkeys(kind.array for kind in compact):
        groups[array] = np.array([one.array == array for one in kinds])
    for label in (f"T60 below {LIVELY} s", f"T60 from {LIVELY} s", "all"):
        groups[label] = by_room[label]
    followed: dict[str, dict[int, dict[str, float]]] = {}
    for row in rows:
        lists = (row[name] for name in SCORES)
        each = (dict(zip(SCORES, values, strict=True)) for values in zip(*lists, strict=True))
        found = followed.setdefault(f"{row['method']}, {row['way']}", {})
        found.update(zip(row["scenes"], each, strict=True))
    there = set.intersection(*(set(scenes) for scenes in followed.values())) if followed else set()
    lines = [["", "scenes", *followed]]
    for label, part in groups.items():
        scenes = [index for index in sorted(there) if part[index]]
        if scenes:
            cells = [_track_cell([by_scene[index] for index in scenes]) for by_scene in followed.values()]
            lines.append([label, str(len(scenes)), *cells])
    return lines


def _track_cell(scores: Sequence[dict[str, float]]) -> str:
    spoken, whole = (np.array([one[name] for one in scores]) for name in ("talker_seconds", "seconds"))
    share, changes, false = (np.array([one[name] for one in scores]) for name in ("share", "changes", "false"))
    by_talker, by_time = spoken / spoken.sum(), whole / whole.sum()
    return f"{100 * share @ by_talker:.1f} %, {changes @ by_talker:.2f}, {false @ by_time:.1f} s"


def summary_lines(rows: Sequence[results.Row], ours: str) -> list[list[str]]:
    """All scenes of an array and the reverberant ones: a method, and the best of the others."""

    def all_and_reverberant(benchmark: ArrayBenchmark) -> dict[str, Bools]:
        return {label: part for label, part in parts(benchmark).items() if label in ("all", f"T60 from {LIVELY} s")}

    heading, *lines = difference_lines(rows, ours, all_and_reverberant)
    columns = [0, 1, 4, 3, 7, 6]
    titles = ["array", "part", f"{ours}: median error", "best of the others", f"{ours}: within 10° (0.5 m)", "best"]
    assert [heading[i] for i in columns] == ["array", "part", ours, "lowest median", ours, "highest share"]
    return [titles, *([line[i] for i in columns] for line in lines)]


def _common(each: dict[str, dict[int, Floats]]) -> dict[str, dict[int, Floats]]:
    """The same scenes of every method, in rising order."""
    there = sorted(set.intersection(*(set(by_scene) for by_scene in each.values())))
    return {name: {index: by_scene[index] for index in there} for name, by_scene in each.items()}


def _joined(by_scene: dict[int, Floats]) -> Floats:
    return np.concatenate([*by_scene.values(), np.empty(0)])
