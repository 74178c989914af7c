"""Witnesses that stay in a run folder, so that no one attacks twice to learn what is already known.

The file's name is a digest of everything that makes the witnesses valid: members, data, split, number of inputs,
threat. Other members or another threat look for another file and find none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from randens.attacks import Attack
from randens.data import ImageData
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.inputs import fingerprint
from randens.files import sha256
from randens.runs import Run
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["keep", "recall", "workplace"]


def recall(run: Run, rec: RandomizedEnsemble, data: ImageData, threat: Threat) -> WitnessPool | None:
    """The witnesses kept for this case, if there are any."""
    path = _path(run, rec, data, threat)
    return WitnessPool.load(path) if path.exists() else None


def keep(run: Run, rec: RandomizedEnsemble, data: ImageData, threat: Threat, pool: WitnessPool) -> Path:
    """Keep the sets, without the perturbed inputs, which sampling does not need."""
    path = _path(run, rec, data, threat)
    pool.without_inputs().save(path)
    return path


def workplace(run: Run, rec: RandomizedEnsemble, data: ImageData, attacks: Sequence[Attack]) -> Path:
    """A folder for the finished batches of one evaluation: the same command finds the same folder again."""
    case = [
        fingerprint(rec),
        rec.probs.tolist(),
        data.name,
        data.split,
        len(data),
        [repr(a) for a in attacks],
    ]
    return run.path / "evaluating" / sha256(json.dumps(case).encode())[:16]


def _path(run: Run, rec: RandomizedEnsemble, data: ImageData, threat: Threat) -> Path:
    case = [fingerprint(rec), data.name, data.split, len(data), threat.to_dict()]
    digest = sha256(json.dumps(case, sort_keys=True).encode())[:16]
    return run.path / "witnesses" / f"{data.split}-{digest}.safetensors"
