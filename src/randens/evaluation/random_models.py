"""Evaluate a random classifier: attack some draws, choose on others, score on draws that no attack has used.

The estimate is of the expected robust accuracy E_x P_s(f_s(x + δ(x)) = y) against an adversary who knows the
model and the distribution of its randomness, but not the draw that answers. Three sets of draws avoid bias:

- K *attack draws*, frozen: perturbations are searched on them. They fit the noise of these draws, so the accuracy
  on them is biased downwards;
- *selection draws*, frozen: they choose a perturbation for every input, decide whether K is large enough, and set
  the number of scoring draws;
- *scoring draws*: used once, after all choices. So no choice depends on them, and their mean is unbiased for the
  chosen perturbations.

With an optimal attack the two accuracies enclose the true value: in expectation the accuracy on the attack draws
is at most the robust accuracy, and that on the scoring draws at least (sample average approximation).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from randens.attacks import Attack, Cost, create
from randens.attacks.eot import EOT, draw_gradients, sources
from randens.attacks.losses import expected_margin
from randens.attacks.suite import Suite
from randens.core.errors import InputError, whole
from randens.ensemble import RandomizedEnsemble, frozen
from randens.evaluation.draws import OTHER, SCORE, TRIED, Randomness, Scores, members_of, randomness, score
from randens.evaluation.inputs import Case
from randens.evaluation.intervals import Estimate
from randens.evaluation.tables import Result, Table, bars, between, percent
from randens.random_model import RandomizedModel, expanded

# The first seed of the selection draws; attack draws begin at 0, `eot` ends below 1.1e9.
_SELECT = 1_500_000_000
_FEWEST, _MOST = 16, 1024  # scoring draws per input
_FIRST = 8  # draws that are attacked first: with fewer, their luck hides what was fitted
_SADDLE = 8  # draws that the default saddle attack looks at: its cost grows with their square
TOLERANCE = 0.02  # how far the accuracies on attacked and on fresh draws may differ

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ChosenAttack:
    """One attack's perturbations: accuracy on fresh draws, and the number of inputs that they were chosen for."""

    name: str
    draws: int
    accuracy: float
    chosen: int


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class RandomEvaluation(Result):
    """Expected accuracies of a random classifier on fresh draws, with intervals.

    natural, robust: the inputs are a sample, and the interval covers the mean over the distribution they come from.
    natural_over_draws, robust_over_draws: these inputs are the population, and only the draws are a sample. in_sample,
    fresh: accuracy of the perturbations that were searched on K frozen draws, on these draws (too low, as they were
    fitted) and on the selection draws. single_draw: what a single-draw evaluation reports. adversaries: how often each
    gave the perturbation that counts. draws, selection_draws, scoring_draws, shared: frozen draws attacked, draws that
    chose, fresh draws per input, and the number of inputs that shared each. more: accuracies after several attempts
    and of votes, by name. scores, y, x_adv: in memory only.
    """

    kind: ClassVar[str] = "stochastic"
    entries: ClassVar[str] = (
        "natural robust natural_over_draws robust_over_draws more in_sample fresh single_draw draws selection_draws "
        "scoring_draws shared cost confidence converged randomness adversaries"
    )

    natural: Estimate
    robust: Estimate
    natural_over_draws: Estimate
    robust_over_draws: Estimate
    in_sample: float
    fresh: float
    single_draw: float
    adversaries: tuple[ChosenAttack, ...]
    randomness: Randomness
    draws: int
    selection_draws: int
    scoring_draws: int
    shared: int
    confidence: float
    more: Mapping[str, Estimate]
    scores: Scores
    y: NDArray[np.int64]
    x_adv: Tensor

    @property
    def knowledge(self) -> str:
        """What the adversary knew, and what not."""
        return (
            "The adversary knew the model, the labels and the law of its randomness, and could draw from it at will: "
            f"{self.draws} frozen draws to search on, {self.selection_draws} further ones to choose between "
            f"perturbations. It did not know the {self.scoring_draws} fresh draws per input that answer."
        )

    @property
    def converged(self) -> bool:
        """Whether K was large enough: attacked and selection draws agree within the tolerance."""
        return abs(self.fresh - self.in_sample) <= TOLERANCE

    def after(self, attempts: int, draw: str = "query") -> Estimate:
        """Robust accuracy against an attacker who may try `attempts` times with the chosen perturbation.

        Unbiased from the scoring draws, of which there must be as many. draw: only "query" (every attempt is a fresh
        draw) is known for a random model.
        """
        if draw != "query":
            raise InputError(f"draw is {draw!r}; for a random model it must be 'query'")
        return self.scores.after(attempts, self.confidence)

    def votes(self, votes: int) -> Estimate:
        """Robust accuracy if the majority of `votes` draws answers, on the same perturbations."""
        return self.scores.votes(votes, self.y, self.confidence)

    def table(self) -> Table:
        rows = {
            "natural": self.natural,
            "natural, these inputs": self.natural_over_draws,
            "robust": self.robust,
            "robust, these inputs": self.robust_over_draws,
            **self.more,
        }
        lines = [(name, percent(v), between(v)) for name, v in rows.items()]
        records = [{"accuracy": k, "value": float(v), "low": v.low, "high": v.high} for k, v in rows.items()]
        return Table(("accuracy", "mean", f"{self.confidence:.0%} interval"), lines, records)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        rows = [("natural", self.natural), ("robust", self.robust), *self.more.items()]
        return bars(rows, "expected accuracy", path)

    def sentences(self) -> list[str]:
        cost = f"{self.cost.forwards:,} forward and {self.cost.backwards:,} backward passes"
        held = (
            "Robust accuracies hold against the perturbations found: a stronger attack can only lower them. "
            f"Cost: {cost}."
        )
        if not self.randomness.random:
            same = (
                f"The model is deterministic: {TRIED} seeds gave the same logits, and every number is exact."
            )
            return [same, held]
        enough = "within" if self.converged else "above"
        more = "" if self.converged else f": attack more draws (draws={2 * self.draws})"
        return [
            self.knowledge,
            f"The perturbations searched on {self.draws} draws have {percent(self.in_sample)} on these draws and "
            f"{percent(self.fresh)} on the selection draws; the difference is {enough} the tolerance of "
            f"{TOLERANCE:.0%}{more}.",
            f"One draw taken as the model's answer would have printed {percent(self.single_draw)}.",
            held,
        ]


