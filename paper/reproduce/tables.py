"""The paper's tables, filled with what was measured, next to the paper's own numbers and in the paper's layout.

A table says which run fills each of its cells; missing runs leave cells empty. Numbers are accuracies
in percent. The paper's are in `paper.json`, transcribed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from paper.reproduce.measure import ATTACKS, Measured, Pair
from randens.core.files import read_json
from randens.training.methods import METHOD_NAMES

DATA = ("cifar10", "cifar100")
NETWORKS = ("resnet20", "mobilenetv1", "resnet18")
METHODS = ("iat", "mrboost", "barre")

ATTACK_NAMES = {
    "acw": "ACW (l2)",
    "afgsm": "AFGSM",
    "adaptive-pgd-l": "APGD-L",
    "adaptive-pgd-s": "APGD-S",
    "arc": "ARC",
    "arc-r": "ARC-R",
}
_ACCURACIES = ("A_nat", "A_rob")
_MOST_SIZES, _MOST_MEMBERS = 4, 5


@dataclass(frozen=True)
class Wanted:
    """A run in the paper's terms; smaller scales replace data and network by something smaller."""

    data: str
    network: str
    method: str


@dataclass(frozen=True)
class Cell:
    """One number of ours and one of the paper's, in percent (with unit "M": in MFLOPs); None where there is none."""

    ours: float | None
    paper: float | None
    unit: str = "%"

    def __str__(self) -> str:
        """Ours (the paper's)."""
        if self.ours is None and self.paper is None:
            return ""
        ours = "–" if self.ours is None else self._number(self.ours)
        return ours if self.paper is None else f"{ours} ({self._number(self.paper)})"

    def _number(self, value: float) -> str:
        if self.unit == "%":
            return f"{value:.2f}"
        return f"{value / 1000:.2g} B" if value >= 1000 else f"{value:.3g} M"


@dataclass(frozen=True)
class Row:
    """One line: its labels and cells."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper: `labels` head the leading columns, `columns` the cells.

    Rows with the same first label belong together, as the paper's networks do.
    """

    title: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...] = field(repr=False)

    def markdown(self) -> str:
        """A Markdown table; each cell: ours (the paper's)."""
        lines = ["| " + " | ".join((*self.labels, *self.columns)) + " |"]
        lines.append("|" + "---|" * len(self.labels) + "---:|" * len(self.columns))
        before = ""
        for row in self.rows:
            first = "" if row.labels[0] == before else row.labels[0]
            before = row.labels[0]
            lines.append("| " + " | ".join([first, *row.labels[1:], *map(str, row.cells)]) + " |")
        return "\n".join(lines)


@dataclass(frozen=True)
class Names:
    """What replaces the paper's networks and data at a scale, for labels."""

    networks: Mapping[str, str]
    data: Mapping[str, str]


Found = Mapping[Wanted, Measured]


@cache
def paper() -> dict[str, Any]:
    """The paper's numbers."""
    content: dict[str, Any] = read_json(Path(__file__).with_name("paper.json"))
    return content


def sampled_name(method: str) -> str:
    """The name of a method whose ensemble is sampled."""
    return METHOD_NAMES["mrboost-r" if method == "mrboost" else method]


