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
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import computed_field
from torch import Tensor

from randens._version import __version__
from randens.attacks import Attack, Cost, create
from randens.attacks.dataset import as_attacks, batches
from randens.attacks.eot import EOT
from randens.attacks.suite import Suite
from randens.core.documents import Document
from randens.core.errors import InputError, whole
from randens.core.files import Saved, picked
from randens.core.progress import Progress, silent
from randens.data import Data
from randens.ensemble import RandomizedEnsemble, frozen
from randens.evaluation.argument_checks import DataLike, labelled
from randens.evaluation.draw_statistics import (
    NOISE,
    OTHER,
    SCORE,
    TRIED,
    GradientNoise,
    Randomness,
    gradient_noise,
    members_of,
    randomness,
    score,
    single_draw,
)
from randens.evaluation.intervals import Estimate
from randens.random_model import FrozenDraw, RandomizedModel, expanded, is_random
from randens.threat import Threat

__all__ = ["ChosenAttack", "Spread", "DrawsStage", "StochasticEvaluation", "evaluate_stochastic"]

_FORMAT = "randens-stochastic-1"
_FEWEST, _MOST = 16, 1024  # scoring draws per input
_BETWEEN = 32  # further frozen draws from which the spread between draws is taken
_FIRST = 8  # draws that are attacked first: with fewer, their luck hides what was fitted
_SADDLE = 8  # draws that the default saddle attack looks at: its cost grows with their square
_SELECT = 1_500_000_000  # the first seed of the selection draws; the attack draws begin at 0


class DrawsStage(Document):
    """Attacks on K draws: accuracy on these draws, and of the same perturbations on fresh draws."""

    draws: int
    in_sample: float
    fresh: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bias(self) -> float:
        """The accuracy on fresh draws minus that on the attacked draws, which is too low."""
        return self.fresh - self.in_sample


class ChosenAttack(Document):
    """One attack's perturbations: accuracy on fresh draws, and the number of inputs that they were chosen for."""

    name: str
    draws: int
    accuracy: float
    chosen: int


class Spread(Document):
    """Accuracies of single frozen draws, each over all inputs."""

    natural: list[float]
    robust: list[float]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def deviation(self) -> float:
        """Standard deviation of the robust accuracy between draws."""
        return float(np.std(self.robust, ddof=1)) if len(self.robust) > 1 else 0.0


