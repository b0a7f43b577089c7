"""A frozen benchmark: a manifest that says what is in it, fingerprints of its rendering, and a cache of rendered parts.

A set *is* its manifest: seeds, signals with their hashes, and the truth. Its SHA-256 names the set, and any engine
renders it. Beside it stand the fingerprints of every part (a cell, a hundred scenes, a scene) as the CPU engine renders
it: a hash for bit-equality, and random projections for the size of a difference. The mean square of a random +-1
projection is the squared norm of what is projected, so four numbers a row (an utterance or a scene) tell how far
another rendering is off, without the frames themselves.

Parts are rendered once, checked against their fingerprints and kept in the user's cache. A part is written whole or not
at all, so an interrupted run goes on where it stopped. What lies in the cache is never trusted because it is there: its
SHA-256 is that of the fingerprint or, where an engine is not bit-equal, that of a small file beside the part, written
when it was rendered and checked.
"""

import base64
import dataclasses
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from qkgcc.core.errors import InputError
from qkgcc.core.files import make_folder, write_whole
from qkgcc.core.tables import save_text
from qkgcc.core.types import Floats
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.rooms.draws import uniform
from qkgcc.lab.scenes.engines import check_engine
from qkgcc.lab.scenes.scenes import Scene

CACHE_VARIABLE = "QKGCC_CACHE"
TOLERANCE = 1e-3
"""Largest difference of another machine's rendering, relative to the level, before it is another benchmark."""

_PROJECTIONS = 4  # of each row

Fingerprint = dict[str, str]
"""`sha256` of the frames, and their `projections` in base64."""

_found_whole: set[tuple[Path, int, int]] = set()  # path, time and size of what this process has checked already


