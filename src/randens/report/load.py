"""Read a run folder for the report: what commands wrote about its ensemble.

A document that cannot be read, or is about other members, is a problem that the page says instead of showing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from randens.core.errors import FileError, InputError, RandensError
from randens.core.files import read_json
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation import Evaluation
from randens.training.methods import METHOD_NAMES
from randens.witness.fingerprints import fingerprint

__all__ = ["DAMAGED", "DOCUMENTS", "LoadedRun", "load_run", "load_runs"]

DOCUMENTS = ("evaluation", "stochastic", "sampling", "advice", "curve", "audit", "certification")
DAMAGED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
"""What reading an altered document raises."""

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run for the report.

    rec: the ensemble in the folder, if there is one. documents: those that are about it, by name. trainings, epochs:
    the cost of training and the epochs of the run and of the runs in its folder. problems: what cannot be
    shown, and why.
    """

    run: Run
    name: str
    rec: RandomizedEnsemble | None
    evaluation: Evaluation | None
    documents: Mapping[str, Mapping[str, Any]]
    trainings: Mapping[str, Mapping[str, Any]]
    epochs: Mapping[str, Sequence[Mapping[str, Any]]]
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The training recipe; empty if there is none."""
        return self.run.manifest.get("recipe") or {}

    @property
    def method(self) -> str:
        """The training method, spelled for sentences and tables; "" if it is unknown."""
        method = self.recipe.get("method")
        return METHOD_NAMES.get(str(method), str(method)) if method else ""

    @property
    def passes(self) -> float:
        """Member passes to train the run: those of its own method, and those of the runs that it started from.

        Another network in the folder, such as a baseline that it is compared with, does not count.
        """
        first = self.recipe.get("first") or []
        names = {Path(str(path)).name for path in ([first] if isinstance(first, str) else first)}
        own = self.recipe.get("method")
        return sum(
            cost["forwards"] + cost["backwards"]
            for name, cost in self.trainings.items()
            if name in names or name == self.run.path.name or cost["method"] == own
        )


def load_runs(paths: Sequence[str | os.PathLike[str]]) -> tuple[LoadedRun, ...]:
    """The runs in these folders, each under the shortest name that tells it from the others."""
    if not paths:
        raise InputError("runs is empty; give at least one run folder, e.g. runs/quickstart-1")
    folders = [Path(path).resolve() for path in paths]
    if len(set(folders)) < len(folders):
        raise InputError(f"runs names the same folder twice: {', '.join(map(str, paths))}")
    depth = 1
    while len({folder.parts[-depth:] for folder in folders}) < len(folders):
        depth += 1
    return tuple(load_run(path, "/".join(f.parts[-depth:])) for path, f in zip(paths, folders, strict=True))


def load_run(path: str | os.PathLike[str], name: str | None = None) -> LoadedRun:
    """Read one run folder."""
    run = Run.open(path)
    problems: dict[str, str] = {}

    def tried(what: str, read: Callable[[], Part]) -> Part | None:
        try:
            return read()
        except RandensError as error:
            problems[what] = str(error)
        except DAMAGED as error:
            problems[what] = f"{what} of {run.path} is damaged ({type(error).__name__}: {error})"
        return None

    rec = tried("ensemble", lambda: load(run.ensemble)) if run.ensemble.is_dir() else None
    own = None if rec is None else fingerprint(rec)
    documents: dict[str, Mapping[str, Any]] = {}
    for kind in DOCUMENTS:
        if (run.path / f"{kind}.json").exists():
            found = tried(kind, partial(_document, run.path / f"{kind}.json", own))
            if found is not None:
                documents[kind] = found
                own = own or found["about"]["ensemble"]
    evaluation = None
    if "evaluation" in documents:
        evaluation = tried("evaluation", lambda: Evaluation.from_json(documents["evaluation"]))
    inside = {run.path.name: run.path}
    inside |= {path.parent.name: path.parent for path in sorted(run.path.glob("*/training.json"))}
    trainings = {name: tried("training", partial(_training, folder)) for name, folder in inside.items()}
    epochs = {name: tried("metrics", partial(_epochs, folder)) for name, folder in inside.items()}
    return LoadedRun(
        run=run,
        name=name or Path(path).resolve().name,
        rec=rec,
        evaluation=evaluation,
        documents=documents,
        trainings={name: found for name, found in trainings.items() if found},
        epochs={name: found for name, found in epochs.items() if found},
        problems=problems,
    )


def _document(source: Path, own: str | None) -> Mapping[str, Any]:
    """A result's document; one about other members than `own` is refused."""
    document = read_json(source)
    members = str(document["about"]["ensemble"])
    if own is not None and members != own:
        raise FileError(
            f"{source} is about other members ({members:.8}…) than this run has ({own:.8}…): it is not shown"
        )
    return dict(document)


def _training(folder: Path) -> Mapping[str, Any] | None:
    if not (folder / "training.json").is_file():
        return None
    document = read_json(folder / "training.json")
    cost = {key: float(document["cost"][key]) for key in ("forwards", "backwards", "seconds")}
    return {**cost, "method": document.get("method")}


def _epochs(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "metrics.jsonl").is_file():
        return []
    return [line for line in Run(folder, {}).metrics() if line.get("event") == "epoch"]
