"""Recordings put on the clock of the first one: read between their samples, at times that run faster or slower.

A windowed sinc reads them. Drifts are parts in a million, so nothing has to be filtered against aliasing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from qkgcc.audio.recording import Recording, Samples, resampled
from qkgcc.core.errors import InputError
from qkgcc.core.files import make_folder, shown, write_whole
from qkgcc.live.recorder import WavFile

if TYPE_CHECKING:
    from qkgcc.sync.synchronise import Synchronisation

_TAPS = 64  # samples that the sinc looks at; what is left out is below -90 dB up to 0.9 of half the rate
_KAISER = 9.0
_PHASES = 1024  # between two samples, at which the sinc is known; a straight line between them leaves -110 dB
_CHUNK = 4096  # samples made at once: 2 MB of what they are made of


def warped(samples: Samples, step: float, first: float, count: int) -> Samples:
    """Samples at the places first, first + step, ...; zeros where there are none. Shape: (..., n) -> (..., count)

    >>> warped(np.arange(200.0), 1.0, 99.5, 2).round(3).tolist()
    [99.5, 100.5]
    """
    made = np.zeros((*samples.shape[:-1], count), dtype=samples.dtype)
    length, before = samples.shape[-1], _TAPS // 2 - 1
    table = _sinc().astype(samples.dtype)
    for start in range(0, count, _CHUNK):
        place = first + step * np.arange(start, min(start + _CHUNK, count))
        whole = np.floor(place).astype(np.int64)
        begin, end = int(whole.min()) - before, int(whole.max()) - before + _TAPS
        if end <= 0 or begin >= length:
            continue
        part = samples[..., max(0, begin) : end]
        beyond = [(0, 0)] * (samples.ndim - 1) + [(max(0, -begin), max(0, end - length))]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(part, beyond), _TAPS, axis=-1)
        phase = (place - whole) * _PHASES
        low = np.minimum(phase.astype(np.int64), _PHASES - 1)
        kernel = table[low]
        kernel += (phase - low)[:, None].astype(samples.dtype) * (table[low + 1] - kernel)
        taken = windows[..., whole - before - begin, :]
        made[..., start : start + _CHUNK] = np.einsum("...nt,nt->...n", taken, kernel)
    return made


def write_aligned(
    synchronisation: Synchronisation,
    recordings: Sequence[Recording],
    folder: str | Path,
    names: Sequence[str],
    *,
    sources: Sequence[Path] = (),
    progress: Callable[[float], object] | None = None,
) -> list[Path]:
    """Write all recordings on the clock of the first: one WAV (32-bit float) each, of the part that all of them share.

    All have the sample rate of the first, and the same length. A file is put in place when it is whole.

    Args:
        names: of the files, without their ending.
        sources: files that must not be written over.
    """
    folder = Path(folder)
    make_folder(folder)
    paths = aligned_paths(folder, names)
    if len(set(paths)) < len(paths):
        raise InputError(f"two of the recordings would be written to one file: {', '.join(sorted(names))}")
    for path in paths:
        if any(path.resolve() == source.resolve() for source in sources):
            raise InputError(f"{shown(path)} is one of the recordings: choose another folder")
    rate = synchronisation.sample_rate
    begin, end = common_part(synchronisation, recordings)
    for count, (path, recording, clock) in enumerate(zip(paths, recordings, synchronisation.clocks, strict=True)):
        line = clock.line
        step = 1 - line.slope
        blocks = resampled(recording.blocks(), recording.sample_rate, rate)

        def write(
            target: Path,
            blocks: Iterator[Samples] = blocks,
            step: float = step,
            start: float = begin * step - line.offset * rate,
            channels: int = len(recording.channels),
        ) -> None:
            file = WavFile(target, rate, channels)
            try:
                for part in _read_at(blocks, step, start, end - begin):
                    file.write(part)
            finally:
                file.close()

        write_whole(path, write)
        if progress is not None:
            progress((count + 1) / len(paths))
    return paths


def aligned_paths(folder: Path, names: Sequence[str]) -> list[Path]:
    """Where recordings are written."""
    return [folder / f"{name}.wav" for name in names]


def common_part(synchronisation: Synchronisation, recordings: Sequence[Recording]) -> tuple[int, int]:
    """Samples of the first recording between which all of them have sound."""
    rate = synchronisation.sample_rate
    begin, end = 0, recordings[0].samples
    for recording, clock in zip(recordings, synchronisation.clocks, strict=True):
        line = clock.line
        begin = max(begin, math.ceil(line.offset / (1 - line.slope) * rate))
        end = min(end, math.floor((recording.duration + line.offset) / (1 - line.slope) * rate))
    if end <= begin:
        raise InputError("the recordings have no part in common: there is nothing to write")
    return begin, end


def _read_at(blocks: Iterator[Samples], step: float, start: float, count: int) -> Iterator[Samples]:
    """`warped`, block by block."""
    made = position = 0  # samples made, and the place of the buffer's first one
    buffer: npt.NDArray[Any] | None = None
    ended = False
    while made < count:
        block = next(blocks, None)
        if block is None:
            ended = True
        elif buffer is None:
            buffer = block
        else:
            buffer = np.concatenate([buffer, block], axis=1)
        if buffer is None:
            return
        # What can be made now has all of its taps.
        reach = position + buffer.shape[1] - _TAPS // 2 - 1
        ready = count if ended else min(count, max(made, math.floor((reach - start) / step)))
        if ready > made:
            yield warped(buffer, step, start + step * made - position, ready - made)
            made = ready
            drop = max(0, min(buffer.shape[1], math.floor(start + step * made) - _TAPS - position))
            buffer, position = buffer[:, drop:], position + drop


@lru_cache(maxsize=1)
def _sinc() -> npt.NDArray[np.float64]:
    """Weights of the samples around a place, for each phase. Shape: (phases + 1, taps)"""
    phase = np.arange(_PHASES + 1)[:, None] / _PHASES
    away = np.arange(_TAPS) - (_TAPS // 2 - 1) - phase
    inside = np.clip(1 - (away / (_TAPS / 2)) ** 2, 0, None)
    weights = np.sinc(away) * np.i0(_KAISER * np.sqrt(inside)) / np.i0(_KAISER)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