@dataclass(frozen=True, eq=False)
class StochasticEvaluation(Saved):
    """Expected accuracies of a random classifier on fresh draws, with intervals and diagnostics.

    Attributes
    ----------
    natural, robust : Estimate
        The inputs are a sample, and the interval covers the mean over the distribution they come from.
    natural_over_draws, robust_over_draws : Estimate
        These inputs are the population, and only the draws are a sample.
    randomness : Randomness
        Whether the model is random, and whether its seed decides the draw.
    stages, tolerance : tuple of DrawsStage, float
        What each K gave, and how far attacked and fresh draws may differ; `in_sample` is the accuracy on the K attacked
        draws of the last stage.
    adversaries : tuple of ChosenAttack
        How often each of them gave the perturbation that counts.
    single_draw : float
        The accuracy that a single-draw evaluation reports.
    spread, noise : Spread, GradientNoise
        How single draws differ, and how noisy averaged gradients are.
    members, probs : tuple of (natural, robust), tuple of float
        Of each member, and α.
    draws, selection_draws, scoring_draws : int
        Frozen draws attacked, draws that chose between perturbations, and fresh draws per input.
    shared : int
        The number of inputs that shared each fresh draw.
    n, data, split : int, str, str
        The number of inputs, the data and their split.
    threat, attacks, kind : Threat, tuple of str, str
        The threat and the attacks, and where the randomness enters.
    cost, seconds, seed, confidence, version
        Passes, time, the seed of all draws, the confidence of every interval, and the version of randens.
    natural_points, robust_points : float64 [n]
        Expected accuracy of each input on fresh draws.
    x_adv : Tensor [n, ...] or None
        The perturbed inputs chosen, not in the JSON.
    """

    natural: Estimate
    robust: Estimate
    natural_over_draws: Estimate
    robust_over_draws: Estimate
    randomness: Randomness
    stages: tuple[DrawsStage, ...]
    tolerance: float
    adversaries: tuple[ChosenAttack, ...]
    single_draw: float
    spread: Spread
    noise: GradientNoise
    members: tuple[tuple[float, float], ...]
    probs: tuple[float, ...]
    draws: int
    selection_draws: int
    scoring_draws: int
    shared: int
    n: int
    data: str
    split: str
    threat: Threat
    attacks: tuple[str, ...]
    kind: str
    cost: Cost
    seconds: float
    seed: int
    confidence: float
    natural_points: NDArray[np.float64] = field(repr=False)
    robust_points: NDArray[np.float64] = field(repr=False)
    version: str = __version__
    x_adv: Tensor | None = field(default=None, repr=False)

    @property
    def in_sample(self) -> float:
        """Accuracy on the draws that the last stage attacked: too low, as they were fitted."""
        return self.stages[-1].in_sample

    @property
    def bias(self) -> float:
        """Fresh minus in-sample accuracy of the last stage's own perturbations."""
        return self.stages[-1].bias

    @property
    def converged(self) -> bool:
        """Whether K was large enough: the bias is within the tolerance."""
        return abs(self.bias) <= self.tolerance

    @property
    def knowledge(self) -> str:
        """The adversary's knowledge, in words."""
        if not self.randomness.random:
            return "The adversary knew the model, which is deterministic: there is no draw to be unknown."
        return (
            "The adversary knew the model, its weights, the labels and the law of the model's randomness, and could "
            f"draw from it at will: {self.draws} frozen draws to search on, {self.selection_draws} further ones to "
            f"choose between perturbations. It did not know the draws that answer: {self.scoring_draws} fresh ones per "
            "input, taken once, after every choice had been made."
        )

    def statements(self) -> list[str]:
        """The result in sentences."""
        percent = f"{self.confidence:.0%}"
        fixed = f"The model is deterministic: {TRIED} seeds gave the same logits. K = 1, and every verdict is exact."
        said = [
            *([] if self.randomness.random else [fixed]),
            f"Robust accuracy {_shown(self.robust)} ({percent}, inputs and draws are samples); for these very inputs "
            f"{_shown(self.robust_over_draws)}.",
            f"Natural accuracy {_shown(self.natural)}; for these very inputs {_shown(self.natural_over_draws)}.",
            self.knowledge,
        ]
        if self.randomness.random:
            enough = (
                f"within the tolerance of {self.tolerance:.1%}"
                if self.converged
                else f"above the tolerance of {self.tolerance:.1%}: attack more draws (draws={2 * self.draws})"
            )
            said += [
                f"On the {self.draws} attacked draws themselves the accuracy is {self.in_sample:.1%}; its bias, fresh "
                f"minus in-sample, is {100 * self.bias:+.1f} points, {enough}.",
                f"One draw taken as the model's answer would have printed {self.single_draw:.1%}; single draws differ "
                f"by a standard deviation of {100 * self.spread.deviation:.1f} points.",
                f"Gradients averaged over {self.noise.draws} draws: noise {self.noise.variance:.2f} of the signal, two "
                f"of them agree with cosine {self.noise.agreement:.2f} (single draws: {self.noise.single:.2f}); reach "
                f"between draws {self.noise.reach:.2f}.",
            ]
        cost = f"{self.cost.forwards:,} forward and {self.cost.backwards:,} backward passes, {self.seconds:.1f} s"
        held = "The robust accuracies hold against the perturbations found: a stronger attack can only lower them."
        return [*said, f"{held} Cost: {cost}."]

    def __str__(self) -> str:
        return "\n".join(self.statements())

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        names = (
            "version n data split threat kind confidence natural robust natural_over_draws robust_over_draws "
            "in_sample bias tolerance converged single_draw randomness stages adversaries spread noise probs draws "
            "selection_draws scoring_draws shared attacks knowledge seed"
        )
        return {
            "format": _FORMAT,
            **picked(self, names),
            "members": [{"natural": natural, "robust": robust} for natural, robust in self.members],
            "statements": self.statements(),
            "cost": {**vars(self.cost), "seconds": self.seconds},
            "points": {"natural": self.natural_points.tolist(), "robust": self.robust_points.tolist()},
        }


