"""Choosing probabilities under real attack: cutting planes against Algorithm 1, on three networks for digits.

A sweep attacks every validation input once. Cutting planes stop at a gap of 1e-3; Algorithm 1 runs for 10 and
for 40 sweeps. All answers are then scored on the same pool, which holds every witness that either of them found, so
accuracies compare like with like, and with the best that any probabilities could reach against that pool.

    python -m benchmarks.cutting_planes
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import Row, Settings, Side, Timing, as_fast
from randens import RandomizedEnsemble, WitnessPool, attacks, data, load, optimize_sampling, training
from randens.attacks import Attack
from randens.data import Data
from randens.risk import best_step, optimal_sampling, project_simplex

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "cpu" / "digits-mlp-barre.toml"


def algorithm_1(
    rec: RandomizedEnsemble, images: Data, attack: Attack, sweeps: tuple[int, ...]
) -> tuple[dict[int, tuple[NDArray[np.float64], float]], WitnessPool]:
    """OSP as published: one attack and one projected subgradient step a/t per sweep, the best iterate kept.

    Returns the best iterate and the seconds after each of `sweeps`, all from one run, and every witness met.
    """
    alpha = np.full(len(rec), 1 / len(rec))
    step = best_step(alpha, max(sweeps))
    best, lowest = alpha, np.inf
    kept: dict[int, tuple[NDArray[np.float64], float]] = {}
    pool: WitnessPool | None = None
    x, y = images[:]
    begun = time.perf_counter()
    for t in range(1, max(sweeps) + 1):
        found = attack(rec.with_probs(alpha), x, y)
        known = found.pool.without_inputs()
        pool = known if pool is None else pool.merge(known)
        if (risk := float(found.risk.mean())) <= lowest:
            best, lowest = alpha, risk
        if t in sweeps:
            kept[t] = best, time.perf_counter() - begun
        gradient = found.errors.double().mean(dim=0).numpy()
        alpha = project_simplex(alpha - step / t * gradient)
    assert pool is not None
    return kept, pool


def rows(settings: Settings) -> Iterator[Row]:
    torch.set_num_threads(1)  # Networks this small lose time to a second thread.
    shorter = ["epochs=10", "later_epochs=5"] if settings.quick else []
    recipe = training.load_recipe(RECIPE, shorter)
    with tempfile.TemporaryDirectory() as folder:
        training.train(recipe, Path(folder) / "run")
        rec = load(Path(folder) / "run" / "ensemble").with_probs(None)
    count, sweeps = (20, (5, 10)) if settings.quick else (100, (10, 40))
    images = data.load("digits", "validation").subset(slice(0, count))
    attack = attacks.create("saddle", recipe.threat.build())
    start = time.perf_counter()
    cut = optimize_sampling(rec, images, attack, tol=1e-3)
    seconds = time.perf_counter() - start
    stepped, pool = algorithm_1(rec, images, attack, sweeps)
    known = pool.merge(cut.pool.without_inputs())
    reachable = 1 - optimal_sampling(known.profile()).lower_bound
    ours = Side(
        "cutting planes",
        Timing(seconds, seconds, 1),
        1 - known.risk(cut.probs),
        f"{cut.sweeps} sweeps",
    )
    for number, (probs, took) in stepped.items():
        yield as_fast(
            f"cutting planes, M = {len(rec)}, {len(images)} inputs",
            ours,
            Side(
                f"Algorithm 1, {number} sweeps",
                Timing(took, took, 1),
                1 - known.risk(probs),
                f"{number} sweeps",
            ),
            note=f"gap {cut.gap:.1e}; at most {reachable:.2%} is possible; one run each",
            facts={"reachable": reachable, "gap": cut.gap},
        )


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