@dataclass(frozen=True, eq=False)
class FrozenBenchmark(ABC):
    """What the sets have in common; each says of which parts it consists and how they are rendered."""

    name: str
    manifest: dict[str, Any]
    hash: str
    """SHA-256 of the manifest: the name that results carry."""

    NAMES: ClassVar[tuple[str, ...]]
    steps_per_group = 1
    """How often `progress` is called while a group is rendered."""

    @classmethod
    def load(cls, name: str | None = None) -> Self:
        """A set by its name; the only one of its kind where none is given."""
        name = name or cls.NAMES[0]
        if name not in cls.NAMES:
            raise InputError(f"there is no benchmark {name!r}; there are {', '.join(cls.NAMES)}")
        text = (resources.files(__package__) / "benchmarks" / f"{name}.json").read_bytes()
        return cls(name, json.loads(text), hashlib.sha256(text).hexdigest())

    @cached_property
    def fingerprints(self) -> dict[str, Fingerprint]:
        """Of each part, by its key, as the CPU engine renders it."""
        text = (resources.files(__package__) / "benchmarks" / f"{self.name}.fingerprints.json").read_text()
        record = json.loads(text)
        if record["manifest"] != self.hash:
            raise InputError(f"the fingerprints of {self.name} belong to another manifest: make both again")
        cells: dict[str, Fingerprint] = record["cells"]
        return cells

    @property
    @abstractmethod
    def bank_names(self) -> tuple[str, ...]:
        """The sets whose banks it is rendered from."""

    @property
    @abstractmethod
    def signals(self) -> dict[str, tuple[str, int | None]]:
        """SHA-256 and, where they are needed whole, the samples of its signals by id."""

    @abstractmethod
    def groups(self) -> list[list[str]]:
        """The keys of all parts; those of a group are rendered together."""

    @abstractmethod
    def file_name(self, key: str) -> str:
        """In the cache, without a suffix."""

    @abstractmethod
    def shape(self, key: str) -> tuple[int, ...]:
        """Of a part's samples."""

    @abstractmethod
    def rows(self, key: str) -> int:
        """Utterances or scenes of a part."""

    @abstractmethod
    def render_parts(
        self, keys: Sequence[str], banks: Sequence[Bank], engine: str, jobs: int | None, progress: Callable[[], object]
    ) -> Iterator[tuple[str, npt.NDArray[np.int16]]]:
        """Keys of a group with their samples, rendered now."""

    @property
    def steps(self) -> int:
        """How often `render` calls its `progress`."""
        return self.steps_per_group * len(self.groups())

    def folder(self, engine: str, cache: Path | None = None) -> Path:
        return (cache or cache_folder()) / "benchmarks" / f"{self.name}-{self.hash[:12]}-{engine}"

    def path(self, key: str, engine: str, cache: Path | None = None) -> Path:
        """Where a part lies when it is rendered."""
        return self.folder(engine, cache) / f"{self.file_name(key)}.npy"

    def is_rendered(self, engine: str, cache: Path | None = None) -> bool:
        """Whether there is a file of every part; what is in them, `load_part` finds out."""
        return all(self.path(key, engine, cache).exists() for keys in self.groups() for key in keys)

    def render(
        self,
        banks: Sequence[Bank],
        engine: str,
        *,
        only: Collection[str] | None = None,
        cache: Path | None = None,
        jobs: int | None = None,
        progress: Callable[[], object] = lambda: None,
    ) -> dict[str, float]:
        """Render the missing and the damaged parts; how far each is from its fingerprint, 0 for bit-equal.

        Args:
            banks: may be empty where all parts are there.
            only: keys of the parts that are wanted; None: all.
        """
        self.check_engine(engine)
        if banks:
            self.check_banks(banks)
        off: dict[str, float] = {}
        for group in self.groups():
            keys = [key for key in group if only is None or key in only]
            missing = [key for key in keys if not self._is_whole(key, engine, cache)]
            if missing and not banks:
                path = self.path(missing[0], engine, cache)
                raise InputError(
                    f"{path} does not exist: give the bank of {' and '.join(self.bank_names)} to render it"
                )
            if missing:
                for key, samples in self.render_parts(missing, banks, engine, jobs, progress):
                    if key in self.fingerprints:
                        off[key] = check(samples, self.fingerprints[key], f"{self.name}, part {key}")
                    save(self.path(key, engine, cache), samples)
            elif keys:
                for _ in range(self.steps_per_group):
                    progress()
        return off

    def load_part(self, key: str, engine: str, cache: Path | None = None) -> npt.NDArray[np.int16]:
        """The samples of a rendered part, mapped from the disk."""
        path, again = self.path(key, engine, cache), f"`qkgcc data benchmark {self.name} --bank ...`"
        if not path.exists():
            raise InputError(f"{path} does not exist: render it with {again}")
        if not self._is_whole(key, engine, cache):
            raise InputError(f"{path} is damaged, or not what was rendered: render it again with {again}")
        samples: npt.NDArray[np.int16] = np.load(path, mmap_mode="r")
        return samples

    def check_engine(self, engine: str) -> None:
        """Before anything is made: pyroomacoustics' filters differ above 7 kHz, by more than a benchmark allows."""
        if engine == "reference":
            raise InputError(
                f"{self.name} is rendered by the cpu engine (pip install 'qkgcc[train]' brings it) or the gpu engine; "
                "the reference engine differs from them by more than the benchmark allows"
            )
        check_engine(engine)

    def check_banks(self, banks: Sequence[Bank], ids: Iterable[str] | None = None) -> None:
        """An `InputError` unless the banks hold the very samples that the manifest names, of some signals or all."""
        if len(self.bank_names) == 1 and len(banks) != 1:
            raise InputError(f"{self.name} is made of one bank; {len(banks)} were given")
        held = {
            id: (sha, int(samples))
            for bank in banks
            for id, sha, samples in zip(bank.ids, bank.content_hashes, bank.samples, strict=True)
        }
        given = f"the bank{'s' * (len(banks) > 1)} {', '.join(bank.name for bank in banks)}"
        wanted = f"the complete bank{'s' * (len(self.bank_names) > 1)} of {', '.join(self.bank_names)}"
        for id in self.signals if ids is None else ids:
            sha, samples = self.signals[id]
            if id not in held:
                raise InputError(f"{self.name} needs {id}, which is not in {given}: give {wanted}")
            if held[id][0] != sha or samples not in (None, held[id][1]):
                raise InputError(
                    f"{self.name} needs {id}, which has other samples in {given}: build the bank from the original "
                    "files, with whole test utterances"
                )

    def _is_whole(self, key: str, engine: str, cache: Path | None) -> bool:
        """Whether the file of a part holds the samples that were rendered into it."""
        path = self.path(key, engine, cache)
        if not path.is_file():
            return False
        state = path.stat()
        name = (path.resolve(), state.st_mtime_ns, state.st_size)
        if name in _found_whole:
            return True
        try:
            samples = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError):
            return False
        if samples.shape != self.shape(key) or samples.dtype != np.int16:
            return False
        beside = path.with_suffix(".sha256")
        known = {self.fingerprints.get(key, {}).get("sha256"), beside.read_text().strip() if beside.is_file() else None}
        if sha256(samples) not in known:
            return False
        _found_whole.add(name)
        return True


