"""The rows of the paper's own Tables 1 to 6, for the check of published tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from paper.published import Reported, ReportedAttack, audit_published
from paper.reproduce.measure import ATTACKS
from paper.reproduce.tables import (
    ATTACK_NAMES,
    DATA,
    METHODS,
    NETWORKS,
    paper,
    paper_names,
)
from randens.training.methods import METHOD_NAMES

__all__ = ["paper_rows", "repeated"]

_EPS = 8 / 255
_ACW_EPS = 2.0


def paper_rows() -> tuple[Reported, ...]:
    """Every randomized ensemble of the paper: Table 1 with the members of Tables 3 and 4, by size, and Table 5."""
    return (*_best(), *_sizes(), *_attacks())


def _best() -> Iterator[Reported]:
    for data in DATA:
        for network in NETWORKS:
            for method, numbers in paper()["best"][network].items():
                if method == "at":
                    continue
                base = "mrboost" if method.startswith("mrboost") else method
                alone = paper()["individual"][data][network][base]
                stated = paper()["probabilities"].get(data, {}).get(network, {}).get(base)
                uniform = method.endswith("-uniform")
                count = numbers["members"]
                probs = (1 / count,) * count if uniform else None
                if stated is not None and not uniform:
                    probs = tuple(stated)
                label = f"{METHOD_NAMES['mrboost-r' if base == 'mrboost' else base]}{'†' if uniform else ''}"
                yield Reported(
                    f"Table 1, {paper()['networks'][network]}, {paper_names().data[data]}, {label}",
                    tuple(robust / 100 for _, robust in alone),
                    numbers[data][1] / 100,
                    probs,
                    natural=numbers[data][0] / 100,
                    members_natural=tuple(natural / 100 for natural, _ in alone),
                )


def _sizes() -> Iterator[Reported]:
    for data, table in zip(DATA, ("Table 2", "Table 6"), strict=True):
        for network in NETWORKS:
            alone = paper()["individual"][data][network]["barre"]
            for m, (natural, robust) in enumerate(paper()["sizes"][data][network]["barre"], start=1):
                if m > 1:
                    yield Reported(
                        f"{table}, {paper()['networks'][network]}, {paper_names().data[data]}, BARRE, M = {m}",
                        tuple(value / 100 for _, value in alone[:m]),
                        robust / 100,
                        natural=natural / 100,
                        members_natural=tuple(value / 100 for value, _ in alone[:m]),
                    )


def _attacks() -> Iterator[Reported]:
    for network in NETWORKS:
        for method in METHODS:
            numbers = paper()["attacks"][network][method]
            count = paper()["best"][network]["barre"]["members"]
            alone = paper()["individual"]["cifar10"][network][method]
            yield Reported(
                f"Table 5, {paper()['networks'][network]}, "
                f"{METHOD_NAMES['mrboost-r' if method == 'mrboost' else method]}",
                tuple(robust / 100 for _, robust in alone),
                numbers["arc-r"] / 100,
                (1 / count,) * count,
                tuple(
                    ReportedAttack(
                        ATTACK_NAMES[name].split(" ")[0],
                        numbers[name] / 100,
                        "l2" if name == "acw" else "linf",
                        _ACW_EPS if name == "acw" else _EPS,
                    )
                    for name in ATTACKS
                ),
            )


def repeated() -> tuple[str, ...]:
    """Numbers that the paper prints in two places, where they should differ or do."""
    said = []
    stated = paper()
    for network in NETWORKS:
        name = stated["networks"][network]
        for method in ("iat", "mrboost-r", "barre"):
            row = stated["best"][network][method]
            if stated["attacks"][network][method.removesuffix("-r")]["arc-r"] == row["cifar10"][1]:
                label = f"{name}, {paper_names().data['cifar10']}, {METHOD_NAMES[method]}"
                (table1,) = (one for one in _best() if one.name == f"Table 1, {label}")
                equal = audit_published(table1).uniform_possible
                said.append(
                    f"{label}: Table 1 (α by OSP) and Table 5 (equal probabilities) have the same robust accuracy; "
                    f"the natural accuracies {'fit' if equal else 'exclude'} equal probabilities"
                )
        for data in DATA:
            best = stated["best"][network]["barre"][data]
            sizes = stated["sizes"][data][network]["barre"]
            members = stated["best"][network]["barre"]["members"]
            if members <= len(sizes) and sizes[members - 1] != best:
                said.append(
                    f"{name}, {paper_names().data[data]}: BARRE with M = {members} is {best} in Table 1 and "
                    f"{sizes[members - 1]} by size"
                )
            boosted = stated["sizes"][data][network]["mrboost"]
            said += [
                f"{name}, {paper_names().data[data]}: MRBoost with M = {m} and M = {m + 1} have the same numbers {one}"
                for m, (one, two) in enumerate(pairwise(boosted), start=1)
                if one == two
            ]
    return tuple(said)
