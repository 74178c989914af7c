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
from collections.abc import Sequence
from dataclasses import dataclass, field
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
from randens.core.progress import Progress
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, frozen
from randens.evaluation.draws import OTHER, SCORE, TRIED, Randomness, Scores, members_of, randomness, score
from randens.evaluation.inputs import Case
from randens.evaluation.intervals import Estimate
from randens.evaluation.tables import About, Result, Table, bars, percent
from randens.random_model import RandomizedModel, expanded
from randens.threat import Threat

__all__ = ["ChosenAttack", "RandomEvaluation", "evaluate_random"]

_SELECT = (
    1_500_000_000  # the first seed of the selection draws; attack draws begin at 0, `eot` ends below 1.1e9
)
_FEWEST, _MOST = 16, 1024  # scoring draws per input
_FIRST = 8  # draws that are attacked first: with fewer, their luck hides what was fitted
_SADDLE = 8  # draws that the default saddle attack looks at: its cost grows with their square
TOLERANCE = 0.02  # how far the accuracies on attacked and on fresh draws may differ


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
    chose, fresh draws per input, and the number of inputs that shared each. scores, y, x_adv: in memory only.
    """

    kind: ClassVar[str] = "stochastic"

    about: About
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
    cost: Cost
    confidence: float
    notes: tuple[str, ...] = ()
    scores: Scores | None = None
    y: NDArray[np.int64] | None = field(default=None)
    x_adv: Tensor | None = None

    @property
    def now(self) -> Cost:
        """Passes of this call: all of them, as draws are not stored."""
        return self.cost

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
        return self._known().after(attempts, self.confidence)

    def votes(self, votes: int) -> Estimate:
        """Robust accuracy if the majority of `votes` draws answers, on the same perturbations."""
        assert self.y is not None
        return self._known().votes(votes, self.y, self.confidence)

    def _known(self) -> Scores:
        if self.scores is None:
            raise InputError("the evaluation was read from a file; evaluate again to get its draws")
        return self.scores

    def table(self) -> Table:
        """Natural and robust accuracy."""
        rows = {
            "natural": self.natural,
            "natural, these inputs": self.natural_over_draws,
            "robust": self.robust,
            "robust, these inputs": self.robust_over_draws,
        }
        lines = [(k, percent(v), f"{percent(v.low)} – {percent(v.high)}") for k, v in rows.items()]
        records = [{"accuracy": k, "value": float(v), "low": v.low, "high": v.high} for k, v in rows.items()]
        return Table(("accuracy", "mean", f"{self.confidence:.0%} interval"), lines, records)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw natural and robust accuracy with their intervals; with `path`, into that file, too."""
        return bars([("natural", self.natural), ("robust", self.robust)], "expected accuracy", path)

    def sentences(self) -> list[str]:
        """The adversary's knowledge, whether K was large enough, cost."""
        cost = f"{self.cost.forwards:,} forward and {self.cost.backwards:,} backward passes"
        held = (
            "Robust accuracies hold against the perturbations found: a stronger attack can only lower them."
        )
        if not self.randomness.random:
            return [
                f"The model is deterministic: {TRIED} seeds gave the same logits, and every number is exact.",
                f"{held} Cost: {cost}.",
            ]
        enough = (
            f"within the tolerance of {TOLERANCE:.0%}"
            if self.converged
            else f"above the tolerance of {TOLERANCE:.0%}: attack more draws (draws={2 * self.draws})"
        )
        return [
            self.knowledge,
            f"The perturbations searched on {self.draws} draws have {percent(self.in_sample)} on these draws and "
            f"{percent(self.fresh)} on the selection draws; the difference is {enough}.",
            f"One draw taken as the model's answer would have printed {percent(self.single_draw)}.",
            f"{held} Cost: {cost}.",
        ]

    def content(self) -> dict[str, Any]:
        """Everything but the draws themselves."""
        names = (
            "natural robust natural_over_draws robust_over_draws in_sample fresh single_draw draws selection_draws "
            "scoring_draws shared cost confidence converged"
        )
        return {
            **{name: getattr(self, name) for name in names.split()},
            "randomness": vars(self.randomness),
            "adversaries": [vars(adversary) for adversary in self.adversaries],
            "sentences": self.sentences(),
        }