def evaluate_random(
    case: Case, confidence: float = 0.95, attempts: Sequence[int | float] = (), votes: int = 1
) -> RandomEvaluation:
    """`randens.evaluate` for a random classifier, or an ensemble some of whose members are random."""
    model, inputs = case.rec, case.data
    tries = [whole("attempts", q, 1, _MOST, " for a random model") for q in attempts]
    whole("votes", votes, 1, _MOST)
    most = max(m.draws for m in members_of(model) if isinstance(m, RandomizedModel))
    found = randomness(model, inputs.x)
    if not found.seeded:
        raise InputError(
            "model ignores its seed: the same seed gave different logits; let it draw from torch's generators or from "
            "the `generator` argument of forward, or give a factory that makes a module from a seed"
        )
    run = _Adversary(case, max(_FEWEST, most) if found.random else 1)
    gradual, last = _plan(case.attacks)
    for draws in _schedule(most if found.random else 1):
        in_sample, fresh = run.attack(gradual, draws)
        if abs(fresh - in_sample) <= TOLERANCE:
            break
    for other, cap in last:
        run.find(other, min(cap, draws), "one frozen draw" if cap == 1 else other.name)
    single = run.single_draw()
    best = run.choose()
    rows = np.arange(len(inputs))
    # The first candidates are the inputs themselves.
    selected = [1 - part.mean() for part in (run.risks[0], run.risks[best, rows])]
    count = _scoring_draws(selected, len(inputs), TOLERANCE / 2, confidence) if found.random else 1
    count = max(count, votes, *tries)
    x_adv = torch.stack(run.points)[torch.from_numpy(best), torch.from_numpy(rows)]
    first = SCORE + 100_000 * run.seed
    natural = score(model, inputs.x, inputs.y, count, seed=first)
    robust = score(model, x_adv, inputs.y, count, seed=first + 50_000_000)
    run.cost += Cost(forwards=2 * count * len(inputs) * len(members_of(model)))
    y = inputs.y.numpy()
    more = {f"robust after {q} attempts": robust.after(q, confidence) for q in tries}
    for name, scores in (("natural", natural), ("robust", robust)) if votes > 1 else ():
        more[f"{name}, majority of {votes} draws"] = scores.votes(votes, y, confidence)
    return RandomEvaluation(
        about=case.about,
        notes=case.notes,
        cost=run.cost,
        now=run.cost,
        natural=natural.over_inputs(confidence),
        robust=robust.over_inputs(confidence),
        natural_over_draws=natural.over_draws(confidence, exact=not found.random),
        robust_over_draws=robust.over_draws(confidence, exact=not found.random),
        in_sample=in_sample,
        fresh=fresh,
        single_draw=single,
        adversaries=run.table(best),
        randomness=found,
        draws=draws,
        selection_draws=len(run.selection),
        scoring_draws=count,
        shared=robust.shared,
        confidence=confidence,
        more=more,
        scores=robust,
        y=y,
        x_adv=x_adv,
    )


