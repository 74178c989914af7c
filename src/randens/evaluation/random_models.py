"""Evaluate a random classifier: attack some draws, choose on others, score on draws that no attack has used.

The estimate is of E_x P_s(f_s(x + δ(x)) = y) against an adversary who knows the model and the law of its randomness,
but not the draw that answers. K frozen *attack draws* are searched on, and accuracies on them are too low. Frozen
*selection draws* choose a perturbation for every input, and decide whether K and the number of scoring draws are large
enough. *Scoring draws* are used once, after all choices: their mean is unbiased for the chosen perturbations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.attacks import Attack, Cost
from randens.attacks.eot import EOT, single_draw_ascent
from randens.core.errors import InputError, shown, whole
from randens.ensemble import RandomizedEnsemble, frozen
from randens.evaluation.inputs import Case
from randens.evaluation.tables import Result, Table, bars, between, percent
from randens.random_model import RandomizedModel, expanded
from randens.risk.intervals import Estimate, Scores

# First seeds of the draws that choose, score and compare; attack draws begin at 0, `eot` ends below 1.1e9.
_SELECT, _SCORE, _OTHER = 1_500_000_000, 1_600_000_000, 1_900_000_000
_FEWEST, _MOST = 16, 1024  # scoring draws per input
_CALLS = 4_000  # calls with few inputs each that scoring may take where draws cannot be batched
_BUILDS = 1_000  # modules that scoring may ask a factory for
_FIRST = 8  # draws that are attacked first: with fewer, their luck hides what was fitted
_TRIED, _LOOKED = 8, 16  # draws and inputs that show whether a model is random at all
TOLERANCE = 0.02  # how far the accuracies on attacked and on fresh draws may differ

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Randomness:
    """Whether a few draws differ and their seeds decide; by how much of the largest logit, and share of classes."""

    random: bool
    seeded: bool
    difference: float
    class_changed: float


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

    natural, robust: the inputs are a sample; natural_over_draws, robust_over_draws: they are the population, and only
    the draws are a sample. in_sample, fresh: accuracy of the perturbations that were searched on K frozen draws, on
    these draws (too low, as they were fitted) and on the selection draws. single_draw: what a single-draw evaluation
    reports. adversaries: how often each gave the perturbation that counts. more: accuracies after several attempts.
    """

    kind: ClassVar[str] = "stochastic"
    in_memory: ClassVar[str] = "now scores x_adv"
    derived: ClassVar[str] = "converged"

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
    confidence: float = 0.95
    more: Mapping[str, Estimate]
    scores: Scores
    x_adv: Tensor

    @property
    def converged(self) -> bool:
        """Whether K was large enough: attacked and selection draws agree within the tolerance."""
        return abs(self.fresh - self.in_sample) <= TOLERANCE

    def after(self, attempts: int, draw: str = "query") -> Estimate:
        """Robust accuracy against an attacker who may try `attempts` times, each on a fresh draw ("query")."""
        if draw != "query":
            raise InputError(f"draw is {shown(draw)}; for a random model it must be 'query'")
        return self.scores.after(attempts, self.confidence)

    def votes(self, votes: int) -> Estimate:
        """Robust accuracy if the majority of `votes` draws answers, on the same perturbations."""
        return self.scores.votes(votes, self.confidence)

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

    def figure(self) -> Any:
        return bars([("natural", self.natural), ("robust", self.robust), *self.more.items()], "accuracy")

    def sentences(self) -> list[str]:
        said = [
            f"The model is deterministic: {_TRIED} seeds gave the same logits, and every number is exact."
        ]
        if self.randomness.random:
            enough = "within" if self.converged else f"above (attack more: draws={2 * self.draws})"
            said = [
                "The adversary knew the model, the labels and the law of its randomness, and could draw from it at "
                f"will: {self.draws} frozen draws to search on, {self.selection_draws} further ones to choose between "
                f"perturbations. It did not know the {self.scoring_draws} fresh draws per input that answer.",
                f"The perturbations searched on {self.draws} draws have {percent(self.in_sample)} on these draws and "
                f"{percent(self.fresh)} on the selection draws, {enough} the tolerance of {TOLERANCE:.0%}.",
                f"One draw taken as the model's answer would have printed {percent(self.single_draw)}.",
            ]
        held = (
            "Robust accuracies hold against the perturbations found: a stronger attack can only lower them."
        )
        return [*said, f"{held} Cost: {self.cost}."]


