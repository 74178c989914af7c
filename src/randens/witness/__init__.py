"""Witnesses: perturbed inputs with the members they fool, in memory and on disk."""

from randens.witness.pool import WitnessPool
from randens.witness.store import WitnessStore

__all__ = ["WitnessPool", "WitnessStore"]
