"""The paper's central comparison with networks trained to their plateau: one ResNet-20 against several, sampled.

    python -m paper.plateau                       the table, from the evaluations in this folder; seconds
    python -m paper.plateau measure --limit 1000  attack the networks in this folder again; hours for all 10,000 images

IAT: the networks at50-s*, trained independently. BARRE: barre25, whose first member is at50-s0.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paper.reproduce.tables import paper
from randens import DeterministicEnsemble, RandomizedEnsemble, data, evaluate, load, optimize_sampling
from randens.core.progress import bars
from randens.evaluation import Estimate, Evaluation, difference, estimate

FOLDER = Path(__file__).parent
JUDGES = ("arc-r", "standard")
ATTEMPTS = (1, 2, 10)
PAYS = 0.02
"""Uniform sampling of five networks must be so far above the best of them under the suite for "it pays"."""

Weights = NDArray[np.float64]


def members(method: str, folder: Path = FOLDER) -> list[Path]:
    """The ensemble folders that a method's members are in."""
    pattern = "at50-s*/ensemble" if method == "iat" else "barre25/ensemble"
    return sorted(path for path in folder.glob(pattern) if (path / "ensemble.json").is_file())


def first(m: int, size: int) -> Weights:
    """Uniform over the first m of all members."""
    return np.where(np.arange(size) < m, 1 / m, 0.0)


def measure(method: str, judge: str, limit: int | None, folder: Path = FOLDER) -> None:
    """Attack the first m members for every m, sampled and averaged; α is also chosen, on validation images."""
    networks = [member for path in members(method, folder) for member in load(path).members]
    threat = load(members(method, folder)[0]).threat
    rec = RandomizedEnsemble(networks, threat=threat)
    size, test = len(rec), data.load("cifar10", "test")
    with bars() as progress:
        chosen = optimize_sampling(
            rec, data.load("cifar10", "validation"), "arc-r", confidence=0.95, limit=limit, progress=progress
        )
        also = {f"first {m}": first(m, size) for m in range(1, size)} | {"chosen": chosen.probs}
        found = evaluate(rec, test, judge, limit=limit, also=also, folder=folder, progress=progress)
        found.save(folder / f"{method}-{judge}.json")
        for m in range(2, size + 1):
            averaged = evaluate(
                DeterministicEnsemble(networks[:m]),
                test,
                judge,
                threat=threat,
                limit=limit,
                progress=progress,
            )
            averaged.save(folder / f"{method}-average{m}-{judge}.json")


def robust(found: Evaluation, probs: Weights, attempts: float = 1) -> Estimate:
    """Robust accuracy at these probabilities after so many attempts, each with a fresh draw."""
    return estimate((1 - found.pool.best(probs)[0]) ** attempts)


def lines(folder: Path = FOLDER) -> Iterator[str]:
    """The table in the paper's layout, for every method and judge that was measured, and what follows."""
    for method in ("iat", "barre"):
        for judge in JUDGES:
            path = folder / f"{method}-{judge}.json"
            if path.is_file():
                found = Evaluation.load(path)
                yield from _table(method, judge, found, folder)
                yield from _verdict(method, judge, found)


def _table(method: str, judge: str, found: Evaluation, folder: Path) -> Iterator[str]:
    yield f"## {method.upper()} under {judge}, {found.n:,} test images"
    yield ""
    heads = ["M", "natural", "best member", "uniform", "average of M", "2 attempts", "10 attempts", "paper"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---:|" * len(heads)
    for m in range(1, found.members + 1):
        alpha = first(m, found.members)
        alone = max(float(each.robust) for each in found.member_accuracies[:m])
        averaged = folder / f"{method}-average{m}-{judge}.json"
        average = _percent(Evaluation.load(averaged).robust) if averaged.is_file() else ""
        after = [_percent(robust(found, alpha, q)) for q in ATTEMPTS]
        natural = f"{100 * float(found.at(alpha).natural):.1f}"
        cells = [str(m), natural, f"{100 * alone:.1f}", after[0], average, *after[1:], _papers(method, m)]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    chosen = found.also.get("chosen")
    if chosen is not None:
        shares = ", ".join(f"{p:.2f}" for p in chosen)
        yield f"α chosen on validation images: ({shares}), robust {_percent(robust(found, chosen))}."
        yield ""


def _verdict(method: str, judge: str, found: Evaluation) -> Iterator[str]:
    """Uniform sampling of all members against the best of them, on the same images, after 1 and 2 attempts."""
    alone = found.foolable.mean(axis=0)
    best = int(alone.argmin())
    risks = found.pool.best(first(found.members, found.members))[0]
    gain, retried = (difference(found.foolable[:, best], 1 - (1 - risks) ** q) for q in (1, 2))
    pays = "pays" if gain.value >= PAYS and gain.low > 0 else "does not pay"
    yield (
        f"{found.members} {method.upper()} members sampled uniformly against the best of them under {judge}: "
        f"{_points(gain)} points; after one retry {_points(retried)}. By the rule set beforehand (at least "
        f"{100 * PAYS:.0f} points, interval above 0), sampling {pays}."
    )
    yield ""


def _papers(method: str, m: int) -> str:
    known = paper()
    if m == 1:
        pair = known["best"]["resnet20"]["at"]["cifar10"]
    elif method == "barre" and m <= len(known["sizes"]["cifar10"]["resnet20"]["barre"]):
        pair = known["sizes"]["cifar10"]["resnet20"]["barre"][m - 1]
    elif m == known["best"]["resnet20"][method]["members"]:
        pair = known["best"]["resnet20"][method]["cifar10"]
    else:
        return ""
    return f"{pair[0]:.2f} / {pair[1]:.2f}"


def _percent(value: Estimate) -> str:
    return f"{100 * value.value:.1f} ({100 * value.low:.1f} – {100 * value.high:.1f})"


def _points(value: Estimate) -> str:
    return f"{100 * value.value:+.1f} ({100 * value.low:+.1f} to {100 * value.high:+.1f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or measure again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", default="table", choices=["table", "measure"])
    parser.add_argument("--judge", action="append", choices=JUDGES, help="both by default")
    parser.add_argument("--method", default="iat", choices=["iat", "barre"])
    parser.add_argument("--limit", type=int, help="use only this many of the first test images")
    asked = parser.parse_args(arguments)
    for judge in (asked.judge or JUDGES) if asked.command == "measure" else ():
        measure(asked.method, judge, asked.limit)
    print("\n".join(lines()))


if __name__ == "__main__":
    main()
