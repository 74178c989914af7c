"""Which way of choosing α holds on fresh data? 24 small ensembles on digits, 5 random splits each.

    python -m paper.choosing_alpha --folder runs/choosing-alpha --page docs/choosing-alpha.md

Every ensemble is trained on the training split alone: no checkpoint is chosen and α plays no part. Its members are
then attacked on the 540 held-out images (the validation and the test split of digits), and the witnesses are kept. A
split takes 180 of these images at random; every rule chooses α from their witnesses, and the other 360 judge it.
The folder keeps what is finished, so an interrupted call is continued by the same call.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

import randens
from randens.training import Recipe, train

SPLITS = 5
CHOSEN_ON = 180
EPS = 0.2


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
                # One look at a few images, which decides nothing.
                "validation": {"every": epochs, "size": 16, "steps": 1, "keep": "last"},
            }
        )


def plans() -> Iterator[Plan]:
    """The ensembles, cheap ones first."""
    for model in ("mlp", "convnet"):
        for seed in (0, 1):
            for members in (2, 4):
                for method in ("iat", "mrboost", "joint"):
                    yield Plan(method, model, members, seed)


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    """The images that no training saw, with their labels."""
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


def main() -> None:
    """Train, attack, choose, judge, write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/choosing-alpha"))
    parser.add_argument("--page", type=Path, default=None, help="where the Markdown page goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    pools = {}
    for number, plan in enumerate(plans(), start=1):
        pools[plan.name] = witnesses(plan, args.folder)
        print(f"{number} {plan.name}: {1 - pools[plan.name].foolable.mean(axis=0)}", flush=True)


if __name__ == "__main__":
    main()
