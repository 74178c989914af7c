"""Evaluating a randomized ensemble: exact expectations on the worst perturbations that the attacks find."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import safetensors.torch
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from randens import models
from randens.attacks import Attack, Cost
from randens.ensemble import DeterministicEnsemble, RandomizedEnsemble, check_probs
from randens.errors import InputError
from randens.evaluation.inputs import Data, Labelled, fingerprint, labelled
from randens.evaluation.reach import conflict_of
from randens.evaluation.results import Evaluation, Points
from randens.evaluation.stochastic import StochasticEvaluation, evaluate_stochastic
from randens.evaluation.sweeps import Knowledge, as_attacks, clean_pool
from randens.files import write_atomic
from randens.progress import Progress, silent
from randens.stochastic import RandomizedModel, is_random
from randens.threat import Threat
from randens.witness import WitnessPool

__all__ = ["evaluate", "save_worst_inputs", "transferred", "worst_inputs"]


@overload
def evaluate(
    rec: RandomizedModel,
    data: Data,
    attack: Attack | Sequence[Attack] | Threat | None = None,
    *,
    confidence: float = 0.95,
    progress: Progress | None = None,
) -> StochasticEvaluation: ...


@overload
def evaluate(
    rec: RandomizedEnsemble,
    data: Data,
    attack: Attack | Sequence[Attack],
    *,
    also: Mapping[str, ArrayLike | None] | None = None,
    deterministic: bool = True,
    pool: WitnessPool | None = None,
    chosen_on: Mapping[str, str] | None = None,
    confidence: float = 0.95,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation: ...


def evaluate(
    rec: RandomizedEnsemble | RandomizedModel,
    data: Data,
    attack: Attack | Sequence[Attack] | Threat | None = None,
    *,
    also: Mapping[str, ArrayLike | None] | None = None,
    deterministic: bool = True,
    pool: WitnessPool | None = None,
    chosen_on: Mapping[str, str] | None = None,
    confidence: float = 0.95,
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation | StochasticEvaluation:
    """Natural and robust accuracy of the ensemble, of each member and of the deterministic ensemble.

    Attacked are: the ensemble at its probabilities, at those in `also` (None: uniform), each member alone, and
    unless `deterministic` is false the mean of all logits. Every perturbation found is shown to everybody, and
    inputs that cannot get worse are not attacked again. Several attacks in a list work one after the other.

    pool: witnesses known already for these very inputs and members. chosen_on: which split chose what, e.g.
    {"probs": "validation"}; choices made on test data are refused. folder: where finished batches are kept; an
    interrupted call is continued by the same call, and once it has returned the folder may be removed.

    A `RandomizedModel`, or an ensemble with such a member, is judged on fresh draws: see `evaluate_stochastic`.
    """
    if isinstance(rec, RandomizedModel) or is_random(rec):
        given = {"also": also, "pool": pool, "chosen_on": chosen_on, "folder": folder}
        if extra_options := [name for name, value in given.items() if value is not None]:
            raise InputError(f"{', '.join(extra_options)} cannot be given for a random model; leave it out")
        return evaluate_stochastic(rec, data, attack, confidence=confidence, progress=progress)
    start = time.perf_counter()
    report = silent if progress is None else progress
    choices = _choices(chosen_on)
    inputs = labelled(data, rec)
    chosen = as_attacks(attack)  # type: ignore[arg-type]  # which refuses what is no attack
    probs = rec.probs.cpu().numpy().copy()
    extra = {name: check_probs(value, len(rec)).numpy() for name, value in (also or {}).items()}

    clean = _errors(rec, inputs, inputs.x)
    known = Knowledge(
        rec,
        inputs,
        clean_pool(inputs, clean),
        report,
        Cost(forwards=clean.size),
        folder=None if folder is None else Path(folder),
    )
    if pool is not None:
        known.pool = known.pool.merge(_with_inputs(pool))
    for step in chosen:
        known.attack(step, probs, f"{step.name} on the ensemble")
        for name, alpha in extra.items():
            if np.array_equal(alpha, probs):
                continue
            known.attack(step, alpha, f"{step.name} on the ensemble, {name}")
        for member in range(len(rec)) if len(rec) > 1 else ():
            known.attack(step, np.eye(len(rec))[member], f"{step.name} on member {member}")
    alone = _deterministic(rec, chosen, known, probs) if deterministic else None

    directions = conflict_of(rec, inputs, chosen[0].threat)
    known.cost = known.cost + directions.cost
    worst, unstable = _look_again(known, probs)
    rows = known.pool.best(probs)[1]
    sources = tuple(known.pool.sources[row] if row >= 0 else "" for row in rows.tolist())
    return Evaluation(
        probs=probs,
        points=Points(clean, worst, known.pool.foolable, sources, *(alone or (None, None))),
        profile=known.pool.profile(),
        threat=chosen[0].threat,
        data=inputs.name,
        split=inputs.split,
        classes=_classes(rec, inputs),
        ensemble=fingerprint(rec),
        attacks=tuple(_options(a) for a in chosen),
        flops=tuple(models.flops(m, inputs.x.shape[1:]) for m in rec.members),
        cost=known.cost,
        seconds=time.perf_counter() - start,
        confidence=confidence,
        chosen_on=choices,
        also=extra,
        flags={"unstable": unstable, "gradients": known.flags},
        conflict=directions,
        pool=known.pool,
    )


def worst_inputs(pool: WitnessPool, probs: ArrayLike, x: Tensor) -> Tensor:
    """For each input its worst known perturbation at `probs`; the input itself where nobody is fooled."""
    rows = pool.best(probs)[1]
    found = np.flatnonzero(rows >= 0)
    worst = x.clone()
    if len(found):
        stored = _with_inputs(pool).x_adv
        assert stored is not None
        worst[torch.from_numpy(found)] = torch.from_numpy(stored[rows[found]]).to(x.dtype)
    return worst


def transferred(
    pool: WitnessPool, rec: RandomizedEnsemble, data: Data, source: str = "transfer"
) -> WitnessPool:
    """The perturbed inputs of a pool, found on other members, as `rec` judges them.

    Pass the result on as `pool=`, and classifiers are compared on the same perturbations.
    """
    inputs = labelled(data, rec)
    stored = _with_inputs(pool)
    if pool.n != len(inputs):
        raise InputError(f"pool describes {pool.n} inputs; data has {len(inputs)}")
    empty = WitnessPool(pool.n, len(rec), x_adv=inputs.x[:0].contiguous().numpy())
    if not len(pool):
        return empty
    assert stored.x_adv is not None
    known = Knowledge(rec, inputs, empty)
    known.show(pool.points, torch.from_numpy(stored.x_adv), source)
    return known.pool


def save_worst_inputs(
    path: str | os.PathLike[str], evaluation: Evaluation, rec: RandomizedEnsemble, data: Data
) -> None:
    """Write x_adv, y, errors and probs of an evaluation as one safetensors file, for anybody to score again."""
    inputs = labelled(data, rec)
    evaluation.check(rec)
    if evaluation.pool is None:
        raise InputError(
            "the evaluation was read from a file and has no witnesses; evaluate again to save them"
        )
    tensors = {
        "x_adv": worst_inputs(evaluation.pool, evaluation.probs, inputs.x).contiguous(),
        "y": inputs.y,
        "errors": torch.from_numpy(evaluation.points.worst),
        "probs": torch.from_numpy(evaluation.probs),
    }
    write_atomic(path, safetensors.torch.save(tensors))


def _deterministic(
    rec: RandomizedEnsemble, attacks: tuple[Attack, ...], known: Knowledge, probs: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Verdicts [n] on the mean of all logits: clean, and after its own attacks and the ensemble's worst cases.

    What fools it is shown to the members in turn.
    """
    data = known.data
    if len(rec) == 1:
        table = known.pool.foolable
        return _errors(rec, data, data.x)[:, 0], table[:, 0]
    whole = RandomizedEnsemble([DeterministicEnsemble(list(rec.members))])
    clean = _errors(whole, data, data.x)[:, 0]
    transferred = _errors(whole, data, worst_inputs(known.pool, probs, data.x))[:, 0]
    known.cost = known.cost + Cost(forwards=2 * len(data) * len(rec))
    fooled = clean | transferred
    for attack in attacks:
        rows = np.flatnonzero(~fooled)
        if len(rows):
            found = known.run(
                attack, whole, torch.from_numpy(rows), f"{attack.name} on the deterministic ensemble"
            )
            fooled[rows] = found.errors[:, 0].numpy()
            known.show(rows, found.x_adv, attack.name)
    return clean, fooled


