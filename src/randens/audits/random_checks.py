"""Checks of random models: randomness, dependence on the seed, noisy or flat losses, the number of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from randens import attacks
from randens.attacks import Cost
from randens.attacks.eot import draw_gradients, sources
from randens.attacks.losses import margins
from randens.audits.checks import Check, made
from randens.audits.probes import TOLERANCE
from randens.core.progress import Progress
from randens.ensemble import frozen
from randens.evaluation.draws import members_of, randomness
from randens.evaluation.inputs import Case
from randens.random_model import RandomizedModel, expanded

_JUDGES, _FIRST = 64, 1_800_000_000  # frozen draws that score every perturbation and that no attack uses
_SAMPLES = (1, 4, 16)  # draws per gradient step
_AGREE = 0.5  # cosine between two gradients below which a step is mostly noise
_STEPS = 20


def checks(case: Case, progress: Progress) -> tuple[list[Check], bool, Cost]:
    """All checks, whether the model could be attacked, and the passes; comparisons are on draws that no attack saw."""
    found = randomness(case.rec, case.data.x)
    said = (
        f"logits of 8 draws differ by up to {found.difference:.2g} of the largest one; the class changes on "
        f"{found.class_changed:.1%} of the inputs"
    )
    seeded = (
        "the same seed gave the same logits twice" if found.seeded else "the same seed gave different logits"
    )
    made_checks = [
        made(
            "random-at-all",
            found.random,
            said if found.random else "8 draws gave the same logits: the model is deterministic",
            {"difference": found.difference, "class_changed": found.class_changed},
            "evaluate the module itself; if it should be random, look at the modes of its layers",
        ),
        made(
            "seed-decides",
            found.seeded,
            seeded,
            {"seeded": found.seeded},
            "draw from torch's generators or the `generator` argument, or give a factory that takes the seed; "
            "without that no draw can be repeated and no number reproduced",
        ),
    ]
    if not (found.random and found.seeded):
        return made_checks, False, Cost()
    run = _Run(case)
    for number, check in enumerate((_noise, _flat, _saturated)):
        progress("audit of the random model", number, 3)
        made_checks.append(check(run))
    progress("audit of the random model", 3, 3)
    return made_checks, True, run.cost


class _Run:
    """The model on its inputs, and the draws that score the perturbations found on other draws."""

    def __init__(self, case: Case) -> None:
        self.model, self.threat, self.seed = case.rec, case.threat, case.attacks[0].seed
        self.judges = expanded(case.rec, _JUDGES, _FIRST)
        self.x, self.y = case.data.x, case.data.y
        self.cost = Cost()

    def risk(self, draws: int, name: str, **options: Any) -> float:
        """Errors on fresh draws under an attack on `draws` frozen draws."""
        attack = attacks.create(name, self.threat, steps=_STEPS, seed=self.seed, **options)
        found = attack(expanded(self.model, draws, 1000 * self.seed), self.x, self.y)
        self.cost += found.cost + Cost(forwards=len(self.x) * len(self.judges))
        device = self.judges.device
        return float(self.judges.risk(found.x_adv.to(device), self.y.to(device)).mean())


def _noise(run: _Run) -> Check:
    """Two independent gradients over 16 draws must point the same way, else a step follows noise."""
    x, y, draws = run.x[:64].to(run.judges.device), run.y[:64].to(run.judges.device), _SAMPLES[-1]
    with frozen(run.model), torch.enable_grad():
        one, two = (
            draw_gradients(sources(run.model), x, y, _mean_margin, draws, _FIRST + 100_003 * k)
            for k in (1, 2)
        )
    passes = 2 * draws * len(y)
    run.cost += Cost(forwards=passes, backwards=passes)
    agreement = _cosine(one.mean.flatten(1), two.mean.flatten(1))
    single = _cosine(one.gradients[0].flatten(1), two.gradients[0].flatten(1))
    return made(
        "gradients-above-noise",
        agreement >= _AGREE,
        f"two gradients over {draws} draws agree with cosine {agreement:.2f}, two of single draws with {single:.2f}",
        {"draws": draws, "agreement": agreement, "single": single},
        f"average at least {8 * draws} draws per step (eot with samples={8 * draws})",
    )


def _mean_margin(z: Tensor, y: Tensor, probs: Tensor) -> Tensor:
    return -(probs.to(z.dtype) @ margins(z, y))


def _cosine(one: Tensor, two: Tensor) -> float:
    """Mean over the inputs at which both are not zero, in float64: squares of steep gradients overflow in float32."""
    one, two = (torch.nan_to_num(part, 0.0, 0.0, 0.0).cpu().double() for part in (one, two))
    lengths = torch.linalg.vector_norm(one, dim=1) * torch.linalg.vector_norm(two, dim=1)
    usable = lengths > 0
    return float(((one * two).sum(dim=1)[usable] / lengths[usable]).mean()) if bool(usable.any()) else 0.0


def _flat(run: _Run) -> Check:
    """The loss may look flat because each step sees one draw: more draws per gradient must not find much more."""
    risks = {samples: run.risk(16, "eot", samples=samples) for samples in _SAMPLES}
    advice = "more draws per gradient still find more: use eot with samples=64 before believing a number"
    return _settled(run, "flat-loss-is-not-noise", "draws per gradient", risks, advice)


def _saturated(run: _Run) -> Check:
    """Attacking more frozen draws than the model's K must not find more."""
    most = max(m.draws for m in members_of(run.model) if isinstance(m, RandomizedModel))
    counts = sorted({max(1, most // 4), max(1, most // 2), most})
    risks = {draws: run.risk(draws, "adaptive-pgd-margin") for draws in counts}
    advice = f"attack more draws: RandomizedModel(..., draws={4 * most})"
    return _settled(run, "saturated-in-draws", "attacked draws", risks, advice)


def _settled(run: _Run, name: str, counted: str, risks: Mapping[int, float], advice: str) -> Check:
    """Whether the last step to more draws finds no more than chance."""
    values = list(risks.values())
    said = ", ".join(f"{value:.1%} with {count}" for count, value in risks.items())
    allowed = max(TOLERANCE, 1 / len(run.x))
    return made(
        name,
        bool(np.diff(values[-2:]).sum() <= allowed),
        f"errors on fresh draws by {counted}: {said}",
        {"risks": {str(k): v for k, v in risks.items()}, "allowed": allowed},
        advice,
    )
