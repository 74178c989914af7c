"""What the witness store saves and costs: questions asked twice, commands one after the other, seconds, bytes.

A zoo ensemble of three ResNet-20s on CIFAR-10 validation images, saddle climber. Passes do not depend on the machine;
the overhead in seconds is a ratio of the same evaluation with and without a store, in turns. What certificates save is
measured on two small networks trained on digits: next to nothing can be certified on CIFAR-10.

    python -m benchmarks.witness_store
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import randens
from benchmarks import harness, members
from benchmarks.harness import Goal, Row, Settings, Side, interleaved
from randens import RandomizedEnsemble, Threat, attacks, data
from randens.attacks import Attack
from randens.certify import certify
from randens.data import Data
from randens.evaluation import Evaluation
from randens.training import Recipe, train
from randens.witness.store import WitnessStore

THREAT = Threat("linf", 8 / 255)


def rows(settings: Settings) -> Iterator[Row]:
    """The figures, one after the other."""
    rec, which = members.locate(settings.ensemble)
    images = data.load("cifar10", "validation").subset(slice(0, 16 if settings.quick else 96))
    attack = attacks.create("saddle", THREAT, precision="float32")
    with tempfile.TemporaryDirectory() as folder:
        yield from _twice(rec, images, attack, Path(folder), which)
    yield _one_hot(rec, images, attack)
    yield _overhead(rec, images, attack, 2 if settings.quick else 5)
    yield _after_certify(60 if settings.quick else 360)


def _evaluate(
    rec: RandomizedEnsemble, images: Data, attack: Attack, folder: Path | None, *, whole: bool = True
) -> Evaluation:
    return randens.evaluate(
        rec,
        images,
        attack,
        also={"uniform": None} if whole else {},
        deterministic=whole,
        folder=None if folder is None else WitnessStore(folder),
    )


def _chain(rec: RandomizedEnsemble, images: Data, attack: Attack, folder: Path | None) -> list[int]:
    """Passes of evaluate, sample and the attacks of certify, one after the other; a report makes none."""
    store = None if folder is None else WitnessStore(folder)
    first = _evaluate(rec, images, attack, folder)
    sampled = randens.optimize_sampling(rec, images, attack, folder=store)
    certified = _evaluate(rec, images, attack, folder, whole=False)
    return [found.now.passes for found in (first, sampled, certified)]


def _twice(rec: RandomizedEnsemble, images: Data, attack: Attack, folder: Path, which: str) -> Iterator[Row]:
    apart = _chain(rec, images, attack, None)
    together = _chain(rec, images, attack, folder / "witnesses")
    again = _evaluate(rec, images, attack, folder / "witnesses")
    n = len(images)
    yield Row(
        "second identical evaluate: gradient passes",
        Side("second", passes=f"{again.now.backwards}"),
        Side("first", passes=f"{again.cost.backwards}"),
        again.now.backwards / again.cost.backwards,
        "of the first",
        goal=Goal(at_most=0.0),
        note=f"{which}; {n} inputs; {again.now.forwards} forward passes check a sample",
    )
    for name, spent, goal in (
        ("evaluate, sample, report, certify: passes", together, Goal(at_most=1.1)),
        ("the same without a store", apart, None),
    ):
        yield Row(
            name,
            Side("all of them", passes=f"{sum(spent) / n:.0f}"),
            Side("evaluate", passes=f"{spent[0] / n:.0f}"),
            sum(spent) / spent[0],
            "× evaluate",
            goal=goal,
            facts={"passes": [float(p) for p in spent]},
        )
    size = WitnessStore(folder / "witnesses").size
    yield Row(
        "bytes of the store per CIFAR-10 image",
        Side("store", passes=f"{size / n:.0f} bytes"),
        Side("one float32 image", passes=f"{4 * images.x[0].numel()} bytes"),
        size / n / (4 * images.x[0].numel()),
        "× an image",
        facts={"bytes": size / n},
    )


def _one_hot(rec: RandomizedEnsemble, images: Data, attack: Attack) -> Row:
    probs = np.eye(len(rec))[0]
    found = _evaluate(rec.with_probs(probs), images, attack, None, whole=False)
    alone = attack(RandomizedEnsemble([rec.members[0]]), images.x, images.y)
    passes = found.now.passes
    return Row(
        "evaluate at a one-hot α: passes",
        Side("drawn member attacked once", passes=f"{passes / len(images):.0f}"),
        Side("attacked again as a member", passes=f"{(passes + alone.cost.passes) / len(images):.0f}"),
        (passes + alone.cost.passes) / passes,
        "× fewer",
        goal=Goal(at_least=1.25),
        note="the second attack is counted from the inputs alone",
    )


def _after_certify(count: int) -> Row:
    """Passes of an evaluation whose store knows which members are certified at which inputs."""
    recipe = Recipe.model_validate(
        {
            "method": "bounded",
            "members": 2,
            "epochs": 40,
            "precision": "float32",
            "ema": 0.99,
            "model": {"name": "mlp", "width": 32, "depth": 2},
            "data": {"name": "digits"},
            "threat": {"norm": "linf", "eps": 0.1},
            "adversary": {"name": "pgd", "steps": 3, "step": 0.05},
            "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
            "validation": {"every": 40, "keep": "last"},
            "sampling": {"method": "uniform"},
        }
    )
    threat = recipe.threat.build()
    attack = attacks.create("suite", threat)
    with tempfile.TemporaryDirectory() as folder:
        rec = train(recipe, Path(folder) / "run")
        images = data.load("digits", "validation").subset(slice(0, count))
        without = _evaluate(rec, images, attack, None, whole=False)
        found = certify(rec, images, threat, folder=Path(folder) / "witnesses")
        proved = _evaluate(rec, images, attack, Path(folder) / "witnesses", whole=False)
    share = float(found.certified.mean())
    return Row(
        "evaluate after certify, small networks: passes",
        Side(
            "with certificates",
            accuracy=float(proved.robust),
            passes=f"{proved.now.passes / len(images):.0f}",
        ),
        Side("without", accuracy=float(without.robust), passes=f"{without.now.passes / len(images):.0f}"),
        without.now.passes / proved.now.passes,
        "× fewer",
        note=f"{len(images)} digits, linf ε = {threat.eps:g}, portfolio; {share:.0%} of members certified per input",
        facts={"certified": share},
    )


def _overhead(rec: RandomizedEnsemble, images: Data, attack: Attack, repeats: int) -> Row:
    def kept() -> Evaluation:
        with tempfile.TemporaryDirectory() as folder:
            return _evaluate(rec, images, attack, Path(folder))

    timed = interleaved(
        {"with": kept, "without": lambda: _evaluate(rec, images, attack, None)}, repeats, seconds=150
    )
    return harness.of_cost(
        "first evaluation with a store",
        Side("with a store", timed["with"].timing),
        Side("without", timed["without"].timing),
        Goal(at_most=1.03),
    )


if __name__ == "__main__":
    raise SystemExit(harness.main(rows, __doc__))