def evaluate_stochastic(
    model: RandomizedModel | RandomizedEnsemble,
    data: DataLike,
    attack: Attack | Sequence[Attack] | Threat | None = None,
    *,
    tolerance: float = 0.02,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress | None = None,
) -> StochasticEvaluation:
    """Measure natural and robust accuracy of a random classifier on draws that no attack has used.

    Parameters
    ----------
    model : RandomizedModel or RandomizedEnsemble
        A random classifier, or an ensemble some of whose members are random; expectations over members are exact.
    data : pair (x, y), Data or loader
        Inputs [n, ...] with labels [n].
    attack : Attack, list of them, Threat or None
        Attacks run on K frozen draws each. A threat (None: the model's own) or the attack `suite` means the default
        adversaries: `eot` and `adaptive-pgd-margin`, `saddle` on 8 draws, and transfer from a single frozen draw.
    tolerance : float
        K doubles, up to the model's `draws`, until the accuracies on attacked and on fresh draws differ by no more than
        this; scoring draws are as many as bring the half-width of the interval over draws to half of it.
    seed : int
        Determines all draws: the same seed gives the same result.
    confidence, progress
        As for `randens.evaluate`.

    Returns
    -------
    StochasticEvaluation
        `.natural` and `.robust` with intervals, and how they were found.

    Examples
    --------
    >>> import torch, randens
    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    >>> model = randens.RandomizedModel(net, draws=4, active=torch.nn.Dropout)
    >>> eot = randens.attacks.create("eot", randens.Threat("linf", 0.1), steps=2)
    >>> found = evaluate_stochastic(model, (torch.rand(6, 4), torch.arange(6) % 3), eot, tolerance=0.2)
    >>> found.robust.low <= found.robust.value <= found.robust.high
    True
    """
    start = time.perf_counter()
    if not is_random(model):
        raise InputError(f"model is a {type(model).__name__} without random members; use randens.evaluate")
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise InputError(f"tolerance is {tolerance!r}; it must be a number between 0 and 1, e.g. 0.02")
    whole("seed", seed, 0, 999)
    report = progress or silent
    most = max(m.draws for m in members_of(model) if isinstance(m, RandomizedModel))
    plan = _plan(attack, model, seed)
    inputs = labelled(data, expanded(model, most, 1000 * seed))
    found = randomness(model, inputs.x)
    if not found.seeded:
        raise InputError(
            "model ignores its seed: the same seed gave different logits; let it draw from torch's generators or from "
            "the `generator` argument of forward, or give a factory that makes a module from a seed"
        )
    run = _Run(model, inputs, seed, report, found.random)
    threat = plan[0][0].threat
    if not found.random:
        most = 1
    stages = []
    for draws in _schedule(most):
        stages.append(run.attack([a for a, cap in plan if cap is None], draws))
        # A difference well below zero is chance of few draws, and says little about K.
        if abs(stages[-1].bias) <= tolerance:
            break
    for other, cap in plan:
        if cap is not None:
            run.find(other, min(cap, stages[-1].draws), "one frozen draw" if cap == 1 else "")
    single = run.naive(threat)
    best = run.choose()
    # The first candidates are the inputs themselves.
    selected = (1 - run.risks[0], 1 - run.risks[best, np.arange(len(inputs))])
    count = _scoring_draws(*selected, tolerance / 2, confidence) if found.random else 1
    x_adv = torch.stack([run.points[b][j] for j, b in enumerate(best.tolist())])
    natural = score(model, inputs.x, inputs.y, count, seed=SCORE + 100_000 * seed)
    robust = score(model, x_adv, inputs.y, count, seed=SCORE + 100_000 * seed + 50_000_000)
    run.count(2 * count * len(inputs) * len(members_of(model)))
    spread = run.spread(x_adv)
    noise = run.noise(x_adv, threat)
    probs = tuple(model.probs.tolist()) if isinstance(model, RandomizedEnsemble) else (1.0,)
    return StochasticEvaluation(
        natural=natural.over_inputs(confidence),
        robust=robust.over_inputs(confidence),
        natural_over_draws=natural.over_draws(confidence, exact=not found.random),
        robust_over_draws=robust.over_draws(confidence, exact=not found.random),
        randomness=found,
        stages=tuple(stages),
        tolerance=float(tolerance),
        adversaries=run.table(best),
        single_draw=single,
        spread=spread,
        noise=noise,
        members=tuple(
            (float(natural.members[:, i].mean()), float(robust.members[:, i].mean()))
            for i in range(natural.members.shape[1])
        ),
        probs=probs,
        draws=stages[-1].draws,
        selection_draws=run.selected,
        scoring_draws=count,
        shared=robust.shared,
        n=len(inputs),
        data=inputs.name,
        split=inputs.split,
        threat=threat,
        attacks=tuple(a.name for a, _ in plan),
        kind=", ".join(m.kind if isinstance(m, RandomizedModel) else "not random" for m in members_of(model)),
        cost=run.cost,
        seconds=time.perf_counter() - start,
        seed=seed,
        confidence=confidence,
        natural_points=natural.values.mean(axis=1),
        robust_points=robust.values.mean(axis=1),
        x_adv=x_adv,
    )


