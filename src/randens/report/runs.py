"""Run folders for the report: what commands wrote about an ensemble, and the verdict on it in sentences.

A file that cannot be read, or is about other members, is a problem that the page says instead of showing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from randens.audits import Audit
from randens.certificates import Certification
from randens.core.errors import InputError, RandensError
from randens.core.files import read_json
from randens.core.runs import Run
from randens.data import called
from randens.ensemble import RandomizedEnsemble, load
from randens.evaluation import Advice, AttackedSampling, Curve, Evaluation, RandomEvaluation
from randens.evaluation.tables import Result, attack_name, percent, radius_text
from randens.risk.intervals import Estimate, difference, joint
from randens.training.methods import METHOD_NAMES
from randens.training.train import Epoch, Summary
from randens.witness.fingerprints import fingerprint

__all__ = ["LoadedRun", "against", "load_run", "load_runs", "tried", "verdicts", "worth"]

_RESULTS: tuple[type[Result], ...] = (
    Evaluation,
    RandomEvaluation,
    AttackedSampling,
    Advice,
    Curve,
    Audit,
    Certification,
)

_EQUAL = 0.1  # budgets that differ by less count as equal
_IDLE = ("seed", "batch_size", "precision", "drop_finished")  # options that do not make an attack stronger

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run for the report.

    rec: the ensemble in the folder, if there is one. results: those that are about it, by kind. trainings, epochs: the
    cost of training and the epochs of the run and of the runs in its folder. problems: what cannot be shown, and why.
    """

    run: Run
    name: str
    rec: RandomizedEnsemble | None
    results: Mapping[str, Any]
    trainings: Mapping[str, Mapping[str, Any]]
    epochs: Mapping[str, Sequence[Mapping[str, Any]]]
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def evaluation(self) -> Evaluation | None:
        """The evaluation, if there is one."""
        return self.results.get("evaluation")

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
        """Member passes to train the run: those of its own method, and those of the runs that it started from."""
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
    rec = tried(problems, "ensemble", load, run.ensemble) if run.ensemble.is_dir() else None
    own = "" if rec is None else fingerprint(rec)
    results: dict[str, Result] = {}
    for kind in _RESULTS:
        source = run.path / f"{kind.kind}.json"
        found = tried(problems, kind.kind, kind.load, source) if source.exists() else None
        if found is not None and own not in ("", found.about.ensemble):
            members = f"other members ({found.about.ensemble:.8}…) than this run has ({own:.8}…)"
            problems[kind.kind] = f"{source} is about {members}: it is not shown"
        elif found is not None:
            results[kind.kind], own = found, found.about.ensemble
    inside = {run.path.name: run.path}
    inside |= {path.parent.name: path.parent for path in sorted(run.path.glob("*/training.json"))}
    trainings = {name: tried(problems, "training", _training, folder) for name, folder in inside.items()}
    epochs = {name: tried(problems, "metrics", _epochs, folder) for name, folder in inside.items()}
    return LoadedRun(
        run=run,
        name=name or Path(path).resolve().name,
        rec=rec,
        results=results,
        trainings={name: found for name, found in trainings.items() if found},
        epochs={name: found for name, found in epochs.items() if found},
        problems=problems,
    )


def tried(problems: dict[str, str], what: str, make: Callable[..., Part], *given: Any) -> Part | None:
    """What `make` makes; None and a problem if it meets a damaged file."""
    try:
        return make(*given)
    except RandensError as error:
        problems[what] = str(error)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        problems[what] = f"{what} is damaged and not shown ({type(error).__name__}: {error})"
    return None


def _training(folder: Path) -> Mapping[str, Any] | None:
    if not (folder / "training.json").is_file():
        return None
    file = folder / "training.json"
    found = Summary.parse(read_json(file), file)
    return {**found.cost.to_json(), "method": found.method}


def _epochs(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "metrics.jsonl").is_file():
        return []
    lines = (line for line in Run(folder, {}).metrics() if line.get("event") == "epoch")
    return [Epoch.parse(line, folder / "metrics.jsonl").to_json() for line in lines]


def compare(first: Evaluation, other: Evaluation) -> Estimate | str:
    """Robust accuracy of `other` minus that of `first`, or why they cannot be compared."""
    before = _compared(first)
    for what, (value, text) in _compared(other).items():
        if value != before[what][0]:
            return f"{what}: {text} instead of {before[what][1]}; evaluate both alike"
    return difference(1 - other.risk, 1 - first.risk, first.confidence)


def _compared(result: Evaluation) -> dict[str, tuple[Any, str]]:
    """What two evaluations must have in common, with its name for people."""
    about = result.about
    strength = [{k: v for k, v in attack.items() if k not in _IDLE} for attack in about.attacks]
    return {
        "another threat": (about.threat, radius_text(about.threat)),
        "other data": ((about.data, about.split), called(about.data, about.split)),
        "other attacks or options": (strength, ", ".join(map(attack_name, about.attacks))),
        "other inputs": (about.n, f"{about.n}"),
    }


