"""How far pages of the digits scale lie apart when they are made again, on another machine or with another seed.

    python -m paper.reproduce --scale digits --runs runs/again --seed 1 --page again.md
    python -m paper.reproduce.noise docs/reproduce.md again.md         # writes paper/reproduce/noise.json

With another seed training takes another course, and on another processor it does so from the first rounding on. So two
pages differ in a cell by about √2 times the standard deviation over pages.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import t as student

from randens.core.files import write_json

__all__ = ["GROUPS", "Noise", "cells", "group", "noise"]

RESULTS = Path(__file__).with_name("noise.json")
GROUPS = tuple(
    (data, network) for data in ("cifar10", "cifar100") for network in ("resnet20", "mobilenetv1", "resnet18")
)
KINDS = {
    "A_nat": "natural accuracy",
    "A_rob": "robust accuracy",
    "attack": "robust accuracy under one attack",
}

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Noise:
    """Standard deviations over pages in points, one for each kind of cell, pooled over `cells` of them each."""

    deviations: Mapping[str, float]
    cells: Mapping[str, int]
    pages: int

    def limit(self, kind: str, count: int, error: float = 0.01) -> float:
        """How large the largest of `count` differences of two pages may be, with probability 1 − `error`.

        Most cells move little, and a member that ends in another optimum moves by many points: Student's t with four
        degrees of freedom and the variance of a difference, 2·deviation².
        """
        return float(student.ppf(1 - error / (2 * max(1, count)), 4)) * self.deviations[kind]

    def mean_limit(self, kind: str) -> float:
        """By how many points cells may differ on average: twice the mean distance of two pages."""
        return 2 * 2 / math.sqrt(math.pi) * self.deviations[kind]

    @property
    def sentence(self) -> str:
        """For the page."""
        parts = ", ".join(f"{self.deviations[kind]:.1f} ({text})" for kind, text in KINDS.items())
        return (
            f"Made again with another seed, a cell has a standard deviation of {parts} points "
            f"({self.pages} seeds, {sum(self.cells.values())} cells)."
        )


def noise() -> Noise:
    """What was measured."""
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Noise(content["deviations"], content["cells"], content["pages"])


def kind(heading: str) -> str:
    """Which kind of number a column holds."""
    return next((name for name in ("A_nat", "A_rob") if heading.endswith(name)), "attack")


def cells(page: str) -> dict[Key, float]:
    """Our accuracies in Tables 1 to 6 of a page, by title, row (network, method, …) and column."""
    found: dict[Key, float] = {}
    title, headings, network = "", [""], ""
    for line in page.splitlines():
        if line.startswith("## "):
            title, headings = line.removeprefix("## "), [""]
        if not title.startswith("Table") or not line.startswith("| "):
            continue
        texts = [text.strip() for text in line.strip("|").split("|")]
        if headings == [""]:
            headings = texts
            continue
        network = texts[0] or network
        for heading, text in zip(headings[2:], texts[2:], strict=True):
            number = text.partition(" (")[0]
            if "(" in text and "=" not in number and not number.endswith(("M", "B", "–")):
                found[title, f"{network}, {texts[1]}", heading] = float(number)
    return found


def group(data: str, network: str) -> list[str]:
    """The names of the runs that fill the rows of a network on a data set, at the digits scale."""
    from paper.reproduce.runs import plan

    return [run.name for run in plan("digits") if (run.wanted.data, run.wanted.network) == (data, network)]


def spread(pages: Sequence[str]) -> Noise:
    """Pooled standard deviations of the cells that all pages have."""
    found = [cells(page) for page in pages]
    shared = sorted(set.intersection(*(set(page) for page in found)))
    variances: dict[str, list[float]] = {name: [] for name in KINDS}
    for key in shared:
        variances[kind(key[2])].append(statistics.variance([page[key] for page in found]))
    pooled = {name: math.sqrt(_mean(values)) for name, values in variances.items()}
    return Noise(pooled, {name: len(values) for name, values in variances.items()}, len(pages))


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / max(1, len(listed))


def main() -> None:
    """Write down the spread of the pages given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", type=Path, nargs="+", help="at least two")
    given = parser.parse_args()
    write_json(RESULTS, vars(spread([path.read_text(encoding="utf-8") for path in given.pages])))


if __name__ == "__main__":
    main()
