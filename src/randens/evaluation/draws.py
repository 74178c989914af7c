"""Draws of a random classifier: fresh answers with sound intervals, and whether it is random at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.core.errors import InputError, whole
from randens.ensemble import RandomizedEnsemble, frozen
from randens.evaluation.intervals import Estimate, bounded_mean, exact_binomial, widened
from randens.random_model import RandomizedModel

TRIED = 8  # draws compared to see whether a model is random at all
# First seeds of the draws that score, and of those for comparisons.
SCORE, OTHER = 1_600_000_000, 1_900_000_000
_LOOKED = 16  # inputs on which draws are compared
_CALLS = 4_000  # calls with few inputs each that scoring may take where draws cannot be batched
_BUILDS = 1_000  # modules that scoring may ask a factory for


@dataclass(frozen=True)
class Randomness:
    """The comparison of a few draws: whether they differ, by how much (logits, relative), and the share of
    inputs on which the class changes. `seeded` is false if the same seed gave two answers."""

    random: bool
    seeded: bool
    difference: float
    class_changed: float


@dataclass(frozen=True, eq=False)
class Scores:
    """Shares of correct answers on fresh draws, values [n, m]: 0 or 1 where one member answers.

    predicted [n, m]: the class that one draw of the whole model (member and randomness) gives. group [n]: inputs with
    the same number had their m draws in common; `shared` is how many at most.
    """

    values: NDArray[np.float64]
    predicted: NDArray[np.int64]
    group: NDArray[np.int64]

    @property
    def shared(self) -> int:
        """The largest number of inputs that shared a draw."""
        return int(np.bincount(self.group).max())

    def over_draws(self, confidence: float, *, exact: bool = False) -> Estimate:
        """Mean over these inputs, which are the population; the draws are the sample.

        With draws of their own, n·m answers are independent. Where inputs share draws, the calls are, not the answers.
        """
        mean = float(self.values.mean())
        if exact:
            return Estimate(mean, mean, mean)
        if self.shared == 1:
            return _independent(self.values.ravel(), confidence)
        sums = np.zeros((int(self.group.max()) + 1, self.values.shape[1]))
        np.add.at(sums, self.group, self.values)
        # Groups differ in size by one at most; dividing by the largest keeps every call's value in [0, 1].
        scale = self.shared * len(sums) / len(self.values)
        calls = bounded_mean((sums / self.shared).ravel(), confidence)
        return Estimate(mean, min(mean, calls.low * scale), min(1.0, max(mean, calls.high * scale)))

    def over_inputs(self, confidence: float) -> Estimate:
        """Mean over the distribution of the inputs: inputs and draws are samples.

        Where inputs share draws, the interval over draws is widened by the uncertainty from n inputs.
        """
        if self.shared > 1:
            half = (1 + confidence) / 2
            return widened(self.over_draws(half), len(self.values), half)
        means = self.values.mean(axis=1)
        return (_independent if self.values.shape[1] == 1 else bounded_mean)(means, confidence)

    def after(self, attempts: int, confidence: float) -> Estimate:
        """Chance to be right `attempts` times in a row, unbiased: the mean over all sets of as many draws.

        For answers of 0 and 1 that is C(right, q) / C(m, q).
        """
        whole("attempts", attempts, 1, self.values.shape[1], ", the number of scoring draws")
        # Mean product over all sets of k draws, by adding one draw after the other.
        means = np.zeros((attempts + 1, len(self.values)))
        means[0] = 1.0
        for seen, column in enumerate(self.values.T, start=1):
            for k in range(min(attempts, seen), 0, -1):
                means[k] = (k * column * means[k - 1] + (seen - k) * means[k]) / seen
        return self._grouped(means[attempts], confidence)

    def votes(self, votes: int, y: NDArray[np.int64], confidence: float) -> Estimate:
        """Accuracy of the majority of `votes` draws, ties broken at random; every draw is used once."""
        draws = self.predicted.shape[1]
        whole("votes", votes, 1, draws, ", the number of scoring draws")
        classes = int(max(self.predicted.max(), y.max())) + 1
        found = []
        for first in range(0, draws - votes + 1, votes):
            ballots = self.predicted[:, first : first + votes]
            counts = (ballots[:, :, None] == np.arange(classes)).sum(axis=1)
            leading = counts == counts.max(axis=1, keepdims=True)
            found.append(leading[np.arange(len(y)), y] / leading.sum(axis=1))
        return self._grouped(np.mean(found, axis=0), confidence)

    def _grouped(self, values: NDArray[np.float64], confidence: float) -> Estimate:
        """Mean of values [n] in [0, 1]; inputs that shared draws count as one."""
        sums = np.bincount(self.group, values)
        inside = bounded_mean(np.clip(sums / np.bincount(self.group), 0, 1), confidence)
        mean = float(values.mean())
        return Estimate(mean, min(mean, inside.low), max(mean, inside.high))


def _independent(values: NDArray[np.float64], confidence: float) -> Estimate:
    """Mean of independent values in [0, 1]: Clopper and Pearson's interval for zeros and ones."""
    if np.isin(values, (0.0, 1.0)).all():
        return exact_binomial(int(values.sum()), len(values), confidence)
    return bounded_mean(values, confidence)