def _scoring_draws(
    natural: NDArray[np.float64], robust: NDArray[np.float64], half: float, confidence: float
) -> int:
    """The draws per input that make the interval over draws ± `half`, estimated from the selection draws.

    The number is fixed before the first scoring draw, so that stopping cannot favour lucky draws.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    worst = max(float(m.mean()) * (1 - float(m.mean())) for m in (natural, robust))
    needed = math.ceil(z * z * worst / (len(natural) * half * half))
    return min(_MOST, max(_FEWEST, needed))


# ---- the adversary -------------------------------------------------------------------------------------------------


class _Run:
    """The state of an evaluation: perturbations found so far, and their risks on the selection draws."""

    def __init__(
        self,
        model: RandomizedModel | RandomizedEnsemble,
        inputs: Data,
        seed: int,
        progress: Progress,
        random: bool,
    ) -> None:
        self.model, self.inputs, self.seed, self.progress = model, inputs, seed, progress
        self.cost = Cost()
        self._ends: dict[EOT, list[Tensor]] = {}
        most = max(m.draws for m in members_of(model) if isinstance(m, RandomizedModel))
        self.selected = max(_FEWEST, most) if random else 1
        self._selection = expanded(model, self.selected, _SELECT + 100_000 * seed)
        self.x, self.y = inputs.x.to(self._selection.device), inputs.y.to(self._selection.device)
        self.names: list[tuple[str, int]] = [("clean", 0)]
        self.points: list[Tensor] = [inputs.x]
        self.risks = self._risk(self._selection, inputs.x)[None, :]

    def count(self, forwards: int, backwards: int = 0) -> None:
        """Add to the cost."""
        self.cost += Cost(forwards, backwards)

    def attack(self, attacks: Sequence[Attack], draws: int) -> DrawsStage:
        """Attack `draws` draws with each attack, and test its perturbations on other draws."""
        target = expanded(self.model, draws, 1000 * self.seed)
        inside, outside = [], []
        for attack in attacks:
            x_adv = self.find(attack, draws)
            outside.append(self.risks[-1])
            inside.append(self._risk(target, x_adv))
        chosen = np.argmax(inside, axis=0)
        rows = np.arange(len(self.inputs))
        return DrawsStage(
            draws=draws,
            in_sample=1 - float(np.stack(inside)[chosen, rows].mean()),
            fresh=1 - float(np.stack(outside)[chosen, rows].mean()),
        )

    def find(self, attack: Attack, draws: int, name: str = "") -> Tensor:
        """Attack `draws` draws; add the perturbed inputs to the candidates."""
        label = name or attack.name
        task = f"{label} on {draws} draws"
        x, y = self.inputs.x, self.inputs.y
        target = expanded(self.model, draws, 1000 * self.seed)
        self.progress(task, 0, len(x))
        if isinstance(attack, EOT):
            x_adv = self._expected(attack, target)
        else:
            found = attack(target, x, y)
            self.cost += found.cost
            x_adv = found.x_adv
        self.progress(task, len(x), len(x))
        self._add(label, draws, x_adv)
        return x_adv

    def _expected(self, attack: EOT, target: RandomizedEnsemble) -> Tensor:
        """Of the points where `eot` ends, which do not depend on K, each input's worst on the attack draws."""
        if attack not in self._ends:
            with frozen(self.model), torch.enable_grad():
                parts = [
                    attack.ends(self.model, xs, ys, xs, attack.seed)
                    for xs, ys in batches((self.x, self.y), attack.batch_size)
                ]
            self._ends[attack] = [torch.cat(points).cpu() for points in zip(*parts, strict=True)]
            passes = len(self.x) * 2 * attack.steps * attack.passes(self.model)
            self.count(passes, passes)
            for points in self._ends[attack]:
                self._add(attack.name, 0, points)
        worst = np.argmax([self._risk(target, points) for points in self._ends[attack]], axis=0)
        return torch.stack(self._ends[attack])[torch.from_numpy(worst), torch.arange(len(self.x))]

    def naive(self, threat: Threat) -> float:
        """Make the single-draw evaluation; add its perturbations to the candidates."""
        accuracy, x_adv, passes = single_draw(self.model, self.x, self.y, threat, seed=OTHER + self.seed)
        self.count(passes, passes)
        self._add("single draw", 1, x_adv.cpu())
        return accuracy

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
            ChosenAttack(
                name=name,
                draws=self.names[index][1],
                accuracy=1 - float(self.risks[index].mean()),
                chosen=chosen.count(name),
            )
            for name, index in last.items()
        )

    def spread(self, x_adv: Tensor) -> Spread:
        """Return accuracies of single draws that were not used before."""
        draws = expanded(self.model, min(_BETWEEN, self.selected), OTHER + 1000 * (1 + self.seed))
        random = [index for index, member in enumerate(draws.members) if isinstance(member, FrozenDraw)]
        self.count(2 * len(self.x) * len(draws))
        natural, robust = (
            (~draws.errors(x, self.y)[:, random]).double().mean(dim=0).tolist()
            for x in (self.x, x_adv.to(self.x.device))
        )
        return Spread(natural=natural, robust=robust)

    def noise(self, x_adv: Tensor, threat: Threat) -> GradientNoise:
        """Measure the noise of gradients halfway to the chosen perturbations."""
        y = self.y[:64]
        middle = (self.x[:64] + x_adv[:64].to(self.x.device)) / 2
        passes = 3 * NOISE * len(y) * len(members_of(self.model))
        self.count(passes, passes)
        return gradient_noise(self.model, middle, y, threat, seed=OTHER + self.seed)

    def _add(self, name: str, draws: int, x_adv: Tensor) -> None:
        self.names.append((name, draws))
        self.points.append(x_adv.to(self.inputs.x.dtype))
        self.risks = np.vstack([self.risks, self._risk(self._selection, x_adv)])

    def _risk(self, draws: RandomizedEnsemble, x: Tensor) -> NDArray[np.float64]:
        """Expected errors [n] of frozen draws on perturbed inputs."""
        self.count(len(x) * len(draws))
        risks: NDArray[np.float64] = draws.risk(x.to(self.x.device), self.y).cpu().numpy()
        return risks


