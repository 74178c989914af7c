"""The whole idea in minutes: train, choose probabilities, attack, compare; on digits, which need no download.

AT is one adversarially trained network. The ensemble's members have the same size and the same epochs; they are
trained at once by `bounded`, the method that gained most on validation data in the study of when drawing pays.
Probabilities are chosen on the validation split; every number reported comes from the test split.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from randens import attacks
from randens import data as datasets
from randens.core.errors import whole
from randens.core.files import picked
from randens.core.progress import Progress, silent, within
from randens.core.runs import Run
from randens.ensemble import RandomizedEnsemble
from randens.evaluation import (
    Advice,
    AttackedSampling,
    Estimate,
    Evaluation,
    advise,
    difference,
    evaluate,
    optimize_sampling,
    transferred,
)
from randens.evaluation.labelled_data import fingerprint
from randens.report import measure, write_report
from randens.report.load import load_run
from randens.report.verdicts import against, budget, drawing
from randens.training import Recipe, train
from randens.witness.store import WitnessStore

__all__ = ["Quickstart", "Verdict", "quickstart", "recipes"]

_CONFIDENCE = 0.95
_ATTACKS = ("pgd", "arc-r", "saddle")
_SHOWN: int | None = None  # test images behind what the report shows beyond the evaluation; None: all of them
_COMPARED = ("afgsm", "adaptive-pgd-l", "adaptive-pgd-s", "arc-r", "saddle")
_FACTORS = (0.5, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Verdict:
    """Robust accuracy of the randomized ensemble minus that of AT, over the same inputs, and what it means."""

    difference: Estimate
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        return picked(self, "difference sentence")


@dataclass(frozen=True)
class Quickstart:
    """What the quickstart did: two evaluations on the test split, the sampling, the verdict, the run folder, the
    report in it, and what to deploy by the validation split."""

    run: Run
    at: Evaluation
    ensemble: Evaluation
    sampling: AttackedSampling
    verdict: Verdict
    report: Path
    seconds: float
    advice: Advice

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = "report seconds verdict sampling advice at ensemble"
        return {"run": str(self.run.path), **picked(self, names)}


def recipes(seed: int = 0) -> tuple[Recipe, Recipe]:
    """(AT, bounded) for two hidden layers of 32 units on the 8×8 digits, linf with ε = 0.2.

    The network, ε and the method are those of `paper.when_does_drawing_pay`, where validation data chose the method.
    """
    shared: dict[str, Any] = {
        "epochs": 200,
        "batch_size": 128,
        "ema": 0.99,
        "seed": seed,
        "precision": "float32",
        "model": {"name": "mlp", "width": 32, "depth": 2},
        "data": {"name": "digits"},
        "threat": {"norm": "linf", "eps": 0.2},
        "adversary": {"name": "pgd", "steps": 3, "step": 0.1, "warmup": 40},
        "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
        "validation": {"every": 50, "keep": "last"},
        "sampling": {"method": "uniform"},
    }
    at = Recipe.model_validate({**shared, "method": "at", "members": 1})
    return at, Recipe.model_validate({**shared, "method": "bounded", "members": 4, "weight": 0.5})


def quickstart(
    parent: str | os.PathLike[str] = "runs", *, seed: int = 0, progress: Progress | None = None
) -> Quickstart:
    """Train AT and an ensemble (M = 4), choose the probabilities, attack, and compare. Makes parent/quickstart-N."""
    whole("seed", seed, 0, 2**31 - 1)
    # Networks this small gain nothing from several threads, and lose much where others use the cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _quickstart(parent, seed, silent if progress is None else progress)
    finally:
        torch.set_num_threads(threads)


def _quickstart(parent: str | os.PathLike[str], seed: int, report: Progress) -> Quickstart:
    begun = time.perf_counter()
    alone, together = recipes(seed)
    validation, test = datasets.load("digits", "validation"), datasets.load("digits", "test")
    run = Run.create_next(
        parent,
        "quickstart",
        recipe=together.to_json(),
        seed=seed,
        chosen_on={"checkpoints": "validation", "probs": "validation"},
    )
    at = train(alone, run.path / "at", progress=within(report, "AT"))
    trained = train(together, run.path / "members", progress=within(report, "ensemble"))
    threat = together.threat.build()
    chosen = [attacks.create(name, threat, seed=seed) for name in _ATTACKS]

    store, store_at = WitnessStore(run.path / "witnesses"), WitnessStore(run.path / "at" / "witnesses")
    sampling = optimize_sampling(
        trained,
        validation,
        chosen,
        confidence=_CONFIDENCE,
        progress=within(report, "choosing α"),
        folder=store,
    )
    rec = RandomizedEnsemble(
        list(trained.members), sampling.probs, classes=trained.classes or validation.classes, threat=threat
    )
    rec.save(run.ensemble)
    run.write("sampling", {**sampling.to_json(), "ensemble": fingerprint(rec)})

    # Whatever fools the one is tried on the other: both are judged by the same perturbations.
    alone_on = partial(
        evaluate,
        at,
        test,
        chosen,
        deterministic=False,
        chosen_on={"checkpoints": "validation"},
        folder=store_at,
        progress=within(report, "AT"),
    )
    known = alone_on().pool
    assert known is not None
    drawn_on = partial(
        evaluate,
        rec,
        test,
        chosen,
        also={"uniform": None},
        chosen_on={"checkpoints": "validation", "probs": "validation"},
        folder=store,
        progress=within(report, "ensemble"),
    )
    drawn = drawn_on(pool=transferred(known, rec, test)).pool
    assert drawn is not None
    alone_on(pool=transferred(drawn, at, test))
    shown = test if _SHOWN is None else test.subset(slice(0, _SHOWN))
    at_run = Run.open(run.path / "at")
    for name, one, kept, folder in (("ensemble", rec, store, run), ("AT", at, store_at, at_run)):
        measure(
            one,
            shown,
            threat,
            compared=_COMPARED,
            factors=_FACTORS,
            folder=kept,
            seed=seed,
            progress=within(report, name),
        ).save(folder)
    advice = advise(
        rec,
        validation,
        attacks.create("saddle", threat, seed=seed),
        networks={"AT, one network": at.members[0]},
        folder=store,
        progress=within(report, "advice"),
    )
    run.write("advice", advice.to_json())
    # Read from the stores once everything is in them, so that no section of the report knows more than another.
    ensemble, single = drawn_on(), alone_on()
    ensemble.keep(run)
    single.keep(at_run)
    page = write_report([run.path, run.path / "at"])
    whole, only = (load_run(folder).passes for folder in (run.path, run.path / "at"))
    verdict = judge(single, ensemble, (only, whole))
    run.log(event="quickstart", seconds=time.perf_counter() - begun, verdict=verdict.to_json())
    return Quickstart(run, single, ensemble, sampling, verdict, page, time.perf_counter() - begun, advice)


def judge(at: Evaluation, rec: Evaluation, passes: tuple[float, float] | None = None) -> Verdict:
    """Compare per input, in the words of the report: does drawing pay, how far is the ensemble from AT?

    Whether drawing itself gains anything comes first: over the ensemble's own best member, which could be used alone
    instead. passes: member passes to train AT and the ensemble, where known; then the sentence also says whether AT is
    an equal-budget baseline.
    """
    said = [drawing(rec), against(rec, at, "The ensemble", "AT")]
    about = f"{rec.data} {rec.split}, {rec.n} inputs"
    names = " + ".join(str(attack["name"]) for attack in rec.attacks)
    said.append(f"Measured on {about}, attacked with {names}, {rec.threat.norm} ε = {rec.threat.eps:.4g}.")
    if passes is not None and min(passes) > 0:
        said.append(budget("the ensemble", passes[1], {"AT": passes[0]}))
    return Verdict(difference(at.risk, rec.risk, _CONFIDENCE), " ".join(said))
