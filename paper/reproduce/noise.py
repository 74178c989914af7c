"""How far the cells of the digits scale lie apart between seeds, and how far a page made again may lie from the page.

    python -m paper.reproduce.noise train --folder runs/noise     # one group of runs, one folder for each seed
    python -m paper.reproduce.noise collect --folder runs/noise   # writes paper/reproduce/noise.json

On another processor training takes another course from the first rounding on, as it does with another seed. So two
pages differ in a cell by about √2 times the standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from randens.core.files import write_json

__all__ = ["GROUPS", "Noise", "cells", "group", "noise"]

RESULTS = Path(__file__).with_name("noise.json")
SEEDS = (0, 1, 2)
GROUPS = tuple(
    (data, network) for data in ("cifar10", "cifar100") for network in ("resnet20", "mobilenetv1", "resnet18")
)
MEASURED = ("cifar10", "mobilenetv1")
"""The group whose spread is measured: the cheapest one that fills all kinds of cells."""

KINDS = {
    "A_nat": "natural accuracy",
    "A_rob": "robust accuracy",
    "attack": "robust accuracy under one attack",
}

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Noise:
    """Standard deviations over seeds in points, one for each kind of cell, pooled over `cells` of them each."""

    deviations: Mapping[str, float]
    cells: Mapping[str, int]
    seeds: Sequence[int]

    def limit(self, kind: str, count: int, error: float = 0.01) -> float:
        """By how many points the largest of `count` differences may exceed 0, with probability 1 − `error`."""
        z = statistics.NormalDist().inv_cdf(1 - error / (2 * max(1, count)))
        return z * math.sqrt(2) * self.deviations[kind]

    def mean_limit(self, kind: str) -> float:
        """By how many points cells may differ on average: twice the mean distance of two seeds."""
        return 2 * 2 / math.sqrt(math.pi) * self.deviations[kind]

    @property
    def sentence(self) -> str:
        """For the page."""
        parts = ", ".join(f"{self.deviations[kind]:.1f} ({text})" for kind, text in KINDS.items())
        return (
            f"Over {len(self.seeds)} seeds a cell has a standard deviation of {parts} points, measured with the "
            "perceptron at ε = 0.1; on another processor, where training takes another course, cells differ alike."
        )


def noise() -> Noise:
    """What was measured."""
    content = json.loads(RESULTS.read_text(encoding="utf-8"))
    return Noise(content["deviations"], content["cells"], content["seeds"])


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


def spread(pages: Sequence[str], seeds: Sequence[int]) -> Noise:
    """Pooled standard deviations of the cells that all pages have."""
    found = [cells(page) for page in pages]
    shared = sorted(set.intersection(*(set(page) for page in found)))
    variances: dict[str, list[float]] = {name: [] for name in KINDS}
    for key in shared:
        variances[kind(key[2])].append(statistics.variance([page[key] for page in found]))
    pooled = {name: math.sqrt(_mean(values)) for name, values in variances.items()}
    return Noise(pooled, {name: len(values) for name, values in variances.items()}, seeds)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / max(1, len(listed))


def main() -> None:
    """Train the runs, or write down their spread."""
    from paper.reproduce.runs import reproduce

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("train", "collect"))
    parser.add_argument("--folder", type=Path, default=Path("runs/noise"))
    given = parser.parse_args()
    pages = []
    for seed in SEEDS:
        names = group(*MEASURED) if given.what == "train" else []
        pages.append(reproduce("digits", given.folder / str(seed), seed=seed, names=names).page())
    if given.what == "collect":
        write_json(RESULTS, vars(spread(pages, SEEDS)))


if __name__ == "__main__":
    main()