def evaluate_random(case: Case, confidence: float = 0.95) -> RandomEvaluation:
    """`randens.evaluate` for a random classifier, or an ensemble some of whose members are random."""
    model, inputs, seed = case.rec, case.data, whole("seed", case.attacks[0].seed, 0, 999)
    most = max(m.draws for m in members_of(model) if isinstance(m, RandomizedModel))
    plan = _plan(case.attacks)
    found = randomness(model, inputs.x)
    if not found.seeded:
        raise InputError(
            "model ignores its seed: the same seed gave different logits; let it draw from torch's generators or from "
            "the `generator` argument of forward, or give a factory that makes a module from a seed"
        )
    run = _Run(model, inputs, seed, case.progress, found.random)
    for draws in _schedule(most if found.random else 1):
        in_sample, fresh = run.attack([attack for attack, cap in plan if cap is None], draws)
        if abs(fresh - in_sample) <= TOLERANCE:
            break
    for other, cap in plan:
        if cap is not None:
            run.find(other, min(cap, draws), "one frozen draw" if cap == 1 else "")
    single = run.single_draw(case.threat)
    best = run.choose()
    # The first candidates are the inputs themselves.
    selected = (1 - run.risks[0], 1 - run.risks[best, np.arange(len(inputs))])
    count = _scoring_draws(*selected, TOLERANCE / 2, confidence) if found.random else 1
    x_adv = torch.stack([run.points[b][j] for j, b in enumerate(best.tolist())])
    natural = score(model, inputs.x, inputs.y, count, seed=SCORE + 100_000 * seed)
    robust = score(model, x_adv, inputs.y, count, seed=SCORE + 100_000 * seed + 50_000_000)
    run.cost += Cost(forwards=2 * count * len(inputs) * len(members_of(model)))
    return RandomEvaluation(
        about=case.about,
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
        selection_draws=run.selected,
        scoring_draws=count,
        shared=robust.shared,
        cost=run.cost,
        confidence=confidence,
        notes=case.notes,
        scores=robust,
        y=inputs.y.numpy(),
        x_adv=x_adv,
    )


