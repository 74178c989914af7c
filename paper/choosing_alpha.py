"""Which way of choosing α holds on fresh data? 30 small ensembles on digits, 5 random splits each.

    python -m paper.choosing_alpha --folder runs/choosing-alpha --page docs/choosing-alpha.md

Every ensemble is trained on the training split alone: no checkpoint is chosen and α plays no part. Its members are
then attacked on the 540 held-out images (the validation and the test split of digits), and the witnesses are kept. A
split takes 180 of these images at random; every rule chooses α from their witnesses, and is scored on the other 360.
The folder keeps what is finished, so an interrupted call is continued by the same call; with --finished the page is
made from the ensembles that are there. Their order is that of their cost, and no result decides it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import randens
from randens.risk import RiskProfile, optimal_sampling
from randens.training import Recipe, train

SPLITS = 5
CHOSEN_ON = 180
EPS = 0.2

Rule = Callable[[RiskProfile], NDArray[np.float64]]
"""Chooses probabilities from the witnesses of the images to choose on."""


@dataclass(frozen=True)
class Plan:
    """One ensemble to train."""

    method: str
    model: str
    members: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}-{self.model}-{self.members}-{self.seed}"

    def recipe(self) -> Recipe:
        """Short training on purpose; with seed 1 the later members train half as long, so that members differ."""
        epochs = 24 if self.model == "mlp" else 8
        return Recipe.model_validate(
            {
                "method": self.method,
                "members": self.members,
                "epochs": epochs,
                "later_epochs": epochs // 2 if self.seed == 1 else None,
                "batch_size": 64,
                "seed": 100 + self.seed,
                "model": {"name": self.model},
                "data": {"name": "digits"},
                "threat": {"norm": "linf", "eps": EPS},
                "adversary": {"name": "pgd", "steps": 4},
                "loss": {"name": "cross-entropy"},
                "sampling": {"method": "uniform"},
                # Validation on a few images; no choice depends on it.
                "validation": {"every": epochs, "size": 16, "steps": 1, "keep": "last"},
            }
        )


def plans() -> Iterator[Plan]:
    """The ensembles, cheap ones first."""
    for model, seeds, sizes in (("mlp", (0, 1, 2), (2, 4)), ("convnet", (0, 1), (2, 4))):
        for seed in seeds:
            for members in sizes:
                for method in ("iat", "mrboost", "joint"):
                    yield Plan(method, model, members, seed)


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    """The images that were not trained on, with their labels."""
    parts = [randens.data.load("digits", split) for split in ("validation", "test")]
    return torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])


def witnesses(plan: Plan, folder: Path) -> randens.WitnessPool:
    """Fooled sets of the held-out images: attacks at uniform α, on every member, and at up to three optima."""
    path = folder / f"{plan.name}.safetensors"
    if not path.exists():
        rec = train(plan.recipe(), folder / plan.name).with_probs(None)
        attack = randens.attacks.create("saddle", randens.Threat("linf", EPS), restarts=1)
        data = held_out()
        pool = randens.evaluate(rec, data, attack, deterministic=False).pool
        found = randens.optimize_sampling(rec, data, attack, max_sweeps=3, pool=pool)
        found.pool.without_inputs().save(path)
    return randens.WitnessPool.load(path)


RULES: dict[str, Rule] = {
    "uniform": lambda profile: np.full(profile.members, 1 / profile.members),
    "best validation member": lambda profile: np.eye(profile.members)[profile.member_risks.argmin()],
    "exact optimum": lambda profile: optimal_sampling(profile, method="exact").probs,
    "upper bound of the risk": lambda profile: optimal_sampling(profile, confidence=0.95).probs,
    "upper bound of the excess over uniform": lambda profile: (
        optimal_sampling(profile, confidence=0.95, reference="uniform").probs
    ),
}
SAMPLE = "upper bound of the excess over uniform"


@dataclass(frozen=True)
class Scored:
    """Robust accuracy on fresh images, in per cent, of each rule (columns) on each split (rows); and how often a rule
    chose a single member."""

    ensemble: str
    accuracy: NDArray[np.float64]
    single: NDArray[np.bool_]


def score(name: str, pool: randens.WitnessPool) -> Scored:
    """Every rule on every split of one ensemble."""
    accuracy, single = np.zeros((SPLITS, len(RULES))), np.zeros((SPLITS, len(RULES)), dtype=bool)
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(pool.n)
        chosen_on = np.zeros(pool.n, dtype=bool)
        chosen_on[order[:CHOSEN_ON]] = True
        numbers = np.cumsum(chosen_on) - 1
        rows = chosen_on[pool.points]
        profile = RiskProfile.from_witnesses(numbers[pool.points[rows]], pool.fooled[rows], CHOSEN_ON)
        for column, rule in enumerate(RULES.values()):
            probs = rule(profile)
            accuracy[split, column] = 100 * (1 - pool.best(probs)[0][~chosen_on].mean())
            single[split, column] = np.count_nonzero(probs) == 1
    return Scored(name, accuracy, single)


def page(found: Sequence[Scored]) -> str:
    """The Markdown page."""
    means = np.array([one.accuracy.mean(axis=0) for one in found])
    single = np.array([one.single.mean(axis=0) for one in found]).mean(axis=0)
    uniform, member = list(RULES).index("uniform"), list(RULES).index("best validation member")
    lost = [(means[:, column] < means[:, uniform]).sum() for column in (2, 3, 4)]
    lines = [
        "# How α should be chosen",
        "",
        "This page answers: which rule for choosing α gives the highest robust accuracy on fresh images?",
        "",
        f"{len(found)} of {len(list(plans()))} planned ensembles on digits, {SPLITS} random splits each: α is",
        f"chosen on {CHOSEN_ON} held-out images",
        "and scored on the other 360, under attack (linf, ε = 0.2). The table is made by",
        "`python -m paper.choosing_alpha --page docs/choosing-alpha.md` (`--finished`: of those trained so far).",
        "",
        "| rule | robust accuracy on fresh images | minus uniform | minus best validation member | one member alone |",
        "|---|---:|---:|---:|---:|",
    ]
    for column, name in enumerate(RULES):
        values = means[:, column]
        cells = [_ahead(values - means[:, other]) for other in (uniform, member)]
        title = f"**{name}** (`randens sample`)" if name == SAMPLE else name
        lines.append(f"| {title} | {values.mean():.2f} % | {cells[0]} | {cells[1]} | {single[column]:.0%} |")
    lines += [
        "",
        "Differences in points, mean over the ensembles ± standard error (each ensemble is one observation, its splits",
        "averaged). *One member alone*: how often the rule drew nothing. The exact optimum is the best on the images",
        "that chose it, and picks single members by noise. Both bounds are at 95 %, one-sided: that of the risk is",
        "`optimal_sampling(profile, confidence=0.95)`; that of the excess over uniform probabilities, which adds",
        '`reference="uniform"` and is what `randens sample` uses, leaves them only where the images are enough to',
        f"say so. Uniform probabilities were better than the exact optimum on {lost[0]} of {len(found)} ensembles,",
        f"than the bound of the risk on {lost[1]}, and than the bound of the excess on {lost[2]}.",
        "",
        "## Every ensemble",
        "",
        "| ensemble | " + " | ".join(RULES) + " |",
        "|---|" + "---:|" * len(RULES),
    ]
    for one, row in zip(found, means, strict=True):
        lines.append(f"| {one.ensemble} | " + " | ".join(f"{value:.2f}" for value in row) + " |")
    lines += ["", "Named by method, network, number of members and seed; robust accuracy in per cent.", ""]
    return "\n".join(lines)


def _ahead(differences: NDArray[np.float64]) -> str:
    if not differences.any():
        return "—"
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return f"{differences.mean():+.2f} ± {error:.2f}"


def main() -> None:
    """Train, attack, choose, score, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/choosing-alpha"))
    parser.add_argument(
        "--finished", action="store_true", help="score the ensembles that are there, train none"
    )
    parser.add_argument("--page", type=Path, default=None, help="where the Markdown page goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    planned = [
        plan for plan in plans() if not args.finished or (args.folder / f"{plan.name}.safetensors").exists()
    ]
    for number, plan in enumerate(planned, start=1):
        found.append(score(plan.name, witnesses(plan, args.folder)))
        print(f"{number} {plan.name}: {found[-1].accuracy.mean(axis=0).round(2)}", flush=True)
    if args.page is not None:
        args.page.write_text(page(found))


if __name__ == "__main__":
    main()
