"""Validation under attack: what chooses checkpoints and α."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from randens.attacks.base import Attack
from randens.attacks.members import GradientMembers
from randens.attacks.search import attacking
from randens.ensemble import RandomizedEnsemble
from randens.errors import InputError
from randens.risk import optimal_sampling
from randens.training.distributed import Workers
from randens.training.methods import Weights
from randens.training.recipe import SamplingPart
from randens.witness import WitnessPool

__all__ = ["Choice", "Verdict", "attacked", "choose"]


@dataclass(frozen=True)
class Verdict:
    """An ensemble on validation data: natural error and risk under attack (both at its α), every witness found,
    the clean errors of every member, and the member passes spent."""

    natural: float
    risk: float
    pool: WitnessPool
    clean_risks: Weights
    forwards: int
    backwards: int


@dataclass(frozen=True)
class Choice:
    """α and the verdict on the ensemble with that α."""

    probs: Weights
    verdict: Verdict


def attacked(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, workers: Workers) -> Verdict:
    """Attack `rec` on (x, y); ranks take turns over batches, and every rank gets the whole result.

    A batch's random numbers depend on its number alone, so the number of ranks changes nothing.
    """
    xs, ys = torch.split(x, attack.batch_size), torch.split(y, attack.batch_size)
    own: dict[str, np.ndarray] = {}
    forwards = backwards = 0
    with attacking(rec):
        prepared = GradientMembers(list(rec.members), attack.precision)
        for number in range(workers.rank, len(xs), workers.world):
            found = attack.attack_batch(
                rec, xs[number].to(workers.device), ys[number].to(workers.device), number, prepared
            )
            own[f"points.{number}"] = found.pool.points
            own[f"fooled.{number}"] = found.pool.fooled.astype(np.uint8)
            own[f"clean.{number}"] = found.clean_errors.numpy().astype(np.uint8)
            forwards, backwards = forwards + found.cost.forwards, backwards + found.cost.backwards
    parts: dict[str, np.ndarray] = {}
    for content in workers.gather(safetensors.numpy.save(own)):
        parts.update(safetensors.numpy.load(content))
    members = len(rec.members)
    pools = [
        WitnessPool(len(ys[k]), members, parts[f"points.{k}"], parts[f"fooled.{k}"].astype(bool))
        for k in range(len(xs))
    ]
    pool = WitnessPool.concat(pools)
    clean = np.concatenate([parts[f"clean.{k}"] for k in range(len(xs))]).astype(np.float64)
    probs = rec.probs.cpu().numpy()
    spent = workers.total(torch.tensor([forwards, backwards], dtype=torch.float64)).tolist()
    return Verdict(
        natural=float((clean @ probs).mean()),
        risk=pool.risk(probs),
        pool=pool,
        clean_risks=clean.mean(axis=0),
        forwards=int(spent[0]),
        backwards=int(spent[1]),
    )


def choose(
    rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, part: SamplingPart, workers: Workers
) -> Choice:
    """α for `rec`, chosen among the probabilities that were really attacked: the one with the lowest risk.

    Optimise on the witnesses known, attack what comes out, and repeat while that brings new witnesses: Algorithm
    1 and the candidate search with the pool in place of fresh attacks at every step, cutting planes for "exact".
    """
    members = len(rec.members)
    if members == 1 or part.method == "uniform":
        return _single(rec.with_probs(None), x, y, attack, workers)
    if part.method == "sweep":
        return _sweep(rec, x, y, attack, workers)
    method, options = _solver(part, members)
    tried = [np.full(members, 1 / members)]
    verdict = attacked(rec.with_probs(tried[0]), x, y, attack, workers)
    for _ in range(part.sweeps):
        proposal = optimal_sampling(verdict.pool.profile(), method, verdict.clean_risks, **options)
        if any(np.allclose(proposal.probs, old, atol=1e-9) for old in tried):
            break
        tried.append(proposal.probs)
        verdict = _merged(verdict, attacked(rec.with_probs(proposal.probs), x, y, attack, workers))
    # Every α is judged by all the witnesses, also those met at another α.
    best = min(tried, key=lambda probs: (verdict.pool.risk(probs), float(probs @ verdict.clean_risks)))
    return Choice(best, _at(verdict, best))


def _solver(part: SamplingPart, members: int) -> tuple[str, dict[str, int]]:
    method: str = part.method
    if method == "paper":
        method = "candidates" if members <= 3 else "subgradient"
    return method, {"iterations": part.iterations} if method == "subgradient" else {}


def _single(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, workers: Workers) -> Choice:
    return Choice(rec.probs.cpu().numpy(), attacked(rec, x, y, attack, workers))


def _sweep(rec: RandomizedEnsemble, x: Tensor, y: Tensor, attack: Attack, workers: Workers) -> Choice:
    """The first member's probability over a grid, the rest shared equally, each judged by the attack at that α
    alone: how randomized ensembles were tuned before their risk function was understood."""
    members = len(rec.members)
    choices = []
    for share in np.linspace(0.1, 1.0, 10):
        probs = np.full(members, (1 - share) / (members - 1))
        probs[0] = share
        choices.append(Choice(probs, attacked(rec.with_probs(probs), x, y, attack, workers)))
    return min(choices, key=lambda choice: (choice.verdict.risk, choice.verdict.natural))


def _merged(old: Verdict, new: Verdict) -> Verdict:
    return dataclasses.replace(
        new,
        pool=old.pool.merge(new.pool),
        forwards=old.forwards + new.forwards,
        backwards=old.backwards + new.backwards,
    )


def _at(verdict: Verdict, probs: Weights) -> Verdict:
    return dataclasses.replace(
        verdict, natural=float(verdict.clean_risks @ probs), risk=verdict.pool.risk(probs)
    )


def check_splits(train: str, validation: str) -> None:
    """α and checkpoints are never chosen on test data."""
    if train != "train" or validation != "validation":
        raise InputError(
            f"data holds the splits {train!r} and {validation!r}; training takes ('train', 'validation')"
        )
