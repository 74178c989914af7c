"""Checks for random models: randomness, dependence on the seed, flat or noisy losses, number of draws."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from randens import attacks
from randens.attacks import Cost
from randens.audit.auditing import Audit
from randens.audit.case import TOLERANCE, Check
from randens.core.errors import InputError
from randens.core.progress import Progress, silent
from randens.data import Data
from randens.ensemble import RandomizedEnsemble
from randens.evaluation.argument_checks import DataLike, fingerprint, labelled, threat_of
from randens.evaluation.draw_statistics import gradient_noise, members_of, randomness
from randens.random_model import RandomizedModel, expanded, is_random
from randens.threat import Threat

__all__ = ["audit_stochastic"]

_JUDGES = 64  # frozen draws that score every perturbation and that no attack uses
_FIRST = 1_800_000_000
_SAMPLES = (1, 4, 16)  # draws per gradient step
_AGREE = 0.5  # cosine between two gradients below which a step is mostly noise
_STEPS = 20


def audit_stochastic(
    model: RandomizedModel | RandomizedEnsemble,
    data: DataLike,
    threat: Threat | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Check a random classifier; every comparison is on draws that no attack has seen.

    Parameters
    ----------
    model : RandomizedModel or RandomizedEnsemble
        A random classifier, or an ensemble some of whose members are random.
    data, threat, progress
        As for `audit`.
    seed : int
        Determines all draws.

    Returns
    -------
    Audit
        `.passed`, `.checks` and `.verdict`.

    Examples
    --------
    >>> import torch, randens
    >>> net = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))
    >>> model = randens.RandomizedModel(net, draws=4, active=torch.nn.Dropout)
    >>> found = audit_stochastic(model, (torch.rand(6, 4), torch.arange(6) % 3), randens.Threat("linf", 0.1))
    >>> found.checks[0].name, found.checks[0].passed
    ('random-at-all', True)
    """
    start = time.perf_counter()
    report = progress or silent
    if not is_random(model):
        raise InputError(f"model is a {type(model).__name__} without random members; use randens.audit.audit")
    chosen = threat_of(model, threat)
    inputs = labelled(data, expanded(model, 2))
    found = randomness(model, inputs.x)
    checks = [
        Check(
            "random-at-all",
            found.random,
            f"logits of 8 draws differ by up to {found.difference:.2g} of the largest one; the class changes on "
            f"{found.class_changed:.1%} of the inputs"
            if found.random
            else "8 draws gave the same logits: the model is deterministic",
            {"difference": found.difference, "class_changed": found.class_changed},
            "evaluate the module itself; if it should be random, look at the modes of its layers",
        ),
        Check(
            "seed-decides",
            found.seeded,
            "the same seed gave the same logits twice"
            if found.seeded
            else "the same seed gave different logits",
            {"seeded": found.seeded},
            "draw from torch's generators or the `generator` argument, or give a factory that takes the seed; "
            "without that no draw can be repeated and no number reproduced",
        ),
    ]
    cost = Cost()
    complete = found.random and found.seeded
    if complete:
        case = _RandomCase(model, inputs, chosen, seed)
        for number, check in enumerate((_noise, _flat, _saturated)):
            report("audit of the random model", number, 3)
            checks.append(check(case))
        report("audit of the random model", 3, 3)
        cost = case.cost
    return Audit(
        tuple(checks),
        complete,
        fingerprint(expanded(model, 1)),
        inputs.name,
        inputs.split,
        len(inputs),
        chosen,
        seed,
        cost,
        time.perf_counter() - start,
    )


class _RandomCase:
    """The model on n inputs, and the draws that score the perturbations found on other draws."""

    def __init__(
        self, model: RandomizedModel | RandomizedEnsemble, inputs: Data, threat: Threat, seed: int
    ) -> None:
        self.model, self.threat, self.seed = model, threat, seed
        self.judges = expanded(model, _JUDGES, _FIRST)
        self.x, self.y = inputs.x.to(self.judges.device), inputs.y.to(self.judges.device)
        self.cost = Cost()
        self.allowed = max(TOLERANCE, 1 / len(inputs))

    def expected(self, samples: int) -> NDArray[np.float64]:
        """Errors [n] under `eot` whose gradients average `samples` draws."""
        return self._under(16, "eot", samples=samples)

    def frozen(self, draws: int) -> NDArray[np.float64]:
        """Errors [n] under `adaptive-pgd-margin` on `draws` frozen draws."""
        return self._under(draws, "adaptive-pgd-margin")

    def _under(self, draws: int, name: str, **options: Any) -> NDArray[np.float64]:
        attack = attacks.create(name, self.threat, steps=_STEPS, seed=self.seed, **options)
        found = attack(expanded(self.model, draws, 1000 * self.seed), self.x, self.y)
        self.cost += found.cost + Cost(forwards=len(self.x) * len(self.judges))
        risks: NDArray[np.float64] = self.judges.risk(found.x_adv.to(self.x.device), self.y).cpu().numpy()
        return risks


def _noise(case: _RandomCase) -> Check:
    """Two independent gradients over 16 draws must point the same way, else a step follows noise."""
    few = slice(0, 64)
    found = gradient_noise(case.model, case.x[few], case.y[few], case.threat, draws=_SAMPLES[-1])
    passes = 2 * _SAMPLES[-1] * len(case.y[few])
    case.cost += Cost(forwards=passes, backwards=passes)
    good = found.agreement >= _AGREE
    return Check(
        "gradients-above-noise",
        good,
        f"two gradients over {found.draws} draws agree with cosine {found.agreement:.2f}, two of single draws with "
        f"{found.single:.2f}; noise {found.variance:.2f} of the signal; reach between draws {found.reach:.2f}",
        vars(found),
        f"average at least {8 * found.draws} draws per step (eot with samples={8 * found.draws})",
    )


def _flat(case: _RandomCase) -> Check:
    """The loss may look flat because each step sees one draw: more draws per gradient must not find much more."""
    return _settled(
        case,
        "flat-loss-is-not-noise",
        "draws per gradient",
        {samples: float(case.expected(samples).mean()) for samples in _SAMPLES},
        "more draws per gradient still find more: use eot with samples=64 before believing a number",
    )


def _saturated(case: _RandomCase) -> Check:
    """Attacking more frozen draws than the model's K must not find more."""
    most = max(m.draws for m in members_of(case.model) if isinstance(m, RandomizedModel))
    counts = sorted({max(1, most // 4), max(1, most // 2), most})
    return _settled(
        case,
        "saturated-in-draws",
        "attacked draws",
        {draws: float(case.frozen(draws).mean()) for draws in counts},
        f"attack more draws: RandomizedModel(..., draws={4 * most})",
    )


def _settled(case: _RandomCase, name: str, counted: str, risks: Mapping[int, float], advice: str) -> Check:
    """Whether the last step to more draws finds no more than chance."""
    values = list(risks.values())
    said = ", ".join(f"{value:.1%} with {count}" for count, value in risks.items())
    return Check(
        name,
        values[-1] - values[-2:][0] <= case.allowed,
        f"errors on fresh draws by {counted}: {said}",
        {"risks": {str(k): v for k, v in risks.items()}, "allowed": case.allowed},
        advice,
    )