def score(
    model: RandomizedModel | RandomizedEnsemble, x: Tensor, y: Tensor, draws: int, *, seed: int = SCORE
) -> Scores:
    """`draws` fresh answers to every input.

    Each input has draws of its own, unless a factory would have to make too many modules; then groups of inputs share
    them.
    """
    members = members_of(model)
    probs = np.array(model.probs.tolist() if isinstance(model, RandomizedEnsemble) else [1.0])
    n = len(x)
    random = [m for m in members if isinstance(m, RandomizedModel) and not m.independent(x)]
    limit = min([_BUILDS if m.factory is not None else _CALLS for m in random] or [n * draws])
    groups = max(1, min(n, limit // draws))
    # Neighbors in a data set are often alike; a fixed shuffle spreads them over the groups.
    generator = np.random.default_rng(seed)
    group = generator.permutation(np.arange(n) % groups)
    rows = [torch.from_numpy(np.flatnonzero(group == g)) for g in range(groups)] if groups < n else []
    values, predicted = np.zeros((n, draws)), np.zeros((n, draws), dtype=np.int64)
    answers = generator.choice(len(members), size=(n, draws), p=probs / probs.sum())
    for index, (member, weight) in enumerate(zip(members, probs, strict=True)):
        classes = np.zeros((n, 0), dtype=np.int64)
        for draw in range(draws if isinstance(member, RandomizedModel) else 1):
            base = seed + (index * draws + draw) * max(n, 1)
            classes = np.column_stack([classes, _classes(member, x, rows, base)])
        values += weight * (classes == y.numpy()[:, None])
        predicted = np.where(answers == index, np.broadcast_to(classes, predicted.shape), predicted)
    return Scores(np.clip(values, 0.0, 1.0), predicted, group)


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


def randomness(model: RandomizedModel | RandomizedEnsemble, x: Tensor) -> Randomness:
    """Check on a few inputs with a few seeds whether the model is random and its seed determines the draw."""
    few = x[:_LOOKED]
    random, seeded, difference, changed = False, True, 0.0, 0.0
    for member in members_of(model):
        if not isinstance(member, RandomizedModel):
            continue
        with frozen(member), torch.no_grad():
            draws = [member.freeze(OTHER + s)(few.to(member.device)) for s in range(TRIED)]
            again = member.freeze(OTHER)(few.to(member.device))
        counts = sorted({z.shape[1] for z in draws})
        if len(counts) > 1:
            raise InputError(f"draws have different class counts {counts}; they must agree")
        largest = float(draws[0].abs().max().clamp_min(1e-30))
        seeded &= float((again - draws[0]).abs().max()) <= 1e-5 * largest
        gap = max(float((z - draws[0]).abs().max()) for z in draws[1:]) / largest
        random |= gap > 1e-6
        difference = max(difference, gap)
        moved = torch.stack([z.argmax(dim=1) != draws[0].argmax(dim=1) for z in draws[1:]]).any(dim=0)
        changed = max(changed, float(moved.double().mean()))
    return Randomness(random, seeded, difference, changed)


def members_of(model: RandomizedModel | RandomizedEnsemble) -> list[nn.Module]:
    """The members of an ensemble, or the model itself."""
    return list(model.members) if isinstance(model, RandomizedEnsemble) else [model]
