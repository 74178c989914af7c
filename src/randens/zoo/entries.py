"""The entries of the zoo: run folders without checkpoints, found by name, copied in and out.

Every command that takes a run folder also takes an entry. The members' checksums are verified whenever an
ensemble is loaded, those of evaluations whenever one is read.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from randens import ensemble
from randens.core.documents import Document, Probabilities, fitted, read_document
from randens.core.errors import FileError, InputError, unknown
from randens.core.files import seal, write_json
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import Evaluation
from randens.evaluation.argument_checks import fingerprint
from randens.evaluation.deployment_advice import AdviceDocument
from randens.evaluation.results import CostDocument
from randens.training.recipe import Recipe, recipe_from

__all__ = ["Entry", "add", "entry", "keep_trial", "load", "names", "root", "take", "trials"]

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TRIALS = "trials"
# The folders of a path inside a word of a command; a fraction like 8/255 is none.
_PLACE = re.compile(r"(?:(?<!\w)/|[\w.~-]*[^\W\d][\w.~-]*/)(?:[\w.~-]+/)*")
_KEPT = ("training.json", "sampling.json", "advice.json", "metrics.jsonl")


class _EntryManifest(Document):
    """manifest.json of an entry; a field of its recipe that this version does not know is refused."""

    recipe: Recipe
    versions: dict[str, str]
    command: list[str] | None = None
    seed: int | None = None


class _Validated(Document):
    images: Annotated[int, Field(ge=0)]
    attack: str


class _Training(Document):
    """training.json of an entry."""

    members: Annotated[int, Field(ge=1, le=100_000)]
    probs: Probabilities
    cost: CostDocument
    validation: _Validated


@dataclass(frozen=True)
class Entry:
    """One ensemble of the zoo.

    Attributes
    ----------
    name : str
        In the zoo.
    run : Run
        Its folder.
    evaluations : mapping of str to Evaluation
        By file name without its ending.
    advice : AdviceDocument, optional
        Robust accuracy against compute: a member, a drawn one, k of M averaged, all; by `randens advise`.
    """

    name: str
    run: Run
    evaluations: Mapping[str, Evaluation]
    advice: AdviceDocument | None = None

    @property
    def recipe(self) -> Mapping[str, Any]:
        """The recipe it was trained by, with every default written out."""
        return recipe_from(self.run.manifest["recipe"]).to_json()

    @property
    def training(self) -> Mapping[str, Any]:
        """What training measured on validation data, and its cost."""
        found: Mapping[str, Any] = self.run.read("training")
        return found

    @property
    def ships(self) -> bool:
        """Whether the entry includes the members; some entries have numbers only."""
        return self.run.ensemble.is_dir()

    def load(self) -> RandomizedEnsemble:
        """The ensemble; damaged files are refused."""
        if not self.ships:
            raise FileError(
                f"{self.name} is in the zoo for its numbers alone, without its members; its card says how to train them"
            )
        return ensemble.load(self.run.ensemble)


def root() -> Path:
    """The zoo's folder: beside this module in an installed package, `zoo/` in a clone of the repository.

    Returns
    -------
    Path
        With a folder per entry.

    Examples
    --------
    >>> from randens import zoo
    >>> zoo.root().is_dir()
    True
    """
    here = Path(__file__).parent
    for folder in (here / "runs", here.parents[2] / "zoo"):
        if folder.is_dir():
            return folder
    raise FileError(
        "this installation has no zoo; it comes with the wheel and with a clone of the repository"
    )


def names(zoo: Path | None = None) -> tuple[str, ...]:
    """What `load` knows, sorted.

    Parameters
    ----------
    zoo : Path, optional
        Another zoo's folder.

    Returns
    -------
    tuple of str
        For `load`.

    Examples
    --------
    >>> from randens import zoo
    >>> "cifar10-resnet20-at" in zoo.names()
    True
    """
    folder = zoo or root()
    return tuple(sorted(path.parent.name for path in folder.glob("*/manifest.json")))


def entry(name: str, zoo: Path | None = None) -> Entry:
    """The entry called `name`, with its evaluations.

    Parameters
    ----------
    name : str
        One of `names()`.
    zoo : Path, optional
        Another zoo's folder.

    Returns
    -------
    Entry
        Run folder and evaluations.

    Examples
    --------
    >>> from randens import zoo
    >>> zoo.entry("cifar10-resnet20-at").ships
    True
    """
    folder = zoo or root()
    known = names(folder)
    if name not in known:
        unknown("zoo entry", name, known)
    run = Run.open(folder / name)
    # All content of the card is checked here, so code that reads an entry can rely on it.
    fitted(_EntryManifest, run.manifest, run.path / "manifest.json")
    read_document(run.path / "training.json", _Training)
    files = sorted(run.path.glob("evaluation*.json"))
    return Entry(name, run, {path.stem: Evaluation.load(path) for path in files}, _advice(run))


def load(name: str, zoo: Path | None = None) -> RandomizedEnsemble:
    """The ensemble called `name`, ready to attack, draw from or export; its checksums are verified.

    Parameters
    ----------
    name, zoo
        As for `entry`.

    Returns
    -------
    RandomizedEnsemble
        In eval mode.

    Examples
    --------
    >>> from randens import zoo
    >>> len(zoo.load("cifar10-resnet20-at"))
    1
    """
    return entry(name, zoo).load()


def take(name: str, folder: str | os.PathLike[str], zoo: Path | None = None) -> Run:
    """Copy an entry to a new run folder, for commands that write their results there.

    Parameters
    ----------
    name, zoo
        As for `entry`.
    folder : str or path
        A new run folder.

    Returns
    -------
    Run
        The copy.

    Examples
    --------
    >>> from randens import zoo
    >>> zoo.take("cifar10-resnet20-at", "copy").ensemble.is_dir()
    True
    """
    source = entry(name, zoo)
    source.load()
    target = Path(folder)
    if target.exists():
        raise FileError(f"{target} exists already; name a folder that does not")
    _copy(source.run.path, target)
    return Run.open(target)


def add(
    run_folder: str | os.PathLike[str],
    name: str,
    zoo: Path | None = None,
    *,
    commit: str | None = None,
    members: bool = True,
) -> Entry:
    """Put a finished run into the zoo under `name`; an existing entry of that name is replaced.

    The entry keeps the manifest, ensemble, training summary, metrics, evaluations and advice. In the command that
    made the run, paths are shortened to their last part, because folders of another machine are useless.

    Parameters
    ----------
    run_folder : str or path
        A finished run.
    name : str
        Small letters, digits and hyphens.
    zoo : Path, optional
        Another zoo's folder.
    commit : str, optional
        The sources that trained it, where the manifest does not say.
    members : bool
        Keep the members, not only the numbers.

    Returns
    -------
    Entry
        As it is in the zoo.

    Examples
    --------
    >>> from pathlib import Path
    >>> from randens import zoo
    >>> run = zoo.take("cifar10-resnet20-at", "mine")
    >>> zoo.add(run.path, "copy", Path("zoo")).name
    'copy'
    """
    folder = zoo or root()
    _put(_finished(run_folder), folder, name, commit, members=members)
    return entry(name, folder)


def keep_trial(
    run_folder: str | os.PathLike[str], name: str, zoo: Path | None = None, *, commit: str | None = None
) -> Entry:
    """Keep the results of a run that compares settings: everything except its members.

    It must have been evaluated on validation data, because settings are compared on validation data only.

    Parameters
    ----------
    run_folder, name, zoo, commit
        As for `add`.

    Returns
    -------
    Entry
        As it is in the zoo.

    Examples
    --------
    >>> from pathlib import Path
    >>> import torch, randens
    >>> recipe = randens.training.load_recipe("digits-mlp-at").to_json()
    >>> run = randens.Run.create("trial", recipe=recipe)
    >>> data = randens.data.load("digits", "validation").subset(range(10))
    >>> rec = randens.RandomizedEnsemble([randens.models.create("linear", classes=10, input_shape=(1, 8, 8))])
    >>> _ = rec.save(run.ensemble)
    >>> cost = {"forwards": 0, "backwards": 0, "seconds": 0.0}
    >>> validated = {"images": 10, "attack": "pgd"}
    >>> told = {"members": 1, "probs": [1.0], "cost": cost, "validation": validated}
    >>> _ = run.write("training", told)
    >>> _ = randens.evaluate(rec, data, "pgd", eps=0.1).save(run.path / "evaluation.json")
    >>> keep_trial("trial", "at-short", Path("zoo")).ships
    False
    """
    run = _finished(run_folder)
    found = {path.stem: Evaluation.load(path) for path in sorted(run.path.glob("evaluation*.json"))}
    if not found:
        raise FileError(f"{run.path} has not been evaluated; run randens evaluate --split validation")
    for stem, evaluation in found.items():
        if evaluation.split != "validation":
            raise InputError(
                f"{stem}.json of {run.path} is on {evaluation.split} data; settings are compared on validation data"
            )
    folder = (zoo or root()) / _TRIALS
    _put(run, folder, name, commit, members=False)
    return entry(name, folder)


def trials(zoo: Path | None = None) -> tuple[Entry, ...]:
    """Return the kept results of runs that compare settings, by name.

    Parameters
    ----------
    zoo
        As for `entry`.

    Returns
    -------
    tuple of Entry
        By name.

    Examples
    --------
    >>> from randens import zoo
    >>> len(zoo.trials()) > 0
    True
    """
    folder = (zoo or root()) / _TRIALS
    return tuple(entry(name, folder) for name in names(folder))


def _advice(run: Run) -> AdviceDocument | None:
    path = run.path / "advice.json"
    return read_document(path, AdviceDocument) if path.is_file() else None


def _finished(run_folder: str | os.PathLike[str]) -> Run:
    run = Run.open(run_folder)
    if not run.ensemble.is_dir() or not (run.path / "training.json").is_file():
        raise FileError(f"{run.path} is not a finished training run; the zoo takes no others")
    return run


def _put(run: Run, folder: Path, name: str, commit: str | None, *, members: bool) -> None:
    """Copy a run to `folder`/`name`, completely or not at all."""
    if not _NAME.fullmatch(name) or name == _TRIALS:
        raise InputError(
            f"name is {name!r}; use small letters, digits and single hyphens, e.g. cifar10-resnet20-at"
        )
    rec = ensemble.load(run.ensemble)
    for path in sorted(run.path.glob("evaluation*.json")):
        Evaluation.load(path).check(rec)
    advice = _advice(run)
    if advice is not None and advice.ensemble != fingerprint(rec):
        raise InputError(f"{run.path / 'advice.json'} is about other members; run randens advise again")
    fresh = folder / f".{name}.new"
    shutil.rmtree(fresh, ignore_errors=True)
    _copy(run.path, fresh, members=members)
    manifest = dict(run.manifest)
    manifest["command"] = [_PLACE.sub("", word) for word in manifest.get("command", [])]
    manifest["recipe"] = _without_places(manifest["recipe"])
    if "earlier_recipes" in manifest:
        manifest["earlier_recipes"] = [_without_places(recipe) for recipe in manifest["earlier_recipes"]]
    manifest["git_commit"] = manifest.get("git_commit") or commit
    write_json(fresh / "manifest.json", seal(manifest))
    old = folder / f".{name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (folder / name).exists():
        os.replace(folder / name, old)
    os.replace(fresh, folder / name)
    shutil.rmtree(old, ignore_errors=True)


def _without_places(recipe: Mapping[str, Any]) -> dict[str, Any]:
    first = recipe.get("first")
    if not first:
        return dict(recipe)
    named = Path(first).name if isinstance(first, str) else [Path(path).name for path in first]
    return {**recipe, "first": named}


def _copy(source: Path, target: Path, *, members: bool = True) -> None:
    target.mkdir(parents=True)
    for path in (
        source / "manifest.json",
        *(source / kept for kept in _KEPT),
        *source.glob("evaluation*.json"),
    ):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
    if members:
        shutil.copytree(source / "ensemble", target / "ensemble")
