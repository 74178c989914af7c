"""Choosing probabilities under real attack: cutting planes against Algorithm 1, on the ensemble of a run folder.

A sweep attacks every validation input once. Cutting planes stop at a gap of 1e-3; Algorithm 1 runs for 10 and for
100 sweeps. All answers are then judged by the same pool, which holds every witness that either of them found.

    randens quickstart
    python benchmarks/cutting_planes.py runs/quickstart-1
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from randens import RandomizedEnsemble, WitnessPool, attacks, optimize_sampling
from randens.attacks import Attack
from randens.data import ImageData
from randens.evaluation.subject import open_subject
from randens.files import write_json
from randens.risk import best_step, optimal_sampling, project_simplex

SWEEPS = (10, 100)


def algorithm_1(
    rec: RandomizedEnsemble, data: ImageData, attack: Attack, sweeps: tuple[int, ...]
) -> tuple[dict[int, NDArray[np.float64]], WitnessPool]:
    """OSP as published: one attack and one projected subgradient step a/t per sweep, the best iterate kept.

    Returns the best iterate after each of `sweeps`, all from one run, and every witness met on the way.
    """
    alpha = np.full(len(rec), 1 / len(rec))
    step = best_step(alpha, max(sweeps))
    best, lowest = alpha, np.inf
    kept: dict[int, NDArray[np.float64]] = {}
    pool: WitnessPool | None = None
    x, y = data[:]
    for t in range(1, max(sweeps) + 1):
        found = attack(rec.with_probs(alpha), x, y)
        known = found.pool.without_inputs()
        pool = known if pool is None else pool.merge(known)
        if (risk := float(found.risk.mean())) <= lowest:
            best, lowest = alpha, risk
        if t in sweeps:
            kept[t] = best
        gradient = found.errors.double().mean(dim=0).numpy()
        alpha = project_simplex(alpha - step / t * gradient)
    assert pool is not None
    return kept, pool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run folder")
    parser.add_argument("--attack", default="saddle", help="any attack by name")
    parser.add_argument("--sweeps", type=int, nargs="+", default=list(SWEEPS))
    parser.add_argument("--json", help="write the results there")
    asked = parser.parse_args()
    subject = open_subject(asked.run)
    data = subject.load("validation")
    attack = attacks.create(asked.attack, subject.threat)
    uniform = subject.rec.with_probs(None)

    start = time.perf_counter()
    cut = optimize_sampling(uniform, data, attack, tol=1e-3)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    stepped, pool = algorithm_1(uniform, data, attack, tuple(asked.sweeps))
    stepped_seconds = time.perf_counter() - start
    judge = pool.merge(cut.pool.without_inputs())
    optimum = optimal_sampling(judge.profile())

    rows = [(f"cutting planes, {cut.sweeps} sweeps", cut.probs)]
    rows += [(f"Algorithm 1, {t} sweeps", probs) for t, probs in sorted(stepped.items())]
    rows += [("uniform", uniform.probs.numpy())]
    print(f"{len(data)} validation inputs of {data.name}, {len(subject.rec)} members, attack {attack.name}")
    print(f"cutting planes: gap {cut.gap:.2g} after {cut.sweeps} sweeps, {seconds:.1f} s")
    print(f"Algorithm 1: {max(stepped)} sweeps, {stepped_seconds:.1f} s")
    print(f"lower bound against every witness found by either: {optimum.lower_bound:.6f}")
    for name, probs in rows:
        risk = judge.risk(probs)
        excess = risk - optimum.lower_bound
        print(f"{name:28} risk {risk:.6f}  above the bound {excess:.6f}  α {np.round(probs, 4).tolist()}")
    if asked.json:
        write_json(
            asked.json,
            {
                "gap": cut.gap,
                "sweeps": cut.sweeps,
                "seconds": seconds,
                "lower_bound": optimum.lower_bound,
                "rows": [{"name": n, "probs": p.tolist(), "risk": judge.risk(p)} for n, p in rows],
            },
        )


if __name__ == "__main__":
    main()
