"""Signals of the general distribution on a device, one behind the other, found by their ids.

Recorded ones are those of banks. Synthetic ones come from a pool: a scene draws one of 2^31 numbers of a kind, and
making a million of them one by one would take hours, so `kind:number` stands for the pool's signal `number % pool`.
(`general-test` and `qkgcc simulate` make the very signal of every number: see `catalog.lookup`.)
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkgcc.core.errors import InputError
from qkgcc.lab.corpora.banks import Bank
from qkgcc.lab.corpora.sets import SPLITS
from qkgcc.lab.scenes.catalog import Catalog
from qkgcc.lab.scenes.signals import SYNTHESES, is_synthetic, synthetic
from qkgcc.lab.scenes.sources import SECONDS

SAMPLE_RATE = 16000
SAMPLES = round(SECONDS * SAMPLE_RATE)
"""Of a recording of a scene."""
POOL = 2048
"""Synthetic signals of each kind: 70 s of one core to make, 0.8 GB."""
LONGEST = 30.0
"""Seconds that are held of a recorded signal; banks for training keep 3 to 10."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GeneralSources:
    """R signals on a device."""

    samples: Tensor
    """(N,) all of them, one behind the other."""
    offset: Integers
    """(R,) where each begins; those of the banks first, then the pool."""
    length: Integers
    """(R,) samples of each."""
    rows: dict[str, int]
    """Of recorded signals by id, and of the first of each kind in the pool by `kind:`."""
    pool: int
    catalog: Catalog
    """What scenes for these sources are drawn from."""

    @classmethod
    def of(
        cls,
        banks: Iterable[Bank],
        split: str,
        device: torch.device | str,
        *,
        pool: int = POOL,
        jobs: int | None = None,
    ) -> "GeneralSources":
        """The recorded signals of a split of some banks, or of none, and a pool of synthetic ones of that split.

        The pools of the splits are different ones.
        """
        banks = list(banks)
        catalog = Catalog.from_banks(banks, split)
        most = round(LONGEST * SAMPLE_RATE)
        recorded = [(bank, number) for bank in banks for number in bank.select(split=split).tolist()]
        first = SPLITS.index(split) * pool
        made = [f"{kind}:{first + number}" for kind in SYNTHESES for number in range(pool)]
        with ThreadPoolExecutor(jobs or os.cpu_count()) as workers:
            signals = list(workers.map(lambda at: at[0].audio(at[1], most), recorded))
            signals += workers.map(lambda id: synthetic(id, SAMPLES, SAMPLE_RATE), made)
        rows = {bank.ids[number]: row for row, (bank, number) in enumerate(recorded)}
        rows |= {f"{kind}:": len(recorded) + k * pool for k, kind in enumerate(SYNTHESES)}
        length = np.array([len(signal) for signal in signals], dtype=np.int64)
        return cls(
            torch.as_tensor(np.concatenate(signals), device=device),
            np.cumsum(length) - length,
            length,
            rows,
            pool,
            catalog,
        )

    def find(self, ids: Sequence[str]) -> Integers:
        """Rows of signals by id. Shape: (B,)"""
        return np.array([self._row(id) for id in ids], dtype=np.int64)

    def signal(self, id: str) -> npt.NDArray[np.float32]:
        """The samples of one signal, as `render` asks for them (a `catalog.Lookup`). Shape: (n,)"""
        row = self._row(id)
        part = self.samples[self.offset[row] : self.offset[row] + self.length[row]]
        return np.asarray(part.cpu().numpy(), dtype=np.float32)

    def parts(self, rows: Integers, start: npt.NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Two seconds of signals, from where scenes begin them, and how many samples of it they sound for.

        Shape: (B,), (B,) in [0, 1] -> (B, 32000), (B,) int64
        """
        spare = np.maximum(0, self.length[rows] - SAMPLES)
        first = (start * spare).astype(np.int64)
        sounding = np.minimum(SAMPLES, self.length[rows] - first)
        at, last = (
            torch.as_tensor(x, device=self.samples.device)[:, None] for x in (self.offset[rows] + first, sounding)
        )
        now = torch.arange(SAMPLES, device=self.samples.device)
        part = self.samples[torch.minimum(at + now, at + last - 1)]
        return torch.where(now < last, part, 0.0), last[:, 0]

    def _row(self, id: str) -> int:
        row = self.rows.get(id)
        if row is not None:
            return row
        if not is_synthetic(id):
            raise InputError(f"the sources hold no signal {id!r}: draw the scenes from the catalog of these sources")
        kind, _, number = id.partition(":")
        return self.rows[f"{kind}:"] + int(number) % self.pool
