"""A folder of simulated recordings: 16-bit FLAC, the truth about each in `truth.csv`, what they were made with in
`settings.json`.

Recordings come one by one, each with its row, and a run that was interrupted is completed by the next. So the folder
remembers its settings: files of one seed beside the truth of another would be worse than no files.
"""

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.files import write_whole
from qkgcc.core.interrupts import interrupts_wait
from qkgcc.core.tables import parse_json, read_text, save_text
from qkgcc.delay.truth import MOMENT
from qkgcc.lab.scenes.render import Rendered, delay_at
from qkgcc.lab.scenes.scenes import Scene

COLUMNS = (
    *("file", "distribution", "seed", "index"),
    *("delay_samples", "delay_first", "delay_last", "moving", "delays"),
    *("t60", "snr", "noise", "noise_slope", "sources", "signal"),
    *("spacing", "nominal_spacing", "distance", "x", "y", "z"),
    *("clipped", "band_low", "band_high", "level", "scale"),
)

_SETTINGS, _TRUTH = "settings.json", "truth.csv"

Row = dict[str, str]


class Recordings:
    """The recordings of a folder, by index. Those are there whose file and row both are."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Open a folder, or make it, for recordings made with `settings`; an `InputError` if it has others."""
        self.folder = folder
        self.settings = settings
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "it is a file, not a folder" if folder.is_file() else error.strerror or error
            raise InputError(f"cannot write recordings to {folder}: {reason}") from None
        self._claim()
        self._rows = {int(row["index"]): row for row in _read_rows(folder / _TRUTH) if (folder / row["file"]).is_file()}

    def __contains__(self, index: int) -> bool:
        return index in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    @contextmanager
    def growing(self) -> Iterator[None]:
        """Within it recordings are added; at its end, however it comes, the truth has a row for each file."""
        self._write_rows()
        try:
            yield
        finally:
            self._rows = {i: row for i, row in self._rows.items() if (self.folder / row["file"]).is_file()}
            self._write_rows()

    def add(self, index: int, scene: Scene, rendered: Rendered) -> None:
        """Write a recording, then its row."""
        data, scale = encode_flac(rendered.audio, scene.sample_rate, self.settings["scale"])
        row = self._row(index, scene, rendered.audio.shape[-1] / scene.sample_rate, scale)
        self._rows[index] = row
        write_whole(self.folder / row["file"], lambda target: target.write_bytes(data))
        try:
            with (self.folder / _TRUTH).open("a", encoding="utf-8", newline="") as file:
                file.write(_format_rows([row]))
        except OSError as error:
            raise InputError(f"cannot write {self.folder / _TRUTH}: {error.strerror or error}") from None

    def _claim(self) -> None:
        path = self.folder / _SETTINGS
        text = json.dumps(self.settings, indent=1) + "\n"
        if not path.exists():
            if (self.folder / _TRUTH).exists() or any(self.folder.glob("*.flac")):
                raise InputError(
                    f"{self.folder} holds recordings without the {_SETTINGS} they were made with: give another folder"
                )
            save_text(text, path)
            return
        try:
            there = parse_json(read_text(path), str(path))
        except InputError:
            there = None
        if not isinstance(there, dict):
            raise InputError(f"{path} is damaged: give another folder, or remove this one")
        for name, value in json.loads(text).items():
            if there.get(name) != value:
                raise InputError(
                    f"the recordings in {self.folder} were made with {name} {_display_setting(there.get(name))}, not "
                    f"{_display_setting(value)}: give the same settings to complete them, or another folder"
                )

    def _write_rows(self) -> None:
        text = ",".join(COLUMNS) + "\n" + _format_rows([row for _, row in sorted(self._rows.items())])
        save_text(text, self.folder / _TRUTH)

    def _row(self, index: int, scene: Scene, seconds: float, scale: float) -> Row:
        """The truth about a recording: delays in samples of the first source, positive = channel 0 later."""
        source, spoiled = scene.sources[0], scene.degradations
        moments = np.arange(0, seconds, MOMENT)
        first, middle, last = delay_at(scene, [0, seconds / 2, seconds])
        spacing, nominal = (np.linalg.norm(m[0] - m[1]) for m in (scene.microphones, scene.nominal_microphones))
        values = {
            "file": file_name(index),
            "distribution": self.settings["distribution"],
            "seed": self.settings["seed"],
            "index": index,
            "delay_samples": f"{middle:.4f}",
            "delay_first": f"{first:.4f}",
            "delay_last": f"{last:.4f}",
            "moving": int(source.moving),
            "delays": " ".join(f"{delay:.3f}" for delay in delay_at(scene, moments)) if source.moving else "",
            "t60": f"{scene.walls[1]:.4f}",
            "snr": f"{scene.snr:.2f}",
            "noise": scene.noise,
            "noise_slope": f"{scene.noise_slope:.2f}",
            "sources": len(scene.sources),
            "signal": source.signal,
            "spacing": f"{spacing:.4f}",
            "nominal_spacing": f"{nominal:.4f}",
            "distance": f"{np.linalg.norm(source.path[0] - scene.microphones[:2].mean(axis=0)):.4f}",
            **{axis: f"{x:.4f}" for axis, x in zip("xyz", source.path[0], strict=True)},
            "clipped": f"{spoiled.clipped:.4f}",
            "band_low": f"{spoiled.band[0]:.1f}",
            "band_high": f"{min(spoiled.band[1], scene.sample_rate / 2):.1f}",
            "level": "" if spoiled.level is None else f"{spoiled.level:.2f}",
            "scale": f"{scale:.9g}",
        }
        return {name: str(values[name]) for name in COLUMNS}


def file_name(index: int) -> str:
    return f"{index:06d}.flac"


def encode_flac(audio: npt.NDArray[np.floating], sample_rate: int, scale: float) -> tuple[bytes, float]:
    """A recording as FLAC of 16 bits, and what it was multiplied by: `scale`, halved until nothing is cut off.

    Encoded in memory: libsndfile keeps silent about a disk that is full. Shape: (M, n)
    """
    import soundfile

    while float(np.abs(audio).max()) * scale > 1:
        scale /= 2
    stream = io.BytesIO()
    try:
        with interrupts_wait():
            soundfile.write(stream, (audio * scale).T, sample_rate, format="FLAC", subtype="PCM_16")
    except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
        raise InputError(f"a recording of shape {audio.shape} cannot be encoded as FLAC: {error}") from None
    return stream.getvalue(), scale


def _read_rows(path: Path) -> list[Row]:
    """The whole rows of a table; the last may be half-written, if the machine stopped in the middle of it."""
    if not path.exists():
        return []
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        rows = list(csv.DictReader(whole.splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}): give another folder, or remove this one") from None
    return [row for row in rows if set(row) == set(COLUMNS) and None not in row.values() and row["index"].isdigit()]


def _format_rows(rows: list[Row]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, COLUMNS, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _display_setting(value: Any) -> str:
    """A setting in a message; of hashes, as much as tells them apart."""
    if isinstance(value, list):
        return ", ".join(str(item)[:12] for item in value) or "none"
    return str(value)
