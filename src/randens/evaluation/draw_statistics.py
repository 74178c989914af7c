"""Statistics of a random classifier's draws: fresh answers with sound intervals, whether it is random, the
noise of its gradients, and the number that a single-draw evaluation reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from randens.attacks.eot import draw_gradients, sources
from randens.attacks.losses import expected_margin, margins
from randens.core.devices import widest
from randens.core.documents import Document
from randens.core.errors import InputError
from randens.ensemble import RandomizedEnsemble, frozen
from randens.evaluation.intervals import Estimate, bounded_mean, exact_binomial, widened
from randens.random_model import RandomizedModel
from randens.threat import Threat

__all__ = [
    "GradientNoise",
    "Randomness",
    "Scores",
    "gradient_noise",
    "members_of",
    "randomness",
    "score",
    "single_draw",
]

TRIED = 8  # draws compared to see whether a model is random at all
NOISE = 16  # draws per gradient whose noise is reported
# First seeds of the draws that score and of those for everything else; attack draws begin at 0, `eot` ends below 1.1e9.
SCORE, OTHER = 1_600_000_000, 1_900_000_000
_LOOKED = 16  # inputs on which that is done
_CALLS = 4_000  # calls with few inputs each that scoring may take where draws cannot be batched
_BUILDS = 1_000  # modules that scoring may ask a factory for
_LOUD = 1e6  # noise to signal beyond which more digits say nothing


@dataclass(frozen=True)
class Randomness:
    """The comparison of a few draws: whether they differ, by how much (logits, relative), and the share of
    inputs on which the class changes. `seeded` is false if the same seed gave two answers."""

    random: bool
    seeded: bool
    difference: float
    class_changed: float


class GradientNoise(Document):
    """The noise of a gradient of the expected margin that averages `draws` draws.

    variance: of the mean's noise, relative to the squared gradient (0: none; 1: as much noise as signal). agreement:
    mean cosine between two independent gradients. single: the same between gradients of one draw. reach:
    share of ε left to one perturbation that must fool all draws, ‖mean of w_s/‖w_s‖_q‖_q (1: draws do not
    conflict).
    """

    draws: int
    variance: float
    agreement: float
    single: float
    reach: float


@dataclass(frozen=True, eq=False)
class Scores:
    """Shares of correct answers on fresh draws, values [n, m]: 0 or 1 where one member answers.

    members: expected accuracy of each member on each input [n, M]. group [n]: inputs with the same number had their m
    draws in common; `shared` is how many at most.
    """

    values: NDArray[np.float64]
    members: NDArray[np.float64]
    group: NDArray[np.int64]

    @property
    def shared(self) -> int:
        """The largest number of inputs that shared a draw."""
        return int(np.bincount(self.group).max())

    def over_draws(self, confidence: float, *, exact: bool = False) -> Estimate:
        """Mean over these inputs, which are the population; the draws are the sample.

        With draws of their own, n·m answers are independent: Clopper and Pearson's interval for zeros and ones, else
        `bounded_mean`. Where inputs share draws, the calls are independent, not the answers.
        """
        mean = float(self.values.mean())
        if exact:
            return Estimate(mean, mean, mean)
        if self.shared == 1:
            if np.isin(self.values, (0.0, 1.0)).all():
                return exact_binomial(int(self.values.sum()), self.values.size, confidence)
            return bounded_mean(self.values.ravel(), confidence)
        sums = np.zeros((int(self.group.max()) + 1, self.values.shape[1]))
        np.add.at(sums, self.group, self.values)
        # Groups differ in size by one at most; dividing by the largest keeps every call's value in [0, 1].
        scale = self.shared * len(sums) / len(self.values)
        calls = bounded_mean((sums / self.shared).ravel(), confidence)
        return Estimate(mean, min(mean, calls.low * scale), min(1.0, max(mean, calls.high * scale)))

    def over_inputs(self, confidence: float) -> Estimate:
        """Mean over the distribution of the inputs: inputs and draws are samples.

        With draws of their own, the inputs' mean answers are independent and identically distributed, whatever m is.
        Where inputs share draws, the interval over draws is widened by the uncertainty from n inputs.
        """
        if self.shared > 1:
            half = (1 + confidence) / 2
            return widened(self.over_draws(half), len(self.values), half)
        means = self.values.mean(axis=1)
        if self.values.shape[1] == 1 and np.isin(means, (0.0, 1.0)).all():
            return exact_binomial(int(means.sum()), len(means), confidence)
        return bounded_mean(means, confidence)


def score(
    model: RandomizedModel | RandomizedEnsemble, x: Tensor, y: Tensor, draws: int, *, seed: int = SCORE
) -> Scores:
    """Return `draws` fresh answers to every input.

    Each input has draws of its own, unless a factory would have to make too many modules; then groups of inputs share
    them.

    Parameters
    ----------
    model : RandomizedModel or RandomizedEnsemble
        A random classifier, or an ensemble.
    x, y : Tensor [n, ...] and [n]
        Inputs and labels.
    draws : int
        m, how many answers each input gets.
    seed : int
        The first seed.

    Returns
    -------
    Scores
        `.values` [n, m], shares of correct answers, with intervals by `over_draws` and `over_inputs`.

    Examples
    --------
    >>> import torch, randens
    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    >>> model = randens.RandomizedModel(net, active=torch.nn.Dropout)
    >>> score(model, torch.rand(6, 4), torch.arange(6) % 3, draws=20).values.shape
    (6, 20)
    """
    members = members_of(model)
    probs = model.probs.tolist() if isinstance(model, RandomizedEnsemble) else [1.0]
    n = len(x)
    random = [m for m in members if isinstance(m, RandomizedModel)]
    limit = min(
        [_BUILDS if m.factory is not None else _CALLS for m in random if not m.independent(x)] or [n * draws]
    )
    groups = max(1, min(n, limit // draws))
    # Neighbours in a data set are often alike; a fixed shuffle spreads them over the groups.
    group = np.random.default_rng(0).permutation(np.arange(n) % groups)
    rows = [torch.from_numpy(np.flatnonzero(group == g)) for g in range(groups)] if groups < n else []
    values = np.zeros((n, draws))
    accuracies = np.zeros((n, len(members)))
    for index, (member, weight) in enumerate(zip(members, probs, strict=True)):
        for draw in range(draws if isinstance(member, RandomizedModel) else 1):
            base = seed + (index * draws + draw) * max(n, 1)
            right = _right(member, x, y, rows, base)
            if isinstance(member, RandomizedModel):
                values[:, draw] += weight * right
                accuracies[:, index] += right / draws
            else:
                values += weight * right[:, None]
                accuracies[:, index] = right
    return Scores(np.clip(values, 0.0, 1.0), accuracies, group)


def _right(member: nn.Module, x: Tensor, y: Tensor, rows: list[Tensor], seed: int) -> NDArray[np.float64]:
    """Correct answers [n] to every input, under draws that start at `seed`."""
    device = next((p.device for p in member.parameters()), torch.device("cpu"))
    target = y.to(device)
    right = torch.zeros(len(x), dtype=torch.bool, device=device)
    with frozen(member), torch.no_grad():
        if not isinstance(member, RandomizedModel):
            return (
                (RandomizedEnsemble([member]).verdicts(x.to(device))[:, 0] == target).double().cpu().numpy()
            )
        if not rows:
            for first in range(0, len(x), 512):
                part = slice(first, first + 512)
                z = member.sample(x[part].to(device), (seed + first) % 2**31)
                right[part] = z.argmax(dim=1) == target[part]
        for number, chosen in enumerate(rows):
            z = member.freeze((seed + number) % 2**31)(x[chosen].to(device))
            right[chosen] = z.argmax(dim=1) == target[chosen]
    verdicts: NDArray[np.float64] = right.double().cpu().numpy()
    return verdicts


def randomness(model: RandomizedModel | RandomizedEnsemble, x: Tensor) -> Randomness:
    """Check on a few inputs with a few seeds whether the model is random and its seed determines the draw."""
    few = x[:_LOOKED]
    random, seeded, difference, changed = False, True, 0.0, 0.0
    for member in members_of(model):
        if not isinstance(member, RandomizedModel):
            continue
        device = member.device
        with frozen(member), torch.no_grad():
            draws = [member.freeze(OTHER + s)(few.to(device)) for s in range(TRIED)]
            again = member.freeze(OTHER)(few.to(device))
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


def gradient_noise(
    model: RandomizedModel | RandomizedEnsemble,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    draws: int = NOISE,
    seed: int = OTHER,
) -> GradientNoise:
    """Measure the noise of averaged gradients at the points x; see `GradientNoise`."""
    slopes = []
    with frozen(model), torch.enable_grad():
        for number in (0, 1):
            found = draw_gradients(sources(model), x, y, _mean_margin, draws, seed + 100_003 * number)
            # In float64: squares of steep gradients overflow in float32.
            wide = widest(found.gradients, x.device)
            slopes.append(torch.nan_to_num(wide, 0.0, 0.0, 0.0).flatten(2))
    weights = found.weights.to(slopes[0])
    own = slopes[0] / weights[:, None, None]
    lengths = torch.linalg.vector_norm(own, threat.q, dim=2, keepdim=True)
    units = torch.einsum("s,snd->nd", weights, own / lengths.clamp_min(1e-30))
    usable = (lengths > 0).all(dim=0).squeeze(1)
    reach = torch.linalg.vector_norm(units, threat.q, dim=1)[usable]
    one, two = (part.sum(dim=0) for part in slopes)
    signal = float((one * two).sum())  # unbiased for the squared expected gradient
    noise = float((one - two).square().sum()) / 2  # unbiased for the variance of either mean
    return GradientNoise(
        draws=draws,
        variance=min(noise / signal, _LOUD) if signal > 0 else (_LOUD if noise > 0 else 0.0),
        agreement=_cosine(one, two),
        single=_cosine(slopes[0].flatten(0, 1), slopes[1].flatten(0, 1)),
        reach=float(reach.mean()) if len(reach) else 0.0,
    )


def _mean_margin(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    return -(probs.to(z.dtype) @ margins(z, y))


def _cosine(one: Tensor, two: Tensor) -> float:
    """Mean over the inputs at which both are not zero."""
    lengths = torch.linalg.vector_norm(one, dim=1) * torch.linalg.vector_norm(two, dim=1)
    usable = lengths > 0
    return float(((one * two).sum(dim=1)[usable] / lengths[usable]).mean()) if bool(usable.any()) else 0.0


def single_draw(
    model: RandomizedModel | RandomizedEnsemble,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    *,
    steps: int = 40,
    seed: int = OTHER,
) -> tuple[float, Tensor, int]:
    """Return the accuracy that a single-draw evaluation reports, for comparison only.

    This is what AutoAttack does with models that it assumes to be deterministic: each step's gradient comes
    from one draw, and an input counts as fooled as soon as one answer during the attack is wrong.

    Parameters
    ----------
    model, x, y, seed
        As for `score`.
    threat : Threat
        The perturbation set.
    steps : int
        Gradient steps.

    Returns
    -------
    tuple of float, Tensor, int
        The accuracy, the perturbed inputs behind it, and how many forward and as many backward passes it took.

    Examples
    --------
    >>> import torch, randens
    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    >>> model = randens.RandomizedModel(net, active=torch.nn.Dropout)
    >>> accuracy, x_adv, passes = single_draw(model, torch.rand(6, 4), torch.arange(6) % 3, randens.Threat("linf", 0.1))
    >>> 0 <= accuracy <= 1, tuple(x_adv.shape)
    (True, (6, 4))
    """
    drawn = sources(model)
    point, kept, passes = x.clone(), x.clone(), 0
    fooled = torch.zeros(len(x), dtype=torch.bool, device=x.device)
    generator = torch.Generator().manual_seed(seed)
    with frozen(model), torch.enable_grad():
        for k in range(steps):
            rows = (~fooled).nonzero().flatten()
            if not len(rows):
                break
            found = draw_gradients(drawn, point[rows], y[rows], expected_margin, 1, seed + 13 * k)
            passes += len(rows) * len(found.weights)
            pick = int(torch.multinomial(found.weights.cpu(), 1, generator=generator))
            wrong = found.z[pick].argmax(dim=1) != y[rows]
            kept[rows] = point[rows]
            fooled[rows[wrong]] = True
            stride = 2 * threat.eps * (1 - k / steps)
            point[rows] = threat.project(point[rows] + stride * threat.steepest(found.mean), x[rows])
    return 1 - float(fooled.double().mean()), kept, passes


def members_of(model: RandomizedModel | RandomizedEnsemble) -> list[nn.Module]:
    """The members of an ensemble, or the model itself."""
    return list(model.members) if isinstance(model, RandomizedEnsemble) else [model]
