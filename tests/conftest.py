"""For every test: one torch thread, as several workers share the cores, and examples without deadlines."""

from __future__ import annotations

import contextlib
import sys

import hypothesis
import pytest

# What needs no torch is tested without it too.
with contextlib.suppress(ImportError):
    import torch

# Timings on shared cores say nothing; examples are the same at every run, so that a failure can be repeated.
hypothesis.settings.register_profile("randens", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("randens")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test begins with one thread, and is no process of a launcher whose variables another test left behind."""
    if "torch" in sys.modules:
        torch.set_num_threads(1)
    for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
