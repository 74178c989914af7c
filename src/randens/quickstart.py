"""The guided first run on digits, which need no download: train, choose probabilities, attack, compare.

The ensemble's members are trained at once by `bounded`, the method that gained most on validation data in the study
of when drawing pays. The baseline is AT: one adversarially trained network of a member's size, trained with as many
member passes as the whole ensemble. Probabilities are chosen on the validation split. The comparison is made on the
test split.
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
from randens.core.devices import pick_device
from randens.core.errors import whole
from randens.core.files import Plain, picked
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
from randens.evaluation.argument_checks import fingerprint
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
class Verdict(Plain):
    """Robust accuracy of the randomized ensemble minus that of AT on the same inputs, and the verdict in words."""

    difference: Estimate
    sentence: str


@dataclass(frozen=True)
class Quickstart:
    """The result of the quickstart.

    It holds the run folder and the report in it, both evaluations on the test split, the chosen probabilities, the
    verdict, and the advice on what to deploy, which rests on the validation split.
    """

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


def recipes(seed: int = 0, device: str = "auto") -> tuple[Recipe, Recipe]:
    """(AT, bounded) for two hidden layers of 32 units on the 8×8 digits, linf with ε = 0.2.

    The network, ε, the method and the share of epochs with a growing ε are those of docs/when-does-drawing-pay.md,
    where validation data chose the method. AT trains for as many epochs as the ensemble's members together.
    """
    members, epochs = 4, 200
    shared: dict[str, Any] = {
        "batch_size": 128,
        "ema": 0.99,
        "seed": seed,
        "device": device,
        "precision": "float32",
        "model": {"name": "mlp", "width": 32, "depth": 2},
        "data": {"name": "digits"},
        "threat": {"norm": "linf", "eps": 0.2},
        "optimizer": {"lr": 0.1, "weight_decay": 1e-4},
        "validation": {"every": 50, "keep": "last"},
        "sampling": {"method": "uniform"},
    }

    def recipe(epochs: int, **method: Any) -> Recipe:
        adversary = {"name": "pgd", "steps": 3, "step": 0.1, "warmup": epochs // 5}
        return Recipe.model_validate({**shared, "epochs": epochs, "adversary": adversary, **method})

    return (
        recipe(members * epochs, method="at", members=1),
        recipe(epochs, method="bounded", members=members, weight=0.5),
    )


def quickstart(
    parent: str | os.PathLike[str] = "runs",
    *,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Quickstart:
    """Train AT and an ensemble (M = 4), choose the probabilities, attack, and compare. Makes parent/quickstart-N."""
    pick_device(device)  # refused before anything is written
    whole("seed", seed, 0, 2**31 - 1)
    # Networks this small gain nothing from several threads, and lose much where others use the cores.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _quickstart(parent, seed, device, progress or silent)
    finally:
        torch.set_num_threads(threads)


def _quickstart(parent: str | os.PathLike[str], seed: int, device: str, report: Progress) -> Quickstart:
    begun = time.perf_counter()
    alone, together = recipes(seed, device)
    validation, test = datasets.load("digits", "validation"), datasets.load("digits", "test")
    run = Run.create_next(
        parent,
        "quickstart",
        recipe=together.to_json(),
        seed=seed,
        chosen_on={"checkpoints": "validation", "probs": "validation"},
    )
    place = pick_device(device)
    at = train(alone, run.path / "at", progress=within(report, "AT")).to(place)
    trained = train(together, run.path / "members", progress=within(report, "ensemble")).to(place)
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

    # Perturbations found for one are tried on the other, so both are evaluated on the same perturbations.
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
        chosen,
        networks={"AT, one network": at.members[0]},
        folder=store,
        progress=within(report, "advice"),
    )
    run.write("advice", advice.to_json())
    # Both evaluations are read from the stores at the end, so that all sections of the report use the same witnesses.
    ensemble, single = drawn_on(), alone_on()
    ensemble.keep(run)
    single.keep(at_run)
    page = write_report([run.path, run.path / "at"])
    whole, only = (load_run(folder).passes for folder in (run.path, run.path / "at"))
    verdict = judge(single, ensemble, (only, whole))
    run.log(event="quickstart", seconds=time.perf_counter() - begun, verdict=verdict.to_json())
    return Quickstart(run, single, ensemble, sampling, verdict, page, time.perf_counter() - begun, advice)


def judge(at: Evaluation, rec: Evaluation, passes: tuple[float, float] | None = None) -> Verdict:
    """Say whether drawing pays and how the ensemble compares with AT, in the report's words.

    The first sentence compares the ensemble with its own best member, which could be used alone instead. The second
    compares it with AT, input by input. passes: member passes to train AT and the ensemble, where known; the next
    sentence then says whether AT is an equal-budget baseline.
    """
    said = [drawing(rec), against(rec, at, "The ensemble", "AT")]
    if passes is not None and min(passes) > 0:
        said.append(budget("the ensemble", passes[1], {"AT": passes[0]}))
    about = f"{datasets.called(rec.data, rec.split)}, {rec.n} inputs"
    names = " + ".join(str(attack["name"]) for attack in rec.attacks)
    said.append(f"Measured on {about}, attacked with {names}, {rec.threat.norm} ε = {rec.threat.eps:.4g}.")
    return Verdict(difference(at.risk, rec.risk, _CONFIDENCE), " ".join(said))
