"""The cells of the map: which members are trained how, and along which axis they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from randens.training.recipe import Recipe, recipe_from

__all__ = ["CELLS", "Cell", "Member", "named"]

SEEDS = (0, 1, 2)
LENGTHS = (25, 50, 100, 200, 400, 800)
WIDTHS = (8, 16, 32, 64)
RADII = (0.1, 0.2, 0.3)
BASE = 200
FURTHER = 100
MEMBERS = 4
IDEAS = ("joint", "paths", "features", "conflict", "bounded", "distil")
BOOSTED = ("mrboost", "barre")
ATTACKS = ("apgd-s", "arc", "arc-r-20", "arc-r-100", "lattice", "saddle", "suite")


@dataclass(frozen=True)
class Member:
    """One network by adversarial training; what every ensemble of the map is made of, or starts from."""

    data: str = "digits"
    width: int = 32
    epochs: int = BASE
    eps: float = 0.2
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.data}-at-w{self.width}-e{self.epochs}-eps{self.eps:g}-s{self.seed}"

    def recipe(self) -> Recipe:
        return recipe_from(_settings(self, self.epochs))


@dataclass(frozen=True)
class Cell:
    """One ensemble: `method` on members like `member`, whose seeds are 10·seed, 10·seed + 1, …

    "iat": these members themselves. "continued": each of them trained on by AT for `FURTHER` epochs, which is what
    the other methods are compared with at equal passes. attacks: by which attacks it is judged beside the saddle
    climber.
    """

    method: str = "iat"
    member: Member = Member()
    members: int = MEMBERS
    seed: int = 0
    attacks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        m, more = self.member, "-attacks" if self.attacks else ""
        return (
            f"{m.data}-{self.method}-m{self.members}-w{m.width}-e{m.epochs}-eps{m.eps:g}-s{self.seed}{more}"
        )

    def base(self) -> list[Member]:
        """The members it is made of or starts from."""
        return [replace(self.member, seed=10 * self.seed + index) for index in range(self.members)]

    def recipe(self, first: list[str]) -> Recipe:
        """How the method goes on from the runs `first`."""
        content = _settings(self.member, self.member.epochs)
        content |= {"method": self.method, "members": self.members, "seed": 1000 + self.seed}
        content["sampling"] = {"method": "uniform", "every": 10**6}
        if self.method in BOOSTED:
            # α uniform; later members have the epochs that the other methods add to all of them.
            content |= {"first": first[0], "start": "previous", "later_epochs": FURTHER}
        else:
            content |= {"first": first, "epochs": FURTHER}
        content["optimizer"]["lr"] = content["optimizer"]["later_lr"] = 0.05
        content["adversary"]["warmup"] = 0
        content["validation"]["every"] = FURTHER // 4
        return recipe_from(content)


def _settings(member: Member, epochs: int) -> dict[str, Any]:
    """Recipe of one network on digits: cheap enough that doubling its epochs can be afforded until it gains nothing."""
    return {
        "method": "at",
        "epochs": epochs,
        "batch_size": 128,
        "seed": member.seed,
        "ema": 0.99,
        "precision": "float32",
        "model": {"name": "mlp", "width": member.width, "depth": 2},
        "data": {"name": member.data},
        "threat": {"norm": "linf", "eps": member.eps},
        "adversary": {"name": "pgd", "steps": 3, "step": member.eps / 2, "warmup": epochs // 5},
        "loss": {"name": "mce"},
        "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
        "schedule": {"name": "cyclic", "peak": 0.3},
        "validation": {"attack": "apgd-s", "steps": 10, "every": max(1, epochs // 4)},
        "sampling": {"method": "uniform"},
        "log_every": 10**6,
    }


def _cells() -> Iterable[Cell]:
    """In the order in which they are computed: what decides most comes first."""
    for seed in SEEDS:
        yield Cell(seed=seed)
    for method in ("continued", *IDEAS, *BOOSTED):
        for seed in SEEDS:
            yield Cell(method, seed=seed)
    for epochs in LENGTHS:
        for seed in SEEDS:
            yield Cell(member=Member(epochs=epochs), seed=seed)
    for seed in SEEDS:
        yield Cell(seed=seed, attacks=ATTACKS)
    for members in (2, 3):
        for seed in SEEDS:
            yield Cell(members=members, seed=seed)
    for width in WIDTHS:
        for seed in SEEDS:
            yield Cell(member=Member(width=width), seed=seed)
    for eps in RADII:
        for seed in SEEDS:
            yield Cell(member=Member(eps=eps), seed=seed)


CELLS: tuple[Cell, ...] = tuple(dict.fromkeys(_cells()))


def named(name: str) -> Cell:
    """The cell whose results are kept under that name."""
    return next(cell for cell in CELLS if cell.name == name)