def evaluate_random(case: Case, attempts: Sequence[float] = ()) -> RandomEvaluation:
    """`randens.evaluate` for a random classifier, or an ensemble some of whose members are random."""
    model, inputs, confidence = case.rec, case.data, RandomEvaluation.confidence
    tries = [whole("attempts", q, 1, _MOST, " for a random model") for q in attempts]
    most = max(member.draws for member in model.members if isinstance(member, RandomizedModel))
    found = randomness(model, inputs.x)
    if not found.seeded:
        raise InputError(
            "model ignores its seed: the same seed gave different logits; let it draw from torch's generators or from "
            "the `generator` argument of forward, or give a factory that makes a module from a seed"
        )
    most, fewest = (most, _FEWEST) if found.random else (1, 1)
    run, rows = _Adversary(case, max(fewest, most)), np.arange(len(inputs))
    plans = [attack.on_draws() for attack in case.attacks]
    gradual = [attack for repeated, _ in plans for attack in repeated]
    # K = most/8, most/4, most/2, most; at least 8 where there are as many.
    for draws in sorted({max(min(_FIRST, most), most // part) for part in (8, 4, 2, 1)}):
        in_sample, fresh = run.attack(gradual, draws)
        if abs(fresh - in_sample) <= TOLERANCE:
            break
    for other, cap in (pair for _, once in plans for pair in once):
        run.find(other, min(cap, draws), "one frozen draw" if cap == 1 else other.name)
    single, best = run.single_draw(), run.choose()
    # Enough draws per input for an interval over draws of half the tolerance, fixed before the first: no stopping at
    # lucky ones. The first candidates are the inputs themselves.
    z, half = NormalDist().inv_cdf((1 + confidence) / 2), TOLERANCE / 2
    selected = [1 - float(part.mean()) for part in (run.risks[0], run.risks[best, rows])]
    worst = max(accuracy * (1 - accuracy) for accuracy in selected)
    wanted = math.ceil(z * z * worst / (len(inputs) * half * half))
    count = max(*tries, min(_MOST, max(fewest, wanted)) if found.random else 1, 1)
    x_adv = torch.stack(run.points)[torch.from_numpy(best), torch.from_numpy(rows)]
    first = _SCORE + 100_000 * run.seed
    natural = score(model, inputs.x, inputs.y, count, seed=first)
    robust = score(model, x_adv, inputs.y, count, seed=first + 50_000_000)
    run.cost += Cost(forwards=2 * count * len(inputs) * len(model))
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
        more={f"robust after {q} attempts": robust.after(q, confidence) for q in tries},
        scores=robust,
        x_adv=x_adv,
    )


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
        inside, outside = map(np.stack, zip(*(self.find(a, draws, a.name) for a in attacks), strict=True))
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
            ends, cost = attack.ends_from(self.model, self.x, self.y)
            self.cost += cost
            first = len(self.points)
            for points in ends:
                self._add(attack.name, 0, points)
            self._found[attack] = list(range(first, len(self.points)))
        return self._found[attack]

    def single_draw(self) -> float:
        """The accuracy of a single-draw evaluation."""
        points, fooled, cost = single_draw_ascent(self.model, self.threat, self.x, self.y, _OTHER + self.seed)
        self.cost += cost
        self._add("single draw", 1, points)
        return 1 - float(fooled.double().mean())

    def choose(self) -> NDArray[np.int64]:
        """For every input the candidate with the highest risk on the selection draws; of equal ones the best."""
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


def score(rec: RandomizedEnsemble, x: Tensor, y: Tensor, draws: int, *, seed: int = _SCORE) -> Scores:
    """`draws` fresh answers to every input, shared by groups of inputs where a factory would make too many modules."""
    n = len(x)
    random = [m for m in rec.members if isinstance(m, RandomizedModel) and not m.independent(x)]
    limit = min([_BUILDS if m.factory is not None else _CALLS for m in random] or [n * draws])
    groups = max(1, min(n, limit // draws))
    # Neighbors in a data set are often alike; a fixed shuffle spreads them over the groups.
    generator = np.random.default_rng(seed)
    group = generator.permutation(np.arange(n) % groups)
    rows = [torch.from_numpy(np.flatnonzero(group == g)) for g in range(groups)] if groups < n else []
    values, predicted, probs = np.zeros((n, draws)), np.zeros((n, draws), dtype=np.int64), rec.probs.numpy()
    answers = generator.choice(len(rec), size=(n, draws), p=probs / probs.sum())
    for index, (member, weight) in enumerate(zip(rec.members, probs.tolist(), strict=True)):
        own = range(index * draws, index * draws + (draws if isinstance(member, RandomizedModel) else 1))
        classes = np.stack([_classes(member, x, rows, seed + draw * max(n, 1)) for draw in own], axis=1)
        values += weight * (classes == y.numpy()[:, None])
        predicted = np.where(answers == index, classes, predicted)
    return Scores(np.clip(values, 0.0, 1.0), predicted, y.numpy(), group)


def _classes(member: nn.Module, x: Tensor, rows: list[Tensor], seed: int) -> NDArray[np.int64]:
    """The class [n] of every input, under draws that start at `seed`."""
    if not isinstance(member, RandomizedModel):
        return np.asarray(RandomizedEnsemble([member]).verdicts(x)[:, 0].cpu())
    found = torch.zeros(len(x), dtype=torch.int64)
    with frozen(member), torch.no_grad():
        for first in range(0, 0 if rows else len(x), 512):
            part = slice(first, first + 512)
            found[part] = member.sample(x[part].to(member.device), (seed + first) % 2**31).argmax(dim=1).cpu()
        for number, chosen in enumerate(rows):
            z = member.freeze((seed + number) % 2**31)(x[chosen].to(member.device))
            found[chosen] = z.argmax(dim=1).cpu()
    return found.numpy()


def randomness(rec: RandomizedEnsemble, x: Tensor) -> Randomness:
    """Check on a few inputs with a few seeds whether members are random and their seeds determine the draw."""
    few = x[:_LOOKED]
    random, seeded, difference, changed = False, True, 0.0, 0.0
    for member in (one for one in rec.members if isinstance(one, RandomizedModel)):
        with frozen(member), torch.no_grad():
            draws = [member.freeze(_OTHER + s)(few.to(member.device)) for s in range(_TRIED)]
            again = member.freeze(_OTHER)(few.to(member.device))
        largest = float(draws[0].abs().max().clamp_min(1e-30))
        seeded &= float((again - draws[0]).abs().max()) <= 1e-5 * largest
        gap = max(float((z - draws[0]).abs().max()) for z in draws[1:]) / largest
        random |= gap > 1e-6
        difference = max(difference, gap)
        moved = torch.stack([z.argmax(dim=1) != draws[0].argmax(dim=1) for z in draws[1:]]).any(dim=0)
        changed = max(changed, float(moved.double().mean()))
    return Randomness(random, seeded, difference, changed)
