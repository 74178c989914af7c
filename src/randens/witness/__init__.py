"""Witnesses: the pool in memory, and the store on disk."""

from randens.witness.pool import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["WitnessPool", "WitnessStore"]
