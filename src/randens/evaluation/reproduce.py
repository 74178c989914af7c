"""The paper's tables, filled with what was measured, next to the paper's own numbers.

A table knows which run answers each of its cells; runs that are not there leave cells empty. Numbers are accuracies
in per cent. The paper's are in `paper.json`, transcribed once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from randens.evaluation.measuring import ATTACKS, Measured

__all__ = ["Cell", "METHOD_NAMES", "Row", "Table", "Wanted", "paper", "tables"]

DATA = ("cifar10", "cifar100")
NETWORKS = ("resnet20", "mobilenetv1", "resnet18")
METHODS = ("iat", "mrboost", "barre")

METHOD_NAMES = {"at": "AT", "iat": "IAT", "mrboost": "MRBoost", "mrboost-r": "MRBoost-R", "barre": "BARRE"}
_ATTACK_NAMES = {
    "cw": "ACW (l2)",
    "afgsm": "AFGSM",
    "adaptive-pgd-l": "APGD-L",
    "adaptive-pgd-s": "APGD-S",
    "arc": "ARC",
    "arc-r": "ARC-R",
}


@dataclass(frozen=True)
class Wanted:
    """A run in the paper's terms: data set, network, method; at smaller scales something smaller stands for it."""

    data: str
    network: str
    method: str


@dataclass(frozen=True)
class Cell:
    """One number of ours and one of the paper's, in per cent; None where there is none."""

    ours: float | None
    paper: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return {"ours": self.ours, "paper": self.paper, "difference": self.difference}


@dataclass(frozen=True)
class Row:
    """One line: who, the cells, and the run that filled it."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    runs: tuple[Wanted, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the paper. headings: of the labels, then of the cells."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[Row, ...] = field(repr=False)

    @property
    def filled(self) -> int:
        """How many cells have a number of ours."""
        return sum(cell.ours is not None for row in self.rows for cell in row.cells)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        rows = [{"labels": list(r.labels), "cells": [c.to_json() for c in r.cells]} for r in self.rows]
        return {"name": self.name, "title": self.title, "headings": list(self.headings), "rows": rows}

    def markdown(self) -> str:
        """Each cell: ours, the paper's and the difference."""
        lines = ["| " + " | ".join(self.headings) + " |", "|" + "---|" * len(self.headings)]
        for row in self.rows:
            lines.append("| " + " | ".join([*row.labels, *(_text(cell) for cell in row.cells)]) + " |")
        return "\n".join(lines)


Found = Mapping[Wanted, Measured]
Names = Callable[[str, str], str]
"""(data, network) in the paper's terms → what stands for them at this scale, for labels."""