def _schedule(most: int) -> list[int]:
    """K = most/8, most/4, most/2, most; at least 8 where there are as many."""
    return sorted({max(min(_FIRST, most), most // part) for part in (8, 4, 2, 1)})


def _plan(
    attack: Attack | Sequence[Attack] | Threat | None, model: RandomizedModel | RandomizedEnsemble, seed: int
) -> list[tuple[Attack, int | None]]:
    """Return the attacks, each with its largest number of draws (None: K)."""
    threat = model.threat if attack is None else attack
    if threat is None:
        raise InputError(
            "attack is None and the model names no threat; give an attack or a threat, e.g. Threat('linf', 8/255)"
        )
    if isinstance(threat, Threat):
        return _portfolio(threat, seed)
    plan: list[tuple[Attack, int | None]] = []
    for one in as_attacks(threat):
        # The suite's attacks are designed for a few members; random models have their own portfolio.
        plan += _portfolio(one.threat, one.seed) if isinstance(one, Suite) else [(one, None)]
    return plan


def _portfolio(threat: Threat, seed: int) -> list[tuple[Attack, int | None]]:
    return [
        (create("eot", threat, seed=seed), None),
        (create("adaptive-pgd-margin", threat, seed=seed), None),
        (create("saddle", threat, orders=1, restarts=1, seed=seed), _SADDLE),
        (create("adaptive-pgd-margin", threat, seed=seed), 1),
    ]


def _shown(value: Estimate) -> str:
    return f"{value.value:.1%} [{value.low:.1%}, {value.high:.1%}]"