def _look_again(known: Knowledge, probs: NDArray[np.float64]) -> tuple[NDArray[np.bool_], float]:
    """Verdicts on the worst inputs, by the call a user would make: what is reported is what re-evaluates.

    Also returns the share of inputs at which a member that had been fooled no longer is.
    """
    rows = known.pool.best(probs)[1]
    claimed = np.where(rows[:, None] >= 0, known.pool.fooled[rows], False) if len(known.pool) else None
    everyone = np.arange(len(known.data))
    worst = known.show(everyone, worst_inputs(known.pool, probs, known.data.x), "again")
    if claimed is None:
        return worst, 0.0
    return worst, float((claimed & ~worst).any(axis=1).mean())


def _errors(rec: RandomizedEnsemble, data: Labelled, x: Tensor) -> NDArray[np.bool_]:
    verdicts: NDArray[np.bool_] = rec.errors(x.to(rec.device), data.y.to(rec.device)).cpu().numpy()
    return verdicts


def _classes(rec: RandomizedEnsemble, data: Labelled) -> int:
    with torch.no_grad():
        return int(rec.members[0](data.x[:1].to(rec.device)).shape[1])


def _with_inputs(pool: WitnessPool) -> WitnessPool:
    if pool.x_adv is None and len(pool):
        raise InputError(
            "pool holds sets only; an evaluation needs the perturbed inputs, to look at them again"
        )
    return pool


def _choices(chosen_on: Mapping[str, str] | None) -> dict[str, str]:
    choices = dict(chosen_on or {})
    for what, split in choices.items():
        if split == "test":
            raise InputError(
                f"chosen_on says that {what} was chosen on test data; choose it on validation data"
            )
    return choices


def _options(attack: Attack) -> dict[str, Any]:
    """An attack's name and its options as plain values."""
    options: dict[str, Any] = {"name": attack.name}
    for option in dataclasses.fields(attack):
        value = getattr(attack, option.name)
        if isinstance(value, (str, int, float, bool)) or value is None:
            options[option.name] = value
    return options
