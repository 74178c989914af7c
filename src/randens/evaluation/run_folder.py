"""Open a run folder for evaluation: its ensemble, its data, its threat."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from randens import data as datasets
from randens.core.documents import Document, Probabilities, read_document
from randens.core.errors import FileError, InputError, whole
from randens.core.runs import Run
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation.argument_checks import fingerprint
from randens.evaluation.results import Evaluation
from randens.threat import Threat
from randens.witness.store import WitnessStore

__all__ = ["Subject", "open_subject"]


class _Sampling(Document):
    """The entries of sampling.json that evaluations use."""

    probs: Probabilities
    split: str = "unknown"


@dataclass(frozen=True)
class Subject:
    """The ensemble of a run, the threat to evaluate it under and the name of the data it was trained on."""

    run: Run
    rec: RandomizedEnsemble
    threat: Threat
    data: str

    def load(self, split: str, limit: int | None = None) -> Data:
        """The run's data of one split; with `limit` its first images only."""
        if limit is not None:
            whole("limit", limit)
        images = datasets.load(self.data, split)
        return images if limit is None or limit >= len(images) else images.subset(slice(0, limit))

    def evaluation(self) -> Evaluation | None:
        """The run's evaluation.json, if there is one and it is of these members at these probabilities."""
        path = self.run.path / "evaluation.json"
        known = Evaluation.load(path) if path.is_file() else None
        if known is None or known.ensemble != fingerprint(self.rec):
            return None
        return known if np.array_equal(known.probs, self.rec.probs.cpu().numpy()) else None

    def store(self, *, fresh: bool = False, verify: bool = False) -> WitnessStore:
        """The run's witnesses, read as `WitnessStore` says."""
        return WitnessStore(self.run.path / "witnesses", fresh=fresh, verify=verify)

    @property
    def chosen_on(self) -> dict[str, str]:
        """Which split chose the probabilities and the checkpoints, as the run recorded it."""
        recorded = self.run.manifest.get("chosen_on")
        choices = {str(k): str(v) for k, v in recorded.items()} if isinstance(recorded, Mapping) else {}
        for path in self.run.answers("sampling"):
            sampling = read_document(path, _Sampling)
            # Probabilities that were found but not applied do not count.
            if sampling.probs == self.rec.probs.tolist():
                choices["probs"] = sampling.split
                break
        return choices


def open_subject(
    path: str | os.PathLike[str],
    *,
    data: str | None = None,
    norm: str | None = None,
    eps: float | None = None,
) -> Subject:
    """Open a run folder. `data`, `norm` and `eps` replace the run's own."""
    run = Run.open(path)
    if not run.ensemble.is_dir():
        raise FileError(f"{run.path} holds no ensemble yet; the run that makes it has not finished")
    rec = load(run.ensemble)
    recipe = run.manifest.get("recipe")
    part: Mapping[str, Any] = recipe if isinstance(recipe, Mapping) else {}
    named = part.get("data")
    name = data or (named.get("name") if isinstance(named, Mapping) else None)
    if not isinstance(name, str):
        raise InputError(f"{run.path} does not say which data it was trained on; name them with --data")
    datasets.entry(name)
    return Subject(run, rec, _threat(rec, norm, eps), name)


def _threat(rec: RandomizedEnsemble, norm: str | None, eps: float | None) -> Threat:
    known = rec.threat
    if known is None and (norm is None or eps is None):
        raise InputError("the ensemble names no threat; give one with --norm and --eps")
    if known is None:
        assert norm is not None
        assert eps is not None
        return Threat(norm, eps)
    if norm is not None and norm != known.norm and eps is None:
        raise InputError(
            f"norm is {norm!r} where the run has {known.norm!r}; give its radius too, with --eps"
        )
    return Threat(norm or known.norm, known.eps if eps is None else eps, known.bounds)