def cache_folder() -> Path:
    """$QKGCC_CACHE, or `qkgcc` in the user's cache folder."""
    given = os.environ.get(CACHE_VARIABLE)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "qkgcc"


def save(path: Path, samples: npt.NDArray[np.int16]) -> None:
    """Write a part, and its hash for when it is not that of the fingerprint to the bit."""

    def write(target: Path) -> None:
        with target.open("wb") as file:
            np.save(file, samples)

    make_folder(path.parent)
    save_text(sha256(samples), path.with_suffix(".sha256"))
    write_whole(path, write)


def fingerprint(samples: npt.NDArray[np.int16], rows: int) -> Fingerprint:
    """SHA-256 of samples that belong to `rows` rows, and their projections in base64."""
    return {
        "sha256": sha256(samples),
        "projections": base64.b64encode(_project(samples, rows).astype("<f4").tobytes()).decode(),
    }


def sha256(samples: npt.NDArray[np.int16]) -> str:
    """Of the samples, whatever the machine's order of bytes."""
    return hashlib.sha256(np.ascontiguousarray(samples, dtype="<i2").data).hexdigest()


def difference(samples: npt.NDArray[np.int16], expected: Fingerprint, rows: Sequence[int] | None = None) -> float:
    """Level of the difference to what was fingerprinted, relative to the samples' own, of the worst row.

    An estimate from four projections: right within a factor of two, nearly always.

    Args:
        rows: which rows of the fingerprint these samples are; None: all of them.
    """
    then = np.frombuffer(base64.b64decode(expected["projections"]), dtype="<f4").reshape(-1, _PROJECTIONS)
    then = then if rows is None else then[list(rows)]
    off = np.sqrt(np.mean((_project(samples, len(then)) - then) ** 2, axis=1))
    level = np.linalg.norm(samples.reshape(len(then), -1).astype(np.float64), axis=1)
    return float((off / np.maximum(level, 1)).max())


def check(samples: npt.NDArray[np.int16], expected: Fingerprint, name: str, rows: Any = None) -> float:
    """0 if the samples are bit for bit those fingerprinted, else how far off they are; too far is an `InputError`."""
    if rows is None and sha256(samples) == expected["sha256"]:
        return 0.0
    off = difference(samples, expected, rows)
    if off > TOLERANCE:
        raise InputError(
            f"{name}: rendered here, it differs from the benchmark by {off:.1e} of its level (allowed: {TOLERANCE:g}); "
            "results on it could not be compared. Please report this with your versions of numpy, scipy and numba"
        )
    return off


def scene_digest(scene: Scene) -> str:
    """Twelve hex digits of a hash of everything in a scene, positions rounded to a nanometre."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, (tuple, list)):
            return [plain(item) for item in value]
        if isinstance(value, np.ndarray):
            return (np.round(value, 9) + 0.0).tolist()
        return round(float(value), 9) + 0.0 if isinstance(value, (float, np.floating)) else value

    text = json.dumps(plain(scene), sort_keys=True, default=int)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_digest(name: str, index: int, scene: Scene, expected: str) -> None:
    """An `InputError` unless a scene that was drawn anew is the one of the manifest."""
    if scene_digest(scene) != expected:
        raise InputError(
            f"{name}: scene {index} is drawn differently by this version of qkgcc; use the one it was made with"
        )


def to_digits(values: Any, digits: int = 4) -> Any:
    """Numbers as a manifest has them, to four decimals."""
    return (np.round(values, digits) + 0.0).tolist()


def _project(samples: npt.NDArray[np.int16], rows: int) -> Floats:
    """Random +-1 projections of each row's samples. Shape: (frames, 2, n) -> (rows, 4)."""
    flat = samples.reshape(rows, -1)
    signs = _signs(flat.shape[1])
    return np.concatenate([row.astype(np.float64)[None] @ signs for row in flat])


@lru_cache(maxsize=4)
def _signs(size: int) -> Floats:
    drawn = uniform("benchmark/projection", 0, np.arange(size * _PROJECTIONS))
    return np.where(drawn < 0.5, -1.0, 1.0).reshape(size, _PROJECTIONS)