def labels(runs: Sequence[LoadedRun]) -> list[str]:
    """The runs' names for sentences and tables: their methods if these differ, else their folders."""
    methods = [one.method for one in runs]
    return methods if all(methods) and len(set(methods)) == len(runs) > 1 else [one.name for one in runs]


def verdicts(runs: Sequence[LoadedRun]) -> list[str]:
    """The first run: its number, whether sampling pays, notes, the comparison with each of the others, budgets."""
    first, names = runs[0].evaluation, labels(runs)
    said = [headline(runs[0])] + (
        [] if first is None else [worth(first), *(f"{note}." for note in first.notes)]
    )
    baselines: dict[str, float] = {}
    for other, name in zip(runs[1:], names[1:], strict=True):
        if first is None or other.evaluation is None:
            continue
        said.append(against(first, other.evaluation, names[0], name))
        if other.evaluation.members == 1 and other.passes:
            baselines[name] = other.passes
    if runs[0].passes and baselines:
        said.append(budget(names[0], runs[0].passes, baselines))
    return said


def headline(one: LoadedRun) -> str:
    """The one number of a run, with the inputs, the attacks and the threat that it is about."""
    result = one.evaluation
    if result is not None:
        robust = result.robust
        return (
            f"Robust accuracy {percent(robust)} ({result.confidence:.0%} interval {percent(robust.low)} to "
            f"{percent(robust.high)}): {result.about.text}."
        )
    if "stochastic" in one.results:
        return f"{one.name}: robust accuracy {percent(one.results['stochastic'].robust)}."
    return f"{one.name} has not been evaluated: there are no numbers to judge yet."


def worth(result: Evaluation) -> str:
    """Whether sampling pays: the ensemble against its own best member, which could be used alone."""
    if result.members == 1:
        return "One member: there is nothing to sample."
    best = int(np.argmin(result.member_risks))
    alone = f"its best member alone, member {best}"
    gained = gain(result)
    interval = _interval(gained, result.confidence)
    said = f"the ensemble is {_points(gained)}"
    sampled = np.flatnonzero(result.probs)
    if len(sampled) == 1:
        fixed = f"α selects member {sampled[0]}: nothing is sampled."
        return (
            fixed
            if gained >= 0
            else f"{fixed} It is {_points(gained)} less robust than {alone} ({interval})."
        )
    if gained.low > 0:
        return f"Sampling pays: {said} more robust than {alone} ({interval}), at the compute of one member."
    if gained.high < 0:
        return f"Sampling does not pay: {said} LESS robust than {alone} ({interval})."
    if gained > 0:
        open_question = f"but {result.n} inputs do not settle it ({interval})"
        return f"Sampling may pay: {said} more robust than {alone}, {open_question}."
    return f"Sampling gains nothing: the ensemble is not more robust than {alone} ({interval})."


def gain(result: Evaluation) -> Estimate:
    """Robust accuracy of the ensemble minus that of its best member, over the same inputs."""
    best = int(np.argmin(result.member_risks))
    level = joint(result.confidence, result.members)
    return difference(result.foolable[:, best].astype(np.float64), result.risk, level)


def against(result: Evaluation, other: Evaluation, name: str, other_name: str) -> str:
    """The robust accuracy of one evaluation against another's, in a sentence."""
    gained = compare(other, result)
    if isinstance(gained, str):
        return f"{name} and {other_name} cannot be compared: {gained}."
    interval = _interval(gained, result.confidence)
    if float(gained) == 0:
        return f"{name} is exactly as robust as {other_name} ({interval})."
    said = f"{name} is {_points(gained)} {'more' if gained > 0 else 'less'} robust than {other_name}"
    settled = gained.low > 0 or gained.high < 0
    return f"{said} ({interval})." if settled else f"{said}, but these inputs do not settle it ({interval})."


def budget(name: str, passes: float, baselines: dict[str, float]) -> str:
    """Whether single networks were trained with as many member passes: else a difference may be longer training."""
    equal = [other for other, spent in baselines.items() if abs(passes / spent - 1) <= _EQUAL]
    if equal:
        return (
            f"{' and '.join(equal)}: trained with as many member passes as {name}, the equal-budget baseline."
        )
    other, spent = max(baselines.items(), key=lambda item: item[1])
    return (
        f"{other} is not an equal-budget baseline: training {name} took {passes / spent:.1f} times its member passes. "
        "One network trained that long is the fair comparison."
    )


def _interval(gained: Estimate, confidence: float) -> str:
    return f"{confidence:.0%} interval {100 * gained.low:+.1f} to {100 * gained.high:+.1f} points"


def _points(gained: Estimate) -> str:
    return f"{100 * abs(gained):.1f} points"
