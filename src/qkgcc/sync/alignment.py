"""Recordings put on the clock of the first one: read between their samples, at times that run faster or slower."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qkgcc.audio.frames import WARP_TAPS, resample, warp
from qkgcc.audio.recording import Recording
from qkgcc.core.errors import InputError
from qkgcc.core.files import display_name, make_folder, write_whole
from qkgcc.core.types import Samples
from qkgcc.live.recorder import WavFile
from qkgcc.sync.synchronise import Synchronisation


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
            raise InputError(f"{display_name(path)} is one of the recordings: choose another folder")
    rate = synchronisation.sample_rate
    begin, end = common_part(synchronisation, recordings)
    for count, (path, recording, clock) in enumerate(zip(paths, recordings, synchronisation.clocks, strict=True)):
        line = clock.line
        step = 1 - line.slope
        blocks = resample(recording.blocks(), recording.sample_rate, rate)

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
    """`warp`, block by block."""
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
        reach = position + buffer.shape[1] - WARP_TAPS // 2 - 1
        ready = count if ended else min(count, max(made, math.floor((reach - start) / step)))
        if ready > made:
            yield warp(buffer, step, start + step * made - position, ready - made)
            made = ready
            drop = max(0, min(buffer.shape[1], math.floor(start + step * made) - WARP_TAPS - position))
            buffer, position = buffer[:, drop:], position + drop
