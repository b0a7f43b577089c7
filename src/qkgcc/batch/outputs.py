"""Which outputs of an archive still hold, so that a second run can leave them out.

An output holds when it is not empty, not older than its recording, and made with the options of this run. What the
options were is remembered in the folder (`.qkgcc-csv` or `.qkgcc-json`), with the time since when outputs have been
made with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkgcc.batch.archives import Task, Work
from qkgcc.core.errors import InputError
from qkgcc.core.files import check_writable, display_name, is_file
from qkgcc.core.tables import json_text, save_text
from qkgcc.core.textfiles import parse_json, read_text
from qkgcc.network.registry import PRETRAINED, pretrained

UNCHANGED = ("threads",)
"""Options of an estimator that change no answer."""


def memory(folder: Path, format: str) -> Path:
    """The file that remembers, for outputs of one format."""
    return folder / f".qkgcc-{format}"


def missing(given: Sequence[Task], file: Path, options: Mapping[str, Any]) -> list[Task]:
    """The tasks whose outputs do not hold. Outputs that were made with other options are an `InputError`."""
    before = _remembered(file)
    if before is None:
        return [task for task in given if not _holds(task, 0.0)]
    held = [task for task in given if _holds(task, before["since"])]
    if held and (changed := _changed(before["options"], options)):
        raise InputError(
            f"{display_name(file.parent)} holds {len(held)} of these outputs made with other options "
            f"({'; '.join(changed)}): give those, or another folder, or skip none of them, to do all again"
        )
    kept = set(held)
    return [task for task in given if task not in kept]


def remember(file: Path, options: Mapping[str, Any], *, skipping: bool) -> None:
    """Before outputs are made with these options.

    Args:
        skipping: outputs that nothing is remembered of are taken for made with them.
    """
    before = _remembered(file)
    now = check_writable(file.parent)
    if before is None or _changed(before["options"], options):
        record = {"options": options, "since": 0.0 if before is None and skipping else now}
        save_text(json_text(record), file)


def is_known(file: Path) -> bool:
    """Whether it is remembered how outputs were made."""
    return _remembered(file) is not None


def options_of(work: Work, **others: Any) -> dict[str, Any]:
    """What the outputs depend on, but for the recordings, as JSON has it.

    Args:
        others: what chooses the pairs.
    """
    made = {name: value for name, value in work.estimator.items() if name not in UNCHANGED}
    method = str(made["method"])
    file = pretrained(method) if method in PRETRAINED else Path(method)
    if is_file(file):  # a network of the same name may be another one tomorrow
        made["network"] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    made |= {"curve": work.format == "json" and work.curve, "start": work.start, "end": work.end, **others}
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain


def _holds(task: Task, since: float) -> bool:
    try:
        output = task.output.stat()
    except OSError:
        return False
    try:
        recorded = task.source.stat().st_mtime
    except OSError:
        recorded = 0.0  # a link to nothing has an output all the same
    return output.st_size > 0 and output.st_mtime >= max(recorded, since)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    shown_names = [name for name in names if name != "network"] or names
    return [
        "another version of the network" if name == "network" else f"{name} was {before.get(name)}, is {now.get(name)}"
        for name in shown_names
    ]


def _remembered(file: Path) -> dict[str, Any] | None:
    try:
        record = parse_json(read_text(file), str(file))
        return {"options": dict(record["options"]), "since": float(record["since"])}
    except (ValueError, TypeError, KeyError):
        return None