def _scoring_draws(
    natural: NDArray[np.float64], robust: NDArray[np.float64], half: float, confidence: float
) -> int:
    """The draws per input that make the interval over draws ± `half`, estimated from the selection draws.

    The number is fixed before the first scoring draw, so that stopping cannot favor lucky draws.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    worst = max(float(m.mean()) * (1 - float(m.mean())) for m in (natural, robust))
    return min(_MOST, max(_FEWEST, math.ceil(z * z * worst / (len(natural) * half * half))))


class _Run:
    """The adversary: perturbations found so far, and their risks on the selection draws."""

    def __init__(
        self,
        model: RandomizedModel | RandomizedEnsemble,
        inputs: Data,
        seed: int,
        progress: Progress,
        random: bool,
    ) -> None:
        self.model, self.seed, self.progress = model, seed, progress
        self.cost = Cost()
        self._ends: dict[EOT, list[Tensor]] = {}
        most = max(m.draws for m in members_of(model) if isinstance(m, RandomizedModel))
        self.selected = max(_FEWEST, most) if random else 1
        self._selection = expanded(model, self.selected, _SELECT + 100_000 * seed)
        self.x, self.y = inputs.x.to(self._selection.device), inputs.y.to(self._selection.device)
        self.names: list[tuple[str, int]] = []
        self.points: list[Tensor] = []
        self.risks = np.zeros((0, len(inputs)))
        self._add("clean", 0, inputs.x)

    def attack(self, attacks: Sequence[Attack], draws: int) -> tuple[float, float]:
        """Attack `draws` draws with each attack: accuracy on them, and on the selection draws."""
        target = expanded(self.model, draws, 1000 * self.seed)
        inside, outside = [], []
        for attack in attacks:
            x_adv = self.find(attack, draws)
            outside.append(self.risks[-1])
            inside.append(self._risk(target, x_adv))
        chosen, rows = np.argmax(inside, axis=0), np.arange(len(self.x))
        return tuple(1 - float(np.stack(part)[chosen, rows].mean()) for part in (inside, outside))  # type: ignore[return-value]

    def find(self, attack: Attack, draws: int, name: str = "") -> Tensor:
        """Attack `draws` draws; add the perturbed inputs to the candidates."""
        label = name or attack.name
        target = expanded(self.model, draws, 1000 * self.seed)
        self.progress(f"{label} on {draws} draws", 0, len(self.x))
        if isinstance(attack, EOT):
            x_adv = self._expected(attack, target)
        else:
            found = attack(target, self.x.cpu(), self.y.cpu())
            self.cost += found.cost
            x_adv = found.x_adv
        self.progress(f"{label} on {draws} draws", len(self.x), len(self.x))
        self._add(label, draws, x_adv)
        return x_adv

    def _expected(self, attack: EOT, target: RandomizedEnsemble) -> Tensor:
        """Of the points where `eot` ends, which do not depend on K, each input's worst on the attack draws."""
        if attack not in self._ends:
            with frozen(self.model), torch.enable_grad():
                batches = zip(
                    torch.split(self.x, attack.batch_size),
                    torch.split(self.y, attack.batch_size),
                    strict=True,
                )
                parts = [attack.ends(self.model, xs, ys, xs, attack.seed) for xs, ys in batches]
            self._ends[attack] = [torch.cat(points).cpu() for points in zip(*parts, strict=True)]
            passes = len(self.x) * 2 * attack.steps * attack.passes(self.model)
            self.cost += Cost(passes, passes)
            for points in self._ends[attack]:
                self._add(attack.name, 0, points)
        worst = np.argmax([self._risk(target, points) for points in self._ends[attack]], axis=0)
        return torch.stack(self._ends[attack])[torch.from_numpy(worst), torch.arange(len(self.x))]

    def single_draw(self, threat: Threat, steps: int = 40) -> float:
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
                wrong = found.z[pick].argmax(dim=1) != self.y[rows]
                kept[rows] = point[rows]
                fooled[rows[wrong]] = True
                stride = 2 * threat.eps * (1 - k / steps)
                point[rows] = threat.project(point[rows] + stride * threat.steepest(found.mean), self.x[rows])
        self._add("single draw", 1, kept.cpu())
        return 1 - float(fooled.double().mean())

    def choose(self) -> NDArray[np.int64]:
        """For every input the perturbation with the highest risk on the selection draws; of equal ones, that of the
        attack which does best overall."""
        order = np.argsort(-self.risks.mean(axis=1), kind="stable")
        return np.asarray(order[np.argmax(self.risks[order], axis=0)], dtype=np.int64)

    def table(self, best: NDArray[np.int64]) -> tuple[ChosenAttack, ...]:
        """Each attack's accuracy on the selection draws, which are fresh to it, after its last stage."""
        last = {name: index for index, (name, _) in enumerate(self.names)}
        chosen = [self.names[index][0] for index in best.tolist()]
        return tuple(
            ChosenAttack(name, self.names[index][1], 1 - float(self.risks[index].mean()), chosen.count(name))
            for name, index in last.items()
        )

    def _add(self, name: str, draws: int, x_adv: Tensor) -> None:
        self.names.append((name, draws))
        self.points.append(x_adv.cpu().to(self.x.dtype))
        self.risks = np.vstack([self.risks, self._risk(self._selection, x_adv)])

    def _risk(self, draws: RandomizedEnsemble, x: Tensor) -> NDArray[np.float64]:
        """Expected errors [n] of frozen draws on perturbed inputs."""
        self.cost += Cost(forwards=len(x) * len(draws))
        risks: NDArray[np.float64] = draws.risk(x.to(self.x.device), self.y).cpu().numpy()
        return risks


def _schedule(most: int) -> list[int]:
    """K = most/8, most/4, most/2, most; at least 8 where there are as many."""
    return sorted({max(min(_FIRST, most), most // part) for part in (8, 4, 2, 1)})


def _plan(attacks: Sequence[Attack]) -> list[tuple[Attack, int | None]]:
    """The attacks, each with its largest number of draws (None: K). The suite is meant for a few members; a random
    model has a portfolio of its own instead."""
    plan: list[tuple[Attack, int | None]] = []
    for one in attacks:
        if not isinstance(one, Suite):
            plan.append((one, None))
            continue
        margin = create("adaptive-pgd-margin", one.threat, seed=one.seed)
        saddle = create("saddle", one.threat, orders=1, restarts=1, seed=one.seed)
        plan += [
            (create("eot", one.threat, seed=one.seed), None),
            (margin, None),
            (saddle, _SADDLE),
            (margin, 1),
        ]
    return plan
