"""Recorders without a shared clock: `synchronise` measures offsets and drifts, `write_aligned` takes them out."""

from qkgcc.sync.clock_fit import Clock
from qkgcc.sync.recorders import Synchronisation, aligned_paths, synchronise, write_aligned

__all__ = ["Clock", "Synchronisation", "aligned_paths", "synchronise", "write_aligned"]
