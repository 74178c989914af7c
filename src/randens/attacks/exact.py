"""The exact optimum: for linear members, with a proof, and of a finite set. Ground truth for every other attack.

A set T of members can be fooled by one δ iff for some target classes c_i the linear system
m_i + w_i·δ ≤ −τ (i ∈ T), δ ∈ D has a solution, m_i = z_y − z_{c_i} at x and w_i its gradient. If it has none,
some λ in the simplex over T has λ·(m + τ) + min_{δ∈D} (Σ λ_i w_i)·δ > 0, which can be checked without a
solver: for the ball alone it reads λ·m > ε‖Σ λ_i w_i‖_q.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, nnls
from torch import Tensor, nn

from randens.attacks.base import Attack, register
from randens.attacks.search import Search
from randens.core.errors import InputError, ModelError
from randens.region import Region
from randens.threat import FiniteThreat, Threat

Array = NDArray[np.float64]
_MOST_MEMBERS = 10
_MOST_TARGETS = 2000  # ways to fool a set, class by class
_TAU = 8e-5  # relative to the largest logit: larger than what the search's verdicts treat as a tie


@dataclass(frozen=True)
class Refutation:
    """Weights λ over the members `subset`, which prove that they cannot be driven to classes `targets` together."""

    subset: tuple[int, ...]
    targets: tuple[int, ...]
    weights: Array


@dataclass(frozen=True)
class Optimum:
    """The set of largest probability that one legal perturbation fools, and the proof that no larger one exists."""

    fooled: tuple[int, ...]
    value: float
    delta: Array
    refutations: tuple[Refutation, ...]


@dataclass(frozen=True)
class LinearProblem:
    """Margins m [M, C] (inf for y), gradients w [M, C, d], δ in `region`; a member is fooled below −tau [M]."""

    margins: Array
    gradients: Array
    region: Region
    tau: Array

    @property
    def low(self) -> Array:
        """Smallest value of every coordinate of δ [d]."""
        return np.asarray(self.region.low[0])

    @property
    def high(self) -> Array:
        """Largest value of every coordinate of δ [d]."""
        return np.asarray(self.region.high[0])


@dataclass(frozen=True)
class Possible:
    """Maximal `sets` [k, M] that no λ excludes, the classes open to each member, and how many sets λ refuted."""

    sets: NDArray[np.bool_]
    options: tuple[tuple[int, ...], ...]
    refuted: int


def affine(member: nn.Module, example: Tensor) -> tuple[Array, Array]:
    """W [C, d] and b [C] of a member that is linear in its input; anything else is refused."""
    kind = getattr(member, "architecture", {}).get("name", type(member).__name__)
    zero = torch.zeros_like(example[:1], dtype=torch.float64)
    wide = double(member)
    with torch.enable_grad():
        point = zero.clone().requires_grad_(True)
        z = wide(point).squeeze(0)
        if not z.requires_grad:
            raise InputError(f"a member ({kind}) gives no gradients; the exact attack needs them")
        lines = [torch.autograd.grad(value, point, retain_graph=True)[0].flatten() for value in z]
    weight = torch.stack(lines)
    with torch.no_grad():
        bias = wide(zero).squeeze(0)
        probe = example[: min(8, len(example))].double()
        probe = torch.cat([probe, 2 * probe + 1, -probe - 1])
        z = wide(probe)
        gap = (z - probe.flatten(1) @ weight.T - bias).abs().max()
    if float(gap) > 1e-6 * float(z.abs().max()):
        raise InputError(f"a member ({kind}) is not linear in its input; the exact attack needs linear ones")
    return weight.numpy(), bias.numpy()


def optimum(problem: LinearProblem, probs: Array) -> Optimum:
    """Search subsets of individually foolable members, best first, skipping supersets of refuted ones."""
    decide = Decisions(problem)
    able = [i for i in range(len(probs)) if decide.options[i] and probs[i] > 0]
    subsets = [t for k in range(1, len(able) + 1) for t in itertools.combinations(able, k)]
    # Largest probability first; among equals the smaller set, which is easier to decide.
    subsets.sort(key=lambda t: (-float(probs[list(t)].sum()), len(t)))
    hopeless: list[frozenset[int]] = []
    for subset in subsets:
        if any(bad <= frozenset(subset) for bad in hopeless):
            continue
        delta = decide.fooling(subset)
        if delta is not None:
            return Optimum(subset, float(probs[list(subset)].sum()), delta, tuple(decide.refutations))
        hopeless.append(frozenset(subset))
    return Optimum((), 0.0, np.zeros_like(problem.low), tuple(decide.refutations))


def verify(problem: LinearProblem, found: Optimum, probs: Array) -> bool:
    """Re-check an optimum without any solver: its δ works, and every heavier set contains a refuted one."""
    delta = found.delta
    legal = bool(((delta >= problem.low - 1e-12) & (delta <= problem.high + 1e-12)).all())
    if problem.region.radius is not None:
        legal &= float(np.linalg.norm(delta, problem.region.p)) <= problem.region.radius * (1 + 1e-9)
    moved = problem.margins + problem.gradients @ delta
    if not legal or not all((moved[i] < 0).any() for i in found.fooled):
        return False
    sound = [r for r in found.refutations if _refutes(problem, r)]
    classes = [[c for c in range(problem.margins.shape[1]) if np.isfinite(m[c])] for m in problem.margins]
    sampled = [i for i in range(len(probs)) if probs[i] > 0]
    for k in range(1, len(sampled) + 1):
        for subset in itertools.combinations(sampled, k):
            heavier = probs[list(subset)].sum() > found.value + 1e-12
            if heavier and not _covered(subset, classes, sound):
                return False
    return True


def possible(problem: LinearProblem, known: Sequence[Sequence[bool]] = (), *, joint: bool = True) -> Possible:
    """Which members may be fooled, alone and, with `joint`, together: sets of them are refuted by λ-certificates.

    Sets of `known` are fooled by a witness, so that nothing refutes them. A set that could be fooled in more than
    _MOST_TARGETS ways, class by class, counts as not refuted. The problem's margins lie below the true ones.
    """
    decide, members = Decisions(problem), len(problem.margins)
    able = [i for i in range(members) if decide.options[i]]
    open_sets = {frozenset(able)} - {frozenset()}
    refuted = 0
    if joint:
        fooled = [frozenset(np.flatnonzero(row).tolist()) for row in known]
        level = {frozenset({i}) for i in able}
        open_sets = set(level)
        for size in range(2, len(able) + 1):
            below, level = level, set()
            for subset in itertools.combinations(able, size):
                whole = frozenset(subset)
                if any(whole - {i} not in below for i in subset):
                    continue
                many = math.prod(len(decide.options[i]) for i in subset) > _MOST_TARGETS
                if many or any(whole <= w for w in fooled) or not decide.refuted(subset):
                    level.add(whole)
                else:
                    refuted += 1
            open_sets |= level
    table = np.zeros((len(open_sets), members), dtype=np.bool_)
    for row, members_of in enumerate(sorted(open_sets, key=sorted)):
        table[row, list(members_of)] = True
    return Possible(table, tuple(tuple(o) for o in decide.options), refuted)


def problems(rec: nn.ModuleList, x: Tensor, y: Tensor, threat: Threat) -> Iterator[LinearProblem]:
    """The linear problem of every input, in float64."""
    maps = [affine(member, x) for member in rec]
    weights, biases = np.stack([w for w, _ in maps]), np.stack([b for _, b in maps])
    inputs, region = x.double().flatten(1).numpy(), Region.around(x.double(), threat)
    for j, label in enumerate(y.tolist()):
        z = weights @ inputs[j] + biases
        margins = z[:, [label]] - z
        margins[:, label] = np.inf
        gradients = weights[:, [label]] - weights
        # The largest logit in the cube is the scale that separates an error from a tie.
        furthest = torch.maximum(region.high[j], -region.low[j]).numpy()
        largest = (np.abs(z) + np.abs(weights) @ furthest).max(axis=1)
        yield LinearProblem(margins, gradients, region[j : j + 1], _TAU * largest)


class Decisions:
    """Which members one perturbation fools together, or λ against it; `options` are the classes open to each alone."""

    def __init__(self, problem: LinearProblem) -> None:
        self.problem = problem
        self.refutations: list[Refutation] = []
        # What is solved: members, their target classes, and a δ that drives them there, or None.
        self.solved: dict[tuple[tuple[int, ...], tuple[int, ...]], Array | None] = {}
        self.options: list[list[int]] = [[] for _ in problem.margins]
        for member, target in zip(*np.isfinite(problem.margins).nonzero(), strict=True):
            alone = Refutation((int(member),), (int(target),), np.ones(1))
            if _refutes(problem, alone):
                self.refutations.append(alone)
            else:
                self.options[member].append(int(target))

    def fooling(self, subset: tuple[int, ...]) -> Array | None:
        """A δ that fools all of `subset`, over target tuples whose pairs are all possible; None if there is none."""
        for targets in itertools.product(*(self.options[i] for i in subset)):
            pairs = itertools.combinations(zip(subset, targets, strict=True), 2) if len(subset) > 2 else ()
            if any(self.driving((i, j), (c, k)) is None for (i, c), (j, k) in pairs):
                continue
            delta = self.driving(subset, targets)
            if delta is not None:
                return delta
        return None

    def driving(self, subset: tuple[int, ...], targets: tuple[int, ...]) -> Array | None:
        """A δ that drives every member of the subset to its target class; None, and its refutation noted."""
        if (subset, targets) not in self.solved:
            rows, problem = list(subset), self.problem
            margins = problem.margins[rows, list(targets)] + problem.tau[rows]
            solve = _solve_ball if problem.region.p == 2 else _solve_linear
            delta, weights = solve(margins, problem.gradients[rows, list(targets)], problem)
            if delta is None:
                self.refutations.append(Refutation(subset, targets, weights))
            self.solved[subset, targets] = delta
        return self.solved[subset, targets]

    def refuted(self, subset: tuple[int, ...]) -> bool:
        """Is there a λ against every way of fooling the subset?"""
        self.refutations.clear()
        if self.fooling(subset) is not None:
            return False
        if all(_refutes(self.problem, proof) for proof in self.refutations):
            return True
        self.solved.clear()  # the solver's answer alone is no proof
        return False


def _solve_linear(margins: Array, gradients: Array, problem: LinearProblem) -> tuple[Array | None, Array]:
    """linf, and l1 by δ = a − b: min t with m_i + w_i·δ ≤ s_i t; the program's multipliers are λ."""
    d, radius = gradients.shape[1], problem.region.radius
    scale = np.linalg.norm(gradients, 1 if radius is None else np.inf, axis=1)
    # A constant member's margin, divided by almost nothing, would be infinite for the solver.
    scale[scale < 1e-30] = 1.0
    rows, right = gradients / scale[:, None], -margins / scale
    bounds: list[tuple[float | None, float | None]] = [*zip(problem.low, problem.high, strict=True)]
    if radius is not None:
        rows, right = np.r_[np.c_[rows, -rows], np.ones((1, 2 * d))], np.r_[right, radius]
        bounds = [(0.0, end) for end in (*problem.high, *-problem.low)]
    slack = np.r_[-np.ones(len(margins)), np.zeros(len(rows) - len(margins))]
    solved = linprog(
        np.r_[np.zeros(rows.shape[1]), 1.0],
        A_ub=np.c_[rows, slack],
        b_ub=right,
        bounds=[*bounds, (None, None)],
        method="highs",
    )
    if solved.status != 0:
        raise ModelError(f"the linear program of the exact attack failed: {solved.message}")
    if solved.x[-1] <= 0:
        delta = solved.x[:d] if radius is None else solved.x[:d] - solved.x[d : 2 * d]
        return np.clip(delta, problem.low, problem.high), np.zeros(0)
    weights = np.clip(-solved.ineqlin.marginals[: len(margins)], 0, None) / scale
    return None, weights / weights.sum()


