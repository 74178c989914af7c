"""The members of the cells: small networks side by side, whatever else by the engine, each kept in a folder."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

import randens
from paper.when_does_drawing_pay import averages, stacked
from paper.when_does_drawing_pay.moved import moved
from paper.when_does_drawing_pay.plan import AS_THEY_ARE, AVERAGES, MOVED, SHARE, STACKED, Cell, Member
from randens.core.files import write_atomic
from randens.models import Classifier
from randens.training.recipe import Recipe, recipe_from

__all__ = ["ensemble_of", "member_of", "passes_of", "prepare", "train_members"]

Say = Callable[[str], None]
Ensemble = randens.RandomizedEnsemble

_AT_ONCE = 32


def prepare(cells: Iterable[Cell], folder: Path, say: Say = print) -> None:
    """Train what these cells are made of and is not there yet, as many runs at once as differ in their seeds only."""
    wanted = [cell for cell in cells if cell.member.data != "cifar10"]
    train_members([member for cell in wanted if not cell.scratch for member in cell.base()], folder, say)
    on = [member.on for cell in wanted if cell.method == "continued" for member in cell.base()]
    train_members(on, folder, say)
    groups: dict[Hashable, list[Cell]] = defaultdict(list)
    for cell in dict.fromkeys(replace(cell, k=1, attacks=()) for cell in wanted if cell.method in STACKED):
        if not _there(folder / cell.run):
            groups[replace(cell, seed=0)].append(cell)
    for group in groups.values():
        say(f"{group[0].run}: training {len(group)} seeds at once")
        first: list[list[nn.Module]] | None = None
        if not group[0].scratch:
            first = [[member_of(folder / member.name) for member in cell.base()] for cell in group]
        recipes = [cell.recipe(["given"] * cell.members) for cell in group]
        for cell, made in zip(group, _trained(group[0].member, recipes, first), strict=True):
            _keep(folder / cell.run, made.members, made.passes)


def train_members(members: Iterable[Member], folder: Path, say: Say = print) -> None:
    """Train every network that is missing, and before it the one that it goes on from."""
    wanted = list(dict.fromkeys(members))
    first = [replace(member, more=0, by="at") for member in wanted if member.more]
    if first:
        train_members(first, folder, say)
    groups: dict[Hashable, list[Member]] = defaultdict(list)
    for member in wanted:
        if not _there(folder / member.name):
            groups[replace(member, seed=0)].append(member)
    for missing in groups.values():
        for start in range(0, len(missing), _AT_ONCE):
            group = missing[start : start + _AT_ONCE]
            say(f"{group[0].name}: training {len(group)} networks at once")
            before = None
            if group[0].more:
                before = [[member_of(folder / replace(one, more=0, by="at").name)] for one in group]
            recipes = [_further(one) if one.more else one.recipe() for one in group]
            for member, found in zip(group, _trained(group[0], recipes, before), strict=True):
                _keep(folder / member.name, found.members, found.passes)


def ensemble_of(cell: Cell, folder: Path) -> tuple[Ensemble, int]:
    """The members of a cell, drawn evenly, and the member passes that training them took in all."""
    base = [] if cell.scratch else [folder / member.name for member in cell.base()]
    if cell.member.data != "cifar10":
        prepare([cell], folder, say=lambda _: None)
    else:
        for member in cell.base():
            randens.training.train(member.recipe(), folder / member.name)
    passes = sum(passes_of(run) for run in base)
    if cell.method in AS_THEY_ARE:
        return Ensemble([member_of(run) for run in base]), passes
    if cell.method == "continued":
        runs = [folder / member.on.name for member in cell.base()]
        if cell.member.data == "cifar10":
            for member, run in zip(cell.base(), runs, strict=True):
                randens.training.train(_further(member, str(folder / member.name)), run)
        return Ensemble([member_of(run) for run in runs]), passes + sum(passes_of(run) for run in runs)
    run = folder / cell.run
    if not _there(run):
        randens.training.train(cell.recipe([str(path) for path in base]), run)
    return randens.load(run / "ensemble").with_probs(None), passes + passes_of(run)


def _trained(
    member: Member, recipes: Sequence[Recipe], first: Sequence[Sequence[nn.Module]] | None
) -> list[stacked.Trained]:
    """Side by side; for networks on averages, on averages, and back on pixels afterwards."""
    if member.data == MOVED:
        return stacked.train(recipes, first, moved(randens.data.load("digits", "train")))
    if member.data != AVERAGES:
        return stacked.train(recipes, first)
    data = averages.averaged(randens.data.load("cifar10", "train"))
    given = None if first is None else [[averages.gathered(_classifier(one)) for one in run] for run in first]
    made = stacked.train(recipes, given, data)
    return [
        replace(one, members=[averages.spread(_classifier(member)) for member in one.members]) for one in made
    ]


def _classifier(member: nn.Module) -> Classifier:
    assert isinstance(member, Classifier)
    return member


def _further(member: Member, run: str = "given") -> Recipe:
    """One network trained on alone, with the settings by which the methods go on from several."""
    weight = None if member.by == "at" else SHARE
    content = Cell("shared", member, members=1).recipe([run]).to_json()
    return recipe_from(content | {"method": member.by, "weight": weight, "seed": 1000 + member.seed})


def _keep(run: Path, members: Sequence[nn.Module], passes: int) -> None:
    Ensemble(list(members)).save(run / "ensemble", overwrite=True)
    cost = {"cost": {"forwards": passes, "backwards": passes}}
    write_atomic(run / "training.json", (json.dumps(cost) + "\n").encode())


def _there(run: Path) -> bool:
    return (run / "training.json").is_file()


def member_of(run: Path) -> nn.Module:
    """The first member of a run."""
    member: nn.Module = randens.load(run / "ensemble").members[0]
    return member


def passes_of(run: Path) -> int:
    """Member passes that a run took, forward."""
    cost = json.loads((run / "training.json").read_text(encoding="utf-8"))["cost"]
    return int(cost["forwards"])