@cache
def paper() -> dict[str, Any]:
    """The paper's numbers."""
    text = resources.files("randens.evaluation").joinpath("paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def tables(found: Found, networks: Sequence[str] = NETWORKS, names: Names | None = None) -> tuple[Table, ...]:
    """Tables 1 to 6 of the paper, and the probabilities that it reports in the text as a seventh."""
    title = names or (lambda data, network: f"{paper()['networks'][network]}, {_data_name(data)}")
    return (
        _best(found, networks, title),
        _sizes(found, networks, "cifar10", "Table 2", title),
        _individual(found, networks, "cifar10", "Table 3", title),
        _individual(found, networks, "cifar100", "Table 4", title),
        _attacks(found, networks, title),
        _sizes(found, networks, "cifar100", "Table 6", title),
        _probabilities(found, networks, title),
    )


def _best(found: Found, networks: Sequence[str], names: Names) -> Table:
    rows = []
    for network in networks:
        for method, numbers in paper()["best"][network].items():
            base = "mrboost" if method.startswith("mrboost") else method
            for data in DATA:
                run = Wanted(data, network, base)
                have = found.get(run)
                pair = None
                if have is not None:
                    pair = have.uniform if method.endswith("-uniform") else have.randomized[-1]
                label = "MRBoost-R, uniform α" if method.endswith("-uniform") else METHOD_NAMES[method]
                size = f"{'–' if have is None else have.members} ({numbers['members']})"
                rows.append(Row((names(data, network), label, size), _cells(pair, numbers[data]), (run,)))
    headings = ("network, data", "method", "M (paper)", "natural", "robust")
    return Table("table1", "Table 1. BARRE and other ways to randomized ensembles", headings, tuple(rows))


def _sizes(found: Found, networks: Sequence[str], data: str, number: str, names: Names) -> Table:
    rows = []
    for network in networks:
        for method in ("mrboost", "barre"):
            run = Wanted(data, network, method)
            have = found.get(run)
            for m, numbers in enumerate(paper()["sizes"][data][network][method], start=1):
                pairs = () if have is None else have.deterministic if method == "mrboost" else have.randomized
                pair = pairs[m - 1] if m <= len(pairs) else None
                cost = paper()["mflops"][network] * (m if method == "mrboost" else 1)
                ours = None
                if have is not None and m <= have.members:
                    ours = (sum(have.flops[:m]) if method == "mrboost" else have.flops[0]) / 1e6
                labels = (names(data, network), METHOD_NAMES[method], str(m), _flops(ours, cost))
                rows.append(Row(labels, _cells(pair, numbers), (run,)))
    headings = ("network, data", "method", "M", "MFLOPs (paper)", "natural", "robust")
    title = f"{number}. Randomized (BARRE) and deterministic (MRBoost) ensembles by size"
    return Table(number.lower().replace(" ", ""), title, headings, tuple(rows))


def _individual(found: Found, networks: Sequence[str], data: str, number: str, names: Names) -> Table:
    rows = []
    for network in networks:
        for method in METHODS:
            run = Wanted(data, network, method)
            have = found.get(run)
            for i, numbers in enumerate(paper()["individual"][data][network][method]):
                pair = have.individual[i] if have is not None and i < have.members else None
                labels = (names(data, network), METHOD_NAMES[method], f"f{i + 1}")
                rows.append(Row(labels, _cells(pair, numbers), (run,)))
    headings = ("network, data", "method", "member", "natural", "robust")
    title = f"{number}. Members attacked alone"
    return Table(number.lower().replace(" ", ""), title, headings, tuple(rows))


def _attacks(found: Found, networks: Sequence[str], names: Names) -> Table:
    rows = []
    for network in networks:
        for method in METHODS:
            run = Wanted("cifar10", network, method)
            have = found.get(run)
            numbers = paper()["attacks"][network][method]
            cells = tuple(
                Cell(None if have is None or a not in have.attacks else 100 * have.attacks[a], numbers[a])
                for a in ATTACKS
            )
            label = METHOD_NAMES["mrboost-r" if method == "mrboost" else method]
            rows.append(Row((names("cifar10", network), label), cells, (run,)))
    headings = ("network, data", "method", *(_ATTACK_NAMES[a] for a in ATTACKS))
    return Table("table5", "Table 5. Robust accuracy by attack, uniform α", headings, tuple(rows))


def _probabilities(found: Found, networks: Sequence[str], names: Names) -> Table:
    """α of each ensemble; the paper gives one, in its text, and no table."""
    rows = []
    for data in DATA:
        for network in networks:
            for method in METHODS:
                run = Wanted(data, network, method)
                have = found.get(run)
                stated = paper()["probabilities"].get(data, {}).get(network, {}).get(method)
                count = max(len(stated or ()), have.members if have is not None else 0)
                if count == 0:
                    continue
                ours = () if have is None else have.probs
                cells = tuple(
                    Cell(
                        100 * ours[i] if i < len(ours) else None,
                        100 * stated[i] if stated is not None and i < len(stated) else None,
                    )
                    for i in range(count)
                )
                rows.append(Row((names(data, network), METHOD_NAMES[method]), cells, (run,)))
    widest = max((len(row.cells) for row in rows), default=0)
    rows = [Row(r.labels, r.cells + (Cell(None, None),) * (widest - len(r.cells)), r.runs) for r in rows]
    headings = ("network, data", "method", *(f"α{i + 1}" for i in range(widest)))
    return Table("table7", "Probabilities of the ensembles (Section 5, in the text)", headings, tuple(rows))


def _cells(pair: tuple[float, float] | None, numbers: Sequence[float]) -> tuple[Cell, ...]:
    return tuple(Cell(None if pair is None else 100 * pair[i], numbers[i]) for i in range(2))


def _text(cell: Cell) -> str:
    if cell.ours is None and cell.paper is None:
        return ""
    ours = "–" if cell.ours is None else f"{cell.ours:.2f}"
    if cell.paper is None:
        return ours
    difference = "" if cell.difference is None else f", {cell.difference:+.2f}"
    return f"{ours} ({cell.paper:.2f}{difference})"


def _flops(ours: float | None, stated: float) -> str:
    return f"{'–' if ours is None else f'{ours:.3g}'} ({stated:g})"


def _data_name(data: str) -> str:
    return {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[data]
