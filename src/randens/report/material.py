"""What a run folder holds for the report."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from randens.core.errors import FileError, InputError
from randens.core.runs import Run
from randens.evaluation import Evaluation
from randens.report import documents

__all__ = ["Curve", "Material", "gather", "gather_all"]

Part = TypeVar("Part")


@dataclass(frozen=True)
class Curve:
    """How training went: the validation accuracies and losses after every epoch, over all members in a row."""

    name: str
    epochs: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Material:
    """A run as the report sees it. Parts that are missing are None; `problems` says which could not be read."""

    run: Run
    name: str
    evaluation: Evaluation | None = None
    sampling: documents.SamplingNote | None = None
    radii: documents.Radii | None = None
    attacks: documents.AttackTable | None = None
    gallery: documents.Gallery | None = None
    audit: documents.Audit | None = None
    stochastic: documents.StochasticNote | None = None
    advice: documents.AdviceNote | None = None
    trainings: tuple[tuple[str, documents.TrainingNote], ...] = ()
    curves: tuple[Curve, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """How the run was trained, in capitals as in the paper; "" if it does not say."""
        recipe = self.run.manifest.get("recipe")
        method = recipe.get("method") if isinstance(recipe, Mapping) else None
        names = {"mrboost": "MRBoost", "joint": "joint"}
        return names.get(str(method), str(method).upper()) if method else ""


def gather_all(paths: Sequence[str | os.PathLike[str]]) -> tuple[Material, ...]:
    """The runs in these folders, each under the shortest name that tells it from the others."""
    if not paths:
        raise InputError("runs is empty; give at least one run folder, e.g. runs/quickstart-1")
    folders = [Path(path).resolve() for path in paths]
    if len(set(folders)) < len(folders):
        raise InputError(f"runs names the same folder twice: {', '.join(map(str, paths))}")
    return tuple(gather(path, name) for path, name in zip(paths, _short_names(folders), strict=True))


def gather(path: str | os.PathLike[str], name: str | None = None) -> Material:
    """Read one run folder. A damaged evaluation is an error; damaged extras become `problems`."""
    run = Run.open(path)
    problems: dict[str, str] = {}

    def extra(part: str, read: Callable[[], Part | None]) -> Part | None:
        try:
            return read()
        except FileError as error:
            problems[part] = str(error)
            return None

    source = run.path / "evaluation.json"
    return Material(
        run=run,
        name=name or Path(path).resolve().name,
        evaluation=_evaluation(source) if source.exists() else None,
        sampling=extra("sampling", lambda: documents.read(run, "sampling", documents.SamplingNote)),
        radii=extra("radii", lambda: documents.read(run, "report/radii", documents.Radii)),
        attacks=extra("attacks", lambda: documents.read(run, "report/attacks", documents.AttackTable)),
        gallery=extra("gallery", lambda: documents.read(run, "report/gallery", documents.Gallery)),
        audit=extra("audit", lambda: documents.read(run, "audit", documents.Audit)),
        stochastic=extra("stochastic", lambda: documents.read(run, "stochastic", documents.StochasticNote)),
        advice=extra("advice", lambda: documents.read(run, "advice", documents.AdviceNote)),
        trainings=extra("cost", lambda: _trainings(run)) or (),
        curves=extra("training", lambda: _curves(run)) or (),
        problems=problems,
    )


def _evaluation(source: Path) -> Evaluation:
    try:
        return Evaluation.load(source)
    except (KeyError, TypeError, IndexError) as error:
        raise FileError(
            f"{source} is of another version: {error!r}; run randens evaluate {source.parent} again"
        ) from error
    except FileError as error:
        raise FileError(f"{error}; run randens evaluate {source.parent} again") from error


def _curves(run: Run) -> tuple[Curve, ...]:
    found = []
    for one in _inside(run):
        lines = [line for line in one.metrics() if isinstance(line, dict) and line.get("event") == "epoch"]
        if lines:
            found.append(Curve(one.path.name, lines))
    return tuple(found)


def _trainings(run: Run) -> tuple[tuple[str, documents.TrainingNote], ...]:
    notes = ((one.path.name, documents.read(one, "training", documents.TrainingNote)) for one in _inside(run))
    return tuple((name, note) for name, note in notes if note is not None)


def _inside(run: Run) -> list[Run]:
    """The run itself and the runs in its folder: what was trained on the way to it."""
    found = [run]
    for folder in sorted(p for p in run.path.iterdir() if (p / "manifest.json").is_file()):
        try:
            found.append(Run.open(folder))
        except FileError:
            continue  # a folder of something else is not part of this run's story
    return found


def _short_names(folders: Sequence[Path]) -> list[str]:
    longest = max(len(folder.parts) for folder in folders)
    for depth in range(1, longest + 1):
        names = ["/".join(folder.parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