def _scoring_draws(accuracies: Sequence[float], inputs: int, half: float, confidence: float) -> int:
    """The draws per input that make the interval over draws ± `half`, estimated from the selection draws.

    The number is fixed before the first scoring draw, so that stopping cannot favor lucky draws.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    worst = max(accuracy * (1 - accuracy) for accuracy in accuracies)
    return min(_MOST, max(_FEWEST, math.ceil(z * z * worst / (inputs * half * half))))


def _schedule(most: int) -> list[int]:
    """K = most/8, most/4, most/2, most; at least 8 where there are as many."""
    return sorted({max(min(_FIRST, most), most // part) for part in (8, 4, 2, 1)})


def _plan(attacks: Sequence[Attack]) -> tuple[list[Attack], list[tuple[Attack, int]]]:
    """The attacks that are repeated with more and more draws, and those that follow once, with at most so many.

    The suite is meant for a few members; a random model has a portfolio of its own instead.
    """
    gradual: list[Attack] = []
    last: list[tuple[Attack, int]] = []
    for one in attacks:
        if not isinstance(one, Suite):
            gradual.append(one)
            continue
        margin = create("adaptive-pgd-margin", one.threat, seed=one.seed)
        gradual += [create("eot", one.threat, seed=one.seed), margin]
        last += [(create("saddle", one.threat, orders=1, restarts=1, seed=one.seed), _SADDLE), (margin, 1)]
    return gradual, last


class _Adversary:
    """Perturbations found so far, `points` and their `names`, with their risks on the selection draws."""

    def __init__(self, case: Case, selected: int) -> None:
        self.model, self.threat, self.progress = case.rec, case.threat, case.progress
        self.seed, self.cost = whole("seed", case.attacks[0].seed, 0, 999), Cost()
        self.selection = expanded(case.rec, selected, _SELECT + 100_000 * self.seed)
        self.x, self.y = case.data.x.to(self.selection.device), case.data.y.to(self.selection.device)
        self.names: list[tuple[str, int]] = []
        self.points: list[Tensor] = []
        self.risks = np.zeros((0, len(case.data)))
        self._found: dict[EOT, list[int]] = {}
        self._add("clean", 0, self.x)

    def attack(self, attacks: Sequence[Attack], draws: int) -> tuple[float, float]:
        """Attack `draws` draws with each attack: accuracy on them, and on the selection draws."""
        inside, outside = (
            np.stack(part) for part in zip(*(self.find(a, draws, a.name) for a in attacks), strict=True)
        )
        chosen, rows = np.argmax(inside, axis=0), np.arange(len(self.x))
        return 1 - float(inside[chosen, rows].mean()), 1 - float(outside[chosen, rows].mean())

    def find(self, attack: Attack, draws: int, name: str) -> tuple[Array, Array]:
        """Attack `draws` draws: perturbed inputs join the candidates; risks [n] on these and on the selection draws."""
        target, task = expanded(self.model, draws, 1000 * self.seed), f"{name} on {draws} draws"
        self.progress(task, 0, len(self.x))
        if isinstance(attack, EOT):
            ends = self._ends(attack)
            inside = np.stack([self._risk(target, self.points[i]) for i in ends])
            worst, rows = np.argmax(inside, axis=0), np.arange(len(self.x))
            risks = inside[worst, rows], self.risks[ends][worst, rows]
        else:
            found = attack(target, self.x.cpu(), self.y.cpu())
            self.cost += found.cost
            self._add(name, draws, found.x_adv)
            risks = np.asarray(found.risk.double().cpu()), self.risks[-1]
        self.progress(task, len(self.x), len(self.x))
        return risks

    def _ends(self, attack: EOT) -> list[int]:
        """The candidates at which the ascents of `eot` end; they do not depend on frozen draws, so are found once."""
        if attack not in self._found:
            with frozen(self.model), torch.enable_grad():
                batches = zip(
                    torch.split(self.x, attack.batch_size),
                    torch.split(self.y, attack.batch_size),
                    strict=True,
                )
                parts = [attack.ends(self.model, xs, ys, xs, attack.seed) for xs, ys in batches]
            passes = len(self.x) * 2 * attack.steps * attack.passes(self.model)
            self.cost += Cost(passes, passes)
            first = len(self.points)
            for points in zip(*parts, strict=True):
                self._add(attack.name, 0, torch.cat(points))
            self._found[attack] = list(range(first, len(self.points)))
        return self._found[attack]

    def single_draw(self, steps: int = 40) -> float:
        """The accuracy that a single-draw evaluation reports; its perturbations join the candidates.

        Each step's gradient comes from one draw, and an input counts as fooled as soon as one answer is wrong.
        """
        drawn, seed = sources(self.model), OTHER + self.seed
        point, kept = self.x.clone(), self.x.clone()
        fooled = torch.zeros(len(self.x), dtype=torch.bool, device=self.x.device)
        generator = torch.Generator().manual_seed(seed)
        with frozen(self.model), torch.enable_grad():
            for k in range(steps):
                rows = (~fooled).nonzero().flatten()
                if not len(rows):
                    break
                found = draw_gradients(drawn, point[rows], self.y[rows], expected_margin, 1, seed + 13 * k)
                passes = len(rows) * len(found.weights)
                self.cost += Cost(passes, passes)
                pick = int(torch.multinomial(found.weights.cpu(), 1, generator=generator))
                kept[rows] = point[rows]
                fooled[rows[found.z[pick].argmax(dim=1) != self.y[rows]]] = True
                step = 2 * self.threat.eps * (1 - k / steps) * self.threat.steepest(found.mean)
                point[rows] = self.threat.project(point[rows] + step, self.x[rows])
        self._add("single draw", 1, kept)
        return 1 - float(fooled.double().mean())

    def choose(self) -> NDArray[np.int64]:
        """For every input the candidate with the highest risk on the selection draws; of equal ones, that of the
        attack which does best overall."""
        order = np.argsort(-self.risks.mean(axis=1), kind="stable")
        return np.asarray(order[np.argmax(self.risks[order], axis=0)], dtype=np.int64)

    def table(self, best: NDArray[np.int64]) -> tuple[ChosenAttack, ...]:
        last = {name: index for index, (name, _) in enumerate(self.names)}
        chosen = [self.names[index][0] for index in best.tolist()]
        return tuple(
            ChosenAttack(name, self.names[i][1], 1 - float(self.risks[i].mean()), chosen.count(name))
            for name, i in last.items()
        )

    def _add(self, name: str, draws: int, x_adv: Tensor) -> None:
        """Perturbed inputs join the candidates."""
        self.names.append((name, draws))
        self.points.append(x_adv.cpu().to(self.x.dtype))
        self.risks = np.vstack([self.risks, self._risk(self.selection, x_adv)])

    def _risk(self, draws: RandomizedEnsemble, x_adv: Tensor) -> Array:
        """Expected errors [n] of frozen draws."""
        self.cost += Cost(forwards=len(self.x) * len(draws))
        return np.asarray(draws.risk(x_adv.to(self.x), self.y).cpu())
