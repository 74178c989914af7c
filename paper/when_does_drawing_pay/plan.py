"""The cells of the map: which members are trained how, and along which axis they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paper.when_does_drawing_pay.averages import SIDE
from randens.training import load_recipe
from randens.training.recipe import Recipe, recipe_from

__all__ = [
    "AS_THEY_ARE",
    "AVERAGES",
    "CELLS",
    "CIFAR",
    "FINAL",
    "FINALS",
    "FINAL_SEEDS",
    "MOVED",
    "SEEDS",
    "SMALL_FINALS",
    "STACKED",
    "STRIDED",
    "TRIED",
    "ZOO",
    "Cell",
    "Member",
    "Shipped",
    "singles",
]

SEEDS = (0, 1, 2)
FINAL_SEEDS = (0, 1, 2, 3, 4)
LENGTHS = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800)
WIDTHS = (16, 32, 52)  # 52: twice the FLOPs of 32, as 2 of M have
MIXED = (16, 16, 32, 52)  # widths of members that differ in it; their mean FLOPs are 0.95 of those of 32
RADII = (0.1, 0.2, 0.3)
COUNTS = (2, 4, 8, 16)
NORMS = (("linf", 0.2), ("l2", 0.6))
NARROW = 16  # units; smaller networks than the map's, to see what longer training does to them
NARROW_LENGTHS = (200, 400, 800)
AVERAGES_LENGTHS = (4, 8, 16)
BASE = 200
FURTHER = BASE // 2
MEMBERS = 4
MANY = 8
MOST = 16
SHARE = 0.5  # of the examples that are common, in every ensemble that is compared on test data
MOST_LENGTHS = (400, 1600, 3200)
LONG = MOST_LENGTHS[-1]
IDEAS: tuple[tuple[str, float | None], ...] = (
    ("bounded", 0.5),
    ("shared", 0.5),
    ("bounded", 0.75),
    ("shared", 0.25),
    ("shared", 1.0),
    ("conflict", None),
    ("distil", None),
    ("columns", None),
    ("features", None),
    ("paths", None),
    ("mixed", None),
)
AS_THEY_ARE = ("iat", "mixed")  # members by AT that are not trained further
BOOSTED = ("mrboost", "barre", "columns")
STACKED = (
    "shared",
    "bounded",
    "conflict",
    "distil",
)  # methods of the stacked trainer; the engine trains the others
AVERAGES = "cifar10-averages"
MOVED = "digits-moved"  # digits, trained on moved copies; an epoch is over all copies
MOVED_LENGTHS = (25, 50, 100, 200, 400, 800)
MOVED_LONG = (200, 400, 800, 1600)  # with `MANY` members of each seed, which the plateau needs
MOVED_FINAL = 200  # epochs of the members that the final comparison starts from
# The longest that are among the single networks of a comparison; longer ones were trained later, for the plateau.
LONGEST = {"digits": 6400, MOVED: MOVED_FINAL, AVERAGES: AVERAGES_LENGTHS[-1]}
RECIPE = Path(__file__).parents[2] / "recipes" / "study" / "cifar10-strided-at.toml"
ATTACKS = ("adaptive-pgd-s", "arc", "arc-r-20", "arc-r-100", "lattice", "saddle", "suite")


@dataclass(frozen=True)
class Member:
    """One network by adversarial training; what every ensemble of the map is made of, or starts from.

    more: so many epochs further. by: with which loss these are; without `more`, all epochs.
    """

    data: str = "digits"
    width: int = 32
    epochs: int = BASE
    eps: float = 0.2
    seed: int = 0
    norm: str = "linf"
    more: int = 0
    by: str = "at"

    @property
    def settings(self) -> str:
        """Everything but the seed, for names."""
        norm = "" if self.norm == "linf" else f"{self.norm}-"
        return f"w{self.width}-e{self.epochs}-{norm}eps{self.eps:g}"

    @property
    def name(self) -> str:
        more = f"-and-{self.more}{'' if self.by == 'at' else '-' + self.by}" if self.more else ""
        by = "at" if self.more else self.by
        return f"{self.data}-{by}-{self.settings}-s{self.seed}{more}"

    @property
    def further(self) -> int:
        """Epochs by which the methods go on from members like this."""
        return self.epochs // {"digits": 2, "cifar10": 3, AVERAGES: 1, MOVED: 4}[self.data]

    @property
    def on(self) -> Member:
        """The same network trained on by AT for as many epochs as the methods add."""
        return replace(self, more=self.further)

    @property
    def bounded(self) -> Member:
        """The same network trained on alone by `bounded`, so that its loss is open to single networks too."""
        return replace(self, more=self.further, by="bounded")

    def recipe(self) -> Recipe:
        """How it is trained."""
        weight = None if self.by == "at" else SHARE
        return recipe_from(_settings(self) | {"method": self.by, "weight": weight})


@dataclass(frozen=True)
class Cell:
    """One ensemble: `method` on members like `member`, whose seeds are 20·seed, 20·seed + 1, … (100·seed for `MOVED`)

    "iat": these members themselves. "mixed": the same with the widths `MIXED`. "continued": each of them trained on by
    AT for half as many epochs again, which is what the other methods are compared with at equal passes. attacks: by
    which attacks it is judged beside the saddle climber. k: k of the members are drawn and their logits averaged; the
    subsets of k are what is judged. scratch: the method trains random weights for the members' epochs, instead of going
    on from members.
    """

    method: str = "iat"
    member: Member = Member()
    members: int = MEMBERS
    seed: int = 0
    attacks: tuple[str, ...] = ()
    weight: float | None = None
    k: int = 1
    scratch: bool = False

    @property
    def label(self) -> str:
        """The method, with its weight."""
        weight = "" if self.weight is None else f"-{self.weight:g}"
        return f"{self.method}{weight}{'-scratch' if self.scratch else ''}"

    @property
    def run(self) -> str:
        """Of the run that trains it."""
        return f"{self.member.data}-{self.label}-m{self.members}-{self.member.settings}-s{self.seed}"

    @property
    def total(self) -> int:
        """Epochs of a member, in all."""
        alone = self.scratch or self.method in AS_THEY_ARE
        return self.member.epochs + (0 if alone else self.member.further)

    @property
    def name(self) -> str:
        """Of its result; the same members judged otherwise have another."""
        return self.run + ("-attacks" if self.attacks else "") + (f"-k{self.k}" if self.k > 1 else "")

    def base(self) -> list[Member]:
        """The members it is made of or starts from; those of the same epochs by AT where it starts from none."""
        apart = 100 if self.member.data == MOVED else 20
        alike = [replace(self.member, seed=apart * self.seed + index) for index in range(self.members)]
        if self.method != "mixed":
            return alike
        return [replace(one, width=width) for one, width in zip(alike, MIXED, strict=True)]

    def recipe(self, first: list[str]) -> Recipe:
        """How the method goes on from the runs `first`, or, without any, from random weights."""
        content, further = _settings(self.member), self.member.further
        content |= {"method": self.method, "members": self.members, "seed": 1000 + self.seed}
        content |= {"weight": self.weight, "sampling": {"method": "uniform", "every": 10**6}}
        if self.scratch:
            return recipe_from(content)
        if self.method in BOOSTED:
            # α uniform; later members have the epochs that the other methods add to all of them.
            content |= {"first": first[0], "start": "previous", "later_epochs": further}
        else:
            content |= {"first": first, "epochs": further}
        content["optimizer"]["lr"] = content["optimizer"]["later_lr"] = content["optimizer"]["lr"] / 2
        content["adversary"]["warmup"] = 0
        content["validation"]["every"] = further
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
        content["validation"]["every"] = member.epochs
        content["model"]["width"] = member.width
        return content
    averages = member.data == AVERAGES
    # Averages of 4×4 pixels move by at most ε / 4; see `averages`.
    eps = member.eps / SIDE if averages else member.eps
    return {
        "method": "at",
        "epochs": member.epochs,
        "batch_size": 128,
        "seed": member.seed,
        "ema": 0.998 if averages else 0.99,
        "precision": "float32",
        "model": {"name": "mlp", "width": member.width, "depth": 1 if averages else 2},
        "data": {"name": "cifar10" if averages else "digits"},
        "threat": {"norm": member.norm, "eps": eps},
        "adversary": {
            "name": "pgd",
            "steps": 2 if averages else 3,
            "step": 0.8 * eps if averages else eps / 2,
            "start": 0 if averages else 1,
            "warmup": member.epochs // 5,
        },
        "loss": {"name": "mce"},
        "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
        "schedule": {"name": "cyclic", "peak": 0.3},
        # The last weights count: nothing is chosen on the images that the map is judged on.
        "validation": {"attack": "adaptive-pgd-s", "steps": 10, "every": member.epochs, "keep": "last"},
        "sampling": {"method": "uniform"},
        "log_every": 10**6,
    }


def _cells() -> Iterable[Cell]:
    """In the order in which they are computed: what decides most comes first."""
    fast = [(name, weight) for name, weight in IDEAS if name in STACKED]
    slow = [(name, weight) for name, weight in IDEAS if name not in STACKED]
    groups: list[Cell] = [
        *(Cell(members=members) for members in COUNTS),
        Cell("bounded", members=MANY, weight=0.5),
        Cell("bounded", weight=0.5),
        Cell("continued"),
        *(Cell(member=Member(epochs=epochs)) for epochs in LENGTHS),
        *(Cell(member=Member(eps=eps)) for eps in RADII),
        *(Cell(member=Member(eps=eps, norm=norm)) for norm, eps in NORMS),
        *(Cell(member=Member(width=width)) for width in WIDTHS),
        Cell(attacks=ATTACKS),
        Cell(k=2),
        Cell("bounded", weight=0.5, k=2),
        *(Cell(method, weight=weight) for method, weight in fast),
        *(Cell(method, weight=weight) for method, weight in slow),
        *(Cell(method) for method in BOOSTED),
        *(Cell("bounded", Member(epochs=epochs), members=MOST, weight=0.5) for epochs in MOST_LENGTHS),
        *(Cell(member=Member(width=NARROW, epochs=epochs)) for epochs in NARROW_LENGTHS),
        NARROW_BOUNDED,
        *(Cell(member=Member(MOVED, epochs=epochs)) for epochs in MOVED_LENGTHS),
        *(Cell(member=Member(MOVED, epochs=epochs), members=MANY) for epochs in MOVED_LONG),
        *TRIED,
        FINAL,
    ]
    for group in groups:
        yield from (replace(group, seed=seed) for seed in SEEDS)


# Of the final comparison, with `singles`: the best on validation data; then those that were compared before.
FINAL = Cell("bounded", Member(MOVED, epochs=MOVED_FINAL), members=MANY, weight=SHARE)
# On validation data only: from random weights, many members or long training; twice as many members as the final; and
# the final one from longer AT.
TRIED = (
    *(
        Cell("bounded", Member(MOVED, epochs=epochs), members=members, weight=SHARE, scratch=True)
        for epochs, members in ((50, 2 * MOST), (MOVED_FINAL, MANY))
    ),
    replace(FINAL, members=MOST),
    *(replace(FINAL, member=Member(MOVED, epochs=epochs)) for epochs in (800, 1600)),
)
FINALS = (
    FINAL,
    *(
        Cell("bounded", Member(epochs=epochs), members=members, weight=SHARE)
        for epochs, members in ((LONG, MOST), (2 * BASE, MANY), (BASE, MANY))
    ),
)
NARROW_BOUNDED = Cell("bounded", Member(width=NARROW, epochs=NARROW_LENGTHS[-1]), members=MANY, weight=0.5)

CELLS: tuple[Cell, ...] = tuple(dict.fromkeys(_cells()))


def singles(cell: Cell) -> list[Member]:
    """Single networks of the members' size to compare with: those that the members are or started from, some of them
    trained on by AT and by the ensemble's own loss for as many epochs as the ensemble was, and some of every greater
    length up to `LONGEST`. Where the ensemble starts from random weights: some by its own loss, and some by AT of
    every length."""
    base = cell.base()
    if cell.method in AS_THEY_ARE:
        return base
    some = base[:MEMBERS]
    data = cell.member.data
    run = {"digits": LENGTHS, MOVED: MOVED_LENGTHS, AVERAGES: AVERAGES_LENGTHS}[data]
    lengths = tuple(epochs for epochs in run if epochs <= LONGEST[data])
    if cell.scratch:
        same = [replace(one, by="bounded") for one in some]
        return [*same, *(replace(one, epochs=e) for e in lengths for one in some)]
    longer = [replace(one, epochs=e) for e in lengths if e > cell.member.epochs for one in some]
    return [*base, *(one.on for one in some), *(one.bounded for one in some), *longer]


STRIDED = Cell("iat", Member("cifar10", width=8, epochs=12, eps=0.5, norm="l2"), members=2)
_AVERAGES = Member(AVERAGES, width=32, epochs=AVERAGES_LENGTHS[0], eps=0.5, norm="l2")
SMALL_FINAL = Cell("bounded", _AVERAGES, weight=0.5)
SMALL_FINALS = tuple(replace(SMALL_FINAL, seed=seed) for seed in SEEDS)
_SMALL = (
    *(Cell("iat", replace(_AVERAGES, epochs=epochs)) for epochs in AVERAGES_LENGTHS),
    SMALL_FINAL,
    replace(SMALL_FINAL, k=2),
)
CIFAR: tuple[Cell, ...] = (
    *(replace(cell, seed=seed) for cell in _SMALL for seed in SEEDS),
    # More members and a larger radius, where natural and robust accuracy are further apart.
    *(
        Cell(method, replace(_AVERAGES, eps=1.0, epochs=epochs), members=MOST, weight=weight)
        for method, epochs, weight in (("bounded", 4, SHARE), ("iat", 8, None))
    ),
    STRIDED,
)

_KINDS = (
    ("iat", ("cifar10-resnet20-at-25", "cifar10-resnet20-at-seed1")),
    ("barre", ("cifar10-resnet20-barre-m3",)),
    ("mixed", ("cifar10-resnet20-at-seed1", "cifar10-resnet20-barre-m3")),
    ("longest", ("cifar10-resnet20-at-25", "cifar10-resnet20-barre-m3")),
)
ZOO: tuple[Shipped, ...] = (
    *(Shipped(label, entries) for label, entries in _KINDS),
    *(Shipped(label, entries, k=2) for label, entries in _KINDS[1:]),
)