def paper_names() -> Names:
    """The paper's own."""
    return Names(paper()["networks"], {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"})


def tables(found: Found, networks: Sequence[str] = NETWORKS, names: Names | None = None) -> tuple[Table, ...]:
    """Tables 1 to 6 of the paper, and the probabilities that it reports in the text as a seventh."""
    called = names or paper_names()
    return (
        _best(found, networks, called),
        _sizes(found, networks, "cifar10", "Table 2", called),
        _individual(found, networks, "cifar10", "Table 3", called),
        _individual(found, networks, "cifar100", "Table 4", called),
        _attacks(found, networks, called),
        _sizes(found, networks, "cifar100", "Table 6", called),
        _probabilities(found, networks, called),
    )


def _best(found: Found, networks: Sequence[str], names: Names) -> Table:
    rows = []
    for network in networks:
        for method, numbers in paper()["best"][network].items():
            uniform = method.endswith("-uniform")
            base = "mrboost" if method.startswith("mrboost") else method
            runs = [Wanted(data, network, base) for data in DATA]
            cells: list[Cell] = []
            for run in runs:
                have = found.get(run)
                pair = None if have is None else have.uniform if uniform else have.randomized[-1]
                cells += _cells(pair, numbers[run.data])
            members = [found[run].members for run in runs if run in found]
            size = f"M = {members[0] if members else '–'} ({numbers['members']})"
            one_hot = not uniform and any(found[run].one_hot for run in runs if run in found)
            label = "MRBoost-R†" if uniform else METHOD_NAMES[method] + ("‡" if one_hot else "")
            rows.append(Row((names.networks[network], label, size), tuple(cells)))
    columns = tuple(f"{names.data[data]} {name}" for data in DATA for name in _ACCURACIES)
    title = "Table 1. BARRE and other methods, randomized ensembles († uniform sampling)"
    return Table(title, ("Network", "Method", "Size M"), columns, tuple(rows))


def _sizes(found: Found, networks: Sequence[str], data: str, number: str, names: Names) -> Table:
    rows = []
    for network in networks:
        alone = found.get(Wanted(data, network, "at"))
        for method in ("mrboost", "barre"):
            have = found.get(Wanted(data, network, method))
            cells: list[Cell] = []
            for m, numbers in enumerate(paper()["sizes"][data][network][method], start=1):
                # Both methods begin with the same adversarially trained network.
                source = alone if m == 1 and alone is not None else have
                drawn = method == "barre" or source is alone
                pairs = () if source is None else source.randomized if drawn else source.deterministic
                together = m if method == "mrboost" else 1
                cost = sum(have.flops[:together]) / 1e6 if have is not None and m <= have.members else None
                cells += _cells(pairs[m - 1] if m <= len(pairs) else None, numbers)
                cells.append(Cell(cost, paper()["mflops"][network] * together, "M"))
            rows.append(Row((names.networks[network], METHOD_NAMES[method]), tuple(cells)))
    columns = tuple(f"M = {m} {name}" for m in range(1, _MOST_SIZES + 1) for name in (*_ACCURACIES, "FLOPs"))
    title = f"{number}. BARRE (randomized) and MRBoost (deterministic) by size, {names.data[data]}"
    return Table(title, ("Network", "Method"), columns, tuple(rows))


def _individual(found: Found, networks: Sequence[str], data: str, number: str, names: Names) -> Table:
    rows = []
    for network, method in itertools.product(networks, METHODS):
        have = found.get(Wanted(data, network, method))
        stated = paper()["individual"][data][network][method]
        cells: list[Cell] = []
        for i in range(_MOST_MEMBERS):
            pair = have.individual[i] if have is not None and i < have.members else None
            cells += _cells(pair, stated[i] if i < len(stated) else (None, None))
        rows.append(Row((names.networks[network], METHOD_NAMES[method]), tuple(cells)))
    columns = tuple(f"f{i} {name}" for i in range(1, _MOST_MEMBERS + 1) for name in _ACCURACIES)
    title = f"{number}. Members attacked alone, {names.data[data]}"
    return Table(title, ("Network", "Method"), columns, tuple(rows))


def _attacks(found: Found, networks: Sequence[str], names: Names) -> Table:
    rows = []
    for network, method in itertools.product(networks, METHODS):
        have = found.get(Wanted("cifar10", network, method))
        numbers = paper()["attacks"][network][method]
        cells = tuple(
            Cell(None if have is None or a not in have.attacks else 100 * have.attacks[a], numbers[a])
            for a in ATTACKS
        )
        rows.append(Row((names.networks[network], sampled_name(method)), cells))
    columns = tuple(ATTACK_NAMES[a] for a in ATTACKS)
    title = f"Table 5. Robust accuracy by attack, uniform sampling, {names.data['cifar10']}"
    return Table(title, ("Network", "Method"), columns, tuple(rows))


def _probabilities(found: Found, networks: Sequence[str], names: Names) -> Table:
    """α of each ensemble; the paper gives one, in its text, and no table."""
    rows = []
    for network, method, data in itertools.product(networks, METHODS, DATA):
        have = found.get(Wanted(data, network, method))
        stated = paper()["probabilities"].get(data, {}).get(network, {}).get(method) or ()
        ours = () if have is None else have.probs
        cells = tuple(map(Cell, _percent(ours), _percent(stated)))
        if ours or stated:
            rows.append(Row((names.networks[network], sampled_name(method), names.data[data]), cells))
    columns = tuple(f"α{i}" for i in range(1, _MOST_MEMBERS + 1))
    title = "Probabilities of the ensembles (Section 5, in the text)"
    return Table(title, ("Network", "Method", "Data"), columns, tuple(rows))


def _percent(probs: Sequence[float]) -> list[float | None]:
    return [*(100 * p for p in probs), *[None] * _MOST_MEMBERS][:_MOST_MEMBERS]


def _cells(pair: Pair | None, numbers: Sequence[float | None]) -> list[Cell]:
    return [Cell(None if pair is None else 100 * pair[i], numbers[i]) for i in range(2)]
