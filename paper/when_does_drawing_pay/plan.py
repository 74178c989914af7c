"""The cells of the map: which members are trained how, and along which axis they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from randens.training import load_recipe
from randens.training.recipe import Recipe, recipe_from

__all__ = ["CELLS", "CIFAR", "ZOO", "Cell", "Member", "Shipped"]

SEEDS = (0, 1, 2)
LENGTHS = (25, 50, 100, 200, 400, 800)
WIDTHS = (8, 16, 32, 52, 64)  # 52: twice the FLOPs of 32, as 2 of M have
RADII = (0.1, 0.2, 0.3)
BASE = 200
FURTHER = BASE // 2
MEMBERS = 4
IDEAS: tuple[tuple[str, float | None], ...] = (
    ("bounded", 0.5),
    ("shared", 0.5),
    ("joint", None),
    ("conflict", None),
    ("bounded", 0.75),
    ("shared", 0.25),
    ("distil", None),
    ("features", None),
    ("paths", None),
)
BOOSTED = ("mrboost", "barre")
RECIPE = Path(__file__).parents[2] / "recipes" / "study" / "cifar10-resnet8-at.toml"
ATTACKS = ("adaptive-pgd-s", "arc", "arc-r-20", "arc-r-100", "lattice", "saddle", "suite")


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

    @property
    def further(self) -> int:
        """Epochs by which the methods go on from members like this."""
        return self.epochs // 2

    def recipe(self) -> Recipe:
        """How it is trained."""
        return recipe_from(_settings(self))


@dataclass(frozen=True)
class Cell:
    """One ensemble: `method` on members like `member`, whose seeds are 10·seed, 10·seed + 1, …

    "iat": these members themselves. "continued": each of them trained on by AT for half as many epochs again, which is
    what the other methods are compared with at equal passes. attacks: by which attacks it is judged beside the saddle
    climber. k: k of the members are drawn and their logits averaged; the subsets of k are what is judged.
    """

    method: str = "iat"
    member: Member = Member()
    members: int = MEMBERS
    seed: int = 0
    attacks: tuple[str, ...] = ()
    weight: float | None = None
    k: int = 1

    @property
    def label(self) -> str:
        """The method, with its weight."""
        return self.method if self.weight is None else f"{self.method}-{self.weight:g}"

    @property
    def run(self) -> str:
        """Of the run that trains it."""
        m = self.member
        return f"{m.data}-{self.label}-m{self.members}-w{m.width}-e{m.epochs}-eps{m.eps:g}-s{self.seed}"

    @property
    def name(self) -> str:
        """Of its result; the same members judged otherwise have another."""
        return self.run + ("-attacks" if self.attacks else "") + (f"-k{self.k}" if self.k > 1 else "")

    def base(self) -> list[Member]:
        """The members it is made of or starts from."""
        return [replace(self.member, seed=10 * self.seed + index) for index in range(self.members)]

    def recipe(self, first: list[str]) -> Recipe:
        """How the method goes on from the runs `first`."""
        content, further = _settings(self.member), self.member.further
        content |= {"method": self.method, "members": self.members, "seed": 1000 + self.seed}
        content |= {"weight": self.weight, "sampling": {"method": "uniform", "every": 10**6}}
        if self.method in BOOSTED:
            # α uniform; later members have the epochs that the other methods add to all of them.
            content |= {"first": first[0], "start": "previous", "later_epochs": further}
        else:
            content |= {"first": first, "epochs": further}
        content["optimizer"]["lr"] = content["optimizer"]["later_lr"] = content["optimizer"]["lr"] / 2
        content["adversary"]["warmup"] = 0
        content["validation"]["every"] = max(1, further // 4)
        return recipe_from(content)


@dataclass(frozen=True)
class Shipped:
    """Members of the zoo as one ensemble: nothing is trained, so ResNet-20s can be judged on two cores."""

    label: str
    entries: tuple[str, ...]
    k: int = 1
    data: str = "cifar10"
    eps: float = 8 / 255
    images: int = 300

    @property
    def name(self) -> str:
        """Of its result."""
        return f"{self.data}-zoo-{self.label}" + (f"-k{self.k}" if self.k > 1 else "")


def _settings(member: Member) -> dict[str, Any]:
    """Recipe of one network: cheap enough that doubling its epochs can be afforded until it gains nothing."""
    if member.data == "cifar10":
        content = load_recipe(RECIPE).to_json()
        content |= {"epochs": member.epochs, "seed": member.seed}
        content["model"]["width"] = member.width
        return content
    return {
        "method": "at",
        "epochs": member.epochs,
        "batch_size": 128,
        "seed": member.seed,
        "ema": 0.99,
        "precision": "float32",
        "model": {"name": "mlp", "width": member.width, "depth": 2},
        "data": {"name": member.data},
        "threat": {"norm": "linf", "eps": member.eps},
        "adversary": {"name": "pgd", "steps": 3, "step": member.eps / 2, "warmup": member.epochs // 5},
        "loss": {"name": "mce"},
        "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
        "schedule": {"name": "cyclic", "peak": 0.3},
        "validation": {"attack": "adaptive-pgd-s", "steps": 10, "every": max(1, member.epochs // 4)},
        "sampling": {"method": "uniform"},
        "log_every": 10**6,
    }


def _cells() -> Iterable[Cell]:
    """In the order in which they are computed: what decides most comes first."""
    kinds = (*IDEAS[:1], ("continued", None), *IDEAS[1:], *((name, None) for name in BOOSTED))
    for seed in SEEDS:
        yield Cell(seed=seed)
        for method, weight in kinds:
            yield Cell(method, seed=seed, weight=weight)
    for method, weight in (("iat", None), *kinds[:2]):
        for seed in SEEDS:
            yield Cell(method, seed=seed, weight=weight, k=2)
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

_SMALL = Member("cifar10", width=16, epochs=20, eps=8 / 255)
CIFAR: tuple[Cell, ...] = tuple(
    Cell(method, _SMALL, members=3, weight=weight)
    for method, weight in (
        ("iat", None),
        ("bounded", 0.5),
        ("continued", None),
        ("joint", None),
        ("paths", None),
    )
)

_KINDS = (
    ("iat", ("cifar10-resnet20-at-25", "cifar10-resnet20-at-seed1")),
    ("barre", ("cifar10-resnet20-barre-m3",)),
    ("mixed", ("cifar10-resnet20-at-seed1", "cifar10-resnet20-barre-m3")),
)
ZOO: tuple[Shipped, ...] = (
    *(Shipped(label, entries) for label, entries in _KINDS),
    Shipped("barre", _KINDS[1][1], k=2),
    Shipped("mixed", _KINDS[2][1], k=2),
)