def _solve_ball(margins: Array, gradients: Array, problem: LinearProblem) -> tuple[Array | None, Array]:
    """l2: the shortest δ with m + Wδ ≤ 0 inside the box (least distance programming by one NNLS)."""
    radius = problem.region.radius
    assert radius is not None
    eye = np.eye(gradients.shape[1])
    bounded_low, bounded_high = np.isfinite(problem.low), np.isfinite(problem.high)
    g = np.vstack([-gradients, eye[bounded_low], -eye[bounded_high]])
    h = np.r_[margins, problem.low[bounded_low], -problem.high[bounded_high]]
    system = np.vstack([g.T, h])
    goal = np.zeros(len(system))
    goal[-1] = 1.0
    multipliers, residual = nnls(system, goal, maxiter=50 * system.shape[1])
    weights = multipliers[: len(margins)]
    total = weights.sum()
    weights = weights / total if total > 0 else np.full(len(margins), 1.0 / len(margins))
    if residual < 1e-10:
        return None, weights
    gap = system @ multipliers - goal
    delta = -gap[:-1] / gap[-1]
    if np.linalg.norm(delta) <= radius:
        return np.clip(delta, problem.low, problem.high), weights
    return None, weights


def _refutes(problem: LinearProblem, proof: Refutation) -> bool:
    """Check λ·(m + τ) + min_{δ∈D} (Σ λ_i w_i)·δ > 0 by arithmetic alone."""
    rows, targets, weights = list(proof.subset), list(proof.targets), proof.weights
    if len(weights) != len(rows) or (weights < 0).any() or abs(weights.sum() - 1) > 1e-9:
        return False
    slope = weights @ problem.gradients[rows, targets]
    offset = float(weights @ (problem.margins[rows, targets] + problem.tau[rows]))
    return offset + float(problem.region.minimum(torch.from_numpy(slope).unsqueeze(0))) > 0


def _covered(subset: tuple[int, ...], classes: list[list[int]], sound: list[Refutation]) -> bool:
    """Is every way of fooling `subset` refuted?"""
    tables = [{(s, t) for s, t in zip(r.subset, r.targets, strict=True)} for r in sound]
    relevant = [t for t in tables if {s for s, _ in t} <= set(subset)]
    for targets in itertools.product(*(classes[i] for i in subset)):
        assignment = set(zip(subset, targets, strict=True))
        if not any(t <= assignment for t in relevant):
            return False
    return True


def double(member: nn.Module) -> nn.Module:
    """A float64 copy on the CPU, in eval mode."""
    try:
        return copy.deepcopy(member).cpu().double().eval()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(f"{type(member).__name__} cannot be copied to float64: {error}") from error


@register("exact")
@dataclass(frozen=True, kw_only=True)
class Exact(Attack):
    """The optimum for linear members (binary or multiclass, linf, l2 and l1, with the box); at most 10 members.

    A member counts as fooled where its margin is below −τ; τ is 8e-5 of the largest logit that δ can cause. Closer to
    its boundary lies a tie, which rounding decides: another attack may count it as an error.
    """

    exact: ClassVar[bool] = True

    def search(self, s: Search) -> None:
        if s.members > _MOST_MEMBERS:
            raise InputError(f"there are {s.members} members; the exact attack takes at most {_MOST_MEMBERS}")
        probs, rows = s.probs.cpu().numpy(), s.open
        if not len(rows):
            return
        for row, problem in zip(
            rows, problems(s.rec.members, s.x[rows].cpu(), s.y[rows].cpu(), s.threat), strict=True
        ):
            delta = torch.from_numpy(optimum(problem, probs).delta).to(s.x)
            s.judge(row[None], s.x[row[None]] + delta.reshape(1, *s.x.shape[1:]))


@register("finite")
@dataclass(frozen=True, kw_only=True)
class Finite(Attack):
    """Try every transformation of a `FiniteThreat` on every input. The source of a witness is its transformation.

    Examples
    --------
    >>> import torch, randens
    >>> Finite(randens.FiniteThreat([torch.zeros_like])).name
    'finite'
    """

    exact: ClassVar[bool] = True
    enumerates: ClassVar[bool] = True

    def search(self, s: Search) -> None:
        assert isinstance(s.threat, FiniteThreat)
        # Members with probability 0 count, too: what is found holds for every α.
        rows = (~s.best.all(dim=1)).nonzero().flatten()
        for name, points in s.threat.points(s.x[rows]) if len(rows) else ():
            open_ = ~s.best[rows].all(dim=1)
            s.source = name
            # The original members, so that ties are decided as `RandomizedEnsemble.errors` does.
            errors = s.rec.errors(points[open_], s.y[rows[open_]])
            s.cost.forwards += len(errors) * len(s.rec.networks)
            s.record(rows[open_], points[open_], errors)
